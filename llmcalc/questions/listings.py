"""What comes with llmcalc: presets and accelerators; and a model written in another form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..costs.params import params
from ..errors import InputError, suggest
from ..reports.answer import ReportedAnswer
from ..reports.presets import Counted
from ..sources.preset import Preset
from ..sources.presets import load_preset, model_names
from ..studies.selection import EVERY_MODEL, Selection, require_attention

Written: TypeAlias = Literal["toml", "hf"]
"""Forms in which a model is written: a native description, or the config.json of a transformers class."""

SORTS: dict[str, Callable[[Counted], Any]] = {
    "name": lambda one: one[0].name,
    "released": lambda one: one[0].released,
    "params": lambda one: one[1].total,
    "active": lambda one: one[1].active,
}
"""Value of `--sort` → the quantity to sort by."""


@dataclass(frozen=True, repr=False)
class Listing(ReportedAnswer):
    """An answer that lists things. in_full: whether each has a table with everything that is known of it."""

    in_full: bool = False


def select_presets(selection: Selection, names: Sequence[str] | None = None) -> list[Counted]:
    """The presets that a selection takes, with their parameters. names: those to choose from; by default all.

    Raises `InputError` where there is none.
    """
    counted = [(preset, params(preset.model)) for preset in map(load_preset, model_names() if names is None else names)]
    selection = replace(
        selection, attention=require_attention(selection.attention, [preset.model for preset, _ in counted])
    )
    taken = [(preset, count) for preset, count in counted if selection.takes(preset.model, count.total)]
    if not taken:
        raise InputError("no preset is left by the filters; expected fewer of them (llmcalc presets lists all)")
    return taken


def ask_presets(
    names: Sequence[str] = (), selection: Selection = EVERY_MODEL, sort: str = "name", details: bool = False
) -> Listing:
    """The presets of these names, or with a part of them. details: whether each is described in full."""
    from ..reports.presets import report
    from ..sources.search import search_presets

    if sort not in SORTS:
        near = suggest(sort, list(SORTS))
        raise InputError(f"--sort: '{sort}' is not known; expected one of {', '.join(SORTS)}.{near}".rstrip("."))
    found, exact = search_presets(list(names))
    listed = sorted(select_presets(selection, found), key=SORTS[sort])
    in_full = details or exact
    return Listing(tuple(listed), lambda: report(listed, in_full), in_full=in_full)


def ask_hardware(names: Sequence[str] = ()) -> Listing:
    """The accelerators of these names in full; without names a list of all."""
    from ..reports.hardware import report
    from ..sources.hardware import find_hardware, hardware_names, load_hardware

    listed = [find_hardware(name) for name in names] or [load_hardware(name) for name in hardware_names()]
    return Listing(tuple(listed), lambda: report(listed, bool(names)), in_full=bool(names))


def converted(preset: Preset, to: Written) -> str:
    """A model as the text of a native description (toml), or of the config.json of a transformers class (hf)."""
    if to == "hf":
        import json

        from ..sources.to_hf import to_config

        return json.dumps(to_config(preset.model), indent=2) + "\n"
    from ..sources.to_toml import dump_toml

    return dump_toml(preset)
