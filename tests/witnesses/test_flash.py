"""The backward pass of flash attention against torch's own count; the eager passes of `verify` never run it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count

from llmcalc.flow.tree import NodePosition
from llmcalc.model import ModelSpec
from llmcalc.ops import AttentionCore
from llmcalc.sources.target import load
from tests.builders import SOME_PRESETS, family_shapes, run_config, spec_of
from tests.samples import in_one_test

BATCH, SEQ = 2, 24


def cores(spec: ModelSpec) -> list[tuple[NodePosition, AttentionCore]]:
    """Returns every attention op (query-key and score-value products) of a training step, with its place."""
    train = run_config(batch=BATCH, seq=SEQ, phase="training", attention="flash")
    places_and_ops = ((place, place.node.op) for place in spec.tree().walk(train) if not place.optional_part)
    without = {"no_grad", "kept", "idle"}
    return [(place, op) for place, op in places_and_ops if type(op) is AttentionCore and not without & place.roles]


def shapes(op: AttentionCore, keys: int) -> tuple[list[int], list[int], list[int]]:
    """Returns the shapes of its queries, keys and values, with keys and values repeated per query head."""
    queries = [BATCH, op.heads, SEQ, op.qk_dim]
    return queries, [BATCH, op.heads, keys, op.qk_dim], [BATCH, op.heads, keys, op.v_dim]


def agree(spec: ModelSpec) -> int:
    """Compares every attention op of a spec with torch's formula; returns their number."""
    checked = 0
    for place, op in cores(spec):
        use = place.counted_op
        assert use is not None
        assert place.run_config is not None
        if place.run_config.new_rows(op.rows) != SEQ:  # an encoder of fixed length
            continue
        keys = SEQ if op.keys is None else place.run_config.available_rows(op.keys)
        q, k, v = shapes(op, keys)
        grad = [BATCH, op.heads, SEQ, op.v_dim]
        assert use.backward_flops() == sdpa_backward_flop_count(grad, q, k, v), place.path
        checked += 1
    return checked


@in_one_test
@pytest.mark.parametrize("name", SOME_PRESETS)
def test_presets_as_torch_counts_it(name: str) -> None:
    spec = load(name).model
    assert agree(spec) or not cores(spec)


def test_families_as_torch_counts_it() -> None:
    assert sum(agree(spec_of(config)) for _, config in family_shapes()) > 500


@pytest.mark.parametrize(("name", "kv_heads"), [("gpt2", 12), ("llama3-8b", 8), ("gemma2-9b", 8)])
def test_it_is_what_a_run_of_the_kernel_counts(name: str, kv_heads: int) -> None:
    """Runs torch's flash kernel, forward and backward, on meta under the flop counter."""
    place, op = cores(load(name).model)[0]
    q, k, v = shapes(op, SEQ)
    k[1] = v[1] = kv_heads
    tensors: list[Any] = [torch.empty(*s, device="meta", dtype=torch.bfloat16, requires_grad=True) for s in (q, k, v)]
    with FlopCounterMode(display=False) as counter:
        out = torch.ops.aten._scaled_dot_product_flash_attention(*tensors, 0.0, True)[0]
        forward = counter.get_total_flops()
        out.sum().backward()
    use = place.counted_op
    assert use is not None
    assert (use.forward_flops(), use.backward_flops()) == (forward, counter.get_total_flops() - forward)
