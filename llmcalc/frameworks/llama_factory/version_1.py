"""Reads a config of LLaMA-Factory's version 1, which has its own training loop.

Source: LLaMA-Factory 0.9.6.dev0 (ff6d4d12e): src/llamafactory/v1/config/{training,model}_args.py for defaults,
core/base_trainer.py for optimizer and loss, plugins/trainer_plugins/distributed/fsdp2.py for formats (products in bf16,
reduced in fp32, shards as published), plugins/model_plugins/{peft,quantization}.py for adapters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ..frozen_model import SecondLoss
from ..fsdp2.settings import TitanSettings
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..launch.trainer import (
    attention_settings,
    launch_under_selected_framework,
    lora_settings,
    preference_pair_settings,
)
from .deepspeed_configs import DEEPSPEED_CONFIGS

ARGUMENTS_READ = field_names("""
    model model_class flash_attn peft_config kernel_config quant_config dist_config optim_config micro_batch_size
    global_batch_size cutoff_len bf16 enable_activation_checkpointing dp_size cp_size cp_mode mp_replicate_size
    mp_shard_size
    pref_loss
    """)

ARGUMENTS_IGNORED = field_names("""
    train_dataset eval_dataset output_dir learning_rate num_train_epochs max_steps max_grad_norm batching_strategy
    batching_workers dist_timeout lr_scheduler_config seed full_determinism resume_from_checkpoint save_steps
    save_epochs save_ckpt_as_hf save_total_limit logging_steps pref_beta pref_ftx simpo_gamma dpo_label_smoothing
    ld_alpha trust_remote_code custom_chat_template init_config sample_backend max_new_tokens
    """)
"""Keys that do not change the memory of a training step."""


def is_version_1(config: Table) -> bool:
    """Whether a table is a config of LLaMA-Factory's version 1."""
    return "model" in config and "model_class" in config and "micro_batch_size" in config


