"""The loss of TRL's `SFTTrainer`, which other programs call too.

Chunks of labels are the default since TRL 1.7 (huggingface/trl, pull request 5846); before, the loss is of all logits.
Source: TRL 1.10 (f2cd57710), trainer/{sft_config,sft_trainer}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .adapter_targets import adapts_output_head
from .launch_types import LaunchReader, Table

SFT_LOSSES = ("chunked_nll", "nll", "dft")
"""Values of `loss_type` for supervised fine-tuning, the default first; all other values are losses on pairs."""

EARLIER_ARGUMENTS = ("max_seq_length", "use_liger", "evaluation_strategy")
"""Arguments that TRL 0.20, TRL 0.18 and transformers 4.46 removed; no version of TRL with a chunked loss knows them."""

TRANSFORMERS_DEFAULTS = {"gradient_checkpointing": False, "bf16": False}
"""Defaults of transformers' `TrainingArguments` and of early TRL; TRL's own defaults begin with 0.22 and 0.19."""


def earlier_argument(config: Table) -> str:
    """Returns the first argument that only TRL before 0.20 has; empty if the config has none."""
    return next((name for name in EARLIER_ARGUMENTS if config.get(name) is not None), "")


def sft_loss_settings(
    reader: LaunchReader, config: Table, run_settings: Mapping[str, Any], earlier_argument_name: str
) -> dict[str, Any]:
    """Returns the settings of TRL's SFT loss, computed in chunks of tokens unless by Liger-Kernel or before TRL 0.20.

    config: the arguments of `SFTConfig`. run_settings: the settings of the run without a loss, or with Liger-Kernel's.
    earlier_argument_name: an argument that TRL before 0.20 alone has; empty for none.
    Raises `InputError` for adapters of the output head beside chunks, which TRL refuses.
    """
    if "cross_entropy" in run_settings:
        return {}
    loss = config.get("loss_type")
    if loss is None and earlier_argument_name:
        reader.notes.append(f"{earlier_argument_name} is of TRL before 0.20, whose loss has all logits")
        return {}
    if str(loss or SFT_LOSSES[0]) != SFT_LOSSES[0]:
        return {}
    if adapts_output_head(run_settings.get("lora_targets") or ()):
        raise reader.argument_error(
            "lora_target_modules",
            "TRL refuses adapters of the output head beside loss_type chunked_nll, its default; expected loss_type nll",
        )
    return {"cross_entropy": "recomputed"}
