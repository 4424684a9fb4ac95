"""The rule that cuts a recording into chunks of audio frames; the encoder convolves each chunk separately.

Qwen2.5-Omni, Qwen3-Omni and Qwen3-ASR. transformers: processing files of models/qwen2_5_omni, qwen3_omni_moe and
qwen3_asr.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...errors import InputError
from ..base import Flag, InnerWidth
from .audio_clips import FRAME_SAMPLES, SAMPLE_RATE
from .base import AudioRule, InputSizes, check_recording_length


class AudioChunks(AudioRule):
    """The rule that cuts a recording, at 100 frames per second, into chunks; the last chunk may be shorter.

    chunk: the frames of a chunk.
    halvings: the number of convolutions with a stride of 2.
    merge: the encoder's positions that become one token of the text model, 1 by default.
    drops_rest: whether samples after the last whole hundredth of a second are dropped, false by default.
    least_samples: the samples to which a shorter recording is padded, 1 by default.
    max_seconds: the longest recording, whose rest the processor drops; by default there is no limit.
    """

    type: Literal["chunks"] = "chunks"
    chunk: InnerWidth
    halvings: int = Field(ge=1, le=10, strict=True)
    merge: InnerWidth = 1
    drops_rest: Flag = False
    least_samples: InnerWidth = 1
    max_seconds: InnerWidth | None = None

    def input_sizes(self, seconds: float) -> InputSizes:
        check_recording_length(seconds, self.max_seconds)
        sample_count = max(round(seconds * SAMPLE_RATE), self.least_samples)
        frame_count = sample_count // FRAME_SAMPLES if self.drops_rest else -(-sample_count // FRAME_SAMPLES)
        whole_chunk_count, last_chunk_frames = divmod(frame_count, self.chunk)
        position_count = whole_chunk_count * self._chunk_positions(self.chunk) + self._chunk_positions(
            last_chunk_frames
        )
        token_count = position_count // self.merge
        if token_count < 1:
            raise InputError(f"--audio {seconds:g}: becomes no token of the model; expected a longer recording")
        frames_read_by_projector = None if self.merge == 1 else 2**self.halvings * self.merge * token_count
        return InputSizes(1, frame_count, 1, token_count, frames_read_by_projector)

    def _chunk_positions(self, frame_count: int) -> int:
        """Returns the number of encoder positions of a chunk of frames."""
        return -(-frame_count // 2**self.halvings)
