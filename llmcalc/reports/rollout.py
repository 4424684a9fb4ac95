"""The memory phases of reinforcement learning: rollout, weight transfer, log-probabilities, update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..frameworks.launch.rollout import Rollout
from ..studies.rollout_phases import RolloutPhase
from .document import Column, Table, row

PHASE_TITLES = {
    "rollout": "rollout",
    "weight_transfer": "weights sent",
    "log_probabilities": "log-probs",
    "update": "update",
}
"""Phase → the title of its column."""

TERMS_BY_ROW = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations",),
    "temporary": ("temporary",),
    "buffers, workspaces": ("communication", "overhead"),
    "reference model": ("reference",),
    "reward model": ("reward",),
    "critic and its states": ("critic",),
    "gathered weights": ("gathered_weights",),
    "logits": ("logits",),
    "weights sent": ("weights_sent",),
    "fragmentation": ("fragmentation",),
    "CUDA context": ("context",),
    "engine: weights": ("engine_weights",),
    "engine: KV cache": ("engine_kv_cache",),
    "engine: the rest": ("engine_profile_run", "engine_non_torch", "engine_cuda_graphs"),
}
"""Row of the table → the terms that it sums."""

PHASES_NOTE = (
    "phases: the update is replayed, the engine has its own rule; other models, logits and activations of passes "
    "without gradients are estimates, which no measured run was compared with"
)


def largest_phase(rollout_phases: Sequence[RolloutPhase]) -> RolloutPhase:
    """Returns the phase of reinforcement learning that needs most memory."""
    return max(rollout_phases, key=lambda phase: phase.bytes)


def engine_note(rollout: Rollout | None) -> str:
    """Returns a note on the rollout engine and its flags; empty without an engine."""
    if rollout is None or not rollout.engine:
        return ""
    flags_text = " ".join(f"{flag_name}={flag_value}" for flag_name, flag_value in rollout.flags.items())
    idle_text = (
        "weights and cache are freed" if rollout.engine_sleeps_while_idle else "weights and cache stay on the device"
    )
    if rollout.shares_weights:
        cache_text = "is freed" if rollout.engine_sleeps_while_idle else "stays on the device"
        idle_text = f"cache {cache_text}; its weights are those of the training"
    return f"rollouts by {rollout.engine} (newest rules): {flags_text}; while it is idle its {idle_text}"


def phases_table(
    rollout_phases: Sequence[RolloutPhase], table_heading: str, subtitle: str, answer_text: str, notes: Sequence[str]
) -> Table:
    """Returns a table of memory terms with one column per phase, and the sum of each column."""
    table_columns = [
        Column("term", f"{units.GIB.name} of one device", justify="left"),
        *(Column(f"{phase.name}_bytes", PHASE_TITLES[phase.name], units.GIB.write) for phase in rollout_phases),
    ]
    bytes_by_phase = [{term_name.name: term_name.bytes for term_name in phase.terms} for phase in rollout_phases]
    table_rows = []
    for row_name, term_names in TERMS_BY_ROW.items():
        phase_sums = [
            sum(term_bytes for term_name, term_bytes in phase_bytes.items() if term_name in term_names)
            for phase_bytes in bytes_by_phase
        ]
        if any(phase_sums):
            table_rows.append(row(row_name, *(term_bytes or None for term_bytes in phase_sums)))
    total_row = row("total", *(phase.bytes for phase in rollout_phases), is_bold=True, is_sum=True)
    rows_with_total = [*table_rows, total_row]
    return Table(
        table_heading, table_columns, rows_with_total, subtitle, [*notes, PHASES_NOTE], answer_text, name="rollout"
    )


def phases_data(rollout_phases: Sequence[RolloutPhase]) -> list[dict[str, Any]]:
    """Returns the phases of reinforcement learning and their memory terms as entries of a JSON document."""
    return [
        {
            "name": phase.name,
            "bytes": phase.bytes,
            "terms": [
                {
                    "name": memory_term.name,
                    "bytes": memory_term.bytes,
                    "status": memory_term.status,
                    "source": memory_term.source,
                }
                for memory_term in phase.terms
            ],
        }
        for phase in rollout_phases
    ]
