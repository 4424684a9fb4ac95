"""Configs of libraries with a single format: auto-round, HQQ, Quark, torchao, quanto, AQLM, VPTQ, EXL2 and EXL3.

Also three of `transformers` itself: Metal, HIGGS, and Gemma's static ranges (integrations/metal_quantization.py,
higgs.py, gemma_quant.py).

Layouts: auto_round_extension/torch/qlinear_torch.py of intel/auto-round; hqq/core/quantize.py of mobiusml/hqq;
`QuantizedLinear` of Vahe1994/AQLM; optimum/quanto/tensor/weights; exllamav2 and exllamav3 of turboderp-org,
doc/exl3.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from .base import QuantizationScheme
from .fields import LARGEST_INTEGER, NO_FIELDS, ConfigFields
from .formats import (
    AQLM,
    AWQ,
    FP4,
    FP8,
    GPTQ,
    HQQ,
    VPTQ,
    ActivationScales,
    AverageBits,
    GroupedCodes,
    Higgs,
    LinearFormat,
    MetalInt,
    QuantoInt,
    StaticRange,
    TrellisCodes,
    WholeInt,
)
from .linear import LayerGroup, LinearScheme, module_list_of_fields, scheme_of_every_linear
from .modelopt import KV_CACHE_REMARK
from .patterns import MAX_ENTRIES, ModuleList

PATTERN_CHARACTERS = set("*+?[](){}|\\^$")

MAX_PATTERNS = 200

HQQ_REMARK = "tensors that describe a layer (69 bytes in hqq 0.2.8) are not counted"
AVERAGE_BITS_REMARK = "bits per weight are the average that the converter aims at: its layers differ"
TORCHAO_REMARK = (
    "bytes of the tensors of torchao 0.18 (int8: scales in fp32, zero points of a byte); what else its Python objects "
    "hold is not counted"
)


AUTO_ROUND_FIELDS = (
    "act_bits", "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version", "backend",
    "batch_size", "block_name_to_quantize", "dataset", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "enable_quanted_input", "gradient_accumulate_steps", "iters", "low_gpu_mem_usage", "lr", "minmax_lr", "nsamples",
    "quant_block_list", "scale_dtype", "seqlen", "super_bits", "super_group_size", "supported_types", "sym",
    "to_quant_block_names", "train_bs", "enable_alg_ext", "model_free", "static_kv_dtype",
)  # fmt: skip
"""Config fields of AutoRound that change no stored bytes: how codes were found, and what is not stored."""


def ignore_settings_of_auto_round(config: ConfigFields) -> None:
    """Marks the fields that AutoRound adds to a config as ignored, also in its AWQ and GPTQ exports."""
    config.ignore(*AUTO_ROUND_FIELDS)
    config.check_field_value("provider", "auto-round", default_value="auto-round")


def read_auto_round(scheme_fields: ConfigFields) -> QuantizationScheme:
    """Reads an auto-round config: GPTQ's layout without `g_idx`, AWQ's, or llm-compressor's 4- and 8-bit floats.

    `extra_config` has the format of single layers.
    """
    static_scales = 1 if "static" in str(scheme_fields.get("act_data_type")) else 0
    ignore_settings_of_auto_round(scheme_fields)
    default_type = scheme_fields.get("data_type", "int")
    packing_format = scheme_fields.get("packing_format", "auto_round:auto_gptq")
    if not isinstance(packing_format, str) or not packing_format.startswith("auto_round"):
        raise scheme_fields.value_error("packing_format", packing_format, "auto_round:auto_gptq or auto_round:auto_awq")
    bits, group_size = scheme_fields.get("bits"), scheme_fields.get_group_size("group_size", 128)

    def storage_format_of(module_fields: ConfigFields, bits: Any, group_size: int | None) -> LinearFormat | None:
        if bits is not None and type(bits) is int and bits >= 16:
            return None
        data_type = module_fields.get("data_type", default_type)
        module_fields.check_choice("data_type", data_type, "int", "mx_fp", "nv_fp")
        if data_type != "int":
            module_fields.check_choice("bits", bits, *((4, 8) if data_type == "mx_fp" else (4,)))
            scale_block = 32 if data_type == "mx_fp" else 16
            if group_size != scale_block:
                raise module_fields.value_error("group_size", group_size, f"{scale_block}, the block of {data_type}")
            if bits == 8:
                return FP8((1, scale_block), 1)
            return FP4(scale_block, *((1, static_scales) if data_type == "nv_fp" else ()))
        module_fields.check_choice("bits", bits, 2, 3, 4, 8)
        if "awq" in packing_format:
            return AWQ(group_size, bits)
        return GPTQ(bits, group_size, has_group_indices="gptqmodel" in packing_format)

    module_groups: list[LayerGroup] = []
    extra_config = scheme_fields.get_table("extra_config") or NO_FIELDS
    for module_pattern, module_fields in extra_config.get_tables("a table of fields for each module"):
        module_group_size = module_fields.get_group_size("group_size", group_size)
        override_format = storage_format_of(module_fields, module_fields.get("bits", bits), module_group_size)
        list_entry = f"re:{module_pattern}" if set(module_pattern) & PATTERN_CHARACTERS else module_pattern
        module_groups.append(
            LayerGroup(override_format, ModuleList([list_entry], "compressed-tensors", "extra_config"))
        )
    default_format = storage_format_of(scheme_fields, bits, group_size)
    number_prefix = {"mx_fp": "mxfp", "nv_fp": "nvfp"}.get(default_type, "int")
    scheme_label = f"auto-round-{number_prefix}{bits}" + ("" if group_size is None else f"-g{group_size}")
    return LinearScheme(
        scheme_label,
        "auto-round",
        (),
        (*module_groups, LayerGroup(default_format)),
        excluded_modules=module_list_of_fields(scheme_fields),
    )


def read_hqq(config: ConfigFields) -> QuantizationScheme:
    """Reads an HQQ config: one format for all layers but the skipped ones, or separate formats of named layers.

    Layers are named without `model`, `layers` and numbers, such as `self_attn.q_proj`; others than the named ones stay
    unconverted (transformers, integrations/hqq.py, `prepare_for_hqq_linear`).
    """
    quant_table = config.get_table("quant_config")
    if quant_table is not None and quant_table.table_data and not set(quant_table.table_data) & HQQ_FIELDS:
        module_groups = [
            LayerGroup(_hqq_format(module_fields), ModuleList([module_name], config_field="quant_config"))
            for module_name, module_fields in quant_table.get_tables("a table of fields for each layer")
        ]
        scheme_label = "hqq"
    else:
        storage_format = _hqq_format(config if quant_table is None else quant_table)
        module_groups = [LayerGroup(storage_format)]
        scheme_label = f"hqq-int{storage_format.bits}-g{storage_format.group_size}"
    skipped_modules = ModuleList(config.get_strings("skip_modules") or ["lm_head"], config_field="skip_modules")
    return LinearScheme(
        scheme_label, "HQQ", (HQQ_REMARK,), tuple(module_groups), converts_head=True, converts_outside_layers=True,
        excluded_modules=skipped_modules,
    )  # fmt: skip


HQQ_FIELDS = frozenset(
    (
        "weight_quant_params", "scale_quant_params", "zero_quant_params", "offload_meta", "nbits", "bits", "group_size",
        "channel_wise", "axis", "optimize", "round_zero", "view_as_float", "bitpack",
    )
)  # fmt: skip
"""Fields of a storage format in HQQ's `quant_config`; other keys there are layer names."""


