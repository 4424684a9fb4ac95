"""Contract: for every family and every phase, the numbers of a tree add up at every level, in JSON and in `explain`.

A config of whisper-large-v3 showed the need: its encoder has 1,500 positions whatever the workload, and three functions
with their own traversal of the tree ignored that.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops, run_config_of
from llmcalc.costs.params import ParameterCount, params
from llmcalc.errors import InputError
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.reports import flops as flops_view
from llmcalc.reports import params as params_view
from llmcalc.sources.preset import Preset
from llmcalc.symbolic.explain import explain
from llmcalc.symbolic.formulas import FormulaSetting
from tests.builders import family_shapes, parts_of, spec_of, verbs_of
from tests.samples import in_one_test, sampled

SHAPES = dict(family_shapes())
FIRST = dict(family_shapes(first_of_each_file=True))
RUNS: tuple[dict[str, Any], ...] = (
    {"phase": "forward", "seq": 21},
    {"phase": "training", "seq": 21, "pairs": "causal"},
    {"phase": "prefill", "seq": 6, "context": 15},
    {"phase": "decode", "context": 20},
)


def wrong_sums(tree: dict[str, Any], quantity: str, include: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yields every node whose children do not add up to it, per instance or in total."""
    children = [c for c in tree.get("children", ()) if "optional" not in c or c["optional"] in include]
    if children and "op" not in tree:
        each = tree.get(f"{quantity}_each", tree[quantity])
        if sum(c[quantity] for c in children) != each:
            yield f"{tree['name']}: {sum(c[quantity] for c in children)} is not {each}"
        if sum(c[f"{quantity}_in_all"] for c in children) != tree[f"{quantity}_in_all"]:
            yield f"{tree['name']}: in all"
    for child in tree.get("children", ()):
        yield from wrong_sums(child, quantity, include)


def preset(name: str, spec: ModelSpec) -> Preset:
    return Preset(name=name, model=spec, published={})


def trees(spec: ModelSpec) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the trees that `params` and, in every phase, `flops` print as JSON."""
    document: Any = params_view.report(preset("model", spec), params(spec)).data
    yield "params", document["tree"]
    for run in RUNS:
        try:
            count = flops(spec, run_config_of(spec, **run))
        except InputError:  # encoders do not have all phases
            continue
        document = flops_view.report(preset("model", spec), count).data
        assert document["tree"]["flops"] == count.total
        yield "flops", document["tree"]


@in_one_test
@pytest.mark.parametrize(
    "name", lambda: sampled({name: name for name in SHAPES}, lambda name: parts_of(spec_of(SHAPES[name])))
)
def test_children_add_up_to_their_parent(name: str) -> None:
    for quantity, tree in trees(spec_of(SHAPES[name])):
        assert not list(wrong_sums(tree, quantity))


def test_a_tree_that_does_not_add_up_is_found() -> None:
    ((_, tree), *_) = trees(spec_of(next(iter(SHAPES.values()))))
    tree["children"][0]["params"] += 1
    assert list(wrong_sums(tree, "params"))


def _rows(spec: ModelSpec, asked: Any, **setting: Any) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Returns `explain`'s values for the model, and the sum of the rows directly below it."""
    explanation = explain(spec, quantity=asked, formula_setting=FormulaSetting(**setting))
    *sections, model = explanation.sections
    sums: dict[str, Fraction] = {}
    for section in sections:
        if section.depth == 0:
            values = {f.quantity: f.value for f in section.formulas}
            values.setdefault("active", values.get("params", Fraction(0)))  # shown only if it differs
            for quantity, value in values.items():
                sums[quantity] = sums.get(quantity, Fraction(0)) + value * section.formula_nodes[0].copies
    values = {f.quantity: f.value for f in model.formulas}
    return {"active": values["params"], **values}, sums


@in_one_test
@pytest.mark.parametrize("spec", lambda: sampled({name: spec_of(config) for name, config in FIRST.items()}, verbs_of))
def test_the_rows_of_explain_add_up_to_its_model_row(spec: ModelSpec) -> None:
    model, rows = _rows(spec, "all", seq=40)
    assert rows == {quantity: value for quantity, value in model.items() if quantity in rows or value}
    if not spec.one_pass_model_name:
        assert model.get("kv", 0) == kv(spec).bytes_per_token
    count: ParameterCount = params(spec)
    assert model["params"] == count.total
    assert model["flops"] == Fraction(flops(spec, run_config_of(spec, seq=40)).total, 40)


def whisper() -> ModelSpec:
    return spec_of(next(shape for shape in SHAPES.values() if shape["model_type"] == "whisper"))


def test_an_encoder_of_fixed_length_sees_all_its_positions_wherever_it_is_shown() -> None:
    """Whisper: `flops` in JSON, `explain`'s encoder and cross-attention, and the cache per token."""
    spec = whisper()
    assert spec.encoder is not None
    assert spec.encoder.stem is not None
    positions, width = spec.encoder.stem.max_source_positions, spec.hidden_size
    (_, _), (_, tree), *_ = trees(spec)
    encoder = next(c for c in tree["children"] if c["name"] == "encoder")
    mlp = [c for layer in encoder["children"] for c in layer.get("children", ()) if c["name"] == "mlp"]
    up = next(c for c in mlp[0]["children"] if c["name"] == "up_proj")
    feed_forward: Any = spec.encoder.block.feed_forward
    assert up["flops"] == 2 * positions * width * feed_forward.intermediate_size
    sections = explain(spec, "encoder", "flops", FormulaSetting(seq=10)).sections
    assert sections[0].formulas[0].value == Fraction(encoder["flops"], 10)


def test_a_node_is_counted_where_it_stands() -> None:
    """Roles and repeats of its ancestors apply to a node in the tree; a node requested alone is the root of its own
    tree.
    """
    from llmcalc.ops import Linear

    inner = Node("layers", children=(Node("map", Linear(2, 3)),), repeat=4, indices=range(4), role="shared")
    tree = Node("model", children=(inner,))
    (place,) = [p for p in tree.walk() if p.node.name == "map"]
    assert place.cost_in_model(lambda use: use.params()) == 0
    assert place.node.total(lambda use: use.params()) == 6
    assert place.copies == 4
