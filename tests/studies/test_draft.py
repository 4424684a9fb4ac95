"""Drafts of speculative decoding: sizes as published, tensors by hand, and what a draft adds beside its target.

`tests/data/drafts.json` has configs as published, with their source. `published_billions` is the number of parameters
in SafeAILab/EAGLE's README, which leaves out the embedding and the head, because they are the target's.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.witnesses.memory import compare_memory, default_run_settings
from llmcalc.witnesses.reference import verify_reference
from tests.families.drafts.medusa import SHAPES as MEDUSA_SHAPES
from tests.samples import in_one_test

DRAFTS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "drafts.json").read_text())
WITH_SIZE = [name for name, record in DRAFTS.items() if "published_billions" in record]


def spec_of(name: str) -> ModelSpec:
    return llmcalc.load(DRAFTS[name]["config"]).model


def config_at(folder: Path, name: str) -> str:
    """Writes a published config to a file and returns its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(DRAFTS[name]["config"]))
    return str(path)


@pytest.mark.parametrize("name", WITH_SIZE)
def test_eagles_sizes_are_those_of_its_readme(name: str) -> None:
    assert round(llmcalc.params(spec_of(name)).total / 1e9, 2) == DRAFTS[name]["published_billions"]


@pytest.mark.parametrize("name", DRAFTS)
def test_published_drafts_agree_with_the_reference(name: str) -> None:
    verdict = verify_reference(spec_of(name), seq=8)
    assert verdict.ok, verdict.failures[:4]


def layer_tensors(hidden: int, read: int, heads: int, kv_heads: int, dim: int, ffn: int) -> list[tuple[int, ...]]:
    """The matrices of a layer of Llama whose queries, keys and values are projected from `read` numbers."""
    return [
        (heads * dim, read), (kv_heads * dim, read), (kv_heads * dim, read), (hidden, heads * dim),
        (ffn, hidden), (ffn, hidden), (hidden, ffn),
    ]  # fmt: skip


