"""Every architecture that drydock names is one that vLLM registers, or registered, under that name."""

from __future__ import annotations

import re

from drydock.config.project import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock.vllm_lists import list_every

NAME = re.compile(r"\b[A-Z]\w*(?:ForCausalLM|ForConditionalGeneration|LMHeadModel|ForSequenceClassification)\b")
NOT_OF_VLLM = {
    "AutoModelForCausalLM": "a class of transformers that loads any of them",
    "FooForCausalLM": "an invented name, in a sample of a log",
    "GOTQwenForCausalLM": "vLLM-GCU's own",
}
PLACES = ("entrypoints/**/*.py", "drydock/**/*.py", "drydock/run/configurations.json", "templates/**/*.yaml")


def test_every_architecture_that_is_named_is_one_of_vllm() -> None:
    registered = {
        name
        for version in list_every(DRYDOCK)
        for kind in ("architectures", "removed_architectures")
        for name in version.lists.get(kind, ())
    }
    texts = [path.read_text(encoding="utf-8") for place in PLACES for path in ROOT.glob(place)]
    named = {name for text in texts for name in NAME.findall(text)}

    assert len(named) > 50
    assert named - registered == NOT_OF_VLLM.keys()
