"""Reads the headers of `.safetensors` files, single or sharded behind an index.

Format: https://github.com/huggingface/safetensors#format: eight bytes of length, that many bytes of JSON, then data.
A header is parsed tensor by tensor, so that a header of anything else is refused before it is built in memory.
The safetensors library maps the whole file and checks that all data is present, so it cannot read a header that was
fetched without its data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError, short_repr
from ..bounded import read_bytes, require_few_elements
from .header import LARGEST_HEADER, MAX_TENSORS, Checkpoint, StoredTensor, open_checkpoint, require_no_overlap

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Number format in the specification → bits per element."""


_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TABLE = rb"\{[^{}\"]*+(?:" + _STRING + rb"[^{}\"]*+)*+\}"
_ENTRY = re.compile(rb"\s*+(" + _STRING + rb")\s*+:\s*+(" + _TABLE + rb"|)\s*+([,}]?)", re.DOTALL)
_TEXTS = re.compile(_STRING, re.DOTALL)
_SPACE = b" \t\r\n"
_parse_json = json.JSONDecoder().decode  # json.loads looks for the encoding of each text anew

LONGEST_ENTRY = 4096
"""Largest JSON entry of a tensor (dtype, shape and offsets), in bytes."""

LARGEST_METADATA = 16_000_000
"""Largest JSON of `__metadata__` in bytes."""

MAX_METADATA = 10_000
"""Largest number of entries in `__metadata__`."""

LARGEST_INDEX = 40_000_000
"""Largest index file in bytes; the index of a checkpoint with 200,000 tensors has 25 MB."""

MAX_SHARDS = 5_000
"""Largest number of files in a sharded checkpoint; DeepSeek-V3 has 163."""


def read_safetensors(path: Path) -> Checkpoint:
    """Returns the tensors of one safetensors file.

    Raises `InputError` for a length that exceeds the file or the bound, a header that is not JSON, a tensor whose bytes
    do not match its shape, and tensors that overlap or have the same name.
    """
    header_json, data_bytes = _read_header(path, LARGEST_HEADER)
    return parse_header(header_json, str(path), data_bytes)


def _read_header(path: Path, byte_limit: int) -> tuple[bytes, int]:
    """Reads the JSON of a file's header, of at most `byte_limit` bytes, and the size of the file's data."""
    file, file_bytes = open_checkpoint(path)
    with file:
        header_bytes = int.from_bytes(file.read(8) or b"", "little")
        if file_bytes < 10 or header_bytes < 2 or header_bytes > file_bytes - 8:
            raise InputError(
                f"{path}: header length {header_bytes:,} in a file of {file_bytes:,} bytes; the file is truncated or "
                "not a safetensors checkpoint"
            )
        if header_bytes > byte_limit:
            raise InputError(
                f"{path}: header length {header_bytes:,}; expected at most {LARGEST_HEADER:,} bytes in all headers of "
                "a checkpoint"
            )
        return file.read(header_bytes) or b"", file_bytes - 8 - header_bytes


def parse_header(header_json: bytes, error_location: str, data_bytes: int | None = None) -> Checkpoint:
    """Parses the JSON of a header. data_bytes: bytes of data in the file; None to skip the check."""
    tensors: list[StoredTensor] = []
    data_starts: list[int] = []
    tensor_names: set[str] = set()
    metadata: dict[str, Any] = {}
    offset = len(header_json) - len(header_json.lstrip(_SPACE)) + 1
    closing_character = header_json[offset - 1 : offset]
    if closing_character != b"{":
        raise InputError(
            f"{error_location}: the header is not valid JSON, or not a table of tensors; not a safetensors checkpoint"
        )
    if header_json[offset:].strip(_SPACE) == b"}":
        offset, closing_character = len(header_json), b"}"
    while closing_character != b"}":
        entry_match = _ENTRY.match(header_json, offset)
        if entry_match is None or not entry_match[3]:
            if (
                entry_match is not None
                and not entry_match[2]
                and header_json[entry_match.end(2) : entry_match.end(2) + 1] not in (b"", b"{")
            ):
                raise _invalid_entry_error(_parse_tensor_name(entry_match[1], error_location), error_location)
            raise InputError(
                f"{error_location}: the header is not valid JSON, or not a table of tensors (byte {offset:,}); not a "
                "safetensors checkpoint"
            )
        tensor_name = _parse_tensor_name(entry_match[1], error_location)
        offset = entry_match.end()
        closing_character = entry_match[3]
        if tensor_name in tensor_names:
            raise InputError(
                f"{error_location}: two tensors are called {tensor_name[:80]}; not a safetensors checkpoint"
            )
        tensor_names.add(tensor_name)
        if len(tensor_names) > MAX_TENSORS:
            raise InputError(f"{error_location}: too many tensors; expected at most {MAX_TENSORS:,}")
        if tensor_name == "__metadata__":
            metadata = _parse_metadata(entry_match[2], error_location)
            continue
        tensor, data_start = _parse_tensor(tensor_name, entry_match[2], error_location, data_bytes)
        tensors.append(tensor)
        data_starts.append(data_start)
    if header_json[offset:].strip(_SPACE):
        raise InputError(
            f"{error_location}: the header is not valid JSON (byte {offset:,}); not a safetensors checkpoint"
        )
    require_no_overlap(data_starts, tensors, error_location)
    return Checkpoint("safetensors", tuple(tensors), metadata)