BY_HAND: dict[str, list[tuple[int, ...]]] = {
    # fc, midlayer with input_layernorm, hidden_norm and post_attention_layernorm, norm, lm_head of 32,000 tokens
    "eagle3-llama-3.1-8b": [
        (4096, 3 * 4096), *layer_tensors(4096, 2 * 4096, 32, 8, 128, 14336), *[(4096,)] * 4, (32000, 4096),
    ],
    # the same with fc_norm, a norm of each of three states
    "qwen3-30b-a3b-eagle3.1": [
        (2048, 3 * 2048), *layer_tensors(2048, 2 * 2048, 32, 4, 128, 12288), *[(2048,)] * (4 + 3), (32000, 2048),
    ],
    # its draft vocabulary is the whole one, and the head is its own all the same
    "longcat-flash-eagle3": [
        (6144, 3 * 6144), *layer_tensors(6144, 2 * 6144, 64, 16, 128, 12288), *[(6144,)] * 4, (131072, 6144),
    ],
    # mask_hidden, the first layer of EAGLE-3, three of Llama with two norms each
    "qwen3-8b-peagle": [
        (4096, 3 * 4096), (3 * 4096,), *layer_tensors(4096, 2 * 4096, 32, 8, 128, 12288),
        *layer_tensors(4096, 4096, 32, 8, 128, 12288) * 3, *[(4096,)] * (4 + 3 * 2), (32000, 4096),
    ],
    # fc of five states, hidden_norm and norm, five layers of Qwen3 with norms of queries and keys; no embedding or head
    "qwen3-8b-dflash": [
        (4096, 5 * 4096), *[(4096,)] * 2,
        *[*layer_tensors(4096, 4096, 32, 8, 128, 12288), (4096,), (4096,), (128,), (128,)] * 5,
    ],
}  # fmt: skip
# five layers with a kernel of two sides, two tokens and its projection to 320 groups at each sublayer, two tables of
# pairs of tokens and the projection of the hidden state
BY_HAND["qwen3.6-27b-dflash2"] = [
    (5120, 5 * 5120), *[(5120,)] * 2,
    *[
        *layer_tensors(5120, 5120, 32, 8, 128, 17408), (5120,), (5120,), (128,), (128,),
        *[(2, 2, 5120), (2 * 2 * 320, 5120)] * 2,
    ] * 5,
    (248320, 256), (248320, 256), (256, 5120),
]  # fmt: skip
# the same with latent attention, and 448 groups; the embedding in the checkpoint is the target's
BY_HAND["kimi-k3-dflash2"] = [
    (7168, 5 * 7168), *[(7168,)] * 2,
    *[
        (1536, 7168), (1536,), (64 * 192, 1536), (576, 7168), (512,), (64 * 256, 512), (7168, 64 * 128),
        *[(14336, 7168)] * 3, (7168,), (7168,), *[(2, 2, 7168), (2 * 2 * 448, 7168)] * 2,
    ] * 5,
    (163840, 256), (163840, 256), (256, 7168),
]  # fmt: skip
BY_HAND["qwen3-8b-dspark"] = [
    *BY_HAND["qwen3-8b-dflash"], (151936, 256), (151936, 256), (1, 4096 + 256), (1,),
]  # markov_w1 and w2, the score of acceptance with its bias  # fmt: skip
# the draft's own embedding, fc of six states, hidden_norm and norm, six layers with a sink for each head, two tables of
# pairs of tokens
BY_HAND["nemotron-3.5-lightning-dspark"] = [
    (131072, 2688), (2688, 6 * 2688), *[(2688,)] * 2,
    *[*layer_tensors(2688, 2688, 32, 2, 128, 6144), (2688,), (2688,), (128,), (128,), (32,)] * 6,
    (131072, 512), (131072, 512),
]  # fmt: skip
BY_HAND["qwen3-8b-domino"] = [
    *BY_HAND["qwen3-8b-dflash"], (3 * 1024, 4096), (3 * 1024, 1024), (256, 4096 + 1024), (151936, 256),
]  # prefix_gru without biases, embed_proj  # fmt: skip
# fc, latent attention that reads 2 · 2560 numbers, a network of Llama, four norms, lm_head
BY_HAND["deepseek-v3-lite-eagle3"] = [
    (2560, 3 * 2560), (1536, 2 * 2560), (1536,), (32 * 192, 1536), (576, 2 * 2560), (512,), (32 * 256, 512),
    (2560, 32 * 128), *[(8192, 2560)] * 3, *[(2560,)] * 4, (129280, 2560),
]  # fmt: skip
# the same with grouped queries, their norms, a router and 128 experts
BY_HAND["qwen3-30b-a3b-eagle3-moe"] = [
    (2048, 3 * 2048), *layer_tensors(2048, 2 * 2048, 32, 4, 128, 0), (128,), (128,), (128, 2048),
    *[(768, 2048)] * 3 * 128, *[(2048,)] * 4, (32000, 2048),
]  # fmt: skip
# gpt-oss's router and 16 experts have biases, Llama's attention has none
BY_HAND["gpt-oss-20b-eagle3-moe"] = [
    (2880, 3 * 2880), *layer_tensors(2880, 2 * 2880, 64, 8, 64, 0), (16, 2880), (16,),
    *[(2 * 17280, 2880), (2 * 17280,), (2880, 17280), (2880,)] * 16, *[(2880,)] * 4, (32000, 2880),
]  # fmt: skip
# DSpark's five layers with DeepSeek-V4's router, 64 experts and a shared one, whose correction is no parameter
BY_HAND["deepseek-v4-flash-dspark-moe"] = [
    (4096, 5 * 4096), *[(4096,)] * 2,
    *[
        *layer_tensors(4096, 4096, 32, 8, 128, 0), (4096,), (4096,), (128,), (128,), (64, 4096),
        *[(2048, 4096)] * 3 * 65,
    ] * 5,
    (129280, 256), (129280, 256), (1, 4096 + 256), (1,),
]  # fmt: skip
# with Qwen3.5's 512 experts, and a shared one of its own width with a gate
BY_HAND["qwen3.8-27b-dspark-moe"] = [
    (5120, 5 * 5120), *[(5120,)] * 2,
    *[
        *layer_tensors(5120, 5120, 32, 8, 128, 0), (5120,), (5120,), (128,), (128,), (512, 5120),
        *[(512, 5120)] * 3 * 512, *[(2048, 5120)] * 3, (1, 5120),
    ] * 5,
    (248320, 256), (248320, 256), (1, 5120 + 256), (1,),
]  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_the_tensors_are_those_of_the_published_source(name: str) -> None:
    assert llmcalc.params(spec_of(name)).total == sum(prod(shape) for shape in BY_HAND[name])


