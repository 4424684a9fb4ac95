"""Tables and vectors that a checkpoint holds and no forward pass reads.

Each is a slot of a model or of a stack: an empty table, `{}`, says that it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import Around, Component, StackPart
from .runtime import vector

if TYPE_CHECKING:
    from torch import nn

ONE = Axis("vocab", 1)
"""The vocabulary of a table that is recorded by itself."""


class UnusedEmbedding(Component):
    """A second embedding of the model's vocabulary that no stack reads.

    The classes of BART keep it where encoder and decoder have embeddings of their own.
    """

    kind: ClassVar[str] = "embedding"

    def flow(self, f: Flow, x: Value, vocab: Axis = ONE) -> Value:
        """x: the embedded tokens, which are as wide as a row of the table. vocab: the rows."""
        return f.table("", vocab, *x.axes)[0]

    def reference(self, around: Around, vocab_size: int = 1) -> nn.Module:
        from torch import nn

        return nn.Embedding(vocab_size, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


class SecondStream(StackPart):
    """The vector that XLNet's second stream of predictions starts from, which pretraining alone reads."""

    kind: ClassVar[str] = "embedding"

    def source(self) -> str:
        return "Yang et al. 2019 (XLNet), §2.3"

    def flow(self, f: Flow, x: Value) -> Value:
        """x: the embedded tokens, which are as wide as the vector."""
        return f.vector("", *x.axes)

    def reference(self, around: Around) -> nn.Module:
        import torch

        module: nn.Module = vector(torch.zeros(around.hidden_size))
        return module

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]
