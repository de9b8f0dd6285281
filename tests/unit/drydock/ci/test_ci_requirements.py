"""requirements.txt of a project names this drydock by its hash; what does not is said, and is written again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from drydock.ci import ci_requirements
from drydock.ci.own_wheel import OwnWheel
from drydock.cli.version import read_own_version
from drydock.core.errors import InputError, StaleError
from drydock.core.paths import ROOT
from drydock.core.project import Project

CONTENT = b"a wheel"
HASH = hashlib.sha256(CONTENT).hexdigest()
FILENAME = f"drydock_images-{read_own_version()}-py3-none-any.whl"
WHEEL = OwnWheel(FILENAME, HASH, CONTENT)
AT_ADDRESS = OwnWheel(FILENAME, HASH, b"", f"https://releases.example/{FILENAME}")
HASHED = f"--hash=sha256:{HASH}"
STRANGER = "on the public Python index this is another project"
NO_HASH = "has no hash: whoever owns the name or the address decides"
OTHER = f"this drydock is drydock-images {read_own_version()}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / FILENAME).write_bytes(CONTENT)
    return Project(tmp_path, (ROOT,))


def problems(project: Project, text: str) -> tuple[str, ...]:
    (project.root / "requirements.txt").write_text(text)
    return ci_requirements.find_problems(project)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("drydock==0.1.0", STRANGER),
        ("Drydock == 0.1.0 # ours", STRANGER),
        ("drydock", STRANGER),
        ("drydock[x]>=0.1 ; python_version > '3'", STRANGER),
        ("drydock @ https://h.example/drydock-0.1.0-py3-none-any.whl", STRANGER),
        ("./drydock-0.1.0-py3-none-any.whl", STRANGER),
        (f"drydock==0.1.0 {HASHED}", OTHER),
        (f"drydock-images=={read_own_version()}", NO_HASH),
        (f"./{FILENAME}", NO_HASH),
        (f"drydock-images @ https://h.example/{FILENAME}", NO_HASH),
        ("drydock-images @ git+https://git.example/drydock@main", NO_HASH),
        (f"drydock_images==0.0.1 \\\n  {HASHED}", OTHER),
        (f"./drydock_images-0.0.1-py3-none-any.whl \\\n    {HASHED}", OTHER),
        (f"./wheels/{FILENAME} {HASHED}", "file not found"),
        (f"./{FILENAME} --hash=sha256:{'0' * 64}", "the file has another hash"),
        ("structlog==25.1.0", "names no drydock-images"),
        ("", "names no drydock-images"),
        ("-r more.txt", STRANGER),
        ("--requirement=more.txt", STRANGER),
    ],
)
def test_what_is_not_this_drydock_by_hash_is_said(project: Project, line: str, problem: str) -> None:
    (project.root / "more.txt").write_text("-r requirements.txt\n\ndrydock>=0\n")
    [message] = problems(project, f"# What CI installs\n{line}\n")
    assert problem in message
    with pytest.raises(StaleError, match=r"upgrade --write"):
        ci_requirements.check_requirements(project)


@pytest.mark.parametrize(
    "line",
    [
        f"./{FILENAME} \\\n    {HASHED}",
        f"{FILENAME} {HASHED}",
        f"drydock-images @ https://h.example/{FILENAME} {HASHED}",
        f"https://h.example/{FILENAME}#sha256={HASH}",
        f"drydock-images=={read_own_version()} \\\n  {HASHED} \\\n  --hash=sha256:{'1' * 64}",
        f"{FILENAME} --hash=sha512:{hashlib.sha512(CONTENT).hexdigest()}\r",
    ],
)
def test_this_drydock_by_hash_is_right_however_it_is_written(project: Project, line: str) -> None:
    assert problems(project, f"{line}\nstructlog==25.1.0 --hash=sha256:{'2' * 64}\n") == ()
    ci_requirements.check_requirements(project)


def test_a_wheel_of_another_commit_is_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci_requirements.own_wheel, "read_wheel_commit", lambda _: "0" * 40)
    monkeypatch.setattr(ci_requirements, "read_commit", lambda _: "1" * 40)
    [message] = problems(project, f"./{FILENAME} {HASHED}\n")
    assert "made of commit 000000000000, and this drydock is of 111111111111" in message


def test_a_project_with_ci_needs_the_file_and_one_without_does_not(project: Project) -> None:
    assert ci_requirements.find_problems(project) == ()
    (project.root / ".gitlab-ci.yml").write_text("")
    assert "file not found" in ci_requirements.find_problems(project)[0]


def test_a_file_that_is_no_text_is_one_line(project: Project) -> None:
    (project.root / "requirements.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match="is not UTF-8"):
        ci_requirements.find_problems(project)
    with pytest.raises(InputError, match="is not UTF-8"):
        ci_requirements.write_requirements(project, WHEEL)
    assert (project.root / "requirements.txt").read_bytes() == b"\xff"


@pytest.mark.parametrize("wheel", [WHEEL, AT_ADDRESS])
def test_what_is_written_is_right_and_pins_all_with_hashes(project: Project, wheel: OwnWheel) -> None:
    (project.root / FILENAME).unlink()
    ci_requirements.write_requirements(project, wheel)

    assert ci_requirements.find_problems(project) == ()
    assert (project.root / FILENAME).exists() == (not wheel.address)
    lines = ci_requirements._read_lines(project.root / "requirements.txt")
    assert [line.requirement for line in lines if not line.hashes] == []
    assert "\npydantic==" in (project.root / "requirements.txt").read_text()


def test_writing_keeps_what_the_project_added_and_removes_the_wheel_that_was_named(project: Project) -> None:
    old = "drydock_images-0.0.1-py3-none-any.whl"
    (project.root / old).write_bytes(b"old")
    (project.root / "drydock_images-0.0.2-py3-none-any.whl").write_bytes(b"not named")
    (project.root / "requirements.txt").write_text(
        "# What CI installs: `pip install -r requirements.txt`.\n"
        f"./{old} \\\n    --hash=sha256:{hashlib.sha256(b'old').hexdigest()}\n"
        "requests==2.0 \\\n    --hash=sha256:00\n"
        f"# our logger\nstructlog==25.1.0 \\\n    --hash=sha256:{'2' * 64}\n"
    )

    written_files = ci_requirements.write_requirements(project, WHEEL)

    own_lines = f"{ci_requirements.OWN}\n# our logger\nstructlog==25.1.0 \\\n    --hash=sha256:{'2' * 64}\n"
    assert (project.root / "requirements.txt").read_text().endswith(own_lines)
    assert "==2.0 " not in (project.root / "requirements.txt").read_text()
    assert (
        sorted(path.name for path in project.root.glob("*.whl"))
        == [FILENAME, "drydock_images-0.0.2-py3-none-any.whl"][::-1]
    )
    assert [path.name for path in written_files] == ["requirements.txt", old]
    assert ci_requirements.write_requirements(project, WHEEL) == []


def test_without_a_wheel_a_project_names_none(project: Project) -> None:
    text = ci_requirements.make_requirement_files(None)["requirements.txt"].decode()
    assert "names no drydock-images" in problems(project, text)[0]
