"""Reads a training config of Oumi: a model, adapters, and arguments of TRL's trainers or of transformers' Trainer.

Source: oumi (2026-08-21), core/configs/params/{model,training,peft,fsdp,deepspeed,data}_params.py for keys and
defaults, core/configs/training_config.py for lengths and Liger-Kernel, builders/models.py for quantized weights,
core/distributed.py (`get_accelerate_env_vars`) for FSDP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, record_unknown_keys
from ..launch.trainer import keeps_published_weight_format, read_trainer
from ..trl.config_file import read_trl

CONFIG_TABLES = ("model", "data", "training", "peft", "fsdp", "deepspeed")

SETTINGS_BY_TRAINER = {
    "TRL_SFT": {"loss_type": "nll"},
    "TRL_DPO": {"loss_type": "sigmoid"},
    "TRL_KTO": {"loss_type": "kto"},
    "HF": {},
}
"""Value of `trainer_type` → the arguments by which TRL's reader recognizes the trainer.

The loss of SFT has all logits, as in the versions of TRL that Oumi requires (pyproject.toml: `trl>=0.24,<1.5`).
"""

MODEL_READ = field_names("""
    model_name model_max_length torch_dtype_str attn_implementation enable_liger_kernel freeze_layers model_kwargs
    compile
    """)

MODEL_IGNORED = field_names("""
    adapter_model tokenizer_name tokenizer_pad_token tokenizer_kwargs processor_kwargs load_pretrained_weights
    trust_remote_code chat_template chat_template_kwargs device_map shard_for_eval model_revision tool_call_parser
    """)

MODEL_ARGUMENTS_IGNORED = ("rope_scaling", "max_position_embeddings", "disable_dropout")
"""Keys of `model_kwargs` that do not change memory, or whose memory is less than counted."""

TRAINING_READ = field_names("""
    trainer_type use_peft per_device_train_batch_size gradient_accumulation_steps optimizer mixed_precision_dtype
    enable_gradient_checkpointing gradient_checkpointing_kwargs compile trainer_kwargs
    """)

TRAINING_IGNORED = field_names("""
    output_dir per_device_eval_batch_size max_steps num_train_epochs save_epoch save_steps save_final_model seed
    data_seed use_deterministic full_determinism run_name metrics_function reward_functions reward_function_kwargs
    log_level dep_log_level log_examples enable_wandb enable_mlflow enable_tensorboard logging_strategy logging_dir
    logging_steps logging_first_step eval_strategy eval_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
    warmup_ratio warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon sgd_momentum
    include_performance_metrics include_alternative_mfu_metrics log_model_summary resume_from_checkpoint
    try_resume_from_last_checkpoint dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_main_process_only ddp_find_unused_parameters max_grad_norm profiler telemetry
    empty_device_cache_steps nccl_default_timeout_minutes label_ignore_index grpo gkd gold verl_config_overrides
    """)

ADAPTER_ARGUMENTS = field_names("""
    lora_r lora_target_modules lora_target_parameters lora_modules_to_save lora_dropout use_bnb_nested_quant
    """)
"""Keys of `peft` that are arguments of TRL's `ModelConfig`."""

ADAPTER_READ = ADAPTER_ARGUMENTS | field_names("""
    q_lora q_lora_bits llm_int8_skip_modules lora_bias lora_exclude_modules
    """)

ADAPTER_IGNORED = field_names("""
    lora_alpha lora_init_weights lora_task_type bnb_4bit_quant_type bnb_4bit_quant_storage bnb_4bit_compute_dtype
    peft_save_mode
    """)

FSDP_READ = field_names("enable_fsdp sharding_strategy cpu_offload mixed_precision auto_wrap_policy")

FSDP_IGNORED = field_names("""
    backward_prefetch forward_prefetch use_orig_params state_dict_type min_num_params transformer_layer_cls
    sync_module_states
    """)

