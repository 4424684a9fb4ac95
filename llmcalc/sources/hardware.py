"""The accelerators that come with llmcalc: one TOML each in `presets/hardware`, found by name or alias.

Each figure is from its vendor's datasheet; where that prints sparse peaks, the file holds the dense figure, with the
arithmetic beside it.
"""

from __future__ import annotations

from functools import cache

from ..errors import InputError, suggest
from ..hardware import Hardware
from .files import parse_toml, read_text, validated
from .presets import plain, presets_dir


@cache
def hardware_names() -> tuple[str, ...]:
    """The name of every accelerator, sorted."""
    return tuple(sorted(p.stem for p in (presets_dir() / "hardware").glob("*.toml")))


@cache
def load_hardware(name: str) -> Hardware:
    """The accelerator with exactly this file name."""
    path = presets_dir() / "hardware" / f"{name}.toml"
    return validated(Hardware, {**parse_toml(read_text(path), path.name), "name": name}, path.name)


def find_hardware(wanted: str) -> Hardware:
    """The accelerator of that name or alias, without regard to case and punctuation.

    Raises `InputError` with the nearest names where there is none.
    """
    key = plain(wanted)
    known: dict[str, str] = {}
    for name in hardware_names():
        for spelling in (name, *load_hardware(name).aliases):
            known.setdefault(plain(spelling), name)
            if key and plain(spelling) == key:
                return load_hardware(name)
    near = suggest(wanted, list(hardware_names())) or suggest(key, list(known))
    raise InputError(f"no accelerator called '{wanted}'.{near} (llmcalc hardware lists all)")
