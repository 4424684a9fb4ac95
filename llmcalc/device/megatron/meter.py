"""A meter whose storages may be of another stream than the current one."""

from __future__ import annotations

from ...algebra import Number
from ...kernels.meter import Block, Meter

SIDE = 1
"""The stream on which data parallelism is set up: what it leaves free serves no other stream.

Source: Megatron-LM, megatron/training/training.py, `get_model`: `torch.cuda.stream(ddp_stream)`.
"""


class StreamMeter(Meter):
    """stream: on which new storages are made, 0 by default."""

    stream = 0

    def allocate(self, size: Number) -> Block:
        block = super().allocate(0) if self.device is None else None
        if block is None:
            assert self.device is not None
            block = Block(size, self.kind, self.device.allocate(size, self.stream))
            self._count(block)
        return block
