"""Storage formats of linear layers: the bytes of the tensors that store a weight of out_features × in_features.

- FP8: DeepSeek-V3 (arXiv:2412.19437, §3.3.2; README_WEIGHTS.md): `weight_scale_inv`, fp32, one per block of 128 × 128,
  ⌈·⌉ on both axes; `transformers` FP8Linear, FbgemmFp8Linear (`weight_scale`, fp32, one per row).
- FP4: OCP Microscaling Formats 1.0, §5.2-5.3 (MXFP4: 32 elements of 4 bits with one e8m0 byte); NVIDIA NVFP4: 16
  elements with one e4m3 byte, and one fp32 scale per tensor.
- AWQ: AutoAWQ WQLinear_GEMM: qweight int32 [in, out/8], qzeros int32 [in/g, out/8], scales fp16 [in/g, out] (Lin 2023,
  arXiv:2306.00978).
- GPTQ: AutoGPTQ, GPTQModel: qweight int32 [in·b/32, out], qzeros int32 [⌈in/g⌉, out·b/32], scales fp16 [⌈in/g⌉, out],
  g_idx int32 [in].
- bitsandbytes Linear4bit (Dettmers 2023, arXiv:2305.14314, §3): two codes per byte, absmax fp32 per block of 64,
  quant_map of 16 fp32; double quantisation: absmax of one byte each, nested_absmax fp32 per block of 256 of them,
  nested_quant_map of 256 fp32. Linear8bitLt (arXiv:2208.07339): int8, SCB fp32 per row, weight_format of one byte.
- compressed-tensors: weight_packed int32 [out, ⌈in·b/32⌉], weight_scale [out, ⌈in/g⌉] in the model's dtype,
  weight_shape of two int64, weight_zero_point int32 [⌈out·b/32⌉, ⌈in/g⌉] if asymmetric, weight_g_idx int32 [in] if
  columns are reordered; for static activations input_scale and, if asymmetric, input_zero_point.
- `transformers` BitLinear: four ternary weights per byte [out/4, in], weight_scale [1]; EetqLinear: int8,
  weight_scales fp16 [out].
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, TypeAlias

from ...algebra import Number, ceil_div, floor_div
from ...errors import InputError
from ...frozen import frozen
from .base import StoredBytes

FP32_BYTES, INT32_BYTES = 4, 4
WholeExtent: TypeAlias = Literal["row", "tensor"]
MatrixShape: TypeAlias = tuple[Number, Number]


EXL3_SIDE_MULTIPLE = 128
"""EXL3 pads a layer's rows and columns to multiples of this number."""


class IndivisibleMatrix(InputError):
    """The error raised if a format's blocks do not divide a matrix.

    path: the path of the matrix. refusal_reason: its shape and the block size.
    """

    def __init__(self, message: str, path: str, refusal_reason: str) -> None:
        super().__init__(message)
        self.path, self.refusal_reason = path, refusal_reason

    @property
    def reason(self) -> str:
        """The matrix, its shape and the block size."""
        return f"{self.path}: {self.refusal_reason}"


@frozen(slots=True)
class LinearFormat:
    """The storage format of a quantized linear layer: codes, scales and zero points, in bytes."""

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        """Bytes of the layer's tensors by purpose. model_element_bytes: bytes per element in the model's format."""
        raise TypeError(f"{type(self).__name__} stores nothing")

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        """Returns why the format cannot store a matrix of this shape; empty if it can."""
        return ""

    @property
    def has_square_blocks(self) -> bool:
        """Whether a block of several rows and columns shares one scale."""
        return False

    def shard_refusal_reason(self, shard_shape: MatrixShape, whole_shape: MatrixShape) -> str:
        """Returns why kernels cannot compute with a rank's part of a matrix; empty if they can.

        shard_shape, whole_shape: (out_features, in_features) of the part and of the matrix.
        """
        return ""

    @property
    def kernel_type(self) -> str:
        """The serving engines' kernels that compute with the format, such as `awq`; empty if no kernel is known."""
        return ""

    def describe(self) -> str:
        raise TypeError(f"{type(self).__name__} describes nothing")


def _indivisible_reason(dimension: str, matrix_size: Number, divisor: int, field_text: str = "") -> str:
    """Returns an error text if `divisor` does not divide the matrix size; otherwise an empty text.

    field_text: the divisor's name.
    """
    if not isinstance(matrix_size, int) or matrix_size % divisor == 0:
        return ""
    return f"{matrix_size:,} {dimension} are not a multiple of {f'{field_text} ' if field_text else ''}{divisor}"