def test_only_the_context_of_a_block_is_cached() -> None:
    """Five layers with keys and values of 8 · 128 numbers, in bf16; four of them keep 2,048 tokens."""
    per_token_and_layer = 2 * 8 * 128 * 2
    assert llmcalc.kv(spec_of("qwen3-8b-dflash"), seq=4096).bytes == 5 * 4096 * per_token_and_layer
    windowed = llmcalc.kv(spec_of("qwen3.6-27b-dflash"), seq=4096)
    assert windowed.bytes == (4 * 2048 + 4096) * per_token_and_layer


def test_a_config_of_speculators_has_the_same_draft() -> None:
    config = DRAFTS["eagle3-llama-3.1-8b"]["config"]
    layers = {name: value for name, value in config.items() if name not in ("architectures", "draft_vocab_size")}
    written = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 32000,
        "transformer_layer_config": layers,
        "norm_before_residual": False,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B"}},
    }
    assert llmcalc.load(written).model == llmcalc.load(config).model
    of_qwen3 = {**written, "transformer_layer_config": {**layers, "model_type": "qwen3", "head_dim": 128}}
    assert llmcalc.params(of_qwen3).total == llmcalc.params(config).total + 2 * 128  # q_norm and k_norm


@pytest.mark.parametrize(
    ("fields", "own_vectors"),
    [({}, 1), ({"fusion_bias": True}, 2), ({"layernorms": True, "fusion_bias": True}, 5)],
    ids=["eagle", "with a bias", "with all norms"],
)
def test_a_config_of_speculators_states_eagles_bias_and_norms(fields: dict[str, bool], own_vectors: int) -> None:
    """`fusion_fc` of 2 · 4096 inputs, one layer of Llama with its last norm; bias, first norm and two more by field."""
    layers = DRAFTS["eagle-llama-2-chat-7b"]["config"]
    config = {"speculators_model_type": "eagle", "transformer_layer_config": layers, **fields}
    shapes = [(4096, 2 * 4096), *layer_tensors(4096, 4096, 32, 32, 128, 11008), *[(4096,)] * own_vectors]
    preset = llmcalc.load(config)
    assert llmcalc.params(preset).total == sum(prod(shape) for shape in shapes)
    assert not any("unrecognised" in note for note in preset.notes)


MEDUSA: dict[str, Any] = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 5}
MEDUSA |= {"hidden_size": 4096, "vocab_size": 32000, "num_hidden_layers": 1, "max_paths": 64, "topk": 10}
SPECULATOR: dict[str, Any] = {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"}
BY_PUBLISHER = {"medusa_num_heads": 2, "medusa_num_layers": 1, "hidden_size": 4096, "vocab_size": 32000}

HEADS: list[tuple[str, dict[str, Any], list[tuple[int, ...]]]] = [
    ("vllm", MEDUSA, [*[(4096, 4096)] * 5, *[(32000, 4096)] * 5]),
    ("truncated", {**MEDUSA, "truncated_vocab_size": 8000}, [*[(4096, 4096)] * 5, *[(8000, 4096)] * 5]),
    ("one head", {**MEDUSA, "original_lm_head": True}, [*[(4096, 4096)] * 5, (32000, 4096)]),
    ("bias", {**MEDUSA, "medusa_fc_bias": True}, [*[(4096, 4096), (4096,), (32000, 4096)] * 5]),
    ("speculators", {"speculators_model_type": "medusa", "num_heads": 3, "medusa_hidden_size": 64}
     | {"medusa_vocab_size": 100, "head_weight_decay": 0.8}, [*[(64, 64)] * 3, (100, 64)]),
    ("publisher", BY_PUBLISHER, [*[(4096, 4096), (4096,), (32000, 4096)] * 2]),
    # emb, proj, head and the norm's weight and bias of each stage; the norm of the input has none
    ("stages", {**SPECULATOR, "inner_dim": 3072, "n_predict": 2},
     [(3072, 4096), (3072, 3072), *[(32000, 3072), (32000, 3072), (3072,), (3072,)] * 2]),
    ("tied", {**SPECULATOR, "n_predict": 5, "tie_weights": True, "scale_input": True},
     [(4096, 4096), (4096, 4096), (32000, 4096), (32000, 4096), (4096,), (4096,)]),
]  # fmt: skip

PUBLISHED_SPECULATORS: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama.7b.ibm_instruct_lab.1_4b": ({"vocab_size": 32008, "n_predict": 5}, 1_400_000_000, -8),
    "llama.7b.840m": ({"n_predict": 3}, 840_000_000, -7),
    "llama.13b.840m": ({"emb_dim": 5120, "n_predict": 3, "inner_dim": 4096}, 840_000_000, -7),
    "llama.13b.code.2b": ({"emb_dim": 5120, "vocab_size": 32016, "n_predict": 7, "inner_dim": 4096}, 2 * 10**9, -9),
    "llama.34b.code.658m": (
        {"emb_dim": 8192, "n_predict": 5, "inner_dim": 8192, "scale_input": True, "tie_weights": True},
        659_000_000,
        -6,
    ),
    "llama.llama3.8b.3_2b": ({"vocab_size": 128256, "n_predict": 4, "inner_dim": 3072}, 3_200_000_000, -8),
    "llama.llama3.70b.961m": (
        {"emb_dim": 8192, "vocab_size": 128256, "n_predict": 4, "inner_dim": 3584, "scale_input": True}
        | {"tie_weights": True},
        962_000_000,
        -6,
    ),
    "gpt_bigcode.ibm.20b.1_7b": (
        {"emb_dim": 6144, "vocab_size": 49152, "n_predict": 4, "inner_dim": 4096},
        1_700_000_000,
        -8,
    ),
    "gpt_bigcode.ibm.34b.680m": (
        {"emb_dim": 6144, "vocab_size": 49152, "n_predict": 5, "inner_dim": 6144, "scale_input": True}
        | {"tie_weights": True},
        680_000_000,
        -7,
    ),
}
"""Names of fms_extras/models/speculator.py (foundation-model-stack/fms-extras) → its fields there, and the size in the
name, rounded as the name is; 658m and 961m are cut there, of 658.5 and 961.6 million.
"""


