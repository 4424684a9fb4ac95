"""Encoder-decoders of the fairseq library: BART and its successors.

bart, mbart, m2m_100 (NLLB), marian, pegasus, blenderbot, blenderbot-small, plbart, mvp, fsmt.

They differ in positions (learned, or sinusoidal with or without a table in the checkpoint), in the placement of norms
in a layer and in the norms around a stack.
transformers: models/bart, models/mbart, models/m2m_100, models/marian, models/pegasus, models/blenderbot,
    models/blenderbot_small, models/plbart, models/mvp, models/fsmt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from .....components.networks.moe import MoE
from ...absent_value import require_present
from ...config import Config, is_json_integer
from ...dropout import BART_DROPOUT
from ...family import EVERY_CLASS, LAST_TOKEN_QUIRKS, Family, Quirks, field_names, module_names
from ...field_writers import NO_PADDING_WRITER, FieldWriters
from ...parts import (
    ACTIVATIONS,
    IDLE_CROSS_ATTENTION_NOTE,
    QKVO_BIASES,
    Table,
    biases,
    block_sparse_note,
    class_name_of_config,
    decoder,
    head_table,
    layernorm,
    mlp,
)
from ..multimodal.multimodal import SAM_MODULES

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

StackSide = Literal["encoder", "decoder"]


def _read_bart(config: Config) -> Table:
    return bart_model(config, "post", has_embedding_norm=True, position_encoding=learned_positions(config, 2))


def _read_mvp(config: Config) -> Table:
    """Reads MVP without its learned prompts."""
    config.require("use_prompt", False)
    return _read_bart(config)


def _read_mbart(config: Config) -> Table:
    return bart_model(config, "pre", has_embedding_norm=True, position_encoding=learned_positions(config, 2))


def _read_marian(config: Config) -> Table:
    """Reads Marian, whose sinusoidal positions are a frozen table in the checkpoint."""
    decoder_vocab_size = config.optional_integer("decoder_vocab_size") or config.integer("vocab_size")
    shares_embeddings = config.flag("share_encoder_decoder_embeddings")
    model_fields = bart_model(config, "post", position_encoding=learned_positions(config))
    if decoder_vocab_size == config.integer("vocab_size") and (shares_embeddings or "encoder" not in model_fields):
        return model_fields
    if "encoder" not in model_fields:
        vocab_size = config.integer("vocab_size")
        raise config.error(
            "decoder_vocab_size", decoder_vocab_size, f"vocab_size ({vocab_size}), the size of the decoder's head"
        )
    if shares_embeddings:
        raise config.error(
            "decoder_vocab_size",
            decoder_vocab_size,
            f"vocab_size ({config.integer('vocab_size')}), since encoder and decoder share an embedding",
        )
    model_fields.pop("unused_embedding", None)
    encoder = {**model_fields["encoder"], "vocab_size": config.integer("vocab_size")}
    return {**model_fields, "vocab_size": decoder_vocab_size, "encoder": encoder}


def _read_pegasus(config: Config) -> Table:
    return bart_model(config, "pre", position_encoding=learned_positions(config))


def _read_bigbird_pegasus(config: Config) -> Table:
    """Reads BigBird-Pegasus, whose encoder attends to all tokens, or to token blocks in long sequences."""
    block_sparse_note(config)
    model_fields = bart_model(config, "pre", position_encoding=learned_positions(config), bias=config.flag("use_bias"))
    if class_name_of_config(config).endswith("ForCausalLM"):  # the class of the decoder alone ties nothing
        model_fields["tie_word_embeddings"] = False
    return model_fields


def _read_pp_formulanet_text(config: Config) -> Table:
    """Reads PP-FormulaNet's decoder: mBART's layers, whose cross-attention to an image does not run on text alone."""
    norm, layer = layernorm(), bart_block(config, "decoder", "pre")
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    num_hidden_layers = config.integer("decoder_layers")
    stack_fields = {
        "num_hidden_layers": num_hidden_layers,
        "position": learned_positions(config, 2),
        "embedding_norm": norm,
    }
    config.fields_read.update(("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"))
    return decoder(config, {**layer, "idle_cross_attention": True}, norm, stack=stack_fields)


def _read_blenderbot_small(config: Config) -> Table:
    return bart_model(config, "post", has_embedding_norm=True, position_encoding=learned_positions(config))


def _read_fsmt(config: Config) -> Table:
    """Reads FSMT: a vocabulary per language and frozen sinusoidal positions; even its bare class has a head."""
    source_vocab_size, padding_id = config.integer("src_vocab_size"), config.get("pad_token_id")
    if not is_json_integer(padding_id) or not 0 <= padding_id < min(64, source_vocab_size):
        raise config.error("pad_token_id", padding_id, "the index of the padding token, below src_vocab_size and 64")
    if class_name_of_config(config).endswith("ForCausalLM"):
        raise config.error("architectures", class_name_of_config(config), "FSMTForConditionalGeneration")
    model_fields = bart_model(config, "post", position_encoding=learned_positions(config, padding_id + 1))
    if "encoder" not in model_fields:
        architectures = config.config_fields.get("architectures")
        raise config.error(
            "architectures", architectures, "a class of both stacks: FSMT has none for its decoder alone"
        )
    if not model_fields["tie_word_embeddings"]:
        model_fields.pop("unused_embedding")
        model_fields["encoder"]["vocab_size"] = source_vocab_size
    elif source_vocab_size != config.integer("vocab_size"):
        vocab_size = config.integer("vocab_size")
        raise config.error(
            "src_vocab_size", source_vocab_size, f"tgt_vocab_size ({vocab_size}), with which it shares an embedding"
        )
    return {**model_fields, "head": {"type": "lm"}}


def bart_model(
    config: Config,
    norm_placement: Literal["pre", "post"],
    position_encoding: Table,
    has_embedding_norm: bool = False,
    bias: bool = True,
    **fields_by_stack: Table,
) -> Table:
    """Returns the encoder's and the decoder's stack, with biases everywhere. Pre-norm stacks end in a norm.

    bias: whether the projections of attention have biases.
    fields_by_stack: further fields of `encoder` or `decoder`.
    Without tying each stack has its own embedding, and the classes also keep the shared one. The decoder alone
    (`BartForCausalLM`) keeps its cross-attention, which runs only after an encoder of another model (Donut).
    """
    class_name = class_name_of_config(config)
    is_decoder_only = class_name_of_config(config).endswith("ForCausalLM")
    is_tied = config.flag("tie_word_embeddings")
    if class_name.endswith(("ForTokenClassification", "EncoderModel", "ForAudioClassification")):
        raise config.error(
            "architectures", class_name, f"an encoder-decoder of {config.model_type}, or its decoder (ForCausalLM)"
        )
    if not is_decoder_only:
        config.require("is_encoder_decoder", True)
    config.fields_read.add("is_encoder_decoder")
    model_fields: Table = {**config.integer_fields("vocab_size", "hidden_size"), "tie_word_embeddings": is_tied}
    if position_encoding["type"] == "sinusoidal":
        model_fields["max_position_embeddings"] = config.integer("max_position_embeddings")
    stack_fields: Table = {"position": position_encoding}
    if has_embedding_norm:
        stack_fields["embedding_norm"] = layernorm()
    if norm_placement == "pre":
        stack_fields["final_norm"] = layernorm()
    for stack_name in ("encoder", "decoder"):
        depth = config.integer("num_hidden_layers") if stack_name == "encoder" else config.integer("decoder_layers")
        model_fields[stack_name] = {
            "num_hidden_layers": depth,
            "block": bart_block(config, stack_name, norm_placement, bias),
            **stack_fields,
            **fields_by_stack.get(stack_name, {}),
        }
    if is_decoder_only:
        del model_fields["encoder"]
        model_fields["decoder"]["block"] |= {"idle_cross_attention": True}
        config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    elif not is_tied and "stem" not in model_fields["encoder"]:
        model_fields["encoder"]["vocab_size"] = config.integer("vocab_size")
        model_fields["unused_embedding"] = {}
    score_head: Table = {"transform": {"hidden_act": "tanh", "norm": None}}
    return {**model_fields, "head": head_table(config, None, score_head)}


def bart_block(config: Config, stack_side: StackSide, norm_placement: str, bias: bool = True) -> Table:
    head_count = (
        config.integer("num_attention_heads") if stack_side == "encoder" else config.integer("decoder_attention_heads")
    )
    config.quotient(f"{stack_side}_attention_heads", config.integer("hidden_size"), head_count)
    attention = {"num_attention_heads": head_count, **biases(bias, *QKVO_BIASES)}
    block_fields = {"attention": attention, "norm": layernorm(), "norm_placement": norm_placement}
    ffn_width = config.integer(f"{stack_side}_ffn_dim")
    block_fields["feed_forward"] = mlp(ffn_width, config.choice(ACTIVATIONS, "activation_function"))
    return {**block_fields, "cross_attention": attention} if stack_side == "decoder" else block_fields


def learned_positions(config: Config, offset: int = 0) -> Table:
    return {"type": "learned", "max_position_embeddings": config.integer("max_position_embeddings"), "offset": offset}


ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
IGNORED_FIELDS = field_names("""
    add_bias_logits add_final_layer_norm classif_dropout encoder_layerdrop extra_pos_embeddings
    force_bos_token_to_be_generated normalize_before normalize_embedding save_step scale_embedding
    static_position_embeddings layernorm_variant do_blenderbot_90_layernorm replicate_parameters extra_layer_norm
    variant
    """)


def _field_of_stack(model_values: ConfigValues, stack_name: str, field_name: str) -> Any:
    block = require_present(getattr(model_values.spec, stack_name)).block
    return getattr(block, field_name)


def _ffn_width_of_stack(model_values: ConfigValues, stack_name: str) -> int:
    ffn = _field_of_stack(model_values, stack_name, "feed_forward")
    ffn_width: int = ffn.expert.intermediate_size if isinstance(ffn, MoE) else ffn.intermediate_size
    return ffn_width


STACK_WRITERS: FieldWriters = {
    "decoder_layers": lambda s: require_present(s.spec.decoder).num_hidden_layers,
    "encoder_ffn_dim": lambda s: _ffn_width_of_stack(s, "encoder"),
    "decoder_ffn_dim": lambda s: _ffn_width_of_stack(s, "decoder"),
    "decoder_attention_heads": lambda s: _field_of_stack(s, "decoder", "attention").num_attention_heads,
}


BART = Family(
    _read_bart,
    ignored_fields=IGNORED_FIELDS,
    aliases=ALIASES,
    field_writers=STACK_WRITERS,
    quirks=LAST_TOKEN_QUIRKS,
    modules=module_names("bart"),
    dropout_fields=BART_DROPOUT,
)
"""The `Family` record that most of BART's successors share."""

