"""The report of `llmcalc verify`: which counts agree with a running model, and every mismatch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from .. import units
from ..witnesses.checks import LOSS_QUANTITY, MEMORY_PREFIX, QUANTITIES, Check, Verdict
from .document import Column, Report, Row, Table, row, single_document_or_list
from .notes import counted_noun

QUANTITY_TITLES = {
    "parameters": "params", "buffers": "buffers", "forward_flops": "forward", "train_flops": "fwd+bwd",
    "prefill_flops": "prefill", "decode_flops": "decode", "cache_bytes": "cache", MEMORY_PREFIX: "memory",
    LOSS_QUANTITY: "loss",
}  # fmt: skip

QUANTITY_NAMES = {
    "parameters": "parameters",
    "buffers": "buffer elements",
    "forward_flops": "FLOPs of a forward pass",
    "train_flops": "FLOPs forward and backward",
    "prefill_flops": "FLOPs of prefill",
    "decode_flops": "FLOPs of decoding",
    "cache_bytes": "bytes of cache",
    MEMORY_PREFIX: "bytes of memory",
    LOSS_QUANTITY: "the loss",
}

CHECK_NOUNS = {MEMORY_PREFIX: "moment", LOSS_QUANTITY: "step"}
"""Quantity → noun for what one of the quantity's checks compares, if not a node."""

MAX_FAILURES = 20

MAX_MISSING = 5
"""Largest number of names in a note."""


def report(model_verdicts: list[Verdict], skipped_models: dict[str, str]) -> Report:
    """Returns the report of `llmcalc verify`: one row per model and one row per mismatch.

    skipped_models: name of a model that was not compared → the reason.
    """
    json_documents = [model_verdict.data() for model_verdict in model_verdicts] + [
        {"model": {"name": model_name}, "checks": [], "ok": None, "skipped": skip_reason}
        for model_name, skip_reason in skipped_models.items()
    ]
    tables = [_summary_table(model_verdicts, skipped_models), *_failure_tables(model_verdicts)]
    return Report(single_document_or_list(json_documents), tables, warnings=_untested_warnings(model_verdicts))


def _untested_warnings(model_verdicts: list[Verdict]) -> list[str]:
    """Returns a warning on model parts whose memory was never measured, with the models that have these parts."""
    targets_by_part: dict[str, list[str]] = {}
    for model_verdict in model_verdicts:
        for untested_part in model_verdict.untested:
            targets_by_part.setdefault(str(untested_part), []).append(model_verdict.target)
    has_several_models = len(model_verdicts) > 1
    untested_texts = [
        f"{part_name} ({counted_noun(len(model_targets), 'model')})" if has_several_models else part_name
        for part_name, model_targets in targets_by_part.items()
    ]
    return [f"untested: {', '.join(untested_texts)}: no measurement of its memory is stated"] if untested_texts else []


def _summary_table(model_verdicts: list[Verdict], skipped_models: dict[str, str]) -> Table:
    checked_quantities = {_quantity_group(check) for verdict in model_verdicts for check in verdict.checks}
    compared_quantities = [
        quantity
        for quantity in (*QUANTITIES, MEMORY_PREFIX, LOSS_QUANTITY)
        if quantity != "buffers" and quantity in checked_quantities
    ]
    table_columns = [
        Column("target", "model", justify="left"),
        *(Column(quantity.strip("."), QUANTITY_TITLES[quantity], is_verdict=True) for quantity in compared_quantities),
    ]
    table_columns += [Column("checks", "checks", units.exact_text), Column("seconds", "time", units.seconds)]
    column_count = len(table_columns) - (MEMORY_PREFIX in compared_quantities)  # all of them would not fit 80 columns
    table_rows = [
        [
            model_verdict.target,
            *(_verdict_sign(model_verdict, quantity) for quantity in compared_quantities),
            len(model_verdict.checks),
            round(model_verdict.seconds, 3),
        ]
        for model_verdict in model_verdicts
    ]
    table_rows += [
        [
            model_name,
            *(["skipped"] + [None] * (len(compared_quantities) - 1) if compared_quantities else []),
            None,
            None,
        ]
        for model_name in skipped_models
    ]
    notes = _verify_notes(model_verdicts, skipped_models)
    shown_columns = table_columns[:column_count]
    return Table(
        "", shown_columns, [Row(table_row[:column_count]) for table_row in table_rows], notes=notes, name="checks"
    )


