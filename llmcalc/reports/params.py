"""`llmcalc params`: where the parameters are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import units
from ..costs.params import ParameterCount, active_of, total_of
from ..flow.tree import Node, Place
from ..optional import OPTIONAL_PARTS
from ..sources.preset import Preset
from ..sources.presets import model_names
from . import bars, palette
from .answer import OF_A_MODEL, Answer
from .bars import Bar
from .document import Column, Report, Row, Table, said
from .nodes import Figures, figures_of, tree_data
from .notes import against, identity_experts
from .share import copies_text, share_data, share_notes, with_rank
from .summary import headline, model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import RankShare

CONVENTION = "trainable parameters: tied weights are counted once, buffers are not counted"

COLUMNS = (
    Column("component", "component", justify="left"),
    Column("parameters_each", "each", units.exact),
    Column("repeat", "×", str),
    Column("parameters", "parameters", units.exact),
    Column("share", "share", units.percent),
    Column("bar", "", bars.share, justify="left", bar=True),
)


def report(preset: Preset, count: ParameterCount, share: RankShare | None = None) -> Report:
    """The answer as data and as a table. share: of which rank it is; by default of the whole model."""
    total = count.total
    data = {
        "model": model_data(preset),
        **share_data(share),
        "params": {
            "total": total,
            "active": count.active,
            "embedding": count.embedding,
            "non_embedding": count.non_embedding,
            "by_component": count.by_component,
            "buffers": count.buffers,
            "left_out": count.left_out,
            "published": preset.published.parameters,
        },
        "tree": tree_data(count.tree.place(), _figures(count.include)),
    }
    if count.active_at_least != count.active:
        data["params"] |= {"active_at_least": count.active_at_least, "active_evenly": count.active_evenly}
    if share is not None:
        data["params"]["copied"] = share.model.copied(count.include)
    rows = _rows(count.tree, total, count.include)
    rows.append(Row(["total", None, None, total, 1.0, None], strong=True))
    if count.active != total:
        rows.append(Row(["active per token", None, None, count.active, count.active / total, None], strong=True))
    aside, notes = with_rank(headline(preset.model), share), _notes(preset, count, share)
    table = Table(preset.display, COLUMNS, rows, aside, notes, answer(count))
    return Report(data, [table]).of(preset.target)


def answer(count: ParameterCount) -> str:
    """`8.03 B parameters`, `671.03 B parameters, 37.55 B active a token`."""
    active = "" if count.active == count.total else f", {units.count(count.active)} active per token"
    return f"{units.count(count.total)} parameters{active}"


Part: TypeAlias = tuple[str, Row]
"""(component, row without its bar)"""


def _rows(tree: Node, total: int, include: frozenset[str]) -> list[Row]:
    """One row for each part of the model; below a group of layers one row for each of its sublayers, norms together."""
    parts: list[Part] = []
    for place in tree.place().children():
        if not place.optional or place.optional in include:
            _add(parts, place, total, include, 0)
    return _with_bars(parts)


def _add(parts: list[Part], place: Place, total: int, include: frozenset[str], depth: int) -> None:
    node, each = place.node, place.each(total_of, include)
    if not each:
        return
    name = f"{node.name} ({node.label})" if node.label else node.name
    parts.append((place.kind, _row(name, each, place.times, total, depth)))
    below = list(place.children())
    if node.kind == "layer" or node.is_stack or node.optional:
        norms = [child for child in below if child.node.kind == "norm"]
        for child in below:
            if child.node.kind != "norm":
                _add(parts, child, total, include, depth + 1)
        if node.kind == "layer" and norms:
            together = sum(norm.total(total_of) for norm in norms)
            if together:
                parts.append(("norm", _row("norms", together, place.times, total, depth + 1)))
        else:
            for norm in norms:
                _add(parts, norm, total, include, depth + 1)
    elif node.kind == "experts":
        for child in below:
            _add(parts, child, total, include, depth + 1)


def _row(name: str, each: int, times: int, total: int, depth: int) -> Row:
    return Row([name, each, times if times > 1 else None, each * times, each * times / total], depth)


def _with_bars(parts: Sequence[Part]) -> list[Row]:
    """The rows, with a bar beside each that is of one component; the bars add up to the whole."""
    rows: list[Row] = []
    covered = -1  # the depth of the row above whose bar includes this one; -1 for none
    for i, (kind, row) in enumerate(parts):
        covered = -1 if row.depth <= covered else covered
        after = (j for j in range(i + 1, len(parts)) if parts[j][1].depth <= row.depth)
        below = parts[i + 1 : next(after, len(parts))]
        bar = None
        if covered < 0 and all(other == kind for other, _ in below):
            bar, covered = Bar(row.cells[-1], palette.COMPONENTS.get(kind, palette.OTHER)), row.depth
        rows.append(row._replace(cells=[*row.cells, bar]))
    return rows


def _notes(preset: Preset, count: ParameterCount, share: RankShare | None) -> list[str]:
    notes = _published(preset, count) if share is None else _of_rank(preset, count, share)
    for option, size in count.left_out.items():
        notes.append(
            f"not counted: {option}, {units.count(size)} ({units.exact(size)}); "
            f"{OPTIONAL_PARTS[option].option} includes it"
        )
    notes += [f"assumed: {text}" for text in preset.assumptions]
    thumb = "" if share is not None else rule_of_thumb(preset, count)
    notes += [CONVENTION, thumb, identity_experts(count.tree)]
    if count.active_at_least != count.active:
        evenly, least = units.count(count.active_evenly), units.count(count.active_at_least)
        notes.append(
            f"active per token with identity experts among its own: {evenly} on average if all experts are chosen "
            f"alike, {least} at least"
        )
    if count.buffers:
        notes.append(
            f"not counted: {units.exact(count.buffers)} non-trainable buffer elements stored in the checkpoint"
        )
    return said(notes)


def _of_rank(preset: Preset, count: ParameterCount, share: RankShare) -> list[str]:
    """Which rank it is, what it shares with others, and the whole model."""
    whole = preset.model.tree().total(total_of, include=count.include)
    spec, chunks = preset.model, share.model.chunks
    tied = spec.tie_word_embeddings and share.layout.pp > 1 and chunks.first != chunks.last
    return share_notes(
        share,
        f"the whole model has {units.exact(whole)} parameters",
        copies_text(share.model.copied(count.include)),
        "the first and the last stage each have the tied embedding" if tied else "",
        "active: what a token uses of this rank's experts on average, if all are chosen alike"
        if share.layout.ep > 1 and count.active != count.total
        else "",
    )


def _published(preset: Preset, count: ParameterCount) -> list[str]:
    """The count beside the publisher's figure;
    where they differ, why, or the first thing that a preset says of that.
    """
    published, note = preset.published, preset.published.parameters_note or ""
    first, more, _ = note.partition("; ")
    if more and preset.name in model_names():
        note = f"{first}; llmcalc presets {preset.name} says more"
    why = f" ({note})" if note else ""
    if published.parameters is not None:
        difference = count.total - published.parameters
        verdict = units.difference(difference) + (
            " (the published figure may exclude the optional modules you added)" if difference and count.include else ""
        )
        return [f"published {units.exact(published.parameters)}: {verdict}{why if difference else ''}"]
    if not published.nominal:
        return []
    active = f", {published.active} active" if published.active else ""
    return [f"published as {published.nominal}{active}; no exact count was published{why}"]


OF_DENSE_DECODERS = {"embedding", "position", "norm", "attention", "feed_forward", "lm_head"}
"""Components of models that the rule of thumb was made for."""


def rule_of_thumb(preset: Preset, count: ParameterCount) -> str:
    """12Lh² + 2Vh beside the exact count (Kaplan 2020, §2.1, for MHA and a 4h feed-forward): of dense decoders alone,
    whose layers are attention and a feed-forward network.
    """
    spec = preset.model
    if spec.kind != "decoder" or not count.by_component.keys() <= OF_DENSE_DECODERS:
        return ""
    layers, h = spec.main.num_hidden_layers, spec.hidden_size
    heads = 1 if spec.tie_word_embeddings else 2
    thumb = 12 * layers * h**2 + heads * spec.vocab_size * h
    name = "12Lh² + 2Vh" if heads == 2 else "12Lh² + Vh"
    return (
        f"rule of thumb {name}, for MHA and a non-gated FFN with d_ff = 4h: {units.count(thumb)}, "
        f"{against(thumb / count.total - 1, 'the exact count')}"
    )


def _figures(include: frozenset[str]) -> Figures:
    """Of a node in the JSON tree: its parameters, and those that a token uses where they are fewer."""

    def figures(place: Place) -> dict[str, Any]:
        data = figures_of("params", place, total_of, include)
        active = place.total(active_of, include)
        return data if active == data["params"] else data | {"active": active}

    return figures


@dataclass(frozen=True, repr=False)
class Params(Answer, ParameterCount):
    """Parameters of a model. preset: the model as it was asked for. share: of which rank; None for the whole model."""

    preset: Preset = OF_A_MODEL
    share: RankShare | None = field(default=None, repr=False, compare=False)

    def report(self) -> Report:
        return report(self.preset, self, self.share)
