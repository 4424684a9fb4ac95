"""Reads a config of LitGPT: arguments of `litgpt finetune_lora`, `finetune_full` and `pretrain`.

Source: LitGPT 0.5.13 (26857050), litgpt/finetune/{lora,full}.py, pretrain.py, args.py and config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ..fsdp2.plugin import fsdp_or_torch_launch, mixed_precision_settings
from ..fsdp2.settings import TitanSettings
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..launch.trainer import HEAD_ADAPTER_NOTE, lora_settings

KEYS_READ = field_names("""
    checkpoint_dir precision quantize devices num_nodes lora_r lora_dropout lora_query lora_key lora_value
    lora_projection lora_mlp lora_head train optimizer model_name
    """)

KEYS_IGNORED = field_names("""
    out_dir lora_alpha eval log logger_name seed access_token tokenizer_dir resume generate use_clearml data
    model_config initial_checkpoint_dir
    """)
"""Arguments that do not change the memory of a training step."""

LORA_TARGETS = {
    "lora_query": (True, ("q_proj",)),
    "lora_key": (False, ("k_proj",)),
    "lora_value": (True, ("v_proj",)),
    "lora_projection": (False, ("o_proj",)),
    "lora_mlp": (False, ("gate_proj", "up_proj", "down_proj")),
}
"""Argument that turns adapters on → its default, and the projections that get an adapter."""

SETTINGS_BY_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "bf16-true": {"dtype": "bf16", "master_weights": "none"},
    "16-true": {"dtype": "fp16", "master_weights": "none"},
    "32-true": {"precision": "fp32"},
    "bf16-mixed": {"precision": "autocast"},
}
"""Value of `precision` → options of `llmcalc memory`."""

BASE_BY_QUANTIZATION = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq"}
"""Value of `quantize` → options of `llmcalc memory`."""

HEAD_CHUNK_TOKENS = 128
"""Number of tokens for which the output head computes logits at once (`lm_head_chunk_size`)."""


def is_litgpt(config: Table) -> bool:
    """Whether a table is a config of LitGPT."""
    train_table = config.get("train")
    has_batch_sizes = isinstance(train_table, Mapping) and (
        "micro_batch_size" in train_table or "global_batch_size" in train_table
    )
    return has_batch_sizes and any(
        known_argument in config for known_argument in ("checkpoint_dir", "model_name", "lora_r", "logger_name")
    )


def read_litgpt(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a LitGPT config. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        reader.record_argument_names(config, KEYS_READ, KEYS_IGNORED)
        has_adapters = any(str(argument_name).startswith("lora_") for argument_name in config)
        is_pretraining = not has_adapters and config.get("checkpoint_dir") is None
        train_table = reader.table(config, "train")
        world_size = source_file.world_size or _device_count(reader, config)
        micro_batch_size = reader.integer(train_table, "micro_batch_size", 1)
        global_batch = reader.integer(train_table, "global_batch_size", 16)
        reader.calls_torch_attention = True
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": micro_batch_size,
            "num_microbatches": max(1, global_batch // world_size // micro_batch_size),
            "attn_implementation": "flash",
            **_optimizer_settings(reader, config),
        }
        if is_pretraining:
            run_settings |= {"compile": True, "cross_entropy": "eager"}
            reader.notes.append("the loss, which LitGPT computes in chunks of 128 tokens, is counted at once")
            if run_settings.get("optimizer") == "adamw":
                run_settings["optimizer_impl"] = "fused"  # pretrain.py, `extra_kwargs`
        else:
            run_settings |= {
                "norm": "eager",
                "keep_logits": True,
                "cross_entropy": "split",
                "loss_chunk": HEAD_CHUNK_TOKENS,
            }
            reader.notes.append("RMSNorm step by step, as in litgpt/model.py; a model with LayerNorm runs --norm fused")
        if train_table.get("max_seq_length") is not None:
            run_settings["seq"] = read_integer(reader, "train.max_seq_length", train_table["max_seq_length"])
        else:
            reader.notes.append("train.max_seq_length is null: --seq says the longest sample (2,048 here)")
        precision = str(reader.value(config, "precision", "bf16-true"))
        if precision not in SETTINGS_BY_PRECISION:
            raise reader.value_error("precision", precision, f"one of {', '.join(SETTINGS_BY_PRECISION)}")
        run_settings |= SETTINGS_BY_PRECISION[precision]
        if has_adapters:
            run_settings |= _adapter_settings(reader, config, precision)
        elif is_pretraining and world_size > 1 and precision == "bf16-mixed":
            run_settings = mixed_precision_settings(run_settings)
        elif world_size > 1 and not is_pretraining:
            run_settings["recompute"] = "full"  # finetune/full.py checkpoints blocks under FSDP
        model_name = str(config.get("checkpoint_dir") or config.get("model_name") or "")
        model_id = re.sub(r"^(\./)?checkpoints/", "", model_name).rstrip("/")[:200]
        reduction_settings = TitanSettings(
            reduction_format="bfloat16" if "bf16" in precision else "", fsdp_version=1, outer_groups="together"
        )
        return fsdp_or_torch_launch(reader, world_size, run_settings, reduction_settings, model_name=model_id)


def _device_count(reader: LaunchReader, config: Table) -> int:
    """Returns the number of devices: devices per machine times machines."""
    device_value = reader.value(config, "devices", 1)
    if isinstance(device_value, str) and not device_value.isdecimal():
        raise reader.argument_error(
            "devices", f"{short_repr(device_value)} depends on the machine; expected a number, or --devices"
        )
    return read_integer(reader, "devices", device_value) * reader.integer(config, "num_nodes", 1)


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    optimizer = reader.value(config, "optimizer", "AdamW")
    class_name = str(optimizer.get("class_path") if isinstance(optimizer, Mapping) else optimizer).rpartition(".")[2]
    optimizer_arguments = optimizer.get("init_args") if isinstance(optimizer, Mapping) else None
    if class_name == "SGD":
        return {"optimizer": "sgd"}
    if class_name not in ("AdamW", "Adam"):
        reader.refuse("optimizer", f"'{class_name[:60]}' is not modelled; AdamW and SGD are")
        return {}
    is_fused = isinstance(optimizer_arguments, Mapping) and optimizer_arguments.get("fused") is True
    return {"optimizer": "adamw", "optimizer_impl": "fused" if is_fused else "foreach"}


def _adapter_settings(reader: LaunchReader, config: Table, precision: str) -> dict[str, Any]:
    """Returns the settings of LoRA adapters, in the format of the weights, and of the frozen weights."""
    target_modules = [
        projection
        for target_name, (default_flag, projections) in LORA_TARGETS.items()
        if reader.flag(config, target_name, default_flag)
        for projection in projections
    ]
    if reader.flag(config, "lora_head"):
        reader.notes.append(HEAD_ADAPTER_NOTE)
    adapter_settings = lora_settings(
        reader,
        rank=("lora_r", reader.value(config, "lora_r", 8)),
        targets_argument=("lora_query", target_modules),
        dropout_value=reader.value(config, "lora_dropout", 0.05),
    )
    adapter_settings |= {"lora_library": "litgpt", "lora_dtype": "bf16" if precision == "bf16-true" else "fp32"}
    quantize_text = config.get("quantize")
    if quantize_text in (None, ""):
        return adapter_settings
    if str(quantize_text) not in BASE_BY_QUANTIZATION:
        reader.refuse(
            "quantize", f"{short_repr(quantize_text)} is not modelled; {' and '.join(BASE_BY_QUANTIZATION)} are"
        )
        return adapter_settings
    return adapter_settings | {"base": BASE_BY_QUANTIZATION[str(quantize_text)], "quantized_head": True}
