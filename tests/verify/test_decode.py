"""FLOPs of one decoded token against the class: a pass that fills the cache, and then one over a single token that
reads it.

Of the families whose layers attend to keys and values as they are kept. Others are held against the reference alone:
without their kernels the classes decode convolutions and states with more products than it takes, and expand latents
that llmcalc counts absorbed (DeepSeek-V2, §2.1.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from llmcalc.costs.flops import forward_of
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.ops import AttentionCore, Buffer, Embedding, ExpertLinear, KVCache, Linear, Norm, Weight
from llmcalc.sources.huggingface.registry import FILES, read_config, text_of
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


def shapes(file: str) -> Iterator[tuple[str, dict[str, Any], ModelSpec]]:
    """(its name, a config, its spec) of a file's shapes: those with a window or a chunk, and one of each class."""
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
                yield f"{cls}-{i}", config, spec


@pytest.mark.parametrize("file", FILES)
def test_a_decoded_token_costs_what_its_class_does(file: str) -> None:
    for name, config, spec in shapes(file):
        measured, counted = _decoded(config, spec)
        assert measured == counted, name


def _decoded(config: dict[str, Any], spec: ModelSpec) -> tuple[int, Any]:
    """FLOPs of one token after others: what its class runs, and what is counted."""
    import torch

    model: Any = build(config)
    ids = torch.randint(3, spec.vocab_size - 1, (2, CONTEXT)).to(next(model.parameters()).device)
    kept = model(input_ids=ids, use_cache=True).past_key_values
    measured, _ = count_flops(model, lambda: model(input_ids=ids[:, :1], past_key_values=kept, use_cache=True))
    counted = total(
        text_of(config)[2],
        "forward_flops",
        forward_of,
        spec,
        sight(batch=2, seq=1, context=CONTEXT, phase="decode"),
    )
    return measured[""], counted


def test_most_families_of_decoders_are_here() -> None:
    assert len({config["model_type"] for file in FILES for _, config, _ in shapes(file)}) > 60
