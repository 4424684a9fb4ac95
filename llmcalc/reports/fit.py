"""The report of `llmcalc fit`: whether a run fits on an accelerator, the largest fitting run, and changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import units
from ..accelerator import Hardware, MemoryFit
from ..device_memory.estimate import Memory
from ..frameworks.engines.registry import ENGINE_FOLDERS, engine
from ..frameworks.ranks import attention_implementation_of
from ..sources.preset import Preset
from ..studies.fit import DEEP_MODEL_LAYERS, MAX_CHANGES_OF_DEEP_MODEL, FitAnswer, SettingChange, has_many_layers
from ..studies.fit_devices import DevicesFitAnswer
from ..studies.fit_options import (
    MAX_COMPUTERS,
    MAX_DEVICES,
    MAX_SPLIT_DEVICES,
    HardwareOption,
)
from ..studies.fit_serving import COMPUTER_VENDORS, ServingFitAnswer, is_separate_computer
from ..studies.timed_run import TimedRun
from .document import Column, Report, Row, Table, row, without_repetitions
from .memory import fit_verdict_text, verdict_notes
from .memory_data import device_data, execution_data, workload_data
from .memory_notes import concatenation_note, run_text, settings_text, uncounted_memory_notes
from .notes import counted_noun, device_phrase, gguf_tag_notes, too_long_notes, warnings_of_notes
from .plan import notes_on_other_accelerators
from .rank_texts import layout_cell, layout_text
from .summary import model_data
from .time_estimate import DECODING_COLUMNS, decoding_cells, decoding_data, test_errors_text

LARGEST_COLUMNS = (
    Column("quantity", "limit", justify="left"),
    Column("value", "number", units.exact_text),
    Column("given", "given", units.exact_text),
)

CHANGE_COLUMNS = (
    Column("option", "change", justify="left", may_wrap=True),
    Column("device_bytes", f"needed, {units.GIB.name}", units.GIB.write),
    Column("share", "share", units.percent),
    Column("verdict", "verdict", justify="left", is_verdict=True),
)

VERDICT_TEXTS = {"fits": "it fits", "tight": "it is tight", "no": "it does not fit"}


OPTION_COLUMNS = (
    Column("hardware", "accelerator", justify="left"),
    Column("devices", "fewest", units.exact_text),
    Column("layout", "layout", justify="left"),
    Column("device_bytes", f"needed, {units.GIB.name}", units.GIB.write),
    Column("share", "share", units.percent),
    Column("verdict", "verdict", justify="left", is_verdict=True),
)


def common_hardware_report(preset: Preset, run_memory: Memory, hardware_options: Sequence[HardwareOption]) -> Report:
    """Returns the report of the fewest accelerators of each kind on which a run fits."""
    memory_use = run_memory.states
    warnings = too_long_notes(run_memory.spec, memory_use.workload)
    first_option = hardware_options[0]
    has_fitting_option = first_option.fit.verdict != "no"
    answer_text = (
        f"{VERDICT_TEXTS[first_option.fit.verdict]} on "
        f"{device_phrase(first_option.devices, first_option.fit.hardware.title)}"
        if has_fitting_option
        else f"it does not fit on up to {MAX_DEVICES} accelerators"
    )
    table_rows = [
        row(
            hardware_option.fit.hardware.name,
            hardware_option.devices,
            "" if hardware_option.layout is None else layout_cell(hardware_option.layout),
            hardware_option.fit.needed_bytes,
            hardware_option.fit.used_fraction,
            fit_verdict_text(hardware_option.fit),
        )
        for hardware_option in hardware_options
    ]
    engine_note = ""
    engine_options = [hardware_option for hardware_option in hardware_options if hardware_option.engine_title]
    has_single_macs = any(is_separate_computer(hardware_option.fit.hardware) for hardware_option in engine_options)
    most_macs_text = "one" if has_single_macs else f"up to {MAX_COMPUTERS}"
    replica_note = (
        "dp: replicas, which share the users"
        if any(hardware_option_with_users.users for hardware_option_with_users in hardware_options)
        else ""
    )
    if engine_options:
        names_text = ", ".join(hardware_option.fit.hardware.name for hardware_option in engine_options)
        engine_note = (
            f"by {engine_options[0].engine_title}'s buffers, layers divided among up to {MAX_SPLIT_DEVICES} (pp)"
            if run_memory.has_gguf_weights
            else f"{names_text}: by {engine_options[0].engine_title}'s buffers, on one computer"
        )
        if len(engine_options) < len(hardware_options):
            torch_names = ", ".join(
                hardware_option_with_users.fit.hardware.name
                for hardware_option_with_users in hardware_options
                if not hardware_option_with_users.engine_title
            )
            engine_note += f"; {torch_names if run_memory.has_gguf_weights else 'the others'} by torch's kernels"
    notes = [
        *warnings,
        *gguf_tag_notes(preset, run_memory.settings.quantize),
        *uncounted_memory_notes(preset, run_memory, has_engine_buffers=bool(engine_options)),
        engine_note,
        "by total memory, those without products in bfloat16 last; needed and share: of the accelerator that needs "
        "most",
        replica_note,
        f"tried: 1, 2, 4, … {MAX_DEVICES} of each, {most_macs_text} of Apple, one laptop; --hardware says what "
        "else would make it fit",
        *verdict_notes([hardware_option.fit for hardware_option in hardware_options]),
    ]
    json_document = {
        "model": model_data(preset),
        "workload": workload_data(run_memory),
        "execution": execution_data(run_memory),
        "hardware": None,
        "verdict": first_option.fit.verdict,
        "device_bytes": first_option.fit.needed_bytes,
        "usable_bytes": first_option.fit.capacity_bytes,
        "options": hardware_options_data(hardware_options),
    }
    subtitle = settings_text(run_memory, run_memory.attention)
    table = Table(preset.display, OPTION_COLUMNS, table_rows, subtitle, notes, answer_text, name="options")
    return Report(json_document, [table], warnings=warnings_of_notes(preset, warnings)).with_target(preset.target)


def hardware_options_data(hardware_options: Sequence[HardwareOption]) -> list[dict[str, Any]]:
    """Returns the accelerators on which a run could fit as plain data."""
    return [
        {
            "hardware": hardware_option.fit.hardware.name,
            "devices": hardware_option.devices,
            "layout": None if hardware_option.layout is None else hardware_option.layout.data(),
            "replica_users": hardware_option.users,
            "engine": hardware_option.engine_title or None,
            "verdict": hardware_option.fit.verdict,
            "device_bytes": hardware_option.fit.needed_bytes,
        }
        for hardware_option in hardware_options
    ]


def report(
    preset: Preset,
    fit_answer: FitAnswer,
    hardware_options: Sequence[HardwareOption] = (),
    engine_notes: Sequence[str] = (),
) -> Report:
    """Returns the report for one accelerator: a table of the largest runs, and a table of changes.

    hardware_options: numbers of the same accelerator on which the run fits; default none.
    engine_notes: notes on the users that the usual engine holds; default none.
    """
    memory_use, hardware = fit_answer.memory.states, fit_answer.fit.hardware
    table_rows = [
        row(_sequences_text(fit_answer), fit_answer.largest_batch, memory_use.workload.batch),
        row("tokens of each sequence (--seq)", fit_answer.largest_seq, memory_use.workload.seq),
    ]
    engine_text = f" under {fit_answer.engine_title}" if fit_answer.engine_title else ""
    answer_text = f"{VERDICT_TEXTS[fit_answer.fit.verdict]} on {hardware.title}{engine_text}"
    notes = [
        *(() if fit_answer.decoding_runs else engine_notes),
        *_layer_split_notes(fit_answer, hardware_options),
        *_search_notes(fit_answer),
    ]
    report_content = _FitReportContent(
        answer_text, run_text(memory_use), table_rows, notes, bool(fit_answer.engine_title)
    )
    json_document = _fit_document(preset, fit_answer) | {
        "options": hardware_options_data(hardware_options),
        "decoding": list(map(_users_data, fit_answer.decoding_runs)),
    }
    if fit_answer.short_context_run is not None:
        json_document["short_context"] = _users_data(fit_answer.short_context_run)
    if fit_answer.decoding_runs:
        report_content = report_content._replace(further_tables=[_decoding_table(fit_answer, "; ".join(engine_notes))])
    changes_note = CHANGES_NOTE
    if has_many_layers(fit_answer.memory):
        changes_note += (
            f"; of a model with more than {DEEP_MODEL_LAYERS} layers only the {MAX_CHANGES_OF_DEEP_MODEL} that store "
            "least are tried"
        )
    return report_content.report(
        preset, fit_answer.memory, fit_answer.fit, fit_answer.changes, json_document, changes_note
    )


USERS_COLUMNS = (
    Column("users", "users", units.exact_text),
    Column("context", "after", units.exact_text),
    *DECODING_COLUMNS,
)


def _users_data(timed_run: TimedRun) -> dict[str, Any]:
    """Returns users, tokens in the cache of each and the time of their tokens as plain data."""
    return {"users": timed_run.sequences, "context": timed_run.context, **decoding_data(timed_run)}


def _decoding_table(fit_answer: FitAnswer, subtitle: str) -> Table:
    """Returns the table of seconds per token and user, for the run's users and for the most users.

    subtitle: the remark below the heading; empty for none.
    """
    timed_runs = [*filter(None, [fit_answer.short_context_run]), *fit_answer.decoding_runs]
    table_rows = [row(timed_run.sequences, timed_run.context, *decoding_cells(timed_run)) for timed_run in timed_runs]
    errors_text = test_errors_text(timed_runs[0].time_range, timed_runs[0].stack.title)
    notes = [f"after: tokens in each user's cache; tokens/s: of all users, of the estimate; {errors_text}"]
    notes += _float32_weights_notes(fit_answer.memory, timed_runs[0])
    software_title, hardware = timed_runs[0].stack.title, fit_answer.fit.hardware
    engine_remark = _untested_engine_remark(hardware, timed_runs[0])
    title = f"A token of every user under {software_title}{engine_remark}"
    return Table(title, USERS_COLUMNS, table_rows, subtitle, notes, name="decoding")


def _untested_engine_remark(hardware: Hardware, timed_run: TimedRun) -> str:
    """Returns words after the engine's title for accelerators on which the engine needs a plugin; else empty."""
    engine_records = [
        engine_record for engine_record in map(engine, ENGINE_FOLDERS) if engine_record.title == timed_run.stack.title
    ]
    if not engine_records or engine_records[0].runs_on(hardware):
        return ""
    memory_remark = "whose memory there is not modelled"
    return f"'s plugin, {memory_remark}" if engine_records[0].plugin_vendors else f", {memory_remark}"


