"""The points in a model where training applies dropout, each with a probability (Srivastava 2014)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from ..record import Record

Probability: TypeAlias = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]


class Dropout(Record):
    """The dropout probability at each point of a model; None at a point where the model's class has no dropout.

    embedding: of the input of the first layer, after positions and norm.
    attention: of the probabilities that attention multiplies by the values.
    attention_output: of the output of attention or another token mixer, before the residual sum.
    activation: of the input of the down projection of a feed-forward network.
    feed_forward: of the output of a feed-forward network or of experts, before the residual sum.
    final: of the output of a stack, after its norm (T5).
    """

    embedding: Probability | None = None
    attention: Probability | None = None
    attention_output: Probability | None = None
    activation: Probability | None = None
    feed_forward: Probability | None = None
    final: Probability | None = None

    def probabilities(self) -> dict[str, float]:
        """Returns the dropout probabilities above 0, by name of the dropout point."""
        return {dropout_name: probability for dropout_name, probability in self if probability}

    def with_probability(self, probability: float) -> Dropout:
        """Returns the same dropout points with another probability."""
        return Dropout(
            **{dropout_name: probability for dropout_name, old_probability in self if old_probability is not None}
        )


ATTENTION_DROPOUT = Dropout.model_construct(attention=0.0)
"""The dropout points of a model whose description states none: attention only, with probability 0."""
