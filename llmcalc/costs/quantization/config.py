"""Reads the quantization scheme of a checkpoint from its Hugging Face `quantization_config`.

Fields are those of `transformers.utils.quantization_config` and, for compressed-tensors and ModelOpt, of those
libraries' own configs. An unknown field is an error, because it could change the stored tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import InputError, short_repr, suggest
from ...record import TEXT_SECTIONS
from . import libraries, schemes_by_name
from .base import UNCOUNTED_SCHEME_ADVICE, QuantizationScheme
from .compressed import read_compressed_tensors
from .fields import NO_FIELDS, ConfigFields
from .formats import AWQ, BNB_BLOCK, FP4, FP8, GPTQ, Bnb8, TernaryCodes, WholeInt
from .linear import LayerGroup, LinearScheme, module_list_of_fields, scheme_of_every_linear
from .mlx import TYPES_WITH_UNCERTAIN_HEAD, UNCONVERTED_COMPONENTS_BY_TYPE, MLXScheme, read_mlx
from .modelopt import groups_of_listed_layers, read_modelopt
from .patterns import ModuleList

CALIBRATION_FIELDS = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent",
    "dataset", "desc_act", "exllama_config", "max_input_length", "meta", "model_seqlen",
    "module_name_preceding_first_block", "pad_token_id", "sym", "tokenizer", "true_sequential",
)  # fmt: skip
"""Fields of AutoGPTQ, GPTQModel and AutoAWQ on how codes were found and which kernels run them."""


class UnsupportedScheme(InputError):
    """The error raised for an unsupported quantization config. reason: the field, its value and what is expected."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} ({UNCOUNTED_SCHEME_ADVICE})")
        self.reason = reason


def scheme_of_config(model_config: Mapping[str, Any] | None) -> QuantizationScheme | None:
    """Returns the quantization scheme of a parsed `config.json`; None for unquantized weights.

    Raises `UnsupportedScheme` for an unknown method or field, and for a value that the method does not support.
    """
    if model_config is None:
        return None
    quantization_table, config_section = _quantization_table(model_config)
    if quantization_table is None:
        return None
    if not isinstance(quantization_table, dict):
        raise UnsupportedScheme(f"quantization_config: {short_repr(quantization_table)}; expected a table of fields")
    method_name = quantization_table.get("quant_method", _implied_quantization_method(quantization_table))
    method_name = METHOD_BY_OTHER_NAME.get(method_name, method_name) if isinstance(method_name, str) else method_name
    if not isinstance(method_name, str) or method_name not in READERS_BY_METHOD:
        methods_text = ", ".join(READERS_BY_METHOD)
        suggestion_text = suggest(method_name, list(READERS_BY_METHOD)) if isinstance(method_name, str) else ""
        raise UnsupportedScheme(
            f"quantization_config.quant_method: {short_repr(method_name)} is not known; expected one of "
            f"{methods_text}.{suggestion_text}"
        )
    if method_name == "fp8" and config_section.get("expert_dtype") is not None:  # as `DeepseekV4Config` moves it
        quantization_table = {"expert_dtype": config_section["expert_dtype"], **quantization_table}
    scheme_fields = ConfigFields(quantization_table, f"quantization_config of {method_name}")
    try:
        quantization_scheme = READERS_BY_METHOD[method_name](scheme_fields)
        scheme_fields.check_all_read()
    except InputError as error:
        raise UnsupportedScheme(str(error)) from None
    if isinstance(quantization_scheme, MLXScheme):
        model_types = {config_table.get("model_type") for config_table in (model_config, config_section)}
        unconverted_components = [
            components for model_type, components in UNCONVERTED_COMPONENTS_BY_TYPE.items() if model_type in model_types
        ]
        is_head_uncertain = not model_types.isdisjoint(TYPES_WITH_UNCERTAIN_HEAD)
        return replace(
            quantization_scheme,
            unconverted_components=frozenset().union(*unconverted_components),
            is_head_uncertain=is_head_uncertain,
        )
    if isinstance(quantization_scheme, LinearScheme):
        return replace(quantization_scheme, config_section=scheme_fields.table_origin)
    return quantization_scheme


