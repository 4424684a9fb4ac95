"""Arguments of Megatron-LM that each change what a rank holds: the bytes of each, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.megatron.model_from_flags import model_of_arguments
from llmcalc.frameworks.megatron.rank_run import RankRun
from llmcalc.frameworks.megatron.schedule import run_step
from llmcalc.frameworks.megatron.settings import MegatronSettings
from llmcalc.frameworks.megatron.unsupported import unmodelled_arguments
from llmcalc.simulator.meter import Meter

H, HEADS, FFN, VOCAB, SEQ = 512, 8, 1024, 1024, 256

ENGINE = 32 * 1024 * 1024 + 1024
"""Bytes of a workspace of Transformer Engine."""


def settings(layers: int = 2, **changes: Any) -> MegatronSettings:
    given: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": H,
        "num_attention_heads": HEADS,
        "ffn_hidden_size": FFN,
        "max_position_embeddings": SEQ,
        "position_embedding_type": "none",
        "seq_length": SEQ,
        "micro_batch_size": 2,
        "vocab_size": VOCAB,
        "tokenizer_type": "NullTokenizer",
        "normalization": "RMSNorm",
        "swiglu": True,
        "disable_bias_linear": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "untie_embeddings_and_output_weights": True,
        "no_create_attention_mask_in_dataloader": True,
        "bf16": True,
    }
    return MegatronSettings(**{**given, **changes})


EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "moe_router_topk": 2,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_router_dtype": "fp32",
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 2,
    "world_size": 2,
}

LATENT: dict[str, Any] = {
    "multi_latent_attention": True,
    "position_embedding_type": "rope",
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 32,
    "qk_layernorm": True,
}

HYBRID: dict[str, Any] = {
    "kind": "hybrid",
    "num_layers": None,
    "mamba_state_dim": 64,
    "mamba_num_groups": 4,
    "is_hybrid_model": True,
}


def run_of(one: MegatronSettings) -> RankRun:
    run = RankRun(model_of_arguments(one, ""), one, one.world_size - 1, Meter())
    run.set_up()
    return run


def saved(one: MegatronSettings) -> int:
    """Bytes that the second forward pass leaves; what stays is there from the first."""
    run = run_of(one)
    run.backward(None, run.forward(run.chunks[0], None), None)
    before = run.meter.live_bytes
    chunk_output = run.forward(run.chunks[0], None)
    saved_bytes = int(run.meter.live_bytes - before)
    del chunk_output
    return saved_bytes


def of_a_layer(**changes: Any) -> int:
    return saved(settings(3, **changes)) - saved(settings(2, **changes))


def after(one: MegatronSettings) -> int:
    run = run_of(one)
    run_step(run)
    run_step(run)
    return int(run.meter.live_bytes)


def test_scaled_logits_are_a_second_tensor_for_a_moment() -> None:
    peaks = {}
    for name, more in {
        "plain": {},
        "scaled": {"mup_base_hidden_size": H // 2},
        "base": {"mup_base_hidden_size": H},
    }.items():
        run = run_of(settings(use_mup=bool(more), **more))
        run.meter.restart()
        run.forward(run.chunks[0], None)
        peaks[name] = max(peak.bytes for place, peak in run.meter.peaks.items() if place.path == "lm_head")
    assert peaks["scaled"] - peaks["plain"] == 2 * 2 * SEQ * VOCAB
    assert peaks["base"] == peaks["plain"]


def test_overlapped_products_have_a_workspace_of_three_streams_and_buffers_elsewhere() -> None:
    """The gathered rows, and the whole output of a row product, are in no tensor."""
    both: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "world_size": 2}
    assert after(settings(**both, tp_comm_overlap=True)) - after(settings(**both)) == 3 * ENGINE
    assert of_a_layer(**both, tp_comm_overlap=True) == of_a_layer(**both)
    alone = {"tensor_model_parallel_size": 2, "world_size": 2}
    assert after(settings(**alone, tp_comm_overlap=True)) == after(settings(**alone))


def test_heads_are_exchanged_inside_of_a_ring_too() -> None:
    """The output before its all-to-all stays saved; a ring alone has none."""
    cp: dict[str, Any] = {"context_parallel_size": 4, "world_size": 4, "attention_backend": "fused"}
    ring = of_a_layer(**cp)
    assert of_a_layer(**cp, cp_comm_type=("a2a",)) - ring == 2 * 2 * SEQ // 4 * H
    assert of_a_layer(**cp, cp_comm_type=("a2a+p2p",)) - ring == 2 * 2 * SEQ // 4 * H


def test_softmax_without_a_kernel_keeps_float32() -> None:
    """Its result in float32 and the shares in bf16, in place of the shares alone; the mask is made once for all."""
    own: dict[str, Any] = {"transformer_impl": "local", "attention_backend": "local"}
    scores = 2 * HEADS * SEQ * SEQ
    fused = of_a_layer(**own)
    plain = of_a_layer(**own, no_masked_softmax_fusion=True)
    wide = of_a_layer(**own, no_masked_softmax_fusion=True, attention_softmax_in_fp32=True)
    assert plain == fused
    assert wide - plain == 4 * scores
    mask = after(settings(**own, no_masked_softmax_fusion=True)) - after(settings(**own))
    assert mask == SEQ * SEQ
    given = {"no_create_attention_mask_in_dataloader": False}
    assert after(settings(**own, no_masked_softmax_fusion=True, **given)) == after(settings(**own, **given))


def test_hybrid_dispatch_keeps_its_handle_with_what_it_names() -> None:
    """4 bytes per token and rank, a byte per token, and 5 bytes per token of any rank and expert of this one."""
    ranks, local, rows = 2, 4, 2 * SEQ
    handle = 4 * rows * ranks + rows + rows * ranks * local * (1 + 4)
    flex = {**EXPERTS, "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    named = rows * 8 + 4 * rows * 8 + 4 * rows * 2  # the map and the probabilities, and those of the rows that came
    growth = after(settings(3, **flex)) - after(settings(2, **flex))
    weights = after(settings(3, **EXPERTS)) - after(settings(2, **EXPERTS))
    sorted_rows = rows * 8 + 4 * rows * 8 + 4 * (2 * 8 + 1) * rows  # what the other dispatcher names
    assert growth - weights == handle + named - sorted_rows


def test_other_ways_to_experts_are_refused() -> None:
    one = settings(**{**EXPERTS, "moe_token_dispatcher_type": "flex"})
    assert "--moe-flex-dispatcher-backend" in unmodelled_arguments(one)
    with pytest.raises(InputError, match="--moe-flex-dispatcher-backend"):
        run_of(one)


def test_experts_weight_a_squared_relu_in_one_kernel() -> None:
    """By itself the kernel of the weights keeps the activation's output too."""
    relu = {**EXPERTS, "swiglu": False, "squared_relu": True}
    rows = 2 * SEQ * 2
    difference = of_a_layer(**relu) - of_a_layer(**relu, use_fused_weighted_squared_relu=True)
    assert difference == 2 * rows * FFN


