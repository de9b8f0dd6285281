"""Which fields the files of llm-d, KServe, production-stack and Dynamo have, as far as docs/orchestrators.md uses them.

    python tests/support/orchestrators.py FOLDER     # clones of their repositories, as OWNER+NAME/repo

writes tests/samples/orchestrators/fields.json: names and types alone, of each object that an example has. Dynamo's are
those of its documentation, docs/kubernetes/api-reference, read on 2026-11-27.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from drydock.core.paths import ROOT

PAGE = ROOT / "docs/orchestrators.md"
FIELDS = ROOT / "tests/samples/orchestrators/fields.json"
_EXAMPLE = re.compile(r"```yaml\n# (?P<name>[\w-]+)\n(?P<text>.*?)```", re.DOTALL)
KSERVE = ("kserve+kserve", "charts/kserve-llmisvc-crd/templates/serving.kserve.io_llminferenceservices.yaml")
CHARTS = {
    "llm-d-modelservice": ("llm-d-incubation+llm-d-modelservice", "charts/llm-d-modelservice/values.schema.json"),
    "production-stack": ("vllm-project+production-stack", "helm/values.schema.json"),
}
MODELSERVICE = ("args", "command", "env", "extraConfig", "image", "modelCommand", "mountModelVolume", "name", "ports")
MODELSERVICE += ("resources", "volumeMounts")
"""Keys of a container that llm-d-modelservice's template takes (charts/…/templates/_helpers.tpl, "container"); its
schema allows any. Those of `extraConfig` are a container's."""
DYNAMO = {
    "": ("apiVersion", "kind", "metadata", "spec"),
    "spec": ("annotations", "backendFramework", "components", "env", "experimental", "labels", "priorityClassName"),
    "spec.components": (
        "compilationCache", "eppConfig", "experimental", "frontendSidecar", "globalDynamoNamespace", "modelRef",
        "multinode", "name", "podTemplate", "replicas", "scalingAdapter", "sharedMemorySize", "topologyConstraint",
        "type",
    ),
    "spec.components.podTemplate": ("metadata", "spec"),
}  # fmt: skip
"""Place in a DynamoGraphDeployment of v1beta1 → the fields there; a pod's are Kubernetes'."""
Node = dict[str, Any]
"""{"fields": {name: type}, "required": […], "of": {name: node}}; an array's node is that of its items."""


def read_examples() -> dict[str, Any]:
    """Return the page's examples, by the name in their first line."""
    return {match["name"]: yaml.safe_load(match["text"]) for match in _EXAMPLE.finditer(PAGE.read_text())}


def list_problems(value: Any, node: Node | None, where: str = "") -> Iterator[str]:
    """Yield each field of an example that its schema does not have, or has with another type; and missing ones."""
    if node is None:
        return
    if isinstance(value, list):
        for item in value:
            yield from list_problems(item, node, f"{where}[]")
        return
    if not isinstance(value, Mapping):
        return
    yield from (f"{where}.{name}: missing" for name in node["required"] if name not in value)
    for name, item in value.items():
        if name not in node["fields"]:
            yield f"{where}.{name}: unknown field"
        elif not _fits(item, node["fields"][name]):
            yield f"{where}.{name}: {item!r} is no {node['fields'][name]}"
        else:
            yield from list_problems(item, node["of"].get(name), f"{where}.{name}")


def _fits(value: Any, kind: str) -> bool:
    kinds = {"object": Mapping, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    return any(name not in kinds or isinstance(value, kinds[name]) for name in kind.split("|"))  # type: ignore[arg-type]


def _make_node(value: Any, schema: Mapping[str, Any]) -> Node | None:
    """Return the fields of a schema, as deep as an example goes; None for one that allows any."""
    while schema.get("type") == "array" or (isinstance(value, list) and "items" in schema):
        value, schema = value[0] if value else {}, schema.get("items") or {}
    properties = schema.get("properties") or {}
    if not properties or not isinstance(value, Mapping):
        return None
    of = {name: _make_node(value[name], properties[name]) for name in value if name in properties}
    return {
        "fields": {name: _name_type(item) for name, item in sorted(properties.items())},
        "required": sorted(schema.get("required") or ()),
        "of": {name: node for name, node in sorted(of.items()) if node},
    }


def _name_type(schema: Mapping[str, Any]) -> str:
    kinds = schema.get("type") or [item.get("type", "any") for item in schema.get("anyOf", ())] or "any"
    return kinds if isinstance(kinds, str) else "|".join(sorted(kinds))


def _name_fields(names: tuple[str, ...], of: Mapping[str, Node | None]) -> Node:
    return {
        "fields": dict.fromkeys(names, "any"),
        "required": [],
        "of": {name: node for name, node in of.items() if node},
    }


def _read_file(folder: Path, name: str, path: str) -> tuple[str, str]:
    git = ["git", "-C", str(folder / name / "repo")]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    text = subprocess.run([*git, "show", f"HEAD:{path}"], check=True, capture_output=True, text=True).stdout
    return text, f"{name.replace('+', '/')}@{commit}: {path}"


def make_fields(folder: Path) -> dict[str, Any]:
    examples = read_examples()
    text, kserve_source = _read_file(folder, *KSERVE)
    crd = yaml.load(re.sub(r"\{\{.*?\}\}", "x", text), Loader=yaml.CSafeLoader)
    (served,) = (item for item in crd["spec"]["versions"] if item["name"] == "v1alpha2")
    kserve = served["schema"]["openAPIV3Schema"]
    fields = {"kserve": {"source": kserve_source, "root": _make_node(examples["kserve"], kserve)}}
    pod = kserve["properties"]["spec"]["properties"]["template"]  # of Kubernetes, whoever uses it
    for name, (repository, path) in CHARTS.items():
        text, source = _read_file(folder, repository, path)
        fields[name] = {"source": source, "root": _make_node(examples[name], json.loads(text))}
    decode = examples["llm-d-modelservice"]["decode"]
    container = pod["properties"]["containers"]["items"]
    extra = _make_node(decode["containers"][0]["extraConfig"], {**container, "required": []})
    mounts = _make_node(decode["containers"][0]["volumeMounts"], container["properties"]["volumeMounts"])
    node = fields["llm-d-modelservice"]["root"]["of"]["decode"]["of"]
    node["containers"] = _name_fields(MODELSERVICE, {"extraConfig": extra, "volumeMounts": mounts})
    node["volumes"] = _make_node(decode["volumes"], pod["properties"]["volumes"])
    (component,) = examples["dynamo"]["spec"]["components"]
    dynamo = _make_node(component["podTemplate"]["spec"], pod)
    for place in reversed([*DYNAMO]):
        child = {"": "spec", "spec": "components", "spec.components": "podTemplate"}.get(place, "spec")
        dynamo = _name_fields(DYNAMO[place], {child: dynamo})
    source = "ai-dynamo/dynamo, documentation of DynamoGraphDeployment v1beta1; a pod as in kserve"
    return {**fields, "dynamo": {"source": source, "root": dynamo}}


if __name__ == "__main__":
    FIELDS.write_text(json.dumps(make_fields(Path(sys.argv[1])), indent=1, sort_keys=True) + "\n")
