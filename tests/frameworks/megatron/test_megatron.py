"""Memory of ranks of Megatron runs beside published measurements: runs on 8 B200s, and Megatron's own CI.

The rows are those of tests/data/measured_training.json, each with its source. No term was fitted to them.
"""

from __future__ import annotations

import datetime
import json
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmcalc
from llmcalc.components.evidence import evidence_of_parts
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import LaunchSource
from llmcalc.frameworks.megatron.kernels.experts import ExpertKernels
from llmcalc.frameworks.megatron.launch_file import read_megatron
from llmcalc.frameworks.megatron.named_arguments import NamedModelArguments
from llmcalc.frameworks.megatron.param_and_grad_buffer import is_updated_by_muon
from llmcalc.frameworks.megatron.rank_memory import rank_memory, replay_rank
from llmcalc.frameworks.megatron.rank_run import OPTIMIZER_FLAG_COUNT, RankRun
from llmcalc.frameworks.megatron.run import check_run
from llmcalc.frameworks.megatron.schedule import InterleavedSchedule, run_step
from llmcalc.frameworks.megatron.settings import MegatronSettings
from llmcalc.frameworks.megatron.settings_from_options import main_gradient_and_state_bytes, megatron_settings_of
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.model import ModelSpec
from llmcalc.ops import Weight
from llmcalc.optional import MTP
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.meter import Meter
from tests.comparisons import Thing, compares, under
from tests.families.remote_code.gigachat import SHAPES
from tests.simulator.allocator_witness import WitnessAllocator

Row = dict[str, Any]
MIB = 2**20
ROWS: list[Row] = json.loads((Path(__file__).parents[2] / "data" / "measured_training.json").read_text())["rows"]
B200 = [row for row in ROWS if row["kind"] == "train_peak_mem+iter_time"]
CI = [row for row in ROWS if row["kind"] == "train_peak_mem_ci_golden"]

MODELS = {"llama3-70b": "llama3-70b", "llama3-405b": "llama3.1-405b", "deepseekv2": "deepseek-v2"}

