"""Configs of compressed-tensors (llm-compressor): groups of modules, each with a separate format.

The layouts are in `formats`. compressed-tensors: compressors/*, quantization/lifecycle/initialize.py at 0.20
(`weight_g_idx`, for actorder "group", at 0.10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .base import QuantizationScheme
from .fields import ConfigFields
from .formats import FP4, FP8, ActivationScales, LinearFormat, Marlin24, PackedInt, WholeExtent, WholeInt
from .linear import LayerGroup, LinearScheme
from .modelopt import KV_CACHE_REMARK
from .patterns import ModuleList

PACKING_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "marlin-24",
)
TRANSFORMS_REMARK = "matrices of transforms (transform_config) that run beside the layers are not counted"
IGNORED_ARGUMENTS = ("observer", "observer_kwargs", "dynamic", "actorder", "scale_dtype", "zp_dtype", "is_mse")
"""Fields of every compressed-tensors scheme, for weights or activations, that are ignored unless a check reads them."""


def read_compressed_tensors(config: ConfigFields) -> QuantizationScheme:
    """Reads a compressed-tensors config with the groups of `config_groups`.

    A module has the format of the group with its name, else of one with a pattern for it, else of that of `Linear`,
    in whichever order the groups are (compressed-tensors: `match_targets`; vLLM: `find_matched_target`).
    """
    config.ignore("version", "provider")
    sparsity_config, model_format = config.get("sparsity_config"), config.get("format")
    has_dense_weights = sparsity_config in (None, {}) or (
        isinstance(sparsity_config, dict) and sparsity_config.get("format") == "dense"
    )
    if not has_dense_weights and model_format != "marlin-24":  # which compresses the zeros itself
        raise config.value_error("sparsity_config", sparsity_config, "none, or the format dense")
    groups_table = config.get_table("config_groups")
    if groups_table is None or not groups_table.table_data:
        raise config.value_error("config_groups", None, "a table of groups")
    groups_by_precedence: dict[int, list[LayerGroup]] = {precedence: [] for precedence in range(len(TARGET_TESTS))}
    format_labels = []
    for _, group_table in groups_table.get_tables("how a group of modules is quantised"):
        target_names, storage_format, scheme_label = _read_group(group_table, model_format)
        for precedence, is_target in enumerate(TARGET_TESTS):
            layer_names = [target_name for target_name in target_names if is_target(target_name)]
            if layer_names:
                modules = None if "Linear" in layer_names else ModuleList(layer_names, "compressed-tensors", "targets")
                groups_by_precedence[precedence].append(LayerGroup(storage_format, modules))
        format_labels.append(scheme_label)
    module_groups = [group for groups in groups_by_precedence.values() for group in groups]
    excluded_modules = ModuleList(
        config.get_all_strings("ignore", "ignored_layers", "modules_to_not_convert"), "compressed-tensors", "ignore"
    )
    scheme_remarks = []
    if any(isinstance(module_group.format, PackedInt | WholeInt) for module_group in module_groups):
        scheme_remarks.append("scales in the model's own number format")
    if config.get("kv_cache_scheme"):
        scheme_remarks.append(KV_CACHE_REMARK)
    if config.get("transform_config"):
        scheme_remarks.append(TRANSFORMS_REMARK)
    return LinearScheme(
        "+".join(dict.fromkeys(format_labels)),
        "compressed-tensors",
        tuple(scheme_remarks),
        tuple(module_groups),
        converts_head=True,
        converts_outside_layers=True,
        excluded_modules=excluded_modules,
    )


TARGET_TESTS: tuple[Callable[[str], bool], ...] = (
    lambda target: target != "Linear" and not target.startswith("re:"),
    lambda target: target.startswith("re:"),
    lambda target: target == "Linear",
)
"""Tests for the kinds of a group's targets, the most specific first: module names, patterns, and all linear layers."""


