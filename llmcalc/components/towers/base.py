"""The base class of vision encoders, audio encoders and projectors."""

from __future__ import annotations

from ...flow.value import Value
from ..base import Component


class TowerPart(Component):
    """A vision encoder, an audio encoder or a projector in front of a text model."""

    @property
    def output_width(self) -> int:
        """The width of the tower's output."""
        raise TypeError(f"{type(self).__name__} does not say how wide its output is")

    @property
    def frames_per_image(self) -> int:
        """The number of equal frames as which the tower reads an image."""
        return 1

    def input_value(self) -> Value:
        """The tower's input: patches of pixels, frames of audio, or for a projector vectors of its input size."""
        raise TypeError(f"{type(self).__name__} does not say what it reads")