def _hqq_format(format_fields: ConfigFields) -> HQQ:
    """Returns the storage format that a table with the fields `HQQ_FIELDS` describes."""
    weights_table = format_fields.get_table("weight_quant_params") or format_fields
    format_fields.check_field_value("scale_quant_params", None)
    format_fields.check_field_value("zero_quant_params", None)
    format_fields.ignore("offload_meta")
    weights_table.ignore("channel_wise", "axis", "optimize", "round_zero", "view_as_float", "bitpack")
    bits = weights_table.get("nbits", weights_table.get("bits", 4))
    group_size = weights_table.get_group_size("group_size", 64)
    weights_table.check_choice("nbits", bits, 1, 2, 3, 4, 8)
    if group_size is None:
        raise weights_table.value_error("group_size", group_size, "a positive whole number")
    if "quant_method" not in weights_table.table_data:  # the whole config has further fields
        weights_table.check_all_read()
    return HQQ(bits, group_size)


QUARK_SCALE_BYTES = {"float": None, "float32": 4, "float16": 2, "bfloat16": 2}
"""The `scale_type` of Quark's FP8 → bytes of a scale; None for the model's number format."""


def read_quark(scheme_fields: ConfigFields) -> QuantizationScheme:
    """Reads a config of AMD's Quark: FP8 or MXFP4, by module in `layer_quant_config`."""
    scheme_fields.ignore(
        "algo_config",
        "export",
        "kv_cache_post_rope",
        "layer_type_quant_config",
        "quant_mode",
        "softmax_quant_spec",
        "version",
    )
    global_config = scheme_fields.get_table("global_quant_config")
    layer_tables = scheme_fields.get_table("layer_quant_config") or NO_FIELDS
    scheme_remarks = (KV_CACHE_REMARK,) if scheme_fields.get("kv_cache_quant_config") else ()
    layer_groups: list[LayerGroup] = []
    format_labels: list[str] = []
    for module_name, module_fields in layer_tables.get_tables("how a group of modules is quantised"):
        storage_format, scheme_label = _quark_format(module_fields)
        layer_groups.append(LayerGroup(storage_format, ModuleList([module_name], "modelopt", "layer_quant_config")))
        format_labels.append(scheme_label)
    if global_config is not None and global_config.table_data:
        storage_format, scheme_label = _quark_format(global_config)
        layer_groups.append(LayerGroup(storage_format))
        format_labels.append(scheme_label)
    if not layer_groups:
        raise scheme_fields.value_error("global_quant_config", None, "how weights are quantised")
    return LinearScheme(
        "+".join(dict.fromkeys(filter(None, format_labels))),
        "Quark",
        scheme_remarks,
        tuple(layer_groups),
        converts_head=True,
        converts_outside_layers=True,
        excluded_modules=ModuleList(scheme_fields.get_strings("exclude"), "modelopt", "exclude"),
    )


