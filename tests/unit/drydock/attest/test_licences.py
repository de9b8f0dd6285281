from __future__ import annotations

from collections.abc import Mapping

import pytest

from drydock.attest.contents import ImageContents, Package
from drydock.attest.licences import LicencePolicy, expression, inventory, is_spdx, read_policy, settle
from drydock.core.errors import LicenceError
from drydock.core.paths import ROOT

POLICY = read_policy(ROOT)


def package(name: str = "a", kind: str = "pypi", **fields: str) -> Package:
    named: Mapping[str, tuple[str, ...]] = {key.replace("_", "-"): (value,) for key, value in fields.items()}
    return Package(kind, name, "1", "", "", named)


def holding(*packages: Package) -> ImageContents:
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
def test_metadata_amounts_to_an_expression(fields: dict[str, str], expected: str) -> None:
    assert expression(package(**fields), POLICY.names) == expected


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
    found = inventory("x", holding(package(License_Expression=licence)), POLICY)
    assert found.packages[0].verdict == verdict
    assert found.packages[0].because


def test_debians_packages_are_judged_by_their_origin() -> None:
    assert inventory("x", holding(package(kind="deb")), POLICY).packages[0].verdict == "allowed"


def test_what_is_told_of_a_package_wins() -> None:
    assert inventory("x", holding(package("setuptools")), POLICY).packages[0].licence == "MIT"


def test_what_is_denied_stops_and_what_is_unknown_only_where_the_policy_says_so() -> None:
    denied, unknown = holding(package(License="AGPL-3.0-only")), holding(package())
    strict: LicencePolicy = POLICY.model_copy(update={"unknown": "refuse"})
    with pytest.raises(LicenceError, match=r"a 1: AGPL-3\.0-only") as caught:
        settle(inventory("x", denied, POLICY), POLICY)
    assert caught.value.code == 14
    settle(inventory("x", unknown, POLICY), POLICY)
    with pytest.raises(LicenceError, match="no known licence"):
        settle(inventory("x", unknown, strict), strict)


def test_every_identifier_of_the_policy_is_one() -> None:
    said = (
        *POLICY.allow,
        *POLICY.names.values(),
        *(item.licence for item in (*POLICY.deny, *POLICY.packages.values())),
    )
    assert [licence for licence in said if not licence.startswith("LicenseRef-") and not is_spdx(licence)] == []
    meant = {licence for licence in POLICY.names.values() if licence.startswith("LicenseRef-")}
    assert meant <= set(POLICY.allow)


def test_a_licence_of_neither_list_is_said_with_what_is_known_of_it() -> None:
    licensed = inventory("i", holding(package("intel-openmp")), POLICY).packages[0]
    assert (licensed.verdict, licensed.licence) == ("unknown", "LicenseRef-Intel-EULA-developer-tools")
    assert "redist.txt" in licensed.because
