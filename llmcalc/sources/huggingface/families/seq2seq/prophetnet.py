"""ProphetNet: an encoder-decoder whose decoder predicts several next tokens, each in a separate stream.

Qi et al. 2020 (arXiv:2001.04063). transformers: models/prophetnet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...absent_value import require_present
from ...config import Config, is_json_integer
from ...dropout import BART_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks
from ...field_writers import FieldWriters
from ...parts import (
    ACTIVATIONS,
    IDLE_CROSS_ATTENTION_NOTE,
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    head_table,
    layer_table,
    layernorm,
    mlp,
)
from .bart import STACK_WRITERS

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

STACK_NAMES = ("encoder", "decoder")


def _read_prophetnet(config: Config) -> Table:
    is_tied, is_decoder = config.flag("tie_word_embeddings"), class_name_of_config(config).endswith("ForCausalLM")
    if not is_decoder:
        config.require_fields(is_encoder_decoder=True, add_cross_attention=True)
    config.fields_read.add("is_encoder_decoder")
    model_fields: Table = {
        **config.integer_fields("vocab_size", "hidden_size"),
        "tie_word_embeddings": is_tied,
        "head": head_table(config),
        **{stack_name: _post_norm_stack(config, stack_name) for stack_name in STACK_NAMES},
    }
    if not is_tied:
        model_fields["unused_embedding"] = {}
        model_fields["encoder"]["vocab_size"] = config.integer("vocab_size")
    if is_decoder:
        del model_fields["encoder"]
        if config.flag("add_cross_attention"):
            model_fields["decoder"]["block"]["idle_cross_attention"] = True
            config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
        else:
            del model_fields["decoder"]["block"]["cross_attention"]
    return model_fields


def _post_norm_stack(config: Config, stack_name: str) -> Table:
    """Returns the encoder's or the decoder's stack: post-norm layers with biases everywhere."""
    hidden_size, head_count = config.integer("hidden_size"), config.integer(f"num_{stack_name}_attention_heads")
    config.quotient(f"num_{stack_name}_attention_heads", hidden_size, head_count)
    attention: Table = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}
    activation = config.choice(ACTIVATIONS, "activation_function")
    block: Table = layer_table(attention, mlp(config.integer(f"{stack_name}_ffn_dim"), activation), layernorm(), "post")
    stack_fields: Table = {
        "num_hidden_layers": config.integer(f"num_{stack_name}_layers"),
        "block": block,
        "position": _learned_positions(config, 0 if stack_name == "encoder" else 1),
        "embedding_norm": layernorm(),
    }
    if stack_name == "decoder":
        ngram_length = config.integer("ngram")
        block["attention"] = {
            "type": "ngram",
            "num_attention_heads": head_count,
            "ngram": ngram_length,
            **config.integer_fields("num_buckets", "relative_max_distance"),
        }
        block["cross_attention"] = attention
        stack_fields["streams"] = {"type": "predict_streams", "ngram": ngram_length}
    return stack_fields


def _learned_positions(config: Config, extra_rows: int) -> Table:
    """Returns learned positions after the padding row. extra_rows: more rows, for the prediction streams."""
    position_rows, padding_id = config.integer("max_position_embeddings"), config.get("pad_token_id")
    if not is_json_integer(padding_id) or not 0 <= padding_id < min(64, position_rows - 2):
        raise config.error(
            "pad_token_id", padding_id, "the index of the padding token, below max_position_embeddings − 2"
        )
    position_offset = padding_id + 1 + extra_rows
    return {"type": "learned", "max_position_embeddings": position_rows - position_offset, "offset": position_offset}


def _decoder_positions(model_values: ConfigValues) -> Any:
    """Returns the decoder's learned positions."""
    return model_values.main_stack.position


FIELD_WRITERS: FieldWriters = {
    **{name: write for name, write in STACK_WRITERS.items() if name.endswith("ffn_dim")},
    "num_encoder_layers": lambda s: require_present(s.spec.encoder).num_hidden_layers,
    "num_decoder_layers": lambda s: require_present(s.spec.decoder).num_hidden_layers,
    "num_encoder_attention_heads": lambda s: require_present(s.spec.encoder).block.attention.num_attention_heads,
    "num_decoder_attention_heads": lambda s: s.main_stack.block.attention.num_attention_heads,
    "max_position_embeddings": lambda s: _decoder_positions(s).max_position_embeddings + _decoder_positions(s).offset,
    "pad_token_id": lambda s: _decoder_positions(s).offset - 2,
    "ngram": lambda s: require_present(s.main_stack.streams).ngram,
    "num_buckets": lambda s: s.main_stack.block.attention.num_buckets,
    "relative_max_distance": lambda s: s.main_stack.block.attention.relative_max_distance,
}


FAMILIES = {
    "prophetnet": Family(
        _read_prophetnet,
        aliases={"num_attention_heads": "num_encoder_attention_heads", "num_hidden_layers": "num_encoder_layers"},
        field_writers=FIELD_WRITERS,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BART_DROPOUT,
    )
}
