"""Attention with block-diagonal projections, and the feed-forward network with block-diagonal projections.

SqueezeBERT (Iandola et al. 2020, arXiv:2006.11316, §3.2): each linear layer is a convolution of width 1 in groups, and
the inputs of a group reach the outputs of that group alone. transformers: models/squeezebert.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Heads, InnerWidth, ModelProperties, SingleWidthNetwork, StackPosition
from ..networks.feed_forward import Activation, activate
from ..runtime import PassState, attention_mask, softmax_core_class
from .grouped_query import EqualHeadsMixer

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_GROUPS = 2**20
"""The largest number of groups of a projection."""

SOURCE = "Iandola et al. 2020, §3.2"


def _group_count_field() -> Any:
    return Field(default=1, ge=1, le=MAX_GROUPS, strict=True)


class GroupedProjectionAttention(EqualHeadsMixer):
    """Multi-head encoder attention whose projections are block-diagonal and have biases.

    num_attention_heads: the number of heads.
    q_groups, k_groups, v_groups, o_groups: the number of groups of each projection, 1 by default.
    """

    formula_source: ClassVar[str] = SOURCE
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["grouped_projections"] = "grouped_projections"
    num_attention_heads: Heads
    q_groups: int = _group_count_field()
    k_groups: int = _group_count_field()
    v_groups: int = _group_count_field()
    o_groups: int = _group_count_field()

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        for field_name in ("q_groups", "k_groups", "v_groups", "o_groups"):
            self._check_divisor(stack_position, field_name)

    def flow(self, recorder: Flow, x: Value) -> Value:
        head_sizes = self.head_sizes(x.width)
        heads, head_dim = Axis("heads", head_sizes.heads), Axis("head_dim", head_sizes.head_dim)
        q, k, v = (
            recorder.conv(f"{projection_letter}_proj", x, heads, head_dim, kernel=1, groups=group_count, bias=True)
            for projection_letter, group_count in (("q", self.q_groups), ("k", self.k_groups), ("v", self.v_groups))
        )
        recorder.mask(q, k, causal=False)
        recorder.hold(q=q, k=k, v=v)
        attn_output = recorder.flat(recorder.attention("core", q, k, v, causal=False))
        recorder.hold(out=attn_output)
        return recorder.conv("o_proj", attn_output, *x.axes, kernel=1, groups=self.o_groups, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads} in {self.q_groups} groups"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _attention_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_attention_heads=4, q_groups=2, k_groups=3, v_groups=4), cls(num_attention_heads=2, o_groups=6)]


class GroupedFeedForward(SingleWidthNetwork):
    """A feed-forward network with two block-diagonal projections, their biases, and an activation between them.

    intermediate_size: the width between them.
    hidden_act: the activation.
    up_groups, down_groups: the number of groups of each projection, 1 by default.
    """

    formula_source: ClassVar[str] = SOURCE
    node_name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "feed_forward"

    type: Literal["grouped_mlp"] = "grouped_mlp"
    intermediate_size: InnerWidth
    hidden_act: Activation
    up_groups: int = _group_count_field()
    down_groups: int = _group_count_field()

    def activation(self) -> str:
        return self.hidden_act

    def flow(self, recorder: Flow, x: Value) -> Value:
        ffn_axis = Axis("ffn", self.intermediate_size)
        activated_gate = recorder.act(
            recorder.conv("up_proj", x, ffn_axis, kernel=1, groups=self.up_groups, bias=True), self.hidden_act
        )
        return recorder.conv("down_proj", activated_gate, *x.axes, kernel=1, groups=self.down_groups, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"{self.hidden_act} {self.intermediate_size} in {self.up_groups} groups"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _network_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(intermediate_size=40, hidden_act="gelu", up_groups=4, down_groups=2),
            cls(intermediate_size=24, hidden_act="relu"),
        ]


def _grouped_convolution(input_width: int, output_width: int, group_count: int) -> nn.Module:
    from torch import nn

    return nn.Conv1d(input_width, output_width, 1, groups=group_count)


def _apply_convolution(projection: nn.Module, x: Tensor) -> Tensor:
    """Applies a convolution of kernel width 1. x: [batch, tokens, width] → [batch, tokens, out]."""
    return projection(x.transpose(1, 2)).transpose(1, 2)


@cache
def _attention_class() -> type[nn.Module]:
    from torch import nn

    class GroupedProjectionReference(nn.Module):
        """Attends with block-diagonal projections. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GroupedProjectionAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads = spec.num_attention_heads
            self.q_proj = _grouped_convolution(hidden_size, hidden_size, spec.q_groups)
            self.k_proj = _grouped_convolution(hidden_size, hidden_size, spec.k_groups)
            self.v_proj = _grouped_convolution(hidden_size, hidden_size, spec.v_groups)
            self.o_proj = _grouped_convolution(hidden_size, hidden_size, spec.o_groups)
            self.core = softmax_core_class()()

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q, k, v = (
                _apply_convolution(projection, x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for projection in (self.q_proj, self.k_proj, self.v_proj)
            )
            mask = attention_mask(pass_state, x, x, causal=False)
            return _apply_convolution(self.o_proj, self.core(q, k, v, mask).transpose(1, 2).flatten(2))

    return GroupedProjectionReference


@cache
def _network_class() -> type[nn.Module]:
    from torch import nn

    class GroupedFeedForwardReference(nn.Module):
        """Runs a network of two block-diagonal projections. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GroupedFeedForward, hidden_size: int) -> None:
            super().__init__()
            self.act = spec.hidden_act
            self.up_proj = _grouped_convolution(hidden_size, spec.intermediate_size, spec.up_groups)
            self.down_proj = _grouped_convolution(spec.intermediate_size, hidden_size, spec.down_groups)

        def forward(self, x: Tensor, pass_state: PassState | None = None) -> Tensor:
            return _apply_convolution(self.down_proj, activate(self.act, _apply_convolution(self.up_proj, x)))

    return GroupedFeedForwardReference
