"""Describes a checkpoint of the hub by its name, for machines that cannot read its config.

`unsloth/Qwen3-14B` has the sizes of the preset qwen3-14b, and `Qwen/Qwen3-14B-AWQ` also the quantization that its name
states. The description has the table `quantization_config` that the library named in the id writes, so all commands
answer as they do with the checkpoint's config.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .presets import known_checkpoint, known_model, read_preset


def _compressed_tensors_config(storage_format: str, weight_format: Mapping[str, Any]) -> dict[str, Any]:
    """Returns llm-compressor's `quantization_config` for every linear layer except routers and the output head."""
    return {
        "quant_method": "compressed-tensors",
        "format": storage_format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(weight_format)}},
        "ignore": ["lm_head", r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$"],
    }


TABLES_BY_SCHEME: dict[str, dict[str, Any]] = {
    "awq-int4-g128": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "gptq-int4-g128": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "gptq-int8-g128": {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False, "sym": True},
    "w4a16-g128": _compressed_tensors_config(
        "pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
    ),
    "w8a8": _compressed_tensors_config(
        "int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    ),
    "fp8-dynamic": _compressed_tensors_config(
        "float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    ),
    "fp8-block128": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    },
    "nvfp4": _compressed_tensors_config(
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp4-linear": _compressed_tensors_config(
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32},
    ),
    "mxfp8": {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head", "*router", "*gate"]},
    "nf4-double": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
    },
    **{f"mlx-int{bits}-g64": {"group_size": 64, "bits": bits} for bits in (3, 4, 5, 6, 8)},
}
"""Scheme of `--quantize` → the table `quantization_config` of a checkpoint in that scheme."""


EVERY_LINEAR_LAYER = ("nvfp4", "mxfp4-linear", "mxfp8")
"""Schemes whose checkpoints leave out layers by model and publisher, such as those of attention."""


@cache
def _published_tables() -> dict[str, dict[str, Any]]:
    """Returns the hub id, in small letters, of checkpoints whose config was read → their `quantization_config`."""
    records = tomllib.loads(Path(__file__).with_name("named_checkpoints.toml").read_text())["checkpoints"]
    return {hub_id.lower(): _modelopt_config(record) for record in records for hub_id in record["ids"]}


def _modelopt_config(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ModelOpt's `quantization_config` of a record of `named_checkpoints.toml`."""
    if "layers" not in record:
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": record["ignore"]}
    quantized_layers = {
        pattern: {"quant_algo": algorithm, **({"group_size": 16} if "NVFP4" in algorithm else {})}
        for algorithm, patterns in record["layers"].items()
        for pattern in patterns
    }
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": quantized_layers}


def describe_named_checkpoint(hub_id: str) -> tuple[str, str, dict[str, Any]] | None:
    """Returns the preset's name, the name for error messages and the description; None for an unknown name.

    GGUF files have no table of a quantization, so their repositories are not described.
    """
    checkpoint = known_checkpoint(hub_id)
    model, quantization = checkpoint if checkpoint is not None else (known_model(hub_id), "")
    if model is None or (quantization and quantization not in TABLES_BY_SCHEME):
        return None
    published_table = _published_tables().get(hub_id.lower())
    weight_format = quantization or "its published format"
    if published_table:
        weight_format += " without the modules that its config leaves out"
    elif quantization in EVERY_LINEAR_LAYER:
        weight_format += " in every linear layer, of which publishers leave some out"
    note = (
        f"the config of {hub_id} is not in the cache, and the hub cannot be reached; by its name it has the sizes of "
        f"this preset, in {weight_format}. Its config.json as TARGET has the checkpoint's own"
    )
    preset_table = read_preset(model.name)
    notes = (note, *preset_table.get("notes", ()))
    description = {**preset_table, "named_checkpoint": hub_id, "notes": notes}
    if quantization:
        description["quantization_config"] = published_table or TABLES_BY_SCHEME[quantization]
    return model.name, model.name, description
