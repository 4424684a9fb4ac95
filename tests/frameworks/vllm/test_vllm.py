"""vLLM's record: versions and defaults, flags, blocks with the arithmetic beside them, and the commands."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.layouts import layouts_with_memory
from llmcalc.frameworks.engines.rank import EngineRank
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.engines.versions import parse_version
from llmcalc.frameworks.vllm.compressed_blocks import compressed_pool
from llmcalc.frameworks.vllm.expert_exchange import low_latency_buffer_bytes
from llmcalc.frameworks.vllm.kv_blocks import block_pool
from llmcalc.frameworks.vllm.sparse_workspace import sparse_workspace
from llmcalc.frameworks.vllm.versions import vllm_record
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import find_hardware
from tests.engines import engine_memory
from tests.in_process import command
from tests.samples import in_one_test

GIB = 2**30

TWO_BYTES = Fraction(2)


@in_one_test
@pytest.mark.parametrize(
    ("version", "record", "has_note"),
    [("0.19.1", "0.19", False), ("v0.9.2", "0.9.2", False), ("0.9.1", "0.8", False), ("0.20.0", "0.20", False),
     ("0.20.2", "0.20.1", False), ("", "0.27", True), ("1.4", "0.27", True)],
)  # fmt: skip
def test_a_version_has_the_rules_of_its_range(version: str, record: str, has_note: bool) -> None:
    _, found = engine_and_version(f"vllm=={version}" if version else "vllm")
    assert (found.rules_version, bool(found.note)) == (record, has_note)


def test_ranks_divide_short_convolutions() -> None:
    """Each rank has a part of the channels of LFM2 (vllm/model_executor/layers/mamba/short_conv.py)."""
    whole, divided = (EngineRank(llmcalc.load("lfm2-1.2b"), Layout(tp=tp)) for tp in (1, 8))
    hidden, kernel, layers = 2048, 3, 10
    per_rank = layers * (3 * hidden * hidden + kernel * hidden + hidden * hidden) * 2 // 8
    convolutions = {name: size for name, size in divided.weights_by_component.items() if "convolution" in name}
    assert sum(convolutions.values()) == per_rank
    assert [rank.stored_state_caches()[0].bytes for rank in (whole, divided)] == [hidden * 2 * 2, hidden * 2 * 2 // 8]


@in_one_test
@pytest.mark.parametrize("text", ["vllm==", "vllm==x", "vllm==0.1", "vlm", "", "vllm==1.2.3.4.5.6.7"])
def test_a_wrong_engine_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--engine"):
        engine_and_version(text)


@in_one_test
@pytest.mark.parametrize(
    ("hardware", "version", "sequences", "tokens"),
    [
        ("h100", (0, 19), 1024, 8192),
        ("a100-80gb", (0, 19), 256, 2048),
        ("a100-80gb", (0, 8, 5), 1024, 8192),
        ("dgx-spark", (0, 33), 256, 2048),
        ("ryzen-ai-max-395", (0, 20), 1024, 8192),
        ("ryzen-ai-max-395", (0, 24), 256, 2048),
        ("dgx-spark", (0, 31), 256, 2048),
        ("b200", (0, 33), 1024, 16384),
        ("rtx-4090", (0, 33), 256, 2048),
    ],
)
def test_defaults_go_by_memory_and_name(hardware: str, version: tuple[int, ...], sequences: int, tokens: int) -> None:
    defaults = vllm_record().defaults(version, find_hardware(hardware))
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (sequences, tokens)


def test_blocks_of_equal_layers() -> None:
    rank = EngineRank(llmcalc.load("llama3.1-8b"), Layout(tp=2))
    pool = block_pool(rank, TWO_BYTES, 16, vllm_record().rules((0, 19)))
    # 32 layers, 4 of 8 key heads of 128, keys and values, 2 bytes, 16 tokens
    assert pool.block_bytes == 32 * 4 * 128 * 2 * 2 * 16
    assert pool.blocks_of_request(8192, 8192) == 8192 // 16


def test_key_heads_fewer_than_ranks_are_copied() -> None:
    rank = EngineRank(llmcalc.load("llama3.1-8b"), Layout(tp=16))
    pool = block_pool(rank, TWO_BYTES, 16, vllm_record().rules((0, 19)))
    assert pool.block_bytes == 32 * 1 * 128 * 2 * 2 * 16


def test_latents_are_copied() -> None:
    pools = [
        block_pool(
            EngineRank(llmcalc.load("deepseek-v2-lite"), Layout(tp=tp)), TWO_BYTES, 16, vllm_record().rules((0, 19))
        )
        for tp in (1, 2)
    ]
    # 27 layers, 512 + 64 elements
    assert [pool.block_bytes for pool in pools] == [27 * 576 * 2 * 16] * 2


def test_sliding_layers_are_groups_of_one_pool() -> None:
    pool = block_pool(EngineRank(llmcalc.load("gpt-oss-20b")), TWO_BYTES, 16, vllm_record().rules((0, 19)))
    # 12 full layers and 12 with a window of 128: two groups of 12 layers, 8 key heads of 64
    assert pool.block_bytes == 12 * 8 * 64 * 2 * 2 * 16
    # a request of 8,192 tokens: 512 blocks of the full group; the windows keep 127 + 1,024 tokens and a block more
    assert pool.blocks_of_request(8192, 1024) == 512 + 72 + 1
    assert pool.longest_request(512 + 72 + 1, 1024, 131072) == 8192


def test_a_state_is_one_block_whose_size_attention_adopts() -> None:
    pool = block_pool(EngineRank(llmcalc.load("qwen3.5-9b")), TWO_BYTES, 16, vllm_record().rules((0, 33)))
    assert pool.block_size % 16 == 0
    assert pool.block_size > 16
    # 8 layers of attention and 24 of states: four groups of 8
    assert [(group.group_count, group.state_storage is not None) for group in pool.layer_groups] == [
        (1, False),
        (3, True),
    ]


def answer(target: str = "llama3.1-8b", hardware: str = "h100", engine: Any = "vllm==0.19", **flags: Any) -> Any:
    return llmcalc.memory(target, hardware=hardware, engine=engine, **flags)


def server_memory(target: str = "llama3.1-8b", hardware: str = "h100", engine: Any = "vllm==0.19", **flags: Any) -> Any:
    return engine_memory(target, hardware=hardware, engine=engine, **flags)


def test_terms_add_up() -> None:
    memory = server_memory("gpt-oss-120b", engine="vllm==0.33")
    taken = sum(memory.term_bytes(name) for name in ("weights", "profile_run", "non_torch", "cuda_graphs", "kv_cache"))
    assert taken == memory.term_bytes("budget")
    assert not memory.can_start
    assert "--max-model-len 131072" in memory.startup_error


@pytest.mark.parametrize(
    ("version", "block_count", "starts"),
    [("0.20", 100, True), ("0.20.1", 100, False), ("0.28", 512, True), ("0.29", 512, False), ("0.29", 513, True)],
)
def test_the_start_check_reads_the_override_from_0_20_1_and_leaves_out_a_block_from_0_29(
    version: str, block_count: int, starts: bool
) -> None:
    """v1/core/kv_cache_utils.py, `get_kv_cache_configs`; vLLM pull requests 41069 and 47272."""
    memory = server_memory(engine=f"vllm=={version}", max_model_len=8192, num_gpu_blocks_override=block_count)
    assert memory.can_start is starts
    assert memory.block_count == block_count


@pytest.mark.parametrize("flags", [{"num_gpu_blocks_override": 10**6}, {"kv_cache_memory_bytes": 2**40}])
def test_a_cache_larger_than_the_device_does_not_start(flags: dict[str, int]) -> None:
    memory = server_memory(engine="vllm==0.21", max_model_len=8192, **flags)
    assert "at most" in memory.startup_error
    fitting_blocks = int(memory.startup_error.split("at most ")[1].split()[0])
    assert server_memory(engine="vllm==0.21", max_model_len=8192, num_gpu_blocks_override=fitting_blocks).can_start
    assert not server_memory(
        engine="vllm==0.21", max_model_len=8192, num_gpu_blocks_override=fitting_blocks + 1
    ).can_start


def test_an_override_starts_without_memory_in_the_budget() -> None:
    """vllm#41069: from 0.20.1 on the bytes of the override alone are checked."""
    flags = {"max_model_len": 1024, "gpu_memory_utilization": 0.2, "num_gpu_blocks_override": 64}
    assert not server_memory(engine="vllm==0.20.0", **flags).can_start
    assert server_memory(engine="vllm==0.21", **flags).can_start


def test_an_override_adds_no_memory_that_the_check_before_0_20_1_sees() -> None:
    """index:55471149664: refused with 4.15 GiB available and 10.76 GiB needed, whatever the override."""
    flags = {"max_model_len": 240_000, "max_num_batched_tokens": 65_536, "enable_expert_parallel": True}
    memory = server_memory(
        "qwen3-235b-a22b-2507", "h100-sxm", "vllm==0.20.0", quantize="fp8-block128", tensor_parallel_size=4,
        num_gpu_blocks_override=15_000, **flags
    )  # fmt: skip
    assert not memory.can_start


def test_graphs_are_outside_the_budget_before_0_20() -> None:
    old, new = server_memory(gpu_memory_utilization=0.9), server_memory(engine="vllm==0.20", gpu_memory_utilization=0.9)
    assert old.term_bytes("cuda_graphs") == new.term_bytes("cuda_graphs") > 0
    assert new.term_bytes("kv_cache") < old.term_bytes("kv_cache")
    assert server_memory(enforce_eager=True).term_bytes("cuda_graphs") == 0


def test_a_small_card_does_not_start_and_a_shorter_request_does() -> None:
    stopped = answer(hardware="rtx-4090", max_model_len=131072)
    assert not stopped.ok
    length = next(row for row in stopped.document["changes"] if row["flag"].startswith("--max-model-len"))
    assert length["starts"]
    assert answer(hardware="rtx-4090", max_model_len=int(length["flag"].split()[1])).ok


@pytest.mark.parametrize(
    ("target", "engine", "flag"),
    [
        ("qwen2.5-14b", "vllm==0.19", "--quantization fp8 --max-model-len"),
        ("deepseek-v3", "vllm==0.28", "--tensor-parallel-size 8 --pipeline-parallel-size"),
        ("deepseek-v3", "sglang==0.5.12", "--tp-size 16"),
    ],
)
def test_where_no_flag_alone_suffices_two_do_or_more_devices(target: str, engine: str, flag: str) -> None:
    hardware = "rtx-4090" if target == "qwen2.5-14b" else "h100"
    rows = answer(target, hardware, engine).document["changes"]
    assert any(row["starts"] and row["flag"].startswith(flag) for row in rows)
    assert all(row["flag"].count("--") > 1 or row["flag"].startswith("--tp-size") for row in rows if row["starts"])


