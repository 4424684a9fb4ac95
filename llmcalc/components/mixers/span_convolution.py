"""Attention in parallel to convolutions whose filters are computed per token from neighbouring tokens.

ConvBERT (Jiang et al. 2020, arXiv:2008.02496, §4): half of the width is self-attention, half span-based dynamic
convolution. The filter of a head comes from the product of the query and a convolution of the layer's input.
transformers: models/convbert (`ConvBertSelfAttention`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Heads, HeadSizes, ModelProperties, OddKernelSize, StackPosition, TokenMixer
from ..runtime import PassState, softmax_core_class
from .grouped_query import check_key_heads

if TYPE_CHECKING:
    from torch import Tensor, nn


class SpanConvolution(TokenMixer):
    """Multi-head encoder attention in parallel to dynamic convolutions; each uses half of the width.

    num_attention_heads: the number of heads of attention, and of convolutions; the size of a head is
        hidden_size / (2 · num_attention_heads).
    conv_kernel_size: the number of tokens that a filter reads; odd, so that input and output have the same length.
    """

    formula_source: ClassVar[str] = "Jiang et al. 2020, §4"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["span_convolution"] = "span_convolution"
    num_attention_heads: Heads
    conv_kernel_size: OddKernelSize

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        heads = self.num_attention_heads
        return HeadSizes(heads, heads, hidden_size // (2 * heads))

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        check_key_heads(self, head_sizes)
        return self.model_copy(update={"num_attention_heads": head_sizes.heads})

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        heads = self.num_attention_heads
        if stack_position.width % (2 * heads):
            raise ValueError(
                f"{stack_position.error_path}.num_attention_heads: {heads}; twice the number divides hidden_size "
                f"{stack_position.width} without a rest"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        head_sizes, kernel_size = self.head_sizes(x.width), self.conv_kernel_size
        heads, head_dim = Axis("heads", head_sizes.heads), Axis("head_dim", head_sizes.head_dim)
        k = recorder.linear("k_proj", x, heads, head_dim, bias=True)
        v = recorder.linear("v_proj", x, heads, head_dim, bias=True)
        span_features = recorder.conv("span_conv", x, *x.axes, kernel=kernel_size, groups=x.width)
        span_keys = recorder.conv("span_proj", span_features, heads, head_dim, kernel=1, bias=True)
        q = recorder.linear("q_proj", x, heads, head_dim, bias=True)
        recorder.hold(k=k, v=v, spans=span_keys, q=q)
        filters = recorder.linear(
            "filter_proj", recorder.mul(span_keys, q), heads, Axis("kernel", kernel_size), bias=True
        )
        filters = recorder.act(filters, "softmax")
        conv_values = recorder.linear("conv_v_proj", x, heads, head_dim, bias=True)
        recorder.hold(filters=filters, values=conv_values)
        convolution = ops.DynamicConvolution(head_sizes.heads, head_sizes.head_dim, kernel_size, x.rows)
        conv_output = recorder.core("convolution", convolution, conv_values, filters, axes=(heads, head_dim))
        recorder.hold(convolved=conv_output)
        recorder.mask(q, k, causal=False)
        attn_output = recorder.attention("core", q, k, v, causal=False)
        recorder.hold(out=attn_output)
        joined_heads = recorder.cat(
            recorder.flat(attn_output),
            recorder.flat(conv_output),
            axes=(JoinedShapes(((heads, head_dim), (heads, head_dim))),),
        )
        return recorder.linear("o_proj", joined_heads, *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads} and convolutions over {self.conv_kernel_size} tokens"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_attention_heads=2, conv_kernel_size=3), cls(num_attention_heads=3, conv_kernel_size=5)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class TokenFilterConvolution(nn.Module):
        """A convolution with a filter per token. x: [batch, tokens, heads, d], filters: [batch, tokens, heads, kernel].

        Returns the shape of x.
        """

        def forward(self, x: Tensor, filters: Tensor) -> Tensor:
            tokens_per_side = filters.shape[-1] // 2
            padded_values = nn.functional.pad(x, (0, 0, 0, 0, tokens_per_side, tokens_per_side))
            windows = padded_values.unfold(1, filters.shape[-1], 1)  # [batch, tokens, heads, d, kernel]
            return (windows @ filters[..., None]).squeeze(-1)

    class SpanConvolutionReference(nn.Module):
        """Runs attention in parallel to dynamic convolutions. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: SpanConvolution, model_properties: ModelProperties) -> None:
            super().__init__()
            hidden_size, kernel_size, self.heads = (
                model_properties.hidden_size,
                spec.conv_kernel_size,
                spec.num_attention_heads,
            )
            half_width = hidden_size // 2
            self.q_proj, self.k_proj = nn.Linear(hidden_size, half_width), nn.Linear(hidden_size, half_width)
            self.v_proj, self.conv_v_proj = nn.Linear(hidden_size, half_width), nn.Linear(hidden_size, half_width)
            self.span_conv = nn.Conv1d(
                hidden_size, hidden_size, kernel_size, padding=kernel_size // 2, groups=hidden_size, bias=False
            )
            self.span_proj = nn.Conv1d(hidden_size, half_width, 1)
            self.filter_proj = nn.Linear(half_width, self.heads * kernel_size)
            self.core, self.convolution = softmax_core_class()(), TokenFilterConvolution()
            self.o_proj = nn.Linear(hidden_size, hidden_size)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q = self.q_proj(x)
            span_features = self.span_proj(self.span_conv(x.transpose(1, 2))).transpose(1, 2)
            filters = torch.softmax(self.filter_proj(span_features * q).unflatten(-1, (self.heads, -1)), -1)
            conv_output = self.convolution(self.conv_v_proj(x).unflatten(-1, (self.heads, -1)), filters)
            heads = (
                projected_x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for projected_x in (q, self.k_proj(x), self.v_proj(x))
            )
            attn_output = self.core(*heads).transpose(1, 2)
            return self.o_proj(torch.cat([attn_output.flatten(2), conv_output.flatten(2)], -1))

    return SpanConvolutionReference
