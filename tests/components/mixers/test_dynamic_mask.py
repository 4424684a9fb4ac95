"""Doge: attention under a mask computed from the values, and experts of one unit that are selected by pairs of keys."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from llmcalc.components.base import ModelProperties
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.dynamic_mask import DynamicMaskAttention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.product_key import ProductKeyMoE
from llmcalc.components.runtime import PassState
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.ops import Linear
from llmcalc.ops.products import ExpertRows
from llmcalc.ops.sparse import MaskedAttentionCore
from llmcalc.sources.huggingface.description import read_config
from llmcalc.workload.rows_with_past import RowsWithPast
from tests.builders import run_config
from tests.samples import in_one_test

SHARED = FeedForward(intermediate_size=6, hidden_act="silu", gated=True)
CONFIG: dict[str, Any] = {
    "model_type": "doge",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "is_moe": True,
    "num_experts_per_tok": 3,
}


def test_decoding_maps_every_value_again() -> None:
    """10 values are cached and 1 is new; with a window of 4, 3 of the cached ones are visible."""
    after = run_config(batch=2, seq=1, context=10, phase="decode")
    assert Linear(6, 2, rows=RowsWithPast()).forward_flops(after) == 2 * 2 * (10 + 1) * 6 * 2
    assert Linear(6, 2, rows=RowsWithPast(window=4)).forward_flops(after) == 2 * 2 * (3 + 1) * 6 * 2
    assert Linear(6, 2, rows=RowsWithPast(window=4)).forward_flops(run_config(batch=2, seq=10)) == 2 * 2 * 10 * 6 * 2


@in_one_test
@pytest.mark.parametrize("window", [None, 3, 9])
@pytest.mark.parametrize("keep", [1, 4, 6, 50])
def test_all_keys_are_computed_with_and_some_are_kept(keep: int, window: int | None) -> None:
    core = MaskedAttentionCore(1, 1, 1, window=window, key_limit=keep)
    assert core.pairs(run_config(seq=7)) == 7 * 7
    held = 12 if window is None else window - 1
    assert core.pairs(run_config(seq=1, context=12, phase="decode")) == held + 1
    seen = [min(p + 1, keep, window or p + 1) for p in range(7)]
    assert core.pairs(run_config(seq=7, pairs="causal")) == sum(seen)


def test_the_strongest_keys_are_kept() -> None:
    torch.manual_seed(0)
    spec = DynamicMaskAttention(num_attention_heads=2, num_key_value_heads=2, head_dim=4, keep_window_size=3)
    net = spec.reference(ModelProperties(8))
    v = torch.randn(1, 2, 6, 4)
    with torch.no_grad():
        mask = net._learned_mask(v, torch.ones(6, 6, dtype=torch.bool).tril())  # type: ignore[operator]
        strength = net._learned_mask(v[:, :, :3], torch.ones(1, 3, dtype=torch.bool))  # type: ignore[operator]
    assert (mask > float("-inf")).sum(-1).tolist() == [[[1, 2, 3, 3, 3, 3]] * 2]
    assert torch.equal(mask[:, :, 2, :3], strength[:, :, 0])  # with few visible keys all are kept
    assert (mask[0, :, 5].amin(-1) == float("-inf")).all()


def test_experts_are_those_of_the_best_sums() -> None:
    torch.manual_seed(0)
    spec = ProductKeyMoE(num_experts=9, num_keys=3, num_experts_per_tok=2, hidden_act="silu", shared_expert=SHARED)
    net = spec.reference(ModelProperties(8)).double()
    x = torch.randn(1, 1, 8, dtype=torch.double)
    net.requires_grad_(False)
    rows, columns = net.router(x[0, 0]).chunk(2)  # type: ignore[operator]
    scores = {3 * i + j: float(rows[i] + columns[j]) for i, j in product(range(3), range(3))}
    best = sorted(scores, key=lambda e: -scores[e])[:2]
    weights = torch.tensor([scores[e] for e in best], dtype=torch.double).float().softmax(-1).double()
    down, up = net.experts.down_embed.weight, net.experts.up_embed.weight  # type: ignore[union-attr]
    expected = sum(w * torch.nn.functional.silu(down[e] @ x[0, 0]) * up[e] for e, w in zip(best, weights, strict=True))  # type: ignore[index]
    torch.testing.assert_close(net(x, PassState())[0, 0], expected + net.shared_expert(x)[0, 0], atol=1e-6, rtol=1e-5)


def test_an_expert_is_two_vectors() -> None:
    """A token uses 5 of 36 experts of width 8: 40 parameters, 2 FLOPs each, in either table."""
    rows = ExpertRows(36, 5, 8)
    assert (rows.params(), rows.active_params(), rows.forward_flops(run_config(seq=3))) == (288, 40, 3 * 80)


def test_experts_beyond_the_square_are_held() -> None:
    model = read_config({**CONFIG, "num_experts": 41})[0]
    experts = model["decoder"]["block"]["feed_forward"]
    assert (experts["num_experts"], experts["num_keys"]) == (41, 6)


def test_more_experts_than_stand_in_the_square_are_refused() -> None:
    with pytest.raises(InputError, match="num_experts_per_tok: 37; expected at most the 36 of 41 experts"):
        read_config({**CONFIG, "num_experts": 41, "num_experts_per_tok": 37})
    with pytest.raises(ValueError, match="num_keys: 4 rows and columns are more than num_experts 15"):
        ProductKeyMoE(num_experts=15, num_keys=4, num_experts_per_tok=1, hidden_act="silu", shared_expert=SHARED)


def test_heads_are_refused_where_hidden_size_has_nothing_for_them() -> None:
    with pytest.raises(InputError, match="num_attention_heads: 33; expected at most hidden_size 32"):
        read_config({**CONFIG, "num_attention_heads": 33})
    with pytest.raises(ValueError, match="head_dim: RoPE would rotate 5"):
        DynamicMaskAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=5, keep_window_size=8)


def test_every_layer_is_alike() -> None:
    spec = ModelSpec.model_validate(read_config({**CONFIG, "num_experts": 16, "sliding_window": 6})[0])
    assert isinstance(spec.main.block, Block)
    assert spec.main.block.residual_scale == "residual"
    assert not spec.main.variants
