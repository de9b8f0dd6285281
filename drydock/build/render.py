"""A variant → its Dockerfile, which is committed, and the files of its image that say what it is.

Pure, except for reading and writing files.
"""

from __future__ import annotations

import difflib
import functools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError, UndefinedError

from drydock.build import quoting
from drydock.build.quoting import Quoted
from drydock.config.added_files import OWN_CERTIFICATES, OWN_FILES
from drydock.config.failures import failures_text
from drydock.core.errors import InputError, StaleError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.lock.recipes import recipes_lock
from drydock.model.locked import Lock
from drydock.model.record import dump_record, get_inherited_fields
from drydock.model.variant import Profile, ResolvedServing, Supplied, Variant

VENV = "/opt/venv"
PYTHON = f"{VENV}/bin/python3"
"""The interpreter that runs vLLM, in every image that adds distributions to its base."""

DOCKERFILE, PROFILE, FAILURES = "Dockerfile", "profile.json", "failures.json"
USER = "10001:0"
"""The user of an image; any user in group 0 can run it."""
EXCERPT = 20
"""Lines of a difference that an error shows."""


def dockerfile_path(project: Project, variant: Variant) -> Path:
    """Return the path of a variant's committed Dockerfile."""
    return project / f"images/{variant.id}/{DOCKERFILE}"


def write_dockerfile(project: Project, variant: Variant, lock: Lock) -> list[Path]:
    """Write a variant's Dockerfile atomically; return its path if it changed.

    Raises StaleError when the lock was not made from this variant, InputError for a template that cannot be rendered.
    """
    lockfile.check_lock_inputs(variant, lock)
    path = project.write(f"images/{variant.id}/{DOCKERFILE}", render_dockerfile(project, variant))
    return [path] if path else []


def check_dockerfile(project: Project, variant: Variant, lock: Lock) -> None:
    """Compare a variant's committed Dockerfile with its templates. Raises StaleError with the first differing lines."""
    lockfile.check_lock_inputs(variant, lock)
    difference = _describe_difference(project, dockerfile_path(project, variant), render_dockerfile(project, variant))
    if difference:
        raise StaleError(difference, hint="change the matrix or the templates and run `./inv render`")


def image_files(project: Project, variant: Variant) -> dict[str, bytes]:
    """Return the files with what the entrypoint knows; they are not committed. Raises InputError."""
    failures = failures_text(project, variant.accelerator)
    recipes = recipes_lock.read_facts(project)
    return {
        PROFILE: profile_text(variant).encode(),
        FAILURES: failures.encode(),
        recipes_lock.FILE: recipes.encode(),
    }


def profile_text(variant: Variant) -> str:
    """Return the profile.json of a variant's image. The build's context has it; it is not committed."""
    return format_json(dump_record(make_profile(variant)))


def make_profile(variant: Variant) -> Profile:
    """Return what the entrypoint needs to know about its own image."""
    return Profile.model_construct(  # each value was checked in the variant
        **get_inherited_fields(ResolvedServing, variant),
        schema_=1,
        variant=variant.id,
        vllm=variant.vllm.version,
        python=vllm_interpreter(variant),
    )


def make_image_labels(variant: Variant) -> dict[str, str]:
    """Return the image's labels. They are part of the digest, so none of them changes from build to build."""
    base = variant.base
    extra_labels = {"org.opencontainers.image.base.name": base.reference} if base.kind == "image" else {}
    extra_labels |= {"io.drydock.support": variant.support.summary} if variant.support else {}
    return {**variant.additions.labels, **extra_labels} | {
        "org.opencontainers.image.title": _make_image_title(variant),
        "org.opencontainers.image.description": variant.summary,
        "org.opencontainers.image.version": variant.vllm.version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "io.drydock.accelerator": variant.accelerator,
        "io.drydock.stack": variant.stack,
        "io.drydock.variant": variant.id,
        "io.drydock.vllm.origin": variant.vllm.origin,
    }


def _make_image_title(variant: Variant) -> str:
    if not variant.serves:
        return f"{variant.vllm.distribution} {variant.vllm.version}"
    return f"vLLM {variant.vllm.version} for {variant.title}"


