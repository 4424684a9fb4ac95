"""The tensors of a checkpoint in any file format, and a reader for files with untrusted lengths."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import InputError
from ..bounded import open_regular_file

LARGEST_HEADER = 64_000_000
"""Largest header in bytes, over all files of a checkpoint. DeepSeek-V3's headers have 14 MB in 163 files."""

MAX_TENSORS = 220_000
"""Largest number of tensors of a checkpoint. DeepSeek-V3 has 91,000; 1T parameters in 4 bits have about 210,000."""


_READ_BYTES = 2**20
"""Number of bytes that are read at a time from a sequence of many small texts."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a checkpoint's header: name, number format, shape and bytes.

    shape: its shape as a row-major array, slowest axis first.
    nbytes: bytes of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        element_count = 1
        for axis_length in self.shape:
            element_count *= axis_length
        return element_count


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a checkpoint in file order. metadata: other header entries."""

    format: str
    tensors: tuple[StoredTensor, ...]
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def by_dtype(self) -> dict[str, tuple[int, int, int]]:
        """Returns the numbers of tensors, elements and bytes by number format, the largest first."""
        sizes_by_dtype: dict[str, tuple[int, int, int]] = {}
        for tensor in self.tensors:
            tensor_count, element_count, nbytes = sizes_by_dtype.get(tensor.dtype, (0, 0, 0))
            sizes_by_dtype[tensor.dtype] = (tensor_count + 1, element_count + tensor.elements, nbytes + tensor.nbytes)
        return dict(sorted(sizes_by_dtype.items(), key=lambda item: -item[1][2]))


class BoundedReader:
    """A reader of a binary header, bounded by the file's size and `LARGEST_HEADER` bytes.

    Every read names its field, so that an error for a truncated file names the field where the file ends.
    """

    def __init__(self, file: IO[bytes], file_bytes: int, error_location: str) -> None:
        self.file: IO[bytes] = file
        self.size: int = file_bytes
        self.location: str = error_location
        self.position: int = 0
        self.bytes_read: int = 0

    def read_bytes(self, byte_count: int, header_field: str) -> bytes:
        """Reads `byte_count` bytes of the header.

        Raises `InputError` if fewer bytes are left, or if a header may not have as many.
        """
        self._check_bytes_left(byte_count, header_field)
        self.bytes_read += byte_count
        if self.bytes_read > LARGEST_HEADER:
            raise self.error(
                header_field,
                f"{byte_count:,} bytes make a header of more than {LARGEST_HEADER:,}, "
                "which is the most that is read; not a checkpoint, or a damaged one",
            )
        content_bytes = self.file.read(byte_count)
        if len(content_bytes or b"") != byte_count:
            raise self.error(header_field, "the file ended while it was read")
        return content_bytes

    def skip_bytes(self, byte_count: int, header_field: str) -> None:
        """Skips `byte_count` bytes. Raises `InputError` if fewer bytes are left."""
        self._check_bytes_left(byte_count, header_field)
        self.file.seek(byte_count, 1)

    def skip_texts(self, text_count: int, header_field: str) -> None:
        """Skips `text_count` texts, each preceded by its length in 8 bytes."""
        file_buffer, offset = b"", 0  # a part of the file, and how much of it has been passed
        for _ in range(text_count):
            if len(file_buffer) - offset < 8:
                next_bytes = self.read_bytes(min(_READ_BYTES, self.size - self.position), header_field)
                file_buffer, offset = file_buffer[offset:] + next_bytes, 0
            if len(file_buffer) - offset < 8:
                self._check_bytes_left(self.size, header_field)  # raises: the file ends here
            text_length = int.from_bytes(file_buffer[offset : offset + 8], "little")
            offset += 8 + text_length
            if offset > len(file_buffer):
                self.skip_bytes(offset - len(file_buffer), header_field)
                file_buffer, offset = b"", 0
        self.file.seek(offset - len(file_buffer), 1)
        self.position += offset - len(file_buffer)

    def _check_bytes_left(self, byte_count: int, header_field: str) -> None:
        if not 0 <= byte_count <= self.size - self.position:
            raise self.error(
                header_field,
                f"{byte_count:,} bytes at byte {self.position:,} of {self.size:,}; the file is "
                "truncated or not a checkpoint",
            )
        self.position += byte_count

    def error(self, header_field: str, problem_text: str) -> InputError:
        """Returns an error that names the file and the field."""
        return InputError(f"{self.location}: {header_field[:80]}: {problem_text}")

    def read_number(self, struct_format: str, header_field: str) -> Any:
        """Reads a little-endian number in a format of `struct`."""
        value_format = "<" + struct_format
        (number,) = struct.unpack(value_format, self.read_bytes(struct.calcsize(value_format), header_field))
        return number


def require_no_overlap(data_starts: Sequence[int], tensors: Sequence[StoredTensor], error_location: str) -> None:
    """Raises `InputError` if the data of two tensors overlap. data_starts: the first byte of each tensor's data."""
    previous_end, previous_name = 0, ""
    for tensor_index in sorted(range(len(tensors)), key=data_starts.__getitem__):
        tensor = tensors[tensor_index]
        if not tensor.nbytes:
            continue
        if data_starts[tensor_index] < previous_end:
            raise InputError(
                f"{error_location}: {tensor.name[:80]}: its data begin at byte {data_starts[tensor_index]:,}, "
                f"where those of {previous_name[:80]} do not end before byte {previous_end:,}; "
                "not a checkpoint, or a damaged one"
            )
        previous_end, previous_name = data_starts[tensor_index] + tensor.nbytes, tensor.name


def open_checkpoint(path: Path) -> tuple[IO[bytes], int]:
    """Opens a file and returns it with its size. Raises `InputError` for a missing or unreadable file."""
    return open_regular_file(path, "a checkpoint")
