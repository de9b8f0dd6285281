from __future__ import annotations

from drydock.core.errors import InputError
from drydock.oci.reference import parse
from drydock.registry.client import parse_challenges
from tests.support.damage import fuzz, survives_damage


@fuzz
def test_references_survive_damage() -> None:
    def quiet(text: str) -> None:
        try:
            found = parse(text)
        except InputError as error:
            raise ValueError(str(error)) from error
        assert parse(str(found))._replace(scheme=found.scheme) == found

    survives_damage(quiet, f"https://r.example:5000/a/b__c-d:tag@sha256:{'a' * 64}", "ubuntu:24.04", "localhost/a")


@fuzz
def test_challenges_survive_damage() -> None:
    survives_damage(parse_challenges, 'Bearer realm="https://a/t?x=\\"1\\"", service=r, scope="a:b:c", Basic realm=x')