def _quark_format(config: ConfigFields) -> tuple[LinearFormat | None, str]:
    """Returns the storage format of a module group (None for unquantized weights), and a label.

    Scales of FP8 have the model's number format, unless scale_type states another one (Quark 0.13).
    """
    weights_table, input_fields = config.get_table("weight"), config.get_table("input_tensors")
    config.check_field_value("output_tensors", None)
    config.check_field_value("bias", None)
    config.ignore("target_device")
    config.check_all_read()
    if weights_table is None:
        return None, ""
    format_name = weights_table.get("dtype")
    scheme_name = weights_table.get("qscheme")
    group_size = weights_table.get_group_size("group_size")
    static_scales = 0 if input_fields is None or input_fields.get("is_dynamic") else 1
    if format_name in ("fp4", "fp4_e2m1"):
        weights_table.check_choice("qscheme", scheme_name, "per_group")
        return FP4(group_size or 32), "mxfp4"
    weights_table.check_choice("dtype", format_name, "fp8_e4m3", "fp4")
    weights_table.check_choice("qscheme", scheme_name, "per_tensor", "per_channel")
    scale_type = weights_table.get("scale_type", None)
    weights_table.check_choice("scale_type", scale_type, None, *QUARK_SCALE_BYTES)
    scale_bytes = QUARK_SCALE_BYTES.get(scale_type)
    return FP8("tensor" if scheme_name == "per_tensor" else "row", scale_bytes, static_scales), "fp8"


