"""The optional parts of a model that totals exclude by default: names and titles.

A node of such a part has the part's name in its `optional` field. Counts take the names of parts to add as `include`.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import InputError, short_repr


class OptionalPart(NamedTuple):
    """A part of a model, such as MTP modules or vision encoders, that totals leave out by default.

    name: its name in nodes, `include`, JSON and the spec's field.
    title: its name in sentences.
    has_flops: whether its FLOPs and caches are counted, or only its parameters; true by default.
    """

    name: str
    title: str
    has_flops: bool = True

    @property
    def option(self) -> str:
        """The command-line option that includes the part: `--with-mtp`."""
        return f"--with-{self.name}"


MTP = OptionalPart("mtp", "multi-token-prediction modules")
TOWERS = OptionalPart("towers", "vision and audio encoders with their projectors", has_flops=False)

OPTIONAL_PARTS = {part.name: part for part in (MTP, TOWERS)}
"""Name of an optional part of a model → the part."""

ALL_PART_NAMES = frozenset(OPTIONAL_PARTS)
"""The names of all optional parts, for a count of everything in a checkpoint."""

PARTS_WITHOUT_FLOPS = frozenset(name for name, part in OPTIONAL_PARTS.items() if not part.has_flops)
"""The names of optional parts for which only parameters are counted."""


def included_part_names(with_mtp: bool = False, with_towers: bool = False) -> frozenset[str]:
    """Returns the names of the optional parts that a total includes. Raises `InputError` for other values."""
    is_requested = {MTP: with_mtp, TOWERS: with_towers}
    for part, is_included in is_requested.items():
        if not isinstance(is_included, bool):
            raise InputError(f"{part.option}: {short_repr(is_included)} is not a truth value; expected true or false")
    return frozenset(part.name for part, is_included in is_requested.items() if is_included)
