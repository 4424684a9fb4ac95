"""The report of `llmcalc memory` on many devices: the memory of each rank and the messages between ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .. import units
from ..accelerator import Hardware, MemoryFit
from ..device_memory.settings import PRODUCT_FORMAT_BY_PRECISION
from ..frameworks.framework import Framework
from ..frameworks.launch.launch_types import Launch
from ..frameworks.ranks import Cluster
from ..optional import TOWERS
from ..parallel.layout import stages
from ..sources.preset import Preset
from ..studies.rollout_phases import RolloutPhase
from ..workload.expert_capacity import CAPACITY_PREFIX, DROPLESS_VALUE
from ..workload.setting import option
from .document import Column, Report, Row, Table, row, without_repetitions
from .memory import (
    PHASE_COLUMNS,
    accelerators_table,
    memory_kind_columns_and_rows,
    phase_columns_and_rows,
    phase_rows,
    verdict_text,
)
from .memory_data import device_data, execution_data, host_data, verdicts_data, workload_data
from .memory_notes import host_notes, llama_cpp_note, settings_text, stored_weights_notes, untested_notes
from .notes import counted_noun, gguf_tag_notes, too_long_notes, warnings_of_notes
from .rank_texts import layout_text
from .rollout import engine_note, largest_phase, phases_data, phases_table
from .summary import model_data

ASSUMPTION_NOTE = re.compile(r"([\d,]+ devices?|\"auto\"|experts in 4 bits) (is|are) assumed|(CUDA graphs|DeepEP): ")
"""Matches a launch file's note on an assumption that changes the whole answer, such as the number of devices."""


def _shorten_even_chunks(layers_text: str) -> str:
    """Returns layer numbers as text, shortened to `0, 4, …, 28` if a stage's chunks are evenly spaced."""
    chunk_texts = layers_text.split(", ")
    first_layers = [int(chunk_text.partition("–")[0]) for chunk_text in chunk_texts if chunk_text]
    is_evenly_spaced = len({next_start - chunk_start for chunk_start, next_start in pairwise(first_layers)}) == 1
    if is_evenly_spaced and len(chunk_texts) > 3:
        return f"{chunk_texts[0]}, {chunk_texts[1]}, …, {chunk_texts[-1]}"
    return layers_text


RANK_COLUMNS = (
    Column("rank", "rank"),
    Column("stage", "stage"),
    Column("layers", "layers", justify="left", shorten=_shorten_even_chunks),
    Column("peak_bytes", "peak", units.GIB.write),
    Column("after_step_bytes", "after step", units.GIB.write),
    Column("reserved_bytes", "reserved", units.GIB.write),
    Column("device_bytes", "required", units.GIB.write),
)

KIND_TITLES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "temporary": "temporary",
    "communication": "buffers",
    "cache": "cache",
    "overhead": "other",
}
"""Kind of memory → its name over a column."""

MESSAGE_COLUMNS = (
    Column("group", "with", justify="left"),
    Column("ranks", "ranks"),
    Column("kind", "what", justify="left"),
    Column("count", "messages", units.exact_text),
    Column("buffer_bytes", "largest", units.GIB.write),
    Column("wire_bytes", "sent", units.GIB.write),
)

MESSAGE_NAMES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send": "send",
}
"""Kind of message → its name in tables."""


PHASE_WORDS = {
    "rollout": "rollouts",
    "weight_transfer": "weights sent to the engine",
    "log_probabilities": "log-probabilities",
    "update": "updates",
}
"""Phase of reinforcement learning → its name in a sentence."""