@pytest.mark.parametrize(
    ("kinds", "factors", "has_auxiliary_loss"),
    [
        (("aux_loss",), (0.01,), True),
        (("aux_loss",), (0.0,), False),
        (("seq_aux_loss",), (0.01,), True),
        (("sinkhorn",), (0.01,), False),
        (("none", "global_aux_loss"), (0.0, 0.01), True),
    ],
)
def test_losses_of_the_router_keep_its_scores(
    kinds: tuple[str, ...], factors: tuple[float, ...], has_auxiliary_loss: bool
) -> None:
    more = {"moe_router_load_balancing_type": kinds, "moe_aux_loss_coeff": factors}
    assert settings(**EXPERTS, **more).has_auxiliary_loss is has_auxiliary_loss
    without = of_a_layer(**EXPERTS, moe_router_load_balancing_type=("none",))
    assert of_a_layer(**EXPERTS, **more) - without == (4 * 2 * SEQ * 8 if has_auxiliary_loss else 0)


def test_a_repeated_layer_of_later_tokens_has_its_weights_once() -> None:
    one, two, twice = (
        sum(
            one.element_count
            for one in run_of(settings(mtp_num_layers=n, mtp_use_repeated_layer=again)).chunks[0].parameters
        )
        for n, again in ((1, False), (2, False), (2, True))
    )
    layer = 4 * H * H + 3 * FFN * H + 2 * H
    assert two - one == layer + 2 * H * H + 3 * H  # the projection, and three norms
    assert twice == one
    kept = [saved(settings(mtp_num_layers=2, mtp_use_repeated_layer=again)) for again in (False, True)]
    assert kept[0] == kept[1]