def _float32_weights_notes(run_memory: Memory, timed_run: TimedRun) -> list[str]:
    """Returns a note if the weights are counted in float32, as published, and timed in the engine's 16 bits."""
    memory_use = run_memory.states
    if memory_use.dtype != "float32" or timed_run.number_formats.product_format == "fp32" or memory_use.quantized_size:
        return []
    return [
        f"times are in 16 bits, in which {timed_run.stack.title} loads weights published in float32; bytes are of "
        "float32: --dtype in 16 bits halves them"
    ]


def devices_report(preset: Preset, fit_answer: DevicesFitAnswer) -> Report:
    """Returns the report for many devices: best layout, fewest devices, largest fitting sizes, and changes."""
    plan = fit_answer.layout_plan
    accelerator_fit = fit_answer.fit
    best_candidate = fit_answer.best_candidate
    memory_use = fit_answer.memory.states
    table_rows = [row("fewest devices (--devices)", fit_answer.fewest_devices, plan.devices)]
    if accelerator_fit.verdict == "fits":
        table_rows += [
            row("sequences of a micro-batch (--batch)", fit_answer.largest_batch, memory_use.workload.batch),
            row("tokens of each sequence (--seq)", fit_answer.largest_seq, memory_use.workload.seq),
        ]
    framework_title, layout_count = plan.framework.title, plan.ranked_layouts.tried_count
    recompute_option = "" if fit_answer.memory.settings.recompute is not None else " --recompute none"
    position_text = "the only layout"
    if layout_count != 1:
        position_text = f"the first of {layout_count:,} layouts in the order of plan{recompute_option}"
    other_framework, needed_framework = fit_answer.other_framework, fit_answer.needed_framework
    framework_text = "" if other_framework is None else f", several under {other_framework.title}"
    notes = [
        *notes_on_other_accelerators(plan),
        f"kernels and buffers of {framework_title} (--framework {plan.framework.name}); {position_text}",
        f"fewest: halves and doubles of {counted_noun(plan.devices, 'device')} were tried"
        f"{framework_text if accelerator_fit.verdict == 'no' else ''}"
        f"{'; each maximum changes one number' if accelerator_fit.verdict == 'fits' else ''}",
    ]
    if fit_answer.ended_early:
        notes.append("the search ended early: fewer devices and larger runs may fit too")
    json_document = {
        "model": model_data(preset),
        "workload": workload_data(fit_answer.memory),
        "execution": execution_data(fit_answer.memory, attention_implementation_of(fit_answer.memory, plan.framework)),
        "hardware": accelerator_fit.hardware.name,
        "devices": plan.devices,
        "framework": plan.framework.name,
        "layout": best_candidate.layout.data(),
        **_fit_data(accelerator_fit),
        "needed_devices": fit_answer.fewest_devices,
        "needed_layout": None if fit_answer.layout_on_fewest is None else fit_answer.layout_on_fewest.layout.data(),
        "needed_framework": None if needed_framework is None else needed_framework.name,
        "options": hardware_options_data([HardwareOption(plan.devices, best_candidate.layout, accelerator_fit)]),
        "largest": {"batch": fit_answer.largest_batch, "seq": fit_answer.largest_seq, "users": None},
        "changes": _changes_data(fit_answer.changes),
    }
    report_content = _FitReportContent(
        f"{VERDICT_TEXTS[accelerator_fit.verdict]} on "
        f"{device_phrase(plan.devices, accelerator_fit.hardware.title)} under {framework_title}",
        f"{run_text(memory_use)}, {counted_noun(plan.global_batch, 'sequence')} a step, "
        f"{layout_text(best_candidate.layout)}",
        table_rows,
        notes,
        has_engine_buffers=False,
    )
    return report_content.report(preset, fit_answer.memory, accelerator_fit, fit_answer.changes, json_document)