def report(
    preset: Preset,
    cluster: Cluster,
    accelerator_fits: Sequence[MemoryFit],
    assumed_accelerator: str = "",
    launched_run: Launch | None = None,
    planned_hardware: Hardware | None = None,
    rollout_phases: Sequence[RolloutPhase] = (),
    planned_framework: Framework | None = None,
    engine_fit: MemoryFit | None = None,
) -> Report:
    """Returns the report: the memory of the largest rank and of every rank that differs, and the accelerators.

    assumed_accelerator: the accelerator whose runtime is assumed, where none was named.
    launched_run: the file that starts the run; default None.
    planned_hardware: the accelerator for which the layout was chosen; default None for a layout that was given.
    rollout_phases: the phases of reinforcement learning on one device; default none.
    planned_framework, engine_fit: as in `RanksMemoryAnswer`.
    """
    rank_memory, largest_rank, layout = cluster.memory, cluster.device_rank, cluster.layout
    memory_use = rank_memory.states
    warnings = too_long_notes(memory_use.parameter_count.spec, memory_use.workload)
    warnings += untested_notes(largest_rank.device) + stored_weights_notes(preset, memory_use)
    needed_bytes, rank_text = largest_rank.device.device_bytes, f"by rank {largest_rank.rank}"
    if rollout_phases:
        phase = largest_phase(rollout_phases)
        needed_bytes, rank_text = max(needed_bytes, phase.bytes), f"in the phase of {PHASE_WORDS[phase.name]}"
    if engine_fit is not None:
        needed_bytes, rank_text = engine_fit.needed_bytes, "by the fullest device under llama.cpp"
    answer_text = f"{units.GIB.write(needed_bytes)} {units.GIB.name} required {rank_text}"
    answer_text += verdict_text(accelerator_fits, 0 if rollout_phases else needed_bytes)
    devices_text = counted_noun(layout.world_size, "device") + (
        f" under {cluster.framework.title}" if cluster.trains else ""
    )
    devices_text += f": {layout_text(layout)}" if layout.world_size > 1 else ""
    settings_line = f"{settings_text(cluster.memory, cluster.attention)}; {devices_text}{_override_text(launched_run)}"
    if engine_fit is not None:
        settings_line += f"; below: under torch's kernels, {units.memory(largest_rank.device.device_bytes)}"
    layout_note = "" if planned_hardware is None else _layout_note(planned_hardware, accelerator_fits)
    notes_on_host = host_notes(largest_rank.device, layout.world_size)
    assumption_notes = [note for note in _launch_notes(launched_run) if ASSUMPTION_NOTE.match(note)]
    notes = without_repetitions(
        [
            *warnings,
            *assumption_notes,
            *_longest_samples_notes(cluster, accelerator_fits, launched_run, assumed_accelerator),
            *_uncounted_towers_notes(cluster),
            *_sharding_advice(cluster, accelerator_fits, launched_run),
            _planned_framework_note(planned_framework),
            layout_note,
            "" if engine_fit is None else llama_cpp_note(rank_memory, preset.target, engine_fit.hardware, engine_fit),
            *([] if cluster.trains else gguf_tag_notes(preset, cluster.settings.quantize)),
            *notes_on_host,
            *_cluster_notes(cluster, assumed_accelerator),
            *_launch_notes(launched_run),
        ]
    )
    kind_columns, kind_rows = (
        phase_columns_and_rows(largest_rank.device)
        if cluster.trains
        else memory_kind_columns_and_rows(largest_rank.device)
    )
    memory_kinds_table = Table(preset.display, kind_columns, kind_rows, settings_line, notes, answer_text, name="parts")
    phase_documents = []
    if rollout_phases:
        engine_text = engine_note(None if launched_run is None else launched_run.rollout)
        phase_documents = [
            phases_table(
                rollout_phases, preset.display, settings_line, answer_text, list(filter(None, (engine_text, *notes)))
            )
        ]
        memory_kinds_table = Table(f"The update on rank {largest_rank.rank}", kind_columns, kind_rows, name="parts")
    rank_columns = RANK_COLUMNS if cluster.trains else [_time_after_pass(column) for column in RANK_COLUMNS]
    has_stages = layout.pp > 1
    ranks_table = Table(
        f"By rank, in {units.GIB.name}", rank_columns, _rank_rows(cluster), name="ranks", has_priority=has_stages
    )
    memory_rows = phase_rows(largest_rank.device)
    phase_table = Table(f"Over time on rank {largest_rank.rank}", PHASE_COLUMNS, memory_rows, name="phases")
    messages_title = f"Sent by rank {largest_rank.rank} in a step, in {units.GIB.name}"
    message_table = Table(messages_title, MESSAGE_COLUMNS, _message_rows(cluster), name="communication")
    fits_table = accelerators_table(
        accelerator_fits,
        f"{f'Rank {largest_rank.rank}' if engine_fit is None else 'Fullest device'} on one accelerator, in "
        f"{units.GIB.name}",
        {} if engine_fit is None else {engine_fit.hardware.name: engine_fit},
    )
    fits_table = fits_table._replace(has_priority=not has_stages)  # the ranks of a pipeline differ: they come first
    return Report(
        cluster_data(preset, cluster, accelerator_fits, launched_run)
        | ({"phases": phases_data(rollout_phases)} if rollout_phases else {}),
        [
            *phase_documents,
            memory_kinds_table,
            ranks_table,
            *_memory_kinds_tables(cluster),
            phase_table,
            *([message_table] if message_table.rows else []),
            fits_table,
        ],
        warnings=warnings_of_notes(preset, warnings),
    ).with_target(preset.target)


