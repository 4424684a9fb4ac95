"""The position-wise feed-forward network: plain (Vaswani 2017, §3.3) or gated (Shazeer 2020, arXiv:2002.05202).

SwiGLU is `gated` with `silu`, GeGLU with `gelu`, ReGLU with `relu`; squared ReLU (So 2021) is `relu2`. xIELU (Huang
2024, arXiv:2411.13010) has two learned weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import pi
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeAlias

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, InnerWidth, ModelProperties, PartWitness, SingleWidthNetwork
from ..norm import Norm, norm_reference
from ..runtime import PassState, apply_dropout, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn

Activation: TypeAlias = Literal[
    "relu",
    "relu2",
    "gelu",
    "gelu_tanh",
    "gelu_new",
    "quick_gelu",
    "silu",
    "sigmoid",
    "tanh",
    "identity",
    "situ",
    "clamped",
    "clamped_plus_one",
    "clamped_silu",
    "clamped_swish",
]
"""Names of activations. `gelu_tanh` is GELU's approximation by tanh as one kernel; `gelu_new` computes the same step by
step (transformers' NewGELUActivation), and the backward pass keeps three of the steps. `quick_gelu` is x · σ(1.702 x),
step by step (CLIP). `situ` is SiLU with a bound,
β · tanh(x / β) · σ(x) with β = 4 (Kimi K3). With the limit 7 of gpt-oss, `clamped` is x within −7 and 7,
`clamped_plus_one` that and 1, `clamped_silu` SiLU of min(x, 7), and `clamped_swish` y · σ(1.702 y) of y = min(x, 7)
step by step."""

GLU_NAMES = {
    "silu": "SwiGLU",
    "gelu": "GeGLU",
    "gelu_tanh": "GeGLU",
    "gelu_new": "GeGLU",
    "quick_gelu": "GeGLU",
    "relu": "ReGLU",
    "sigmoid": "GLU",
    "tanh": "GTU",
    "identity": "bilinear",
    "situ": "SiTU-GLU",
    "clamped_silu": "clamped SwiGLU",
    "clamped_swish": "clamped SwiGLU",
}
ACTIVATION_NAMES = {
    "relu": "ReLU",
    "relu2": "ReLU²",
    "gelu": "GELU",
    "gelu_tanh": "GELU",
    "gelu_new": "GELU",
    "quick_gelu": "GELU",
    "silu": "SiLU",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "identity": "linear",
    "situ": "SiTU",
    "clamped": "clamped",
    "clamped_plus_one": "clamped",
    "clamped_silu": "clamped SiLU",
    "clamped_swish": "clamped Swish",
}


class FeedForward(SingleWidthNetwork):
    """A feed-forward network with projections from hidden to intermediate and back to hidden size.

    A gated one multiplies the output of the up projection by the activated output of the gate projection.
    intermediate_size: the intermediate width (d_ff).
    hidden_act: the activation.
    gated: whether there is a gate projection, false by default.
    up_act: of a gated one, what is applied to the output of the up projection; `identity` by default.
    fused_gate: whether its class computes gate and up projection as one product, whose halves they are, and keeps both
        until the network ends (Phi-3, GLM-4), where both have a bias or neither; false by default. Parameters and FLOPs
        do not change.
    gate_bias, up_bias, down_bias: whether each projection has a bias, false by default.
    sub_norm: the norm on the intermediate values, before the down projection (Sub-LN: Wang 2022, arXiv:2210.06423;
        BitNet); none by default.
    output_scale: whether one learned factor multiplies the output (Inkling), false by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    node_name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "feed_forward"

    type: Literal["mlp"] = "mlp"
    intermediate_size: InnerWidth
    hidden_act: Activation | Literal["xielu"]
    gated: Flag = False
    up_act: Activation = "identity"
    fused_gate: Flag = False
    gate_bias: Flag = False
    up_bias: Flag = False
    down_bias: Flag = False
    sub_norm: Norm | None = None
    output_scale: Flag = False

    def check_fields(self) -> None:
        if self.gate_bias and not self.gated:
            raise ValueError("gate_bias: there is no gate to have one; expected false, or gated = true")
        if self.fused_gate and not self.gated:
            raise ValueError("fused_gate: there is no gate to compute; expected false, or gated = true")
        if self.up_act != "identity" and not self.gated:
            raise ValueError("up_act: without a gate it is hidden_act; expected identity, or gated = true")

    @property
    def usual_name(self) -> str:
        """The usual name of the network, such as `SwiGLU` or `GELU`."""
        network_name = "xIELU" if self.hidden_act == "xielu" else ACTIVATION_NAMES[self.hidden_act]
        return (GLU_NAMES.get(self.hidden_act) or f"gated {network_name}") if self.gated else network_name

    def activation(self) -> str:
        return self.usual_name

    @property
    def formula_source(self) -> str:
        return "Shazeer 2020, §2" if self.gated else "Vaswani et al. 2017, §3.3"

    def flow(self, recorder: Flow, x: Value) -> Value:
        ffn_axis = Axis("ffn", self.intermediate_size)
        projection_name, bias = ("gate_proj", self.gate_bias) if self.gated else ("up_proj", self.up_bias)
        projected_x = recorder.linear(projection_name, x, ffn_axis, bias=bias, is_fused=self.fused_gate)
        projected_x = self._activate(recorder, projected_x)
        if self.gated:
            up_projection = recorder.linear("up_proj", x, ffn_axis, bias=self.up_bias, is_fused=self.fused_gate)
            projected_x = recorder.mul(projected_x, record_up_activation(recorder, self.up_act, up_projection))
        projected_x = projected_x if self.sub_norm is None else recorder.part("sub_norm", self.sub_norm, projected_x)
        projected_x = recorder.linear(
            "down_proj", recorder.dropout(projected_x, "activation"), *x.axes, bias=self.down_bias
        )
        if self.output_scale:
            return recorder.mul(projected_x, recorder.vector("output_scale", Axis("one", 1)))
        return projected_x

    def _activate(self, recorder: Flow, x: Value) -> Value:
        if self.hidden_act != "xielu":
            return recorder.act(x, self.hidden_act)
        with recorder.scope("xielu"):  # α of both sides are parameters, β and ε are buffers
            side_axis = Axis("sides", 2)
            return recorder.act(
                x, "xielu", recorder.vector("alpha", side_axis), recorder.buffer("constants", side_axis)
            )

    def describe(self, hidden_size: int) -> str:
        return f"{self.usual_name} {self.intermediate_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(intermediate_size=40, hidden_act="relu", up_bias=True, down_bias=True),
            cls(intermediate_size=24, hidden_act="relu2"),
            cls(intermediate_size=24, hidden_act="silu", gated=True),
            cls(intermediate_size=20, hidden_act="gelu", gated=True, gate_bias=True),
            cls(intermediate_size=20, hidden_act="relu", gated=True, up_bias=True, down_bias=True),
            cls(intermediate_size=24, hidden_act="xielu"),
            cls(intermediate_size=20, hidden_act="relu2", gated=True, sub_norm=Norm(type="rmsnorm")),
            cls(intermediate_size=24, hidden_act="gelu_new"),
            cls(intermediate_size=24, hidden_act="quick_gelu"),
            cls(intermediate_size=24, hidden_act="situ", gated=True),
            cls(intermediate_size=20, hidden_act="silu", gated=True, output_scale=True),
            cls(intermediate_size=20, hidden_act="silu", gated=True, fused_gate=True),
            cls(intermediate_size=24, hidden_act="clamped_silu", gated=True, up_act="clamped"),
            cls(intermediate_size=24, hidden_act="clamped_swish", gated=True, up_act="clamped_plus_one"),
        ]