@pytest.mark.parametrize(
    ("version", "flags", "tokens"),
    [
        ("0.28", {}, 8192),
        ("0.28", {"enable_chunked_prefill": False}, 131_072),  # arg_utils.py, `_set_default_max_num_seqs_…`
        ("0.28", {"max_num_seqs": 1, "max_model_len": 4096}, 4096),
        ("0.6.4", {"max_model_len": 40_000}, 512),
        ("0.6.4", {"max_model_len": 40_000, "enable_chunked_prefill": False}, 40_000),
        ("0.6.5", {"max_model_len": 8192, "enable_chunked_prefill": True}, 2048),
    ],
)
def test_chunks_of_prompts_bound_the_tokens_of_a_batch(version: str, flags: dict[str, Any], tokens: int) -> None:
    assert server_memory(engine=f"vllm=={version}", **flags).assumed_flags["--max-num-batched-tokens"] == tokens


@pytest.mark.parametrize(("hardware", "mib"), [("h100", 32), ("rtx-3090", 8.125)])
def test_an_eager_pass_keeps_three_hidden_vectors_and_cublas_its_workspace(hardware: str, mib: float) -> None:
    """V0's peak of 20,000 tokens in logs of two cards: residual, hidden states and their norm beside the network."""
    result = server_memory(hardware=hardware, engine="vllm==0.6.4", max_model_len=20_000)
    assert result.term_bytes("profile_run") == 20_000 * 2 * (3 * 4096 + 3 * 14_336) + int(mib * 2**20)


def test_more_concurrent_sequences_leave_less_cache() -> None:
    tokens = [server_memory(max_num_seqs=number).kv_tokens for number in (64, 256, 1024)]
    assert tokens == sorted(tokens, reverse=True)


