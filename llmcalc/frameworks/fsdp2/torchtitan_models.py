"""Model specs for the flavors (named sizes) in torchtitan's model registries.

Source: torchtitan/models/{llama3,llama4,qwen3,deepseek_v3,gpt_oss}/__init__.py and model/args.py, and
models/moe/moe.py for defaults of experts, at 9810191bb^ (2026-02-22); torchtitan/models/llama at 9dec370
(2024-12-26), whose flavours have the same sizes but for the debug model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import InputError, suggest
from ...model import ModelSpec
from ...sources.files import validate
from ...sources.huggingface.parts import stack_of_kinds

SpecTable = dict[str, Any]


class LlamaFlavor(NamedTuple):
    """The sizes of a Llama flavor, by torchtitan's argument names."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None = None
    ffn_dim_multiplier: float | None = None
    multiple_of: int = 256
    vocab_size: int = 128256
    rope_theta: float = 500000.0

    def intermediate_size(self) -> int:
        """The width of the feed-forward network: two thirds of 4 · dim, times the multiplier, rounded up."""
        hidden_width = int(2 * (4 * self.dim) / 3)
        hidden_width = hidden_width if self.ffn_dim_multiplier is None else int(self.ffn_dim_multiplier * hidden_width)
        return self.multiple_of * ((hidden_width + self.multiple_of - 1) // self.multiple_of)


class ExpertSizes(NamedTuple):
    """The sizes of a mixture of experts, by torchtitan's names. width: the width of an expert (`moe_inter_dim`)."""

    num_experts: int
    num_shared_experts: int
    top_k: int
    score_func: str
    width: int


class Qwen3Flavor(NamedTuple):
    """The sizes of a Qwen3 flavor, by torchtitan's names. tie_word_embeddings: `enable_weight_tying`."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    hidden_dim: int
    tie_word_embeddings: bool = False
    experts: ExpertSizes | None = None
    rope_theta: float = 1e6
    vocab_size: int = 151936
    head_dim: int = 128


class DeepSeekFlavor(NamedTuple):
    """The sizes of a DeepSeek flavor, by torchtitan's names.

    Heads have 128 dimensions without RoPE, 64 with RoPE, and 128 for values; the latent has 512.
    """

    vocab_size: int
    dim: int
    inter_dim: int
    n_layers: int
    n_dense_layers: int
    n_heads: int
    experts: ExpertSizes
    q_lora_rank: int = 0


class Llama4Flavor(NamedTuple):
    """The sizes of a Llama 4 flavor, by torchtitan's names.

    moe_layer_interval: `interleave_moe_layer_step`: every so many layers have experts. Each token goes to one of them
    and to the shared one. nope_layer_interval: `every_n_layers_nope`: layers without RoPE attend to all tokens, others
    to those of their block of 8,192; 0 for RoPE and whole sequences everywhere.
    """

    llama_sizes: LlamaFlavor
    num_experts: int = 8
    moe_layer_interval: int = 2
    nope_layer_interval: int = 0

    def expert_width(self) -> int:
        """The width of an expert: the unrounded width of a dense network, divided by two experts, and rounded up."""
        dense_width = int(2 * (4 * self.llama_sizes.dim) / 3)
        dense_width = (
            dense_width
            if self.llama_sizes.ffn_dim_multiplier is None
            else int(self.llama_sizes.ffn_dim_multiplier * dense_width)
        )
        dense_width = int(dense_width / 2)
        return dense_width + -dense_width % self.llama_sizes.multiple_of


LLAMA3 = {
    "debugmodel": LlamaFlavor(256, 6, 16, vocab_size=2048),
    "8B": LlamaFlavor(4096, 32, 32, 8, 1.3, 1024),
    "70B": LlamaFlavor(8192, 80, 64, 8, 1.3, 4096),
    "405B": LlamaFlavor(16384, 126, 128, 8, 1.2, 4096),
}

_LLAMA2: dict[str, Any] = {"vocab_size": 32000, "rope_theta": 10000.0}

LLAMA2 = {
    "debugmodel": LlamaFlavor(256, 8, 16, **_LLAMA2),
    "271M": LlamaFlavor(1024, 16, 8, **_LLAMA2),
    "1B": LlamaFlavor(2048, 18, 16, **_LLAMA2),
    "7B": LlamaFlavor(4096, 32, 32, **_LLAMA2),
    "13B": LlamaFlavor(5120, 40, 40, **_LLAMA2),
    "26B": LlamaFlavor(5120, 80, 40, **_LLAMA2),
    "70B": LlamaFlavor(8192, 80, 64, 8, 1.3, 4096, **_LLAMA2),
}
"""torchtitan's Llama 2 flavors of 2024 (torchtitan/models/llama/__init__.py), with the tokenizer's vocabulary."""

DEBUG_FLAVOR_OF_2024 = LlamaFlavor(256, 8, 16, vocab_size=2256)
"""The debug model of 2024, with the vocabulary of a test tokenizer."""

QWEN3 = {
    "debugmodel": Qwen3Flavor(256, 8, 16, 8, 3072, tie_word_embeddings=True, vocab_size=2048),
    "0.6B": Qwen3Flavor(1024, 28, 16, 8, 3072, tie_word_embeddings=True),
    "1.7B": Qwen3Flavor(2048, 28, 16, 8, 6144, tie_word_embeddings=True),
    "4B": Qwen3Flavor(2560, 36, 32, 8, 9728, tie_word_embeddings=True),
    "8B": Qwen3Flavor(4096, 36, 32, 8, 12288),
    "14B": Qwen3Flavor(5120, 40, 40, 8, 17408),
    "32B": Qwen3Flavor(5120, 64, 64, 8, 25600),
    "debugmodel_moe": Qwen3Flavor(256, 8, 16, 8, 3072, experts=ExpertSizes(64, 0, 8, "softmax", 768), vocab_size=2048),
    "30B-A3B": Qwen3Flavor(2048, 48, 32, 4, 6144, experts=ExpertSizes(128, 0, 8, "softmax", 768)),
    "235B-A22B": Qwen3Flavor(4096, 94, 64, 4, 12288, experts=ExpertSizes(128, 0, 8, "softmax", 1536), rope_theta=5e6),
}

DEEPSEEK_V3 = {
    "debugmodel": DeepSeekFlavor(2048, 256, 1024, 6, 1, 16, ExpertSizes(8, 2, 3, "softmax", 256)),
    "16B": DeepSeekFlavor(102400, 2048, 10944, 27, 1, 16, ExpertSizes(64, 2, 6, "softmax", 1408)),
    "236B": DeepSeekFlavor(102400, 5120, 12288, 60, 1, 128, ExpertSizes(160, 2, 6, "softmax", 1536), 1536),
    "671B": DeepSeekFlavor(129280, 7168, 18432, 61, 3, 128, ExpertSizes(256, 1, 8, "sigmoid", 2048), 1536),
}

_LLAMA4 = LlamaFlavor(5120, 48, 40, 8, 1.2, 2048, 202048)
_LLAMA4_DEBUG = LlamaFlavor(256, 6, 16, vocab_size=2048)

LLAMA4 = {
    "debugmodel": Llama4Flavor(_LLAMA4_DEBUG),
    "17bx16e": Llama4Flavor(_LLAMA4, 16, 1),
    "17bx128e": Llama4Flavor(_LLAMA4, 128),
    "debugmodel_irope": Llama4Flavor(_LLAMA4_DEBUG, nope_layer_interval=4),
    "17bx16e_irope": Llama4Flavor(_LLAMA4, 16, 1, 4),
    "17bx128e_irope": Llama4Flavor(_LLAMA4, 128, nope_layer_interval=4),
}

GPT_OSS = {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"}
"""Flavor that is a published model → the preset."""

FAMILIES = ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss", "llama2")
"""Names of model families; a job's model name may have more letters."""

ATTENTION_SUFFIXES = ("_flex_attn", "_varlen_attn", "_flex", "_varlen")
"""Suffixes of flavor names that differ only in the attention kernel."""


def spec_of_flavor(model_name: str, model_size: str, model_origin: str, is_2024_form: bool = False) -> ModelSpec:
    """Returns the model of torchtitan's `name` and `flavor`. is_2024_form: whether the config is in 2024's format.

    Raises `InputError`, which names the field, for an unknown model.
    """
    model_family = next((family_name for family_name in FAMILIES if family_name in model_name), None)
    if model_family is None:
        raise InputError(
            f"{model_origin}: model.name: '{model_name[:60]}' is not known; expected {', '.join(FAMILIES)}"
        )
    base_size = next(
        (model_size.removesuffix(suffix) for suffix in ATTENTION_SUFFIXES if model_size.endswith(suffix)), model_size
    )
    flavors_by_family: dict[str, dict[str, Any]] = {
        "llama2": LLAMA2,
        "llama3": LLAMA3,
        "llama4": LLAMA4,
        "qwen3": QWEN3,
        "deepseek_v3": DEEPSEEK_V3,
        "gpt_oss": GPT_OSS,
    }
    flavors = flavors_by_family[model_family]
    if base_size not in flavors:
        raise InputError(
            f"{model_origin}: model.flavor: '{model_size[:60]}' is not known; expected one of {', '.join(flavors)}."
            f"{suggest(model_size, list(flavors))}"
        )
    if model_family == "gpt_oss":
        from ...sources.presets import load_preset

        return load_preset(GPT_OSS[base_size]).model
    model_flavor = (
        DEBUG_FLAVOR_OF_2024
        if is_2024_form and model_family == "llama3" and base_size == "debugmodel"
        else flavors[base_size]
    )
    table_builders: dict[str, Callable[[Any], SpecTable]] = {
        "llama2": _llama_table,
        "llama3": _llama_table,
        "llama4": _llama4_table,
        "qwen3": _qwen_table,
        "deepseek_v3": _deepseek_table,
    }
    spec_table = table_builders[model_family](model_flavor)
    return validate(ModelSpec, spec_table, model_origin)


def _swiglu_table(inner_width: int) -> SpecTable:
    """Returns the model-spec table of a SwiGLU network."""
    return {"type": "mlp", "intermediate_size": inner_width, "hidden_act": "silu", "gated": True}


def _layer_table(attention_table: SpecTable, network_table: SpecTable, norm_table: SpecTable) -> SpecTable:
    """Returns the model-spec table of a layer."""
    return {"attention": attention_table, "feed_forward": network_table, "norm": norm_table, "norm_placement": "pre"}


def _model_table(flavor: Any, stack_table: SpecTable, norm_table: SpecTable, is_tied: bool = False) -> SpecTable:
    """Returns the model-spec table of a model. stack_table: fields of the layers. norm_table: the final norm."""
    return {
        "vocab_size": flavor.vocab_size,
        "hidden_size": flavor.dim,
        "tie_word_embeddings": is_tied,
        "decoder": {**stack_table, "num_hidden_layers": flavor.n_layers, "final_norm": norm_table},
    }


def _llama_table(llama_sizes: LlamaFlavor) -> SpecTable:
    """Returns the model-spec table of a Llama model."""
    norm_table = {"type": "rmsnorm", "eps": 1e-5}
    attention_table: SpecTable = {
        "num_attention_heads": llama_sizes.n_heads,
        "num_key_value_heads": llama_sizes.n_kv_heads or llama_sizes.n_heads,
        "position": {"type": "rope", "rope_theta": llama_sizes.rope_theta},
    }
    layer_table = _layer_table(attention_table, _swiglu_table(llama_sizes.intermediate_size()), norm_table)
    return _model_table(llama_sizes, {"block": layer_table}, norm_table)


def _llama4_table(llama4_sizes: Llama4Flavor) -> SpecTable:
    """Returns the model-spec table of a Llama 4 model."""
    norm_table, llama_sizes = {"type": "rmsnorm", "eps": 1e-5}, llama4_sizes.llama_sizes
    expert_sizes = ExpertSizes(llama4_sizes.num_experts, 1, 1, "sigmoid", llama4_sizes.expert_width())
    head_fields: SpecTable = {
        "num_attention_heads": llama_sizes.n_heads,
        "num_key_value_heads": llama_sizes.n_kv_heads or llama_sizes.n_heads,
    }
    chunk_fields = {"attention_chunk_size": ATTENTION_CHUNK_SIZE} if llama4_sizes.nope_layer_interval else {}
    attention_tables: dict[str, SpecTable] = {
        "rope": {**head_fields, **chunk_fields, "position": {"type": "rope", "rope_theta": llama_sizes.rope_theta}},
        "nope": head_fields,
    }
    network_tables = {"dense": _swiglu_table(llama_sizes.intermediate_size()), "experts": _moe_table(expert_sizes)}
    layer_types = [
        f"{'nope' if llama4_sizes.nope_layer_interval and i % llama4_sizes.nope_layer_interval == 0 else 'rope'}-"
        f"{'dense' if (i + 1) % llama4_sizes.moe_layer_interval else 'experts'}"
        for i in range(llama_sizes.n_layers)
    ]
    layer_tables = {
        layer_type: _layer_table(
            attention_tables[layer_type.partition("-")[0]], network_tables[layer_type.partition("-")[2]], norm_table
        )
        for layer_type in dict.fromkeys(layer_types)
    }
    return _model_table(llama_sizes, stack_of_kinds(layer_tables, layer_types), norm_table)


ATTENTION_CHUNK_SIZE = 8192
"""Default value of `fixed_attn_block_size`, in tokens."""


def _moe_table(expert_sizes: ExpertSizes) -> SpecTable:
    """Returns the model-spec table of a mixture of experts."""
    experts_table: SpecTable = {
        "type": "moe",
        "num_experts": expert_sizes.num_experts,
        "num_experts_per_tok": expert_sizes.top_k,
        "expert": _swiglu_table(expert_sizes.width),
        "router": {"type": "linear", "scoring_func": expert_sizes.score_func, "score_correction": "buffer"},
    }
    if expert_sizes.num_shared_experts:
        experts_table["shared_expert"] = _swiglu_table(expert_sizes.width * expert_sizes.num_shared_experts)
    return experts_table


def _qwen_table(qwen_sizes: Qwen3Flavor) -> SpecTable:
    """Returns the model-spec table of a Qwen3 model."""
    norm_table = {"type": "rmsnorm", "eps": 1e-6}
    attention_table: SpecTable = {
        "num_attention_heads": qwen_sizes.n_heads,
        "num_key_value_heads": qwen_sizes.n_kv_heads,
        "head_dim": qwen_sizes.head_dim,
        "qk_norm": {"norm": norm_table},
        "position": {"type": "rope", "rope_theta": qwen_sizes.rope_theta},
    }
    mlp_table = _swiglu_table(qwen_sizes.hidden_dim) if qwen_sizes.experts is None else _moe_table(qwen_sizes.experts)
    layer_table = _layer_table(attention_table, mlp_table, norm_table)
    return _model_table(qwen_sizes, {"block": layer_table}, norm_table, qwen_sizes.tie_word_embeddings)


def _deepseek_table(model_flavor: DeepSeekFlavor) -> SpecTable:
    """Returns the model-spec table of a DeepSeek model."""
    norm_table = {"type": "rmsnorm", "eps": 1e-5}
    query_fields = {"q_lora_rank": model_flavor.q_lora_rank} if model_flavor.q_lora_rank else {}
    attention_table: SpecTable = {
        "type": "mla",
        "num_attention_heads": model_flavor.n_heads,
        **query_fields,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "norm": norm_table,
    }
    layer_tables = {
        "dense": _layer_table(attention_table, _swiglu_table(model_flavor.inter_dim), norm_table),
        "experts": _layer_table(attention_table, _moe_table(model_flavor.experts), norm_table),
    }
    layer_types = ["dense"] * model_flavor.n_dense_layers + ["experts"] * (
        model_flavor.n_layers - model_flavor.n_dense_layers
    )
    return _model_table(model_flavor, stack_of_kinds(layer_tables, layer_types), norm_table)
