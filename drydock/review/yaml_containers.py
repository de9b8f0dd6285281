"""Containers in YAML of others: Compose files, Kubernetes objects and custom resources. Pure.

Whatever an object is, a mapping with an image, or with a command or arguments and a name, is a container: so are those
of Deployments, LeaderWorkerSets, InferenceServices, DynamoGraphDeployments and values of charts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from drydock.compare.pasted_command import PlacedWord
from drydock.config.strict_yaml import KeyPath, YamlDocument, parse_documents
from drydock.core.errors import InputError
from drydock.review.written_commands import (
    REQUIREMENT,
    SHARED,
    CommandPlace,
    Surroundings,
    WrittenContainer,
    container_port,
    line_of,
    list_container,
    shares_memory,
    split_line,
    take_defaults,
)

STEPS_AT_MOST = 200_000
"""Values that are looked at in a file, each as often as aliases name it."""
ADDED = "VLLM_ADDITIONAL_ARGS"
"""The variable with which an LLMInferenceService adds to the command of its template (KServe's documentation)."""
SERVE = ("vllm", "serve")
"""What charts and operators put before the arguments that a file names."""
PRESET = "LLMInferenceService"
"""Kinds of which KServe merges the pod with one of its own."""
KUBEAI = "VLLM"
"""The engine of KubeAI's models that is vLLM."""
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][\w.-]{0,200})\))")
"""$$, or $(NAME) of Kubernetes."""
_PROBE = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3}
"""Kubernetes' defaults of a probe, and vLLM's port if none is named."""


class _YamlStep(NamedTuple):
    path: KeyPath
    value: Mapping[str, Any]
    parents: tuple[Mapping[str, Any], ...]
    """The mappings that hold it, the outermost first."""


def list_yaml(text: str, file: str, first_line: int = 1) -> Iterator[CommandPlace]:
    """Yield the commands of all documents of a file. Raises InputError."""
    for document in parse_documents(text, file):
        reader = _DocumentReader(document, file, first_line - 1)
        for container in reader.list_containers():
            yield from list_container(container)