@in_one_test
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_model_ln": 4096}, "--max-model-len"),
        ({"max_model_len": "x"}, "--max-model-len"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization"),
        ({"gpu_memory_utilization": "nan"}, "--gpu-memory-utilization"),
        ({"tensor_parallel_size": 3}, "--tensor-parallel-size 3"),
        ({"pipeline_parallel_size": 512}, "--pipeline-parallel-size"),
        ({"kv_cache_dtype": "fp9"}, "--kv-cache-dtype"),
        (
            {"speculative_config": '{"method": "eagle3", "model": "x/y", "num_speculative_tokens": 2}'},
            "draft model 'x/y'",
        ),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, "multi-token prediction"),
        (
            {"speculative_config": {"model": "no-such-draft", "num_speculative_tokens": 1}},
            "draft model 'no-such-draft'",
        ),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}}, "num_speculative_tokens"),
        ({"speculative_config": "3"}, "--speculative-config: '3'; expected a JSON object"),
        ({"speculative_config": {"num_speculative_tokens": 3}}, "states neither a method nor a model"),
        ({"engine": "tensorrt-llm", "speculative_config": {"max_draft_len": 3}}, "states no decoding_type"),
        ({"quantization": "modelopt"}, "--quantize"),
        ({"phase": "training"}, "phase"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 100}, "--max-num-batched-tokens"),
        ({"hardware": "m4-max"}, r"NVIDIA \(compute capability 7.0 or higher\) or AMD"),
        ({"target": "t5-base"}, "encoder"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer(**flags)


@pytest.mark.parametrize(("hardware", "is_noted"), [("mi300x", True), ("h200", False)])
def test_compressed_attention_on_amd_is_said_to_need_more(hardware: str, is_noted: bool) -> None:
    """https://github.com/vllm-project/vllm/issues/41962: a decoding pass took 13.54 GiB beside the cache."""
    server = {"engine": "vllm==0.28", "hardware": hardware, "tensor_parallel_size": 8, "max_model_len": 8192}
    notes = answer("deepseek-v4-flash", **server).document["notes"]
    assert any("fallback kernels for compressed attention" in note for note in notes) == is_noted


def test_blocks_have_the_tokens_that_an_indexer_selects_together() -> None:
    """A log of MiniMax-M3: "Setting KV cache block size to 128 to match MiniMax-M3 sparse block size (was 16)".

    One of DeepSeek-V3.2: "Forcing kv cache block size to 64 for FlashMLASparse backend".
    """
    server = {"hardware": "b300", "tensor_parallel_size": 2, "max_model_len": 8192, "quantize": "nvfp4"}
    result = server_memory("minimax-m3", engine="vllm==0.23", **server)
    assert (result.assumed_flags["--block-size"], result.kv_tokens % 128) == (128, 0)
    sizes = {
        hardware: server_memory(
            "deepseek-v3.2?num_hidden_layers=5", engine="vllm==0.13", hardware=hardware, tensor_parallel_size=8
        ).assumed_flags
        for hardware in ("h200", "mi300x")
    }
    assert {hardware: flags["--block-size"] for hardware, flags in sizes.items()} == {"h200": 64, "mi300x": 16}
    assert server_memory("minimax-m3", engine="vllm==0.23", block_size=256, **server).kv_tokens % 256 == 0


def test_keys_of_pooled_tokens_stand_in_the_blocks_of_latents() -> None:
    """A log of vLLM 0.31.1 with GLM-5.3-Flash on 8 H100: 28.73 GiB for the cache are "2,618,281 tokens".

    All files of its checkpoint have 319,706,118,392 bytes without vision encoder and multi-token prediction
    (T0mSIlver/working-set, research/model_glm53flash.md); the rank has RoPE tables besides.
    """
    server = {"engine": "vllm==0.31.1", "max_num_seqs": 64, "max_model_len": 262144, "language_model_only": True}
    ranks = {"tensor_parallel_size": 8, "enable_expert_parallel": True, "enable_prefix_caching": False}
    logged = server_memory("glm-5.3-flash", **server, **ranks, kv_cache_memory_bytes=int(28.73 * 2**30))
    assert logged.kv_tokens == 2_618_281
    weights = server_memory("glm-5.3-flash", hardware="b300", **server).term_bytes("weights")
    assert weights == pytest.approx(319_706_118_392, rel=0.001)


def test_a_draft_that_reads_hidden_states_shares_the_targets_embedding(tmp_path: Path) -> None:
    """vLLM divides the layers and the head of an EAGLE-3 draft over the ranks, and holds its projection whole."""
    record = json.loads((Path(__file__).parents[2] / "data" / "drafts.json").read_text())["eagle3-llama-3.1-8b"]
    path = tmp_path / "eagle3.json"
    path.write_text(json.dumps(record["config"]))
    speculation = {"method": "eagle3", "model": str(path), "num_speculative_tokens": 3}

    def weights(tp: int, **flags: Any) -> int:
        return int(server_memory(tensor_parallel_size=tp, **flags).term_bytes("weights"))

    whole, divided = 3 * 4096**2 + 4 * 4096, 424_689_664 - 3 * 4096**2 - 4 * 4096
    for tp in (1, 2, 4):
        added = abs(weights(tp, speculative_config=speculation) - weights(tp))
        rope = added - 2 * (whole + divided // tp)
        assert 0 <= rope <= 2 * 131072 * 128
    with pytest.raises(InputError, match="reads no hidden states of its target"):
        answer(speculative_config={**speculation, "model": "llama3.2-1b"})
    with pytest.raises(InputError, match="reads hidden states of width 4,096, and the target's have 8,192"):
        answer(target="llama3.1-70b", tensor_parallel_size=8, speculative_config=speculation)


def test_the_document_has_the_keys_of_engines() -> None:
    result = command(
        *("memory", "llama3.1-8b", "--engine", "vllm==0.19", "--hardware", "h100", "-tp", "2", "--max_model_len=32K"),
        *("--enforce-eager", "--trust-remote-code", "--format", "json"),
    )
    document = json.loads(result.out)
    assert result.code == 0, result.err
    assert document["engine"] == {"name": "vllm", "version": "0.19", "record": "0.19"}
    assert [term["name"] for term in document["terms"]] == [
        "budget", "weights", "profile_run", "non_torch", "cuda_graphs", "kv_cache",
    ]  # fmt: skip
    assert set(document["terms"][0]) == {"name", "bytes", "status", "source", "from"}
    assert set(document["changes"][0]) == {"flag", "kv_tokens", "max_concurrency", "starts"}
    assert {"kv_tokens", "blocks", "max_concurrency", "starts", "message", "assumed", "memory"} <= set(document)
    assert document["max_model_len"] == 32768
    assert "--max-num-seqs" in document["assumed"]
    assert "--max-model-len" not in document["assumed"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("memory", "gpt-oss-120b", "--engine", "vllm==0.33", "--hardware", "h100"), 1, "does not start"),
        (("memory", "llama3.1-8b", "--engine", "vllm"), 2, "--hardware"),
        (("memory", "llama3.1-8b", "--engine", "vllm", "--hardware", "h100", "--seq", "4k"), 0, "4,096"),
        (("memory", "llama3.1-8b", "--engine", "vllm", "--hardware", "h100", "--max-seqs", "4"), 2, "--max-num-seqs"),
        (("memory", "llama3.1-8b", "--engine", "vllm", "--hardware", "h100", "--max-model-len"), 2, "missing"),
        (("kv", "llama3.1-8b", "--hardware", "h100"), 2, "--engine"),
        (("fit", "gpt2", "--engine", "vllm", "--users", "4", "--hardware", "h100"), 0, "4 users"),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = command(*arguments)
    assert result.code == code, result.out + result.err
    assert message in result.out + result.err
    assert "Traceback" not in result.err


def test_a_screen_has_at_most_24_lines_before_its_notes() -> None:
    lines = command("memory", "llama3.1-8b", "--engine", "vllm==0.33", "--hardware", "h100").out.splitlines()
    assert "it starts" in lines[0]
    assert len(lines) <= 26


def test_fit_finds_the_fewest_accelerators_for_the_users() -> None:
    fit = llmcalc.fit("llama3.1-8b", engine="vllm", users=60, seq="32k", hardware="h100")
    best = fit.document["options"][0]
    assert (best["hardware"], best["devices"], best["flags"]) == ("h100-sxm", 4, {"--tensor-parallel-size": 4})
    assert best["max_concurrency"] >= 60
    fewer = server_memory(engine="vllm", tensor_parallel_size=2, max_model_len=32768)
    assert fewer.max_concurrency < 60


def test_versions_are_compared_in_columns() -> None:
    compared = answer(engine=("vllm==0.19", "vllm==0.33"))
    assert [row["engine"]["record"] for row in compared.document] == ["0.19", "0.27"]
    assert set(compared.records()[0]) == {"target", "term", "vllm==0.19", "vllm==0.33"}


def test_the_longest_request_that_fits_is_chosen() -> None:
    chosen = server_memory(hardware="rtx-4090", max_model_len="auto")
    assert chosen.can_start
    assert not server_memory(hardware="rtx-4090", max_model_len=chosen.max_model_len + 16).can_start
    assert server_memory(max_model_len=-1).max_model_len == 131_072


@pytest.mark.parametrize(
    ("flags", "further_graphs", "largest_batch"),
    [
        ({}, 50 + 50, 512),
        ({"max_num_seqs": 64}, 18 + 10, 64),  # mixed batches up to 128, decoding ones up to 64
        ({"cudagraph_capture_sizes": "1 2 4 8"}, 3 + 3, 8),
        ({"compilation_config": '{"cudagraph_mode": "FULL_DECODE_ONLY"}'}, 50, 512),
        ({"compilation_config": '{"cudagraph_mode": "PIECEWISE"}'}, 50, 0),
        ({"max_cudagraph_capture_size": 4}, 2 + 2, 4),
        ({"performance_mode": "interactivity"}, 75 + 75, 512),
        ({"attention_backend": "FLASHINFER"}, 50 + 50, 0),
        ({"hardware": "a100-80gb"}, 50 + 34, 0),
    ],
)
def test_graphs_are_those_of_the_sizes(flags: dict[str, Any], further_graphs: int, largest_batch: int) -> None:
    """The pool of the first graph, or FlashAttention 3's sums of 32 parts, and 0.19 MiB a layer of each further one."""
    first_mib = max(130, 32 * largest_batch * 32 * 128 * 4 / 2**20)
    expected = (first_mib + further_graphs * 32 * 0.19) * 2**20
    assert server_memory(**flags).term_bytes("cuda_graphs") == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [("cudagraph_capture_sizes", ["a"]), ("max_cudagraph_capture_size", []), ("inductor_compile_config", [1])],
)
def test_values_of_the_compilation_config_are_checked(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"--compilation-config: {key}: .*; expected a"):
        answer(compilation_config={key: value})
    assert server_memory(compilation_config={key: None}).term_bytes("cuda_graphs") > 0


@pytest.mark.parametrize("flag", ["max_model_len", "max_num_seqs", "cudagraph_capture_sizes", "quantization"])
def test_a_number_of_thousands_of_digits(flag: str) -> None:
    with pytest.raises(InputError, match=f"--{flag.replace('_', '-')}: .* is too long; expected a shorter value"):
        answer(**{flag: [10**5000] if flag.endswith("sizes") else 10**5000})


def test_a_truth_value_turns_off_no_number_word_and_table() -> None:
    table: dict[str, Any] = {}
    table["a"] = table
    for flag, value, expected in (
        ("block_size", False, "False; expected a whole number"),
        ("speculative_config", False, "'False'; expected a JSON object"),
        ("mamba_ssm_cache_dtype", False, "is not modelled"),
        ("compilation_config", table, "nested too deeply"),
    ):
        with pytest.raises(InputError, match=f"--{flag.replace('_', '-')}.*: {expected}"):
            answer(**{flag: value})


def test_no_graphs_take_no_memory() -> None:
    assert server_memory(compilation_config={"cudagraph_mode": "NONE"}).term_bytes("cuda_graphs") == 0


def test_the_environment_decides_whether_graphs_are_subtracted() -> None:
    def tokens(**flags: Any) -> int:
        return int(server_memory(engine="vllm==0.19", **flags).kv_tokens)

    assert tokens(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1) < tokens()


def test_the_first_engine_follows_its_last_record_until_it_is_gone() -> None:
    chosen = server_memory(engine="vllm==0.9.2", VLLM_USE_V1="0", max_model_len=8192)
    earlier = server_memory(engine="vllm==0.7", max_model_len=8192)
    assert chosen.settings["max_num_batched_tokens"] == earlier.settings["max_num_batched_tokens"] == 8192
    assert chosen.term_bytes("profile_run") == earlier.term_bytes("profile_run")
    with pytest.raises(InputError, match=r"VLLM_USE_V1=0: vLLM 0\.11 and later have no first engine"):
        answer(engine="vllm==0.19", VLLM_USE_V1="0")


def test_the_cache_is_that_of_the_blocks_which_are_asked_for() -> None:
    refused = answer("qwen3-30b-a3b", engine="vllm==0.33", num_gpu_blocks_override=1000)
    assert refused.result.term_bytes("kv_cache") == 1000 * 16 * 48 * 2 * 4 * 128 * 2
    assert not refused.result.can_start
    first_change = refused.document["changes"][0]
    assert first_change["flag"].startswith("--num-gpu-blocks-override ")
    assert first_change["starts"]


@pytest.mark.parametrize(
    ("version", "hardware", "has_note"),
    [("0.10.1", "h100", True), ("0.11.0", "h200", True), ("0.19", "h100", False), ("0.11.0", "a100", False)],
)
def test_gpt_oss_by_pip_has_other_kernels_on_hopper(version: str, hardware: str, has_note: bool) -> None:
    """Row 628: 65.97 GiB of weights, where Triton's kernels have 64.58."""
    memory = server_memory("gpt-oss-120b", hardware=hardware, engine=f"vllm=={version}")
    assert any("triton_kernels" in note for note in memory.notes) is has_note


def test_changes_on_one_device_are_combined_until_one_starts() -> None:
    """gpt-oss 20B on a card of 16 GB: no single flag suffices, and a second card is not all that does."""
    changes = answer("gpt-oss-20b", hardware="rtx-5070-ti", engine="vllm==0.33").document["changes"]
    flags = [change["flag"] for change in changes if change["starts"] and "parallel" not in change["flag"]]
    assert len(flags) == 2
    for flag in flags:
        words = [(name.lstrip("-").replace("-", "_"), float(value)) for name, value in batched_pairs(flag.split())]
        chosen = {name: int(value) if value >= 1 else value for name, value in words}
        assert server_memory("gpt-oss-20b", hardware="rtx-5070-ti", engine="vllm==0.33", **chosen).can_start


def batched_pairs(words: list[str]) -> list[tuple[str, str]]:
    """Returns the flags of a typed text with their values."""
    return list(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("target", "hardware", "flags", "status"),
    [
        ("qwen3-30b-a3b", "a100", {}, "source"),
        ("qwen3-30b-a3b", "b200", {}, "estimate"),  # FlashInfer's kernels
        ("qwen3-30b-a3b", "a100", {"moe_backend": "flashinfer_cutlass"}, "estimate"),
        ("qwen3-30b-a3b", "a100", {"kernel_config": {"moe_backend": "flashinfer-cutlass"}}, "estimate"),
        ("qwen3-30b-a3b", "b200", {"kernel_config": {"moe_backend": "triton"}}, "source"),
        ("gpt-oss-20b", "a100", {}, "estimate"),  # Marlin's kernels
        ("qwen3-30b-a3b", "a100", {"quantize": "fp8-dynamic"}, "estimate"),  # Marlin's, below compute capability 8.9
        ("qwen3-30b-a3b", "h100", {"quantize": "fp8-dynamic", "moe_backend": "cutlass"}, "estimate"),
        ("qwen3-30b-a3b", "h100", {"quantize": "fp8-dynamic"}, "source"),
        ("qwen3-8b", "a100", {"quantize": "nvfp4"}, "source"),  # a dense network
    ],
)
def test_assumed_workspaces_of_experts_are_an_estimate(
    target: str, hardware: str, flags: dict[str, Any], status: str
) -> None:
    """fused_moe/oracle and config/kernel.py of 0.33 choose the kernels; Triton's are those that are counted."""
    memory = server_memory(target, hardware=hardware, engine="vllm==0.33", max_model_len=4096, **flags)
    assert {term.name: term.status for term in memory.terms}["profile_run"] == status
    assert any("workspaces are not modelled" in note for note in memory.notes) is (status == "estimate")


@pytest.mark.parametrize(
    ("version", "hardware", "flags", "is_first"),
    [
        ("0.8.5", "v100-32gb", {}, True),  # the log in tests/data/engines has 4.35 GiB of a peak, V1's would be 1.4
        ("0.9.2", "t4", {}, True),
        ("0.10.2", "t4", {}, False),
        ("0.8.5", "a10", {}, False),
        ("0.9.1", "mi300x", {}, True),
        ("0.9.2", "mi300x", {}, False),
        ("0.9.1", "a10", {"dtype": "float32"}, True),
        ("0.9.2", "a10", {"dtype": "float32"}, False),
        ("0.8.1", "h100", {"kv_cache_dtype": "fp8"}, True),
        ("0.8.2", "h100", {"kv_cache_dtype": "fp8"}, False),
        ("0.10.2", "a10", {"kv_cache_dtype": "fp8"}, True),
        ("0.9.2", "b200", {"kv_cache_dtype": "fp8"}, True),
        ("0.10.0", "b200", {"kv_cache_dtype": "fp8"}, False),
        ("0.10.0", "rtx-5090", {"kv_cache_dtype": "fp8"}, True),
        ("0.9.0", "a10", {"pipeline_parallel_size": 2}, True),
        ("0.8.5", "a10", {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}, False),
        ("0.8.2", "a10", {"enable_lora": True}, True),
        ("0.8.3", "a10", {"enable_lora": True}, False),
    ],
)
def test_a_version_with_two_engines_runs_the_first_one_where_the_second_lacks_something(
    version: str, hardware: str, flags: dict[str, Any], is_first: bool
) -> None:
    """engine/arg_utils.py, `_is_v1_supported_oracle`, of each version."""
    flags = flags | {"max_model_len": 4096}
    default = server_memory("qwen3-0.6b", hardware=hardware, engine=f"vllm=={version}", **flags)
    first = server_memory("qwen3-0.6b", hardware=hardware, engine=f"vllm=={version}", VLLM_USE_V1="0", **flags)
    assert (default.term_bytes("profile_run") == first.term_bytes("profile_run")) is is_first
    assert any("runs its first engine (V0), as " in note for note in default.notes) is is_first
    if hardware == "mi300x" or "enable_lora" in flags:  # the second engine, which is not the default there
        second = server_memory("qwen3-0.6b", hardware=hardware, engine=f"vllm=={version}", VLLM_USE_V1="1", **flags)
        assert second.term_bytes("profile_run") != first.term_bytes("profile_run")
    elif is_first:
        with pytest.raises(InputError, match=r"VLLM_USE_V1=1: vLLM .* does not start with it"):
            server_memory("qwen3-0.6b", hardware=hardware, engine=f"vllm=={version}", VLLM_USE_V1="1", **flags)


def test_slots_of_adapters_are_weights() -> None:
    plain = server_memory("qwen3-8b", tensor_parallel_size=2)
    slots = server_memory("qwen3-8b", tensor_parallel_size=2, enable_lora=True, max_loras=4, max_lora_rank=64)
    # inputs and outputs of 36 layers: query, key, value; output; gate and up; down. A rank has half of what is divided
    attention = (4096 + 2048) + 2 * (4096 + 512) + (2048 + 4096)
    network = 2 * (4096 + 6144) + (6144 + 4096)
    vocabulary = 2 * (151_936 + 4096)  # embedding and head have the whole vocabulary on every rank
    sides = 36 * (attention + network) + vocabulary
    assert slots.term_bytes("weights") - plain.term_bytes("weights") == 4 * 64 * 2 * sides
    # 51 graphs of each mode are captured with adapters and without
    further = slots.term_bytes("cuda_graphs") - plain.term_bytes("cuda_graphs")
    assert further == pytest.approx(2 * 51 * 36 * 0.19 * 2**20, abs=2)


def test_experts_have_slots_of_adapters() -> None:
    plain = server_memory("qwen3-30b-a3b", hardware="h200", engine="vllm==0.33")
    slots = server_memory("qwen3-30b-a3b", hardware="h200", engine="vllm==0.33", enable_lora=True)
    experts = 128 * 3 * (2048 + 768)
    attention = (2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048)
    sides = 48 * (experts + attention + 2048 + 128) + 2 * (151_936 + 2048)
    assert slots.term_bytes("weights") - plain.term_bytes("weights") == 16 * 2 * sides


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"enable_lora": True, "max_lora_rank": 17}, "--max-lora-rank 17: expected one of 1, 8"),
        ({"enable_lora": True, "target": "deepseek-v2-lite"}, "--enable-lora: adapters of latent"),
        ({"enable_lora": True, "target": "qwen3-30b-a3b", "engine": "vllm==0.10"}, "adapters of experts"),
        ({"fully_sharded_loras": True}, "--fully-sharded-loras"),
    ],
)
def test_adapters_that_are_not_modelled_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer(**flags)


