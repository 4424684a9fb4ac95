"""Qwen4-Exp: Qwen3.5's layers between several residual streams, sparse attention, and embeddings of n-grams.

transformers: models/qwen4_exp. `full_attention` in `layer_types` is attention with an indexer.
"""

from __future__ import annotations

from itertools import count, islice
from math import isqrt
from typing import TYPE_CHECKING, Any

from .....algebra import ceil_div
from .....frozen import frozen
from .....ops import Op
from .....ops.sparse import CompressedKVAttentionCore
from ...absent_value import require_present
from ...config import Config
from ...family import EVERY_CLASS, Deviation, Family, Quirks
from ...field_writers import PARTIAL_ROTARY_WRITER
from ...parts import (
    QKVO_BIASES,
    Table,
    attention,
    biases,
    decoder,
    gated_experts,
    listed_kinds,
    offset_rmsnorm,
    qk_norm_fields,
    rope,
    stack_of_layers,
)
from ..recurrent.delta import QWEN3_5_MODULES, gated_delta_net

if TYPE_CHECKING:
    from .....workload.run_config import RunConfig
    from ....to_hf.config_values import ConfigValues

KIND_BY_LAYER_TYPE = {"linear_attention": "linear", "indexed_attention": "full", "full_attention": "full"}

MAX_TABLES, LARGEST_TABLE = 256, 2**32
"""Largest number of table rows that a token looks up, and largest table of a layer; both bound a search for primes."""


def _read_qwen4(config: Config) -> Table:
    depth = config.integer("num_hidden_layers")
    stream_count = config.integer("hc_count")
    low_rank = config.integer("hc_lowrank")
    norm, has_bias = offset_rmsnorm(config.number("rms_norm_eps")), config.flag("attention_bias")
    full_attention: Table = {
        "type": "attention",
        **attention(
            config,
            position=rope(config, 1.0),
            output_gate={"per": "element", "bias": has_bias},
            block_indexer=_indexer(config, norm),
            **biases(has_bias, *QKVO_BIASES),
            **qk_norm_fields(norm),
        ),
    }
    shared_width = config.integer("shared_expert_intermediate_size")
    experts = gated_experts(config, shared_width=shared_width, shared_expert_gate=True)
    block: Table = {
        "type": "gated_streams",
        "attention": gated_delta_net(config),
        "feed_forward": experts,
        "norm": norm,
        "norm_placement": "pre",
        "hc_mult": stream_count,
        "hc_lowrank": low_rank,
    }
    full_period = config.integer("full_attention_interval")
    default_layer_kinds = ["full" if (layer_index + 1) % full_period == 0 else "linear" for layer_index in range(depth)]
    layer_kinds = listed_kinds(config, "layer_types", KIND_BY_LAYER_TYPE, default_layer_kinds)
    ngram_inputs = _ngram_inputs(config, norm, stream_count)
    layers: list[tuple[str, Table]] = []
    for layer_index, layer_kind in enumerate(layer_kinds):
        if layer_index + 1 in ngram_inputs and layer_kind == "full":
            raise config.error("ple_layer_ids", sorted(ngram_inputs), "numbers of layers with linear attention")
        layer_changes: Table = {"attention": full_attention} if layer_kind == "full" else {}
        layers.append(
            (
                layer_kind + ("_ngrams" if layer_index + 1 in ngram_inputs else ""),
                layer_changes | ngram_inputs.get(layer_index + 1, {}),
            )
        )
    shared_fields: Table = {"hc_mult": stream_count, "hc_lowrank": low_rank, "norm": norm}
    stack_fields = {**stack_of_layers(layers), "streams": {"type": "gated_streams", **shared_fields}}
    return decoder(config, block, None, stack=stack_fields)


def _indexer(config: Config, norm: Table) -> Table:
    """Returns the indexer for sparse attention, which every layer with attention has."""
    config.require("indexer_kv_heads", 1)
    token_budget, compression_ratio = config.integer("indexer_budget"), config.integer("indexer_compress_ratio")
    if token_budget % compression_ratio:
        raise config.error("indexer_budget", token_budget, f"a multiple of indexer_compress_ratio {compression_ratio}")
    return {
        "type": "mean_indexer",
        "index_n_heads": config.integer("indexer_n_heads"),
        "index_head_dim": config.integer("indexer_head_dim"),
        "index_block_size": compression_ratio,
        "index_topk_blocks": token_budget // compression_ratio,
        "norm": norm,
    }