def _speed_text(measured_speed: dict[str, Any]) -> str:
    """Returns one line of text on the measured speed of a forward pass."""
    rate_text = units.amount(measured_speed["flops_per_second"], "FLOP/s")
    flops_rate_text = f"{rate_text} over a forward pass of {measured_speed['tokens']:,} tokens"
    memory_text = (
        f"; weights {units.memory(measured_speed['weights_bytes'])}, peak "
        f"{units.memory(measured_speed['peak_allocated_bytes'])}"
        if "weights_bytes" in measured_speed
        else ""
    )
    return (
        f"{flops_rate_text} in {units.seconds(measured_speed['forward_seconds'])} on {measured_speed['device']}, torch "
        f"{measured_speed['torch']}{memory_text} (information, not checked)"
    )


def _quantity_group(check: Check) -> str:
    """Returns the quantity in whose column a check is reported; all checks of memory share one column."""
    return MEMORY_PREFIX if check.quantity.startswith(MEMORY_PREFIX) else check.quantity


def _verdict_sign(model_verdict: Verdict, quantity: str) -> str | None:
    """Returns the sign for a quantity of a model: `=`, `±`, `≈`, or `≠ 3` for three nodes that differ.

    `=`: every node agrees. `±`: one differs as explained. `≈`: all are within bounds. `≠ 3`: three nodes differ.
    None if nothing was compared.
    """
    checks = [check for check in model_verdict.checks if _quantity_group(check) == quantity]
    failed_count = sum(not check.ok for check in checks)
    if any(check.known_difference for check in checks):
        agreement_sign = "±"
    elif any(check.tolerance for check in checks):
        agreement_sign = "≈"
    else:
        agreement_sign = "="
    return None if not checks else f"≠ {failed_count}" if failed_count else agreement_sign


def _verify_notes(model_verdicts: list[Verdict], skipped_models: dict[str, str]) -> list[str]:
    return [
        *_untested_warnings(model_verdicts),
        *_count_notes(model_verdicts, skipped_models),
        *_explained_differences(model_verdicts),
        _sign_legend(model_verdicts),
        *_witness_notes(model_verdicts),
        *(
            f"{model_verdict.target}: {_speed_text(model_verdict.info['measured'])}"
            for model_verdict in model_verdicts
            if "measured" in model_verdict.info
        ),
        *_skipped_notes(skipped_models),
    ]


def _count_notes(model_verdicts: list[Verdict], skipped_models: dict[str, str]) -> list[str]:
    """Returns a note: for one model the number of failed checks, for several the number of models that pass all."""
    check_count = sum(len(model_verdict.checks) for model_verdict in model_verdicts)
    if len(model_verdicts) + len(skipped_models) > 1:
        passed_count = sum(model_verdict.ok for model_verdict in model_verdicts)
        note_text = f"{passed_count} of {len(model_verdicts)} models: all checks pass ({check_count:,} checks)"
        return [note_text + (f"; {len(skipped_models)} skipped" if skipped_models else "")]
    failed_verdicts = [model_verdict for model_verdict in model_verdicts if not model_verdict.ok]
    return [f"{len(verdict.failures):,} of {counted_noun(check_count, 'check')} failed" for verdict in failed_verdicts]


def _sign_legend(model_verdicts: list[Verdict]) -> str:
    """Returns the meaning of the signs that occur in the table."""
    legend_texts = ["=: all checks pass"]
    if any(verdict.ok and any(check.known_difference for check in verdict.checks) for verdict in model_verdicts):
        legend_texts.append("±: they differ, explained above")
    inexact_checks = [check for verdict in model_verdicts for check in verdict.checks if check.tolerance]
    if inexact_checks:
        legend_texts.append(f"≈: {_tolerances_text(inexact_checks)}")
    if not all(model_verdict.ok for model_verdict in model_verdicts):
        legend_texts.append("≠: number of mismatching nodes; difference: measured − closed form")
    return "; ".join(legend_texts)


