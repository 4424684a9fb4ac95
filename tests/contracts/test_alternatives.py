"""Contract: the alternative forms of one part have the same parameters, buffers and cache, and each form runs in some
workload.

A model has one tree for all workloads. So the contents of a part, and their names, may not depend on the form that
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llmcalc.components.base import Component
from llmcalc.components.mixers.kimi_delta_attention import KimiDeltaAttention
from llmcalc.components.mixers.lightning_attention import LightningAttention
from llmcalc.components.mixers.mla import MLA
from llmcalc.flow.axis import Axis
from llmcalc.flow.program import AlternativeBranches, ModuleScope
from llmcalc.flow.record import Flow
from llmcalc.flow.tree import CountedOp
from llmcalc.flow.value import Value
from llmcalc.workload.execution import EAGER_EXECUTION
from llmcalc.workload.rows import TOKENS
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.contracts.test_parts import EXAMPLES, around_a_model
from tests.samples import in_one_test

FROM_THE_START = Workload(batch=2, seq=11, phase="prefill")
WORKLOADS = (
    FROM_THE_START,
    Workload(batch=2, seq=5, phase="prefill", context=6),
    Workload(batch=2, seq=1, phase="decode", context=10),
)


def alternatives_in(scope: ModuleScope) -> Iterator[AlternativeBranches]:
    """Yields every choice between forms in a scope, at any depth, also inside other forms."""
    for item in scope.items:
        if isinstance(item, ModuleScope):
            yield from alternatives_in(item)
        elif isinstance(item, AlternativeBranches):
            yield item
            for branch in item.branches.values():
                yield from alternatives_in(branch)


def fields_of_branch(branch: ModuleScope) -> dict[str, Any]:
    """Path of each node of a branch → parameters, tensors, buffers and, after each workload, the cache."""
    found: dict[str, Any] = {}
    for place in branch.node().walk():
        assert place.path not in found, place.path
        use = place.counted_op
        if use is None:
            found[place.path] = None
            continue
        caches = [CountedOp(use.op, use.roles, RunConfig(w)).cache_bits(16) for w in WORKLOADS]
        found[place.path] = use.params(), use.active_params(), use.tensors(), use.buffers(), caches
    return found


def differing_flag_names(alternatives: AlternativeBranches) -> list[str]:
    """Returns the forms whose contents differ from the first form's."""
    first, *others = alternatives.branches
    expected = fields_of_branch(alternatives.branches[first])
    return [name for name in others if fields_of_branch(alternatives.branches[name]) != expected]


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_all_forms_hold_the_same(example: Component) -> None:
    for alternatives in alternatives_in(around_a_model(example).program().root):
        assert not differing_flag_names(alternatives)


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_each_form_runs_in_some_workload(example: Component) -> None:
    for alternatives in alternatives_in(around_a_model(example).program().root):
        names = list(alternatives.branches)
        assert EAGER_EXECUTION.choose_form(names, FROM_THE_START) == names[0]
        assert {EAGER_EXECUTION.choose_form(names, w) for w in WORKLOADS} == set(names)


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_tree_counts_the_form_that_runs(example: Component) -> None:
    """The FLOPs of a branch equal those of its nodes in the tree, in every workload in which its form runs."""
    program = around_a_model(example).program()
    for workload in WORKLOADS:
        run_config = RunConfig(workload)
        assert program.node().total(flops, run_config) == chosen(program.root, run_config).node().total(
            flops, run_config
        )


def flops(use: CountedOp) -> Any:
    return use.forward_flops()


def chosen(scope: ModuleScope, run_config: RunConfig) -> ModuleScope:
    """Returns a scope in which each choice is replaced by the form that runs."""
    reduced_scope = ModuleScope(scope.name, scope.node_fields)
    for item in scope.items:
        if isinstance(item, AlternativeBranches):
            name = run_config.execution.choose_form(item.branches, run_config.workload)
            reduced_scope.items += chosen(item.branches[name], run_config).items
        else:
            reduced_scope.items.append(chosen(item, run_config) if isinstance(item, ModuleScope) else item)
    return reduced_scope


FORMS: tuple[tuple[Component, set[str]], ...] = (
    (MLA.examples()[0], {"expanded", "absorbed"}),
    (KimiDeltaAttention.examples()[0], {"chunked", "step"}),
    (LightningAttention.examples()[0], {"chunked", "by_token"}),
)


@pytest.mark.parametrize(("example", "names"), FORMS)
def test_forms_are_found(example: Component, names: set[str]) -> None:
    """The contracts above would pass for programs in which no choice was found."""
    found = list(alternatives_in(around_a_model(example).program().root))
    assert found
    assert all(set(one.branches) == names for one in found)


def recorded(*branches: Callable[[Flow, Value], Value]) -> AlternativeBranches:
    recorder, x = Flow(), Value(TOKENS, (Axis("hidden", 6),))
    """A flow with a choice between two branches."""
    first, other = branches
    recorder.alternatives(chunked=lambda: first(recorder, x), step=lambda: other(recorder, x))
    (reduced_scope,) = recorder.root.items
    assert isinstance(reduced_scope, AlternativeBranches)
    return reduced_scope


def narrow(recorder: Flow, x: Value) -> Value:
    return recorder.linear("map", x, Axis("inner", 3))


def test_forms_that_hold_something_else_are_found() -> None:
    """A different width, name, bias or state in one form is reported."""

    def stateful(recorder: Flow, x: Value) -> Value:
        recorder.state("state", *x.axes)
        return narrow(recorder, x)

    assert not differing_flag_names(recorded(narrow, narrow))
    for other in (
        lambda recorder, x: recorder.linear("map", x, Axis("inner", 4)),
        lambda recorder, x: recorder.linear("other", x, Axis("inner", 3)),
        lambda recorder, x: recorder.linear("map", x, Axis("inner", 3), bias=True),
        stateful,
    ):
        assert differing_flag_names(recorded(narrow, other)) == ["step"]
