"""The report of `llmcalc flops`: the FLOPs of one pass by component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from .. import units
from ..components.base import TokenMixer
from ..costs.flops import FlopCount, index_score_flops_of, score_flops_of, step_flops_of
from ..flow.tree import Node, cost_by_kind
from ..frozen import frozen
from ..model import ModelSpec
from ..ops import AttentionCore, State
from ..optional import MTP, PARTS_WITHOUT_FLOPS, TOWERS
from ..sources.preset import Preset
from ..studies.flop_rules import FlopRule
from ..studies.utilization import Utilization
from ..workload.execution import Execution
from ..workload.recompute import Recompute
from . import bars, conventions, palette, utilization
from .answer import CountedAnswer
from .bars import TextBar
from .document import Column, Report, Row, Table, row, without_repetitions
from .draft import with_draft
from .encoder_tokens import with_encoder_tokens
from .node_tree import NodeCountsFunction, node_cost_data, tree_data
from .notes import (
    CAUSAL_PAIRS_NOTE,
    CHOSEN_KEYS_NOTE,
    FULL_PAIRS_NOTE,
    MLA_NOTES,
    ONE_OUTPUT_NOTE,
    ONE_STEP_NOTE,
    PRODUCTS_NOTE,
    counted_noun,
    identity_experts_note,
    too_long_notes,
    unread_format_notes,
    warnings_of_notes,
    workload_text,
)
from .rank_texts import counted_rank_notes, rank_data, subtitle_with_rank
from .summary import model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import SelectedRank

PASS_TEXTS = {
    "forward": "forward pass of",
    "training": "training step of",
    "prefill": "prefill of",
    "decode": "decoding",
}
OTHER_PAIRS = {"full": "causal", "causal": "full"}


def report(
    preset: Preset,
    flop_count: FlopCount,
    rules_of_thumb: Sequence[FlopRule] = (),
    selected_rank: SelectedRank | None = None,
    measured_run: Utilization | None = None,
) -> Report:
    """Returns the report of the FLOPs of one pass as data and as a table.

    rules_of_thumb: rules of thumb, whose table comes first; default none.
    selected_rank: the rank that is counted; default the whole model.
    measured_run: the utilization of a measured run, whose table comes first; default None.
    """
    warnings = too_long_notes(flop_count.spec, flop_count.workload)
    notes = (
        warnings
        + unread_format_notes(preset)
        + without_repetitions(counted_rank_notes(selected_rank, *_rank_notes(selected_rank)))
        + _count_notes(flop_count)
    )
    json_document: dict[str, Any] = {
        "model": model_data(preset),
        **rank_data(selected_rank),
        "workload": {
            **asdict(flop_count.workload),
            **asdict(flop_count.run_config.counting),
            **_execution_data(flop_count.run_config.execution),
        },
        "flops": {
            "total": flop_count.total,
            "full": flop_count.full,
            "causal": flop_count.causal,
            "by_component": flop_count.by_component,
            "per_token": flop_count.per_token,
            "tokens": flop_count.tokens,
            "mla": flop_count.mla,
            "forward": flop_count.forward,
            "backward": flop_count.backward,
            "recomputation": flop_count.recomputed,
            "recomputation_non_reentrant": flop_count.recomputed - flop_count.skipped_by_early_stop,
            "attention_scores": flop_count.scores,
        },
        "notes": notes,
        "tree": _tree_data(flop_count),
    }
    tables = [_component_table(preset, flop_count, notes, selected_rank)]
    if rules_of_thumb:
        json_document["flops"]["conventions"] = conventions.conventions_data(rules_of_thumb)
        tables.insert(
            0, conventions.conventions_table(preset.display, headline(flop_count), flop_count, rules_of_thumb)
        )
    if measured_run is not None:
        json_document["utilization"] = utilization.utilization_data(measured_run)
        tables.insert(0, utilization.utilization_table(preset.display, headline(flop_count), measured_run))
    return Report(json_document, tables, warnings=warnings_of_notes(preset, warnings)).with_target(preset.target)


def _tree_without_towers(node_tree: Node) -> Node:
    """Returns the tree without uncounted encoders, whose 0 would look like a count."""
    children = tuple(child for child in node_tree.children if child.optional not in PARTS_WITHOUT_FLOPS)
    return replace(node_tree, children=children)


def _tree_data(flop_count: FlopCount) -> dict[str, Any]:
    """Returns the model's tree with FLOPs per node, with the encoders, which read images and audio separately."""
    node_figures = _node_counts_function(flop_count.include)
    node_data = tree_data(_tree_without_towers(flop_count.tree).root_position(flop_count.run_config), node_figures)
    if flop_count.encoders and flop_count.inputs is not None:
        encoder_entries: list[dict[str, Any]] = []
        for encoder_run in flop_count.inputs.encoder_runs:
            towers_node = Node(TOWERS.name, children=encoder_run.nodes, kind=TOWERS.name)
            encoder_entries += tree_data(towers_node.root_position(encoder_run.run_config), node_figures)["children"]
        encoder_sums = {"flops": flop_count.encoders, "flops_in_all": flop_count.encoders}
        node_data["children"].append(
            {"name": TOWERS.name, **encoder_sums, "kind": TOWERS.name, "children": encoder_entries}
        )
        node_data |= {
            figure_key: node_data[figure_key] + encoder_sum for figure_key, encoder_sum in encoder_sums.items()
        }
    return node_data


