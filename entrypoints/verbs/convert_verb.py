"""`convert [--model DIR] --output DIR [--kind KIND] [FLAG …]`: convert a model with a vendor's script. IO.

The script writes to a temporary folder next to the result, which is renamed at the end. A conversion that is killed or
that fills the disk leaves nothing that looks like a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from entrypoints.core.errors import HOST, MODEL, OK, USAGE, EntrypointError
from entrypoints.core.folders import copy_folder, remove_folder
from entrypoints.core.text import print_message
from entrypoints.core.units import GIB
from entrypoints.core.weight_files import WEIGHTS
from entrypoints.decide.conversions import Conversion, choose_conversion
from entrypoints.facts.image_files import locate_image_file, make_program_environment, read_profile
from entrypoints.model.mounted_models import find_mounted_models, locate_models
from entrypoints.model.read import MARK, ModelFacts, read_model
from entrypoints.request.arguments import Arguments

Env = Mapping[str, str]

USAGE_TEXT = "usage: convert [--model DIR] --output DIR [--kind KIND] [FLAG …]; other flags are passed to the script"
_OWN = ("--model", "--output", "--kind")
_SMALL = 1 << 20
"""Bytes: configurations that contain the path of their folder are smaller."""


class ConversionJob(NamedTuple):
    """One conversion and its paths."""

    conversion: Conversion
    model: Path
    output: Path
    scripts: Path
    python: str
    more: tuple[str, ...]
    """The user's flags for the script."""


def run_convert(arguments: Arguments, env: Env) -> int:
    """Convert a model with a script of the image; return the exit code. Raises USAGE, HOST, MODEL."""
    program_env, profile = make_program_environment(env), read_profile(env)
    options, more = parse_convert_words(arguments.vllm)
    model = _read_source_model(options.get("--model") or _find_source_model(env), profile["converted_name"])
    conversion = choose_conversion(profile, model, options.get("--kind", ""))
    source = Path(model.name)
    output = _resolve_output(options["--output"], source)
    scripts = Path(locate_image_file(env, "conversions"), conversion.context)
    job = ConversionJob(conversion, source, output, scripts, profile["python"], more)
    _require_programs(job, program_env)
    _check_disk_room(job, model)
    _convert_model(job, program_env, profile["variant"])
    print_message(_format_serve_hint(job))
    return OK


