"""Drafts of Gemma 4 against their classes, which transformers 5.23 can build only without its check of shared layers.

The check (`kv_sharing_modes` of the text model's config) expects a layer that computes keys and values for those that
share them. Here all layers share, as the classes say, and the target's keys and values are zeros.
"""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.builders import spec_of
from tests.families.drafts.gemma4_assistant import SHAPES

BATCH, KEYS = 2, 7
CASES = {f"{cls}-{i}": (cls, shape) for cls, shapes in SHAPES.items() for i, shape in enumerate(shapes)}


def _built(monkeypatch: pytest.MonkeyPatch, cls: str, shape: dict[str, Any]) -> Any:
    """The class with random weights."""
    transformers = pytest.importorskip("transformers")
    fields = {name: value for name, value in shape.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(shape["model_type"], **fields)
    config._attn_implementation = "eager"
    all_shared = property(lambda text: ["reuse"] * text.num_hidden_layers)
    monkeypatch.setattr(type(config.text_config), "kv_sharing_modes", all_shared)
    return getattr(transformers, cls)(config).eval()


def _of_target(text: Any) -> dict[str, Any]:
    """Keys and values of the target by kind of layer, [batch, heads, keys, size]; the class takes both kinds."""
    import torch

    sizes = {kind: text.per_layer_config[i] for i, kind in enumerate(text.layer_types)}
    sizes.setdefault("sliding_attention", sizes["full_attention"])
    tensors = {
        kind: torch.zeros(BATCH, layer.num_key_value_heads, KEYS, layer.head_dim) for kind, layer in sizes.items()
    }
    return {kind: (keys, keys) for kind, keys in tensors.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_draft_has_the_parameters_and_flops_of_its_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    cls, shape = CASES[name]
    model, spec = _built(monkeypatch, cls, shape), spec_of({"architectures": [cls], **shape})
    assert params(spec).total == sum(p.numel() for p in model.parameters())
    of_token = torch.zeros(BATCH, 1, 2 * shape["backbone_hidden_size"])
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=of_token, shared_kv_states=_of_target(model.config.text_config))
    workload = Workload(batch=BATCH, seq=1, context=KEYS - 1, phase="decode")
    assert flops(spec, RunConfig(workload)).total == counter.get_total_flops()
    assert kv(spec, BATCH, KEYS, "bfloat16").bytes == 0


E4B: dict[str, Any] = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": 2560,
    "use_ordered_embeddings": True,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 256,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_kv_shared_layers": 4,
        "vocab_size": 262144,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
}
"""Fields of google/gemma-4-E4B-it-assistant that change a count."""


def test_the_draft_of_gemma_4_e4b_has_its_published_size() -> None:
    """78.8M at https://huggingface.co/google/gemma-4-E4B-it-assistant, with a buffer of 262,144 ids and 4 scales."""
    draft = spec_of(E4B)
    assert round((params(draft).total + draft.vocab_size + 4) / 1e6, 1) == 78.8
    target = llmcalc.load("gemma4-e4b")
    drafted = llmcalc.params(target, draft=E4B).draft
    assert drafted is not None
    assert drafted.params == params(draft).total
    with pytest.raises(InputError, match="reads hidden states of width 2,560, and the target's have 5,376"):
        llmcalc.params("gemma4-31b", draft=E4B)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_centroids": 2047}, "num_centroids: 2047; expected a divisor of 262144 tokens"),
        ({"centroid_intermediate_top_k": 4096}, "centroid_intermediate_top_k: 4096; expected at most num_centroids"),
        ({"text_config": {**E4B["text_config"], "num_kv_shared_layers": 2}}, "text_config.num_kv_shared_layers: 2"),
        ({"text_config": {**E4B["text_config"], "enable_moe_block": True}}, "text_config.enable_moe_block: true"),
        ({"text_config": {"model_type": "llama"}}, "text_config: 'llama'"),
        ({"text_config": None}, "text_config"),
    ],
)
def test_a_config_that_its_class_refuses_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec_of({**E4B, **changes})
