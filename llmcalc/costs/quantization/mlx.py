"""The quantized formats of mlx-lm: the `quantization` table of its configs (mlx-community).

Newer versions repeat the table as `quantization_config`. mlx: python/mlx/nn/layers/quantized.py (Linear and Embedding:
weight uint32 [out, in·b/32]; in mode affine scales and biases [out, in/g] in the model's number format; in mxfp4, mxfp8
and nvfp4 scales of one byte and no biases). mlx-lm: utils.quantize_model (a module whose columns are not a multiple of
the group stays unconverted; the table lists the modules with another format), utils.load_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from ...algebra import Number, floor_div
from ...errors import InputError
from ...frozen import frozen
from ...model import ModelSpec
from ...units import DTYPE_BITS
from .base import QuantizationScheme, StoredBytes, WeightTensor, unquantized_bytes
from .fields import ConfigFields
from .formats import FP4, FP8, INT32_BYTES, LinearFormat
from .patterns import ModuleList

CONVERTED_COMPONENTS = ("embedding", "norm", "attention", "feed_forward", "experts", "shared_expert", "lm_head")
"""Components that mlx-lm converts in every model; whether it converts routers depends on the class."""

RECURRENT_COMPONENTS = ("linear_attention", "state_space", "convolution")
"""Recurrent components in which mlx-lm converts only the linear layers, in its classes qwen3_next,
qwen3_5, kimi_linear, minimax, mamba, mamba2, jamba, nemotron_h, granitemoehybrid, falcon_h1, lfm2 and lfm2_moe. What
other recurrences have, such as block-diagonal gates, are no linear layers.
"""

TYPES_WITH_UNCONVERTED_ROUTERS = frozenset(
    (
        "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "deepseek_v41_text",
        "deepseek_vl_v2", "dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm4v_moe_text",
        "glm_moe_dsa", "joyai_llm_flash", "kimi_k2", "kimi_k25", "kimi_vl", "laguna", "llada2_moe", "mimo_v2_flash",
        "muse_spark", "nemotron_h", "solar_open", "unlimited_ocr",
    )
)  # fmt: skip
"""Model types whose router mlx-lm 0.32 or mlx-vlm leaves unconverted, because it is a bare parameter, not a layer."""

UNCONVERTED_COMPONENTS_BY_TYPE: dict[str, frozenset[str]] = {
    **dict.fromkeys(TYPES_WITH_UNCONVERTED_ROUTERS, frozenset({"router"})),
    "cohere2_moe": frozenset({"attention", "router"}),
    "minicpmv4_6": frozenset({"embedding", "linear_attention", "lm_head"}),
}
"""Model type → components that its class leaves unconverted although the config's table does not list them: bare
routers, and the modules to which `quant_predicate` of mlx-vlm says no (models/cohere2_moe/language.py,
minicpmv4_6/minicpmv4_6.py; mlx-lm has no class for these types).
"""

ROUTERS_REMARK = "whether mlx-lm converts the routers is not in the config: they are counted as converted"
TYPES_WITH_UNCERTAIN_HEAD = frozenset({"mistral3"})
"""Model types whose output head mlx-lm converts and mlx-vlm does not (models/mistral3/language.py since April 2026)."""

HEAD_REMARK = (
    "mlx-vlm leaves the output head unconverted since April 2026, without a word in the config: counted as converted"
)


@frozen(slots=True)
class MLXAffine(LinearFormat):
    """The affine mode of MLX. bits: bits per code. group_size: columns that share a scale and a bias."""

    bits: int
    group_size: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        scale_bytes = out_features * floor_div(in_features, self.group_size) * model_element_bytes
        return StoredBytes(
            weights=out_features * floor_div(in_features * self.bits, 32) * INT32_BYTES,
            scales=scale_bytes,
            zeros=scale_bytes,
        )

    def describe(self) -> str:
        return f"int{self.bits}, one scale and one bias (in the model's format) per group of {self.group_size} columns"


@frozen
class ModuleFormat:
    """The storage format of a module. column_divisor: a number by which the module's columns must be divisible."""

    format: LinearFormat
    column_divisor: int


