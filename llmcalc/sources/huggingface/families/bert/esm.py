"""ESM protein language models: a pre-norm BERT with rotary or learned positions and a contact head.

transformers: models/esm. The structure prediction of `EsmForProteinFolding` is not supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Config
from ...dropout import BERT_DROPOUT
from ...family import Family
from ...parts import (
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    encoder,
    layer_table,
    layernorm,
    mlp,
    pooler,
    rope,
)
from .bert import OLD_FIELDS, bert_head, bert_score_head, padded_positions

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def esm_encoder(config: Config, ffn: Table, stack_fields: Table) -> Table:
    """Returns ESM's encoder with the feed-forward network `ffn`. stack_fields: more fields of the encoder's stack."""
    if class_name_of_config(config).endswith("ForProteinFolding"):
        raise config.error(
            "architectures", class_name_of_config(config), "EsmForMaskedLM or another class without protein folding"
        )
    config.require("is_decoder", False)
    norm, head_count = layernorm(config.number("layer_norm_eps")), config.integer("num_attention_heads")
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    attention_table: Table = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}
    block = layer_table(attention_table, ffn, norm)
    stack: Table = {"final_norm": norm, **stack_fields}
    model_fields: Table = {**pooler(config.head_kind == "none"), "contact_head": {}}
    position_type = config.get("position_embedding_type")
    if position_type == "absolute":
        stack["position"] = padded_positions(config)
    elif position_type == "rotary":
        attention_table["position"] = rope(config)
    config.require("emb_layer_norm_before", None, False, True)
    if config.get("emb_layer_norm_before"):
        stack["embedding_norm"] = norm
    return encoder(config, block, stack, bert_head(config, "gelu"), bert_score_head("tanh"), **model_fields)


IGNORED_FIELDS = OLD_FIELDS | {"esmfold_config", "hidden_act"}


def _position_embedding_type(model_values: ConfigValues) -> str:
    if model_values.first_stack.position is not None:
        return "absolute"
    return "rotary" if any(model_values.positions) else "none"


FAMILIES = {
    "esm": Family(
        lambda config: esm_encoder(config, mlp(config.integer("intermediate_size"), "gelu"), {}),
        ignored_fields=IGNORED_FIELDS,
        dropout_fields=BERT_DROPOUT,
        field_writers={
            "position_embedding_type": _position_embedding_type,
            "emb_layer_norm_before": lambda s: s.first_stack.embedding_norm is not None,
            "pad_token_id": lambda s: 1,  # that of its tokenizer; the class needs one in every forward pass
        },
    )
}