@pytest.mark.parametrize(
    ("word", "sixteenths_of_a_byte"),
    [
        ("auto", 2 * 16),
        ("fp8", 16),
        ("fp8_per_token_head", 16.5),  # one float32 for 128 elements
        ("int8_per_token_head", 16.5),
        ("int4_per_token_head", 8.5),
        ("nvfp4", 9),  # one byte for 16 elements
    ],
)
def test_a_cached_element_has_its_share_of_scales(word: str, sixteenths_of_a_byte: float) -> None:
    memory = server_memory("qwen3-8b", engine="vllm==0.33", kv_cache_dtype=word)
    block = round(36 * 8 * 128 * 2 * 16 * sixteenths_of_a_byte / 16)
    assert memory.block_count == memory.term_bytes("kv_cache") // block


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"engine": "vllm==0.19"}, "0.19 and earlier have no such cache"),
        ({"engine": "vllm==0.33", "target": "deepseek-v2-lite"}, "latent attention is not modelled"),
        ({"engine": "vllm==0.33", "target": "gemma4-31b", "hardware": "b200"}, "heads of several sizes"),
    ],
)
def test_caches_with_scales_that_are_not_modelled_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer(**{"kv_cache_dtype": "int8_per_token_head", **flags})


def test_encoders_without_inputs_are_not_loaded() -> None:
    weights = server_memory("gemma3-27b").term_bytes("weights")
    text = server_memory("gemma3-27b", limit_mm_per_prompt='{"image": 0, "video": 0}')
    assert text.term_bytes("weights") == server_memory("gemma3-27b", language_model_only=True).term_bytes("weights")
    assert text.term_bytes("weights") < weights
    assert server_memory("gemma3-27b", limit_mm_per_prompt="image=1").term_bytes("weights") == weights


def test_windows_keep_all_tokens_without_the_hybrid_manager() -> None:
    windowed, full = (server_memory("gemma3-27b", disable_hybrid_kv_cache_manager=off) for off in (False, True))
    assert full.max_concurrency < windowed.max_concurrency


@pytest.mark.parametrize("flags", [{"kv_transfer_config": {"kv_connector": "P2pNcclConnector"}}, {"O": '{"x": 1}'}])
def test_configurations_that_are_not_modelled_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not modelled"):
        answer(**flags)


def test_modules_that_draft_have_weights_and_a_layer_of_cache() -> None:
    plain = server_memory("glm-4.5-air", hardware="b300", engine="vllm==0.33")
    drafting = server_memory(
        "glm-4.5-air",
        hardware="b300",
        engine="vllm==0.33",
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )
    with_mtp = llmcalc.params("glm-4.5-air", with_mtp=True).total - llmcalc.params("glm-4.5-air").total
    rests_of_segments = drafting.term_bytes("weights") - plain.term_bytes("weights") - 2 * with_mtp
    assert 0 <= rests_of_segments <= 8 * 2**20
    # 46 layers and one, 8 key heads of 128, keys and values, 2 bytes
    assert drafting.block_count == drafting.term_bytes("kv_cache") // (47 * 8 * 128 * 2 * 2 * 16)


def test_modules_with_a_window_add_no_layer_to_the_caches_of_whole_requests() -> None:
    """Of MiMo-V2-Flash: nine full layers, and three modules with a window of 128 tokens."""
    plain, drafting = (
        server_memory("mimo-v2-flash", hardware="b300", engine="vllm==0.33", tp=4, **flags)
        for flags in ({}, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}})
    )
    full, windowed = (
        drafting.kv_tokens / drafting.term_bytes("kv_cache"),
        plain.kv_tokens / plain.term_bytes("kv_cache"),
    )
    assert full == pytest.approx(windowed, rel=0.05)


def test_a_draft_model_has_weights_and_a_cache() -> None:
    def tokens_of(target: str, **flags: Any) -> Any:
        return server_memory(target, hardware="b300", engine="vllm==0.19", **flags)

    plain, draft = tokens_of("llama3.1-70b"), tokens_of("llama3.2-1b")
    both = tokens_of("llama3.1-70b", speculative_config='{"model": "llama3.2-1b", "num_speculative_tokens": 4}')
    weights = plain.term_bytes("weights") + draft.term_bytes("weights")
    assert both.term_bytes("weights") == weights
    # 80 layers with 8 key heads of 128, and 16 with 8 of 64
    assert both.block_count == both.term_bytes("kv_cache") // ((80 * 8 * 128 + 16 * 8 * 64) * 2 * 2 * 16)


MEDUSA = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 5, "num_hidden_layers": 1} | {
    "hidden_size": 4096, "vocab_size": 32_000, "max_paths": 64, "topk": 10
}  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2])
def test_heads_of_medusa_are_divided_and_their_blocks_are_whole(tp: int) -> None:
    """models/medusa.py: a residual block is a plain linear layer, a head is `ParallelLMHead`; there is no cache."""
    draft = {"method": "medusa", "model": llmcalc.load(MEDUSA), "num_speculative_tokens": 3}
    alone = server_memory("llama2-7b", engine="vllm==0.28", tensor_parallel_size=tp)
    drafted = server_memory("llama2-7b", engine="vllm==0.28", tensor_parallel_size=tp, speculative_config=draft)
    elements = 5 * (4096 * 4096 + 32_000 * 4096 // tp)
    assert (
        0 <= drafted.term_bytes("weights") - alone.term_bytes("weights") - 2 * elements <= 8 * 2**20
    )  # rests of segments
    with pytest.raises(InputError, match=r"method eagle: .* is a draft of Medusa; expected the method medusa"):
        answer("llama2-7b", engine="vllm==0.28", speculative_config=draft | {"method": "eagle"})


def test_tokens_found_in_the_prompt_take_nothing() -> None:
    found = server_memory(speculative_config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4})
    assert found.kv_tokens == server_memory().kv_tokens


def test_ranks_divide_the_tokens_of_copied_heads() -> None:
    chosen: dict[str, Any] = {"hardware": "h200", "engine": "vllm==0.19", "tensor_parallel_size": 8}
    latents = server_memory("deepseek-v3", max_model_len=32768, **chosen)
    divided = server_memory("deepseek-v3", max_model_len=32768, decode_context_parallel_size=8, **chosen)
    assert (divided.block_count, divided.kv_tokens) == (latents.block_count, 8 * latents.kv_tokens)
    assert divided.max_concurrency == pytest.approx(8 * latents.max_concurrency)
    # four key heads on eight ranks: two ranks have the same head
    heads = server_memory("qwen3-235b-a22b", decode_context_parallel_size=2, **chosen)
    assert heads.kv_tokens == 2 * server_memory("qwen3-235b-a22b", **chosen).kv_tokens