WITHIN = {
    "gpt/gpt3_weekly_mcore_tp4_cp2_current_scaling_native_fp8_tp_sp_cp_tp_overlap/h100": (0.53, 0.36),
    "gpt/gpt3_mcore_te_tp2_pp2_cp2_nondeterministic_1node/gb200": (0.5, 1.0),
    "moe/gpt3_mcore_tp2_cp2_pp2_ep2_te_4experts2parallel_dp_last/gb200": (0.5, 0.75),
    "moe/gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed/h100": (0.5, 5.7),
    "moe/gpt3_moe_mcore_te_ep8_resume_torch_dist_dist_optimizer_1node/gb200": (0.5, 1.4),
    "moe/gpt3_moe_mcore_te_tp4_ep2_etp2_pp2_resume_torch_dist_dist_optimizer/h100": (0.5, 1.7),
    "nemotron/nemotron3_5_lightning_nightly_tp1_pp1_cp1_ep8_dgx_gb200/gb200": (0.01, 9.99),
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
            "moe_aux_loss_coeff": (0.01,),
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


@compares(lambda row: under("megatron", b200_run(row)[0], "adamw"), torch=False)
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
        assert abs(errors[0]) <= 0.003
        assert abs(errors[1]) <= 3


def ci_run(row: Row) -> tuple[ModelSpec, MegatronSettings]:
    """The run of a row of Megatron's CI, from its launch arguments and environment."""
    launch = read_megatron(
        row["megatron_args"],
        LaunchSource(
            row["id"],
            world_size=row["n_gpus"],
            release_date=datetime.date.fromisoformat(row["golden_recorded"]),
            gpu=row["gpu"],
            env=row["env_vars"],
            script_name=f"pretrain_{row['id'].split('/')[0].replace('moe', 'gpt').replace('hybrid', 'mamba')}.py",
        ),
    )
    assert isinstance(launch.framework_settings, MegatronSettings)
    assert launch.spec is not None
    return launch.spec, launch.framework_settings


def errors_of(row: Row) -> tuple[float, float]:
    """Errors of the last rank's bytes after a step and of its peak, in percent."""
    spec, settings = ci_run(row)
    found = replay_rank(spec, settings, settings.world_size - 1)
    measured = row["measured"]
    after = 100 * (found.final_bytes / measured["mem_allocated_bytes"] - 1)
    allocated = found.peak[1].bytes + found.rounding_bytes
    return after, 100 * (allocated / measured["mem_max_allocated_bytes"] - 1)


def ci_things(row: Row) -> set[Thing]:
    """What a row runs. Its optimizer is AdamW by its name in torch."""
    spec, settings = ci_run(row)
    with_mtp = frozenset({MTP.name}) if settings.mtp_num_layers else frozenset()
    parts = {Thing(one.kind, one.name, "megatron") for one in evidence_of_parts(spec, with_mtp)}
    return under("megatron", spec, {"adam": "adamw"}.get(settings.optimizer, settings.optimizer)) | parts


@compares(ci_things, torch=False)
@pytest.mark.parametrize("row", CI, ids=name)
def test_golden_values_of_megatrons_ci(row: Row) -> None:
    after, peak = errors_of(row)
    print(f"{row['id']}: after a step {after:+.3f} %, peak {peak:+.3f} %")
    bounds = WITHIN.get(row["id"], USUAL)
    assert abs(after) <= bounds[0]
    assert abs(peak) <= bounds[1]


def test_a_peak_of_even_routing_is_that_of_the_first_steps() -> None:
    """A mixture's log rises from 155.6 GB at its second step, before the router prefers experts, to 173.0 GB."""
    row = next(row for row in CI if "mem_max_allocated_bytes_at_step_2" in row["measured"])
    at_its_end, at_step_2 = (row["measured"][f"mem_max_allocated_bytes{name}"] for name in ("", "_at_step_2"))
    assert abs((1 + errors_of(row)[1] / 100) * at_its_end / at_step_2 - 1) < 0.002


# --- single terms ----------------------------------------------------------------------------------------------------

DENSE = "gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist/h100"
LATENT = "moe/gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed/h100"


def changed(row: str, **fields: Any) -> tuple[ModelSpec, MegatronSettings]:
    """The run of a row of Megatron's CI with other arguments."""
    spec, settings = ci_run(next(one for one in CI if one["id"] == row))
    return spec, replace(settings, **fields)


def kept(spec: ModelSpec, settings: MegatronSettings, rank: int | None = None) -> RankRun:
    """A rank after two steps, without an allocator that rounds."""
    run = RankRun(spec, settings, settings.world_size - 1 if rank is None else rank, Meter(WitnessAllocator()))
    run.set_up()
    run_step(run)
    run_step(run)
    return run


def test_an_answer_adds_up() -> None:
    spec, settings = changed(DENSE)
    found = rank_memory(spec, settings, settings.world_size - 1)
    assert sum(found.by_kind.values()) == found.peak_bytes
    assert sum(term.bytes for term in found.terms) == found.device_bytes
    assert found.peak_at == ("forward", "loss", found.peak_at.bytes)
    assert any(point.module_path.startswith("layers.11.") for point in found.timeline)
    assert set(found.moments) == {"forward", "backward", "step"}


def test_a_step_leaves_what_the_one_before_left() -> None:
    run = kept(*changed(LATENT))
    before = run.meter.live_bytes
    run_step(run)
    assert run.meter.live_bytes == before


def test_products_that_add_gradients_themselves_keep_a_tensor_for_each_shape() -> None:
    """TransformerEngine, module/base.py, `get_dummy_wgrad`."""
    spec, settings = changed(DENSE, no_gradient_accumulation_fusion=False)
    h, ffn, tp = spec.hidden_size, settings.ffn_width, settings.tp
    shapes = {(3 * h // tp, h), (h, h // tp), (ffn // tp, h), (h, ffn // tp), (spec.vocab_size // tp, h)}
    assert set(kept(spec, settings).persistent.dummy_gradients) == shapes
    assert not kept(*changed(DENSE)).persistent.dummy_gradients


def test_workspaces_follow_the_environment() -> None:
    spec, settings = changed(DENSE)
    small = kept(spec, replace(settings, env={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}))
    sizes = {name: storage.bytes for name, storage in small.persistent.workspaces.items()}
    assert sizes["cuBLAS, forward"] == sizes["cuBLAS, backward"] == 16 * 8 * 1024
    assert sizes["Transformer Engine"] == 32 * MIB + 1024


def test_each_layer_of_latent_attention_has_tables_of_its_own() -> None:
    """Angles in fp32, and cosines and sines of YaRN, which are in bf16 with the model."""
    spec, settings = changed(LATENT)
    run = kept(spec, settings)
    layers = settings.layer_count // 2 + 1  # and one of multi-token prediction
    assert sum(one.bytes for one in run.rope_tables) == layers * 2 * 2 * 4096 * 64
    assert sum(1 for one in run.persistent_storages if one.bytes == 4 * 4096 * 64) >= layers


@pytest.mark.parametrize(("first", "second"), [("", "core"), ("core", "full"), ("full", "pairs")])
def test_recomputation_lowers_what_a_micro_batch_keeps(first: str, second: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "": {},
        "core": {"recompute_granularity": "selective"},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        "pairs": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
    }
    saved = []
    for name in (first, second):
        spec, settings = changed(DENSE, **arguments[name])
        run = kept(spec, settings)
        before, x = run.meter.live_bytes, run.receive_hidden_states()
        output = run.forward(run.chunks[0], x)
        saved.append(run.meter.live_bytes - before)
        del output
    assert saved[0] > saved[1]


def test_full_recomputation_keeps_the_inputs_of_layers() -> None:
    spec, settings = changed(DENSE, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    run = kept(spec, settings)
    run.chunks[0].input_tensor = x = (
        run.receive_hidden_states()
    )  # in the place of that of the step before, and its gradient
    before = run.meter.live_bytes
    output = run.forward(run.chunks[0], x)
    hidden, layers = x.bytes, len(run.chunks[0].stage.layers) if run.chunks[0].stage else 0
    logits = run.run_config.batch * run.run_config.workload.seq * spec.vocab_size // settings.tp
    head = 2 * hidden + 4 * logits  # input and output of the last norm, and the softmax
    rest = run.meter.live_bytes - before - head - (layers - 1) * hidden
    assert 0 < rest < hidden / 20  # statistics, targets
    del output


def test_deferred_gradients_wait_for_the_end_of_the_step() -> None:
    """Each has its gradient of the logits and the input, whose graph holds what entered the stage, and its gradient."""
    spec, settings = changed(DENSE, no_gradient_accumulation_fusion=False, global_batch_size=32)
    peaks = []
    for limit in (None, 1, 2, 0):
        how = replace(settings, defer_embedding_wgrad_compute=limit is not None, wgrad_deferral_limit=limit or 0)
        peaks.append(max(peak.bytes for peak in kept(spec, how).meter.peaks.values()))
    tokens = (settings.micro_batch_size or 1) * settings.sequence_length
    logits, hidden = 2 * tokens * spec.vocab_size // settings.tp, 2 * tokens * spec.hidden_size
    assert [after - before for before, after in pairwise(peaks)] == [
        logits + 3 * hidden,
        logits + 3 * hidden,
        logits + hidden,  # of the third micro-batch of four, the schedule still names what entered
    ]


def test_a_tensor_that_is_held_holds_what_its_graph_began_with() -> None:
    """torch: after a backward pass a graph has no saved tensors, but its leaves."""
    torch = pytest.importorskip("torch")
    for held in (True, False):
        entered = torch.ones(2, 2, requires_grad=True)
        hidden = torch.nn.functional.layer_norm(entered @ torch.ones(2, 2, requires_grad=True), (2,))
        waiting = [hidden] if held else []
        hidden.sum().backward()
        here = weakref.ref(entered)
        del entered, hidden
        assert (here() is not None) is held
        assert len(waiting) == held


@pytest.mark.parametrize(
    ("formats", "each"),
    [
        ({}, 2 + 4 + 4),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, 2 + 2 + 2),
        ({"main_params_dtype": "fp16"}, 10),
        ({"fp8_format": "e4m3", "fp8_recipe": "blockwise"}, 4 + 4 + 4),
        ({"fp8_format": "e4m3", "fp8_recipe": "delayed"}, 2 + 4 + 4),
    ],
)
def test_a_precision_aware_optimizer_keeps_what_bf16_weights_do_not_have(formats: dict[str, str], each: int) -> None:
    """Transformer Engine's FusedAdam, `store_param_remainders`: 16 bits of each fp32 main weight, and the states.

    With products in 8 bits whose scales are not delayed Megatron-Core has main weights itself, in fp32
    (core/optimizer/optimizer_config.py, `use_precision_aware_optimizer_no_fp8_or_ds_fp8`).
    """
    run = kept(*changed(DENSE, use_distributed_optimizer=True, use_precision_aware_optimizer=True, **formats))
    factors = (
        4
        * len(run.updated_element_counts)
        * sum(name not in ("fp32", "e4m3", "blockwise", "delayed") for name in formats.values())
    )
    assert run.meter.by_kind["optimizer"] == each * sum(run.updated_element_counts) + factors + 4 * OPTIMIZER_FLAG_COUNT


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compile": True}, "--compile: not modelled with --framework megatron; expected no --compile"),
        ({"dtype": "float32"}, "--dtype fp32"),
        ({"optimizer_dtype": "bfloat16"}, "expected --precision-aware-optimizer too"),
        ({"grad_dtype": "float16"}, "--grad-dtype fp16: not Megatron's; expected fp32 or the weights' format"),
        ({"master_weights": "none"}, "--master-weights none"),
    ],
)
def test_settings_that_megatron_has_not_are_refused(given: dict[str, Any], words: str) -> None:
    one = memory(llmcalc.load("mixtral-8x7b").model, Settings(phase="training", **given))
    with pytest.raises(InputError, match=words):
        megatron_settings_of(one, Layout(dp=8))


def test_a_files_arguments_of_a_named_model_join_those_of_the_options() -> None:
    mixtral_run = memory(llmcalc.load("mixtral-8x7b").model, Settings(phase="training"))
    arguments = NamedModelArguments(("moe_act",), uses_hybridep=True)
    of_file = megatron_settings_of(mixtral_run, Layout(dp=8, ep=8), named_arguments=arguments)
    assert (of_file.recomputed_modules, of_file.moe_token_dispatcher_type) == (("moe_act",), "flex")
    by_option = memory(llmcalc.load("mixtral-8x7b").model, Settings(phase="training", recompute="attention"))
    assert megatron_settings_of(by_option, Layout(dp=8), named_arguments=arguments).recomputed_modules == ("core_attn",)
    by_name = by_option.with_changes(recompute="modules:moe,layernorm")
    assert megatron_settings_of(by_name, Layout(dp=8)).recomputed_modules == ("layernorm", "moe")


@pytest.mark.parametrize("words", ["memory --fsdp 8", "memory", "time --hardware h100", "fit --hardware h100"])
def test_modules_of_megatron_run_again_under_megatron_alone(run: Any, words: str) -> None:
    command, *options = words.split()
    answer = run(command, "qwen3-0.6b", "--phase", "training", *options, "--recompute", "modules:mlp")
    assert answer.code == 2
    assert "--recompute modules:mlp: these are modules of Megatron-Core; expected --framework megatron" in answer.err


def test_experts_run_again_in_an_interleaved_schedule(run: Any) -> None:
    """Their dispatchers, which run again inside of the checkpoint, keep tensors of the chunk's pass before."""
    words = ("memory", "qwen3-30b-a3b?num_hidden_layers=4", "--phase", "training", "--framework", "megatron")
    layout = ("--dp", "4", "--ep", "4", "--pp", "2", "--vpp", "2", "--num-microbatches", "4", "--format", "json")
    device_bytes = {
        mode: json.loads(run(*words, *layout, "--recompute", mode).out)["memory"]["device_bytes"]
        for mode in ("none", "modules:moe", "full")
    }
    assert device_bytes["full"] < device_bytes["modules:moe"] < device_bytes["none"]


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("llama3-8b", Layout(tp=4, sequence_parallel=True), "--tp 4 does not divide 90 tokens; expected a multiple"),
        ("llama3-8b", Layout(cp=2), "--seq 90: each rank of --cp 2 has 2 parts of it; expected a multiple of 4"),
        (
            "llama3-8b",
            Layout(cp=3, cp_comm="a2a"),
            "--context-parallel-size 3 does not divide the 32 and 8 heads of queries",
        ),
        ("mixtral-8x7b", Layout(dp=6, ep=3), "--ep 3: does not divide 8 experts; expected one of 1, 2, 4, 8"),
        ("lfm2-350m", Layout(), "Megatron-LM has no mixer 'short_conv'"),
        ("minimax-m3", Layout(), "Megatron-LM has no part 'block_indexer'"),
        ("kimi-linear-48b-a3b", Layout(), "Megatron-LM has no mixer 'kimi_delta_attention'"),
    ],
)
def test_models_that_megatron_does_not_run_so_are_refused(name: str, layout: Layout, words: str) -> None:
    one = memory(llmcalc.load(name).model, Settings(phase="training", seq=90))
    with pytest.raises(InputError, match=words):
        rank_memory(one.spec, megatron_settings_of(one, layout), 0)


