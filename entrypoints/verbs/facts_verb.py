"""`facts [--record PATH]`: prints what was found on the host as JSON, or writes a recorded host. IO.

Its options are in request/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.errors import OK
from entrypoints.core.output import emit_json
from entrypoints.core.records import to_json
from entrypoints.core.text import tell_user
from entrypoints.facts.facts import ProbedHost, probe_host
from entrypoints.facts.image_files import read_profile
from entrypoints.request.arguments import Arguments


def run_facts(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Print or record the facts. Raises USAGE, HOST."""
    probed = probe_host(arguments.root, read_profile(env), env)
    if arguments.record:
        from entrypoints.facts.record import write_recorded_host

        facts, host, commands = probed
        path = write_recorded_host(host, commands, facts, arguments.record, _read_measured(probed))
        tell_user(f"recorded {path}")
    else:
        emit_json(to_json(probed.facts))
    return OK


def _read_measured(probed: ProbedHost) -> dict[str, str]:
    """Return the last comparison of the memory with a plan, by its path in a recorded host."""
    from entrypoints.serve.measured import RECORDED_AS, read_kept

    facts, host, _ = probed
    text = read_kept(facts.mounts["cache"].path) if host.live else host.text(RECORDED_AS)
    return {RECORDED_AS: text} if text else {}
