"""The image and audio encoder of llama-server (`--mmproj`), which a separate file contains and one device holds.

Source: tools/mtmd/clip.cpp (`load_tensors`): all tensors are on the first GPU, on that of --mmproj-device, or on the
host (`--no-mmproj-offload`, or without a GPU). Types: those of the file, else those that conversion chooses
(gguf-py, `MmprojModel`): matrices in f16, other tensors in f32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...costs.quantization.base import WeightTensor, weight_tensors_of
from ...errors import InputError, short_repr
from ...identity_cache import IdentityCache
from ...optional import TOWERS
from ...sources.checkpoints.read import read_checkpoint
from ...sources.preset import Preset
from ..engines.engine import HOST_DEVICE


def encoder_bytes(flags: Mapping[str, Any], preset: Preset) -> int:
    """Returns the bytes of the encoder's tensors; 0 without an encoder.

    Raises `InputError` for a file that cannot be read and for a model whose description has no encoder.
    """
    encoder_file = flags.get("mmproj") or flags.get("mmproj_url")
    if not encoder_file:
        return 0
    encoder_path = Path(str(encoder_file))
    if encoder_path.suffix == ".gguf" and encoder_path.is_file():
        return sum(file_tensor.nbytes for file_tensor in read_checkpoint(encoder_path).tensors)
    model_encoders = _encoder_tensors(preset)
    if not model_encoders:
        raise InputError(
            f"--mmproj {short_repr(encoder_file)}: there is no such file here, and {preset.name} has no encoder of "
            "images in its description; expected the GGUF file of the encoder"
        )
    return sum(
        int(weight.tensor.size) * int(weight.copies) * (4 if weight.tensor.role == "vector" else 2)
        for weight in model_encoders
    )


def has_encoder(preset: Preset) -> bool:
    """Whether the model has an image or audio encoder."""
    return bool(_encoder_tensors(preset))


_tensors_of_encoders: IdentityCache[list[WeightTensor]] = IdentityCache(32)
"""The tensors of models' encoders, which every server of a model has."""


def _encoder_tensors(preset: Preset) -> list[WeightTensor]:
    def find_tensors() -> list[WeightTensor]:
        return [
            weight_tensor
            for weight_tensor in weight_tensors_of(preset.model.tree(), frozenset({TOWERS.name}))
            if weight_tensor.optional_part == TOWERS.name
        ]

    return _tensors_of_encoders.result((preset.model,), (), find_tensors)


def encoder_device(flags: Mapping[str, Any], device_names: Sequence[str]) -> str:
    """Returns the device of the encoder. Raises `InputError` if the server has no device of that name."""
    chosen_device = flags.get("mmproj_device")
    if not device_names or flags.get("mmproj_offload") is False or chosen_device == "none":
        return HOST_DEVICE
    if chosen_device is None:
        return device_names[0]
    devices_by_name = {device.upper(): device for device in device_names}
    if str(chosen_device).strip().upper() not in devices_by_name:
        raise InputError(
            f"--mmproj-device {short_repr(chosen_device)}: expected one of none, {', '.join(device_names)}"
        )
    return devices_by_name[str(chosen_device).strip().upper()]