def _read_group(config: ConfigFields, model_format: Any) -> tuple[list[str], LinearFormat, str]:
    """Returns a module group's target modules, the storage format of their weights, and the format's label."""
    config.check_field_value("output_activations", None)
    target_names = config.get_strings("targets")
    weights_table, input_fields = config.get_table("weights"), config.get_table("input_activations")
    layout = config.get("format") or model_format
    config.check_all_read()
    if weights_table is None:
        raise config.value_error("weights", None, "how weights are quantised")
    if not target_names:
        raise config.value_error("targets", target_names, "module names or Linear")
    return (target_names, *_storage_format(weights_table, layout, _stored_activation_scales(input_fields)))


def _stored_activation_scales(input_fields: ConfigFields | None) -> ActivationScales:
    """Returns the stored activation scales: none for dynamic scales, one if only group scales are dynamic."""
    if input_fields is None:
        return ActivationScales()
    input_fields.ignore("num_bits", "type", "group_size", "block_structure", *IGNORED_ARGUMENTS)
    dynamic_mode = input_fields.get("dynamic", False)
    scale_strategy = input_fields.get("strategy")
    is_symmetric = input_fields.get("symmetric", True)
    input_fields.check_all_read()
    input_fields.check_choice("dynamic", dynamic_mode, True, False, "local")
    input_fields.check_choice("symmetric", is_symmetric, True, False)
    if dynamic_mode is False:
        input_fields.check_choice("strategy", scale_strategy, "tensor", None)
    return ActivationScales() if dynamic_mode is True else ActivationScales(1, 0 if is_symmetric else 1)


class _WeightFields(NamedTuple):
    """How a compressed-tensors config stores the weights of a module group: bits, scales and packing.

    weight_table: the table, for errors.
    packing_format: storage format, one of `PACKING_FORMATS`.
    bits: bits per weight.
    group_size: columns that share a scale; None for a whole row.
    block_shape: (rows, columns) that share a scale; None without blocks.
    """

    weight_table: ConfigFields
    packing_format: str
    element_type: str
    bits: Any
    group_size: int | None
    block_shape: tuple[int, int] | None
    scale_strategy: str
    is_symmetric: bool


def _read_weight_fields(weight_fields: ConfigFields, layout: Any) -> _WeightFields:
    """Reads and checks the config fields `weights` of a module group, which all formats share."""
    weight_fields.ignore(*IGNORED_ARGUMENTS)
    weight_fields.check_field_value("dynamic", False, None)
    element_type = weight_fields.get("type", "int")
    bits = weight_fields.get("num_bits")
    group_size = weight_fields.get_group_size("group_size")
    is_symmetric = weight_fields.get("symmetric", True)
    scale_strategy = weight_fields.get("strategy") or ("tensor" if group_size is None else "group")
    block_shape = weight_fields.get_integer_pair("block_structure")
    weight_fields.check_all_read()
    weight_fields.check_choice("strategy", scale_strategy, "tensor", "channel", "group", "block", "tensor_group")
    weight_fields.check_choice("symmetric", is_symmetric, True, False)
    weight_fields.check_choice("type", element_type, "int", "float")
    if scale_strategy in ("group", "tensor_group") and group_size is None:
        raise weight_fields.value_error("group_size", group_size, "a positive whole number for that strategy")
    if not isinstance(layout, str) or layout not in PACKING_FORMATS:
        raise weight_fields.value_error("format", layout, "one of " + ", ".join(PACKING_FORMATS))
    return _WeightFields(
        weight_fields, layout, element_type, bits, group_size, block_shape, scale_strategy, is_symmetric
    )


def _storage_format(
    group_table: ConfigFields, layout: Any, activation_scales: ActivationScales
) -> tuple[LinearFormat, str]:
    """Returns the storage format of a module group, and the format's label."""
    weights = _read_weight_fields(group_table, layout)
    if weights.element_type == "float":
        return _fp4_format(weights, activation_scales) if weights.bits == 4 else _fp8_format(weights, activation_scales)
    if weights.packing_format == "marlin-24":
        return _marlin_24_format(weights)
    return (
        _packed_int_format(weights)
        if weights.packing_format == "pack-quantized"
        else _whole_int_format(weights, activation_scales)
    )


