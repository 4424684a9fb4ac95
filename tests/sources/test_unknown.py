"""Fields that a config's model type does not have: misspellings and sizes are errors, other fields get a remark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError, edit_distance, similar_name
from llmcalc.sources.huggingface.config import Config
from llmcalc.sources.huggingface.config_file import describe_config_data
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.unknown_fields import UnknownField
from tests.builders import CASES
from tests.families import shapes_of
from tests.samples import in_one_test

LLAMA = shapes_of("llama")[0]


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in LLAMA.items() if name != field}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num_hidden_layer", "num_hidden_layers"),
        ("num_hiden_layers", "num_hidden_layers"),
        ("intermediate_sizes", "intermediate_size"),
        ("vocabsize", "vocab_size"),
        ("tie_word_embedding", "tie_word_embeddings"),
    ],
)
def test_a_misspelt_field_is_an_error_that_names_the_right_one(written: str, meant: str) -> None:
    config = {**without(meant), written: LLAMA.get(meant, False)}
    with pytest.raises(InputError, match=rf"{written} \(did you mean {meant}\?\): unknown field of a llama config"):
        describe_config_data(config)
    assert f"unrecognised fields, ignored: {written}" in describe_config_data(config, allow_unknown=True)["notes"]


def test_a_field_beside_the_right_one_is_no_misspelling() -> None:
    assert describe_config_data({**LLAMA, "tie_word_embeddings": True, "tie_word_embedding": True})["notes"][-1] == (
        "unrecognised fields, ignored: tie_word_embedding"
    )


def test_berts_segments_in_the_config_of_a_decoder_are_ignored() -> None:
    """hf-internal-testing/tiny-random-Starcoder2ForCausalLM and others have them; no decoder's class reads them."""
    assert describe_config_data({**LLAMA, "type_vocab_size": 16})["notes"][-1] == (
        "unrecognised fields, ignored: type_vocab_size"
    )
    with pytest.raises(InputError, match="type_vocab_size = 16: unknown field of a modernbert config"):
        describe_config_data({**shapes_of("modernbert")[0], "type_vocab_size": 16})


def test_a_required_field_that_is_misspelt_is_named() -> None:
    config = Config({"hiden_size": 64}, {}, "llama")
    with pytest.raises(InputError, match=r"hidden_size: 'missing'; expected .* \(the config has 'hiden_size'\)"):
        config.integer("hidden_size")


def test_a_field_that_code_of_the_repository_may_read_is_remarked_on() -> None:
    """GENA-LM's modeling_bert.py has norms before the layers of BERT by `pre_layer_norm`."""
    config = {**LLAMA, "pre_layer_norm": True, "auto_map": {"AutoModel": "modeling_bert.BertModel"}}
    assert describe_config_data(config)["notes"][-1] == (
        "unrecognised fields, ignored: pre_layer_norm (the code that auto_map names may build other layers by them)"
    )


def test_a_list_of_numbers_of_experts_is_a_size() -> None:
    """Skywork-MoE states `num_experts: [16]` under the model type of the dense Skywork."""
    with pytest.raises(InputError, match="num_experts = a list: unknown field of a llama config"):
        describe_config_data({**LLAMA, "num_experts": [16]})


@pytest.mark.parametrize("field", ["num_experts", "n_shared_experts", "kv_lora_rank", "expert_size", "num_extra_heads"])
def test_a_size_of_which_nothing_is_known_is_an_error(field: str) -> None:
    with pytest.raises(InputError, match=rf"{field} = 8: unknown field of a llama config.*--allow-unknown"):
        describe_config_data({**LLAMA, field: 8})
    assert (
        describe_config_data({**LLAMA, field: 8}, allow_unknown=True)["model"] == describe_config_data(LLAMA)["model"]
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("per_layer_config", {"1": {"intermediate_size": 40}}),
        ("num_kv_heads_per_layer", [2, 1, 2]),
        ("ffn_widths", [96, 40, 96]),
    ],
)
def test_sizes_of_single_layers_of_which_nothing_is_known_are_an_error(field: str, value: Any) -> None:
    """transformers takes `per_layer_config` in every config; pruned models have lists with a size for every layer."""
    assert LLAMA["num_hidden_layers"] == 3
    with pytest.raises(InputError, match=rf"{field} = .*: unknown field of a llama config.*--allow-unknown"):
        describe_config_data({**LLAMA, field: value})
    assert (
        describe_config_data({**LLAMA, field: value}, allow_unknown=True)["model"]
        == describe_config_data(LLAMA)["model"]
    )


@pytest.mark.parametrize(
    "harmless",
    [
        {"per_layer_config": {}},
        {"per_layer_config": {"1": {}}},
        {"layer_marks": [1, 0, 1]},
        {"layer_widths": [64, 64, 64]},
        {"layer_factors": [1.0, 0.5, 0.5]},
        {"some_layers": [1, 2]},
    ],
)
def test_lists_and_tables_without_sizes_of_single_layers_are_remarked_on(harmless: dict[str, Any]) -> None:
    assert (
        describe_config_data({**LLAMA, **harmless})["notes"][-1]
        == f"unrecognised fields, ignored: {next(iter(harmless))}"
    )


@pytest.mark.parametrize(
    "harmless", [{"num_experts": 0}, {"num_experts": None}, {"n_something": "text"}, {"expert_size": 0.5}]
)
def test_a_size_of_nothing_is_remarked_on(harmless: dict[str, Any]) -> None:
    assert (
        describe_config_data({**LLAMA, **harmless})["notes"][-1]
        == f"unrecognised fields, ignored: {next(iter(harmless))}"
    )


