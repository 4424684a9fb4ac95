"""Verifies a model against a chosen witness."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..errors import InputError
from ..sources.preset import Preset
from .checks import Verdict
from .reference import Device, verify_reference

Witness: TypeAlias = Literal["reference", "transformers", "published"]


def verify(
    preset: Preset,
    witness: Witness = "reference",
    device: Device = "meta",
    batch: int = 1,
    seq: int | None = None,
    every_layer: bool = False,
) -> Verdict:
    """Returns all checks of one model.

    Raises `InputError` if the witness or the device does not support this model.
    """
    if witness != "reference" and (device != "meta" or every_layer):
        raise InputError(f"--against {witness}: --device and --every-layer only apply to --against reference")
    if witness == "published":
        from .published import verify_published

        return verify_published(preset)
    if witness == "transformers":
        from .transformers import verify_transformers

        return verify_transformers(preset, batch, seq)
    return verify_reference(preset.model, preset.name, device, batch, seq, every_layer)