@pytest.mark.parametrize(
    ("target", "flags", "message"),
    [
        ("qwen3-235b-a22b", {"decode_context_parallel_size": 4}, "of at most 2, as the model has 4 heads of keys"),
        ("deepseek-v3", {"decode_context_parallel_size": 3}, "a divisor of --tensor-parallel-size 8"),
        ("deepseek-v3", {"decode_context_parallel_size": 2, "engine": "vllm==0.10"}, r"from vLLM 0\.11 on"),
        ("gpt-oss-20b", {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 2}, "of prompts"),
        ("gemma3-1b", {"decode_context_parallel_size": 2}, "layers of several kinds"),
        (
            "deepseek-v3",
            {"decode_context_parallel_size": 2, "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
            "with drafted tokens",
        ),
    ],
)
def test_divisions_of_tokens_that_are_not_modelled_are_refused(
    target: str, flags: dict[str, Any], message: str
) -> None:
    chosen: dict[str, Any] = {"hardware": "h200", "engine": "vllm==0.19", "tensor_parallel_size": 8}
    if target == "gemma3-1b":
        chosen["tensor_parallel_size"] = 4
    with pytest.raises(InputError, match=message):
        answer(target, **chosen | flags)


def test_fit_times_a_token_of_every_user() -> None:
    document = llmcalc.fit("llama3.1-8b", hardware="h100", engine="vllm==0.19", users=16, seq=8192).document
    (option,) = document["options"]
    timed = llmcalc.time("llama3.1-8b", hardware="h100", phase="decode", batch=16, seq=8192, engine="vllm==0.19")
    assert option["tpot"]["estimate"] == pytest.approx(timed.document["seconds"]["estimate"], rel=1e-6)
    assert option["tokens_per_second"] == pytest.approx(16 / option["tpot"]["estimate"], rel=1e-6)
    # each of two replicas has half of the users
    (replicas,) = llmcalc.fit(
        "llama3.1-8b", hardware="h100", engine="vllm==0.19", users=32, seq=8192, data_parallel_size=2
    ).document["options"]
    assert replicas["tpot"] == option["tpot"]
    assert replicas["tokens_per_second"] == pytest.approx(2 * option["tokens_per_second"], rel=1e-6)


def test_fit_has_no_time_where_the_users_do_not_fit() -> None:
    document = llmcalc.fit("llama3.1-8b", hardware="rtx-3090", engine="vllm", users=4096, devices=1).document
    assert [option["tpot"] for option in document["options"]] == [None]


@pytest.mark.parametrize(
    ("model", "version", "flags", "starts"),
    [
        ("gemma4-26b-a4b", "0.19", {}, True),
        ("gemma4-26b-a4b", "0.21", {}, False),  # max_tokens_per_mm_item (2496), of 32 frames of 78 tokens
        ("gemma4-26b-a4b", "0.21", {"limit_mm_per_prompt": '{"video": 0}'}, True),  # an image has 280
        ("gemma4-26b-a4b", "0.21", {"language_model_only": True}, True),
        ("gemma4-26b-a4b", "0.22", {}, True),  # which raises its default to 2,496
        ("gemma4-26b-a4b", "0.25.1", {"max_num_batched_tokens": 2048}, False),
        ("gemma4-12b", "0.25.1", {"max_num_batched_tokens": 2048}, False),
        ("gemma4-e4b", "0.21", {}, True),  # whose images do not see what comes later
    ],
)
def test_a_batch_holds_the_longest_video_where_images_see_all_of_themselves(
    model: str, version: str, flags: dict[str, Any], starts: bool
) -> None:
    """platforms/cuda.py, `check_and_update_config`, and engine/arg_utils.py, `_get_min_mm_batched_tokens`."""
    answer = llmcalc.memory(
        model, engine=f"vllm=={version}", hardware="l40s", quantize="fp8-dynamic", max_model_len=8192, **flags
    )
    assert answer.result.can_start == starts
    if not starts:
        assert answer.result.startup_error.startswith("Chunked MM input disabled")
        assert answer.document["changes"][0]["flag"] == "--max-num-batched-tokens 2496"
        assert answer.document["changes"][0]["starts"]


def test_throughput_doubles_the_defaults_of_a_batch() -> None:
    memory = server_memory(engine="vllm==0.33", performance_mode="throughput")
    assert (memory.assumed_flags["--max-num-seqs"], memory.assumed_flags["--max-num-batched-tokens"]) == (2048, 16384)


def test_encoders_that_are_whole_on_each_rank() -> None:
    """`--mm-encoder-tp-mode data`: each of two ranks has the encoder of images as one device has it."""

    def weights(ranks: int, **flags: Any) -> int:
        memory = server_memory("gemma3-27b", tensor_parallel_size=ranks, hardware="h200", **flags)
        return int(memory.term_bytes("weights"))

    tower = weights(1) - weights(1, language_model_only=True)
    text = weights(2, language_model_only=True)
    assert weights(2) < weights(2, mm_encoder_tp_mode="data") == text + tower


COMPRESSED_BLOCKS = [
    # vLLM's start-up on two GH200 (its issue 44376, 0.22): 6.66 GiB for 30,000 tokens
    ("deepseek-v4-flash", "tuples", False, 1_051_776),
    # its pull request 48993, before and after, with FlashMLA and an indexer cache of 4 bits, of which the first keeps 8
    ("deepseek-v4-pro", "page sizes", True, 1_473_408),
    ("deepseek-v4-pro", "groups", True, 1_315_008),
    # computed by vLLM's own functions from that config (0.25)
    ("deepseek-v4-flash", "page sizes", False, 1_039_680),
]  # fmt: skip


@pytest.mark.parametrize(("target", "layout", "has_fp4_indexer", "block_bytes"), COMPRESSED_BLOCKS)
def test_a_block_of_compressed_attention_has_the_bytes_that_vllm_prints(
    target: str, layout: Any, has_fp4_indexer: bool, block_bytes: int
) -> None:
    pool = compressed_pool(EngineRank(llmcalc.load(target), Layout(tp=2)), layout, has_fp4_indexer)
    assert pool.block_bytes == block_bytes


def test_a_request_of_compressed_attention_needs_what_vllm_prints() -> None:
    """vLLM's issue 44376: 30,000 tokens need 6.66 GiB in batches of 16,384, and 13,528 fit into 5.44 GiB."""
    pool = compressed_pool(EngineRank(llmcalc.load("deepseek-v4-flash"), Layout(tp=2)), "tuples")
    needed = pool.blocks_of_request(30_000, 16_384)
    assert round(needed * pool.block_bytes / GIB, 2) == 6.66
    longest = [pool.longest_request(int(gib * GIB) // pool.block_bytes, 16_384, 30_000) for gib in (5.435, 5.445)]
    assert longest[0] <= 13_528 <= longest[1]


@pytest.mark.parametrize(
    ("version", "start_check_block_bytes"),
    [("0.22.0", 1_051_776), ("0.23.0", 1_051_776), ("0.28.0", 1_051_776), ("0.29.0", 1_002_240)],
)
def test_the_start_check_of_compressed_attention_counts_whole_tuples(
    version: str, start_check_block_bytes: int
) -> None:
    """v1/core/kv_cache_utils.py, `_check_enough_kv_cache_memory` and `_max_memory_usage_bytes_from_groups`.

    start_check_block_bytes: bytes of a block in the check; from 0.29 on those of the pool.
    """
    length = 32_768
    flags = {"tensor_parallel_size": 2, "max_model_len": length, "max_num_batched_tokens": 2048}

    def memory_with(cache_bytes: int) -> Any:
        cached = {"kv_cache_memory_bytes": cache_bytes}
        return server_memory("deepseek-v4-flash", hardware="h200", engine=f"vllm=={version}", **flags, **cached)

    wide = memory_with(2**34)
    request_blocks = round(wide.block_count / wide.max_concurrency)
    null_blocks = 1 if version == "0.29.0" else 0
    start_check_bytes = (request_blocks + null_blocks) * start_check_block_bytes
    enough, few = memory_with(start_check_bytes), memory_with(start_check_bytes - 1)
    assert enough.can_start
    assert enough.max_concurrency >= 1
    assert not few.can_start
    # the log counts no padding of blocks up to 0.26 (`get_max_concurrency_for_kv_cache_config`)
    printed_users = wide.kv_tokens / length
    assert (printed_users > wide.max_concurrency + 0.1) is (version in ("0.22.0", "0.23.0"))
    assert wide.max_users() == wide.max_concurrency


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kv-cache-dtype", "bfloat16"), "--kv-cache-dtype bfloat16: of compressed attention is not modelled"),
        (("--block-size", "128"), "--block-size 128: compressed attention has blocks of 256"),
        (("--pipeline-parallel-size", "2"), "--pipeline-parallel-size: of compressed attention is not modelled"),
        (("--disable-hybrid-kv-cache-manager",), "--disable-hybrid-kv-cache-manager: is not modelled beside"),
    ],
)
def test_what_is_not_modelled_of_compressed_attention_is_refused(flags: tuple[str, ...], message: str) -> None:
    done = command("memory", "deepseek-v4-flash", "--engine", "vllm", "--hardware", "h200", *flags)
    assert done.code == 2
    assert message in done.err
    refused = command("memory", "deepseek-v4-flash", "--engine", "vllm==0.19", "--hardware", "h200")
    assert refused.code == 2
    assert "compressed attention is modelled from vLLM 0.20 on" in refused.err


def test_the_word_of_scaled_latents_is_for_sparse_attention_alone() -> None:
    """vLLM replaces fp8 by `fp8_ds_mla` where FlashMLA reads the latents; FlashInfer's latents have no scales."""

    def tokens(target: str, hardware: str, word: str) -> int:
        flags = {"tensor_parallel_size": 8, "max_model_len": 32768, "kv_cache_dtype": word}
        return int(server_memory(target, hardware, "vllm==0.33", **flags).kv_tokens)

    few_layers = "deepseek-v3.2?num_hidden_layers=5"
    for target, hardware in ((few_layers, "h200"), ("deepseek-v4-flash", "h200")):
        assert tokens(target, hardware, "fp8_ds_mla") == tokens(target, hardware, "fp8")
    plain, scaled = (tokens(few_layers, "b200", word) for word in ("fp8", "fp8_ds_mla"))
    assert plain / scaled == pytest.approx((656 + 132) / (576 + 132), rel=1e-3)  # a latent and its indexer's key
    with pytest.raises(InputError, match="--kv-cache-dtype fp8_ds_mla: only sparse attention has such a cache"):
        tokens("llama3.1-8b", "h200", "fp8_ds_mla")


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_stages_that_are_asked_for_do_not_ask_for_the_heads_divisions(engine: str) -> None:
    """Stages of 2 need 2 devices, and 3 stages of 32 layers 3: layouts were searched with all devices of a node."""
    for stages in (2, 3):
        fit = llmcalc.fit(
            "llama3.1-8b", engine=engine, users=4, seq="4k", hardware="h100", pipeline_parallel_size=stages
        )
        assert {option["devices"] for option in fit.document["options"]} == {stages}


@pytest.mark.parametrize(
    ("engine", "pp", "variable"),
    [
        ("vllm", "pipeline_parallel_size", "VLLM_PP_LAYER_PARTITION"),
        ("sglang", "pp_size", "SGLANG_PP_LAYER_PARTITION"),
    ],
)
def test_layers_of_stages_in_the_environment(engine: str, pp: str, variable: str) -> None:
    """vllm-project/vllm#34076: 16 and 32 of 48 layers, which were counted as 24 and 24."""

    def weights(stages: str) -> int:
        flags: dict[str, Any] = {pp: 2, variable: stages}
        memory = engine_memory("qwen3-30b-a3b", engine=engine, hardware="h200", **flags)
        return memory.term_bytes("weights")

    layer_bytes = weights("15,33") - weights("16,32")
    assert weights("16,32") - weights("24,24") == pytest.approx(8 * layer_bytes, rel=1e-5)  # and the last norm
    for stages, message in (("16,30", "2 stages of 46 layers"), ("16,16,16", "3 stages"), ("a,b", "such as 16,32")):
        with pytest.raises(InputError, match=message):
            weights(stages)


def test_sparse_attention_reserves_a_workspace() -> None:
    """40 of the longest sequences in keys of 132 bytes: 825 MiB of DeepSeek-V3.2 (mla/indexer.py); by entries of four
    tokens in DeepSeek-V4, or the gathered keys of four prompts where they are more.
    """
    sparse, compressed, dense = (
        EngineRank(llmcalc.load(name), Layout(tp=8)) for name in ("deepseek-v3.2", "deepseek-v4-flash", "deepseek-v3")
    )
    assert sparse_workspace(sparse, 163_840, 8192) == 865_075_200
    assert sparse_workspace(compressed, 2**20, 8192) == 40 * 2**18 * 132
    assert sparse_workspace(dense, 163_840, 8192) == 0


@pytest.mark.parametrize(
    ("engine", "hardware", "flags", "token_bytes"),
    [
        # 132 bytes of an indexer's key: [158][4372, 64, 132] in a start-up of GLM-5 (LMCache's issue 3339, vLLM 0.21)
        ("vllm", "h200", {}, 61 * (2 * 576 + 132)),
        ("vllm", "h200", {"kv_cache_dtype": "fp8"}, 61 * (656 + 132)),  # v1/kv_cache_interface.py, `MLAAttentionSpec`
        ("vllm", "b200", {"kv_cache_dtype": "fp8"}, 61 * (576 + 132)),  # FlashInfer's kernel
        ("vllm", "b200", {"kv_cache_dtype": "fp8", "attention_backend": "FLASHMLA_SPARSE"}, 61 * (656 + 132)),
        ("vllm", "b200", {}, 61 * (2 * 576 + 132)),
        ("vllm", "rtx-pro-6000", {"cpu_offload_gb": 40}, 61 * (656 + 132)),  # float8 by default from 0.24 on
        ("sglang", "h200", {}, 61 * (2 * 576 + 132)),
        # srt/server_args.py: float8 without scales on Blackwell by default; 186.50 GiB of 4,636,736 tokens on B300s
        # (index:61709910096)
        ("sglang", "b200", {}, 61 * (576 + 132)),
        ("tensorrt-llm", "h200", {}, 61 * (2 * 576 + 132)),
    ],
)
def test_keys_of_an_indexer_have_eight_bits(
    engine: str, hardware: str, flags: dict[str, Any], token_bytes: int
) -> None:
    record, version = engine_and_version(engine)
    device = find_hardware(hardware)
    tensor = {"vllm": "tensor_parallel_size", "sglang": "tp_size", "tensorrt-llm": "tp_size"}[engine]
    memory = record.memory_on(llmcalc.load("deepseek-v3.2"), device, version, {tensor: 8, **flags})
    available = memory.term_bytes("kv_cache")
    assert abs(available / token_bytes - memory.kv_tokens) < 65


def test_graphs_are_subtracted_and_the_default_share_grows_from_0_20_on() -> None:
    """Read in 0.20.0, whose message says 0.21: 0.92 of the memory, and graphs in the budget."""
    old, new = server_memory(engine="vllm==0.19"), server_memory(engine="vllm==0.20")
    total = round(old.term_bytes("budget") / 0.9)
    assert new.term_bytes("budget") == pytest.approx(0.92 * total, abs=4)
    parts = ("weights", "profile_run", "non_torch", "cuda_graphs")
    assert new.term_bytes("kv_cache") == new.term_bytes("budget") - sum(map(new.term_bytes, parts))


@pytest.mark.parametrize(("version", "tokens"), [("0.20.0", "blocks"), ("0.20.2", "concurrency")])
def test_what_is_printed_changes_with_0_20_1(version: str, tokens: str) -> None:
    memory = server_memory("gemma3-27b", hardware="h200", engine=f"vllm=={version}", max_model_len=65_536)
    users = int(memory.max_concurrency * 65_536)
    assert (memory.kv_tokens == users) is (tokens == "concurrency")


def test_outside_torch_a_dgx_spark_shares_its_memory_with_the_processor() -> None:
    spark, card = (
        server_memory(hardware=name, engine="vllm==0.22", max_num_seqs=64) for name in ("dgx-spark", "rtx-pro-6000")
    )
    assert spark.term_bytes("non_torch") == 2350 * 2**20 > card.term_bytes("non_torch")


def test_another_engine_behind_a_flag_is_named() -> None:
    with pytest.raises(InputError, match="--omni: starts vLLM-Omni, an engine of its own, which is not modelled"):
        answer(omni=True)


def test_latent_attention_has_one_table_of_cosines() -> None:
    """Its rotated dimensions are `qk_rope_head_dim`; 7168 / 128 = 56 further ones were counted beside them."""
    rank = EngineRank(llmcalc.load("deepseek-v3"), Layout(), 0)
    assert rank.rope_table_elements() == 64 * 163_840


@pytest.mark.parametrize(("version", "is_noted"), [("0.23.0", False), ("0.24.0", True)])
def test_a_class_that_was_removed_is_named(version: str, is_noted: bool) -> None:
    """Bamba's class is in vLLM up to 0.23.0 (model_executor/models/registry.py, `_PREVIOUSLY_SUPPORTED_MODELS`)."""
    notes = engine_memory("bamba-9b", engine=f"vllm=={version}", hardware="h100").notes
    assert any("was the last version with a class for BambaForCausalLM" in note for note in notes) == is_noted


@pytest.mark.parametrize(
    ("model", "engine", "note"),
    [
        ("gemma3-12b", "vllm==0.6", "expected --engine vllm==0.8.0 or later"),
        ("gemma3-12b", "vllm==0.8.0", ""),
        ("gpt-oss-20b", "vllm==0.8", "expected --engine vllm==0.10.1 or later"),
        ("recurrentgemma-2b", "vllm", "vLLM 0.33.0 has no class for RecurrentGemmaForCausalLM: it starts only if"),
        ("recurrentgemma-2b", "sglang", "SGLang 0.5.23 has no class for RecurrentGemmaForCausalLM: it starts only if"),
    ],
)
def test_a_class_that_a_version_does_not_have_is_named(model: str, engine: str, note: str) -> None:
    """The lists of models in releases of vLLM: model_executor/models/registry.py of 0.7.3, 0.8.0, 0.10.0, 0.10.1."""
    notes = engine_memory(model, engine=engine, hardware="h200").notes
    assert [note in text for text in notes if "has no class for" in text] == ([True] if note else [])


def test_embedding_models_have_no_logits_in_the_profile_run() -> None:
    """vLLM's profile run of `--runner pooling` ends with the pooler; such models have no full CUDA graphs."""
    embedding = engine_memory("qwen3-embedding-0.6b", hardware="b200", engine="vllm==0.19")
    generating = engine_memory("qwen3-0.6b", hardware="b200", engine="vllm==0.19")
    logits = 1024 * 151_669 * 4
    assert embedding.term_bytes("profile_run") < logits < generating.term_bytes("profile_run")
    assert embedding.term_bytes("cuda_graphs") < generating.term_bytes("cuda_graphs")
    assert (
        engine_memory("qwen3-embedding-0.6b", hardware="b200", engine="vllm==0.19", runner="pooling").terms
        == embedding.terms
    )
    scores = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"]}
    for pooling_flags in ({"task": "embed"}, {"hf_overrides": scores}):
        pooling = engine_memory("qwen3-0.6b", hardware="b200", engine="vllm==0.19", **pooling_flags)
        assert pooling.term_bytes("profile_run") == embedding.term_bytes("profile_run")
    untied = [server_memory("qwen3-8b", hardware="b200", **flags) for flags in ({}, {"task": "embed"})]
    head_bytes = 151_936 * 4096 * 2 + 2**20  # 1,187 MiB in a segment of 1,188
    assert untied[0].term_bytes("weights") - untied[1].term_bytes("weights") == head_bytes  # vLLM drops the head


def test_the_command_of_mimo_v2s_recipe_starts() -> None:
    """A rank of 4 has 192 rows of keys, 1.5 blocks; vLLM's class stores them anew (pull request 30836, on H200s)."""
    answer = engine_memory("mimo-v2-flash", hardware="h200", engine="vllm==0.33", tensor_parallel_size=4)
    assert answer.can_start
    assert 72 < answer.term_bytes("weights") / 2**30 < 73  # 309 billion numbers of a byte, divided by 4
    with pytest.raises(InputError, match=r"experts\.gate_proj: 64 rows are not a multiple"):
        engine_memory("mimo-v2-flash", hardware="h200", engine="vllm==0.33", tensor_parallel_size=32)  # its experts


def test_the_command_of_qwen3_nexts_card_starts() -> None:
    """Its weights have a module of multi-token prediction (`mtp.*`, 1,650,471,424 parameters); its config has none."""
    config = {"method": "qwen3_next_mtp", "num_speculative_tokens": 2}
    options = {"hardware": "h100", "engine": "vllm==0.11.0", "tensor_parallel_size": 4, "max_model_len": 262_144}
    plain, drafting = (
        engine_memory("qwen3-next-80b-a3b", **options, **flags) for flags in ({}, {"speculative_config": config})
    )
    assert drafting.can_start
    assert drafting.term_bytes("weights") - plain.term_bytes("weights") > 1_650_471_424 * 2 // 4


def test_a_flag_without_a_value_behind_another_engine_is_named(run: Any) -> None:
    """As `vllm serve Qwen/Qwen2.5-Omni-7B --omni` is typed (vllm-project/aibrix, samples/vllm_omni)."""
    words = "memory", "qwen3-8b", "--engine", "vllm", "--hardware", "h100", "--omni"
    assert "--omni: starts vLLM-Omni" in run(*words).error


def test_experts_of_latents_have_their_own_width() -> None:
    """Kimi K3's experts read 3,584 of 7,168 channels, and MXFP4 of compressed-tensors is not padded: it fits 8 B300."""
    rank = EngineRank(llmcalc.load("kimi-k3"), Layout(tp=8))
    experts = rank.widest_network_sizes[2]
    assert experts is not None
    assert (experts.intermediate_size, experts.input_width, experts.layer_count) == (3072 // 8, 3584, 92)
    cache = llmcalc.kv("kimi-k3", hardware="b300", engine="vllm==0.33", tp=8).document
    assert cache["starts"]
    assert 1_700_000 < cache["kv_tokens"] < 1_900_000


def test_mxfp4_experts_of_expert_parallel_ranks_are_stored_in_full() -> None:
    """Ranks of expert parallelism divide no block: each has its own experts' bytes, whatever the tensor parallelism."""
    experts_of_four, experts_of_eight = (
        EngineRank(llmcalc.load("kimi-k3"), Layout(tp=2, dp=dp, ep=2 * dp, etp=1)).weight_bytes for dp in (2, 4)
    )
    experts = 92 * 896 * 3 * 3584 * 3072 * 17 // 32
    assert experts_of_four - experts_of_eight == experts // 8


@pytest.mark.parametrize(
    ("version", "accelerator", "sizes"),
    [
        ("0.28", "arc-pro-b60", (2880, 2880)),  # 12.87 GiB of gpt-oss-20b (tests/data/engines/vllm_logs.json)
        ("0.26", "b200", (3072, 3072)),
        ("0.27", "b200", (3072, 2944)),
        ("0.27", "mi355x", (3072, 3072)),
        ("0.28", "rtx-4090", (3072, 2944)),
    ],
)
def test_mxfp4_experts_are_padded_by_their_kernels(version: str, accelerator: str, sizes: tuple[int, int]) -> None:
    """vllm/model_executor/layers/fused_moe/oracle/mxfp4.py: TensorRT-LLM's kernels have smaller tiles from 0.27 on."""
    padding = vllm_record().padded_experts(parse_version(version), find_hardware(accelerator))
    hidden, intermediate = sizes
    assert padding.expert_bytes(2880, 2880) == 3 * hidden * intermediate * 17 // 32


def test_added_stages_that_a_model_refuses_end_no_search() -> None:
    def memory_of(flags: dict[str, int]) -> Any:
        if "pipeline_parallel_size" in flags:
            raise InputError("--pp 2: a pipeline of such layers is not modelled; expected --pp 1")
        return SimpleNamespace(kv_tokens=1)

    server: Any = SimpleNamespace(
        layout_flag_names=("tensor_parallel_size", "pipeline_parallel_size"),
        flags={"tensor_parallel_size": 2}, device_count=2, tp=2, pp=1, with_flags=lambda **flags: flags,
    )  # fmt: skip
    assert [flags for flags, _ in layouts_with_memory(server, memory_of, 8)] == [{"tensor_parallel_size": 2}]
    server.flags["pipeline_parallel_size"] = 2
    with pytest.raises(InputError, match="--pp 2"):
        [*layouts_with_memory(server, memory_of, 8)]


@in_one_test
@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm==0.19", {"rope_scaling": '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'}),
        (
            "vllm==0.33",
            {
                "hf_overrides": {
                    "text_config": {
                        "rope_parameters": {
                            "rope_type": "yarn",
                            "factor": "4.0",
                            "original_max_position_embeddings": "32768",
                        }
                    }
                }
            },
        ),
    ],
)
def test_overrides_of_rotary_positions_change_the_length_and_the_table(engine: str, flags: dict[str, Any]) -> None:
    """Qwen3's card: YaRN with factor 4. The table has a row of cosines and sines for each position."""
    plain, scaled = (engine_memory("qwen3-0.6b", hardware="h100", engine=engine, **more) for more in ({}, flags))
    assert (plain.settings["max_model_len"], scaled.settings["max_model_len"]) == (40_960, 131_072)
    added_rows = scaled.term_bytes("weights") - plain.term_bytes("weights")
    assert added_rows == (131_072 - 40_960) * 128 * 2


