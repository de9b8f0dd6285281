"""Which cards libraries have code for: read of files made here, kept by hash, compared with rows and their checks."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.server_access import Access
from drydock.core.errors import InputError, StaleError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import device_code
from drydock.inputs.device_code import read_device_code
from drydock.inputs.store import Store
from drydock.inputs.wheel_contents import read_local_code, read_remote_code
from drydock.lock import code_lists, lockfile
from drydock.model.checks import Check
from drydock.model.locked import Lock, LockedWheel
from drydock.model.variant import Variant
from entrypoints.checks import code_for_cards
from entrypoints.core.records import Facts
from entrypoints.plan.other_rows import CODE, CODE_OF_ROWS, judge_code
from entrypoints.request.vllm_lists import VllmLists
from tests.support.damage import fuzz, survives_damage
from tests.support.hosts import expect

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

CUDA = find_variant(read_matrix(DRYDOCK), "cuda13.0-vllm0.33")
LOCK = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, CUDA.id))
PLATFORM = "linux/amd64"
OWN, FAMILY, SMALL = 1 << 20, 1 << 21, 0x11


def make_fatbin(*entries: tuple[int, int, int], payload: bytes = b"code", version: int = 1) -> bytes:
    """Return NVIDIA's container of kinds (1 is PTX, 2 machine code), architectures and flags."""
    body = b""
    for kind, architecture, flags in entries:
        fields = (kind, 0x101, 64, len(payload), 0, 0, 0, 0, architecture, 0, 0, flags)
        body += struct.pack("<HHIQIIHHIIIQ", *fields).ljust(64, b"\0") + payload
    return struct.pack("<IHHQ", 0xBA55ED50, version, 16, len(body)) + body


def make_bundle(*targets: str) -> bytes:
    """Return Clang's bundle of code for these targets."""
    table = b"".join(struct.pack("<QQQ", 4096, 8, len(target)) + target.encode() for target in targets)
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(targets)) + table


def make_library(*containers: bytes) -> bytes:
    """Return what looks like a library: an ELF file of another machine with containers among other bytes."""
    start = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, 62) + bytes(44)
    return start + b"".join(b"text" * 5 + container for container in containers) + b"end"


def make_cubin(abi: int, flags: int) -> bytes:
    """Return the header of NVIDIA's machine code alone."""
    return b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7) + struct.pack("<HHI24xI", 2, 190, 1, flags) + bytes(12)


def read(data: bytes) -> dict[str, int]:
    return dict(read_device_code(io.BytesIO(data)).counts)


def test_machine_code_and_ptx_are_counted_by_container() -> None:
    base, many = make_fatbin((2, 80, SMALL), (1, 90, SMALL)), make_fatbin((2, 90, OWN), (2, 100, FAMILY), (2, 80, 0))
    code = read_device_code(io.BytesIO(make_library(base, many, base)))
    assert code.containers == 3
    assert code.counts == {"sm_80": 3, "compute_90": 2, "sm_90a": 1, "sm_100f": 1}


