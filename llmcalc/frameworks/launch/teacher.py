"""The teacher model of distillation: its weights on the training devices, and the loss against its logits."""

from __future__ import annotations

from dataclasses import replace

from ...costs.params import params
from ...errors import InputError, short_repr
from ...sources.target import load
from ..frozen_model import SecondLoss, Teacher
from .launch_types import Launch, LaunchReader

GENERATION_NOTE = (
    "completions that the trained model generates (lmbda) need less than the training step and are not counted"
)
"""Note on distillation with texts that the trained model may generate."""


def logit_format(launched_run: Launch, loaded_format: str) -> str:
    """Returns the number format of a run's logits, or `autocast`. loaded_format: the format of loaded weights."""
    return "autocast" if launched_run.settings.get("precision") == "autocast" else loaded_format


def with_teacher_model(
    reader: LaunchReader,
    launched_run: Launch,
    option_name: str,
    teacher_name: str,
    loaded_format: str,
    loss: SecondLoss,
    is_weight_sharded: bool,
) -> Launch:
    """Returns the run with a teacher's weights, and the loss between the logits of both models.

    option_name: the argument that names the teacher.
    loaded_format: number format of its weights.
    is_weight_sharded: whether ZeRO-3 divides them over the devices.
    Raises `InputError` for a teacher that cannot be read.
    """
    try:
        teacher_model = load(teacher_name).model
    except InputError as error:
        raise reader.argument_error(
            option_name, f"{short_repr(teacher_name)} cannot be read ({error}); expected a preset or a hub id"
        ) from None
    reader.notes.append(f"the teacher, {teacher_name}, is on each device{' as a shard' if is_weight_sharded else ''}")
    return replace(
        launched_run,
        notes=tuple(reader.notes),
        frozen_model=Teacher(
            loss.source,
            dtype=loaded_format,
            rank_count=launched_run.layout.dp if is_weight_sharded else 1,
            parameter_count=params(teacher_model).total,
            loss=loss,
        ),
    )
