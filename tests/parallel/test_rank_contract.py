"""Contract: a rank's program of any part and any preset is refused clearly, or computes exactly the rank's share.

Each parameter is whole on every rank, or its parts add up to the model's; FLOPs and caches of divided steps add up too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from llmcalc.components.choices import LAYERS, load_all_components
from llmcalc.components.distance_bias import RelativeBias
from llmcalc.components.mixers.context_attention import ContextAttention
from llmcalc.components.mixers.latent_context import LatentContextAttention
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.costs.params import params, total_params_of
from llmcalc.errors import InputError
from llmcalc.flow.program import UNEXECUTED_ROLES, AlternativeBranches, ModuleScope, ProgramItem, Step
from llmcalc.model import ModelSpec
from llmcalc.optional import ALL_PART_NAMES
from llmcalc.parallel.layout import ONE_DEVICE, Layout, stages
from llmcalc.parallel.placements import PlacementTracker
from llmcalc.parallel.rank_model import rank_model
from llmcalc.parallel.rank_program import AxisShard, RankFlow, axes_with_concatenated_parts, is_divided, rank_program
from llmcalc.parallel.weight_shards import weight_shards
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.contracts.test_parts import around_a_model, decoder
from tests.samples import in_one_test

SIGHT = RunConfig(Workload(batch=2, seq=24, phase="training"))

EXAMPLES = {
    f"{part.__name__}-{i}": example
    for part in (*load_all_components(), *LAYERS.load_component_classes(), Stack)
    for i, example in enumerate(part.examples())
    if part not in (ContextAttention, LatentContextAttention)
    and not (isinstance(example, Stack) and example.block.type == "grouped_conv")
    # of drafts, which are counted whole beside a target
}

WITH_WEIGHTS = ("linear", "absorb", "experts", "blocks", "per_group", "conv", "table", "vector")
"""Verbs with a weight that is divided where what it reads or makes is."""


class Placed(NamedTuple):
    """A step and where it stands. runs: whether any pass runs it."""

    path: str
    step: Step
    runs: bool


def placed(items: Sequence[ProgramItem], path: str = "", runs: bool = True) -> Iterator[Placed]:
    """Every step of every branch, but those that repeat heads: a rank may have as many of both."""
    for item in items:
        if isinstance(item, AlternativeBranches):
            for name, branch in item.branches.items():
                yield from placed(branch.items, f"{path}<{name}>", runs)
            continue
        does = runs and item.node_fields.get("role") not in UNEXECUTED_ROLES
        if isinstance(item, ModuleScope):
            yield from placed(item.items, f"{path}.{item.name}", does)
        elif item.verb != "repeat":
            yield Placed(f"{path}.{item.name or item.verb}", item, does)


def check(spec: ModelSpec, layout: Layout) -> None:
    """Holds every rank's program to the model's. Raises `InputError` where a rank has none."""
    first, last = (rank_program(spec, layout, rank) for rank in (0, layout.tp - 1))
    ranks = [*[list(placed(first.root.items))] * (layout.tp - 1), list(placed(last.root.items))]  # vocabularies differ
    copies = any(_has_copies(value.axes) for one in ranks[0] for value in one.step.output_values)
    for whole, *parts_of in zip(placed(spec.program().root.items), *ranks, strict=True):
        assert {part.path for part in parts_of} == {whole.path}
        _check_step(whole, [part.step for part in parts_of], copies)
    for sequence_parallel in (False, True):
        PlacementTracker(replace(layout, sequence_parallel=sequence_parallel), SIGHT).run_program(first)


def _check_step(whole: Placed, ranks: list[Step], copied: bool) -> None:
    """copied: whether any step has copies of key and value heads, which a state without inputs may keep too."""
    first, op = ranks[0], whole.step.op
    shapes = [value.axes for value in (*first.input_values, *first.output_values)]
    divided = any(map(is_divided, shapes))
    for value, *own in zip(whole.step.output_values, *(step.output_values for step in ranks), strict=True):
        adds_up = sum(one.width for one in own) == value.width
        assert is_divided(own[0].axes) or own[0].width == value.width, whole.path
        assert not is_divided(own[0].axes) or adds_up or _has_copies(own[0].axes), whole.path
    if whole.step.verb in ("add", "sub", "mul", "div"):
        alike = whole.step.input_values[0].width == whole.step.input_values[1].width
        assert not alike or first.input_values[0].width == first.input_values[1].width, whole.path
    if op is None:
        return
    ops: list[Any] = [step.op for step in ranks]
    copies = any(map(_has_copies, shapes))
    if "params" in op.effects:
        for tensor, *parts_of in zip(op.tensors(), *(one.tensors() for one in ops), strict=True):
            _check_tensor(whole.path, tensor.shape, [part.shape for part in parts_of], copies)
        if divided and first.verb in WITH_WEIGHTS and not copies and not getattr(op, "is_tied", False):
            assert sum(one.tensors()[0].size for one in ops) == op.tensors()[0].size, whole.path
    if "forward_flops" in op.effects and whole.runs:
        for count in ("forward_flops", "backward_flops"):
            of_ranks, of_model = [getattr(one, count)(SIGHT) for one in ops], getattr(op, count)(SIGHT)
            if not divided:
                assert set(of_ranks) == {of_model}, (whole.path, count)
            elif not copies:
                assert sum(of_ranks) == of_model, (whole.path, count)
    if "cache_bits" in op.effects:
        kept, of_model = [one.cache_bits(SIGHT, 16) for one in ops], op.cache_bits(SIGHT, 16)
        assert (
            copies
            or (copied and op.effects == {"cache_bits"})
            or sum(kept) == of_model
            or (not divided and set(kept) == {of_model})
        ), whole.path


def _has_copies(shape: Any) -> bool:
    """Whether several ranks have the same key and value heads, because there are fewer of them than ranks."""
    return any(
        isinstance(axis, AxisShard) and axis.size * axis.rank_count > axis.full_size
        for axis in axes_with_concatenated_parts(shape)
    )


def _check_tensor(path: str, whole: tuple[int, ...], ranks: list[tuple[int, ...]], copies: bool) -> None:
    """One parameter: whole on all ranks, or divided along one of its sides."""
    differ = [i for i, n in enumerate(whole) if {shape[i] for shape in ranks} != {n}]
    assert len(differ) <= 1, path
    for side in differ:
        assert copies or sum(shape[side] for shape in ranks) == whole[side], path


REFUSED = {
    *(f"DifferentialAttention-{i}" for i in range(4)),  # halves of the value heads are on different ranks
    "MixtureOfAttention-0", "MixtureOfAttention-1",  # a token's heads are those of its experts
    "DynamicMaskAttention-0", "DynamicMaskAttention-1", "DynamicMaskAttention-2",  # the values of all heads are summed
    "Mamba-4",  # channels as rows of heads
    "SelectiveMamba2-0", "SelectiveMamba2-1",  # B, C and Δ of all heads come from one projection
    "SpanConvolution-0",  # each head's filter comes from its part of a product
}  # fmt: skip
"""Examples that have a reason of their own not to be divided, besides sizes."""


@in_one_test
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rank_of_a_part_computes_its_share(name: str, tp: int) -> None:
    try:
        check(around_a_model(EXAMPLES[name]), Layout(tp=tp))
    except InputError as error:
        text = str(error)
        assert text.startswith((f"--tp {tp}: ", "--sequence-parallel: ")), text
        assert "; expected " in text
        assert "does not divide" in text or "--sequence-parallel" in text or name in REFUSED, text
    else:
        assert name not in REFUSED


@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_of_a_preset_computes_its_share(tp: int) -> None:
    """Models of all sizes that people published."""
    refused: dict[str, str] = {}
    for name in model_names():
        try:
            check(load_preset(name).model, Layout(tp=tp))
        except InputError as error:
            refused[name] = str(error)
    assert {name: text for name, text in refused.items() if "; expected " not in text} == {}
    assert len(refused) < len(model_names()) / 4


@pytest.mark.parametrize("ep", [2, 4])
def test_experts_of_all_ranks_are_those_of_the_model(ep: int) -> None:
    """Parameters of experts are divided by their number; all else is whole on each rank."""
    layout, seen, refused = Layout(dp=ep, ep=ep), 0, list[str]()
    for name, example in EXAMPLES.items():
        spec = around_a_model(example)
        try:
            ranks = [weight_shards(rank_program(spec, layout, rank), ALL_PART_NAMES) for rank in range(ep)]
        except InputError as error:
            refused.append(str(error))
            continue
        model = weight_shards(rank_program(spec, ONE_DEVICE), ALL_PART_NAMES)
        for whole, *parts_of in zip(model, *ranks, strict=True):
            number = ep if parts_of[0].is_expert else 1
            assert [one.element_count * number for one in parts_of] == [whole.element_count] * ep, name
            seen += parts_of[0].is_expert
    assert seen > 40
    reasons = f"--ep {ep}: does not divide num_experts ", f"--ep {ep}: the model has no routed experts"
    assert [text for text in refused if not text.startswith(reasons)] == []


def halves(spec: ModelSpec) -> list[RankFlow]:
    """The programs of two stages of a pipeline."""
    layers = spec.main.num_hidden_layers
    layout = Layout(pp=2, pp_layout=(layers // 2, layers - layers // 2))
    return [rank_program(spec, layout, rank, stage) for rank, stage in enumerate(stages(layout, layers))]


NOT_MODELLED = r"--pp 2: .* not modelled; expected --pp 1"


def test_stages_of_a_pipeline_have_the_model_once() -> None:
    """The parameters of all stages are the model's, and those of the tables that a second stage has a copy of."""
    models = {name: around_a_model(example) for name, example in EXAMPLES.items()}
    models |= {name: load_preset(name).model for name in model_names()}
    refused: list[str] = []
    for name, spec in models.items():
        try:
            programs = halves(spec)
        except InputError as error:
            refused.append(str(error))
            continue
        tied = spec.tie_word_embeddings and spec.head.type == "lm"
        for include in (frozenset[str](), ALL_PART_NAMES):
            reads_embedding = spec.mtp is not None and not spec.mtp.own_embedding
            copied = tied or (reads_embedding and "mtp" in include)
            more = spec.vocab_size * (spec.embedding_size or spec.hidden_size) if copied else 0
            stage_totals = [program.node().total(total_params_of, include=include) for program in programs]
            assert sum(stage_totals) == spec.tree().total(total_params_of, include=include) + more, name
    assert len(refused) < len(models) / 6
    assert [text for text in refused if not re.match(NOT_MODELLED, text)] == []


