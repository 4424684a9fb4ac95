"""Reads the draft model of speculative decoding that an engine's flag names."""

from __future__ import annotations

from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ...sources.presets import known_model
from ...sources.target import load


def read_draft(draft_model: str | Preset, draft_flag: str, expected_draft: str) -> Preset:
    """Returns the draft model that a flag names. Raises `InputError` for a model that cannot be read.

    draft_flag: the flag, as the beginning of messages. expected_draft: what may stand behind it, in words.
    """
    try:
        return draft_model if isinstance(draft_model, Preset) else load(draft_model)
    except InputError as error:
        preset_by_name = (
            known_model(str(draft_model)) if str(draft_model).startswith(("/", "./", "../", "~/")) else None
        )
        if preset_by_name is not None:  # a folder of another machine
            preset_name = preset_by_name.name
            problem_text = (
                f"the draft model, {short_repr(draft_model)}, is not here; by its name it is the preset {preset_name}"
            )
            return preset_by_name.model_copy(update={"notes": (*preset_by_name.notes, problem_text)})
        reason = str(error).partition(". ")[
            0
        ]  # without the advice to take the base of a fine-tune, which drafts nothing
        raise InputError(
            f"{draft_flag} {short_repr(draft_model)}: cannot be read ({reason}); expected a preset, {expected_draft}"
        ) from None
