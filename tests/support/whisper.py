"""A real speech model without a hub: OpenAI's Whisper base, of locked Python packages that carry its weights."""

from __future__ import annotations

from pathlib import Path

from drydock.prove.smollm2 import Recipe

HERE = Path(__file__).parent

WHISPER = Recipe("whisper-base", HERE / "whisper.lock.json", HERE / "convert_whisper.py", ".")