def test_multi_token_prediction_is_on_the_last_stage() -> None:
    """As in Megatron-LM, with a copy of the embedding, which its modules look up (multi_token_prediction.py)."""
    first, last = halves(load_preset("deepseek-v3").model)
    names = [
        [item.name for item in program.root.items if not isinstance(item, AlternativeBranches)]
        for program in (first, last)
    ]
    assert "mtp" not in names[0]
    assert {"lm_head", "mtp", "embed_tokens"} <= {*names[1]}
    tables = [one for one in weight_shards(last, ALL_PART_NAMES) if one.path == (("embed_tokens", None),)]
    assert [one.tensor.shape for one in tables] == [(129280, 7168)]
    assert not [one for one in weight_shards(last) if one.path == (("embed_tokens", None),)]


def test_a_stage_without_layers_has_the_embedding_or_the_loss() -> None:
    """Standalone stages: the first of three has the table, the last the norm and the head."""
    layout, spec = Layout(pp=3, pp_layout=(0, 2, 0)), decoder(final_norm=Norm(type="rmsnorm"))
    sizes = [rank_program(spec, layout, 0, stage).node().total(total_params_of) for stage in stages(layout, 2)]
    assert [sizes[0], sizes[2]] == [50 * 24, 24 + 50 * 24]
    assert sum(sizes) == spec.tree().total(total_params_of)


