"""Mamba: a gated linear recurrence whose steps depend on the input (Gu & Dao 2023, arXiv:2312.00752).

Norms on Δ, B and C from Jamba (Lieber 2024, arXiv:2403.19887) and Falcon Mamba, several heads from Zamba (Glorioso
2024, arXiv:2405.16712). The recurrence itself is elementwise; its state, like that of the convolution before it, is of
one size however many tokens there were.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from .. import ops
from ..algebra import exact_div
from ..flow.tree import Node
from ..ops.recurrent import SelectiveScan
from .base import Around, Component, Flag, Heads, Inner, Kernel, StateSize, StepRank
from .feed_forward import Activation, activate
from .norm import Norm, norm_reference
from .runtime import Run, causal_conv_class, state_class

if TYPE_CHECKING:
    from torch import Tensor, nn

STATE_BITS = 32
"""The recurrent state is kept in fp32."""


class Mamba(Component):
    """A selective state-space mixer.

    intermediate_size: channels of the recurrence (expand × hidden_size), each with state_size elements of state.
    time_step_rank: width that Δ is projected through. norm: on Δ, B and C. use_bias: on the projections in and out.
    num_heads: heads with projections to Δ, B and C of their own (Zamba).
    """

    node_name: ClassVar[str] = "mamba"

    type: Literal["mamba"] = "mamba"
    intermediate_size: Inner
    state_size: StateSize
    time_step_rank: StepRank
    conv_kernel: Kernel = 4
    num_heads: Heads | None = None
    use_bias: Flag = False
    use_conv_bias: Flag = True
    hidden_act: Activation = "silu"
    norm: Norm | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads is not None and self.intermediate_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide intermediate_size {self.intermediate_size}")
        if self.num_heads is not None and self.norm is not None:
            raise ValueError("norm: on Δ, B and C of one head alone; expected no num_heads, or no norm")
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, m, n, r, a = around.hidden_size, self.intermediate_size, self.state_size, self.time_step_rank, self.num_heads
        parts = [
            Node("in_proj", ops.Linear(h, 2 * m, self.use_bias)),
            Node("conv1d", ops.Conv1d(m, m, self.conv_kernel, m, self.use_conv_bias, self.conv_kernel - 1)),
            Node("conv_state", ops.State(m * self.conv_kernel, "conv_state")),
        ]
        if a is None:
            parts += [Node("x_proj", ops.Linear(m, r + 2 * n)), Node("dt_proj", ops.Linear(r, m, bias=True))]
        else:
            each = exact_div(m, a)  # every token passes through all heads, each of which has channels of its own
            parts += [
                Node("x_proj", ops.ExpertLinear(a, a, each, r + 2 * n)),
                Node("dt_proj", ops.ExpertLinear(a, a, r, each, bias=True)),
            ]
        if self.norm is not None:
            widths = {"dt_norm": r, "b_norm": n, "c_norm": n}
            parts += [Node(where, self.norm.op(width)) for where, width in widths.items()]
        parts += [
            Node("scan", SelectiveScan(m, n)),
            Node("ssm_state", ops.State(m * n, bits=STATE_BITS)),
            Node("out_proj", ops.Linear(m, h, self.use_bias)),
        ]
        return Node(name, children=tuple(parts), kind="state_space", source="Gu & Dao 2023, §3.4")

    def describe(self, hidden_size: int) -> str:
        heads = "" if self.num_heads is None else f", {self.num_heads} heads"
        return f"Mamba {self.intermediate_size} × {self.state_size}{heads}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around)

    @classmethod
    def examples(cls) -> list[Self]:
        plain: dict[str, Any] = {"intermediate_size": 40, "state_size": 6, "time_step_rank": 3}
        return [
            cls(**plain),
            cls(**plain, use_bias=True, use_conv_bias=False, conv_kernel=3),
            cls(**plain, norm=Norm(type="rmsnorm")),
            cls(**plain, norm=Norm(type="rmsnorm", weight=False)),
            cls(**plain, num_heads=2),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class HeadMap(nn.Module):
        """x: [batch, tokens, heads · n_in] → [batch, tokens, heads · n_out]: every head through a map of its own."""

        def __init__(self, heads: int, n_in: int, n_out: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(heads, n_out, n_in))
            nn.init.normal_(self.weight, std=n_in**-0.5)
            self.bias = nn.Parameter(torch.zeros(heads, n_out)) if bias else None

        def forward(self, x: Tensor) -> Tensor:
            y = x.unflatten(-1, (self.weight.shape[0], -1)).transpose(1, 2) @ self.weight.transpose(-1, -2)
            y = y if self.bias is None else y + self.bias[:, None]
            together: Tensor = y.transpose(1, 2).flatten(2)
            return together

    class Scan(nn.Module):
        """x, Δ: [batch, tokens, inner], B, C:
        [batch, tokens, inner or 1, state] → [batch, tokens, inner] and the last state.
        """

        def __init__(self, inner: int, state: int) -> None:
            super().__init__()
            self.A_log = nn.Parameter(
                torch.log(torch.arange(1, state + 1, dtype=torch.float32))
                .repeat(inner, 1)
                .to(torch.get_default_dtype())
            )
            self.D = nn.Parameter(torch.ones(inner))

        def forward(
            self, x: Tensor, step: Tensor, b: Tensor, c: Tensor, before: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            decay = torch.exp(step.float()[..., None] * -torch.exp(self.A_log.float()))
            state = (step * x).float()[..., None] * b.float()
            if before is not None:
                first = state[:, :1] + decay[:, :1] * before[:, None]
                state = torch.cat([first, state[:, 1:]], 1)
            reach = 1  # each round, a state takes in what lies twice as far back
            while reach < x.shape[1]:
                state = torch.cat([state[:, :reach], state[:, reach:] + decay[:, reach:] * state[:, :-reach]], 1)
                decay = torch.cat([decay[:, :reach], decay[:, reach:] * decay[:, :-reach]], 1)
                reach *= 2
            y = _read(state.to(x.dtype), c)
            return y + self.D * x, state[:, -1]

    def _read(state: Tensor, c: Tensor) -> Tensor:
        """state: [batch, tokens, inner, state], c: [batch, tokens, heads, state] → [batch, tokens, inner]."""
        heads: Tensor = state.unflatten(2, (c.shape[2], -1)) @ c[..., None]
        return heads.flatten(2)

    class MambaReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: Mamba, around: Around) -> None:
            super().__init__()
            self.spec = spec
            hidden, inner, rank, heads = (
                around.hidden_size,
                spec.intermediate_size,
                spec.time_step_rank,
                spec.num_heads or 1,
            )
            self.in_proj = nn.Linear(hidden, 2 * inner, bias=spec.use_bias)
            conv: Any = causal_conv_class()
            self.conv1d = conv(inner, spec.conv_kernel, spec.use_conv_bias)
            self.conv_state: Any = state_class()()
            self.ssm_state: Any = state_class()()
            wide = rank + 2 * spec.state_size
            if spec.num_heads is None:
                self.x_proj: Any = nn.Linear(inner, wide, bias=False)
                self.dt_proj: Any = nn.Linear(rank, inner)
            else:
                self.x_proj, self.dt_proj = (
                    HeadMap(heads, inner // heads, wide, False),
                    HeadMap(heads, rank, inner // heads, True),
                )
            if spec.norm is not None:
                self.dt_norm = norm_reference(spec.norm, rank)
                self.b_norm, self.c_norm = (
                    norm_reference(spec.norm, spec.state_size),
                    norm_reference(spec.norm, spec.state_size),
                )
            self.scan = Scan(inner, spec.state_size)
            self.out_proj = nn.Linear(inner, hidden, bias=spec.use_bias)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            spec, heads = self.spec, self.spec.num_heads or 1
            inner, gate = self.in_proj(x).chunk(2, -1)
            inner = activate(spec.hidden_act, self.conv1d(inner.transpose(1, 2), run, self.conv_state)).transpose(1, 2)
            widths = [spec.time_step_rank, spec.state_size, spec.state_size]
            step, b, c = self.x_proj(inner).unflatten(-1, (heads, -1)).split(widths, -1)
            if spec.norm is not None:
                step, b, c = self.dt_norm(step), self.b_norm(b), self.c_norm(c)
            step = nn.functional.softplus(self.dt_proj(step.flatten(2)))
            held = self.ssm_state.held(run)
            y, last = self.scan(
                inner, step, b.repeat_interleave(inner.shape[-1] // heads, 2), c, None if held is None else held[0]
            )
            self.ssm_state.keep(run, last)
            result: Tensor = self.out_proj(y * activate(spec.hidden_act, gate))
            return result

    return MambaReference