def read_torchao(config: ConfigFields) -> QuantizationScheme:
    """Reads a torchao config: weights in int4, int8, FP8 or 1- to 8-bit integers, or formats by module.

    `FqnToConfig` has the formats of modules by name or `re:` and a pattern, `_default` that of other linear layers.
    Embeddings and the output head are converted with `include_input_output_embeddings` alone.
    """
    converts_embeddings = config.get("include_input_output_embeddings", False) is True
    config.ignore("untie_embedding_weights")
    stated_type, type_arguments = config.get("quant_type"), config.get("quant_type_kwargs")
    if isinstance(stated_type, dict):
        stated_type = stated_type.get("default")
    type_name, type_data = _torchao_type(stated_type)
    type_fields = ConfigFields(
        type_data or (type_arguments if isinstance(type_arguments, dict) else {}), config.table_origin
    )
    module_types = type_fields.get("fqn_to_config") or type_fields.get("module_fqn_to_config")
    if not isinstance(module_types, dict):
        labels_and_groups = [_torchao_group(config, type_name, type_fields, None)]
    else:
        labels_and_groups = [
            ("", LayerGroup(None, _torchao_modules(module_name)))
            if module_type is None
            else _torchao_group(
                config,
                _torchao_type(module_type)[0],
                ConfigFields(_torchao_type(module_type)[1], f"{config.table_origin}: {module_name}"),
                _torchao_modules(module_name),
            )
            for module_name, module_type in sorted(module_types.items(), key=_torchao_precedence)
        ]
    format_labels = dict.fromkeys(label for label, _ in reversed(labels_and_groups) if label)
    quantization_scheme = LinearScheme(
        f"torchao-{'+'.join(format_labels)}",
        "torchao",
        (TORCHAO_REMARK,),
        tuple(module_group for _, module_group in labels_and_groups),
        converts_head=converts_embeddings,
        converts_embeddings=converts_embeddings,
        converts_outside_layers=True,
    )
    return replace(quantization_scheme, excluded_modules=module_list_of_fields(config))


def _torchao_type(typed_value: Any) -> tuple[str, dict[str, Any]]:
    """Returns class name and fields of a torchao config, given as a name or as a table of `_type` and `_data`."""
    if not isinstance(typed_value, dict):
        return str(typed_value), {}
    type_data = typed_value.get("_data")
    return str(typed_value.get("_type")), type_data if isinstance(type_data, dict) else {}


def _torchao_precedence(module_type: tuple[str, Any]) -> tuple[bool, bool]:
    """Returns a sort key for the keys of `FqnToConfig` in torchao's look-up order: names, patterns, the default."""
    return module_type[0] == "_default", module_type[0].startswith("re:")


def _torchao_modules(module_name: str) -> ModuleList | None:
    """Returns the modules that a key of `FqnToConfig` names; None for the key of all other modules."""
    return None if module_name == "_default" else ModuleList([module_name], "compressed-tensors", "fqn_to_config")


def _torchao_group(
    config: ConfigFields, type_name: str, type_fields: ConfigFields, modules: ModuleList | None
) -> tuple[str, LayerGroup]:
    """Returns label and storage format of a torchao config class. Raises `InputError` for an unsupported class."""
    format_name = type_name.lower().replace("_", "").removesuffix("config")
    if format_name in ("int8dynamicactivationintxweight", "intxweightonly"):
        return _torchao_unpacked_int(format_name, type_fields, modules)
    group_size = type_fields.get_group_size("group_size")
    int8_format = WholeInt(is_symmetric=False, scale_bytes=4)
    labelled_formats: dict[str, tuple[str, LinearFormat]] = {
        "int4weightonly": (f"int4-g{group_size or 128}", GroupedCodes(4, group_size or 128)),
        "int8weightonly": (
            "int8",
            int8_format if group_size is None else replace(int8_format, scale_extent=group_size),
        ),
        "int8dynamicactivationint8weight": ("w8a8", int8_format),
        "float8weightonly": ("fp8-channel", FP8("row")),
        "float8dynamicactivationfloat8weight": ("fp8-channel", FP8("row")),
    }
    if format_name not in labelled_formats:
        raise config.value_error(
            "quant_type", config.get("quant_type"), "weights in int4, int8 or float8, such as Int4WeightOnlyConfig"
        )
    scheme_label, storage_format = labelled_formats[format_name]
    return scheme_label, LayerGroup(storage_format, modules)


def _torchao_value(type_fields: ConfigFields, field_name: str, default_value: Any = None) -> Any:
    """Returns a torchao config's field; for a table that encodes an enum or a number format, the encoded name."""
    field_value = type_fields.get(field_name, default_value)
    return field_value.get("_data") if isinstance(field_value, dict) else field_value


