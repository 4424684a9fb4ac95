"""Griffin's recurrent block around a real-gated linear recurrent unit (De et al. 2024, arXiv:2402.19427, §2.4).

One branch of the input passes a short convolution and the RG-LRU, h ← a·h + √(1 − a²)·(i·x) with a =
exp(−8·r·softplus(Λ)), whose two gates r and i are maps within each of `num_attention_heads` blocks; the other branch
gates it. transformers: models/recurrent_gemma.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import model_validator

from .. import ops
from ..flow.tree import Node
from .base import Around, Component, Heads, Kernel, size_named
from .feed_forward import Activation, activate
from .runtime import Run, causal_conv_class, state_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    RecurrentWidth: TypeAlias = int
else:
    RecurrentWidth = size_named("r")


class RGLRU(Component):
    """num_attention_heads: blocks of the gates' maps; must divide lru_width.
    conv1d_width: tokens that the convolution sees.
    """

    node_name: ClassVar[str] = "recurrent"

    type: Literal["rglru"] = "rglru"
    lru_width: RecurrentWidth
    num_attention_heads: Heads
    conv1d_width: Kernel = 4
    hidden_act: Activation = "gelu_tanh"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lru_width % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads: {self.num_attention_heads} does not divide lru_width {self.lru_width}; "
                "expected a divisor of it"
            )
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, r, a, kernel = around.hidden_size, self.lru_width, self.num_attention_heads, self.conv1d_width
        parts = (
            Node("linear_y", ops.Linear(h, r, bias=True)),
            Node("linear_x", ops.Linear(h, r, bias=True)),
            Node("conv_1d", ops.Conv1d(r, r, kernel, groups=r, bias=True, padding=kernel - 1)),
            Node("conv_state", ops.State(r * (kernel - 1), "conv_state")),
            Node("input_gate", ops.BlockLinear(a, r, r, bias=True)),
            Node("recurrent_gate", ops.BlockLinear(a, r, r, bias=True)),
            Node("recurrent_param", ops.Weight(r)),
            Node("recurrent_state", ops.State(r, bits=32)),
            Node("linear_out", ops.Linear(r, h, bias=True)),
        )
        return Node(name, children=parts, kind="linear_attention", source="De et al. 2024, §2.4")

    def describe(self, hidden_size: int) -> str:
        return f"RG-LRU {self.lru_width}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(lru_width=20, num_attention_heads=4),
            cls(lru_width=24, num_attention_heads=3, conv1d_width=2, hidden_act="silu"),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class BlockMap(nn.Module):
        """x: [batch, tokens, width] → the same, each block of it through a matrix of its own."""

        def __init__(self, blocks: int, width: int) -> None:
            super().__init__()
            part = width // blocks
            self.weight = nn.Parameter(torch.randn(blocks, part, part) * part**-0.5)
            self.bias = nn.Parameter(torch.zeros(blocks, part))

        def forward(self, x: Tensor) -> Tensor:
            parts = x.unflatten(-1, (len(self.weight), -1)).flatten(0, 1).transpose(0, 1)
            out = torch.baddbmm(self.bias[:, None], parts, self.weight.transpose(1, 2))
            mapped: Tensor = out.transpose(0, 1).flatten(1).unflatten(0, x.shape[:2])
            return mapped

    def scanned(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        """Every h ← a·h + b along the tokens,
        in as many steps as their number has binary digits (Hillis & Steele 1986).
        """
        b = torch.cat([b[:, :1] + a[:, :1] * h[:, None], b[:, 1:]], 1)
        step = 1
        while step < a.shape[1]:
            b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], 1)
            a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
            step *= 2
        return b

    class RGLRUReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        conv_state: Any
        recurrent_state: Any

        def __init__(self, spec: RGLRU, hidden: int) -> None:
            super().__init__()
            width, self.act = spec.lru_width, spec.hidden_act
            self.linear_y, self.linear_x = nn.Linear(hidden, width), nn.Linear(hidden, width)
            self.conv_1d = causal_conv_class()(width, spec.conv1d_width, True, kept=spec.conv1d_width - 1)
            self.input_gate, self.recurrent_gate = (
                BlockMap(spec.num_attention_heads, width),
                BlockMap(spec.num_attention_heads, width),
            )
            self.recurrent_param = vector(torch.linspace(-4.0, 1.0, width))
            self.conv_state, self.recurrent_state = state_class()(), state_class()()
            self.linear_out = nn.Linear(width, hidden)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            gate = activate(self.act, self.linear_y(x))
            u = self.conv_1d(self.linear_x(x).transpose(1, 2), run, self.conv_state).transpose(1, 2)
            log_a = -8.0 * self.recurrent_gate(u).sigmoid().float() * F.softplus(self.recurrent_param.weight.float())
            first = (
                run.span(run.past, run.past + x.shape[1], x.device)[:, None] == 0
            )  # at the first token nothing has been forgotten
            kept = torch.where(first, torch.ones_like(log_a), torch.sqrt(-torch.expm1(2 * log_a)))
            entering = (u * self.input_gate(u).sigmoid()).float() * kept
            held = self.recurrent_state.held(run)
            states = scanned(log_a.exp(), entering, torch.zeros_like(entering[:, 0]) if held is None else held[0])
            self.recurrent_state.keep(run, states[:, -1])
            out: Tensor = self.linear_out(states.to(x.dtype) * gate)
            return out

    return RGLRUReference
