"""What version numbers promise: what users rely on ends only in a release whose changelog says so."""

from __future__ import annotations

from drydock.cli.verb_table import COMMANDS
from drydock.cli.version import read_own_version
from drydock.config import renamed
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.core.verb_options import list_fields
from drydock.development import surface
from drydock.pages.changelog import read_changelog

RELEASES = read_changelog()


def test_what_is_gone_or_changed_since_the_last_release_is_in_the_changelog() -> None:
    _, recorded = surface.read_recorded()
    changes = surface.compare_surfaces(recorded, surface.collect_surface(read_matrix(DRYDOCK)))
    assert surface.find_unnamed_changes(changes.broken, RELEASES[0].text) == [], "name it in CHANGELOG.md, Unreleased"


def test_the_recorded_surface_is_of_the_last_release() -> None:
    release, recorded = surface.read_recorded()
    assert release in ("", RELEASES[1].version), "empty until the first release that records one"
    assert (ROOT / surface.FILE).read_text() == surface.format_surface(release, recorded)


def test_the_version_is_that_of_the_last_release() -> None:
    assert read_own_version() == RELEASES[1].version


def test_an_old_name_goes_when_a_release_has_warned_of_it() -> None:
    last, *earlier = [release.version for release in RELEASES[1:]]
    assert renamed.find_outlived_names(last, earlier) == [], "remove these from drydock/config/renamed.py"


def test_no_task_has_an_option_by_its_old_name() -> None:
    options = {
        (name, f"--{field.option}")
        for verbs in COMMANDS.values()
        for name, verb in verbs.items()
        for field in list_fields(verb.record).values()
    }
    assert not options & {(old.where, old.name) for old in renamed.OPTIONS}
    assert {(old.where, old.new) for old in renamed.OPTIONS if old.new} <= options
