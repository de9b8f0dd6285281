from __future__ import annotations

from collections.abc import Mapping

import pytest

from drydock.attest.contents import ImageContents, Package
from drydock.attest.licences import (
    LicencePolicy,
    enforce_licences,
    find_spdx_expression,
    is_spdx,
    make_licence_inventory,
    read_policy,
)
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import LicenceError

POLICY = read_policy(DRYDOCK)


def package(name: str = "a", kind: str = "pypi", **fields: str) -> Package:
    metadata_fields: Mapping[str, tuple[str, ...]] = {key.replace("_", "-"): (value,) for key, value in fields.items()}
    return Package(kind, name, "1", "", "", metadata_fields)


def image(*packages: Package) -> ImageContents:
    return ImageContents({}, packages, {}, {})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License_Expression": "Apache-2.0 OR MIT", "License": "BSD"}, "Apache-2.0 OR MIT"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License": "MIT License\n\nPermission is hereby granted, free of charge"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, "LicenseRef-BSD"),
        ({"License": "see LICENSE"}, ""),
        ({"License": "2005-2025, NumPy Developers. All rights reserved."}, ""),
        ({}, ""),
    ],
)
def test_expression_from_metadata(fields: dict[str, str], expected: str) -> None:
    assert find_spdx_expression(package(**fields), POLICY.names) == expected


@pytest.mark.parametrize(
    ("licence", "verdict"),
    [
        ("MIT", "allowed"),
        ("GPL-3.0-only OR MIT", "allowed"),
        ("GPL-3.0-only AND MIT", "unknown"),
        ("Apache-2.0 WITH LLVM-exception", "allowed"),
        ("AGPL-3.0-only", "denied"),
        ("MIT AND AGPL-3.0-or-later", "denied"),
        ("", "unknown"),
    ],
)
def test_verdicts(licence: str, verdict: str) -> None:
    image_licences = make_licence_inventory("x", image(package(License_Expression=licence)), POLICY)
    assert image_licences.packages[0].verdict == verdict
    assert image_licences.packages[0].because


def test_debian_packages_get_the_verdict_of_their_origin() -> None:
    assert make_licence_inventory("x", image(package(kind="deb")), POLICY).packages[0].verdict == "allowed"


def test_an_override_takes_precedence_over_metadata() -> None:
    assert make_licence_inventory("x", image(package("setuptools")), POLICY).packages[0].licence == "MIT"


def test_denied_licences_are_refused_and_unknown_ones_only_if_the_policy_says_so() -> None:
    denied, unknown = image(package(License="AGPL-3.0-only")), image(package())
    strict: LicencePolicy = POLICY.model_copy(update={"unknown": "refuse"})
    with pytest.raises(LicenceError, match=r"a 1: AGPL-3\.0-only") as caught:
        enforce_licences(make_licence_inventory("x", denied, POLICY), POLICY)
    assert caught.value.code == 14
    enforce_licences(make_licence_inventory("x", unknown, POLICY), POLICY)
    with pytest.raises(LicenceError, match="no known licence"):
        enforce_licences(make_licence_inventory("x", unknown, strict), strict)


def test_the_policy_contains_only_valid_identifiers() -> None:
    licences = (
        *POLICY.allow,
        *POLICY.names.values(),
        *(item.licence for item in (*POLICY.deny, *POLICY.packages.values())),
    )
    assert [licence for licence in licences if not licence.startswith("LicenseRef-") and not is_spdx(licence)] == []
    unlisted = {licence for licence in POLICY.names.values() if licence.startswith("LicenseRef-")}
    assert unlisted <= set(POLICY.allow)


def test_a_licence_on_neither_list_is_unknown_and_has_the_reason_of_its_override() -> None:
    licensed = make_licence_inventory("i", image(package("intel-openmp")), POLICY).packages[0]
    assert (licensed.verdict, licensed.licence) == ("unknown", "LicenseRef-Intel-EULA-developer-tools")
    assert "redist.txt" in licensed.because


def test_packages_that_the_policy_says_nothing_about_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    silent = image(package("a"), package("long-name", License="x " * 80), package("intel-openmp"))
    enforce_licences(make_licence_inventory("x", silent, POLICY), POLICY)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "licences: 3 packages have a licence that policy/licences.yaml neither allows nor denies:"
    assert lines[1].split() == ["package", "version", "licence"]
    assert lines[2].split() == ["a", "1", "none", "stated"]
    assert lines[3].startswith("  long-name     1        none known to SPDX; metadata: x x")
    assert lines[4].split() == ["intel-openmp", "1", "LicenseRef-Intel-EULA-developer-tools"]
    assert max(map(len, lines)) <= 120
    assert "`packages`, by name" in lines[5]
