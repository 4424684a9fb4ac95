"""The part of an answer about a speculative-decoding draft model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from .document import Report

if TYPE_CHECKING:
    from ..studies.draft import DraftCosts

SHARED_PART_NAMES = {"embed_tokens": "embedding", "lm_head": "head"}


def with_draft(report: Report, draft_costs: DraftCosts | None, is_counted: bool = False) -> Report:
    """Returns the report with the draft model in the document and in a note on the first table.

    is_counted: whether the numbers of the report count the draft too.
    """
    if draft_costs is None or not isinstance(report.data, dict):
        return report
    note_text = draft_note(draft_costs, is_counted)
    warnings = [note_text, *report.warnings]
    return report.with_document_entry("draft", draft_data(draft_costs), note_text)._replace(warnings=warnings)


def draft_data(draft_costs: DraftCosts) -> dict[str, Any]:
    """Returns the draft model's entry in a JSON document."""
    document_entry: dict[str, Any] = {
        "name": draft_costs.preset.name,
        "params": draft_costs.params,
        "from_target": list(draft_costs.shared_parts),
        "cache": {"bytes": draft_costs.cache.bytes, "bytes_per_token": draft_costs.cache.bytes_per_token},
    }
    return (
        document_entry if draft_costs.flop_count is None else {**document_entry, "flops": draft_costs.flop_count.total}
    )


def draft_note(draft_costs: DraftCosts, is_counted: bool = False) -> str:
    """Returns a note on a draft model's size: `draft eagle3, …: 424,689,664 parameters, 4.00 KiB of cache per token`"""
    params_text = units.exact_text(draft_costs.params)
    draft_texts = [f"{params_text} parameters", f"{units.memory(draft_costs.cache.bytes_per_token)} of cache per token"]
    if draft_costs.cache.workload.seq > 1:
        draft_texts.append(f"{units.memory(draft_costs.cache.bytes)} in all")
    if draft_costs.flop_count is not None:
        draft_texts.append(units.flops(draft_costs.flop_count.total))
    parts_text = " and ".join(SHARED_PART_NAMES[part_name] for part_name in draft_costs.shared_parts)
    shared_text = (
        f"; its {parts_text} {'is' if len(draft_costs.shared_parts) == 1 else 'are'} the target's" if parts_text else ""
    )
    relation_text = "counted in" if is_counted else "beside the numbers above"
    return f"draft {draft_costs.preset.name}, {relation_text}: {', '.join(draft_texts)}{shared_text}"
