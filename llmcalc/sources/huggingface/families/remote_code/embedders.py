"""Encoders whose class is code in the model's own repository.

Jina embeddings 2 (jina_bert), MosaicBERT and DNABERT-2 (mosaic_bert), Nucleotide Transformer 2, NeoBERT, nomic's
experts, Llama and Mistral without a causal mask (llama_bidirec, bidir_mistral of NV-Embed), the first names of GTE
(new) and Jina embeddings 3 (xlm_roberta_flash), and BAAI's reranker of Gemma 2's layers (cost_wise_gemma).

Sources: the modeling files of the models' repositories, in `Family.source` of each model type.
"""

from __future__ import annotations

from ...class_defaults import class_defaults, class_fields
from ...code_addresses import GITHUB, HUB
from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import GPT2_NAMES, Family, field_names
from ...parts import (
    QKVO_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    encoder,
    glu,
    layer_table,
    layernorm,
    moe,
    pooler,
    qk_norm_fields,
    rmsnorm,
    rope,
    scores_of_layers,
    scores_sequences,
    stack_of_combined_kinds,
    token_types,
)
from ..bert.bert import OLD_FIELDS, bert_activation, bert_head, padded_positions
from ..bert.esm import IGNORED_FIELDS as ESM_IGNORED_FIELDS
from ..bert.esm import esm_encoder
from ..gemma.gemma import read_gemma2


def _read_cost_wise_gemma(config: Config) -> Table:
    """Reads BAAI's lightweight reranker: Gemma 2 with a score per layer (`layer_wise`) or with Gemma's output head."""
    model_fields = read_gemma2(config)
    layer_step = config.integer("layer_sep")
    if config.flag("layer_wise"):
        model_fields["head"] = scores_of_layers(config, model_fields["head"], layer_step)
    return model_fields


def _read_jina_bert(config: Config) -> Table:
    """Reads Jina embeddings 2: BERT with ALiBi and a gated network, whose first linear layer has no bias.

    Checkpoints whose `auto_map` names the code `qk-post-norm` normalize queries and keys.
    """
    config.require("position_embedding_type", "alibi")
    norm = layernorm(config.number("layer_norm_eps"))
    auto_map = config.config_fields.get("auto_map", "")
    mixer_fields = qk_norm_fields(norm, "projection") if "qk-post-norm" in str(auto_map) else {}
    activation = config.choice({"geglu": "gelu", "reglu": "relu"}, "feed_forward_type")
    return _gated_alibi_encoder(config, norm, mixer_fields, activation)


def _read_mosaic_bert(config: Config) -> Table:
    """Reads MosaicBERT and DNABERT-2: layers of Jina embeddings 2 with GELU."""
    return _gated_alibi_encoder(config, layernorm(config.number("layer_norm_eps")), {}, "gelu")


def _gated_alibi_encoder(config: Config, norm: Table, mixer_fields: Table, activation: str) -> Table:
    """Returns BERT with ALiBi and a gated network. mixer_fields: additional fields of the attention."""
    attention_table: Table = {
        "num_attention_heads": config.integer("num_attention_heads"),
        "position": {"type": "alibi"},
        **biases(True, *QKVO_BIASES),
        **mixer_fields,
    }
    intermediate_size = config.integer("intermediate_size")
    ffn = {"intermediate_size": intermediate_size, "hidden_act": activation, "gated": True, "down_bias": True}
    block = layer_table(attention_table, ffn, norm, "post")
    stack_fields = {"embedding_norm": norm, **token_types(config.count("type_vocab_size"))}
    has_pooler = config.head_kind == "none" or scores_sequences(config)
    return encoder(config, block, stack_fields, bert_head(config, bert_activation(config)), {}, **pooler(has_pooler))


def _read_nucleotide_transformer_v2(config: Config) -> Table:
    """Reads Nucleotide Transformer 2: ESM with SwiGLU; the class has a position table even with rotary positions."""
    bias_fields = biases(config.flag("add_bias_fnn"), "gate_bias", "up_bias", "down_bias")
    ffn = {"intermediate_size": config.integer("intermediate_size"), "hidden_act": "silu", "gated": True, **bias_fields}
    return esm_encoder(config, ffn, {"position": padded_positions(config)})


