"""The class of `transformers` that runs a published config."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.witnesses.transformers import verify_config
from llmcalc.witnesses.transformers_class import class_config_fields, class_name_of
from tests.families import shapes_of

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


@pytest.mark.parametrize(
    ("kind", "names", "cls"),
    [
        ("llama", ["LlamaForCausalLM"], "LlamaForCausalLM"),
        ("mpt", ["MPTForCausalLM"], "MptForCausalLM"),
        ("jetmoe", ["JetMoEForCausalLM"], "JetMoeForCausalLM"),
        ("falcon", ["RWForCausalLM"], "FalconForCausalLM"),
        ("mimo", ["MiMoForCausalLM"], "Qwen2ForCausalLM"),
        ("llama", None, "LlamaForCausalLM"),
        ("bert", [], "BertForMaskedLM"),
        ("t5", None, "T5ForConditionalGeneration"),
    ],
)
def test_the_class_is_found_under_the_spelling_of_a_hub(kind: str, names: list[str] | None, cls: str) -> None:
    assert class_name_of({"model_type": kind, "architectures": names}) == cls


SPELLINGS = [
    ("minimax_m3", "minimax_m3_vl"),
    ("nllb_moe", "nllb-moe"),
    ("xlm_roberta", "xlm-roberta"),
    ("gpt-neox", "gpt_neox"),
]


@pytest.mark.parametrize(("given", "kind"), SPELLINGS)
def test_a_model_type_may_be_spelled_as_its_folder_is(given: str, kind: str) -> None:
    shape = {"model_type": kind} if kind == "minimax_m3_vl" else shapes_of(kind)[0]
    config = {**shape, "model_type": given}
    table, notes = read_config(config)
    assert (table, notes) == read_config(shape)
    if kind != "minimax_m3_vl":  # minimax_m3_vl's default model has 400 B parameters
        assert verify_config(ModelSpec.model_validate(table), config).ok


def test_a_class_that_nobody_has_is_an_error() -> None:
    with pytest.raises(InputError, match="has no LlamaForDreaming"):
        class_name_of({"model_type": "llama", "architectures": ["LlamaForDreaming"]})


def test_rope_by_length_is_made_plain_and_other_rope_is_not() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    inner = {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 5e5, "long_factor": [1.0]},
    }
    fields = class_config_fields(
        {
            "model_type": "x",
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
            "rope_parameters": yarn,
            "text_config": inner,
        }
    )
    assert fields["rope_scaling"] == {"rope_type": "default"}
    assert fields["rope_parameters"] == yarn
    assert fields["text_config"] == {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    }


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "architectures": None, **SMALL, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"model_type": "llama", "architectures": ["LLaMAForCausalLM"], **SMALL, "num_key_value_heads": 2},
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": 128,
            "vocab_size": 96,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ],
)
def test_classes_that_look_at_positions_or_padding_are_run_on_meta(config: dict[str, Any]) -> None:
    verdict = verify_config(ModelSpec.model_validate(read_config(config)[0]), config)
    assert verdict.ok
    assert {"parameters", "forward_flops", "cache_bytes"} <= {check.quantity for check in verdict.checks}
