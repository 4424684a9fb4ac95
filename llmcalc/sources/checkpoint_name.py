"""Describes a checkpoint of the Hugging Face hub by its name, if its config cannot be downloaded.

`unsloth/Qwen3-14B` has the sizes of the preset qwen3-14b, and `Qwen/Qwen3-14B-AWQ` also the quantization that its name
states. The description has the table `quantization_config` that the library named in the id writes, so all commands
answer as they do with the checkpoint's config.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .preset import Preset
from .presets import known_checkpoint, known_model, publisher_of, read_preset


def _compressed_tensors_config(
    storage_format: str, weight_format: Mapping[str, Any], *modules_in_16_bits: str
) -> dict[str, Any]:
    """Returns llm-compressor's `quantization_config` for all linear layers except routers and the output head.

    modules_in_16_bits: patterns of further modules that the recipes of this format leave out.
    """
    return {
        "quant_method": "compressed-tensors",
        "format": storage_format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(weight_format)}},
        "ignore": ["lm_head", r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$", *modules_in_16_bits],
    }


LINEAR_ATTENTION_PATTERN = r"re:.*\.linear_attn\..*"
"""The gated DeltaNets of Qwen3-Next, Qwen3.5 and their successors, which llm-compressor's recipes leave in 16 bits.

They do so where other layers are floats of 4 or 8 bits (vllm-project/llm-compressor, examples,
quantization_w4a4_fp4/qwen3_6_example.py, quantization_w4a16_fp4/mxfp4/qwen3.5_example.py and
quantization_w8a8_fp8/qwen3_next_example.py).
"""


def _tables_with_scale_groups(group_size: int) -> dict[str, dict[str, Any]]:
    """Returns scheme → `quantization_config`, for schemes whose weights have a scale per group of columns."""
    weight_format = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group_size}
    gptq_config = {"quant_method": "gptq", "group_size": group_size, "desc_act": False, "sym": True}
    awq_config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return {
        f"awq-int4-g{group_size}": awq_config,
        f"gptq-int4-g{group_size}": gptq_config | {"bits": 4},
        f"gptq-int8-g{group_size}": gptq_config | {"bits": 8},
        f"w4a16-g{group_size}": _compressed_tensors_config("pack-quantized", weight_format),
    }


TABLES_BY_SCHEME: dict[str, dict[str, Any]] = {
    **_tables_with_scale_groups(128),
    **_tables_with_scale_groups(32),
    "w8a8": _compressed_tensors_config(
        "int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    ),
    "fp8-dynamic": _compressed_tensors_config(
        "float-quantized",
        {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
        LINEAR_ATTENTION_PATTERN,
    ),
    "fp8-block128": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        # Qwen's in_proj_a and _b, and what zai-org's configs call indexers_proj
        "modules_to_not_convert": ["lm_head", "linear_attn.a_proj", "linear_attn.b_proj", "indexer.weights_proj"],
    },
    "nvfp4": _compressed_tensors_config(
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16},
        LINEAR_ATTENTION_PATTERN,
    ),
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp4-linear": _compressed_tensors_config(
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32},
        LINEAR_ATTENTION_PATTERN,
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


RECIPES_WITHOUT_LINEAR_ATTENTION = ("fp8-dynamic", "nvfp4", "mxfp4-linear")
"""Quantization schemes whose table here leaves gated DeltaNets in 16 bits; `--quantize` with the same name does not."""

SCHEMES_OF_ALL_LINEAR_LAYERS = ("nvfp4", "mxfp4-linear", "mxfp8")
"""Schemes whose checkpoints leave some layers, such as attention, unquantized, depending on model and publisher."""

PUBLISHERS_OF_ALL_LINEAR_LAYERS = ("redhatai", "neuralmagic")
"""Publishers whose `-NVFP4` checkpoints have every linear layer in NVFP4 (llm-compressor with `targets: Linear`)."""


@cache
def _read_published(file_kind: str) -> dict[str, dict[str, Any]]:
    """Returns the contents of `published_<file_kind>.toml`: facts about published checkpoints of one format."""
    return tomllib.loads(Path(__file__).with_name(f"published_{file_kind}.toml").read_text(encoding="utf-8"))


def published_gptq() -> dict[str, dict[str, list[str]]]:
    """Returns the contents of `published_gptq.toml`: preset → the field `dynamic` of Qwen's GPTQ checkpoint."""
    return _read_published("gptq")