def _rank_notes(selected_rank: SelectedRank | None) -> list[str]:
    """Returns notes on the tokens and the experts for which the counted rank's FLOPs are counted."""
    if selected_rank is None:
        return []
    layout = selected_rank.layout
    return [
        *(["--batch: sequences of each replica"] if layout.dp > 1 else []),
        *([f"1/{layout.cp} of the tokens of each sequence; every rank computes as much"] if layout.cp > 1 else []),
        *(["experts: every rank as many rows, as if all were chosen alike"] if layout.ep > 1 else []),
    ]


def _component_table(
    preset: Preset, flop_count: FlopCount, notes: Sequence[str], selected_rank: SelectedRank | None
) -> Table:
    total_flops, token_count, workload = flop_count.total, flop_count.tokens, flop_count.workload
    flops_scale = units.decimal_scale(total_flops, "FLOPs")
    token_scale = units.decimal_scale(total_flops / token_count, "FLOPs")
    table_columns = (
        Column("component", "component", justify="left"),
        Column("flops_per_token", f"{token_scale.name} per token", token_scale.write),
        Column("flops", flops_scale.name, flops_scale.write),
        Column("share", "share", units.percent),
        Column("bar", "", bars.share_bar, justify="left", is_bar=True),
    )

    def component_row(component_name: str, flops: int, depth: int = 0, is_bold: bool = False) -> Row:
        text_bar = None
        if not (depth or is_bold):
            text_bar = TextBar(flops / total_flops, palette.COMPONENT_COLOURS.get(component_name, palette.OTHER_COLOUR))
        return row(
            component_name,
            flops / token_count,
            flops,
            flops / total_flops,
            text_bar,
            depth=depth,
            is_bold=is_bold,
            is_sum=is_bold,
        )

    table_rows: list[Row] = []
    score_flops, index_flops = (
        cost_by_kind(flop_count.tree, count_cost, flop_count.run_config, flop_count.include)
        for count_cost in (score_flops_of, index_score_flops_of)
    )
    for component, flops in flop_count.by_component.items():
        table_rows.append(component_row(component, flops))
        if component in score_flops:
            selection_flops = index_flops.get(component, 0)
            table_rows += [
                component_row("projections", flops - score_flops[component] - selection_flops, 1),
                component_row("scores", score_flops[component], 1),
                *([component_row("scores of the indexer", selection_flops, 1)] if selection_flops else []),
            ]
    table_rows.append(component_row(f"total, {flop_count.pairs} pairs", total_flops, is_bold=True))
    if workload.phase == "training":
        phase_texts = {
            "forward": flop_count.forward,
            "backward": flop_count.backward,
            "recomputation": flop_count.recomputed,
        }
        table_rows += [
            component_row(phase_text, flops, 1)._replace(is_sum=True)
            for phase_text, flops in phase_texts.items()
            if flops
        ]
    other_convention = OTHER_PAIRS[flop_count.pairs]
    table_rows.append(
        component_row(
            f"total, {other_convention} pairs",
            flop_count.full if other_convention == "full" else flop_count.causal,
            is_bold=True,
        )
    )
    pass_text = subtitle_with_rank(headline(flop_count), selected_rank)
    answer_text = units.flops(total_flops)
    return Table(preset.display, table_columns, table_rows, pass_text, notes, answer_text, name="components")


