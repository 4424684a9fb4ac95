"""The base of components that read a model's last hidden states in addition to the output head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..frozen import frozen
from .base import Component, Part

if TYPE_CHECKING:
    from ..flow.tree import Role


@frozen(slots=True)
class ModelOutput:
    """The properties of a model's output that components such as poolers validate against.

    kind: the model's stacks, `decoder`, `encoder` or `encoder-decoder`.
    stack: the `Stack` that computes the output.
    hidden_size: the width of the output.
    head: the model's head.
    embedding_size: the width of the embedding; None where it equals hidden_size.
    """

    kind: str
    stack: Any
    hidden_size: int
    head: Part
    embedding_size: int | None


class OutputPart(Component):
    """The base class of components that read the model's last hidden states in addition to the output head.

    role: the role of its nodes in the model's tree (class attribute).
    """

    role: ClassVar[Role] = "own"

    def check_output(self, model_output: ModelOutput) -> None:
        """Raises `ValueError` if the component cannot be used with a model that has this output."""
