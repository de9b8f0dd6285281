"""`review`: commands are found in files of every kind, and are judged by the vLLM of the image next to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import CommandRefusedError, InputError
from drydock.review import tree_files
from drydock.review.named_images import ImageFinder, ImageVersion
from drydock.review.place_findings import Level, ReviewedPlace
from drydock.review.review_output import raise_refused
from drydock.review.review_tree import is_replaced, review_folder
from tests.support.called_verbs import call_verb

RELEASE = "vllm/vllm-openai:v0.18.0"
GONE = "--swap-space 4"
"""Removed by 0.18."""


def reviewed(folder: Path, to: str = "", **files: str) -> list[ReviewedPlace]:
    """Review files, whose names are written with `__` for a dot."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return [*review_folder(DRYDOCK, str(folder), to, offline=True).places]


def only(places: list[ReviewedPlace]) -> ReviewedPlace:
    assert len(places) == 1, places
    return places[0]


def shown(place: ReviewedPlace) -> list[tuple[str, int, str]]:
    return [(finding.level.word, finding.line, finding.part) for finding in place.findings]


COMPOSE = f"""\
services:
  vllm:
    image: {RELEASE}
    command:
      - --model
      - Qwen/Qwen3-8B
      - --swap-space
      - "4"
      - --tensor-parallel-size=2
    environment:
      VLLM_USE_V1: "0"
    ports: ["80:8080"]
"""


def test_a_compose_file_is_judged_by_flag_variable_port_and_memory(tmp_path: Path) -> None:
    assert shown(only(reviewed(tmp_path, compose__yaml=COMPOSE))) == [
        ("would not start", 7, "--swap-space 4"),
        ("warning", 3, "--tensor-parallel-size 2"),
        ("warning", 11, "VLLM_USE_V1=0"),
        ("warning", 12, "port 8080"),
    ]


def test_what_contradicts_nothing_has_no_finding(tmp_path: Path) -> None:
    well = (
        COMPOSE.replace('      - --swap-space\n      - "4"\n', "")
        .replace("80:8080", "80:8000")
        .replace("USE_V1", "HOST_IP")
    )
    assert shown(only(reviewed(tmp_path, compose__yaml=f"{well}    ipc: host\n"))) == []


@pytest.mark.parametrize(
    ("memory", "is_enough"),
    [
        ("shm_size: 64mb", False),
        ("shm_size: 67108864", False),
        ("shm_size: 64M", False),
        ("ipc: private", False),
        ("shm_size: 65mb", True),
        ("shm_size: 10.5gb", True),
        ("shm_size: ${SHM}", True),
        ("ipc: service:other", True),
        ("tmpfs: /dev/shm", True),
    ],
)
def test_processes_share_more_memory_than_an_engine_gives(tmp_path: Path, memory: str, is_enough: bool) -> None:
    findings = shown(only(reviewed(tmp_path, compose__yaml=f"{COMPOSE}    {memory}\n")))
    assert (("warning", 3, "--tensor-parallel-size 2") not in findings) is is_enough
    option = " ".join(f"--{memory.replace('_', '-')}".split(": ")).replace(" /dev", "=/dev")
    (tmp_path / "compose.yaml").unlink()
    line = f"docker run {option} {RELEASE} --model a/b -tp 2\n"
    findings = shown(only(reviewed(tmp_path, run__sh=line)))
    assert (("warning", 1, "--tensor-parallel-size 2") not in findings) is is_enough


POD = f"""\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: {RELEASE}
          COMMAND
          env: [{{name: VLLM_ATTENTION_BACKEND, value: FLASHINFER}}, {{name: HF_TOKEN, valueFrom: {{}}}}]
          livenessProbe: {{httpGet: {{path: /health, port: 9000}}, initialDelaySeconds: 15}}
"""