def test_heads_of_latent_attention_need_not_divide_the_width() -> None:
    """GLM-4.7-Flash has 20 heads in 2,048 dimensions; `kv_channels` is no size of MultiLatentAttention."""
    run_memory = memory(llmcalc.load("glm-4.7-flash").model, Settings(phase="training", seq=64))
    settings = megatron_settings_of(run_memory, Layout())
    assert (settings.num_attention_heads, settings.hidden_size, settings.kv_channels) == (
        20,
        2048,
        settings.qk_head_dim,
    )


def test_norms_with_a_gate_are_refused_before_anything_runs() -> None:
    config = SHAPES["GigaChat35ForCausalLM"][0] | {"moe_intermediate_size": 16}
    run_memory = memory(llmcalc.load(config).model, Settings(phase="training", seq=64))
    with pytest.raises(InputError, match=r"gate \(gate_rank\) are not modelled with --framework megatron; expected"):
        check_run(run_memory, "")
    assert framework_named("fsdp2").estimate(run_memory).bytes_per_parameter


@pytest.mark.parametrize(
    ("given", "each"),
    [
        ({}, 18),
        ({"precision_aware_optimizer": True}, 16),
        ({"precision_aware_optimizer": True, "optimizer_dtype": "bfloat16", "grad_dtype": "bfloat16"}, 10),
        ({"grad_dtype": "bfloat16"}, 20),
        ({"optimizer_offload": True}, 6),
    ],
)
def test_a_walk_knows_the_formats_of_megatrons_states(given: dict[str, Any], each: int) -> None:
    one = memory(llmcalc.load("llama3-8b").model, Settings(phase="training", seq=512, **given))
    assert sum(framework_named("megatron").estimate(one).bytes_per_parameter) == each
    run = kept(one.spec, megatron_settings_of(one, Layout()))
    main_gradients = sum(buffer.element_count for buffer in run.buffers) * (2 if "grad_dtype" in given else 4)
    parts = run.meter.by_kind["weights"] + main_gradients + run.meter.by_kind["optimizer"]
    copies = sum(one.bytes for one in run.gradient_copies)
    assert parts + copies == pytest.approx(each * one.states.parameter_count.total, rel=1e-3)


