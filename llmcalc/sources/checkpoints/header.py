"""The tensors of a checkpoint, independent of the file format, and a reader for files with untrusted lengths."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import InputError

LARGEST_HEADER = 100_000_000
"""Largest header in bytes. The header of a 1T-parameter checkpoint's index is under 20 000 000."""

MOST_TENSORS = 2_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One stored tensor.

    shape: its shape as a row-major array, slowest axis first.
    nbytes: bytes of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        n = 1
        for axis in self.shape:
            n *= axis
        return n


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a model, in the order of the file. metadata: the other entries of the header."""

    format: str
    tensors: tuple[StoredTensor, ...]
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return sum(t.elements for t in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def by_dtype(self) -> dict[str, tuple[int, int, int]]:
        """Format → (tensors, elements, bytes), the largest first."""
        sums: dict[str, tuple[int, int, int]] = {}
        for t in self.tensors:
            tensors, elements, nbytes = sums.get(t.dtype, (0, 0, 0))
            sums[t.dtype] = (tensors + 1, elements + t.elements, nbytes + t.nbytes)
        return dict(sorted(sums.items(), key=lambda item: -item[1][2]))


class BoundedReader:
    """A reader of a binary file that never reads past the size of the file.

    Every read names its field, so that an error for a truncated file names the field where the file ends.
    """

    def __init__(self, file: IO[bytes], size: int, where: str) -> None:
        self.file, self.size, self.where, self.at = file, size, where, 0

    def take(self, count: int, what: str) -> bytes:
        """Reads `count` bytes. Raises `InputError` if fewer bytes are left."""
        self._pass(count, what)
        data = self.file.read(count)
        if len(data) != count:
            raise InputError(f"{self.where}: {what}: the file ended while it was read")
        return data

    def skip(self, count: int, what: str) -> None:
        """Skips `count` bytes. Raises `InputError` if fewer bytes are left."""
        self._pass(count, what)
        self.file.seek(count, 1)

    def _pass(self, count: int, what: str) -> None:
        if not 0 <= count <= self.size - self.at:
            raise InputError(
                f"{self.where}: {what}: {count:,} bytes at byte {self.at:,} of {self.size:,}; the file is "
                "truncated or not a checkpoint"
            )
        self.at += count

    def number(self, form: str, what: str) -> Any:
        """Reads one little-endian number in a format of `struct`."""
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))[0]


def open_bounded(path: Path) -> tuple[IO[bytes], int]:
    """Opens a file and returns it with its size. Raises `InputError` for a file that is missing or cannot be read."""
    try:
        return path.open("rb"), path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a checkpoint that can be read") from None
