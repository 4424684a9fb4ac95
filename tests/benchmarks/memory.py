"""Compares the memory of a training step of Llama 3.1 405B by a folded run with a run of all of its layers."""

from __future__ import annotations

import llmcalc
from llmcalc.device.fold import folded, loops
from llmcalc.device.training import Training, replay

from .timing import calls, line

RUNS = 5
TARGET, SEQ = "llama3.1-405b", 8192


def main() -> None:
    """Prints the two times and their ratio, after checking that both find the same bytes at every place."""
    spec, how = llmcalc.load(TARGET).model, Training(batch=1, seq=SEQ)
    stacks = loops(spec)
    few, whole = folded(lambda layers: replay(spec, how, None, layers), stacks), replay(spec, how)
    same = all(peak.bytes == whole.peaks[place].bytes for place, peak in few.peaks.items())
    folding, every = calls(
        [lambda: folded(lambda layers: replay(spec, how, None, layers), stacks), lambda: replay(spec, how)], RUNS
    )
    print(f"memory: two training steps of {TARGET}, {SEQ} tokens, imports not counted (median of {RUNS})")
    line("llmcalc: folded", f"{folding * 1e3:.0f} ms", "≤ 50 ms")
    line("llmcalc: every layer run", f"{every * 1e3:.0f} ms")
    line("ratio", f"{folding / every:.3f}")
    line("the same bytes at every place", str(same))
