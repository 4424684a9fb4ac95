"""The names that a list of published modules is matched with are those of every family's class, and of no other module.

Each small config's class is built on meta. Its modules are matched with the nodes of the tree by `verify`, which knows
what the class has; `ModuleNames` must give the same names from the family's record alone. Names of checkpoints that
earlier versions wrote come from transformers' own conversion (`core_model_loading.revert_weight_conversion`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.quantization.base import WeightTensor, weight_tensors_of
from llmcalc.flow.module_names import ModuleNames
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.checkpoint import checkpoint_of
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of
from llmcalc.witnesses.transformers import build_class_model, find_modules
from tests.builders import family_shapes, spec_of
from tests.families import shapes_of
from tests.samples import sampled

LISTS_IN_LISTS = re.compile(r"albert_layer_groups|adapter_list")
"""Modules with two numbers, of which the config does not say the first: ALBERT's groups, and Zamba 2's adapters, whose
list has placeholders.
"""

UNEVEN_LISTS = {"blt", "funnel"}
"""Families whose layers are in several lists of unequal lengths, of which a table of names does not say the lengths."""


def names_of(spec: ModelSpec, config: dict[str, Any]) -> ModuleNames:
    return checkpoint_of(config).names(spec.tree(), spec.kind)


def matrices(spec: ModelSpec) -> list[WeightTensor]:
    """The tensors that a scheme may convert, and routers."""
    return [site for site in weight_tensors_of(spec.tree()) if site.tensor.role == "matrix" and site.kind != "residual"]


def of_first_expert(name: str) -> str:
    return re.sub(r"(experts\.|expert_)\d+", r"\g<1>0", name)


def named_nodes(config: dict[str, Any]) -> set[tuple[str, str]]:
    """What a class names: the nodes with an op of its lineage, its family's file, and what that names otherwise."""
    nodes = (place.node for place in spec_of(config).tree().walk())
    family, file = family_of(config["model_type"]), FILE_BY_TYPE[config["model_type"]]
    names = {(file.partition(".")[0], node.name) for node in nodes if node.op is not None}
    return {file, *names, *map(repr, family.modules.items())}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", sampled(dict(family_shapes()), named_nodes))
def test_names_are_those_of_the_class(config: dict[str, Any]) -> None:
    spec = spec_of(config)
    model = build_class_model(config, will_run=False)
    found, names = find_modules(spec, config, model), names_of(spec, config)
    candidates = {site.path: set(names(site.path)) for site in matrices(spec)}
    owners: dict[str, set[str]] = defaultdict(set)
    for path in candidates:
        assert path in found, f"{path} has no module in the class"
        for module in map(of_first_expert, found[path].modules):
            if not LISTS_IN_LISTS.search(module) and config["model_type"] not in UNEVEN_LISTS:
                owners[module].add(path)
    assert owners or config["model_type"] in {"albert", *UNEVEN_LISTS}
    lost = {(path, module) for module, paths in owners.items() for path in paths if module not in candidates[path]}
    assert not lost, "modules whose names a list would not find"
    wrong = {
        (path, module)
        for module, paths in owners.items()
        for path, several in candidates.items()
        if module in several and path not in paths
    }
    assert not wrong, "nodes that a list would select by another module's name"
    _names_of_earlier_checkpoints(model, owners, candidates)


def _names_of_earlier_checkpoints(model: Any, owners: dict[str, set[str]], candidates: dict[str, set[str]]) -> None:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    if not get_model_conversion_mapping(model, add_legacy=False):
        return
    state = model.state_dict()
    for module, paths in owners.items():
        keys = [key for key in (module, f"{module}.weight") if key in state]
        if not keys or all(path.endswith("router") for path in paths):
            continue
        for key in revert_weight_conversion(model, {key: state[key] for key in keys}):
            earlier = of_first_expert(key.removesuffix(".weight"))
            assert any(earlier in candidates[path] for path in paths), f"{module} was {earlier}"


# Names by hand


def test_the_names_of_gemma_4_are_not_its_nodes() -> None:
    """`mlp` is the dense network in the class, and the router and the experts in the tree."""
    config = shapes_of("gemma4_text")[1]
    names = names_of(spec_of(config), config)
    assert "model.layers.1.mlp.up_proj" in names("layers.1.dense.up_proj")
    assert "model.language_model.layers.1.mlp.up_proj" in names("layers.1.dense.up_proj")
    assert "model.layers.1.experts.gate_up_proj" in names("layers.1.mlp.experts.up_proj")
    assert "model.layers.1.experts.0.up_proj" in names("layers.1.mlp.experts.up_proj")
    assert not [name for name in names("layers.1.mlp.experts.up_proj") if ".mlp" in name]
    dense = shapes_of("gemma4_text")[0]
    of_dense = names_of(spec_of(dense), dense)("layers.1.mlp.up_proj")
    assert "model.layers.1.mlp.up_proj" in of_dense
    assert not [name for name in of_dense if "router" in name or "experts" in name]


def test_names_of_mixtral_before_version_5() -> None:
    config = shapes_of("mixtral")[0]
    names = names_of(spec_of(config), config)
    for leaf, old in {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}.items():
        assert f"model.layers.0.block_sparse_moe.experts.0.{old}" in names(f"layers.0.mlp.experts.{leaf}")
    assert "model.layers.0.block_sparse_moe.gate" in names("layers.0.mlp.router")


def test_a_module_that_predicts_further_tokens_is_one_layer_more() -> None:
    """README_WEIGHTS.md of DeepSeek-V3: `model.layers.61` holds the MTP module."""
    spec = llmcalc.load("deepseek-v3").model
    names = ModuleNames(spec.tree(), spec.kind, {})
    assert "model.layers.61.self_attn.q_a_proj" in names("mtp.0.block.self_attn.q_a_proj")
    assert "model.layers.61.eh_proj" in names("mtp.0.eh_proj")
    assert "model.layers.60.self_attn.q_a_proj" in names("layers.60.self_attn.q_a_proj")


def test_the_parts_of_a_fused_layer_have_its_name_and_their_own() -> None:
    config = shapes_of("glm4")[0]
    names = names_of(spec_of(config), config)("layers.0.mlp.up_proj")
    assert {"model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.up_proj"} <= set(names)