def _planned_framework_note(planned_framework: Framework | None) -> str:
    """Returns a note on the framework that `fit`, `plan` and `time` choose for the same options, if it differs."""
    if planned_framework is None:
        return ""
    return (
        f"fit, plan and time choose among layouts of {planned_framework.title}; --framework {planned_framework.name} "
        "counts these devices under it"
    )


def _layout_note(planned_hardware: Hardware, accelerator_fits: Sequence[MemoryFit]) -> str:
    """Returns a note on how the layout was chosen for an accelerator."""
    all_fit = all(
        accelerator_fit.verdict != "no"
        for accelerator_fit in accelerator_fits
        if accelerator_fit.hardware == planned_hardware
    )
    hardware_title = planned_hardware.title
    choice_text = (
        f"the most replicas that fit on {hardware_title}"
        if all_fit
        else f"none fits on {hardware_title}, this one requires least"
    )
    return f"layout: {choice_text}; --tp, --pp divide"


def _sharding_advice(cluster: Cluster, accelerator_fits: Sequence[MemoryFit], launched_run: Launch | None) -> list[str]:
    """Returns the advice to shard the model, if no device can hold a whole replica; otherwise no notes."""
    layout = cluster.layout
    is_divided = (
        layout.dp < layout.world_size or layout.zero or layout.ep > 1 or launched_run is not None or not cluster.trains
    )
    if is_divided or any(accelerator_fit.verdict != "no" for accelerator_fit in accelerator_fits):
        return []
    if layout.world_size == 1:
        return ["the device holds the whole model: llmcalc fit tries changes that need less"]
    shards_states_alone = cluster.framework.layout_rules.default_zero_stage == 1
    shard_options = "--zero 1 shards its optimizer" if shards_states_alone else f"--fsdp {layout.world_size} shards it"
    return [
        f"each device holds the whole model: {shard_options}; with the same options llmcalc plan lists the layouts "
        "that fit, llmcalc fit the fewest devices"
    ]


def _uncounted_towers_notes(cluster: Cluster) -> list[str]:
    """Returns a note on the image and audio encoders of a training run, which the answer does not count; else empty."""
    tower_elements = cluster.memory.states.parameter_count.left_out.get(TOWERS.name) if cluster.trains else None
    if not tower_elements:
        return []
    if cluster.run.encoders is not None:
        encoder_kinds = {encoder_bytes.kind for encoder_bytes in cluster.memory.tower_bytes(cluster.run.encoders)}
        counted_text = "weights, gradients and states are" if "optimizer" in encoder_kinds else "frozen weights are"
        return [
            f"encoders of images and sound: their {counted_text} counted ({tower_elements:,} parameters), not their "
            "activations"
        ]
    return [f"not counted: encoders of images and sound, {tower_elements:,} parameters"]


