"""Configs of other programs: those of model makers (Meta, Mistral, OpenAI), trainers, simulators and engines.

Sources: llama/model.py of meta-llama/llama (`ModelArgs`, `FeedForward`); model_args.py, llama_transformer.py and
attention.py in examples/models/llama of pytorch/executorch; model.py of karpathy/nanoGPT; nanochat/gpt.py
of karpathy/nanochat; the `model_config` of mlc-ai/mlc-llm; mamba_ssm/models and mamba_ssm/modules of
state-spaces/mamba; simumax/core/config.py (`ModelConfig`) and simumax/core/transformer of MooreThreads/SimuMax;
gpt_oss/torch/model.py (`ModelConfig`) of openai/gpt-oss.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ...components.base import LARGEST
from ...errors import InputError, shown
from .config import is_number, is_whole
from .family import field_names

META = field_names("""
    dim n_layers n_heads n_kv_heads vocab_size multiple_of ffn_dim_multiplier norm_eps rope_theta use_scaled_rope
    max_batch_size max_seq_len rope_scaling_factor high_freq_factor
    """)
"""Fields of Meta's `params.json` for Llama 1 to 3."""

EXECUTORCH = META | field_names("""
    hidden_dim head_dim attention_qkv_bias use_qk_norm qk_norm_before_rope no_rope_layer_interval attention_multiplier
    residual_multiplier embedding_scale_factor logits_scaling
    """)
"""Fields of ExecuTorch's `ModelArgs` that are read."""

EXECUTORCH_SETTINGS = field_names("""
    use_hf_rope rope_freq_base rope_scale_factor max_context_len bos_idx eos_idx bos_count eos_count model_architecture
    use_kv_cache use_sdpa_with_kv_cache_op generate_full_logits enable_dynamic_shape device kv_io_bit_width
    original_max_position_embeddings max_position_embeddings rope_scaling_short_factor rope_scaling_long_factor
    rope_scaling_attention_factor
    """)
"""Fields of ExecuTorch's `ModelArgs` that change no count."""

EXECUTORCH_FIXED: dict[str, Any] = {
    "act_fn": "silu", "norm_type": "rmsnorm", "attention_type": "mha", "apply_embedding": True, "apply_output": True,
    "use_ffn_norm": True, "qk_norm_affine": True, "partial_rotary_factor": 1.0, "moe": False, "output_bias": False,
    "use_q_gate": False, "post_attention_norm": False, "post_ffn_norm": False, "rms_norm_add_unit_offset": False,
}  # fmt: skip
"""Fields of ExecuTorch's `ModelArgs` with the only value that is read; other fields must be null."""

PROGRAMS_WITHOUT_SIZES: dict[frozenset[str], str] = {
    field_names("name num_layers n_head hidden_dim vocab_size"): "llm-analysis: they state no norms, biases or gates",
    field_names(
        "emb_size feedforward_size heads_num layers_num"
    ): "TencentPretrain: they state no size of a vocabulary",
}
"""Fields that only the configs of a program have → the program, and what its configs leave out."""

MISTRAL = field_names(
    "dim n_layers n_heads n_kv_heads head_dim hidden_dim vocab_size norm_eps rope_theta max_seq_len moe"
)
"""Fields of Mistral's `params.json`."""

