"""Read from vLLM's own files what this vLLM knows, without importing it: read_vllm.py FILE, for the installed vLLM.

FILE gets JSON: architectures, quantisation methods, parsers, KV connectors, load formats, executor backends,
environment variables, flags with the values that they take, the model types that refuse float16, the model types with
a configuration class in vLLM or in transformers, the optional packages that are installed, and those without which the
class of an architecture cannot be imported. vLLM keeps most of these in literal tables and annotations. What a version
computes instead is left out: it is not known. Nothing is executed, and the lists are read within 6 s.

Sources, in vLLM's repository: model_executor/models/registry.py, model_executor/layers/quantization/__init__.py,
platforms/, tool_parsers/, reasoning/, model_executor/model_loader/__init__.py,
distributed/kv_transfer/kv_connector/factory.py,
config/, engine/arg_utils.py, entrypoints/**/cli_args.py, envs.py. A plugin adds to them by the calls that vLLM's
docs/design/plugin_system.md describes.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions, entry_points
from pathlib import Path
from typing import Any

FILE_AT_MOST = 1 << 20
"""Bytes of one source file. The largest of vLLM 0.33 has 300 KB."""
PLACES = (
    *("config", "engine/arg_utils.py", "entrypoints/", "envs.py", "reasoning/", "tool_parsers/"),
    *("distributed/kv_transfer/", "platforms/", "model_executor/layers/quantization/__init__.py"),
    *("model_executor/model_loader/__init__.py", "model_executor/models/", "models/", "multimodal/"),
    *("transformers_utils/", "utils/argparse_utils.py"),
)
"""Beginnings of the paths that have lists; other files are not read."""
SWITCH, BOOLEAN, INTEGER, NUMBER, JSON = "switch", "boolean", "int", "float", "json"
"""What a flag takes: nothing; nothing, or `--no-` before its name; a number; JSON. A list has the accepted words."""
ARGUMENTS = (
    "entrypoints/common/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/openai/cli_args.py",
)
"""The server's own flags: since 0.33, since 0.29, and before."""
MOVED = {
    "ToolParser": ("tool_parsers", "entrypoints/openai/tool_parsers"),
    "ReasoningParser": ("reasoning", "entrypoints/openai/reasoning_parsers"),
}
"""Kind of parser → its folder in newer and in older versions."""
PLUGIN_GROUPS = ("vllm.platform_plugins", "vllm.general_plugins")
REGISTRATIONS = {
    "register_model": "architectures",
    "register_quantization_config": "quantisations",
    "register_connector": "connectors",
    "add_argument": "flags",
}
"""Call of a plugin → the list to which its first word is added."""
OPTIONAL = (
    *("amd-quark", "av", "bitsandbytes", "deep-ep", "fastsafetensors", "flashinfer-cubin", "flashinfer-python"),
    *("gguf", "guidance", "lm-format-enforcer", "lmcache", "librosa", "mamba-ssm"),
    *(
        "mooncake-transfer-engine",
        "nixl",
        "nixl-cu12",
        "nixl-cu13",
        "openai-harmony",
        "outlines-core",
        "ray",
        "runai-model-streamer",
        "soundfile",
    ),
    *("open-clip-torch", "tensorizer", "terratorch", "timm", "torchaudio", "torchvision", "xgrammar"),
    *("arctic-inference", "kaldi-native-fbank", "num2words"),
)
"""Distributions that vLLM needs for some options or models only. Source: its requirements/ and setup.py, extras."""
IMPORTED_BY_MODELS = {
    "av": "av",
    "kaldi_native_fbank": "kaldi-native-fbank",
    "librosa": "librosa",
    "mamba_ssm": "mamba-ssm",
    "num2words": "num2words",
    "open_clip": "open-clip-torch",
    "soundfile": "soundfile",
    "terratorch": "terratorch",
    "timm": "timm",
    "torchaudio": "torchaudio",
    "torchvision": "torchvision",
}
"""Module → distribution, of those OPTIONAL ones that models' classes import. Kernels of one platform import others, but
vLLM chooses among platforms while it runs."""
MODEL_TYPES = ("models/auto/auto_mappings.py", "models/auto/configuration_auto.py")
"""Where transformers lists the model types of its configuration classes: since 5.6, and before."""


PROCESSING = re.compile(r"models/\w+/(\w*processing|feature_extraction)_\w+\.py")
"""Files of transformers that prepare pictures, sound and films; vLLM's classes of models import some of them."""


