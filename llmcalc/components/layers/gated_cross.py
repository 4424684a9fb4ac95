"""A cross-attention layer to image features between the layers of a decoder; it does not run on text alone.

Cross-attention and a feed-forward network, each multiplied by the tanh of a learned number (Flamingo: Alayrac 2022,
arXiv:2204.14198, §2.2; Llama 3.2 Vision: Grattafiori 2024, arXiv:2407.21783, §7).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.rows import SOURCE
from ..base import BY_TORCH, Component, Context, PartWitness, Width
from ..mixers.attention import Attention
from ..mixers.qk_norm import QKNorm
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import Run, vector
from .block import Sharing
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class Gate(Component):
    """A learned number whose tanh multiplies the output of a sublayer."""

    def flow(self, f: Flow, x: Value) -> Value:
        return f.vector("", Axis("gate", 1))


class GatedCrossLayer(WholeLayer):
    """Cross-attention to image features and a feed-forward network, which have parameters and do not run on text.

    attention: attention whose keys and values are made of image features.
    source_size: the width of the image features, by default the layer's.
    feed_forward_norm: the norm before the network, by default one like that before attention.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    plain: ClassVar[bool] = False

    type: Literal["gated_cross"] = "gated_cross"
    attention: Attention
    source_size: Width | None = None
    feed_forward_norm: Norm | None = None
    norm_placement: Literal["pre"] = "pre"
    parallel: None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        self.attention.check_crossing()
        return self

    def source(self) -> str:
        return "Alayrac et al. 2022, §2.2"

    def flow(self, f: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        memory = Value(SOURCE, x.axes if self.source_size is None else (Axis("source", self.source_size),))
        assert isinstance(self.feed_forward, Component)
        f.part("cross_attn_pre_norm", self.norm, x, role="idle")
        f.part("cross_attn", self.attention, x, role="idle", memory=memory, kind="cross_attention")
        f.part("cross_attn_gate", Gate(), x, role="idle", kind="cross_attention")
        f.part("mlp_pre_norm", self.feed_forward_norm or self.norm, x, role="idle")
        f.part("mlp", self.feed_forward, x, role="idle")
        f.part("mlp_gate", Gate(), x, role="idle", kind="feed_forward")
        return x

    def reference(self, context: Context) -> nn.Module:
        return _reference_class()(self, context)

    @classmethod
    def examples(cls) -> list[Self]:
        rms = Norm(type="rmsnorm")
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, qk_norm=QKNorm(norm=rms))
        network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        layer = cls(attention=attention, feed_forward=network, norm=rms)
        return [
            layer,
            layer.model_copy(update={"source_size": 24}),
            layer.model_copy(update={"feed_forward_norm": Norm(type="layernorm")}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class GatedCrossReference(nn.Module):
        """The layer without an image. x: [batch, tokens, hidden] → x."""

        def __init__(self, spec: GatedCrossLayer, context: Context) -> None:
            super().__init__()
            width = context.hidden_size
            cross = Context(width, context.causal, cross=True, source_size=spec.source_size)
            assert isinstance(spec.feed_forward, Component)
            for name, norm, part, part_context in (
                ("cross_attn", spec.norm, spec.attention, cross),
                ("mlp", spec.feed_forward_norm or spec.norm, spec.feed_forward, context),
            ):
                self.add_module(f"{name}_pre_norm", norm.reference(context))
                self.add_module(name, part.reference(part_context))
                self.add_module(f"{name}_gate", vector(torch.zeros(1)))

        def forward(self, x: Tensor, run: Run) -> Tensor:
            return x

    return GatedCrossReference