def _longest_samples_notes(
    cluster: Cluster, accelerator_fits: Sequence[MemoryFit], launched_run: Launch | None, assumed_accelerator: str
) -> list[str]:
    """Returns a note on the counted length of samples if a run does not fit on a named accelerator; empty otherwise."""
    if (
        assumed_accelerator
        or launched_run is None
        or not launched_run.counts_longest_samples
        or "seq" in launched_run.option_overrides
    ):
        return []
    if all(accelerator_fit.verdict != "no" for accelerator_fit in accelerator_fits):
        return []
    workload = cluster.memory.states.workload
    samples_text = "1 sample is" if workload.batch == 1 else f"{workload.batch:,} samples are"
    return [f"{samples_text} counted at the longest that the file allows, --seq {workload.seq}; shorter ones need less"]


def _launch_notes(launched_run: Launch | None) -> list[str]:
    """Returns the notes on a launch file: overridden values, defaults that are filled in, and assumptions."""
    if launched_run is None:
        return []
    notes = list(launched_run.notes)
    if launched_run.assumed_defaults:
        version_text = f" {launched_run.version}" if launched_run.version else ""
        defaults_text = ", ".join(
            f"{option_name} {_value_text(default_value)}"
            for option_name, default_value in launched_run.assumed_defaults.items()
        )
        notes.insert(0, f"defaults of {launched_run.program}{version_text}: {defaults_text}")
    return notes


def _override_text(launched_run: Launch | None) -> str:
    """Returns text on the options typed beside a launch file, each with the file's value; empty if there are none."""
    if launched_run is None or not launched_run.option_overrides:
        return ""
    override_texts = (
        f"{option(setting_name)} {_value_text(changed_setting.option_value)}"
        + ("" if changed_setting.file_value is None else f" in the place of {_value_text(changed_setting.file_value)}")
        for setting_name, changed_setting in launched_run.option_overrides.items()
    )
    return f"; beside the file {', '.join(override_texts)}"


def _value_text(setting_value: Any) -> str:
    """Returns a value of a launch file or of an option as words."""
    if isinstance(setting_value, tuple | list):
        return ",".join(map(str, setting_value))
    return str(setting_value).lower() if isinstance(setting_value, bool) else str(setting_value)


def cluster_data(
    preset: Preset, cluster: Cluster, accelerator_fits: Sequence[MemoryFit], launched_run: Launch | None
) -> dict[str, Any]:
    """Returns the JSON document of the memory of ranks. Bytes are exact integers.

    Allocated bytes are those of the rank that allocates most, required bytes those of the rank that requires most.
    """
    layers_by_stage = _layers_by_stage(cluster)
    device_rank_data = device_data(cluster.device_rank.device)
    peak_rank_data = device_data(cluster.peak_rank.device)
    workload_entry, execution_entry = workload_data(cluster.memory), execution_data(cluster.memory, cluster.attention)
    if cluster.trains:
        framework_data = cluster.framework.document_values(cluster.run)
        workload_entry = workload_entry | framework_data.get("workload", {})
        execution_entry = execution_entry | framework_data.get("execution", {})
    return {
        "model": model_data(preset),
        "workload": workload_entry,
        "execution": execution_entry,
        "layout": cluster.layout.data(),
        "framework": {"name": cluster.framework.name, "version": cluster.version or None},
        "launch": None if launched_run is None else launched_run.json_data(),
        "memory": {
            **peak_rank_data,
            **{data_key: device_rank_data[data_key] for data_key in ("reserved_bytes", "device_bytes", "terms")},
            "reserved_band": None if cluster.reserved_bytes_range is None else list(cluster.reserved_bytes_range),
            "peak_rank": cluster.peak_rank.rank,
            "device_rank": cluster.device_rank.rank,
            "by_rank": [
                {
                    "rank": rank.rank,
                    "stage": rank.stage,
                    "layers": layers_by_stage[rank.stage],
                    "peak_bytes": rank.device.peak_bytes,
                    "after_step_bytes": rank.device.after_step_bytes,
                    "reserved_bytes": rank.device.reserved_bytes,
                    "device_bytes": rank.device.device_bytes,
                    "by_kind": dict(rank.device.by_kind),
                }
                for rank in cluster.by_rank
            ],
            "parameters": cluster.memory.states.parameter_count.total,
        },
        "communication": None
        if cluster.messages is None
        else [
            {
                "group": rank.process_group,
                "ranks": rank.ranks,
                "kind": rank.collective_kind,
                "count": rank.count,
                "buffer_bytes": rank.bytes,
                "wire_bytes": rank.count * rank.wire_bytes,
            }
            for rank in cluster.messages
        ],
        **host_data(cluster.device_rank.device),
        "fits": verdicts_data(accelerator_fits),
    }