def _parse_tensor_name(name_bytes: bytes, error_location: str) -> str:
    try:
        tensor_name = str(_parse_json(name_bytes.decode()))
        tensor_name.isascii() or tensor_name.encode()
    except ValueError:  # a control character, or no UTF-8, or a lone surrogate
        raise InputError(
            f"{error_location}: the name of a tensor is not valid JSON ({name_bytes[:80]!r}); "
            "not a safetensors checkpoint"
        ) from None
    return tensor_name


def _parse_metadata(metadata_bytes: bytes, error_location: str) -> dict[str, Any]:
    """Parses the entries of `__metadata__`: texts, or tables of texts."""
    if len(metadata_bytes) > LARGEST_METADATA:
        raise InputError(
            f"{error_location}: __metadata__: {len(metadata_bytes):,} bytes are too many; expected at most "
            f"{LARGEST_METADATA:,}"
        )
    non_text_bytes = _TEXTS.sub(b"", metadata_bytes, count=2 * MAX_METADATA + 1)
    if non_text_bytes.count(b":") > MAX_METADATA or b'"' in non_text_bytes:
        raise InputError(f"{error_location}: __metadata__: too many entries; expected at most {MAX_METADATA:,}")
    if non_text_bytes.translate(None, _SPACE + b",:") != b"{}":
        raise InputError(f"{error_location}: __metadata__: expected a table of texts; not a safetensors checkpoint")
    try:
        return dict(json.loads(metadata_bytes))
    except ValueError:
        raise InputError(f"{error_location}: __metadata__: not valid JSON; not a safetensors checkpoint") from None


def _invalid_entry_error(tensor_name: str, error_location: str) -> InputError:
    return InputError(f"{error_location}: {tensor_name[:80]}: expected a known dtype, a shape and two data_offsets")


def _parse_tensor(
    tensor_name: str, entry_bytes: bytes, error_location: str, data_bytes: int | None
) -> tuple[StoredTensor, int]:
    """Parses a header entry; returns the tensor and the offset of its data."""
    try:
        if len(entry_bytes) > LONGEST_ENTRY:
            raise ValueError
        tensor_entry = _parse_json(entry_bytes.decode())
        dtype = tensor_entry["dtype"]
        shape = tuple(tensor_entry["shape"])
        data_start, data_end = tensor_entry["data_offsets"]
        element_bits = DTYPE_BITS[dtype]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise _invalid_entry_error(tensor_name, error_location) from None
    lengths = (*shape, data_start, data_end)
    if any(type(length) is not int or not 0 <= length <= 2**48 for length in lengths) or len(shape) > 16:
        raise InputError(f"{error_location}: {tensor_name[:80]}: a shape or offset is not a valid size")
    tensor = StoredTensor(tensor_name, dtype, shape, data_end - data_start)
    if (tensor.elements * element_bits + 7) // 8 != tensor.nbytes:
        raise InputError(
            f"{error_location}: {tensor_name[:80]}: {tensor.nbytes:,} bytes for {dtype} of shape {list(shape)}"
        )
    if data_bytes is not None and data_end > data_bytes:
        raise InputError(
            f"{error_location}: {tensor_name[:80]}: ends at byte {data_end:,} of {data_bytes:,}; the file is truncated"
        )
    return tensor, data_start


