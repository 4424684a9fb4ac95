"""Finds software stacks by name: measured efficiencies of the software that runs a model."""

from __future__ import annotations

from typing import Literal

from ..errors import InputError, suggest
from ..frozen import frozen
from ..parallel.layout import Schedule
from .timing_constants import MAX_SETTINGS, SoftwareStack, combined_stack, software_stacks

OVERLAPPED_GROUPS = ("dp", "tp", "ep")
"""Values of `--overlap` other than `none` and `all`: the groups whose messages overlap with computation."""


def stack_names(phase: str = "") -> list[str]:
    """Returns the names of all software stacks, or only of those for training or for inference."""
    return [stack_name for stack_name, stack in software_stacks().items() if phase in ("", stack.phase)]


def find_stack(stack_name: str, phase: str = "") -> SoftwareStack:
    """Returns a software stack by its name; `+` appends the names of settings to a stack's name.

    phase: the required phase, `training` or `inference`; default either.

    Raises `InputError` for an unknown name, and for a stack of another phase.
    """
    known_stacks = stack_names(phase)
    stack = combined_stack(stack_name)
    if stack is None or phase not in ("", stack.phase):
        if stack is not None:
            raise InputError(f"--stack {stack_name}: is for {stack.phase}; expected one of {', '.join(known_stacks)}")
        if "+" in stack_name and all(part_name in known_stacks for part_name in stack_name.split("+")):
            raise InputError(
                f"--stack {stack_name}: not a combination; expected a stack and up to {MAX_SETTINGS} different "
                "settings of its software, of which one at most is an exchange of experts' tokens"
            )
        raise InputError(
            f"--stack: '{stack_name}' is not known; expected one of {', '.join(known_stacks)}."
            f"{suggest(stack_name, known_stacks)}"
        )
    return stack


@frozen
class Overlap:
    """The fractions of tp, dp and ep messages that computation hides under `--overlap`.

    ep: exchanges of 8.25 s took 3.72 s less of a step, Qwen3-30B on 16 H100, with `overlap_moe_expert_parallel_comm`
    (github.com/NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-moe-comm-overlap).
    """

    tp: float = 0.6
    dp: float = 0.9
    ep: float = 0.45


FULL_OVERLAP = Overlap()
"""The overlap with all of Megatron-Core's overlap options, as in the stack `megatron`."""


def stack_of_vendor(vendor: str, phase: str) -> str:
    """Returns the usual software stack for accelerators of a vendor; empty if there is none."""
    return next(
        (stack_name for stack_name in stack_names(phase) if vendor in software_stacks()[stack_name].vendors), ""
    )


def with_attention(software_stack: SoftwareStack, implementation: str | None) -> SoftwareStack:
    """Returns a software stack that stores attention scores in memory, if the implementation does so."""
    if implementation not in ("eager", "sdpa-math") or software_stack.attention == "scores":
        return software_stack
    eager_kernels = {
        verb: software_stack.launches_by_verb[f"eager_{verb}"]
        for verb in ("attention",)
        if f"eager_{verb}" in software_stack.launches_by_verb
    }
    return software_stack.model_copy(
        update={"attention": "scores", "launches_by_verb": software_stack.launches_by_verb | eager_kernels}
    )


def with_cudnn_attention(software_stack: SoftwareStack) -> SoftwareStack:
    """Returns a software stack whose scaled_dot_product_attention runs cuDNN's kernel, if it calls that function."""
    return (
        software_stack.model_copy(update={"attention": "cudnn"})
        if software_stack.uses_torch_attention
        else software_stack
    )


def with_schedule(software_stack: SoftwareStack, schedule: Schedule) -> SoftwareStack:
    """Returns a software stack with the messages that a pipeline schedule hides: DualPipe hides expert all-to-all.

    DualPipe runs each exchange beside the products of a micro-batch in the other direction (DeepSeek-V3,
    arXiv:2412.19437, §3.2.1). It says that all of it is hidden; measured is what Megatron-Core hides in the same way.
    """
    if schedule != "dualpipe":
        return software_stack
    return software_stack.model_copy(
        update={
            "hidden_share_by_group": {
                **software_stack.hidden_share_by_group,
                "ep": max(software_stack.hidden_share_by_group.get("ep", 0.0), FULL_OVERLAP.ep),
            }
        }
    )


def with_gradient_buffers(software_stack: SoftwareStack, buffer_bytes: float | None) -> SoftwareStack:
    """Returns a software stack that sends gradients in the number format of the gradient buffers.

    buffer_bytes: bytes per element of a gradient's buffer; None for the stack's own.
    """
    if buffer_bytes is None or not software_stack.sends_gradient_buffers:
        return software_stack
    return software_stack.model_copy(update={"gradient_bytes": buffer_bytes})


def with_loss(software_stack: SoftwareStack, cross_entropy: str | None) -> SoftwareStack:
    """Returns a software stack with the run's loss implementation, for a stack with known bytes of the loss.

    cross_entropy: the value of `--cross-entropy`; None for the stack's own loss.
    """
    loss_bytes = software_stack.loss_bytes.get(cross_entropy or "")
    if loss_bytes is None:
        return software_stack
    return software_stack.model_copy(
        update={"bytes_per_logit": loss_bytes[0], "gradient_bytes_per_logit": loss_bytes[1]}
    )