@pytest.mark.parametrize(
    "command",
    [
        f"args: [--model, a/b, {GONE.replace(' ', ', ')}]",
        f"command: [vllm, serve, a/b]\n          args: [{GONE.replace(' ', ', ')}]",
        f"command: [bash, -c]\n          args: ['sleep 1 && exec vllm serve a/b {GONE}']",
        f"command: [/bin/sh, -c, 'python3 -m vllm.entrypoints.openai.api_server --model a/b {GONE}']",
        f"args:\n          - sh\n          - -c\n          - |\n            vllm serve a/b \\\n              {GONE}",
    ],
)
def test_a_container_of_kubernetes_is_judged_however_it_starts_vllm(tmp_path: Path, command: str) -> None:
    place = only(reviewed(tmp_path, pod__yaml=POD.replace("COMMAND", command)))
    findings = {finding.part: finding for finding in place.findings}
    assert findings[GONE].level is Level.REFUSED
    assert "0.16.0 was the last read that has it" in findings[GONE].because
    assert findings["VLLM_ATTENTION_BACKEND=FLASHINFER"].instead == "use --attention-backend"
    assert findings["port 9000"].because == "vLLM listens on 8000, its default"
    assert "within 45 s" in findings["probe"].because
    text = (tmp_path / "pod.yaml").read_text().splitlines()
    assert "swap-space" in text[findings[GONE].line - 1]


def test_a_startup_probe_gives_a_slow_start_its_time(tmp_path: Path) -> None:
    probes = "          startupProbe: {httpGet: {port: 8000}, periodSeconds: 10, failureThreshold: 60}\n"
    text = POD.replace("COMMAND", "args: [--model, a/b]").replace("9000", "8000") + probes
    assert [part for _, _, part in shown(only(reviewed(tmp_path, pod__yaml=text)))] == [
        "VLLM_ATTENTION_BACKEND=FLASHINFER"
    ]


def test_the_entrypoint_gets_arguments_alone(tmp_path: Path) -> None:
    text = POD.replace("COMMAND", "args: [vllm, serve, a/b]")
    assert shown(only(reviewed(tmp_path, pod__yaml=text)))[0] == ("would not start", 8, "vllm serve")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run__sh", f"export VLLM_USE_V1=0\ndocker run --rm -v $(pwd):/x {RELEASE} \\\n --model a/b {GONE} > log\n"),
        ("run__sbatch", f"srun podman run -e VLLM_USE_V1=0 {RELEASE} --model a/b {GONE} 2>&1 | tee log\n"),
        ("page__md", f"Run\n\n```bash\n$ docker run {RELEASE} --model <model> \\\n  {GONE} # old\n```\n"),
        ("Dockerfile", 'ARG TAG=v0.18.0\nFROM vllm/vllm-openai:$TAG\nCMD ["--model", "a/b", "--swap-space", "4"]\n'),
        ("Dockerfile__x", f"FROM {RELEASE}\nENV A=1\nENTRYPOINT vllm serve a/b \\\n  {GONE}\n"),
        ("Dockerfile__s", f"FROM {RELEASE} AS Server\nFROM alpine\nFROM server\nCMD vllm serve a/b {GONE}\n"),
        ("Dockerfile__i", f'FROM {RELEASE} AS base\nCMD ["--model", "a/b", "--swap-space", "4"]\nFROM base\nUSER 1\n'),
        ("vllm__container", f"[Container]\nImage={RELEASE}\nExec=--model a/b {GONE}\nEnvironment=A=1\n"),
        ("vllm__service", f"[Service]\nExecStart=/usr/bin/docker run {RELEASE} \\\n  --model a/b {GONE}\n"),
        ("stack__yaml", "repository: vllm/vllm-openai\ntag: v0.18.0\nvllmConfig: {extraArgs: [--swap-space=4]}\n"),
        ("recipe__yaml", f"model:\n  model_id: a/b\n  docker_image: {RELEASE}\n  base_args: [--swap-space, '4']\n"),
        ("kubeai__yaml", f"kind: Model\nspec:\n  engine: VLLM\n  image: {RELEASE}\n  args: [--swap-space=4]\n"),
        ("isvc__yaml", f"name: main\nimage: {RELEASE}\nenv: [{{name: VLLM_ADDITIONAL_ARGS, value: --swap-space=4}}]"),
        ("two__yaml", f"---\na: 1\n---\nx: &i {RELEASE}\ny: {{image: *i, args: [--model, m, --swap-space, 4]}}\n"),
    ],
)  # fmt: skip
def test_each_kind_of_file_has_its_command(tmp_path: Path, name: str, text: str) -> None:
    place = only(reviewed(tmp_path, **{name: text}))
    assert place.image.title == "vllm-0.18.0, by its tag"
    refused = [finding for finding in place.findings if finding.level is Level.REFUSED]
    assert [finding.part.replace("=", " ") for finding in refused] == [GONE]
    written = (tmp_path / name.replace("__", ".")).read_text().splitlines()[refused[0].line - 1]
    assert "swap-space" in written


