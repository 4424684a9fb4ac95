"""A device whose memory is taken on one stream or another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..allocator import CachingAllocator

SIDE = 1
"""The stream on which data parallelism is set up: what it leaves free serves no other stream.

Source: Megatron-LM, megatron/training/training.py, `get_model`: `torch.cuda.stream(ddp_stream)`.
"""


class Streams(CachingAllocator):
    """stream: on which blocks are taken, 0 by default."""

    stream = 0

    def allocate(self, bytes: int, stream: int = 0) -> Any:
        return super().allocate(bytes, self.stream)

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Takes blocks on that stream."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before