def with_norms(software_stack: SoftwareStack, norm: str | None) -> SoftwareStack:
    """Returns a software stack with one kernel per norm, and with `liger` one kernel per gated activation.

    norm: the value of `--norm`; None for the stack's own norms, which those of fused software are anyway.
    """
    if norm not in ("fused", "liger") or software_stack.fuses_elementwise:
        return software_stack
    accesses_by_verb = {
        verb: kernel_constant for verb, kernel_constant in software_stack.accesses_by_verb.items() if verb != "norm"
    }
    launches_by_verb = {
        verb: kernel_constant for verb, kernel_constant in software_stack.launches_by_verb.items() if verb != "norm"
    }
    return software_stack.model_copy(
        update={
            "accesses_by_verb": accesses_by_verb,
            "launches_by_verb": launches_by_verb,
            "fuses_gates": norm == "liger",
        }
    )


NARROW_ADAPTER_BYTES: dict[Literal["input", "output"], tuple[float, float]] = {
    "input": (0.0, 6.0),
    "output": (10.0, 4.0),
}
"""Bytes per element that PEFT's 16-bit adapters move in addition to their products (`SoftwareStack.adapter_bytes`): no
cast, the output is scaled (4) and added to the layer's (6), its gradient scaled (4), and that of the input added (6)
(peft/tuners/lora/layer.py).
"""


def with_16_bit_adapters(software_stack: SoftwareStack) -> SoftwareStack:
    """Returns a software stack whose adapters are in the weights' 16-bit format; unchanged if kernels are fused.

    Unchanged too if the stack's adapters cast no input, as they are in 16 bits anyway.
    """
    input_cast_bytes, _ = software_stack.adapter_bytes_per_element.get("input", (0.0, 0.0))
    if software_stack.fuses_elementwise or not input_cast_bytes:
        return software_stack
    return software_stack.model_copy(update={"adapter_bytes_per_element": NARROW_ADAPTER_BYTES})


ADAMW_STATE_BYTES = 8.0
"""Bytes per parameter of AdamW's two fp32 states; `SoftwareStack.optimizer_bytes` counts them twice, read and written.
"""


STEPWISE_ADAMW = 7.0
"""Additional bytes that torch's AdamW moves step by step (`foreach` and `loop`), divided by the bytes of its states.

Per parameter, in elements of the size of a state: the decay reads and writes the parameter once more (2), the square
root's copy is written, and read and written by two steps and read by the last (6), the second state is read and written
by its decay and read by the root (3), the gradient is read twice more (2), and the first state once (1): 14, where the
states have two (torch/optim/adamw.py, _multi_tensor_adamw and _single_tensor_adamw of torch 2.13).
"""


def with_optimizer(
    software_stack: SoftwareStack,
    state_bytes: float,
    flops: float = 0.0,
    is_on_host: bool = False,
    is_stepwise: bool = False,
) -> SoftwareStack:
    """Returns a software stack whose update step reads and writes the states of the run's optimizer.

    state_bytes, flops: per parameter; flops are those of the update's matrix products. is_on_host: whether the host
    updates. is_stepwise: whether it is torch's AdamW step by step, default false.
    """
    changed_bytes = 2 * (state_bytes - ADAMW_STATE_BYTES)
    changed_bytes += STEPWISE_ADAMW * state_bytes * is_stepwise
    if not changed_bytes and not flops and not is_on_host:
        return software_stack
    update = (
        software_stack.host_update_seconds_per_parameter or software_stack.offloaded_update_seconds_per_parameter
        if is_on_host
        else software_stack.host_update_seconds_per_parameter
    )
    return software_stack.model_copy(
        update={
            "optimizer_bytes": software_stack.optimizer_bytes + changed_bytes,
            "optimizer_flops": flops,
            "host_update_seconds_per_parameter": update,
        }
    )


def with_overlapped_groups(
    software_stack: SoftwareStack, overlapped_parallel_groups: frozenset[str] | None
) -> SoftwareStack:
    """Returns a software stack in which computation hides the messages of these parallel groups; unchanged for None.

    overlapped_parallel_groups: of `dp` (gradients), `weights` (those gathered after an update), `tp` and `ep`.
    """
    if overlapped_parallel_groups is None:
        return software_stack
    usual_hidden_shares = {
        "dp": FULL_OVERLAP.dp,
        "weights": FULL_OVERLAP.dp,
        "tp": FULL_OVERLAP.tp,
        "ep": FULL_OVERLAP.ep,
    }
    hidden_share_by_group = {
        group_name: hidden_share if group_name in overlapped_parallel_groups else 0.0
        for group_name, hidden_share in usual_hidden_shares.items()
    }
    return software_stack.model_copy(
        update={"hidden_share_by_group": hidden_share_by_group, "overlapped_stages": (0, 1, 2, 3)}
    )


def with_overlap(software_stack: SoftwareStack, overlap: str | None) -> SoftwareStack:
    """Returns a software stack in which computation hides the messages of the groups in `overlap`, such as `dp,ep`.

    Raises `InputError` for an unknown value.
    """
    if overlap is None:
        return software_stack
    overlapped_parallel_groups = {"none": (), "all": OVERLAPPED_GROUPS}.get(overlap, tuple(overlap.split(",")))
    if not set(overlapped_parallel_groups) <= set(OVERLAPPED_GROUPS):
        raise InputError(
            f"--overlap: '{overlap}' is not known; expected none, all, or some of {', '.join(OVERLAPPED_GROUPS)} with "
            "commas"
        )
    return software_stack.model_copy(
        update={
            "hidden_share_by_group": {
                group_name: getattr(FULL_OVERLAP, group_name) for group_name in overlapped_parallel_groups
            },
            "overlapped_stages": (0, 1, 2, 3),
        }
    )
