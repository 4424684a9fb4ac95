"""Configs of unsupported model types, measured on their class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from llmcalc.reports.measured_params import report
from llmcalc.witnesses.measured_modules import ModuleTree, measured_tree
from tests.families import shapes_of

CASES = Path(__file__).parents[1] / "data/cases"


@pytest.mark.parametrize("name", ["jamba-1.5-mini", "llama-3.1-8b"])
def test_it_counts_what_the_class_holds(run: Any, name: str) -> None:
    result = run("params", str(CASES / name), "--measure", "--format", "json")
    document = result.document
    truth = json.loads((CASES / name / "truth.json").read_text())
    assert document["params"]["total"] == truth["n_params_total"]
    assert document["measured"] is True
    assert document["model"]["class"] == truth["class"]


def test_the_table_says_that_it_is_measured(run: Any) -> None:
    assert "no closed form" in " ".join(run("params", str(CASES / "llama-3.1-8b"), "--measure").out.split())


def test_equal_layers_are_one() -> None:
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3), torch.nn.Linear(2, 3))
    assert measured_tree(net) == ModuleTree(
        "Sequential", 9 + 9 + 12, 1, (ModuleTree("{0,2}", 9, 2), ModuleTree("1", 12))
    )


def test_a_list_of_many_places_is_cut_in_the_table_and_whole_in_json() -> None:
    layers = ModuleTree(
        "layers", 34, 1, (ModuleTree("{0-2,4-7,9-12,14-17,19}", 1, 16), ModuleTree("{3,8,13,18}", 4, 4))
    )
    shown = report("x", "X", ModuleTree("X", 34, 1, (layers,)))
    assert [row.cells[0] for row in shown.tables[0].rows] == ["layers", "{0-2,4-7,…,19}", "{3,8,13,18}", "total"]
    assert "{0-2,4-7,9-12,14-17,19}" in json.dumps(shown.data)


def test_a_class_that_needs_values_to_run_is_measured_without_any(run: Any, tmp_path: Path) -> None:
    config = {
        "model_type": "dbrx",
        "architectures": ["DbrxForCausalLM"],
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "vocab_size": 100352,
    }
    experts = {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "ffn_config": experts, "attn_config": {"kv_n_heads": 8, "rope_theta": 5e5}})
    )
    assert run("params", str(tmp_path), "--measure").out.split("\n")[0].endswith("131.60 B parameters, measured")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_type: missing"),
        ({"model_type": "llama", "architectures": ["NoSuchModel"]}, "has no NoSuchModel"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": -1}, "cannot be built from it"),
        ({"model_type": "nothing_like_it"}, "model_type: the installed transformers has no 'nothing_like_it'"),
    ],
)
def test_what_cannot_be_measured_says_so(run: Any, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert message in run("params", str(tmp_path), "--measure").error


@pytest.mark.parametrize("left_out", ["architectures", "model_type"])
def test_either_of_the_two_fields_names_the_class(run: Any, tmp_path: Path, left_out: str) -> None:
    config = {key: value for key, value in shapes_of("llama")[0].items() if key != left_out}
    (tmp_path / "config.json").write_text(json.dumps(config))
    measured = run("params", str(tmp_path), "--measure", "--format", "json").document
    counted = run("params", str(tmp_path), "--format", "json").document
    assert measured["params"]["total"] == counted["params"]["total"]


def test_an_unknown_type_names_near_ones(run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lama"}))
    result = run("params", str(tmp_path))
    assert result.code == 2
    assert "Did you mean llama" in result.err
    assert "--measure" not in result.err
    assert "transformers has no class for it either; its layers can be described in TOML" in result.err


def test_classes_that_are_no_language_model_are_named(run: Any, tmp_path: Path) -> None:
    config = {
        "model_type": "vit",
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "image_size": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run("params", str(tmp_path))
    assert result.code == 2
    assert "its classes in transformers, " in result.err
    assert "ViTModel" in result.err
    assert "no class for it either" not in result.err
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["ViTModel"]}))
    assert "llmcalc params --measure counts its transformers class" in run("params", str(tmp_path)).err
    assert run("params", str(tmp_path), "--measure").code == 0


@pytest.mark.parametrize(
    ("kind", "architecture", "works"),
    [
        ("clap", "ClapModel", True),
        ("clap", None, False),
        ("bark", "BarkModel", True),
        ("bark", "OwnModForCausalLM", False),
        ("pocket_tts", "PocketTTSForConditionalGeneration", True),
        ("pocket_tts", None, False),
        ("pi0", "PI0ForCausalLM", False),
        ("nobodys_type", None, False),
        ("nobodys_type", "NobodysForCausalLM", False),
    ],
)
def test_measuring_is_suggested_exactly_where_it_works(
    run: Any, tmp_path: Path, kind: str, architecture: str | None, works: bool
) -> None:
    named = {} if architecture is None else {"architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **named}))
    suggestion = "llmcalc params --measure counts its transformers class instead"
    assert (suggestion in run("params", str(tmp_path)).err) == works
    assert (run("params", str(tmp_path), "--measure").code == 0) == works


class TestWhichClass:
    """The class is found by the model type where `architectures` names another's or its repository's own."""

    SMALL: ClassVar = {
        "model_type": "phimoe",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 100,
    }

    def test_a_class_of_another_model_type_is_passed_over(self, run: Any, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**self.SMALL, "architectures": ["LlamaForCausalLM"]}))
        assert "PhimoeForCausalLM" in run("params", str(path), "--measure", "--notes").out

    def test_code_of_a_repository_is_neither_run_nor_suggested(self, run: Any, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        own = {"auto_map": {"AutoConfig": "configuration_x.XConfig"}, "architectures": ["XForCausalLM"]}
        path.write_text(json.dumps({**self.SMALL, **own, "model_type": "nobodys_type"}))
        err = run("params", str(path)).error
        assert "--measure" not in err
        assert "code of its own repository (auto_map), which llmcalc never runs" in err
        err = run("params", str(path), "--measure").error
        assert err == (
            f"error: {path}: model_type: the installed transformers has no 'nobodys_type'; its classes are code of its "
            "own repository (auto_map), which llmcalc never runs\n"
        )
