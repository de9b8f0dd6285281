"""The CPU image transcribes speech: a real Whisper, with the packages of vLLM's extra `audio`."""

from __future__ import annotations

import io
import json
import urllib.request
import wave
from collections.abc import Iterator

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.build.render import PYTHON
from drydock.core.paths import ROOT
from drydock.prove import demo, smollm2

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")

SPEECH = ROOT / "tests" / "samples" / "speech" / "go-forward.ogg"
BOUNDARY = "drydock"
SUPPORT = ROOT / "tests" / "support"
WHISPER = smollm2.Recipe("whisper-base", SUPPORT / "whisper.lock.json", SUPPORT / "convert_whisper.py", ".")
"""OpenAI's Whisper base without a hub, of locked Python packages that carry its weights."""


@pytest.fixture(scope="module")
def listening(built: build.Built) -> Iterator[Container]:
    with demo.run_model_server(built.image, smollm2.make_small_model(built.image, WHISPER)) as container:
        demo.wait_until_ready(container)
        yield container


def transcribe(container: Container, name: str, sound: bytes) -> str:
    fields = {"model": "smollm2", "language": "en", "temperature": "0"}  # the name under which `serving` serves
    lines = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{fields[key]}\r\n' for key in fields]
    lines += [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n']
    body = "".join(lines).encode() + sound + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    request = urllib.request.Request(
        demo.find_port_url(container, demo.API_PORT, "/v1/audio/transcriptions"), data=body, headers=kind
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.status == 200
        text = json.load(response)["text"]
    assert isinstance(text, str)
    return text


def test_speech_becomes_text(listening: Container) -> None:
    """Opus at 24 kHz: soundfile decodes it and PyAV resamples it."""
    assert "go forward 10 meters" in transcribe(listening, SPEECH.name, SPEECH.read_bytes()).lower()


def test_a_small_wav_is_taken(listening: Container) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(44100)
        sound.writeframes(bytes(4 * 44100))

    transcribe(listening, "silence.wav", file.getvalue())


def test_torchaudio_resamples_without_its_libraries(listening: Container) -> None:
    """What vLLM does with sound in a chat."""
    script = "import torch, torchaudio; print(torchaudio.transforms.Resample(48000, 16000)(torch.ones(480)).shape)"

    code, output = listening.exec_run([PYTHON, "-c", script])

    assert (code, b"160" in output) == (0, True), output
