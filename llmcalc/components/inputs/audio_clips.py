"""The rule that cuts audio into clips of equal length and pads the last clip, as for Whisper.

Whisper (Radford 2022, arXiv:2212.04356, §2.2), Qwen2-Audio, Voxtral, Audio Flamingo 3. transformers:
models/whisper/feature_extraction_whisper.py, models/qwen2_audio/processing_qwen2_audio.py,
models/voxtral/processing_voxtral.py, models/audioflamingo3/processing_audioflamingo3.py,
models/musicflamingo/processing_musicflamingo.py. Ultravox: ultravox/model/ultravox_processing.py of fixie-ai/ultravox.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...errors import InputError
from ..base import Flag, InnerWidth
from .base import AudioRule, InputSizes, count_frames

SAMPLE_RATE, FRAME_SAMPLES = 16_000, 160
"""Samples per second, and samples per frame."""

LEAST_FRAMES = 2
"""The frames to which Ultravox's processor pads a shorter recording."""


class AudioClips(AudioRule):
    """The rule for audio clips of a fixed number of frames, 100 per second; two frames become one encoder position.

    frames: the frames of a clip.
    merge: the encoder's positions that become one token of the text model.
    padded: whether padding becomes tokens too (Voxtral), false by default.
    several: whether audio longer than a clip is cut into several, false by default: the processor drops the rest.
    max_clips: the most clips of a recording, whose rest the processor drops; by default there is no limit.
    marks: the further tokens that the processor writes around a recording, 0 by default.
    fits: whether the encoder reads a recording of one clip without padding to a clip, and a rest of positions in a clip
        is padded to a whole token after the encoder (Ultravox); false by default.
    """

    type: Literal["clips"] = "clips"
    frames: InnerWidth = 3000
    merge: InnerWidth = 1
    padded: Flag = False
    several: Flag = False
    max_clips: InnerWidth | None = None
    marks: int = Field(default=0, ge=0, le=1000, strict=True)
    fits: Flag = False

    def input_sizes(self, seconds: float) -> InputSizes:
        frame_count, clip_seconds = (
            count_frames(seconds, SAMPLE_RATE, FRAME_SAMPLES),
            self.frames * FRAME_SAMPLES / SAMPLE_RATE,
        )
        if frame_count > self.frames and not self.several:
            raise InputError(
                f"--audio {seconds:g}: the model reads one clip of at most {clip_seconds:g} seconds; expected at most "
                f"{clip_seconds:g}"
            )
        clip_count = -(-frame_count // self.frames)
        if self.max_clips is not None and clip_count > self.max_clips:
            raise InputError(
                f"--audio {seconds:g}: the model reads at most {self.max_clips} clips; expected at most "
                f"{self.max_clips * clip_seconds:g}"
            )
        if self.fits:
            return self._encode_unpadded_clips(max(frame_count, LEAST_FRAMES), clip_count)
        position_count = clip_count * self.frames // 2 if self.padded else (frame_count - 1) // 2 + 1
        return InputSizes(clip_count, self.frames, 1, max(1, position_count // self.merge) + self.marks)

    def _encode_unpadded_clips(self, frame_count: int, clip_count: int) -> InputSizes:
        """Returns the numbers of frames and tokens of clips, of which the last is not padded to the full length."""
        frames_per_token = 2 * self.merge
        last_clip_frames = frame_count - (clip_count - 1) * self.frames
        token_count = (clip_count - 1) * -(-self.frames // frames_per_token) + -(-last_clip_frames // frames_per_token)
        frames_per_clip = frame_count if clip_count == 1 else self.frames
        frames_read_by_projector = clip_count * frames_per_token * -(-frames_per_clip // frames_per_token)
        return InputSizes(clip_count, frames_per_clip, 1, token_count + self.marks, frames_read_by_projector)
