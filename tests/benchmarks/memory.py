"""The time of an answer about training memory, and how far a folded run is from the run of all layers."""

from __future__ import annotations

import time
from collections.abc import Mapping

import llmcalc
from llmcalc.device_memory.cuda_runtime import HOPPER_RUNTIME
from llmcalc.device_memory.linear_in_layers import extrapolate_layers
from llmcalc.device_memory.training import TrainingConfig, record_training, replay
from llmcalc.model import ModelSpec
from llmcalc.simulator.layer_pattern import RECORDED_REPEATS
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.repeat_layers import RepeatAnalysis
from llmcalc.simulator.replay_result import ReplayResult
from llmcalc.workload.recompute import parse_recompute
from tests.device_memory.training_memory import training_memory
from tests.simulator.allocator_witness import WitnessAllocator

from .timing import calls, line

RUNS = 7
TARGET, SEQ = "llama3.1-405b", 8192

COMPARED = {
    "llama3.1-405b": TrainingConfig(batch=1, seq=8192, has_master_weights=True),
    "llama3-70b": TrainingConfig(batch=2, seq=2048, recompute=parse_recompute("full"), has_master_weights=True),
    "qwen3-235b-a22b": TrainingConfig(batch=1, seq=4096, has_master_weights=True),
    "qwen2.5-72b": TrainingConfig(batch=1, seq=4096, optimizer="adamw-8bit"),
}


def main() -> None:
    """Prints the times of an answer and of its parts, and differences from runs of all layers."""
    spec, training_config = llmcalc.load(TARGET).model, COMPARED[TARGET]
    answer, exact, whole = calls(
        [
            lambda: llmcalc.memory(TARGET, "training", seq=SEQ).device.timeline,
            lambda: tensors(spec, training_config),
            lambda: replay(spec, training_config, WitnessAllocator(), None, HOPPER_RUNTIME.workspace_bytes),
        ],
        RUNS,
        time.process_time,
    )
    print(f"memory: two training steps of {TARGET}, {SEQ} tokens, CPU time without imports (median of {RUNS})")
    line("llmcalc: the answer", f"{answer * 1e3:.0f} ms", "≤ 50 ms")
    line("of this, the bytes of tensors, folded", f"{exact * 1e3:.0f} ms")
    line("every layer run, on the allocator", f"{whole * 1e3:.0f} ms")
    print("memory: a folded run beside the run of all layers, in % of that")
    for name, training in COMPARED.items():
        print(f"  {name:<40} {differences(llmcalc.load(name).model, training)}")


def tensors(spec: ModelSpec, training: TrainingConfig) -> ReplayResult:
    """The bytes of tensors of all layers, from a run of a few."""
    stacks = layer_stacks(spec, training.recompute.every)
    few = {i: stack.repeats_of_layer_types(RECORDED_REPEATS) for i, stack in enumerate(stacks)}
    unfolding = RepeatAnalysis(record_training(spec, training, few, HOPPER_RUNTIME.workspace_bytes), stacks, list(few))

    def counted(layers: Mapping[int, int]) -> ReplayResult:
        return unfolding.count_bytes(layers)

    return extrapolate_layers(counted, stacks)


def differences(spec: ModelSpec, training: TrainingConfig) -> str:
    """How far the blocks after a step, the peak of blocks and the segments of a folded run are from a whole run's."""
    device = WitnessAllocator()
    whole, found = replay(spec, training, device, None, HOPPER_RUNTIME.workspace_bytes), training_memory(spec, training)
    pairs = {
        "after": (found.after_step_bytes, whole.final_bytes + whole.rounding_bytes_after),
        "peak": (found.peak_bytes, device.peak_allocated),
        "reserved": (found.reserved_bytes, device.peak_reserved),
    }
    return ", ".join(f"{name} {100 * (a - b) / b:+.4f} %" for name, (a, b) in pairs.items())
