"""Passes without gradients on several devices: a rank holds what torch's tensor parallelism holds on a fake group."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.costs.params import params
from llmcalc.device_memory import estimate
from llmcalc.device_memory.cuda_runtime import WORKSPACE_BYTES, CudaRuntime
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.inference import InferenceConfig
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.inference_rank import inference_rank
from llmcalc.frameworks.ranks import Cluster
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.rank_model import rank_model
from llmcalc.simulator.event_log import RecordedEvents
from llmcalc.witnesses.distributed.parallel import apply_tensor_parallelism, remove_other_stages
from llmcalc.witnesses.distributed.rank import RankStorageTracker
from tests.comparisons import compares, under
from tests.device_memory.test_inference import Found, replayed
from tests.parallel.fake_ranks import fake_rank

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "decoder.num_hidden_layers": 4,
    "decoder.block.attention.num_attention_heads": 4,
    "decoder.block.attention.num_key_value_heads": 2,
    "decoder.block.attention.head_dim": 8,
    "decoder.block.feed_forward.intermediate_size": 48,
}


def tiny(**changes: Any) -> ModelSpec:
    return llmcalc.load("llama3-8b", **{**TINY, **changes}).model


@pytest.mark.parametrize("layers", [17, 40])
def test_ranks_that_differ_in_their_number_of_layers_share_recorded_passes(layers: int) -> None:
    """A rank's memory is that of a rank whose passes are recorded for it alone."""
    spec, settings = tiny(**{"decoder.num_hidden_layers": layers}), Settings(phase="inference", seq=64)
    whole = memory(spec, settings)
    layouts = [Layout(tp=2, pp=2, pp_layout=(layers // 2, layers - layers // 2)), Layout(tp=2, pp=1)]
    if layers == 40:
        layouts.append(Layout(tp=2, pp=4))
    for layout in layouts:
        for stage in {0, layout.pp - 1}:
            rank = layout.rank(pp=stage)
            shared = inference_rank(whole, layout, rank, whole.cuda_runtime).device
            assert shared == inference_rank(memory(spec, settings), layout, rank, whole.cuda_runtime).device
    passes = 2
    recorded_alone = passes * sum(len({0, layout.pp - 1}) for layout in layouts)
    assert len(whole._recordings) == (recorded_alone - 2 * passes if layers == 40 else recorded_alone)


RUNTIMES = (
    CudaRuntime(),
    CudaRuntime(
        workspace_bytes=WORKSPACE_BYTES,
        context_bytes=384 << 20,
        gpu_name="V100-32GB",
        compute_capability=70,
        multiprocessors=80,
    ),
    CudaRuntime(workspace_bytes=0, context_bytes=0, gpu_name="M3-ULTRA"),
)
"""An H100, a GPU with smaller workspaces and other kernels of sdpa, and an accelerator without workspaces."""


@pytest.mark.parametrize(("attention", "recordings"), [("flash", 2), ("sdpa", 4)])
def test_accelerators_with_equal_kernels_share_recorded_passes(
    attention: Any, recordings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's memory on each accelerator is that of a rank whose passes are recorded there, with its workspaces."""
    spec = tiny(**{"decoder.block.attention.head_dim": 64})  # cuDNN on an H100, math on a V100
    settings, layout = Settings(phase="inference", seq=64, attn_implementation=attention), Layout(tp=2, pp=1)
    shared = Cluster.with_framework(memory(spec, settings), layout, "torch")
    for runtime in RUNTIMES:
        ranks = [shared.rank_memory(rank, runtime) for rank in range(2)]
        with monkeypatch.context() as patches:
            patches.setattr(estimate, "LARGE_GPU_WORKSPACE_BYTES", runtime.workspace_bytes)
            patches.setattr(RecordedEvents, "with_workspace", lambda events, workspace: events)
            alone = Cluster.with_framework(memory(spec, settings), layout, "torch")
            assert ranks == [alone.rank_memory(rank, runtime) for rank in range(2)]
    assert len(shared.memory._recordings) == recordings


def by_torch(spec: ModelSpec, inference: InferenceConfig, layout: Layout, rank: int) -> Found:
    """The reference on one rank of a fake process group: set-up, a prefill and a decoding step."""
    dtype = getattr(torch, inference.dtype)
    with fake_rank(layout.coordinates(rank).tp, layout.tp):  # its tensor group alone: stages send nothing here
        mesh = init_device_mesh("cpu", (layout.tp,))
        module: Any = spec.reference().to(dtype)
        mode, peaks, store = RankStorageTracker(), dict[str, int](), dict[Any, Any]()
        with mode, torch.no_grad():
            share = rank_model(spec, layout, rank).chunks
            if layout.pp > 1:
                own = range(share.layers[0], share.layers[-1] + 1)
                remove_other_stages(module, own, share.has_embedding, share.has_head)
            if layout.tp > 1:
                apply_tensor_parallelism(module, mesh)
            whole = [*module.parameters(), *module.buffers()]
            gc.collect()
            mode.now = 0
            mode.tracked.clear()
            mode.track_tensors(one.to_local() if isinstance(one, DTensor) else one for one in whole)
            del whole
            set_up = mode.now
            for phase, tokens, past in (("prefill", inference.seq, 0), ("decode", 1, inference.seq)):
                mode.peak = mode.now
                ids = torch.zeros(inference.batch, tokens, dtype=torch.int64)
                given = (
                    ids if share.has_embedding else torch.zeros(inference.batch, tokens, spec.hidden_size, dtype=dtype)
                )
                last = phase == "prefill"
                out = module(given, None, cached_tensors=store, past=past, last_only=last, grouped_experts=True)
                del out, ids, given
                gc.collect()
                peaks[phase] = mode.peak
        return Found(set_up, peaks["prefill"], peaks["decode"], mode.now)


HEADS = {name: TINY[name] for name in TINY if "num_key_value_heads" in name or "head_dim" in name}

MODELS = {
    "llama3-8b": tiny(),
    "llama3-8b, tied": tiny(tie_word_embeddings=True),
    "gpt2": llmcalc.load("gpt2", **{name: TINY[name] for name in TINY if name not in HEADS}).model,
    "gemma2-2b": llmcalc.load("gemma2-2b", **TINY).model,
    "qwen2.5-1.5b": llmcalc.load("qwen2.5-1.5b", **TINY).model,
}


@compares(lambda name: under("torch", MODELS[name]))
@pytest.mark.parametrize(("name", "rank"), [("llama3-8b", 0), *((name, 1) for name in MODELS)])
def test_a_rank_holds_what_torch_holds(name: str, rank: int) -> None:
    spec, inference, layout = MODELS[name], InferenceConfig(batch=2, seq=6, dtype="float32"), Layout(tp=2)
    assert replayed(rank_model(spec, layout, rank), inference) == by_torch(spec, inference, layout, rank)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_rank_of_a_pipeline_holds_what_torch_holds(rank: int) -> None:
    spec, inference, layout = tiny(), InferenceConfig(batch=2, seq=6, dtype="float32"), Layout(tp=2, pp=2)
    assert replayed(rank_model(spec, layout, rank), inference) == by_torch(spec, inference, layout, rank)


def memory_of(spec: ModelSpec, layout: Layout, **settings: Any) -> Cluster:
    """The ranks of a layout, decoding with eager attention: with sdpa the peak is where a layer's cache is copied."""
    if settings["phase"] == "decode":
        settings["attn_implementation"] = "eager"
    return Cluster.with_framework(memory(spec, Settings(**settings)), layout, "torch")


@pytest.mark.parametrize("phase", ["prefill", "decode", "inference"])
def test_every_rank_holds_its_share(phase: Any) -> None:
    spec, layout = llmcalc.load("llama3-8b").model, Layout(tp=2, pp=2, dp=2)
    cluster = memory_of(spec, layout, phase=phase, seq=4096, batch=2)
    assert [one.rank for one in cluster.by_rank] == [0, 4, 7]
    for one in cluster.by_rank:
        share = rank_model(spec, layout, one.rank)
        assert one.device.by_kind["weights"] == 2 * params(share).total
        block = 4096 + 16 * (phase == "decode")  # a step adds a token, in a block of its own with a paged cache
        assert one.device.by_kind["cache"] in {kv(share, 2, n).bytes for n in (4096, 4097, block)}
    assert cluster.device_rank.device.device_bytes == max(one.device.device_bytes for one in cluster.by_rank)
    assert cluster.messages is None


@pytest.mark.parametrize("name", ["t5-small", "whisper-tiny"])
def test_an_encoder_is_not_run_again_where_its_keys_are_cached(name: str) -> None:
    """A decoding step of a divided encoder-decoder: each of two ranks holds more than half, and less than all."""
    one = memory(llmcalc.load(name).model, Settings(phase="decode", seq=64))
    (alone,), (rank, _) = (
        [each.device.exact_bytes for each in Cluster.with_framework(one, layout, "torch").by_rank]
        for layout in (Layout(), Layout(tp=2))
    )
    assert alone / 2 < rank < alone


def test_layers_have_their_numbers_in_the_model() -> None:
    cluster = memory_of(tiny(), Layout(pp=2), phase="prefill", seq=64)
    first, last = (
        {point.module_path.split(".")[1] for point in one.device.timeline if "." in point.module_path}
        for one in cluster.by_rank
    )
    assert (first, last) == ({"0", "1"}, {"2", "3"})


def test_heads_and_latents_are_copied_where_they_are_fewer_than_ranks() -> None:
    for name, tp, whole in (("llama3-8b", 16, 8), ("deepseek-v2-lite", 4, 1)):
        spec = llmcalc.load(name).model
        cluster = memory_of(spec, Layout(tp=tp), phase="decode", seq=1023)
        on_rank = kv(spec, 1, 1024).bytes // whole
        longest_tensor = on_rank // spec.main.num_hidden_layers  # is concatenated at the peak, beside what it replaces
        assert on_rank <= cluster.device_rank.device.by_kind["cache"] <= on_rank + longest_tensor


def test_what_torch_does_not_divide_is_an_estimate() -> None:
    known = {
        (name, layout.options()): memory_of(llmcalc.load(name).model, layout, phase="decode", seq=64)
        for name, layout in (
            ("mixtral-8x7b", Layout(dp=8, ep=8)),
            ("mixtral-8x7b", Layout(tp=8)),
            ("llama3-8b", Layout(tp=16)),
            ("minicpm3-4b", Layout(tp=2)),
            ("llama3-8b", Layout(tp=8)),
        )
    }
    assert [one.device_rank.device.terms[0].status for one in known.values()] == ["estimate"] * 3 + [
        "source",
        "exact",
    ]


def test_a_quantised_model_is_divided() -> None:
    spec = llmcalc.load("llama3-8b").model
    whole = memory(spec, Settings(phase="decode", quantize="fp8", seq=64)).states.weights
    parts = memory_of(spec, Layout(tp=4), phase="decode", quantize="fp8", seq=64).by_rank
    assert whole / 4 < parts[0].device.by_kind["weights"] < whole / 4 * 1.001  # norms are copied


def test_the_layout_with_most_replicas_that_fits_is_found(run: Any) -> None:
    words = "fit", "llama3-70b", "--phase", "decode", "--format", "json", "--devices"
    code, out, _ = run(*words, "4", "--hardware", "h100")
    found = json.loads(out)
    assert (code, found["verdict"], found["needed_devices"]) == (0, "fits", 2)
    assert (found["layout"]["tp"], found["layout"]["dp"]) == (2, 2)
    verdicts = {(one["layout"]["tp"], one["layout"]["pp"]): one["verdict"] for one in found["layouts"]}
    assert verdicts[1, 1] == "no"
    assert verdicts[4, 1] == "fits"
    assert found["largest"]["users"] >= 1
    code, out, _ = run(*words, "2", "--hardware", "24GiB")
    found = json.loads(out)
    assert (code, found["verdict"], found["needed_devices"]) == (1, "no", 8)
    assert found["changes"][0]["option"] == "--devices 8 --tp 8"


def test_a_replica_has_all_devices_that_divide_its_experts(run: Any) -> None:
    words = "fit", "qwen3-30b-a3b", "--seq", "1k", "--devices", "4", "--dp", "4", "--ep", "4", "--format", "json"
    code, out, _ = run(*words, "--hardware", "h100")
    assert (code, json.loads(out)["needed_devices"]) == (0, 4)
    code, out, _ = run(*words, "--hardware", "12GiB")
    assert (code, json.loads(out)["needed_devices"]) == (1, 8)
