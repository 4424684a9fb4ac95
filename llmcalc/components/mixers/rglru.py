"""Griffin's recurrent block around a real-gated linear recurrent unit (De et al. 2024, arXiv:2402.19427, §2.4).

One branch of the input passes a short convolution and the RG-LRU, h ← a·h + √(1 − a²)·(i·x) with a =
exp(−8·r·softplus(Λ)). The gates r and i are block-diagonal projections with `num_attention_heads` blocks. The other
branch gates the result. transformers: models/recurrent_gemma.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    Heads,
    KernelSize,
    ModelProperties,
    PartWitness,
    RecurrentMixer,
    SizeSymbol,
    check_divisor,
)
from ..networks.feed_forward import Activation, activate
from ..runtime import PassState, causal_conv_class, recurrent_state_class, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn

RecurrentWidth: TypeAlias = Annotated[int, SizeSymbol("r")]


class RGLRU(RecurrentMixer):
    """Griffin's recurrent block, with the field names of RecurrentGemma's config.

    lru_width: the number of channels of the recurrence.
    num_attention_heads: the number of blocks of the gates' projections, a divisor of lru_width. The blocks are not
        heads with queries and keys, so `head_sizes` returns None.
    conv1d_width: the kernel size of the convolution, 4 by default.
    hidden_act: the activation of the branch that gates the output, gelu_tanh by default.
    """

    formula_source: ClassVar[str] = "De et al. 2024, §2.4"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    node_name: ClassVar[str] = "recurrent"
    uncounted_operations: ClassVar[str] = "the recurrence of RG-LRU"

    type: Literal["rglru"] = "rglru"
    lru_width: RecurrentWidth
    num_attention_heads: Heads
    conv1d_width: KernelSize = 4
    hidden_act: Activation = "gelu_tanh"

    def check_fields(self) -> None:
        check_divisor("num_attention_heads", self.num_attention_heads, "lru_width", self.lru_width)

    def flow(self, recorder: Flow, x: Value) -> Value:
        lru_axis = Axis("lru", self.lru_width)
        block_axis = Axis("blocks", self.num_attention_heads)
        kernel_size = self.conv1d_width
        gate = recorder.act(recorder.linear("linear_y", x, lru_axis, bias=True), self.hidden_act)
        inner_x = recorder.linear("linear_x", x, lru_axis, bias=True)
        inner_x = recorder.conv(
            "conv_1d", inner_x, lru_axis, kernel=kernel_size, groups=inner_x.width, bias=True, padding=kernel_size - 1
        )
        recorder.state("conv_state", lru_axis, Axis("kept", kernel_size - 1), state_kind="conv_state")
        recurrence_gate = recorder.act(
            recorder.blocks("recurrent_gate", inner_x, block_axis, lru_axis, bias=True), "sigmoid"
        )
        log_decay = recorder.mul(
            recurrence_gate, recorder.act(recorder.vector("recurrent_param", lru_axis), "softplus")
        )
        input_scale = recorder.act(log_decay, "sqrt_one_minus_exp")  # √(1 − a²)
        gated_input = recorder.mul(
            inner_x, recorder.act(recorder.blocks("input_gate", inner_x, block_axis, lru_axis, bias=True), "sigmoid")
        )
        recurrent_states = recorder.scan(
            "rglru", recorder.act(log_decay, "exp"), recorder.mul(gated_input, input_scale), axes=(lru_axis,)
        )
        recorder.state("recurrent_state", lru_axis, bits=32)
        return recorder.linear("linear_out", recorder.mul(recurrent_states, gate), *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"RG-LRU {self.lru_width}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(lru_width=20, num_attention_heads=4),
            cls(lru_width=24, num_attention_heads=3, conv1d_width=2, hidden_act="silu"),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class BlockDiagonalLinear(nn.Module):
        """A block-diagonal linear layer. x: [batch, tokens, width] → same shape, with a separate matrix per block."""

        def __init__(self, block_count: int, lru_width: int) -> None:
            super().__init__()
            block_width = lru_width // block_count
            self.weight = nn.Parameter(torch.randn(block_count, block_width, block_width) * block_width**-0.5)
            self.bias = nn.Parameter(torch.zeros(block_count, block_width))

        def forward(self, x: Tensor) -> Tensor:
            input_blocks = x.unflatten(-1, (len(self.weight), -1)).flatten(0, 1).transpose(0, 1)
            block_outputs = torch.baddbmm(self.bias[:, None], input_blocks, self.weight.transpose(1, 2))
            return block_outputs.transpose(0, 1).flatten(1).unflatten(0, x.shape[:2])

    def linear_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        """Runs h ← a·h + b over all tokens, in ⌈log2(tokens)⌉ parallel steps (Hillis & Steele 1986)."""
        b = torch.cat([b[:, :1] + a[:, :1] * h[:, None], b[:, 1:]], 1)
        step_distance = 1
        while step_distance < a.shape[1]:
            b = torch.cat(
                [b[:, :step_distance], b[:, step_distance:] + a[:, step_distance:] * b[:, :-step_distance]], 1
            )
            a = torch.cat([a[:, :step_distance], a[:, step_distance:] * a[:, :-step_distance]], 1)
            step_distance *= 2
        return b

    class RGLRUReference(nn.Module):
        """Runs Griffin's recurrent block. x: [batch, tokens, hidden] → same shape."""

        conv_state: Any
        recurrent_state: Any

        def __init__(self, spec: RGLRU, hidden_size: int) -> None:
            super().__init__()
            lru_width, self.act = spec.lru_width, spec.hidden_act
            self.linear_y, self.linear_x = nn.Linear(hidden_size, lru_width), nn.Linear(hidden_size, lru_width)
            self.conv_1d = causal_conv_class()(lru_width, spec.conv1d_width, True, stored_frames=spec.conv1d_width - 1)
            self.input_gate = BlockDiagonalLinear(spec.num_attention_heads, lru_width)
            self.recurrent_gate = BlockDiagonalLinear(spec.num_attention_heads, lru_width)
            self.recurrent_param = vector_module(torch.linspace(-4.0, 1.0, lru_width))
            self.conv_state, self.recurrent_state = recurrent_state_class()(), recurrent_state_class()()
            self.linear_out = nn.Linear(lru_width, hidden_size)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            gate = activate(self.act, self.linear_y(x))
            inner_x = self.conv_1d(self.linear_x(x).transpose(1, 2), pass_state, self.conv_state).transpose(1, 2)
            log_a = (
                -8.0 * self.recurrent_gate(inner_x).sigmoid().float() * F.softplus(self.recurrent_param.weight.float())
            )
            is_first_token = (
                pass_state.positions(pass_state.past_tokens, pass_state.past_tokens + x.shape[1], x.device)[:, None]
                == 0
            )  # the first token has no earlier state to decay
            input_scale = torch.where(is_first_token, torch.ones_like(log_a), torch.sqrt(-torch.expm1(2 * log_a)))
            scaled_input = (inner_x * self.input_gate(inner_x).sigmoid()).float() * input_scale
            stored_state = self.recurrent_state.load(pass_state)
            recurrent_states = linear_scan(
                log_a.exp(),
                scaled_input,
                torch.zeros_like(scaled_input[:, 0]) if stored_state is None else stored_state[0],
            )
            self.recurrent_state.keep(pass_state, recurrent_states[:, -1])
            return self.linear_out(recurrent_states.to(x.dtype) * gate)

    return RGLRUReference