class Steps(NamedTuple):
    """What templates print. All decisions are made here; a template only includes or omits whole steps.

    Commands are quoted here; a template quotes the data that it prints itself (`quoting.FILTERS`).
    """

    variant: Variant
    base: str
    """Describes the context `base`."""
    contexts: tuple[tuple[str, str], ...]
    """The other named contexts, with a description of each."""
    sources: tuple[str, ...]
    """The contexts that hold source code."""
    labels: Quoted
    """The image's labels, as LABEL takes them."""
    user: Quoted
    """The instruction that makes steps run as root, if the base may have set another user."""
    stage: str
    """Name of the stage that installs packages; the stage that compiles, if any, is based on it."""
    python: str
    """The interpreter that runs vLLM."""
    venv: Quoted
    """The command that creates the virtual environment; empty if the base's own packages are used."""
    within: Quoted
    """Prefix of a command that needs the environment of the base's set-up scripts."""
    installers: tuple[tuple[str, Quoted], ...]
    """Context of supplied files → the command that installs them."""
    layers: tuple[str, ...]
    """Name of each layer."""
    supplied_wheels: tuple[tuple[str, Quoted], ...]
    """Context of supplied wheels, and their paths."""
    aliases: tuple[Quoted, ...]
    """The arguments of alias.py; none if vLLM's distribution is named vllm."""
    conversions: tuple[tuple[str, Quoted], ...]
    """Context of the vendor's scripts → the files copied from it."""
    certificates: tuple[str, ...]
    """Folder of the build's own context with the project's certificates; none without them."""
    copies: tuple[tuple[Quoted, Quoted], ...]
    """Files of the project: path in the entrypoint's stage, and in the folder of which the image is made."""
    own_files: tuple[str, ...]
    """Folder of the build's own context with these files; none without them."""
    blocks: tuple[tuple[str, Quoted], ...]
    """Lines of a Dockerfile that the project adds, each with a comment."""
    run_as: str
    """The user of the image."""
    path: Quoted
    """PATH in the image."""
    start_period: str
    """How long a first start may take before health checks count."""


def make_dockerfile_steps(variant: Variant) -> Steps:
    """Return what a variant's Dockerfile is rendered from."""
    return Steps(
        variant=variant,
        base=_describe_base(variant),
        contexts=tuple(_describe_contexts(variant)),
        sources=tuple(source.name for source in variant.sources),
        labels=_quote_labels(variant),
        user=Quoted("USER 0:0" if variant.base.kind == "image" else ""),
        stage="runtime" if variant.builds else "foundation",
        python=vllm_interpreter(variant),
        venv=_make_venv_command(variant),
        within=Quoted(f"{quoting.sh(variant.interpreter)} -BS /tools/environment.py run " if variant.setup else ""),
        installers=tuple(_list_installers(variant)),
        layers=tuple(layer.name for layer in variant.layers),
        supplied_wheels=tuple(
            (item.name, _quote_supplied_files(item)) for item in variant.supplied if item.install == "wheels"
        ),
        aliases=tuple(_list_alias_arguments(variant)),
        conversions=tuple(_list_conversions(variant)),
        certificates=(OWN_CERTIFICATES,) if variant.additions.certificates else (),
        copies=tuple(_list_copies(variant)),
        own_files=(OWN_FILES,) if variant.additions.files else (),
        blocks=tuple(
            (f"{block.name}: {block.because}", Quoted("\n".join(block.lines))) for block in variant.additions.dockerfile
        ),
        run_as=variant.additions.user or USER,
        path=Quoted(f"{VENV}/bin:$PATH" if variant.installs else "$PATH"),
        start_period=variant.run.start.value if variant.run.start else "10m",
    )


