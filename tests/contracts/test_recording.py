"""Contract: every flow uses plain arithmetic, so that ints, NumPy arrays and SymPy symbols record the same program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sympy

from llmcalc.components.base import Component, Part
from llmcalc.components.distance_bias import RelativeBias
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.costs.params import active_params_of, total_params_of
from llmcalc.flow.program import AlternativeBranches, ModuleScope, Step
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.symbolic.symbolic_model import letter_of_field
from tests.builders import fields_of
from tests.contracts.test_parts import EXAMPLES, around_a_model, decoder
from tests.samples import in_one_test, sampled


class Sizes:
    """Replaces every size of a spec that has a letter, and remembers the replacements."""

    def __init__(self, make: Any) -> None:
        self.make, self.made = make, dict[Any, int]()

    def of(self, part: Any) -> Any:
        changes: dict[str, Any] = {}
        for field, info in type(part).model_fields.items():
            value = getattr(part, field)
            if isinstance(value, Part):
                changes[field] = self.of(value)
            elif isinstance(value, dict) and all(isinstance(one, Part) for one in value.values()):
                changes[field] = {name: self.of(one) for name, one in value.items()}
            elif letter_of_field(info) is not None and type(value) is int and field != "num_hidden_layers":
                changes[field] = self.make(len(self.made), value)
                self.made[len(self.made)] = value
        return part.model_copy(update=changes)


def symbol(number: int, value: int) -> Any:
    return sympy.Symbol(f"x{number}", integer=True, positive=True)


def array(number: int, value: int) -> Any:
    return np.array([value, value])


def names(node: Node) -> Any:
    return node.name, type(node.op), [names(child) for child in node.children]


def steps(scope: ModuleScope) -> list[Any]:
    """The steps of a program independent of its sizes: verbs, names and their order."""
    out: list[Any] = []
    for item in scope.items:
        if isinstance(item, Step):
            out.append((item.verb, item.name, len(item.input_values), len(item.output_values)))
        elif isinstance(item, AlternativeBranches):
            out.append([(name, steps(branch)) for name, branch in item.branches.items()])
        else:
            out.append((item.name, steps(item)))
    return out


@in_one_test
@pytest.mark.parametrize(
    "example",
    lambda: sampled({str(p.id): p.values[0] for p in EXAMPLES}, lambda part: {type(part).__name__, *fields_of(part)}),
)
def test_symbols_and_arrays_record_the_program_of_ints(example: Component) -> None:
    spec: ModelSpec = around_a_model(example)
    plain = spec.program()
    lettered, tabled = Sizes(symbol), Sizes(array)
    symbolic, arrays = lettered.of(spec).program(), tabled.of(spec).program()
    assert names(symbolic.node()) == names(arrays.node()) == names(plain.node())
    numbers = {symbol(i, value): value for i, value in lettered.made.items()}
    for cost in (total_params_of, active_params_of):
        expected = plain.node().total(cost)
        assert sympy.sympify(symbolic.node().total(cost)).subs(numbers) == expected
        assert list(np.broadcast_to(arrays.node().total(cost), (2,))) == [expected, expected]


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_what_goes_round_a_loop_has_the_same_axes_at_both_ends(example: Component) -> None:
    """The output of one layer is the input of the next: the same rows and the same named axes. A layer that is not
    repeated may change the rows.
    """
    for scope in _scopes(around_a_model(example).program().root):
        if scope.first_input is not None and scope.node_fields.get("repeat", 1) != 1:
            assert scope.output is not None
            assert (scope.first_input.rows, scope.first_input.axes) == (scope.output.rows, scope.output.axes), (
                scope.name
            )


def _scopes(scope: ModuleScope) -> list[ModuleScope]:
    inner = [item for item in scope.items if isinstance(item, ModuleScope)]
    inner += [b for item in scope.items if isinstance(item, AlternativeBranches) for b in item.branches.values()]
    return [scope, *(deeper for one in inner for deeper in _scopes(one))]


@in_one_test
@pytest.mark.parametrize(
    "example", [example for example in EXAMPLES if not getattr(example.values[0], "gru_size", None)]
)
def test_a_step_reads_what_was_made_before_it(example: Component) -> None:
    """Every value that a step reads is the output of an earlier step or an input of the model. A recurrence (GRU) reads
    what its last step made.
    """
    program = around_a_model(example).program()
    value_ids = {
        id(scope.first_layer_output) for scope in _scopes(program.root) if scope.first_layer_output is not None
    }
    for step in _run(program.root):
        for value in step.input_values:
            assert id(value.storage) in value_ids or _given(value), (step.verb, step.name)
        value_ids |= {id(value.storage) for value in step.output_values}


def test_attention_reads_what_is_added_to_its_scores() -> None:
    """One relative bias of a stack reaches every layer's self-attention, but not its cross-attention, which has no
    distances.
    """
    crossed, plain = Block.examples()[-1], Block.examples()[-1].model_copy(update={"cross_attention": None})
    bias = RelativeBias(num_attention_heads=4)
    spec = around_a_model(crossed)
    assert spec.encoder is not None
    assert spec.decoder is not None
    biased = spec.model_copy(
        update={
            "encoder": spec.encoder.model_copy(update={"block": plain, "relative_bias": bias}),
            "decoder": spec.decoder.model_copy(update={"relative_bias": None}),
        }
    )
    program = biased.program()
    steps = [step for step in program.root.steps() if step.verb == "attention"]
    assert [len(step.input_values) for step in steps] == [4, 3, 3]  # encoder, decoder, cross-attention
    (bias,) = [step for step in program.root.steps() if step.verb == "distance_bias"]
    assert steps[0].input_values[3] is bias.output_values[0]
    assert bias.input_values[0] in [step.output_values[0] for step in program.root.steps() if step.verb == "table"]


def _run(scope: ModuleScope) -> Iterator[Step]:
    """Yields the steps of a pass, without steps that never run."""
    for item in scope.items:
        if isinstance(item, Step):
            if item.node_fields.get("role") != "idle":
                yield item
        elif isinstance(item, AlternativeBranches):
            for branch in item.branches.values():
                yield from _run(branch)
        elif item.node_fields.get("role") != "idle":
            yield from _run(item)


def _given(value: Any) -> bool:
    """Whether a value is an input that no parameter computes: encodings of distances, audio frames and others."""
    return bool(value.storage.is_constant)


def test_an_attention_step_keeps_its_key_heads_and_names_its_cache() -> None:
    """Grouped-query attention repeats keys for the eager product; other kernels read the cached heads."""
    spec = decoder(attention=Attention(num_attention_heads=4, num_key_value_heads=2))
    (core,) = [step for step in spec.program().root.steps() if step.verb == "attention"]
    assert core.options["kv_heads"].size == 2
    assert core.options["cache"] == "cache"
    assert core.input_values[1].axes[0].size == 4


def test_layers_keep_their_indices() -> None:
    """A folded scope knows the indices of its layers, which lowering needs to restore their order."""
    scopes = [s for s in decoder().program().root.scopes() if s.node_fields.get("kind") == "layer"]
    assert [list(scope.node_fields["indices"]) for scope in scopes] == [[0, 1]]