@pytest.mark.parametrize(
    "text",
    [
        "echo vllm serve a/b --swap-space 4\n",
        "pkill -f 'vllm serve'\n",
        "cat <<EOF\nvllm serve a/b --it's\nEOF\n",
        "vllm bench serve --model x\n",
        "vllm serve --help\n",
        "# vllm serve x\n",
    ],
)
def test_what_only_names_vllm_is_no_command(tmp_path: Path, text: str) -> None:
    assert reviewed(tmp_path, x__sh=text) == []


@pytest.mark.parametrize(
    ("image", "versions", "how"),
    [
        (RELEASE, ["0.18.0"], "by its tag"),
        ("mirror.example:5000/vllm/vllm-openai:v0.18.0-cu130", ["0.18.0"], "by its tag"),
        ("vllm/vllm-openai:v0.10.2", ["0.9.2", "0.11.0"], "between which 0.10.2 lies, by its tag"),
        ("rocm/vllm:rocm6.4.1_vllm_0.8.5_x", ["0.8.5"], "by its tag"),
        ("vllm/vllm-openai", ["0.33.0"], "the newest that was read: its tag moves"),
        ("vllm/vllm-openai:${TAG:-v0.18.0}", ["0.18.0"], "by its tag"),
        ("vllm/vllm-openai:${TAG}", [], "a variable"),
        ("vllm/vllm-openai:v0.18.0rc1", [], "its tag says nothing"),
        ("lmcache/vllm-openai:v0.18.0", [], "its tag says nothing"),  # of LMCache
        ("r.example/lmcache/vllm-openai:v0.18.0", [], "its tag says nothing"),
        ("r.example/aibrix/vllm-openai:v0.18.0-cu129", ["0.18.0"], "as its tag seems to say"),
        ("acme/llmd-vllm-openai:v0.10.2", ["0.9.2", "0.11.0"], "between which 0.10.2 lies, as its tag seems to say"),
        ("acme/vllm-openai:kvcache-v0.18.0", [], "its tag says nothing"),
        ("opea/vllm-gaudi:0.18.0", [], "its tag says nothing"),
        ("vllm/vllm-openai:v99.0.0", [], "newer than 99"),
        ("http://169.254.169.254/x/vllm-openai:v0.18.0", [], "says nothing"),
        ("registry.example/x:cuda13.0-vllm0.33-1.4.0", ["0.33.0"], "by its row"),
        ("", [], "no image stands next to"),
    ],
)
def test_an_image_is_known_by_its_tag_or_its_row_when_offline(image: str, versions: list[str], how: str) -> None:
    known = ImageFinder(DRYDOCK, offline=True).find(image)
    assert [version.version for version in known.versions] == versions
    assert how in known.how


def test_between_two_releases_only_what_both_refuse_counts(tmp_path: Path) -> None:
    script = "docker run vllm/vllm-openai:v0.10.2 --model a/b --wrong 1 {}"
    both = only(reviewed(tmp_path, x__sh=script.format("--num-scheduler-steps 8")))
    assert ("would not start", 1, "--wrong 1") in shown(both)
    one = only(reviewed(tmp_path, x__sh=script.format("--compilation-config.mode 3")))  # 0.11 has no such key yet
    assert [part for level, _, part in shown(one) if level == "would not start"] == ["--wrong 1"]


