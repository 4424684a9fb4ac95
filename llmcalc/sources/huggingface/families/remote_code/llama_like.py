"""Llama's layer under other field names, or with other biases, norms or positions: internlm, baichuan, exaone, …

PLaMo has its attention and its network side by side.

Sources: the modeling files of the models' repositories, in `Family.source` of each model type.
"""

from __future__ import annotations

from typing import Any

from .....errors import short_repr
from ...code_addresses import CHATLLM, GITHUB, HUB, LLAMA_CPP, MLX, SGLANG, VLLM
from ...config import Config
from ...family import GPT2_NAMES, Family, field_names
from ...parts import (
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    gated_experts,
    glu,
    layer_table,
    layernorm,
    mlp,
    qk_norm_fields,
    rmsnorm,
    rope,
    scores_of_layers,
    sliding_stack,
)
from ..deepseek.deepseek import LATENT_DEFAULTS, latent_attention
from ..llama.llama import llama_decoder


def _read_llama(config: Config) -> Table:
    """Reads a class that computes Llama's layers: grouped queries, and no bias."""
    return llama_decoder(config, attention(config))


def _read_xverse(config: Config) -> Table:
    """Reads XVERSE and XVERSE-MoE, which has experts in every layer and one wide FFN for the shared experts."""
    model_fields = _read_llama(config)
    if config.has("num_experts"):
        shared_expert_count = config.count("num_shared_experts") if config.has("num_shared_experts") else 0
        ffn_width = config.integer("intermediate_size")
        experts = gated_experts(config, ffn_width, ffn_width * shared_expert_count)
        model_fields["decoder"]["block"]["feed_forward"] = experts
    return model_fields


def _read_internlm(config: Config) -> Table:
    """Reads InternLM, InternLM2 and openPangu Embedded: `bias` sets the biases of attention's four projections."""
    return llama_decoder(config, attention(config, **biases(config.flag("bias"), *QKVO_BIASES)))


def _read_baichuan(config: Config) -> Table:
    """Reads Baichuan 1 and 2: the 7B has RoPE; the 13B has ALiBi, and states its length in `model_max_length`.

    The classes have as many heads of keys and values as of queries.
    """
    position_encoding = rope(config) if config.has("max_position_embeddings") else {"type": "alibi"}
    config.fields_read.add("model_max_length")
    return llama_decoder(config, attention(config, num_key_value_heads=None, position=position_encoding))


def _read_minicpm(config: Config) -> Table:
    """Reads MiniCPM 1 to 4, whose scales of the embedding and the residual stream have no parameters.

    MiniCPM-MoE has experts of the network's form in every layer. BAAI has a reranker with scores of some layers.
    """
    if config.has("sparse_config"):
        dense_length = config.table("sparse_config").get("dense_len")
        length_text = "" if dense_length is None else f" of more than {short_repr(dense_length)} tokens"
        config.notes.append(f"sparse_config: that a sequence{length_text} attends to some blocks alone is not counted")
    model_fields = llama_decoder(config, attention(config, **attention_biases(config)))
    if config.has("num_experts") and config.count("num_experts"):
        experts = gated_experts(config, config.integer("intermediate_size"))
        model_fields["decoder"]["block"]["feed_forward"] = experts
    if config.has("start_layer"):  # BAAI's reranker, LayerWiseMiniCPMForCausalLM
        config.require_fields(head_type="simple", head_multi=True)
        model_fields["head"] = scores_of_layers(config, model_fields["head"])
    return model_fields


def _read_mobilellm(config: Config) -> Table:
    """Reads MobileLLM: `share_embedding` ties the head; weight sharing of adjacent layers is not supported."""
    config.require("layer_sharing", False)
    return llama_decoder(config, attention(config, **attention_biases(config)))


def _read_telechat3(config: Config) -> Table:
    """Reads TeleChat 3 and Solar Pro, whose layers are Llama's.

    Solar Pro adds earlier layers' states to later layers with fixed weights. The engines that serve it attend to all
    tokens, whatever `sliding_window` says.
    """
    attention_table = attention(config, **attention_biases(config))
    return llama_decoder(config, attention_table, config.flag("mlp_bias"))