def test_code_is_found_wherever_the_pieces_of_a_stream_end(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_library(make_fatbin((2, 75, 0), payload=b"x" * 99), make_bundle("hipv4-amdgcn-amd-amdhsa--gfx942"))
    whole = read(data)
    assert whole == {"sm_75": 1, "gfx942": 1}
    for size in range(1, 80):
        monkeypatch.setattr(device_code, "PIECE", size)
        assert read(data) == whole, size


def test_a_container_within_the_code_of_another_is_not_counted() -> None:
    assert read(make_fatbin((2, 75, 0), payload=make_fatbin((2, 90, 0)))) == {"sm_75": 1}


@pytest.mark.parametrize(
    ("abi", "flags", "architecture"),
    [(7, 0x500550, "sm_80"), (7, 0x5A0D5A, "sm_90a"), (8, 0x06005A04, "sm_90"), (8, 0x06007802, "sm_120")],
)
def test_machine_code_alone_says_its_architecture_in_its_header(abi: int, flags: int, architecture: str) -> None:
    assert read(make_cubin(abi, flags)) == {architecture: 1}


def test_bundles_of_amd_name_their_targets_also_compressed() -> None:
    bundle = make_bundle("host-x86_64-unknown-linux--", "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-",
                         "hipv4-amdgcn-amd-amdhsa--gfx11-generic")  # fmt: skip
    expected = {"gfx90a": 1, "gfx11-generic": 1}
    zlib_2 = b"CCOB" + struct.pack("<HHIIQ", 2, 0, 0, len(bundle), 0) + zlib.compress(bundle)
    zstd_3 = b"CCOB" + struct.pack("<HHQQQ", 3, 1, 0, len(bundle), 0) + zstandard.compress(bundle)
    zstd_1 = b"CCOB" + struct.pack("<HHIQ", 1, 1, len(bundle), 0) + zstandard.compress(bundle)
    for data in (bundle, zlib_2, zstd_3, zstd_1):
        assert read(make_library(data)) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        make_fatbin()[:9],
        make_fatbin((2, 80, 0), version=2),
        make_fatbin((9, 80, 0)),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 60) + b"\xff" * 80,
        b"CCOB" + struct.pack("<HHIIQ", 2, 1, 0, 9, 0) + b"no frame",
        b"CCOB" + struct.pack("<HHIIQ", 9, 9, 0, 9, 0),
        b"__CLANG_OFFLOAD_BUNDLE__" + b"\xff" * 40,
        make_bundle("hipv4-amdgcn-amd-amdhsa--\x1b[31mgfx942"),
    ],
)
def test_what_only_looks_like_code_counts_as_none(data: bytes) -> None:
    assert read(data) == {}


@fuzz
def test_damaged_code_is_read_to_an_end() -> None:
    whole = make_library(make_fatbin((2, 80, 0), (1, 90, 0)), make_bundle("hipv4-a-b-c--gfx942"))
    survives_damage(lambda text: read(text.encode("latin-1", "replace")), whole.decode("latin-1"))


# --- wheels ---------------------------------------------------------------------------------------------------------


def test_a_file_that_names_endless_architectures_fills_no_memory() -> None:
    containers = [make_fatbin(*((2, 4 * number + kind, 0) for kind in range(4))) for number in range(1000)]
    assert len(read(make_library(*containers))) <= device_code.MOST_ARCHITECTURES + 4


def make_wheel(name: str, files: Mapping[str, bytes]) -> tuple[bytes, LockedWheel]:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    data = content.getvalue()
    sha256, filename = hashlib.sha256(data).hexdigest(), f"{name}-99.0-py3-none-any.whl"
    return data, LockedWheel(name=name, version="99.0", filename=filename, size=len(data), sha256=sha256)


TORCH_FILES = {
    "torch/lib/libtorch_cuda.so": make_library(make_fatbin((2, 80, 0), (2, 90, 0))),
    "torch/lib/libother.so.1": make_library(make_fatbin((1, 75, 0))),
    "torch/lib/libplain.so": make_library(),
    "torch/notes.txt": make_fatbin((2, 70, 0)),
}


def test_the_libraries_of_a_wheel_are_read_on_a_server_as_they_are_here(tmp_path: Path, server: Loopback) -> None:
    data, wheel = make_wheel("torch", TORCH_FILES)
    (tmp_path / wheel.filename).write_bytes(data)
    server.files[f"/{wheel.filename}"] = data
    here = read_local_code(tmp_path / wheel.filename, wheel.filename)
    url = f"{server.url}/{wheel.filename}"
    there = read_remote_code(url, wheel.filename, wheel.size, Access(pause=0.001, timeout=5))
    assert here == there
    assert {path: dict(code.counts) for path, code in here.items()} == {
        "torch/lib/libtorch_cuda.so": {"sm_80": 1, "sm_90": 1},
        "torch/lib/libother.so.1": {"compute_75": 1},
    }


def test_a_damaged_wheel_is_an_error_for_the_user(tmp_path: Path) -> None:
    data, _ = make_wheel("torch", TORCH_FILES)
    (tmp_path / "t.whl").write_bytes(data[:80] + bytes(40) + data[120:])
    with pytest.raises(InputError, match=r"t\.whl: not a wheel that can be read"):
        read_local_code(tmp_path / "t.whl", "t.whl")


