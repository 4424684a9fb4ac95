"""Reads the headers of `.safetensors` files, single or sharded behind an index.

Format: https://github.com/huggingface/safetensors#format: eight bytes of length, that many bytes of JSON, then data.
The safetensors library maps the whole file and checks that all data is present, so it cannot read a header that was
fetched without its data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import InputError
from .header import LARGEST_HEADER, MOST_TENSORS, Checkpoint, StoredTensor, open_bounded

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Number format in the specification → bits per element."""


def read_safetensors(path: Path, whole: bool = True) -> Checkpoint:
    """Returns the tensors of one file.

    whole: whether the data must be present; False for a file with only the header. Default True.
    Raises `InputError` for a length that exceeds the file, a header that is not JSON, and a tensor whose bytes do not
    match its shape.
    """
    file, size = open_bounded(path)
    with file:
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or not 2 <= length <= LARGEST_HEADER or length > size - 8:
            raise InputError(
                f"{path}: header length {length:,} in a file of {size:,} bytes; the file is truncated or not a "
                "safetensors checkpoint"
            )
        text = file.read(length)
    return parse_header(text, str(path), size - 8 - length if whole else None)


def parse_header(text: bytes, where: str, data_bytes: int | None = None) -> Checkpoint:
    """Parses the JSON of a header. data_bytes: bytes of data in the file; None to skip the check."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: the header is not valid JSON; not a safetensors checkpoint") from None
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise InputError(f"{where}: the header is not a table of tensors; not a safetensors checkpoint")
    metadata = header.pop("__metadata__", {})
    tensors = tuple(_tensor(name, entry, where, data_bytes) for name, entry in header.items())
    return Checkpoint("safetensors", tensors, metadata if isinstance(metadata, dict) else {})


def _tensor(name: str, entry: Any, where: str, data_bytes: int | None) -> StoredTensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        bits = DTYPE_BITS[dtype]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{where}: {name[:80]}: expected a known dtype, a shape and two data_offsets") from None
    if any(type(n) is not int or not 0 <= n <= 2**48 for n in (*shape, start, end)) or len(shape) > 16:
        raise InputError(f"{where}: {name[:80]}: a shape or offset is not a valid size")
    tensor = StoredTensor(name, dtype, shape, end - start)
    if (tensor.elements * bits + 7) // 8 != tensor.nbytes:
        raise InputError(f"{where}: {name[:80]}: {tensor.nbytes:,} bytes for {dtype} of shape {list(shape)}")
    if data_bytes is not None and end > data_bytes:
        raise InputError(f"{where}: {name[:80]}: ends at byte {end:,} of {data_bytes:,}; the file is truncated")
    return tensor


def read_index(path: Path) -> Checkpoint:
    """Returns the tensors of all shards listed in a `model.safetensors.index.json`, from its folder.

    Raises `InputError` for a missing shard, and for a tensor that is not in its shard.
    """
    from ..huggingface.file import read_json

    data = read_json(path, LARGEST_HEADER)
    weight_map = data.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(v, str) and Path(v).name == v for v in weight_map.values()
    ):
        raise InputError(
            f"{path}: weight_map: expected a table of tensor names and the files beside this one that hold them"
        )
    found: dict[str, StoredTensor] = {}
    for shard in dict.fromkeys(weight_map.values()):
        found |= {t.name: t for t in read_safetensors(path.parent / shard).tensors}
    missing = [name for name in weight_map if name not in found]
    if missing:
        raise InputError(
            f"{path}: {missing[0]}: {weight_map[missing[0]]} does not hold it ({len(missing)} such tensors)"
        )
    metadata = data.get("metadata")
    return Checkpoint(
        "safetensors", tuple(found[name] for name in weight_map), metadata if isinstance(metadata, dict) else {}
    )
