"""Reads a config of OLMo, AI2's first trainer: the model, FSDP version 1 or DDP, and the training step.

Source: OLMo 0.6.0 (59a53e3f), olmo/config.py, olmo/model.py, olmo/optim.py and scripts/train.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model import ModelSpec
from ...sources.files import validate
from ..fsdp2.plugin import fsdp_or_torch_launch
from ..fsdp2.settings import TitanSettings
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer

MODELLED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "alibi": (False, None),
    "embedding_layer_norm": (False, None),
    "include_bias": (False,),
    "block_type": ("sequential", None),
    "block_group_size": (1, None),
    "scale_logits": (False, None),
}
"""Key of `model` → the only values that are modelled."""

RECOMPUTE_BY_CHECKPOINTING = {
    "whole_layer": "full",
    "one_in_two": "every:2",
    "one_in_three": "every:3",
    "one_in_four": "every:4",
}
"""Value of `activation_checkpointing` → value of `--recompute`."""

STEP_KEYS = ("optimizer", "precision", "fsdp", "ddp", "compile", "activation_checkpointing", "fused_loss")
"""Keys of a config about the training step that are read."""


def is_olmo(config: Table) -> bool:
    """Whether a table is a config of OLMo."""
    model_table = config.get("model")
    return (
        isinstance(model_table, Mapping)
        and "d_model" in model_table
        and "layer_norm_type" in model_table
        and "optimizer" in config
    )


def read_olmo(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of an OLMo config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        spec = _model_spec(reader, reader.table(config, "model"))
        world_size = reader.device_count(source_file.world_size)
        micro_batch_size = reader.integer(config, "device_train_microbatch_size", 16)
        global_batch = reader.integer(config, "global_train_batch_size", 512)
        if global_batch % (world_size * micro_batch_size):
            raise reader.argument_error(
                "global_train_batch_size",
                f"{global_batch}; expected a multiple of {world_size * micro_batch_size}, --devices",
            )
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": micro_batch_size,
            "num_microbatches": global_batch // (world_size * micro_batch_size),
            "seq": reader.integer(reader.table(config, "model"), "max_sequence_length", 1024),
            "attn_implementation": "flash",
            **_step_settings(reader, config),
        }
        reader.ignored_arguments += [config_key for config_key in config if config_key not in ("model", *STEP_KEYS)]
        fsdp_table = reader.table(config, "fsdp")
        is_sharded = bool(fsdp_table) and world_size > 1
        precision = reader.choice(config, "precision", ("amp_bf16", "fp32"), "amp_bf16")
        reduction_format = ""
        if precision == "fp32":
            run_settings["precision"] = "fp32"
        elif is_sharded:
            run_settings |= {"dtype": "bf16", "master_weights": "fp32"}
            reduction_format = "bfloat16" if reader.value(fsdp_table, "precision", "pure") == "pure" else ""
        else:
            run_settings["precision"] = "autocast"
        if is_sharded:
            reader.notes.append("FSDP version 1 is counted as version 2, which divides each tensor by itself")
        wraps_large_modules = str(fsdp_table.get("wrapping_strategy")).endswith("_and_size")  # olmo/model.py
        fsdp_settings = TitanSettings(
            reduction_format=reduction_format,
            has_flat_parameters=True,
            fsdp_version=1,
            outer_groups="separate" if wraps_large_modules else "together",
        )
        return fsdp_or_torch_launch(reader, world_size, run_settings, fsdp_settings if is_sharded else None, spec=spec)


def _model_spec(reader: LaunchReader, model_table: Table) -> ModelSpec:
    """Returns the model in the config's section `model`."""
    reader.refuse_other_values(model_table, MODELLED_VALUES, "model.")
    hidden_size, layer_count = (
        read_integer(reader, f"model.{size_key}", model_table.get(size_key)) for size_key in ("d_model", "n_layers")
    )
    head_count = reader.integer(model_table, "n_heads", 12)
    activation_name = reader.choice(model_table, "activation_type", ("swiglu", "gelu", "relu"), "swiglu", "model.")
    is_gated = activation_name == "swiglu"
    inner_width = (
        reader.optional_integer(model_table, "mlp_hidden_size")
        or reader.integer(model_table, "mlp_ratio", 4) * hidden_size
    )
    norm_type = str(reader.value(model_table, "layer_norm_type", "default"))
    if norm_type not in ("default", "low_precision", "rms", "amd_compatible"):
        raise reader.value_error("model.layer_norm_type", norm_type, "default, low_precision or rms")
    has_weight = reader.flag(model_table, "layer_norm_with_affine", True)
    has_bias = has_weight and reader.flag(
        model_table, "bias_for_layer_norm", reader.flag(model_table, "include_bias", True)
    )
    norm_table: dict[str, Any] = {"type": "rmsnorm" if norm_type == "rms" else "layernorm"}
    if not has_weight:
        norm_table["weight"] = False
    elif norm_table["type"] == "layernorm" and not has_bias:
        norm_table["bias"] = False
    attention_table: dict[str, Any] = {"num_attention_heads": head_count}
    key_head_count = 1 if model_table.get("multi_query_attention") else model_table.get("n_kv_heads")
    if key_head_count is not None:
        attention_table["num_key_value_heads"] = read_integer(reader, "model.n_kv_heads", key_head_count)
    position_count = reader.integer(model_table, "max_sequence_length", 1024)
    decoder_table: dict[str, Any] = {"num_hidden_layers": layer_count, "final_norm": norm_table}
    if reader.flag(model_table, "rope"):
        attention_table["position"] = {"type": "rope"}
    else:
        decoder_table["position"] = {"type": "learned", "max_position_embeddings": position_count}
    network_table = {
        "type": "mlp",
        "intermediate_size": inner_width // 2 if is_gated else inner_width,
        "hidden_act": "silu" if is_gated else activation_name,
        "gated": is_gated,
    }
    if reader.flag(model_table, "attention_layer_norm"):
        norm_has_weight = reader.flag(model_table, "attention_layer_norm_with_affine", True)
        attention_table["qk_norm"] = {"norm": {**norm_table, "weight": norm_has_weight}, "scope": "projection"}
    norm_placement = "output" if reader.flag(model_table, "norm_after") else "pre"
    decoder_table["block"] = {
        "attention": attention_table,
        "feed_forward": network_table,
        "norm": norm_table,
        "norm_placement": norm_placement,
    }
    embedding_rows = model_table.get("embedding_size") or reader.value(model_table, "vocab_size", 50257)
    spec_table = {
        "vocab_size": read_integer(reader, "model.embedding_size", embedding_rows),
        "hidden_size": hidden_size,
        "tie_word_embeddings": reader.flag(model_table, "weight_tying", True),
        "max_position_embeddings": position_count,
        "decoder": decoder_table,
    }
    return validate(ModelSpec, spec_table, reader.name_in_errors)


def _step_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of the optimizer, recomputation, loss and compilation."""
    step_settings: dict[str, Any] = {"optimizer": "adamw", "optimizer_impl": "foreach"}
    optimizer_name = str(reader.value(reader.table(config, "optimizer"), "name", "lionw"))
    if optimizer_name != "adamw":
        reader.refuse("optimizer.name", f"'{optimizer_name[:30]}' is not modelled; adamw is")
    checkpointing_config = config.get("activation_checkpointing")
    if checkpointing_config is not None:
        if str(checkpointing_config) not in RECOMPUTE_BY_CHECKPOINTING:
            raise reader.value_error(
                "activation_checkpointing", checkpointing_config, ", ".join(RECOMPUTE_BY_CHECKPOINTING)
            )
        step_settings["recompute"] = RECOMPUTE_BY_CHECKPOINTING[str(checkpointing_config)]
    if config.get("fused_loss"):
        step_settings["cross_entropy"] = "fused"
    if config.get("compile"):
        step_settings["compile"] = True
    return step_settings
