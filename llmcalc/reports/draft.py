"""The part of an answer about a speculative-decoding draft model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from .document import Report

if TYPE_CHECKING:
    from ..studies.draft import DraftCosts

SHARED_PART_NAMES = {"embed_tokens": "embedding", "lm_head": "head"}


def with_draft(report: Report, draft: DraftCosts | None, is_counted: bool = False) -> Report:
    """Returns the report with the draft model in the document and in a note on the first table.

    is_counted: whether the numbers of the report count the draft too.
    """
    if draft is None or not isinstance(report.data, dict):
        return report
    note_text = draft_note(draft, is_counted)
    warnings = [note_text, *report.warnings]
    return report.with_document_entry("draft", draft_data(draft), note_text)._replace(warnings=warnings)


def draft_data(draft: DraftCosts) -> dict[str, Any]:
    """Returns the draft model's entry in a JSON document."""
    document_entry: dict[str, Any] = {
        "name": draft.preset.name,
        "params": draft.params,
        "from_target": list(draft.shared_parts),
        "cache": {"bytes": draft.cache.bytes, "bytes_per_token": draft.cache.bytes_per_token},
    }
    return document_entry if draft.flop_count is None else {**document_entry, "flops": draft.flop_count.total}


def draft_note(draft: DraftCosts, is_counted: bool = False) -> str:
    """Returns a note on a draft model's size: `draft eagle3, …: 424,689,664 parameters, 4.00 KiB of cache per token`"""
    params_text = units.exact_text(draft.params)
    draft_texts = [f"{params_text} parameters", f"{units.memory(draft.cache.bytes_per_token)} of cache per token"]
    if draft.cache.workload.seq > 1:
        draft_texts.append(f"{units.memory(draft.cache.bytes)} in all")
    if draft.flop_count is not None:
        draft_texts.append(units.flops(draft.flop_count.total))
    parts_text = " and ".join(SHARED_PART_NAMES[part_name] for part_name in draft.shared_parts)
    shared_text = (
        f"; its {parts_text} {'is' if len(draft.shared_parts) == 1 else 'are'} the target's" if parts_text else ""
    )
    relation_text = "counted in" if is_counted else "beside the numbers above"
    return f"draft {draft.preset.name}, {relation_text}: {', '.join(draft_texts)}{shared_text}"
