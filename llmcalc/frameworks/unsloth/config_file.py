"""Reads Unsloth Studio's files of training defaults, which do not state the model's name.

Source: unsloth, studio/backend/assets/configs/model_defaults/*.yaml. In memory, the loss alone of Unsloth's own kernels
is modelled: the layers are counted as PEFT and the Trainer run them, which needs at least as much. The time is that of
its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.launch_types import (
    Launch,
    LaunchReader,
    LaunchSource,
    Table,
    launch_reader,
    read_integer,
    record_unknown_keys,
)
from ..launch.trainer import launch_under_selected_framework, lora_settings, optimizer_settings

TRAINING_READ = field_names("max_seq_length batch_size gradient_accumulation_steps gradient_checkpointing optim")

TRAINING_IGNORED = field_names("""
    num_epochs learning_rate warmup_steps warmup_ratio max_steps save_steps weight_decay random_seed packing
    train_on_completions lr_scheduler_type eval_steps
    """)
"""Keys of `training` that do not change memory."""

BASE_IN_4_BITS: Mapping[str, Any] = {"base": "nf4-dq", "quantized_experts": True}
"""Settings for weights loaded in 4 bits, including routed experts, with transformers 5 since May 2026.

Source: unsloth_zoo ce232d6c, temporary_patches/moe_utils_bnb4bit.py; of gpt-oss they are linear layers (gpt_oss.py).
"""

LORA_READ = field_names("lora_r lora_dropout target_modules use_dora")

LORA_IGNORED = field_names("""
    lora_alpha use_rslora use_loftq vision_all_linear finetune_vision_layers finetune_language_layers
    finetune_attention_modules finetune_mlp_modules
    """)
"""Keys of `lora` that do not change memory of the text model."""


def is_unsloth(config: Table) -> bool:
    """Whether a table is a file of Unsloth Studio's training defaults."""
    training_table = config.get("training")
    return (
        isinstance(training_table, Mapping)
        and "max_seq_length" in training_table
        and isinstance(config.get("lora"), Mapping)
    )


def read_unsloth(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of Unsloth Studio's defaults. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        record_unknown_keys(
            reader,
            config,
            ("training", "lora", "logging", "inference", "audio_input", "audio_type", "vision"),
            "",
            "no key",
        )
        training_table, lora_table = reader.table(config, "training"), reader.table(config, "lora")
        record_unknown_keys(reader, training_table, TRAINING_READ | TRAINING_IGNORED, "training")
        record_unknown_keys(reader, lora_table, LORA_READ | LORA_IGNORED, "lora")
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": reader.integer(training_table, "batch_size", 2),
            "num_microbatches": reader.integer(training_table, "gradient_accumulation_steps", 4),
            "seq": read_integer(reader, "training.max_seq_length", training_table["max_seq_length"]),
            "dtype": "bf16",
            "master_weights": "none",
            "attn_implementation": "flash",
            **optimizer_settings(reader, "training.optim", reader.value(training_table, "optim", "adamw_8bit")),
            **recompute_settings(training_table.get("gradient_checkpointing", OFFLOADED_CHECKPOINTS)),
            **lora_settings(
                reader,
                rank=("lora.lora_r", reader.value(lora_table, "lora_r", 16)),
                targets_argument=("lora.target_modules", lora_table.get("target_modules")),
                dropout_value=lora_table.get("lora_dropout"),
                magnitude_value=lora_table.get("use_dora"),
            ),
            **BASE_IN_4_BITS,
        }
        reader.assumed_defaults["load_in_4bit"] = True
        run_settings |= fused_loss(reader)
        reader.counts_longest_samples = not training_table.get("packing")
        reader.notes.append(UPPER_BOUND_NOTE)
        return replace(launch_under_selected_framework(reader, {}, run_settings), software_stack=SOFTWARE_STACK)


SOFTWARE_STACK = "unsloth"
"""Name of the software stack of Unsloth's kernels (presets/timing/stacks.toml)."""

UPPER_BOUND_NOTE = (
    "the memory of Unsloth's kernels of layers is not modelled: that of PEFT's and the Trainer's is counted, an upper "
    "bound"
)

LOGITS_PER_CHUNK = 2**30
"""Largest number of logits that Unsloth's loss computes at once: 4 GiB in float32 (`_get_chunk_multiplier`)."""


def fused_loss(reader: LaunchReader) -> dict[str, Any]:
    """Returns the settings of Unsloth's cross-entropy loss, which is computed in chunks of logits.

    Its compiled kernel writes the gradient over a chunk's logits: torch.compile gives both one memory (torch 2.13).
    Source: unsloth_zoo ce232d6c, fused_losses/cross_entropy_loss.py; unsloth 015bdef0d, models/llama.py
    (`_CausalLM_fast_forward`).
    """
    reader.logits_per_chunk = LOGITS_PER_CHUNK
    reader.notes.append(
        "Unsloth's loss: chunks of at most 4 GiB of logits in float32; of half the free memory where that is less"
    )
    return {"cross_entropy": "chunked"}


OFFLOADED_CHECKPOINTS = "unsloth"
"""Default value of Unsloth's gradient checkpointing, which moves the inputs of layers to the host."""


def recompute_settings(checkpointing_value: Any) -> dict[str, Any]:
    """Returns the settings of recomputation for a value of Unsloth's gradient checkpointing."""
    if checkpointing_value == OFFLOADED_CHECKPOINTS:
        return {"recompute": "full", "offload_activations": True}
    return {"recompute": "full"} if checkpointing_value in (True, "true", "True") else {}
