"""Encoders for embeddings whose class is code of the model's own repository.

Jina embeddings 2 (jina_bert), NeoBERT, Llama without a causal mask (llama_bidirec), and the first
names of GTE (new) and Jina embeddings 3 (xlm_roberta_flash).

Sources: the modeling files of the models' repositories, in `Family.code` of each model type.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import Family
from ...parts import (
    QKVO,
    Table,
    attention,
    biases,
    encoder,
    glu,
    layernorm,
    pooler,
    qk_norm,
    rmsnorm,
    scores_sequences,
    token_types,
)
from ..bert.bert import OLD, bert_act, bert_head
from ..llama import llama


def _jina_bert(config: Config) -> Table:
    """Reads Jina embeddings 2: BERT with ALiBi and a gated network, whose first map has no bias.

    Checkpoints whose `auto_map` names the code `qk-post-norm` normalize queries and keys.
    """
    config.must("position_embedding_type", "alibi")
    norm = layernorm(config.number("layer_norm_eps"))
    mixer: Table = {
        "num_attention_heads": config.size("num_attention_heads"),
        "position": {"type": "alibi"},
        **biases(True, *QKVO),
    }
    if "qk-post-norm" in str(config.data.get("auto_map", "")):
        mixer |= qk_norm(norm, "projection")
    network = {
        "intermediate_size": config.size("intermediate_size"),
        "hidden_act": config.choice({"geglu": "gelu", "reglu": "relu"}, "feed_forward_type"),
        "gated": True,
        "down_bias": True,
    }
    block = {"attention": mixer, "feed_forward": network, "norm": norm, "norm_placement": "post"}
    stack = {"embedding_norm": norm, **token_types(config.count("type_vocab_size"))}
    pools = config.head == "none" or scores_sequences(config)
    return encoder(config, block, stack, bert_head(config, bert_act(config)), {}, **pooler(pools))


def _neobert(config: Config) -> Table:
    """Reads NeoBERT: Llama's layers without a causal mask; the network is two thirds as wide as stated.

    Its width is the next multiple of 8.
    """
    norm, stated = rmsnorm(config.number("rms_norm_eps")), config.size("intermediate_size")
    width = -(-(2 * stated // 3) // 8) * 8
    config.must("hidden_act", "swiglu", "SwiGLU")
    network = {"intermediate_size": width, "hidden_act": "silu", "gated": True}
    block = {"attention": attention(config), "feed_forward": network, "norm": norm, "norm_placement": "pre"}
    score = {"transform": {"hidden_act": "tanh", "norm": None}}
    return encoder(config, block, {"final_norm": norm}, {"bias": True}, score)


def _llama_bidirec(config: Config) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    mixer = attention(config, **biases(config.flag("attention_bias"), *QKVO))
    network = glu(config, config.flag("mlp_bias"))
    block = {"attention": mixer, "feed_forward": network, "norm": norm, "norm_placement": "pre"}
    return encoder(config, block, {"final_norm": norm}, {}, {"bias": False})


GITHUB, HUB = "https://github.com/", "https://huggingface.co/"

FAMILIES = {
    "jina_bert": Family(
        _jina_bert,
        {
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
        OLD | {"attn_implementation", "emb_pooler", "model_max_length"},
        code=f"{HUB}jinaai/jina-bert-implementation modeling_bert.py",
        dropout=BERT_DROPOUT,
    ),
    "neobert": Family(
        _neobert,
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
        OLD
        | frozenset(
            """
            classifier_init_range decoder_init_range dim_head embedding_init_range kwargs ngpt rms_norm
            """.split()  # noqa: SIM905
        ),
        aliases={"rms_norm_eps": "norm_eps", "max_position_embeddings": "max_length"},
        code=f"{GITHUB}chandar-lab/NeoBERT/blob/main/src/neobert/model/model.py",
    ),
    "llama_bidirec": Family(
        _llama_bidirec,
        llama.FAMILIES["llama"].defaults,
        OLD | {"pooling", "mlp_bias"},
        code=f"{HUB}nvidia/llama-nemotron-embed-1b-v2 llama_bidirectional_model.py",
    ),
    "xlm_roberta_flash": Family(
        None,
        text="jina_embeddings_v3",
        ties="text",
        uncounted={"lora_rank": "the adapters of rank {} for its tasks are not counted"},
        ignored=frozenset(
            """
            emb_pooler load_trained_adapters lora_adaptations lora_alpha lora_dropout_p lora_main_params_trainable
            lora_rank matryoshka_dimensions position_embedding_type rotary_emb_base task_instructions truncate_dim
            use_reentrant
            """.split()  # noqa: SIM905
        ),
        code=f"{HUB}jinaai/xlm-roberta-flash-implementation modeling_xlm_roberta.py",
    ),
    "new": Family(
        None,
        text="gte",
        ties="text",
        ignored=frozenset(
            """
            layer_norm_type logn_attention_clip1 logn_attention_scale pack_qkv position_embedding_type unpad_inputs
            use_memory_efficient_attention
            """.split()  # noqa: SIM905
        ),
        code=f"{HUB}Alibaba-NLP/new-impl modeling.py",
    ),
}
