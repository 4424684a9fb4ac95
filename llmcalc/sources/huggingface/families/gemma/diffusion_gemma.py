"""DiffusionGemma: Gemma 4's layers with experts, which read a prompt causally and denoise the tokens after it.

One set of weights is the encoder, a causal pass that caches the prompt, and the decoder, whose tokens also attend to
each other and start from what the previous step predicted. transformers: models/diffusion_gemma.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, module_names
from ...head_kinds import architecture_of
from ...parts import Table, decoder, glu, moe, rmsnorm, stack_of_layers
from .gemma import LOCAL_THETA_WRITERS, local_theta
from .gemma4 import gemma4_attention, head_sizes

DENOISING_NOTE = (
    "denoising: a pass is counted as one step over its tokens; the further steps, and the product of the previous "
    "step's probabilities with the embedding, are not counted"
)


def _read_diffusion_gemma_text(config: Config) -> Table:
    norm, layer_kinds, token_mixer = gemma4_attention(config)
    config.require("use_bidirectional_attention", None, "vision")
    position_encoding = {"type": "rope", "rope_theta": local_theta(config), "partial_rotary_factor": None}
    window_fields: Table = {"sliding_window": config.integer("sliding_window"), "position": position_encoding}
    dense_ffn = glu(config, activation_field="hidden_activation")
    experts = moe(
        config.integer("num_experts"),
        config.integer("top_k_experts"),
        glu(config, ffn_width=config.integer("moe_intermediate_size"), activation_field="hidden_activation"),
        router={"norm": rmsnorm(norm["eps"]), "expert_scale": True},
    )
    block: Table = {
        "type": "gemma4",
        "attention": token_mixer,
        "feed_forward": experts,
        "dense": dense_ffn,
        "norm": norm,
    }
    layers = [
        (
            layer_kind,
            {"attention": {**head_fields, **({"attention_k_eq_v": True} if layer_kind == "full" else window_fields)}},
        )
        for layer_kind, head_fields in zip(layer_kinds, _head_sizes(config, layer_kinds), strict=True)
    ]
    stack_fields = stack_of_layers(layers)
    if "Encoder" not in architecture_of(config.config_fields):
        config.require("tie_word_embeddings", True)  # otherwise its class has all weights twice
        config.require("attention_bias", False)  # its class ties weights, and no biases
        config.notes.append(DENOISING_NOTE)
        stack_fields["streams"] = {"type": "self_conditioning", "feed_forward": dense_ffn, "norm": norm}
    return decoder(config, block, norm, stack=stack_fields)


def _head_sizes(config: Config, layer_kinds: list[str]) -> list[Table]:
    """Returns each layer's head sizes that differ from the common head sizes."""
    head_count = config.optional_integer("num_global_key_value_heads")
    full_head_dim = config.integer("global_head_dim") if config.has("global_head_dim") else 512
    return head_sizes(
        config,
        layer_kinds,
        {"head_dim": full_head_dim, **({} if head_count is None else {"num_key_value_heads": head_count})},
    )


FAMILIES = {
    "diffusion_gemma_text": Family(
        _read_diffusion_gemma_text,
        {"num_global_key_value_heads": None},
        frozenset({"final_logit_softcapping", "hidden_act", "cache_implementation", "global_head_dim"}),
        field_writers=LOCAL_THETA_WRITERS,
        has_text_class=False,
    ),
    "diffusion_gemma": Family(
        None,
        text_type="diffusion_gemma_text",
        modules=module_names("gemma4_tower"),
        tower_file="gemma",
        uncounted_classes=("DecoderModel",),
    ),
}
