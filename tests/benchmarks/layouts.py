"""The time of answers about many devices: a walk of every rank that differs, replays of ranks, and a plan."""

from __future__ import annotations

import random
import time
from functools import partial

import numpy

import llmcalc
from llmcalc.accelerator import Hardware
from llmcalc.device_memory.cuda_runtime import cuda_runtime_of
from llmcalc.device_memory.estimate import Memory, memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.sources.hardware import find_hardware
from llmcalc.studies.plan import plan_layouts
from llmcalc.timing.device import device_of
from llmcalc.timing.software_stacks import find_stack
from llmcalc.timing.step import StepPlan, training_steps

from .timing import calls, line

RUNS = 3

PRICED = 10_000
"""Layouts whose seconds are estimated at once."""

PLANNED = (64, 256)
"""Numbers of devices of plans."""

PLANNED_MODEL = "llama3-70b"

SIZES = {
    "tp": (1, 2, 4, 8), "pp": (4, 8, 16), "dp": (16, 32, 64), "cp": (1, 2), "ep": (1, 8, 16), "vpp": (1, 2),
    "micro_batch": (1, 2), "micro_batches": (16, 32, 64),
}  # fmt: skip
"""Column of a plan → the sizes of which each of these layouts has one."""

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


WALKED = ((GIANT, "≤ 50 ms"), (MIXTURE, "≤ 1000 ms"))
"""Runs whose ranks are all estimated, with the target."""

FSDP = "llama3.1-405b", Layout(dp=16_384, zero=3), Settings(phase="training", seq=8192, batch=1, recompute="full")

PIPELINE = (
    "llama3.1-405b",
    Layout(tp=8, pp=16, dp=128, pp_layout=(7, *(8,) * 14, 7)),
    Settings(phase="training", seq=8192, batch=1, num_microbatches=16),
)

REPLAYED: dict[str, tuple[str, str, Layout, Settings]] = {
    "Megatron": ("megatron", *GIANT),
    "Megatron, a mixture of experts": ("megatron", *MIXTURE),
    "FSDP2": ("fsdp2", *FSDP),
    "torch's own pipeline": ("torch", *PIPELINE),
}
"""Kernels → framework, model, layout and settings of ranks that are replayed on the allocator."""


def main() -> None:
    """Prints the times."""
    print(f"layouts: CPU time without imports (median of {RUNS})")
    for (name, layout, settings), target in WALKED:
        one = memory(llmcalc.load(name).model, settings)
        (walk,) = calls([partial(walked, one, layout)], RUNS, time.process_time)
        line(f"a walk of {name} on {layout.world_size:,} devices, Megatron", f"{walk * 1e3:.0f} ms", target)
    print("layouts: each rank that differs, on the allocator (one run)")
    for kernels, (framework, name, layout, settings) in REPLAYED.items():
        cluster = Cluster.with_framework(memory(llmcalc.load(name).model, settings), layout, framework)
        start = time.process_time()
        count = len(cluster.by_rank)
        each = (time.process_time() - start) / count
        line(f"{kernels}: {name}, {count} ranks", f"{each * 1e3:.0f} ms each", "≤ 25 ms")
    hardware = find_hardware("h100")
    (taken,) = calls([partial(seconds_of_layouts, hardware)], RUNS, time.process_time)
    line(f"seconds of {PRICED:,} layouts of deepseek-v3", f"{taken * 1e6 / PRICED:.0f} µs each")
    one = memory(
        llmcalc.load(PLANNED_MODEL).model, Settings(phase="training", seq=8192), cuda_runtime=cuda_runtime_of(hardware)
    )
    for devices in PLANNED:
        start = time.process_time()
        tried = plan_layouts(one, hardware, LayoutRequest(devices=devices), 512, 1).ranked_layouts.tried_count
        taken = time.process_time() - start
        line(f"a plan of {PLANNED_MODEL} on {devices}: {tried} layouts", f"{taken * 1e3 / tried:.0f} ms each")


def seconds_of_layouts(hardware: Hardware) -> None:
    """Estimates a step of DeepSeek-V3 under many layouts."""
    rng = random.Random(0)
    columns = {name: numpy.array(rng.choices(sizes, k=PRICED)) for name, sizes in SIZES.items()}
    base = StepPlan(etp=1, dtype="fp8", sequence_parallel=True, zero=1, recomputed_share=1.0)
    training_steps(llmcalc.load("deepseek-v3").model, device_of(hardware), find_stack("megatron"), base, columns)


def walked(one: Memory, layout: Layout) -> int:
    """The bytes of the rank that needs most."""
    return framework_named("megatron").estimate(one).largest_rank_bytes(layout, 16)
