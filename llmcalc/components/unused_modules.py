"""Embedding tables and vectors that are stored in a checkpoint and never used in a forward pass.

Each is a field of a model or of a stack; an empty table, `{}`, adds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import SINGLE_TOKEN_VOCABULARY, TORCH_WITNESS, Component, ModelProperties, PartWitness, StackPart
from .runtime import vector_module

if TYPE_CHECKING:
    from torch import nn


class UnusedEmbedding(Component):
    """A second token embedding table, which no stack of layers uses.

    BART's classes have it where encoder and decoder have separate embeddings.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "embedding"

    def flow(self, recorder: Flow, x: Value, vocab: Axis = SINGLE_TOKEN_VOCABULARY) -> Value:
        """Records the unused embedding table as a parameter without operations. x: the token embeddings.

        vocab: its row axis.
        """
        return recorder.table("", vocab, *x.axes)[0]

    def reference(self, model_properties: ModelProperties, vocab_size: int = 1) -> nn.Module:
        from torch import nn

        return nn.Embedding(vocab_size, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


class SecondStream(StackPart):
    """A learned initial vector of a second residual stream, which no forward pass uses.

    XLNet's query stream, used only in pretraining, or HRM-Text's low-level state.
    """

    formula_source: ClassVar[str] = "Yang et al. 2019 (XLNet), §2.3"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the unused initial vector as a parameter without operations. x: the token embeddings."""
        return recorder.vector("", *x.axes)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        import torch

        return vector_module(torch.zeros(model_properties.hidden_size))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]