def read_index(path: Path) -> Checkpoint:
    """Returns the tensors of all shards listed in a `model.safetensors.index.json`.

    Raises `InputError` for a missing shard, for a tensor that is not in its shard, and for one that is in two.
    """
    weight_map = parse_index(read_bytes(path, LARGEST_INDEX, "the index of a checkpoint"), str(path))

    def read_shard_header(shard_name: str, byte_limit: int) -> tuple[bytes, int | None]:
        return _read_header(path.parent / shard_name, byte_limit)

    return join_shards(weight_map, read_shard_header, str(path), f"{path.parent}/")


def parse_index(json_bytes: bytes, error_location: str) -> dict[str, str]:
    """Parses an index file, and returns each tensor's file, which is in the index's folder.

    Raises `InputError` for anything else, and for more tensors or files than the bounds.
    """
    try:
        index_text = json_bytes.decode("utf-8-sig")
        require_few_elements(index_text, error_location, MAX_TENSORS + 1000)
        shard_index = json.loads(index_text, object_pairs_hook=lambda pairs: _unique_keys(pairs, error_location))
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"{error_location}: not valid JSON; not the index of a checkpoint") from None
    weight_map = shard_index.get("weight_map") if isinstance(shard_index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard_name, str) for shard_name in weight_map.values()):
        raise InputError(f"{error_location}: weight_map: {_EXPECTED_MAP}")
    shard_names = set(weight_map.values())
    if len(shard_names) > MAX_SHARDS:
        raise InputError(f"{error_location}: weight_map: {len(shard_names):,} files; expected at most {MAX_SHARDS:,}")
    for shard_name in shard_names:
        if Path(shard_name).name != shard_name:
            raise InputError(f"{error_location}: weight_map: {short_repr(shard_name)}; {_EXPECTED_MAP}")
    return weight_map


_EXPECTED_MAP = "expected a table of tensor names and the files beside this one that hold them"


def _unique_keys(json_pairs: list[tuple[str, Any]], error_location: str) -> dict[str, Any]:
    """Returns a JSON object as a table. Raises `InputError` if the object has the same name twice."""
    json_object = dict(json_pairs)
    if len(json_object) != len(json_pairs):
        earlier_names: set[str] = set()
        repeated_key = next(key for key, _ in json_pairs if key in earlier_names or earlier_names.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"{error_location}: {repeated_key[:80]} is listed twice; not the index of a checkpoint")
    return json_object


def join_shards(
    weight_map: Mapping[str, str],
    read_shard_header: Callable[[str, int], tuple[bytes, int | None]],
    error_location: str,
    folder_name: str,
) -> Checkpoint:
    """Returns the tensors of the shards that an index lists.

    read_shard_header: a file's name and the most bytes of its header → its header, and the bytes of its data (None if
    they are not known). folder_name: what stands before a file's name in messages.
    """
    tensors: dict[str, StoredTensor] = {}
    remaining_bytes = LARGEST_HEADER
    for shard_name in dict.fromkeys(weight_map.values()):
        header_json, data_bytes = read_shard_header(shard_name, remaining_bytes)
        remaining_bytes -= len(header_json)
        for tensor in parse_header(header_json, f"{folder_name}{shard_name}", data_bytes).tensors:
            if tensor.name in tensors:
                raise InputError(f"{folder_name}{shard_name}: {tensor.name[:80]} is in another file too; expected one")
            tensors[tensor.name] = tensor
        if len(tensors) > MAX_TENSORS:
            raise InputError(f"{error_location}: too many tensors; expected at most {MAX_TENSORS:,}")
    missing_names = [tensor_name for tensor_name in weight_map if tensor_name not in tensors]
    if missing_names:
        raise InputError(
            f"{error_location}: {missing_names[0][:80]}: {weight_map[missing_names[0]]} does not hold it "
            f"({len(missing_names)} such tensors)"
        )
    return Checkpoint("safetensors", tuple(tensors.values()))
