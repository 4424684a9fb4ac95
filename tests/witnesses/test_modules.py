"""The nodes of the tree are found in a class by the names in its family's record, and each is compared separately."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcalc.sources.huggingface.registry import family_of
from llmcalc.witnesses.module_search import NodeModules, find_modules_of_nodes
from llmcalc.witnesses.transformers import build_class_model, find_modules, verify_config
from tests.builders import spec_of
from tests.families import shapes_of


def test_a_leaf_that_is_wrong_is_named() -> None:
    """Keys and values of two heads where the class has one: a sum cannot hide which projection differs."""
    config = shapes_of("llama")[0]
    wrong = spec_of({**config, "num_key_value_heads": config["num_attention_heads"]})
    failed = {check.node for check in verify_config(wrong, config).failures if check.quantity == "parameters"}
    assert {"layers.0-1.self_attn.k_proj", "layers.0-1.self_attn.v_proj"} <= {n.replace("0-2", "0-1") for n in failed}
    assert not any(node.endswith(("q_proj", "o_proj", "up_proj", "norm")) for node in failed)


def test_several_nodes_in_one_map_are_one_check() -> None:
    """GPT-BigCode's queries, keys and values are one linear layer with unequal parts."""
    config = shapes_of("gpt_bigcode")[0]
    verdict = verify_config(spec_of(config), config)
    assert any(check.node.endswith("self_attn.q_proj + k_proj + v_proj") for check in verdict.checks)
    assert verdict.coverage is not None
    assert len(verdict.coverage.compared_in_sums) == 3
    assert not verdict.coverage.compared_in_totals


def test_halves_of_one_tensor_are_two_checks() -> None:
    config = shapes_of("mixtral")[0]
    checked = {check.node for check in verify_config(spec_of(config), config).checks}
    assert {name.rpartition(".")[2] for name in checked if ".experts." in name} == {"gate_proj", "up_proj", "down_proj"}


def test_a_tensor_that_cannot_be_shared_agrees_with_nothing() -> None:
    assert NodeModules(("a",), node_count=2).node_share_of_counts({"a": 6}) == 3
    assert NodeModules(("a",), node_count=2).node_share_of_counts({"a": 7}) == -1
    assert NodeModules(("a", "b"), subtracted_modules=("c",)).node_share_of_counts({"a": 6, "b": 2, "c": 1}) == 7


def test_what_has_no_name_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    config, family = shapes_of("gpt2")[0], family_of("gpt2")
    without = {key: name for key, name in family.modules.items() if key not in ("self_attn", "norm")}
    monkeypatch.setattr("llmcalc.witnesses.transformers.family_of_class", lambda kind: replace(family, modules=without))
    verdict = verify_config(spec_of(config), config)
    assert verdict.ok
    assert verdict.coverage is not None
    assert {path.rpartition(".")[2] for path in verdict.coverage.compared_in_totals} == {
        "norm", "q_proj", "k_proj", "v_proj", "o_proj"
    }  # fmt: skip


def test_layers_that_share_parameters_are_one_module() -> None:
    """ALBERT: one module per set of layer parameters."""
    config = shapes_of("albert")[1]
    spec = spec_of(config)
    modules_by_node = find_modules(spec, config, build_class_model(config, will_run=False))
    owners = [name for name in modules_by_node if name.count(".") == 1 and name.startswith("layers.")]
    assert len(owners) == 4
    assert len({modules_by_node[name] for name in owners}) == 4


def test_a_list_of_another_length_is_not_the_layers() -> None:
    spec = spec_of(shapes_of("llama")[0])
    known = frozenset({"model", "model.layers", "model.layers.0", "model.layers.0.mlp", "model.norm"})
    assert set(find_modules_of_nodes(spec.tree(), known, "decoder", "model", {})) == {"norm"}


def test_the_document_has_the_coverage(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shapes_of("minimax")[0]))
    asked = ("verify", str(file), "--against", "transformers")
    coverage = run(*asked, "--format", "json").document["coverage"]
    assert coverage["alone"] > 20
    assert coverage["summed"] == 0
    assert "embed_norm" in coverage["missing"]
    printed = " ".join(run(*asked, "--notes").out.split())
    parts = coverage["alone"] + len(coverage["missing"])
    assert f"{coverage['alone']} of {parts} parts that hold parameters are compared individually" in printed
    assert "only within the totals above them: embed_norm" in printed
