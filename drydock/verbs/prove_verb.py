"""The verb `prove`."""

from __future__ import annotations

import time
from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import write_atomically
from drydock.model.shared_options import RowOption, SignOptions


class ProveOptions(RowOption, SignOptions):
    """What is proved, and who signs what was seen."""

    model: str = ""
    """folder or hub id of the model [default: SmolLM2-135M-Instruct]"""
    output: str = ""
    """with a signature: file for the statement [default: build/statements/TARGET.sigstore.json]"""


@Verb
def prove_row(options: ProveOptions) -> None:
    """Build an image, serve a model on this machine's device and record the proof."""
    from drydock.attest.cosign import choose_signer, require_signer
    from drydock.build.build import build_image
    from drydock.build.build_job import prepare_job
    from drydock.engine.daemon import run_docker
    from drydock.lock import image_record
    from drydock.prove import demo, prove, served_statement, smollm2
    from drydock.run.container import RunRequest
    from drydock.run.engine import Here
    from drydock.run.needed_image import require_image

    project, signer = here(), choose_signer(options)
    require_signer(signer)
    job = prepare_job(project, options.target)
    project.check_writable(image_record.name_of_record(job.variant.id))
    built = build_image(job)
    request = RunRequest(model=options.model or str(smollm2.make_small_model(built.image)))
    container = prove.what_to_start(job, built, request, Here(project))
    container = require_image(container, options.target, Here(project))

    facts = prove.ask_container(container, "facts")
    host = f"{job.variant.accelerator}-{prove.make_folder_name(prove.describe_proof_devices(facts))}"
    where = prove.record_proof_host(container, project.root / "build" / "hosts" / host, run_docker)
    plan = prove.ask_container(container, "plan", "--json", *container.arguments[1:]) if signer else {}
    began = int(time.time())
    with prove.run_proof_container(container) as running:
        demo.wait_until_ready(running)
        ready = int(time.time())
        answer_lines = prove.collect_answers(running)
        log_text = running.logs().decode(errors="replace")
    times = (began, ready, int(time.time()))

    file = None
    if signer:
        file = Path(options.output or project.root / f"build/statements/{options.target}.sigstore.json")
        served = prove.describe_served(job, facts, plan, answer_lines, log_text, times)
        signed = served_statement.sign_served(served, built.digest, signer)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, signed)
    tests = (prove.name_served_model(container, facts),)
    evidence = image_record.make_evidence(project, built.digest, built.inputs_sha256, tests)
    record = job.record.model_copy(update={"image": {**job.record.image, "hardware": evidence}})
    image_record.write_platform_record(project, job.variant.id, job.platform, record)
    write_output(prove.format_proof_report(built, facts, where, answer_lines, file))