@in_one_test
@pytest.mark.parametrize(
    ("override", "refusal"),
    [({"num_hidden_layers": 3}, "'num_hidden_layers' changes"), ({"rope_scaling": {"factor": "x"}}, "factor 'x'"),
     ({"architectures": ["Qwen3ForCausalLM"]}, "'architectures' changes"),
     ({"rope_scaling": 4}, "expected a JSON object"), ({"text_config": 1}, "expected a JSON object")],
)  # fmt: skip
def test_other_overrides_are_refused(override: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError, match=refusal):
        engine_memory("qwen3-0.6b", hardware="h100", engine="vllm==0.33", hf_overrides=override)


def test_the_config_of_a_gguf_files_model_may_be_named() -> None:
    """vllm-gguf-plugin's issue 101: `vllm serve …/Qwen3-8B-Q4_K_M.gguf --hf-config-path /models/Qwen/Qwen3-8B`."""
    flags = {"hardware": "l4", "engine": "vllm==0.18", "quantize": "q4_k_m", "max_model_len": 8192}
    named = engine_memory("qwen3-8b", **flags, hf_config_path="/models/Qwen/Qwen3-8B")
    assert named.terms == engine_memory("qwen3-8b", **flags).terms
    with pytest.raises(InputError, match="--hf-config-path 'Qwen/Qwen3-14B': is not the model qwen3-8b"):
        engine_memory("qwen3-8b", **flags, hf_config_path="Qwen/Qwen3-14B")


