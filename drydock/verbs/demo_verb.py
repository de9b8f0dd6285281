"""The verb `demo`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.errors import BuildError
from drydock.model.shared_options import VerboseOption


class DemoOptions(VerboseOption):
    """What the demo starts."""

    topology: Literal["", "1p1d", "2p1d", "tp3"] = ""
    """several servers: 1p1d or 2p1d (prefill and decode), tp3 (three hosts, one server)"""


@Verb
def show_demo(options: DemoOptions) -> None:
    """Build the CPU image, serve a small real model and ask it a question."""
    from drydock.build.build import Clock, build_image
    from drydock.build.build_job import prepare_job
    from drydock.config.project_choice import DRYDOCK
    from drydock.prove import demo, demo_topology
    from drydock.prove.smollm2 import make_small_model
    from drydock.topology.planned_file import ROUTER

    clock = Clock()
    image = demo.build_or_relock(DRYDOCK)
    built = image.built
    is_routed = options.topology and demo_topology.SHAPES[options.topology].routed
    router = build_image(prepare_job(DRYDOCK, ROUTER)).image if is_routed else ""
    clock.lap("build")
    model = make_small_model(built.image)
    clock.lap("model")
    if options.topology:
        shown, answer = demo_topology.serve_topology(DRYDOCK, options.topology, model, built.image, router)
        clock.lap("serve")
        write_output(f"{shown.text}{demo_topology.format_topology_report(image, clock.laps, answer)}")
    else:
        with demo.run_model_server(built.image, model) as container:
            demo.wait_until_ready(container)
            clock.lap("start")
            answer = demo.ask_chat_question(container, demo.QUESTION)
            clock.lap("answer")
        seconds = {**built.phases, **demo.without_build(clock.laps)}
        write_output(demo.format_demo_report(image, seconds, answer))
    if demo.EXPECTED not in answer:
        who = "servers" if options.topology else "server"
        raise BuildError(f"the {who} answered {answer!r}, expected an answer that contains {demo.EXPECTED!r}")
