"""The base class of layers that have attention, a feed-forward network and a norm for each."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from ..base import Nothing
from .block import Layer


class WholeLayer(Layer):
    """A layer that requires attention, a feed-forward network and all of their norms."""

    @model_validator(mode="after")
    def _check_complete_layer(self) -> Self:
        if isinstance(self.attention, Nothing) or isinstance(self.feed_forward, Nothing) or self.without_norms:
            kind = type(self).model_fields["type"].default
            raise ValueError(
                f"attention, feed_forward, without_norms: {'an' if kind[0] in 'aeiou' else 'a'} '{kind}' layer has "
                "both, with all of its norms"
            )
        return self
