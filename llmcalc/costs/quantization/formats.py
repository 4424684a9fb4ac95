"""How one linear map is stored: n_out × n_in weights as the tensors of each format, in bytes.

- FP8: DeepSeek-V3 (arXiv:2412.19437, §3.3.2; README_WEIGHTS.md): `weight_scale_inv`, fp32, one a block of 128 × 128,
  ⌈·⌉ on both axes; `transformers` FP8Linear, FbgemmFp8Linear (`weight_scale`, fp32, one a row).
- FP4: OCP Microscaling Formats 1.0, §5.2-5.3 (MXFP4: 32 elements of 4 bits under one e8m0 byte); NVIDIA NVFP4: 16
  elements under one e4m3 byte, and one fp32 for the tensor.
- AWQ: AutoAWQ WQLinear_GEMM: qweight int32 [in, out/8], qzeros int32 [in/g, out/8], scales fp16 [in/g, out] (Lin 2023,
  arXiv:2306.00978).
- GPTQ: AutoGPTQ, GPTQModel: qweight int32 [in·b/32, out], qzeros int32 [⌈in/g⌉, out·b/32], scales fp16 [⌈in/g⌉, out],
  g_idx int32 [in].
- bitsandbytes Linear4bit (Dettmers 2023, arXiv:2305.14314, §3): two codes a byte, absmax fp32 a block of 64, quant_map
  of 16 fp32; double
  quantisation: absmax in one byte each, nested_absmax fp32 a block of 256 of them, nested_quant_map of 256 fp32.
  Linear8bitLt (arXiv:2208.07339): int8, SCB fp32 a row, weight_format of one byte.
- compressed-tensors: weight_packed int32 [out, ⌈in·b/32⌉], weight_scale [out, ⌈in/g⌉] in the model's dtype,
  weight_shape of two int64, weight_zero_point int32 [⌈out·b/32⌉, ⌈in/g⌉] where asymmetric, weight_g_idx int32 [in]
  where reordered; of static activations input_scale and, where asymmetric, input_zero_point.
- `transformers` BitLinear: four ternary weights a byte [out/4, in], weight_scale [1]; EetqLinear: int8, weight_scales
  fp16 [out].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...algebra import Number, ceil_div, floor_div
from .base import Parts

FP32, INT32 = 4, 4
Whole: TypeAlias = Literal["row", "tensor"]


@dataclass(frozen=True, slots=True)
class LinearFormat:
    """How one linear map is stored."""

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        """Bytes of its tensors. plain_bytes: of one element of the model's own number format."""
        raise TypeError(f"{type(self).__name__} stores nothing")

    def refuses(self, n_out: Number, n_in: Number) -> str:
        """Why a matrix of that shape cannot be stored; empty where it can."""
        return ""

    def describe(self) -> str:
        raise TypeError(f"{type(self).__name__} describes nothing")


def _divides(what: str, size: Number, divisor: int) -> str:
    return f"{size:,} {what} are no multiple of {divisor}" if isinstance(size, int) and size % divisor else ""


@dataclass(frozen=True, slots=True)
class Static:
    """What a map stores of how its activations are quantised: scales, and zero points of one byte."""

    scales: int = 0
    zeros: int = 0


@dataclass(frozen=True, slots=True)
class FP8(LinearFormat):
    """One byte a weight. over: what shares a scale, a block (rows, columns), a `row` or the `tensor`.

    scale_bytes: of each, that of the model's number format if None. static: scales of activations, in that format too
    or in fp32.
    static_zeros: their zero points, of one byte.
    """

    over: tuple[int, int] | Whole
    scale_bytes: int | None = FP32
    static: int = 0
    static_zeros: int = 0

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        one = plain_bytes if self.scale_bytes is None else self.scale_bytes
        if isinstance(self.over, tuple):
            rows, columns = self.over
            scales = ceil_div(n_out, rows) * ceil_div(n_in, columns)
        else:
            scales = n_out if self.over == "row" else 1
        return Parts(
            weights=n_out * n_in,
            scales=scales * one,
            other=self.static * (plain_bytes if self.scale_bytes is None else FP32) + self.static_zeros,
        )

    def describe(self) -> str:
        each = {None: "in the model's format", 4: "fp32", 1: "e8m0"}[self.scale_bytes]
        over = f"block of {self.over[0]} × {self.over[1]}" if isinstance(self.over, tuple) else self.over
        return f"fp8, one scale ({each}) a {over}"


@dataclass(frozen=True, slots=True)
class FP4(LinearFormat):
    """Half a byte a weight; `block` of a row under one scale of `scale_bytes`;
    tensor_scales: fp32 scales of the whole tensor.
    """

    block: int
    tensor_scales: int = 0
    static: int = 0
    scale_bytes: int = 1

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        blocks = n_out * ceil_div(n_in, self.block)
        return Parts(
            weights=n_out * ceil_div(n_in, 2),
            scales=blocks * self.scale_bytes + FP32 * self.tensor_scales,
            other=FP32 * self.static,
        )

    def refuses(self, n_out: Number, n_in: Number) -> str:
        return _divides("columns", n_in, self.block)

    def describe(self) -> str:
        return f"4 bits, one scale of {8 * self.scale_bytes} bits a block of {self.block}" + (
            ", one fp32 scale a tensor" if self.tensor_scales else ""
        )


