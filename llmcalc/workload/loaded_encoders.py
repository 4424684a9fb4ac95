"""Whether a training run trains and quantizes its vision and audio encoders, whose passes are not counted."""

from __future__ import annotations

from ..frozen import frozen


@frozen
class LoadedEncoders:
    """Whether a training run trains and quantizes the vision and audio encoders that it loads.

    is_trained: whether it trains them where it trains all weights; true by default.
    is_quantized: whether their linear layers are quantized with the frozen layers of the text model; true by default.
    """

    is_trained: bool = True
    is_quantized: bool = True
