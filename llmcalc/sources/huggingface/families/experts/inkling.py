"""Inkling: attention with learned distance-profile biases, and short convolutions after every sublayer.

Its router also scores the shared experts. transformers: models/inkling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .....ops import State
from ...absent_value import require_present
from ...config import Config
from ...family import Deviation, Family
from ...field_writers import FieldWriters
from ...parts import DENSE_OR_MOE, Table, decoder, gated_experts, glu, listed_kinds, rmsnorm, stack_of_combined_kinds
from ..deepseek.deepseek import SIGMOID_ROUTING

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

KIND_BY_LAYER_TYPE = {"hybrid": "full", "hybrid_sliding": "sliding"}


def profile_mixers(config: Config) -> tuple[Table, Table]:
    """Returns the fields of attention with learned scores of distances, and the fields that sliding layers change."""
    window_size = config.integer("sliding_window_size")
    full_attention: Table = {
        **config.integer_fields("num_attention_heads", "num_key_value_heads", "head_dim"),
        "relative_rank": config.integer("d_rel"),
        "relative_extent": config.integer("rel_extent"),
        "conv_kernel_size": config.integer("conv_kernel_size"),
    }
    sliding_attention: Table = {
        "num_attention_heads": config.integer("swa_num_attention_heads"),
        "num_key_value_heads": config.integer("swa_num_key_value_heads"),
        "head_dim": config.integer("swa_head_dim"),
        "relative_extent": window_size,
        "sliding_window": window_size,
    }
    return full_attention, sliding_attention


def _read_inkling_text(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    full_attention, sliding_attention = profile_mixers(config)
    kernel_size, token_mixer = full_attention["conv_kernel_size"], {"type": "profile", **full_attention, "norm": norm}
    expert_width, dense_width = _ffn_widths(config)
    shared_expert_count = config.integer("n_shared_experts")
    shared_width, count_fields = expert_width * shared_expert_count, ("n_routed_experts",)
    experts = gated_experts(config, expert_width, shared_width, count_fields, **SIGMOID_ROUTING)
    experts["shared_scores"] = {"shared_experts": shared_expert_count}
    ffn_kinds = _ffn_kinds(config, depth)
    dense_ffn: Table = {"type": "mlp", **glu(config, ffn_width=dense_width), "output_scale": True}
    block = {
        "type": "convolved",
        "attention": token_mixer,
        "feed_forward": dense_ffn if "dense" in ffn_kinds else experts,
        "norm": norm,
        "conv_kernel_size": kernel_size,
    }
    layer_changes: Table = {"full": {}, "sliding": {"attention": sliding_attention}}
    stack_fields = stack_of_combined_kinds(
        (_attention_kinds(config, depth), layer_changes), (ffn_kinds, {"dense": {}, "moe": {"feed_forward": experts}})
    )
    stack_fields["embedding_norm"] = norm
    _note_uncounted_prediction(config)
    return {**decoder(config, block, norm, stack=stack_fields), "tie_word_embeddings": False}


def _ffn_widths(config: Config) -> tuple[int, int]:
    """Returns the FFN widths of an expert and of a dense layer.

    With a `dense_intermediate_size`, as in published checkpoints, `intermediate_size` is the experts'.
    """
    if config.has("dense_intermediate_size"):
        config.fields_read.add("moe_intermediate_size")
        return config.integer("intermediate_size"), config.integer("dense_intermediate_size")
    return config.integer("moe_intermediate_size"), config.integer("intermediate_size")


def _attention_kinds(config: Config, depth: int) -> list[str]:
    """Returns `sliding` or `full` for each layer: from a list of kinds or of indices, or `full` for every sixth."""
    local_layers = {layer_index for layer_index in range(depth) if (layer_index + 1) % 6}
    if config.get("local_layer_ids") is not None:
        local_layers = set(config.integers("local_layer_ids"))
    default_layer_kinds = ["sliding" if layer_index in local_layers else "full" for layer_index in range(depth)]
    return listed_kinds(config, "layer_types", KIND_BY_LAYER_TYPE, default_layer_kinds)


def _ffn_kinds(config: Config, depth: int) -> list[str]:
    dense_count = config.count("dense_mlp_idx") if config.has("dense_mlp_idx") else 0
    default_layer_kinds = ["dense" if layer_index < dense_count else "moe" for layer_index in range(depth)]
    return listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, default_layer_kinds)


def _note_uncounted_prediction(config: Config) -> None:
    if config.has("num_mtp_layers") and config.count("num_mtp_layers"):
        config.notes.append("num_mtp_layers: the multi-token-prediction modules are not counted")


FLOAT32_STATES = Deviation(
    "Inkling's convolutions",
    "they run in float32, so that the states of their last inputs are float32 too",
    "cache_bytes",
    class_op=lambda op: replace(op, element_bits=32) if isinstance(op, State) and op.cache_kind == "conv_state" else op,
)


def _full_attention(model_values: ConfigValues) -> Any:
    return require_present(
        next((token_mixer for token_mixer in model_values.mixers if token_mixer.sliding_window is None), None)
    )


def _sliding_attention(model_values: ConfigValues) -> Any:
    return require_present(
        next((token_mixer for token_mixer in model_values.mixers if token_mixer.sliding_window is not None), None)
    )


MIXER_WRITERS: FieldWriters = {
    "num_attention_heads": lambda s: _full_attention(s).num_attention_heads,
    "num_key_value_heads": lambda s: _full_attention(s).num_key_value_heads,
    "head_dim": lambda s: _full_attention(s).head_dim,
    "rel_extent": lambda s: _full_attention(s).relative_extent,
    "d_rel": "relative_rank",
    "swa_num_attention_heads": lambda s: _sliding_attention(s).num_attention_heads,
    "swa_num_key_value_heads": lambda s: _sliding_attention(s).num_key_value_heads,
    "swa_head_dim": lambda s: _sliding_attention(s).head_dim,
    "sliding_window_size": lambda s: _sliding_attention(s).sliding_window,
    "conv_kernel_size": lambda s: s.first_stack.block.conv_kernel_size,
    "layer_types": lambda s: ["hybrid" if mixer.sliding_window is None else "hybrid_sliding" for mixer in s.mixers],
}
"""Fields of attention, and of the pattern of layers."""

FAMILIES = {
    "inkling_text": Family(
        _read_inkling_text,
        {"tie_word_embeddings": False},
        frozenset({"dense_mlp_idx", "number_of_conv_states", "tie_word_embeddings"}),
        field_writers={
            **MIXER_WRITERS,
            "n_shared_experts": lambda s: require_present(s.moe.shared_scores).shared_experts,
        },
        deviations=(FLOAT32_STATES,),
    ),
    "inkling_mm_model": Family(
        None,
        text_type="inkling_text",
        tying_source="never",
        ignored_fields=frozenset({"mtp_config"}),
        uncounted_encoders={"vision_config": "inkling_vision", "audio_config": "inkling_audio"},
    ),
}
