"""`convert --model M --output DIR [--kind KIND] [flag of the script …]`: a vendor's script, whole or not at all. IO.

The script works in a folder beside the result, which gets its name when all went well: a conversion that is killed,
or finds the disk full, leaves nothing that could be taken for a model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from entrypoints.core.errors import HOST, MODEL, OK, USAGE, EntrypointError
from entrypoints.core.folders import copy, remove
from entrypoints.decide.conversions import Conversion, choose
from entrypoints.model.read import MARK, ModelFacts, read_model

Env = Mapping[str, str]

USAGE_TEXT = "convert --model DIR --output DIR [--kind KIND] [flag of the script …]"
_OWN = ("--model", "--output", "--kind")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_SMALL = 1 << 20
"""Bytes: a configuration that names its own folder is smaller."""
_GIB = 1 << 30


class ConversionJob(NamedTuple):
    """One conversion, with all its places."""

    conversion: Conversion
    model: str
    output: str
    scripts: str
    python: str
    more: tuple[str, ...]
    """Flags for the script."""


def run(tokens: Sequence[str], env: Env, profile: Mapping[str, Any], folder: str) -> int:
    """Convert a model with a script of `folder`; return the exit code. Raises USAGE, HOST, MODEL."""
    own, more = parse(tokens)
    model = _model(own["--model"])
    conversion = choose(profile, model, own.get("--kind", ""))
    output = _output(own["--output"], model.name)
    job = ConversionJob(
        conversion, model.name, output, os.path.join(folder, conversion.context), profile["python"], more
    )
    _require(job, env)
    _room(job, model)
    _convert(job, env, profile["variant"])
    _say(_served(job))
    return OK


def parse(tokens: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split our own flags from the script's, in either form. Raises USAGE."""
    own: dict[str, str] = {}
    more: list[str] = []
    waiting = iter(tokens)
    for token in waiting:
        name, equals, value = token.partition("=")
        if name in _OWN:
            own[name] = value if equals else next(waiting, "")
        else:
            more.append(token)
    missing = [name for name in _OWN[:2] if not own.get(name)]
    if missing:
        raise EntrypointError(USAGE, f"convert: {missing[0]} is missing", USAGE_TEXT)
    return own, tuple(more)


# --- before anything is written -------------------------------------------------------------------------------------


def _model(name: str) -> ModelFacts:
    if not os.path.isdir(name):
        hint = "convert reads a folder: download the model first, and mount the folder that it is in"
        raise EntrypointError(MODEL, f"--model {name}: no such folder", hint)
    return read_model(os.path.realpath(name))


def _output(name: str, model: str) -> str:
    """Return the whole path of a result that can get its name at once. Raises USAGE, HOST."""
    output = os.path.realpath(name)
    parent = os.path.dirname(output)
    if os.path.ismount(output):
        hint = f"name a folder below it, such as {output}/{os.path.basename(model)}-G2: a mount point cannot be renamed"
        raise EntrypointError(USAGE, f"--output {name}: is a mount point", hint)
    if os.path.commonpath((output, model)) == model:
        raise EntrypointError(USAGE, f"--output {name}: lies in the model's own folder", "name another folder")
    if os.path.exists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise EntrypointError(USAGE, f"--output {name}: exists already", "name a new folder, or remove this one")
    if not os.access(parent, os.W_OK | os.X_OK):
        who = f"uid {os.getuid()}, gid {os.getgid()} cannot write there" if os.path.isdir(parent) else "does not exist"
        raise EntrypointError(
            HOST, f"{parent}: {who}", "mount a folder that the container's user may write: -v …, --user"
        )
    return output


def _require(job: ConversionJob, env: Env) -> None:
    """Refuse where the script would fail for want of something. Raises HOST."""
    from shutil import which

    missing = [name for name in job.conversion.programs if not which(name, path=env.get("PATH"))]
    missing += _missing_modules(job)
    if not os.path.isdir(job.scripts):
        missing.append(f"the scripts in {job.scripts}")
    if missing:
        hint = f"an image made FROM this one can add it; what the script needs: {job.conversion.source}"
        raise EntrypointError(
            HOST, f"convert --kind {job.conversion.kind}: this image lacks {', '.join(missing)}", hint
        )


def _missing_modules(job: ConversionJob) -> list[str]:
    """Return the modules that the image's interpreter does not find."""
    import subprocess

    look = "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
    argv = (job.python, "-c", look, *job.conversion.modules)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EntrypointError(HOST, f"{job.python}: cannot be run: {error}") from error
    return [f"the Python module {name}" for name in done.stdout.split()]


def _room(job: ConversionJob, model: ModelFacts) -> None:
    """Refuse where the disk has no room for the result. Raises HOST."""
    weights = model.weights.on_disk if model.weights else sum(os.path.getsize(path) for path in _weights(job.model))
    place = os.path.dirname(job.output)
    disk = os.statvfs(place)
    free, needed = disk.f_bavail * disk.f_frsize, int(weights * job.conversion.room)
    if free < needed:
        text = f"{place}: {free / _GIB:.1f} GiB are free, the conversion writes up to {needed / _GIB:.1f} GiB"
        raise EntrypointError(HOST, text, "mount a larger volume for --output")
    left = [name for name in os.listdir(place) if name.startswith(f".{os.path.basename(job.output)}.")]
    if left:
        _say(f"{place}: {', '.join(left)} is of a conversion that runs, or was killed: remove it if none runs")


def _weights(folder: str) -> Iterator[str]:
    return (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_WEIGHTS))


# --- the conversion -------------------------------------------------------------------------------------------------


