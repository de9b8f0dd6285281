"""The verb `adopt`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import JsonOption, PlatformOption, SignOptions, TrustOptions


class AdoptVerbOptions(SignOptions, PlatformOption, TrustOptions, JsonOption):
    """Which image is adopted, and what it does not say of itself."""

    WORDS = ("to",)
    image: str
    """image of others, such as docker.io/vllm/vllm-openai:v0.33.0; a tag is pinned by its digest"""
    to: str = ""
    """REGISTRY/NAME, with or without :TAG, that the adopted image is written to [default: as before]"""
    load: bool = False
    """put the image into the engine too; without --to only there"""
    from_engine: bool = False
    """the image is in this machine's engine, and perhaps in no registry; with --load"""
    facts: str = ""
    """JSON file that says what is in the image, as --json prints it; its layers are not read then"""
    row: str = ""
    """id of its row in matrix.yaml [default: the image's name and tag]"""
    accelerator: str = ""
    """which accelerator its vLLM is for, such as cuda [default: as its variables say]"""
    vllm: str = ""
    """its vLLM's version, such as 0.33.0 [default: as VLLM_VERSION in it says]"""
    python: str = ""
    """path of the Python in it that has vLLM [default: that of its VIRTUAL_ENV]"""
    python_version: str = ""
    """version of that Python, such as 3.12 [default: as PYTHON_VERSION in it says]"""
    release: str = ""
    """its distribution, such as ubuntu:22.04 [default: as its labels say]"""
    glibc: str = ""
    """version of its glibc, for a distribution that drydock does not know"""
    read_layers: bool = False
    """read the image's layers as a stream, to see what is in it; stores nothing"""
    platform: str = ""
    """only this platform, such as linux/arm64 [default: each of the image's]"""
    check: bool = False
    """write nothing; fail unless the image in the registry is the one that this would write"""


@Verb
def adopt_image(options: AdoptVerbOptions) -> None:
    """Make an image of others one of drydock's in a registry: two more layers and a row. No layer of it is pulled."""
    from drydock.attest import cosign
    from drydock.projects import adopt_verb
    from drydock.publish import adopt as adopted_images
    from drydock.publish.base_image import BaseFacts
    from drydock.publish.push import PublishOptions

    facts = BaseFacts(options.vllm, options.python_version, options.python, options.release, options.accelerator)
    signed = PublishOptions("", insecure=options.insecure, key=options.sign_key, keyless=options.keyless)
    settings = adopt_verb.AdoptOptions(
        options.image,
        options.to,
        options.row,
        facts,
        glibc=options.glibc,
        platform=options.platform,
        read_layers=options.read_layers,
        facts_file=options.facts,
        load=options.load,
        from_engine=options.from_engine,
        trust=cosign.trust_of(options.signers, insecure=options.insecure),
        check=options.check,
        publish=signed,
    )
    adopted = adopt_verb.adopt_image(here(), settings)
    write_output(format_json(dump_record(adopted)) if options.json else adopted_images.format_adopted(adopted))
