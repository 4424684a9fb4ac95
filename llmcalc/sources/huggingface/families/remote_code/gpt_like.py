"""Decoders with LayerNorm (CodeShell, Jais, BTLM, ProGen2, nanoGPT, first Phi, Falcon), and with other sizes by layer.

OpenELM and the models of NVIDIA's architecture search have heads and FFN widths that differ by layer.

Sources: the modeling files of the models' repositories, vLLM's and mlx-lm's, in `Family.source` of each model type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .....components.base import LARGEST_SIZE
from ...code_addresses import GITHUB, HUB, MLX, VLLM
from ...config import Config, is_json_integer, is_number
from ...dropout import GPT2_DROPOUT
from ...family import GPT2_NAMES, Family, field_names
from ...parts import (
    ACTIVATIONS,
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    attention,
    biases,
    decoder,
    glu,
    layer_table,
    layernorm,
    learned_positions,
    mlp,
    moe,
    qk_norm_fields,
    rmsnorm,
    rope,
    stack_of_layers,
)
from ..gpt.gpt import full_width_heads, non_gated_ffn, read_gptj


def _gpt_decoder(
    config: Config, token_mixer: Table, ffn: Table, head_fields: Table | None = None, **block_fields: Any
) -> Table:
    """Returns a decoder with LayerNorm before each sublayer."""
    norm = layernorm(config.number("layer_norm_epsilon"))
    layer = {"attention": token_mixer, "feed_forward": ffn, "norm": norm, "norm_placement": "pre", **block_fields}
    return decoder(config, layer, norm, head_fields)


def _read_codeshell(config: Config) -> Table:
    """Reads CodeShell: GPT-2's layers with RoPE and grouped keys and values."""
    config.require("position_embedding_type", "rope")
    token_mixer = full_width_heads(config, position=rope(config), **biases(True, *QKVO_BIASES))
    if config.flag("group_query_attention"):
        token_mixer["num_key_value_heads"] = config.integer("num_key_value_heads")
    return _gpt_decoder(config, token_mixer, non_gated_ffn(config, "n_inner", "activation_function"))


def _read_jais(config: Config) -> Table:
    """Reads Jais 1 and BTLM: GPT-2's layers with ALiBi and a gated FFN, all with biases."""
    position_type = config.choice({"alibi": "alibi", "learned": "learned"}, "position_embedding_type")
    position_fields = {"position": {"type": "alibi"}} if position_type == "alibi" else {}
    token_mixer = full_width_heads(config, **position_fields, **biases(True, *QKVO_BIASES))
    if config.text("activation_function") == "swiglu":
        ffn: Table = {
            "intermediate_size": config.optional_integer("n_inner") or 4 * config.integer("hidden_size"),
            "hidden_act": "silu",
            "gated": True,
            **biases(True, "gate_bias", "up_bias", "down_bias"),
        }
    else:
        ffn = non_gated_ffn(config, "n_inner", "activation_function")
    model_fields = _gpt_decoder(config, token_mixer, ffn)
    if position_type == "learned":
        model_fields["decoder"]["position"] = learned_positions(config)
    return model_fields


def _read_nanogpt(config: Config) -> Table:
    """Reads nanoGPT: GPT-2's layers, with or without biases everywhere."""
    has_bias = config.flag("bias")
    norm = layernorm(bias=has_bias)
    ffn = mlp(4 * config.integer("hidden_size"), "gelu", has_bias)
    layer = {"attention": full_width_heads(config, **biases(has_bias, *QKVO_BIASES)), "feed_forward": ffn, "norm": norm}
    return decoder(config, {**layer, "norm_placement": "pre"}, norm, stack={"position": learned_positions(config)})


def _read_phi(config: Config) -> Table:
    """Reads Phi-1, 1.5 and 2 in their first form: parallel sublayers, and an output head with a bias.

    With `num_local_experts` each layer has experts (mlabonne/phixtral-4x2_8 modeling_phi.py), and 4 by default in
    mlx-lm's class of them, whose fields have other names.
    """
    head_count, rotary_dim = config.integer("num_attention_heads"), config.integer("rotary_dim")
    for field_name in ("n_head_kv", "head_dim"):
        config.require_if_present(field_name, None, head_count)
    position_encoding = {"type": "rope", "rotary_dim": rotary_dim}
    token_mixer = full_width_heads(config, position=position_encoding, **biases(True, *QKVO_BIASES))
    ffn = non_gated_ffn(config, "n_inner", "activation_function")
    expert_count = config.optional_integer("num_local_experts")
    if expert_count is not None:
        ffn = moe(expert_count, config.integer("num_experts_per_tok"), ffn)
    return _gpt_decoder(config, token_mixer, ffn, {"bias": True}, parallel="shared")


