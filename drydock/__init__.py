"""The build side: one matrix in, reproducible serving images out."""

from __future__ import annotations

import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
"""In an installed drydock, what lies next to this package in a checkout; else there is no such folder."""
INSTALLED = DATA.is_dir()

if INSTALLED:  # first, because an index has an unrelated package `entrypoints`, and tasks.py has a common name
    sys.path.insert(0, str(DATA))
