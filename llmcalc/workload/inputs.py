"""Images and audio in a prompt: their settings, and the pass of an encoder over them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from ..algebra import Number
from ..errors import InputError, short_repr
from ..frozen import frozen
from .durations import parse_duration
from .setting import INFERENCE_PHASES, Setting
from .workload import Workload

LARGEST_SIDE = 2**16
"""The largest side of an image, in pixels."""

LONGEST_AUDIO = 10**6
"""The longest audio, in seconds."""


def check_image_size(option_name: str, size_text: str) -> str:
    """Validates an image size and returns it. Raises `InputError` unless it is WIDTHxHEIGHT in pixels."""
    size_match = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", size_text)
    if size_match is None or not all(1 <= int(side_pixels) <= LARGEST_SIDE for side_pixels in size_match.groups()):
        raise InputError(
            f"{option_name}: {short_repr(size_text)} is not the size of an image; expected WIDTHxHEIGHT in pixels, "
            f"such as 1024x768, with sides of at most {LARGEST_SIDE:,}"
        )
    return size_text


def parse_audio(option_name: str, option_value: Any) -> float:
    """Parses a length of audio: `30`, `30s`, `2min`. Raises `InputError` for other text and beyond `LONGEST_AUDIO`."""
    audio_seconds = parse_duration(option_name, option_value)
    if audio_seconds > LONGEST_AUDIO:
        raise InputError(f"{option_name} {audio_seconds:g}: not a length of audio in seconds; expected one such as 30")
    return audio_seconds


TOKENS_ADVICE = "the tokens of images and audio in --seq, as llmcalc flops prints them"
"""The advice for a training run, which states tokens in the place of images and audio."""

IMAGE_SETTING = Setting(
    "Size of the images of a sequence, such as 1024x768. Their tokens add to --seq.",
    "What runs",
    phases=INFERENCE_PHASES,
    substitute=TOKENS_ADVICE,
    check=check_image_size,
    example="1024x768",
    metavar="WxH",
    is_common=True,
)
IMAGES_SETTING = Setting(
    "Images of a sequence.", "What runs", "1", INFERENCE_PHASES, "image", maximum=100_000, is_common=True
)
AUDIO_SETTING = Setting(
    "Seconds of audio of a sequence. Its tokens add to --seq.",
    "What runs",
    phases=INFERENCE_PHASES,
    substitute=TOKENS_ADVICE,
    parse_value=parse_audio,
    metavar="SECONDS",
    is_common=True,
)


@frozen
class Inputs:
    """The images and audio of each sequence; a field that is None has none.

    image: the size of every image, WIDTHxHEIGHT in pixels.
    images: the number of images; one if `image` is given.
    audio: the length of the audio, in seconds.
    """

    image: Annotated[str | None, IMAGE_SETTING] = None
    images: Annotated[int | None, IMAGES_SETTING] = None
    audio: Annotated[float | None, AUDIO_SETTING] = None

    @property
    def has_inputs(self) -> bool:
        """Whether there are images or audio."""
        return self.image is not None or self.audio is not None

    @property
    def option(self) -> str:
        """The command-line option of the first of these settings that is set; empty if none is."""
        return next(
            (f"--{input_name}" for input_name in ("image", "images", "audio") if getattr(self, input_name) is not None),
            "",
        )

    def check(self) -> None:
        """Raises `InputError` if the number of images is given without their size."""
        if self.images is not None and self.image is None:
            raise InputError("--images: it means nothing without --image; expected --image too")

    @property
    def height_and_width(self) -> tuple[int, int]:
        """The height and width of an image in pixels. Raises `InputError` if no image is given."""
        if self.image is None:
            raise InputError("--image: missing; expected the size of an image, such as 1024x768")
        width_pixels, height_pixels = re.split("[x×]", check_image_size("--image", self.image))
        return int(height_pixels), int(width_pixels)


NO_INPUTS = Inputs()


@frozen(slots=True)
class EncoderPass(Workload):
    """One pass of an encoder over images, tiles or audio clips of one size.

    batch: the number of images, tiles or clips.
    rows, columns: the patches along both sides of each; frames of audio are one column.
    """

    rows: Number = 1
    columns: Number = 1