def _torchao_unpacked_int(
    format_name: str, type_fields: ConfigFields, modules: ModuleList | None
) -> tuple[str, LayerGroup]:
    """Returns the format of 1- to 8-bit integers that each take a byte, with one-byte scales and zero points.

    format_name: the config's class, whose fields and default differ: `granularity` of `intxweightonly`, a row; else
    `weight_granularity`, groups of 32.

    Source: pytorch/ao at 36027d8, quantization/quant_api.py and its intx_unpacked_to_int8_tensor.py. The packed formats
    depend on the CPU that packs.
    """
    field_prefix, usual_granularity = ("", "PerAxis") if format_name == "intxweightonly" else ("weight_", "PerGroup")
    packing = _torchao_value(type_fields, "intx_packing_format", "unpacked_to_int8")
    if str(packing).lower() != "unpacked_to_int8":
        raise type_fields.value_error("intx_packing_format", packing, "unpacked_to_int8")
    granularity_name, granularity = _torchao_type(type_fields.get(f"{field_prefix}granularity", usual_granularity))
    scale_dtype = _torchao_value(type_fields, f"{field_prefix}scale_dtype")
    type_fields.check_choice(f"{field_prefix}scale_dtype", scale_dtype, None, "float32", "float16", "bfloat16")
    type_fields.check_choice(f"{field_prefix}granularity", granularity_name, "PerGroup", "PerAxis")
    group_size = None
    if granularity_name == "PerGroup":
        group_size = ConfigFields(granularity, type_fields.table_origin).get_group_size("group_size", 32)
    weight_dtype = _torchao_value(type_fields, "weight_dtype", "int8")
    type_fields.check_choice("weight_dtype", weight_dtype, *(f"int{bits}" for bits in range(1, 9)))
    scale_bytes = {None: None, "float32": 4}.get(scale_dtype, 2)
    storage_format = WholeInt(group_size or "row", is_symmetric=False, scale_bytes=scale_bytes)
    group_suffix = "" if group_size is None else f"-g{group_size}"
    return f"{weight_dtype}{group_suffix}-in-bytes", LayerGroup(storage_format, modules)


def read_quanto(config: ConfigFields) -> QuantizationScheme:
    """Reads a quanto config. Each layer also stores two activation scales."""
    config.check_field_value("activations", None, "int8", "float8")
    format_name = config.get("weights", "int8")
    formats_by_name: dict[str, LinearFormat] = {
        "int8": WholeInt(activation_scales=ActivationScales(2)), "float8": FP8("row", None, 2), "int4": QuantoInt(4),
        "int2": QuantoInt(2),
    }  # fmt: skip
    config.check_choice("weights", format_name, *formats_by_name)
    quantization_scheme = LinearScheme(
        f"quanto-{format_name}", "quanto", (), (LayerGroup(formats_by_name[format_name]),), converts_outside_layers=True
    )
    return replace(quantization_scheme, excluded_modules=module_list_of_fields(config))


def read_aqlm(config: ConfigFields) -> QuantizationScheme:
    """Reads an AQLM config: codes of groups of weights in code books."""
    column_group = config.get_group_size("in_group_size", 8) or 8
    row_group = config.get_group_size("out_group_size", 1) or 1
    codebook_count, code_bits = config.get_group_size("num_codebooks", 1) or 1, config.get("nbits_per_codebook", 16)
    config.check_choice("nbits_per_codebook", code_bits, *range(1, 17))
    module_names = [
        module_name.removesuffix(".weight") for module_name in config.get_strings("linear_weights_not_to_quantize")
    ]
    skipped_modules = ModuleList(module_names, config_field="linear_weights_not_to_quantize")
    storage_format = AQLM(column_group, row_group, codebook_count, code_bits)
    return LinearScheme(
        f"aqlm-{codebook_count}x{code_bits}",
        "AQLM",
        (),
        (LayerGroup(storage_format),),
        converts_head=True,
        converts_outside_layers=True,
        excluded_modules=skipped_modules,
    )