def serving_report(preset: Preset, serving_answer: ServingFitAnswer) -> Report:
    """Returns the report for inference on many devices: best layout, all layouts, largest fitting sizes, changes."""
    largest_run_fit, best_replica = serving_answer.largest_run, serving_answer.best_replica
    shown_memory = largest_run_fit.memory if largest_run_fit.engine_title else serving_answer.memory
    memory_use, accelerator_fit, device_count = shown_memory.states, best_replica.fit, best_replica.layout.world_size
    sharing_ranks_text = "replica" if best_replica.layout.ep == 1 else "data-parallel rank"
    table_rows = [
        row("fewest devices of a replica", serving_answer.fewest_devices, best_replica.layout.replica_devices)
    ]
    if accelerator_fit.verdict != "no":
        table_rows += [
            row(
                f"users of each {sharing_ranks_text} (--users)",
                largest_run_fit.largest_batch,
                memory_use.workload.batch,
            ),
            row("tokens of each sequence (--seq)", largest_run_fit.largest_seq, memory_use.workload.seq),
        ]
    engine_title = largest_run_fit.engine_title
    buffers_text = f"buffers of {engine_title}, layers divided by -ts" if engine_title else "kernels of torch"
    if shown_memory.has_gguf_weights and not engine_title:
        buffers_text += ", not llama.cpp's buffers"
        divides_matrices = best_replica.layout.tp > 1 or best_replica.layout.ep > 1
        if divides_matrices and accelerator_fit.hardware.vendor not in COMPUTER_VENDORS:
            buffers_text += ", which are known where layers alone are divided (--pp, --dp)"
    notes = [
        f"{buffers_text}; the layout with most replicas that fits, or the one that requires least",
        *_host_layer_notes(largest_run_fit, accelerator_fit),
        "each maximum changes one number of the run, with this layout",
    ]
    fewest_devices = serving_answer.fewest_devices
    if accelerator_fit.verdict == "no" and fewest_devices is not None and fewest_devices < device_count:
        notes.insert(
            0,
            f"replicas of equal size divide the devices, and none of the sizes that divide {device_count} fits; one of "
            f"{counted_noun(fewest_devices, 'device')} does",
        )
    needed_column, share_column, verdict_column = CHANGE_COLUMNS[1:]
    table_columns = [Column("layout", "layout", justify="left"), needed_column, share_column, verdict_column]
    replica_contexts = {tried_replica.seq for tried_replica in serving_answer.tried_replicas}
    has_several_contexts = len(replica_contexts) > 1
    if has_several_contexts:
        table_columns.insert(1, Column("seq", "tokens", units.exact_text))
    has_decoding_times = any(tried_replica.decoding_run for tried_replica in serving_answer.tried_replicas)
    if has_decoding_times:
        table_columns[-1:] = [*DECODING_COLUMNS, verdict_column]
    layout_rows = [
        row(
            layout_cell(tried_replica.layout),
            *([tried_replica.seq] if has_several_contexts else ()),
            tried_replica.fit.needed_bytes,
            tried_replica.fit.used_fraction,
            *(decoding_cells(tried_replica.decoding_run) if has_decoding_times else ()),
            fit_verdict_text(tried_replica.fit),
        )
        for tried_replica in serving_answer.tried_replicas
    ]
    timed_run = next(
        (timed_replica.decoding_run for timed_replica in serving_answer.tried_replicas if timed_replica.decoding_run),
        None,
    )
    layout_notes = [
        f"left out: {layout_text(layout)}: {uncounted_reason.removeprefix(f'--tp {layout.tp}: ')}"
        for layout, uncounted_reason in serving_answer.uncounted_layouts[:1]
    ]
    if timed_run is not None:
        software_title = timed_run.stack.title
        layout_notes += [
            f"TPOT, tokens/s: a token of every user of all replicas, in one batch of each, under {software_title}",
            *_float32_weights_notes(serving_answer.memory, timed_run),
        ]
    layout_notes += verdict_notes([tried_replica.fit for tried_replica in serving_answer.tried_replicas])
    if serving_answer.untried_layout_count:
        layout_notes.append(
            f"the search ended early, before {serving_answer.untried_layout_count:,} layouts of fewer replicas"
        )
    json_document = {
        **_fit_document(preset, largest_run_fit),
        "devices": device_count,
        "framework": engine_title or "torch",
        "layout": best_replica.layout.data(),
        "rank": best_replica.rank,
        "needed_devices": serving_answer.fewest_devices,
        "needed_layout": None if serving_answer.layout_on_fewest is None else serving_answer.layout_on_fewest.data(),
        "options": hardware_options_data([HardwareOption(device_count, best_replica.layout, accelerator_fit)]),
        "layouts": [
            {
                "layout": tried_replica.layout.data(),
                "seq": tried_replica.seq or memory_use.workload.seq,
                "device_bytes": tried_replica.fit.needed_bytes,
                "verdict": tried_replica.fit.verdict,
                **decoding_data(tried_replica.decoding_run),
            }
            for tried_replica in serving_answer.tried_replicas
        ],
    }
    report_content = _FitReportContent(
        f"{VERDICT_TEXTS[accelerator_fit.verdict]} on {device_phrase(device_count, accelerator_fit.hardware.title)}"
        + (f" under {engine_title}" if engine_title else ""),
        f"{run_text(memory_use)} on each replica, {layout_text(best_replica.layout)}, rank {best_replica.rank}",
        table_rows,
        notes,
        bool(engine_title),
        [Table("Layouts", table_columns, layout_rows, notes=layout_notes, name="layouts")],
    )
    return report_content.report(
        preset, shown_memory, accelerator_fit, largest_run_fit.changes, json_document, CHANGES_NOTE
    )


