"""Presets as configs of Hugging Face, which are read as the same models."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.flow.tree import Cost
from llmcalc.model import ModelSpec
from llmcalc.sources.target import load
from llmcalc.sources.to_hf import to_config
from llmcalc.sources.to_hf.compare import canonical_values, differences
from tests.builders import SOME_PRESETS, run_config, spec_of


def is_read_as(ours: ModelSpec, config: dict[str, Any]) -> bool:
    """Whether a config is read as a spec: the trees are equal, whatever the names of variants."""
    theirs = spec_of(config)
    costs: list[Cost] = [
        lambda use: use.params(),
        lambda use: use.forward_flops(),
        lambda use: use.cache_bits(16),
    ]
    workload = run_config(batch=2, seq=40)
    every = frozenset({"mtp", "towers"})
    trees = [(spec.tree(), spec) for spec in (ours, theirs)]
    totals = [[tree.total(cost, workload, include=every) for cost in costs] for tree, _ in trees]
    return totals[0] == totals[1] and not list(differences(canonical_values(ours), canonical_values(theirs)))


@pytest.mark.parametrize("name", [*SOME_PRESETS, "esm2-8m"])
def test_presets_become_configs_and_come_back(name: str) -> None:
    spec = load(name, ("towers={}",)).model
    assert is_read_as(spec, to_config(spec))


@pytest.mark.parametrize(
    "name", ["deepseek-v4-flash", "deepseek-v4-pro-base", "nemotron-h-8b", "nemotron-3-super-120b-a12b"]
)
def test_norms_multiply_in_the_format_of_the_class(name: str) -> None:
    """`DeepseekV4RMSNorm` and `NemotronHRMSNorm` of transformers 5.23 multiply by their weight in float32."""
    spec = load(name).model
    stack, classes_stack = spec.main, spec_of(to_config(spec)).main
    layer, classes_layer = (side.layer(side.layer_names()[0]) for side in (stack, classes_stack))
    assert (stack.final_norm, layer.norm) == (classes_stack.final_norm, classes_layer.norm)
    assert layer.norm.float32_product
    assert spec.mtp is None or spec.mtp.norm.float32_product
