"""The teacher in TRL's GKD: a larger model on the same devices, and a loss that compares both models' logits.

Source: TRL 1.10 (f2cd57710), trl/experimental/gkd/gkd_trainer.py and gkd_config.py, examples/scripts/gkd.py;
`Accelerator.prepare_model` of accelerate, which wraps a model for evaluation neither in DDP nor in FSDP.
"""

from __future__ import annotations

from ..frozen_model import SecondLoss
from ..launch.launch_types import Launch, LaunchReader, Table
from ..launch.teacher import GENERATION_NOTE, logit_format, with_teacher_model

SOURCE_FILE = "trl/experimental/gkd/gkd_trainer.py"

TEACHER_ARGUMENT = "teacher_model_name_or_path"
"""Argument that names the teacher model."""

ARGUMENTS_IGNORED = frozenset(("lmbda", "seq_kd", "max_new_tokens", "beta", "temperature", "teacher_model_init_kwargs"))
"""Arguments of GKD that do not change memory. `beta` is read by `with_teacher`."""

BYTES_PER_LOGIT = {  # beyond those of the eager cross-entropy: (β strictly between 0 and 1, β of 0 or 1)
    "bfloat16": (20, 4),
    "float32": (52, 20),
    "autocast": (54, 22),
}
"""Format of the logits → bytes per logit of `generalized_jsd_loss` with the logits of both models, less the 14 or 16 of
the eager cross-entropy at its peak. Measured with torch on meta (tests/frameworks/launch/test_distillation.py).
"""


def with_teacher(reader: LaunchReader, arguments: Table, launched_run: Launch, bytes_per_weight: int) -> Launch:
    """Returns the training run with a teacher model. bytes_per_weight: bytes per weight of the loaded teacher.

    Raises `InputError` for a teacher that cannot be read or whose memory is not modelled.
    """
    teacher_name = str(arguments[TEACHER_ARGUMENT])[:200]
    for option_name in ("load_in_4bit", "load_in_8bit", "use_liger_kernel"):
        if reader.flag(arguments, option_name):
            raise reader.argument_error(
                option_name, f"true; with {TEACHER_ARGUMENT} it is not modelled; expected false"
            )
    loaded_format = "bfloat16" if bytes_per_weight == 2 else "float32"
    bytes_per_logit = BYTES_PER_LOGIT[logit_format(launched_run, loaded_format)][arguments.get("beta", 0.5) in (0, 1)]
    shards_weights = launched_run.framework == "deepspeed" and launched_run.layout.zero == 3
    second_loss = SecondLoss(SOURCE_FILE, bytes_per_logit, "divergence of logits")
    reader.notes.append(GENERATION_NOTE)
    return with_teacher_model(
        reader, launched_run, TEACHER_ARGUMENT, teacher_name, loaded_format, second_loss, shards_weights
    )
