"""Cross-attention from one normalized sequence of a stack to another, optionally followed by a network."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ..flow.record import Flow
from ..flow.value import Value
from .base import Flag, ModelProperties, Part, StackPosition
from .mixers.attention import Attention
from .networks.feed_forward import FeedForward
from .norm import Norm
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class Reading(Part):
    """Cross-attention from the rows of one sequence to the rows of another sequence.

    attention: the attention of the reading rows.
    norm: the norm of the reading rows, that of the rows that are read, and that before the network.
    feed_forward: the network after the attention, none by default.
    residual: whether the reading rows are added to what they read, true by default.
    """

    formula_source: ClassVar[str] = "Vaswani et al. 2017, §3.2.3"
    noun: ClassVar[str] = "reading"
    kind: ClassVar[str] = "cross_attention"

    attention: Attention
    norm: Norm
    feed_forward: FeedForward | None = None
    residual: Flag = True

    def check_width(self, error_location: str, query_width: int) -> None:
        """Raises `ValueError` if the attention cannot have queries of this width."""
        self.attention.check_stack_position(StackPosition(f"{error_location}.attention", query_width, "encoder"))
        self.attention.check_cross_attention()

    def flow(self, recorder: Flow, x: Value, memory: Value) -> Value:
        """Records the cross-attention's operations. x: the queries' input. memory: the keys' and values' input."""
        queries, keys = recorder.part("query_norm", self.norm, x), recorder.part("kv_norm", self.norm, memory)
        with recorder.separate_stack(causal=False):
            attn_output = recorder.part("attention", self.attention, queries, memory=keys)
        attn_output = recorder.add(x, attn_output) if self.residual else attn_output
        if self.feed_forward is None:
            return attn_output
        return recorder.add(
            attn_output, recorder.part("mlp", self.feed_forward, recorder.part("mlp_norm", self.norm, attn_output))
        )

    def reference(self, width: int, source_width: int) -> nn.Module:
        """Builds the cross-attention. width: the width of the queries. source_width: the width of the keys."""
        return _reference_class()(self, width, source_width)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ReadingReference(nn.Module):
        """Attends from one sequence to another. x: [batch, rows, width], memory: [batch, other rows, source width]."""

        def __init__(self, spec: Reading, query_width: int, source_width: int) -> None:
            super().__init__()
            self.residual = spec.residual
            for norm_name, norm_width in (("query_norm", query_width), ("kv_norm", source_width)):
                self.add_module(norm_name, spec.norm.reference(ModelProperties(norm_width)))
            self.attention = spec.attention.reference(
                ModelProperties(query_width, is_causal=False, is_cross_attention=True, source_size=source_width)
            )
            if spec.feed_forward is not None:
                self.mlp_norm = spec.norm.reference(ModelProperties(query_width))
                self.mlp = spec.feed_forward.reference(ModelProperties(query_width))

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            keys = self.get_submodule("kv_norm")(memory)
            attn_output = self.attention(self.get_submodule("query_norm")(x), PassState(encoder_output=keys))
            attn_output = x + attn_output if self.residual else attn_output
            return (
                attn_output + self.mlp(self.mlp_norm(attn_output), PassState()) if hasattr(self, "mlp") else attn_output
            )

    return ReadingReference
