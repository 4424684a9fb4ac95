"""DeepSeek-V4.1: compressed keys and selections shared by layers, delayed hyper-connections, and engrams.

An engram is a table of hashed n-grams whose rows a layer adds to its residual streams. Sources:
vllm/models/deepseek_v41 of vllm-project/vllm at v0.33.0, and mlx_vlm/models/deepseek_v41 of Blaizzy/mlx-vlm.
"""

from __future__ import annotations

from typing import Any

from ...config import Config, is_json_integer
from ...family import Family, field_names
from ...parts import Table, clamped_swiglu, decoder, full_rope, glu, moe, note_uncounted_mtp, rmsnorm, stack_of_layers
from .wrappers import TOWER_FILE

MIXER_FIELDS = ("num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank")


def _read_deepseek_v41_text(config: Config) -> Table:
    note_uncounted_mtp(config)
    config.require_fields(
        n_shared_experts=1,
        num_key_value_heads=1,
        attention_bias=False,
        scoring_func="sqrtsoftplus",
        hidden_act="silu",
        tie_word_embeddings=False,
    )
    depth = config.integer("num_hidden_layers")
    norm = rmsnorm(config.number("rms_norm_eps"))
    stream_count = config.integer("hc_mult")
    token_mixer: Table = {
        "type": "shared_entries",
        **{field_name: config.integer(field_name) for field_name in (*MIXER_FIELDS, "sliding_window")},
        "norm": norm,
        "position": full_rope(config),
    }
    ffn = clamped_swiglu(glu(config, ffn_width=config.integer("moe_intermediate_size")))
    router = {"scoring_func": "sqrtsoftplus", "score_correction": "parameter", "image_correction": True}
    experts = moe(config.integer("n_routed_experts"), config.integer("num_experts_per_tok"), ffn, ffn, router=router)
    block = {
        "type": "delayed_hyper",
        "attention": token_mixer,
        "feed_forward": experts,
        "norm": norm,
        "hc_mult": stream_count,
        "hc_sinkhorn_iters": config.integer("hc_sinkhorn_iters"),
    }
    ngram_inputs = _ngram_inputs(config, depth, stream_count, norm)
    layers: list[tuple[str, Table]] = []
    for layer_index, (layer_kind, changed_fields) in enumerate(_layers_with_changes(config, depth)):
        layer_changes: Table = {"attention": changed_fields} if changed_fields else {}
        layers.append(
            (
                layer_kind + ("_ngrams" if layer_index in ngram_inputs else ""),
                layer_changes | ngram_inputs.get(layer_index, {}),
            )
        )
    stack_fields = stack_of_layers(layers)
    stack_fields["streams"] = {"type": "delayed_hyper", "hc_mult": stream_count}
    return decoder(config, block, norm, stack=stack_fields)


