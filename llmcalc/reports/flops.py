"""`llmcalc flops`: where the FLOPs of one pass are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import units
from ..components.base import TokenMixer
from ..costs.flops import FlopCount, scores_of, step_of
from ..flow.tree import Node, by_kind
from ..model import ModelSpec
from ..ops import AttentionCore, State
from ..optional import MTP, TOWERS, WITHOUT_FLOPS
from ..sources.preset import Preset
from ..studies.rules import Rule
from ..workload.recompute import Recompute
from . import bars, conventions, palette
from .answer import OF_A_MODEL, Answer
from .bars import Bar
from .document import Column, Report, Row, Table, said
from .nodes import Figures, figures_of, tree_data
from .notes import (
    CAUSAL_PAIRS,
    CHOSEN_KEYS,
    FULL_PAIRS,
    MLA,
    ONE_OUTPUT,
    ONE_STEP,
    PRODUCTS,
    identity_experts,
    plural,
    tokens_of,
    too_long,
    warned,
)
from .share import share_data, share_notes, with_rank
from .summary import model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import RankShare

PASSES = {"forward": "forward pass of", "training": "training step of", "prefill": "prefill of", "decode": "decoding"}
OTHER = {"full": "causal", "causal": "full"}


def report(preset: Preset, count: FlopCount, rules: Sequence[Rule] = (), share: RankShare | None = None) -> Report:
    """The answer as data and as a table; where rules of thumb were asked for, their table comes first.

    share: of which rank it is; by default of the whole model.
    """
    warnings = too_long(count.spec, count.workload)
    notes = warnings + said(share_notes(share, *_rank_notes(share))) + _notes(count)
    data: dict[str, Any] = {
        "model": model_data(preset),
        **share_data(share),
        "workload": {
            **asdict(count.workload),
            **asdict(count.run_config.counting),
            **asdict(count.run_config.execution),
        },
        "flops": {
            "total": count.total,
            "full": count.full,
            "causal": count.causal,
            "by_component": count.by_component,
            "per_token": count.per_token,
            "tokens": count.tokens,
            "mla": count.mla,
            "forward": count.forward,
            "backward": count.backward,
            "recomputation": count.recomputed,
            "recomputation_non_reentrant": count.recomputed - count.skipped_by_early_stop,
            "attention_scores": count.scores,
        },
        "notes": notes,
        "tree": tree_data(_without_towers(count.tree).place(count.run_config), _figures(count.include)),
    }
    tables = [_table(preset, count, notes, share)]
    if rules:
        data["flops"]["conventions"] = conventions.data(rules)
        tables.insert(0, conventions.table(preset.display, headline(count), count, rules))
    return Report(data, tables, warnings=warned(preset, warnings)).of(preset.target)


def _without_towers(tree: Node) -> Node:
    """The tree of what has FLOPs that are counted: a 0 would be taken for a count."""
    return replace(tree, children=tuple(child for child in tree.children if child.optional not in WITHOUT_FLOPS))


def _rank_notes(share: RankShare | None) -> list[str]:
    """What a rank computes, of which tokens."""
    if share is None:
        return []
    layout = share.layout
    return [
        *(["--batch: sequences of each replica"] if layout.dp > 1 else []),
        *([f"1/{layout.cp} of the tokens of each sequence; every rank computes as much"] if layout.cp > 1 else []),
        *(["experts: every rank as many rows, as if all were chosen alike"] if layout.ep > 1 else []),
    ]


def _table(preset: Preset, count: FlopCount, notes: Sequence[str], share: RankShare | None) -> Table:
    total, tokens, w = count.total, count.tokens, count.workload
    whole, each = units.decimal_scale(total, "FLOPs"), units.decimal_scale(total / tokens, "FLOPs")
    columns = (
        Column("component", "component", justify="left"),
        Column("flops_per_token", f"{each.name} per token", each.write),
        Column("flops", whole.name, whole.write),
        Column("share", "share", units.percent),
        Column("bar", "", bars.share, justify="left", bar=True),
    )

    def row(name: str, value: int, depth: int = 0, strong: bool = False) -> Row:
        bar = None if depth or strong else Bar(value / total, palette.COMPONENTS.get(name, palette.OTHER))
        return Row([name, value / tokens, value, value / total, bar], depth, strong)

    rows: list[Row] = []
    scores = by_kind(count.tree, scores_of, count.run_config, count.include)
    for component, value in count.by_component.items():
        rows.append(row(component, value))
        if component in scores:
            rows += [row("projections", value - scores[component], 1), row("scores", scores[component], 1)]
    rows.append(row(f"total, {count.pairs} pairs", total, strong=True))
    if w.phase == "training":
        rows += [row("forward", count.forward, 1), row("backward", count.backward, 1)]
        if count.recomputed:
            rows.append(row("recomputation", count.recomputed, 1))
    other = OTHER[count.pairs]
    rows.append(row(f"total, {other} pairs", count.full if other == "full" else count.causal, strong=True))
    aside = with_rank(headline(count), share)
    return Table(preset.display, columns, rows, aside, notes, units.flops(total), name="components")


def headline(count: FlopCount) -> str:
    """`forward pass of 2,048 tokens, full pairs`, `decoding 1 token after 2,048, full pairs, MLA absorbed`."""
    w = count.workload
    form = "" if count.mla is None else f", MLA {count.mla}"
    return f"{PASSES[w.phase]} {tokens_of(count.spec, w)}, {count.pairs} pairs{form}"


def _notes(count: FlopCount) -> list[str]:
    w = count.workload
    experts = identity_experts(count.tree)
    uncounted = "".join(f"; also not counted, as it is element by element: {part}" for part in _uncounted(count.spec))
    notes = [PRODUCTS + uncounted, *_latent_notes(count), f"{FULL_PAIRS}; {CAUSAL_PAIRS}"]
    notes += [experts] if experts else []
    if w.phase == "decode":
        notes.append(
            f"decode: one new token of each sequence after {w.context:,} in its cache (--context, or --seq where "
            "that alone is given)"
        )
        notes += _decoding_notes(count)
    elif w.phase == "prefill":
        before = f"after {plural(w.context, 'token')} of each sequence in its cache; " if w.context else ""
        notes.append(f"prefill: {before}logits at the last position only")
    elif "lm_head" in count.by_component:
        notes.append("logits at every position")
    if w.phase == "training":
        notes += _training_notes(count)
    if count.spec.kind == "encoder-decoder":
        notes.append("per token: all FLOPs, the encoder's included, divided by the decoder's tokens")
    if count.spec.mtp is not None and MTP.name not in count.include:
        notes.append(f"not counted: {MTP.title}; {MTP.option} includes them")
    if count.spec.towers:
        notes.append(
            f"not counted: {', '.join(count.spec.towers)}; of vision and audio encoders only the parameters are "
            f"counted (llmcalc params {TOWERS.option})"
        )
    return notes


def _latent_notes(count: FlopCount) -> list[str]:
    """The form in which latent attention runs, what that means for tokens in the cache, and which option changes it."""
    if count.mla is None:
        return []
    cached = count.mla == "expanded" and count.workload.context
    again = ", those of earlier tokens too, since only latents are cached" if cached else ""
    other = "absorbed" if count.mla == "expanded" else "expanded"
    return [f"{MLA[count.mla]}{again} (--mla {other}: the other form)"]


def _decoding_notes(count: FlopCount) -> list[str]:
    """Where decoding runs something else than a pass over all tokens does for each of them."""
    ops = [place.node.op for place in count.tree.walk()]
    convolves = any(isinstance(op, State) and op.kind == "conv_state" for op in ops)
    chooses = any(op.chooses for op in ops if isinstance(op, AttentionCore))
    return [
        *([ONE_OUTPUT] if convolves else []),
        *([ONE_STEP] if _uncounted(count.spec) else []),
        *([CHOSEN_KEYS] if chooses else []),
    ]


def _uncounted(spec: ModelSpec) -> list[str]:
    """What the recurrences of a model compute that is no matrix product."""
    layers = [
        (layer, stack.hidden_size or spec.hidden_size) for _, stack in spec.stacks() for _, layer, *_ in stack.groups()
    ]
    mixers = [mixer for layer, width in layers for _, mixer, _ in layer.mixers(width)]
    return list(dict.fromkeys(m.uncounted for m in mixers if isinstance(m, TokenMixer) and m.uncounted))


def _training_notes(count: FlopCount) -> list[str]:
    attention = (
        "2 × forward (eager)"
        if count.run_config.attention != "flash"
        else "2.5 × forward (flash attention computes the scores once more)"
    )
    notes = [f"backward: 2 × forward for products with weights; attention scores {attention}"]
    if count.recomputed:
        notes.append(_again(count.run_config.execution.recompute))
        saved = count.skipped_by_early_stop
        if count.run_config.execution.recompute.kept:
            return notes
        if saved:
            less = (
                f"runs {units.flops(saved)} less ({units.exact(saved)}): it stops early, before the last "
                "product of what ends in one"
            )
        else:
            less = "runs as much: it stops early, but nothing here ends in a plain product"
        notes.append(f"torch's non-reentrant checkpointing {less}")
        if MTP.name in count.include and count.spec.mtp is not None:
            notes.append(f"{MTP.title} are not recomputed")
    return notes


def _again(how: Recompute) -> str:
    """What runs a second time."""
    if how.core:
        return "recomputation: the attention scores and their products with values, once more"
    if how.nodes:
        return f"recomputation: {', '.join(sorted(how.nodes))} of every layer once more"
    if how.kept:
        return "recomputation: convolutions once more; matrix products and attention are kept"
    which = "every layer's forward" if how.every == 1 else f"the forward of layers 0, {how.every}, {2 * how.every}, …"
    return f"recomputation: {which} once more, as torch's reentrant checkpointing runs it"


def _figures(include: frozenset[str]) -> Figures:
    """Of a node in the JSON tree: FLOPs of the workload under its pairs, recomputation not included."""
    return lambda place: figures_of("flops", place, step_of, include)


@dataclass(frozen=True, repr=False)
class Flops(Answer, FlopCount):
    """FLOPs of one pass of a model.

    preset: the model as it was asked for. share: of which rank; None for the whole model.
    rules: rules of thumb to compare with.
    """

    preset: Preset = OF_A_MODEL
    share: RankShare | None = field(default=None, repr=False, compare=False)
    rules: Sequence[Rule] = ()

    def report(self) -> Report:
        return report(self.preset, self, self.rules, self.share)
