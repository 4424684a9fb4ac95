"""Lists the training options whose effect on kernels is missing from the estimated seconds."""

from __future__ import annotations

from ..device_memory.estimate import Memory
from ..device_memory.optimizers.registry import optimizer
from ..device_memory.settings import Settings
from ..timing.timing_constants import SoftwareStack
from ..workload.setting import option

UNPRICED_SETTINGS = ("logits_dtype", "offload_activations", "dropout", "lora_dropout", "lora_library", "logits_to_keep")
"""Training settings that change a step's kernels, but that the time estimate ignores."""


def is_stepwise_adamw(memory: Memory) -> bool:
    """Whether the optimizer is torch's AdamW with one kernel per operation, which the time estimate includes."""
    optimizer_state = memory.states.optimizer
    is_adamw = optimizer_state is not None and optimizer_state.name == "adamw"
    return is_adamw and memory.settings.optimizer_impl in ("foreach", "loop")


def unpriced_options(memory: Memory, software_stack: SoftwareStack) -> list[str]:
    """Returns the training run's options whose effect on kernels is missing from the time estimate.

    software_stack: the software that the run is timed with.
    """
    settings, default_settings = memory.settings, Settings("training")
    setting_names = list(UNPRICED_SETTINGS)
    if not software_stack.fuses_elementwise:  # others' kernels are fused already
        setting_names.append("compile")
    priced_losses = {"fused"} if software_stack.fuses_elementwise else {"eager"}
    if settings.compile:  # which fuses the eager loss, and eager norms
        priced_losses.add("eager")
    if settings.cross_entropy not in priced_losses.union(software_stack.loss_bytes):
        setting_names.append("cross_entropy")
    has_eager_norms = not software_stack.fuses_elementwise and software_stack.accesses_by_verb.get("norm", 1.0) > 1
    if settings.norm == "eager" and not (has_eager_norms or settings.compile):
        setting_names.append("norm")
    if settings.moe not in (None, "dropless", "capacity:1"):
        setting_names.append("moe")
    if settings.optimizer_impl in ("foreach", "loop") and not is_stepwise_adamw(memory):
        setting_names.append("optimizer_impl")
    uncounted_work_text = (
        "" if memory.states.optimizer is None else optimizer(memory.states.optimizer.name).uncounted_work
    )
    optimizer_texts = [f"{uncounted_work_text} (--optimizer {settings.optimizer})"] if uncounted_work_text else []
    changed_settings = [
        (setting_name, getattr(settings, setting_name))
        for setting_name in setting_names
        if getattr(settings, setting_name) != getattr(default_settings, setting_name)
    ]
    return [
        option(changed_name) if changed_value is True else f"{option(changed_name)} {changed_value}"
        for changed_name, changed_value in changed_settings
        if changed_value
    ] + optimizer_texts
