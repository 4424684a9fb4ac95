"""Memory of ranks of Megatron runs beside published measurements: runs on 8 B200s, and Megatron's own CI.

The rows are those of tests/data/measured_training.json, each with its source. No term was fitted to them.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.device.megatron import rank_memory, replay_rank
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.run.megatron import MegatronSettings
from llmcalc.sources.launch.megatron import read_megatron

Row = dict[str, Any]
MIB = 2**20
ROWS: list[Row] = json.loads((Path(__file__).parents[1] / "data" / "measured_training.json").read_text())["rows"]
B200 = [row for row in ROWS if row["kind"] == "train_peak_mem+iter_time"]
CI = [row for row in ROWS if row["kind"] == "train_peak_mem_ci_golden"]

MODELS = {"llama3-70b": "llama3-70b", "llama3-405b": "llama3.1-405b", "deepseekv2": "deepseek-v2"}

REFUSED = {
    "gpt/gpt3_weekly_mcore_tp4_cp2_current_scaling_native_fp8_tp_sp_cp_tp_overlap/h100": "--fp8-format",
    "nemotron/nemotron3_5_lightning_nightly_tp1_pp1_cp1_ep8_dgx_gb200/gb200": "--moe-token-dispatcher-type",
}
"""Row → the argument that is not modelled."""

WITHIN = {
    "gpt/gpt3_mcore_te_tp1_pp2_resume_torch_dist_rope_embeddings/gb200": (0.95, 0.35),
    "gpt/gpt3_mcore_te_tp2_pp2_cp2_nondeterministic_1node/gb200": (0.5, 1.0),
    "gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist_reshard_1x4xNone_1node/gb200": (0.6, 0.5),
    "moe/gpt3_mcore_tp2_cp2_pp2_ep2_te_4experts2parallel_dp_last/gb200": (0.5, 0.75),
    "moe/gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed/h100": (0.5, 5.7),
    "moe/gpt3_moe_mcore_te_ep8_resume_torch_dist_dist_optimizer_1node/gb200": (0.5, 1.4),
    "moe/gpt3_moe_mcore_te_tp4_ep2_etp2_pp2_resume_torch_dist_dist_optimizer/h100": (0.5, 1.7),
}
"""Row → the errors reached, in percent: of bytes after a step, and of the peak."""

USUAL = 0.5, 0.5


def name(row: Row) -> str:
    return str(row["id"])


def b200_run(row: Row) -> tuple[ModelSpec, MegatronSettings]:
    """The run of a row, whose configuration has names of its own (SimuMax)."""
    c, p = row["model_config"], row["parallelism"]
    spec = llmcalc.load(MODELS[row["model"]]).model
    assert spec.decoder is not None
    changes: dict[str, Any] = {"num_hidden_layers": c["layer_num"]}
    given: dict[str, Any] = {
        "num_layers": c["layer_num"],
        "hidden_size": c["hidden_size"],
        "ffn_hidden_size": c["intermediate_size"],
        "num_attention_heads": c["head_num"],
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "disable_bias_linear": True,
        "swiglu": True,
        "untie_embeddings_and_output_weights": True,
        "vocab_size": c["vocab_size"],
        "tokenizer_type": "NullTokenizer",
        "micro_batch_size": row["micro_batch"],
        "global_batch_size": row["global_batch"],
        "seq_length": row["seq_len"],
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "bf16": True,
        "tensor_model_parallel_size": p["tp"],
        "pipeline_model_parallel_size": p["pp"],
        "context_parallel_size": p["cp"],
        "expert_model_parallel_size": p["ep"],
        "sequence_parallel": p["sp"],
        "use_distributed_optimizer": True,
        "cp_comm_type": (p["cp_comm"] or "p2p",),
        "no_create_attention_mask_in_dataloader": True,
        "world_size": row["n_gpus"],
        "gpu": "B200",
        "date": datetime.date(2025, 10, 8),
    }
    if c["model_type"] == "moe":
        given |= {
            "num_experts": c["expert_num"],
            "moe_ffn_hidden_size": c["moe_ffn_hidden_size"],
            "moe_shared_expert_intermediate_size": c["moe_shared_expert_intermediate_size"],
            "moe_router_topk": c["topk"],
            "moe_layer_freq": tuple(int(i >= c["dense_layers"]) for i in range(c["layer_num"])),
            "moe_grouped_gemm": True,
            "moe_permute_fusion": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_expert_capacity_factor": 1.0,
            "moe_pad_expert_input_to_capacity": True,
            "expert_tensor_parallel_size": 1,
            "multi_latent_attention": True,
            "q_lora_rank": c["q_lora_rank"],
            "kv_lora_rank": c["kv_lora_rank"],
            "qk_head_dim": c["qk_head_dim"],
            "qk_pos_emb_head_dim": c["qk_pos_emb_head_dim"],
            "v_head_dim": c["v_head_dim"],
        }
    else:
        attention = spec.decoder.block.attention.model_copy(update={"num_key_value_heads": c["kv_head_num"]})
        changes["block"] = spec.decoder.block.model_copy(update={"attention": attention})
        given |= {
            "kv_channels": c["head_size"],
            "group_query_attention": True,
            "num_query_groups": c["kv_head_num"],
        }
    decoder = spec.decoder.model_copy(update=changes)
    return spec.model_copy(update={"vocab_size": c["vocab_size"], "decoder": decoder}), MegatronSettings(**given)


@pytest.mark.parametrize("row", B200, ids=name)
def test_peaks_of_b200_runs(row: Row) -> None:
    """Every stage's peak, and the segments, of runs on 8 B200s."""
    spec, settings = b200_run(row)
    per_stage = row["n_gpus"] // settings.pp
    for stage in range(settings.pp):
        found = rank_memory(spec, settings, stage * per_stage)
        of = [v for rank, v in row["measured"]["peak_mb_by_rank"].items() if int(rank) // per_stage == stage]
        peak = max(one["max_allocated_mb"] for one in of) * MIB
        reserved = max(one["max_reserved_mb"] for one in of) * MIB
        errors = 100 * (found.peak_bytes / peak - 1), 100 * (found.reserved_bytes / reserved - 1)
        print(f"{row['id']} stage {stage}: peak {errors[0]:+.4f} %, reserved {errors[1]:+.2f} %")
        assert abs(errors[0]) <= 0.001
        assert abs(errors[1]) <= 3


def ci_run(row: Row) -> tuple[ModelSpec, MegatronSettings]:
    """The run of a row of Megatron's CI, from its launch arguments and environment."""
    launch = read_megatron(
        row["megatron_args"],
        row["id"],
        world_size=row["n_gpus"],
        date=datetime.date.fromisoformat(row["golden_recorded"]),
        gpu=row["gpu"],
        env=row["env_vars"],
        script=f"pretrain_{row['id'].split('/')[0].replace('moe', 'gpt').replace('hybrid', 'mamba')}.py",
    )
    assert isinstance(launch.own, MegatronSettings)
    assert launch.spec is not None
    return launch.spec, launch.own


def errors_of(row: Row) -> tuple[float, float]:
    """Errors of the last rank's bytes after a step and of its peak, in percent."""
    spec, settings = ci_run(row)
    found = replay_rank(spec, settings, settings.world_size - 1)
    measured = row["measured"]
    after = 100 * (found.after / measured["mem_allocated_bytes"] - 1)
    return after, 100 * (found.allocated / measured["mem_max_allocated_bytes"] - 1)


@pytest.mark.parametrize("row", [row for row in CI if row["id"] not in REFUSED], ids=name)
def test_golden_values_of_megatrons_ci(row: Row) -> None:
    after, peak = errors_of(row)
    print(f"{row['id']}: after a step {after:+.3f} %, peak {peak:+.3f} %")
    bounds = WITHIN.get(row["id"], USUAL)
    assert abs(after) <= bounds[0]
    assert abs(peak) <= bounds[1]


@pytest.mark.parametrize("row", [row for row in CI if row["id"] in REFUSED], ids=name)
def test_what_is_not_modelled_is_refused_by_name(row: Row) -> None:
    with pytest.raises(InputError, match=REFUSED[row["id"]]):
        errors_of(row)
