"""The reports of a checkpoint's tensors, and of their comparison with a model's spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import units
from ..sources.checkpoints.header import Checkpoint
from ..sources.preset import Preset
from ..witnesses.checkpoint import TensorMatch
from .answer import Answer
from .document import Column, Report, Table, row
from .summary import model_data

MAX_SHOWN_TENSORS = 20


def report(file_name: str, checkpoint: Checkpoint) -> Report:
    """Returns the report of `llmcalc params` for a checkpoint: elements by number format and name prefix."""
    elements_by_prefix: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        name_pattern = ".".join("*" if name_part.isdigit() else name_part for name_part in tensor.name.split("."))
        name_prefix = name_pattern.partition(".*")[0] if ".*" in name_pattern else name_pattern.removesuffix(".weight")
        elements_by_prefix[name_prefix] = elements_by_prefix.get(name_prefix, 0) + tensor.elements
    prefix_entries = [{"name": prefix, "params": element_count} for prefix, element_count in elements_by_prefix.items()]
    report_document: dict[str, Any] = {
        "model": {"name": file_name, "kind": "checkpoint"},
        "params": {"total": checkpoint.elements, "by_component": elements_by_prefix},
        "checkpoint": {
            "format": checkpoint.format,
            "bytes": checkpoint.nbytes,
            "tensors": len(checkpoint.tensors),
            "by_dtype": {
                dtype: {"tensors": tensor_count, "elements": element_count, "bytes": byte_count}
                for dtype, (tensor_count, element_count, byte_count) in checkpoint.by_dtype().items()
            },
        },
        "tree": {"name": file_name, "params": checkpoint.elements, "children": prefix_entries},
    }
    prefix_columns = (
        Column("component", "component", justify="left"),
        Column("elements", "elements", units.exact_text),
        Column("share", "share", units.percent),
    )
    total_elements = checkpoint.elements or 1
    prefix_rows = [
        row(prefix, element_count_of_prefix, element_count_of_prefix / total_elements)
        for prefix, element_count_of_prefix in elements_by_prefix.items()
    ]
    prefix_rows.append(row("total", checkpoint.elements, 1.0, is_bold=True, is_sum=True))
    size_scale = units.memory_scale(checkpoint.nbytes)
    format_columns = (
        Column("format", "format", justify="left"),
        Column("tensors", "tensors", units.exact_text),
        Column("elements", "elements", units.exact_text),
        Column("bytes", size_scale.name, size_scale.write),
        Column("bits", "bits each", "{:.2f}".format),
    )
    format_rows = [
        row(dtype, tensor_count, element_count, byte_count, 8 * byte_count / element_count if element_count else 0)
        for dtype, (tensor_count, element_count, byte_count) in checkpoint.by_dtype().items()
    ]
    notes = [
        f"{units.exact_text(checkpoint.elements)} elements of {len(checkpoint.tensors):,} tensors, read off the "
        "header: buffers and packed formats count as stored",
        "a header does not describe an architecture: flops, kv and the other commands need a description or a "
        "config.json",
    ]
    title = f"{file_name}: {units.count(checkpoint.elements)} elements, {units.memory(checkpoint.nbytes)}"
    tables = [
        Table(title, prefix_columns, prefix_rows, notes=notes, name="tensors"),
        Table("By format", format_columns, format_rows, name="formats"),
    ]
    return Report(report_document, tables).with_target(file_name)


def check_report(preset: Preset, checkpoint_path: str, checkpoint: Checkpoint, tensor_match: TensorMatch) -> Report:
    """Returns the report of `llmcalc check`: tensors that are missing, additional or of another shape."""
    buffer_names = tensor_match.buffers
    report_document = {
        "model": model_data(preset),
        "checkpoint": {
            "path": checkpoint_path,
            "format": checkpoint.format,
            "tensors": len(checkpoint.tensors),
            "elements": checkpoint.elements,
        },
        "ok": tensor_match.is_complete,
        "matched": tensor_match.matched_count,
        "missing": [
            {"node": expected_tensor.node, "shape": list(expected_tensor.shape)}
            for expected_tensor in tensor_match.missing
        ],
        "extra": [{"tensor": tensor.name, "shape": list(tensor.shape)} for tensor in tensor_match.unexpected],
        "misshapen": [
            {
                "node": expected_tensor.node,
                "expected": list(expected_tensor.shape),
                "tensor": stored_tensor.name,
                "shape": list(stored_tensor.shape),
            }
            for expected_tensor, stored_tensor in tensor_match.shape_mismatches
        ],
        "stored_again": [stored_tensor.name for stored_tensor in tensor_match.tied_copies],
        "buffers": [stored_tensor.name for stored_tensor in buffer_names],
    }
    columns = (
        Column("finding", "finding", justify="left"), Column("name", "tensor", justify="left", may_wrap=True),
        Column("shape", "stored"), Column("expected", "expected"),
    )  # fmt: skip
    table_rows = [
        row("misshapen", stored_tensor.name, _shape_text(stored_tensor.shape), _shape_text(expected_tensor.shape))
        for expected_tensor, stored_tensor in tensor_match.shape_mismatches
    ]
    table_rows += [
        row("missing", expected_tensor.node, None, _shape_text(expected_tensor.shape))
        for expected_tensor in tensor_match.missing
    ]
    table_rows += [row("extra", tensor.name, _shape_text(tensor.shape), None) for tensor in tensor_match.unexpected]
    verdict_text = "all tensors match the model" if tensor_match.is_complete else "the tensors do not match the model"
    notes = [
        f"{tensor_match.matched_count:,} expected tensors found; {len(tensor_match.missing):,} missing, "
        f"{len(tensor_match.unexpected):,} extra, {len(tensor_match.shape_mismatches):,} misshapen"
    ]
    if len(table_rows) > MAX_SHOWN_TENSORS:
        notes.append(f"{len(table_rows) - MAX_SHOWN_TENSORS:,} more; --format json lists all")
    if tensor_match.tied_copies:
        names_text = ", ".join(stored_tensor.name for stored_tensor in tensor_match.tied_copies[:3])
        notes.append(f"the tied output head is stored again: {names_text}")
    if buffer_names:
        notes.append(f"{len(buffer_names):,} buffers are stored beside the parameters, such as {buffer_names[0].name}")
    title = f"{checkpoint_path} against {preset.display}: {verdict_text}"
    tables = [Table(title, columns, table_rows[:MAX_SHOWN_TENSORS], notes=notes)]
    return Report(report_document, tables).with_target(checkpoint_path)


def _shape_text(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{axis_length:,}" for axis_length in shape)


@dataclass(frozen=True, repr=False)
class StoredParams(Answer):
    """The parameters in a checkpoint. name: the file's name. checkpoint: the file's header.

    total: the number of all elements.
    """

    name: str
    checkpoint: Checkpoint

    @property
    def total(self) -> int:
        return self.checkpoint.elements

    def report(self) -> Report:
        return report(self.name, self.checkpoint)
