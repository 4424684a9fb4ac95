"""SGLang's record: its default fractions, pools with the arithmetic beside them, and a start-up log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.rank import EngineRank, architectures
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.sglang.budget import SGLangServer
from llmcalc.frameworks.sglang.cuda_graphs import prompt_graphs_mib
from llmcalc.frameworks.sglang.recurrent_states import state_slot_bytes
from llmcalc.frameworks.sglang.speculation import speculation_of
from llmcalc.frameworks.sglang.versions import sglang_record
from llmcalc.sources.hardware import find_hardware
from tests.engines import engine_memory
from tests.samples import in_one_test

GIB = 2**30

DATA = Path(__file__).parents[2] / "data"

SHOWN = 81559 / 1024
"""The memory of an H100 as nvidia-smi shows it, in GiB."""


def memory(target: str = "llama3.1-8b", hardware: str = "h100", version: str = "0.5.20", **flags: Any) -> Any:
    return engine_memory(target, hardware=hardware, engine=f"sglang=={version}", **flags)


@pytest.mark.parametrize(
    ("version", "flags", "fraction"),
    [
        ("0.4.3", {"tp": 2}, 0.87),
        ("0.4.9", {}, round((SHOWN - 9.5 - 0.5) / SHOWN, 3)),
        ("0.5.5", {}, round((SHOWN - (512 + 1.5 * 8192 + 2 * 256 + 128) / 1024) / SHOWN, 3)),
        # 58 lengths of prompts up to 8,192 are captured in pieces
        ("0.5.20", {}, round((SHOWN - (512 + 1.5 * 8192 + 2 * 256 + 128 + 58 * 8) / 1024) / SHOWN, 3)),
        ("0.5.20", {"chunked_prefill_size": 2048}, round((SHOWN - 10) / SHOWN, 3)),
        ("0.5.20", {"mem_fraction_static": 0.9}, None),
    ],
)
def test_the_default_fraction_is_that_of_the_version(
    version: str, flags: dict[str, Any], fraction: float | None
) -> None:
    assert memory(version=version, **flags).assumed_flags.get("--mem-fraction-static") == fraction


def test_tokens_are_what_the_fraction_leaves() -> None:
    answer = memory(mem_fraction_static=0.9)
    left = answer.term_bytes("budget") - answer.term_bytes("weights")
    # 32 layers, 8 key heads of 128, keys and values, 2 bytes
    assert answer.kv_tokens == left // (32 * 8 * 128 * 2 * 2)


def test_windowed_layers_have_a_smaller_pool() -> None:
    answer = memory("gpt-oss-20b", mem_fraction_static=0.9)
    left = answer.term_bytes("kv_cache")
    # 12 full layers and 12 with a window, which keep 0.8 of the tokens; 8 key heads of 64
    assert answer.kv_tokens == int(left // (12 * 1.8 * 8 * 64 * 2 * 2))


@pytest.mark.parametrize(
    ("target", "version", "cached_elements"),
    [
        # before pools of windowed layers, and in classes outside `is_hybrid_swa_model`: all layers keep all tokens
        ("gpt-oss-20b", "0.5.7", 24 * 8 * 64 * 2),
        ("gemma3-27b", "0.5.20", 62 * 16 * 128 * 2),
        ("command-r7b", "0.5.20", 32 * 8 * 128 * 2),
        # layers that read the keys of a lower layer have memory too: 7 full ones with heads of 512, 35 with a window
        ("gemma4-e4b", "0.5.20", 7 * 2 * 512 * 2 + 35 * 0.8 * 2 * 256 * 2),
        ("gemma3n-e4b", "0.5.20", 35 * 2 * 256 * 2),
    ],
)
def test_which_layers_have_a_smaller_pool(target: str, version: str, cached_elements: float) -> None:
    """By srt/configs/model_config.py and srt/model_executor/pool_configurator.py of SGLang 0.5.7 and 0.5.19."""
    answer = memory(target, version=version, mem_fraction_static=0.9)
    assert answer.kv_tokens == pytest.approx(answer.term_bytes("kv_cache") / (2 * cached_elements), abs=1)


CELL = 8 * 4 * 256 * 2 * 2
"""Bytes of a token of Qwen3.5 9B: 8 layers of attention, 4 key heads of 256, keys and values."""

SLOT = 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
"""Bytes of its states: 24 layers of 32 heads of 128 x 128 in float32, and three inputs of a convolution of 8,192."""


def states(version: str = "0.5.20", **flags: Any) -> tuple[int, int]:
    """The bytes for states and cache, and those that the cache's tokens take."""
    answer = memory("qwen3.5-9b", version=version, mem_fraction_static=0.9, **flags)
    return answer.term_bytes("kv_cache"), answer.kv_tokens * CELL