def _convert(job: ConversionJob, env: Env, variant: str) -> None:
    """Run the script beside the result's place, and give what came out its name. Raises MODEL, HOST."""
    os.umask(0o022)
    try:
        with _beside(job.output) as temporary:
            result, scripts = os.path.join(temporary, "result"), os.path.join(temporary, job.conversion.context)
            os.mkdir(result)
            copy(job.scripts, scripts)
            places = {"python": job.python, "scripts": scripts, "model": job.model, "output": result}
            argv = (*job.conversion.command(**places), *job.more)
            _say(f"{' '.join(argv)}")
            _run(argv, scripts, {**env, **job.conversion.env})
            _keep(job, scripts, result)
            _complete(job, temporary, result, variant)
            os.rename(result, job.output)
    except OSError as error:
        text = f"{error.filename or job.output}: {error.strerror or error}; nothing was kept"
        raise EntrypointError(HOST, text, "the folder of --output must have room and be writable") from error


@contextmanager
def _beside(output: str) -> Iterator[str]:
    """Make a folder on the result's own file system, so that its name can be given at once; remove it at the end."""
    folder, name = os.path.split(output)
    temporary = os.path.join(folder, f".{name}.{os.urandom(4).hex()}")
    os.mkdir(temporary)
    try:
        yield temporary
    finally:
        remove(temporary)


class _Stop:
    """Ends the script, and all that it started, when the container is told to end."""

    def __init__(self) -> None:
        self.pid = self.number = 0

    def __call__(self, number: int, _frame: object = None) -> None:
        """Remember the signal; end what runs."""
        from signal import SIGKILL

        self.number = number
        if self.pid:
            try:
                os.killpg(self.pid, SIGKILL)
            except ProcessLookupError:
                return


def _run(argv: tuple[str, ...], folder: str, env: Env) -> None:
    """Run a script in its folder to its end. Raises MODEL where it fails, HOST where it was stopped."""
    import signal
    import subprocess

    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        script = subprocess.Popen(argv, cwd=folder, env=dict(env), start_new_session=True)
        stop.pid = script.pid
        if stop.number:
            stop(stop.number)
        code = script.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.number:
        raise EntrypointError(128 + stop.number, "convert: stopped; nothing was kept")
    if code:
        how = f"died of signal {-code}" if code < 0 else f"ended with {code}"
        hint = "its last lines say why; a flag of the script's own can be added: convert … FLAG"
        raise EntrypointError(MODEL, f"convert: {' '.join(argv[:2])} {how}; nothing was kept", hint)


def _keep(job: ConversionJob, scripts: str, result: str) -> None:
    """Move what the script wrote beside itself to the result. Raises MODEL."""
    for name in job.conversion.keep:
        if not os.path.exists(os.path.join(scripts, name)):
            raise EntrypointError(MODEL, f"convert: the script did not write {name}; nothing was kept")
        os.makedirs(os.path.dirname(os.path.join(result, name)), exist_ok=True)
        os.rename(os.path.join(scripts, name), os.path.join(result, name))


def _complete(job: ConversionJob, temporary: str, result: str, variant: str) -> None:
    """Add what the script leaves out, and see that what came out can be served. Raises MODEL."""
    if job.conversion.gives == "model":
        _add_files(job.model, result)
        _readable(result)
    elif not _measured(job.conversion, result):
        raise EntrypointError(MODEL, "convert: the script ended well, but wrote no measurements; nothing was kept")
    for path in _configurations(result):
        _rename_inside(path, os.path.join(temporary, "result"), job.output)
    made = {"kind": job.conversion.kind, "model": os.path.basename(job.model), "variant": variant}
    text = json.dumps({**made, "argv": job.conversion.argv, "more": job.more}, indent=2, sort_keys=True)
    with open(os.path.join(result, MARK), "w", encoding="utf-8") as file:
        file.write(text + "\n")


def _readable(result: str) -> None:
    """See that a whole model was written. Raises MODEL."""
    try:
        read_model(result)
    except EntrypointError as error:
        text = f"convert: the script ended well, but wrote no whole model; nothing was kept: {error.message}"
        raise EntrypointError(MODEL, text) from error


def _add_files(model: str, result: str) -> None:
    """Copy the tokenizer's and other small files, of which scripts take some."""
    from shutil import copyfile

    for name in os.listdir(model):
        source, target = os.path.join(model, name), os.path.join(result, name)
        if os.path.isfile(source) and not name.endswith(_WEIGHTS) and not os.path.exists(target):
            copyfile(source, target)


def _measured(conversion: Conversion, result: str) -> bool:
    """Tell whether every file that serving needs was written."""
    found = _variables(conversion, result)
    return all(os.path.exists(value) for name, value in found.items() if "{output}" in conversion.serve[name])


def _configurations(result: str) -> Iterator[str]:
    for folder, _, names in os.walk(result):
        paths = [os.path.join(folder, name) for name in names if name.endswith(".json")]
        yield from (path for path in paths if os.path.getsize(path) < _SMALL)


def _rename_inside(path: str, old: str, new: str) -> None:
    """Write the result's final place into a configuration that names it."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if old in text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))


# --- afterwards -----------------------------------------------------------------------------------------------------


def _variables(conversion: Conversion, output: str) -> dict[str, str]:
    """Return the variables that a result is served with."""
    from glob import escape, glob

    found = {}
    for name, value in conversion.serve.items():
        paths = sorted(glob(value.format(output=escape(output)))) if "*" in value else []
        found[name] = paths[0] if paths else value.format(output=output)
    return found


def _served(job: ConversionJob) -> str:
    variables = "".join(f" -e {name}={value}" for name, value in _variables(job.conversion, job.output).items())
    model = job.output if job.conversion.gives == "model" else job.model
    return f"wrote {job.output}; now: docker run{variables} … IMG serve --model {model}"


def _say(text: str) -> None:
    sys.stderr.write(f"drydock: {text}\n")
    sys.stderr.flush()
