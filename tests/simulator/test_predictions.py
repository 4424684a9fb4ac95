"""Multi-token-prediction modules in training: their memory equals torch's, to the byte, with a loss of each of them."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.components.layers.hyper_layer import HyperStreams, hyper_example
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.stack import Stack
from llmcalc.model import ModelSpec
from llmcalc.optional import MTP
from tests.builders import spec_of
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model, decoder
from tests.simulator.models import by_torch, without_values

WITH_MTP = frozenset({MTP.name})

DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 2,
}

LAYER = decoder().main.block
HYPER, MERGED = HyperStreams(hc_mult=3), MultiTokenPrediction(num_nextn_predict_layers=1, layer="prediction")
STREAMS = Stack(num_hidden_layers=2, block=hyper_example(), streams=HYPER)
"""Hyper-connected layers, whose residual streams the modules read before they are merged (DeepSeek-V4)."""

MERGED_STREAMS = STREAMS.model_copy(update={"variants": {"prediction": LAYER}})
"""A layer without streams for the modules, which read the merged state (GLM-5.3)."""

MODELS = {
    **{f"MultiTokenPrediction-{i}": around_a_model(part) for i, part in enumerate(MultiTokenPrediction.examples())},
    "streams": around_a_model(MultiTokenPrediction.examples()[0]).model_copy(update={"decoder": STREAMS}),
    "merged streams": around_a_model(MultiTokenPrediction.examples()[0]).model_copy(
        update={"decoder": MERGED_STREAMS, "mtp": MERGED}
    ),
    "tied": around_a_model(MultiTokenPrediction.examples()[0]).model_copy(update={"tie_word_embeddings": True}),
    "DeepSeek-V3": spec_of(DEEPSEEK_V3),
}


@compares(lambda name: of_run(MODELS[name], include=WITH_MTP))
@pytest.mark.parametrize("name", MODELS)
def test_predictions_hold_what_torch_holds(name: str) -> None:
    spec: ModelSpec = MODELS[name]
    assert without_values(spec, include=WITH_MTP) == by_torch(spec, include=WITH_MTP)


def test_predictions_are_left_out_unless_they_are_included() -> None:
    spec = MODELS["DeepSeek-V3"]
    assert without_values(spec) == without_values(spec.model_copy(update={"mtp": None}))
