"""Latent attention to tokens that an indexer selects: a rank of Megatron-LM's own test of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.megatron.rank_memory import rank_memory
from llmcalc.frameworks.megatron.rank_run import RankRun
from llmcalc.simulator.meter import Meter
from tests.comparisons import compares, under
from tests.device_memory.launches import launched
from tests.samples import in_one_test

DSA: dict[str, Any] = {
    "--untie-embeddings-and-output-weights": True,
    "--num-layers": 4,
    "--hidden-size": 512,
    "--num-attention-heads": 8,
    "--multi-latent-attention": True,
    "--q-lora-rank": 192,
    "--kv-lora-rank": 64,
    "--qk-head-dim": 16,
    "--qk-pos-emb-head-dim": 8,
    "--v-head-dim": 16,
    "--experimental-attention-variant": "dsa",
    "--disable-bias-linear": True,
    "--dsa-indexer-n-heads": 64,
    "--dsa-indexer-head-dim": 128,
    "--dsa-indexer-topk": 2048,
    "--dsa-indexer-loss-coeff": 0.01,
    "--micro-batch-size": 4,
    "--global-batch-size": 32,
    "--seq-length": 1024,
    "--max-position-embeddings": 1024,
    "--vocab-size": 50257,
    "--tensor-model-parallel-size": 2,
    "--pipeline-model-parallel-size": 2,
    "--sequence-parallel": True,
    "--bf16": True,
}
"""What sizes and kernels follow from, of gpt3_mcore_te_tp2_pp2_dsa of Megatron-LM's functional tests."""


launch = partial(launched, DSA, "dsa")


@compares(lambda: under("megatron", launch().spec), torch=False)
def test_a_rank_has_the_parameters_of_megatron() -> None:
    """Shapes of absorbed_mla.py and dsa.py, of one rank of two in the first of two stages."""
    found = launch()
    run = RankRun(found.spec, found.framework_settings, 0, Meter())
    made = run.chunks[0].lowering.parameters_of(run.chunks[0].program)
    h, norm = 512, 2 * 512
    down = 192 * h + (64 + 8) * h
    up = 8 * (16 + 8) // 2 * 192 + 8 * (16 + 16) // 2 * 64
    indexer = 64 * 128 * 192 + 128 * h + 2 * 128 + 64 * h  # queries, keys and their norm, weights of heads
    layer = norm + down + up + indexer + h * 8 * 16 // 2 + norm + 2 * (4 * h // 2) * h
    assert sum(one.element_count for one in made) == 50432 // 2 * h + 1024 * h + 2 * layer


def test_the_loss_of_the_indexer_holds_more_than_three_times_its_scores() -> None:
    """In its backward pass: two scores, the mask as a number and as a byte, [tokens, batch, index heads, tokens]."""
    scores = 4 * 1024 * 4 * 64 * 1024
    found = launch()
    with_loss = rank_memory(found.spec, found.framework_settings, 0).peak_bytes
    found = launch(dsa_indexer_loss_coeff=None)
    without = rank_memory(found.spec, found.framework_settings, 0).peak_bytes
    assert 3.25 * scores < with_loss < 5 * scores
    assert 2 * scores < without < with_loss - scores


@in_one_test
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"multi_latent_attention": None}, "--experimental-attention-variant"),
        ({"dsa_kernel_backend": "tilelang"}, "--dsa-kernel-backend"),
        ({"dsa_indexer_topk_freq": 2}, "--dsa-indexer-topk-freq"),
        ({"dsa_indexer_use_sparse_loss": True}, "--dsa-indexer-use-sparse-loss"),
        ({"disable_dsa_indexer_scoring_relu": True}, "--no-dsa-indexer-scoring-relu"),
        ({"dsa_indexer_topk": None}, "--dsa-indexer-topk: missing"),
        ({"disable_bias_linear": None}, "--disable-bias-linear: missing"),
        ({"recompute_granularity": "selective"}, "--recompute"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        launch(**changes)


def test_a_sequence_over_several_ranks_is_refused() -> None:
    found = launch(context_parallel_size=2)
    with pytest.raises(InputError, match="expected no --cp"):
        rank_memory(found.spec, found.framework_settings, 0)