def _read_neobert(config: Config) -> Table:
    """Reads NeoBERT: Llama's layers without a causal mask, and an FFN with two thirds of the stated width.

    Its width is the next multiple of 8.
    """
    norm, stated_width = rmsnorm(config.number("rms_norm_eps")), config.integer("intermediate_size")
    ffn_width = -(-(2 * stated_width // 3) // 8) * 8
    config.require("hidden_act", "swiglu", "SwiGLU")
    ffn = {"intermediate_size": ffn_width, "hidden_act": "silu", "gated": True}
    block = layer_table(attention(config), ffn, norm)
    score_head = {"transform": {"hidden_act": "tanh", "norm": None}}
    return encoder(config, block, {"final_norm": norm}, {"bias": True}, score_head)


def _read_nomic_bert_moe(config: Config) -> Table:
    """Reads nomic-embed-text-v2: BERT with rotary positions, and experts in every `moe_every_n_layers`-th layer."""
    config.require("activation_function", "gelu")
    for field_name in ("prenorm", "causal", "parallel_block", "use_rms_norm", "expert_choice_router"):
        config.require(field_name, None, False)
    for field_name in ("num_shared_experts", "moe_impl"):
        config.require(field_name, None, 0, "megablocks")
    norm, depth = layernorm(config.number("layer_norm_epsilon")), config.integer("num_hidden_layers")
    ffn_width, expert_period = config.integer("intermediate_size"), config.integer("moe_every_n_layers")
    attention_table = {
        "num_attention_heads": config.integer("num_attention_heads"),
        "position": rope(config, theta_name="rotary_emb_base", fraction_name="rotary_emb_fraction"),
        **biases(config.flag("qkv_proj_bias"), *QKVO_BIASES),
    }
    dense_ffn = {
        "type": "mlp",
        "intermediate_size": ffn_width,
        "hidden_act": "gelu",
        **biases(config.flag("mlp_fc1_bias"), "up_bias"),
        **biases(config.flag("mlp_fc2_bias"), "down_bias"),
    }
    num_experts = config.integer("num_experts")
    moe_top_k = config.integer("moe_top_k")
    experts = moe(num_experts, moe_top_k, {"intermediate_size": ffn_width, "hidden_act": "gelu"}, output_bias=True)
    layer_kinds = ["moe" if layer_index % expert_period == 1 else "dense" for layer_index in range(depth)]
    block = layer_table(attention_table, dense_ffn, norm, "post")
    stack_fields = stack_of_combined_kinds((layer_kinds, {"dense": {}, "moe": {"feed_forward": experts}}))
    stack = {**stack_fields, "embedding_norm": norm, **token_types(config.count("type_vocab_size"))}
    return encoder(config, block, stack, bert_head(config, "gelu", norm), {})


def _read_llama_bidirec(config: Config) -> Table:
    bias_fields = attention_biases(config)
    return _without_mask(config, attention(config, **bias_fields), glu(config, config.flag("mlp_bias")))


def _read_bidir_mistral(config: Config) -> Table:
    """Reads NV-Embed's text model, with attention to learned latents if the wrapper's config has latents."""
    model_fields = _without_mask(config, attention(config), glu(config))
    if config.has("num_latents"):
        hidden_size = config.integer("hidden_size")
        for width_field in ("latent_dim", "latent_source_dim"):
            config.require(width_field, hidden_size)
        attention_table = {
            "num_attention_heads": config.integer("latent_heads"),
            "head_dim": config.integer("latent_head_dim"),
        }
        ffn_biases = biases(True, "gate_bias", "up_bias", "down_bias")
        latent_network = {"intermediate_size": 4 * hidden_size, "hidden_act": "gelu", "gated": True, **ffn_biases}
        latent_block = {"attention": attention_table, "norm": layernorm(), "feed_forward": latent_network}
        num_latents = config.integer("num_latents")
        model_fields["head"] = {"type": "latents", "num_latents": num_latents, "reading": latent_block}
    return model_fields


def _without_mask(config: Config, token_mixer: Table, ffn: Table) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(token_mixer, ffn, norm)
    return encoder(config, block, {"final_norm": norm}, {}, {"bias": False})


FAMILIES = {
    "jina_bert": Family(
        _read_jina_bert,
        {
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "vocab_size": 30528,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "max_position_embeddings": 8192,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "position_embedding_type": "alibi",
            "feed_forward_type": "geglu",
            "tie_word_embeddings": True,
        },
        OLD_FIELDS | {"emb_pooler", "model_max_length"},
        source=f"{HUB}jinaai/jina-bert-implementation modeling_bert.py",
        dropout_fields=BERT_DROPOUT,
    ),
    "mosaic_bert": Family(
        _read_mosaic_bert,
        class_defaults("bert"),
        OLD_FIELDS | class_fields("bert") | {"alibi_starting_size"},
        source=f"{GITHUB}mosaicml/examples/blob/main/examples/benchmarks/bert/src/bert_layers.py",
        dropout_fields=BERT_DROPOUT,
    ),
    "nucleotide_transformer_v2": Family(
        _read_nucleotide_transformer_v2,
        class_defaults("esm"),
        ESM_IGNORED_FIELDS | class_fields("esm"),
        source=f"{HUB}InstaDeepAI/nucleotide-transformer-v2-500m-multi-species modeling_esm.py",
        dropout_fields=BERT_DROPOUT,
    ),
    "neobert": Family(
        _read_neobert,
        {
            "vocab_size": 30522,
            "hidden_size": 768,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": None,
            "head_dim": None,
            "intermediate_size": 3072,
            "hidden_act": "SwiGLU",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        OLD_FIELDS
        | field_names("classifier_init_range decoder_init_range dim_head embedding_init_range kwargs ngpt rms_norm"),
        aliases={"rms_norm_eps": "norm_eps", "max_position_embeddings": "max_length"},
        source=f"{GITHUB}chandar-lab/NeoBERT/blob/main/src/neobert/model/model.py",
    ),
    "nomic_bert_moe": Family(
        _read_nomic_bert_moe,
        {
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "activation_function": "gelu",
            "layer_norm_epsilon": 1e-5,
            "moe_every_n_layers": 2,
            "num_experts": 8,
            "moe_top_k": 2,
            "num_shared_experts": 0,
            "moe_impl": "megablocks",
            "qkv_proj_bias": True,
            "mlp_fc1_bias": True,
            "mlp_fc2_bias": True,
            "prenorm": False,
            "causal": False,
            "parallel_block": False,
            "use_rms_norm": None,
            "expert_choice_router": False,
            "type_vocab_size": 1,
            "tie_word_embeddings": True,
        },
        OLD_FIELDS
        | field_names("""
            dense_seq_output ffn_div fused_bias_fc fused_dropout_add_ln max_trained_positions
            moe_normalize_expert_weights moe_resid_pdrop pad_vocab_to_multiple_of parallel_block_tied_norm
            reorder_and_upcast_attn rotary_emb_interleaved rotary_emb_scale_base rotary_scaling_factor
            summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj use_xentropy
            """),
        aliases={**GPT2_NAMES, "intermediate_size": "n_inner"},
        source=f"{HUB}nomic-ai/nomic-bert-2048 modeling_hf_nomic_bert.py",
        dropout_fields=BERT_DROPOUT,
    ),
    "cost_wise_gemma": Family(
        _read_cost_wise_gemma,
        {**class_defaults("gemma2"), "start_layer": 28, "layer_sep": 28, "layer_wise": False},
        class_fields("gemma2") | {"start_layer"},
        source=f"{GITHUB}FlagOpen/FlagEmbedding/blob/master/FlagEmbedding/inference/reranker/decoder_only/models/"
        "gemma_model.py",
    ),
    "llama_bidirec": Family(
        _read_llama_bidirec,
        class_defaults("llama"),
        OLD_FIELDS | {"pooling", "mlp_bias"},
        source=f"{HUB}nvidia/llama-nemotron-embed-1b-v2 llama_bidirectional_model.py",
    ),
    "bidir_mistral": Family(
        _read_bidir_mistral,
        class_defaults("mistral"),
        OLD_FIELDS | {"sliding_window"},
        source=f"{HUB}nvidia/NV-Embed-v2 modeling_nvembed.py",
    ),
    "nvembed": Family(
        None,
        text_type="bidir_mistral",
        tying_source="text",
        text_fields_from_sections={
            "num_latents": ("latent_attention_config", "num_latents_value", 512),
            "latent_heads": ("latent_attention_config", "num_cross_heads", 8),
            "latent_head_dim": ("latent_attention_config", "cross_dim_head", 4096),
            "latent_dim": ("latent_attention_config", "latent_dim", 4096),
            "latent_source_dim": ("latent_attention_config", "hidden_dim", 4096),
        },
        ignored_fields=frozenset({"latent_attention_config"}),
        source=f"{HUB}nvidia/NV-Embed-v2 modeling_nvembed.py",
    ),
    "xlm_roberta_flash": Family(
        None,
        text_type="jina_embeddings_v3",
        tying_source="text",
        uncounted_fields={"lora_rank": "the adapters of rank {} for its tasks are not counted"},
        ignored_fields=field_names("""
            emb_pooler load_trained_adapters lora_adaptations lora_alpha lora_dropout_p lora_main_params_trainable
            lora_rank matryoshka_dimensions position_embedding_type rotary_emb_base task_instructions truncate_dim
            use_reentrant
            """),
        source=f"{HUB}jinaai/xlm-roberta-flash-implementation modeling_xlm_roberta.py",
    ),
    "new": Family(
        None,
        text_type="gte",
        tying_source="text",
        ignored_fields=field_names("""
            layer_norm_type logn_attention_clip1 logn_attention_scale pack_qkv position_embedding_type unpad_inputs
            use_memory_efficient_attention
            """),
        source=f"{HUB}Alibaba-NLP/new-impl modeling.py",
    ),
}
