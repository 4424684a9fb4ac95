"""The parts of a model that its totals leave out unless they are asked for: what each is called, and what it is.

A node of such a part has the part's name as its `optional`. A count takes the names of those to count in as `include`.
"""

from __future__ import annotations

from typing import NamedTuple


class OptionalPart(NamedTuple):
    """name: as nodes, `include`, JSON and the field of the spec have it.
    title: in sentences.
    has_flops: whether its FLOPs and caches are counted too, or its parameters alone.
    """

    name: str
    title: str
    has_flops: bool = True

    @property
    def option(self) -> str:
        """The command's option that counts it in: `--with-mtp`."""
        return f"--with-{self.name}"


MTP = OptionalPart("mtp", "multi-token-prediction modules")
TOWERS = OptionalPart("towers", "vision and audio encoders with their projectors", has_flops=False)

OPTIONAL_PARTS = {part.name: part for part in (MTP, TOWERS)}
"""Every optional part by its name."""

EVERY_PART = frozenset(OPTIONAL_PARTS)
"""The names of all of them, for a count of whatever a checkpoint holds."""

WITHOUT_FLOPS = frozenset(name for name, part in OPTIONAL_PARTS.items() if not part.has_flops)
"""The names of those whose parameters alone are counted."""


def included(with_mtp: bool = False, with_towers: bool = False) -> frozenset[str]:
    """The names of the optional parts that were asked into a total."""
    asked = {MTP: with_mtp, TOWERS: with_towers}
    return frozenset(part.name for part, wanted in asked.items() if wanted)
