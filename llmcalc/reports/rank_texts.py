"""Texts and data about a rank, for reports that count a single rank of a layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import units
from ..flow.tree import index_ranges
from .notes import counted_noun

if TYPE_CHECKING:
    from ..algebra import Number
    from ..parallel.layout import Layout
    from ..parallel.rank_model import SelectedRank
    from ..studies.layout_candidates import Candidate


def layout_text(layout: Layout) -> str:
    """Returns a layout's groups of more than one rank as text: `tp 2 · sp · pp 4 · dp 8` (sp: sequence parallelism)."""
    return " · ".join(_parallel_size_texts(layout)) or ONE_DEVICE_TEXT


def layout_cell(layout: Layout) -> str:
    """Returns a layout as the text of a table cell, where lines break only between groups: `tp2 sp pp4 dp8`."""
    return " ".join(group_size.replace(" ", "") for group_size in _parallel_size_texts(layout)) or ONE_DEVICE_TEXT


def candidate_cell(layout: Layout, recompute: str, texts_in_heading: Sequence[str] = ()) -> str:
    """Returns a plan's layout as a table cell's text, with any recomputation: `dp8 ZeRO-3 recompute full`.

    texts_in_heading: texts that all layouts of a table share, which its heading shows; default none.
    """
    size_texts = [size_text for size_text in _parallel_size_texts(layout) if size_text not in texts_in_heading]
    sizes_text = " ".join(size_text.replace(" ", "") for size_text in size_texts) or ONE_DEVICE_TEXT
    recompute_text = f"recompute {recompute}" if recompute not in ("", "none") else ""
    return sizes_text if not recompute_text or recompute_text in texts_in_heading else f"{sizes_text} {recompute_text}"


def shared_layout_words(candidates: Sequence[Candidate]) -> list[str]:
    """Returns the layout words that all rows of a plan share: `sp`, `etp 1`, the ZeRO stage, the recomputation.

    Empty for one layout.
    """
    if len(candidates) < 2:
        return []
    words_by_candidate = [
        {*_parallel_size_texts(layout_candidate.layout), f"recompute {layout_candidate.recompute}"}
        | ({"sp", WHOLE_EXPERTS_TEXT} if layout_candidate.layout.tp == 1 else set())
        for layout_candidate in candidates
    ]
    shared_words = set.intersection(*words_by_candidate)
    layout_words = ["sp", WHOLE_EXPERTS_TEXT] if any(candidate.layout.tp > 1 for candidate in candidates) else []
    layout_words += [f"ZeRO-{zero_stage}" for zero_stage in (1, 2, 3)]
    layout_words += [f"recompute {candidates[0].recompute}"] if candidates[0].recompute not in ("", "none") else []
    return [layout_word for layout_word in layout_words if layout_word in shared_words]


ONE_DEVICE_TEXT = "one device"

WHOLE_EXPERTS_TEXT = "etp 1"
"""The text for whole experts on each tensor-parallel rank (`--etp 1`)."""


def _parallel_size_texts(layout: Layout) -> list[str]:
    degree_names = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
    group_texts = [
        f"{degree_name} {degree}"
        for degree_name in degree_names
        if (degree := getattr(layout, degree_name)) not in (None, 1)
    ]
    if layout.expert_tp == 1 and layout.tp > 1:  # without --etp they divide each expert
        group_texts.append(WHOLE_EXPERTS_TEXT)
    if layout.sequence_parallel:
        group_texts.insert(1 if layout.tp > 1 else 0, "sp")
    if layout.zero:
        group_texts.append(f"ZeRO-{layout.zero}")
    return group_texts


def rank_data(selected_rank: SelectedRank | None) -> dict[str, Any]:
    """Returns the fields of the JSON document that only the report of a single rank has."""
    return {} if selected_rank is None else {"layout": selected_rank.layout.data(), "rank": selected_rank.rank}


def subtitle_with_rank(subtitle: str, selected_rank: SelectedRank | None) -> str:
    """Adds the rank to a subtitle: `decoder, 32 layers, …; rank 0 of 16 devices (tp 8 · dp 2)`."""
    return subtitle if selected_rank is None else f"{subtitle}; {rank_text(selected_rank)}"


def rank_text(selected_rank: SelectedRank) -> str:
    """Returns a rank and its layers as text: `rank 0 of 16 devices (tp 8 · pp 2), layers 0-15`."""
    layout, layer_chunks = selected_rank.layout, selected_rank.model.chunks
    rank_description = (
        f"rank {selected_rank.rank:,} of {counted_noun(layout.world_size, 'device')} ({layout_text(layout)})"
    )
    if layout.pp == 1:
        return rank_description
    if layer_chunks.layers:
        return f"{rank_description}, layers {index_ranges(layer_chunks.layers)}"
    return f"{rank_description}, no layers"


def counted_rank_notes(selected_rank: SelectedRank | None, *notes: str) -> list[str]:
    """Returns notes on a counted rank, such as the reason for its choice; empty for a full model."""
    if selected_rank is None:
        return []
    selection_reason = selected_rank.selection_reason
    return [f"rank {selected_rank.rank:,} is {selection_reason}" if selection_reason else "", *notes]


def replicated_parameters_text(replicated_params: dict[str, Number]) -> str:
    """Returns text on the parameters that tensor parallelism replicates; empty if there are none."""
    params_text = ", ".join(
        f"{component_name} {units.exact_text(replicated_count)}"
        for component_name, replicated_count in replicated_params.items()
    )
    return f"other ranks of its tensor group have these parameters too: {params_text}" if params_text else ""