class Package:
    """The Python files of a package that have lists."""

    def __init__(
        self,
        root: Path,
        name: str = "vllm",
        places: tuple[str, ...] = PLACES,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        sources = _read_sources(root, name, places)
        self._sources = {path: text for path, text in sources if pattern is None or pattern.fullmatch(path)}
        self._trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        """Return the syntax tree of a file; an empty one if it does not exist. Raises SyntaxError."""
        if path not in self._trees:
            self._trees[path] = ast.parse(self._sources.get(path, b""), path)
        return self._trees[path]

    def names(self, folder: str) -> list[str]:
        """Return the Python files directly in a folder, sorted."""
        return sorted(name for name in self._sources if name.rpartition("/")[0] == folder)

    def every_name(self) -> list[str]:
        """Return all files, sorted."""
        return sorted(self._sources)

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it does not exist."""
        return self._sources.get(path, b"").decode("utf-8", "replace")


def _read_sources(root: Path, package: str, places: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield path below the package and content of each Python file that can have lists."""
    if root.is_dir():
        for path in (root / package).rglob("*.py"):
            name = path.relative_to(root / package).as_posix()
            if _has_lists(name, path.stat().st_size, places):
                yield name, path.read_bytes()
    elif zipfile.is_zipfile(root):
        with zipfile.ZipFile(root) as wheel:
            for item in wheel.infolist():
                name = item.filename.removeprefix(f"{package}/")
                if name != item.filename and _has_lists(name, item.file_size, places):
                    yield name, wheel.read(item)
    else:
        with tarfile.open(root) as archive:
            for member in archive:
                name = member.name.partition("/")[2].removeprefix(f"{package}/")
                is_inside = member.isfile() and member.name.endswith(f"/{package}/{name}")
                if is_inside and _has_lists(name, member.size, places):
                    file = archive.extractfile(member)
                    yield name, file.read() if file else b""


def _has_lists(name: str, size: int, places: tuple[str, ...]) -> bool:
    return size <= FILE_AT_MOST and name.endswith(".py") and name.startswith(places)


class NotLiteralError(Exception):
    """An expression has parts that only running it would tell."""


def assignments(tree: ast.Module | ast.ClassDef | ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the values that a module, class or function assigns to names at its top level; the last one wins."""
    values: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            values.update((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            values[node.target.id] = node.value
    return values


def names_in(  # noqa: C901, PLR0911 - a case for each form in which vLLM writes its tables
    node: ast.expr | None, known: Mapping[str, ast.expr]
) -> list[str]:
    """Return the words of a literal list, of a literal table's keys, or of Literal[…]. Raises NotLiteralError."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int)):
        return [str(node.value)]
    if isinstance(node, ast.Constant) and node.value is None:
        return []
    if isinstance(node, ast.Name) and node.id in known:
        return names_in(known[node.id], known)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [name for item in node.elts for name in names_in(item, known)]
    if isinstance(node, ast.Starred):
        return names_in(node.value, known)
    if isinstance(node, ast.Subscript) and _last_name(node.value) == "Literal":
        return names_in(node.slice, known)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [name for key, value in pairs for name in names_in(key or value, known)]  # no key: **table
    if isinstance(node, ast.DictComp) and isinstance(node.generators[0].iter, ast.Call):
        return names_in(node.generators[0].iter.func, known)  # {k: … for k, … in TABLE.items() if …}: some of TABLE
    if isinstance(node, ast.Attribute) and node.attr == "items":
        return names_in(node.value, known)
    if isinstance(node, ast.Call) and _last_name(node.func) in ("list", "get_args", "set", "frozenset"):
        return names_in(node.args[0], known)
    raise NotLiteralError


def _last_name(node: ast.expr) -> str:
    """Return x of `x` and of `a.b.x`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def read_table(package: Package, path: str, *names: str) -> list[str] | None:
    """Return the words of the first table of these names that a file has; None if it has none that is literal."""
    values = assignments(package.tree(path))
    for name in names:
        if name in values:
            try:
                return sorted(set(names_in(values[name], values)))
            except NotLiteralError:
                return None
    return None


def read_enum(package: Package, path: str, name: str) -> list[str] | None:
    """Return the values of an enumeration of words; None if a file does not define it."""
    classes = (node for node in package.tree(path).body if isinstance(node, ast.ClassDef) and node.name == name)
    values = [item.value for node in classes for item in node.body if isinstance(item, ast.Assign)]
    return sorted(str(value.value) for value in values if isinstance(value, ast.Constant)) or None


def read_texts(package: Package, path: str, name: str) -> dict[str, str]:
    """Return a literal table of texts, such as why a model type refuses float16; empty if a file has none."""
    node = assignments(package.tree(path)).get(name)
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {
        str(key.value): str(value.value)
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }


def read_parsers(package: Package, kind: str) -> list[str] | None:
    """Return the names of the parsers of a kind: those of the registry's table, or of each parser's own file."""
    for folder in MOVED[kind]:
        files = package.names(folder)
        if not files:
            continue
        upper = "_TOOL_PARSERS_TO_REGISTER" if kind == "ToolParser" else "_REASONING_PARSERS_TO_REGISTER"
        listed = read_table(package, f"{folder}/__init__.py", upper)
        return listed or sorted({name for file in files for name in registered_names(package.tree(file), kind)})
    return None


def registered_names(tree: ast.Module, kind: str) -> Iterator[str]:
    """Yield the names with which a file registers parsers: `@ToolParserManager.register_module(["a", "b"])`."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        is_registration = isinstance(call.func, ast.Attribute) and call.func.attr == "register_module"
        if is_registration and _last_name(call.func.value) == f"{kind}Manager":
            for argument in (*call.args, *(word.value for word in call.keywords if word.arg == "name")):
                try:
                    yield from names_in(argument, {})
                except NotLiteralError:
                    continue


def read_connectors(package: Package) -> list[str] | None:
    """Return the names of the KV connectors that the factory registers."""
    tree = package.tree("distributed/kv_transfer/kv_connector/factory.py")
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = {
        str(call.args[0].value)
        for call in calls
        if _last_name(call.func) == "register_connector" and call.args and isinstance(call.args[0], ast.Constant)
    }
    return sorted(names) or None


def read_config_types(package: Package) -> list[str] | None:
    """Return the model types that vLLM itself has configuration classes for; None if its table is not literal."""
    values = assignments(package.tree("transformers_utils/config.py"))
    table = values.get("_CONFIG_REGISTRY")
    try:
        return sorted(set(_keys_in(table, values))) or None
    except NotLiteralError:
        return None


def read_model_types(root: Path) -> list[str] | None:
    """Return the model types that the library transformers has configuration classes for; None if not literal."""
    package = Package(root, "transformers", MODEL_TYPES)
    names: set[str] = set()
    for path in MODEL_TYPES:
        tree = package.tree(path)
        try:
            names.update(_keys_in(assignments(tree).get("CONFIG_MAPPING_NAMES"), {}))
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if ast.unparse(call.func) == "CONFIG_MAPPING_NAMES.update" and call.args:
                    names.update(_keys_in(call.args[0], {}))
        except NotLiteralError:
            return None
    return sorted(names) or None


def _keys_in(node: ast.expr | None, known: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the keys of {k: …}, C([(k, …)]) and C(k=…), of parts with ** as well. Raises NotLiteralError."""
    if isinstance(node, ast.Name) and node.id in known:
        yield from _keys_in(known[node.id], known)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from names_in(key, known) if key else _keys_in(value, known)
    elif isinstance(node, ast.Call):
        for pair in (pair for argument in node.args for pair in getattr(argument, "elts", [argument])):
            yield from names_in(pair.elts[0] if isinstance(pair, ast.Tuple) else pair, known)
        for word in node.keywords:
            yield from [word.arg] if word.arg else _keys_in(word.value, known)
    elif node is not None and not isinstance(node, ast.Name):  # a name that is imported: its own file has the keys
        raise NotLiteralError


# --- packages that models need --------------------------------------------------------------------------------------


LOADED = re.compile(
    r"^(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^()]{0,9999}\)|[^\n#]*)|import[ \t]+([^\n#]+))", re.MULTILINE
)
"""An import that is always executed: what is conditional, or in a function, is indented."""
ALWAYS_TRUE = re.compile(r"^if is_(?:vision|torch)_available\(\):\n((?:[ \t].*\n|\n)+)", re.MULTILINE)
"""A condition of transformers that always holds where vLLM is installed, which requires Pillow and PyTorch."""
TEXTS = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)


def read_imports(package: Package, reader: ImportReader) -> dict[str, list[str]] | None:
    """Return architecture → what the import of its class needs, of IMPORTED_BY_MODELS and of transformers.

    A name of transformers is one that prepares pictures, sound or films: only these need optional packages. None
    without the table of architectures, or if this version does not keep it in literals.
    """
    needed = {name: sorted(reader.needs(module)) for name, module, _ in _modules_of_architectures(package)}
    return {name: words for name, words in needed.items() if words} if needed else None


def _modules_of_architectures(package: Package) -> Iterator[tuple[str, str, str]]:
    """Yield each architecture with the path of its module and its class, from tables {name: (module, class)}."""
    for path in ("model_executor/models/registry.py", "model_executor/models/__init__.py"):
        for table in (value for value in assignments(package.tree(path)).values() if isinstance(value, ast.Dict)):
            for key, value in zip(table.keys, table.values, strict=True):
                if not (isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and value.elts):
                    continue
                module = getattr(value.elts[0], "value", None)
                if isinstance(module, str):
                    name = module.removeprefix("vllm.").replace(".", "/")
                    path_of_module = name if name != module else f"model_executor/models/{module}"
                    yield str(key.value), path_of_module, str(getattr(value.elts[-1], "value", ""))


OF_POOLING = (
    *("_EMBEDDING_MODELS", "_CROSS_ENCODER_MODELS", "_LATE_INTERACTION_MODELS", "_REWARD_MODELS"),
    *("_TOKEN_CLASSIFICATION_MODELS", "_SEQUENCE_CLASSIFICATION_MODELS"),
)
"""Tables of architectures that answer with vectors or scores."""


def read_pooling_architectures(package: Package) -> list[str]:
    """Return the architectures whose class generates no text; that of some embedding models does.

    Source: model_executor/models/registry.py; config/model.py, _get_runner_type.
    """
    tables = assignments(package.tree("model_executor/models/registry.py"))
    classes = {
        str(getattr(key, "value", "")): str(getattr(value.elts[-1], "value", ""))
        for table in (tables.get(name) for name in OF_POOLING)
        if isinstance(table, ast.Dict)
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(value, ast.Tuple)
    }
    return sorted(name for name, kind in classes.items() if not GENERATING.search(kind))


GENERATING = re.compile("(?:ForCausalLM|ForConditionalGeneration)$")
"""Ends of the names of classes that generate text."""
JOINED = ("imports", "processors", "fallback", "attention")
"""Lists of which `join_lists` makes others."""
RAISING = re.compile(r"(?!Auto|Base)\w+(?<!Image)(?<!Video)Processor")
"""Classes of transformers whose import may raise. One of pictures or films is a stand-in without its package."""


class ImportReader:
    """Which optional packages the import of a module of vLLM needs."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._direct: dict[str, tuple[set[str], set[str]]] = {}

    def needs(self, module: str) -> set[str]:
        """Return what a module, and the modules of vLLM that it imports, need. `module` is a path without `.py`."""
        words: set[str] = set()
        visited: set[str] = set()
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if name in visited:
                continue
            visited.add(name)
            needed, modules = self._read(name)
            words |= needed
            waiting += modules
        return words

    def _read(self, module: str) -> tuple[set[str], set[str]]:
        """Return what one module imports: optional packages and names of transformers, and modules of vLLM."""
        if module in self._direct:
            return self._direct[module]
        words: set[str] = set()
        modules: set[str] = set()
        file = next((path for path in (f"{module}.py", f"{module}/__init__.py") if self._package.text(path)), "")
        folder = file.rpartition("/")[0]
        for origin, names in loaded_names(self._package.text(file)):
            top, _, rest = origin.partition(".")
            if origin.startswith("."):
                modules.update(self._modules_in(absolute_path(folder, origin), names))
            elif top == "vllm":
                modules.update(self._modules_in(rest.replace(".", "/"), names))
            elif top == "transformers":
                words.update(_processors_among(origin, names))
            elif top in IMPORTED_BY_MODELS:
                words.add(IMPORTED_BY_MODELS[top])
        self._direct[module] = words, modules
        return self._direct[module]

    def _modules_in(self, path: str, names: Sequence[str]) -> Iterator[str]:
        """Yield the modules that `from path import names` loads, with the packages around them."""
        parts = path.split("/")
        yield from ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        later = assignments(self._package.tree(f"{path}/__init__.py")).get("_CLASS_TO_MODULE")  # loaded on demand
        by_name = (
            {}
            if not isinstance(later, ast.Dict)
            else {
                getattr(key, "value", ""): str(getattr(value, "value", ""))
                for key, value in zip(later.keys, later.values, strict=True)
            }
        )
        for name in names:
            yield by_name[name].removeprefix("vllm.").replace(".", "/") if name in by_name else f"{path}/{name}"

    def modules_of(self, module: str) -> set[str]:
        """Return the modules of vLLM that a module itself imports."""
        return self._read(module)[1]


LAZY = re.compile(r"""LazyLoader\(["']\w+["'], globals\(\), ["'](\w+)["']\)""")
"""A module that vLLM imports when it is first used."""
OF_PROCESSORS = "transformers_utils/processors/"
"""vLLM's own classes that prepare pictures, sound and films."""


def read_constructor_packages(package: Package, reader: ImportReader) -> dict[str, list[str]] | None:
    """Return architecture → what the constructors of its class and of vLLM's processor for it need.

    The import of the class succeeds without them, and the server ends a little later: a method of the class imports
    them and raises, or the processor's module imports them when it is first used.
    """
    needed: dict[str, list[str]] = {}
    for architecture, module, class_name in _modules_of_architectures(package):
        words = {*_raised_in_methods(package, f"{module}.py", class_name)}
        for name in reader.modules_of(module):
            if name.startswith(OF_PROCESSORS):
                words.update(LAZY.findall(package.text(f"{name}.py")))
        packages = sorted(IMPORTED_BY_MODELS[word] for word in words if word in IMPORTED_BY_MODELS)
        if packages:
            needed[architecture] = packages
    return needed or None


def read_own_processors(package: Package, reader: ImportReader) -> list[str]:
    """Return the architectures for which vLLM has a processor of its own, and constructs none of transformers."""
    modules = ((name, reader.modules_of(module)) for name, module, _ in _modules_of_architectures(package))
    return sorted(name for name, imported in modules if any(path.startswith(OF_PROCESSORS) for path in imported))


def _raised_in_methods(package: Package, path: str, class_name: str) -> Iterator[str]:
    """Yield the modules that methods of a class import, and raise ImportError without."""
    if "except ImportError" not in package.text(path):  # most files: their syntax is not read
        return
    for node in package.tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for attempt in (child for child in ast.walk(node) if isinstance(child, ast.Try)):
                if any(isinstance(line, ast.Raise) for handler in attempt.handlers for line in handler.body):
                    imports = (line for line in attempt.body if isinstance(line, ast.Import))
                    yield from (alias.name.partition(".")[0] for line in imports for alias in line.names)


def read_processor_packages(root: Path) -> dict[str, list[str]]:
    """Return model type → what the constructors of its processors in transformers need, as vLLM names them.

    vLLM constructs a processor before the server is ready, also where its class can be imported without the packages.
    A constructor calls requires_backends, or raises if a module is not there; a decorator `requires` does the same.
    """
    package = Package(root, "transformers", ("models/",), PROCESSING)
    needed: dict[str, set[str]] = {}
    for path in package.every_name():
        text = package.text(path)
        if "requires" not in text and "raise ImportError" not in text:
            continue
        for node in package.tree(path).body:
            if isinstance(node, ast.ClassDef) and CONSTRUCTED.fullmatch(node.name):
                words = {*_words_of_constructor(node)} & IMPORTED_BY_MODELS.keys() - {
                    "torchvision"
                }  # see read_processors
                needed.setdefault(path.split("/")[1], set()).update(IMPORTED_BY_MODELS[word] for word in words)
    return {model_type: sorted(words) for model_type, words in needed.items() if words}


CONSTRUCTED = re.compile(r"\w+(?:(?<!Image)(?<!Video)Processor|FeatureExtractor)")
"""Classes without which there is no processor. One of pictures has a slower one in its place."""


def _words_of_constructor(node: ast.ClassDef) -> Iterator[str]:
    """Yield the modules that a class of transformers requires whenever it is constructed."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and _last_name(decorator.func) == "requires":
            yield from _texts_in(decorator)
    for function in node.body:
        if not (isinstance(function, ast.FunctionDef) and function.name == "__init__"):
            continue
        for line in function.body:
            called = line.value if isinstance(line, ast.Expr) else None
            if isinstance(called, ast.Call) and _last_name(called.func) == "requires_backends":
                yield from _texts_in(called)
            test = line.test if isinstance(line, ast.If) and isinstance(line.body[0], ast.Raise) else None
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Name):
                yield test.operand.id


def _texts_in(node: ast.AST) -> Iterator[str]:
    yield from (
        child.value for child in ast.walk(node) if isinstance(child, ast.Constant) if isinstance(child.value, str)
    )


def loaded_names(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each module that a file always imports, with the names that it takes from it."""
    for match in LOADED.finditer(TEXTS.sub("", text)):
        if match[3]:
            yield from ((part.split()[0], ()) for part in match[3].split(",") if part.strip())
        else:
            names = re.sub(r"#[^\n]*", "", match[2]).strip("() \n\\").split(",")
            yield match[1], tuple(name.split()[0] for name in names if name.strip())


def absolute_path(folder: str, origin: str) -> str:
    """Return the path of a relative import such as `..utils` in a file of a folder."""
    name = origin.lstrip(".")
    parts = folder.split("/")
    parts = parts[: len(parts) - (len(origin) - len(name) - 1)]
    return "/".join([*parts, *name.split(".")] if name else parts)


def _processors_among(origin: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the module, or the names, of an import from transformers that may raise without an optional package."""
    if PROCESSING.fullmatch(f"{origin.removeprefix('transformers.').replace('.', '/')}.py"):
        if not origin.startswith("transformers.models.auto."):
            yield origin
    else:
        yield from (f"transformers.{name}" for name in names if RAISING.fullmatch(name))


def read_processors(root: Path) -> dict[str, list[str]]:
    """Return module or class of transformers → the optional packages that its import needs, as vLLM names them.

    Importing a class that requires a missing package itself gives a stand-in, and raises nothing: its module is named,
    and the class is not. Source: transformers/utils/import_utils.py, _LazyModule and BASE_FILE_REQUIREMENTS.
    """
    package = Package(root, "transformers", ("models/",), PROCESSING)
    reader = ProcessorReader(package)
    needed: dict[str, list[str]] = {}
    for path in package.every_name():
        words = sorted(reader.needs(path))
        if words:
            needed[f"transformers.{path.removesuffix('.py').replace('/', '.')}"] = words
            needed.update((f"transformers.{name}", words) for name in _raising_names(package.text(path)))
    return needed


def join_lists(lists: Mapping[str, Any]) -> dict[str, Any]:
    """Return lists of vLLM and of transformers with what follows from both, instead of what only one of them says.

    `required_packages` is architecture → packages. What transformers needs is not known if its files were not read:
    then an architecture requires what vLLM names. `fallback_architectures` are those that only transformers has, and
    that vLLM runs with it.
    """
    joined = {name: value for name, value in lists.items() if name not in JOINED}
    if "fallback" in lists and "attention" in lists:
        served = (name for condition in lists["fallback"] for name in lists["attention"].get(condition, ()))
        joined["fallback_architectures"] = sorted({*served} - {*lists.get("architectures", ())})
    processors: Mapping[str, list[str]] = lists.get("processors", {})
    required: dict[str, list[str]] = {}
    for architecture, words in lists.get("imports", {}).items():
        packages = {package for word in words for package in processors.get(word, [word])}
        required[architecture] = sorted(packages.intersection(OPTIONAL))
    if "imports" in lists:
        joined["required_packages"] = {name: packages for name, packages in required.items() if packages}
    return joined


class ProcessorReader:
    """Which optional packages the import of a file of transformers needs."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._known: dict[str, set[str]] = {}

    def needs(self, path: str) -> set[str]:
        """Return the distributions that a file, and the files next to it that it imports, need."""
        if path in self._known:
            return self._known[path]
        words = self._known[path] = set()
        text = ALWAYS_TRUE.sub(lambda match: textwrap.dedent(match[1]), self._package.text(path))
        for origin, _ in loaded_names(text):
            if origin.startswith("."):
                words |= self.needs(f"{absolute_path(path.rpartition('/')[0], origin)}.py")
            elif (top := origin.partition(".")[0]) in IMPORTED_BY_MODELS:
                words.add(IMPORTED_BY_MODELS[top])
        return words


def _raising_names(text: str) -> Iterator[str]:
    """Yield the classes of a file whose import raises, if a package that the file needs is missing."""
    is_excluded = False
    for line in text.splitlines():
        name = re.match(r"class (\w+)", line)
        if name and RAISING.fullmatch(name[1]) and not is_excluded:
            yield name[1]
        is_excluded = line.startswith("@") and (is_excluded or "torchvision" in line)


# --- what transformers runs for vLLM --------------------------------------------------------------------------------


COMPATIBLE, SETTABLE = "is_backend_compatible", "_can_set_attn_implementation"
"""Methods of transformers' classes by which vLLM asks whether it can replace their attention."""
SERVED = re.compile(r"\w+(?:ForCausalLM|ForConditionalGeneration|LMHeadModel|For(?:Sequence|Token)Classification)")
"""Classes that a server runs, by the ends of their names."""


def read_fallback(package: Package) -> list[str]:
    """Return the conditions of which a class of transformers has to meet one, so that vLLM runs it.

    Source: vllm/model_executor/models/registry.py, _try_resolve_transformers.
    """
    text = package.text("model_executor/models/registry.py")
    return [condition for condition in (COMPATIBLE, SETTABLE) if f".{condition}()" in text]


def read_attention(root: Path) -> dict[str, list[str]] | None:
    """Return condition → classes of transformers that meet it; None if no file says so, as in older versions.

    A class that meets both is listed with the first alone: no vLLM asks the second only. Source:
    transformers/modeling_utils.py, the two methods; the second looks for these words in the file of a class.
    """
    package = Package(root, "transformers", ("models/",), re.compile(r"models/\w+/modeling_\w+\.py"))
    classes: dict[str, set[str]] = {COMPATIBLE: set(), SETTABLE: set()}
    for path in package.every_name():
        text = package.text(path)
        names = set(re.findall(r"^class (\w+)\(", text, re.MULTILINE))
        served = {name for name in names if SERVED.fullmatch(name)}
        if re.search(r"^    _supports_attention_backend = True", text, re.MULTILINE):
            classes[COMPATIBLE] |= served
        modules = re.findall(r"^class (\w+)\(nn\.Module\):", text, re.MULTILINE)
        own_attention = any("Attention" in name for name in modules)
        if not own_attention or "ALL_ATTENTION_FUNCTIONS.get_interface(" in text:
            classes[SETTABLE] |= served
    if not classes[COMPATIBLE]:
        return None
    return {COMPATIBLE: sorted(classes[COMPATIBLE]), SETTABLE: sorted(classes[SETTABLE] - classes[COMPATIBLE])}


# --- variables ------------------------------------------------------------------------------------------------------


def read_variables(package: Package) -> list[str] | None:
    """Return the names of vLLM's environment variables."""
    return read_table(package, "envs.py", "environment_variables")


# --- flags ----------------------------------------------------------------------------------------------------------


class Records:
    """The configuration classes of vLLM: class → field → annotation, with the names that annotations use."""

    def __init__(self, package: Package) -> None:
        paths = ["config.py", *package.names("config"), "engine/arg_utils.py", *ARGUMENTS]
        paths += ["model_executor/layers/quantization/__init__.py", "model_executor/model_loader/__init__.py"]
        paths += package.names("reasoning") and ["reasoning/__init__.py"]
        self.known: dict[str, ast.expr] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        for path in paths:
            tree = package.tree(path)
            self.known.update(assignments(tree))
            self._classes.update((node.name, node) for node in tree.body if isinstance(node, ast.ClassDef))

    def fields(self, name: str) -> dict[str, ast.expr]:
        """Return the annotations of a class and of its bases that are vLLM's own, in order."""
        items = self._items(name)
        heads = {field: getattr(item.annotation, "value", item.annotation) for field, item in items.items()}
        return {
            field: item.annotation
            for field, item in items.items()
            if _last_name(heads[field]) not in ("ClassVar", "InitVar")
        }

    def _items(self, name: str) -> dict[str, ast.AnnAssign]:
        """Return the annotated names of a class and of its bases, in order."""
        node = self._classes.get(name)
        items: dict[str, ast.AnnAssign] = {}
        for base in node.bases if node else ():
            items.update(self._items(_last_name(base)))
        for item in node.body if node else ():
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                items[item.target.id] = item
        return items

    def is_record(self, name: str) -> bool:
        """Return whether vLLM defines a class of this name with fields: a flag of it takes JSON."""
        node = self._classes.get(name)
        return node is not None and not any(_last_name(base).endswith("Enum") for base in node.bases)

    def read_keys(self, annotation: ast.expr) -> dict[str, list[str]] | None:
        """Return key → words that it takes, empty for any, of an option that takes JSON; None if it takes any key.

        The decorator `config` makes a class that refuses other keys. Source: config/utils.py.
        """
        names = [_last_name(part) for part in self._parts(annotation)]
        node = next((self._classes[name] for name in names if self.is_record(name)), None)
        decorators = [ast.unparse(item) for item in node.decorator_list] if node else []
        if node is None or "dict" in names or not any(text.partition("(")[0] == "config" for text in decorators):
            return None
        if any("extra" in text for text in decorators):
            return None
        converted = {*_converted_fields(node)}
        keys = {}
        items = self._items(node.name)
        for field, item in ((field, items[field]) for field in items if not field.startswith("_")):
            parts = [*self._parts(item.annotation)]
            kinds = {_last_name(getattr(part, "value", part)) for part in parts if not isinstance(part, ast.Constant)}
            enumeration = next(filter(None, map(self._read_members, kinds)), {})
            is_limited = not kinds & {"str", "Any"} and (enumeration or field not in converted)
            words = (self._words(parts) or sorted({*enumeration, *enumeration.values()})) if is_limited else []
            keys[field] = words if len(kinds - {""}) <= 1 else []
        return keys

    def read_range(self, name: str, field: str) -> dict[str, float]:
        """Return the least and the most of a number, by the names of pydantic's Field: gt, ge, lt, le."""
        item = self._items(name).get(field)
        call = item.value if item else None
        words = call.keywords if isinstance(call, ast.Call) and _last_name(call.func) == "Field" else []
        limits = {str(word.arg): getattr(word.value, "value", None) for word in words}
        return {name: limit for name, limit in limits.items() if name in LIMITS and isinstance(limit, (int, float))}

    def _read_members(self, name: str) -> dict[str, str]:
        """Return name → literal value, or the name again, of an enumeration; empty for another class."""
        node = self._classes.get(name)
        if node is None or self.is_record(name):
            return {}
        assigned = (item for item in node.body if isinstance(item, ast.Assign))
        return {
            _last_name(item.targets[0]): str(getattr(item.value, "value", _last_name(item.targets[0])))
            for item in assigned
        }

    def method(self, name: str, method: str) -> ast.FunctionDef | None:
        """Return a method of a class."""
        node = self._classes.get(name)
        methods = (item for item in (node.body if node else ()) if isinstance(item, ast.FunctionDef))
        return next((item for item in methods if item.name == method), None)

    def required_numbers(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each field that a class checks against a literal list of numbers, with the list.

        Until 0.11 --max-lora-rank is an int, and LoRAConfig refuses all but a few of them.
        """
        for node in self._classes.values():
            for function in (item for item in node.body if isinstance(item, ast.FunctionDef)):
                locals_of = assignments(function)
                for check in (item for item in function.body if isinstance(item, ast.If)):
                    yield from _required_by(check, locals_of)

    def accepted(self, annotation: ast.expr) -> Any:
        """Return what a flag of a field takes, in the order in which vLLM's get_kwargs looks at the annotation."""
        parts = list(self._parts(annotation))
        heads = {
            _last_name(getattr(part, "value", part)) if not isinstance(part, ast.Constant) else "" for part in parts
        }
        if "bool" in heads:
            return "" if "str" in heads else BOOLEAN
        if any(self.is_record(head) for head in heads) or (heads & {"dict", "Dict"} and "str" not in heads):
            return JSON
        words = self._words(parts)
        if words is not None:
            return words if "str" not in heads else ""
        numbers = [value for head in heads for value in self._read_members(head).values() if value.isdecimal()]
        if numbers:
            return sorted(numbers)
        if heads & {"list", "List", "tuple", "Tuple", "set", "Set", "Sequence"}:
            return ""
        return INTEGER if "int" in heads and "str" not in heads else NUMBER if "float" in heads else ""

    def _words(self, parts: list[ast.expr]) -> list[str] | None:
        words: list[str] = []
        literal = False
        for part in parts:
            if isinstance(part, ast.Subscript) and _last_name(part.value) == "Literal":
                literal = True
                try:
                    words += names_in(part.slice, self.known)
                except NotLiteralError:
                    return None
        return sorted(set(words)) if literal else None

    def _parts(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield the types that a union consists of, with vLLM's own names for types resolved."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a quoted annotation
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            yield from self._parts(node.left)
            yield from self._parts(node.right)
        elif isinstance(node, ast.Subscript) and _last_name(node.value) in ("Union", "Optional", "SkipValidation"):
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for item in items:
                yield from self._parts(item)
        elif isinstance(node, ast.Name) and node.id in self.known and node.id not in self._classes:
            yield from self._parts(self.known[node.id])
        else:
            yield node


def _converted_fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields whose values a class converts before it checks them."""
    for function in (item for item in node.body if isinstance(item, ast.FunctionDef)):
        for decorator in (item for item in function.decorator_list if isinstance(item, ast.Call)):
            if _last_name(decorator.func) == "field_validator":
                yield from _texts_in(decorator)


def _required_by(check: ast.If, known: Mapping[str, ast.expr]) -> Iterator[tuple[str, list[str]]]:
    """Yield the field and the numbers of `if self.field not in numbers: raise`."""
    test = check.test
    if not (
        isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn) and isinstance(check.body[0], ast.Raise)
    ):
        return
    if not (isinstance(test.left, ast.Attribute) and _last_name(test.left.value) == "self"):
        return
    try:
        words = names_in(test.comparators[0], known)
    except NotLiteralError:
        return
    if words and all(word.isdecimal() for word in words):
        yield test.left.attr, sorted(set(words))


def read_flags(package: Package, records: Records) -> dict[str, Any] | None:
    """Return the server's flags: flag → what it takes. None if this version builds its flags in another way."""
    flags: dict[str, Any] = {}
    for name in ("EngineArgs", "AsyncEngineArgs"):
        function = records.method(name, "add_cli_args")
        if function is None:
            return None
        flags.update(_flags_of(function, records))
    frontend = next((path for path in ARGUMENTS if package.tree(path).body), "")
    tree = package.tree(frontend)
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "make_arg_parser")
    for function in functions:
        flags.update(_flags_of(function, records))
    if records.method("FrontendArgs", "add_cli_args") or records.is_record("BaseFrontendArgs"):
        fields = records.fields("FrontendArgs")
        flags.update((f"--{field.replace('_', '-')}", records.accepted(note)) for field, note in fields.items())
        flags.update(_customised(records))
    for field, numbers in records.required_numbers():
        flag = f"--{field.replace('_', '-')}"
        if flags.get(flag) == INTEGER:
            flags[flag] = numbers
    return flags


def read_keys(records: Records) -> dict[str, dict[str, list[str]]]:
    """Return flag → key → words, of the options that take JSON and refuse other keys (Records.read_keys)."""
    fields = records.fields("EngineArgs")
    keys = {f"--{field.replace('_', '-')}": records.read_keys(note) for field, note in fields.items()}
    return {flag: words for flag, words in keys.items() if words}


def read_ranges(records: Records) -> dict[str, dict[str, float]]:
    """Return flag → the least and the most of a number (Records.read_range)."""
    function = records.method("EngineArgs", "add_cli_args")
    if function is None:
        return {}
    tables = dict(_tables_of(function))
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    ranges = {}
    for call in calls:
        field = _field_of(call, tables)
        for argument in call.args if field else ():
            if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                ranges[str(argument.value)] = records.read_range(*field) if field else {}
    return {flag: limits for flag, limits in ranges.items() if limits}


def _flags_of(function: ast.FunctionDef, records: Records) -> Iterator[tuple[str, Any]]:
    """Yield the flags that a function adds with literal names."""
    tables = dict(_tables_of(function))
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if _last_name(call.func) != "add_argument":
            continue
        names = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        accepted = _accepted_by(call, tables, records)
        for name in names:
            if name.startswith("-"):
                yield name, accepted
    for loop in (node for node in ast.walk(function) if isinstance(node, ast.For)):  # for name, type in [("--a", str)]
        names = [item.value for item in ast.walk(loop.iter) if isinstance(item, ast.Constant)]
        yield from ((name, "") for name in names if isinstance(name, str) and name.startswith("--"))


def _tables_of(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield `x = get_kwargs(Config)` as variable and class."""
    for node in ast.walk(function):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args):
            continue
        if _last_name(node.value.func) == "get_kwargs" and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, _last_name(node.value.args[0])


LIMITS = ("gt", "ge", "lt", "le")
"""Pydantic's names of what bounds a number: more than, at least, less than, at most."""
_ACTIONS = {"store_true": SWITCH, "store_false": SWITCH, "BooleanOptionalAction": BOOLEAN, "StoreBoolean": ""}
_TYPES = {"int": INTEGER, "float": NUMBER, "loads": JSON}


def _accepted_by(call: ast.Call, tables: Mapping[str, str], records: Records) -> Any:
    """Return what one add_argument call accepts, by its own words or by the field that it names."""
    words = {word.arg: word.value for word in call.keywords}
    action = words.get("action")
    if action is not None:
        name = action.value if isinstance(action, ast.Constant) else _last_name(action)
        return _ACTIONS.get(str(name), "")
    if "choices" in words:
        try:
            return sorted(set(names_in(words["choices"], records.known)))
        except NotLiteralError:
            return ""
    if "type" in words:
        return _TYPES.get(_last_name(words["type"]), "")
    class_name, field = _field_of(call, tables) or ("", "")
    annotation = records.fields(class_name).get(field)
    return records.accepted(annotation) if annotation is not None else ""


def _field_of(call: ast.Call, tables: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the class and the field that one add_argument call names: **kwargs["field"]; None without."""
    field = next((word.value for word in call.keywords if word.arg is None), None)
    if isinstance(field, ast.Dict):  # **{**kwargs["x"], "default": None}
        field = next((value for key, value in zip(field.keys, field.values, strict=True) if key is None), None)
    if isinstance(field, ast.Subscript) and isinstance(field.slice, ast.Constant) and isinstance(field.value, ast.Name):
        return tables.get(field.value.id, ""), str(field.slice.value)
    return None


def _customised(records: Records) -> Iterator[tuple[str, Any]]:
    """Yield flags whose `type` or extra names the server sets: frontend_kwargs["x"]["type"] = json.loads."""
    for name in ("BaseFrontendArgs", "FrontendArgs"):
        for method in ("_customize_cli_kwargs", "add_cli_args"):
            function = records.method(name, method)
            for node in ast.walk(function) if function else ():
                if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)):
                    continue
                target = node.targets[0]
                inner = target.value
                if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant):
                    flag = f"--{str(inner.slice.value).replace('_', '-')}"
                    key = target.slice.value if isinstance(target.slice, ast.Constant) else ""
                    if key == "type":
                        yield flag, _TYPES.get(_last_name(node.value), "")
                    elif key == "choices":
                        yield flag, ""
                    elif key == "flags" and isinstance(node.value, ast.List):
                        for extra in names_in(node.value, {}):
                            yield extra, ""


def read_inverses(package: Package) -> list[str] | None:
    """Return the beginnings of two flags of which the parser makes one from the other, since 0.33; None without."""
    classes = {getattr(node, "name", "") for node in package.tree("utils/argparse_utils.py").body}
    return ["--disable-", "--enable-"] if "EnableDisableAction" in classes else None


# --- all of it ------------------------------------------------------------------------------------------------------


CLASS_HEAD = re.compile(r"^class (\w+)(?:\(([^)]{0,999})\))?:", re.MULTILINE)
"""Name and bases of a class."""
OF_PLATFORMS = {name: f"platforms/{name}.py" for name in ("cpu", "cuda", "rocm", "tpu", "xpu")}


def read_platform_quantisations(package: Package) -> dict[str, list[str]]:
    """Return platform → the quantisation methods that it takes, where it takes some only.

    Source: platforms/interface.py, Platform.verify_quantization.
    """
    methods: dict[str, list[str]] = {}
    for platform, path in OF_PLATFORMS.items():
        for node in (node for node in package.tree(path).body if isinstance(node, ast.ClassDef)):
            words = assignments(node).get("supported_quantization")
            methods |= {platform: sorted(names_in(words, {}))} if isinstance(words, ast.List) else {}
    return {platform: words for platform, words in methods.items() if words}


def read_words_of_function(package: Package, function: str, *paths: str, compared: bool = False) -> list[str] | None:
    """Return the model types and architectures that a function names, of the first file that has it.

    `compared`: only those with which it compares.
    """
    for path in paths:
        for node in ast.walk(package.tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                parts = (part for part in ast.walk(node) if isinstance(part, ast.Compare)) if compared else (node,)
                texts = {text for part in parts for text in _texts_in(part) if re.fullmatch(r"\w+", text)}
                return sorted(texts) or None
    return None


def read_drafting_targets(package: Package) -> list[str]:
    """Return the architectures that hand their hidden states to a draft model (eagle3).

    Source: model_executor/models/interfaces.py, supports_eagle3; v1/worker/gpu_model_runner.py.
    """
    bases: dict[str, set[str]] = {}
    for path in package.every_name():
        if path.startswith(("models/", "model_executor/models/")):
            for name, parents in CLASS_HEAD.findall(package.text(path)):
                bases.setdefault(name, set()).update(re.findall(r"\w+", parents))
    targets, before = {"SupportsEagle3"}, 0
    while len(targets) > before:
        before = len(targets)
        targets |= {name for name, parents in bases.items() if parents & targets}
    classes = _modules_of_architectures(package)
    return sorted({architecture for architecture, _, class_name in classes if class_name in targets})


def read_package(root: Path) -> dict[str, Any]:
    """Return all that the package says of itself; a list that is not literal in this version is absent."""
    package = Package(root)
    records, reader = Records(package), ImportReader(package)
    registry, older_registry = "model_executor/models/registry.py", "model_executor/models/__init__.py"
    quantisation = "model_executor/layers/quantization/__init__.py"
    loaders = "model_executor/model_loader/__init__.py"
    lists: dict[str, Any] = {
        "architectures": read_table(package, registry, "_VLLM_MODELS", "_MODELS")
        or read_table(package, older_registry, "_MODELS"),
        "removed_architectures": read_texts(package, registry, "_PREVIOUSLY_SUPPORTED_MODELS"),
        "quantisations": read_table(package, quantisation, "QuantizationMethods", "QUANTIZATION_METHODS"),
        "tool_parsers": read_parsers(package, "ToolParser"),
        "reasoning_parsers": read_parsers(package, "ReasoningParser"),
        "connectors": read_connectors(package),
        "load_formats": read_table(package, loaders, "LoadFormats", "_LOAD_FORMAT_TO_MODEL_LOADER")
        or read_enum(package, "config.py", "LoadFormat"),
        "executors": read_table(package, "config/parallel.py", "DistributedExecutorBackend")
        or read_table(package, "config.py", "DistributedExecutorBackend"),
        "platforms": read_table(package, "platforms/__init__.py", "builtin_platform_plugins"),
        "variables": read_variables(package),
        "float16_refused": read_texts(package, "config/model.py", "_FLOAT16_NOT_SUPPORTED_MODELS")
        or read_texts(package, "config.py", "_FLOAT16_NOT_SUPPORTED_MODELS"),
        "config_types": read_config_types(package),
        "imports": read_imports(package, reader),
        "pooling_architectures": read_pooling_architectures(package),
        "constructor_packages": read_constructor_packages(package, reader),
        "own_processors": read_own_processors(package, reader),
        "fallback": read_fallback(package),
        "flags": read_flags(package, records),
        "keys": read_keys(records),
        "ranges": read_ranges(records),
        "inverses": read_inverses(package),
        "platform_quantisations": read_platform_quantisations(package),
        "latent_types": read_words_of_function(
            package, "is_deepseek_mla", "transformers_utils/model_arch_config_convertor.py", "config/model.py"
        ),
        "drafted_types": read_words_of_function(package, "hf_config_override", "config/speculative.py", compared=True),
        "drafting_targets": read_drafting_targets(package),
        "drafting_methods": read_table(package, "config/speculative.py", "SpeculativeMethod"),
        "own_drafting_methods": read_table(package, "config/speculative.py", "MTPModelTypes"),
    }
    choices = (lists["flags"] or {}).get("--tool-call-parser")  # until 0.6.2 the registry is this flag's choices
    lists["tool_parsers"] = lists["tool_parsers"] or (isinstance(choices, list) and choices)
    return {name: value for name, value in lists.items() if value}


def read_library(root: Path) -> dict[str, Any]:
    """Return what the library transformers, without which vLLM reads no config.json, says of itself."""
    lists = {
        "transformers_types": read_model_types(root),
        "processors": read_processors(root),
        "processor_packages": read_processor_packages(root),
        "attention": read_attention(root),
    }
    return {name: value for name, value in lists.items() if value}


def read_plugin(root: Path) -> dict[str, list[str]]:
    """Return what a plugin's folder adds to vLLM's lists, by literal calls anywhere in it."""
    added: dict[str, set[str]] = {name: set() for name in (*REGISTRATIONS.values(), "config_types")}
    for path in root.rglob("*.py"):
        if path.stat().st_size > FILE_AT_MOST:
            continue
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except SyntaxError:  # a template, or a file for a newer Python
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = REGISTRATIONS.get(_last_name(call.func))
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "AutoConfig.register":
                kind = "config_types"
            first = call.args[0] if call.args else None
            if kind and isinstance(first, ast.Constant) and isinstance(first.value, str):
                added[kind].add(first.value)
    flags = {name for name in added.pop("flags") if name.startswith("-")}
    return {name: sorted(words) for name, words in {**added, "flags": flags}.items()}


def add_plugin(lists: dict[str, Any], added: Mapping[str, list[str]]) -> None:
    """Add to lists what a plugin registers. A list that is not known stays so."""
    for name, words in added.items():
        if name == "flags" and "flags" in lists:
            lists["flags"] = {**dict.fromkeys(words, ""), **lists["flags"]}
        elif name in lists:
            lists[name] = sorted({*lists[name], *words})


def read_installed() -> dict[str, Any]:
    """Return what the vLLM of this interpreter says of itself, with its plugins. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec("vllm")  # looks for the package, and does not import it
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("no package vllm is installed", name="vllm")
    lists = read_package(Path(spec.submodule_search_locations[0]).parent)
    library = importlib.util.find_spec("transformers")
    if library and library.origin:
        lists |= read_library(Path(library.origin).parents[1])
    for group in PLUGIN_GROUPS:
        for plugin in entry_points(group=group):
            name = plugin.value.partition(":")[0].partition(".")[0]
            spec = importlib.util.find_spec(name) if name != "vllm" else None  # vLLM registers plugins of its own, too
            for folder in (spec.submodule_search_locations or ()) if spec else ():
                add_plugin(lists, read_plugin(Path(folder)))
    names = {str(item.metadata["Name"]).lower().replace("_", "-").replace(".", "-") for item in distributions()}
    lists["packages"] = sorted(names.intersection(OPTIONAL))
    return join_lists(lists)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(read_installed(), indent=0, sort_keys=True) + "\n")
