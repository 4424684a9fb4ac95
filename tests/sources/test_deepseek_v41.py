"""DeepSeek-V4.1: what its reader makes of a config, what it refuses, and the parameters of the published tensors."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.components.mixers.shared_entries import SharedCompressedKVAttention
from llmcalc.costs.flops import forward_flops_of
from llmcalc.errors import InputError
from llmcalc.sources.presets import load_preset
from tests.builders import run_config, spec_of
from tests.families.remote_code.deepseek_v41 import SMALL
from tests.samples import in_one_test

PRESET = "deepseek-v4.1-flash"
TEXT = {
    "layers": 7_637_123_184 - 129_280 * 5120 - 5120 + 543_581_798_400 + 196_613_849_600,
    "norm": 5120,
    "embed_tokens": 129_280 * 5120,
    "lm_head": 129_280 * 5120,
}
"""Elements of the checkpoint's tensors without scales: what every token uses, the routed experts, and the tables of
n-grams. Source: data/inventory/deepseek-v4.1-flash.json of bojieli/OpenTallas.
"""
RESIDENT_ONLY = 197_761_031_680
"""Elements of the tables of n-grams, of the embedding, and of the encoder with its projector and marks."""


def test_the_published_tensors_have_the_counted_parameters() -> None:
    text = llmcalc.params(PRESET)
    assert text.total == sum(TEXT.values()) == 748_494_684_784
    encoder = llmcalc.params(PRESET, with_towers=True).total - text.total
    assert encoder == RESIDENT_ONLY - 196_613_849_600 - TEXT["embed_tokens"] == 485_268_480


def test_only_the_rows_that_a_token_reads_of_a_table_are_active() -> None:
    rows = 384_006_168 + 384_016_682
    experts = 40 * (384 - 6) * 3 * 5120 * 2304
    assert llmcalc.params(PRESET).active == 748_494_684_784 - experts - (rows - 2 * 24) * 256


def test_the_cache_is_that_of_the_layers_that_compute_entries() -> None:
    tokens, windows = 4096, 40 * 128 * 512
    entries = (3 * tokens // 2 + tokens) * (512 + 128)
    assert llmcalc.kv(PRESET, seq=tokens).bytes == 2 * (windows + entries)


def test_layers_compute_share_and_select_entries_as_the_config_lists_them() -> None:
    stack = load_preset(PRESET).model.main
    mixers = [stack.layer(name).attention for name in stack.layer_names()]
    assert all(isinstance(mixer, SharedCompressedKVAttention) for mixer in mixers)
    rates = [mixer.compress_rate for mixer in mixers]
    assert rates == [None] * 2 + [2] * 18 + [1] * 20
    assert [i for i, m in enumerate(mixers) if m.compress_rate and not m.entries_shared] == [2, 8, 14, 20]
    assert [i for i, m in enumerate(mixers) if m.indexer] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [i for i, m in enumerate(mixers) if m.indexer and m.indexer.candidates] == [24, 28, 32, 36]


def test_candidates_bound_the_scores_of_a_long_context() -> None:
    """From layer 24 on four indexers score 2,048 blocks of 8 keys, of which the last ends at the token itself."""
    tokens = 1_000_001
    run = run_config(seq=1, context=tokens - 1, phase="decode")
    scores = {
        place.path: place.cost_per_repeat(forward_flops_of)
        for place in load_preset(PRESET).model.tree().walk(run)
        if place.path.endswith("indexer.core")
    }
    product = 2 * 32 * 128
    assert list(scores.values())[-2:] == [product * tokens, product * (2047 * 8 + 1)]


@in_one_test
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compress_ratios": [0, 2]}, "compress_ratios: .*; expected 7 numbers of tokens per entry"),
        ({"compress_ratios": [0, 0, 2, 2, 1, 1, 1]}, "compress_ratios: .*; expected 1 or more for layer 1"),
        ({"index_source_layer_ids": [3, 4, 6]}, "index_source_layer_ids: .*; expected layer 1 too"),
        ({"kv_source_layer_ids": [1], "index_source_layer_ids": [1, 4, 6]}, "kv_source_layer_ids: .* for layer 4"),
        ({"candidate_source_layer_id": 5}, "candidate_source_layer_id: 5; expected a layer of index_source_layer_ids"),
        ({"candidate_source_layer_id": "4"}, "candidate_source_layer_id: .4.; expected a layer"),
        ({"candidate_source_layer_id": 3}, "compress_ratios: .*; expected 1 for layer 3"),
        ({"engram_num_embeddings": [37]}, "engram_num_embeddings: .*; expected one number of rows for each of 2"),
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size: 1; expected 2 or more"),
        ({"attention_bias": True}, "attention_bias: true; expected one of false"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: true; expected one of false"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"n_shared_experts": 2}, "n_shared_experts: 2"),
    ],
)
def test_what_the_class_does_not_run_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec_of({"architectures": ["DeepseekV41ForCausalLM"], **SMALL, **fields})


def test_engines_refuse_its_memory() -> None:
    with pytest.raises(InputError, match="entries that layers share"):
        _ = llmcalc.memory(PRESET, engine="vllm", hardware="h200").device.device_bytes


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_passes_hold_the_weights_and_the_cache(phase: str) -> None:
    """The parts are compared with torch in simulator/test_eager.py and simulator/test_inference.py."""
    device = llmcalc.memory(PRESET, phase=phase, seq=8192).device
    kept = device.by_kind["weights"] + llmcalc.kv(PRESET, seq=8192).bytes
    assert 690e9 < kept < device.peak_bytes < 1.01 * kept


def test_layers_that_read_what_lower_ones_kept_are_not_recomputed() -> None:
    with pytest.raises(InputError, match="reads what a layer below has kept"):
        _ = llmcalc.memory(PRESET, phase="training", recompute="full", seq=64).device.device_bytes
