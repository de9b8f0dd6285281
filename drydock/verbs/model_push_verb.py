"""The verb `model push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import DryRunOption, InsecureOption, JsonOption, SignOptions

if TYPE_CHECKING:
    from drydock.publish.model_push import PushedModel


class ModelPushOptions(DryRunOption, SignOptions, InsecureOption, JsonOption):
    """Which model is pushed, and where."""

    folder: str
    """folder with the model, such as one of `model pull`"""
    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_model(options: ModelPushOptions) -> None:
    """Push a model as an image that containers mount, and print the address for `run --model`. Resumes."""
    from drydock.publish import model_push

    pushed = push_folder(options)
    write_result(pushed, model_push.format_pushed_model(pushed), json=options.json)


def push_folder(options: ModelPushOptions) -> PushedModel:
    """Push a model's folder with its bill of materials; sign both if there is a signer.

    Raises InputError, FetchError for files that are not as they were pulled, RegistryError.
    """
    from drydock.attest import cosign, documents, model_bom
    from drydock.oci.reference import OCI
    from drydock.publish import bindings, model_push, push
    from drydock.registry.blobs import Pushed

    folder, signer = Path(options.folder), cosign.choose_signer(options, insecure=options.insecure)
    repository, tag = model_push.open_model_repository(options.name, insecure=options.insecure)
    cosign.require_signer(signer)
    if not options.dry_run:
        repository.push_bytes(b"{}")  # a part of the bill of materials: without access, no file is hashed in vain
    model_folder, layers = model_push.layers_of(folder)
    licence = model_bom.licence_of(model_push.read_model_card(folder))
    image, config = model_push.make_model_image(layers)
    tag = tag or image.digest.removeprefix("sha256:")[:12]
    pushed = list[Pushed]()
    if not options.dry_run:
        planned = repository.plan_tag(image.digest, tag)
        platforms = {model_push.PLATFORM: image.digest}
        subject = bindings.Subject(str(repository.where), "", image.digest, platforms, "model")
        binding = bindings.bind_chosen_tag(repository, subject, planned, signer)

        pushed = push.push_contents(repository, {digest: (layer, layer.size) for digest, layer in layers.items()})
        repository.push_bytes(config)
        repository.manifests.push(image)
        bill = model_bom.make_model_bom(repository.where.repository, image.digest, model_folder, licence)
        about = (documents.Attached(documents.MODEL_BOM, bill), binding)
        push.attach_documents(repository, [image], {image.digest: about}, signer)
        repository.tag(image, tag)  # at last: a tag names what is whole
    return model_push.PushedModel(
        model=f"{OCI}{repository.where.at(image.digest)}",
        digest=image.digest,
        tag=tag,
        files=len(model_folder.files),
        layers=len(layers),
        size=model_folder.size,
        licence=licence,
        origin=model_bom.origin_of(model_folder),
        signed=signer is not None,
        bytes_sent=sum(blob.size for blob in pushed if blob.how == "uploaded"),
    )
