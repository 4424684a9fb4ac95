"""Medusa and the MLP speculator: heads that read the last hidden state of a target model, without layers or a cache.

Sources: medusa/model/medusa_model.py of FasterDecoding/Medusa; fms_extras/models/speculator.py of
foundation-model-stack/fms-extras; medusa.py and mlp_speculator.py in vllm/model_executor/models and
vllm/transformers_utils/configs of vLLM.
"""

from __future__ import annotations

from .....errors import InputError
from ...config import Config
from ...family import Family, field_names
from ...parts import Table, decoder, layer_table, rmsnorm

HEAD_COUNT_FIELDS, LAYER_COUNT_FIELDS = ("num_heads", "medusa_num_heads"), ("num_hidden_layers", "medusa_num_layers")
"""Config fields of the numbers of heads and of residual layers per head: vLLM's names, then FasterDecoding's names."""


def _read_medusa(config: Config) -> Table:
    """Reads Medusa. In FasterDecoding's class, each head has a single residual layer, with a bias."""
    is_published_class = config.has("medusa_num_heads")
    if is_published_class and not (config.has("hidden_size") and config.has("vocab_size")):
        target_model = config.text("base_model_name_or_path")
        raise InputError(
            "hidden_size, vocab_size: missing, as in all configs of FasterDecoding's Medusa; expected both in the "
            f"file, as in the config of the target {target_model}"
        )
    head_fields = {
        "num_heads": config.integer(*HEAD_COUNT_FIELDS),
        "num_layers": config.integer(*LAYER_COUNT_FIELDS),
        "bias": is_published_class or config.flag("medusa_fc_bias"),
        "shared_projection": config.flag("original_lm_head"),
    }
    config.fields_read.update(("medusa_fc_bias", "base_model_name_or_path"))
    if is_published_class and head_fields["num_layers"] > 1:
        raise config.error(
            "medusa_num_layers", head_fields["num_layers"], "1, for more layers of a head have one weight"
        )
    vocab_size = config.integer("vocab_size")
    scored_vocab_size = config.count("truncated_vocab_size") or vocab_size  # 0 for the whole vocabulary in speculators
    head = {
        "medusa": head_fields,
        **({} if scored_vocab_size == vocab_size else {"draft_vocab_size": scored_vocab_size}),
    }
    return _model_of_heads(config, head)


def _read_mlp_speculator(config: Config) -> Table:
    """Reads the MLP speculator, whose stages are as wide as the target unless the config states a width."""
    head_fields: Table = {
        "num_heads": config.integer("n_predict"),
        "inner_size": config.count("inner_dim") or config.integer("hidden_size"),
        "tied": config.flag("tie_weights"),
    }
    if config.flag("scale_input"):
        head_fields["input_norm"] = rmsnorm(1e-6, weight=False)
    if head_fields["tied"] and head_fields["num_heads"] == 1:
        raise config.error("tie_weights", True, "false, for n_predict: 1 is one stage")
    return _model_of_heads(config, {"mlp_speculator": head_fields})


def _model_of_heads(config: Config, head_fields: Table) -> Table:
    """Returns a draft model of one empty layer, with prediction heads that read the target's last hidden state."""
    empty_part = {"type": "none"}
    stack_fields = {"num_hidden_layers": 1, "streams": {"type": "target_states", "start": "state", "states": 1}}
    block = layer_table(empty_part, empty_part, rmsnorm(1e-6))
    return decoder(config, block, None, head_fields, stack_fields, tie_word_embeddings=False)


FAMILIES = {
    "medusa": Family(
        _read_medusa,
        {
            "num_heads": 5,
            "num_hidden_layers": 1,
            "medusa_fc_bias": False,
            "original_lm_head": False,
            "truncated_vocab_size": 0,
            "base_model_name_or_path": "",
            "max_position_embeddings": None,
            "tie_word_embeddings": False,
        },
        field_names("""
            head_weight_decay logit_scale max_paths max_seq_len medusa_choices speculators_config
            speculators_model_type speculators_version topk
            """),
        aliases={"hidden_size": "medusa_hidden_size", "vocab_size": "medusa_vocab_size"},
        source="https://github.com/FasterDecoding/Medusa/blob/main/medusa/model/medusa_model.py",
    ),
    "mlp_speculator": Family(
        _read_mlp_speculator,
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "inner_dim": 0,
            "n_predict": 3,
            "tie_weights": False,
            "scale_input": False,
            "max_position_embeddings": None,
            "tie_word_embeddings": False,
        },
        field_names("n_candidates num_lookahead_tokens top_k_tokens_per_head"),
        aliases={"hidden_size": "emb_dim"},
        source="https://github.com/foundation-model-stack/fms-extras/blob/main/fms_extras/models/speculator.py",
    ),
}