@frozen
class MLXScheme(QuantizationScheme):
    """The quantization scheme of an mlx-lm config.

    default_format: format of all modules that `listed_formats` does not list.
    listed_formats: (modules, their format; None for unconverted) of the modules that the config lists.
    unconverted_components: components that the model's class leaves unconverted unless the config lists them; default
        none.
    is_head_uncertain: whether versions of the converter differ about the output head; default False.
    assumption_notes: notes on what was counted though the config does not say it.
    """

    default_format: ModuleFormat = ModuleFormat(MLXAffine(4, 64), 64)
    listed_formats: tuple[tuple[ModuleList, ModuleFormat | None], ...] = field(default=())
    unconverted_components: frozenset[str] = frozenset()
    is_head_uncertain: bool = False
    assumption_notes: set[str] = field(default_factory=set, compare=False)

    @property
    def depends_on_module_names(self) -> bool:
        return bool(self.listed_formats)

    def bytes_by_tensor(
        self, spec: ModelSpec, params: list[WeightTensor], dtype: str
    ) -> Iterator[tuple[WeightTensor, StoredBytes]]:
        for param in params:
            module_format = self._module_format(param)
            if module_format is None:
                yield param, unquantized_bytes(param.tensor.size, dtype)
                continue
            if param.kind == "router" and module_format is self.default_format:
                self.assumption_notes.add(ROUTERS_REMARK)
            if self.is_head_uncertain and param.kind == "lm_head" and module_format is self.default_format:
                self.assumption_notes.add(HEAD_REMARK)
            *leading_axes, out_features, in_features = param.tensor.shape
            matrix_count: Number = 1
            for axis_size in leading_axes:
                matrix_count = matrix_count * axis_size
            matrix_bytes = module_format.format.bytes_by_part(out_features, in_features, DTYPE_BITS[dtype] // 8)
            yield param, matrix_bytes * matrix_count
        unused_entry = next(
            (
                list_entry
                for modules, _ in self.listed_formats
                for list_entry in modules.entries
                if list_entry not in modules.used_entries
            ),
            None,
        )
        if unused_entry is not None:
            raise InputError(
                f"quantization: {unused_entry}: names no module of this model; expected its own (--quantize none "
                "counts without it)"
            )

    def _module_format(self, param: WeightTensor) -> ModuleFormat | None:
        """Returns the storage format of a quantized tensor; None if the scheme does not quantize the tensor.

        Raises `InputError` if the config does not tell whether a tensor is converted.
        """
        if param.tensor.role == "vector":
            return None
        module_format = next(
            (storage_format for modules, storage_format in self.listed_formats if param.published_names in modules),
            self.default_format,
        )
        is_projection = (
            param.kind in RECURRENT_COMPONENTS and param.tensor.role == "matrix" and len(param.tensor.shape) == 2
        )
        if (
            module_format is self.default_format
            and param.kind not in (*CONVERTED_COMPONENTS, "router")
            and not is_projection
        ):
            unknown_reason = f"{param.path} ({param.kind}): whether mlx-lm converts it is not in the config"
            raise InputError(
                f"quantization: {unknown_reason}; expected an entry for it, or --quantize none, which counts without it"
            )
        column_count = param.tensor.shape[-1]
        is_unconverted = param.kind in self.unconverted_components and module_format is self.default_format
        if (
            module_format is None
            or is_unconverted
            or (isinstance(column_count, int) and column_count % module_format.column_divisor)
        ):
            return None
        return module_format

    def notes(self) -> list[str]:
        other_formats_text = "; other formats for some modules, as listed in the config" if self.listed_formats else ""
        return [
            f"{self.label} ({self.source}): linear layers, embeddings and output head: "
            f"{self.default_format.format.describe()}{other_formats_text}",
            f"unconverted: {', '.join(('norms', 'biases', *sorted(self.unconverted_components)))}",
            *sorted(self.assumption_notes),
        ]


def read_mlx(config: ConfigFields) -> QuantizationScheme:
    """Reads an mlx-lm quantization table: the default format, and formats of named modules."""
    module_names = [name for name in config.table_data if name not in ("group_size", "bits", "mode", "quant_method")]
    default_format, scheme_label = _module_format(config)
    modules_by_format: dict[ModuleFormat | None, list[str]] = {}
    for module_name in module_names:
        module_value: Any = config.get(module_name)
        module_table = config.get_table(module_name) if isinstance(module_value, dict) else None
        if module_table is None and not isinstance(module_value, bool):
            raise config.value_error(module_name, module_value, "how a module is stored, true or false")
        if module_value is True:
            module_format = default_format
        elif module_table is None:
            module_format = None
        else:
            module_format = _module_format(module_table)[0]
        if module_table is not None:
            module_table.check_all_read()
        modules_by_format.setdefault(module_format, []).append(module_name)
    listed_formats = tuple(
        (ModuleList(module_entries, "compressed-tensors", "quantization"), storage_format)
        for storage_format, module_entries in modules_by_format.items()
    )
    return MLXScheme(scheme_label, "mlx-lm", (), default_format, listed_formats)


def _module_format(config: ConfigFields) -> tuple[ModuleFormat, str]:
    quant_mode = config.get("mode", "affine")
    config.check_choice("mode", quant_mode, "affine", "mxfp4", "mxfp8", "nvfp4")
    if quant_mode == "affine":
        bits, group_size = config.get("bits", 4), config.get_group_size("group_size", 64) or 64
        config.check_choice("bits", bits, 2, 3, 4, 5, 6, 8)
        config.check_choice("group_size", group_size, 32, 64, 128)
        return ModuleFormat(MLXAffine(bits, group_size), group_size), f"mlx-int{bits}-g{group_size}"
    group_size = 16 if quant_mode == "nvfp4" else 32
    config.check_field_value("group_size", group_size, default_value=group_size)
    config.check_field_value("bits", 8 if quant_mode == "mxfp8" else 4, default_value=8 if quant_mode == "mxfp8" else 4)
    return ModuleFormat(
        FP8((1, group_size), 1) if quant_mode == "mxfp8" else FP4(group_size), group_size
    ), f"mlx-{quant_mode}"