@in_one_test
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "deepseek_mtp"}, "model_type: deepseek_mtp is of a draft model.*--with-mtp"),
        ({"architectures": ["Qwen3NextMTP"]}, "architectures: Qwen3NextMTP is a draft model.*--with-mtp"),
        ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, "architectures: .* is a draft model.*--with-mtp"),
        ({"model_type": "recurrent_drafter"}, "model_type: recurrent_drafter is of a draft model.*a draft of dflash"),
        (
            {"model_type": "mlp_speculator", "architectures": ["ArcticMLPSpeculatorPreTrainedModel"]},
            "ArcticMLPSpeculatorPreTrainedModel is a draft model",
        ),
        ({"model_type": "mistral", "medusa_num_heads": 5}, "medusa_num_heads: 5 is a field of a draft model"),
        (
            {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"},
            "hidden_size, vocab_size: missing.*the target lmsys/vicuna-7b-v1.3",
        ),
        ({"medusa_num_heads": 2, "medusa_num_layers": 2, "hidden_size": 8, "vocab_size": 9}, "medusa_num_layers: 2;"),
        ({**SPECULATOR, "n_predict": 1, "tie_weights": True}, "tie_weights: true; expected false, for n_predict: 1"),
        ({"hydra_num_heads": 4}, "hydra_num_heads: 4 is a field of a draft model"),
        (
            {"architectures": ["DSparkV4DraftModel"], "model_type": "deepseek_v4_dspark_draft", "hc_mult": 4},
            "DSparkV4DraftModel is the class of a draft model whose layers are not supported",
        ),
        (
            {"architectures": ["KimiK3DSpark5MLADraftModel"], "model_type": "qwen3", "kv_lora_rank": 512},
            "KimiK3DSpark5MLADraftModel is the class of a draft model whose layers are not supported",
        ),
        ({"architectures": ["K3DSparkModel"], "model_type": "k3_dspark", "q_lora_rank": 9}, "q_lora_rank: 9 is a"),
        ({"model_type": "k3_dspark", "hidden_size": 7168}, "model_type: k3_dspark is of a draft model"),
        ({"architectures": ["DFlash2K3ForCausalLM"], "kv_lora_rank": 512}, "DFlash2K3ForCausalLM is a draft model"),
        ({"architectures": ["EagleMiniCPMForCausalLM"]}, "EagleMiniCPMForCausalLM is the class of a draft model whose"),
        (
            {"architectures": ["DSparkDraftModel"], "n_mtp_layers": 3},
            "n_mtp_layers: 3 is a field of a draft model whose",
        ),
        (
            {"architectures": ["DSparkDraftModel"], "num_local_experts": 16},
            "num_local_experts: 16 is a field of a",
        ),
        ({"architectures": ["EagleDeepSeekMTPModel"]}, "EagleDeepSeekMTPModel is the class of a draft model whose"),
        (
            {"architectures": ["DSparkDraftModel"], "dflash_config": {"attention_mode": "kda"}},
            "'kda' is the attention of",
        ),
        (
            {"architectures": ["DSparkDraftModel"], "attention_modes": ["gqa", "mla"]},
            "'mla' is the attention of a draft",
        ),
        (
            {"architectures": ["DFlashDraftModel"], "attention_mode": "gqa", "kv_lora_rank": 512},
            "kv_lora_rank: 512 is a field of a draft model whose",
        ),
        (
            {**DRAFTS["kimi-k3-dflash2"]["config"], "mla_use_output_gate": True},
            "mla_use_output_gate: true; expected one of null, false",
        ),
    ],
)
def test_other_drafts_are_refused_as_drafts(config: dict[str, Any], message: str) -> None:
    for allow_unknown in (False, True):
        with pytest.raises(InputError, match=message):
            llmcalc.load(config, allow_unknown=allow_unknown)