def record_up_activation(recorder: Flow, function_name: str, x: Value) -> Value:
    """Records an activation after the up projection; records nothing if the activation is the identity."""
    return x if function_name == "identity" else recorder.act(x, function_name)


def activate(function_name: str, x: Tensor) -> Tensor:
    """Applies an activation function, such as `silu`, to a tensor. Names are those of Hugging Face configs."""
    import torch
    import torch.nn.functional as F

    def clamped_swish(x: Tensor) -> Tensor:
        clamped_x = x.clamp(max=7.0)
        return clamped_x * torch.sigmoid(clamped_x * 1.702)

    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh((2 / pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3)))),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "situ": lambda x: torch.tanh(x / 4) * 4 * torch.sigmoid(x),
        "clamped": lambda x: x.clamp(-7.0, 7.0),
        "clamped_plus_one": lambda x: x.clamp(-7.0, 7.0) + 1,
        "clamped_silu": lambda x: F.silu(x.clamp(max=7.0)),
        "clamped_swish": clamped_swish,
        "relu2": lambda x: F.relu(x).square(),
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "identity": lambda x: x,
    }
    activation = activations.get(function_name) or getattr(F, function_name)
    return activation(x)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class XIELUConstants(nn.Module):
        values: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("values", torch.tensor([0.5, -1e-6]))

    class XIELU(nn.Module):
        """The xIELU activation: α₊x² + βx above 0, α₋(exp(min(x, ε)) − 1 − x) + βx below."""

        def __init__(self) -> None:
            super().__init__()
            self.alpha, self.constants = vector_module(torch.tensor([0.8, 0.3]).expm1().log()), XIELUConstants()

        def forward(self, x: Tensor) -> Tensor:
            beta, eps = self.constants.values
            positive_slope, negative_slope = nn.functional.softplus(self.alpha.weight)
            return (
                torch.where(
                    x > 0, positive_slope * x * x, (beta + negative_slope) * (torch.minimum(x, eps).expm1() - x)
                )
                + beta * x
            )

    class FeedForwardReference(nn.Module):
        """The feed-forward network. x: [..., hidden] → same shape."""

        def __init__(self, spec: FeedForward, hidden_size: int) -> None:
            super().__init__()
            self.act, self.up_act = spec.hidden_act, spec.up_act
            if self.act == "xielu":
                self.xielu = XIELU()
            if spec.gated:
                self.gate_proj = nn.Linear(hidden_size, spec.intermediate_size, bias=spec.gate_bias)
            self.up_proj = nn.Linear(hidden_size, spec.intermediate_size, bias=spec.up_bias)
            if spec.sub_norm is not None:
                self.sub_norm = norm_reference(spec.sub_norm, spec.intermediate_size)
            self.down_proj = nn.Linear(spec.intermediate_size, hidden_size, bias=spec.down_bias)
            if spec.output_scale:
                self.output_scale = vector_module(torch.ones(1))

        def _activate(self, x: Tensor) -> Tensor:
            return self.xielu(x) if self.act == "xielu" else activate(self.act, x)

        def forward(self, x: Tensor, pass_state: PassState | None = None, part_factors: Tensor | None = None) -> Tensor:
            """Runs the feed-forward network and returns its output, [..., hidden].

            part_factors: factors that multiply equal parts of the hidden units, [..., parts]; none by default.
            """
            has_gate = hasattr(self, "gate_proj")
            hidden_units = self._activate((self.gate_proj if has_gate else self.up_proj)(x))
            hidden_units = hidden_units * activate(self.up_act, self.up_proj(x)) if has_gate else hidden_units
            hidden_units = self.sub_norm(hidden_units) if hasattr(self, "sub_norm") else hidden_units
            if part_factors is not None:
                hidden_units = (
                    hidden_units.unflatten(-1, (part_factors.shape[-1], -1)) * part_factors[..., None]
                ).flatten(-2)
            network_output: Tensor = self.down_proj(apply_dropout(self, "activation", hidden_units))
            return network_output * self.output_scale.weight if hasattr(self, "output_scale") else network_output

    return FeedForwardReference
