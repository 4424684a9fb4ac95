"""Decoders whose layers all have softmax attention and a plain network."""

from __future__ import annotations

from typing import Any

from ....components.mixers.attention import Attention
from ....components.position import Rope
from ..facts import Facts, present
from ..fields import FIELDS, Value


def _neo(s: Facts) -> list[Any]:
    """Each layer by itself."""
    return [[["global" if kind == "full_attention" else "local"], 1] for kind in s.kinds()]


def _grouped(s: Facts) -> bool:
    """Falcon's second architecture: two norms side by side, or groups of queries."""
    return s.layers[0].parallel == "separate" or FIELDS["num_key_value_heads"](s) not in (
        1,
        s.named("num_attention_heads"),
    )


def _norms(s: Facts) -> int | None:
    return {"separate": 2, "shared": 1}.get(s.layers[0].parallel or "")


def _pre(s: Facts) -> bool:
    return s.layers[0].norm_placement == "pre"


def _afn(s: Facts) -> str:
    """GPT-1 calls by `gelu` what others call by its approximation."""
    return {"gelu_tanh": "gelu"}.get(s.network.hidden_act, s.network.hidden_act)


def _full(s: Facts) -> Any:
    """A layer of Gemma 4 without a window."""
    return s.find(Attention, where=lambda part: part.sliding_window is None)


def _every_key(s: Facts) -> int | None:
    """Key/value heads of full layers, where they are not those of the others."""
    many: int | None = _full(s).num_key_value_heads
    return many if many != s.mixers[0].num_key_value_heads else None


def _per_layer(s: Facts) -> int:
    try:
        width: int = present(s.first.per_layer_embedding).hidden_size_per_layer_input
    except LookupError:
        return 0
    return width


def _sharing(s: Facts) -> int:
    return sum(bool(mixer.kv_shared) for mixer in s.mixers)


def _wider(s: Facts) -> bool:
    """Whether layers that share keys and values have a wider network."""
    networks: list[Any] = [layer.networks()[-1] for layer in s.layers]
    return len({network.intermediate_size for network in networks}) > 1


def _widths(s: Facts) -> Any:
    widths = [network.intermediate_size for network in s.networks]
    return widths if len({*widths}) > 1 else widths[0]


def _bases(s: Facts) -> Any:
    """RoPE's base in each layer, 0 for one without positions."""
    return [position.rope_theta if isinstance(position, Rope) else 0 for position in s.positions]


LOCAL_THETA: dict[str, Value] = {"rope_local_base_freq": lambda s: s.sliding.position.rope_theta}

WINDOW: dict[str, Value] = {"sliding_window": lambda s: s.window}
"""Of classes that have a window where their config says nothing."""

BASES: dict[str, Value] = {**WINDOW, "layer_rope_theta": _bases}

OWN: dict[str, dict[str, Value]] = {
    "llama": {"sliding_window": lambda s: None},  # its class has no windows
    **dict.fromkeys(("mistral", "exaone4"), WINDOW),
    "seed_oss": {"attention_out_bias": lambda s: s.full.o_bias},
    "starcoder2": {"use_bias": lambda s: s.network.up_bias},
    "openai-gpt": {"afn": _afn},
    "ctrl": {"dff": lambda s: s.network.intermediate_size},
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), BASES),
    "gpt_neo": {"attention_types": _neo, "window_size": lambda s: present(s.window)},
    "falcon": {
        "alibi": lambda s: s.full.position is not None and s.full.position.type == "alibi",
        "new_decoder_architecture": _grouped,
        "num_ln_in_parallel_attn": _norms,
        "parallel_attn": lambda s: s.layers[0].parallel is not None,
        "bias": lambda s: s.network.up_bias,
    },
    "opt": {
        "do_layer_norm_before": _pre,
        "_remove_final_layer_norm": lambda s: _pre(s) and s.main.final_norm is None,
        "layer_norm_elementwise_affine": lambda s: s.layers[0].norm.weight,
        "enable_bias": lambda s: s.network.up_bias,
    },
    "gemma3_text": LOCAL_THETA,
    "gemma3n_text": {**LOCAL_THETA, "num_kv_shared_layers": _sharing, "intermediate_size": _widths},
    "gemma4_text": {
        **LOCAL_THETA,
        "head_dim": lambda s: (s.typed("attention") if s.window is None else s.sliding).sizes(s.spec.hidden_size)[2],
        "num_key_value_heads": lambda s: (s.typed("attention") if s.window is None else s.sliding).sizes(
            s.spec.hidden_size
        )[1],
        "global_head_dim": lambda s: _full(s).sizes(s.spec.hidden_size)[2],
        "num_global_key_value_heads": _every_key,
        "attention_k_eq_v": lambda s: _full(s).attention_k_eq_v,
        "num_kv_shared_layers": _sharing,
        "use_double_wide_mlp": _wider,
        "hidden_size_per_layer_input": _per_layer,
        "enable_moe_block": lambda s: bool(s.with_experts()),
        "use_bidirectional_attention": lambda s: "all" if s.spec.kind == "encoder" else None,
    },
}