def test_a_walk_has_fp32_main_weights_beside_products_in_8_bits() -> None:
    """core/optimizer/optimizer_config.py, `use_precision_aware_optimizer_no_fp8_or_ds_fp8`."""
    aware = Settings(phase="training", precision_aware_optimizer=True)
    assert main_gradient_and_state_bytes(aware) == (4, 2 + 8)
    assert main_gradient_and_state_bytes(aware.with_changes(precision="fp8")) == (4, 4 + 8)


def test_adams_step_on_the_host_keeps_fp32_copies_there() -> None:
    """core/optimizer/cpu_offloading/hybrid_optimizer.py: main weights and gradients are pinned, and two states."""
    one_device = memory(llmcalc.load("qwen3-0.6b").model, Settings(phase="training", seq=512, optimizer_offload=True))
    on_host = rank_memory(one_device.spec, megatron_settings_of(one_device, Layout(dp=2, zero=1)), 0).host_terms
    parameters = one_device.states.parameter_count.total / 2
    assert on_host[2].bytes == pytest.approx(8 * parameters, rel=1e-3)
    assert all(4 * parameters < term.bytes < 8 * parameters for term in on_host[:2])
    with pytest.raises(InputError, match="--optimizer-offload: of Megatron's distributed optimizer alone"):
        megatron_settings_of(one_device, Layout(dp=2))


