"""Drafts of Gemma 4 against their classes, which transformers 5.23 can build only without its check of shared layers.

The check (`kv_sharing_modes` of the text model's config) expects a layer that computes keys and values for the layers that
share them. Here all layers share, as the classes say, and the target's keys and values are zeros.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
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
