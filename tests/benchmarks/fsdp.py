"""The time of one rank's memory under FSDP2, and of finding the ranks that differ."""

from __future__ import annotations

import time

import llmcalc
from llmcalc.device_memory.linear_in_layers import extrapolate_layers
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.frameworks.fsdp2.rank_memory import fsdp_memory
from llmcalc.frameworks.fsdp2.training import FsdpRun, record_fsdp_run, sharding_of_rank
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.layer_pattern import RECORDED_REPEATS
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.repeat_layers import RepeatAnalysis
from llmcalc.simulator.replay_result import ReplayResult
from llmcalc.workload.recompute import parse_recompute

from .timing import calls, line

RUNS = 7
TARGET, LAYOUT = "llama3.1-405b", Layout(dp=16_384, zero=3)
HOW = TrainingConfig(
    seq=8192,
    recompute=parse_recompute("full"),
    kernel_choices=KernelChoices("flash", "fused", multiprocessors=132),
    implementation="fused",
)


def main() -> None:
    """Prints the times."""
    spec = llmcalc.load(TARGET).model
    exact, answer = calls(
        [
            lambda: tensors(spec),
            lambda: fsdp_memory(spec, HOW, LAYOUT),
        ],
        RUNS,
        time.process_time,
    )
    print(f"fsdp: two training steps of {TARGET} on one of {LAYOUT.world_size:,} ranks, CPU time (median of {RUNS})")
    line("the bytes of tensors, folded", f"{exact * 1e3:.0f} ms", "≤ 50 ms")
    line("every layer on the allocator too", f"{answer * 1e3:.0f} ms")


def tensors(spec: ModelSpec) -> ReplayResult:
    """The bytes of tensors of all layers, from a run of a few."""
    stacks = layer_stacks(spec)
    few = {i: stack.repeats_of_layer_types(RECORDED_REPEATS) for i, stack in enumerate(stacks)}
    sharding = sharding_of_rank(HOW, LAYOUT, 0)
    events = record_fsdp_run(lambda meter: FsdpRun(spec, HOW, sharding, layers=few, memory_meter=meter))
    return extrapolate_layers(RepeatAnalysis(events, stacks, list(few)).count_bytes, stacks)