def render_dockerfile(project: Project, variant: Variant) -> str:
    """Return the text of a variant's Dockerfile. Raises InputError for a template that cannot be rendered."""
    name = f"{variant.accelerator}/Dockerfile.j2"
    try:
        template = _make_jinja_environment(tuple(layer / "templates" for layer in project.layers)).get_template(name)
        return _collapse_blank_lines(template.render(make_dockerfile_steps(variant)._asdict()))
    except TemplateNotFound as error:
        raise InputError(f"templates/{error.name}: template not found") from error
    except TemplateSyntaxError as error:
        raise InputError(f"templates/{error.name}:{error.lineno}: {error.message}") from error
    except UndefinedError as error:
        raise InputError(f"{_template_line(error, project) or f'templates/{name}'}: {error.message}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError, RecursionError) as error:
        where = _template_line(error, project) or f"templates/{name}"
        raise InputError(f"{where}: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=4)
def _make_jinja_environment(templates: tuple[Path, ...]) -> Environment:
    """Return the Jinja environment of folders, of which the first that has a template wins.

    It compiles each template once, and again when the file changes.
    """
    environment = Environment(  # noqa: S701 (a Dockerfile is not HTML)
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=quoting.require_quoted,
    )
    environment.filters.update(quoting.FILTERS)
    return environment


def _collapse_blank_lines(text: str) -> str:
    """Collapse the empty lines that unused blocks leave."""
    return re.sub(r"\n{3,}", "\n\n", text)


def vllm_interpreter(variant: Variant) -> str:
    """Return the path of the Python in which the image's vLLM is installed."""
    return PYTHON if variant.installs else variant.interpreter


def _quote_labels(variant: Variant) -> Quoted:
    pairs = sorted(make_image_labels(variant).items())
    return quoting.join_words(*(Quoted(f"{name}={quoting.dockerfile(value)}") for name, value in pairs), by=" \\\n    ")


def _make_venv_command(variant: Variant) -> Quoted:
    if not variant.installs:
        return Quoted()
    packages_of_the_base = "--system-site-packages " if variant.base.kind == "image" else ""
    return Quoted(f"{quoting.sh(variant.interpreter)} -m venv --without-pip {packages_of_the_base}{VENV}")


def _list_installers(variant: Variant) -> Iterator[tuple[str, Quoted]]:
    programs = {"run": Quoted("sh"), "debs": Quoted("dpkg --install")}
    for item in variant.supplied:
        if item.install in programs:
            yield (
                item.name,
                quoting.join_words(
                    programs[item.install], _quote_supplied_files(item), *map(quoting.sh, item.arguments)
                ),
            )


def _quote_supplied_files(item: Supplied) -> Quoted:
    return quoting.join_words(*(quoting.glob(f"/supplied/{pattern}") for pattern in item.patterns))


def _list_alias_arguments(variant: Variant) -> Iterator[Quoted]:
    if variant.vllm_alias:
        yield quoting.join_words(
            *map(quoting.sh, (variant.vllm.distribution, variant.vllm.version, variant.vllm_alias))
        )


def _list_conversions(variant: Variant) -> Iterator[tuple[str, Quoted]]:
    for context in sorted({conversion.context for conversion in variant.conversions}):
        files = (
            name for conversion in variant.conversions if conversion.context == context for name in conversion.files
        )
        yield context, quoting.join_words(*map(quoting.glob, dict.fromkeys(files)))


def _list_copies(variant: Variant) -> Iterator[tuple[Quoted, Quoted]]:
    for target, source in sorted(variant.additions.files.items()):
        yield quoting.sh(f"/files/{source}"), quoting.sh(f"/row/{variant.epoch}{target}")


def _describe_base(variant: Variant) -> str:
    base = variant.base
    return base.reference if base.kind == "image" else f"Debian {base.suite}, made by mmdebstrap from locked packages"


def _describe_contexts(variant: Variant) -> Iterator[tuple[str, str]]:
    """Yield the named contexts except the base, with a description of each."""
    yield "wheels", "a folder for each layer: its wheels, requirements.txt, and what to trim"
    for source in variant.sources:
        places = (source.sdist, source.repository, source.ref, source.url)
        yield source.name, f"source code: {' '.join(filter(None, places))}"
    for item in variant.supplied:
        yield item.name, f"brought by the operator: {', '.join(item.patterns)}"
    yield "tools", "uv and the scripts of templates/tools; needed while building, absent from the image"
    yield "entrypoints", "the entrypoint's sources"


def _template_line(error: Exception, project: Project) -> str:
    """Return file:line of the template that raised the error; Jinja puts templates into the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
    return f"{project.shown(Path(frames[-1].filename))}:{frames[-1].lineno}" if frames else ""


def _describe_difference(project: Project, path: Path, expected: str) -> str:
    """Return how a committed file differs from the generated text; empty if it does not."""
    name = project.shown(path)
    if not path.is_file():
        return f"{name}: file not found"
    actual = path.read_bytes().decode(errors="replace")  # not read_text, which would hide different line endings
    if actual == expected:
        return ""
    return "\n".join(
        [f"{name}: outdated: differs from what `./inv render` generates", *excerpt_difference(actual, expected)]
    )


def excerpt_difference(actual: str, expected: str, at_most: int = EXCERPT) -> list[str]:
    """Return the first lines of the difference between a committed and a generated text; none if there is none."""
    lines = list(
        difflib.unified_diff(actual.splitlines(), expected.splitlines(), "committed", "generated", "", "", 1, "")
    )
    omission = [f"… {len(lines) - at_most} more lines"] if len(lines) > at_most else []
    return [*lines[:at_most], *omission]
