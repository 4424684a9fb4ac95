"""Parts that read the hidden states of a whole model, beside its head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import Component, Part

if TYPE_CHECKING:
    from ..flow.tree import Role
    from .stack import Stack


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The output of a model, for the checks that only a part's place decides.

    kind: which stacks the model has, `decoder`, `encoder` or `encoder-decoder`.
    stack: the stack that makes the output.
    hidden_size: the width of the output.
    head: the head of the model.
    embedding_size: the width of the embedding, where it is not hidden_size.
    """

    kind: str
    stack: Stack
    hidden_size: int
    head: Part
    embedding_size: int | None


class OutputPart(Component):
    """A part that stands on the model's output, beside its head.

    role: of the class: how its weights stand in the model.
    """

    role: ClassVar[Role] = "own"

    def check_output(self, output: ModelOutput) -> None:
        """Raises `ValueError` where the part cannot stand on that output."""
