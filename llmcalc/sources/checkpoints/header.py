"""The tensors of a checkpoint, whatever file they stand in, and reading a file whose lengths cannot be trusted."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import InputError

LARGEST_HEADER = 100_000_000
"""Bytes. The header of a 1T-parameter checkpoint's index is under 20 000 000."""

MOST_TENSORS = 2_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as it is stored. shape: as a row-major array has it, slowest axis first. nbytes: of its data."""

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
    """Every tensor of a model, in the order of the file. metadata: what else the header says."""

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
    """A binary file from which nothing is read that its size does not hold.

    Every read names what it is for, so that a truncated file is reported at the field where it ends.
    """

    def __init__(self, file: IO[bytes], size: int, where: str) -> None:
        self.file, self.size, self.where, self.at = file, size, where, 0

    def take(self, count: int, what: str) -> bytes:
        """Raises `InputError` where fewer than `count` bytes are left."""
        self._pass(count, what)
        data = self.file.read(count)
        if len(data) != count:
            raise InputError(f"{self.where}: {what}: the file ended while it was read")
        return data

    def skip(self, count: int, what: str) -> None:
        """Raises `InputError` where fewer than `count` bytes are left."""
        self._pass(count, what)
        self.file.seek(count, 1)

    def _pass(self, count: int, what: str) -> None:
        if not 0 <= count <= self.size - self.at:
            raise InputError(
                f"{self.where}: {what}: {count:,} bytes at byte {self.at:,} of {self.size:,}; the file is "
                "truncated or no such checkpoint"
            )
        self.at += count

    def number(self, form: str, what: str) -> Any:
        """One little-endian number of `struct`'s format."""
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))[0]


def open_bounded(path: Path) -> tuple[IO[bytes], int]:
    """Raises `InputError` for a file that is not there or cannot be read."""
    try:
        return path.open("rb"), path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a checkpoint that can be read") from None
