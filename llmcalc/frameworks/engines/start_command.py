"""The command that starts a server: the engine's program, the model's hub id, and flags."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ...sources.preset import Preset
from ...sources.target_names import is_hub_id
from .engine import Engine


def hub_id(preset: Preset) -> str | None:
    """Returns the hub id that an engine needs to load a model; None for a changed model or a local file."""
    possible_names = (preset.target, preset.name, *preset.aliases)
    return None if preset.changes else next((hub_name for hub_name in possible_names if is_hub_id(hub_name)), None)


def start_command(engine: Engine, preset: Preset, flags: Mapping[str, Any], quantize: str | None = None) -> str | None:
    """Returns the shell command that starts a server with these flags; None if the engine cannot load these weights.

    That is so without published weights, and for a scheme of `--quantize` that the engine does not apply when it loads
    weights, or not to quantized ones. flags: field name → value, as of `Engine.memory_on`; those without dashes are
    environment variables, which precede the command.
    """
    model_hub_id, scheme_flags = hub_id(preset), {} if quantize is None else engine.applied_schemes.get(quantize)
    if quantize is not None and preset.has_quantized_weights:
        return None  # an engine applies a scheme to plain weights alone
    if model_hub_id is None or scheme_flags is None or not engine.start_command_words:
        return None
    hub_repository, _, hub_revision = model_hub_id.partition("@")
    variable_assignments: list[str] = []
    command_words = [
        *engine.start_command_words,
        hub_repository,
        *(["--revision", hub_revision] if hub_revision else []),
    ]
    try:
        for flag_name, flag_value in {**flags, **scheme_flags}.items():
            flag_words = [engine.spelling(flag_name), *([] if flag_value is True else [_typed_value(flag_value)])]
            if flag_words[0].startswith("-"):
                command_words += flag_words
            else:
                variable_assignments.append(f"{flag_words[0]}={shlex.quote(flag_words[1])}")
    except LookupError:
        return None
    return " ".join([*variable_assignments, shlex.join(command_words)])


def _typed_value(flag_value: Any) -> str:
    """Returns a flag's value as users type it. Raises `LookupError` for a model without a hub id."""
    if isinstance(flag_value, Preset):
        return _draft_hub_id(flag_value)
    return json.dumps(flag_value, default=_draft_hub_id) if isinstance(flag_value, (dict, list)) else str(flag_value)


def _draft_hub_id(draft_model: Preset) -> str:
    draft_hub_id = hub_id(draft_model)
    if draft_hub_id is None:
        raise LookupError
    return draft_hub_id
