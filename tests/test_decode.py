"""FLOPs of one decoded token against the class: a pass that fills the cache, and then one over a single token that
reads it.

Of the families whose layers attend to keys and values as they are kept. Others are held against the reference alone:
without their kernels the classes decode convolutions and states with more products than it takes, and expand latents
that llmcalc counts absorbed (DeepSeek-V2, §2.1.2).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from llmcalc.costs.flops import forward_of
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.ops import AttentionCore, Buffer, Embedding, ExpertLinear, KVCache, Linear, Norm, Weight
from llmcalc.sources.huggingface.registry import FILES, read_config
from llmcalc.verify.deviations import total
from llmcalc.verify.measure import count_flops
from llmcalc.verify.transformers import build
from tests.builders import sight

CONTEXT = 40
ATTENTION_AND_MAPS = (AttentionCore, Buffer, Embedding, ExpertLinear, KVCache, Linear, Norm, Weight)
OTHERWISE = {
    "openai-gpt": "its class keeps no cache",
    "gpt_neo": "its local layers attend to all that they keep, which is everything",
}


def _plain(node: Node) -> bool:
    """Whether a node runs in one form alone, and is attention or a map."""
    return node.op is None or (type(node.op) in ATTENTION_AND_MAPS and not node.forms)


def shapes() -> list[Any]:
    """Every shape with a window or a chunk, and one of each class."""
    found = []
    for file in FILES:
        for cls, some in import_module(f"tests.families.{file}").SHAPES.items():
            for i, shape in enumerate(some):
                config = {"architectures": [cls], **shape}
                spec = ModelSpec.model_validate(read_config(config)[0])
                nodes = [place.node for place in spec.tree().walk()]
                if (
                    spec.kind != "decoder"
                    or spec.head.type == "classification"
                    or not all(map(_plain, nodes))
                    or shape["model_type"] in OTHERWISE
                ):
                    continue
                if i == 0 or any(isinstance(n.op, KVCache) and n.op.limit is not None for n in nodes):
                    found.append(pytest.param(config, spec, id=f"{cls}-{i}"))
    return found


SHAPES = shapes()


@pytest.mark.parametrize(("config", "spec"), SHAPES)
def test_a_decoded_token_costs_what_its_class_does(config: dict[str, Any], spec: ModelSpec) -> None:
    import torch

    model: Any = build(config)
    ids = torch.randint(3, spec.vocab_size - 1, (2, CONTEXT)).to(next(model.parameters()).device)
    kept = model(input_ids=ids, use_cache=True).past_key_values
    measured, _ = count_flops(model, lambda: model(input_ids=ids[:, :1], past_key_values=kept, use_cache=True))
    counted = total(
        type(model).__name__,
        "forward_flops",
        forward_of,
        spec,
        sight(batch=2, seq=1, context=CONTEXT, phase="decode"),
    )
    assert measured[""] == counted


def test_most_families_of_decoders_are_here() -> None:
    assert len({param.values[0]["model_type"] for param in SHAPES}) > 60
