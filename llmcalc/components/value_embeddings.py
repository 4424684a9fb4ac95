"""A second embedding table, which some attention layers add to the values.

transformers: models/neomme (`NeoMMEModel.value_embeddings`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import HeadDim, Heads, ModelProperties, Vocab
from .residual_streams import ResidualStreams
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class ValueEmbeddings(ResidualStreams):
    """A table with a value vector per token and key-value head, which attention layers add to their values.

    vocab_size: the number of its rows, the model's vocabulary.
    num_key_value_heads, head_dim: the heads of the attention that reads it.
    """

    formula_source: ClassVar[str] = "NeoMME 2026"

    type: Literal["value_embeddings"] = "value_embeddings"
    vocab_size: Vocab
    num_key_value_heads: Heads
    head_dim: HeadDim

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        value_vectors = recorder.part("value_embeddings", self, x)
        recorder.layer_memo["value_embeddings"] = value_vectors
        recorder.keep(value_embeddings=value_vectors)
        return x

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the table look-up. x: the first layer's input."""
        axes = Axis("kv_heads", self.num_key_value_heads), Axis("head_dim", self.head_dim)
        value_vectors, _ = recorder.table("", Axis("vocab", self.vocab_size), *axes, output_rows=x.rows)
        return value_vectors

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ValueEmbeddingsReference(nn.Module):
        """Stores every token's value vectors for the attention layers; returns x unchanged."""

        def __init__(self, spec: ValueEmbeddings) -> None:
            super().__init__()
            self.heads = spec.num_key_value_heads
            self.value_embeddings = nn.Embedding(spec.vocab_size, self.heads * spec.head_dim)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            assert pass_state.token_ids is not None
            token_values = self.value_embeddings(pass_state.token_ids)
            pass_state.shared_values["value_embeddings"] = token_values.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            return x

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x

    return ValueEmbeddingsReference
