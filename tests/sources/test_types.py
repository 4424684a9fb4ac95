"""A config's `architectures` and `model_type` against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.components.networks.moe import MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.model_type import with_model_type
from llmcalc.sources.huggingface.registry import model_type_of_class_name
from tests.builders import CASES, spec_of
from tests.families import shapes_of
from tests.samples import in_one_test


@pytest.mark.parametrize("kind", ["umt5", "llama", "xlm-roberta", "gemma3_text"])
def test_a_config_without_a_model_type_is_read_by_its_class(kind: str, run: Any, tmp_path: Path) -> None:
    config = {k: v for k, v in shapes_of(kind)[0].items() if k != "model_type"}
    assert llmcalc.params(config).total == llmcalc.params(shapes_of(kind)[0]).total
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    name = config["architectures"][0]
    asked = run("params", str(file))
    assert asked.code == 0
    assert f"model_type: not given; taken as '{kind}', for architectures names {name}" in asked.err


def test_a_class_of_another_family_is_an_error(run: Any, tmp_path: Path) -> None:
    """The fields would be read as those of another model. `mixtral` is what published configs of MiniMax-M2 say."""
    config = {**shapes_of("minimax_m2")[0], "model_type": "phimoe"}
    with pytest.raises(InputError, match="is a class of 'minimax_m2', but model_type says 'phimoe'"):
        llmcalc.params(config)
    named = llmcalc.params({**config, "model_type": "mixtral"})
    assert named.total == llmcalc.params(shapes_of("minimax_m2")[0]).total
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert run("params", str(file)).code == 2


@in_one_test
@pytest.mark.parametrize(
    ("kind", "name"),
    [("gemma3", "Gemma3ForCausalLM"), ("kimi_k2", "DeepseekV3ForCausalLM"), ("mimo", "Qwen2ForCausalLM"),
     ("camembert", "RobertaModel"),
     ("llama", "MistralForCausalLM"), ("internlm3", "LlamaForCausalLM"),
     ("phi4_multimodal", "Phi3ForCausalLM"), ("llama", "SomebodysForCausalLM")],
)  # fmt: skip
def test_a_class_of_the_same_line_is_none(kind: str, name: str) -> None:
    assert with_model_type({"model_type": kind, "architectures": [name]})[1] == []


def test_no_published_config_contradicts_itself() -> None:
    for case in CASES:
        with_model_type(json.loads((case / "config.json").read_text()))


def test_every_class_has_one_model_type() -> None:
    assert model_type_of_class_name("LlamaForCausalLM") == "llama"
    assert model_type_of_class_name("NoSuchModel") == ""


@pytest.mark.parametrize("model_type", ["switch_transformers", "nllb-moe"])
def test_a_router_computes_in_the_number_format_of_its_config(model_type: str) -> None:
    """`router_dtype` is float32 by default: the class copies tokens and weight to it."""
    config = next(shape for shape in shapes_of(model_type) if "router_dtype" not in shape)

    def float32_products(**fields: Any) -> set[bool]:
        stack = spec_of({**config, **fields}).encoder
        assert stack is not None
        networks = [stack.layer(name).feed_forward for name in stack.layer_names()]
        routers = [network.router for network in networks if isinstance(network, MoE)]
        return {router.float32_product for router in routers if isinstance(router, LinearRouter)}

    assert float32_products() == float32_products(router_dtype="float32") == {True}
    assert float32_products(router_dtype="bfloat16") == {False}
    with pytest.raises(InputError, match="router_dtype: 'int8'; expected one of float32, float16, bfloat16"):
        spec_of({**config, "router_dtype": "int8"})


@pytest.mark.parametrize(
    ("model_type", "part"),
    [
        ("hymba", "attention and a state-space scan on the same input"),
        ("Motif", "activations of normalized powers"),
        ("openpangu_v2", "convolutions over tokens within latent attention"),
    ],
)
def test_a_published_type_that_no_description_has_is_refused_with_its_part(model_type: str, part: str) -> None:
    """TOML is no way out for it, so the message does not name it as one."""
    with pytest.raises(InputError, match=f"its layers have {part}.*a description in TOML does not have either"):
        llmcalc.load({"model_type": model_type, "architectures": ["Unknown"], "auto_map": {}, "hidden_size": 8})
