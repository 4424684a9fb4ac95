"""Use of the encoders of images and sound in a training run that does not count their passes."""

from __future__ import annotations

from ..frozen import frozen


@frozen
class LoadedEncoders:
    """The use of loaded image and audio encoders in a training program.

    is_trained: whether it trains them where it trains all weights; true by default.
    is_quantized: whether their linear layers are quantized with the frozen layers of the text model; true by default.
    """

    is_trained: bool = True
    is_quantized: bool = True
