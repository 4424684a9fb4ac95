"""What torch's profiler sees the CPU allocate in a forward and a backward pass of a part's or a family's reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.cpu_events import BACKWARD_PASS, FORWARD_PASS, CpuEvents, read_events
from llmcalc.witnesses.module_measurements import default_dtype
from llmcalc.workload.recompute import NO_RECOMPUTATION
from tests.simulator.models import inputs, result
from tests.simulator.witness import saved_tensors


@dataclass
class Seen(CpuEvents):
    """What the profiler saw. saved_numbers: the Python numbers that the graph saves for the backward pass."""

    saved_numbers: int = 0


def seen(
    spec: ModelSpec,
    choices: KernelChoices = EAGER_CHOICES,
    dtype: str = "float32",
    batch: int = 2,
    seq: int = 7,
    adapters: Adapters | None = None,
    autocast: bool = False,
) -> Seen:
    """What the CPU allocates when the reference runs. adapters, autocast: as of `by_torch` in `models`."""
    with default_dtype(getattr(torch, dtype)):
        module: Any = spec.reference()
        ids, source = inputs(spec, batch, seq)
    kernel_variants.apply_kernel_choices(module, choices, NO_RECOMPUTATION, adapters)

    def run_forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return result(spec, module, ids, source, choices)

    with kernel_variants.kernel_context(choices):
        run_forward().sum().backward()  # what is made once is made here
        module.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as run:
            with record_function(FORWARD_PASS):
                out = run_forward()
            numbers = sum(one.dtype in (torch.float64, torch.int64) and not one.shape for one in saved_tensors(out))
            with record_function(BACKWARD_PASS):
                out.backward(torch.empty_like(out))
    events = read_events(run)
    return Seen(events.memory_events, events.gradient_sums, numbers)
