"""Passes without gradients, replayed: what torch holds on meta, whole models from runs of few layers, paged caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

import llmcalc
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.rope import Rope
from llmcalc.costs.cache import kv
from llmcalc.device_memory import estimate, inference
from llmcalc.device_memory.inference import InferenceConfig, replay_inference
from llmcalc.device_memory.linear_in_layers import extrapolate_layers, keep_highest_pass_of_phase
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.meter import AllocationPlace
from llmcalc.simulator.replay_result import ReplayResult
from llmcalc.witnesses.module_measurements import default_dtype
from tests.contracts.test_parts import around_a_model
from tests.simulator.allocator_witness import WitnessAllocator
from tests.simulator.witness import Alive

BATCH = 2


class Found(NamedTuple):
    """Bytes, weights and token ids included: after set-up, the most in each phase, and after the passes."""

    set_up: int
    prefill: int
    decode: int
    after: int


def most(found: ReplayResult, phase: str) -> int:
    return max((peak.bytes for place, peak in found.peaks.items() if place.phase.startswith(phase)), default=0)


def replayed(spec: ModelSpec, inference: InferenceConfig) -> Found:
    found = replay_inference(spec, inference)
    return Found(found.set_up_bytes, most(found, "prefill"), most(found, "decode"), found.final_bytes)


def by_torch(spec: ModelSpec, inference: InferenceConfig) -> Found:
    """The reference on meta: weights first, then each pass with token ids of its own."""
    mode = Alive()
    with default_dtype(getattr(torch, inference.dtype)), torch.device("meta"), mode:
        module: Any = spec.reference()
    made, store, peaks = mode.now, dict[Any, Any](), dict[str, int]()
    chunk = inference.chunk_tokens or inference.seq
    passes = [("prefill", min(chunk, inference.seq - past), past) for past in range(0, inference.seq, chunk)]
    if spec.kind != "encoder":
        passes.append(("decode", 1, inference.seq))
    with torch.no_grad(), mode:
        for phase, tokens, past in passes:
            mode.peak = mode.now
            ids = torch.zeros(inference.batch, tokens, dtype=torch.int64, device="meta")
            source = torch.zeros(
                inference.batch, inference.source_tokens or inference.seq, dtype=torch.int64, device="meta"
            )
            reads = spec.kind == "encoder-decoder" and not past
            if not reads:
                del source
            last = phase == "prefill" and spec.kind != "encoder"
            out = module(
                ids, source if reads else None, cached_tensors=store, past=past, last_only=last, grouped_experts=True
            )
            del out, ids
            source = None
            peaks[phase] = max(peaks.get(phase, 0), mode.peak)
    return Found(made, peaks["prefill"], peaks.get("decode", 0), mode.now)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize(
    "part",
    [Block.examples()[0], Block.examples()[14], MLA.examples()[3], Attention.examples()[7]],
    ids=lambda p: p.type,
)
def test_passes_hold_what_torch_holds(part: Any, chunk: int | None) -> None:
    spec, inference = around_a_model(part), InferenceConfig(batch=BATCH, seq=7, chunk_tokens=chunk)
    assert replayed(spec, inference) == by_torch(spec, inference)


def test_an_encoder_holds_what_torch_holds() -> None:
    """One pass, with an output for every token; it keeps nothing and does not decode."""
    spec = around_a_model(Block.examples()[1]).model_copy(update={"encoder": None})
    spec = spec.model_copy(update={"encoder": spec.decoder, "decoder": None})
    inference = InferenceConfig(batch=BATCH, seq=7)
    found = replayed(spec, inference)
    assert found == by_torch(spec, inference)
    assert (found.decode, found.after) == (0, found.set_up)
    with pytest.raises(InputError, match="an encoder-only model does not decode"):
        replay_inference(spec, InferenceConfig(phase="decode"))


# --- a few layers say what all do -------------------------------------------------------------------------------------

WAYS = {
    "prompt": InferenceConfig(seq=48),
    "chunks": InferenceConfig(batch=2, seq=48, chunk_tokens=20),
    "decode": InferenceConfig(phase="decode", batch=2, seq=100),
    "paged": InferenceConfig(
        seq=48, has_paged_cache=True, kernel_choices=KernelChoices("flash", "fused"), counts_weights=False
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["smollm2-135m", "gpt2", "mamba2-130m"])
def test_a_few_layers_say_what_all_do(name: str, way: str) -> None:
    holds_at_every_place(llmcalc.load(name).model, WAYS[way])


@pytest.mark.parametrize("way", ["prompt", "decode"])
def test_both_stacks_of_an_encoder_decoder_are_folded(way: str) -> None:
    holds_at_every_place(llmcalc.load("t5-v1.1-xl").model, replace(WAYS[way], source_tokens=30))


def holds_at_every_place(spec: ModelSpec, inference: InferenceConfig) -> None:
    stacks = layer_stacks(spec)
    assert all(loop.is_extrapolated for loop in stacks)

    def run(layers: Mapping[int, int]) -> ReplayResult:
        return replay_inference(
            spec, inference, None, {i: stacks[i].repeats_of_layer_types(n) for i, n in layers.items()}
        )

    few, whole = extrapolate_layers(run, stacks), keep_highest_pass_of_phase(run({}))
    assert (few.set_up_bytes, few.final_bytes) == (whole.set_up_bytes, whole.final_bytes)
    assert few.peaks
    for place, peak in few.peaks.items():
        assert (peak.bytes, peak.bytes_of_all_kinds) == (
            whole.peaks[place].bytes,
            whole.peaks[place].bytes_of_all_kinds,
        ), place


# --- caches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm2-135m", "gpt2", "mamba-130m", "gemma3-270m"])
def test_decoding_alone_holds_what_it_holds_after_the_prompt(name: str) -> None:
    spec, inference = llmcalc.load(name).model, InferenceConfig(seq=40)
    both, alone = replay_inference(spec, inference), replay_inference(spec, replace(inference, phase="decode"))
    assert {p: k.bytes for p, k in alone.peaks.items()} == {
        p: k.bytes for p, k in both.peaks.items() if p.phase == "decode"
    }
    assert alone.final_bytes == both.final_bytes
    assert both.final_bytes - both.set_up_bytes == kv(spec, 1, 41).bytes
    assert alone.set_up_bytes - both.set_up_bytes == kv(spec, 1, 40).bytes


def test_the_first_and_last_chunks_hold_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = llmcalc.load("smollm2-135m").model
    for inference_config in (
        InferenceConfig("prefill", seq=61, chunk_tokens=6),
        InferenceConfig("prefill", seq=60, chunk_tokens=6),
    ):
        some = keep_highest_pass_of_phase(replay_inference(spec, inference_config))
        monkeypatch.setattr(inference, "MAX_REPLAYED_CHUNKS", 100)
        every = keep_highest_pass_of_phase(replay_inference(spec, inference_config))
        monkeypatch.undo()
        assert some.final_bytes == every.final_bytes
        assert {place: peak.bytes for place, peak in some.peaks.items()} == {
            place: peak.bytes for place, peak in every.peaks.items()
        }


def test_flash_attention_reads_pages_in_place() -> None:
    spec = llmcalc.load("smollm2-135m").model
    short, long = (
        replay_inference(
            spec, InferenceConfig("decode", seq=seq, has_paged_cache=True, kernel_choices=KernelChoices("flash"))
        )
        for seq in (64, 4096)
    )
    assert (short.set_up_bytes, short.final_bytes, most(short, "decode")) == (
        long.set_up_bytes,
        long.final_bytes,
        most(long, "decode"),
    )
    assert all(peak.bytes_of_all_kinds["cache"] == 0 for peak in long.peaks.values())


def test_eager_attention_copies_the_pages_that_it_reads() -> None:
    """Keys and values of one layer of 3 heads of 64, in bfloat16, for 9 query heads each."""
    spec = llmcalc.load("smollm2-135m").model
    short, long = (
        max(
            peak.bytes
            for place, peak in replay_inference(
                spec, InferenceConfig("decode", seq=seq, has_paged_cache=True)
            ).peaks.items()
            if place == AllocationPlace("decode", 5, "layers.self_attn")
        )
        for seq in (1024, 2048)
    )
    gathered, repeated = 1024 * 2 * 3 * 64 * 2, 1024 * 2 * 9 * 64 * 2
    assert gathered + repeated <= long - short < gathered + repeated + 1024 * (9 * 14 + 100)


def test_latents_of_a_paged_cache_are_read_in_place() -> None:
    latent = MLA.examples()[0].model_copy(update={"mla_use_nope": False, "position": Rope()})
    spec, choices = around_a_model(latent), KernelChoices("flash")
    pages, appended = (
        [
            most(
                replay_inference(spec, InferenceConfig("decode", seq=n, has_paged_cache=paged, kernel_choices=choices)),
                "decode",
            )
            for n in (8, 800)
        ]
        for paged in (True, False)
    )
    assert pages[1] == pages[0]
    assert appended[1] - appended[0] > 792 * 2 * (12 + 4)


def test_weights_that_are_stored_in_another_way_do_not_count() -> None:
    spec = llmcalc.load("smollm2-135m").model
    counted, uncounted_effects = (
        replay_inference(spec, InferenceConfig(seq=32, counts_weights=weights)) for weights in (True, False)
    )
    assert uncounted_effects.set_up_bytes == 0
    assert counted.peak[1].bytes - uncounted_effects.peak[1].bytes == counted.set_up_bytes


def test_blocks_of_the_allocator_are_no_less() -> None:
    spec, inference = llmcalc.load("smollm2-135m").model, InferenceConfig(batch=2, seq=100)
    exact, blocks = (
        replay_inference(spec, inference),
        replay_inference(spec, inference, WitnessAllocator(), workspace_bytes=1 << 20),
    )
    assert exact.peak[1].bytes + (1 << 20) <= blocks.peak[1].bytes <= blocks.reserved_bytes
    assert blocks.peak[1].bytes_of_all_kinds["overhead"] == 1 << 20


def test_weights_without_quantization_have_16_bits() -> None:
    """Also those that are published in fp8 (DeepSeek-V3) or MXFP4 (gpt-oss)."""
    for name in ("deepseek-v3", "gpt-oss-20b"):
        wide, of_dtype = (
            llmcalc.memory(name, seq=1024, **format_option).document["memory"]
            for format_option in ({"quantize": "none"}, {"dtype": "bf16"})
        )
        assert wide["weights"] == 2 * wide["parameters"] == of_dtype["weights"], name


def test_formats_of_the_weights_share_a_replay_and_other_lengths_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[int] = []
    record_inference = estimate.record_inference

    def record(spec: ModelSpec, inference_config: InferenceConfig, *arguments: Any) -> Any:
        recorded.append(inference_config.seq)
        return record_inference(spec, inference_config, *arguments)

    monkeypatch.setattr(estimate, "record_inference", record)

    def device_bytes(**settings: Any) -> int:
        spec = llmcalc.load("llama3.2-1b").model
        return estimate.memory(spec, Settings(phase="inference", **settings)).device.device_bytes

    bytes_by_group = [device_bytes(seq=64, quantize=f"awq-int4-g{columns}") for columns in (128, 64)]
    runs = len(recorded)
    assert bytes_by_group[0] < bytes_by_group[1] == device_bytes(seq=64, quantize="awq-int4-g64")
    assert len(recorded) == runs == 2  # a prompt and a token
    assert bytes_by_group[1] < device_bytes(seq=4096, quantize="awq-int4-g64")
    assert len(recorded) == 2 * runs
