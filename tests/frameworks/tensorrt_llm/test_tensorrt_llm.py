"""TensorRT-LLM's record: the fraction of what a dummy run leaves, with the arithmetic beside it, and its flags."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from tests.engines import engine_memory

functions: Any = llmcalc
"""The functions of the commands, whose answers are of several types."""

GIB = 2**30

CAPACITIES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data/engines/tensorrt_llm_capacities.json").read_text()
)["rows"]


def memory(target: str = "llama3.1-8b", hardware: str = "h100", version: str = "1.2", **flags: Any) -> Any:
    return engine_memory(target, hardware=hardware, engine=f"tensorrt-llm=={version}", **flags)


@pytest.mark.parametrize(("target", "typical", "most"), [("qwen3-32b", 0, 0.015), ("llama3.1-8b", 0.002, 0.015)])
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["some", "all"])
def test_capacities_that_were_published(step: int, target: str, typical: float, most: float) -> None:
    """Sequences that the cache holds. `pytest -s` prints the errors. The memory outside torch is from these rows."""
    errors = {}
    for row in [row for row in CAPACITIES if row["target"] == target][::step]:
        answer = memory(target, row["hardware"], row["version"], quantize=row["quantize"], **row["flags"])
        errors[row["id"]] = int(answer.max_concurrency) / row["max_concurrent_sequences"] - 1
    sizes = [abs(error) for error in errors.values()]
    print(f"\n{len(sizes)} capacities: median {median(sizes):.2%}, p90 {quantiles(sizes, n=10)[-1]:.2%}")
    print({number: f"{error:+.1%}" for number, error in errors.items() if error})
    assert median(sizes) <= typical
    assert max(sizes) <= most


def test_the_terms_add_up() -> None:
    answer = memory(max_num_tokens=4096, max_seq_len=8192)
    peak = answer.term_bytes("weights") + answer.term_bytes("profile_run") + answer.term_bytes("non_torch")
    total = 85_029_615_042  # of the driver
    # 4096 tokens of 10 vectors of 4096 and 3 of 14336, 2 bytes
    assert answer.term_bytes("profile_run") == 4096 * 2 * (10 * 4096 + 3 * 14336)
    assert answer.term_bytes("kv_cache") == int(0.9 * (total - peak))
    assert answer.term_bytes("budget") == peak + answer.term_bytes("kv_cache")
    # 32 layers, 8 key heads of 128, keys and values, 2 bytes; blocks of 32 tokens, the last one begun
    assert answer.block_count == -(-(answer.term_bytes("kv_cache") // (32 * 8 * 128 * 2 * 2)) // 32)


def test_memory_outside_torch_grows_with_the_weights() -> None:
    """A log of 1.2.1 on an RTX 4070 SUPER allocates 9.06 GiB for 422,048 tokens; no capacity of it was compared before.

    Source: the page on TensorRT-LLM of https://github.com/lmontigny/lm7, which serves SmolLM2 135M.
    """
    answer = memory("smollm2-135m", "rtx-4070-super", "1.2.1", max_seq_len=2048)
    assert answer.kv_tokens == pytest.approx(422_048, rel=0.005)
    large = memory("qwen3-32b", "h200", quantize="fp8-block128")
    assert large.term_bytes("non_torch") - answer.term_bytes("non_torch") == pytest.approx(
        0.05 * (large.term_bytes("weights") - answer.term_bytes("weights")), abs=1
    )


def test_a_cached_checkpoint_counts_as_used_where_the_processor_shares_the_memory() -> None:
    """A log of gpt-oss-120b on a DGX Spark has 49.78 GiB outside torch after loading, and 86,720 tokens of cache."""
    notes = memory("gpt-oss-120b", "dgx-spark", "1.1").notes
    assert any("drop_caches" in note for note in notes)
    assert not any("drop_caches" in note for note in memory().notes)


def test_limits_of_the_cache() -> None:
    """86,711 tokens are 86,720 in blocks of 32, as a log prints (https://github.com/NVIDIA/TensorRT-LLM)."""
    assert memory(max_tokens=86_711).kv_tokens == 86_720
    assert memory(max_gpu_total_bytes=GIB).kv_tokens == GIB // (32 * 8 * 128 * 2 * 2)
    assert memory(version="0.20", max_gpu_total_bytes=GIB).kv_tokens > 10 * GIB // 131_072  # not yet a limit
    assert memory(tokens_per_block=64, max_tokens=65).block_count == 2
    assert [memory("deepseek-v2-lite", name).block_size for name in ("h100", "a100")] == [64, 32]


def test_windows_keep_all_tokens() -> None:
    """A log of gpt-oss-120b prints `kv size is 73728`: 36 layers, half of them with a window, 8 key heads of 64."""
    answer = memory("gpt-oss-120b", "h200", max_tokens=32 * 100)
    assert answer.block_count == 100
    assert memory("gpt-oss-120b", "h200", max_gpu_total_bytes=73_728 * 3200).block_count == 100
    assert any("layers with a window keep all tokens" in note for note in answer.notes)


def test_fields_of_the_file_are_flags(run: Any) -> None:
    words = "memory", "gpt2", "--engine", "tensorrt-llm", "--hardware", "h100", "--format", "json"
    code, out, _ = run(*words, "--kv_cache_config.dtype", "fp8", "--kv-cache-config.tokens_per_block=64")
    document = json.loads(out)
    assert code == 0
    assert document["block_size"] == 64
    assert document["kv_tokens"] > 1.9 * run(*words).document["kv_tokens"]
    assert "--max_num_tokens" in document["assumed"]


def test_experts_are_divided_into_groups() -> None:
    whole, divided = (memory("qwen3-30b-a3b", tp_size=4, ep_size=size) for size in (4, 1))
    assert whole.term_bytes("weights") == divided.term_bytes("weights")


def test_attention_of_each_rank() -> None:
    """Each rank has all heads and all of the dense weights, a part of the experts, and requests of its own."""
    sizes = {"tp_size": 4, "ep_size": 4}
    divided, whole = memory("qwen3-30b-a3b", **sizes), memory("qwen3-30b-a3b", **sizes, enable_attention_dp=True)
    attention = 48 * 2048 * 128 * (32 + 4 + 4 + 32)  # layers · hidden size · width · (queries, keys, values, output)
    embeddings = 2 * 151936 * 2048
    more = whole.term_bytes("weights") - divided.term_bytes("weights")
    assert more == pytest.approx(0.75 * 2 * (attention + embeddings), rel=1e-6)
    users_of_a_rank = whole.block_count / -(-whole.max_model_len // whole.block_size)
    assert whole.max_concurrency == pytest.approx(users_of_a_rank)
    assert whole.max_users() == pytest.approx(4 * users_of_a_rank)
    assert not whole.has_room_for(4 * int(users_of_a_rank) + 4)
    assert whole.devices == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tp_size": 4, "ep_size": 3}, "--ep_size 3"),
        ({"max_batch_sise": 3}, "Did you mean --max_batch_size"),
        ({"kv_cache_free_gpu_memory_fraction": 2}, "--kv_cache_free_gpu_memory_fraction"),
        ({"extra_llm_api_options": "x.yaml"}, "expected its fields as flags"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory(**flags)


def test_recurrent_states_are_refused() -> None:
    with pytest.raises(InputError, match="recurrent states"):
        memory("qwen3.5-9b")


def test_a_gpu_of_another_vendor_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected a GPU of NVIDIA \(compute capability 8.0 or higher\)$"):
        memory(hardware="mi300x")


def test_too_large_weights_do_not_start() -> None:
    answer = functions.memory("llama3.1-70b", hardware="rtx-4090", engine="tensorrt-llm")
    assert not answer.ok
    assert "dummy run" in answer.document["message"]


def test_modules_that_draft_add_a_layer_of_cache() -> None:
    """DeepSeek-V3 has 61 layers of 576 numbers a token and one module, which is replayed (`get_num_spec_layers`)."""
    sizes = {"tp_size": 8, "ep_size": 8, "hardware": "b200", "max_gpu_total_bytes": GIB}
    mtp = {"decoding_type": "MTP", "max_draft_len": 3}
    plain, drafting = (memory("deepseek-v3", **sizes, **flags) for flags in ({}, {"speculative_config": mtp}))
    assert plain.block_count == -(-(GIB // (61 * 576 * 2)) // 32)
    assert drafting.block_count == -(-(GIB // (62 * 576 * 2)) // 32)
    assert drafting.term_bytes("weights") > plain.term_bytes("weights")
    with pytest.raises(InputError, match="counts no modules of multi-token prediction of this model"):
        memory(speculative_config=mtp)
    with pytest.raises(InputError, match="decoding_type 'Medusa' is not modelled; expected MTP"):
        memory(speculative_config={"decoding_type": "Medusa"})


def test_a_draft_of_eagle_3_adds_its_weights_and_its_cache(tmp_path: Path) -> None:
    record = json.loads((Path(__file__).parents[2] / "data" / "drafts.json").read_text())["eagle3-llama-3.1-8b"]
    path = tmp_path / "eagle3.json"
    path.write_text(json.dumps(record["config"]))
    options = tmp_path / "options.yaml"
    options.write_text(
        f"speculative_config:\n  decoding_type: Eagle3\n  speculative_model: {path}\n  max_draft_len: 3\n"
    )
    (tmp_path / "serve.sh").write_text("trtllm-serve llama3.1-8b --max_tokens 3200 --config options.yaml\n")
    plain = memory(max_gpu_total_bytes=GIB)
    drafting = memory(
        max_gpu_total_bytes=GIB, speculative_config={"decoding_type": "Eagle", "speculative_model_dir": str(path)}
    )
    added = drafting.term_bytes("weights") - plain.term_bytes("weights")
    assert 0 <= added - 424_689_664 * 2 <= 4 * 131072 * 128  # and a RoPE table
    assert drafting.block_count == -(-(GIB // (33 * 8 * 128 * 2 * 2)) // 32)  # of 32 layers and the draft's one
    of_file = functions.memory(launch=tmp_path / "serve.sh", hardware="h100").result
    assert of_file.term_bytes("weights") == drafting.term_bytes("weights")
