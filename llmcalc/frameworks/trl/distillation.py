"""The teacher in TRL's GKD: a larger model on the same devices, and the loss between both models' logits.

Source: TRL 1.10 (f2cd57710), trl/experimental/gkd/gkd_trainer.py and gkd_config.py, examples/scripts/gkd.py;
`Accelerator.prepare_model` of accelerate, which wraps a model for evaluation neither in DDP nor in FSDP.
"""

from __future__ import annotations

from dataclasses import replace

from ...costs.params import params
from ...errors import InputError, shown
from ...sources.target import load
from ..frozen_model import SecondLoss, Teacher
from ..launch.record import Launch, LaunchReader, Table

SOURCE = "trl/experimental/gkd/gkd_trainer.py"

TEACHER = "teacher_model_name_or_path"
"""The argument that names a teacher."""

IGNORED = frozenset(("lmbda", "seq_kd", "max_new_tokens", "beta", "temperature", "teacher_model_init_kwargs"))
"""Further arguments of GKD. `beta` is read here."""

BYTES_PER_LOGIT = {  # beyond those of the eager cross-entropy: (β strictly between 0 and 1, β of 0 or 1)
    "bfloat16": (20, 4),
    "float32": (52, 20),
    "autocast": (54, 22),
}
"""Format of the logits → bytes per logit of `generalized_jsd_loss` with the logits of both models, less the 14 or 16 of
the eager cross-entropy at its peak. Measured with torch on meta (tests/frameworks/launch/test_distillation.py).
"""


def with_teacher(reading: LaunchReader, data: Table, launch: Launch, loaded_bytes: int) -> Launch:
    """Returns the run with a teacher's weights and loss. loaded_bytes: bytes per weight of a loaded model.

    Raises `InputError` for a teacher that cannot be read or whose memory is not modelled.
    """
    name = str(data[TEACHER])[:200]
    for option in ("load_in_4bit", "load_in_8bit", "use_liger_kernel"):
        if reading.flag(data, option):
            raise reading.wrong(option, f"true; with {TEACHER} it is not modelled; expected false")
    try:
        teacher = load(name).model
    except InputError as error:
        raise reading.wrong(TEACHER, f"{shown(name)} cannot be read ({error}); expected a preset or a hub id") from None
    beta = data.get("beta", 0.5)
    dtype = "bfloat16" if loaded_bytes == 2 else "float32"
    logits = "autocast" if launch.settings.get("precision") == "autocast" else dtype
    width = BYTES_PER_LOGIT[logits][beta in (0, 1)]
    is_divided = launch.framework == "deepspeed" and launch.layout.zero == 3
    reading.notes.append(
        f"the teacher, {name}, is on each device{' as a shard' if is_divided else ''}; completions that the trained "
        "model generates (lmbda) need less than the training step and are not counted"
    )
    return replace(
        launch,
        notes=tuple(reading.notes),
        frozen=Teacher(
            SOURCE,
            dtype=dtype,
            ranks=launch.layout.dp if is_divided else 1,
            parameters=params(teacher).total,
            loss=SecondLoss(SOURCE, width, "divergence of logits"),
        ),
    )
