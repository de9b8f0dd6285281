"""What a value of a flag becomes in another version: taken, refused, or a matter of its JSON keys. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.compare.judgment import Judgment, Verdict
from drydock.core.errors import suggest_nearest
from drydock.core.files import DEEPEST
from drydock.lock.vllm_details import ANY, AUTO, SUFFIX, FlagDetails, KeyDetails, VllmDetails
from entrypoints.core.redact import redact_value
from entrypoints.plan.vllm_limits import SHORTENED, find_refused_value
from entrypoints.request.flags import EXECUTOR, LOAD_FORMAT, QUANTIZATION, REASONING_PARSER, TOOL_PARSER

INTEGER, JSON = "int", "json"
"""Kinds of values in vLLM's lists (templates/tools/read_vllm.py)."""
KEY_SUCCESSORS: Mapping[str, str] = {
    "CompilationConfig.level": "mode",
    "CompilationConfig.use_inductor": "backend, which is inductor or eager",
    "CompilationConfig.full_cuda_graph": "cudagraph_mode, which is FULL for true",
    "CompilationConfig.use_cudagraph": "cudagraph_mode, which is NONE for false",
    "PassConfig.enable_sequence_parallelism": "enable_sp",
    "PassConfig.enable_async_tp": "fuse_gemm_comms",
    "PassConfig.enable_fi_allreduce_fusion": "fuse_allreduce_rms",
    "PassConfig.enable_fusion": "fuse_norm_quant, and fuse_act_quant",
    "PassConfig.enable_attn_fusion": "fuse_attn_quant",
    "PassConfig.enable_noop": "eliminate_noops",
    "PoolerConfig.softmax": "use_activation",
    "PoolerConfig.activation": "use_activation",
    "AttentionConfig.use_cudnn_prefill": "mla_prefill_backend",
    "AttentionConfig.use_trtllm_ragged_deepseek_prefill": "mla_prefill_backend",
    "AttentionConfig.disable_flashinfer_prefill": "mla_prefill_backend",
    "AttentionConfig.use_fp4_indexer_cache": "indexer_kv_dtype",
}
"""Class and key that vLLM has removed → the key to write. It is said only if the new version has it.
Source: the deprecation messages in vllm/config/compilation.py of 0.11 and 0.12, pooler.py of 0.12, attention.py of 0.21
and 0.29; for use_inductor vLLM 0.11.2's warning, quoted in NVIDIA-NeMo/RL#1652."""
CODE = frozenset(
    (
        *("--io-processor-plugin", "--logits-processors", "--middleware", "--reasoning-parser-plugin"),
        *("--scheduler-cls", "--tool-parser-plugin", "--worker-cls", "--worker-extension-cls", "--tool-server"),
    )
)
"""Flags that name the user's code: it calls vLLM, in ways that lists do not have."""
LISTED = frozenset((EXECUTOR, LOAD_FORMAT, QUANTIZATION, REASONING_PARSER, TOOL_PARSER))
"""Flags whose values plan/vllm_limits.py judges, by the names and packages in the lists."""
DIGITS_AT_MOST = 4300
"""Python's own limit: int() refuses more."""
_OPEN = re.compile(r"\b(Any|object|Callable|Config|dict\b(?!\[))")
"""Types whose keys vLLM does not name."""
_PAIRS = re.compile(r"\s*[\w-]+=\d+(\s*,\s*[\w-]+=\d+)*\s*")
"""The older form of --limit-mm-per-prompt: image=2,video=1."""
_EXPANDED = re.compile(r"[$`]")


class Taken(NamedTuple):
    """A flag in one version: what its list and its details say."""

    takes: Any
    flag: FlagDetails
    details: VllmDetails


def judge_value(name: str, flag_text: str, value: str, old: Taken | None, new: Taken) -> Iterator[Judgment]:
    """Yield judgments of a value, of which the worst counts; none if it is taken and means the same."""
    if _EXPANDED.search(value):
        if not _takes_any_text(name, new):
            because = "its value is a shell variable or a command, which is not known"
            yield Judgment("flag", flag_text, Verdict.UNKNOWN, because)
        return
    expected = find_expected_value(name, value, new)
    if expected:
        yield _judge_refused(name, flag_text, value, expected, old, new)
        return
    if new.takes == JSON:
        yield from _judge_json(name, value, old, new)
        return
    if name in LISTED:
        return
    if new.flag.is_custom:
        because = "code of vLLM's own reads it: the lists do not have what it takes"
        yield Judgment("flag", flag_text, Verdict.UNKNOWN, because)
        return
    if name in CODE and value not in ("auto", ""):
        yield Judgment("flag", flag_text, Verdict.UNKNOWN, "names your own code: try it with the new version's classes")
        return
    yield from _judge_word("flag", flag_text, value, old.flag.words if old else (), new.flag.words)


