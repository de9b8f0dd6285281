"""A build as a generator of plans: whoever runs it bakes each plan, and then goes on. So many can be baked together.

An error is raised where the plan was yielded: the generator's own blocks tidy up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

Plan = Mapping[str, Any]
"""A docker-bake.json of one target."""
Result = TypeVar("Result")
Steps = Generator[Plan, None, Result]


def run_steps(steps: Steps[Result], bake: Callable[[Plan], object]) -> Result:
    """Run a build to its end, one plan after the other; return its result. Raises what it or `bake` raises."""
    try:
        plan = next(steps)
        while True:
            try:
                bake(plan)
            except BaseException as error:  # noqa: BLE001 - raised again, where the plan was yielded
                plan = steps.throw(error)
            else:
                plan = next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
