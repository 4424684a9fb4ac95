"""The rule that reads a recording whole, in a number of frames that depends on its length.

transformers: models/gemma3n, gemma4, gemma4_unified, phi4_multimodal, parakeet and granite_speech
(feature_extraction and processing files).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...errors import InputError
from ..base import InnerWidth
from .audio_clips import FRAME_SAMPLES, SAMPLE_RATE
from .base import AudioRule, InputSizes, check_recording_length


class AudioRecording(AudioRule):
    """The rule for recordings of 16,000 samples per second, cut into frames that overlap.

    window: the samples of a frame.
    hop: the samples from one frame to the next, 160 by default.
    lead: the samples of silence that the processor adds in front, 0 by default.
    multiple: the number of samples to a multiple of which the processor pads, 1 by default. The encoder reads the
        padding too, which becomes no token.
    frames_per_token: the frames that become one token, 1 by default.
    tokens_at_once: the tokens that so many frames become together, of which the last may be padded (Granite Speech), 1
        by default.
    tokens: the tokens of every recording, however short; by default they follow its frames.
    max_seconds: the longest recording, whose rest the processor drops; by default there is no limit.
    marks: the further tokens that the processor writes around a recording, 0 by default.
    """

    type: Literal["recording"] = "recording"
    window: InnerWidth
    hop: InnerWidth = FRAME_SAMPLES
    lead: int = Field(default=0, ge=0, le=2**40, strict=True)
    multiple: InnerWidth = 1
    frames_per_token: InnerWidth = 1
    tokens_at_once: InnerWidth = 1
    tokens: InnerWidth | None = None
    max_seconds: InnerWidth | None = None
    marks: int = Field(default=0, ge=0, le=1000, strict=True)

    def input_sizes(self, seconds: float) -> InputSizes:
        check_recording_length(seconds, self.max_seconds)
        sample_count = round(seconds * SAMPLE_RATE)
        frame_count = self._frame_count(sample_count)
        if frame_count < 1:
            raise InputError(f"--audio {seconds:g}: shorter than a frame of {self.window} samples; expected more")
        frame_group_count = -(-frame_count // self.frames_per_token)
        token_count = frame_group_count * self.tokens_at_once if self.tokens is None else self.tokens
        padded_sample_count = -(-sample_count // self.multiple) * self.multiple
        return InputSizes(1, self._frame_count(padded_sample_count), 1, token_count + self.marks)

    def _frame_count(self, sample_count: int) -> int:
        return (sample_count + self.lead - self.window) // self.hop + 1