GPT_OSS_NAMES = {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token"}
GPT_OSS_SIZES = field_names("""
    num_hidden_layers vocab_size hidden_size intermediate_size head_dim num_attention_heads num_key_value_heads
    sliding_window
    """)
GPT_OSS = (
    GPT_OSS_SIZES
    | {*GPT_OSS_NAMES.values()}
    | field_names("""
    swiglu_limit initial_context_length rope_theta rope_scaling_factor rope_ntk_alpha rope_ntk_beta
    """)
)
"""Fields of OpenAI's `ModelConfig` of gpt-oss, in `original/config.json` of its repositories."""

NANOGPT = field_names("n_layer n_head n_embd block_size bias vocab_size dropout")
NANOCHAT = field_names("sequence_len sequence_length vocab_size n_layer n_head n_kv_head n_embd")

MAMBA = field_names("""
    d_model d_intermediate n_layer vocab_size ssm_cfg attn_layer_idx attn_cfg rms_norm residual_in_fp32 fused_add_norm
    pad_vocab_size_multiple tie_embeddings
    """)
"""Arguments of mamba_ssm's `MambaConfig`."""

SIMUMAX = field_names("""
    model_type model_name attention_type hidden_size head_num kv_head_num head_size intermediate_size layer_num
    vocab_size orig_vocab_size use_swiglu expert_num topk moe_ffn_hidden_size moe_shared_expert_intermediate_size
    dense_layers v_head_dim qk_head_dim qk_pos_emb_head_dim q_lora_rank kv_lora_rank capacity group_linear_mode
    moe_pad_expert_input_to_capacity make_vocab_size_divisible_by padded_vocab_size
    """)
"""Fields of SimuMax's `ModelConfig`."""

MLC = field_names("""
    position_embedding_base context_window_size prefill_chunk_size tensor_parallel_shards pipeline_parallel_stages
    max_batch_size attention_sink_size sliding_window_size disaggregation kwargs head_dim
    """)
"""Fields of MLC's `model_config` that are settings of its engine, and `head_dim`, which it fills in."""


def as_config(arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Converts another program's config to a `config.json`, with remarks; any other config is unchanged.

    Raises `InputError` for a field of that form with a value that has no such config.
    """
    if isinstance(arguments.get("model_config"), dict) and isinstance(arguments.get("model_type"), str):
        return _read_mlc(arguments)
    nested = arguments.get("model_config")
    if isinstance(nested, dict) and {"n_layer", "n_head", "n_embd", "n_kv_head"} <= set(nested):
        arguments = nested  # meta_*.json beside a checkpoint of nanochat
    argument_names = frozenset(arguments)
    if {"head_num", "layer_num", "hidden_size"} <= argument_names:
        return _read_simumax(arguments)
    if "_class_name" in argument_names and "model_type" not in argument_names:
        raise InputError(
            f"_class_name: {shown(arguments['_class_name'])} is a class of diffusers, which is no language model; "
            "expected the config.json of one, such as that of a text encoder"
        )
    for program_fields, program in PROGRAMS_WITHOUT_SIZES.items():
        if program_fields <= argument_names:
            raise InputError(
                f"{', '.join(sorted(program_fields))}: fields of {program}; expected the config.json of the model, or "
                "a description in TOML, whose fields llmcalc schema lists"
            )
    if "model_type" in argument_names or "architectures" in argument_names:
        return arguments, []
    if {"dim", "n_layers", "n_heads", "hidden_dim"} <= argument_names <= MISTRAL:
        return _read_mistral(arguments)
    if {"dim", "n_layers", "n_heads", "vocab_size"} <= argument_names <= META:
        return _read_meta(arguments)
    if {"dim", "n_layers", "n_heads", "vocab_size"} <= argument_names and argument_names & {
        "use_hf_rope",
        "max_context_len",
    }:
        return _read_executorch(arguments)
    if GPT_OSS_SIZES | {*GPT_OSS_NAMES.values()} <= argument_names <= GPT_OSS:
        return _read_gpt_oss(arguments)
    if {"n_layer", "n_head", "n_embd", "block_size"} <= argument_names <= NANOGPT:
        return {**arguments, "model_type": "nanogpt"}, ["arguments of nanoGPT: read as 'nanogpt', with its tied head"]
    if {"n_layer", "n_head", "n_embd", "n_kv_head"} <= argument_names <= NANOCHAT:
        return _read_nanochat(arguments)
    if {"d_model", "n_layer", "vocab_size", "ssm_cfg"} <= argument_names <= MAMBA:
        return _read_mamba(arguments)
    if {"n_layer", "n_head", "n_embd", "n_kv_head", "window_pattern"} <= argument_names:
        raise InputError(
            f"window_pattern: {shown(arguments['window_pattern'])}; nanochat's later models have windows and "
            "embeddings of values, which are not read; expected its first arguments alone, or a description in TOML, "
            "whose fields llmcalc schema lists"
        )
    return arguments, []


def _positive_size(arguments: Mapping[str, Any], field_name: str, default: int | None = None) -> int:
    """Returns the positive integer in a field. Raises `InputError` for any other value, and without a default."""
    field_value = arguments.get(field_name, default)
    if field_name == "vocab_size" and field_value == -1:
        raise InputError("vocab_size: -1; expected the number of entries of the tokenizer, 32000 for Llama 1 and 2")
    if not is_whole(field_value) or not 0 < field_value <= LARGEST:
        raise InputError(f"{field_name}: {shown(field_value)}; expected a positive whole number")
    return field_value


def _read_meta(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads Llama's `params.json`: the FFN's width is computed from the model's width (`FeedForward`)."""
    config = {**_shared_fields(arguments), "model_type": "llama", "intermediate_size": _ffn_width(arguments)}
    return config, ["params.json of Llama: read as 'llama' with an output head of its own"]


def _ffn_width(arguments: Mapping[str, Any]) -> int:
    """Returns the FFN's width of Meta's `FeedForward`: 8/3 of the model's width, scaled and rounded up."""
    hidden_size, multiple = _positive_size(arguments, "dim"), _positive_size(arguments, "multiple_of", 256)
    ffn_factor = arguments.get("ffn_dim_multiplier")
    if ffn_factor is not None and (not is_number(ffn_factor) or not 0 < ffn_factor <= 100):
        raise InputError(f"ffn_dim_multiplier: {shown(ffn_factor)}; expected a number above 0, up to 100")
    ffn = 4 * hidden_size * 2 // 3
    return multiple * ceil((ffn if ffn_factor is None else int(ffn_factor * ffn)) / multiple)


def _read_executorch(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads ExecuTorch's Llama with biases or norms of queries and keys, layers without positions, or multipliers."""
    for field_name, field_value in arguments.items():
        if field_name not in EXECUTORCH | EXECUTORCH_SETTINGS and field_value != EXECUTORCH_FIXED.get(field_name):
            raise InputError(
                f"{field_name}: {shown(field_value)}; expected {shown(EXECUTORCH_FIXED.get(field_name))} "
                "(ExecuTorch's models with another value are not read; the config.json of the model is)"
            )
    has_bias, has_norms = arguments.get("attention_qkv_bias", False), arguments.get("use_qk_norm", False)
    for field_name, field_value in (("attention_qkv_bias", has_bias), ("use_qk_norm", has_norms)):
        if not isinstance(field_value, bool):
            raise InputError(f"{field_name}: {shown(field_value)}; expected true or false")
    if has_norms and arguments.get("qk_norm_before_rope") is not True:
        raise InputError("qk_norm_before_rope: expected true, as of Qwen3")
    multipliers = {
        "attention_multiplier": "attention_multiplier",
        "residual_multiplier": "residual_multiplier",
        "embedding_multiplier": "embedding_scale_factor",
        "logits_scaling": "logits_scaling",
    }
    config = {**_shared_fields(arguments), "model_type": "llama", "attention_bias": False}
    config["intermediate_size"] = (
        _ffn_width(arguments) if arguments.get("hidden_dim") is None else _positive_size(arguments, "hidden_dim")
    )
    if arguments.get("head_dim") is not None:
        config["head_dim"] = _positive_size(arguments, "head_dim")
    stated = {
        field_name: arguments[field] for field_name, field in multipliers.items() if arguments.get(field) is not None
    }
    kinds = {
        "qwen2": has_bias,
        "qwen3": has_norms,
        "granite": stated,
        "smollm3": arguments.get("no_rope_layer_interval"),
    }
    named_types = [model_type for model_type, is_stated in kinds.items() if is_stated]
    if len(named_types) > 1:
        raise InputError(
            "attention_qkv_bias, use_qk_norm, no_rope_layer_interval, multipliers: those of "
            f"{', '.join(named_types)} together; expected those of one"
        )
    if named_types:
        config["model_type"] = named_types[0]
    if named_types == ["qwen2"]:
        config.pop("attention_bias")
    if named_types == ["smollm3"]:
        config["no_rope_layer_interval"] = _positive_size(arguments, "no_rope_layer_interval")
    return config | stated, [
        f"arguments of ExecuTorch's Llama: read as '{config['model_type']}' with an output head of its own"
    ]


def _read_mistral(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads Mistral's `params.json`, with experts if it has a table `moe`."""
    config = {
        **_shared_fields(arguments),
        "model_type": "mistral",
        "intermediate_size": _positive_size(arguments, "hidden_dim"),
        "sliding_window": None,
    }
    if arguments.get("head_dim") is not None:
        config["head_dim"] = _positive_size(arguments, "head_dim")
    experts = arguments.get("moe")
    if experts is not None:
        if not isinstance(experts, dict):
            raise InputError(f"moe: {shown(experts)}; expected a table of fields")
        config |= {
            "model_type": "mixtral",
            "num_local_experts": _positive_size(experts, "num_experts"),
            "num_experts_per_tok": _positive_size(experts, "num_experts_per_tok"),
        }
    return config, [f"params.json of Mistral: read as '{config['model_type']}' with an output head of its own"]


def _read_gpt_oss(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads OpenAI's own config of gpt-oss, every other layer of which has a window, the first among them."""
    config: dict[str, Any] = {field_name: _positive_size(arguments, field_name) for field_name in GPT_OSS_SIZES}
    config |= {field_name: _positive_size(arguments, field) for field_name, field in GPT_OSS_NAMES.items()}
    length = _positive_size(arguments, "initial_context_length", 4096)
    factor = arguments.get("rope_scaling_factor", 32)
    if not is_number(factor) or not 0 < factor <= LARGEST:
        raise InputError(f"rope_scaling_factor: {shown(factor)}; expected a positive number")
    config |= {"model_type": "gpt_oss", "max_position_embeddings": int(length * factor), "tie_word_embeddings": False}
    return config, [
        "config of OpenAI's own code: read as 'gpt_oss'; it does not say that its checkpoints have experts in MXFP4 "
        "(--quantize mxfp4)"
    ]


def _shared_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that both kinds of `params.json` share."""
    heads = _positive_size(arguments, "n_heads")
    config: dict[str, Any] = {
        "hidden_size": _positive_size(arguments, "dim"),
        "num_hidden_layers": _positive_size(arguments, "n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": _positive_size(arguments, "n_kv_heads", heads),
        "vocab_size": _positive_size(arguments, "vocab_size"),
        "tie_word_embeddings": False,
    }
    other_names = {"rms_norm_eps": "norm_eps", "rope_theta": "rope_theta", "max_position_embeddings": "max_seq_len"}
    return config | {
        field_name: arguments[field] for field_name, field in other_names.items() if arguments.get(field) is not None
    }


def _read_simumax(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads a model of SimuMax, all of whose modules have RMSNorm, no biases and a separate output head."""
    for field_name in sorted(set(arguments) - SIMUMAX):
        raise InputError(
            f"{field_name}: is no field of SimuMax's models, whose form this is; expected their fields alone"
        )
    if arguments.get("use_swiglu") is not True:
        raise InputError(f"use_swiglu: {shown(arguments.get('use_swiglu'))}; expected true, for a gated network")
    has_latent = arguments.get("attention_type") == "mla"
    heads, hidden_size = _positive_size(arguments, "head_num"), _positive_size(arguments, "hidden_size")
    config: dict[str, Any] = {
        "model_type": "deepseek_v3" if has_latent else "llama",
        "hidden_size": hidden_size,
        "intermediate_size": _positive_size(arguments, "intermediate_size"),
        "num_hidden_layers": _positive_size(arguments, "layer_num"),
        "num_attention_heads": heads,
        "num_key_value_heads": _positive_size(arguments, "kv_head_num", heads),
        "vocab_size": _positive_size(arguments, "vocab_size"),
        "max_position_embeddings": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    if has_latent:
        sizes = {"kv_lora_rank": "kv_lora_rank", "v_head_dim": "v_head_dim", "qk_nope_head_dim": "qk_head_dim"}
        sizes |= {"qk_rope_head_dim": "qk_pos_emb_head_dim"}
        config |= {field_name: _positive_size(arguments, field) for field_name, field in sizes.items()}
        config |= {"n_group": 1, "topk_group": 1}
        is_low_rank = arguments.get("q_lora_rank") is not None
        config["q_lora_rank"] = _positive_size(arguments, "q_lora_rank") if is_low_rank else None
    else:
        config["head_dim"] = _positive_size(arguments, "head_size")
    if _positive_size(arguments, "expert_num", 1) > 1:
        expert_width = _positive_size(arguments, "moe_ffn_hidden_size", config["intermediate_size"])
        shared_width = arguments.get("moe_shared_expert_intermediate_size") or 0
        if not is_whole(shared_width) or not 0 <= shared_width <= LARGEST or shared_width % expert_width:
            raise InputError(
                f"moe_shared_expert_intermediate_size: {shown(shared_width)}; expected a multiple of the width of a "
                f"routed expert ({expert_width})"
            )
        dense_layers = arguments.get("dense_layers") or 0
        if not is_whole(dense_layers) or not 0 <= dense_layers <= config["num_hidden_layers"]:
            raise InputError(f"dense_layers: {shown(dense_layers)}; expected a number from 0 to layer_num")
        config |= {
            "model_type": "deepseek_v3" if has_latent else "deepseek",
            "n_routed_experts": _positive_size(arguments, "expert_num"),
            "num_experts_per_tok": _positive_size(arguments, "topk"),
            "moe_intermediate_size": expert_width,
            "n_shared_experts": shared_width // expert_width,
            "first_k_dense_replace": dense_layers,
        }
    elif has_latent:
        config["first_k_dense_replace"] = config["num_hidden_layers"]
    return config, [
        f"a model of SimuMax: read as '{config['model_type']}' with RMSNorm, without biases and with an output head of "
        "its own, as SimuMax's modules are; norms of queries and keys are not in its form"
    ]


def _read_nanochat(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads the arguments of nanochat's first versions."""
    hidden_size = _positive_size(arguments, "n_embd")
    length = arguments.get("sequence_len", arguments.get("sequence_length"))
    config = {
        "model_type": "nanochat",
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": _positive_size(arguments, "n_layer"),
        "num_attention_heads": _positive_size(arguments, "n_head"),
        "num_key_value_heads": _positive_size(arguments, "n_kv_head"),
        "vocab_size": _positive_size(arguments, "vocab_size", 50304),
        **({} if length is None else {"max_position_embeddings": length}),
    }
    return config, ["arguments of nanochat: read as 'nanochat', as in its first versions"]


def _read_mamba(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads the arguments of mamba_ssm, the first format of Mamba's checkpoints, which pad the vocabulary.

    Raises `InputError` for layers of attention or networks between those of Mamba, which its other models have.
    """
    ssm = arguments["ssm_cfg"]
    if not isinstance(ssm, dict):
        raise InputError(f"ssm_cfg: {shown(ssm)}; expected a table of fields")
    for field_name in ("attn_layer_idx", "attn_cfg", "d_intermediate"):
        if arguments.get(field_name):
            raise InputError(
                f"{field_name}: {shown(arguments[field_name])}; expected none: only models of Mamba's layers are read"
            )
    for field_name in ("rms_norm", "tie_embeddings"):
        if arguments.get(field_name, True) is not True:
            raise InputError(f"{field_name}: {shown(arguments[field_name])}; expected true, as in the published models")
    layer, hidden_size = ssm.get("layer", "Mamba1"), _positive_size(arguments, "d_model")
    if layer not in ("Mamba1", "Mamba2") or set(ssm) - {"layer", "d_state", "expand", "headdim", "ngroups"}:
        raise InputError(
            f"ssm_cfg: {shown(ssm)}; expected layer Mamba1 or Mamba2, and d_state, expand, headdim, ngroups"
        )
    vocab_multiple, vocab = (
        _positive_size(arguments, "pad_vocab_size_multiple", 8),
        _positive_size(arguments, "vocab_size"),
    )
    expand = _positive_size(ssm, "expand", 2)
    config: dict[str, Any] = {
        "model_type": "mamba" if layer == "Mamba1" else "mamba2",
        "vocab_size": vocab_multiple * ceil(vocab / vocab_multiple),
        "hidden_size": hidden_size,
        "num_hidden_layers": _positive_size(arguments, "n_layer"),
        "expand": expand,
        "state_size": _positive_size(ssm, "d_state", 16 if layer == "Mamba1" else 128),
        "tie_word_embeddings": True,
    }
    if layer == "Mamba2":
        head = _positive_size(ssm, "headdim", 64)
        if expand * hidden_size % head:
            raise InputError(f"ssm_cfg: headdim {head} does not divide {expand * hidden_size}, the width of the scan")
        groups = _positive_size(ssm, "ngroups", 1)
        config |= {"head_dim": head, "num_heads": expand * hidden_size // head, "n_groups": groups}
    else:
        config["intermediate_size"] = expand * hidden_size
    return config, [f"arguments of mamba_ssm: read as '{config['model_type']}', with its vocabulary padded"]


def _read_mlc(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads MLC's config: the fields of the model's original config, without the engine's settings."""
    fields = {
        field_name: field_value
        for field_name, field_value in arguments["model_config"].items()
        if field_name not in MLC
    }
    original_fields = arguments["model_config"]
    other_names = {"rope_theta": "position_embedding_base", "max_position_embeddings": "context_window_size"}
    fields |= {
        field_name: original_fields[field]
        for field_name, field in other_names.items()
        if original_fields.get(field) not in (None, -1)
    }
    config = {**fields, "model_type": arguments["model_type"]}
    remarks = ["mlc-chat-config.json: read as the config of its model"]
    if arguments.get("quantization"):
        scheme = shown(arguments["quantization"])
        remarks.append(f"quantization: MLC's {scheme} is not counted; --quantize counts a scheme")
    return config, remarks
