"""InternLM3 and IQuest-Coder, which have separate configs but use Llama's class.

transformers: models/internlm3, models/iquestcoder (configurations only), models/llama.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import QKVO_BIASES, Table, attention, attention_biases, biases
from .llama import llama_decoder


def _read_internlm3(config: Config) -> Table:
    """Reads InternLM3: `qkv_bias` and `bias` must be equal, because Llama's class has both or neither."""
    has_bias = config.flag("attention_bias")
    config.require("mlp_bias", has_bias)
    return llama_decoder(config, attention(config, **biases(has_bias, *QKVO_BIASES)), has_bias)


def _read_iquestcoder(config: Config) -> Table:
    config.require_if_present("use_sliding_window", False)
    config.require_if_present("clip_qkv", None)
    return llama_decoder(config, attention(config, **attention_biases(config)), config.flag("mlp_bias"))


FAMILIES = {
    "internlm3": Family(_read_internlm3, aliases={"attention_bias": "qkv_bias", "mlp_bias": "bias"}),
    "iquestcoder": Family(_read_iquestcoder, ignored_fields=frozenset({"max_window_layers"})),
}