def _ngram_inputs(config: Config, norm: Table, stream_count: int) -> dict[int, Table]:
    """Returns the n-gram embeddings by layer number, counted from 1."""
    listed_layers = config.get("ple_layer_ids")
    layer_numbers = [] if listed_layers is None else sorted({*config.integers("ple_layer_ids")})
    longest_ngram, heads_per_ngram = config.integer("ngram_size"), config.integer("heads_per_ngram")
    ngram_width = config.optional_integer("ple_embed_dim") or config.integer("hidden_size")
    table_count = (longest_ngram - 1) * heads_per_ngram
    least_prime = config.integer("ngram_vocab_size_base")
    row_divisor = config.integer("make_ngram_vocab_size_divisible_by")
    kernel_size = config.integer("ple_conv_kernel_size")
    if not layer_numbers:
        return {}
    if layer_numbers[-1] > config.integer("num_hidden_layers"):
        raise config.error("ple_layer_ids", layer_numbers, "numbers of layers, from 1 to num_hidden_layers")
    if table_count < 1 or ngram_width % table_count:
        raise config.error(
            "ple_embed_dim", ngram_width, f"a multiple of (ngram_size - 1) · heads_per_ngram = {table_count}"
        )
    if table_count * len(layer_numbers) > MAX_TABLES or least_prime > LARGEST_TABLE:
        raise config.error(
            "ngram_vocab_size_base", least_prime, f"at most {LARGEST_TABLE}, and {MAX_TABLES} hashed heads"
        )
    table_primes = list(islice(filter(_is_prime, count(least_prime)), table_count * len(layer_numbers)))
    ngram_inputs = {}
    for i, layer_number in enumerate(layer_numbers):
        ngram_rows = ceil_div(sum(table_primes[i * table_count : (i + 1) * table_count]), row_divisor) * row_divisor
        ngram_input = {
            "ngram_rows": ngram_rows,
            "ngram_heads": table_count,
            "ngram_head_dim": ngram_width // table_count,
            "streams": stream_count,
            "conv_kernel_size": kernel_size,
            "dilation": longest_ngram,
            "norm": norm,
        }
        ngram_inputs[layer_number] = {"ngram_input": ngram_input}
    return ngram_inputs


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in (2, *range(3, isqrt(number) + 1, 2)) if divisor < number)


@frozen(slots=True)
class _VisibleBlocks(CompressedKVAttentionCore):
    """An indexer's scores for only the complete blocks before each token, as the `transformers` class computes them."""

    def pairs(self, run_config: RunConfig) -> Any:
        past_rows = run_config.past_rows(self.rows)
        return self.visible_pairs(past_rows + run_config.new_rows(self.rows)) - self.visible_pairs(past_rows)


def _visible_blocks(op: Op) -> Op:
    """Returns an operation whose indexer scores only complete blocks, like the `transformers` class."""
    if not isinstance(op, CompressedKVAttentionCore):
        return op
    return _VisibleBlocks(
        op.heads, op.qk_dim, op.v_dim, rows=op.rows, keys=op.keys, tokens_per_entry=op.tokens_per_entry
    )


QUERY_BY_QUERY = Deviation(
    "Qwen4-Exp's indexer",
    "it scores the blocks of each token by themselves, without those of later tokens, which a full pass masks",
    "forward_flops",
    class_op=_visible_blocks,
)


def _indexer_of_model(model_values: ConfigValues) -> Any:
    return require_present(
        next(
            (
                token_mixer.block_indexer
                for token_mixer in model_values.mixers
                if getattr(token_mixer, "block_indexer", None)
            ),
            None,
        )
    )


def _ngram_parts(model_values: ConfigValues) -> dict[int, Any]:
    input_by_layer = {
        layer_index + 1: getattr(layer, "ngram_input", None) for layer_index, layer in enumerate(model_values.layers)
    }
    return {layer_index: ngram_input for layer_index, ngram_input in input_by_layer.items() if ngram_input is not None}


MODULES = {
    **QWEN3_5_MODULES,
    "self_attn_connection": ".attn_hyper_connection",
    "mlp_connection": ".mlp_hyper_connection",
    "stream_output": "hyper_connection_mixer",
    "norm": "hc_norm",
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "write": "block_inject_weight",
    "indexer.q_proj": "index_qk_proj",
    "indexer.k_proj": "index_qk_proj",
    "indexer.q_norm": "q_layernorm",
    "indexer.k_norm": "k_layernorm",
    "ngram_input": ".ple",
    "ngram_input.embedding": "ple_embedding.ngram_embedding",
    "ngram_input.key_norm": "norm_key",
    "ngram_input.query_norm": "norm_query",
    "ngram_input.conv_norm": "norm_conv",
    "linear_attn.norm": "norm",
}

FAMILIES = {
    "qwen4_exp_text": Family(
        _read_qwen4,
        {"full_attention_interval": 4},
        frozenset({"mtp_num_hidden_layers", "number_of_conv_states"}),
        field_writers={
            **PARTIAL_ROTARY_WRITER,
            "layer_types": lambda s: [
                "linear_attention" if mixer.type == "gated_delta_net" else "indexed_attention" for mixer in s.mixers
            ],
            "hc_count": "hc_mult",
            "indexer_n_heads": lambda s: _indexer_of_model(s).index_n_heads,
            "indexer_kv_heads": lambda s: 1 if _indexer_of_model(s) else None,
            "indexer_head_dim": lambda s: _indexer_of_model(s).index_head_dim,
            "indexer_budget": lambda s: _indexer_of_model(s).index_topk_blocks * _indexer_of_model(s).index_block_size,
            "indexer_compress_ratio": lambda s: _indexer_of_model(s).index_block_size,
            "ple_layer_ids": lambda s: list(_ngram_parts(s)),
        },
        modules=MODULES,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        deviations=(QUERY_BY_QUERY,),
    ),
    "qwen4_exp": Family(
        None, text_type="qwen4_exp_text", tower_file="qwen", quirks=Quirks(value_reading_classes=EVERY_CLASS)
    ),
}
