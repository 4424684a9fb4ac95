"""Audio is cut into clips of one length, each padded to it, as Whisper reads them.

Whisper (Radford 2022, arXiv:2212.04356, §2.2), Qwen2-Audio, Voxtral, Audio Flamingo 3. transformers:
models/whisper/feature_extraction_whisper.py, models/qwen2_audio/processing_qwen2_audio.py,
models/voxtral/processing_voxtral.py.
"""

from __future__ import annotations

from typing import Literal

from ...errors import InputError
from ..base import Flag, Width
from .base import AudioRule, Encoded, frames_of

RATE, HOP = 16_000, 160
"""Samples per second, and samples per frame."""


class Clips(AudioRule):
    """Clips of `seconds` each, at 100 frames per second; two frames become one position of the encoder.

    seconds: the length of a clip.
    merge: the encoder's positions that become one token of the text model.
    padded: whether padding becomes tokens too (Voxtral), false by default.
    several: whether audio longer than a clip is cut into several, false by default: the processor drops the rest.
    """

    type: Literal["clips"] = "clips"
    seconds: Width = 30
    merge: Width = 1
    padded: Flag = False
    several: Flag = False

    def encode(self, seconds: float) -> Encoded:
        if seconds > self.seconds and not self.several:
            raise InputError(
                f"--audio {seconds:g}: the model reads one clip of at most {self.seconds} seconds; expected at most "
                f"{self.seconds}"
            )
        frames, clip = frames_of(seconds, RATE, HOP), self.seconds * RATE // HOP
        clips = max(1, -(-frames // clip))
        positions = clips * clip // 2 if self.padded else (frames - 1) // 2 + 1
        return Encoded(clips, clip, 1, max(1, (positions - self.merge) // self.merge + 1))
