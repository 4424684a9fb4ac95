"""Counts the bytes of storages by kind, and remembers what they were when they were most."""

from __future__ import annotations

from ..algebra import Number

KINDS = ("weights", "gradients", "optimizer", "activations", "temporary", "communication", "cache", "overhead")
"""What memory is counted under. Temporary is what neither a node nor a later pass needs."""


class Block:
    """The memory of one storage. kind: what it is counted under."""

    __slots__ = ("bytes", "kind")

    def __init__(self, size: int, kind: str) -> None:
        self.bytes, self.kind = size, kind


class Meter:
    """Counts requested bytes, without an allocator.

    kind: what new storages are counted under.
    now: bytes of all storages; by_kind: the same by kind. peak: the most so far; at: where that was.
    """

    def __init__(self) -> None:
        self.kind: str = "temporary"
        self.place, self.at = "", ""
        self.now = self.peak = 0
        self.by_kind: dict[str, int] = {}

    def allocate(self, size: Number) -> Block:
        self.now += size
        self.by_kind[self.kind] = self.by_kind.get(self.kind, 0) + size
        if self.now > self.peak:
            self.peak, self.at = self.now, self.place
        return Block(size, self.kind)

    def free(self, block: Block) -> None:
        self.now -= block.bytes
        self.by_kind[block.kind] -= block.bytes

    def kept(self, block: Block, kind: str) -> None:
        """From here on the block is counted under that kind; what is a weight or an input stays one."""
        if block.kind in ("temporary", "activations"):
            self.by_kind[block.kind] -= block.bytes
            self.by_kind[kind] = self.by_kind.get(kind, 0) + block.bytes
            block.kind = kind

    def restart(self) -> None:
        """Forgets the peak so far."""
        self.peak, self.at = self.now, self.place


class NoMeter:
    """Counts nothing: for sizes that are symbols."""

    kind = ""

    def allocate(self, size: Number) -> None:
        return None

    def free(self, block: None) -> None: ...

    def kept(self, block: None, kind: str) -> None: ...
