"""Text encoders of CLIP and SigLIP, as pipelines of images have them: clip_text_model, siglip_text_model.

Radford et al. 2021 (arXiv:2103.00020), Zhai et al. 2023 (arXiv:2303.15343). transformers: models/clip, models/siglip.
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY, Family, Quirks
from ...parts import QKVO, Table, architecture, biases, decoder, layer_table, layernorm, learned_positions
from ..gpt.gpt import full_width_heads, non_gated_ffn

MODULES = {
    "embed_tokens": "embeddings.token_embedding",
    "embed_positions": "embeddings.position_embedding",
    "layers": "encoder.layers",
    "norm": "final_layer_norm",
    "self_attn_pre_norm": "layer_norm1",
    "mlp_pre_norm": "layer_norm2",
    "o_proj": "out_proj",
    "up_proj": "fc1",
    "down_proj": "fc2",
}


def _read_text_encoder(config: Config) -> Table:
    """Reads pre-norm layers with biases and learned positions, whose last norm is followed by no output head."""
    norm = layernorm(config.number("layer_norm_eps"))
    mixer = full_width_heads(config, **biases(True, *QKVO))
    block = layer_table(mixer, non_gated_ffn(config, "intermediate_size", "hidden_act"), norm)
    config.head = "none"
    return decoder(config, block, norm, stack={"position": learned_positions(config)})


def _read_clip_text(config: Config) -> Table:
    """Reads CLIP's text encoder, whose attention is causal; `WithProjection` projects the vector of the last token."""
    projects_vector = architecture(config).endswith("WithProjection")
    model_fields = _read_text_encoder(config)
    if projects_vector:
        model_fields["head"] = {
            "type": "classification",
            "num_labels": config.integer("projection_dim"),
            "bias": False,
        }
    return model_fields


def _read_siglip_text(config: Config) -> Table:
    """Reads SigLIP's text encoder, whose attention is bidirectional and whose last token is projected."""
    model_fields = _read_text_encoder(config)
    vector_size = config.optional_integer("projection_size") or config.integer("hidden_size")
    model_fields["head"] = {"type": "classification", "num_labels": vector_size}
    model_fields["encoder"] = model_fields.pop("decoder")
    return model_fields


FAMILIES = {
    "clip_text_model": Family(
        _read_clip_text,
        {"tie_word_embeddings": True},
        ignored_fields=frozenset({"dropout", "initializer_factor", "projection_dim"}),
        modules={**MODULES, "classifier.out_proj": ".text_projection"},
        quirks=Quirks(makes_mask=EVERY),
    ),
    "siglip_text_model": Family(
        _read_siglip_text,
        {"tie_word_embeddings": True},
        modules={**MODULES, "classifier.out_proj": ".head"},
        quirks=Quirks(makes_mask=EVERY),
    ),
}
