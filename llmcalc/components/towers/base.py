"""The base class of vision encoders, audio encoders and projectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...flow.record import Flow
from ...flow.value import Value
from ..base import Component, InnerWidth, ModelProperties, Part, check_divisor

if TYPE_CHECKING:
    from torch import nn


class TowerPart(Component):
    """The base class of vision encoders, audio encoders and projectors in front of a text model."""

    @property
    def output_width(self) -> int:
        """The width of the encoder's or projector's output vectors."""
        raise TypeError(f"{type(self).__name__} does not say how wide its output is")

    @property
    def frames_per_image(self) -> int:
        """The number of identical frames to which the encoder repeats a single image."""
        return 1

    def input_value(self) -> Value:
        """The input as a symbolic tensor: pixel patches, audio frames, or vectors of a projector's input width."""
        raise TypeError(f"{type(self).__name__} does not say what it reads")


class EncoderTower(TowerPart):
    """An encoder whose output has the width of its layers; subclasses declare `hidden_size`."""

    if TYPE_CHECKING:
        hidden_size: int

    @property
    def output_width(self) -> int:
        return self.hidden_size


class LearnedQueries(Part):
    """A fixed number of learned queries that attend to an image's patches, or to windows of audio.

    queries: the number of queries, and of vectors that an image or a window becomes.
    hidden_size: the width of the queries.
    """

    queries: InnerWidth
    hidden_size: InnerWidth

    def check_input(self, input_size: int) -> None:
        """Raises `ValueError` if the queries cannot attend to patches of this width."""
        if self.hidden_size != input_size:
            raise ValueError(f"resampler.hidden_size: {self.hidden_size} differs from input_size {input_size}")

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the queries' attention to the patches x, and returns one vector per query."""
        raise TypeError(f"{type(self).__name__} has no flow")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the module: forward(x [images, patches, width]) → [images, queries, hidden_size]."""
        raise TypeError(f"{type(self).__name__} has no reference")


def check_head_width(hidden_size: int, num_attention_heads: int) -> None:
    """Raises `ValueError` if the number of heads does not divide the hidden size."""
    check_divisor("num_attention_heads", num_attention_heads, "hidden_size", hidden_size)


def layer_kinds_after_first(number_of_layers: int, special_layers: Sequence[int]) -> Iterator[tuple[bool, list[int]]]:
    """Yields (whether the layers are special, their indices) for all layers but the first; ordinary layers first."""
    for is_special_layer in (False, True):
        layer_indices = [
            layer_index
            for layer_index in range(1, number_of_layers)
            if (layer_index in special_layers) == is_special_layer
        ]
        if layer_indices:
            yield is_special_layer, layer_indices