def _witness_notes(model_verdicts: list[Verdict]) -> list[str]:
    """Returns notes on the running models with which the formulas are compared."""
    witness_text = model_verdicts[0].witness if model_verdicts else ""
    if witness_text.startswith("reference"):
        return _reference_notes(model_verdicts)
    if witness_text == "distributed":
        return _distributed_note(model_verdicts)
    if witness_text == "transformers":
        class_names_text = ", ".join(dict.fromkeys(model_verdict.info["class"] for model_verdict in model_verdicts))
        return [f"against transformers on meta, eager attention: {class_names_text}", _coverage_note(model_verdicts)]
    if witness_text == "published":
        return ["against the published count of the released weights"]
    return []


def _reference_notes(model_verdicts: list[Verdict]) -> list[str]:
    """Returns notes on the device on which the PyTorch reference ran, and on the size of the reference's run."""
    verdict_info = model_verdicts[0].info
    if len(model_verdicts) == 1:
        size_text = f"{verdict_info['batch']} × {verdict_info['seq']} tokens"
    else:
        size_text = f"batch {verdict_info['batch']}, enough tokens to fill every window"
    device_note = f"against llmcalc's PyTorch reference on {verdict_info['device']}, {size_text}, eager attention"
    if any(model_verdict.info["layers_run"] != model_verdict.info["layers"] for model_verdict in model_verdicts):
        device_note += "; identical layers are run once (--every-layer runs all)"
    return [device_note, *_memory_note(model_verdicts)]


def _skipped_notes(skipped_models: dict[str, str]) -> list[str]:
    """Returns one note per reason for skipping, with the models that were skipped."""
    models_by_reason: dict[str, list[str]] = {}
    for model_name, skip_reason in skipped_models.items():
        models_by_reason.setdefault(skip_reason, []).append(model_name)
    return [
        f"skipped, {skip_reason}: {', '.join(model_names)}" for skip_reason, model_names in models_by_reason.items()
    ]


def _explained_differences(model_verdicts: list[Verdict]) -> list[str]:
    """Returns one note per model with a difference that the preset explains."""
    return [
        f"{model_verdict.target} differs, explained: {units.difference(model_verdict.info['difference'])} against the "
        f"published count: {model_verdict.info['note']}"
        for model_verdict in model_verdicts
        if model_verdict.info.get("difference")
    ]


def _tolerances_text(checks: list[Check]) -> str:
    """Returns the relative tolerance of each quantity's comparison as text."""
    names_by_tolerance: dict[float, dict[str, None]] = {}
    for check in checks:
        quantity_name = check.quantity.rpartition("_bytes")[0].rpartition("_")[2] or check.quantity
        names_by_tolerance.setdefault(check.tolerance, {})[quantity_name] = None
    return ", ".join(
        f"within {units.percent(tolerance, 1 if tolerance > 1e-4 else 3)} ({', '.join(quantity_names)})"
        for tolerance, quantity_names in sorted(names_by_tolerance.items())
    )


def _memory_note(model_verdicts: list[Verdict]) -> list[str]:
    """Returns notes on the runs whose memory was compared, and on the phases that were left out with the reason."""
    compared_memory = [
        (verdict.target, verdict.info["memory"]) for verdict in model_verdicts if "memory" in verdict.info
    ]
    notes = [
        f"memory of {verdict_target}: {', '.join(memory_record['runs'])}"
        for verdict_target, memory_record in compared_memory
        if memory_record["runs"]
    ]
    if len(notes) > 1:
        notes = [f"memory of {counted_noun(len(notes), 'model')}: training, prefill and decoding of as many tokens"]
    for model_name, memory_info in compared_memory:
        phases_by_reason: dict[str, list[str]] = {}
        for phase, skip_reason in memory_info["left_out"].items():
            phases_by_reason.setdefault(skip_reason, []).append(phase)
        notes += [
            f"{model_name}: memory of {', '.join(left_out_phases)} not compared: {skip_reason}"
            for skip_reason, left_out_phases in phases_by_reason.items()
        ]
    return notes


