"""Finds the verb of a command line, runs it, and reports its errors. IO.

Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Mapping
from importlib import import_module

from entrypoints.core.errors import INTERNAL, EntrypointError
from entrypoints.core.text import format_one_line, tell_user
from entrypoints.request.arguments import Arguments, parse_arguments

Env = Mapping[str, str]

VERB_MODULES = {
    "serve": "entrypoints.verbs.serve_verb",
    "plan": "entrypoints.verbs.plan_verb",
    "check": "entrypoints.verbs.check_verb",
    "facts": "entrypoints.verbs.facts_verb",
    "warm": "entrypoints.verbs.warm_verb",
    "convert": "entrypoints.verbs.convert_verb",
    "bench": "entrypoints.verbs.bench_verb",
    "fabric": "entrypoints.verbs.fabric_verb",
    "cache": "entrypoints.verbs.cache_verb",
    "explain": "entrypoints.verbs.explain_verb",
    "report": "entrypoints.verbs.report_verb",
    "health": "entrypoints.verbs.health_verb",
    "version": "entrypoints.verbs.version_verb",
    "help": "entrypoints.verbs.help_verb",
    "exec": "entrypoints.verbs.exec_verb",
}
"""Verb → its module, which defines `run_VERB(arguments, env) -> int`. Names, so that a start imports only its own verb.

request/arguments.py has what `help` says of each, and the options.
"""
_SUPERVISING = ("serve", "warm")
"""Verbs whose supervisor takes the signals that __main__.py has blocked."""


def main(argv: tuple[str, ...], env: Env) -> int:
    """Run one command line and return its exit code."""
    try:
        arguments = parse_arguments(argv)
        if arguments.verb in _SUPERVISING:
            gc.disable()  # before the imports: they and planning make many objects and little garbage
        else:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        return _import_verb(arguments.verb)(arguments, env)
    except EntrypointError as error:
        from entrypoints.core.language import translate_error
        from entrypoints.core.redact import redact_text

        tell_user(redact_text(f"drydock: {translate_error(_read_error_words(argv, env), error)}"))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 -- whatever it is, its exit code must not be one of vLLM's
        return _report_defect(error)


def _import_verb(verb: str) -> Callable[[Arguments, Env], int]:
    """Import a verb's module, and return its function."""
    run: Callable[[Arguments, Env], int] = getattr(import_module(VERB_MODULES[verb]), f"run_{verb}")
    return run


def _read_error_words(argv: tuple[str, ...], env: Env) -> Mapping[str, str]:
    """Return the translations for an error; none if the error is about the profile or the language itself."""
    from itertools import pairwise

    from entrypoints.core.language import LANG, translate_profile
    from entrypoints.facts.image_files import read_profile

    # not of `arguments`: the error may be that the command line cannot be parsed
    languages = [word.partition("=")[2] for word in argv if word.startswith(f"{LANG}=")]
    languages += [value for name, value in pairwise(argv) if name == LANG]
    try:
        return translate_profile(read_profile(env), languages[-1] if languages else "", env).get("words") or {}
    except EntrypointError:
        return {}


def _report_defect(error: Exception) -> int:
    """Report an error that no one expected, the cause last. Return its exit code."""
    from traceback import format_exception

    from entrypoints.core.redact import redact_text

    tell_user(redact_text("".join(format_exception(error))))
    cause = f"{type(error).__name__}: {redact_text(format_one_line(str(error)))}"
    tell_user(f"drydock: ended with exit code {INTERNAL}: a defect of drydock's entrypoint: {cause}")
    return INTERNAL
