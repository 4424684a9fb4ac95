"""A toy family of Hugging Face configs: a Llama whose config has other names for its sizes."""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder, glu, rmsnorm, rope


def _toyllm(c: Config) -> Table:
    norm = rmsnorm(c.number("rms_norm_eps"))
    block = {"attention": attention(c, position=rope(c)), "feed_forward": glu(c), "norm": norm, "norm_placement": "pre"}
    return decoder(c, block, norm)


FAMILIES = {
    "toyllm": Family(
        _toyllm,
        {
            "vocab_size": 1000,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        frozenset({"toy_colour"}),
    )
}