def _time_after_pass(column: Column) -> Column:
    return column._replace(title="after") if column.key == "after_step_bytes" else column


def _message_rows(cluster: Cluster) -> list[Row]:
    """Returns one row per communication group and kind of message, in the order of the groups."""
    totals_by_message: dict[tuple[str, int, str], list[int]] = {}
    for message in cluster.messages or ():
        group_totals = totals_by_message.setdefault(
            (message.process_group, message.ranks, message.collective_kind), [0, 0, 0]
        )
        group_totals[0] += message.count
        group_totals[1] = max(group_totals[1], message.bytes)
        group_totals[2] += message.count * message.wire_bytes
    process_groups = list(dict.fromkeys((process_group, ranks) for process_group, ranks, _ in totals_by_message))
    ordered_messages = sorted(totals_by_message.items(), key=lambda message: process_groups.index(message[0][:2]))
    return [
        row(process_group, ranks, MESSAGE_NAMES[message_kind], *message_totals)
        for (process_group, ranks, message_kind), message_totals in ordered_messages
    ]


def _layers_by_stage(cluster: Cluster) -> dict[int, list[list[int]]]:
    """Returns pipeline rank → the (first, last) layer of each of its chunks; empty for a chunk without layers."""
    layer_count = cluster.spec.layer_count
    layers_by_stage: dict[int, list[list[int]]] = {}
    for stage in stages(cluster.layout, layer_count):
        layers_by_stage.setdefault(stage.pipeline_rank, []).append(
            [stage.layers[0], stage.layers[-1]] if stage.layers else []
        )
    return layers_by_stage


def _rank_rows(cluster: Cluster) -> list[Row]:
    layers_by_stage = _layers_by_stage(cluster)
    return [
        row(
            rank.rank,
            rank.stage,
            ", ".join("–".join(map(str, dict.fromkeys(layer_range))) for layer_range in layers_by_stage[rank.stage]),
            rank.device.peak_bytes,
            rank.device.after_step_bytes,
            rank.device.reserved_bytes,
            rank.device.device_bytes,
        )
        for rank in cluster.by_rank
    ]


def _memory_kinds_tables(cluster: Cluster) -> list[Table]:
    """Returns a table of each rank's memory at its peak by kind, or no table without a pipeline."""
    if cluster.layout.pp == 1:
        return []
    memory_kinds = [
        memory_kind_name
        for memory_kind_name in KIND_TITLES
        if any(rank.device.by_kind.get(memory_kind_name, 0) for rank in cluster.by_rank)
    ]
    table_columns = [
        Column("rank", "rank"),
        *(Column(memory_kind, KIND_TITLES[memory_kind], units.GIB.write) for memory_kind in memory_kinds),
    ]
    table_rows = [
        row(rank.rank, *(rank.device.by_kind.get(memory_kind_name, 0) for memory_kind_name in memory_kinds))
        for rank in cluster.by_rank
    ]
    return [Table(f"Kinds of memory at each rank's peak, in {units.GIB.name}", table_columns, table_rows, name="kinds")]