def test_states_take_their_share() -> None:
    """Of 1.9 parts 0.9, in whole slots; from 0.5.20 on one slot more is allocated."""
    for version, padding in (("0.5.9", 0), ("0.5.20", 1)):
        available, cache = states(version)
        slots = int((available * 0.9 / 1.9 - padding * SLOT) // SLOT)
        assert cache == (available - SLOT * (slots + padding)) // CELL * CELL
    answer = memory("qwen3.5-9b", mem_fraction_static=0.9, context_length=2048)
    assert answer.max_concurrency == slots // 5  # a request takes five slots
    assert any(f"{slots:,} slots of recurrent states" in note for note in answer.notes)


def test_a_number_of_slots() -> None:
    available, cache = states(max_mamba_cache_size=40)
    assert cache == (available - 41 * SLOT) // CELL * CELL
    available, cache = states(disable_radix_cache=True, max_running_requests=16)
    assert cache == (available - 17 * SLOT) // CELL * CELL
    refused = memory("qwen3.5-9b", mem_fraction_static=0.9, max_mamba_cache_size=2)
    assert not refused.can_start
    assert "state cache" in refused.startup_error


def test_states_of_drafted_tokens() -> None:
    """Four tokens of each running request have states too, and a token of the cache a layer more."""
    available, cache = states("0.5.12", max_running_requests=8, speculative_algorithm="nextn")
    left = available - 8 * 4 * SLOT
    assert cache == (left - int(left * 0.9 / 1.9 // SLOT) * SLOT) // CELL * CELL
    available, cache = states("0.5.18", max_running_requests=8, speculative_algorithm="nextn")
    slots = int(available * 0.9 / 1.9 // (SLOT * (1 + 4 / 5)))
    left = available - SLOT * (slots + min(8, slots // 5) * 4)
    assert cache == left // (CELL * 9 // 8) * CELL


def test_drafts_are_counted_from_0_5_14_on() -> None:
    older, newer = (
        memory("qwen3.5-9b", version=version, mem_fraction_static=0.9, speculative_algorithm="nextn")
        for version in ("0.5.13", "0.5.14")
    )
    plain = memory("qwen3.5-9b", version="0.5.14", mem_fraction_static=0.9)
    assert older.term_bytes("weights") == plain.term_bytes("weights") < newer.term_bytes("weights")
    llama = {"version": "0.5.18", "mem_fraction_static": 0.8, "speculative_algorithm": "standalone"}
    drafted = memory(speculative_draft_model_path="llama3.2-1b", **llama)
    alone = memory(version="0.5.18", mem_fraction_static=0.8)
    # 16 of the draft's layers beside 32
    assert drafted.kv_tokens == drafted.term_bytes("kv_cache") // (48 * 8 * 128 * 2 * 2)
    assert drafted.term_bytes("weights") - alone.term_bytes("weights") == pytest.approx(2.3 * GIB, rel=0.03)


def draft_at(folder: Path, name: str) -> str:
    """Writes the published config of a draft to a file and returns its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(json.loads((DATA / "drafts.json").read_text())[name]["config"]))
    return str(path)


def test_drafts_of_a_block_have_a_cache_of_their_own_width(tmp_path: Path) -> None:
    """sglang pull 34234 (0.5.18) adds the draft's heads; before, each of its layers counted as one of the target's.

    github.com/sgl-project/sglang/pull/40665: 450,060 tokens beside DFlash 2 on an H200, of 27.5 and 8.6 GiB.
    """
    flags = {"mem_fraction_static": 0.8, "max_running_requests": 8}  # of 8 tokens, as the draft's config states
    drafted = memory(
        "qwen3.8-27b",
        "h200",
        **flags,
        speculative_algorithm="DFLASH",
        speculative_draft_model_path=draft_at(tmp_path, "qwen3.6-27b-dflash2"),
    )
    assert drafted.kv_tokens == pytest.approx(450_060, rel=0.01)
    path = draft_at(tmp_path, "qwen3-8b-dflash")  # five layers with 8 heads of 128, no embedding and no head
    spec = {"speculative_algorithm": "dflash", "speculative_draft_model_path": path}
    plain, older, newer = (
        memory("qwen3-8b", version=version, tp_size=2, mem_fraction_static=0.8, **chosen)
        for version, chosen in (("0.5.18", {}), ("0.5.17", spec), ("0.5.18", spec))
    )
    token = 4 * 128 * 2 * 2
    assert newer.kv_tokens == newer.term_bytes("kv_cache") // ((36 + 5) * token)
    assert older.kv_tokens == older.term_bytes("kv_cache") // ((36 + 5) * token)  # as wide as the target's
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288  # each rank has half of it, and fc and a table whole
    added = 2 * (5 * layer // 2 + 5 * 4096 * 4096) + 4 * 40960 * 128
    assert newer.term_bytes("weights") - plain.term_bytes("weights") == pytest.approx(added, rel=1e-3)


def test_the_draft_states_its_block(tmp_path: Path) -> None:
    """`parse_dflash_draft_config`: 16 tokens without `block_size`; of DSpark `read_draft_checkpoint_gamma`: 7 without,
    and a token more is verified. Flags come before both.
    """

    def verified_tokens(name: str, algorithm: str, changes: dict[str, Any], **flags: int) -> int:
        path = Path(draft_at(tmp_path, name))
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        settings = {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(path), **flags}
        return speculation_of(settings, llmcalc.load("qwen3-8b"), True, ()).verified_tokens

    whole, dspark = ("qwen3-8b-dflash", "dflash"), ("qwen3-8b-dspark", "dspark")
    assert verified_tokens(*whole, {}) == verified_tokens(*whole, {"block_size": None}) == 16
    assert verified_tokens(*whole, {"block_size": 8}) == 8
    assert [verified_tokens(*dspark, {"block_size": size}) for size in (7, 4, None)] == [8, 5, 8]
    assert verified_tokens(*whole, {"block_size": 8}, speculative_num_draft_tokens=12) == 12
    assert verified_tokens(*dspark, {"block_size": 4}, speculative_dspark_block_size=6) == 7
    for block_size in (True, 0, "8", 10**9):
        with pytest.raises(InputError, match=r"block_size: .* expected a whole number from 1"):
            verified_tokens(*whole, {"block_size": block_size})


@pytest.mark.parametrize(
    ("loaded_gib", "flags"),
    [
        (5.18, {"quantize": "fp8-block128"}),  # github.com/sgl-project/sglang/pull/35996
        (5.53, {"hardware": "a100-pcie"}),  # index:68576807532, in 16 bits
        (2.57, {"hardware": "rtx-3090", "tp": 2, "quantize": "w4a16-g128"}),  # github.com/sgl-project/sglang/pull/32468
    ],
)
def test_a_draft_loads_its_own_embedding_and_head(loaded_gib: float, flags: dict[str, Any]) -> None:
    """Logs of Qwen3.8 27B print what its module of multi-token prediction takes before the cache is sized."""
    chosen = {"version": "0.5.19", "mem_fraction_static": 0.9, **flags}
    plain, drafted = (memory("qwen3.8-27b", **chosen, **spec) for spec in ({}, {"speculative_algorithm": "nextn"}))
    assert (drafted.term_bytes("weights") - plain.term_bytes("weights")) / GIB == pytest.approx(loaded_gib, abs=0.02)
    assert any("sglang issue 36452" in note for note in drafted.notes)


@pytest.mark.parametrize(
    ("target", "hardware", "flags", "copied_bytes"),
    [
        ("deepseek-v3", "h200", {"tp_size": 8}, 61 * 16 * 512 * 256 * 2),  # blocks of fp8, copied in 16 bits
        ("deepseek-v3", "mi355x", {"tp_size": 8}, 61 * 16 * 512 * 256),
        ("deepseek-v3", "h200", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 61 * 128 * 512 * 256 * 2),
        ("RedHatAI/DeepSeek-Coder-V2-Lite-Instruct-FP8", "h200", {}, 27 * 16 * 512 * 256),
        ("glm-4.7-flash", "h200", {"tp_size": 2}, 47 * 10 * 512 * (192 + 256) * 2),
        ("minicpm3-4b", "h200", {}, 0),
    ],
)
def test_copies_of_up_projections(target: str, hardware: str, flags: dict[str, Any], copied_bytes: int) -> None:
    """models/deepseek_common/deepseek_weight_loader.py of 0.5.19 stores `w_kc` and `w_vc` beside `kv_b_proj`.

    models/minicpm3.py deletes `kv_b_proj`. GLM-4.7-Flash takes 28.79 GiB of each of two NPUs (index:53378181608).
    """
    server = SGLangServer(llmcalc.load(target), find_hardware(hardware), engine_and_version("sglang==0.5.19")[1], flags)
    rank = server.rank_of_stage(0)
    assert server.copied_projection_bytes(rank) == copied_bytes
    assert server.loaded_bytes(rank) >= rank.weight_bytes + copied_bytes
    if target == "glm-4.7-flash":
        assert server.loaded_bytes(rank) / GIB == pytest.approx(28.79, rel=0.02)


def test_tokens_that_deepep_sends_to_experts() -> None:
    """Four H200s of https://github.com/sgl-project/sglang/issues/24650 have 1,066,240 tokens beside a draft.

    Each has the shared experts whole: three matrices of 4,096 x 2,048 in fp8 in 43 layers, with scales of blocks.
    """
    flags = {"hardware": "h200", "version": "0.5.12", "tp": 4, "mem_fraction_static": 0.7, "max_running_requests": 128}
    drafts = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 1, "speculative_num_draft_tokens": 2}
    model = "sgl-project/DeepSeek-V4-Flash-FP8"
    sent = memory(model, moe_a2a_backend="deepep", **flags, **drafts)
    assert sent.kv_tokens == pytest.approx(1066240, rel=0.03)
    divided = memory(model, ep_size=4, **flags, **drafts)
    more = sent.term_bytes("weights") - divided.term_bytes("weights")
    assert more == pytest.approx(43 * 3 * 4096 * 2048 * 3 / 4, rel=0.001)
    assert any("the library that sends tokens" in note for note in sent.notes)
    dense = memory("qwen3-8b", hardware="h200", version="0.5.19", moe_a2a_backend="deepep")
    assert not any("the library that sends tokens" in note for note in dense.notes)


def test_the_default_fraction_reserves_buffers_of_deepep() -> None:
    """2 GiB from 0.5.16 on where decoding steps are graphs, and 1 GiB for prompts in graphs with breaks."""

    def fraction(version: str, **flags: Any) -> float:
        answer = memory("deepseek-v3", hardware="h200", version=version, tp=8, **flags)
        return float(answer.assumed_flags["--mem-fraction-static"])

    shown = 143771 / 1024
    for version, flags, reserved in (
        ("0.5.14", {}, 0.0),
        ("0.5.19", {}, 3.0),
        ("0.5.19", {"disable_cuda_graph": True}, 0.0),
    ):
        for library in ({"moe_a2a_backend": "deepep"}, {"enable_deepep_moe": True}):  # the second name is the older one
            saved = fraction(version, **flags) - fraction(version, **flags, **library)
            assert saved * shown == pytest.approx(reserved, abs=0.15), version


def test_marlin_kept_the_loaded_scales_of_experts_to_0_5_15() -> None:
    """DeepSeek-V4-Pro takes 125.65 GB of an H200 (SemiAnalysisAI/InferenceX#2128): a float32 scale for 32 elements."""

    def weights(version: str, **flags: Any) -> int:
        chosen = {"hardware": "h200", "tp": 8, "mem_fraction_static": 0.88}
        return int(memory("deepseek-v4-pro", version=version, **chosen, **flags).term_bytes("weights"))

    old, new = (weights(version, moe_runner_backend="marlin") for version in ("0.5.14", "0.5.16"))
    assert old == pytest.approx(125.65 * GIB, rel=0.001)
    # 61 layers of 384 experts with three matrices of 7,168 x 3,072 / 8
    assert old - new == pytest.approx(61 * 384 * 3 * 7168 * 384 // 32 * 4, rel=0.01)
    assert weights("0.5.14") < weights("0.5.14", speculative_algorithm="EAGLE") < old


def test_ranks_divide_keys_that_are_wider_than_values() -> None:
    """MiMo-V2 on 4 ranks has a key of 192 rows in each, where blocks with one scale have 128."""
    assert memory("mimo-v2.5", hardware="h200", tp=4).kv_tokens > 0


def test_models_in_float32_run_in_half_precision() -> None:
    """OLMo 2 is published in float32: 7.3 B parameters."""
    assert memory("olmo2-7b").term_bytes("weights") == pytest.approx(2 * 7.3e9, rel=0.01)


def test_latents_beside_an_indexer() -> None:
    """Of 61 layers: 512 elements of 8 bits with four scales and 64 of 16 bits, and an indexer's key of 132 bytes."""
    chosen = {"tp_size": 8, "mem_fraction_static": 0.9, "kv_cache_dtype": "fp8_e4m3"}
    for hardware, version, latent in (
        ("h200", "0.5.20", 512 + 16 + 128),
        ("b200", "0.5.20", 576),
        ("mi355x", "0.5.20", 576),
        ("mi355x", "0.5.9", 656),
    ):
        answer = memory("deepseek-v3.2", hardware, version, **chosen)
        assert answer.kv_tokens == answer.term_bytes("kv_cache") // (61 * (latent + 132))
    raw = memory("deepseek-v3.2", "h200", dsa_decode_backend="trtllm", **chosen)
    assert raw.kv_tokens == raw.term_bytes("kv_cache") // (61 * (576 + 132))


def test_amd_keeps_memory_for_long_requests() -> None:
    """https://github.com/sgl-project/sglang, server_args.py: the fraction is 0.85 of what is set."""
    long, short = (memory(hardware="mi355x", mem_fraction_static=0.8, context_length=n) for n in (8193, 8192))
    assert long.term_bytes("budget") == pytest.approx(0.85 * short.term_bytes("budget"), abs=2)
    kept = [
        memory("kimi-k2", hardware="mi355x", mem_fraction_static=0.8, tp_size=tp).term_bytes("budget") for tp in (4, 8)
    ]
    assert kept[0] / kept[1] == pytest.approx(0.85, rel=0.01)  # 16 heads of a rank, and 8


def test_graphs_that_are_not_captured_need_no_reserve() -> None:
    def reserve(version: str, **flags: Any) -> float:
        fraction = memory(version=version, chunked_prefill_size=4096, hardware="l4", **flags).assumed_flags
        return (1 - float(fraction["--mem-fraction-static"])) * find_hardware("l4").memory_bytes / GIB

    for version, is_json_integer in (("0.5.13", False), ("0.5.14", True)):
        prompts = reserve(version, disable_cuda_graph=True) - reserve(version, disable_piecewise_cuda_graph=True)
        assert (prompts == 0) == is_json_integer
    off = reserve("0.5.16", disable_cuda_graph=True)
    assert reserve("0.5.16", disable_prefill_cuda_graph=True) - off == pytest.approx(24 * 2 / 1024, abs=0.03)
    assert reserve("0.5.20", disable_prefill_cuda_graph=True) - off == pytest.approx(48 * 2 / 1024, abs=0.03)
    assert reserve("0.5.22", disable_prefill_cuda_graph=True, max_running_requests=4) - off < 0.03


def test_compressed_attention_of_a_log() -> None:
    """index:54684172587, DeepSeek-V4-Flash: 15,955.85 bytes of a token; 45.78 and 19.58 GiB hold so many tokens."""
    record, version = engine_and_version("sglang==0.5.12")
    server = SGLangServer(llmcalc.load("deepseek-v4-flash"), find_hardware("rtx-pro-6000"), version, {"tp_size": 8})
    rank = server.rank_of_stage(0)
    for gib, tokens in ((45.78, 3_080_960), (19.58, 1_317_632)):
        assert server.cache_tokens_that_fit(rank, int(gib * GIB)) == pytest.approx(tokens, abs=256 * 2)
    assert record.name == "sglang"


def test_states_of_compressed_attention_belong_to_requests() -> None:
    """From 0.5.15 on 128 states of each of 4,096 requests and one more; 20 layers of 2 x 512 float32."""
    chosen = {"target": "deepseek-v4-flash", "hardware": "h200", "tp_size": 8, "mem_fraction_static": 0.8}
    many, few = (memory(version="0.5.17", **chosen, **flags) for flags in ({}, {"max_running_requests": 64}))
    more = (4097 - 65) * 128 * 2 * 512 * 4 * 20
    of_token = 15955.85 - 0.1 * 2 * 512 * 4 * 20
    assert few.kv_tokens - many.kv_tokens == pytest.approx(more / of_token, rel=0.001)
    assert memory(version="0.5.23", **chosen, max_running_requests=64).kv_tokens > few.kv_tokens
    with pytest.raises(InputError, match=r"from SGLang 0\.5\.12 on"):
        memory(version="0.5.11", **chosen)
    with pytest.raises(InputError, match="--kv-cache-dtype: of compressed attention"):
        memory(kv_cache_dtype="bf16", **chosen)


def test_fewer_requests_are_a_change_where_each_has_states() -> None:
    """The default's 2,048 requests take all of the cache's bytes of DeepSeek-V4-Pro on 8 H200."""
    run = {"engine": "sglang==0.5.23", "hardware": "h200", "tp_size": 8}
    document = llmcalc.memory("deepseek-v4-pro", **run, enable_deepseek_v4_fp4_indexer=True).document
    assert not document["starts"]
    change = document["changes"][0]
    assert (change["flag"], change["starts"]) == ("--max-running-requests 64", True)
    assert not any("--kv-cache-dtype" in change["flag"] for change in document["changes"])


def test_tokens_of_a_log() -> None:
    """https://github.com/vllm-project/vllm/issues/21348: 367,404 tokens; about 3.7 % more are computed."""
    answer = memory("qwen3-235b-a22b", version="0.4.9", tp=4, mem_fraction_static=0.93, quantize="fp8-block128")
    assert answer.kv_tokens == pytest.approx(367_404, rel=0.05)


@in_one_test
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mem_fraction": 0.9}, "--mem-fraction-static"),
        ({"mem_fraction_static": 2}, "--mem-fraction-static"),
        ({"enable_dp_attention": True, "dp_size": 3, "tp_size": 4}, "--dp-size 3: does not divide --tp-size 4"),
        ({"enable_dp_lm_head": True}, "--enable-dp-lm-head: SGLang needs --enable-dp-attention"),
        (
            {"target": "gpt-oss-20b", "enable_dp_attention": True, "dp_size": 2, "tp_size": 2},
            "--enable-dp-attention: is not modelled for experts in MXFP4",
        ),
        ({"enable_lora": True}, "--enable-lora: SGLang takes matrices and rank"),
        ({"enable_lora": True, "lora_target_modules": "all"}, "--max-lora-rank too"),
        ({"enable_lora": True, "lora_target_modules": "c_attn", "max_lora_rank": 8}, "--lora-target-modules"),
        (
            {"target": "qwen3-30b-a3b", "enable_lora": True, "lora_target_modules": "all", "max_lora_rank": 8},
            "adapters of experts",
        ),
        ({"quantization": "w4afp8"}, "--quantize SCHEME"),
        ({"speculative_algorithm": "medusa"}, "--speculative-algorithm"),
        ({"target": "qwen3-30b-a3b", "kt_num_gpu_experts": 8}, "--kt-num-gpu-experts: SGLang needs --kt-weight-path"),
        (
            {"target": "qwen3-30b-a3b", "kt_weight_path": "/w", "kt_num_gpu_experts": 129},
            "--kt-num-gpu-experts 129: a layer has 128 experts",
        ),
        ({"kt_weight_path": "/w"}, "--kt-weight-path: the model has no experts"),
        (
            {"target": "qwen3-30b-a3b", "kt_weight_path": "/w", "enable_dp_attention": True, "dp_size": 2, "tp": 2},
            "--enable-dp-attention: with --kt-weight-path",
        ),
        (
            {"speculative_algorithm": "EAGLE"},
            "counts no modules of multi-token prediction of this model; expected --speculative-draft-model",
        ),
        ({"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "/no/draft"}, "cannot be read"),
        ({"speculative_algorithm": "dspark"}, "a draft within the target's checkpoint is not modelled"),
        (
            {"speculative_algorithm": "dflash", "speculative_draft_model_path": "x/y", "version": "0.5.12"},
            "is modelled from SGLang 0.5.14 on",
        ),
        (
            {"speculative_algorithm": "dflash", "speculative_draft_model_path": "x/y", "pp_size": 2},
            "--pp-size: with --speculative-algorithm dflash is not modelled",
        ),
        (
            {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "llama3.2-1b"},
            "reads no hidden states of its target; expected --speculative-algorithm standalone",
        ),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory(**flags)


def test_too_large_weights_do_not_start() -> None:
    answer = llmcalc.memory("llama3.1-70b", hardware="rtx-4090", engine="sglang")
    assert not answer.ok
    assert "--mem-fraction-static" in answer.document["message"]


def test_replicas_and_stages() -> None:
    whole, replicas = memory(mem_fraction_static=0.8), memory(mem_fraction_static=0.8, dp_size=2)
    assert (replicas.devices, replicas.kv_tokens) == (2, whole.kv_tokens)
    stages = memory(mem_fraction_static=0.8, pp_size=2)
    # 16 of the 32 layers on each of two devices
    assert (stages.devices, memory(mem_fraction_static=0.8, ep_size=1).devices) == (2, 1)
    assert stages.kv_tokens == stages.term_bytes("kv_cache") // (16 * 8 * 128 * 2 * 2)


def test_an_encoder_lowers_the_default_fraction() -> None:
    """27 layers of 1,152 are 1.424 times 24 of 1,024: 0.95 x (1 - 0.1 x 0.424)."""
    fraction = memory("gemma3-27b", version="0.5.5").assumed_flags["--mem-fraction-static"]
    text = round((SHOWN - (512 + 1.5 * 8192 + 2 * 256 + 128) / 1024) / SHOWN, 3)
    assert fraction == pytest.approx(text * 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1)), abs=1e-4)


@pytest.mark.parametrize("target", ["qwen3-omni-30b-a3b-instruct", "voxtral-mini-3b"])
def test_encoders_without_a_vision_config_leave_the_default_fraction(target: str) -> None:
    """`adjust_mem_fraction_for_vlm` reads the config's own `vision_config`, not one in `thinker_config`."""
    fraction = memory(target, version="0.5.5").assumed_flags["--mem-fraction-static"]
    assert fraction == memory("qwen3-8b", version="0.5.5").assumed_flags["--mem-fraction-static"]


def test_a_head_that_drafts_lowers_the_default_fraction() -> None:
    def reserve(**flags: Any) -> float:
        return SHOWN * (1 - float(memory(**flags).assumed_flags["--mem-fraction-static"]))

    off = {"version": "0.5.10", "disable_piecewise_cuda_graph": True}
    eagle = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "x/y"}
    assert reserve(version="0.5.5", **eagle) - reserve(version="0.5.5") == pytest.approx(2, abs=0.08)
    assert reserve(version="0.5.10", **eagle) - reserve(**off) == pytest.approx(4, abs=0.08)
    assert reserve(version="0.5.10", speculative_algorithm="ngram") == reserve(**off)


def test_latent_attention_has_a_reserve_of_its_own() -> None:
    fraction = memory("deepseek-v3", hardware="h200", tp=8).assumed_flags["--mem-fraction-static"]
    gib = find_hardware("h200").memory_bytes / GIB
    # 8,192 tokens of a chunk, graphs of 512 sequences, 8 ranks, and 1.5 GiB for graphs of prompts
    assert fraction == round((gib - (512 + 1.5 * 8192 + 2 * 512 + 1024 + 1536) / 1024) / gib, 3)


def test_long_prompts_take_no_time() -> None:
    with pytest.raises(InputError, match=r"SGLang's default reserves"):
        memory(piecewise_cuda_graph_max_tokens=10**12)


def test_slots_of_adapters_take_memory_before_the_cache() -> None:
    chosen = {"enable_lora": True, "max_lora_rank": 32, "tp_size": 2, "mem_fraction_static": 0.8}
    plain = memory(tp_size=2, mem_fraction_static=0.8)
    slots = memory(lora_target_modules="q_proj,o_proj", max_loras_per_batch=3, **chosen)
    # 32 layers; a rank has 16 of 32 heads of 128 and 4 of 8 key heads; a slot of queries is one of keys and values too
    sides = 32 * ((4096 + 2048) + 2 * (4096 + 512) + (2048 + 4096))
    assert slots.term_bytes("weights") - plain.term_bytes("weights") == 3 * 32 * 2 * sides
    assert plain.term_bytes("kv_cache") - slots.term_bytes("kv_cache") == 3 * 32 * 2 * sides
    networks = 32 * 3 * (4096 + 7168)
    everything = memory(lora_target_modules="['all']", max_loras_per_batch=3, **chosen)
    assert everything.term_bytes("weights") - slots.term_bytes("weights") == 3 * 32 * 2 * networks


def test_replicas_of_attention_divide_networks_alone() -> None:
    chosen = {"target": "qwen3-30b-a3b", "hardware": "h200", "mem_fraction_static": 0.8, "tp_size": 4}
    whole = memory(**chosen)
    replicas = memory(dp_size=4, enable_dp_attention=True, **chosen)
    ignored = memory(dp_size=1, enable_dp_attention=True, **chosen)
    assert (replicas.devices, ignored.terms) == (4, whole.terms)
    # 48 layers: queries and output, 4,096 wide, and 512 of keys and of values were in four parts; and the embedding.
    # The head stays divided.
    attention = 48 * 2048 * (2 * 4096 + 2 * 512)
    embedding = 151_936 * 2048
    more = replicas.term_bytes("weights") - whole.term_bytes("weights")
    assert more == pytest.approx(2 * (attention + embedding) * 3 // 4, abs=48 * 8 * 2**20)
    # four key heads of 128, keys and values, 2 bytes, instead of one
    assert replicas.kv_tokens == replicas.term_bytes("kv_cache") // (48 * 4 * 128 * 2 * 2)
    head = memory(dp_size=4, enable_dp_attention=True, enable_dp_lm_head=True, **chosen)
    assert head.term_bytes("weights") - replicas.term_bytes("weights") == pytest.approx(
        2 * embedding * 3 // 4, abs=2**21
    )


def test_replicas_of_attention_lower_the_default_fraction() -> None:
    gib = find_hardware("h200").memory_bytes / GIB
    fraction = memory("qwen3-30b-a3b", "h200", "0.5.5", tp_size=8, dp_size=8, enable_dp_attention=True)
    # graphs of 512 sequences: 4.5 MiB for each and for each replica
    reserve = (512 + 1.5 * 8192 + 2 * 512 + 1024 + 4.5 * 512 * 8) / 1024
    assert fraction.assumed_flags["--mem-fraction-static"] == round((gib - reserve) / gib, 3)


@pytest.mark.parametrize(
    ("target", "flags", "sizes"),
    [
        ("llama3.1-8b", {}, (1, 1, 1, 1, None)),
        ("llama3.1-8b", {"tp_size": 4, "pp_size": 2}, (4, 2, 1, 1, None)),
        ("llama3.1-8b", {"tp_size": 2, "dp_size": 2}, (2, 1, 2, 1, None)),  # replicas of the whole model
        ("qwen3-30b-a3b", {"tp_size": 4, "ep_size": 2}, (4, 1, 1, 2, 2)),
        ("qwen3-30b-a3b", {"tp_size": 4, "enable_ep_moe": True}, (4, 1, 1, 4, 1)),
        # 8 ranks, of which each replica of attention has 4; 8 groups of whole experts
        ("qwen3-30b-a3b", {"tp_size": 8, "dp_size": 2, "ep_size": 8, "enable_dp_attention": True}, (4, 1, 2, 8, 1)),
    ],
)
def test_the_layout_is_that_of_all_devices(
    target: str, flags: dict[str, Any], sizes: tuple[int, int, int, int, int | None]
) -> None:
    answer = memory(target, **flags)
    layout = answer.layout
    assert (layout.tp, layout.pp, layout.dp, layout.ep, layout.etp) == sizes
    assert layout.tp * layout.pp * layout.dp == answer.devices


def test_fit_times_replicas() -> None:
    options = {"hardware": "h100", "engine": "sglang==0.5.20", "seq": 8192}
    single, replicas = (
        llmcalc.fit("llama3.1-8b", users=users, dp_size=dp, **options).document["options"]
        for users, dp in ((16, 1), (32, 2))
    )
    assert replicas[0]["tpot"] == single[0]["tpot"] is not None


@pytest.mark.parametrize(
    ("engine", "flags"),
    [("sglang==0.5.20", {"--tp-size": 8, "--ep-size": 8}), ("vllm==0.30", {"--enable-expert-parallel": True})],
)
def test_ranks_have_whole_experts_where_their_blocks_cannot_be_divided(engine: str, flags: dict[str, Any]) -> None:
    """Experts of 1,536 rows in blocks of 128 are not divided by 8; `fit` stopped at four devices."""
    answer = llmcalc.fit("minimax-m2.7", hardware="h100", engine=engine, seq=204_800, users=5, devices=8)
    (option,) = answer.document["options"]
    assert (answer.document["verdict"], option["devices"]) == ("fits", 8)
    assert option["flags"].items() >= flags.items()
    assert "parallel True" not in str(answer.report().tables)  # a switch has no value


def test_experts_in_the_memory_of_the_host() -> None:
    chosen = {"target": "qwen3-30b-a3b", "mem_fraction_static": 0.8, "tp_size": 2}
    whole = memory(**chosen).term_bytes("weights")
    # 48 layers of 128 experts of three matrices of 2,048 x 768 in two parts, 2 bytes
    expert = 3 * 2048 * 768 * 2 // 2
    none = memory(kt_weight_path="/w", **chosen)
    assert whole - none.term_bytes("weights") == 48 * 128 * expert
    shared = memory(kt_weight_path="/w", kt_gpu_experts_ratio=0.3, kt_gpu_prefill_token_threshold=400, **chosen)
    # 0.3 of 6,144 experts, rounded down
    assert whole - shared.term_bytes("weights") == (6144 - 1843) * expert
    assert any("400 tokens or more" in note and f"{128 * expert / GIB:.2f} GiB" in note for note in shared.notes)


def test_experts_of_mxfp4_in_the_memory_of_the_host() -> None:
    one, two = (
        memory("gpt-oss-120b", tp_size=tp, kt_weight_path="/w", kt_num_gpu_experts=32, mem_fraction_static=0.8)
        for tp in (1, 2)
    )
    whole = memory("gpt-oss-120b", tp_size=2, mem_fraction_static=0.8)
    left = memory("gpt-oss-120b", mem_fraction_static=0.8).term_bytes("weights") - one.term_bytes("weights")
    assert whole.term_bytes("weights") - two.term_bytes("weights") == pytest.approx(left / 2, abs=2)


def test_dense_networks_that_each_rank_has_whole() -> None:
    chosen = {"target": "deepseek-v3", "hardware": "h200", "tp_size": 8, "mem_fraction_static": 0.9}
    divided, whole = memory(**chosen), memory(moe_dense_tp_size=1, **chosen)
    # three of 61 layers are dense: three matrices of 7,168 x 18,432 in float8, with a float32 scale for each 128 x 128
    matrices = 3 * 3 * 7168 * 18432
    more = whole.term_bytes("weights") - divided.term_bytes("weights")
    assert more == pytest.approx((matrices + matrices // 128**2 * 4) * 7 / 8, rel=0.001)
    with pytest.raises(InputError, match="--moe-dense-tp-size: with --pp-size is not modelled"):
        memory(moe_dense_tp_size=1, pp_size=2, **chosen)


def test_encoders_take_a_part_of_the_cache_from_0_5_18_on() -> None:
    chosen = {"target": "gemma3-27b", "mem_fraction_static": 0.9}
    older, newer, pool = (
        memory(version=version, **chosen, **flags)
        for version, flags in (("0.5.17", {}), ("0.5.18", {}), ("0.5.18", {"mm_feature_transport": "cuda_ipc"}))
    )
    assert older.term_bytes("kv_cache") - newer.term_bytes("kv_cache") == 100 * 2**20 == newer.term_bytes("profile_run")
    assert newer.term_bytes("kv_cache") - pool.term_bytes("kv_cache") == GIB
    text = memory(version="0.5.18", language_model_only=True, **chosen)
    assert text.term_bytes("profile_run") == 0
    assert text.term_bytes("weights") < newer.term_bytes("weights")


@pytest.mark.parametrize(
    ("target", "names", "prompts"),
    [
        ("qwen3.6-35b-a3b", ("Qwen3_5MoeForConditionalGeneration",), 58 * 8),
        ("kimi-k2.5", ("Kimi_K25ForConditionalGeneration",), 1536),  # of latents
        ("llama4-scout", ("Llama4ForConditionalGeneration",), 0),
        ("internvl3-1b", (), 0),  # several wrappers have its text model
    ],
)
def test_the_class_of_a_model_whose_encoder_is_not_written(target: str, names: tuple[str, ...], prompts: int) -> None:
    """The preset had no class, so that rules for its class did not apply: prompts in graphs, from 0.5.17 on."""
    preset = llmcalc.load(target)
    rules = sglang_record().rules((0, 5, 20))
    assert architectures(preset) == names
    hardware = find_hardware("h100-sxm")
    assert prompt_graphs_mib(rules, {}, EngineRank(preset), hardware, names, 8192, 1) == prompts


@pytest.mark.parametrize("version", ["0.5.9", "0.5.20"])
def test_a_preset_has_the_budget_of_its_config(version: str) -> None:
    """SGLang reads `num_hidden_layers` of an encoder, which Qwen3.5's config names `depth`, and takes 24, not 27."""
    config = Path(__file__).parents[2] / "data/cases/qwen3.5-35b-a3b/config.json"
    budgets = [memory(target, version=version).term_bytes("budget") for target in ("qwen3.5-35b-a3b", str(config))]
    assert budgets[0] == budgets[1]


def test_flags_of_newer_versions() -> None:
    assert memory(fp8_gemm_runner_backend="triton", retraction_policy="length").can_start
    with pytest.raises(InputError, match="--dcp-size: what it changes in memory: not modelled"):
        memory(dcp_size=2)


def test_a_model_without_a_context_length() -> None:
    assert memory("bloom-560m").assumed_flags["--context-length"] == 2048


@pytest.mark.parametrize(("format_name", "factor"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_states_have_the_number_format_of_a_flag(format_name: str, factor: int) -> None:
    """A slot of Qwen3-Next: 36 layers with 32 x 128 x 128 elements, and the last 3 inputs of 8,192 channels in bf16."""
    rank = EngineRank(llmcalc.load("qwen3-next-80b-a3b"))
    inputs = 3 * 8192 * 2
    assert state_slot_bytes(rank, {"mamba_ssm_dtype": format_name}) == 36 * (32 * 128 * 128 * factor + inputs)
    assert state_slot_bytes(rank, {}) == 36 * (32 * 128 * 128 * 4 + inputs)
    with pytest.raises(InputError, match="--mamba-ssm-dtype 'int8'"):
        memory("qwen3-next-80b-a3b", "h200", tp=2, mamba_ssm_dtype="int8")


def test_a_server_of_embeddings_has_the_memory_of_the_class_that_generates() -> None:
    """SGLang ends the same class with a pooler; a head of its own, which the checkpoint lacks, is 151665 * 4096 * 2."""
    embeds, generates = (memory("qwen3-8b", **flags) for flags in ({"is_embedding": True}, {}))
    assert embeds.terms == generates.terms
    headless = memory("qwen3-embedding-8b", is_embedding=True)
    assert any(f"allocates {151665 * 4096 * 2 / GIB:.2f} GiB more for its output head" in n for n in headless.notes)
    assert not any("output head" in note for note in memory("qwen3-embedding-4b", is_embedding=True).notes)  # tied


def test_copies_of_experts_are_divided_as_the_experts_are() -> None:
    """`--ep-num-redundant-experts` of 32 beside 256: 18 experts a rank in place of 16."""
    flags: dict[str, Any] = {
        "target": "deepseek-v3", "hardware": "h200", "tp_size": 16, "dp_size": 16, "enable_dp_attention": True,
        "moe_a2a_backend": "deepep", "mem_fraction_static": 0.85, "enable_two_batch_overlap": True, "attn_cp_size": 1,
    }  # fmt: skip
    plain, copied = (memory(**flags, ep_num_redundant_experts=count, enable_eplb=True) for count in (0, 32))
    added = copied.term_bytes("weights") - plain.term_bytes("weights")
    assert added == pytest.approx(58 * 2 * 3 * 7168 * 2048, rel=1e-3)
    with pytest.raises(InputError, match="30: 16 ranks do not divide 256 experts and 30 copies; expected 32 copies"):
        memory(**flags, ep_num_redundant_experts=30)
    with pytest.raises(InputError, match="--attn-cp-size: context parallelism: not modelled"):
        memory(**{**flags, "attn_cp_size": 2})


def test_graphs_are_described_in_json_too() -> None:
    """`--cuda-graph-config` overrides the flags of single settings, as in a command of index:58202978001."""
    config = {"decode": {"backend": "full", "max_bs": 8, "bs": [1, 2, 4, 8]}, "prefill": {"backend": "disabled"}}
    by_config = memory(cuda_graph_config=config, cuda_graph_bs=[256], tp=2)
    by_flags = memory(cuda_graph_max_bs=8, cuda_graph_bs=[1, 2, 4, 8], cuda_graph_backend_prefill="disabled", tp=2)
    assert by_config.kv_tokens == by_flags.kv_tokens != memory(tp=2).kv_tokens
    with pytest.raises(InputError, match=r"--cuda-graph-config: 'decode\.padding' is not modelled; expected decode"):
        memory(cuda_graph_config={"decode": {"padding": True}})
    empty = {"decode": None, "prefill": {"backend": None, "tc_compiler": "eager"}}
    assert memory(cuda_graph_config=empty).kv_tokens == memory().kv_tokens
    for wrong, reason in (
        ({"decode": {"max_bs": "x"}}, "decode.max_bs: 'x'; expected a whole number"),
        ({"decode": {"backend": "x"}}, "decode.backend 'x': is not modelled; expected one of full"),
        ({"drafts": {"tc_compiler": "eager"}}, "'drafts.tc_compiler' is not modelled"),
        ({"drafts": None}, "'drafts' is not modelled"),
    ):
        with pytest.raises(InputError, match=f"--cuda-graph-config: {reason}"):
            memory(cuda_graph_config=wrong)
    with pytest.raises(InputError, match="--cuda-graph-config: '5'; expected a JSON object"):
        memory(cuda_graph_config="5")


def test_no_request_runs_where_the_weights_do_not_fit() -> None:
    """Weights of 65 GiB on a card of 32: the slots for states were a negative number of requests."""
    memory = engine_memory("qwen3.6-35b-a3b", hardware="rtx-5090", engine="sglang==0.5.23")
    assert not memory.can_start
    assert memory.max_concurrency == 0