def read_vptq(config: ConfigFields) -> QuantizationScheme:
    """Reads a VPTQ config, which has the format of every layer by name in `config_for_layers`.

    Source: microsoft/VPTQ, vptq/layers/vqlinear.py, `VQuantLinear`, and transformers, integrations/vptq.py.
    """
    config.check_field_value("enable_proxy_error", False, None)
    config.check_field_value("shared_layer_config", None, {})
    layer_tables = config.get_table("config_for_layers") or NO_FIELDS
    if len(layer_tables.table_data) > MAX_ENTRIES:
        raise config.value_error("config_for_layers", len(layer_tables.table_data), f"at most {MAX_ENTRIES:,} layers")
    modules_by_format: dict[VPTQ, list[str]] = {}
    for layer_name, layer_fields in layer_tables.get_tables("a table of fields for each layer"):
        modules_by_format.setdefault(_vptq_format(layer_fields), []).append(layer_name)
    if not modules_by_format:
        raise config.value_error("config_for_layers", None, "the format of each layer")
    layer_groups = tuple(
        LayerGroup(storage_format, ModuleList(format_layer_names, "compressed-tensors", "config_for_layers"))
        for storage_format, format_layer_names in modules_by_format.items()
    )
    return LinearScheme(
        "vptq", "VPTQ", (), layer_groups, converts_head=True, converts_outside_layers=True,
        excluded_modules=module_list_of_fields(config),
    )  # fmt: skip


def _vptq_format(layer_fields: ConfigFields) -> VPTQ:
    """Returns the VPTQ format that a layer's table describes."""
    layer_fields.ignore("in_features", "out_features", "bias", "indices_as_float")
    layer_fields.check_field_value("is_indice_packed", True, default_value=True)
    layer_fields.check_field_value("vector_quant_dim", "out", default_value="out")
    size_pairs = [
        layer_fields.get_integer_pair(field_name, minimum=-1) or (-1, -1)
        for field_name in ("vector_lens", "num_centroids", "num_res_centroids")
    ]  # of outlier columns and of all other ones; -1 for none
    (outlier_length, vector_length), (outlier_centroid_count, centroid_count), (_, residual_centroid_count) = size_pairs
    codebook_count, group_columns = layer_fields.get("group_num", 1), layer_fields.get_group_size("group_size")
    has_norm, has_permutation = layer_fields.get("enable_norm", True), layer_fields.get("enable_perm", True)
    outlier_columns = layer_fields.get("outlier_size", 0)
    for field_name, field_value in (("group_num", codebook_count), ("outlier_size", outlier_columns)):
        if type(field_value) is not int or not 0 <= field_value <= LARGEST_INTEGER:
            raise layer_fields.value_error(field_name, field_value, "a whole number")
    for field_name, flag_value in (("enable_norm", has_norm), ("enable_perm", has_permutation)):
        layer_fields.check_choice(field_name, flag_value, True, False)
    group_columns = group_columns or 0
    for field_name, size_value in (
        ("vector_lens", vector_length),
        ("num_centroids", centroid_count),
        ("group_num", codebook_count),
        ("group_size", group_columns),
    ):
        if size_value < 1:
            raise layer_fields.value_error(field_name, size_value, "a positive whole number")
    layer_fields.check_all_read()
    outliers = (
        (outlier_columns, outlier_length, outlier_centroid_count)
        if outlier_length > 1 and outlier_centroid_count > 0
        else None
    )
    return VPTQ(
        vector_length,
        centroid_count,
        max(residual_centroid_count, 0),
        codebook_count,
        group_columns,
        has_norm,
        has_permutation,
        outliers,
    )


def read_metal(config: ConfigFields) -> QuantizationScheme:
    """Reads the config of MetalLinear, `transformers`' quantized layer for Apple's GPUs."""
    config.ignore("dequantize")
    return _integer_scheme(config, "metal", MetalInt, (2, 4, 8), default_group=64)


def read_higgs(config: ConfigFields) -> QuantizationScheme:
    """Reads a HIGGS config (transformers): bits and group size of all linear layers."""
    config.ignore("hadamard_size", "p", "tune_metadata")
    return _integer_scheme(config, "higgs", Higgs, (2, 3, 4), default_group=256)