def _read_stablelm_epoch(config: Config) -> Table:
    norm = layernorm(config.number("norm_eps"))
    position_encoding = rope(config, 0.25, "rope_pct")
    attention_table = attention(config, position=position_encoding, **biases(config.flag("use_qkv_bias"), *QKV_BIASES))
    return decoder(config, layer_table(attention_table, glu(config), norm), norm)


def _read_refined_web(config: Config) -> Table:
    """Reads Falcon in its first form: the 40B has a norm per parallel sublayer, the 7B one norm for both."""
    has_bias, head_count = config.flag("bias"), config.integer("num_attention_heads")
    kv_head_count = config.optional_integer("n_head_kv") or (1 if config.flag("multi_query") else head_count)
    position_encoding = {"type": "alibi"} if config.flag("alibi") else rope(config)
    token_mixer = full_width_heads(config, position=position_encoding, **biases(has_bias, *QKVO_BIASES))
    if kv_head_count != head_count:
        token_mixer["num_key_value_heads"] = kv_head_count
    intermediate_size = 4 * config.integer("hidden_size")
    ffn = {"intermediate_size": intermediate_size, "hidden_act": "gelu", **biases(has_bias, "up_bias", "down_bias")}
    has_grouped_queries = config.model_type == "RefinedWeb"
    parallel_fields: dict[str, Any] = {}
    if has_grouped_queries or config.flag("parallel_attn"):
        parallel_fields = {"parallel": "separate" if has_grouped_queries else "shared"}
    return _gpt_decoder(config, token_mixer, ffn, **parallel_fields)


def _read_phi3small(config: Config) -> Table:
    """Reads Phi-3-small, whose layers with blocks of keys are counted as full attention."""
    if config.optional_integer("dense_attention_every_n_layers") not in (None, 1):
        config.notes.append(
            "dense_attention_every_n_layers: the other layers attend to some blocks of keys; counted as full attention"
        )
    config.require("hidden_act", "gegelu")
    ff_intermediate_size = config.optional_integer("ff_intermediate_size")
    ffn_width = ff_intermediate_size or config.integer("ff_dim_multiplier") * config.integer("hidden_size")
    ffn = {
        "intermediate_size": ffn_width,
        "hidden_act": "gelu",
        "gated": True,
        **biases(True, "gate_bias", "up_bias", "down_bias"),
    }
    attention_table = attention(
        config, position=rope(config, theta_name="rope_embedding_base"), **biases(True, *QKVO_BIASES)
    )
    return _gpt_decoder(config, attention_table, ffn)


def _checked_list(
    config: Config, field_name: str, list_length: int, is_valid: Callable[[Any], bool], expected_text: str
) -> list[Any]:
    """Returns a list with one value per layer. Raises `InputError` for another length or an invalid value."""
    layer_values = config.get(field_name)
    if not isinstance(layer_values, list) or len(layer_values) != list_length or not all(map(is_valid, layer_values)):
        raise config.error(field_name, layer_values, f"{list_length} values, {expected_text}")
    return layer_values


def _checked_width(config: Config, field_name: str, expected_width: int) -> int:
    """Returns an FFN width. Raises `InputError` if the width is too large."""
    if expected_width > LARGEST_SIZE:
        raise config.field_error(field_name, f"a width of at most {LARGEST_SIZE}, a multiple of hidden_size")
    return expected_width


def _is_positive_number(config_value: Any) -> bool:
    return is_number(config_value) and 0 < config_value <= LARGEST_SIZE


def _is_positive_integer(config_value: Any) -> bool:
    return is_json_integer(config_value) and 0 < config_value <= LARGEST_SIZE