CHANGES_NOTE = "changes of kernels, recomputation and chunks leave results as they are; formats and adapters do not"


class _FitReportContent(NamedTuple):
    """The content that `fit`'s reports for one device and for several devices have in common.

    answer, subtitle, rows, notes: those of the first table.
    has_engine_buffers: whether bytes are those of an engine's buffers.
    further_tables: tables after the first; default none.
    """

    answer: str
    subtitle: str
    rows: Sequence[Row]
    notes: Sequence[str]
    has_engine_buffers: bool
    further_tables: Sequence[Table] = ()

    def report(
        self,
        preset: Preset,
        memory: Memory,
        accelerator_fit: MemoryFit,
        run_changes: Sequence[SettingChange],
        json_document: dict[str, Any],
        changes_note: str = "",
    ) -> Report:
        """Returns the report with the given tables. changes_note: a note below the changes; default none."""
        warnings = too_long_notes(memory.spec, memory.states.workload) + list(
            () if accelerator_fit.hardware.sources else accelerator_fit.hardware.notes
        )
        settings_line = (
            f"{self.subtitle}: {units.GIB.write(accelerator_fit.needed_bytes)} of "
            f"{units.GIB.write(accelerator_fit.capacity_bytes)} {units.GIB.name} "
            f"({units.percent(accelerator_fit.used_fraction)})"
        )
        shown_fits = [accelerator_fit, *(run_change.changed_fit for run_change in run_changes)]
        tight_notes = verdict_notes([accelerator_fit]) if accelerator_fit.verdict == "tight" else []
        tight_notes += [*gguf_tag_notes(preset, memory.settings.quantize)]
        tight_notes += uncounted_memory_notes(preset, memory, has_engine_buffers=self.has_engine_buffers)
        notes = without_repetitions([*warnings, *tight_notes, *self.notes, *verdict_notes(shown_fits)])
        tables = [Table(preset.display, LARGEST_COLUMNS, self.rows, settings_line, notes, self.answer, name="largest")]
        tables += self.further_tables
        if run_changes:
            table_rows = [
                row(
                    run_change.option,
                    run_change.changed_fit.needed_bytes,
                    run_change.changed_fit.used_fraction,
                    fit_verdict_text(run_change.changed_fit),
                )
                for run_change in run_changes
            ]
            tables.append(
                Table(
                    "What would make it fit",
                    CHANGE_COLUMNS,
                    table_rows,
                    notes=without_repetitions([changes_note]),
                    name="changes",
                )
            )
        return Report(json_document, tables, warnings=warnings_of_notes(preset, warnings)).with_target(preset.target)