def _integer_scheme(
    config: ConfigFields, method_name: str, format_class: Any, bit_choices: Sequence[int], default_group: int
) -> QuantizationScheme:
    """Returns the scheme of a transformers method with integer codes in column groups, by default of 4 bits."""
    bits, group_size = config.get("bits", 4), config.get_group_size("group_size", default_group) or default_group
    config.check_choice("bits", bits, *bit_choices)
    layer_groups = (LayerGroup(format_class(bits, group_size)),)
    scheme = LinearScheme(f"{method_name}-int{bits}-g{group_size}", "transformers", (), layer_groups)
    return scheme_of_every_linear(config, scheme)


BLOCK_SCALES_REMARK = (
    "tables of embeddings have one scale a row, as transformers builds them, and encoders are not converted; "
    "checkpoints may have more scales (that of Gemma 4 E2B for mobile devices has 2.46 GB with its encoders, 3 % more "
    "than its class)"
)


def read_gemma(scheme_fields: ConfigFields) -> QuantizationScheme:
    """Reads the config of Google's quantized Gemma, whose `module_quant_configs` overrides the bits of modules."""
    quantizes_tables = scheme_fields.get("quantize_embeddings", False)
    scheme_fields.check_choice("quantize_embeddings", quantizes_tables, False, True)
    bits, module_tables = scheme_fields.get("num_bits", 4), scheme_fields.get_table("module_quant_configs") or NO_FIELDS
    scheme_fields.check_choice("num_bits", bits, 2, 4, 8)
    module_groups: list[LayerGroup] = []
    if len(module_tables.table_data) > MAX_PATTERNS:
        raise scheme_fields.value_error(
            "module_quant_configs", len(module_tables.table_data), f"at most {MAX_PATTERNS} patterns"
        )
    for module_pattern, module_fields in module_tables.get_tables("a table of fields for each pattern"):
        module_bits = module_fields.get("num_bits", bits)
        module_fields.check_choice("num_bits", module_bits, 2, 4, 8)
        module_fields.check_all_read()
        named_modules = ModuleList([f"re:.*(?:{module_pattern})"], "compressed-tensors", "module_quant_configs")
        module_groups.append(LayerGroup(StaticRange(module_bits), named_modules))
    quantization_scheme = scheme_of_every_linear(
        scheme_fields, LinearScheme(f"gemma-int{bits}", "transformers", (), (LayerGroup(StaticRange(bits)),))
    )
    scheme_remarks = (BLOCK_SCALES_REMARK,) if quantizes_tables else ()
    return replace(
        quantization_scheme,
        groups=(*module_groups, *quantization_scheme.groups),
        converts_embeddings=quantizes_tables,
        remarks=(*quantization_scheme.remarks, *scheme_remarks),
    )


def read_exllama(library_name: Literal["exl2", "exl3"], config: ConfigFields) -> QuantizationScheme:
    """Reads an ExLlama config; EXL3 layers also store a multiplier unless their codebook is the default `3inst`."""
    codebook = config.get("codebook", "3inst")
    config.check_choice("codebook", codebook, "3inst", "mcg", "mul1")
    config.ignore("version", "calibration", "out_scales", "tensor_storage", "original_quantization_config")
    bits, head_bits = _average_bits(config, "bits", None), _average_bits(config, "head_bits", 6)

    def format_with_bits(bits_per_weight: Fraction) -> LinearFormat:
        if library_name == "exl2":
            return AverageBits(bits_per_weight)
        return TrellisCodes(bits_per_weight, codebook != "3inst")

    head_group = LayerGroup(format_with_bits(head_bits), ModuleList(["lm_head"], "compressed-tensors", "head_bits"))
    has_exact_bits = bits.denominator == 1 and head_bits.denominator == 1 and library_name == "exl3"
    scheme_remarks = () if has_exact_bits else (AVERAGE_BITS_REMARK,)
    layer_groups = (head_group, LayerGroup(format_with_bits(bits)))
    return LinearScheme(
        f"{library_name}-{float(bits):g}",
        f"exllamav{library_name[-1]}",
        scheme_remarks,
        layer_groups,
        converts_head=True,
    )


def _average_bits(config: ConfigFields, field_name: str, default_bits: float | None) -> Fraction:
    field_value = config.get(field_name, default_bits)
    if type(field_value) not in (int, float) or not 0 < field_value <= 16:
        raise config.value_error(field_name, field_value, "a number of bits above 0 and at most 16")
    return Fraction(str(field_value))
