"""What is said of models whose input the image cannot read."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.model.config import parse_config
from entrypoints.model.read import ModelFacts
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import PROFILE, facts

LACKS = {"audio": {"because": "it lacks soundfile and PyAV", "instead": "cpu", "source": "test"}}
SPEECH = SMOLLM2._replace(architecture="WhisperForConditionalGeneration", modalities=("audio",))
OMNI = SMOLLM2._replace(modalities=("image", "audio"))
TEXT_ONLY = {"setting": "--language-model-only", "value": True, "origin": "stack", "because": "test", "source": "test"}


def plan(model: ModelFacts, *words: str, **changes: Any) -> ServePlan:
    return make_serve_plan(PROFILE | changes, facts(), model, parse_user_flags((model.name, *words), {}))


def told(serve_plan: ServePlan) -> list[str]:
    return [finding.remediation for finding in serve_plan.findings if finding.id == "PLAN-065"]


def test_a_model_of_speech_is_refused_and_the_row_that_serves_it_is_named() -> None:
    with pytest.raises(EntrypointError, match="lacks soundfile") as error:
        plan(SPEECH, unreadable=LACKS)
    assert (error.value.code, error.value.hint) == (HOST, "use the image of --target cpu")
    assert not told(plan(SPEECH))


@pytest.mark.parametrize(
    ("words", "changes", "number"),
    [
        ((), {}, 1),
        (("--limit-mm-per-prompt", '{"audio": 0}'), {}, 0),
        (("--language-model-only",), {}, 0),
        ((), {"settings": [*PROFILE["settings"], TEXT_ONLY]}, 0),
    ],
)
def test_a_model_that_also_takes_text_is_warned_of(
    words: tuple[str, ...], changes: dict[str, Any], number: int
) -> None:
    assert len(told(plan(OMNI, *words, unreadable=LACKS, **changes))) == number
    assert not told(plan(SMOLLM2, *words, unreadable=LACKS, **changes))


def test_whisper_takes_sound() -> None:
    config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "num_mel_bins": 80}
    assert parse_config(config).modalities == ("audio",)