@pytest.mark.parametrize("image", ["vllm/vllm-openai:latest", "acme/vllm-openai:v0.33.0"])
def test_a_tag_that_moves_or_that_others_gave_refuses_nothing_for_certain(tmp_path: Path, image: str) -> None:
    place = only(reviewed(tmp_path, x__sh=f"docker run {image} --model a/b {GONE}"))
    assert [(finding.level, finding.part) for finding in place.findings] == [(Level.WARNING, GONE)]


def test_a_connector_that_vllm_does_not_have_may_be_of_those_who_built_the_image(tmp_path: Path) -> None:
    option = """--kv-transfer-config '{"kv_connector":"AcmeConnector","kv_role":"kv_both"}'"""
    levels = [
        only(reviewed(tmp_path, x__sh=f"docker run {image} --model a/b {option}")).findings[0].level
        for image in ("vllm/vllm-openai:v0.18.0", "acme/vllm-openai:v0.18.0")
    ]
    assert levels == [Level.REFUSED, Level.UNKNOWN]


def test_without_an_image_only_a_flag_that_no_release_has_is_found(tmp_path: Path) -> None:
    place = only(reviewed(tmp_path, x__sh=f"vllm serve a/b {GONE} --tensor-paralel-size 2 $MORE --$x 1"))
    assert shown(place) == [("warning", 1, "--tensor-paralel-size"), ("not known", 1, "image")]


def test_a_parser_that_does_not_fit_the_model(tmp_path: Path) -> None:
    script = f"docker run {RELEASE} --model Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser {{}}"
    assert shown(only(reviewed(tmp_path, x__sh=script.format("hermes")))) == []
    assert shown(only(reviewed(tmp_path, x__sh=script.format("llama3_json"))))[0][0] == "warning"
    assert shown(only(reviewed(tmp_path, x__sh=script.format("hermess"))))[0][0] == "would not start"


def test_to_says_what_breaks_if_another_image_came(tmp_path: Path) -> None:
    script = "docker run vllm/vllm-openai:v0.11.0 --model a/b --swap-space 4\ndocker run x/other:v1 --model a/vllm\n"
    assert shown(only(reviewed(tmp_path, x__sh=script))) == []
    place = only(reviewed(tmp_path, "docker.io/vllm/vllm-openai:v0.33.0"))
    assert shown(place) == [("would not start", 1, "--swap-space 4")]
    assert "removed" in place.findings[0].because


@pytest.mark.parametrize(
    ("image", "to", "expected"),
    [
        (RELEASE, "ghcr.io/me/vllm-openai:x", True),
        (RELEASE, "vllm/vllm-openai-rocm:v0.33.0", False),
        (RELEASE, "0.33", True),
        ("", "vllm/vllm-openai:v0.33.0", True),
        ("{{ x }}", "vllm/vllm-openai:v0.33.0", False),
    ],
)
def test_an_image_comes_instead_of_those_of_its_name(image: str, to: str, expected: bool) -> None:
    assert is_replaced(image, to) is expected


def test_a_variable_that_is_filled_in_later_is_not_judged(tmp_path: Path) -> None:
    script = f"docker run -e VLLM_MARLIN_INPUT_DTYPE{{}} {RELEASE} --model a/b"
    assert shown(only(reviewed(tmp_path, x__sh=script.format("")))) == []
    assert shown(only(reviewed(tmp_path, x__sh=script.format("=x"))))[0][0] == "would not start"


def test_a_variable_counts_only_where_vllm_refuses_values(tmp_path: Path) -> None:
    script = f"docker run {RELEASE} --model $MODEL --api-key $KEY"
    assert shown(only(reviewed(tmp_path, x__sh=script))) == []
    assert shown(only(reviewed(tmp_path, x__sh=f"{script} --dtype $TYPE"))) == [("not known", 1, "--dtype $TYPE")]


