"""Reads arguments of Hugging Face's Trainer, in YAML or JSON. They name no architecture.

Source: transformers/training_args.py (5.23), with arguments that recipes of TRL and the alignment handbook add.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import InputError, shown
from ...parallel.layout import Layout
from ..registry import WITHOUT_A_NAME, plugins
from .accelerate_command import trainer_arguments
from .record import Launch, Reading, RunUnder, Source, Table, flag_value, reading_of, size_of, unknown_keys
from .shell import is_unresolved, printable, unresolved_reason

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {"optimizer": "adamw", "optimizer_impl": "foreach"},
    "adamw_torch_fused": {"optimizer": "adamw", "optimizer_impl": "fused"},
    "adamw_hf": {"optimizer": "adamw", "optimizer_impl": "loop"},
    "adamw_bnb_8bit": {"optimizer": "adamw-8bit"},
    "adamw_8bit": {"optimizer": "adamw-8bit"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
}
"""`optim` → options of `llmcalc memory`."""

TRAINER_READ = frozenset(
    """
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
    activation_checkpointing activation_checkpointing_kwargs optim bf16 fp16 torch_compile
    max_seq_length max_length block_size cutoff_len torch_dtype dtype attn_implementation use_liger_kernel
    model_name_or_path use_peft lora_r lora_target_modules lora_dropout load_in_4bit load_in_8bit train_batch_size
    per_gpu_train_batch_size packing lora_modules_to_save parallelism_config optim_args optim_target_modules
    auto_find_batch_size neftune_noise_alpha torch_empty_cache_steps
    """.split()  # noqa: SIM905
)

TRAINER_IGNORED = frozenset(
    """
    output_dir overwrite_output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
    warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices
    max_grad_norm label_smoothing_factor bf16_full_eval fp16_full_eval tf32 torch_compile_backend torch_compile_mode
    liger_kernel_config use_cache logging_strategy logging_steps logging_first_step log_on_each_node
    logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy evaluation_strategy eval_steps
    eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_strategy
    save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo
    hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model
    greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed
    accelerator_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names
    train_sampling_strategy group_by_length length_column_name ddp_find_unused_parameters ddp_broadcast_buffers
    ddp_static_graph ddp_backend ddp_timeout debug skip_memory_metrics do_train do_eval do_predict
    resume_from_checkpoint local_rank save_safetensors logging_dir model_revision trust_remote_code dataset_name
    dataset_config dataset_mixer dataset_splits dataset_text_field dataset_num_proc preprocessing_num_workers
    chat_template tokenizer_name_or_path lora_alpha bnb_4bit_quant_type use_bnb_nested_quant
    dataset_kwargs eos_token pad_token tags half_precision_backend push_to_hub_model_id hub_private save_safetensor
    do_sample special_tokens dataset_train_split dataset_test_split dataset_mixture dataset_prepared_path
    log_completions fp16_opt_level past_index no_cuda use_cpu use_mps_device mp_parameters include_inputs_for_metrics
    ddp_bucket_cap_mb fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params
    """.split()  # noqa: SIM905
)
"""Arguments that do not change the memory of a training step, or by less than one block."""

TRAINER_SIGNS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "optim",
    "fsdp",
)


def is_trainer(data: Table) -> bool:
    """Whether a table has arguments of the Trainer."""
    return any(name in data for name in TRAINER_SIGNS) and "distributed_type" not in data


def is_run_by(words: Sequence[str]) -> bool:
    """Whether a command's words are arguments of the Trainer."""
    return any(word.startswith("--per_device_train_batch") for word in words)


def read_trainer(data: Table, source: Source) -> Launch:
    """Reads arguments of the Trainer. Raises `InputError`, which names file and argument."""
    with reading_of(source) as reading:
        return _trainer(reading, data, source.world_size)


def read_arguments(arguments: Table, source: Source) -> Launch:
    """Reads the arguments of a script's command, as `read_trainer` does."""
    plain: dict[str, Any] = {}
    for flag, value in arguments.items():
        name = flag.lstrip("-").replace("-", "_")
        if name in keys_read() and name != "model_name_or_path":  # a TARGET may replace the model
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str) and is_unresolved(word):
                    raise InputError(f"{source.where}: {flag}: {unresolved_reason(word)}")
        plain[name] = _plain(value)
    return read_trainer({**trainer_arguments(source), **plain}, source)


def keys_read() -> frozenset[str]:
    """All arguments that are read, with those that select a framework."""
    return TRAINER_READ.union(*(plugin.trainer_keys for plugin in plugins().values()))