def test_a_stage_is_refused_where_its_layers_need_another() -> None:
    shared = next(stack for stack in Stack.examples() if stack.shared_layers)
    for spec, why in (
        (around_a_model(shared), "layers that share parameters"),
        (decoder(relative_bias=RelativeBias(num_attention_heads=4)), "reads what only the first stage computes"),
        (load_preset("t5-small").model, "a pipeline of an encoder-decoder"),
    ):
        with pytest.raises(InputError, match=rf"--pp 2: .*{why}.*; expected --pp 1"):
            rank_program(spec, Layout(pp=2), 1, [*stages(Layout(pp=2, pp_layout=(1, 1)), 2)][1])


@pytest.mark.parametrize(("name", "is_whole"), [("internvl3-38b", True), ("internvl3-8b", False)])
def test_an_encoder_whose_heads_ranks_do_not_divide_is_whole_on_each(name: str, is_whole: bool) -> None:
    """The encoder of InternVL3 38B has 25 heads, that of the 8B 16; the text models have 40 and 28."""
    spec, encoders = load_preset(name).model, frozenset({"towers"})
    rank = rank_model(spec, Layout(tp=4), 0)
    of_rank, of_model = (params(m, encoders).total - params(m).total for m in (rank, spec))
    assert (of_rank == of_model) == is_whole
    assert params(rank).total < 0.3 * params(spec).total
