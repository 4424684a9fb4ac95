"""The time of answers about many devices: a walk of every rank that differs, replays of ranks, and a plan."""

from __future__ import annotations

import time

import llmcalc
from llmcalc.device.cluster import Cluster
from llmcalc.device.memory import memory
from llmcalc.device.runtime import runtime_of
from llmcalc.device.settings import Settings
from llmcalc.layouts.asked import Asked
from llmcalc.run.layout import Layout
from llmcalc.sources.hardware import find_hardware
from llmcalc.studies.plan import plan_of, walk_of

from .timing import calls, line

RUNS = 3

GIANT = (
    "llama3.1-405b",
    Layout(tp=8, pp=16, dp=128, sequence_parallel=True, zero=1, pp_layout=(7, *(8,) * 14, 7)),
    Settings(phase="training", seq=8192, batch=1, num_microbatches=16),
)

MIXTURE = (
    "deepseek-v3",
    Layout(pp=16, dp=128, ep=64, etp=1, zero=1, pp_layout=(3, *(4,) * 14, 2)),
    Settings(phase="training", seq=4096, batch=1, num_microbatches=16),
)


def main() -> None:
    """Prints the times."""
    print(f"layouts: CPU time without imports, kernels of Megatron (median of {RUNS})")
    for name, layout, settings in (GIANT, MIXTURE):
        one = memory(llmcalc.load(name).model, settings)
        (walk,) = calls(
            [lambda one=one, layout=layout: walk_of(one, "megatron").needed(layout, 16)], RUNS, time.process_time
        )
        found = Cluster(one, layout, "megatron")
        start = time.process_time()
        count = len(found.by_rank)
        each = (time.process_time() - start) / count
        line(f"{name} on {layout.world:,} devices: a walk", f"{walk * 1e3:.0f} ms", "≤ 50 ms")
        line(f"{name}: each of {count} ranks on the allocator", f"{each * 1e3:.0f} ms", "≤ 25 ms")
    hardware = find_hardware("h100")
    one = memory(llmcalc.load("llama3-70b").model, Settings(phase="training", seq=8192), runtime=runtime_of(hardware))
    for devices in (64, 256):
        start = time.process_time()
        tried = plan_of(one, hardware, Asked(devices=devices), 512, 1).plan.tried
        taken = time.process_time() - start
        line(f"a plan of llama3-70b on {devices}: {tried} layouts", f"{taken * 1e3 / tried:.0f} ms each")
