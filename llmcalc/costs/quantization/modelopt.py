"""Configs of ModelOpt (NVIDIA): one algorithm for all linear layers, or one per named module (MIXED_PRECISION).

Layouts: modelopt/torch/export/quant_utils.py and unified_export_hf.py of NVIDIA/Model-Optimizer. Scales are fp32, but
those of blocks of NVFP4 (e4m3) and of the microscaling formats (e8m0), which have one byte; `weight_scale_2` and
`input_scale` are one fp32 number each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ...errors import InputError, short_repr
from .base import QuantizationScheme
from .fields import ConfigFields
from .formats import FP4, FP8, ActivationScales, AWQInt4, LinearFormat, WholeInt
from .linear import LayerGroup, LinearScheme
from .patterns import ModuleList

KV_CACHE_REMARK = "the config quantises the KV cache, too: give --kv-dtype; scales of it are not counted"
PRE_QUANT_SCALE_REMARK = (
    "pre_quant_scale, the scales of a layer's input that ModelOpt folds into the layers below where it can, is not "
    "counted"
)

FormatFunction: TypeAlias = Callable[[int | None], LinearFormat]
"""Function from the group size of a config, None if it states none, to the storage format."""

FORMAT_BY_ALGORITHM: dict[str, tuple[str, FormatFunction]] = {
    "FP8": ("fp8", lambda group: FP8("tensor", 4, 1)),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8-channel", lambda group: FP8("row")),
    "FP8_PB_WO": ("fp8-block", lambda group: FP8((group or 128, group or 128))),
    "FP8_BLOCK_SCALES": ("fp8-block", lambda group: FP8((group or 128, group or 128))),
    "MXFP8": ("mxfp8", lambda group: FP8((1, group or 32), 1)),
    "NVFP4": ("nvfp4", lambda group: FP4(group or 16, 1, 1)),
    "NVFP4_AWQ": ("nvfp4-awq", lambda group: FP4(group or 16, 1, 1)),
    "W4A16_NVFP4": ("w4a16-nvfp4", lambda group: FP4(group or 16, 1)),
    "W4A8_NVFP4_FP8": ("w4a8-nvfp4", lambda group: FP4(group or 16, 1, 1)),
    "W4A8_MXFP4_FP8": ("w4a8-mxfp4", lambda group: FP4(group or 32, 0, 1)),
    "W4A16_AWQ": ("w4a16-awq", lambda group: AWQInt4(group or 128)),
    "W4A8_AWQ": ("w4a8-awq", lambda group: AWQInt4(group or 128, extra_scale_count=2)),
    "W8A16": ("w8a16", lambda group: WholeInt("row", scale_bytes=4)),
    "W8A8_SQ_PER_CHANNEL": (
        "w8a8",
        lambda group: WholeInt("row", activation_scales=ActivationScales(1), scale_bytes=4),
    ),
}
"""`quant_algo` → (label, storage format)."""

ALGORITHMS_WITH_INPUT_SCALES = ("NVFP4_AWQ", "W4A16_AWQ", "W4A8_AWQ", "W8A8_SQ_PER_CHANNEL")
NO_ALGORITHM = ("UNQUANTIZED", "NONE")

EXPERT_NUMBER = re.compile(r"(?<=\bexperts\.)\d+(?=\.|$)")
"""The number of one expert in a module's name."""

IGNORED_FIELDS = ("has_zero_point", "pre_quant_scale", "kv_cache_quant_algo")