def _plain(value: Any) -> Any:
    """The value of a command-line argument, converted to a flag or a number if it is one."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, str):
        return value
    if is_unresolved(value):
        return printable(value)
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    return int(value) if re.fullmatch(r"-?\d{1,12}", value) else value


def _trainer(reading: Reading, data: Table, world_size: int | None) -> Launch:
    reading.ignored += [name for name in data if name in TRAINER_IGNORED]
    unknown_keys(reading, data, (*keys_read(), *TRAINER_IGNORED), "", "no argument that is known")
    words = _trainer_words(reading, data)
    world = reading.devices(world_size)
    target = data.get("model_name_or_path")
    framework, run = WITHOUT_A_NAME, RunUnder(Layout(dp=world), words)
    for name, plugin in plugins().items():
        if plugin.trainer is not None and any(data.get(key) for key in plugin.trainer_keys):
            framework, run = name, plugin.trainer(reading, data, world, words)
            break
    target_name = "" if target is None else str(target)[:200]
    return reading.launch(
        "trainer",
        framework,
        target=target_name,
        layout=run.layout,
        settings=run.settings,
        own_settings=run.own_settings,
    )


def _trainer_words(reading: Reading, data: Table) -> dict[str, Any]:
    def size(name: str, default: int) -> int:
        return default if data.get(name) is None else size_of(reading, name, data[name])

    def flag(name: str) -> bool:
        return data.get(name) is not None and flag_value(reading, name, data[name])

    words: dict[str, Any] = {
        "phase": "training",
        "batch": size("per_device_train_batch_size", 8),
        "num_microbatches": size("gradient_accumulation_steps", 1),
    }
    for name in ("max_seq_length", "max_length", "block_size", "cutoff_len"):
        if data.get(name) is not None:
            words["seq"] = size_of(reading, name, data[name])
            break
    optim = str(data.get("optim", "adamw_torch_fused"))[:60]
    if optim.startswith("OptimizerNames."):
        optim = optim.partition(".")[2].lower()
    if optim in OPTIMIZERS:
        words |= OPTIMIZERS[optim]
    else:
        reading.unknown["optim"] = f"'{optim}' is not modelled"
    words |= _trainer_precision(reading, data, flag)
    words |= _trainer_kernels(reading, data, flag)
    words |= _trainer_adapters(reading, data, flag)
    for name in ("auto_find_batch_size", "neftune_noise_alpha", "optim_args", "optim_target_modules", "load_in_8bit"):
        if data.get(name) not in (None, False, ""):
            reading.unknown[name] = "it is modelled without"
    return words


WEIGHTS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


def _trainer_precision(reading: Reading, data: Table, flag: Callable[[str], bool]) -> dict[str, Any]:
    """The number formats: weights in their own format; with bf16 or fp16, autocast over weights in fp32."""
    kind = data.get("torch_dtype", data.get("dtype"))
    half = "bf16" if flag("bf16") else "fp16" if flag("fp16") else None
    if kind in (None, "auto"):
        if half is None:
            return {"precision": "fp32"}
        reading.notes.append("weights in fp32 are assumed, with autocast")
        return {"precision": "autocast"}
    dtype = WEIGHTS.get(str(kind).removeprefix("torch.")[:20])
    if dtype is None:
        raise reading.wrong("torch_dtype", f"{shown(kind)}; expected bfloat16, float16 or float32")
    if dtype == "fp32":
        return {"precision": "fp32" if half is None else "autocast"}
    return {"dtype": dtype, "master_weights": "none"}


def _trainer_kernels(reading: Reading, data: Table, flag: Callable[[str], bool]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if flag("gradient_checkpointing") or flag("activation_checkpointing"):
        kwargs = data.get("gradient_checkpointing_kwargs") or data.get("activation_checkpointing_kwargs") or {}
        if not isinstance(kwargs, Mapping):
            raise reading.wrong("gradient_checkpointing_kwargs", f"{shown(kwargs)}; expected a table")
        entrant = kwargs.get("use_reentrant", False)
        words["recompute"] = "full-reentrant" if entrant in (True, "true", "True") else "full"
    attention = data.get("attn_implementation")
    if attention is not None:
        known = {"eager": "eager", "sdpa": "flash", "kernels-community/flash-attn2": "flash"}
        word = known.get(str(attention)[:60], "flash" if str(attention).startswith("flash_attention") else None)
        if word is None:
            raise reading.wrong("attn_implementation", f"{shown(attention)}; expected eager, sdpa or flash_attention_2")
        words["attn_implementation"] = word
    if flag("torch_compile"):
        words["compile"] = True
    if flag("use_liger_kernel"):
        words |= {"norm": "fused", "cross_entropy": "chunked"}
    return words


def _trainer_adapters(reading: Reading, data: Table, flag: Callable[[str], bool]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if flag("load_in_4bit"):
        words["base"] = "nf4"
    if data.get("lora_r") is None and not flag("use_peft"):
        return words
    words["lora_rank"] = size_of(reading, "lora_r", data.get("lora_r", 16))
    targets = data.get("lora_target_modules")
    if targets is not None:
        names = [targets] if isinstance(targets, str) else targets
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise reading.wrong("lora_target_modules", f"{shown(targets)}; expected a list of names")
        words["lora_targets"] = tuple(names)
    saved = data.get("lora_modules_to_save")
    if isinstance(saved, list) and all(isinstance(name, str) for name in saved):
        words["modules_to_save"] = tuple(saved)
    if data.get("lora_dropout") not in (None, 0, 0.0):
        words["lora_dropout"] = True
    return words
