"""State-space models, linear attention, recurrences, and what mixes them with attention."""

from __future__ import annotations

from typing import Any

from ....components.mixers.attention import Attention
from ....components.networks.router import LinearRouter
from ..facts import Absent, Facts, present
from ..fields import FIELDS, Value


def _every(s: Facts, chosen: list[int]) -> int:
    """How far apart these layers stand; as far as the model is deep where there is one or none."""
    return chosen[1] - chosen[0] if len(chosen) > 1 else len(s.layers)


def _of_kind(s: Facts, kind: str) -> list[int]:
    return [i for i, found in enumerate(s.kinds()) if found == kind]


def _lowest(found: list[int]) -> int:
    return found[0] if found else 0


def _inner(s: Facts) -> int:
    mixer = s.typed("mamba", "mamba2")
    width: int = mixer.intermediate_size if mixer.type == "mamba" else mixer.num_heads * mixer.head_dim
    return width


def _expand(s: Facts) -> int:
    """Channels of the recurrence as a multiple of the model's width."""
    times, rest = divmod(_inner(s), s.spec.hidden_size)
    if rest or not times:
        raise Absent
    return times


def _of(field: str) -> Value:
    """A field of the first state-space mixer."""
    return lambda s: getattr(s.typed("mamba", "mamba2"), field)


def _letters(s: Facts) -> str:
    """Nemotron-H: a letter for each layer, which is one sublayer."""
    mixers = {"mamba2": "M", "attention": "*"}
    return "".join(
        mixers.get(layer.attention.type) or {"mlp": "-", "moe": "E"}[layer.feed_forward.type] for layer in s.layers
    )


def _hybrids(s: Facts) -> list[str]:
    """Zamba's layers: with a shared block before the state space, or without."""
    return ["hybrid" if hasattr(layer, "transformer") else "mamba" for layer in s.layers]


def _transformer(s: Facts) -> Any:
    return s.named("transformer")


def _shared_blocks(s: Facts) -> int:
    return max(1, len({name for name in s.first.layer_names() if hasattr(s.first.layer(name), "transformer")}))


def _width_factor(field: str) -> Value:
    """xLSTM: the width of all heads together as a multiple of the model's."""
    return lambda s: present(s.named("num_heads")) * present(s.named(field)) / s.spec.hidden_size


def _gated(s: Facts) -> bool:
    return any(isinstance(mixer, Attention) and mixer.output_gate is not None for mixer in s.mixers)


QWEN: dict[str, Value] = {
    "full_attention_interval": lambda s: _every(s, _of_kind(s, "full_attention")),
    "mtp_num_hidden_layers": FIELDS["num_nextn_predict_layers"],
}

MAMBA: dict[str, Value] = {
    "mamba_d_state": _of("state_size"),
    "mamba_d_conv": _of("conv_kernel"),
    "mamba_expand": _expand,
    "mamba_conv_bias": _of("use_conv_bias"),
    "mamba_proj_bias": _of("use_bias"),
}

MAMBA_2: dict[str, Value] = {
    **MAMBA,
    "mamba_n_heads": _of("num_heads"),
    "mamba_d_head": _of("head_dim"),
    "mamba_n_groups": _of("n_groups"),
    "mamba_chunk_size": _of("chunk_size"),
}

ALONE: dict[str, Value] = {
    "intermediate_size": _inner,
    "expand": _expand,
    "use_bias": _of("use_bias"),
    "hidden_act": _of("hidden_act"),
}

ZAMBA: dict[str, Value] = {
    **MAMBA,
    "layers_block_type": _hybrids,
    "n_mamba_heads": _of("num_heads"),
    "intermediate_size": lambda s: _transformer(s).feed_forward.intermediate_size,
    "hidden_act": lambda s: _transformer(s).feed_forward.hidden_act,
}

OWN: dict[str, dict[str, Value]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), QWEN),
    "mamba": ALONE,
    "falcon_mamba": ALONE,
    "mamba2": {
        "expand": _expand,
        "use_bias": _of("use_bias"),
        "head_dim": _of("head_dim"),
        "hidden_act": _of("hidden_act"),
    },
    "jamba": {
        **MAMBA,
        "mamba_dt_rank": _of("time_step_rank"),
        "attn_layer_period": lambda s: _every(s, _of_kind(s, "full_attention")),
        "attn_layer_offset": lambda s: _lowest(_of_kind(s, "full_attention")),
        "expert_layer_period": lambda s: _every(s, s.with_experts()),
        "expert_layer_offset": lambda s: _lowest(s.with_experts()),
        "num_experts": lambda s: max(1, FIELDS["num_experts"](s)),
    },
    "bamba": {**MAMBA_2, "attn_layer_indices": lambda s: _of_kind(s, "full_attention")},
    "granitemoehybrid": {
        **MAMBA_2,
        "layer_types": lambda s: s.kinds(full_attention="attention"),
        "position_embedding_type": lambda s: "rope" if any(s.positions) else None,
        "shared_intermediate_size": lambda s: (
            s.shared.intermediate_size if s.with_experts() else s.network.intermediate_size
        ),
    },
    "falcon_h1": {
        **MAMBA_2,
        "mamba_d_ssm": _inner,
        "mamba_rms_norm": lambda s: s.typed("mamba2").norm is not None,
        "mamba_norm_before_gate": _of("norm_before_gate"),
        "projectors_bias": _of("out_bias"),
    },
    "nemotron_h": {
        "hybrid_override_pattern": _letters,
        "use_bias": _of("use_bias"),
        "mamba_num_heads": _of("num_heads"),
        "mamba_head_dim": _of("head_dim"),
        "ssm_state_size": _of("state_size"),
        "mamba_hidden_act": _of("hidden_act"),
        "mlp_hidden_act": FIELDS["hidden_act"],
    },
    "zamba": {**ZAMBA, "hidden_mamba_act": _of("hidden_act"), "mamba_dt_rank": _of("time_step_rank")},
    "zamba2": {
        **ZAMBA,
        "mamba_ngroups": _of("n_groups"),
        "add_bias_linear": _of("use_bias"),
        "num_mem_blocks": _shared_blocks,
        "use_mem_rope": lambda s: _transformer(s).attention.position is not None,
        "use_shared_attention_adapter": lambda s: _transformer(s).attention_adapters,
    },
    "recurrent_gemma": {
        "block_types": lambda s: s.kinds(sliding_attention="attention"),
        "attention_window_size": lambda s: present(s.window),
        "intermediate_size": lambda s: 2 * s.network.intermediate_size,
    },
    "zaya": {"layer_types": lambda s: s.kinds(full_attention="hybrid", sliding_attention="hybrid_sliding")},
    "rwkv": {"intermediate_size": lambda s: s.networks[0].intermediate_size},
    "xlstm": {
        "qk_dim_factor": _width_factor("qk_head_dim"),
        "v_dim_factor": _width_factor("v_head_dim"),
        "use_bias": lambda s: s.named("use_bias"),
        "ffn_round_up_to_multiple_of": lambda s: s.network.intermediate_size,
        "ffn_proj_factor": lambda s: s.network.intermediate_size / s.spec.hidden_size,
    },
    "lfm2": {"block_auto_adjust_ff_dim": lambda s: False},
    "lfm2_moe": {"use_expert_bias": lambda s: s.find(LinearRouter).score_correction == "buffer"},
    "lfm3": {"use_sandwich_norm": lambda s: s.layers[0].norm_placement == "sandwich", "use_attention_gate": _gated},
}
