"""Reads the draft model of speculative decoding that an engine's flag names."""

from __future__ import annotations

from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ...sources.presets import known_model
from ...sources.target import load


def read_draft_model(draft_model: str | Preset, draft_flag: str, expected_draft: str) -> Preset:
    """Returns the draft model that a flag names. Raises `InputError` if it cannot be read.

    draft_flag: the flag, as the beginning of messages. expected_draft: what may stand behind it, in words.
    """
    try:
        return draft_model if isinstance(draft_model, Preset) else load(draft_model)
    except InputError as error:
        preset = known_model(str(draft_model)) if str(draft_model).startswith(("/", "./", "../", "~/")) else None
        if preset is not None:  # a folder of another machine
            preset_name = preset.name
            problem_text = (
                f"the draft model, {short_repr(draft_model)}, is not here; by its name it is the preset {preset_name}"
            )
            return preset.model_copy(update={"notes": (*preset.notes, problem_text)})
        error_text, _, _ = str(error).partition(
            ". "
        )  # without the advice to take a fine-tune's base, which drafts nothing
        raise InputError(
            f"{draft_flag} {short_repr(draft_model)}: cannot be read ({error_text}); "
            f"expected a preset, {expected_draft}"
        ) from None
