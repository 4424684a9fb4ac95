"""SmolLM3, Seed-OSS, Arcee, Apertus and Helium: Llama with small differences.

They have another bias or activation, or layers without positions.

transformers: models/smollm3, models/seed_oss, models/arcee, models/apertus, models/helium.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import DropoutFields, Family
from ...parts import (
    ACTIVATIONS,
    FULL_OR_SLIDING,
    QKV,
    QKVO,
    Table,
    attention,
    biases,
    decoder,
    glu,
    layer_pattern,
    listed_kinds,
    mlp,
    qk_norm,
    rmsnorm,
)
from ...writes import UNPADDED


def _pre_norm_decoder(config: Config, mixer: Table, feed_forward: Table, stack: Table | None = None) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    return decoder(
        config,
        {"attention": mixer, "feed_forward": feed_forward, "norm": norm, "norm_placement": "pre"},
        norm,
        stack=stack,
    )


def _smollm3(config: Config) -> Table:
    depth, window, flags = (
        config.size("num_hidden_layers"),
        config.maybe("sliding_window"),
        config.get("no_rope_layers"),
    )
    period = config.size("no_rope_layer_interval")
    has_rope = (
        config.sizes("no_rope_layers") if flags is not None else [int((i + 1) % period != 0) for i in range(depth)]
    )
    if len(has_rope) < depth:
        raise config.wrong("no_rope_layers", flags, f"{depth} times 0 or 1")
    uses_sliding_window = config.flag("use_sliding_window") and window is not None
    attention_kinds = listed_kinds(
        config,
        "layer_types",
        FULL_OR_SLIDING,
        ["full" if has_rope[i] or not uses_sliding_window else "sliding" for i in range(depth)],
    )
    names, variants = [], {}
    for i, attention_kind in enumerate(attention_kinds):
        windows: Table = {"sliding_window": window} if attention_kind == "sliding" and window is not None else {}
        names.append(f"{'sliding' if windows else 'full'}{'' if has_rope[i] else '_no_rope'}")
        variants[names[-1]] = {"attention": {**windows, **({} if has_rope[i] else {"position": "none"})}}
    mixer = attention(config, **biases(config.flag("attention_bias"), *QKVO))
    return _pre_norm_decoder(
        config, mixer, glu(config, config.flag("mlp_bias")), {"variants": variants, **layer_pattern(names)}
    )


def _seed_oss(config: Config) -> Table:
    mixer = attention(
        config, **biases(config.flag("attention_bias"), *QKV), **biases(config.flag("attention_out_bias"), "o_bias")
    )
    return _pre_norm_decoder(config, mixer, glu(config, config.flag("mlp_bias")))


def _arcee(config: Config) -> Table:
    act = config.choice(ACTIVATIONS, "hidden_act")
    return _pre_norm_decoder(
        config,
        attention(config, **biases(config.flag("attention_bias"), *QKVO)),
        mlp(config.size("intermediate_size"), act, config.flag("mlp_bias")),
    )


def _apertus(config: Config) -> Table:
    act = config.choice({**ACTIVATIONS, "xielu": "xielu"}, "hidden_act")
    mixer = attention(
        config, **biases(config.flag("attention_bias"), *QKVO), **qk_norm(rmsnorm(config.number("rms_norm_eps")))
    )
    return _pre_norm_decoder(config, mixer, mlp(config.size("intermediate_size"), act, bias=False))


def _helium(config: Config) -> Table:
    """Reads Helium: the class's output projection is hidden_size × hidden_size, regardless of head_dim."""
    config.must(
        "head_dim",
        config.divided("num_attention_heads", config.size("hidden_size"), config.size("num_attention_heads")),
    )
    return _pre_norm_decoder(
        config, attention(config, **biases(config.flag("attention_bias"), *QKV)), glu(config, config.flag("mlp_bias"))
    )


COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}

FAMILIES = {
    "smollm3": Family(
        _smollm3,
        {
            **COMMON,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        frozenset({"max_window_layers"}),
        writes=UNPADDED,
    ),
    "seed_oss": Family(
        _seed_oss,
        {
            **COMMON,
            "vocab_size": 155136,
            "hidden_size": 4096,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
            "attention_out_bias": False,
        },
        writes={"attention_out_bias": lambda s: s.full.o_bias},
        dropout=DropoutFields(
            {
                "attention": "attention_dropout",
                "attention_output": "residual_dropout",
                "feed_forward": "residual_dropout",
            },
            {"attention_dropout": 0.1, "residual_dropout": 0.1},
        ),
    ),
    "arcee": Family(
        _arcee,
        {
            **COMMON,
            "vocab_size": 32000,
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "hidden_act": "relu2",
        },
    ),
    "apertus": Family(
        _apertus,
        {
            "vocab_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-5,
            "hidden_act": "xielu",
            "tie_word_embeddings": False,
            "attention_bias": False,
        },
        frozenset({"mlp_bias", "post_norm", "qk_norm"}),
        modules={
            "self_attn_pre_norm": "attention_layernorm",
            "mlp_pre_norm": "feedforward_layernorm",
            "mlp.xielu": "act_fn",
            "xielu.alpha": "alpha_p + alpha_n",
        },
    ),
    "helium": Family(
        _helium,
        {
            **COMMON,
            "vocab_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-8,
        },
    ),
}
