"""Reads the checkpoint at a path: a file, an index, or a folder of shards."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import InputError
from .gguf import read_gguf
from .header import Checkpoint
from .safetensors import read_index, read_safetensors

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns the tensors of a checkpoint. Raises `InputError` if the path is not a checkpoint."""
    if os.path.isdir(path):  # Path.is_dir raises an error for a name that is too long
        file = next((path / file_name for file_name in (INDEX_FILE, SINGLE_FILE) if (path / file_name).is_file()), None)
        gguf_files = sorted(path.glob("*.gguf"))
        if file is None and len(gguf_files) != 1:
            raise InputError(f"{path}: expected {INDEX_FILE}, {SINGLE_FILE} or one .gguf file in it")
        path = file or gguf_files[0]
    if path.name.endswith(".safetensors.index.json"):
        return read_index(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix == ".gguf":
        return read_gguf(path)
    raise InputError(
        f"{path}: expected a .safetensors, .safetensors.index.json or .gguf file, or a folder that holds one"
    )
