"""Input layer of an encoder that reads feature vectors, such as spectrogram frames, unprojected (Pop2Piano).

Choi and Lee 2023 (arXiv:2211.00895). transformers: models/pop2piano (`Pop2PianoConcatEmbeddingToMel`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import SOURCE_TOKENS
from .base import InnerWidth, ModelProperties, Vocab
from .stem import Stem

if TYPE_CHECKING:
    from torch import Tensor, nn


class FeatureStem(Stem):
    """An encoder's input layer that reads one feature vector per position, optionally after a style embedding.

    num_features: the number of features, which is the encoder's width.
    num_styles: the number of rows of the table, whose look-up is not part of a pass.
    """

    formula_source: ClassVar[str] = "Choi and Lee 2023, §3"
    type: Literal["features"] = "features"
    num_features: InnerWidth
    num_styles: Vocab

    def input_frames(self) -> Value:
        return Value(
            MultipliedRows("features", source_rows=SOURCE_TOKENS),
            (Axis("hidden", self.num_features),),
            is_constant=True,
        )

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the given feature vectors as the encoder's input, without a projection.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        frames = recorder.audio_frames = x if x.is_constant else self.input_frames()
        recorder.frames_by_row = True
        recorder.unread_table("styles", Axis("styles", self.num_styles), *frames.axes, role="idle")
        return frames.view(*(width or x.axes), new_rows=SOURCE_TOKENS)

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int, int]:
        """Returns the shape of the stem's input: [batch, positions, num_features]."""
        return batch, encoder_positions, self.num_features

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_features=24, num_styles=5)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class FeatureStemReference(nn.Module):
        """Returns the feature vectors unchanged. frames: [batch, positions, num_features] → same shape."""

        def __init__(self, spec: FeatureStem) -> None:
            super().__init__()
            self.styles = nn.Embedding(spec.num_styles, spec.num_features)

        def forward(self, frames: Tensor) -> Tensor:
            return frames

    return FeatureStemReference
