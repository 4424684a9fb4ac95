"""Finds time stacks by name: descriptions of the software that runs a model's program."""

from __future__ import annotations

from ..errors import InputError, suggest
from ..frozen import frozen
from ..parallel.layout import Schedule
from .records import Stack, stacks

OVERLAPS = ("none", "dp", "tp", "ep", "all")
"""Values of `--overlap`: the messages that run beside products."""


def stack_names(phase: str = "") -> list[str]:
    """Returns the names of all time stacks, or of the time stacks for training or for inference."""
    return [stack_name for stack_name, stack in stacks().items() if phase in ("", stack.phase)]


def find_stack(name: str, phase: str = "") -> Stack:
    """Returns a time stack by name. phase: the required phase, `training` or `inference`; default either.

    Raises `InputError` for an unknown name, and for a stack of another phase.
    """
    names = stack_names(phase)
    if name not in names:
        if name in stacks():
            raise InputError(f"--stack {name}: is for {stacks()[name].phase}; expected one of {', '.join(names)}")
        raise InputError(f"--stack: '{name}' is not known; expected one of {', '.join(names)}.{suggest(name, names)}")
    return stacks()[name]


@frozen
class Overlap:
    """The fraction of the messages of tp, dp and ep groups that computation hides, as the option `--overlap` states it.

    ep: exchanges of 8.25 s took 3.72 s less of a step, Qwen3-30B on 16 H100, with `overlap_moe_expert_parallel_comm`
    (github.com/NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-moe-comm-overlap).
    """

    tp: float = 0.6
    dp: float = 0.9
    ep: float = 0.45


WITH_OVERLAP = Overlap()
"""What Megatron-Core's options of overlap hide (the stack `megatron`)."""


def stack_of_vendor(vendor: str, phase: str) -> str:
    """Returns the name of a vendor's own time stack for a phase; empty without such a stack."""
    return next((stack_name for stack_name in stack_names(phase) if vendor in stacks()[stack_name].vendors), "")


def with_attention(stack: Stack, implementation: str | None) -> Stack:
    """Returns a software stack with attention scores in memory, if the chosen implementation writes them."""
    if implementation not in ("eager", "sdpa-math") or stack.attention == "scores":
        return stack
    eager_kernels = {
        verb: stack.kernels[f"eager_{verb}"] for verb in ("attention",) if f"eager_{verb}" in stack.kernels
    }
    return stack.model_copy(update={"attention": "scores", "kernels": stack.kernels | eager_kernels})


def with_schedule(stack: Stack, schedule: Schedule) -> Stack:
    """Returns a software stack whose pipeline hides the exchanges of experts, if that is what the schedule is for.

    DualPipe runs each exchange beside the products of a micro-batch in the other direction (DeepSeek-V3,
    arXiv:2412.19437, §3.2.1). It says that all of it is hidden; measured is what Megatron-Core hides in the same way.
    """
    if schedule != "dualpipe":
        return stack
    return stack.model_copy(
        update={"hidden": {**stack.hidden, "ep": max(stack.hidden.get("ep", 0.0), WITH_OVERLAP.ep)}}
    )


def with_gradient_buffers(stack: Stack, buffer_bytes: float | None) -> Stack:
    """Returns a software stack that sends gradients in the gradient buffers' format.

    buffer_bytes: bytes per element of a gradient's buffer; None for the stack's own.
    """
    if buffer_bytes is None or not stack.sends_gradient_buffers:
        return stack
    return stack.model_copy(update={"gradient_bytes": buffer_bytes})


ADAMW_STATE_BYTES = 8.0
"""Bytes per parameter of AdamW's two states in fp32, which `Stack.optimizer_bytes` has twice: read and written."""


def with_optimizer(stack: Stack, state_bytes: float, flops: float = 0.0, on_host: bool = False) -> Stack:
    """Returns a software stack whose update reads and writes the states of the run's optimizer.

    state_bytes, flops: per parameter; flops are those of the update's matrix products. on_host: whether the host
    updates.
    """
    changed_bytes = 2 * (state_bytes - ADAMW_STATE_BYTES)
    if not changed_bytes and not flops and not on_host:
        return stack
    host_update = stack.host_update or stack.offloaded_update if on_host else stack.host_update
    return stack.model_copy(
        update={
            "optimizer_bytes": stack.optimizer_bytes + changed_bytes,
            "optimizer_flops": flops,
            "host_update": host_update,
        }
    )


def with_overlap(stack: Stack, overlap: str | None) -> Stack:
    """Returns a time stack with the stated overlap of each group's messages; unchanged for None.

    Raises `InputError` for an unknown value.
    """
    if overlap is None:
        return stack
    if overlap not in OVERLAPS:
        raise InputError(f"--overlap: '{overlap}' is not known; expected one of {', '.join(OVERLAPS)}")
    groups = {"none": (), "dp": ("dp",), "tp": ("tp",), "ep": ("ep",), "all": ("tp", "dp", "ep")}[overlap]
    return stack.model_copy(update={"hidden": {group_name: getattr(WITH_OVERLAP, group_name) for group_name in groups}})