def test_kubernetes_puts_the_containers_own_variables_into_its_words(tmp_path: Path) -> None:
    pod = f"""\
containers:
  - image: {RELEASE}
    args: ["--model=$(NAME)", --dtype, "$(TYPE)", "--max-model-len=$(FROM)", "--seed=$$(FROM)"]
    env: [{{name: BITS, value: 8}}, {{name: TYPE, value: "float$(BITS)"}}, {{name: FROM, valueFrom: {{}}}}]
"""
    findings = only(reviewed(tmp_path, x__yaml=pod)).findings
    assert [(finding.level.word, finding.part) for finding in findings] == [
        ("would not start", "--dtype float8"),
        ("not known", "--max-model-len=$(FROM)"),
        ("not known", "--seed=$(FROM)"),
    ]


def test_an_entrypoint_that_is_not_vllms_gets_no_arguments() -> None:
    from drydock.review.place_findings import _judge_entry  # noqa: PLC0415
    from drydock.review.written_commands import CommandPlace  # noqa: PLC0415

    place = CommandPlace("f", 3, "compose", "x/vllm:1", ("--model", "a"), {}, is_entered=True)
    words = ("/opt/nvidia/nvidia_entrypoint.sh",)
    assert [item.level for item in _judge_entry(place, ImageVersion((), "", words))] == [Level.REFUSED]
    assert [*_judge_entry(place, ImageVersion((), "", ("vllm", "serve")))] == []
    assert [*_judge_entry(place, ImageVersion((), ""))] == []


# --- what others can write -------------------------------------------------------------------------------------------


def test_links_size_depth_and_aliases_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text(COMPOSE)
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "link.yaml").symlink_to(outside)
    (folder / "within.yaml").symlink_to("bomb.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "pipes").symlink_to("/proc")
    bomb = "a0: &a0 [vllm]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    (folder / "bomb.yaml").write_text(bomb)
    (folder / "deep.yaml").write_text(f"vllm: {'[' * 100}{']' * 100}\n")
    (folder / "binary.yaml").write_bytes(b"vllm \xff\n")
    (folder / "large.yaml").write_text("vllm" * (tree_files.LARGEST // 4 + 1))
    (folder / "quote.sh").write_text("vllm serve 'x\n")
    (folder / "words.sh").write_text(f"vllm serve a/b {'x ' * 300_000}\n")
    (folder / "list.yaml").write_text("[{containers: [{image: vllm/vllm-openai, args: [--help]}]}]\n")
    (folder / "chart").mkdir()
    (folder / "chart" / "a.yaml").write_text("image: vllm\n{{- if .Values.x }}\n  bad: [\n")
    review = review_folder(DRYDOCK, str(folder), "", offline=True)
    assert review.places == ()
    assert {item.path: item.because for item in review.skipped} == {
        "binary.yaml": "byte 5 is not UTF-8",
        "bomb.yaml": "more than 200000 values, with those of its aliases",
        "chart/a.yaml": "a template that is not rendered",
        "deep.yaml": "line 1: nested deeper than 64",
        "large.yaml": "larger than 1 MiB",
        "link.yaml": "a link to a place outside of the folder",
        "loop.yaml": "a link that leads to itself",
        "quote.sh": "line 1: a quote is not closed",
        "words.sh": "line 1: more than 2000 words",
    }
    monkeypatch.setattr(tree_files, "ENTRIES_AT_MOST", 3)
    with pytest.raises(InputError, match="more than 3 files"):
        review_folder(DRYDOCK, str(folder), "", offline=True)
    with pytest.raises(InputError, match="not a folder"):
        review_folder(DRYDOCK, str(outside), "", offline=True)


def test_the_verb_exits_with_3_if_something_would_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    with pytest.raises(CommandRefusedError, match="1 of 1 commands would not start") as error:
        call_verb("review", folder=str(tmp_path), offline=True)
    assert error.value.code == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"./compose.yaml:3: {RELEASE} (vllm-0.18.0, by its tag)"
    assert lines[-1] == "1 commands: 1 would not start, 0 warning, 0 not known, 0 without a finding"
    raise_refused(review_folder(DRYDOCK, str(tmp_path), "0.11", offline=True))
