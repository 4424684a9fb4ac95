"""SeamlessM4T 1 and 2: translation of speech and text. Only text to text is counted, an encoder-decoder like NLLB.

Barrault et al. 2023 (arXiv:2308.11596, arXiv:2312.05187). The class of the whole model also holds a speech encoder, a
model from text to units of speech, and a vocoder, which a pass over tokens does not run.
transformers: models/seamless_m4t, models/seamless_m4t_v2.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names, module_names
from ...parts import ACTIVATIONS, QKVO_BIASES, Table, biases, class_name_of_config, head_table, layernorm, mlp

OTHER_PARTS = {
    "speech_encoder_layers": "the speech encoder",
    "t2u_encoder_layers": "the model from text to units of speech",
    "upsample_rates": "the vocoder",
}
"""Config field of a part of SeamlessM4T outside text-to-text translation → the name of the part."""


def _read_seamless(config: Config) -> Table:
    """Reads the text-to-text model, which the class of the whole model runs on tokens."""
    class_name = class_name_of_config(config)
    if class_name and not class_name.endswith(("Model", "ForTextToText")):
        raise config.error("architectures", class_name, "a class with a text encoder and a text decoder")
    if not class_name.endswith("ForTextToText"):
        config.notes += [f"{field_name}: {part_title} is not counted" for field_name, part_title in OTHER_PARTS.items()]
    is_tied, position_encoding, norm = config.flag("tie_word_embeddings"), {"type": "sinusoidal"}, layernorm()
    model_fields: Table = {
        **config.integer_fields("vocab_size", "hidden_size"),
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "head": head_table(config),
    }
    for stack_name in ("encoder", "decoder"):
        head_count = config.integer(f"{stack_name}_attention_heads")
        config.quotient(f"{stack_name}_attention_heads", model_fields["hidden_size"], head_count)
        attention_table = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}
        feed_forward = mlp(config.integer(f"{stack_name}_ffn_dim"), config.choice(ACTIVATIONS, "activation_function"))
        block = {
            "attention": attention_table,
            **({"cross_attention": attention_table} if stack_name == "decoder" else {}),
            "feed_forward": feed_forward,
            "norm": norm,
            "norm_placement": "pre",
        }
        depth = config.integer(f"{stack_name}_layers")
        model_fields[stack_name] = {
            "num_hidden_layers": depth,
            "position": position_encoding,
            "block": block,
            "final_norm": norm,
        }
    if not is_tied:
        model_fields["encoder"]["vocab_size"] = model_fields["vocab_size"]
        model_fields["unused_embedding"] = {}
    return model_fields


IGNORED_FIELDS = field_names("""
    char_vocab_size left_max_position_embeddings max_source_positions num_conv_pos_embedding_groups
    num_conv_pos_embeddings resblock_dilation_sizes right_max_position_embeddings rotary_embedding_base
    speech_encoder_chunk_size speech_encoder_left_chunk_num t2u_decoder_start_token_id t2u_max_new_tokens
    t2u_variance_pred_dropout t2u_variance_predictor_embed_dim t2u_variance_predictor_hidden_dim
    t2u_variance_predictor_kernel_size use_text_encoder use_text_decoder
    """)
"""Fields of the speech encoder, of the model from text to units and of the vocoder, and those that change no count."""

DROPOUT_FIELDS = {
    "embedding": "dropout",
    "attention": "attention_dropout",
    "attention_output": "dropout",
    "activation": "activation_dropout",
    "feed_forward": "activation_dropout",
}


SEAMLESS = Family(
    _read_seamless,
    ignored_fields=IGNORED_FIELDS,
    generates_text=True,
    uncounted_modules="speech_encoder + t2u_model + vocoder",
    modules=module_names("seamless"),
    dropout_fields=DROPOUT_FIELDS,
)


FAMILIES = {"seamless_m4t": SEAMLESS, "seamless_m4t_v2": SEAMLESS}
