"""Terms of vLLM's memory against start-up logs. `pytest -s` prints the error of each term and the rows that are off."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.engine import EngineMemory
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.vllm.budget import VLLMServer
from llmcalc.frameworks.vllm.encoder_run import EncoderRunSettings, encoder_run
from llmcalc.frameworks.vllm.expert_exchange import gathering_ranks
from llmcalc.frameworks.vllm.expert_kernels import ExpertKernels
from llmcalc.frameworks.vllm.versions import vllm_record
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.preset import Preset
from tests.samples import in_one_test

TESTS = Path(__file__).parents[2]
LOGS: list[dict[str, Any]] = json.loads((TESTS / "data/engines/vllm_logs.json").read_text())["rows"]
GIB = 2**30


class Pool(NamedTuple):
    """The cache of a start-up log of a model with recurrent states: its size, and the tokens that the log prints."""

    source: str
    target: str
    version: str
    hardware: str
    flags: dict[str, Any]
    kv_gib: float
    kv_tokens: int


TWO_3090 = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "max_num_seqs": 2}
PREFIXES = {"enable_prefix_caching": True}
WITH_EXPERT_RANKS = {"tensor_parallel_size": 8, "enable_expert_parallel": True}
OF_65536 = PREFIXES | {"kv_cache_dtype": "fp8_e4m3", "max_model_len": 65_536}
OF_262144 = {"max_model_len": 262_144, "max_num_seqs": 8}
DRAFTS = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}
POOLS = (
    Pool(
        "index:51830815744",
        "qwen3.6-35b-a3b",
        "0.20.0",
        "rtx-5090",
        OF_65536 | {"max_num_seqs": 1, "max_num_batched_tokens": 4096},
        3.07,
        79_648,
    ),
    Pool(
        "index:52002965523",
        "qwen3.6-27b",
        "0.20.0",
        "rtx-5090",
        PREFIXES | {"kv_cache_dtype": "fp8", "max_model_len": 32_768},
        6.67,
        53_312,
    ),
    Pool("index:9297248278", "gemma3-27b", "0.11.0", "mi300x", {"max_model_len": 4096}, 109.86, 205_696),
    Pool(
        "index:57769339834",
        "qwen3.5-35b-a3b",
        "0.17.0",
        "h100-sxm",
        PREFIXES | {"kv_cache_dtype": "fp8", "max_model_len": 65_536},
        6.08,
        159_296,
    ),
    Pool(
        "index:63574967224",
        "qwen3.5-35b-a3b",
        "0.17.1",
        "dgx-spark",
        PREFIXES | {"kv_cache_dtype": "fp8", "max_model_len": 32_768, "max_num_seqs": 3},
        5.69,
        148_816,
    ),
    Pool(
        "https://github.com/noonghunna/club-3090/issues/612",
        "qwen3.6-35b-a3b",
        "0.24.0",
        "rtx-5090",
        PREFIXES | {"kv_cache_dtype": "fp8", "max_model_len": 131_072, "max_num_seqs": 1},
        5.98,
        567_978,
    ),
    Pool(
        "https://github.com/noonghunna/club-3090/issues/652",
        "qwen3.6-35b-a3b",
        "0.24.0",
        "rtx-5090",
        PREFIXES | {"kv_cache_dtype": "fp8", "max_model_len": 131_072, "max_num_seqs": 1},
        6.01,
        569_878,
    ),
    Pool(
        "https://github.com/noonghunna/club-3090/issues/104",
        "qwen3.6-27b",
        "0.21.0",
        "rtx-3090",
        PREFIXES | TWO_3090 | {"max_model_len": 262_144},
        9.84,
        619_202,
    ),
    Pool(
        "https://github.com/mitchross/talos-argocd-proxmox/pull/1995",
        "qwen3.6-27b",
        "0.28.0",
        "rtx-3090",
        TWO_3090 | {"max_model_len": 131_072},
        4.99,
        302_921,
    ),
    Pool(
        "https://github.com/noonghunna/club-3090/pull/594",
        "qwen3.6-27b",
        "0.24.0",
        "rtx-3090",
        PREFIXES | TWO_3090 | DRAFTS | {"max_model_len": 262_144},
        5.33,
        300_220,
    ),
    Pool(
        "https://github.com/noonghunna/club-3090/issues/602",
        "qwen3.6-27b",
        "0.24.0",
        "rtx-3090",
        PREFIXES | TWO_3090 | DRAFTS | {"max_model_len": 262_144, "kv_cache_dtype": "int8_per_token_head"},
        5.23,
        289_661,
    ),
    Pool(
        "index:53530895476",
        "qwen3.5-122b-a10b",
        "0.19.0",
        "dgx-spark",
        PREFIXES
        | {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
        | {"kv_cache_dtype": "fp8", "max_model_len": 262_144, "max_num_seqs": 8},
        24.05,
        482_080,
    ),
    Pool("index:51912001300", "qwen3.6-35b-a3b", "0.20.0", "dgx-spark", OF_65536, 82.42, 2_158_880),
    Pool("index:52377383460", "qwen3.6-35b-a3b", "0.20.0", "rtx-5090", OF_65536, 2.95, 75_456),
    Pool("index:55685126685", "nemotron-3-nano-30b-a3b", "0.20.2", "dgx-spark", OF_262144, 34.32, 5_769_184),
    Pool("index:7292846353", "qwen3-next-80b-a3b", "0.10.2", "h200", {"tensor_parallel_size": 2}, 44.59, 973_760),
    Pool(
        "index:61222544093",
        "qwen3.5-27b",
        "0.27.1",
        "dgx-spark",
        {"enable_prefix_caching": False, "max_model_len": 786_432},
        50.29,
        820_013,
    ),
    Pool(
        "index:61511710941",
        "glm-5.2",
        "0.26.0",
        "b200",
        {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8_e4m3", "max_model_len": 819_200},
        50.62,
        1_139_456,
    ),
    Pool(
        "index:69808241206",
        "gemma4-e2b",
        "0.25.0",
        "rtx-5090",
        {"max_model_len": 32_768, "max_num_batched_tokens": 8192},
        0.9339,
        106_443,
    ),
    Pool(
        "index:56753445407",
        "qwen3.6-35b-a3b",
        "0.22.1",
        "dgx-spark",
        PREFIXES
        | {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
        | {"kv_cache_dtype": "fp8", "max_model_len": 262_144, "max_num_seqs": 5, "max_num_batched_tokens": 8192},
        73.13,
        6_312_658,
    ),
    Pool(
        "index:53530895476, without drafts",
        "qwen3.5-122b-a10b",
        "0.19.0",
        "dgx-spark",
        PREFIXES | {"kv_cache_dtype": "fp8", "max_model_len": 131_072},
        21.43,
        467_712,
    ),
    Pool(
        "https://github.com/vllm-project/vllm/issues/28228",
        "kimi-linear-48b-a3b",
        "0.11.1",
        "rtx-3090",
        {"tensor_parallel_size": 2, "max_model_len": 120_000},
        2.30,
        75_840,
    ),
    Pool("index:69766907673", "falcon-h1-3b", "0.12.0", "rtx-5060-ti-16gb", {"max_model_len": 2048}, 5.28, 83_968),
    Pool(
        "index:69766907673, Zamba2", "zamba2-2.7b", "0.12.0", "rtx-5060-ti-16gb", {"max_model_len": 2048}, 6.16, 5_088
    ),
    Pool("index:68936788784", "qwen3.8-27b", "0.29.0", "rtx-pro-6000", {"max_model_len": 8192}, 31.24, 314_187),
    # its default batch is that of the longest video, 2,496 tokens, which lie beside every window
    Pool("index:60491628666", "gemma4-26b-a4b", "0.25.1", "l40s", {"max_model_len": 32_768}, 12.7535, 321_600),
    Pool("index:60491628666, E4B", "gemma4-e4b", "0.25.1", "l40s", {"max_model_len": 16_384}, 22.0143, 1_033_831),
    Pool("index:51781852921", "qwen3.5-9b", "0.19.0", "l40s", {"enable_prefix_caching": False}, 20.27, 165_792),
    Pool("index:55770092662", "qwen3.5-4b", "0.22.0", "l40s", {"max_model_len": 1024}, 11.11, 141_107),
    Pool(
        "index:51900802258",
        "qwen3.6-35b-a3b",
        "0.20.0",
        "dgx-spark",
        PREFIXES | OF_262144 | {"kv_cache_dtype": "fp8_e4m3", "max_num_batched_tokens": 65_536},
        66.93,
        1_754_352,
    ),
    Pool(
        "index:61544841280",
        "qwen3.6-27b",
        "0.23.1",
        "dgx-spark",
        PREFIXES | OF_262144 | {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 65_536},
        47.84,
        1_505_068,
    ),
    Pool(
        "index:61316607224",
        "qwen3.8-27b",
        "0.27.1",
        "dgx-spark",
        {"enable_prefix_caching": False, "max_model_len": 32_768},
        51.7,
        786_432,
    ),
    # pages of unequal bytes: a request is counted without the padding of its blocks
    Pool(
        "index:60215495369",
        "deepseek-v4-flash",
        "0.22.1",
        "rtx-pro-5000",
        WITH_EXPERT_RANKS | {"max_model_len": 256_000, "max_num_batched_tokens": 8192},
        37.932,
        2_497_693,
    ),
    Pool(
        "index:63396953296",
        "deepseek-v4-flash",
        "0.23.0",
        "h200-nvl",
        {"tensor_parallel_size": 2, "max_model_len": 262_144},
        32.083,
        2_175_276,
    ),
    Pool(
        "index:71464252074",
        "deepseek-v4-flash",
        "0.31.1",
        "h100-sxm",
        WITH_EXPERT_RANKS | {"max_model_len": 262_144, "max_num_batched_tokens": 8192},
        47.4291,
        1_728_531,
    ),
    Pool(
        "index:71464252074, GLM",
        "glm-5.3-flash",
        "0.31.1",
        "h100-sxm",
        WITH_EXPERT_RANKS | {"max_model_len": 262_144, "enable_prefix_caching": False},
        28.73,
        2_618_281,
    ),
    Pool(
        "index:70265431125",
        "glm-5.3-flash",
        "0.29.0",
        "h200",
        {"tensor_parallel_size": 8, "max_model_len": 131_072, "max_num_seqs": 512},
        81.797,
        7_228_559,
    ),
)


class Compared(NamedTuple):
    """A term of a log: its error as a share of the log's figure."""

    row: dict[str, Any]
    term: str
    computed: float
    log: float

    @property
    def error(self) -> float:
        return (self.computed - self.log) / self.log


