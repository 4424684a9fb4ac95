"""Reads the headers of llama.cpp's `.gguf` files.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Block sizes: `ggml.h` and the Python package `gguf`
(`GGML_QUANT_SIZES`); a test compares them with the package. The package maps the whole file into memory; this file
reads only the header.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from ...errors import InputError
from .header import MAX_TENSORS, BoundedReader, Checkpoint, StoredTensor, open_checkpoint, require_no_overlap

GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Number of a ggml type → its name, elements per block, bytes per block."""

SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING_TYPE, ARRAY_TYPE = 8, 9
LONGEST_STORED_ARRAY = 64
"""Largest array of metadata that is kept, in elements; longer ones, such as vocabularies, are skipped."""

MAX_METADATA_ENTRIES = 10_000
"""Largest number of metadata entries. Published files have under 200."""

MAX_ELEMENTS = 2_000_000
"""Largest number of texts and lists in the arrays of a file's metadata. A vocabulary of 262,144 tokens with its merges
has 800,000."""

LONGEST_NAME = 65_535
"""Largest length of a metadata key (the format's own bound) and of a tensor's name, in bytes."""


def read_gguf(path: Path) -> Checkpoint:
    """Returns the tensors and metadata in the header of a `.gguf` file.

    Raises `InputError` for a file that is not GGUF version 2 or 3, and for any length that exceeds the file.
    """
    file, file_bytes = open_checkpoint(path)
    with file:
        bounded_reader = BoundedReader(file, file_bytes, str(path))
        if bounded_reader.read_bytes(4, "magic") != b"GGUF":
            raise InputError(f"{path}: not a GGUF file (it does not begin with GGUF)")
        version = bounded_reader.read_number("I", "version")
        if version not in (2, 3):
            raise InputError(f"{path}: version: {version} is not supported; expected 2 or 3, little-endian")
        tensor_count = bounded_reader.read_number("Q", "tensor_count")
        metadata_count = bounded_reader.read_number("Q", "metadata_kv_count")
        if tensor_count > MAX_TENSORS or metadata_count > MAX_METADATA_ENTRIES:
            raise InputError(
                f"{path}: {tensor_count:,} tensors and {metadata_count:,} metadata entries; expected at most "
                f"{MAX_TENSORS:,} and {MAX_METADATA_ENTRIES:,} (not a GGUF file, or a damaged one)"
            )
        metadata: dict[str, Any] = {}
        array_element_counter = _ElementCount()
        for _ in range(metadata_count):
            metadata_key = _read_text(bounded_reader, "metadata key", LONGEST_NAME)
            if metadata_key in metadata:
                raise InputError(f"{path}: two metadata entries are called {metadata_key[:80]}; not a GGUF file")
            value_type = bounded_reader.read_number("I", metadata_key)
            metadata[metadata_key] = _read_value(bounded_reader, value_type, metadata_key, array_element_counter)
        tensors_by_name: dict[str, StoredTensor] = {}
        data_starts: list[int] = []
        for _ in range(tensor_count):
            tensor, data_offset = _read_tensor(bounded_reader)
            if not tensor.name:
                raise InputError(f"{path}: a tensor has no name; not a GGUF file")
            if tensor.name in tensors_by_name:
                raise InputError(f"{path}: two tensors are called {tensor.name[:80]}; not a GGUF file")
            tensors_by_name[tensor.name] = tensor
            data_starts.append(data_offset)
        require_no_overlap(data_starts, tuple(tensors_by_name.values()), str(path))
        return Checkpoint("gguf", tuple(tensors_by_name.values()), metadata)


class _ElementCount:
    """Counts and limits the texts and lists in a file's metadata arrays."""

    def __init__(self) -> None:
        self.elements = 0

    def add(self, bounded_reader: BoundedReader, metadata_key: str, element_count: int) -> None:
        """Adds a metadata array's number of elements to the count. Raises `InputError` above the limit.

        Raises `InputError` for more than the file can hold or the limit allows.
        """
        if element_count > (bounded_reader.size - bounded_reader.position) // 8:  # each has its length before it
            raise bounded_reader.error(
                metadata_key,
                f"{element_count:,} elements in a file of {bounded_reader.size:,} bytes; truncated or not a GGUF file",
            )
        self.elements += element_count
        if self.elements > MAX_ELEMENTS:
            raise bounded_reader.error(
                metadata_key,
                f"{self.elements:,} texts and lists in arrays; expected at most "
                f"{MAX_ELEMENTS:,} (not a GGUF file, or a damaged one)",
            )