class _DocumentReader:
    """Finds the containers of one document."""

    def __init__(self, document: YamlDocument, file: str, lines_before: int) -> None:
        self._document, self._file, self._before = document, file, lines_before
        self._steps = 0

    def list_containers(self) -> Iterator[WrittenContainer]:
        data = self._document.data
        services = data.get("services") if isinstance(data, dict) else None
        if isinstance(services, dict) and "kind" not in data:
            for name, service in services.items():
                if isinstance(service, dict):
                    yield self._compose(("services", name), service)
            return
        for visit in self._walk((), data, ()):
            yield from self._kubernetes(visit)

    def _walk(self, path: KeyPath, value: Any, parents: tuple[Mapping[str, Any], ...]) -> Iterator[_YamlStep]:
        self._steps += 1
        if self._steps > STEPS_AT_MOST:
            raise InputError(f"{self._file}: more than {STEPS_AT_MOST} values, with those of its aliases")
        if isinstance(value, dict):
            yield _YamlStep(path, value, parents)
            for key, item in value.items():
                yield from self._walk((*path, key), item, (*parents, value))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._walk((*path, index), item, parents)

    def _line(self, path: KeyPath) -> int:
        """Return the line of a value, or of the nearest that holds it."""
        places = self._document.places
        ends = range(len(path), -1, -1)
        return next(places[path[:end]].line for end in ends if path[:end] in places) + self._before

    def _words(self, value: Any, path: KeyPath) -> tuple[str, ...]:
        """Return a list of words, or a text that is split into them."""
        if isinstance(value, list):
            texts = ((item, self._line((*path, index))) for index, item in enumerate(value))
            return tuple(PlacedWord(take_defaults(text), line) for text, line in texts if isinstance(text, str))
        if isinstance(value, str):
            return split_line(PlacedWord(take_defaults(value), self._line(path)))
        return ()

    def _env(self, value: Any, path: KeyPath) -> dict[str, str]:
        """Return variables: of a mapping, of NAME=VALUE, or of Kubernetes' pairs of name and value."""
        env: dict[str, str] = {}
        if isinstance(value, dict):
            pairs = [(name, text, (*path, name)) for name, text in value.items()]
        else:
            pairs = [(*_read_variable(item), (*path, index)) for index, item in enumerate(value or ())]
        for name, text, place in pairs:
            if name:
                env[name] = PlacedWord(take_defaults(str(text)) if text is not None else "", self._line(place))
        return env

    # --- Compose -----------------------------------------------------------------------------------------------------

    def _compose(self, path: KeyPath, service: Mapping[str, Any]) -> WrittenContainer:
        """Return a service. Source: the Compose specification, services."""
        program, words = (self._compose_words(service.get(key), (*path, key)) for key in ("entrypoint", "command"))
        image = service.get("image")
        mounted = (service.get("tmpfs", ""), *_list_of(service.get("volumes")))
        is_mounted = any(SHARED in str(volume) for volume in mounted)
        has_memory = is_mounted or shares_memory(service.get("shm_size"), service.get("ipc"))
        ports = () if service.get("network_mode") == "host" else tuple(self._compose_ports(service, path))
        line = self._line((*path, "image") if image else path)
        return WrittenContainer(
            self._file,
            line,
            "compose",
            take_defaults(image) if isinstance(image, str) else "",
            program,
            words,
            self._env(service.get("environment"), (*path, "environment")),
            Surroundings(ports, has_memory),
        )

    def _compose_words(self, value: Any, path: KeyPath) -> tuple[str, ...]:
        """Return a command: a backslash goes also before a space in quotes, and $$ is a dollar.

        Source: mattn/go-shellwords, with which Compose splits a text.
        """
        text = value.replace("\\ ", " ") if isinstance(value, str) else value
        words = self._words(text, path)
        return tuple(PlacedWord(word.replace("$$", "$"), line_of(word, self._line(path))) for word in words)

    def _compose_ports(self, service: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[int, int]]:
        for index, item in enumerate(_list_of(service.get("ports"))):
            text = item.get("target", "") if isinstance(item, dict) else item
            port = container_port(str(text))
            if port:
                yield port, self._line((*path, "ports", index))

    # --- Kubernetes --------------------------------------------------------------------------------------------------

    def _kubernetes(self, visit: _YamlStep) -> Iterator[WrittenContainer]:
        """Yield a mapping as a container, if it is one."""
        value, path = visit.value, visit.path
        image, engine = value.get("image"), value.get("engine_kwargs")
        if isinstance(value.get("repository"), str) and isinstance(value.get("vllmConfig"), dict):
            yield self._production_stack(visit)
        elif value.get("engine") == KUBEAI and isinstance(value.get("args"), list):
            yield self._container(visit, image, SERVE, self._words(value["args"], (*path, "args")))
        elif isinstance(value.get("base_args"), list) and isinstance(value.get("model_id"), str):
            yield from self._recipe(visit)
        elif isinstance(engine, dict):
            yield self._container(visit, None, SERVE, tuple(self._engine_words(visit, engine)))
        elif isinstance(image, str) or "name" in value or "args" in value:
            env = value.get("env")
            names = [_read_variable(item) for item in env] if isinstance(env, list) else []
            added = next((text for name, text in names if name == ADDED and isinstance(text, str)), "")
            program = self._words(value.get("command"), (*path, "command"))
            words = self._words(value.get("args"), (*path, "args"))
            if added and not program and not words:
                place = (*path, "env", [name for name, _ in names].index(ADDED), "value")
                program, words = SERVE, ("$MODEL", *split_line(PlacedWord(added, self._line(place))))
            if program or words:
                yield self._container(visit, image, program, words)

    def _container(
        self, visit: _YamlStep, image: Any, program: tuple[str, ...], words: tuple[str, ...]
    ) -> WrittenContainer:
        path = visit.path
        env: dict[str, str] = {}
        for name, value in self._env(visit.value.get("env"), (*path, "env")).items():
            env[name] = _expand_references(value, env)
        return WrittenContainer(
            self._file,
            self._line((*path, "image") if image else path),
            "kubernetes",
            image if isinstance(image, str) else "",
            program if program is SERVE else tuple(_expand_references(word, env) for word in program),
            tuple(_expand_references(word, env) for word in words),
            env,
            Surroundings() if program is SERVE else self._pod_surroundings(visit),
        )

    def _production_stack(self, visit: _YamlStep) -> WrittenContainer:
        """Return a model of vllm-project/production-stack's values, whose chart writes most of the command."""
        value, config = visit.value, visit.value["vllmConfig"]
        image = f"{value['repository']}:{value['tag']}" if isinstance(value.get("tag"), str) else value["repository"]
        path = (*visit.path, "vllmConfig", "extraArgs")
        words = (str(value.get("modelURL") or "$MODEL"), *self._words(config.get("extraArgs"), path))
        container = self._container(visit, image, SERVE, words)
        return container._replace(line=self._line((*visit.path, "repository")))

    def _recipe(self, visit: _YamlStep) -> Iterator[WrittenContainer]:
        """Yield the commands of one of vLLM's published recipes: its base, and with each feature."""
        value, features = visit.value, visit.parents[0].get("features") if visit.parents else None
        image = value.get("docker_image") or f"{REQUIREMENT}{value.get('min_vllm_version')}"
        image = next(iter(image.values()), "") if isinstance(image, dict) else image  # one for each vendor
        base = (value["model_id"], *self._recipe_words(value["base_args"], (*visit.path, "base_args")))
        yield self._container(visit, image, SERVE, base)
        for name, feature in features.items() if isinstance(features, dict) else ():
            if isinstance(feature, dict) and isinstance(feature.get("args"), list):
                words = self._recipe_words(feature["args"], ("features", name, "args"))
                yield self._container(visit, image, SERVE, (*base, *words))

    def _recipe_words(self, value: Any, path: KeyPath) -> tuple[str, ...]:
        """Return arguments that a recipe's page joins into a line for a shell."""
        return tuple(
            part
            for word in self._words(value, path)
            for part in (split_line(word) if word.startswith("-") and " " in word else (word,))
        )

    def _engine_words(self, visit: _YamlStep, engine: Mapping[str, Any]) -> Iterator[str]:
        """Yield the arguments of vLLM's engine that Ray's LLM configurations name, as flags."""
        for name, value in engine.items():
            line = self._line((*visit.path, "engine_kwargs", name))
            if value in ("false", "False", None):
                continue
            yield PlacedWord(f"--{name.replace('_', '-')}", line)
            if value not in ("true", "True"):
                text = json.dumps(value) if isinstance(value, dict | list) else str(value)
                yield PlacedWord(text, line)

    def _pod_surroundings(self, visit: _YamlStep) -> Surroundings:
        """Return what a pod says of the memory, and of the probes of one of its containers.

        An operator adds to what is no pod, and to the pods of its presets: these say nothing.
        """
        value = visit.value
        pod: Mapping[str, Any] = next((item for item in reversed(visit.parents) if "containers" in item), {})
        if not pod or str(visit.parents[0].get("kind")).startswith(PRESET):
            return Surroundings()
        mounts = [item for item in _list_of(value.get("volumeMounts")) if isinstance(item, dict)]
        has_memory = pod.get("hostIPC") == "true" or any("shm" in str(item.get("mountPath")) for item in mounts)
        probes = {name: value.get(f"{name}Probe") for name in ("startup", "liveness", "readiness")}
        ports, patience = [], None
        for name, probe in probes.items():
            if not isinstance(probe, dict):
                continue
            line = self._line((*visit.path, f"{name}Probe"))
            get = probe.get("httpGet")
            port = container_port(str(get.get("port", ""))) if isinstance(get, dict) else 0
            ports += [(port, line)] if port else []
            is_judge = name == "startup" or (name == "liveness" and not isinstance(probes["startup"], dict))
            if is_judge:
                delay, period, failures = (_read_number(probe.get(key), value) for key, value in _PROBE.items())
                patience = (delay + period * failures, line)
        return Surroundings(tuple(ports), has_memory, patience)


def _read_variable(item: Any) -> tuple[str, Any]:
    """Return name and value of a variable; a value that comes from elsewhere is a variable itself."""
    if isinstance(item, str):
        name, equals, text = item.partition("=")
        return name, text if equals else f"${name}"
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return item["name"], f"${item['name']}" if "valueFrom" in item else item.get("value")
    return "", None


def _expand_references(word: str, env: Mapping[str, str]) -> str:
    """Return a word with $(NAME) of the container's own variables in place; $$ is a dollar, other names stay.

    Source: Kubernetes, "Define Dependent Environment Variables" and "Define a Command and Arguments".
    """

    def expand(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        value = env.get(match[1])
        return match[0] if value is None or value.startswith("$") else value  # $: it comes from elsewhere

    text = _REFERENCE.sub(expand, word)
    return PlacedWord(text, word.line) if isinstance(word, PlacedWord) else text


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_number(value: Any, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else otherwise  # noqa: PLR2004 - a week of seconds