def _marlin_24_format(weights: _WeightFields) -> tuple[LinearFormat, str]:
    """Returns the format of symmetric integer weights with two zeros among every four weights (2:4 sparsity)."""
    weights.weight_table.check_choice("num_bits", weights.bits, 4, 8)
    weights.weight_table.check_choice("strategy", weights.scale_strategy, "channel", "group")
    weights.weight_table.check_choice("symmetric", weights.is_symmetric, True)
    group_size = weights.group_size if weights.scale_strategy == "group" else None
    weights.weight_table.check_choice("group_size", group_size, None, 128)
    return Marlin24(weights.bits, group_size), f"marlin24-w{weights.bits}a16"


def _fp4_format(weights: _WeightFields, activation_scales: ActivationScales) -> tuple[LinearFormat, str]:
    weights.weight_table.check_choice("symmetric", weights.is_symmetric, True)
    match weights.scale_strategy, weights.packing_format:
        case "tensor_group", "nvfp4-pack-quantized":
            return FP4(weights.group_size or 16, 1, activation_scales.scale_count), "nvfp4"
        case "group", "mxfp4-pack-quantized":
            return FP4(weights.group_size or 32, 0), "mxfp4-linear"
    expected_formats = "nvfp4-pack-quantized with tensor_group or mxfp4-pack-quantized with group, for 4-bit floats"
    raise weights.weight_table.value_error("format", weights.packing_format, expected_formats)


def _fp8_format(weights: _WeightFields, activation_scales: ActivationScales) -> tuple[LinearFormat, str]:
    """Returns the format of fp8 weights, and the element type's name."""
    weight_fields = weights.weight_table
    scale_strategy = weights.scale_strategy
    is_microscaling = weights.packing_format == "mxfp8-quantized"
    weight_fields.check_choice("num_bits", weights.bits, 8)
    weight_fields.check_choice("symmetric", weights.is_symmetric, True)
    weight_fields.check_choice("strategy", scale_strategy, "tensor", "channel", "block", "group")
    scale_extent: tuple[int, int] | WholeExtent = "tensor" if scale_strategy == "tensor" else "row"
    if scale_strategy == "group":
        scale_extent = (1, weights.group_size or 32)
    if scale_strategy == "block":
        if weights.block_shape is None:
            raise weight_fields.value_error("block_structure", weights.block_shape, "two positive whole numbers")
        scale_extent = weights.block_shape
    if is_microscaling:
        weight_fields.check_choice("strategy", scale_strategy, "group")
    return FP8(
        scale_extent, 1 if is_microscaling else None, activation_scales.scale_count, activation_scales.zero_point_count
    ), "fp8"


def _packed_int_format(weights: _WeightFields) -> tuple[LinearFormat, str]:
    weight_fields, bits, scale_strategy = weights.weight_table, weights.bits, weights.scale_strategy
    weight_fields.check_choice("num_bits", bits, 2, 3, 4, 5, 6, 7, 8)
    weight_fields.check_choice("strategy", scale_strategy, "tensor", "channel", "group")
    group_size = weights.group_size if scale_strategy == "group" else None
    has_indices = weight_fields.get("actorder") in ("group", True)
    packed_format = PackedInt(
        bits, group_size, weights.is_symmetric, has_indices, has_tensor_scale=scale_strategy == "tensor"
    )
    return packed_format, f"w{bits}a16" + ("" if group_size is None else f"-g{group_size}")


def _whole_int_format(weights: _WeightFields, activation_scales: ActivationScales) -> tuple[LinearFormat, str]:
    """Returns the integer format that stores each code in one byte, and the format's label."""
    bits, scale_strategy = weights.bits, weights.scale_strategy
    weights.weight_table.check_choice("num_bits", bits, 2, 3, 4, 5, 6, 7, 8)
    weights.weight_table.check_choice("strategy", scale_strategy, "channel", "tensor", "group")
    scale_extent: int | WholeExtent = "tensor" if scale_strategy == "tensor" else "row"
    if scale_strategy == "group" and weights.group_size is not None:
        scale_extent = weights.group_size
    return WholeInt(scale_extent, weights.is_symmetric, activation_scales), f"w{bits}a8"