@dataclass(frozen=True, slots=True)
class AWQ(LinearFormat):
    """group: columns that share a scale and a zero point; None for a whole row."""

    group: int | None
    bits: int = 4

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        groups = 1 if self.group is None else ceil_div(n_in, self.group)
        words = floor_div(n_out * self.bits, 32)  # int32 a row of codes
        return Parts(weights=n_in * words * INT32, scales=groups * n_out * 2, zeros=groups * words * INT32)

    def refuses(self, n_out: Number, n_in: Number) -> str:
        return _divides("columns", n_in, self.group or 1) or _divides("rows", n_out, 32 // self.bits)

    def describe(self) -> str:
        return f"AWQ int{self.bits}, one fp16 scale and one zero point a {_group(self.group)}"


@dataclass(frozen=True, slots=True)
class GPTQ(LinearFormat):
    """group: as AWQ's. Zero points are stored for symmetric weights, too."""

    bits: int
    group: int | None

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        groups = 1 if self.group is None else ceil_div(n_in, self.group)
        weights = floor_div(n_in * self.bits, 32) * n_out * INT32
        return Parts(weights, groups * n_out * 2, groups * floor_div(n_out * self.bits, 32) * INT32, n_in * INT32)

    def refuses(self, n_out: Number, n_in: Number) -> str:
        unit = 32 if self.bits == 3 else 32 // self.bits
        return _divides("columns", n_in, unit) or _divides("rows", n_out, unit)

    def describe(self) -> str:
        return (
            f"GPTQ int{self.bits}, one fp16 scale and one zero point a {_group(self.group)}, one int32 index a column"
        )


BNB_BLOCK, BNB_NESTED = 64, 256


@dataclass(frozen=True, slots=True)
class Bnb4(LinearFormat):
    """nf4 or fp4 of bitsandbytes. double: scales are quantised once more."""

    double: bool = False

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        n = n_out * n_in
        blocks = ceil_div(n, BNB_BLOCK)
        scales = blocks + ceil_div(blocks, BNB_NESTED) * FP32 if self.double else blocks * FP32
        maps = 16 * FP32 + (256 * FP32 if self.double else 0)
        return Parts(weights=ceil_div(n, 2), scales=scales, other=maps)

    def describe(self) -> str:
        more = f", one fp32 scale for {BNB_NESTED} of these" if self.double else ""
        scales = f"one {8 if self.double else 32}-bit scale a block of {BNB_BLOCK}{more}"
        return f"4 bits, {scales}, and the maps of their codes"


@dataclass(frozen=True, slots=True)
class Bnb8(LinearFormat):
    """LLM.int8() of bitsandbytes."""

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        return Parts(weights=n_out * n_in, scales=n_out * FP32, other=1)

    def describe(self) -> str:
        return "int8, one fp32 scale a row, one byte that names the layout"


@dataclass(frozen=True, slots=True)
class PackedInt(LinearFormat):
    """`pack-quantized` of compressed-tensors. group: columns that share a scale; None for a row.
    whole: one scale for the tensor.
    """

    bits: int
    group: int | None
    symmetric: bool = True
    indexed: bool = False
    whole: bool = False

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        groups = 1 if self.group is None else ceil_div(n_in, self.group)
        rows: Number = 1 if self.whole else n_out
        weights = n_out * ceil_div(n_in * self.bits, 32) * INT32
        zeros = 0 if self.symmetric else ceil_div(rows * self.bits, 32) * INT32 * groups
        return Parts(weights, rows * groups * plain_bytes, zeros, 2 * 8 + (n_in * INT32 if self.indexed else 0))

    def describe(self) -> str:
        zero = "" if self.symmetric else " and one zero point"
        over = "tensor" if self.whole else _group(self.group)
        return f"packed int{self.bits}, one scale (in the model's format){zero} a {over}, the shape as two int64"


@dataclass(frozen=True, slots=True)
class WholeInt(LinearFormat):
    """`int-quantized` of compressed-tensors and EETQ: one byte a weight. over: what shares a scale.
    scale_bytes: of each, as FP8's.
    """

    over: int | Whole = "row"
    symmetric: bool = True
    static: Static = Static()
    scale_bytes: int | None = None

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        scales: Number = 1 if self.over == "tensor" else n_out
        if isinstance(self.over, int):
            scales = n_out * ceil_div(n_in, self.over)
        one = plain_bytes if self.scale_bytes is None else self.scale_bytes
        return Parts(
            n_out * n_in, scales * one, 0 if self.symmetric else scales, self.static.scales * one + self.static.zeros
        )

    def describe(self) -> str:
        each = "in the model's format" if self.scale_bytes is None else f"of {8 * self.scale_bytes} bits"
        return f"int8, one scale ({each}) a {_group(self.over) if isinstance(self.over, int) else self.over}"


@dataclass(frozen=True, slots=True)
class Ternary(LinearFormat):
    """BitNet's −1, 0 and 1: four rows a byte, one scale in the model's number format."""

    def of(self, n_out: Number, n_in: Number, plain_bytes: int) -> Parts:
        return Parts(weights=floor_div(n_out, 4) * n_in, scales=plain_bytes)

    def refuses(self, n_out: Number, n_in: Number) -> str:
        return _divides("rows", n_out, 4)

    def describe(self) -> str:
        return "ternary, four weights a byte, one scale (in the model's format) a tensor"


def _group(group: int | None) -> str:
    return "row" if group is None else f"group of {group} columns"
