"""How tasks report errors, what --target selects, and how arguments are split."""

from __future__ import annotations

from pathlib import Path

import pytest
from invoke.context import Context

from drydock.cli.task_helpers import after_dashes, choose_variants, here, report_written, words_of
from drydock.cli.verb import Verb
from drydock.core.console import log, set_verbose, write_output
from drydock.core.errors import FetchError, InputError, TargetError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.core.verb_options import VerbOptions
from drydock.model.shared_options import DryRunInCopyOption, NoCacheOption, VerboseOption


def test_an_error_is_printed_with_its_hint_and_exits_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    @Verb
    def fails(_: VerbOptions) -> None:
        raise FetchError("x.whl: not to be had", hint="[try] another index")

    with pytest.raises(SystemExit) as raised:
        fails(Context())
    assert raised.value.code == FetchError.code
    assert capsys.readouterr() == ("", "error: x.whl: not to be had\n\nhint: [try] another index\n")


def test_other_exceptions_keep_their_traceback() -> None:
    @Verb
    def defect(_: VerbOptions) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        defect(Context())


def test_no_target_selects_every_variant_and_an_unknown_one_is_an_error() -> None:
    everything = choose_variants("")
    assert choose_variants("cpu")[0] in everything
    with pytest.raises(TargetError, match="unknown target 'cup'"):
        choose_variants("cup")


def test_written_files_are_reported_relative_to_the_repository(capsys: pytest.CaptureFixture[str]) -> None:
    report_written([ROOT / "images" / "a" / "Dockerfile"])
    report_written([])
    assert capsys.readouterr().err == "wrote images/a/Dockerfile\nnothing to do\n"


def test_arguments_after_dashes_are_not_split() -> None:
    assert after_dashes(["inv", "run", "--", "--override", '{"a b": 1}']) == ("--override", '{"a b": 1}')
    assert after_dashes(["inv", "run"]) == ()


def test_the_text_of_an_option_is_split_like_in_a_shell() -> None:
    assert words_of("--arguments", "--a 'b c'") == ("--a", "b c")
    with pytest.raises(InputError, match="--arguments it's: No closing quotation"):
        words_of("--arguments", "it's")


@pytest.mark.parametrize(("no_cache", "again"), [(False, "resume"), (True, "start again")])
def test_an_interrupted_build_without_cache_does_not_promise_to_resume(
    no_cache: bool, again: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @Verb
    def build(_: NoCacheOption) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        build(Context(), no_cache=no_cache)
    assert f"interrupted; to {again}, run: " in capsys.readouterr().err


class PlainWriteOptions(DryRunInCopyOption):
    pass


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small project, in which commands run."""
    folder = tmp_path / "acme"
    (folder / "images").mkdir(parents=True)
    (folder / "drydock.yaml").write_text("schema: 1\nname: acme\nrows: []\n")
    (folder / "images" / "old").write_text("old")
    monkeypatch.setattr("drydock.inputs.others.read_current_project", lambda: Project(folder, (ROOT,)))
    return folder


def test_a_dry_run_writes_into_a_copy_and_says_which_files(acme: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @Verb
    def writes(_: PlainWriteOptions) -> None:
        here().write("images/new", "new")
        here().write("images/old", "newer")
        log(f"wrote {here().root}/images/new")
        log(f"{here().root}/images/old: changed")
        assert (here() / "drydock.yaml").is_file()

    writes(Context(), dry_run=True)

    assert {path.name: path.read_text() for path in (acme / "images").iterdir()} == {"old": "old"}
    captured = capsys.readouterr()
    assert captured.out == "would write images/new\nwould write images/old\n"
    assert "images/old: changed\n" in captured.err
    assert "wrote" not in captured.err

    writes(Context())
    assert (acme / "images" / "new").read_text() == "new"


def test_a_dry_run_writes_through_no_link_and_says_what_goes(acme: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (acme.parent / "shared").mkdir()
    (acme.parent / "shared" / "stack.yaml").write_text("old")
    (acme / "templates").symlink_to(acme.parent / "shared")
    (acme / "templates" / "self").symlink_to(acme.parent / "shared")
    (acme / "gone").symlink_to("nowhere")

    @Verb
    def writes(_: PlainWriteOptions) -> None:
        root = here().root
        (root / "templates" / "stack.yaml").write_text("new")
        (root / "drydock.yaml").write_text("new")
        (root / "images" / "old").unlink()

    writes(Context(), dry_run=True)

    assert (
        capsys.readouterr().out
        == "would write drydock.yaml\nwould write templates/stack.yaml\nwould remove images/old\n"
    )
    assert (acme / "drydock.yaml").read_text() != "new"
    assert (acme.parent / "shared" / "stack.yaml").read_text() == "old"
    assert (acme / "images" / "old").is_file()


@pytest.mark.usefixtures("acme")
def test_an_error_of_a_dry_run_names_the_projects_file(capsys: pytest.CaptureFixture[str]) -> None:
    @Verb
    def fails(_: PlainWriteOptions) -> None:
        raise InputError(f"{here().root}/images/old: wrong")

    with pytest.raises(SystemExit) as caught:
        fails(Context(), dry_run=True)

    assert capsys.readouterr().err.endswith("error: images/old: wrong\n")
    assert caught.value.code == InputError.code


def test_quiet_leaves_the_result_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    @Verb
    def says(_: VerbOptions) -> None:
        log("resolving")
        log("warning: old")
        write_output("result\n")
        raise InputError("wrong")

    try:
        with pytest.raises(SystemExit):
            says(Context(), quiet=True)
    finally:
        set_verbose(verbose=False)
    assert capsys.readouterr() == ("result\n", "warning: old\nerror: wrong\n")


def test_quiet_and_verbose_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    @Verb
    def says(_: VerboseOption) -> None:
        log("not reached")

    with pytest.raises(SystemExit):
        says(Context(), quiet=True, verbose=True)
    assert "--verbose and --quiet exclude each other" in capsys.readouterr().err