def _read_openelm(config: Config) -> Table:
    """Reads OpenELM, whose layers have more heads and a wider FFN from bottom to top."""
    depth = config.integer("num_hidden_layers")
    hidden_size = config.integer("hidden_size")
    width_divisor = config.integer("ffn_dim_divisor")
    config.require("ffn_with_glu", True)
    norm, head_dim = rmsnorm(), config.integer("head_dim")
    qk_norms = qk_norm_fields(norm) if config.flag("normalize_qk_projections") else {}
    query_head_counts = _checked_list(config, "num_query_heads", depth, _is_positive_integer, "positive whole numbers")
    kv_head_counts = _checked_list(config, "num_kv_heads", depth, _is_positive_integer, "positive whole numbers")
    ffn_multipliers = _checked_list(config, "ffn_multipliers", depth, _is_positive_number, "positive numbers")
    layers = []
    for head_count, kv_head_count, ffn_multiplier in zip(
        query_head_counts, kv_head_counts, ffn_multipliers, strict=True
    ):
        if head_count % kv_head_count:
            raise config.error("num_kv_heads", kv_head_count, f"a divisor of num_query_heads, here {head_count}")
        unrounded_width = ffn_multiplier * hidden_size
        ffn_width = max(width_divisor, int(unrounded_width + width_divisor / 2) // width_divisor * width_divisor)
        expected_width = ffn_width + (width_divisor if ffn_width < 0.9 * unrounded_width else 0)
        ffn_width = _checked_width(config, "ffn_multipliers", expected_width)
        layers.append(
            (
                f"heads{head_count}_ffn{ffn_width}",
                {
                    "attention": {
                        "num_attention_heads": head_count,
                        "num_key_value_heads": kv_head_count,
                        "head_dim": head_dim,
                        "position": rope(config, theta_name="rope_freq_constant"),
                        **qk_norms,
                    },
                    "feed_forward": {"intermediate_size": ffn_width, "hidden_act": "silu", "gated": True},
                },
            )
        )
    block = {**layers[0][1], "norm": norm, "norm_placement": "pre"}
    return decoder(config, block, norm, stack=stack_of_layers(layers))


def _read_nemotron_nas(config: Config) -> Table:
    """Reads models of NVIDIA's Puzzle, whose layers differ in K/V heads and FFN width, or lack attention or FFN."""
    depth = config.integer("num_hidden_layers")
    hidden_size = config.integer("hidden_size")
    head_count = config.integer("num_attention_heads")
    norm = rmsnorm(config.number("rms_norm_eps"))
    block_tables = _checked_list(
        config, "block_configs", depth, lambda field_value: isinstance(field_value, dict), "tables of fields"
    )
    has_attention_bias, has_mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    layers: list[tuple[str, Table]] = []
    for layer_index, block_config in enumerate(block_tables):
        attention_config, ffn_config = (
            _block_part_config(config, layer_index, block_config, part_name) for part_name in ("attention", "ffn")
        )
        layer_changes: Table = {"attention": {"type": "none"}, "feed_forward": {"type": "none"}}
        part_labels = []
        if not attention_config.flag("no_op"):
            n_heads_in_group = attention_config.integer("n_heads_in_group")
            kv_head_count = attention_config.quotient("n_heads_in_group", head_count, n_heads_in_group)
            layer_changes["attention"] = {
                "num_attention_heads": head_count,
                "num_key_value_heads": kv_head_count,
                "position": rope(config),
                **biases(has_attention_bias, *QKVO_BIASES),
            }
            if attention_config.optional_integer("window_length") is not None:
                layer_changes["attention"]["sliding_window"] = attention_config.integer("window_length")
            part_labels.append(f"kv{kv_head_count}")
        if not ffn_config.flag("no_op"):
            unrounded_width = int(2 * ffn_config.number("ffn_mult") * hidden_size / 3)
            ffn_width = _checked_width(ffn_config, "ffn_mult", max(256, -(-unrounded_width // 256) * 256))
            layer_changes["feed_forward"] = {
                "intermediate_size": ffn_width,
                "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
                "gated": True,
                **biases(has_mlp_bias, "gate_bias", "up_bias", "down_bias"),
            }
            part_labels.append(f"ffn{ffn_width}")
        layers.append(("_".join(part_labels) or "empty", layer_changes))
    block = {**layers[0][1], "norm": norm, "norm_placement": "pre"}
    return decoder(config, block, norm, stack=stack_of_layers(layers))


def _read_deci(config: Config) -> Table:
    """Reads DeciLM: Llama's layers with a separate number of K/V heads in each layer."""
    depth, head_count = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    norm, has_attention_bias = rmsnorm(config.number("rms_norm_eps")), config.flag("attention_bias")
    kv_heads_by_layer = _checked_list(
        config,
        "num_key_value_heads_per_layer",
        depth,
        lambda field_value: is_json_integer(field_value) and field_value > 0 and head_count % field_value == 0,
        f"divisors of {head_count}",
    )
    layers: list[tuple[str, Table]] = []
    for kv_head_count in kv_heads_by_layer:
        attention_table = {
            "num_attention_heads": head_count,
            "num_key_value_heads": kv_head_count,
            "position": rope(config),
        }
        layers.append(
            (f"kv{kv_head_count}", {"attention": {**attention_table, **biases(has_attention_bias, *QKVO_BIASES)}})
        )
    block = {**layers[0][1], "feed_forward": glu(config, config.flag("mlp_bias")), "norm": norm}
    return decoder(config, {**block, "norm_placement": "pre"}, norm, stack=stack_of_layers(layers))


def _block_part_config(config: Config, layer_index: int, block_config: Table, part_name: str) -> Config:
    """Returns the table of a layer's attention or FFN. Raises `InputError` if a single linear layer replaces it."""
    field_path_prefix = f"{config.location}block_configs[{layer_index}]."
    config_fields = {part_name: block_config.get(part_name)}
    part_table = Config(config_fields, {}, config.model_type, location=field_path_prefix).table(part_name)
    location = f"{field_path_prefix}{part_name}."
    part_config = Config(part_table, BLOCK_PART_DEFAULTS, config.model_type, location=location)
    part_config.require_fields(replace_with_linear=False, sparsify=None)
    return part_config


BLOCK_PART_DEFAULTS: dict[str, Any] = {
    "no_op": False,
    "replace_with_linear": False,
    "sparsify": None,
    "window_length": None,
}


def _read_progen(config: Config) -> Table:
    """Reads ProGen2: CodeGen's layers; the config states the vocabulary of the embedding and of the head."""
    config.require("vocab_size_lm_head", config.integer("vocab_size"), None)
    return read_gptj(config)


COMMON_DEFAULTS: dict[str, Any] = {"layer_norm_epsilon": 1e-5, "num_key_value_heads": None, "head_dim": None}
PHI = Family(
    _read_phi,
    {
        **COMMON_DEFAULTS,
        "activation_function": "gelu_new",
        "n_inner": None,
        "rotary_dim": 32,
        "tie_word_embeddings": False,
    }
    | {"num_local_experts": None},
    frozenset({"flash_attn", "flash_rotary", "fused_dense"}),
    aliases=GPT2_NAMES,
    source=f"{HUB}microsoft/phi-1_5 modeling_mixformer_sequential.py",
)
REFINED_WEB = Family(
    _read_refined_web,
    {
        **COMMON_DEFAULTS,
        "bias": False,
        "alibi": False,
        "multi_query": False,
        "parallel_attn": False,
        "tie_word_embeddings": True,
    },
    frozenset({"apply_residual_connection_post_layernorm", "parallel_attn"}),
    aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    source=f"{HUB}tiiuae/falcon-40b modelling_RW.py",
)
JAIS = Family(
    _read_jais,
    {
        **COMMON_DEFAULTS,
        "activation_function": "gelu_new",
        "n_inner": None,
        "position_embedding_type": "learned",
        "tie_word_embeddings": True,
    },
    field_names("""
        alibi_scaling embeddings_scale mup_embeddings_scale mup_output_alpha mup_scale_qk_dot_by_d mup_width_scale
        reorder_and_upcast_attn scale_qk_dot_by_d summary_activation summary_first_dropout summary_proj_to_labels
        summary_type summary_use_proj width_scale
        """),
    aliases=GPT2_NAMES,
    source=f"{VLLM}jais.py",
)

FAMILIES = {
    "progen": Family(
        _read_progen,
        {
            **COMMON_DEFAULTS,
            "activation_function": "gelu_new",
            "n_inner": None,
            "rotary_dim": 32,
            "vocab_size_lm_head": None,
            "tie_word_embeddings": False,
        },
        field_names("""
            embed_dropout n_ctx scale_attn_weights summary_activation summary_first_dropout summary_proj_to_labels
            summary_type summary_use_proj
            """),
        aliases={**GPT2_NAMES, "hidden_size": "embed_dim", "vocab_size": "vocab_size_emb"},
        source=f"{GITHUB}hugohrban/ProGen2-finetuning/blob/main/src/models/progen/modeling_progen.py",
        dropout_fields=GPT2_DROPOUT,
    ),
    "codeshell": Family(
        _read_codeshell,
        {
            **COMMON_DEFAULTS,
            "activation_function": "gelu_pytorch_tanh",
            "n_inner": None,
            "group_query_attention": True,
            "num_query_groups": 1,
            "position_embedding_type": "learned_absolute",
            "tie_word_embeddings": True,
        },
        field_names("""
            inference_runner max_batch_size pad_key_length pre_allocate_kv_cache summary_activation
            summary_first_dropout summary_proj_to_labels summary_type summary_use_proj validate_runner_input
            """),
        aliases={**GPT2_NAMES, "num_key_value_heads": "num_query_groups"},
        source=f"{HUB}WisdomShell/CodeShell-7B modeling_codeshell.py",
    ),
    "jais": JAIS,
    "btlm": replace(JAIS, source=f"{HUB}cerebras/btlm-3b-8k-base modeling_btlm.py"),
    "nanogpt": Family(
        _read_nanogpt,
        {"block_size": 1024, "vocab_size": 50304, "bias": True, "tie_word_embeddings": True},
        aliases={**GPT2_NAMES, "max_position_embeddings": "block_size"},
        dropout_fields=dict.fromkeys(GPT2_DROPOUT, "dropout"),
        source=f"{GITHUB}karpathy/nanoGPT/blob/master/model.py",
    ),
    "mixformer-sequential": PHI,
    "phi-msft": PHI,
    "phixtral": replace(
        PHI,
        defaults={
            **PHI.defaults,
            "vocab_size": 51200,
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_experts_per_tok": 2,
            "num_local_experts": 4,
        },
        aliases={
            "vocab_size": "num_vocab",
            "hidden_size": "model_dim",
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
        },
        source=f"{MLX}phixtral.py",
    ),
    "stablelm_epoch": Family(
        _read_stablelm_epoch,
        {
            **COMMON_DEFAULTS,
            "norm_eps": 1e-5,
            "hidden_act": "silu",
            "use_qkv_bias": False,
            "tie_word_embeddings": False,
        },
        frozenset({"num_heads", "rotary_scaling_factor"}),
        source=f"{HUB}stabilityai/stable-code-3b modeling_stablelm_epoch.py",
    ),
    "RefinedWeb": REFINED_WEB,
    "RefinedWebModel": replace(
        REFINED_WEB, defaults={**REFINED_WEB.defaults, "multi_query": True, "parallel_attn": True}
    ),
    "phi3small": Family(
        _read_phi3small,
        {
            **COMMON_DEFAULTS,
            "hidden_act": "gegelu",
            "ff_intermediate_size": None,
            "ff_dim_multiplier": None,
            "dense_attention_every_n_layers": None,
            "tie_word_embeddings": True,
        },
        field_names("""
            attention_bias attention_dropout_prob blocksparse_block_size blocksparse_homo_head_pattern
            blocksparse_num_local_blocks blocksparse_triton_kernel_block_size blocksparse_vert_stride
            embedding_dropout_prob ff_dim_multiplier ffn_dropout_prob gegelu_limit gegelu_pad_to_256 mup_attn_multiplier
            mup_embedding_multiplier mup_use_scaling mup_width_multiplier pad_sequence_to_multiple_of_64
            reorder_and_upcast_attn rope_position_scale
            """),
        source=f"{MLX}phi3small.py",
    ),
    "openelm": Family(
        _read_openelm,
        {"ffn_with_glu": True, "normalize_qk_projections": True, "tie_word_embeddings": True},
        field_names("activation_fn_name normalization_layer_name num_gqa_groups qkv_multipliers rope_max_length"),
        aliases={
            "hidden_size": "model_dim",
            "num_hidden_layers": "num_transformer_layers",
            "max_position_embeddings": "max_context_length",
            "tie_word_embeddings": "share_input_output_layers",
        },
        source=f"{MLX}openelm.py",
    ),
    "nemotron-nas": Family(
        _read_nemotron_nas,
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
        frozenset({"intermediate_size", "num_key_value_heads"}),
        source=f"{MLX}nemotron-nas.py",
    ),
    "deci": Family(
        _read_deci,
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
        field_names("num_key_value_heads pretraining_tp"),
        source=f"{HUB}Deci/DeciLM-7B modeling_decilm.py",
    ),
}