@pytest.mark.parametrize(("name", "fields", "shapes"), HEADS, ids=[name for name, *_ in HEADS])
def test_heads_on_the_targets_state_have_the_tensors_of_their_source(
    name: str, fields: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    preset = llmcalc.load(fields)
    assert llmcalc.params(preset).total == sum(prod(shape) for shape in shapes)
    assert llmcalc.kv(preset, seq=100).bytes == 0
    assert not any("unrecognised" in note for note in preset.notes)


@pytest.mark.parametrize("name", PUBLISHED_SPECULATORS)
def test_mlp_speculators_have_the_sizes_in_their_published_names(name: str) -> None:
    fields, size, digits = PUBLISHED_SPECULATORS[name]
    assert round(llmcalc.params({**SPECULATOR, **fields}).total, digits) == size


@pytest.mark.parametrize("shape", [shape for shapes in MEDUSA_SHAPES.values() for shape in shapes])
def test_heads_agree_with_the_reference(shape: dict[str, Any]) -> None:
    spec = llmcalc.load(shape).model
    verdict = verify_reference(spec, seq=8)
    assert verdict.ok, verdict.failures[:4]
    comparison = compare_memory(spec, default_run_settings(spec, 2, 8), "meta")
    assert len(comparison.checks) == 17
    assert all(check.ok for check in comparison.checks), [check for check in comparison.checks if not check.ok]


def test_a_block_draft_narrower_than_its_target_has_its_own_embedding_and_head() -> None:
    """vLLM's `fc` reads five states of the target's width, and no table of the target fits."""
    config = DRAFTS["qwen3-8b-dflash"]["config"]
    narrower = llmcalc.params({**config, "target_hidden_size": 5120}).total
    assert narrower == llmcalc.params(config).total + 4096 * 5 * (5120 - 4096) + 2 * 151936 * 4096


def test_heads_of_a_draft_layer_divide_its_joined_input() -> None:
    layer = {
        "type": "draft",
        "norm": {"type": "rmsnorm"},
        "norm_placement": "pre",
        "attention": {"num_attention_heads": 8},  # 8 divides 2 × 12, not 12
        "feed_forward": {"intermediate_size": 16, "hidden_act": "silu", "gated": True},
    }
    stack = {
        "num_hidden_layers": 1,
        "final_norm": {"type": "rmsnorm"},
        "block": layer,
        "streams": {"type": "target_states", "start": "states", "states": 3},
    }
    draft = {"vocab_size": 32, "hidden_size": 12, "tie_word_embeddings": False, "from_target": ["embed_tokens"]}
    projected_states, attention = 3 * 12 * 12, 3 * 24 * 24 + 24 * 12
    rest = 3 * 12 * 16 + 4 * 12 + 32 * 12
    assert llmcalc.params(ModelSpec.model_validate({**draft, "decoder": stack})).total == (
        projected_states + attention + rest
    )


def test_a_table_of_dspark_is_read_as_that_of_dflash() -> None:
    """SpecForge's configs of GLM-5.2 and Inkling have the fields of DSpark in a table of its own."""
    config = DRAFTS["qwen3-8b-dspark"]["config"]
    names = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
    fields = config["dflash_config"]
    tables = {
        "dflash_config": {name: entry for name, entry in fields.items() if name not in names},
        "dspark_config": {name: fields[name] for name in names if name in fields},
    }
    assert llmcalc.load({**config, **tables}).model == llmcalc.load(config).model


# --- beside a target --------------------------------------------------------------------------------------------------

EAGLE3 = 424_689_664
"""The parameters of the draft of Llama 3.1 8B: the sum in `BY_HAND`."""


def test_params_lists_a_draft(run: Any, tmp_path: Path) -> None:
    path = config_at(tmp_path, "eagle3-llama-3.1-8b")
    document = run("params", "llama3.1-8b", "--draft", path, "--format", "json").document
    assert document["draft"] == {
        "name": "eagle3-llama-3.1-8b",
        "params": EAGLE3,
        "from_target": ["embed_tokens"],
        "cache": {"bytes": 4096, "bytes_per_token": 4096},
    }
    assert document["params"]["total"] == 8_030_261_248
    assert "424,689,664 parameters" in run("params", "llama3.1-8b", "--draft", path).out


def test_cache_flops_and_memory_of_a_draft(tmp_path: Path) -> None:
    draft = DRAFTS["eagle3-llama-3.1-8b"]["config"]
    cache = llmcalc.kv("llama3.1-8b", batch=4, seq=8192, draft=draft).document["draft"]["cache"]
    assert cache == {"bytes": 4 * 8192 * 4096, "bytes_per_token": 4096}
    flops = llmcalc.flops("llama3.1-8b", phase="decode", seq=8192, draft=draft).document["draft"]["flops"]
    assert flops == llmcalc.flops(draft, phase="decode", seq=8192).total
    run: dict[str, Any] = {"phase": "decode", "batch": 2, "seq": 512}
    alone, both = llmcalc.memory("llama3.1-8b", **run), llmcalc.memory("llama3.1-8b", **run, draft=draft)
    assert both.device.exact_bytes - alone.device.exact_bytes == 2 * EAGLE3 + 2 * 513 * 4096
    assert both.document["draft"]["params"] == EAGLE3


def test_heads_are_counted_beside_a_target() -> None:
    draft = {**MEDUSA, "hidden_size": 4096, "vocab_size": 128256}
    tensors = 5 * (4096**2 + 128256 * 4096)
    document = llmcalc.params("llama3.1-8b", draft=draft).document["draft"]
    assert document["params"] == tensors
    assert document["from_target"] == []
    assert document["cache"] == {"bytes": 0, "bytes_per_token": 0}
    run: dict[str, Any] = {"phase": "decode", "batch": 2, "seq": 512}
    assert llmcalc.flops("llama3.1-8b", **run, draft=draft).document["draft"]["flops"] == 2 * 2 * tensors
    alone, both = llmcalc.memory("llama3.1-8b", **run), llmcalc.memory("llama3.1-8b", **run, draft=draft)
    assert both.device.exact_bytes - alone.device.exact_bytes == 2 * tensors
    with pytest.raises(InputError, match="its vocabulary of 32,000 tokens is not the target's, 128,256; expected"):
        llmcalc.params("llama3.1-8b", draft=MEDUSA)
    with pytest.raises(InputError, match="reads hidden states of width 4,096, and the target's have 8,192"):
        llmcalc.params("llama3-70b", draft=draft)


def test_a_model_of_its_own_drafts_too() -> None:
    document = llmcalc.params("llama3.1-8b", draft="llama3.2-1b").document
    assert document["draft"]["params"] == llmcalc.params("llama3.2-1b").total
    assert document["draft"]["from_target"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("params", "qwen3-8b"), "its vocabulary of 128,256 tokens is not the target's, 151,936"),
        (("params", "llama3-70b"), "reads hidden states of width 4,096, and the target's have 8,192"),
        (("params", "bert-base"), "tokens are drafted by a decoder, for a decoder"),
        (("params", "llama3.1-8b", "--tp", "2"), "--draft: counts a whole draft beside a whole model"),
        (("flops", "llama3.1-8b", "--phase", "training"), "--draft: drafts tokens in inference"),
        (("memory", "llama3.1-8b", "--phase", "training"), "--draft: drafts tokens in inference"),
        (("memory", "llama3.1-8b", "--devices", "2"), "--draft: counts a whole draft beside a whole model"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused(
    run: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in run(*arguments, "--draft", config_at(tmp_path, "eagle3-llama-3.1-8b")).error


def test_a_target_is_no_draft() -> None:
    draft = DRAFTS["eagle3-llama-3.1-8b"]["config"]
    with pytest.raises(InputError, match="is a draft itself"):
        llmcalc.params(draft, draft=draft)