def _sequences_text(fit_answer: FitAnswer) -> str:
    return "sequences at once (--batch)" if fit_answer.memory.states.phase == "training" else "users at once (--users)"


def _search_notes(fit_answer: FitAnswer) -> list[str]:
    """Returns notes on the limits of the search for the largest run that fits, such as the model's context length."""
    memory_use = fit_answer.memory.states
    notes = [
        concatenation_note(fit_answer.memory),
        *_host_layer_notes(fit_answer, fit_answer.fit),
        *_wired_limit_notes(fit_answer.fit),
        "each maximum changes one number of the run",
    ]
    model_context_length = memory_use.model_context_length
    if model_context_length is not None and fit_answer.largest_seq > model_context_length:
        notes.append(f"the model was made for sequences of up to {counted_noun(model_context_length, 'token')}")
    return notes


def _layer_split_notes(fit_answer: FitAnswer, hardware_options: Sequence[HardwareOption]) -> list[str]:
    """Returns a note if the layers fit on no number of accelerators among which the engine divides layers."""
    hardware = fit_answer.fit.hardware
    has_fitting_option = any(hardware_option.fit.verdict != "no" for hardware_option in hardware_options)
    if not fit_answer.engine_title or is_separate_computer(hardware) or has_fitting_option:
        return []
    return [f"{fit_answer.engine_title} divides layers among up to {MAX_SPLIT_DEVICES}, on none of which they fit"]