def test_ranges_of_sizes_that_are_compiled_change_no_memory() -> None:
    """The recipe of DeepSeek-V4 Flash states them (vllm/config/compilation.py, `compile_ranges_endpoints`)."""
    plain, ranges = (
        engine_memory("qwen3-0.6b", hardware="h100", engine="vllm==0.33", compilation_config=config).terms
        for config in ({"mode": 3}, {"mode": 3, "compile_ranges_endpoints": [8192]})
    )
    assert plain == ranges


def test_bitsandbytes_quantizes_plain_weights_to_nf4() -> None:
    """The loader knows no other scheme (model_loader/bitsandbytes_loader.py, `quantize_4bit(…, quant_type="nf4")`)."""
    named, typed = (
        engine_memory("qwen3-0.6b", hardware="h100", engine="vllm==0.19", **flags).term_bytes("weights")
        for flags in ({"quantization": "bitsandbytes"}, {"quantize": "nf4"})
    )
    assert named == typed


def test_the_method_of_weights_that_are_published_in_8_bits_changes_nothing() -> None:
    """Of DeepSeek-R1-0528 the preset has the type of its numbers, and no table of a quantization."""
    named, published = (
        engine_memory("deepseek-r1-0528", hardware="b200", engine="vllm", tensor_parallel_size=8, **flags)
        for flags in ({"quantization": "fp8"}, {})
    )
    assert named.term_bytes("weights") == published.term_bytes("weights")


def test_the_method_of_deepseek_v4_is_that_of_its_checkpoint() -> None:
    """vLLM calls it `deepseek_v4_fp8`, as scripts of SemiAnalysis' InferenceX type it."""
    named, published = (
        engine_memory("deepseek-v4-flash", hardware="b200", engine="vllm", tensor_parallel_size=4, **flags)
        for flags in ({"quantization": "deepseek_v4_fp8"}, {})
    )
    assert named.term_bytes("weights") == published.term_bytes("weights")


def test_a_cache_for_more_users_than_the_engine_runs_has_a_note() -> None:
    run = {"hardware": "h100", "engine": "vllm", "max_model_len": 2048}
    limited, default = (llmcalc.memory("qwen3-0.6b", **run, **flags).document for flags in ({"max_num_seqs": 16}, {}))
    assert limited["max_concurrency"] > 16
    assert "--max-num-seqs 16: no more of these users run at once, the others wait" in limited["notes"]
    assert not any("run at once" in note for note in default["notes"])  # the default is 1,024


def test_the_limit_of_requests_is_of_each_rank_and_of_all_where_sglang_divides_attention() -> None:
    """SGLang's scheduler runs `max_running_requests // attn_dp_size` (model_runner_kv_cache_mixin.py)."""
    users = {"hardware": "h200", "tp_size": 8, "dp_size": 8, "context_length": 4096, "max_running_requests": 128}
    ranks = llmcalc.memory("qwen3-235b-a22b", engine="sglang", enable_dp_attention=True, **users).document
    assert any("16 on each rank, no more than 128 of these users" in note for note in ranks["notes"])
    drafts = {"speculative_algorithm": "NGRAM", "context_length": 4096}  # 48 of them, where the user sets no limit
    drafting = llmcalc.memory("qwen3-8b", hardware="h200", engine="sglang", **drafts).document
    assert any("default --max-running-requests 48: no more of these" in note for note in drafting["notes"])
    run = {"hardware": "h200", "engine": "vllm", "data_parallel_size": 2, "max_num_seqs": 16, "max_model_len": 4096}
    replicas = llmcalc.memory("qwen3-8b", **run).document
    assert any("16 on each rank, no more than 32 of these users" in note for note in replicas["notes"])


def test_weights_that_vllm_converts_have_one_scale_of_a_matrix_and_no_rests_of_segments() -> None:
    """A log of vLLM 0.11.0 with `quantization=fp8` (index:22371651172) has 3.4244 GiB; scales of rows: 3.4261."""
    run = {"hardware": "l40s", "engine": "vllm==0.11.0", "max_num_batched_tokens": 8192}
    granite = engine_memory("granite-4.0-micro", quantization="fp8", **run)
    assert granite.term_bytes("weights") / 2**30 == pytest.approx(3.4244, abs=3e-4)
    converted, stored, both = (
        llmcalc.memory("phi4", **run, **flags).document["terms"][1]
        for flags in ({"quantization": "fp8"}, {"quantize": "fp8"}, {"quantization": "fp8", "quantize": "fp8"})
    )
    assert (converted["from"], stored["from"]) == ("fp8, converted at load", "fp8")
    assert both == stored  # the flag converts nothing of a checkpoint that is stored so
    assert stored["bytes"] - converted["bytes"] == 120 * 2**20  # of 40 layers, each with rests of 0.5, 1, 1 and 0.5
    suggested = llmcalc.memory("phi4", **run).document["changes"]
    (change,) = (change for change in suggested if change["flag"] == "--quantization fp8")
    assert change["kv_tokens"] == engine_memory("phi4", quantization="fp8", **run).kv_tokens