def test_micro_batches_that_an_interleaved_schedule_does_not_take() -> None:
    one = memory(llmcalc.load("llama3-70b").model, Settings(phase="training", num_microbatches=5))
    settings = megatron_settings_of(one, Layout(pp=4, vpp=2, schedule="interleaved", dp=2))
    with pytest.raises(InputError, match="--num-microbatches: 5; an interleaved schedule"):
        RankRun(one.spec, settings, 0, Meter())


HEADED = "qwen3-8b?num_hidden_layers=2"
SCORED = llmcalc.load(f"{HEADED}&head.type=classification&head.num_labels=1&head.over=token&head.bias=false").model
"""A reward model: one score per token in place of the logits of 151,936 words."""


@compares(lambda: under("megatron", SCORED), torch=False)
def test_scores_have_no_logits() -> None:
    """mcore-bridge, model/gpt_model.py, `OutputLayerLinear`: no weight of the vocabulary, and no logits.

    A weight has 20 bytes per parameter: itself, its main gradient, main weight and states, and Transformer Engine's
    placeholder of its gradient, of which the next largest weight keeps its own. A logit has 2 in bf16 and 4 in fp32.
    """

    def at_the_loss(spec: ModelSpec) -> tuple[int, int]:
        model_memory = memory(spec, Settings("training", batch=1, seq=512))
        run = kept(spec, megatron_settings_of(model_memory, Layout()))
        place = next(at for at in run.meter.peaks if (at.phase, at.path) == ("forward", "loss"))
        return sum(part.element_count for part in run.chunks[0].parameters), sum(
            run.meter.peaks[place].by_kind.values()
        )

    (parameters, state_bytes), (fewer_parameters, fewer_bytes) = (
        at_the_loss(llmcalc.load(HEADED).model),
        at_the_loss(SCORED),
    )
    assert parameters - fewer_parameters == 4096 * (151_936 - 1)
    assert 6 <= (state_bytes - fewer_bytes - 20 * (parameters - fewer_parameters)) / (512 * (151_936 - 1)) < 7