def _host_layer_notes(fit_answer: FitAnswer, accelerator_fit: MemoryFit) -> list[str]:
    """Returns the note that an engine also starts with some layers on the host, for a run that does not fit.

    Empty for accelerators that share the memory of the host.
    """
    is_fitting = accelerator_fit.verdict != "no"
    if not fit_answer.engine_title or is_fitting or accelerator_fit.hardware.unified_memory:
        return []
    engine_title = fit_answer.engine_title
    return [
        f"{engine_title} starts with layers on the host too, and is slower then (--engine "
        f"{engine_title.lower()} has its flags)"
    ]


def _wired_limit_notes(accelerator_fit: MemoryFit) -> list[str]:
    """Returns a note if raising the GPU memory limit of macOS would make a run fit on a Mac."""
    hardware = accelerator_fit.hardware
    limit_mib = hardware.wired_limit_mib(accelerator_fit.needed_bytes)
    if accelerator_fit.verdict != "no" or limit_mib is None:
        return []
    left_text = units.memory(hardware.memory_bytes - accelerator_fit.needed_bytes)
    return [
        f"sudo sysctl iogpu.wired_limit_mb={limit_mib} lets the GPU use as much; {left_text} are left for macOS and "
        "programs"
    ]


def _fit_data(accelerator_fit: MemoryFit) -> dict[str, Any]:
    return {
        "verdict": accelerator_fit.verdict,
        "device_bytes": accelerator_fit.needed_bytes,
        "usable_bytes": accelerator_fit.capacity_bytes,
        "left_bytes": accelerator_fit.left_bytes,
    }


def _changes_data(run_changes: Sequence[SettingChange]) -> list[dict[str, Any]]:
    return [
        {
            "option": run_change.option,
            "device_bytes": run_change.changed_fit.needed_bytes,
            "verdict": run_change.changed_fit.verdict,
        }
        for run_change in run_changes
    ]


def _fit_document(preset: Preset, fit_answer: FitAnswer) -> dict[str, Any]:
    """Returns the JSON document of `fit` on one accelerator. Bytes are exact integers."""
    accelerator_fit, is_training = fit_answer.fit, fit_answer.memory.settings.phase == "training"
    largest_batch = fit_answer.largest_batch if is_training else None
    return {
        "model": model_data(preset),
        "workload": workload_data(fit_answer.memory),
        "execution": execution_data(fit_answer.memory),
        "hardware": accelerator_fit.hardware.name,
        "engine": fit_answer.engine_title or None,
        **_fit_data(accelerator_fit),
        "largest": {
            "batch": largest_batch,
            "seq": fit_answer.largest_seq,
            "users": None if is_training else fit_answer.largest_batch,
        },
        "changes": _changes_data(fit_answer.changes),
        "memory": device_data(fit_answer.memory.device),
    }