@cache
def loaded(target: str | Path) -> Preset:
    """The model of a log; logs of the same weights share the bytes of a rank."""
    return llmcalc.load(target)


@cache
def computed(number: int) -> EngineMemory:
    """What llmcalc computes for a log."""
    row = LOGS[number]
    hardware = find_hardware(row["hardware"])
    if row["total_gib"]:
        total = round(row["total_gib"] * GIB)
        hardware = hardware.model_copy(update={"driver_total": total, "usable_memory_bytes": None})
    record, version = engine_and_version(f"vllm=={row['version']}")
    scheme = {} if row["quantize"] is None else {"quantize": row["quantize"]}
    target = TESTS / row["target"] if row["target"].endswith(".json") else row["target"]
    first_start = {"VLLM_DISABLE_COMPILE_CACHE": 1} if row.get("first_start") else {}
    return record.memory_on(loaded(target), hardware, version, {**row["flags"], **scheme, **first_start})


def is_budget_assumed(row: dict[str, Any]) -> bool:
    """Whether the version or the share of the memory is not stated; both decide what is left for the cache."""
    return bool(row.get("budget_assumed"))


@cache
def compared() -> list[Compared]:
    """Every term of every log that states its accelerator, and of all logs the weights."""
    rows: list[Compared] = []
    for number, row in enumerate(LOGS):
        result = computed(number)
        terms = {"weights": "weights", "profile_run": "peak", "cuda_graphs": "graphs", "kv_cache": "kv"}
        for term, key in terms.items():
            if term == "cuda_graphs" and row.get("driver"):
                term = "cuda_graphs, old driver"
            if row[f"{key}_gib"] and (term == "weights" or (row["accelerator_stated"] and not is_budget_assumed(row))):
                rows.append(Compared(row, term, result.term_bytes(term.split(",")[0]) / GIB, row[f"{key}_gib"]))
        if row["weights_gib"] and row["complete"]:
            rows.append(
                Compared(row, "weights, complete flags", result.term_bytes("weights") / GIB, row["weights_gib"])
            )
        if row["kv_tokens"] and row["accelerator_stated"] and not is_budget_assumed(row):
            rows.append(Compared(row, "kv_tokens", result.kv_tokens, row["kv_tokens"]))
            if row["complete"]:
                rows.append(Compared(row, "kv_tokens, complete flags", result.kv_tokens, row["kv_tokens"]))
    return rows


