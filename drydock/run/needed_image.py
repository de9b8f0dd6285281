"""The image that a container needs: the one that this checkout has built, or a registry's. IO."""

from __future__ import annotations

import re

from drydock.build.build_job import OWN, STAND_INS
from drydock.core.console import log
from drydock.core.errors import HostError
from drydock.lock.image_record import name_releases, read_releases
from drydock.model.variant import Variant
from drydock.run.container import DIGEST, NO_PATH, Container, RunRequest, is_local
from drydock.run.engine import AS_GZIP, Here


class Building(Here):
    """Like Here, but builds an image of ours that this checkout has not built: for `--target auto` and stand-ins."""

    def find_present_image(self, repository: str) -> str:
        """Return the image of a repository; build it first if it is missing. Raises what a build raises."""
        from drydock.build import build, pins, standins  # noqa: PLC0415 - slow, and most runs find their image
        from drydock.build.build_job import prepare_job  # noqa: PLC0415 - as above
        from drydock.engine import daemon  # noqa: PLC0415 - as above

        daemon.ensure_engine()
        variant = repository.rpartition("/")[2]
        if repository.startswith(STAND_INS):  # at once, if it is there; a build with --context has the same name
            return build.build_image(standins.stand_in(self.project, variant)).image
        image = self.find_own_image(repository)
        if image and self.image(image):
            return image
        log(f"{repository}: not built yet; building it")
        return build.build_image(pins.pin_missing(prepare_job(self.project, variant))).image


def take_adopted(variant: Variant, request: RunRequest, here: Here) -> RunRequest:
    """Return the request with the image that `adopt` wrote into a registry, unless this checkout has it built."""
    base = variant.base
    if base.kind != "image" or not base.written_to or here.find_own_image(f"{OWN}{variant.id}"):
        return request
    return request.model_copy(update={"image": base.written_to})


def check_present(container: Container) -> None:
    """Raise HostError with all devices, folders and files that the container needs and this machine lacks."""
    if not container.missing_parts:
        return
    paths = [text for text in container.missing_parts if text.startswith(NO_PATH)]
    devices = "load the driver" if len(paths) < len(container.missing_parts) else ""
    folders = "name a folder or file of this machine, or a model's hub id, OWNER/NAME" if paths else ""
    hint = "; ".join(filter(None, [devices, folders, "--print shows the command"]))
    raise HostError(*(f"{text} on this machine" for text in container.missing_parts), hint=hint)


def require_image(container: Container, target: str, here: Here, ours: str = "") -> Container:
    """Check that this machine has what the container needs; return the container with its image's digest set.

    An image of a registry is pulled. With `ours`, a repository, it is the image that this checkout has built: `latest`
    may be another checkout's. Raises HostError with everything that is missing, or EngineError.
    """
    check_present(container)
    image_name = here.find_present_image(ours) if ours else container.image
    container = container.model_copy(update={"image": image_name or container.image})
    image = here.image(image_name) if image_name else None
    if not image and is_local(container.image):
        here.image(container.image)  # raises EngineError if no engine answers: that is said first
        raise HostError(f"{container.image}: image not found", hint=_how_to_get(container.image, target, here))
    if not image:
        for line in too_old(container, here.docker_version()):
            log(line)
        here.pull(container)
        image = here.image(container.image)
    if image and image.stand_in:
        log(f"{container.image}: contains stand-ins for {image.stand_in}: it is not what its lock pins")
    if image and (releases := read_releases(here.project).get(image.digest)):
        log(f"{container.image}: of {name_releases(releases)}")
    if container.model and container.model.kind == "image" and not here.image(container.model.source):
        here.pull(container.model_copy(update={"image": container.model.source}))
    digest_variable = {DIGEST: image.digest} if image else {}
    return container.model_copy(update={"env": {**digest_variable, **container.env}})


def too_old(container: Container, version: str) -> tuple[str, ...]:
    """Return a line that says that the engine cannot unpack the image, and what to do. An unknown version says nothing.

    It is no error: whoever published the image may have compressed it otherwise.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    oldest_version = tuple(map(int, container.oldest.docker.split(".")))
    if not match or (int(match[1]), int(match[2])) >= oldest_version:
        return ()
    problem = f"this engine is Docker {version}, which cannot unpack {container.compression} layers"
    return (f"warning: {problem}: update it to {container.oldest.docker} or later, or {AS_GZIP}",)


def _how_to_get(image: str, target: str, here: Here) -> str:
    stand_in_image = here.find_own_image(STAND_INS + image.removeprefix(OWN).partition(":")[0])
    advice = f"; --image {stand_in_image} runs the one built with stand-ins" if stand_in_image else ""
    return f"run `./inv build --target {target}`{advice}"
