"""Gated DeltaNet, gates on attention's output and on shared experts: a rank of Megatron-LM's own test of them."""

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

GDN: dict[str, Any] = {
    "--untie-embeddings-and-output-weights": True,
    "--num-layers": 6,
    "--hidden-size": 512,
    "--num-attention-heads": 8,
    "--group-query-attention": True,
    "--num-query-groups": 2,
    "--swiglu": True,
    "--position-embedding-type": "rope",
    "--rotary-percent": 0.5,
    "--no-rope-fusion": True,
    "--attention-output-gate": True,
    "--experimental-attention-variant": "gated_delta_net",
    "--linear-attention-freq": 3,
    "--linear-key-head-dim": 64,
    "--linear-value-head-dim": 64,
    "--linear-num-key-heads": 4,
    "--linear-num-value-heads": 8,
    "--num-experts": 32,
    "--moe-ffn-hidden-size": 64,
    "--moe-shared-expert-intermediate-size": 64,
    "--moe-shared-expert-gate": True,
    "--moe-router-topk": 8,
    "--disable-bias-linear": True,
    "--micro-batch-size": 4,
    "--global-batch-size": 32,
    "--seq-length": 1024,
    "--max-position-embeddings": 1024,
    "--vocab-size": 50257,
    "--tensor-model-parallel-size": 2,
    "--sequence-parallel": True,
    "--deterministic-mode": True,
    "--attention-backend": "unfused",
    "--bf16": True,
}
"""What sizes and kernels follow from, of gpt3_mcore_te_tp2_pp1_gdn of Megatron-LM's functional tests."""


launch = partial(launched, GDN, "gdn")


@compares(lambda: under("megatron", launch().spec), torch=False)
def test_a_rank_has_the_parameters_of_megatron() -> None:
    """Shapes of ssm/gated_delta_net/common.py, attention.py and moe/shared_experts.py, of one rank of two."""
    found = launch()
    run = RankRun(found.spec, found.framework_settings, 0, Meter())
    made = run.chunks[0].lowering.parameters_of(run.chunks[0].program)
    h, norm = 512, 2 * 512
    in_proj = (2 * 4 * 64 + 2 * 8 * 64 + 2 * 8) // 2 * h  # queries, keys, values, gate, and two numbers a head
    conv1d = (2 * 4 * 64 + 8 * 64) // 2 * 4
    delta = norm + in_proj + conv1d + 4 + 4 + 2 * 64 + h * 8 * 64 // 2  # dt_bias, A_log, out_norm, out_proj
    attention = norm + (2 * 8 + 2 * 2) * 64 // 2 * h + h * 8 * 64 // 2  # queries and gates, keys and values
    expert = 2 * 64 // 2 * h + h * 64 // 2
    experts = norm + 32 * h + 33 * expert + h  # router, 32 experts and a shared one, its gate
    tables = 2 * 50432 // 2 * h
    assert sum(one.element_count for one in made) == tables + 4 * delta + 2 * attention + 6 * experts + norm


def saved(**changes: Any) -> int:
    """Bytes that a layer of gated DeltaNet holds for its backward pass, from runs of two and three layers."""
    more = [
        rank_memory(one.spec, one.framework_settings, 0).peak_bytes
        for one in (
            launch(num_layers=n, linear_attention_freq="[1]*" + str(n), train_iters=1, **changes) for n in (2, 3)
        )
    ]
    return more[1] - more[0]


def test_the_deterministic_rule_holds_more() -> None:
    """torch's operations in fp32 keep what one kernel computes again."""
    assert saved() > 2 * saved(deterministic_mode=None)


@pytest.mark.parametrize("gate", ["attention_output_gate", "moe_shared_expert_gate"])
def test_a_gate_holds_more(gate: str) -> None:
    found = [launch(**{gate: value}, linear_attention_freq="[0]*6") for value in (True, None)]
    more, less = (rank_memory(one.spec, one.framework_settings, 0).peak_bytes for one in found)
    assert more > less


@in_one_test
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_attention_freq": None}, "--linear-attention-freq: missing"),
        ({"linear_attention_freq": "[1,0]"}, "--linear-attention-freq: a pattern of 2 layers; expected one of 6"),
        ({"linear_num_key_heads": 3}, "--linear-num-key-heads: 3; expected a divisor of 8"),
        ({"transformer_impl": "local"}, "--transformer-impl local: has no gated DeltaNet"),
        ({"experimental_attention_variant": "gdn2"}, "--experimental-attention-variant"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        launch(**changes)


def test_heads_that_ranks_do_not_divide_are_refused() -> None:
    found = launch(tensor_model_parallel_size=8)
    with pytest.raises(InputError, match="--tp 8: does not divide linear_num_key_heads 4"):
        rank_memory(found.spec, found.framework_settings, 0)


def test_a_sequence_over_several_ranks_is_refused() -> None:
    found = launch(context_parallel_size=2)
    with pytest.raises(InputError, match="expected no --cp"):
        rank_memory(found.spec, found.framework_settings, 0)