def headline(flop_count: FlopCount) -> str:
    """Returns a headline: `forward pass of 2,048 tokens, full pairs`, `decoding 1 token after 2,048, full pairs`."""
    workload = flop_count.workload
    mla_text = "" if flop_count.mla is None else f", MLA {flop_count.mla}"
    return (
        f"{PASS_TEXTS[workload.phase]} {workload_text(flop_count.spec, workload)}, {flop_count.pairs} pairs{mla_text}"
    )


def _count_notes(flop_count: FlopCount) -> list[str]:
    workload = flop_count.workload
    experts_note = identity_experts_note(flop_count.tree)
    uncounted_text = "".join(
        f"; also not counted, as it is element by element: {operation_name}"
        for operation_name in _uncounted_operations(flop_count.spec)
    )
    notes = [PRODUCTS_NOTE + uncounted_text, *_mla_notes(flop_count), f"{FULL_PAIRS_NOTE}; {CAUSAL_PAIRS_NOTE}"]
    notes += [experts_note] if experts_note else []
    if workload.phase == "decode":
        notes.append(
            f"decode: one new token of each sequence after {workload.context:,} in its cache (--context, or --seq "
            "where that alone is given)"
        )
        notes += _decoding_notes(flop_count)
    elif workload.phase == "prefill":
        context_tokens = workload.context
        context_text = (
            f"after {counted_noun(context_tokens, 'token')} of each sequence in its cache; " if context_tokens else ""
        )
        notes.append(f"prefill: {context_text}logits at the last position only")
    elif "lm_head" in flop_count.by_component:
        notes.append("logits at every position")
    if workload.phase == "training":
        notes += _training_notes(flop_count)
    if flop_count.spec.kind == "encoder-decoder":
        notes.append("per token: all FLOPs, the encoder's included, divided by the decoder's tokens")
    if flop_count.spec.mtp is not None and MTP.name not in flop_count.include:
        notes.append(f"not counted: {MTP.title}; {MTP.option} includes them")
    counted_encoders = set() if flop_count.inputs is None or not flop_count.encoders else flop_count.inputs.names
    uncounted_towers = [tower_name for tower_name in flop_count.spec.towers if tower_name not in counted_encoders]
    if uncounted_towers and not counted_encoders:
        notes.append(
            f"not counted: {', '.join(uncounted_towers)}; of vision and audio encoders only the parameters are "
            f"counted (llmcalc params {TOWERS.option}), and their FLOPs with --image or --audio"
        )
    return notes


def _mla_notes(flop_count: FlopCount) -> list[str]:
    """Returns notes on the executed form of latent attention, and on the option for the other form."""
    if flop_count.mla is None:
        return []
    expands_cache = flop_count.mla == "expanded" and flop_count.workload.context
    cache_text = ", those of earlier tokens too, since only latents are cached" if expands_cache else ""
    other_form = "absorbed" if flop_count.mla == "expanded" else "expanded"
    return [f"{MLA_NOTES[flop_count.mla]}{cache_text} (--mla {other_form}: the other form)"]


def _decoding_notes(flop_count: FlopCount) -> list[str]:
    """Returns notes about operations that decoding runs differently from a pass over all tokens."""
    ops = [node_position.node.op for node_position in flop_count.tree.walk()]
    has_convolution_state = any(isinstance(op, State) and op.cache_kind == "conv_state" for op in ops)
    selects_keys = any(op.selects_keys for op in ops if isinstance(op, AttentionCore))
    return [
        *([ONE_OUTPUT_NOTE] if has_convolution_state else []),
        *([ONE_STEP_NOTE] if _uncounted_operations(flop_count.spec) else []),
        *([CHOSEN_KEYS_NOTE] if selects_keys else []),
    ]