NORMED = llmcalc.load("qwen3-0.6b", num_hidden_layers=2).model
"""A model whose queries and keys have a norm of each head: 16 and 8 heads of 128."""


def bytes_of_a_third_layer(preset: str, changes: dict[str, Any]) -> tuple[int, int]:
    """Parameters, and bytes of activations at the end of the forward pass, of a third layer."""
    counts = []
    for layers in (2, 3):
        spec = llmcalc.load(preset, num_hidden_layers=layers, **changes).model
        run_memory = memory(spec, Settings("training", batch=1, seq=512))
        run = RankRun(spec, megatron_settings_of(run_memory, Layout()), 0, Meter())
        run.set_up()
        run_step(run)
        activation_bytes = [
            peak.by_kind["activations"] for at, peak in run.meter.peaks.items() if at.phase == "forward"
        ]
        counts.append((sum(parameter.element_count for parameter in run.chunks[0].parameters), max(activation_bytes)))
    (parameters, two_layers_bytes), (more_parameters, three_layers_bytes) = counts
    return more_parameters - parameters, three_layers_bytes - two_layers_bytes


@compares(lambda: under("megatron", NORMED), torch=False)
def test_norms_of_heads_keep_their_inputs() -> None:
    """--qk-layernorm: beside what attention keeps, the inputs of both norms in bf16, and a number of fp32 per row."""
    with_norms = bytes_of_a_third_layer("qwen3-0.6b", {})
    without = bytes_of_a_third_layer("qwen3-0.6b", {"decoder.block.attention.qk_norm": "none"})
    assert with_norms[0] - without[0] == 2 * 128
    assert with_norms[1] - without[1] == 512 * (16 + 8) * (2 * 128 + 4)