def share(rows: list[Compared], within: float) -> float:
    """The share of rows whose error is at most `within`."""
    return sum(abs(row.error) <= within for row in rows) / len(rows)


@in_one_test
@pytest.mark.parametrize(
    ("term", "most", "within", "least"),
    [
        ("weights", 0.001, 0.01, 0.9),
        ("weights, complete flags", 0.001, 0.01, 0.97),
        ("profile_run", 0.007, 0.05, 0.86),
        ("cuda_graphs", 0.1, 0.3, 0.78),
        ("kv_cache", 0.007, 0.05, 0.88),
        ("kv_tokens", 0.006, 0.05, 0.89),
        ("kv_tokens, complete flags", 0.001, 0.01, 0.91),
        ("kv_tokens, complete flags", 0.001, 0.05, 0.97),
    ],
)
def test_a_term_is_that_of_the_logs(term: str, most: float, within: float, least: float) -> None:
    """most: the largest median error. within, least: the least share of rows with an error of at most `within`."""
    rows = [row for row in compared() if row.term == term]
    errors = [abs(row.error) for row in rows]
    shares = f"within 1 % {share(rows, 0.01):.0%}, 5 % {share(rows, 0.05):.0%}"
    print(f"\n{term}: {len(rows)} logs, median {median(errors):.2%}, {shares}")
    for row in sorted(rows, key=lambda row: -abs(row.error))[:8]:
        source = f"{row.row['target']} {row.row['version']} #{row.row['id']}"
        print(f"  {row.error:+8.2%} {row.computed:14,.2f} {row.log:14,.2f} {source}")
    assert median(errors) <= most
    assert share(rows, within) >= least


def test_graphs_take_three_times_as_much_on_a_driver_of_cuda_12_2() -> None:
    """docs/engines.md says so; the driver (535) allocates them, and no flag of vLLM states it."""
    ratios = [row.log / row.computed for row in compared() if row.term == "cuda_graphs, old driver"]
    assert len(ratios) == 4
    assert all(3 < ratio < 3.6 for ratio in ratios)


def test_the_table_of_the_page_is_that_of_the_logs() -> None:
    """docs/engines.md; `python -m tests.certainty` writes it."""
    from tests import certainty

    assert certainty.shown("logs", certainty.ENGINES_PAGE) == certainty.logs_table().strip()


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.source)
def test_tokens_of_a_cache_of_several_kinds_of_layers_are_exact(pool: Pool) -> None:
    """The logs print the cache's size to 0.01 GiB: less than a block, but for those of Gemma 4."""
    record, version = engine_and_version(f"vllm=={pool.version}")
    flags = {**pool.flags, "kv_cache_memory_bytes": int(pool.kv_gib * GIB)}
    memory = record.memory_on(llmcalc.load(pool.target), find_hardware(pool.hardware), version, flags)
    assert memory.kv_tokens == pool.kv_tokens


@pytest.mark.parametrize(("version", "longest"), [("0.25.1", 262_144), ("0.26.0", 58_368)])
def test_the_longest_request_of_layers_with_windows_is_that_of_a_log(version: str, longest: int) -> None:
    """https://github.com/vllm-project/vllm/issues/49878: from 0.26 on the windows hold the tokens of two batches."""
    record, numbers = engine_and_version(f"vllm=={version}")
    flags = {"max_model_len": 262_144, "max_num_batched_tokens": 32_768, "kv_cache_memory_bytes": 52_613_349_376}
    flags |= {"quantize": "fp8-dynamic"}  # the cache beside weights in 16 bits is more than the card has
    memory = record.memory_on(llmcalc.load("gemma4-31b"), find_hardware("rtx-pro-6000"), numbers, flags)
    assert memory.can_start is (longest == 262_144)
    if not memory.can_start:
        assert memory.startup_error.endswith(f"the longest that fits is {longest}")