def read_modelopt(config: ConfigFields) -> QuantizationScheme:
    """Reads a ModelOpt config. Raises `InputError` for an unknown algorithm."""
    config.ignore("config_groups", "version", "moe_quant_algo", *IGNORED_FIELDS)
    quantization_algorithm, group_size = config.get("quant_algo"), config.get_group_size("group_size")
    scheme_remarks = (
        [KV_CACHE_REMARK] if any([config.get("kv_cache_scheme"), config.get("kv_cache_quant_algo")]) else []
    )
    excluded_modules = ModuleList(
        config.get_all_strings("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"),
        "modelopt",
        "ignore",
    )
    layers_table = config.get_table("quantized_layers")
    if quantization_algorithm == "MIXED_PRECISION":
        if layers_table is None or not layers_table.table_data:
            raise config.value_error("quantized_layers", None, "the algorithm of each module, for MIXED_PRECISION")
        module_groups, format_labels = groups_of_listed_layers(layers_table)
    else:
        if not isinstance(quantization_algorithm, str) or quantization_algorithm not in FORMAT_BY_ALGORITHM:
            raise InputError(
                f"quantization_config: quant_algo: {short_repr(quantization_algorithm)}; expected MIXED_PRECISION or "
                f"one of {', '.join(FORMAT_BY_ALGORITHM)}"
            )
        scheme_label, make_format = FORMAT_BY_ALGORITHM[quantization_algorithm]
        module_groups, format_labels = (LayerGroup(make_format(group_size)),), (quantization_algorithm,)
        if layers_table is not None:
            layers_table.ignore(*layers_table.table_data)
    if any(format_label in ALGORITHMS_WITH_INPUT_SCALES for format_label in format_labels):
        scheme_remarks.append(PRE_QUANT_SCALE_REMARK)
    scheme_label = "+".join(dict.fromkeys(FORMAT_BY_ALGORITHM[format_label][0] for format_label in format_labels))
    return LinearScheme(
        scheme_label,
        "ModelOpt",
        tuple(scheme_remarks),
        module_groups,
        converts_head=True,
        converts_outside_layers=True,
        excluded_modules=excluded_modules,
    )


def groups_of_listed_layers(layers_table: ConfigFields) -> tuple[tuple[LayerGroup, ...], tuple[str, ...]]:
    """Returns the module groups of the table `quantized_layers`; modules outside the table are not quantized.

    Raises `InputError` for experts of one layer with different formats.
    """
    modules_by_format: dict[LinearFormat | None, list[str]] = {}
    algorithms: dict[str, None] = {}
    format_by_module: dict[str, LinearFormat | None] = {}
    for module_name, (algorithm, storage_format) in _formats_by_module(layers_table):
        if algorithm:
            algorithms[algorithm] = None
        first_expert_name = EXPERT_NUMBER.sub("0", module_name)
        if first_expert_name in format_by_module:
            if format_by_module[first_expert_name] != storage_format:
                raise layers_table.value_error(module_name, algorithm, "the format of the layer's other experts")
            continue
        format_by_module[first_expert_name] = storage_format
        modules_by_format.setdefault(storage_format, []).append(first_expert_name)
    layer_groups = (
        LayerGroup(storage_format, ModuleList(module_names, "modelopt", "quantized_layers"))
        for storage_format, module_names in modules_by_format.items()
    )
    return tuple(layer_groups), tuple(algorithms)


def _formats_by_module(layers_table: ConfigFields) -> Iterator[tuple[str, tuple[str, LinearFormat | None]]]:
    """Yields (module, (algorithm, format)); the format is None for a module that is not quantized."""
    known_formats: dict[tuple[object, int | None], tuple[str, LinearFormat | None]] = {}
    for module_name, module_fields in layers_table.get_tables("a table with quant_algo"):
        algorithm, group_size = module_fields.get("quant_algo"), module_fields.get_group_size("group_size")
        module_fields.ignore(*IGNORED_FIELDS)
        module_fields.check_all_read()
        if algorithm is None or algorithm in NO_ALGORITHM:
            yield module_name, ("", None)
            continue
        if not isinstance(algorithm, str) or algorithm not in FORMAT_BY_ALGORITHM:
            raise module_fields.value_error("quant_algo", algorithm, f"one of {', '.join(FORMAT_BY_ALGORITHM)}")
        if (algorithm, group_size) not in known_formats:
            known_formats[algorithm, group_size] = (
                algorithm,
                FORMAT_BY_ALGORITHM[algorithm][1](group_size),
            )
        yield module_name, known_formats[algorithm, group_size]