def test_every_wrong_field_is_named_at_once() -> None:
    config = {**without("num_hidden_layers"), "num_hidden_layer": 3, "num_experts": 8}
    with pytest.raises(InputError) as error:
        describe_config_data(config)
    assert "num_experts = 8, num_hidden_layer (did you mean num_hidden_layers?): unknown fields" in str(error.value)


def test_a_size_under_another_name_is_no_error() -> None:
    """GLM-5's `num_experts` repeats `n_routed_experts`, which its class reads."""
    config = shapes_of("deepseek_v3")[0]
    experts = config["n_routed_experts"]
    assert (
        describe_config_data({**config, "num_experts": experts})["notes"][-1]
        == "unrecognised fields, ignored: num_experts"
    )
    with pytest.raises(InputError, match="num_experts = "):
        describe_config_data({**config, "num_experts": experts + 1})


def test_a_size_under_another_name_in_the_singular_is_no_error() -> None:
    """A config of tiiuae/falcon-40b (in intel/intel-extension-for-pytorch) has `n_head` and `n_layer` beside the names
    that its class reads.
    """
    config = shapes_of("falcon")[0]
    head_count = config["num_attention_heads"]
    others = {"n_head": head_count, "n_layer": config["num_hidden_layers"]}
    description = describe_config_data({**config, **others})
    assert description["notes"][-1] == "unrecognised fields, ignored: n_head, n_layer"
    assert description["model"] == describe_config_data(config)["model"]
    with pytest.raises(InputError, match=f"n_head = {head_count + 1}: unknown field of a falcon config"):
        describe_config_data({**config, **others, "n_head": head_count + 1})
    with pytest.raises(InputError, match="n_heads = 128: unknown field of a llama config"):
        describe_config_data({**LLAMA, "head_dim": 128, "n_heads": 128})


def test_sizes_from_the_class_are_listed() -> None:
    (note,) = describe_config_data({**without("num_hidden_layers"), "max_position_embeddings": 64})["notes"]
    assert note == "sizes that the config does not give, taken from its class's defaults: num_hidden_layers = 32"
    assert describe_config_data({**LLAMA, "max_position_embeddings": 64})["notes"] == []
    (note,) = describe_config_data({"model_type": "llama"})["notes"]
    assert all(size in note for size in ("hidden_size = 4,096", "vocab_size = 32,000", "num_hidden_layers = 32"))


@in_one_test
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_no_real_config_is_refused(case: Path) -> None:
    config = json.loads((case / "config.json").read_text())
    assert describe_config_data(config)["model"] == describe_config_data(config, allow_unknown=True)["model"]


def test_the_option_goes_on_past_both(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**without("num_hidden_layers"), "num_hidden_layer": 3, "num_experts": 8}))
    err = run("params", str(path)).error
    assert err.count("error:") == 1
    assert "num_hidden_layers?" in err
    for command in (["params"], ["flops"], ["kv"], ["memory"], ["compare"], ["explain"], ["convert"], ["shape"]):
        code, _, err = run(*command, str(path), "--allow-unknown")
        assert code == 0, err
        assert "unrecognised fields, ignored: num_experts, num_hidden_layer" in err
        assert "num_hidden_layers = 32" in err


def test_python_has_the_same_check() -> None:
    config = {**LLAMA, "num_experts": 8}
    with pytest.raises(InputError, match="num_experts = 8: unknown field"):
        llmcalc.params(config)
    assert llmcalc.params(llmcalc.load(config, allow_unknown=True)).total == llmcalc.params(LLAMA).total


def test_how_far_one_name_is_from_another() -> None:
    assert edit_distance("heads", "heads") == 0
    assert edit_distance("head", "heads") == 1
    assert edit_distance("haeds", "heads") == 2
    assert edit_distance("", "abc") == 3
    assert similar_name("n_hed", ["n_head", "n_layer"]) == "n_head"
    assert similar_name("ab", ["ac"]) == ""  # a short name has no near names
    assert similar_name("num_layer_norms", ["num_layers"]) == ""


def test_what_reads_like_a_size() -> None:
    sizes = [UnknownField(path, 4, "", False).is_size for path in ("num_x", "x_dim", "a.b_rank", "n_x", "x_heads")]
    assert all(sizes)
    others = [UnknownField(path, 4, "", False).is_size for path in ("eos_id", "seed", "x_steps", "norm_scale")]
    assert not any(others)
    assert not UnknownField("num_x", True, "", False).is_size


def test_a_model_type_of_its_own_with_a_known_class_names_the_type_that_is_read() -> None:
    """As a published copy of Kimi K2 has it, whose code is its own by `auto_map`."""
    config = {**LLAMA, "model_type": "bot_v1", "architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "x.Y"}}
    with pytest.raises(InputError, match="its class is named as that of llama: with that model_type it is read"):
        describe_config_data(config)


def test_modules_of_prediction_that_a_family_does_not_count_are_named_once() -> None:
    """Ling counts them; Kimi K3 ignores the field; EXAONE 4 makes the remark; a draft has its target's."""
    remark = "num_nextn_predict_layers: the multi-token-prediction modules are not counted"
    remarks_by_type = {"bailing_hybrid": 0, "kimi_k3_text": 1, "exaone4": 1, "eagle3_deepseek": 0}
    for model_type, expected in remarks_by_type.items():
        _, notes = read_config({**shapes_of(model_type)[0], "num_nextn_predict_layers": 1})
        assert notes.count(remark) == expected, model_type
