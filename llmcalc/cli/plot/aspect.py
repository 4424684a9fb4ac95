from __future__ import annotations

from ...costs.context_length import usual_sequence
from ...plots.figure import needs_matplotlib
from ...sources.presets import model_names
from ...studies.compare import quantities
from ..options import AttentionKind, Experts, Kind, LeastParams, MostParams
from ..presets import chosen
from .files import Picture, write


def command(
    output: Picture,
    kind: Kind = None,
    attention: AttentionKind = None,
    moe: Experts = None,
    least: LeastParams = None,
    most: MostParams = None,
) -> None:
    """h/L and d_ff/h of all presets, by size and year.
    Or of those that the filters take.
    """
    needs_matplotlib()
    from ...plots.shapes import aspect

    found = chosen(model_names(), kind, attention, moe, least, most)
    write(
        aspect([(one, quantities(one.model, usual_sequence(one.model), "bfloat16", count)) for one, count in found]),
        output,
    )