def _uncounted_operations(spec: ModelSpec) -> list[str]:
    """Returns the names of recurrent operations without matrix products, whose FLOPs are therefore not counted."""
    layers_with_widths = [
        (layer, stack.hidden_size or spec.hidden_size)
        for _, stack in spec.stacks()
        for _, layer, *_ in stack.layer_groups()
    ]
    mixers = [mixer for layer, hidden_size in layers_with_widths for _, mixer, _ in layer.mixers(hidden_size)]
    return list(
        dict.fromkeys(
            mixer.uncounted_operations
            for mixer in mixers
            if isinstance(mixer, TokenMixer) and mixer.uncounted_operations
        )
    )


def _training_notes(flop_count: FlopCount) -> list[str]:
    attention_text = "2.5 × forward (flash attention computes the scores once more)"
    if flop_count.run_config.attention not in ("flash", "sdpa"):
        attention_text = "2 × forward (eager)"
    notes = [f"backward: 2 × forward for products with weights; attention scores {attention_text}"]
    if flop_count.recomputed:
        notes.append(_recompute_note(flop_count.run_config.execution.recompute))
        saved_flops = flop_count.skipped_by_early_stop
        if flop_count.run_config.execution.recompute.saved_operations:
            return notes
        if saved_flops:
            savings_note = (
                f"runs {units.flops(saved_flops)} less ({units.exact_text(saved_flops)}): it stops early, before the "
                "last product of what ends in one"
            )
        else:
            savings_note = "runs as much: it stops early, but nothing here ends in a plain product"
        notes.append(f"torch's non-reentrant checkpointing {savings_note}")
        if MTP.name in flop_count.include and flop_count.spec.mtp is not None:
            notes.append(f"{MTP.title} are not recomputed")
    return notes


def _execution_data(execution: Execution) -> dict[str, Any]:
    """Returns the JSON entry of the execution choices, in which saved operations are called `kept`."""
    execution_entry = asdict(execution)
    del execution_entry["recompute"]["modules"]  # of Megatron-Core, whose FLOPs are not counted
    execution_entry["recompute"] = {
        "kept" if entry_name == "saved_operations" else entry_name: entry_value
        for entry_name, entry_value in execution_entry["recompute"].items()
    }
    return execution_entry


def _recompute_note(recompute: Recompute) -> str:
    """Returns a note with the names of the modules that are recomputed in the backward pass."""
    if recompute.core:
        return "recomputation: the attention scores and their products with values, once more"
    if recompute.nodes:
        return f"recomputation: {', '.join(sorted(recompute.nodes))} of every layer once more"
    if recompute.saved_operations:
        return "recomputation: convolutions once more; matrix products and attention are kept"
    recomputed_text = (
        "every layer's forward"
        if recompute.every == 1
        else f"the forward of {'all layers but ' * recompute.spares}layers 0, {recompute.every}, "
        f"{2 * recompute.every}, …"
    )
    return f"recomputation: {recomputed_text} once more, as torch's reentrant checkpointing runs it"


def _node_counts_function(included_parts: frozenset[str]) -> NodeCountsFunction:
    """Returns a function that computes a node's FLOPs for the JSON tree; recomputed FLOPs are not counted."""
    return lambda node_position: node_cost_data("flops", node_position, step_flops_of, included_parts)


@frozen(repr=False)
class Flops(CountedAnswer, FlopCount):
    """The FLOPs of one pass of a model, as an answer of the Python API.

    preset, share, draft: as in `CountedAnswer`.
    rules: rules of thumb to compare with; default none.
    utilization: MFU and HFU of a measured run; None (default) without one.
    """

    rules: Sequence[FlopRule] = ()
    utilization: Utilization | None = None

    def report(self) -> Report:
        flops_report = report(self.preset, self, self.rules, self.share, self.utilization)
        return with_encoder_tokens(with_draft(flops_report, self.draft), self.inputs)