def read_version_1(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a version-1 config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        reader.record_argument_names(config, ARGUMENTS_READ, ARGUMENTS_IGNORED, "no key that is known")
        world_size = reader.device_count(source_file.world_size)
        if config.get("cp_mode") not in (None, "ulysses"):
            reader.refuse("cp_mode", f"{short_repr(config['cp_mode'])[:60]} is not modelled; ulysses is")
        sequence_ranks = reader.sequence_ranks(config, "cp_size", world_size)
        for size_name, rank_count in (("dp_size", world_size // sequence_ranks), ("mp_shard_size", world_size)):
            if config.get(size_name) not in (None, rank_count):
                reader.refuse(size_name, f"it is modelled as {rank_count}")
        reader.requests_expandable_segments = world_size > 1  # v1/launcher.py, `OPTIM_TORCH`
        micro_batch_size = reader.integer(config, "micro_batch_size", 1)
        sequences_per_micro_batch = micro_batch_size * world_size // sequence_ranks
        global_batch = read_integer(
            reader, "global_batch_size", config.get("global_batch_size") or sequences_per_micro_batch
        )
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": micro_batch_size,
            "num_microbatches": max(1, global_batch // sequences_per_micro_batch),
            "seq": -(-reader.integer(config, "cutoff_len", 2048) // sequence_ranks),
            "dtype": "bf16",
            "master_weights": "none",
            **attention_settings(reader, "flash_attn", reader.value(config, "flash_attn", "sdpa")),
            **_optimizer_settings(reader, config),
        }
        if reader.flag(config, "enable_activation_checkpointing", True):
            run_settings["recompute"] = "full"
        if _plugin_name(reader, config, "kernel_config") == "liger_kernel":
            run_settings["norm"] = "fused"
        run_settings |= _adapter_settings(reader, config)
        if config.get("pref_loss") is not None:
            run_settings |= preference_pair_settings(reader, str(config["pref_loss"])[:30], run_settings)
        else:
            reader.notes.append("the file is taken for one of llamafactory-cli sft; with dpo add pref_loss: sigmoid")
        reader.notes += [
            "weights as published are taken for bf16",
            "transformers' loss runs beside the trainer's own; its logits are counted all the time, an upper bound",
        ]
        if reader.frozen_model is None and "pref_loss" not in config:
            reader.frozen_model = SecondLoss(
                "llamafactory/v1/core/base_trainer.py, compute_log_probs", 4 if micro_batch_size == 1 else 8
            )
        arguments = {"bf16": True, **_framework_arguments(reader, config)}
        if "fsdp" in arguments:
            del arguments["bf16"]
        model_id = str(config["model"] or "")
        launched_run = launch_under_selected_framework(
            reader, arguments, run_settings, world_size, model_id, shipped_tables=DEEPSPEED_CONFIGS
        )
        if isinstance(launched_run.framework_settings, TitanSettings):
            return replace(
                launched_run,
                framework_settings=replace(
                    launched_run.framework_settings, reduction_format="float32", reduces_each_microbatch=True
                ),
            )
        return launched_run


def _plugin_name(reader: LaunchReader, config: Table, config_key: str) -> str:
    """Returns the name of the plugin under a config key; empty if the config selects no plugin."""
    return str(reader.table(config, config_key).get("name") or "")[:60]


def _framework_arguments(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the equivalent Trainer arguments that select a framework."""
    dist_table, plugin_name = reader.table(config, "dist_config"), _plugin_name(reader, config, "dist_config")
    if not plugin_name:
        return {}
    if plugin_name == "deepspeed":
        return {"deepspeed": dist_table.get("config_file")}
    if plugin_name != "fsdp2":
        reader.refuse("dist_config.name", f"'{plugin_name}' is not modelled; fsdp2 and deepspeed are")
        return {}
    plugin_config = {
        argument_name: dist_table[argument_name]
        for argument_name in ("reshard_after_forward", "offload_params")
        if dist_table.get(argument_name) is not None
    }
    if config.get("mp_replicate_size") not in (None, 1):
        reader.refuse("mp_replicate_size", "it is modelled as 1")
    return {"fsdp": "full_shard", "fsdp_config": {"version": 2, **plugin_config}}


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of torch's AdamW, the default optimizer."""
    optimizer_name = _plugin_name(reader, config, "optim_config")
    if optimizer_name:
        reader.refuse("optim_config.name", f"'{optimizer_name}' is not modelled; the default, AdamW, is")
    return {"optimizer": "adamw", "optimizer_impl": "foreach"}


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of LoRA adapters and of the frozen weights."""
    peft_table, plugin_name = reader.table(config, "peft_config"), _plugin_name(reader, config, "peft_config")
    quantization_table = reader.table(config, "quant_config")
    if not plugin_name:
        if quantization_table:
            reader.refuse("quant_config", "quantized weights take no gradient without peft_config")
        return {}
    if plugin_name == "freeze":
        return layer_freezing_settings(reader, peft_table, "peft_config.")
    if plugin_name != "lora":
        reader.refuse("peft_config.name", f"'{plugin_name}' is not modelled; lora and freeze are")
        return {}
    target_modules = reader.value(peft_table, "target_modules", "all")
    adapter_settings = lora_settings(
        reader,
        rank=("peft_config.r", reader.value(peft_table, "r", 8)),
        targets_argument=("peft_config.target_modules", "all-linear" if target_modules == "all" else target_modules),
        saved_modules=("peft_config.modules_to_save", peft_table.get("modules_to_save")),
        dropout_value=reader.value(peft_table, "lora_dropout", 0.05),
        magnitude_value=peft_table.get("use_dora"),
    )
    if not quantization_table:
        return adapter_settings
    quantization_bits = quantization_table.get("quantization_bit", 4)
    if str(quantization_table.get("name", "auto")) not in ("auto", "bnb") or quantization_bits not in (4, 8):
        reader.refuse("quant_config", f"{short_repr(quantization_bits)} bits are not modelled; 4 and 8 by bnb are")
        return adapter_settings
    has_double_quantization = quantization_table.get("double_quantization", True) is not False
    return adapter_settings | {
        "base": "int8" if quantization_bits == 8 else "nf4-dq" if has_double_quantization else "nf4"
    }


def layer_freezing_settings(reader: LaunchReader, config: Table, name_prefix: str = "") -> dict[str, Any]:
    """Returns the setting for training the last layers only (model/adapter.py, `_setup_freeze_tuning`).

    name_prefix: what precedes the arguments in the file; empty by default.
    """
    modelled_values = {"freeze_trainable_modules": ("all", ["all"]), "freeze_extra_modules": (None, [])}
    reader.refuse_other_values(config, modelled_values, name_prefix, "; whole layers alone are")
    layer_count = reader.value(config, "freeze_trainable_layers", 2)
    if isinstance(layer_count, int) and layer_count < 0:
        reader.refuse(
            f"{name_prefix}freeze_trainable_layers", f"{layer_count}: the first layers are not modelled; the last are"
        )
        return {}
    return {"trainable_layers": read_integer(reader, f"{name_prefix}freeze_trainable_layers", layer_count)}