def _distributed_note(model_verdicts: list[Verdict]) -> list[str]:
    """Returns a note on the distributed processes, and on the bytes that were not compared."""
    run_info = model_verdicts[0].info
    group_sizes = run_info["layout"]
    degree_titles = {"tp": "ranks of tensor parallelism", "pp": "stages of a pipeline"}
    degree_titles["dp"] = "shards" if group_sizes["zero"] == 3 else "replicas"
    scratch_sizes = sorted(
        {kernel_and_bytes for verdict in model_verdicts for kernel_and_bytes in verdict.info["scratch_bytes"].items()}
    )
    scratch_text = ", ".join(
        f"{kernel_name} {units.memory(scratch_bytes)}" for kernel_name, scratch_bytes in scratch_sizes
    )
    layout_text = ", ".join(
        f"{group_sizes[degree_name]} {degree_title}"
        for degree_name, degree_title in degree_titles.items()
        if group_sizes[degree_name] > 1
    )
    return [
        f"against {group_sizes['world']} gloo processes that run llmcalc's PyTorch reference ({layout_text}): "
        f"two steps with AdamW in {run_info['dtype']}, {run_info['microbatches']} micro-batches of "
        f"{run_info['batch']} × "
        f"{run_info['seq']} tokens per replica; loss: against one process",
        f"not compared: {'; '.join(run_info['not_counted'])}; scratch that kernels free before they return, the "
        f"largest block of each: {scratch_text or 'none'}",
    ]


def _coverage_note(model_verdicts: list[Verdict]) -> str:
    """Returns a note on coverage: how many parts with parameters are compared one by one, and which are not."""
    covered_models = [(verdict, verdict.coverage) for verdict in model_verdicts if verdict.coverage is not None]
    direct_count = sum(len(coverage.compared_alone) for _, coverage in covered_models)
    summed_count = sum(len(coverage.compared_in_sums) for _, coverage in covered_models)
    missing_paths = [
        totaled_path if len(model_verdicts) == 1 else f"{model_verdict.target} {totaled_path}"
        for model_verdict, coverage in covered_models
        for totaled_path in coverage.compared_in_totals
    ]
    ellipsis_text = ", … (--format json lists all)" if len(missing_paths) > MAX_MISSING else ""
    return (
        f"{direct_count:,} of {counted_noun(direct_count + summed_count + len(missing_paths), 'part')} that hold "
        "parameters are compared individually"
        + (f", {summed_count:,} as sums, where the class fuses several modules into one" if summed_count else "")
        + (
            f", {len(missing_paths):,} only within the totals above them: "
            f"{', '.join(missing_paths[:MAX_MISSING])}{ellipsis_text}"
            if missing_paths
            else ""
        )
    )


def _node_path_or_peak_moment(check: Check) -> str:
    """Returns where a check failed: the node's path, or for memory the moment, such as `training: backward peak`."""
    peak_moment = check.quantity.removeprefix(MEMORY_PREFIX).removesuffix("_bytes").replace("_", " ")
    if not check.node:
        return peak_moment
    if check.quantity.startswith(MEMORY_PREFIX):
        return f"{check.location}: {peak_moment}"
    return check.location


def _failure_tables(model_verdicts: list[Verdict]) -> Iterator[Table]:
    """Yields a table of differing nodes for each quantity of each model."""
    free_lines = MAX_FAILURES
    table_columns = (
        Column("node", "node", justify="left"),
        Column("closed_form", "closed form", units.exact_text),
        Column("measured", "measured", units.exact_text),
        Column("difference", "difference", justify="left", may_wrap=True),
    )
    for model_verdict in model_verdicts:
        for quantity, quantity_group in groupby(model_verdict.failures, key=_quantity_group):
            checks = list(quantity_group)
            listed_checks, free_lines = (checks[:free_lines], free_lines - len(checks[:free_lines]))
            table_rows = [
                row(
                    _node_path_or_peak_moment(check),
                    check.closed_form,
                    "none" if check.measured_value is None else check.measured_value,
                    check.explanation(model_verdict.sizes),
                )
                for check in listed_checks
            ]
            notes = []
            if len(listed_checks) < len(checks):
                notes.append(f"{len(checks) - len(listed_checks):,} more (--format json lists all)")
            yield Table(
                model_verdict.target,
                table_columns,
                table_rows,
                name=quantity.strip("."),
                target=model_verdict.target,
                notes=notes,
                answer=f"{counted_noun(len(checks), CHECK_NOUNS.get(quantity, 'node'))} differ"
                f"{'s' * (len(checks) == 1)} in {QUANTITY_NAMES[quantity]}",
            )
