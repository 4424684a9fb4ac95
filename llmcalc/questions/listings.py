"""The questions that list presets and accelerators, and the conversion of a model into another file format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, Literal, TypeAlias

from ..costs.params import params
from ..errors import InputError, suggest
from ..frozen import frozen
from ..reports.answer import ReportedAnswer
from ..reports.presets import CountedPreset
from ..sources.preset import Preset
from ..sources.presets import load_preset, model_names
from ..studies.model_selection import EVERY_MODEL, ModelFilter, require_attention

ModelFileFormat: TypeAlias = Literal["toml", "hf"]
"""Forms of a model: a native description, or the config.json of a transformers class."""

SORT_KEYS: dict[str, Callable[[CountedPreset], Any]] = {
    "name": lambda counted: counted[0].name,
    "released": lambda counted: counted[0].released,
    "params": lambda counted: counted[1].total,
    "active": lambda counted: counted[1].active,
}
"""Value of `--sort` → the quantity to sort by."""


FRESH_PERIOD = timedelta(days=180)
"""The time for which a preset's facts count as fresh after its sources were read."""


def is_stale(preset: Preset, today: date) -> bool:
    """Whether a preset's sources were all read more than `FRESH_PERIOD` before the given day."""
    return preset.checked_date is None or today - preset.checked_date > FRESH_PERIOD


@frozen(repr=False)
class ListAnswer(ReportedAnswer):
    """An answer that lists presets or accelerators.

    prints_all_fields: whether each entry is printed as a table of all its fields.
    """

    prints_all_fields: bool = False


def select_presets(model_filter: ModelFilter, preset_names: Sequence[str] | None = None) -> list[CountedPreset]:
    """Returns the presets that pass the filters, with their parameters. preset_names: presets to filter; default all.

    Raises `InputError` if none passes.
    """
    presets = map(load_preset, model_names() if preset_names is None else preset_names)
    counted_presets = [(preset, params(preset.model)) for preset in presets]
    attention_kind = require_attention(model_filter.attention, [preset.model for preset, _ in counted_presets])
    model_filter = replace(model_filter, attention=attention_kind)
    selected_presets = [
        (preset, parameter_count)
        for preset, parameter_count in counted_presets
        if model_filter.accepts(preset.model, parameter_count.total)
    ]
    if not selected_presets:
        raise InputError("no preset passes the filters; expected fewer filters (llmcalc presets lists all)")
    return selected_presets


def ask_presets(
    requested_names: Sequence[str] = (),
    model_filter: ModelFilter = EVERY_MODEL,
    sort: str = "name",
    shows_details: bool = False,
    only_stale: bool = False,
    today: date | None = None,
) -> ListAnswer:
    """Lists the presets whose name equals or contains a given name.

    shows_details: whether each is described in full.
    only_stale: whether only presets are listed whose sources were not read within `FRESH_PERIOD` before `today`.
    """
    from ..reports.presets import report
    from ..sources.search import search_presets

    if sort not in SORT_KEYS:
        suggestion = suggest(sort, list(SORT_KEYS))
        raise InputError(
            f"--sort: '{sort}' is not known; expected one of {', '.join(SORT_KEYS)}.{suggestion}".rstrip(".")
        )
    matching_presets, is_exact = search_presets(list(requested_names))
    if only_stale:
        current_date = date.today() if today is None else today
        matching_presets = [
            preset_name for preset_name in matching_presets if is_stale(load_preset(preset_name), current_date)
        ]
        if not matching_presets:
            raise InputError(f"--stale: every preset was checked within {FRESH_PERIOD.days} days; expected no --stale")
    listed_presets = sorted(select_presets(model_filter, matching_presets), key=SORT_KEYS[sort])
    lists_in_full = shows_details or is_exact
    return ListAnswer(
        tuple(listed_presets), lambda: report(listed_presets, lists_in_full), prints_all_fields=lists_in_full
    )


def ask_hardware(requested_names: Sequence[str] = ()) -> ListAnswer:
    """Describes the named accelerators in full, or lists all accelerators.

    Raises `InputError` for an unknown name.
    """
    from ..reports.hardware import report
    from ..sources.hardware import find_hardware, hardware_names, load_hardware

    try:
        named_accelerators = [find_hardware(hardware_name) for hardware_name in requested_names]
    except InputError as error:  # of an argument here, and of the option of this name elsewhere
        raise InputError(str(error).removeprefix("--hardware: ")) from error
    listed_accelerators = named_accelerators or [load_hardware(hardware_name) for hardware_name in hardware_names()]
    return ListAnswer(
        tuple(listed_accelerators),
        lambda: report(listed_accelerators, bool(requested_names)),
        prints_all_fields=bool(requested_names),
    )


def with_rope_scaling(model_config: dict[str, Any], preset: Preset) -> dict[str, Any]:
    """Returns a config with the model's own `rope_scaling` table; unchanged if the model has none or several."""
    rope_scaling = preset.rope_parameters or {}
    if rope_scaling.get("rope_type", rope_scaling.get("type", "default")) == "default":
        return model_config
    text_config = model_config.get("text_config", model_config)
    text_config["rope_scaling"] = dict(rope_scaling)
    return model_config


def with_stored_format(model_config: dict[str, Any], preset: Preset) -> dict[str, Any]:
    """Returns a config with the number format of the published weights, and the table of their quantization."""
    if preset.storage_table is not None:
        return model_config | {"quantization_config": dict(preset.storage_table)}
    return model_config | ({"torch_dtype": preset.dtype} if preset.dtype in ("float16", "float32") else {})


LONGROPE_TYPES = ("longrope", "su")
LONGROPE_FACTORS = ("short_factor", "long_factor")


def missing_rope_scaling_note(preset: Preset, target_format: ModelFileFormat) -> str:
    """Returns a note if a written config lacks rotary scaling that the released config has; else empty text.

    Presets have sizes, which no scaling changes, but not LongRoPE's factors, one per pair of a head's dimensions. For a
    few quantized models they do not have the scaling table either.
    """
    rope_scaling = preset.rope_parameters or {}
    if target_format == "hf" and rope_scaling.get("rope_type", rope_scaling.get("type")) in LONGROPE_TYPES:
        missing_fields = [field_name for field_name in LONGROPE_FACTORS if field_name not in rope_scaling]
        if missing_fields:
            return (
                f"rope_scaling lacks {' and '.join(missing_fields)}, which transformers requires; take them from the "
                "released config"
            )
    may_miss_tables = target_format == "hf" and preset.config is None and not preset.rope_parameters
    if not may_miss_tables or preset.model.max_position_embeddings is None:
        return ""
    is_table_unknown = preset.storage_table is None and preset.dtype not in ("bfloat16", "float16", "float32")
    missing_tables = "rope_scaling and quantization_config" if is_table_unknown else "rope_scaling"
    return f"the config has the sizes alone; take {missing_tables}, if the released config has it, from there"


def convert_model(preset: Preset, target_format: ModelFileFormat) -> str:
    """Returns the text of a model's native description (toml), or of the config.json of a transformers class (hf)."""
    if target_format == "hf":
        import json

        from ..sources.to_hf import to_config

        return (
            json.dumps(with_stored_format(with_rope_scaling(to_config(preset.model), preset), preset), indent=2) + "\n"
        )
    from ..sources.to_toml import dump_toml

    return dump_toml(preset)
