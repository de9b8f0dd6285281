"""The verb `lock`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here, report_checked
from drydock.cli.verb import Verb
from drydock.model.shared_options import CheckOption, ContextOption, JsonOption, RowOrAllOption, SuppliedOption


class LockVerbOptions(RowOrAllOption, CheckOption, ContextOption, SuppliedOption, JsonOption):
    """Which locks are made, and what may move."""

    upgrade: bool = False
    """take the newest of everything that the stack allows; without it, valid pins stay"""
    upgrade_package: tuple[str, ...] = ()
    """take the newest of one distribution, of one source, or of `base`; repeatable"""


@Verb
def lock_rows(options: LockVerbOptions) -> None:
    """Pin all inputs of an image by hash in images/VARIANT/lock.json. Valid pins stay."""
    from drydock.lock import lockfile

    if options.check:
        lockfile.read_current(here(), choose_variants(options.target))
        report_checked(json=options.json)
        return
    from drydock.projects import locking

    settings = locking.parse_lock_options(
        options.target, options.context, options.supplied, options.upgrade_package, every=options.upgrade
    )
    locking.lock_variants(here(), choose_variants(options.target), settings, json=options.json)