def published_nvfp4() -> dict[str, dict[str, Any]]:
    """Returns the contents of `published_nvfp4.toml`: preset → the storage formats of NVIDIA's NVFP4 checkpoint."""
    return _read_published("nvfp4")


def has_nvfp4_table(preset_name: str) -> bool:
    """Whether `published_nvfp4.toml` has the storage of NVIDIA's NVFP4 checkpoint of a preset."""
    return preset_name in published_nvfp4()


def nvfp4_quantization_config(checkpoint_name: str, preset_name: str) -> tuple[dict[str, Any], str] | None:
    """Returns the `quantization_config` of an NVFP4 checkpoint by its name, and its formats as text for notes.

    checkpoint_name: a hub id or a path. preset_name: its preset. The table is that of NVIDIA's checkpoint of the model,
    whoever publishes this one, because the model decides which layers stay in 8 or 16 bits more than the publisher
    does; that of the KV cache only if NVIDIA publishes it. None without such a checkpoint.
    """
    publisher = checkpoint_name.partition("/")[0].lower()
    published_storage = published_nvfp4().get(preset_name)
    if published_storage is None or publisher in PUBLISHERS_OF_ALL_LINEAR_LAYERS:
        return None
    exclude_modules = published_storage.get("exclude_modules", [])
    quantization_config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": exclude_modules}
    if "quantized_layers" in published_storage:
        quantization_config["quant_algo"] = "MIXED_PRECISION"
        quantization_config["quantized_layers"] = {
            module_pattern: {"quant_algo": algorithm}
            for algorithm, module_patterns in published_storage["quantized_layers"].items()
            for module_pattern in module_patterns
        }
    if published_storage.get("keeps_published_format"):
        published_config = read_preset(preset_name)["quantization_config"]
        return {
            **published_config,
            "quantized_layers": quantization_config["quantized_layers"],
        }, "nvfp4, with the other layers as in the model's own release"
    if publisher == "nvidia":
        kv_cache = published_storage.get("kv_cache")
        return quantization_config | {"kv_cache_quant_algo": kv_cache}, "nvfp4, with its layers in 8 or 16 bits"
    return quantization_config, "nvfp4, with the layers in 8 or 16 bits of NVIDIA's checkpoint of this model"


def published_recipes() -> dict[str, dict[str, Any]]:
    """Returns the contents of `published_recipes.toml`: preset → modules that quantization recipes leave in 16 bits."""
    return _read_published("recipes")


FP8_BLOCKS_OF_LLM_COMPRESSOR = _compressed_tensors_config(
    "float-quantized",
    {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128]},
    LINEAR_ATTENTION_PATTERN,
)
"""The `quantization_config` of `-FP8-block` checkpoints (llm-compressor's scheme FP8_BLOCK)."""


def recipe_quantization_config(
    checkpoint_name: str, preset_name: str, scheme: str
) -> tuple[dict[str, Any], str] | None:
    """Returns the `quantization_config` of a model's published quantization recipe, and its formats as text.

    None for checkpoints of NVIDIA, whose ModelOpt has no recipes, and where the scheme alone says how it is stored.
    """
    is_block_recipe = scheme == "fp8-block128" and checkpoint_name.lower().endswith("block")
    quantization_config = FP8_BLOCKS_OF_LLM_COMPRESSOR if is_block_recipe else TABLES_BY_SCHEME.get(scheme, {})
    recipes, publisher = published_recipes(), publisher_of(checkpoint_name, preset_name)
    recipe = recipes.get(f"{publisher}/{preset_name}", recipes.get(preset_name))
    quant_method = quantization_config.get("quant_method")
    if (
        recipe is None
        or publisher == "nvidia"
        or scheme not in recipe.get("schemes", (scheme,))
        or not (
            quant_method == "compressed-tensors" or (recipe.get("every_library") and quant_method in ("awq", "gptq"))
        )
    ):
        return (quantization_config, scheme) if is_block_recipe else None
    module_patterns = [f".*{re.escape(module)}.*" for module in recipe["ignore"]]
    ignored_modules = [
        *quantization_config.get("ignore", []),
        *(f"re:{module_pattern}" for module_pattern in module_patterns),
    ]
    ignored_modules_by_method: dict[str, dict[str, Any]] = {
        "awq": {"modules_to_not_convert": recipe["ignore"]},
        "gptq": {"dynamic": {f"-:{module_pattern}": {} for module_pattern in module_patterns}},
        "compressed-tensors": {"ignore": ignored_modules},
    }
    formats_text = f"{scheme}, with the layers in 16 bits of the published recipe of this model"
    return quantization_config | ignored_modules_by_method[str(quant_method)], formats_text