def test_ranks_of_a_sequence_divide_the_heads_of_mamba_layers() -> None:
    """A rank keeps as much of a layer as one that has so many tokens for itself."""

    def of_a_mamba_layer(**more: Any) -> int:
        three, two = (settings(hybrid_layer_pattern=letters, **HYBRID, **more) for letters in ("MMM", "MM"))
        return saved(three) - saved(two)

    alone = of_a_mamba_layer(seq_length=SEQ // 2)
    divided = of_a_mamba_layer(context_parallel_size=2, world_size=2)
    small = 2 * 4 * (2 * H // 64) + 2 * 5 * (2 * H + 2 * 4 * 64)  # parts of parameters are copies
    assert abs(divided - alone) <= small


def again(*modules: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def test_norms_give_their_outputs_back() -> None:
    """The norm before experts; the one before attention too where attention is latent, whose first products are not
    one module with it. A norm that is one with its product keeps what it kept.
    """
    output = 2 * 2 * SEQ * H + 4 * 2 * SEQ  # and a number of each row
    assert of_a_layer(**EXPERTS) - of_a_layer(**EXPERTS, **again("layernorm")) == output
    latent: dict[str, Any] = {**EXPERTS, **LATENT}
    assert of_a_layer(**latent) - of_a_layer(**latent, **again("layernorm")) == 2 * output
    assert of_a_layer(**again("layernorm")) == of_a_layer()


def test_activations_of_experts_give_their_outputs_back() -> None:
    rows = 2 * SEQ * 2
    assert of_a_layer(**EXPERTS) - of_a_layer(**EXPERTS, **again("moe_act")) == 2 * rows * FFN
    relu = {**EXPERTS, "swiglu": False, "squared_relu": True}
    between = of_a_layer(**relu) - of_a_layer(**relu, **again("moe_act"))
    assert between == (4 + 2 + 2) * rows * FFN - 4 * rows * FFN  # shares in fp32 are no output of a kernel that stays
    with pytest.raises(InputError, match="--moe-grouped-gemm"):
        run_of(settings(**{**EXPERTS, "moe_grouped_gemm": False}, **again("moe_act")))


def test_projections_of_latents_give_queries_keys_and_values_back() -> None:
    """With them goes what their norms keep: their output, and a number of each row."""
    rows = 2 * SEQ
    queries = 2 * rows * HEADS * (2 * 48 + 32)
    norms = 2 * rows * (64 + 32) + 4 * rows * 2
    assert of_a_layer(**LATENT) - of_a_layer(**LATENT, **again("mla_up_proj")) == queries + norms


@pytest.mark.parametrize("module", ["layernorm", "moe_act", "mla_up_proj", "shared_experts"])
def test_what_runs_again_leaves_nothing(module: str) -> None:
    given: dict[str, Any] = {**EXPERTS, **LATENT, "moe_shared_expert_intermediate_size": FFN}
    assert after(settings(**given, **again(module))) == after(settings(**given))
    assert saved(settings(**given, **again(module))) < saved(settings(**given))


def test_experts_that_run_again_read_a_norm_that_does() -> None:
    """The router's second pass keeps the norm's output, whose memory is that of the norm's own second pass."""
    both = {**EXPERTS, **again("layernorm", "moe")}
    assert after(settings(**both)) == after(settings(**EXPERTS))
    assert saved(settings(**both)) < saved(settings(**EXPERTS, **again("moe")))


def test_batches_of_a_schedule() -> None:
    one = settings(step_batch_size_schedule="0:8 1.5B:16", world_size=2)
    assert one.batch_size == 8
    assert one.microbatches == 2
    for text in ("8", "1:8", "0:x", "0:0"):
        with pytest.raises(InputError, match="--step-batch-size-schedule"):
            settings(step_batch_size_schedule=text).check()
    with pytest.raises(InputError, match="no --global-batch-size"):
        settings(step_batch_size_schedule="0:8", global_batch_size=8).check()