SMALL_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "vocab_size": 512,
    "decoder.block.attention.num_attention_heads": 4,
    "decoder.block.attention.num_key_value_heads": 4,
}


def test_a_learned_vector_that_nothing_reads_is_refused() -> None:
    """It passed for a number of xIELU, since nothing that read it was another kind."""
    vector = SimpleNamespace(storage=object())
    operation: Any = SimpleNamespace(op=Weight(4), output_values=[vector], name="scale", verb="vector")
    kernels: Any = SimpleNamespace(readers_by_storage={}, unknown_verb_error=lambda *_: InputError("not modelled"))
    with pytest.raises(InputError, match="not modelled"):
        ExpertKernels.do_vector(kernels, operation)


def test_xielu_is_one_kernel_with_two_learned_numbers() -> None:
    """Apertus' fork compiles it to one that saves its input, as others (swiss-ai/Megatron-LM, core/activations.py)."""
    xielu, relu2 = (
        bytes_of_a_third_layer("apertus-8b", SMALL_SIZES | {"decoder.block.feed_forward.hidden_act": activation})
        for activation in ("xielu", "relu2")
    )
    assert xielu[0] - relu2[0] == 2
    assert xielu[1] == relu2[1]


def test_corrections_of_scores_are_buffers_whatever_the_models_class_has() -> None:
    """ERNIE's class has a parameter, DeepSeek's a buffer; Megatron's router registers one (moe/router.py)."""
    parameter, buffer = (
        bytes_of_a_third_layer("ernie-4.5-21b-a3b", SMALL_SIZES | {"score_correction": kind})
        for kind in ("parameter", "buffer")
    )
    assert parameter == buffer


@compares(lambda: {Thing("optimizer", "muon", "megatron")}, torch=False)
def test_muon_keeps_one_state_of_a_matrix() -> None:
    adam = kept(*changed(DENSE, use_distributed_optimizer=False))
    muon = kept(*changed(DENSE, use_distributed_optimizer=False, optimizer="muon"))
    matrices = sum(one.element_count for one in muon.chunks[0].parameters if is_updated_by_muon(one))
    assert adam.meter.by_kind["optimizer"] - muon.meter.by_kind["optimizer"] == 4 * matrices


def test_berts_layers_are_megatrons_own_with_a_spec() -> None:
    """examples/bert/pretrain_bert.py: `--spec local`; without Transformer Engine all scores are kept."""
    own = kept(*changed("bert/bert_mcore_tp1_pp2/h100", spec=("local",)))
    assert set(own.persistent.workspaces) == {"cuBLAS, forward", "cuBLAS, backward"}
    spec, settings = changed("bert/bert_mcore_tp1_pp2/h100", attention_backend="auto")
    fused = replay_rank(spec, settings, settings.world_size - 1).peak[1].bytes
    assert fused < replay_rank(spec, replace(settings, spec=("local",)), settings.world_size - 1).peak[1].bytes


INTERLEAVED = "gpt/gpt3_mcore_te_tp1_pp4_vp1_resume_torch_decoupled_lr/gb200"