@frozen(slots=True)
class ActivationScales:
    """The numbers of stored scales and zero points for a layer's activations.

    scale_count: their number. zero_point_count: zero points of one byte each.
    """

    scale_count: int = 0
    zero_point_count: int = 0


@frozen(slots=True)
class FP8(LinearFormat):
    """The FP8 format: one byte per weight, and scales per block, row or tensor.

    scale_extent: the weights that share a scale: a block (rows, columns), a `row` or the `tensor`.
    scale_bytes: bytes per scale; None for the model's number format.
    activation_scale_count: number of activation scales, in the model's format if scale_bytes is None, else in fp32.
    activation_zeros: number of their zero points, of one byte each.
    """

    scale_extent: tuple[int, int] | WholeExtent
    scale_bytes: int | None = FP32_BYTES
    activation_scale_count: int = 0
    activation_zeros: int = 0

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        scale_bytes = model_element_bytes if self.scale_bytes is None else self.scale_bytes
        if isinstance(self.scale_extent, tuple):
            block_rows, block_columns = self.scale_extent
            scale_count = ceil_div(out_features, block_rows) * ceil_div(in_features, block_columns)
        else:
            scale_count = out_features if self.scale_extent == "row" else 1
        return StoredBytes(
            weights=out_features * in_features,
            scales=scale_count * scale_bytes,
            other=self.activation_scale_count * (model_element_bytes if self.scale_bytes is None else FP32_BYTES)
            + self.activation_zeros,
        )

    @property
    def has_square_blocks(self) -> bool:
        return isinstance(self.scale_extent, tuple)

    def shard_refusal_reason(self, shard_shape: MatrixShape, whole_shape: MatrixShape) -> str:
        """Returns an error text if a rank's part cuts a block of weights that shares a scale; otherwise an empty text.

        Sources: vLLM's quantization/utils/fp8_utils.py, `validate_fp8_block_shape`, and `Fp8MoEMethod.create_weights`;
        SGLang's fp8.py has the same checks.
        """
        if not isinstance(self.scale_extent, tuple):
            return ""
        axis_sizes = zip(("rows", "columns"), shard_shape, whole_shape, self.scale_extent, strict=True)
        refusal_reasons = (
            _indivisible_reason(dimension, size, block_size, "the block of")
            for dimension, size, undivided_size, block_size in axis_sizes
            if size != undivided_size and undivided_size % block_size == 0  # others are left unconverted by checkpoints
        )
        return next(filter(None, refusal_reasons), "")

    @property
    def kernel_type(self) -> str:
        return "fp8"

    def describe(self) -> str:
        scale_format = {None: "in the model's format", 4: "fp32", 1: "e8m0"}[self.scale_bytes]
        scale_extent = str(self.scale_extent)
        if isinstance(self.scale_extent, tuple):
            scale_extent = f"block of {self.scale_extent[0]} × {self.scale_extent[1]}"
        return f"fp8, one scale ({scale_format}) per {scale_extent}"


NVFP4_BLOCK = 16
"""Number of weights that share a scale in NVFP4."""