def _takes_any_text(name: str, side: Taken) -> bool:
    """Return whether no value of a flag is refused: a model's name, a path, a key."""
    is_judged = name in (*LISTED, *CODE) or side.flag.is_custom or side.flag.words
    return not is_judged and not find_expected_value(name, "any text", side)


def find_expected_value(name: str, value: str, side: Taken) -> str:
    """Return what the parser of a version expects instead of a value; empty if it takes it."""
    if value == "None":
        return "" if side.flag.takes_none or not side.takes else "another value than None"
    if side.flag.only_words and not side.takes and _normalize_word(value) not in map(_normalize_word, side.flag.words):
        return f"one of {', '.join(side.flag.words)}"
    if INTEGER in (side.takes, side.flag.item):
        return _refused_number(value, side.flag.number)
    takes = side.takes or side.flag.item
    return next((refusal.expected for refusal in find_refused_value(takes, name, value, name)), "")


def _normalize_word(text: str) -> str:
    """Return a word as some flags compare it: --moe-backend takes Deep-GEMM for deep_gemm."""
    return text.casefold().replace("-", "_")


def _refused_number(value: str, form: str) -> str:
    """Return what is expected instead of a whole number. 4k is one for some flags only."""
    text = value.strip()
    if (len(text) <= DIGITS_AT_MOST and re.fullmatch(r"[+-]?\d+(_\d+)*", text)) or (
        form == AUTO and text.lower() == "auto"
    ):
        return ""
    if form in (SUFFIX, AUTO) and re.fullmatch(r"\d+(\.\d+)?[kmgt]|\d+[KMGT]", text):
        return ""
    return "a whole number" if form else "a whole number without a suffix"


def _judge_refused(name: str, flag_text: str, value: str, expected: str, old: Taken | None, new: Taken) -> Judgment:
    """Return the judgment of a value that the new version refuses, with another form of it if one is known."""
    also = "; the old version refuses it too" if old and find_expected_value(name, value, old) else ""
    because = f"the new version refuses this value: expected {expected}{also}"
    if new.takes == JSON and _PAIRS.fullmatch(value):
        pairs = (pair.partition("=") for pair in value.replace(" ", "").split(","))
        rewritten = json.dumps({key: int(number) for key, _, number in pairs})
        return Judgment("flag", flag_text, Verdict.MANUAL, because, f"{name} '{rewritten}'")
    if new.takes == INTEGER and re.fullmatch(r"\d+(\.\d+)?[kKmMgGtT]", value):
        return Judgment("flag", flag_text, Verdict.MANUAL, because, f"{name} with the number in digits")
    return Judgment("flag", flag_text, Verdict.BLOCKED, because)


def _judge_word(kind: str, part_text: str, value: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Judgment]:
    """Yield a judgment of a value that vLLM's annotation does not name, although its parser takes any text."""
    names = set(map(_normalize_word, new))
    words = {_normalize_word(part) for part in re.split(r"[,+]", value) if part}
    if not names or _normalize_word(value) in names or (words and words <= names):
        return
    if _normalize_word(value) in map(_normalize_word, old):
        if len(new) <= 12:  # noqa: PLR2004 - a line holds them
            hint = f"one of {', '.join(sorted(new))}"
        else:
            hint = suggest_nearest(value, new, f"{len(new)} names")
        yield Judgment(kind, part_text, Verdict.BLOCKED, f"the new version does not have {value} any more: {hint}")
    else:
        yield Judgment(
            kind, part_text, Verdict.UNKNOWN, f"vLLM's own names do not have {value}: a plugin's, or your own"
        )


# --- JSON -----------------------------------------------------------------------------------------------------------


def _judge_json(name: str, value: str, old: Taken | None, new: Taken) -> Iterator[Judgment]:
    """Yield judgments of the keys of a JSON value."""
    try:
        content = json.loads(SHORTENED.sub("", value))
    except (ValueError, RecursionError):
        yield Judgment("flag", name, Verdict.UNKNOWN, f"{name}: its JSON is nested too deeply to be read")
        return
    if new.details.records.get(new.flag.record) and not isinstance(content, dict):
        digits = isinstance(content, int) and new.flag.record == "CompilationConfig"
        instead = f"{name}.mode {content}" if digits else ""
        because = f"the new version takes an object, with the keys of {new.flag.record}"
        yield Judgment("flag", f"{name} {value}", Verdict.MANUAL if digits else Verdict.BLOCKED, because, instead)
    elif isinstance(content, dict):
        yield from judge_keys(name, content, old, new)


