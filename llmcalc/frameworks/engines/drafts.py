"""Reads the draft model of speculative decoding that an engine's flag names."""

from __future__ import annotations

from ...errors import InputError, shown
from ...sources.preset import Preset
from ...sources.presets import known_model
from ...sources.target import load


def read_draft(model: str | Preset, flag: str, expected_draft: str) -> Preset:
    """Returns the draft model that a flag names. Raises `InputError` for a model that cannot be read.

    flag: the flag, as the beginning of messages. expected_draft: what may stand behind it, in words.
    """
    try:
        return model if isinstance(model, Preset) else load(model)
    except InputError as error:
        preset_by_name = known_model(str(model)) if str(model).startswith(("/", "./", "../", "~/")) else None
        if preset_by_name is not None:  # a folder of another machine
            problem = (
                f"the draft model, {shown(model)}, is not here; by its name it is the preset {preset_by_name.name}"
            )
            return preset_by_name.model_copy(update={"notes": (*preset_by_name.notes, problem)})
        raise InputError(
            f"{flag} {shown(model)}: cannot be read ({str(error)[:200]}); expected a preset, {expected_draft}"
        ) from None