def _number_ranges(sorted_numbers: Sequence[int]) -> str:
    """Returns increasing numbers as a text of ranges: `2–4, 6` for 2, 3, 4, 6."""
    number_ranges: list[list[int]] = []
    for next_number in sorted_numbers:
        if number_ranges and next_number == number_ranges[-1][-1] + 1:
            number_ranges[-1][1:] = [next_number]
        else:
            number_ranges.append([next_number])
    return ", ".join("–".join(map(str, range_ends)) for range_ends in number_ranges)


def _serving_notes(cluster: Cluster) -> list[str]:
    """Returns notes about inference on several devices."""
    layout, tensors_term = cluster.layout, cluster.device_rank.device.terms[0]
    return [
        *([f"{tensors_term.status}: {tensors_term.witness}"] if tensors_term.status == "estimate" else []),
        *(["logits stay divided over the vocabulary"] if layout.tp > 1 else []),
        *(["--batch: sequences of each replica"] if layout.dp > 1 else []),
    ]


def _cluster_notes(cluster: Cluster, assumed_accelerator: str) -> list[str]:
    framework_title = cluster.framework.title
    version_text = f" of {cluster.version}" if cluster.version else ""
    assumed_loss = cluster.framework.loss if cluster.trains and cluster.settings.cross_entropy is None else None
    loss_text = f", {assumed_loss} cross-entropy (--cross-entropy)" if assumed_loss else ""
    notes = [
        f"kernels and buffers of {framework_title}{version_text}{loss_text}; unlisted ranks need as much as the listed "
        "rank of their stage"
    ]
    if cluster.unlisted_stages:
        notes.append(
            f"stages {_number_ranges(cluster.unlisted_stages)}: not replayed, since an earlier stage has all of their "
            "layers and more micro-batches in flight"
        )
    if not cluster.trains:
        notes = [*_serving_notes(cluster), *notes]
    optimizer_state = cluster.memory.states.optimizer
    if cluster.layout.world_size > 1 and optimizer_state is not None and optimizer_state.paged_bytes:
        notes.append(
            "paged optimizer states are counted on the device; the driver may move them to the host, where the device "
            "has no room for them"
        )
    has_expert_capacity = getattr(
        cluster.framework_settings, "moe_expert_capacity_factor", None
    ) or cluster.settings.moe not in (None, DROPLESS_VALUE)
    if cluster.trains and cluster.layout.ep > 1 and not has_expert_capacity:
        uneven_text = ""
        if cluster.framework_settings is None:
            uneven_text = f"; --moe {CAPACITY_PREFIX}1.5 for ranks that get 1.5 times as many"
        notes.append(f"the experts of each rank get an even share of the rows{uneven_text}")
    if cluster.settings.precision in PRODUCT_FORMAT_BY_PRECISION:
        estimated_terms = (term for term in cluster.device_rank.device.terms if term.status == "estimate")
        notes += [f"{cluster.settings.precision}: {term.witness}" for term in estimated_terms if term.name == "tensors"]
    if cluster.attention == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if cluster.reserved_bytes_range is not None:
        reserved_text = " to ".join(units.GIB.write(byte_count) for byte_count in sorted(cluster.reserved_bytes_range))
        notes.append(
            f"reserved: {reserved_text} {units.GIB.name} by the allocator's setting (--allocator); here with segments"
        )
    if cluster.peak_rank.rank != cluster.device_rank.rank:
        peak_text = f"{units.GIB.write(cluster.peak_rank.device.peak_bytes)} {units.GIB.name}"
        notes.append(
            f"rank {cluster.peak_rank.rank} allocates the most, {peak_text}, and requires less with fragmentation"
        )
    if assumed_accelerator:
        notes.append(f"runtime of an {assumed_accelerator}; --hardware for another one")
    return notes