@pytest.mark.parametrize(
    ("target", "hardware", "version", "flags", "weights_gib"),
    [
        # github.com/vllm-project/vllm/issues/13061: rests of 1 MiB of 35, 25 and 135 MiB and of 0.5 MiB of 67.5 MiB
        ("deepseek-r1-distill-qwen-14b", "rtx-4090", "0.7.2", {"tensor_parallel_size": 2}, 13.9476),
        # github.com/kyuz0/amd-r9700-vllm-toolboxes, benchmarks/benchmark_results_nvidia-4090 and -5090
        ("qwen3-14b", "rtx-4090", "0.12.0", {"quantize": "fp8-dynamic"}, 15.3388),
        ("gpt-oss-20b", "rtx-4090", "0.12.0", {}, 13.7194),
        ("gpt-oss-20b", "rtx-5090", "0.12.0", {}, 13.7194),
        # the same models whose matrices fill whole segments, in logs of the same benchmark
        ("llama3.1-8b", "rtx-5090", "0.12.0", {}, 14.9889),
    ],
)
def test_rests_of_segments_count_as_weights(
    target: str, hardware: str, version: str, flags: dict[str, Any], weights_gib: float
) -> None:
    """torch splits off a rest of a segment of more than 1 MiB (c10/cuda/CUDACachingAllocator.cpp, `should_split`)."""
    memory = engine_memory(target, hardware=hardware, engine=f"vllm=={version}", max_model_len=4096, **flags)
    assert memory.term_bytes("weights") / 2**30 == pytest.approx(weights_gib, rel=0.001)


def test_buffers_of_deepep_and_copies_of_experts() -> None:
    """github.com/vllm-project/vllm/issues/57894: 384 experts of DeepSeek-V4.1-Flash and 64 copies on 16 ranks take
    35.55 GiB for 2,048 tokens, 31.94 for 1,840 and 26.66 for 1,536; DeepEP has at most 32.
    """
    for tokens, gib in ((2048, 35.55), (1856, 32.21), (1840, 31.94), (1536, 26.66)):
        assert low_latency_buffer_bytes(tokens, 5120, 448) / 2**30 == pytest.approx(gib, abs=0.005)
    wide: dict[str, Any] = {"dp": 16, "enable_expert_parallel": True, "max_model_len": 4096}
    flags = {**wide, "max_num_batched_tokens": 1024, "max_num_seqs": 256}
    plain, low, high = (
        engine_memory("deepseek-v3", hardware="h200", engine="vllm==0.33.0", **flags, **backend)
        for backend in (
            {},
            {"all2all_backend": "deepep_low_latency"},
            {"all2all_backend": "deepep_high_throughput"},
        )
    )
    buffers = low_latency_buffer_bytes(1024, 7168, 256)
    heap = -(-buffers // 2**29) * 2**29
    assert low.term_bytes("non_torch") - plain.term_bytes("non_torch") == heap + 2**30
    assert high.term_bytes("non_torch") - plain.term_bytes("non_torch") == 2 * 2**30  # within the node and beyond it
    # config/compilation.py: "Disabling CUDA Graphs since DeepEP high-throughput kernels are optimized for prefill"
    assert low.term_bytes("cuda_graphs") == plain.term_bytes("cuda_graphs") > high.term_bytes("cuda_graphs") == 0
    assert any("vLLM turns CUDA graphs off" in note for note in high.notes)
    with pytest.raises(InputError, match=r"--max-num-batched-tokens 8,192: the buffers .* at most 2,304"):
        llmcalc.memory(
            "deepseek-v3", hardware="h200", engine="vllm==0.33.0", all2all_backend="deepep_low_latency", **wide
        )
    older = {"engine": "vllm==0.11.0", "all2all_backend": "deepep_low_latency"}  # which sends 256 tokens at once
    assert llmcalc.memory("deepseek-v3", hardware="h200", **older, **wide).ok
    # both flags have the same number: before 0.20 the variable is what limits the buffers (fused_moe/layer.py)
    chunks = {**older, "engine": "vllm==0.19.0", "VLLM_MOE_DP_CHUNK_SIZE": 4096, "max_num_batched_tokens": 4096}
    with pytest.raises(InputError, match=r"VLLM_MOE_DP_CHUNK_SIZE 4,096: the buffers .* at most 2,304"):
        llmcalc.memory("deepseek-v3", hardware="h200", **chunks, **wide)
    counted = "expected one of naive, allgather_reducescatter, deepep_high_throughput, deepep_low_latency"
    with pytest.raises(InputError, match=f"backend mori_low_latency: its buffers are not modelled; {counted}"):
        llmcalc.memory("deepseek-v3", hardware="mi355x", engine="vllm", all2all_backend="MORI_low_latency", **wide)
    ignored = {"all2all_backend": "deepep_low_latency", "VLLM_MOE_DP_CHUNK_SIZE": 64}
    notes = engine_memory("deepseek-v3", hardware="h200", engine="vllm==0.33.0", **flags, **ignored).notes
    assert any(note.startswith("VLLM_MOE_DP_CHUNK_SIZE: vLLM ignores it from 0.20 on") for note in notes)
    # vLLM pull request 33535 removed the variable after 0.15
    variable = {"VLLM_ALL2ALL_BACKEND": "deepep_low_latency"}
    newer, older_version = (
        engine_memory("deepseek-v3", hardware="h200", engine=f"vllm=={version}", **flags, **variable)
        for version in ("0.33.0", "0.15.0")
    )
    assert newer.term_bytes("non_torch") == plain.term_bytes("non_torch")
    assert any(note.startswith("VLLM_ALL2ALL_BACKEND: vLLM ignores it from 0.16 on") for note in newer.notes)
    assert older_version.term_bytes("non_torch") > newer.term_bytes("non_torch") + 2**30
    # one rank of attention exchanges no tokens, whatever the backend (`use_all2all_kernels`)
    whole = engine_memory("deepseek-v3", hardware="h200", engine="vllm", tp=8, enable_expert_parallel=True)
    same = engine_memory(
        "deepseek-v3", hardware="h200", engine="vllm", tp=8, enable_expert_parallel=True, all2all_backend="nixl_ep"
    )
    assert whole.kv_tokens == same.kv_tokens
    balanced = engine_memory(
        "deepseek-v3",
        hardware="h200",
        engine="vllm==0.33.0",
        enable_eplb=True,
        eplb_config={"num_redundant_experts": "32", "window_size": "1000"},
        **flags,
    )
    layer = 18 * 3 * 7168 * 2048  # 18 experts of 288 in 8 bits, and scales of blocks of 128 x 128 in 32
    added = 58 * layer // 9 + layer + 4 * 1000 * 58 * 288
    assert balanced.term_bytes("weights") - plain.term_bytes("weights") == pytest.approx(added, rel=1e-3)
    with pytest.raises(InputError, match="30: 16 ranks do not divide 256 experts and 30 copies; expected 32 copies"):
        llmcalc.memory(
            "deepseek-v3",
            hardware="h200",
            engine="vllm",
            enable_eplb=True,
            eplb_config={"num_redundant_experts": 30},
            **wide,
        )


def test_ranks_of_attention_divide_experts_without_expert_parallelism_too() -> None:
    """docs.vllm.ai, data_parallel_deployment: "The expert layers will by default form a (DP x TP) sized tensor parallel
    group"; from 0.8 on fused_moe/layer.py, "Adjust TP size for DP attention". SGLang's `--dp` has whole replicas.
    """
    words: dict[str, Any] = {"hardware": "h100", "engine": "vllm"}
    whole, divided, by_number, by_stages = (
        engine_memory("qwen3-30b-a3b", **words, **flags)
        for flags in ({}, {"dp": 2}, {"dp": 2, "enable_expert_parallel": True}, {"dp": 2, "tp": 2, "pp": 2})
    )
    expert_bytes = 48 * 128 * 3 * 2048 * 768 * 2
    assert whole.term_bytes("weights") - divided.term_bytes("weights") == expert_bytes // 2
    assert divided.term_bytes("weights") == by_number.term_bytes("weights")
    assert divided.layout is not None
    assert divided.layout.replica_devices == divided.devices == 2
    halves = engine_memory("qwen3-30b-a3b", **words, tp=2, pp=2)
    assert halves.term_bytes("weights") - by_stages.term_bytes("weights") == expert_bytes // 8
    dense, dense_replicas = (engine_memory("llama3.1-8b", **words, dp=dp) for dp in (1, 2))
    assert dense.term_bytes("weights") == dense_replicas.term_bytes("weights")
    for model, tp, dp, reason in (
        (
            "Qwen/Qwen3-30B-A3B-FP8", 4, 2, "--tensor-parallel-size 4 --data-parallel-size 2: .* not a multiple of .* "
            "128, .* expected a smaller --tensor-parallel-size or --data-parallel-size, experts that ranks do not",
        ),
        (
            "deepseek-v3", 1, 32, "--tensor-parallel-size 1 --data-parallel-size 32: .* 64 rows are not a multiple of "
            ".* expected a smaller --data-parallel-size, experts that ranks do not divide, or another scheme",
        ),
        (
            "gpt-oss-120b", 1, 128, "--tensor-parallel-size · --data-parallel-size = 128: does not divide the "
            "intermediate_size of an expert 2880; expected one of 1, 2, 3",
        ),
    ):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            llmcalc.memory(model, **words, tp=tp, dp=dp)


@pytest.mark.parametrize(
    ("model", "flags", "reason"),
    [
        ("qwen3-30b-a3b", {"tp": 2, "enable_eplb": True}, "--enable-eplb: .* expected --enable-expert-parallel too"),
        ("qwen3-30b-a3b", {"enable_eplb": True, "enable_expert_parallel": True}, "--enable-eplb: .* on one rank"),
        ("qwen3-30b-a3b", {"tp": 2, "num_redundant_experts": 2}, "--num-redundant-experts 2: .* --enable-eplb too"),
        (
            "qwen3-30b-a3b",
            {"tp": 2, "eplb_config": {"num_redundant_experts": 4}},
            "--eplb-config num_redundant_experts 4: .* --enable-eplb too",
        ),
        (
            "llama3.1-8b",
            {"tp": 2, "enable_expert_parallel": True},
            "--enable-expert-parallel: the model has no experts",
        ),
    ],
)
def test_balancing_with_which_vllm_does_not_start_is_refused(model: str, flags: dict[str, Any], reason: str) -> None:
    """vllm/config/parallel.py, `_validate_parallel_config`; vllm/config/model.py, `_verify_with_expert_parallelism`."""
    with pytest.raises(InputError, match=reason):
        llmcalc.memory(model, hardware="h100", engine="vllm", **flags)