def _read_maincoder(config: Config) -> Table:
    """Reads Maincoder: Qwen3's layers."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config), **qk_norm_fields(norm))
    return llama_decoder(config, attention_table)


def _read_instella(config: Config) -> Table:
    """Reads Instella: Llama's layers with norms over all heads of the queries and over all heads of the keys."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config), **qk_norm_fields(norm, "projection"))
    return llama_decoder(config, attention_table)


def _read_zhinao(config: Config) -> Table:
    """Reads 360Zhinao, whose queries, keys and values have biases as in Qwen2."""
    return llama_decoder(config, attention(config, **biases(True, *QKV_BIASES)))


def _read_jiutian(config: Config) -> Table:
    """Reads Jiutian: Qwen2's layers; `qkv_bias` sets the biases of queries, keys and values."""
    return llama_decoder(config, attention(config, **biases(config.flag("qkv_bias"), *QKV_BIASES)))


def _read_wedlm(config: Config) -> Table:
    """Reads WeDLM: Qwen3's layers if `qk_norm`, else Qwen2's; `attention_bias` has no effect on o_proj."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    qk_norms = qk_norm_fields(norm) if config.flag("qk_norm") else {}
    attention_table = attention(config, **attention_biases(config, QKV_BIASES), **qk_norms)
    stack_fields = sliding_stack(config, ["full"] * config.integer("num_hidden_layers"))
    return decoder(config, layer_table(attention_table, glu(config), norm), norm, stack=stack_fields)


def _read_refact(config: Config) -> Table:
    """Reads Refact: ALiBi, one head of keys and values, LayerNorm without biases, and an FFN of 8/3 of the width.

    The FFN's width is rounded up to a multiple of 256.
    """
    norm = layernorm(config.number("layer_norm_epsilon"), bias=False)
    ffn_width = -(-(8 * config.integer("hidden_size") // 3) // 256) * 256
    ffn = {"intermediate_size": ffn_width, "hidden_act": "silu", "gated": True}
    attention_table = attention(config, num_key_value_heads=1, position={"type": "alibi"})
    return decoder(config, layer_table(attention_table, ffn, norm), norm)


def _read_bluelm(config: Config) -> Table:
    """Reads BlueLM, with LayerNorm after its embedding unless `use_stable_embedding` is false."""
    model_fields = _read_llama(config)
    if config.flag("use_stable_embedding"):
        model_fields["decoder"]["embedding_norm"] = layernorm(config.number("rms_norm_eps"))
    return model_fields


def _read_talkie(config: Config) -> Table:
    """Reads Talkie: norms without weights, and an FFN whose width is 8/3 of the model's width, rounded to 128.

    It multiplies heads of queries, sublayers, the embedding that each layer adds again, and the head by learned gains.
    """
    norm, depth = rmsnorm(config.number("rms_norm_eps"), weight=False), config.integer("num_hidden_layers")
    gain_count = depth * (config.integer("num_attention_heads") + 3) + 1
    config.notes.append(
        "gains: the factors of heads and sublayers, and of the embedding that each layer adds, are not counted: "
        f"{gain_count:,} parameters"
    )
    ffn_width = max(1, round(8 / 3 * config.integer("hidden_size") / 128)) * 128
    attention_table = attention(config, **qk_norm_fields(norm, norm_order="after_rope"))
    ffn = {"intermediate_size": ffn_width, "hidden_act": "silu", "gated": True}
    return decoder(config, layer_table(attention_table, ffn, norm), norm, stack={"embedding_norm": norm})


def _read_plm(config: Config) -> Table:
    """Reads PLM: latent attention without query compression, and a non-gated FFN with squared ReLU."""
    config.require("q_lora_rank", None)
    ffn = mlp(config.integer("intermediate_size"), "relu2", bias=config.flag("mlp_bias"))
    config.fields_read.update(("num_key_value_heads", "hidden_act"))
    return llama_decoder(config, latent_attention(config), ffn=ffn)


def _read_lille(config: Config) -> Table:
    """Reads Lille 130M, whose FFN width is 8/3 of the model's width, rounded to 256."""
    norm = rmsnorm(config.number("layer_norm_eps"))
    ffn_width = max(1, round(8 * config.integer("hidden_size") // 3 / 256)) * 256
    block = layer_table(attention(config), {"intermediate_size": ffn_width, "hidden_act": "silu", "gated": True}, norm)
    return decoder(config, block, norm)


def _read_orion(config: Config) -> Table:
    """Reads Orion: LayerNorm with a bias, whose eps is in `rms_norm_eps`."""
    norm = layernorm(config.number("rms_norm_eps"))
    return decoder(config, layer_table(attention(config), glu(config), norm), norm)


def _read_telechat(config: Config) -> Table:
    """Reads TeleChat 1 and 2: only the projections back to the residual stream have a bias."""
    config.require("embed_layernorm", False)
    norm = rmsnorm(config.number("layer_norm_epsilon"))
    attention_table = attention(config, head_dim=None, **biases(True, "o_bias"))
    intermediate_size = config.integer("intermediate_size")
    ffn = {"intermediate_size": intermediate_size, "hidden_act": "silu", "gated": True, "down_bias": True}
    return decoder(config, layer_table(attention_table, ffn, norm), norm)


def _read_exaone(config: Config) -> Table:
    norm = rmsnorm(config.number("layer_norm_epsilon"))
    return decoder(config, layer_table(attention(config), glu(config), norm), norm)


def _read_step1(config: Config) -> Table:
    """Reads Step 1: ALiBi with square roots of the distances, and grouped keys and values."""
    attention_table = attention(config, position={"type": "alibi"}, **attention_biases(config))
    return llama_decoder(config, attention_table, config.flag("mlp_bias"))


def _read_plamo(config: Config) -> Table:
    """Reads PLaMo 1: `n_shared_head` query heads share a key and value head; a layer has a single norm."""
    norm, head_count = rmsnorm(config.number("rms_norm_eps")), config.integer("num_attention_heads")
    kv_head_count = config.quotient("n_shared_head", head_count, config.integer("n_shared_head"))
    config.fields_read.add("num_key_value_heads")
    attention_table = attention(config, num_key_value_heads=kv_head_count)
    block = layer_table(attention_table, glu(config), norm)
    return decoder(config, {**block, "parallel": "shared"}, norm)


def _read_cogvlm(config: Config) -> Table:
    """Reads CogVLM 1 and 2: Llama's layers for text tokens, and separate weights for image tokens.

    CogVLM 2, which states its heads of keys and values, has a bias in the projections of queries, keys and values of
    an image.
    """
    attention_table, norm = attention(config), rmsnorm(config.number("rms_norm_eps"))
    image_attention = {
        **attention_table,
        **biases(config.optional_integer("num_key_value_heads") is not None, *QKV_BIASES),
    }
    layer = layer_table(attention_table, glu(config), norm)
    image_weights = {"other_attention": image_attention, "other_feed_forward": glu(config)}
    config.notes.append(
        "tokens of an image use a second set of projections, whose products are not counted: passes are those of text"
    )
    return decoder(config, {"type": "paired", **layer, **image_weights}, norm)


COMMON_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "head_dim": None,
    "tie_word_embeddings": False,
}


FAMILIES = {
    "internlm": Family(
        _read_internlm,
        {**COMMON_DEFAULTS, "bias": True},
        frozenset({"rotary"}),
        source=f"{HUB}internlm/internlm-7b modeling_internlm.py",
    ),
    "internlm2": Family(
        _read_internlm, {**COMMON_DEFAULTS, "bias": True}, source=f"{HUB}internlm/internlm2-7b modeling_internlm2.py"
    ),
    "PanguEmbedded": Family(
        _read_internlm,
        {**COMMON_DEFAULTS, "bias": True},
        source="https://github.com/wujing215/OpenPangu7B-on-NVIDIA modeling_openpangu_dense.py",
    ),
    "baichuan": Family(
        _read_baichuan,
        COMMON_DEFAULTS,
        frozenset({"z_loss_weight"}),
        source=f"{HUB}baichuan-inc/Baichuan2-13B-Chat modeling_baichuan.py",
    ),
    "minicpm": Family(
        _read_minicpm,
        {**COMMON_DEFAULTS, "attention_bias": False, "tie_word_embeddings": True},
        frozenset({"scale_emb", "scale_depth", "dim_model_base", "mup_denominator"}),
        source=f"{HUB}openbmb/MiniCPM-2B-sft-bf16 modeling_minicpm.py",
    ),
    "teleflm": Family(
        _read_telechat3,
        {**COMMON_DEFAULTS, "attention_bias": False, "mlp_bias": False},
        frozenset({"input_mult", "output_mult", "mup_scale_factor", "use_mup"}),
        source=f"{VLLM}teleflm.py",
    ),
    "maincoder": Family(
        _read_maincoder, {**COMMON_DEFAULTS, "attention_bias": False}, source=f"{LLAMA_CPP}maincoder.cpp"
    ),
    "talkie": Family(
        _read_talkie,
        {
            "vocab_size": 65536,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": None,
            "hidden_size": 5120,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
        },
        frozenset({"intermediate_size"}),
        aliases={"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        source=f"{LLAMA_CPP}talkie.cpp",
    ),
    "instella": Family(
        _read_instella,
        {**COMMON_DEFAULTS, "rms_norm_eps": 1e-5, "attention_bias": False},
        modules={"self_attn_pre_norm": "pre_attention_layernorm", "mlp_pre_norm": "pre_feedforward_layernorm"},
        source=f"{GITHUB}AMD-AIG-AIMA/Instella/blob/main/hf_instella/modeling_instella.py",
    ),
    "zhinao": Family(_read_zhinao, COMMON_DEFAULTS, source=f"{GITHUB}Qihoo360/360zhinao/blob/main/vllm/zhinao_066.py"),
    "BlueLM": Family(
        _read_bluelm,
        {**COMMON_DEFAULTS, "use_stable_embedding": True},
        modules={"embed_norm": "embed_layer_norm"},
        source=f"{GITHUB}vivo-ai-lab/BlueLM/blob/main/example/vllm/vllm/model_executor/models/bluelm.py",
    ),
    "jiutian": Family(_read_jiutian, {**COMMON_DEFAULTS, "qkv_bias": True}, source=f"{CHATLLM}jiutian.cpp"),
    "wedlm": Family(
        _read_wedlm,
        {**COMMON_DEFAULTS, "attention_bias": True, "qk_norm": False, "sliding_window": None, "layer_types": None},
        frozenset({"mask_token_id", "max_window_layers", "use_sliding_window"}),
        source=f"{HUB}tencent/WeDLM-8B-Base modeling_wedlm.py",
    ),
    "gpt_refact": Family(
        _read_refact,
        {"layer_norm_epsilon": 1e-5, "head_dim": None, "tie_word_embeddings": False},
        field_names("""
            activation_function attention_bias_in_fp32 attention_softmax_in_fp32 attn_pdrop embd_pdrop multi_query
            n_inner resid_pdrop scale_attention_softmax_in_fp32 scale_attn_weights
            """),
        aliases=GPT2_NAMES,
        source=f"{LLAMA_CPP}refact.cpp",
    ),
    "index": Family(_read_llama, COMMON_DEFAULTS, frozenset({"norm_head", "rope_ratio"}), source=f"{CHATLLM}index.cpp"),
    "apriel": Family(
        _read_telechat3, {**COMMON_DEFAULTS, "attention_bias": False, "mlp_bias": False}, source=f"{CHATLLM}apriel.cpp"
    ),
    "kormo": Family(_read_llama, COMMON_DEFAULTS, frozenset({"mask_type"}), source=f"{LLAMA_CPP}qwen2.cpp"),
    "plm": Family(
        _read_plm,
        {**COMMON_DEFAULTS, **LATENT_DEFAULTS, "q_lora_rank": None, "attention_bias": False, "mlp_bias": False}
        | {"tie_word_embeddings": True},
        source=f"{LLAMA_CPP}plm.cpp",
    ),
    "lille-130m": Family(
        _read_lille,
        {**COMMON_DEFAULTS, "tie_word_embeddings": True},
        aliases={**GPT2_NAMES, "num_key_value_heads": "n_kv_heads", "max_position_embeddings": "block_size"},
        source=f"{MLX}lille-130m.py",
    ),
    "orion": Family(_read_orion, COMMON_DEFAULTS, source=f"{HUB}OrionStarAI/Orion-14B-Base modeling_orion.py"),
    "telechat": Family(
        _read_telechat,
        {**COMMON_DEFAULTS, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "embed_layernorm": False},
        frozenset({"apply_residual_connection_post_layernorm", "logn", "training_seqlen", "base_seqlen"}),
        aliases={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "ffn_hidden_size",
            "max_position_embeddings": "seq_length",
        },
        source=f"{VLLM}telechat2.py",
    ),
    "telechat3": Family(
        _read_telechat3, {**COMMON_DEFAULTS, "attention_bias": False, "mlp_bias": False}, source=f"{MLX}telechat3.py"
    ),
    "mobilellm": Family(
        _read_mobilellm,
        {**COMMON_DEFAULTS, "attention_bias": False, "layer_sharing": False, "tie_word_embeddings": False},
        frozenset({"mlp_bias"}),
        aliases={"tie_word_embeddings": "share_embedding"},
        source=f"{HUB}facebook/MobileLLM-125M modeling_mobilellm.py",
    ),
    "exaone": Family(
        _read_exaone,
        {**COMMON_DEFAULTS, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        aliases={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"},
        source=f"{HUB}LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct modeling_exaone.py",
    ),
    "step1": Family(
        _read_step1,
        {**COMMON_DEFAULTS, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
        aliases={"num_key_value_heads": "num_attention_groups"},
        source=f"{VLLM}step1.py",
    ),
    "solar": Family(
        _read_telechat3,
        {**COMMON_DEFAULTS, "attention_bias": False, "mlp_bias": False},
        frozenset({"bskcn_1", "bskcn_2", "bskcn_3", "bskcn_4", "bskcn_tv", "sliding_window"}),
        source=f"{SGLANG}solar.py",
    ),
    "cogvlm": Family(
        _read_cogvlm,
        {**COMMON_DEFAULTS, "rms_norm_eps": 1e-5},
        frozenset({"template_version"}),
        uncounted_fields={"vision_config": "its encoder is not counted"},
        aliases={"num_key_value_heads": "num_multi_query_heads"},
        source=f"{HUB}zai-org/cogvlm2-llama3-chat-19B modeling_cogvlm.py",
    ),
    "plamo": Family(
        _read_plamo, {**COMMON_DEFAULTS, "n_shared_head": 8}, frozenset({"rope_traditional"}), source=f"{MLX}plamo.py"
    ),
    "xverse": Family(
        _read_xverse,
        COMMON_DEFAULTS,
        frozenset({"norm_topk_prob"}),
        aliases={"num_experts_per_tok": "moe_top_k"},
        source=f"{HUB}xverse/XVERSE-7B modeling_xverse.py",
    ),
    "skywork": Family(_read_llama, COMMON_DEFAULTS, source=f"{HUB}Skywork/Skywork-13B-base modeling_skywork.py"),
    "aquila": Family(_read_llama, COMMON_DEFAULTS, source=f"{VLLM}aquila.py"),
    "Yi": Family(_read_llama, COMMON_DEFAULTS, source=f"{HUB}01-ai/Yi-34B modeling_yi.py"),
}