@pytest.mark.parametrize(
    ("flags", "batches"),
    [
        ({}, 2),
        ({"async_scheduling": False}, 1),
        ({"speculative_config": {"method": "ngram"}}, 1),
        ({"distributed_executor_backend": "ray"}, 2),
        ({"distributed_executor_backend": "ray", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": 0}, 1),
        ({"distributed_executor_backend": "mp", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": 0}, 2),
    ],
)
def test_windows_hold_the_tokens_of_batches_in_flight(flags: dict[str, Any], batches: int) -> None:
    record, version = engine_and_version("vllm==0.26.0")
    length, batch, window, block = 65_536, 8192, 1024, 16
    fixed = {"max_model_len": length, "max_num_batched_tokens": batch, "kv_cache_memory_bytes": 40 * 2**30}
    memory = record.memory_on(llmcalc.load("gemma4-31b"), find_hardware("h100"), version, fixed | flags)
    windows = 5 * (math.ceil((window - 1 + batches * batch) / block) + 1)
    assert memory.max_concurrency == pytest.approx(memory.block_count / (length // (2 * block) + windows))


class EncoderPeak(NamedTuple):
    """The peak of the profile run of a model with an encoder of images, as a log prints it."""

    source: str
    target: str
    version: str
    hardware: str
    flags: dict[str, Any]
    peak_gib: float
    origin: str


ENCODER_PEAKS = (
    EncoderPeak(
        "https://github.com/vllm-project/vllm/pull/21489",
        "gemma3-4b",
        "0.10.0",
        "b200",
        {"max_num_seqs": 1024, "max_num_batched_tokens": 16_384},
        9.96,
        "1,024 users x 262,208 logits",
    ),
    EncoderPeak(
        "https://github.com/noonghunna/club-3090/issues/1087",
        "qwen3.6-27b",
        "0.28.0",
        "rtx-5090",
        {"tensor_parallel_size": 2, "max_num_seqs": 2, "max_num_batched_tokens": 8192, "max_model_len": 147_456},
        1.59 - 0.13,
        "encoder: 1 x 16,384 tokens of images",
    ),
)


@pytest.mark.parametrize("log", ENCODER_PEAKS, ids=lambda log: log.source)
def test_the_encoder_of_images_in_the_profile_run(log: EncoderPeak) -> None:
    """Either its own pass is the peak, or its outputs and inputs lie beside the sampler."""
    record, version = engine_and_version(f"vllm=={log.version}")
    target, hardware = llmcalc.load(log.target), find_hardware(log.hardware)
    memory = record.memory_on(target, hardware, version, log.flags)
    peak = next(term for term in memory.terms if term.name == "profile_run")
    assert peak.bytes / GIB == pytest.approx(log.peak_gib, rel=0.02)
    assert peak.origin == log.origin


def test_the_largest_images_and_flags_that_change_them() -> None:
    """Gemma 3: 8,192 tokens are 32 images of 256; each has 64 x 64 patches of 14 x 14 x 3 pixels and 5,376 outputs."""
    target, hardware = llmcalc.load("gemma3-27b"), find_hardware("h100-sxm")
    record, version = engine_and_version("vllm==0.19")
    flags = {"max_num_seqs": 8, "max_num_batched_tokens": 8192, "max_model_len": 8192}

    def peak(**more: Any) -> int:
        return record.memory_on(target, hardware, version, flags | more).term_bytes("profile_run")

    patches = 32 * 64 * 64
    layer = 1152 + 3 * 1152 + 2 * 4304  # positions; input, sum and norm; and the network's two vectors
    assert peak() == patches * (14 * 14 * 3 + layer) * 2 + 32 * 2**20
    assert peak(limit_mm_per_prompt={"image": 0}) == peak(skip_mm_profiling=True) < peak()
    qwen = llmcalc.load("qwen2.5-vl-7b")
    videos = record.memory_on(qwen, hardware, version, {"max_num_seqs": 8})
    images = record.memory_on(qwen, hardware, version, {"max_num_seqs": 8, "limit_mm_per_prompt": {"video": 0}})
    assert [memory.terms[2].origin for memory in (videos, images)] == [
        "encoder: 1 x 114,688 tokens of video",
        "encoder: 1 x 16,384 tokens of images",
    ]
    earlier = record.memory_on(qwen, hardware, engine_and_version("vllm==0.8.1")[1], {"max_num_seqs": 8})
    assert earlier.terms[2].origin == "encoder: 1 x 98,304 tokens of video"  # vLLM issue 15264
    fewer = {"max_num_seqs": 8, "limit_mm_per_prompt": {"video": 0}, "mm_processor_kwargs": {"max_pixels": 1_003_520}}
    assert record.memory_on(qwen, hardware, version, fewer).term_bytes("profile_run") < images.term_bytes("profile_run")
    with pytest.raises(InputError, match="--mm-processor-kwargs: 'crop' is not modelled"):
        record.memory_on(qwen, hardware, version, {"mm_processor_kwargs": {"crop": True}})


@pytest.mark.parametrize(
    ("target", "version", "flags", "change"),
    [
        ("qwen2.5-vl-7b", "0.19", {}, "--limit-mm-per-prompt.video 0"),
        ("qwen2.5-vl-7b", "0.8.1", {}, "--limit-mm-per-prompt '{\"video\": 0}'"),
        (
            "qwen2.5-vl-7b",
            "0.19",
            {"limit_mm_per_prompt": {"image": 2}},
            '--limit-mm-per-prompt \'{"image": 2, "video": 0}\'',
        ),
        ("qwen2.5-vl-7b", "0.19", {"limit_mm_per_prompt": {"video": 0}}, ""),
        ("qwen3-8b", "0.19", {}, ""),
    ],
)
def test_a_start_without_videos_is_proposed_where_it_leaves_more_cache(
    target: str, version: str, flags: dict[str, Any], change: str
) -> None:
    """Qwen2.5-VL: the longest video has 114,688 tokens, an image at most 16,384 (vLLM pull request 12604)."""
    record, numbers = engine_and_version(f"vllm=={version}")
    preset, hardware = llmcalc.load(target), find_hardware("h100-sxm")
    changes = {change.flag: change.kv_tokens for change in record.flag_changes_on(preset, hardware, numbers, flags)}
    proposed = [flag for flag in changes if flag.startswith("--limit-mm")]
    assert proposed == ([change] if change else [])
    if change:
        assert changes[change] > record.memory_on(preset, hardware, numbers, flags).kv_tokens


@pytest.mark.parametrize(
    ("version", "flags", "videos"),
    [("0.19", {}, True), ("0.28", {}, True), ("0.28", {"limit_mm_per_prompt": {"video": 0}}, False)],
)
def test_an_encoder_that_reads_videos_as_images_of_fewer_tokens(
    version: str, flags: dict[str, Any], videos: bool
) -> None:
    """Gemma 4: a video is 32 images of 70 tokens and 8 marks, 6 in 16,384 tokens; an image is 266 and 2."""
    record, numbers = engine_and_version(f"vllm=={version}")
    fixed = {"max_num_seqs": 8, "max_num_batched_tokens": 16_384, "max_model_len": 16_384}
    memory = record.memory_on(llmcalc.load("gemma4-26b-a4b"), find_hardware("h100-sxm"), numbers, fixed | flags)
    none = fixed | {"limit_mm_per_prompt": {"image": 0}}
    without = record.memory_on(llmcalc.load("gemma4-26b-a4b"), find_hardware("h100-sxm"), numbers, none)
    embeddings = 6 * 32 * 70 if videos else 16_384 // 268 * 266
    patches = 6 * 32 * 70 * 9 if videos else 16_384 // 268 * 280 * 9
    buffer_bytes = (embeddings * 2816 + patches * 16 * 16 * 3) * 2
    assert memory.term_bytes("profile_run") - without.term_bytes("profile_run") == buffer_bytes


@pytest.mark.parametrize(("chunk_bytes", "images"), [(None, 6 * 32), (0, 1), (10 * 630 * 10_240 * 32, 10)])
def test_an_encoder_reads_one_image_at_a_time_or_a_chunk(chunk_bytes: int | None, images: int) -> None:
    """The encoder of Gemma 4 held 5.27 GiB as if it read the images of all videos at once."""
    model, videos = llmcalc.load("gemma4-26b-a4b").model, vllm_record().videos_as_images((0, 28))
    request = EncoderRunSettings(
        16_384, 8, 16_384, 999, 1, 1, 2, videos_as_images=videos, video_chunk_bytes=chunk_bytes
    )
    run = encoder_run(model, request, {})
    assert run.image_count == 6
    elements = 16 * 16 * 3 + 1152 + 3 * 1152 + 3 * 4304  # pixels; positions; input, sum and norm; the gated network
    assert run.pass_bytes == images * 630 * elements * 2


def test_gemma_4_reads_images_of_as_many_tokens_as_its_processor_is_told() -> None:
    """The recipes of Gemma 4 give `--mm-processor-kwargs '{"max_soft_tokens": 560}'`; the default is 280."""
    model, request = llmcalc.load("gemma4-26b-a4b").model, EncoderRunSettings(16_384, 8, 16_384, 999, 1, 1, 2)
    plain, more = (encoder_run(model, request, settings) for settings in ({}, {"max_soft_tokens": 1120}))
    assert (plain.tokens_per_input, more.tokens_per_input) == (266, 33 * 33)
    assert more.image_count == 16_384 // (33 * 33 + 2)
    assert more.pixel_bytes == more.image_count * 1120 * 9 * 16 * 16 * 3 * 2
    with pytest.raises(InputError, match="max_soft_tokens: 561; expected one of 70, 140, 280, 560, 1120"):
        encoder_run(model, request, {"max_soft_tokens": 561})


@pytest.mark.parametrize(("hardware", "mib"), [("l40s", 210), ("rtx-3090", 210), ("h100-sxm", 2181)])
def test_ranks_over_pcie_hold_less_outside_torch(hardware: str, mib: int) -> None:
    """Logs of four and eight L40S and of sixteen RTX 3090 print 0.2 GiB, where ranks over NVLink hold 2."""
    record, version = engine_and_version("vllm==0.19")
    flags = {"tensor_parallel_size": 4, "max_model_len": 8192}
    memory = record.memory_on(llmcalc.load("llama3.1-8b"), find_hardware(hardware), version, flags)
    assert memory.term_bytes("non_torch") == mib * 2**20


def test_states_of_drafted_tokens_and_of_the_default_that_caches_prefixes() -> None:
    """vLLM 0.28 prints 19.54 GiB and 313,650 tokens; 408 blocks hold 335 + 3 x 2 of a request, with drafts 3 x 5."""
    record, version = engine_and_version("vllm==0.28.0")
    flags = {"max_model_len": 262_144, "max_num_seqs": 256, "kv_cache_memory_bytes": int(19.54 * GIB)}
    target, hardware = llmcalc.load("qwen3.5-27b"), find_hardware("h100-sxm")
    memory = record.memory_on(target, hardware, version, flags)
    assert (memory.kv_tokens, memory.block_count, memory.block_size) == (313_650, 408, 784)
    assert memory.max_concurrency == 408 / (335 + 3 * 2)
    off = record.memory_on(target, hardware, version, flags | {"enable_prefix_caching": False})
    assert off.max_concurrency == 408 / (335 + 3)
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}
    drafted = record.memory_on(target, hardware, version, flags | drafts)
    # states of (48 x 128 x 128 x 4 + 10,240 x (3 + 3) x 2) bytes fill 799 tokens of 4,096 bytes; 17 layers a group
    assert (drafted.block_size, drafted.block_count) == (800, int(19.54 * GIB) // (800 * 4096 * 17))
    assert drafted.max_concurrency == drafted.block_count / (-(-262_144 // 800) + 3 * 5)


def test_a_further_state_where_flashinfer_computes_prompts() -> None:
    """From 0.33 on, with Hopper and later: 3 states of a request, and blocks of a multiple of 64 tokens."""
    record, version = engine_and_version("vllm==0.33")
    flags = {"max_model_len": 32_768, "max_num_seqs": 64, "kv_cache_memory_bytes": 20 * GIB}
    target = llmcalc.load("qwen3.5-27b")
    newer, older = (record.memory_on(target, find_hardware(name), version, flags) for name in ("h100-sxm", "a100-80gb"))
    assert (newer.block_size, older.block_size) == (832, 784)
    assert newer.max_concurrency == newer.block_count / (-(-32_768 // 832) + 3 * 3)
    assert older.max_concurrency == older.block_count / (-(-32_768 // 784) + 3 * 2)


def test_a_batch_holds_a_block_where_prefixes_are_cached() -> None:
    """A state of Qwen3.5 35B fills 2,096 tokens in fp8, and the default batch of a small card has 2,048; to 0.27."""
    target, hardware = llmcalc.load("qwen3.5-35b-a3b"), find_hardware("rtx-5090")
    flags = {"max_model_len": 32_768, "max_num_seqs": 8, "kv_cache_dtype": "fp8", "kv_cache_memory_bytes": 6 * GIB}
    flags |= {"quantize": "awq-int4-g128"}
    record, version = engine_and_version("vllm==0.26")
    memory = record.memory_on(target, hardware, version, flags)
    assert not memory.can_start
    assert "expected at least 2096" in memory.startup_error
    assert record.memory_on(target, hardware, version, flags | {"max_num_batched_tokens": 2096}).can_start
    assert record.memory_on(target, hardware, version, flags | {"enable_prefix_caching": False}).can_start
    assert "--max-num-batched-tokens 2096" in [
        change.flag for change in record.flag_changes_on(target, hardware, version, flags)
    ]
    newer = engine_and_version("vllm==0.28")[1]
    assert record.memory_on(target, hardware, newer, flags).can_start


def test_more_sequences_than_blocks_do_not_start() -> None:
    """Each sequence that decodes in a graph needs a block: the default of 1,024 sequences is refused, 256 is not."""
    record, version = engine_and_version("vllm==0.28.0")
    flags = {"max_model_len": 32_768, "kv_cache_memory_bytes": int(19.54 * GIB)}
    target, hardware = llmcalc.load("qwen3.5-27b"), find_hardware("h100-sxm")
    refused = record.memory_on(target, hardware, version, flags)
    assert not refused.can_start
    assert "at most 408 fit" in refused.startup_error
    assert record.memory_on(target, hardware, version, flags | {"max_num_seqs": 256}).can_start
    assert record.memory_on(target, hardware, version, flags | {"enforce_eager": True}).can_start


@pytest.mark.parametrize(
    ("version", "flags", "gathered_steps"),
    [
        ("0.10.1", {}, 4),
        ("0.11.2", {}, 4),
        ("0.12.0", {}, 2),
        ("0.17.1", {}, 2),
        ("0.17.1", {"VLLM_FUSED_MOE_CHUNK_SIZE": 24_576}, 3),
        ("0.18.0", {}, 8),
        ("0.31.0", {}, 8),
        ("0.31.0", {"VLLM_FUSED_MOE_CHUNK_SIZE": 24_576}, 8),
        ("0.13.0", {}, 2),
        ("0.14.0", {"VLLM_ALL2ALL_BACKEND": "pplx"}, 1),
        ("0.16.0", {"all2all_backend": "pplx"}, 1),
        ("0.17.1", {"all2all_backend": "pplx"}, 2),
        ("0.31.0", {"moe_backend": "deep-gemm-mega-moe"}, 1),
        ("0.31.0", {"all2all_backend": "deepep_high_throughput"}, 1),
    ],
)
def test_experts_of_a_replica_gather_the_tokens_of_all(
    version: str, flags: dict[str, Any], gathered_steps: int
) -> None:
    """Qwen3-Coder 480B on 8 H20: https://github.com/vllm-project/recipes/pull/12, 48.66 GiB of cache.

    gathered_steps: steps whose tokens the experts read at once, in chunks of 32,768 and of 16,384 tokens.
    """
    record, numbers = engine_and_version(f"vllm=={version}")
    replicas = {"quantize": "fp8-block128", "data_parallel_size": 8, "enable_expert_parallel": True}
    target, hardware = llmcalc.load("qwen3-coder-480b-a35b"), find_hardware("h20-3e")
    memory = record.memory_on(
        target, hardware, numbers, {"max_model_len": 32_768, "max_num_seqs": 8} | replicas | flags
    )
    tokens, hidden_size, top_k, width = 8192, 6144, 8, 2560
    gathered = 0 if gathered_steps == 1 else 8 * tokens * 2 * hidden_size
    copied_width = width if (*map(int, version.split(".")),) < (0, 14) else 0  # from 0.14 on the workspaces alone
    experts = gathered_steps * tokens * top_k * 2 * (2 * hidden_size + copied_width)
    workspace_bytes = 32 * 2**20  # of cuBLAS
    expected_bytes = tokens * 10 * hidden_size + gathered + experts + workspace_bytes
    assert memory.term_bytes("profile_run") == expected_bytes


@pytest.mark.parametrize(("ranks", "peak_gib"), [(2, 1.21), (4, 0.91)])
def test_workspaces_of_experts_stay_beside_the_sampler(ranks: int, peak_gib: float) -> None:
    """Rows 112 and 157, Mixtral 8x7B in 0.19.0: the log of two ranks prints the peak, that of four the rest of it."""
    record, version = engine_and_version("vllm==0.19.0")
    flags = {"tensor_parallel_size": ranks, "max_num_seqs": 1024, "max_num_batched_tokens": 8192, "max_model_len": 8192}
    memory = record.memory_on(llmcalc.load("mixtral-8x7b"), find_hardware("h100-sxm"), version, flags)
    assert memory.term_bytes("profile_run") / GIB == pytest.approx(peak_gib, rel=0.03)
    assert memory.terms[2].origin == "1,024 users x 32,000 logits"


@pytest.mark.parametrize(
    ("version_numbers", "kernels", "compute_capability", "flags", "stay"),
    [
        ((0, 13), "", 9.0, {}, False),
        ((0, 14), "", 9.0, {}, True),
        ((0, 19, 1), "", 10.0, {}, True),
        ((0, 20), "", 10.0, {}, False),
        ((0, 20), "", 12.0, {}, False),
        ((0, 20), "", 8.0, {}, True),
        ((0, 22), "", 9.0, {}, False),
        ((0, 23), "", 9.0, {}, True),
        ((0, 23), "", 10.0, {"moe_backend": "Triton"}, True),
        ((0, 23), "", 9.0, {"moe_backend": "flashinfer-cutlass"}, False),
        ((0, 33), "", None, {}, True),
        ((0, 33), "", None, {"moe_backend": "aiter"}, False),
        ((0, 20), "fp8", 9.0, {}, True),
        ((0, 20), "fp8", 9.0, {"enable_expert_parallel": True}, False),
        ((0, 20), "fp8", 10.3, {}, False),
        ((0, 20), "fp8", 12.0, {}, True),
        ((0, 20), "nvfp4", 9.0, {}, False),
    ],
)
def test_workspaces_that_stay_are_those_of_kernels_that_share_them(
    version_numbers: tuple[int, ...],
    kernels: str,
    compute_capability: float | None,
    flags: dict[str, Any],
    stay: bool,
) -> None:
    """fused_moe/oracle/unquantized.py and fp8.py of these versions choose the kernels."""
    weight_kernels = frozenset(kernels.split())
    assert ExpertKernels(flags, version_numbers, weight_kernels, compute_capability).keep_workspaces is stay


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        ({}, 8),
        ({"moe_backend": "deep_gemm_mega_moe"}, 8),
        ({"all2all_backend": "deepep_high_throughput"}, 8),
        ({"all2all_backend": "deepep_high_throughput", "enable_expert_parallel": True}, 1),
    ],
)
def test_replicas_without_expert_parallelism_gather_whatever_the_backend(flags: dict[str, Any], ranks: int) -> None:
    """fused_moe/config.py, `use_all2all_kernels`; all2all_utils.py, "Falling back to AllGather+ReduceScatter"."""
    assert gathering_ranks(flags, 8, (0, 31)) == ranks


@in_one_test
@pytest.mark.parametrize(
    ("version_numbers", "weight_kernels", "compute_capability", "tokens"),
    [
        ((0, 13), frozenset[str](), 8.0, 16_384),
        ((0, 13), frozenset(("fp8",)), 9.0, 16_384),
        ((0, 13), frozenset(("fp8",)), 8.9, 16_384),
        ((0, 13), frozenset(("fp8",)), None, 16_384),
        ((0, 13), frozenset(("fp8",)), 8.0, None),
        ((0, 14), frozenset(("fp8",)), 8.0, 16_384),
        ((0, 14), frozenset(("awq",)), 9.0, None),
    ],
)
def test_marlin_kernels_read_whole_steps(
    version_numbers: tuple[int, ...],
    weight_kernels: frozenset[str],
    compute_capability: float | None,
    tokens: int | None,
) -> None:
    """quantization/fp8.py of 0.13 runs `fused_marlin_moe` below 8.9; 0.14 runs `MarlinExperts`, which have chunks."""
    assert ExpertKernels({}, version_numbers, weight_kernels, compute_capability).chunk_tokens == tokens


@pytest.mark.parametrize(
    ("number", "hardware", "has_kernels", "is_default"),
    [
        ("0.19.1", "rtx-5090", True, False),
        ("0.19.1", "h100", False, False),
        ("0.15.1", "rtx-5090", True, True),  # the log of row 591 prints VLLM_CUTLASS, without a flag
        ("0.15.1", "b200", True, False),
        ("0.14.1", "rtx-5090", True, False),
        ("0.16.0", "rtx-5090", True, False),
    ],
)
def test_cutlass_experts_of_4_bits_keep_shuffled_results(
    number: str, hardware: str, has_kernels: bool, is_default: bool
) -> None:
    """fused_moe/cutlass_moe.py, `run_cutlass_moe_fp4`: row 528 printed 7.15 GiB of cache, 9.44 were counted."""
    record, version = engine_and_version(f"vllm=={number}")
    tokens, top_k, hidden_size = 16_384, 8, 2816
    flags = {"quantize": "nvfp4", "max_model_len": 8192, "max_num_seqs": 2, "max_num_batched_tokens": tokens}
    flags |= {"language_model_only": True}  # the encoder's pass may be the peak
    marlin, automatic, cutlass = (
        record.memory_on(llmcalc.load("gemma4-26b-a4b"), find_hardware(hardware), version, flags | backend)
        for backend in ({"moe_backend": "marlin"}, {}, {"moe_backend": "cutlass"})
    )
    copied_bytes = tokens * (2 * top_k + 1) * hidden_size * 2 if has_kernels else 0
    assert cutlass.term_bytes("profile_run") - marlin.term_bytes("profile_run") == copied_bytes
    assert automatic.term_bytes("profile_run") == (cutlass if is_default else marlin).term_bytes("profile_run")
    read_flags = {flag.field_name for flag in record.known_flags() if not flag.is_memory_neutral}
    assert "moe_backend" in read_flags  # the command line and `explain-log` leave out flags that change no memory


@pytest.mark.parametrize(("ranks", "replicas", "whole_copies"), [(2, 4, 1), (4, 2, 3), (8, 1, 0), (1, 8, 0)])
def test_shared_experts_of_replicas_are_whole_on_each_rank(ranks: int, replicas: int, whole_copies: int) -> None:
    """vllm/config/parallel.py, `use_sequence_parallel_moe`: DeepSeek-V3 in 0.13, and in 0.10.1, which divides them.

    whole_copies: shards of the other ranks that a rank has too.
    """
    target, hardware = llmcalc.load("deepseek-v3"), find_hardware("b300")
    flags = {"enable_expert_parallel": True, "data_parallel_size": replicas, "tensor_parallel_size": ranks}
    newer, older = (
        record.memory_on(target, hardware, version, flags | {"max_model_len": 8192}).term_bytes("weights")
        for record, version in map(engine_and_version, ("vllm==0.13", "vllm==0.10.1"))
    )
    shard_bytes = 58 * 3 * 7168 * 2048 // ranks
    assert newer - older == pytest.approx(whole_copies * shard_bytes, rel=0.001, abs=2**20)


@pytest.mark.parametrize(
    ("target", "hardware", "version", "is_whole"),
    [
        ("deepseek-v2", "b300", "0.11", True),
        ("deepseek-v3", "b300", "0.10.2", False),
        ("deepseek-v3.2", "b300", "0.33", True),
        ("glm-5.2", "b300", "0.33", True),
        ("glm-5.3-flash", "b300", "0.33", True),
        ("kimi-k2.5", "b300", "0.33", True),
        ("llama4-scout", "b300", "0.11", True),
        ("nemotron-3-nano-30b-a3b", "b300", "0.11", False),
        ("nemotron-3-nano-30b-a3b", "b300", "0.11.1", True),
        ("a.x-k1", "b300", "0.18", True),
        ("qwen3-next-80b-a3b", "b300", "0.19", False),
        ("qwen3-next-80b-a3b", "b300", "0.20", True),
        ("qwen3.5-397b-a17b", "b300", "0.20", True),
        ("deepseek-v4-flash", "b300", "0.26", False),
        ("deepseek-v4-flash", "b300", "0.28", True),
        ("deepseek-v4-flash", "mi355x", "0.28", False),
        ("kimi-linear-48b-a3b", "b300", "0.26", False),
        ("kimi-linear-48b-a3b", "b300", "0.33", True),
        ("kimi-linear-48b-a3b", "mi355x", "0.33", False),
        ("hy4", "b300", "0.33", False),
        ("glm-4.5", "b300", "0.33", False),
    ],
)
def test_classes_with_whole_shared_experts_are_those_of_vllm(
    target: str, hardware: str, version: str, is_whole: bool
) -> None:
    """`disable_tp` of the shared experts in vllm/model_executor/models and vllm/models of these versions."""
    record, numbers = engine_and_version(f"vllm=={version}")
    flags = {"enable_expert_parallel": True, "data_parallel_size": 2, "tensor_parallel_size": 4}
    preset = loaded(target)
    server = cast("VLLMServer", record.server(preset, find_hardware(hardware), numbers, flags))
    shard_bytes = server.rank_of_stage(0).weights_by_component["shared_expert"]
    assert shard_bytes > 0
    assert server.repeated_shared_expert_bytes(server.rank_of_stage(0)) == (3 * shard_bytes if is_whole else 0)
    if numbers.version == "0.11.1":  # pplx takes the tokens of all ranks as they are
        assert server.with_flags(all2all_backend="pplx").repeated_shared_expert_bytes(server.rank_of_stage(0)) == 0


def test_whether_it_starts() -> None:
    rows = [(row, computed(number).can_start) for number, row in enumerate(LOGS) if row["starts"] is not None]
    complete = [starts == row["starts"] for row, starts in rows if row["complete"]]
    wrong = [
        f"{row['target']} {row['version']} #{row['id']}: {row['note'][:40]}"
        for row, starts in rows
        if starts != row["starts"]
    ]
    print(f"\nstarts: {len(rows) - len(wrong)} of {len(rows)}; wrong: {wrong}")
    print(f"all flags known: {sum(complete)} of {len(complete)}")
    assert len(wrong) <= 6
    assert sum(complete) >= len(complete) - 2


def test_no_answer_is_far_off_without_an_estimate() -> None:
    for row in compared():
        if row.term == "kv_tokens" and abs(row.error) > 0.3:
            number = LOGS.index(row.row)
            assert {term.name: term.status for term in computed(number).terms}["kv_cache"] == "estimate"
