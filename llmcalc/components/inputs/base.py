"""The base classes of rules by which a processor cuts images or audio into patches or frames, and their token counts.

A rule repeats the arithmetic of the processor of its class in transformers. The limits in it (pixels, tiles) are those
of the published processor: `preprocessor_config.json` of a model may state others.
"""

from __future__ import annotations

from math import ceil

from ...errors import InputError
from ...frozen import frozen
from ..base import Part


@frozen(slots=True)
class InputSizes:
    """The sizes of an image or a recording: the encoder's patches or frames, and the text model's tokens.

    tile_or_clip_count: the tiles of the image, or the clips of the audio, that the encoder reads, all of one size.
    rows, columns: the patches along both sides of each part; frames of audio are one column.
    tokens: the tokens of the text model's sequence.
    projector_patches: the patches of all parts that projectors read; None (default) for all, fewer where some are
        padding, more where they are padded after the encoder.
    reads_image_per_frame: whether projectors that merge frames read the image as each of them, false by default.
    line_end_marks: the marks of line ends that a projector reads beside the patches, 0 by default.
    """

    tile_or_clip_count: int
    rows: int
    columns: int
    tokens: int
    projector_patches: int | None = None
    reads_image_per_frame: bool = False
    line_end_marks: int = 0


class ImageRule(Part):
    """The rule by which a processor cuts an image into patches."""

    noun = "rule of a processor"

    def rule_for_several_images(self) -> ImageRule:
        """Returns the rule for images in a sequence with several images."""
        return self

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        """Returns the numbers of patches and tokens of an image. height, width: pixels.

        Raises `InputError` for a size that the processor refuses.
        """
        raise TypeError(f"{type(self).__name__} does not say how an image is cut")


class AudioRule(Part):
    """The rule by which a processor cuts audio into frames."""

    noun = "rule of a processor"

    def input_sizes(self, seconds: float) -> InputSizes:
        """Returns the numbers of clips, frames and tokens of a recording.

        Raises `InputError` for a length that the processor refuses.
        """
        raise TypeError(f"{type(self).__name__} does not say how audio is cut")


def aspect_ratio_error(height: int, width: int, ratio_limit: int) -> InputError:
    """Returns the error for an image whose aspect ratio exceeds a limit."""
    return InputError(
        f"--image {width}x{height}: the processor takes images whose sides differ by a factor of at most {ratio_limit}"
    )


def check_recording_length(seconds: float, max_seconds: int | None) -> None:
    """Raises `InputError` for a recording that exceeds the processor's longest length."""
    if max_seconds is not None and seconds > max_seconds:
        raise InputError(
            f"--audio {seconds:g}: the model reads at most {max_seconds} seconds of a recording; expected at most "
            f"{max_seconds}"
        )


def count_frames(seconds: float, sample_rate: int, hop_samples: int) -> int:
    """Returns the number of audio frames of a recording.

    sample_rate: samples per second. hop_samples: samples per frame.
    """
    return ceil(round(seconds * sample_rate) / hop_samples)