@frozen(slots=True)
class FP4(LinearFormat):
    """The FP4 format: half a byte per weight, scales per block of columns, and scales per tensor.

    block_columns: weights of a row that share a scale.
    tensor_scale_count: number of fp32 scales of the whole tensor.
    activation_scales: number of fp32 activation scales.
    scale_bytes: bytes per block scale; default 1.
    """

    block_columns: int
    tensor_scale_count: int = 0
    activation_scales: int = 0
    scale_bytes: int = 1

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        block_count = out_features * ceil_div(in_features, self.block_columns)
        return StoredBytes(
            weights=out_features * ceil_div(in_features, 2),
            scales=block_count * self.scale_bytes + FP32_BYTES * self.tensor_scale_count,
            other=FP32_BYTES * self.activation_scales,
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("columns", in_features, self.block_columns, "group_size")

    @property
    def kernel_type(self) -> str:
        return "nvfp4" if self.block_columns == NVFP4_BLOCK else "mxfp4"

    def describe(self) -> str:
        return f"4 bits, one scale of {8 * self.scale_bytes} bits per block of {self.block_columns}" + (
            ", one fp32 scale per tensor" if self.tensor_scale_count else ""
        )


@frozen(slots=True)
class AWQ(LinearFormat):
    """The AWQ format. group_size: columns that share a scale and a zero point; None for a whole row."""

    group_size: int | None
    bits: int = 4

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        group_count = 1 if self.group_size is None else ceil_div(in_features, self.group_size)
        words_per_row = floor_div(out_features * self.bits, 32)  # int32 words per row of codes
        return StoredBytes(
            weights=in_features * words_per_row * INT32_BYTES,
            scales=group_count * out_features * 2,
            zeros=group_count * words_per_row * INT32_BYTES,
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("columns", in_features, self.group_size or 1, "group_size") or _indivisible_reason(
            "rows", out_features, 32 // self.bits
        )

    @property
    def kernel_type(self) -> str:
        return "awq"

    def describe(self) -> str:
        return f"AWQ int{self.bits}, one fp16 scale and one zero point per {_group_size_text(self.group_size)}"


@frozen(slots=True)
class GPTQ(LinearFormat):
    """The GPTQ format. Zero points are stored for symmetric weights, too.

    group_size: as in `AWQ`. has_group_indices: whether the group of each column is stored, true by default.
    """

    bits: int
    group_size: int | None
    has_group_indices: bool = True

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        group_count = 1 if self.group_size is None else ceil_div(in_features, self.group_size)
        weight_bytes = floor_div(in_features * self.bits, 32) * out_features * INT32_BYTES
        zero_point_bytes = group_count * floor_div(out_features * self.bits, 32) * INT32_BYTES
        return StoredBytes(
            weight_bytes,
            group_count * out_features * 2,
            zero_point_bytes,
            in_features * INT32_BYTES if self.has_group_indices else 0,
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        codes_per_word = 32 if self.bits == 3 else 32 // self.bits
        return _indivisible_reason("columns", in_features, codes_per_word) or _indivisible_reason(
            "rows", out_features, codes_per_word
        )

    def describe(self) -> str:
        index_text = ", one int32 index per column" if self.has_group_indices else ""
        group_text = _group_size_text(self.group_size)
        return f"GPTQ int{self.bits}, one fp16 scale and one zero point per {group_text}{index_text}"


@frozen(slots=True)
class AWQInt4(LinearFormat):
    """The AWQ format of ModelOpt: two rows of 4-bit codes per byte, fp32 scales and no zero points.

    group_size: columns that share a scale. extra_scale_count: number of further fp32 scales, of the tensor and of its
        input.
    """

    group_size: int
    extra_scale_count: int = 0

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        scale_bytes = out_features * ceil_div(in_features, self.group_size) * FP32_BYTES
        return StoredBytes(
            weights=floor_div(out_features, 2) * in_features,
            scales=scale_bytes,
            other=self.extra_scale_count * FP32_BYTES,
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("rows", out_features, 2) or _indivisible_reason(
            "columns", in_features, self.group_size, "group_size"
        )

    def describe(self) -> str:
        return f"int4, one fp32 scale per group of {self.group_size} columns"


BNB_BLOCK, BNB_SECOND_BLOCK = 64, 256


@frozen(slots=True)
class Bnb4(LinearFormat):
    """The nf4 or fp4 format of bitsandbytes. double_quantization: whether the scales are also quantized."""

    double_quantization: bool = False

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        weight_count = out_features * in_features
        block_count = ceil_div(weight_count, BNB_BLOCK)
        scale_bytes = (
            block_count + ceil_div(block_count, BNB_SECOND_BLOCK) * FP32_BYTES
            if self.double_quantization
            else block_count * FP32_BYTES
        )
        quant_map_bytes = 16 * FP32_BYTES + (256 * FP32_BYTES if self.double_quantization else 0)
        return StoredBytes(weights=ceil_div(weight_count, 2), scales=scale_bytes, other=quant_map_bytes)

    def describe(self) -> str:
        nested_scales_text = f", one fp32 scale per {BNB_SECOND_BLOCK} of these" if self.double_quantization else ""
        scales_text = (
            f"one {8 if self.double_quantization else 32}-bit scale per block of {BNB_BLOCK}{nested_scales_text}"
        )
        return f"4 bits, {scales_text}, and the code tables (quant_map)"


@frozen(slots=True)
class Bnb8(LinearFormat):
    """The LLM.int8() format of bitsandbytes: one byte per weight, and an fp32 scale per row."""

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        return StoredBytes(weights=out_features * in_features, scales=out_features * FP32_BYTES, other=1)

    def describe(self) -> str:
        return "int8, one fp32 scale per row, one byte for the layout"


@frozen(slots=True)
class PackedInt(LinearFormat):
    """The `pack-quantized` format of compressed-tensors: several codes per int32.

    group_size: columns that share a scale; None for a whole row.
    has_group_indices: whether a group index per column is stored.
    has_tensor_scale: whether one scale serves the whole tensor.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool = True
    has_group_indices: bool = False
    has_tensor_scale: bool = False

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        group_count = 1 if self.group_size is None else ceil_div(in_features, self.group_size)
        scaled_rows: Number = 1 if self.has_tensor_scale else out_features
        weight_bytes = out_features * ceil_div(in_features * self.bits, 32) * INT32_BYTES
        zero_bytes = 0 if self.is_symmetric else ceil_div(scaled_rows * self.bits, 32) * INT32_BYTES * group_count
        return StoredBytes(
            weight_bytes,
            scaled_rows * group_count * model_element_bytes,
            zero_bytes,
            2 * 8 + (in_features * INT32_BYTES if self.has_group_indices else 0),
        )

    @property
    def kernel_type(self) -> str:
        return "packed-int"

    def describe(self) -> str:
        zero_text = "" if self.is_symmetric else " and one zero point"
        scale_extent = "tensor" if self.has_tensor_scale else _group_size_text(self.group_size)
        scales_text = f"one scale (in the model's format){zero_text} per {scale_extent}"
        return f"packed int{self.bits}, {scales_text}, the shape as two int64"


@frozen(slots=True)
class Marlin24(LinearFormat):
    """The `marlin-24` format of compressed-tensors: the two nonzero weights of every four, and their indices.

    Tensors: weight_packed int32, scale_packed fp16 per group of 128 columns or per row, and meta, two bits a stored
    weight, in int16 (compressors/sparse_quantized_compressors/marlin_24.py of compressed-tensors 0.9).
    """

    bits: int
    group_size: int | None

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        group_count = 1 if self.group_size is None else ceil_div(in_features, self.group_size)
        stored_weight_count = out_features * floor_div(in_features, 2)
        return StoredBytes(
            floor_div(stored_weight_count * self.bits, 8),
            group_count * out_features * 2,
            other=floor_div(stored_weight_count, 4),
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("columns", in_features, 32) or _indivisible_reason("rows", out_features, 16)

    def describe(self) -> str:
        scaled_text = _group_size_text(self.group_size)
        return f"int{self.bits}, half of the weights with two bits of their place, one fp16 scale per {scaled_text}"


@frozen(slots=True)
class WholeInt(LinearFormat):
    """The `int-quantized` format of compressed-tensors, and EETQ's: one byte per weight.

    scale_extent: the weights that share a scale: a number of columns, a `row` or the `tensor`.
    scale_bytes: bytes per scale; None for the model's number format.
    """

    scale_extent: int | WholeExtent = "row"
    is_symmetric: bool = True
    activation_scales: ActivationScales = ActivationScales()
    scale_bytes: int | None = None

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        scale_count: Number = 1 if self.scale_extent == "tensor" else out_features
        if isinstance(self.scale_extent, int):
            scale_count = out_features * ceil_div(in_features, self.scale_extent)
        scale_bytes = model_element_bytes if self.scale_bytes is None else self.scale_bytes
        return StoredBytes(
            out_features * in_features,
            scale_count * scale_bytes,
            0 if self.is_symmetric else scale_count,
            self.activation_scales.scale_count * scale_bytes + self.activation_scales.zero_point_count,
        )

    def describe(self) -> str:
        scale_format = "in the model's format" if self.scale_bytes is None else f"of {8 * self.scale_bytes} bits"
        scaled_text = _group_size_text(self.scale_extent) if isinstance(self.scale_extent, int) else self.scale_extent
        return f"int8, one scale ({scale_format}) per {scaled_text}"


@frozen(slots=True)
class HQQ(LinearFormat):
    """The HQQ format: codes in bytes, or ten 3-bit codes per int32; a scale and a zero point per group.

    group_size: weights that share a scale.
    """

    bits: int
    group_size: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        group_count = floor_div(out_features * in_features, self.group_size)
        if self.bits == 3:
            code_bytes = ceil_div(group_count, 10) * self.group_size * INT32_BYTES
        else:
            code_bytes = floor_div(out_features * in_features * self.bits, 8)
        return StoredBytes(code_bytes, group_count * model_element_bytes, group_count * model_element_bytes)

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("weights", out_features * in_features, self.group_size, "group_size")

    def describe(self) -> str:
        return (
            f"int{self.bits}, one scale and one zero point (in the model's format) per group of "
            f"{self.group_size} weights"
        )


@frozen(slots=True)
class GroupedCodes(LinearFormat):
    """Packed codes with a scale and a shift per group of columns, both in the model's number format."""

    bits: int
    group_size: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        scale_bytes = out_features * ceil_div(in_features, self.group_size) * model_element_bytes
        return StoredBytes(ceil_div(out_features * in_features * self.bits, 8), scale_bytes, scale_bytes)

    def describe(self) -> str:
        return f"int{self.bits}, one scale and one shift (in the model's format) per group of {self.group_size} columns"


@frozen(slots=True)
class QuantoInt(LinearFormat):
    """quanto's packed codes of 2 or 4 bits: a scale and a shift per group of columns, and two scales of activations.

    A row of more than 128 columns has groups of 128, 96, 64 or 32 columns, of which the first that divides it; other
    rows are one group each. Codes are packed over the groups.
    """

    bits: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        column_count = next(
            (
                padded_columns
                for padded_columns in (128, 96, 64, 32)
                if in_features > 128 and in_features % padded_columns == 0
            ),
            in_features,
        )
        group_count = out_features * floor_div(in_features, column_count)
        code_bytes = ceil_div(group_count, 8 // self.bits) * column_count
        return StoredBytes(
            code_bytes, group_count * model_element_bytes, group_count * model_element_bytes, 2 * model_element_bytes
        )

    def describe(self) -> str:
        return f"int{self.bits}, one scale and one shift (in the model's format) per group of at most 128 columns"


@frozen(slots=True)
class MetalInt(LinearFormat):
    """The affine format of `transformers`' MetalLinear: uint32 codes, and a fp32 scale and shift per column group."""

    bits: int
    group_size: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        scale_bytes = out_features * floor_div(in_features, self.group_size) * FP32_BYTES
        return StoredBytes(
            out_features * floor_div(in_features * self.bits, 32) * INT32_BYTES, scale_bytes, scale_bytes
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("columns", in_features, self.group_size, "group_size") or _indivisible_reason(
            "columns", in_features, 32 // self.bits
        )

    def describe(self) -> str:
        return f"int{self.bits}, one fp32 scale and one fp32 shift per group of {self.group_size} columns"


@frozen(slots=True)
class Higgs(LinearFormat):
    """The HIGGS format (Malinovskii 2024, arXiv:2411.17525): grid codes, group scales, and two tables per layer."""

    bits: int
    group_size: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        grid_points = 2**self.bits
        scale_bytes = out_features * floor_div(in_features, self.group_size) * model_element_bytes
        table_bytes = (grid_points + 2 * grid_points**2) * model_element_bytes
        return StoredBytes(floor_div(out_features * self.bits, 16) * in_features * 2, scale_bytes, other=table_bytes)

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("columns", in_features, self.group_size, "group_size")

    def describe(self) -> str:
        return f"HIGGS of {self.bits} bits, one scale (in the model's format) per group of {self.group_size} columns"


@frozen(slots=True)
class StaticRange(LinearFormat):
    """Gemma's packed codes of 2, 4 or 8 bits: whole bytes per row, an fp32 scale per row, two activation scales."""

    bits: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        return StoredBytes(
            out_features * ceil_div(in_features * self.bits, 8), out_features * FP32_BYTES, other=2 * FP32_BYTES
        )

    def describe(self) -> str:
        return f"int{self.bits}, one fp32 scale per row and two of activations"


@frozen(slots=True)
class AQLM(LinearFormat):
    """AQLM (Egiazarian 2024, arXiv:2401.06118): codes of weight groups, codebooks, and scales of groups of rows.

    group_columns, group_rows: the weights of a group. codebook_count: number of code books. bits: bits of a code.
    """

    group_columns: int
    group_rows: int
    codebook_count: int
    bits: int

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        code_bytes = (
            floor_div(out_features, self.group_rows)
            * floor_div(in_features, self.group_columns)
            * self.codebook_count
            * (1 if self.bits <= 8 else 2)
        )
        return StoredBytes(
            code_bytes,
            floor_div(out_features, self.group_rows) * 2,
            other=self.codebook_count * 2**self.bits * self.group_rows * self.group_columns * 2,
        )

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("columns", in_features, self.group_columns) or _indivisible_reason(
            "rows", out_features, self.group_rows
        )

    def describe(self) -> str:
        return (
            f"{self.codebook_count} code of {self.bits} bits per {self.group_rows} × {self.group_columns} weights, "
            "fp16 code books and "
            "scales of rows"
        )


@frozen(slots=True)
class VPTQ(LinearFormat):
    """VPTQ (Liu 2024, arXiv:2409.17066): indices into codebooks of weight vectors, and the codebooks.

    vector_length: rows of a vector. centroid_count: entries of a codebook. residual_centroid_count: entries of the
    residual codebook; 0 without one. codebook_count: their number. group_columns: columns that share a codebook.
    has_norm, has_permutation: whether the columns have scales and biases, and an order.
    outliers: (columns, rows of a vector, entries of the codebook) of the columns in a codebook of their own; None
    without them.
    """

    vector_length: int
    centroid_count: int
    residual_centroid_count: int
    codebook_count: int
    group_columns: int
    has_norm: bool
    has_permutation: bool
    outliers: tuple[int, int, int] | None

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        index_bits = self.centroid_count.bit_length() - 1 + max(self.residual_centroid_count.bit_length() - 1, 0)
        index_words = (
            self.codebook_count
            * ceil_div(out_features, self.vector_length)
            * ceil_div(self.group_columns * index_bits, 32)
        )
        codebook_elements = (
            self.codebook_count * (self.centroid_count + self.residual_centroid_count) * self.vector_length
        )
        outlier_bytes: Number = 0
        if self.outliers is not None:
            outlier_columns, outlier_length, outlier_centroid_count = self.outliers
            codebook_elements += outlier_centroid_count * outlier_length
            outlier_bytes = 2 * ceil_div(out_features, outlier_length) * outlier_columns
        return StoredBytes(
            index_words * INT32_BYTES + outlier_bytes,
            2 * in_features * model_element_bytes if self.has_norm else 0,
            other=codebook_elements * model_element_bytes + (2 * in_features if self.has_permutation else 0),
        )

    def describe(self) -> str:
        residual_text = (
            f" and {self.residual_centroid_count:,} for the residual" if self.residual_centroid_count else ""
        )
        return (
            f"indices of vectors of {self.vector_length} weights in codebooks of {self.centroid_count:,} "
            f"entries{residual_text}, which are stored too"
        )


@frozen(slots=True)
class AverageBits(LinearFormat):
    """EXL2's format, given as the average bits per weight, which cover all tensors that a layer stores."""

    bits: Fraction

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        return StoredBytes(ceil_div(out_features * in_features * self.bits.numerator, 8 * self.bits.denominator))

    def describe(self) -> str:
        return f"{float(self.bits):g} bits per weight"


@frozen(slots=True)
class TrellisCodes(LinearFormat):
    """EXL3's trellis codes: sides padded to multiples of 128, fp16 scales per row and column, a codebook multiplier.

    bits: bits per weight. has_codebook: whether a layer stores the multiplier of its codebook, 4 bytes.
    """

    bits: Fraction
    has_codebook: bool

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        padded_rows, padded_columns = (
            ceil_div(side_length, EXL3_SIDE_MULTIPLE) * EXL3_SIDE_MULTIPLE
            for side_length in (out_features, in_features)
        )
        code_bytes = ceil_div(padded_rows * padded_columns * self.bits.numerator, 8 * self.bits.denominator)
        return StoredBytes(code_bytes, (padded_rows + padded_columns) * 2, other=INT32_BYTES * self.has_codebook)

    def describe(self) -> str:
        return f"{float(self.bits):g} bits per weight, fp16 scales of rows and columns, sides in multiples of 128"


@frozen(slots=True)
class TernaryCodes(LinearFormat):
    """BitNet's ternary weights −1, 0 and 1: four rows per byte, and one scale in the model's number format."""

    def bytes_by_part(self, out_features: Number, in_features: Number, model_element_bytes: int) -> StoredBytes:
        return StoredBytes(weights=floor_div(out_features, 4) * in_features, scales=model_element_bytes)

    def refusal_reason(self, out_features: Number, in_features: Number) -> str:
        return _indivisible_reason("rows", out_features, 4)

    def describe(self) -> str:
        return "ternary, four weights per byte, one scale (in the model's format) per tensor"


def _group_size_text(group_size: int | None) -> str:
    return "row" if group_size is None else f"group of {group_size} columns"