def _layers_with_changes(config: Config, depth: int) -> list[tuple[str, Table]]:
    """Returns each layer's attention kind, and the attention fields that differ from the other layers'."""
    compression_ratios = config.integers("compress_ratios")
    if len(compression_ratios) < depth:
        raise config.error("compress_ratios", compression_ratios, f"{depth} numbers of tokens per entry, 0 for none")
    kv_sources, index_sources = (
        _layer_indices(config, field_name, depth) for field_name in ("kv_source_layer_ids", "index_source_layer_ids")
    )
    index_topk, candidate_block_fields = config.integer("index_topk"), _candidate_blocks(config)
    indexer_table: Table = config.integer_fields("index_n_heads", "index_head_dim")
    indexer_table["index_topk"] = index_topk
    candidate_source_layer = config.get("candidate_source_layer_id")
    if candidate_source_layer != -1 and (
        not is_json_integer(candidate_source_layer)
        or candidate_source_layer not in config.integers("index_source_layer_ids")
    ):
        raise config.error(
            "candidate_source_layer_id", candidate_source_layer, "a layer of index_source_layer_ids, or -1 for none"
        )
    layers: list[tuple[str, Table]] = []
    source_rate = 0
    for layer_index, compression_ratio in enumerate(compression_ratios[:depth]):
        if compression_ratio == 0:
            if layer_index in kv_sources or layer_index in index_sources:
                raise config.error(
                    "compress_ratios", compression_ratios, f"1 or more for layer {layer_index}, which selects entries"
                )
            layers.append(("local", {}))
            continue
        if layer_index in kv_sources:
            source_rate = compression_ratio
            if layer_index not in index_sources:
                raise config.error(
                    "index_source_layer_ids", sorted(index_sources), f"layer {layer_index} too, which computes entries"
                )
        elif compression_ratio != source_rate:
            raise config.error(
                "kv_source_layer_ids",
                sorted(kv_sources),
                f"a source of {compression_ratio} tokens per entry for layer {layer_index}",
            )
        layer_changes: Table = {
            "compress_rate": compression_ratio,
            "weighted_entries": compression_ratio > 1,
            "entries_shared": layer_index not in kv_sources,
        }
        if layer_index not in index_sources:
            layers.append(("shared", {**layer_changes, "index_topk": index_topk}))
            continue
        if layer_index >= candidate_source_layer >= 0 and compression_ratio != 1:
            raise config.error(
                "compress_ratios",
                compression_ratios,
                f"1 for layer {layer_index}, at or above candidate_source_layer_id",
            )
        if layer_index == candidate_source_layer:
            candidate_fields = {"finds": candidate_block_fields}
        elif layer_index > candidate_source_layer >= 0:
            candidate_fields = {"candidates": candidate_block_fields}
        else:
            candidate_fields = {}
        layers.append(
            (
                "full" if layer_index in kv_sources else "selecting",
                {**layer_changes, "indexer": {**indexer_table, **candidate_fields}},
            )
        )
    return layers


def _candidate_blocks(config: Config) -> Table:
    return config.integer_fields("candidate_topk_blocks", "candidate_block_size")


def _layer_indices(config: Config, field_name: str, depth: int) -> set[int]:
    """Returns the indices of the model's layers that a field lists."""
    return {layer_index for layer_index in config.integers(field_name) if layer_index < depth}


def _ngram_inputs(config: Config, depth: int, stream_count: int, norm: Table) -> dict[int, Table]:
    """Returns layer index → fields of the layer's engram (n-gram embedding)."""
    layer_ids, ngram_rows = config.integers("engram_layer_ids"), config.integers("engram_num_embeddings")
    if len(ngram_rows) != len(layer_ids):
        raise config.error(
            "engram_num_embeddings", ngram_rows, f"one number of rows for each of {len(layer_ids)} layers"
        )
    head_count = (config.integer("engram_max_ngram_size") - 1) * config.integer("engram_n_heads")
    if head_count < 1:
        raise config.field_error("engram_max_ngram_size", "2 or more")
    ngram_head_dim = config.integer("engram_head_dim")
    common_fields = {"ngram_heads": head_count, "ngram_head_dim": ngram_head_dim, "streams": stream_count, "norm": norm}
    rows_by_layer = zip(layer_ids, ngram_rows, strict=True)
    return {
        index: {"ngram_input": {"ngram_rows": rows, **common_fields}} for index, rows in rows_by_layer if index < depth
    }


DEFAULTS: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 5120,
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "max_position_embeddings": 1048576,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 20,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "tie_word_embeddings": False,
}

VLLM_CODE_FOLDER = "https://github.com/vllm-project/vllm/blob/main/vllm/models/deepseek_v41"

FAMILIES = {
    "deepseek_v41_text": Family(
        _read_deepseek_v41_text,
        DEFAULTS,
        field_names("""
            compress_rope_theta dspark_block_size dspark_markov_rank dspark_n_routed_experts dspark_noise_token_id
            dspark_num_experts_per_tok dspark_target_layer_ids engram_compressed_vocab_size engram_pad_token_id
            engram_vocab_size expert_dtype gate_temp hc_eps norm_topk_prob routed_scaling_factor swiglu_limit
            topk_method
            """),
        source=VLLM_CODE_FOLDER,
    ),
    "deepseek_v41": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="deepseek_v41_text",
        tying_source="never",
        source=VLLM_CODE_FOLDER,
        tower_class_prefixes="DeepseekV41",
        tower_file=TOWER_FILE,
    ),
}
