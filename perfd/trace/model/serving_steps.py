"""Which steps of an inference server a trace's ranges are, by the names that SGLang and vLLM give them.

SGLang since 0.5.12: `step[DECODE bs=8]`, `step[EXTEND bs=1 toks=2048]`, with more words when asked
(`model_executor/step_span_utils.py`). vLLM since 0.15: `execute_context_1(2048)_generation_8(8)`, or, in
detail, `execute_2056_context_1(sq2048...)_generation_8(sq8...)` (`v1/worker/gpu_worker.py`).
"""

from __future__ import annotations

import re

_SGLANG = re.compile(r"step\[(?P<mode>[A-Z_0-9]+) bs=\d+\b.*\]")
_VLLM = re.compile(r"execute_(?:\d+_)?context_(?P<prefills>\d+)\(.*\)_generation_(?P<decodes>\d+)\(.*\)")
_MODES = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed", "TARGET_VERIFY": "verify"}


def step_name(name: str) -> str | None:
    """`prefill step`, `decode step` or another kind of step; None for any other range."""
    if name.startswith("step["):
        found = _SGLANG.fullmatch(name)
        mode = found["mode"] if found else ""
        return f"{_MODES.get(mode, mode.lower())} step" if mode else None
    if not name.startswith("execute_"):
        return None
    said = _VLLM.fullmatch(name)
    if said is None:
        return None
    prefills, decodes = int(said["prefills"]), int(said["decodes"])
    if prefills and decodes:
        return "mixed step"
    return "prefill step" if prefills else "decode step"
