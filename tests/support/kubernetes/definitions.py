"""The kinds LeaderWorkerSet and DisaggregatedSet, as far as the fields above their pods' templates go. Pure.

Names, types, limits and choices are those of LeaderWorkerSet 0.9 (kubernetes-sigs/lws, api/leaderworkerset/v1 and
api/disaggregatedset/v1). Templates of pods and claims are free here: they are checked as the API's own kinds.
"""

from __future__ import annotations

from typing import Any

_Schema = dict[str, Any]

FREE: _Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SHARE: _Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def definitions() -> list[dict[str, Any]]:
    role = _fields({"name": {"type": "string"}, "metadata": FREE, "spec": _set()}, "name", "spec")
    roles = {"type": "array", "minItems": 2, "maxItems": 10, "items": role}
    several = _fields({"roles": roles, "slices": {"type": "integer", "minimum": 1, "maximum": 100}}, "roles")
    return [
        _definition("LeaderWorkerSet", "leaderworkerset.x-k8s.io", _set()),
        _definition("DisaggregatedSet", "disaggregatedset.x-k8s.io", several),
    ]


def _set() -> _Schema:
    """Return the schema of a LeaderWorkerSet's specification, and of a role's."""
    rolling = {"maxSurge": SHARE, "maxUnavailable": SHARE, "partition": {"type": "integer"}}
    template = {
        "leaderTemplate": FREE,
        "workerTemplate": FREE,
        "size": {"type": "integer"},
        "restartPolicy": _one_of("Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
        "subGroupPolicy": FREE,
        "persistentVolumeClaimRetentionPolicy": FREE,
        "volumeClaimTemplates": {"type": "array", "items": FREE},
    }
    return _fields(
        {
            "replicas": {"type": "integer", "minimum": 0},
            "startupPolicy": _one_of("LeaderCreated", "LeaderReady"),
            "rolloutStrategy": _fields(
                {"type": _one_of("RollingUpdate"), "rollingUpdateConfiguration": _fields(rolling)}, "type"
            ),
            "networkConfig": _fields({"subdomainPolicy": _one_of("Shared", "UniquePerReplica")}, "subdomainPolicy"),
            "leaderWorkerTemplate": _fields(template, "workerTemplate"),
        },
        "leaderWorkerTemplate",
    )


def _fields(properties: _Schema, *required: str) -> _Schema:
    return {"type": "object", "properties": properties} | ({"required": [*required]} if required else {})


def _one_of(*values: str) -> _Schema:
    return {"type": "string", "enum": [*values]}


def _definition(kind: str, group: str, spec: _Schema) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    # Kubernetes wants this of definitions in its own groups.
    annotations = {"api-approved.kubernetes.io": "unapproved, for tests"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _fields({"spec": spec}, "spec")},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": annotations},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }
