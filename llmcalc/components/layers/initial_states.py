"""A pre-norm layer whose attention reads a mixture of the residual stream and the stream's start.

transformers: models/neomme (`NeoMMEEncoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Component, Context
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..position import Rope
from ..runtime import Run, vector
from .block import Sharing
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class InitialStatesLayer(WholeLayer):
    """Attention to norm(λ₀ · x + λ₁ · x₀), where x₀ is the first layer's input, then a feed-forward network."""

    plain: ClassVar[bool] = False

    type: Literal["initial_states"] = "initial_states"
    norm_placement: Literal["pre"] = "pre"
    parallel: None = None
    cross_attention: None = None

    def source(self) -> str:
        return "NeoMME 2026"

    def flow(self, f: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        assert isinstance(self.attention, Component)
        assert isinstance(self.feed_forward, Component)
        start: Value = f.memo.get("embedded", x)  # x itself where the layer is recorded alone
        single = (Axis("one", 1),)
        share, start_share = f.split(f.vector("lambdas", Axis("mixed", 2)), single, single)
        f.hold(x=x)
        mixed = f.add(f.mul(x, share, axes=x.axes), f.mul(start, start_share, axes=x.axes))
        y = f.part("self_attn", self.attention, f.part("self_attn_pre_norm", self.norm, mixed))
        x = f.add(x, f.dropout(y, "attention_output", ends_sublayer=True))
        f.hold(x=x)
        y = f.part("mlp", self.feed_forward, f.part("mlp_pre_norm", self.norm, x))
        return f.add(x, f.dropout(y, "feed_forward", ends_sublayer=True))

    def reference(self, context: Context) -> nn.Module:
        return _reference_class()(self, context)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
        network = FeedForward(intermediate_size=20, hidden_act="relu2")
        return [cls(attention=attention, feed_forward=network, norm=Norm(type="rmsnorm", weight=False))]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class InitialStatesReference(nn.Module):
        """The layer. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: InitialStatesLayer, context: Context) -> None:
            super().__init__()
            assert isinstance(spec.attention, Component)
            assert isinstance(spec.feed_forward, Component)
            self.lambdas = vector(torch.tensor([1.0, 0.0]))
            self.self_attn_pre_norm, self.mlp_pre_norm = spec.norm.reference(context), spec.norm.reference(context)
            self.self_attn, self.mlp = spec.attention.reference(context), spec.feed_forward.reference(context)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            start = x if run.embedded is None else run.embedded
            mixed = self.lambdas.weight[0] * x + self.lambdas.weight[1] * start
            x = x + self.self_attn(self.self_attn_pre_norm(mixed), run)
            out: Tensor = x + self.mlp(self.mlp_pre_norm(x), run)
            return out

    return InitialStatesReference