def _quantization_table(model_config: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Returns the quantization table of a config or its text model's config, and the table that contains it."""
    for config_section in (model_config, *(model_config.get(section_key) for section_key in TEXT_SECTIONS)):
        if isinstance(config_section, Mapping) and config_section.get("quantization_config") is not None:
            return config_section["quantization_config"], config_section
    return model_config.get("quantization"), model_config  # older mlx-lm wrote this field alone


def _implied_quantization_method(quantization_table: Mapping[str, Any]) -> str | None:
    """Returns the quantization method for a table without `quant_method`, such as mlx-lm's or early bitsandbytes'."""
    if "load_in_4bit" in quantization_table or "load_in_8bit" in quantization_table:
        return "bitsandbytes"
    if "quant_algo" in quantization_table:
        return "modelopt"
    return "mlx" if "group_size" in quantization_table and "bits" in quantization_table else None


def _read_fp8(config: ConfigFields) -> QuantizationScheme:
    """Reads an FP8 config: DeepSeek-V3's blocks, or AutoFP8 with one scale per tensor.

    Modules that ModelOpt converted further are listed in `quantized_layers` (DeepSeek-V4 in NVFP4). `ignored_layers` is
    the list of vLLM, which converts no output head (vllm/model_executor/layers/quantization/fp8.py,
    `Fp8Config.get_quant_method`): that of MiMo-V2.5 is in bf16.
    """
    config.ignore("fmt", "dequantize", "act_per_tensor")
    block_shape = config.get_integer_pair("weight_block_size")
    activation_scheme = config.get("activation_scheme", "dynamic")
    scale_format, expert_dtype = config.get("scale_fmt", "float"), config.get("expert_dtype", "fp8")
    config.check_choice("activation_scheme", activation_scheme, "dynamic", "static")
    config.check_choice("scale_fmt", scale_format, "float", "ue8m0", None)
    config.check_choice("expert_dtype", expert_dtype, "fp8", "fp4")
    config.check_field_value("modules_to_convert", None)
    config.check_field_value("store_dtype", None, "fp8")
    config.check_field_value("weight_per_tensor", False, None, *(() if block_shape else (True,)))
    listed_layers = config.get_table("quantized_layers")
    unconverted_groups: tuple[LayerGroup, ...] = ()
    if listed_layers is not None:
        config.ignore("config_groups", "group_size", "ignore", "moe_quant_algo", "quant_algo", "kv_cache_quant_algo")
        unconverted_groups, _ = groups_of_listed_layers(listed_layers)
    has_byte_scales = scale_format == "ue8m0" and (expert_dtype == "fp4" or bool(unconverted_groups))
    scale_bytes = 1 if has_byte_scales else 4
    linear_format = FP8(
        block_shape or "tensor", scale_bytes if block_shape else 4, 1 if activation_scheme == "static" else 0
    )
    expert_format = None
    if expert_dtype == "fp4":
        expert_format = FP4(32, scale_bytes=scale_bytes, activation_scales=linear_format.activation_scale_count)
    scheme_remarks = (
        ("scales in fp32, as checkpoints of DeepSeek-V3.1 store ue8m0; transformers stores one byte each",)
        if scale_format == "ue8m0" and block_shape and not has_byte_scales
        else ()
    )
    scheme_label = f"fp8-block{block_shape[0]}" if block_shape and block_shape[0] == block_shape[1] else "fp8"
    format_source = schemes_by_name.DEEPSEEK_SOURCE if block_shape else schemes_by_name.TRANSFORMERS_FP8_SOURCE
    linear_scheme = scheme_of_every_linear(
        config,
        LinearScheme(
            scheme_label,
            format_source,
            scheme_remarks,
            (*unconverted_groups, LayerGroup(linear_format, expert_format=expert_format)),
        ),
        "modules_to_not_convert",
        "ignored_layers",
    )
    return replace(linear_scheme, converts_head=config.get("modules_to_not_convert") is not None)


def _read_fbgemm(config: ConfigFields) -> QuantizationScheme:
    config.ignore("activation_scale_ub")
    return scheme_of_every_linear(
        config, LinearScheme("fp8-channel", schemes_by_name.FBGEMM_SOURCE, (), (LayerGroup(FP8("row")),))
    )


def _ignore_auto_round_settings(config: ConfigFields) -> None:
    """Marks AutoRound's fields as ignored in a checkpoint that AutoRound exported in another library's format."""
    if "autoround_version" in config.table_data or "provider" in config.table_data:
        libraries.ignore_settings_of_auto_round(config)
        config.check_field_value("data_type", "int", default_value="int")


def _read_awq(config: ConfigFields) -> QuantizationScheme:
    """Reads an AWQ config with the layout `gemm`."""
    config.ignore(*CALIBRATION_FIELDS, "do_fuse", "fuse_max_seq_len", "modules_to_fuse")
    _ignore_auto_round_settings(config)
    config.check_field_value("bits", 4, default_value=4)
    config.check_field_value("w_bit", 4, default_value=4)
    config.check_field_value("zero_point", True, default_value=True)
    config.check_field_value("modules_in_block_to_quantize", None)
    layout = config.get_lowercase("version", config.get("format", "gemm"))
    config.check_choice("version", layout, "gemm")
    group_size = config.get_group_size("group_size", 128)
    return LinearScheme(
        f"awq-int4{_group_suffix(group_size)}",
        schemes_by_name.AWQ_SOURCE,
        (),
        (LayerGroup(AWQ(group_size)),),
        excluded_modules=ModuleList(config.get_strings("modules_to_not_convert"), "awq"),
    )


def _read_gptq(config: ConfigFields) -> QuantizationScheme:
    """Reads a GPTQ config, for the layers in `modules_in_block_to_quantize` or by default for every linear layer."""
    config.ignore(
        *CALIBRATION_FIELDS, "static_groups", "use_cuda_fp16", "use_exllama", "disable_exllama", "max_input_len",
        "model_name_or_path", "model_file_base_name", "damp_auto_increment", "mse", "v2", "quantizer", "pack_dtype",
        "hf_format", "hyb_act", "offload_to_disk", "pack_impl",
    )  # fmt: skip
    _ignore_auto_round_settings(config)
    config.check_field_value("method", "gptq", default_value="gptq")
    config.check_choice(
        "checkpoint_format", config.get_lowercase("checkpoint_format", config.get("format", "gptq")), "gptq", "gptq_v2"
    )
    config.check_field_value("is_marlin_format", False, None)
    bits, group_size = config.get("bits"), config.get_group_size("group_size", 128)
    config.check_choice("bits", bits, 2, 3, 4, 8)
    converts_head = config.get("lm_head", False)
    config.check_choice("lm_head", converts_head, False, True)
    quantized_modules = config.get("modules_in_block_to_quantize")
    module_list = None
    if quantized_modules is not None:
        listed_names: list[Any] = (
            [
                module_name
                for modules in quantized_modules
                for module_name in (modules if isinstance(modules, list) else [modules])
            ]
            if isinstance(quantized_modules, list)
            else [None]
        )
        if any(not isinstance(listed_name, str) for listed_name in listed_names):
            raise config.value_error("modules_in_block_to_quantize", quantized_modules, "lists of module names")
        module_list = ModuleList(listed_names, config_field="modules_in_block_to_quantize")
    module_groups = (*_read_dynamic_rules(config, bits, group_size), LayerGroup(GPTQ(bits, group_size), module_list))
    excluded_modules = module_list_of_fields(config)
    return LinearScheme(
        f"gptq-int{bits}{_group_suffix(group_size)}",
        schemes_by_name.GPTQ_SOURCE,
        (schemes_by_name.ZERO_BIASES_REMARK,),
        module_groups,
        converts_head=converts_head,
        excluded_modules=excluded_modules,
    )


def _read_dynamic_rules(config: ConfigFields, bits: int, group_size: int | None) -> Iterator[LayerGroup]:
    """Reads GPTQModel's `dynamic`: regular expression of modules → their fields; `-:` marks unquantized modules.

    Each is matched at the start of a module's name, and the first that matches counts (GPTQModel, dynamic_get).
    """
    module_rules = config.get_table("dynamic") or NO_FIELDS
    for module_pattern in module_rules.table_data:
        rule = module_rules.get_table(module_pattern)
        regular_expression = module_pattern.removeprefix("-:").removeprefix("+:")
        modules = ModuleList([f"re:{regular_expression}"], "compressed-tensors", "dynamic")
        if module_pattern.startswith("-:"):
            yield LayerGroup(None, modules)
            continue
        if rule is None:
            raise config.value_error("dynamic", module_pattern, "a table of fields for each pattern without -:")
        rule.ignore("sym", "desc_act", "mse", "act_group_aware", "damp_percent", "static_groups", "true_sequential")
        module_bits = rule.get("bits", bits)
        group_columns = rule.get_group_size("group_size", group_size) if "group_size" in rule.table_data else group_size
        rule.check_all_read()
        rule.check_choice("bits", module_bits, 2, 3, 4, 8)
        yield LayerGroup(GPTQ(module_bits, group_columns), modules)


def _read_bitsandbytes(config: ConfigFields) -> QuantizationScheme:
    """Reads a bitsandbytes config: int8, nf4 or fp4, optionally with quantized scales."""
    config.ignore(
        "bnb_4bit_compute_dtype", "llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "bnb_4bit_quant_storage"
    )
    is_4_bit, is_8_bit = (
        config.get(field_name, config.get(f"_{field_name}", False)) for field_name in ("load_in_4bit", "load_in_8bit")
    )
    config.ignore("_load_in_4bit", "_load_in_8bit")
    config.check_field_value("llm_int8_has_fp16_weight", False, default_value=False)
    block_size = config.get_group_size("bnb_4bit_blocksize", BNB_BLOCK)
    code_type = config.get("bnb_4bit_quant_type", "fp4")
    has_double_quantization = config.get("bnb_4bit_use_double_quant", False)
    if is_4_bit is is_8_bit or any(type(stated_flag) not in (bool, type(None)) for stated_flag in (is_4_bit, is_8_bit)):
        raise config.value_error("load_in_4bit", is_4_bit, "that or load_in_8bit to be true")
    if is_8_bit:
        return scheme_of_every_linear(
            config,
            LinearScheme(
                "int8", schemes_by_name.BNB_SOURCE, (schemes_by_name.STACKED_EXPERTS_REMARK,), (LayerGroup(Bnb8()),)
            ),
            "llm_int8_skip_modules",
        )
    config.check_choice("bnb_4bit_quant_type", code_type, "nf4", "fp4")
    config.check_choice("bnb_4bit_use_double_quant", has_double_quantization, False, True)
    bnb4_scheme = schemes_by_name.bnb4_scheme(
        f"{code_type}-double" if has_double_quantization else str(code_type), bool(has_double_quantization)
    )
    if block_size != BNB_BLOCK:
        bnb4_scheme = replace(bnb4_scheme, remarks=(*bnb4_scheme.remarks, BLOCKSIZE_REMARK))
    return scheme_of_every_linear(config, bnb4_scheme, "llm_int8_skip_modules")


BLOCKSIZE_REMARK = (
    f"transformers does not read bnb_4bit_blocksize: blocks have {BNB_BLOCK} weights, bitsandbytes' default"
)


def _read_mxfp4(config: ConfigFields) -> QuantizationScheme:
    config.ignore("dequantize")
    return replace(schemes_by_name.mxfp4_scheme("mxfp4"), excluded_modules=module_list_of_fields(config))


def _read_bitnet(config: ConfigFields) -> QuantizationScheme | None:
    """Reads a BitNet config; returns None for online quantization, whose checkpoint has unquantized weights."""
    config.ignore("rms_norm_eps", "quantization_mode")
    quant_mode, linear_class = config.get("quantization_mode", "offline"), config.get("linear_class", "bitlinear")
    config.check_choice("quantization_mode", quant_mode, "offline", "online")
    config.check_choice("linear_class", linear_class, "bitlinear", "autobitlinear")
    config.check_field_value("use_rms_norm", False, default_value=False)
    quantization_scheme = scheme_of_every_linear(
        config, LinearScheme("bitnet", schemes_by_name.BITNET_SOURCE, (), (LayerGroup(TernaryCodes()),))
    )
    return None if quant_mode == "online" and linear_class == "autobitlinear" else quantization_scheme


def _read_eetq(config: ConfigFields) -> QuantizationScheme:
    config.check_field_value("weights", "int8", default_value="int8")
    return scheme_of_every_linear(
        config, LinearScheme("eetq", schemes_by_name.EETQ_SOURCE, (), (LayerGroup(WholeInt(scale_bytes=2)),))
    )


def _group_suffix(group_size: int | None) -> str:
    return "" if group_size is None else f"-g{group_size}"


READERS_BY_METHOD: dict[str, Callable[[ConfigFields], QuantizationScheme | None]] = {
    "fp8": _read_fp8,
    "fbgemm_fp8": _read_fbgemm,
    "awq": _read_awq,
    "gptq": _read_gptq,
    "bitsandbytes": _read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "mxfp4": _read_mxfp4,
    "modelopt": read_modelopt,
    "bitnet": _read_bitnet,
    "eetq": _read_eetq,
    "mlx": read_mlx,
    "auto-round": libraries.read_auto_round,
    "hqq": libraries.read_hqq,
    "quark": libraries.read_quark,
    "torchao": libraries.read_torchao,
    "quanto": libraries.read_quanto,
    "aqlm": libraries.read_aqlm,
    "vptq": libraries.read_vptq,
    "metal": libraries.read_metal,
    "higgs": libraries.read_higgs,
    "gemma": libraries.read_gemma,
    "exl2": partial(libraries.read_exllama, "exl2"),
    "exl3": partial(libraries.read_exllama, "exl3"),
}
"""`quant_method` → the function that reads its config."""

METHOD_BY_OTHER_NAME = {
    "modelopt_fp4": "modelopt",
    "petit_nvfp4": "modelopt",
    "intel/auto-round": "auto-round",
    "inc": "auto-round",
}
"""Name of a quantization method in vLLM, SGLang or an earlier version of its tool → its name in llmcalc."""