def lock_of(*wheels: LockedWheel) -> Lock:
    pins = LOCK.platforms[PLATFORM].model_copy(update={"layers": {"vllm": wheels}})
    return LOCK.model_copy(update={"platforms": {PLATFORM: pins}})


def store_wheel(store: Store, name: str, files: Mapping[str, bytes]) -> LockedWheel:
    data, wheel = make_wheel(name, files)
    store.add([data], wheel.sha256, wheel.filename)
    return wheel


def test_the_code_of_a_locked_wheel_is_read_once_and_belongs_to_its_hash(tmp_path: Path) -> None:
    project, store = Project(tmp_path / "mine", (ROOT,)), Store(tmp_path / "store")
    wheel = store_wheel(store, "torch", TORCH_FILES)
    other = store_wheel(store, "requests", TORCH_FILES)
    lock = lock_of(wheel, other)
    assert [path.name for path in code_lists.update_code(project, CUDA, lock, {}, store)] == ["torch-99.0.json"]
    assert code_lists.update_code(project, CUDA, lock, {}, store) == []
    libraries = code_lists.find_libraries(project, CUDA, lock, PLATFORM)
    assert code_lists.choose_loaded(libraries) == {
        "torch 99.0": {"torch/lib/libtorch_cuda.so": ["sm_80", "sm_90"]},
    }
    changed = lock_of(wheel.model_copy(update={"sha256": "0" * 64}))
    assert code_lists.find_libraries(project, CUDA, changed, PLATFORM) == {}


def test_what_cannot_be_read_is_said_and_locks_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project, store = Project(tmp_path / "mine", (ROOT,)), Store(tmp_path / "store")
    data = b"no archive"
    sha256 = hashlib.sha256(data).hexdigest()
    store.add([data], sha256, "torch-99.0-py3-none-any.whl")
    wheel = LockedWheel(
        name="torch", version="99.0", filename="torch-99.0-py3-none-any.whl", size=len(data), sha256=sha256
    )
    assert code_lists.update_code(project, CUDA, lock_of(wheel), {}, store) == []
    assert f"{CUDA.id}: which cards torch has code for was not read" in capsys.readouterr().err


def test_a_damaged_list_names_its_file_and_what_to_do(tmp_path: Path) -> None:
    project = Project(tmp_path, (ROOT,))
    project.write(f"{code_lists.FOLDER}/torch-99.0.json", '{"wheels": {"a": {"filename": "b", "files": {"../c": 1}}}}')
    with pytest.raises(StaleError, match=r"torch-99\.0\.json: invalid list of code for cards") as caught:
        code_lists.read_stored(tmp_path / code_lists.FOLDER / "torch-99.0.json")
    assert caught.value.hint == "remove the file and run ./inv lock"


def test_a_compiled_vllm_has_code_for_what_its_build_names() -> None:
    source = find_variant(read_matrix(DRYDOCK), "cuda13.0-source-vllm0.29")
    files = code_lists.find_libraries(DRYDOCK, source, None, PLATFORM)
    assert code_lists.choose_loaded(files)["vllm 0.29.0"]["TORCH_CUDA_ARCH_LIST"] == sorted(
        ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_110", "sm_120"]
    )
    amd = code_lists.find_libraries(DRYDOCK, find_variant(read_matrix(DRYDOCK), "rocm6.3-vllm0.8"), None, PLATFORM)
    assert [*amd.values()][-1]["PYTORCH_ROCM_ARCH"].counts == {"gfx90a": 1, "gfx942": 1}


