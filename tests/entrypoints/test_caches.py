"""Where things are written, and what happens when they cannot be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from entrypoints.caches import FOLDERS, cache_key, cache_root, cache_settings, chosen_environment, prepare, write
from entrypoints.errors import EntrypointError
from entrypoints.model import Mount

PROFILE = {"variant": "cpu-vllm0.32", "vllm": "0.32.0"}
WRITABLE = Mount("/cache", True, True, 0, 0, "ext4")
READ_ONLY = WRITABLE._replace(writable=False)


def values(env: dict[str, str], cache: Mount = WRITABLE) -> dict[str, str]:
    return {setting: value for setting, value, _ in cache_settings(PROFILE, env, cache, 12345)}


def test_everything_that_is_written_goes_to_the_volume() -> None:
    settings = values({})
    assert all(settings[folder].startswith("/cache/") for folder in FOLDERS)
    assert settings["VLLM_CACHE_ROOT"] == "/cache/vllm/cpu-vllm0.32-0.32.0"


def test_two_images_share_downloads_and_no_compiled_code() -> None:
    one, other = (values({"DRYDOCK_IMAGE_DIGEST": f"sha256:{letter * 64}"}) for letter in "ab")
    assert one["HF_HOME"] == other["HF_HOME"]
    for compiled in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        assert one[compiled] != other[compiled]


def test_the_digest_is_in_the_key_shortened() -> None:
    assert cache_key(PROFILE, {"DRYDOCK_IMAGE_DIGEST": "sha256:" + "ab" * 32}) == "cpu-vllm0.32-0.32.0-abababababab"


def test_a_volume_that_cannot_be_written_is_replaced_and_each_reason_says_so() -> None:
    assert cache_root({}, READ_ONLY, 12345) == "/tmp/drydock-12345"
    assert values({"TMPDIR": "/scratch"}, READ_ONLY)["HF_HOME"] == "/scratch/drydock-12345/hub"
    because = {setting: text for setting, _, text in cache_settings(PROFILE, {}, READ_ONLY, 12345)}
    assert all("/cache cannot be written" in because[folder] for folder in FOLDERS)


def test_a_uid_without_a_passwd_entry_gets_a_user_name() -> None:
    assert values({})["USER"] == "drydock"


def test_nothing_is_reported_home_unless_the_user_said_so() -> None:
    assert values({})["VLLM_NO_USAGE_STATS"] == values({})["DO_NOT_TRACK"] == "1"
    assert "DO_NOT_TRACK" not in values({"VLLM_NO_USAGE_STATS": "0"})


def test_offline_only_when_asked() -> None:
    assert "HF_HUB_OFFLINE" not in values({})
    assert values({"DRYDOCK_OFFLINE": "1"})["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("home", ["", "/", "/cache/home"])
def test_a_home_that_the_runtime_filled_in_was_chosen_by_nobody(home: str) -> None:
    assert chosen_environment({"HOME": home, "A": "b"}, READ_ONLY) == {"A": "b"}


def test_a_home_that_somebody_set_is_kept() -> None:
    assert chosen_environment({"HOME": "/home/me"}, WRITABLE) == {"HOME": "/home/me"}


def test_folders_are_made_group_writable_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        prepare(
            {"HF_HOME": str(tmp_path / "hub"), "VLLM_CACHE_ROOT": str(tmp_path / "vllm" / "key")}, "", private=False
        )
    finally:
        os.umask(before)
    for folder in ("hub", "vllm", "vllm/key"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o770


def test_preparing_twice_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir(mode=0o700)
    prepare({"HF_HOME": str(tmp_path / "hub")}, "", private=False)
    assert stat.S_IMODE((tmp_path / "hub").stat().st_mode) == 0o700


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("")
    with pytest.raises(EntrypointError, match=f"{tmp_path}/hub: expected a folder, found a file"):
        prepare({"HF_HOME": str(tmp_path / "hub")}, "", private=False)


def test_a_private_root_is_ours_alone(tmp_path: Path) -> None:
    root = tmp_path / "drydock-0"
    prepare({}, str(root), private=True)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a_private_root_that_others_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "drydock-0"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(EntrypointError, match="that nobody else writes to"):
        prepare({}, str(root), private=True)


def test_a_private_root_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "drydock-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EntrypointError, match="that nobody else writes to"):
        prepare({}, str(tmp_path / "drydock-0"), private=True)


def test_a_file_is_written_whole_below_the_cache(tmp_path: Path) -> None:
    write(str(tmp_path / "buckets" / "a.txt"), "(1, 128, 0)\n")

    assert (tmp_path / "buckets" / "a.txt").read_text() == "(1, 128, 0)\n"
    assert [path.name for path in (tmp_path / "buckets").iterdir()] == ["a.txt"]


def test_a_variable_that_begins_with_a_folder_makes_it(tmp_path: Path) -> None:
    prepare({"PT_HPU_RECIPE_CACHE_CONFIG": f"{tmp_path}/recipes,false,5120"}, str(tmp_path), private=False)

    assert (tmp_path / "recipes").is_dir()
