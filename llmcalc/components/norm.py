"""LayerNorm, RMSNorm, and an elementwise scale and shift without normalization.

LayerNorm: Ba et al. 2016 (arXiv:1607.06450). RMSNorm: Zhang & Sennrich 2019 (arXiv:1910.07467).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from .. import ops
from ..algebra import Number
from ..evidence import Witness
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import LARGEST_SIZE, TORCH_WITNESS, Component, FiniteNumber, Flag, ModelProperties, StepRank

if TYPE_CHECKING:
    from torch import Tensor, nn


class Norm(Component):
    """A norm over the last axis: weight · (x − mean)/std + bias (LayerNorm), or weight · x/rms (RMSNorm).

    type: `layernorm`, `rmsnorm`, or `affine`: weight · x + bias without normalization (ZAYA's residual scaling).
    weight: whether it has a weight, true by default. OLMo's LayerNorm has neither weight nor bias.
    bias: whether it has a bias; by default only where it has a weight and is not an RMSNorm.
    eps: added to the variance or the mean square, 1e-5 by default.
    unit_offset: whether the factor is 1 + weight (Gemma), false by default.
    float32_product: whether the product with the weight is in float32 too, and only the result is in the format of x
        (Gemma, OLMo 2); by default the product is in the format of x. The backward pass then keeps the normalized
        values in float32. A LayerNorm with it runs step by step and subtracts the mean twice (Cohere); without a weight
        torch's kernel reads a float32 copy of x (OLMo).
    groups: the number of equal parts of x that are normalized separately, with one weight vector for all of x (K2
        Horizon); 1 by default, x as a whole.
    scales_x: whether an RMSNorm multiplies x in its own format by 1/rms, and only the squares are in float32 (T5); by
        default it multiplies the float32 copy of x. The backward pass then keeps x beside that copy.
    gate_rank: the rank r of a gate: the normalized vector n [width] is multiplied by σ(up(silu(down(n)))), with down
        [r, width] and up [width, r] (GigaChat 3.5); no gate by default. Both projections are in the format of x, and
        only σ and the product with n are in float32; vLLM's code, the one that is published, casts n and the weights of
        both to float32 first (vllm/model_executor/models/gigachat3_5.py, GigaChat35ZeroCenteredGatedNorm), which
        changes no parameters, FLOPs or cache.
    """

    witness: ClassVar[Mapping[str, Witness]] = dict.fromkeys(("layernorm", "rmsnorm", "affine"), TORCH_WITNESS)
    noun: ClassVar[str] = "norm"
    kind: ClassVar[str] = "norm"

    type: Literal["layernorm", "rmsnorm", "affine"]
    weight: Flag = True
    bias: Flag | None = None
    eps: FiniteNumber = Field(default=1e-5, ge=0)
    unit_offset: Flag = False
    float32_product: Flag = False
    groups: int = Field(default=1, ge=1, le=LARGEST_SIZE, strict=True)
    scales_x: Flag = False
    gate_rank: StepRank | None = None

    def check_fields(self) -> None:
        for field_name in ("unit_offset", "float32_product"):
            copies_input = field_name == "float32_product" and self.type == "layernorm"
            if getattr(self, field_name) and not self.weight and not copies_input:
                raise ValueError(f"{field_name}: there is no weight to multiply by; expected false, or weight = true")
        if self.groups != 1 and self.type == "affine":
            raise ValueError("groups: an affine norm normalizes nothing; expected 1")
        if self.scales_x and self.type != "rmsnorm":
            raise ValueError(f"scales_x: type is '{self.type}'; expected false, or type = \"rmsnorm\"")

    @property
    def has_bias(self) -> bool:
        return self.type != "rmsnorm" and self.weight if self.bias is None else self.bias

    def op(self, normed_width: Number, heads: Number = None) -> ops.Norm:
        """Returns the norm's operation on `normed_width` elements.

        heads: the number of heads with separate weights; None for one set.
        """
        return ops.Norm(normed_width, self.weight, self.has_bias, heads)

    @property
    def formula_source(self) -> str:
        return {"layernorm": "Ba et al. 2016", "rmsnorm": "Zhang & Sennrich 2019", "affine": ""}[self.type]

    def flow(self, recorder: Flow, x: Value) -> Value:
        if self.gate_rank is None:
            return recorder.norm("", x, self)
        normed_x = recorder.norm("norm", x, self.model_copy(update={"gate_rank": None}))
        low_rank_x = recorder.act(recorder.linear("down_proj", normed_x, Axis("rank", self.gate_rank)), "silu")
        gate = recorder.act(recorder.linear("up_proj", low_rank_x, *x.axes), "sigmoid", in_float32=True)
        return recorder.mul(normed_x, gate, in_float32=True)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return norm_reference(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(type="layernorm"),
            cls(type="layernorm", bias=False),
            cls(type="layernorm", weight=False),
            cls(type="rmsnorm"),
            cls(type="rmsnorm", bias=True),
            cls(type="rmsnorm", weight=False),
            cls(type="affine"),
            cls(type="rmsnorm", float32_product=True),
            cls(type="rmsnorm", unit_offset=True, float32_product=True),
            cls(type="layernorm", unit_offset=True),
            cls(type="rmsnorm", scales_x=True),
            cls(type="layernorm", bias=False, float32_product=True),
            cls(type="layernorm", weight=False, float32_product=True),
            cls(type="rmsnorm", groups=2, float32_product=True),
            cls(type="rmsnorm", unit_offset=True, float32_product=True, gate_rank=3),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class NormReference(nn.Module):
        """A norm over the last axis. x: [..., width] → same shape.

        shape: the shape of the weights, with leading axes where each head has its own.
        group_count: the number of equal parts of x that are normalized separately; those of the spec by default.
        """

        def __init__(self, spec: Norm, *shape: int, group_count: int = 0) -> None:
            super().__init__()
            self.kind, self.eps, self.groups = spec.type, spec.eps, group_count or spec.groups
            self.unit_offset, self.float32_product = spec.unit_offset, spec.float32_product
            self.scales_x = spec.scales_x
            bias = spec.bias if spec.bias is not None else (spec.type != "rmsnorm" and spec.weight)
            self.weight = nn.Parameter(torch.ones(shape)) if spec.weight else None
            self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

        def _normalize(self, x: torch.Tensor) -> torch.Tensor:
            grouped_x = x.float().unflatten(-1, (self.groups, -1))
            scaled_x = x.unflatten(-1, (self.groups, -1)) if self.scales_x else grouped_x
            if self.kind == "layernorm":
                row_mean = grouped_x.mean(-1, keepdim=True)
                scaled_x = centered_x = grouped_x - row_mean
                grouped_x = grouped_x - row_mean if self.float32_product and self.weight is not None else centered_x
                del row_mean, centered_x
            dtype = torch.float32 if self.float32_product else x.dtype
            return (scaled_x * torch.rsqrt(grouped_x.square().mean(-1, keepdim=True) + self.eps)).flatten(-2).to(dtype)

        def scale_factor(self, in_float32: bool = False) -> Any:
            """The factor on normalized values: the weight, or 1 + weight with `unit_offset`; None without a weight."""
            if self.weight is None or not self.unit_offset:
                return self.weight
            return 1 + (self.weight.float() if in_float32 else self.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            normed_x = x if self.kind == "affine" else self._normalize(x)
            normed_x = normed_x if self.weight is None else normed_x * self.scale_factor(self.float32_product)
            normed_x = normed_x if self.bias is None else normed_x + self.bias
            return normed_x.to(x.dtype) if self.float32_product else normed_x

    return NormReference


@cache
def _gated_reference_class() -> type[nn.Module]:
    from torch import nn

    class GatedNormReference(nn.Module):
        """Multiplies a norm's output by a low-rank gate computed from this output. x: [..., width] → same shape."""

        def __init__(self, norm: nn.Module, width: int, rank: int) -> None:
            super().__init__()
            self.norm = norm
            self.down_proj, self.up_proj = (nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))

        def forward(self, x: Tensor) -> Tensor:
            normed_x = self.norm(x)
            gate = self.up_proj(nn.functional.silu(self.down_proj(normed_x))).float().sigmoid()
            return (normed_x * gate).to(x.dtype)

    return GatedNormReference


def norm_reference(spec: Norm, *shape: int, group_count: int = 0) -> nn.Module:
    """Builds the PyTorch module of a norm whose weights have the given shape.

    group_count: equal parts of x that are normalized separately; those of the spec by default.
    """
    norm = _reference_class()(spec, *shape, group_count=group_count)
    return norm if spec.gate_rank is None else _gated_reference_class()(norm, *shape, rank=spec.gate_rank)