def sixteen_bit_layers_config(checkpoint_name: str, preset_name: str, scheme: str) -> tuple[dict[str, Any], str] | None:
    """Returns the `quantization_config` of a checkpoint with known 16-bit layers, and its formats as text.

    checkpoint_name: a hub id or a path. scheme: the scheme in its name. None if the scheme alone says how it is stored.
    """
    nvfp4_config = nvfp4_quantization_config(checkpoint_name, preset_name) if scheme == "nvfp4" else None
    nvfp4_config = nvfp4_config or recipe_quantization_config(checkpoint_name, preset_name, scheme)
    if nvfp4_config is not None or scheme != "gptq-int4-g128" or preset_name not in published_gptq():
        return nvfp4_config
    module_patterns = published_gptq()[preset_name]["dynamic"]
    rules_by_pattern: dict[str, dict[str, Any]] = {module_pattern: {} for module_pattern in module_patterns}
    quantization_config = TABLES_BY_SCHEME[scheme] | {"dynamic": rules_by_pattern}
    return quantization_config, f"{scheme}, with attention and shared experts in 16 bits"


def preset_in_named_format(checkpoint_name: str, preset: Preset, scheme: str) -> tuple[Preset, str, str]:
    """Returns a preset in the formats that a checkpoint's name states, the scheme to apply, and the formats as text.

    scheme: the scheme in the checkpoint's name, empty for none. It is applied unless the formats of the layers are
    known, which the preset then has in its `quantization_config`.
    """
    known_formats = sixteen_bit_layers_config(checkpoint_name, preset.name, scheme)
    if known_formats is None and scheme not in RECIPES_WITHOUT_LINEAR_ATTENTION:
        return preset, scheme, scheme or "its published format"
    config, formats_text = known_formats or (TABLES_BY_SCHEME[scheme], scheme)
    named_preset = preset.model_copy(update={"quantization_config": config, "named_checkpoint": checkpoint_name})
    return named_preset, "", formats_text


def _has_linear_attention(preset: Preset) -> bool:
    """Whether a layer has a gated DeltaNet, which only some AWQ publishers quantize (QuantTrio's Qwen3.5)."""
    return any(
        getattr(getattr(layer, "attention", None), "type", "") == "gated_delta_net"
        for _, stack in preset.model.stacks()
        for layer in stack.layers_by_kind().values()
    )


def describe_named_checkpoint(hub_id: str) -> tuple[str, str, dict[str, Any]] | None:
    """Returns a preset's name, the name for error messages and the description for a hub id; None if it is unknown.

    GGUF files have no table of a quantization, so their repositories are not described.
    """
    preset_and_scheme = known_checkpoint(hub_id)
    preset, scheme = preset_and_scheme if preset_and_scheme is not None else (known_model(hub_id), "")
    is_in_16_bits = scheme == "none" and "gguf" not in hub_id.lower()
    if preset is None or (scheme and scheme not in TABLES_BY_SCHEME and not is_in_16_bits):
        return None
    known_formats = sixteen_bit_layers_config(hub_id, preset.name, scheme)
    quantization_config, formats_text = known_formats or (TABLES_BY_SCHEME.get(scheme), scheme)
    leaves_out_attention = scheme.startswith("awq") and _has_linear_attention(preset)
    if known_formats is None and (scheme in SCHEMES_OF_ALL_LINEAR_LAYERS or leaves_out_attention):
        formats_text += " in every linear layer, of which publishers leave some out"
    if is_in_16_bits:
        formats_text = "16 bits"
    note = (
        f"the config of {hub_id} is not in the cache, and the hub cannot be reached; by its name it has the sizes of "
        f"this preset, in {formats_text or 'its published format'}. Its config.json as TARGET has the checkpoint's own"
    )
    description = {**read_preset(preset.name), "named_checkpoint": hub_id, "notes": (note,)}
    if is_in_16_bits:
        description.pop("quantization_config", None)
        description["dtype"] = "bfloat16"
    if quantization_config is not None:
        description["quantization_config"] = quantization_config
    return preset.name, preset.name, description
