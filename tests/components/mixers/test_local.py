"""LongT5's encoder attention: the computed blocks, the pairs that its mask allows, and the tokens that a token attends
to.
"""

from __future__ import annotations

import numpy as np
import pytest
import sympy
import torch

from llmcalc.components.distance_bias import RelativeBias
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.local_attention import LocalAttention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.ops import Linear, Op
from llmcalc.ops.products import BlockSumMatmul
from llmcalc.ops.sparse import LocalAttentionCore
from llmcalc.sources.huggingface.description import read_config
from llmcalc.workload.counting import Pairs
from llmcalc.workload.derived_rows import RowsWithBlockSummaries
from tests.builders import run_config
from tests.samples import in_one_test

NEAR = LocalAttention(num_attention_heads=4, head_dim=6, local_radius=3)
SUMMING = LocalAttention(
    num_attention_heads=4, head_dim=6, local_radius=3, global_block_size=3, global_norm=Norm(type="rmsnorm")
)


def stack(attention: LocalAttention | Attention, bias: RelativeBias | None = None) -> Stack:
    feed_forward, norm = FeedForward(intermediate_size=8, hidden_act="relu"), Norm(type="rmsnorm")
    return Stack(
        num_hidden_layers=1,
        block=Block(attention=attention, feed_forward=feed_forward, norm=norm, norm_placement="pre"),
        relative_bias=bias,
    )


def encoder(attention: LocalAttention | Attention, bias: RelativeBias | None = None) -> ModelSpec:
    return ModelSpec(vocab_size=50, hidden_size=24, tie_word_embeddings=True, encoder=stack(attention, bias))


def test_blocks_are_computed_whole() -> None:
    """11 tokens are 3 blocks of 4; each of 3 · 4 queries is multiplied with 3 · 4 keys, and with block summaries with 3
    more.
    """
    assert LocalAttentionCore(1, 1, 1, radius=3).pairs(run_config(seq=11)) == 12 * 12
    assert LocalAttentionCore(1, 1, 1, radius=3, global_block=3).pairs(run_config(seq=11)) == 12 * (12 + 3)


def test_one_token_over_a_block_is_one_block_more() -> None:
    one, two = (LocalAttentionCore(1, 1, 1, radius=127).pairs(run_config(seq=n)) for n in (128, 129))
    assert (one, two) == (128 * 384, 256 * 384)


@in_one_test
@pytest.mark.parametrize("radius", [1, 2, 5, 30])
@pytest.mark.parametrize("seq", [1, 2, 3, 7, 12, 25])
def test_the_mask_lets_through_what_is_near_and_all_sums(radius: int, seq: int) -> None:
    w = run_config(seq=seq, pairs="causal")
    near = sum(abs(q - k) <= radius for q in range(seq) for k in range(seq))
    assert LocalAttentionCore(1, 1, 1, causal=False, radius=radius).pairs(w) == near
    assert LocalAttentionCore(1, 1, 1, causal=False, radius=radius, global_block=4).pairs(w) == near + seq * (seq // 4)


@pytest.mark.parametrize("pairs", ["full", "causal"])
@pytest.mark.parametrize(
    "op",
    [
        LocalAttentionCore(4, 6, 6, causal=False, radius=3),
        LocalAttentionCore(4, 6, 6, causal=False, radius=3, global_block=5),
        BlockSumMatmul(7, 3),
        Linear(7, 5, rows=RowsWithBlockSummaries(block_rows=3)),
    ],
    ids=["near", "with sums", "sums", "map"],
)
def test_integers_arrays_and_symbols_agree(op: Op, pairs: Pairs) -> None:
    n = sympy.Symbol("n", integer=True, positive=True)
    lengths = range(1, 30)
    one_by_one = [op.forward_flops(run_config(batch=2, seq=i, pairs=pairs)) for i in lengths]
    formula = op.forward_flops(run_config(batch=2, seq=n, pairs=pairs))
    assert list(op.forward_flops(run_config(batch=2, seq=np.array(lengths), pairs=pairs))) == one_by_one
    assert [formula.subs(n, i) for i in lengths] == one_by_one


@pytest.mark.parametrize(("attention", "furthest"), [(NEAR, 3), (SUMMING, 20)])
def test_a_token_sees_near_ones_and_sums(attention: LocalAttention, furthest: int) -> None:
    torch.manual_seed(0)
    bias = RelativeBias(num_attention_heads=4, of_blocks=attention is SUMMING)
    net = encoder(attention, bias).reference().eval()
    ids = torch.randint(0, 50, (1, 21))
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 50
    with torch.no_grad():
        differs = (net(ids) - net(changed)).abs().amax(-1)[0] > 1e-6
    assert differs.nonzero()[:, 0].tolist() == list(range(furthest + 1))


def test_it_stands_in_encoders_alone() -> None:
    with pytest.raises(ValueError, match=r"decoder.block.attention.type: 'local' is for encoders"):
        ModelSpec(vocab_size=50, hidden_size=24, tie_word_embeddings=True, decoder=stack(NEAR))


@pytest.mark.parametrize(
    ("attention", "of_blocks"), [(NEAR, True), (SUMMING, False), (Attention(num_attention_heads=4), True)]
)
def test_a_table_for_blocks_stands_beside_sums_of_blocks(
    attention: LocalAttention | Attention, of_blocks: bool
) -> None:
    with pytest.raises(ValueError, match=r"relative_bias.of_blocks"):
        encoder(attention, RelativeBias(num_attention_heads=4, of_blocks=of_blocks))


def test_a_norm_of_sums_needs_sums() -> None:
    with pytest.raises(ValueError, match="global_norm: there are no sums"):
        LocalAttention(num_attention_heads=4, head_dim=6, local_radius=3, global_norm=Norm(type="rmsnorm"))


def test_the_config_says_which_attention_the_encoder_has() -> None:
    with pytest.raises(InputError, match="encoder_attention_type: 'global'; expected one of local, transient-global"):
        read_config({"model_type": "longt5", "encoder_attention_type": "global"})
    model, notes = read_config(
        {"model_type": "longt5", "global_block_size": 32}
    )  # a field that local attention does not use
    assert model["encoder"]["block"]["attention"]["type"] == "local"
    assert not notes
