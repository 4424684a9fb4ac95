"""Reads a config of LLM Foundry: an MPT model or a Hugging Face model, trained by Composer with FSDP version 1.

Source: LLM Foundry 0.22.0.dev0 (8c8dd48f7), llmfoundry/models/mpt/configuration_mpt.py,
models/utils/config_defaults.py and optim/; Composer 0.32, composer/distributed/mosaic_parallelism.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ...model import ModelSpec
from ...sources.files import validate
from ..fsdp2.plugin import fsdp_or_torch_launch
from ..fsdp2.settings import TitanSettings
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer

MODELLED_ATTENTION_VALUES: Mapping[str, tuple[Any, ...]] = {
    "alibi": (False, True),
    "attn_impl": ("flash", "torch"),
    "qk_ln": (False,),
    "qk_gn": (False,),
    "sliding_window_size": (-1,),
    "attn_type": ("multihead_attention", "multiquery_attention", "grouped_query_attention"),
}
"""Key of `attn_config` → the only values that are modelled."""

OPTIMIZERS = {"decoupled_adamw": "adamw", "adamw": "adamw", "sgd": "sgd"}
"""Value of `optimizer.name` → value of `--optimizer`."""

KEY_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]{0,80})\}")
"""Pattern of a reference to another key, in OmegaConf's notation."""


def is_llm_foundry(config: Table) -> bool:
    """Whether a table is a config of LLM Foundry."""
    model_table = config.get("model")
    return isinstance(model_table, Mapping) and "name" in model_table and "train_loader" in config