def judge_keys(name: str, content: Mapping[str, Any], old: Taken | None, new: Taken) -> Iterator[Judgment]:
    """Yield judgments of an object's keys: of a class of vLLM's one by one, of any other type by the type."""
    if new.details.records.get(new.flag.record):
        yield from _judge_record(name, content, old.flag.record if old else "", new.flag.record, _Both(old, new))
        return
    is_unchanged = old is not None and old.flag.annotation == new.flag.annotation and not new.flag.record
    if not (is_unchanged and new.flag.annotation) or _OPEN.search(new.flag.annotation):
        because = "its keys are not in vLLM's lists: they are the model's, another library's or a plugin's"
        yield Judgment("key", f"{name} {{…}}", Verdict.UNKNOWN, because)


class _Both(NamedTuple):
    old: Taken | None
    new: Taken

    def old_keys(self, record: str) -> Mapping[str, KeyDetails]:
        return self.old.details.records.get(record, {}) if self.old else {}


def _judge_record(
    place: str, content: Mapping[str, Any], old: str, new: str, sides: _Both, depth: int = 0
) -> Iterator[Judgment]:
    """Yield a judgment for each key of an object that vLLM parses into a class."""
    before, after = sides.old_keys(old), sides.new.details.records.get(new, {})
    for raw_key, value in content.items():
        key = raw_key.replace("-", "_")
        name = f"{place}.{raw_key}"
        if key not in after:
            yield _missing_key(name, key, new, key in before, sides.new.details)
            continue
        yield from _judge_key_value(name, value, before.get(key), after[key])
        if isinstance(value, dict) and after[key].record and depth < DEEPEST:
            inner = before[key].record if key in before else ""
            yield from _judge_record(name, value, inner, after[key].record, sides, depth + 1)
        elif isinstance(value, dict):
            because = "its keys are not in vLLM's lists"
            yield Judgment("key", f"{name} {{…}}", Verdict.UNKNOWN, because)


def _missing_key(name: str, key: str, record: str, was_there: bool, details: VllmDetails) -> Judgment:
    successor = KEY_SUCCESSORS.get(f"{record}.{key}", "")
    successor = successor if re.split(r"\W", successor)[0] in details.records.get(record, ()) else ""
    what = "removed" if was_there else "no key of either version"
    refuses = "the new version refuses keys that it does not have" if details.closed else "the new version ignores it"
    instead = f"{name.rpartition('.')[0]}.{successor}" if successor else ""
    if not successor and not was_there:
        refuses += f"; {suggest_nearest(key, details.records.get(record, ()), 'no name is like it')}"
    verdict = Verdict.BLOCKED if details.closed and not successor else Verdict.MANUAL
    return Judgment("key", name, verdict, f"{what}: {refuses}", instead or "leave it out" * (verdict is Verdict.MANUAL))


def _judge_key_value(name: str, value: Any, old: KeyDetails | None, new: KeyDetails) -> Iterator[Judgment]:
    """Yield a judgment of one key's value; none if it is taken and means the same."""
    key_text = f"{name} {redact_value(name, json.dumps(value))}"
    if not (ANY in new.kinds or _kinds_of(value) & {*new.kinds}):
        because = f"the new version refuses this value: expected {' or '.join(new.kinds)}"
        yield Judgment("key", key_text, Verdict.BLOCKED, because)
    elif isinstance(new.takes, list) and isinstance(value, (str, int)) and str(value) not in new.takes:
        because = f"the new version refuses this value: expected one of {', '.join(new.takes)}"
        yield Judgment("key", key_text, Verdict.BLOCKED, because)
    elif isinstance(value, str):
        yield from _judge_word("key", key_text, value, old.words if old else (), new.words)


def _kinds_of(value: Any) -> set[str]:
    """Return the kinds of values as which pydantic takes a JSON value: a number also from a text of digits."""
    match value:
        case None:
            return {"none"}
        case bool():
            return {"boolean", "number"}
        case int() | float():
            return {"number", "boolean"} if value in (0, 1) else {"number"}
        case list():
            return {"list"}
        case dict():
            return {"object"}
    text = str(value)
    number = {"number"} if re.fullmatch(r"\s*[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", text) else set()
    boolean = {"boolean"} if text.lower() in ("true", "false", "on", "off", "yes", "no", "1", "0") else set()
    return {"text"} | number | boolean
