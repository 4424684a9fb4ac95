"""T5Gemma: an encoder and a decoder of Gemma 2's layers, each with a token embedding of its own, and perhaps of different widths.

transformers: models/t5gemma. Without `is_encoder_decoder` it is the encoder alone.
"""

from __future__ import annotations

from typing import Any

from .config import Config, Family
from .gemma import capped
from .parts import QKVO, Table, attention, biases, every_nth_full, glu, headed, rmsnorm, windowed


def _side(c: Config, name: str, crosses: bool = False) -> tuple[Config, Table]:
    """(the config of one side, its stack). A side that is not given has the defaults."""
    data = c.get(name)
    data = {} if data is None else dict(c.table(name))
    side = Config(data, MODULE, c.model_type, c.head, f"{c.where}{name}.")
    norm = rmsnorm(side.number("rms_norm_eps"))
    mixer = attention(side, **capped(side), **biases(side.flag("attention_bias"), *QKVO))
    block: Table = {"attention": mixer, "feed_forward": glu(side, act="hidden_activation"), "norm": norm, "norm_placement": "sandwich"}
    if crosses:
        block["cross_attention"] = {k: v for k, v in mixer.items() if k != "position"}
    depth = side.size("num_hidden_layers")
    stack: Table = {"num_hidden_layers": depth, "block": block, "final_norm": norm, **windowed(side, every_nth_full(depth, 2))}
    unknown = side.left_over(IGNORED)
    if unknown:
        c.notes.append(f"not understood, and taken to change no count: {', '.join(side.where + field for field in unknown)}")
    return side, stack


def _t5gemma(c: Config) -> Table:
    reads, encoder = _side(c, "encoder")
    if not c.flag("is_encoder_decoder"):
        sizes = {"vocab_size": reads.size("vocab_size"), "hidden_size": reads.size("hidden_size")}
        c.asked.update(("decoder", "tie_word_embeddings"))
        return {**sizes, "tie_word_embeddings": False, "encoder": encoder, "head": _head(c) if c.head == "classification" else {"type": "none"}}
    writes, decoder = _side(c, "decoder", crosses=True)
    width, vocab = reads.size("hidden_size"), reads.size("vocab_size")
    encoder |= {"vocab_size": vocab, **({} if width == writes.size("hidden_size") else {"hidden_size": width})}
    sizes = {field: writes.size(field) for field in ("vocab_size", "hidden_size", "max_position_embeddings")}
    return {**sizes, "tie_word_embeddings": c.flag("tie_word_embeddings"), "encoder": encoder, "decoder": decoder, "head": _head(c)}


def _head(c: Config) -> Table:
    """A classifier scores every token, with a bias."""
    return headed(c, None, {"over": "token"})


MODULE: dict[str, Any] = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
    "attention_bias": False, "sliding_window": 4096, "layer_types": None, "attn_logit_softcapping": 50.0,
}  # fmt: skip

IGNORED = frozenset(
    {"query_pre_attn_scalar", "final_logit_softcapping", "cache_implementation", "dropout_rate", "classifier_dropout_rate", "hidden_act",
     "tie_word_embeddings", "vocab_size", "hidden_size", "cross_attention_hidden_size", "max_position_embeddings"}
)  # fmt: skip

FAMILIES = {"t5gemma": Family(_t5gemma, {"encoder": None, "decoder": None, "is_encoder_decoder": True, "tie_word_embeddings": True}, IGNORED)}