def parse_convert_words(tokens: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return drydock's flags (`--output DIR` or `--output=DIR`), and the words for the script. Raises USAGE."""
    options: dict[str, str] = {}
    more: list[str] = []
    remaining = iter(tokens)
    for token in remaining:
        name, equals, value = token.partition("=")
        if name in _OWN:
            options[name] = value if equals else next(remaining, "")
        else:
            more.append(token)
    missing = [name for name in _OWN[:2] if not options.get(name, name == "--model")]
    if missing:
        raise EntrypointError(USAGE, f"convert: {missing[0]} is required", USAGE_TEXT)
    return options, tuple(more)


# --- checks before anything is written ------------------------------------------------------------------------------


def _find_source_model(env: Env) -> str:
    """Return the only model below /models. Raises MODEL for none, and for several."""
    mounted_models = find_mounted_models(locate_models(env))
    model = mounted_models.require_one("convert --output DIR --model")
    print_message(mounted_models.describe_choice())
    return model.path


def _read_source_model(name: str, converted_name: str) -> ModelFacts:
    if not Path(name).is_dir():
        hint = "download the model first, and mount its folder"
        raise EntrypointError(MODEL, f"--model {name}: no such folder", hint)
    return read_model(str(Path(name).resolve()), converted_name=converted_name)


def _resolve_output(name: str, model: Path) -> Path:
    """Return the real path of --output, which must allow an atomic rename. Raises USAGE, HOST."""
    output = Path(name).resolve()
    if output.is_mount():
        hint = f"use a folder inside it, such as {output / model.name}: a mount point cannot be renamed"
        raise EntrypointError(USAGE, f"--output {name}: is a mount point", hint)
    if output.is_relative_to(model):
        raise EntrypointError(USAGE, f"--output {name}: is inside the model's folder", "use another folder")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise EntrypointError(USAGE, f"--output {name}: already exists", "use a new folder, or remove this one")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        message = f"{output.parent}: no such folder"
        if output.parent.is_dir():
            message = f"{output.parent}: not writable by uid {os.getuid()}, gid {os.getgid()}"
        raise EntrypointError(HOST, message, "mount a folder with -v that the container's user (--user) can write to")
    return output


def _require_programs(job: ConversionJob, env: Env) -> None:
    """Raise HOST if a program, a module or the script itself is missing from the image."""
    from shutil import which

    missing = [name for name in job.conversion.programs if not which(name, path=env.get("PATH"))]
    missing += _find_missing_modules(job)
    if not job.scripts.is_dir():
        missing.append(f"the scripts in {job.scripts}")
    if missing:
        message = f"convert --kind {job.conversion.kind}: missing from this image: {', '.join(missing)}"
        hint = f"build an image FROM this one that adds it; for the script's requirements see {job.conversion.source}"
        raise EntrypointError(HOST, message, hint)


def _find_missing_modules(job: ConversionJob) -> list[str]:
    """Return the required modules that the image's interpreter does not find. Raises HOST."""
    import subprocess

    program = "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
    argv = (job.python, "-c", program, *job.conversion.modules)
    try:
        result = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EntrypointError(HOST, f"cannot run {job.python}: {error}") from error
    return [f"the Python module {name}" for name in result.stdout.split()]


def _check_disk_room(job: ConversionJob, model: ModelFacts) -> None:
    """Raise HOST if the disk has no room for the result."""
    files = [path for path in job.model.iterdir() if path.suffix in WEIGHTS]
    weights = model.weights.on_disk if model.weights else sum(path.stat().st_size for path in files)
    place = job.output.parent
    disk = os.statvfs(place)
    free, required_bytes = disk.f_bavail * disk.f_frsize, int(weights * job.conversion.room)
    if free < required_bytes:
        message = f"{place}: not enough space: {free / GIB:.1f} GiB free, up to {required_bytes / GIB:.1f} GiB needed"
        raise EntrypointError(HOST, message, "mount a larger volume for --output")
    leftovers = [path.name for path in place.iterdir() if path.name.startswith(f".{job.output.name}.")]
    if leftovers:
        print_message(
            f"{place}: found {', '.join(leftovers)} of another conversion; remove it if no conversion is running"
        )


# --- the conversion -------------------------------------------------------------------------------------------------


def _convert_model(job: ConversionJob, env: Env, variant: str) -> None:
    """Run the script in a temporary folder, and rename the result. Raises MODEL, HOST."""
    os.umask(0o022)
    try:
        with _make_temporary_folder(job.output) as temporary:
            result, scripts = temporary / "result", temporary / job.conversion.context
            result.mkdir()
            copy_folder(str(job.scripts), str(scripts))
            places = {"python": job.python, "scripts": scripts, "model": job.model, "output": result}
            argv = (*job.conversion.command(**{name: str(path) for name, path in places.items()}), *job.more)
            print_message(" ".join(argv))
            _run_script(argv, scripts, {**env, **job.conversion.env})
            _keep_script_files(job, scripts, result)
            _complete_result(job, result, variant)
            result.rename(job.output)
    except OSError as error:
        message = f"{error.filename or job.output}: {error.strerror or error}; no output was written"
        raise EntrypointError(HOST, message, "check that the folder of --output is writable and has space") from error


@contextmanager
def _make_temporary_folder(output: Path) -> Iterator[Path]:
    """Create a folder on the result's file system, so that a rename is atomic; remove it at the end."""
    temporary = output.with_name(f".{output.name}.{os.urandom(4).hex()}")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        remove_folder(str(temporary))


class _Stop:
    """A signal handler that kills the script and all its children when the container is stopped."""

    def __init__(self) -> None:
        self.pid = self.number = 0

    def __call__(self, number: int, _frame: object = None) -> None:
        """Remember the signal, and kill the script."""
        from signal import SIGKILL

        self.number = number
        if self.pid:
            try:
                os.killpg(self.pid, SIGKILL)
            except ProcessLookupError:
                return


def _run_script(argv: tuple[str, ...], folder: Path, env: Env) -> None:
    """Run a script in its folder. Raises MODEL if it fails, 128 + N if signal N stopped it."""
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
        raise EntrypointError(128 + stop.number, "convert: stopped; no output was written")
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        hint = "see its last lines above; you can add the script's own flags: convert … FLAG"
        raise EntrypointError(MODEL, f"convert: {' '.join(argv[:2])} {how}; no output was written", hint)


def _keep_script_files(job: ConversionJob, scripts: Path, result: Path) -> None:
    """Move files that the script wrote next to itself into the result. Raises MODEL."""
    for name in job.conversion.keep:
        if not (scripts / name).exists():
            raise EntrypointError(MODEL, f"convert: the script did not write {name}; no output was written")
        (result / name).parent.mkdir(parents=True, exist_ok=True)
        (scripts / name).rename(result / name)


def _complete_result(job: ConversionJob, result: Path, variant: str) -> None:
    """Add the files that the script leaves out, and check that the result can be served. Raises MODEL."""
    if job.conversion.gives == "model":
        _add_files(job.model, result)
        _check_result_readable(result)
    elif not _has_measurements(job.conversion, result):
        raise EntrypointError(MODEL, "convert: the script succeeded but wrote no measurements; no output was written")
    for path in result.rglob("*.json"):
        if path.is_file() and path.stat().st_size < _SMALL:
            _replace_path(path, str(result), str(job.output))
    marker = {"kind": job.conversion.kind, "model": job.model.name, "variant": variant}
    text = json.dumps({**marker, "argv": job.conversion.argv, "more": job.more}, indent=2, sort_keys=True)
    (result / MARK).write_text(text + "\n", encoding="utf-8")


def _check_result_readable(result: Path) -> None:
    """Raise MODEL if the result is not a complete model."""
    try:
        read_model(str(result))
    except EntrypointError as error:
        message = f"convert: the script succeeded but its model is incomplete; no output was written: {error.message}"
        raise EntrypointError(MODEL, message) from error


def _add_files(model: Path, result: Path) -> None:
    """Copy the tokenizer's and other small files that the script did not copy."""
    from shutil import copyfile

    for source in model.iterdir():
        target = result / source.name
        if source.is_file() and source.suffix not in WEIGHTS and not target.exists():
            copyfile(source, target)


def _has_measurements(conversion: Conversion, result: Path) -> bool:
    """Return whether every file that serving needs was written."""
    variables = _list_serve_variables(conversion, result)
    return all(Path(value).exists() for name, value in variables.items() if "{output}" in conversion.serve[name])


def _replace_path(path: Path, old: str, new: str) -> None:
    """Replace the temporary path in a configuration by the final one."""
    text = path.read_text(encoding="utf-8")
    if old in text:
        path.write_text(text.replace(old, new), encoding="utf-8")


# --- after the conversion -------------------------------------------------------------------------------------------


def _list_serve_variables(conversion: Conversion, output: Path) -> dict[str, str]:
    """Return the environment variables for serving the result."""
    from glob import escape, glob

    variables = {}
    for name, value in conversion.serve.items():
        paths = sorted(glob(value.format(output=escape(str(output))))) if "*" in value else []
        variables[name] = paths[0] if paths else value.format(output=output)
    return variables


def _format_serve_hint(job: ConversionJob) -> str:
    from shlex import quote

    variables = "".join(
        f" -e {quote(f'{name}={value}')}" for name, value in _list_serve_variables(job.conversion, job.output).items()
    )
    model = job.output if job.conversion.gives == "model" else job.model
    return f"wrote {job.output}; to serve it: docker run{variables} … IMG serve --model {quote(str(model))}"