FAMILIES = {
    "bart": replace(BART, defaults={"num_labels": 3}),
    "mvp": replace(BART, read_model=_read_mvp),
    "mbart": replace(BART, read_model=_read_mbart),
    "m2m_100": replace(
        BART, read_model=lambda config: bart_model(config, "pre", position_encoding={"type": "sinusoidal"})
    ),
    "marian": replace(
        BART,
        read_model=_read_marian,
        field_writers={
            **STACK_WRITERS,
            "share_encoder_decoder_embeddings": lambda s: (
                s.first_stack.vocab_size is None or s.spec.unused_embedding is not None
            ),
            "vocab_size": lambda s: s.first_stack.vocab_size or s.spec.vocab_size,
            "decoder_vocab_size": lambda s: s.spec.vocab_size,
            **NO_PADDING_WRITER,
        },
    ),
    "fsmt": replace(
        BART,
        read_model=_read_fsmt,
        ignored_fields=IGNORED_FIELDS | {"decoder"},
        aliases={**ALIASES, "vocab_size": "tgt_vocab_size"},
        field_writers={},
        modules={**module_names("bart"), "lm_head": "decoder.output_projection"},
    ),
    "pegasus": replace(BART, read_model=_read_pegasus),
    "blenderbot": replace(BART, read_model=_read_pegasus),
    "blenderbot-small": replace(BART, read_model=_read_blenderbot_small),
    "bigbird_pegasus": replace(
        BART,
        read_model=_read_bigbird_pegasus,
        field_writers={**STACK_WRITERS, "attention_type": lambda _: "original_full"},
        quirks=Quirks(value_reading_classes=EVERY_CLASS, counted_field_values={"attention_type": "original_full"}),
        modules=module_names("bigbird_pegasus"),
    ),
    "pp_formulanet": Family(
        None,
        text_type="pp_formulanet_text",
        tying_source="never",
        tower_file="sam",
        modules={
            **SAM_MODULES,
            **dict.fromkeys(("towers.vision_tower", "towers.multi_modal_projector"), "encoder"),
            **{f"towers.halving_{i}": f"multi_modal_projector.conv{i}" for i in (1, 2)},
            **{f"towers.multi_modal_projector.map_{i}": f"multi_modal_projector.linear_{i}" for i in (1, 2)},
        },
    ),
    "pp_formulanet_text": replace(BART, read_model=_read_pp_formulanet_text, field_writers={}),
    "plbart": BART,
}