DEEPSPEED_IGNORED = field_names("""
    activation_checkpointing memory_efficient_linear steps_per_print wall_clock_breakdown train_batch_size
    train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer
    """)

ZERO_OPTIONS = field_names("""
    overlap_comm contiguous_gradients reduce_bucket_size allgather_bucket_size allgather_partitions reduce_scatter
    round_robin_gradients stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_max_live_parameters
    stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save sub_group_size
    """)
"""Keys of `deepspeed` that are also keys of DeepSpeed's `zero_optimization`."""

ZERO_DEFAULTS = {"overlap_comm": False, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}
"""Key in `ZERO_OPTIONS` → Oumi's default, if it differs from DeepSpeed's."""


def is_oumi(config: Table) -> bool:
    """Returns whether a table is a training config of Oumi."""
    model_table, training_table = config.get("model"), config.get("training")
    return isinstance(model_table, Mapping) and "model_name" in model_table and isinstance(training_table, Mapping)


def read_oumi(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of an Oumi config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        record_unknown_keys(reader, config, CONFIG_TABLES, "", "no table that is known")
        tables = {table_name: reader.table(config, table_name) for table_name in CONFIG_TABLES}
        values_by_key = {
            f"{section_name}.{section_key}"[:100]: section_value
            for section_name, table in tables.items()
            for section_key, section_value in table.items()
        }
        trainer_type = str(values_by_key.get("training.trainer_type", "HF")).upper()[:40]
        if trainer_type not in SETTINGS_BY_TRAINER:
            raise reader.value_error("training.trainer_type", trainer_type, f"one of {', '.join(SETTINGS_BY_TRAINER)}")
        record_unknown_keys(reader, tables["model"], MODEL_READ | MODEL_IGNORED, "model")
        record_unknown_keys(reader, tables["training"], TRAINING_READ | TRAINING_IGNORED, "training")
        arguments: dict[str, Any] = {
            **SETTINGS_BY_TRAINER[trainer_type],
            **_training_arguments(reader, values_by_key),
            **_model_arguments(reader, values_by_key, trainer_type),
            **(
                _adapter_arguments(reader, values_by_key, tables["peft"])
                if reader.flag(values_by_key, "training.use_peft")
                else {}
            ),
        }
        if "load_in_4bit" in arguments or "load_in_8bit" in arguments:
            arguments["dtype"] = "float32"  # peft's `prepare_model_for_kbit_training`
        if reader.flag(values_by_key, "fsdp.enable_fsdp"):
            record_unknown_keys(reader, tables["fsdp"], FSDP_READ | FSDP_IGNORED, "fsdp")
            arguments |= _fsdp_arguments(reader, values_by_key, arguments)
        if reader.flag(values_by_key, "deepspeed.enable_deepspeed"):
            arguments |= _deepspeed_arguments(reader, tables["deepspeed"])
        is_packed = reader.flag(reader.table(values_by_key, "data.train"), "pack")
        reader.check_unknown_arguments()
        launched_run = (read_trainer if trainer_type == "HF" else read_trl)(arguments, source_file)
        return replace(
            reader.with_recorded_arguments(launched_run),
            keeps_checkpoint_dtype=keeps_published_weight_format(launched_run, arguments),
            counts_longest_samples=launched_run.counts_longest_samples and not is_packed,
        )


def _model_arguments(reader: LaunchReader, values_by_key: Table, trainer_type: str) -> dict[str, Any]:
    """Returns the Trainer's arguments in the table `model`, which take precedence over `training.trainer_kwargs`.

    values_by_key: `TABLE.KEY` → value. trainer_type: the value of `trainer_type`.
    """
    for argument_name in reader.table(values_by_key, "model.model_kwargs"):
        if argument_name not in MODEL_ARGUMENTS_IGNORED:
            reader.refuse(f"model.model_kwargs.{argument_name}"[:100], "it is modelled without")
    if _has_language_model_modules(reader, values_by_key, "model.freeze_layers"):
        reader.refuse("model.freeze_layers", "layers of the language model that are not trained are not modelled")
    if values_by_key.get("model.freeze_layers"):
        reader.trains_encoders = False
    arguments: dict[str, Any] = {
        "model_name_or_path": str(values_by_key["model.model_name"])[:200],
        "dtype": reader.value(values_by_key, "model.torch_dtype_str", "auto"),
    }
    if reader.flag(values_by_key, "model.enable_liger_kernel"):
        arguments["use_liger_kernel"] = True
    if values_by_key.get("model.attn_implementation") is not None:
        arguments["attn_implementation"] = values_by_key["model.attn_implementation"]
    if values_by_key.get("model.model_max_length") is not None and trainer_type in ("TRL_SFT", "TRL_DPO"):
        arguments["max_length"] = reader.integer(values_by_key, "model.model_max_length", 1)
    return arguments


def _has_language_model_modules(reader: LaunchReader, values_by_key: Table, modules_key: str) -> bool:
    """Whether a list of module names or patterns has modules outside the image and audio encoders."""
    module_names = values_by_key.get(modules_key) or []
    if not isinstance(module_names, list):
        raise reader.value_error(modules_key, module_names, "a list of names")
    return not all("vis" in str(module_name) or "audio" in str(module_name) for module_name in module_names)


def _training_arguments(reader: LaunchReader, values_by_key: Table) -> dict[str, Any]:
    """Returns the Trainer's arguments of the table `training`. values_by_key: `TABLE.KEY` → value."""
    precision = str(values_by_key.get("training.mixed_precision_dtype") or "none").lower()
    if precision not in ("none", "fp16", "bf16"):
        raise reader.value_error("training.mixed_precision_dtype", precision, "NONE, FP16 or BF16")
    trainer_arguments = {
        argument_name: values_by_key.get("model.model_max_length")
        if str(argument_value).startswith("${model.model_max_length}")
        else argument_value
        for argument_name, argument_value in reader.table(values_by_key, "training.trainer_kwargs").items()
    }
    return {
        "per_device_train_batch_size": reader.integer(values_by_key, "training.per_device_train_batch_size", 8),
        "gradient_accumulation_steps": reader.integer(values_by_key, "training.gradient_accumulation_steps", 1),
        "optim": reader.value(values_by_key, "training.optimizer", "adamw_torch"),
        "gradient_checkpointing": reader.flag(values_by_key, "training.enable_gradient_checkpointing"),
        "gradient_checkpointing_kwargs": dict(reader.table(values_by_key, "training.gradient_checkpointing_kwargs")),
        "torch_compile": reader.flag(values_by_key, "training.compile"),
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        **trainer_arguments,
    }


def _adapter_arguments(reader: LaunchReader, values_by_key: Table, adapter_table: Table) -> dict[str, Any]:
    """Returns the arguments of the table `peft`, whose default rank is 8. values_by_key: `TABLE.KEY` → value."""
    record_unknown_keys(reader, adapter_table, ADAPTER_READ | ADAPTER_IGNORED, "peft")
    if _has_language_model_modules(reader, values_by_key, "peft.lora_exclude_modules"):
        reader.refuse("peft.lora_exclude_modules", "adapters of all lora_target_modules are counted")
    for refused_key, modelled_value in (("llm_int8_skip_modules", None), ("lora_bias", "none")):
        if adapter_table.get(refused_key) not in (None, [], modelled_value):
            reader.refuse(f"peft.{refused_key}", "it is modelled without")
    arguments: dict[str, Any] = {"use_peft": True}
    arguments |= {
        refused_key: peft_value
        for refused_key, peft_value in adapter_table.items()
        if refused_key in ADAPTER_ARGUMENTS and peft_value is not None
    }
    arguments["lora_r"] = reader.integer(values_by_key, "peft.lora_r", 8)
    if reader.flag(values_by_key, "peft.q_lora"):
        bit_count = reader.integer(values_by_key, "peft.q_lora_bits", 4)
        if bit_count not in (4, 8):
            raise reader.argument_error("peft.q_lora_bits", f"{bit_count}; expected 4 or 8")
        arguments[f"load_in_{bit_count}bit"] = True
    return arguments


def _fsdp_arguments(reader: LaunchReader, values_by_key: Table, arguments: Table) -> dict[str, Any]:
    """Returns the Trainer's arguments of the table `fsdp`, with which accelerate applies activation checkpointing.

    values_by_key: `TABLE.KEY` → value.
    """
    wrap_policy = str(reader.value(values_by_key, "fsdp.auto_wrap_policy", "NO_WRAP")).upper()[:40]
    if wrap_policy != "TRANSFORMER_BASED_WRAP":
        lacks_wrap_policy = values_by_key.get("fsdp.auto_wrap_policy") is None
        reader.refuse(
            "fsdp.auto_wrap_policy",
            f"{'missing, which is NO_WRAP' if lacks_wrap_policy else wrap_policy}: other groups of weights are "
            "gathered than those of a layer, which TRANSFORMER_BASED_WRAP gathers",
        )
    mixed_precision = values_by_key.get("fsdp.mixed_precision")
    if mixed_precision not in (None, "bf16", "fp16"):
        raise reader.value_error("fsdp.mixed_precision", mixed_precision, "bf16 or fp16")
    return {
        "fsdp": "auto_wrap",
        "fsdp_config": {
            "sharding_strategy": values_by_key.get("fsdp.sharding_strategy", "FULL_SHARD"),
            "offload_params": reader.flag(values_by_key, "fsdp.cpu_offload"),
            "activation_checkpointing": arguments["gradient_checkpointing"],
        },
        "gradient_checkpointing": False,
        **({} if mixed_precision is None else {mixed_precision: True}),
    }


def _deepspeed_arguments(reader: LaunchReader, deepspeed_table: Table) -> dict[str, Any]:
    """Returns the Trainer's argument `deepspeed`: the config that Oumi's `to_deepspeed` creates from the table."""
    known_keys = field_names(
        "enable_deepspeed deepspeed_config_path zero_stage offload_optimizer offload_param precision"
    )
    record_unknown_keys(reader, deepspeed_table, known_keys | ZERO_OPTIONS | DEEPSPEED_IGNORED, "deepspeed")
    if deepspeed_table.get("deepspeed_config_path") is not None:
        return {"deepspeed": deepspeed_table["deepspeed_config_path"]}
    stage_text = str(deepspeed_table.get("zero_stage", 0)).upper().removeprefix("ZERO_")
    if stage_text not in ("0", "1", "2", "3"):
        raise reader.value_error("deepspeed.zero_stage", stage_text, "ZERO_0, ZERO_1, ZERO_2 or ZERO_3")
    zero_table: dict[str, Any] = {
        "stage": int(stage_text),
        **ZERO_DEFAULTS,
        **{zero_key: zero_value for zero_key, zero_value in deepspeed_table.items() if zero_key in ZERO_OPTIONS},
    }
    for zero_key in ("offload_optimizer", "offload_param"):
        if deepspeed_table.get(zero_key) is not None:
            offload_table = reader.table(deepspeed_table, zero_key)
            zero_table[zero_key] = {"device": str(offload_table.get("device", "cpu")).lower(), "pin_memory": True}
    precision = str(deepspeed_table.get("precision") or "").lower()
    if precision not in ("bf16", "fp16"):
        return {"deepspeed": {"zero_optimization": zero_table}}
    # "auto" in Oumi's table; DeepSpeed's engine takes weights in 16 bits in no other precision (`__check_params`)
    return {"deepspeed": {"zero_optimization": zero_table, precision: {"enabled": True}}, precision: True}