def read_llm_foundry(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of an LLM Foundry config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        reader.requests_expandable_segments = config.get("expandable_segments") is not False
        model_table = reader.table(config, "model")
        world_size = reader.device_count(source_file.world_size)
        sequence_length = _resolved_value(reader, config, "max_seq_len", config.get("max_seq_len"))
        run_settings: dict[str, Any] = {
            "phase": "training",
            "seq": read_integer(reader, "max_seq_len", sequence_length),
            "attn_implementation": _attention_kernel(reader, model_table),
            **_batch_settings(reader, config, world_size),
            **_optimizer_settings(reader, config),
        }
        if model_table.get("peft_config") is not None:
            reader.refuse("model.peft_config", "adapters of LLM Foundry are not modelled")
        fsdp_table = reader.table(config, "fsdp_config")
        if fsdp_table.get("activation_checkpointing") is True:
            is_reentrant = reader.flag(fsdp_table, "activation_checkpointing_reentrant", True)
            run_settings["recompute"] = "full-reentrant" if is_reentrant and world_size == 1 else "full"
        if fsdp_table.get("activation_cpu_offload"):
            run_settings["offload_activations"] = True
        is_sharded = bool(fsdp_table) and world_size > 1
        number_formats, reduction_format = _number_formats(reader, config, fsdp_table, is_sharded)
        if is_sharded:
            reader.notes.append("FSDP version 1 is counted as version 2, which divides each tensor by itself")
        spec, model_name = None, ""
        if str(model_table.get("name")) == "mpt_causal_lm":
            spec = _mpt_model(reader, model_table, run_settings["seq"])
        else:
            model_name = str(model_table.get("pretrained_model_name_or_path") or "")[:200]
        reduction_settings = None
        if is_sharded:
            reduction_settings = TitanSettings(
                reduction_format=reduction_format, has_flat_parameters=True, fsdp_version=1, outer_groups="together"
            )
        return fsdp_or_torch_launch(
            reader, world_size, run_settings | number_formats, reduction_settings, spec=spec, model_name=model_name
        )


def _resolved_value(reader: LaunchReader, config: Table, argument_name: str, written_value: Any) -> Any:
    """Returns a config value, or for a reference the referenced key's value. Raises `InputError` for a missing key."""
    reference_match = KEY_REFERENCE.fullmatch(written_value.strip()) if isinstance(written_value, str) else None
    if reference_match is None:
        return written_value
    referenced_value: Any = config
    for variable_key in reference_match[1].split("."):
        referenced_value = referenced_value.get(variable_key) if isinstance(referenced_value, Mapping) else None
    if referenced_value is None:
        raise reader.argument_error(
            argument_name, f"{short_repr(written_value)} names a key that is absent; expected a value"
        )
    return referenced_value


def _batch_settings(reader: LaunchReader, config: Table, world_size: int) -> dict[str, Any]:
    micro_batch = config.get("device_train_microbatch_size")
    if micro_batch in (None, "auto"):
        raise reader.value_error("device_train_microbatch_size", micro_batch, "a number, or --batch and --devices")
    stated_micro_batch = read_integer(reader, "device_train_microbatch_size", micro_batch)
    global_batch = config.get("global_train_batch_size")
    if global_batch is None:
        return {"batch": stated_micro_batch}
    batch_per_device = max(1, read_integer(reader, "global_train_batch_size", global_batch) // world_size)
    return {
        "batch": min(stated_micro_batch, batch_per_device),
        "num_microbatches": -(-batch_per_device // stated_micro_batch),
    }


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    optimizer = str(reader.table(config, "optimizer").get("name"))[:40]
    if optimizer not in OPTIMIZERS:
        reader.refuse("optimizer.name", f"'{optimizer}' is not modelled; {', '.join(OPTIMIZERS)} are")
        return {}
    optimizer_impl = {"decoupled_adamw": "loop", "adamw": "foreach"}.get(optimizer)
    return {"optimizer": OPTIMIZERS[optimizer]} | ({} if optimizer_impl is None else {"optimizer_impl": optimizer_impl})


def _number_formats(
    reader: LaunchReader, config: Table, fsdp_table: Table, is_sharded: bool
) -> tuple[dict[str, Any], str]:
    """Returns the number formats of the run and of gradient reduction, by `precision_name`."""
    precision = reader.choice(config, "precision", ("amp_bf16", "fp32"), "amp_bf16")
    if precision == "fp32":
        return {"precision": "fp32"}, ""
    if not is_sharded:
        return {"precision": "autocast"}, ""
    precision_name = str(reader.value(fsdp_table, "mixed_precision", "DEFAULT")).upper()
    if precision_name not in ("PURE", "DEFAULT"):
        raise reader.value_error("fsdp_config.mixed_precision", precision_name, "PURE or DEFAULT")
    return {"dtype": "bf16", "master_weights": "fp32"}, "bfloat16" if precision_name == "PURE" else ""


def _attention_kernel(reader: LaunchReader, model_section: Table) -> str:
    config = model_section.get("attn_config") or {}
    if isinstance(config, Mapping) and config.get("attn_impl") == "torch":
        return "eager"
    if str(model_section.get("name")) == "hf_causal_lm" and not model_section.get("use_flash_attention_2"):
        reader.assumed_defaults["attn_implementation"] = "sdpa"
    return "flash"


def _mpt_model(reader: LaunchReader, model_section: Table, sequence_length: int) -> ModelSpec:
    """Returns the MPT model in the config's section `model_section`, with LLM Foundry's defaults."""
    config = reader.table(model_section, "attn_config")
    reader.refuse_other_values(config, MODELLED_ATTENTION_VALUES, "model.attn_config.")
    unmodelled_keys = ("ffn_config", "block_overrides", "final_logit_softcapping")
    reader.refuse_if_set(model_section, dict.fromkeys(unmodelled_keys, "it is modelled without"), "model.")
    model_sizes = {
        size_key: reader.integer(model_section, size_key, default_size)
        for size_key, default_size in (("d_model", 2048), ("n_heads", 16), ("n_layers", 24), ("vocab_size", 50368))
    }
    has_bias = not reader.flag(model_section, "no_bias")
    norm_table: dict[str, Any] = {"type": "layernorm"} | ({} if has_bias else {"bias": False})
    if "rmsnorm" in str(reader.value(model_section, "norm_type", "low_precision_layernorm")):
        norm_table = {"type": "rmsnorm"}
    attention_table: dict[str, Any] = {"num_attention_heads": model_sizes["n_heads"]}
    attention_table |= {f"{projection}_bias": has_bias for projection in ("q", "k", "v", "o")}
    if config.get("kv_n_heads") is not None:
        attention_table["num_key_value_heads"] = read_integer(
            reader, "model.attn_config.kv_n_heads", config["kv_n_heads"]
        )
    decoder_table: dict[str, Any] = {"num_hidden_layers": model_sizes["n_layers"], "final_norm": norm_table}
    if config.get("alibi"):
        attention_table["position"] = {"type": "alibi"}
    elif config.get("rope"):
        attention_table["position"] = {"type": "rope"}
    elif reader.flag(model_section, "learned_pos_emb", True):
        decoder_table["position"] = {"type": "learned", "max_position_embeddings": sequence_length}
    network_table = {
        "type": "mlp",
        "intermediate_size": reader.integer(model_section, "expansion_ratio", 4) * model_sizes["d_model"],
        "hidden_act": "gelu",
        "up_bias": has_bias,
        "down_bias": has_bias,
    }
    decoder_table["block"] = {
        "attention": attention_table,
        "feed_forward": network_table,
        "norm": norm_table,
        "norm_placement": "pre",
    }
    spec_table = {
        "vocab_size": model_sizes["vocab_size"],
        "hidden_size": model_sizes["d_model"],
        "tie_word_embeddings": reader.flag(model_section, "tie_word_embeddings", True),
        "max_position_embeddings": sequence_length,
        "decoder": decoder_table,
    }
    return validate(ModelSpec, spec_table, reader.name_in_errors)