def _read_text(bounded_reader: BoundedReader, header_field: str, byte_limit: int | None = None) -> str:
    """Reads a string of the header. byte_limit: the largest number of bytes; default the header's remaining limit."""
    text_bytes = bounded_reader.read_number("Q", header_field)
    if byte_limit is not None and text_bytes > byte_limit:
        raise bounded_reader.error(
            header_field,
            f"{text_bytes:,} bytes at byte {bounded_reader.position:,}; expected at most {byte_limit:,} (truncated or "
            "not a GGUF file)",
        )
    return bounded_reader.read_bytes(text_bytes, header_field).decode("utf-8", "replace")


def _read_value(
    bounded_reader: BoundedReader,
    value_type: int,
    metadata_key: str,
    array_element_counter: _ElementCount,
    depth: int = 0,
) -> Any:
    if value_type in SCALAR_FORMATS:
        return bounded_reader.read_number(SCALAR_FORMATS[value_type], metadata_key)
    if value_type == STRING_TYPE:
        return _read_text(bounded_reader, metadata_key)
    if value_type != ARRAY_TYPE or depth > 4:
        raise bounded_reader.error(metadata_key, f"metadata type {value_type} is not known")
    element_type = bounded_reader.read_number("I", metadata_key)
    element_count = bounded_reader.read_number("Q", metadata_key)
    if element_type in SCALAR_FORMATS:
        if element_count <= LONGEST_STORED_ARRAY:
            return [
                bounded_reader.read_number(SCALAR_FORMATS[element_type], metadata_key) for _ in range(element_count)
            ]
        bounded_reader.skip_bytes(element_count * struct.calcsize("<" + SCALAR_FORMATS[element_type]), metadata_key)
        return f"{element_count:,} values"
    if element_type not in (STRING_TYPE, ARRAY_TYPE):
        raise bounded_reader.error(metadata_key, f"metadata type {element_type} is not known")
    array_element_counter.add(bounded_reader, metadata_key, element_count)
    if element_count <= LONGEST_STORED_ARRAY:
        return [
            _read_value(bounded_reader, element_type, metadata_key, array_element_counter, depth + 1)
            for _ in range(element_count)
        ]
    if element_type == STRING_TYPE:
        bounded_reader.skip_texts(element_count, metadata_key)
    else:
        for _ in range(element_count):
            _read_value(bounded_reader, element_type, metadata_key, array_element_counter, depth + 1)
    return f"{element_count:,} values"


def _read_tensor(bounded_reader: BoundedReader) -> tuple[StoredTensor, int]:
    """Reads a tensor's entry in the header, with the offset of the tensor's data."""
    tensor_name = _read_text(bounded_reader, "tensor name", LONGEST_NAME)
    axis_count = bounded_reader.read_number("I", tensor_name)
    if axis_count > 8:
        raise bounded_reader.error(tensor_name, f"{axis_count} axes; not a GGUF file")
    shape = tuple(bounded_reader.read_number("Q", tensor_name) for _ in range(axis_count))[
        ::-1
    ]  # stored fastest axis first
    ggml_type = bounded_reader.read_number("I", tensor_name)
    data_offset = bounded_reader.read_number("Q", tensor_name)
    if ggml_type not in GGML_TYPES or any(axis_length > 2**48 for axis_length in shape):
        raise bounded_reader.error(tensor_name, f"type {ggml_type} of shape {list(shape)} is not known")
    dtype, block_elements, block_bytes = GGML_TYPES[ggml_type]
    element_count = StoredTensor(tensor_name, dtype, shape, 0).elements
    if shape and shape[-1] % block_elements:
        raise bounded_reader.error(
            tensor_name, f"rows of {shape[-1]:,} are not a multiple of the block size {block_elements} ({dtype})"
        )
    return StoredTensor(tensor_name, dtype, shape, element_count // block_elements * block_bytes), data_offset
