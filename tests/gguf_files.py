"""Writes GGUF files with tensors of given names, shapes and types, whose data are a hole in the file."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmcalc.sources.checkpoints.gguf import GGML_TYPES

NUMBERS = {name: (number, block, nbytes) for number, (name, block, nbytes) in GGML_TYPES.items()}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Iterable[tuple[str, tuple[int, ...], str]]) -> int:
    """Writes a file, and returns the bytes of its tensors. tensors: name, shape with the rows first, type."""
    listed = list(tensors)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    offset = total = 0
    for name, shape, kind in listed:
        number, block, nbytes = NUMBERS[kind]
        elements = 1
        for axis in shape:
            elements *= axis
        header += _text(name) + struct.pack("<I", len(shape))
        header += b"".join(struct.pack("<Q", axis) for axis in reversed(shape)) + struct.pack("<IQ", number, offset)
        size = elements // block * nbytes
        total += size
        offset += -(-size // 32) * 32
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        file.truncate(len(header) + -len(header) % 32 + offset)
    return total
