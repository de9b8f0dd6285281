from __future__ import annotations

import requests

from drydock.attest.contents import File, ImageContents, find_owners, list_installed_debs
from drydock.config.mirrors import Mirrors
from drydock.config.strict_yaml import parse_yaml
from drydock.config.validation import validate_document
from drydock.core.errors import DrydockError, InputError
from drydock.model.record import dump_record
from drydock.oci.reference import parse_reference
from drydock.registry.blobs import _range_end
from drydock.registry.registry_client import format_registry_errors, parse_challenges
from tests.support.damage import fuzz, survives_damage


@fuzz
def test_references_survive_damage() -> None:
    def quiet(text: str) -> None:
        try:
            reference = parse_reference(text)
        except InputError as error:
            raise ValueError(str(error)) from error
        assert parse_reference(str(reference))._replace(scheme=reference.scheme) == reference

    survives_damage(quiet, f"https://r.example:5000/a/b__c-d:tag@sha256:{'a' * 64}", "ubuntu:24.04", "localhost/a")


@fuzz
def test_challenges_survive_damage() -> None:
    survives_damage(parse_challenges, 'Bearer realm="https://a/t?x=\\"1\\"", service=r, scope="a:b:c", Basic realm=x')


@fuzz
def test_headers_and_errors_survive_damage() -> None:
    def quiet(text: str) -> None:
        response = requests.Response()
        response.headers["Link"] = text
        response._content = text.encode("utf-8", "replace")
        assert isinstance(response.links, dict)
        assert isinstance(format_registry_errors(response), str)
        _range_end(text)

    survives_damage(
        quiet,
        '</v2/a/tags/list?last=b>; rel="next", <x>; rel=last',
        '{"errors": [{"code": "A", "message": "b"}]}',
        "0-7",
    )


@fuzz
def test_mirrors_survive_damage() -> None:
    def quiet(text: str) -> None:
        try:
            dump_record(validate_document(Mirrors, parse_yaml(text, "mirrors.yaml")))
        except DrydockError as error:
            raise ValueError(str(error)) from error

    survives_damage(
        quiet,
        "schema: 1\nregistries:\n  docker.io: r.example:5000/hub\nindexes:\n  default: https://p.example/simple/\n",
    )


@fuzz
def test_package_databases_of_images_survive_damage() -> None:
    def quiet(text: str) -> None:
        status, listing, _, record = (*text.split("@@@"), "", "", "")[:4]
        texts = {
            "var/lib/dpkg/status": status,
            "var/lib/dpkg/info/a.list": listing,
            "opt/venv/a-1.dist-info/RECORD": record or text,
            "opt/venv/a-1.dist-info/METADATA": "Name: a\nVersion: 1\n",
        }
        files = {path: File(0, 1, "a", "", 0o644) for path in texts}
        image_contents = ImageContents(files, tuple(list_installed_debs(texts)), find_owners(files, texts), texts)
        assert set(image_contents.owners) == set(files)

    status = "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\nPackage: b\nVersion: 2\n"
    survives_damage(quiet, f'{status}@@@/usr/bin/a\n/.\n@@@x@@@a.py,sha256=x,1\n"b,c.py",,\n')