# --- cards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "runs", "does_not_run"),
    [
        ("7.0", ("sm_70", "compute_70", "compute_52"), ("sm_75", "sm_60", "compute_75")),
        ("8.9", ("sm_80", "sm_86", "sm_89"), ("sm_90", "sm_75", "sm_90a")),
        ("9.0", ("sm_90", "sm_90a", "compute_80"), ("sm_89", "sm_100f", "compute_80a")),
        ("10.3", ("sm_100", "sm_100f", "sm_103f", "compute_100f"), ("sm_100a", "sm_120", "sm_110f", "compute_100a")),
        ("12.1", ("sm_120", "sm_120f", "sm_121a"), ("sm_100f", "sm_120a")),
        ("gfx942", ("gfx942", "gfx9-4-generic"), ("gfx90a", "gfx9-generic")),
        ("gfx1101", ("gfx1101", "gfx11-generic"), ("gfx1100", "gfx12-generic")),
    ],
)
def test_which_code_a_card_runs(card: str, runs: tuple[str, ...], does_not_run: tuple[str, ...]) -> None:
    assert [name for name in (*runs, *does_not_run) if code_for_cards.is_code_for(card, name)] == [*runs]


def facts_of(*architectures: str) -> Facts:
    facts = expect.read("cuda-h100-8x", expect.profile_of("cuda-h100-8x"))
    devices = [facts.devices[place]._replace(architecture=name) for place, name in enumerate(architectures)]
    return facts._replace(devices=tuple(devices))


TORCH = {"torch 9": {"a.so": ["sm_80", "sm_90"], "b.so": ["sm_80", "compute_90"]}}


def test_a_library_is_named_with_what_it_has_and_the_row_that_has_more() -> None:
    rows = {"old": {PLATFORM: {"torch 1": {"a.so": ["sm_70"]}}}, "new": {PLATFORM: TORCH}}
    platforms = {"row_platforms": {row: [PLATFORM] for row in rows}, "row_checks": {}}
    lists = VllmLists({CODE: rows["new"], CODE_OF_ROWS: rows, **platforms})
    (notice,) = judge_code(lists, facts_of("8.9", "7.0", "7.0"))
    assert (notice.id, notice.found, notice.expected) == (
        "CODE-001", "sm_80, sm_90 and PTX of compute_90", "code for 7.0",
    )  # fmt: skip
    (compiled,) = judge_code(lists, facts_of("9.0"))
    assert (compiled.id, compiled.values["library"]) == ("CODE-002", "torch 9")
    assert judge_code(lists, facts_of("8.0", "8.6")) == ()
    assert judge_code(lists, facts_of("NVIDIA Next")) == ()  # a card that nobody can place is not refused
    assert judge_code(VllmLists(), facts_of("7.0")) == ()  # as in an image
    (refusal,) = judge_code(lists, facts_of("7.0"))
    assert refusal.values["remedy"] == "--target old runs on this machine as it is"


# --- what contradicts it --------------------------------------------------------------------------------------------


def test_rows_and_checks_here_say_of_cards_what_the_files_of_their_libraries_say() -> None:
    assert [text for row in read_matrix(DRYDOCK) for text in code_lists.list_contradictions(DRYDOCK, row)] == []


def contradict(**changes: object) -> list[str]:
    variant: Variant = CUDA.model_copy(update=changes)
    return [*code_lists.list_contradictions(DRYDOCK, variant)]


def test_a_row_for_cards_that_its_wheels_have_no_code_for_is_an_error() -> None:
    (text,) = contradict(cards=("9.0", "7.0"))
    assert text.startswith(f"matrix.yaml: variants.{CUDA.id}: cards: 7.0: torch 2.14.0 has code for sm_75, ")


def test_a_check_that_refuses_too_many_cards_or_too_few_is_an_error() -> None:
    checks = tuple(_raise_least(check) for check in CUDA.checks)
    (refused,) = contradict(checks=checks)
    assert refused == f"{CUDA.id} ({PLATFORM}): CUDA-102 refuses 7.5, for which torch 2.14.0 and vllm 0.33.0 have code"
    without = tuple(check for check in CUDA.checks if check.id != "CUDA-102")
    (missed,) = contradict(checks=without)
    assert missed.startswith(f"{CUDA.id} ({PLATFORM}): no check of its stack refuses 7.0: torch 2.14.0 has code for ")


def _raise_least(check: Check) -> Check:
    return check.model_copy(update={"expected": "8.0"}) if check.id == "CUDA-102" else check