@pytest.mark.parametrize(("overlaps", "prefetches"), [(True, False), (False, False), (True, True)])
def test_an_interleaved_schedule_runs_every_micro_batch_on_every_rank(overlaps: bool, prefetches: bool) -> None:
    """As many forward as backward passes of every chunk, and nothing is left of them."""
    spec, settings = changed(
        INTERLEAVED, no_overlap_p2p_communication=not overlaps, overlap_p2p_communication_warmup_flush=prefetches
    )
    settings.check()
    layout = settings.layout()
    for pp in range(layout.pp):
        run = kept(spec, settings, layout.rank(pp=pp))
        before = run.meter.live_bytes
        schedule = InterleavedSchedule(run)
        schedule.run()
        assert schedule.forward_pass_count == min(settings.microbatches, 3 * layout.pp) * layout.vpp
        assert not any(map(len, (*schedule.inputs, *schedule.outputs, *schedule.gradients)))
        del schedule
        assert run.meter.live_bytes == before


def test_messages_that_are_received_early_stand_beside_the_pass_before() -> None:
    """The first stage's cool-down holds one gradient more during each backward pass."""
    peaks = []
    for prefetches in (False, True):
        spec, settings = changed(INTERLEAVED, overlap_p2p_communication_warmup_flush=prefetches)
        peaks.append(replay_rank(spec, settings, 0).peak[1].bytes)
    assert settings.hidden_size is not None
    assert settings.micro_batch_size is not None
    assert peaks[1] - peaks[0] == 2 * settings.sequence_length * settings.micro_batch_size * settings.hidden_size
    with pytest.raises(InputError, match="expected virtual stages"):
        replace(settings, no_overlap_p2p_communication=True).check()


@pytest.mark.parametrize("date", [None, datetime.date(2026, 5, 1)])
def test_muon_shares_out_whole_tensors(date: datetime.date | None) -> None:
    """Every matrix is updated by exactly one of the ranks that hold it."""
    spec, settings = changed(DENSE, optimizer="muon", use_distributed_optimizer=True, date=date)
    layout = settings.layout()
    runs = []
    for dp in range(layout.dp):
        run = RankRun(spec, settings, layout.rank(tp=1, dp=dp, pp=1), Meter(WitnessAllocator()))
        run.set_up()
        runs.append(run)
    matrices = sum(one.element_count for one in runs[0].chunks[0].parameters if is_updated_by_muon(one))
    own = sum(
        size
        for run in runs
        for size, n in zip(run.updated_element_counts, run.states_per_parameter, strict=True)
        if n == 1
    )
    every = sum(size for run in runs for size in run.updated_element_counts)
    assert own == matrices
    assert every == sum(one.element_count for one in runs[0].chunks[0].parameters)


def test_ranks_of_a_stage_agree_but_for_their_shards() -> None:
    spec, settings = changed("gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist/h100", use_distributed_optimizer=True)
    layout = settings.layout()
    found = [kept(spec, settings, layout.rank(dp=dp, pp=1)).meter.by_kind for dp in range(layout.dp)]
    assert len({one["weights"] for one in found}) == len({one["gradients"] for one in found}) == 1
    first = kept(spec, settings, 0)
    assert first.chunks[0].is_first
    assert first.meter.by_kind["weights"] != found[0]["weights"]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"use_torch_fsdp2": True}, "--use-torch-fsdp2"),
        ({"fp4_format": "e2m1"}, "--fp4-format"),
        ({"optimizer_cuda_graph": True}, "--optimizer-cuda-graph"),
        ({"cpu_offloading_num_layers": 2}, "--cpu-offloading-num-layers"),
        ({"use_nccl_ub": True}, "--use-nccl-ub"),
        ({"num_experts": 4, "tp_comm_overlap": True}, "--tp-comm-overlap"),
        ({"optimizer": "soap"}, "--optimizer"),
        ({"recompute_granularity": "selective", "recompute_modules": ("mhc",)}, "--recompute-modules mhc"),
        ({"delay_wgrad_compute": True}, "--delay-wgrad-compute"),
    ],
)
def test_arguments_that_are_not_modelled_are_refused(fields: dict[str, Any], names: str) -> None:
    spec, settings = changed(DENSE, **fields)
    with pytest.raises(InputError, match=names):
        rank_memory(spec, settings, 0)
