"""`python entrypoints/rehearsal`: reads a platform and then questions, one JSON object a line, and answers each.

The platform: `kind`, and under `recorded` what was recorded of its devices, or null for this machine's. A question:
`folder` with config.json, vLLM's `words`, and `ranks` (none: those that choose_ranks names). What is written: lines
with `phase`, what is done now, and one line with `outcome` for each question.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM and its libraries write to standard output
    from entrypoints.rehearsal.answers import answer_all

    answer_all(sys.stdin, answers)
