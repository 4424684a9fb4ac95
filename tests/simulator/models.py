"""Whole models, once without values and once as torch runs the reference: the same bytes at every moment."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from llmcalc.model import ModelSpec
from llmcalc.optional import MTP
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.autograd import AutogradGraph, backward, saved_storages
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.profiles.eager import EagerKernels
from llmcalc.simulator.tensor import DTYPES, INT64, Dtype, Tensor, empty
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.meta_device import device_context
from llmcalc.witnesses.module_measurements import default_dtype
from llmcalc.workload.recompute import NO_RECOMPUTATION, Recompute
from llmcalc.workload.rows import SOURCE_TOKENS, TOKENS
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.simulator.witness import Held, measured


class Logged(Meter):
    """A meter that notes every storage as it is made and freed."""

    def __init__(self) -> None:
        super().__init__()
        self.base = 0
        self.log: list[str] | None = None

    def allocate(self, size: Any) -> Any:
        block = super().allocate(size)
        if self.log is not None:
            self.log.append(f"+{size:>12,} {self.live_bytes - self.base:>12,} {self.place.path}")
        return block

    def free(self, block: Any) -> None:
        super().free(block)
        if self.log is not None:
            self.log.append(f"-{block.bytes:>12,} {self.live_bytes - self.base:>12,}")

    graph: AutogradGraph


def without_values(
    spec: ModelSpec,
    batch: int = 2,
    seq: int = 7,
    log: list[str] | None = None,
    recompute: Recompute = NO_RECOMPUTATION,
    autocast: bool = False,
    include: frozenset[str] = frozenset(),
    choices: KernelChoices = EAGER_CHOICES,
    adapters: Adapters | None = None,
    dtype: str = "bfloat16",
    adds_in_place: bool = False,
    on_sum: Callable[[Any, bool], None] | None = None,
    first_trained_layer: int | None = None,
    trained_dtype: Dtype | None = None,
) -> Held:
    """The bytes of a forward and a backward pass, by the eager profile. Raises `UnsupportedKernel`.

    adds_in_place: whether gradients may be added in place; torch never does under a dispatch mode, as in `by_torch`.
    on_sum: as of `AutogradGraph`.
    """
    program, meter = spec.program(), Logged()
    graph = meter.graph = AutogradGraph(meter)
    graph.adds_in_place, graph.gradient_sum_hook = adds_in_place, on_sum
    run = EagerKernels(
        graph,
        RunConfig(Workload(batch=batch, seq=seq, source=seq, phase="training")),
        DTYPES["float32" if autocast and trained_dtype is None else dtype],
        True,
        recompute,
        include,
        choices,
        adapters,
    )
    run.first_trained_layer, run.trained_dtype = first_trained_layer, trained_dtype or run.dtype
    meter.kind = "weights"
    labels = empty(meter, (batch * seq,), INT64)
    run.inputs[TOKENS] = run.inputs[SOURCE_TOKENS] = empty(meter, (batch, seq), INT64)
    run.create_input_frames(program)
    meter.kind = "temporary"

    def once() -> Tensor:
        graph.autocast_dtype = DTYPES["bfloat16"] if autocast else None
        out = run.run(program)
        out = run.losses(out, labels) if spec.head.type == "lm" else out
        graph.leave_autocast()
        return out

    with graph.no_grad():
        once()  # makes the weights
    meter.base = base = meter.live_bytes
    meter.log = log
    meter.restart()
    out = once()
    saves_all = recompute is NO_RECOMPUTATION and choices.cross_entropy != "recomputed"
    saved = sum(s.bytes for s in saved_storages(out) if s.block.kind != "weights") if saves_all else 0
    live, forward = meter.live_bytes - base, meter.peak_bytes - base
    if log is not None:
        log.append("--- backward")
    meter.restart()
    backward(graph, out, graph.new_tensor(out.shape, out.dtype, out.strides))
    del out
    return Held(saved, live, forward, meter.peak_bytes - base, meter.live_bytes - base)


def by_torch(
    spec: ModelSpec,
    batch: int = 2,
    seq: int = 7,
    log: list[str] | None = None,
    recompute: Recompute = NO_RECOMPUTATION,
    autocast: bool = False,
    include: frozenset[str] = frozenset(),
    choices: KernelChoices = EAGER_CHOICES,
    adapters: Adapters | None = None,
    device: str = "",
    dtype: str = "bfloat16",
) -> Held:
    """The bytes of a forward and a backward pass of the reference.

    recompute: saved bytes are 0 with it, because selective checkpoints bypass torch's hooks.
    autocast: whether the weights are in float32, under torch.autocast to bfloat16; on the CPU, because meta has none.
    device: where it runs; by default on the CPU, or on meta where torch has no kernel for the CPU.
    dtype: the type of weights and activations without autocast.
    """
    device = device or device_of(choices)
    if device == "meta":  # arange imports it beside DTensor, and frames that it keeps would keep their tensors
        import_module("torch._dynamo")
    with default_dtype(torch.float32 if autocast else getattr(torch, dtype)), device_context(device):
        module: Any = spec.reference()
        kernel_variants.apply_kernel_choices(module, choices, recompute, adapters, device)
        ids, source = inputs(spec, batch, seq)

    def run() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return result(spec, module, ids, source, choices, include)

    outside = [*module.parameters(), *module.buffers(), ids, *([] if source is None else [source])]
    with kernel_variants.kernel_context(choices):
        saves_all = recompute is NO_RECOMPUTATION and choices.cross_entropy != "recomputed"
        return measured(run, outside, log, device, measures_saved=saves_all)


def device_of(choices: KernelChoices) -> str:
    """Where the reference runs with these kernels."""
    of_gpu = choices.attention == "flash" or (choices.attention == "sdpa" and choices.compute_capability > 0)
    return "meta" if of_gpu or choices.norm == "fused" else "cpu"


def inputs(
    spec: ModelSpec, batch: int, seq: int, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token ids; and those of the encoder, or its frames, of a model of both stacks. All are 0: of experts, the same
    get all rows. dtype: the type of frames, torch's default by default.
    """
    ids = torch.zeros(batch, seq, dtype=torch.int64)
    if spec.encoder is None or spec.decoder is None:
        return ids, None
    if spec.encoder.stem is None:
        return ids, torch.zeros_like(ids)
    return ids, torch.empty(spec.encoder.stem.input_shape(batch, seq), dtype=dtype)


def result(
    spec: ModelSpec,
    module: Any,
    ids: torch.Tensor,
    source: torch.Tensor | None,
    choices: KernelChoices = EAGER_CHOICES,
    include: frozenset[str] = frozenset(),
) -> torch.Tensor:
    """The loss; of a model without a language-model head, its output."""
    with_mtp = MTP.name in include
    model_output = module(ids, source, with_mtp=with_mtp, grouped_experts=True, expert_capacity=choices.expert_capacity)
    out, ahead = model_output if with_mtp else (model_output, [])
    del model_output
    return kernel_variants.loss_of(module, choices, out, ids, ahead) if spec.head.type == "lm" else out
