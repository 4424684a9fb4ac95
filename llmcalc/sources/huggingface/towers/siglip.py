"""SigLIP (Zhai 2023, arXiv:2303.15343) and CLIP (Radford 2021, arXiv:2103.00020) with a text model.

transformers: models/siglip, siglip2 and clip, in models/gemma3, shieldgemma2, paligemma, aya_vision, cohere2_vision,
    lfm2_vl, t5gemma2, video_llama_3.
"""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, Table, layernorm, rmsnorm
from .section import Section, biased, projector, side, vit

GEMMA3_MARKS = 4
"""The tokens that Gemma 3's processor writes around an image: line ends, the start and the end of the image."""

AYA_TILES = 12
"""The most tiles of an image in the published processors of Aya Vision and Command A Vision."""


def siglip(config: Config) -> Table:
    """Returns SigLIP's encoder: a position embedding for the patches of an image, and an optional pooling head."""
    return _siglip(config, side(config) ** 2, config.flag("vision_use_head"))


def siglip2(config: Config) -> Table:
    """Returns SigLIP 2's encoder: a position embedding for a number of patches, in images of any shape."""
    return _siglip(config, config.size("num_patches"), config.flag("vision_use_head"))


def siglip_without_head(config: Config) -> Table:
    """Returns SigLIP's encoder without the head, as in Idefics 3 and SmolVLM."""
    return _siglip(config, side(config) ** 2, False)


def _siglip(config: Config, rows: int, has_pooling: bool) -> Table:
    norm = layernorm(config.number("layer_norm_eps"))
    block = biased(config, norm)
    head = {"attention": block["attention"], "feed_forward": block["feed_forward"], "norm": norm}
    fields: Table = {"pooling": head} if has_pooling else {}
    return vit(
        config,
        block,
        stack={"final_norm": norm},
        patches={"num_channels": config.size("num_channels"), "bias": True},
        positions={"rows": rows},
        **fields,
    )


def _video_llama(wrapper: Config, config: Config, width: int) -> Table:
    """Reads VideoLLaMA 3: SigLIP with RoPE instead of a position embedding, and two linear layers."""
    norm = layernorm(config.number("layer_norm_eps"))
    tower = vit(
        config,
        biased(config, norm, position={"type": "rope"}),
        stack={"final_norm": norm},
        patches={"num_channels": config.size("num_channels"), "bias": True},
    )
    maps = ((width, True, "gelu"), (width, True, "identity"))
    return {"vision_model": tower, "projector": projector(config.size("hidden_size"), *maps)}


def clip(config: Config) -> Table:
    """Returns CLIP's encoder: a class vector, a norm before and after the layers."""
    norm = layernorm(config.number("layer_norm_eps"))
    return vit(
        config,
        biased(config, norm),
        stack={"embedding_norm": norm, "final_norm": norm},
        patches={"num_channels": config.size("num_channels")},
        positions={"rows": side(config) ** 2 + 1},
        class_embedding=True,
    )


def _gemma3(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Gemma 3: SigLIP, and the average of each square block of patches."""
    tokens = int(wrapper.size("mm_tokens_per_image") ** 0.5)
    if side(config) < tokens:
        raise wrapper.wrong(
            "mm_tokens_per_image", tokens * tokens, f"at most {side(config) ** 2}, the patches of an image"
        )
    norm = rmsnorm(config.number("layer_norm_eps"))
    maps = projector(
        config.size("hidden_size"), (width, False, "identity"), merge=side(config) // tokens, merged="mean", norm=norm
    )
    image = {"type": "fixed", "size": config.size("image_size"), "tokens": tokens * tokens, "marks": GEMMA3_MARKS}
    return {"vision_tower": {**siglip(config), "image": image}, "multi_modal_projector": maps}


def _t5gemma2(wrapper: Config, config: Config, width: int) -> Table:
    """Reads T5Gemma 2: like Gemma 3, with a learned vector at the end of an image.

    Encoder and decoder share the vector if their embeddings are tied.
    """
    towers = _gemma3(wrapper, config, width)
    towers["vision_tower"].pop("image")
    towers["multi_modal_projector"]["output_marks"] = 1 if wrapper.flag("tie_word_embeddings") else 2
    return towers


def _paligemma(wrapper: Config, config: Config, width: int) -> Table:
    """Reads PaliGemma: SigLIP and one linear layer."""
    return {
        "vision_tower": {
            **siglip(config),
            "image": {"type": "fixed", "size": config.size("image_size"), "tokens": side(config) ** 2},
        },
        "multi_modal_projector": projector(
            config.size("hidden_size"), (wrapper.size("projection_dim"), True, "identity")
        ),
    }


def _gated(wrapper: Config, config: Config, width: int, gated_width: int, **fields: object) -> Table:
    """Returns a gated projection of concatenated square blocks of patches."""
    maps = [{"size": gated_width, "bias": True, "hidden_act": "silu", "gated": True}, {"size": width, "bias": True}]
    return {**projector(config.size("hidden_size"), merge=wrapper.size("downsample_factor"), **fields), "maps": maps}


def _aya_tiles(wrapper: Config, config: Config) -> Table:
    """Returns Aya Vision's rule for cutting an image into tiles, with a mark before each tile and two around all."""
    merge = wrapper.size("downsample_factor")
    tokens = max((side(config) // merge) ** 2, 1)
    image_size = config.size("image_size")
    return {"type": "tiles", "size": image_size, "max_tiles": AYA_TILES, "tokens": tokens, "tile_marks": 1, "marks": 2}


def _aya(wrapper: Config, config: Config, width: int) -> Table:
    gated_width = wrapper.size("alignment_intermediate_size") if wrapper.has("alignment_intermediate_size") else width
    norm = layernorm(wrapper.number("adapter_layer_norm_eps"))
    return {
        "vision_tower": {**siglip(config), "image": _aya_tiles(wrapper, config)},
        "multi_modal_projector": _gated(wrapper, config, width, gated_width, norm=norm, norm_of="merged"),
    }


def _cohere2(wrapper: Config, config: Config, width: int) -> Table:
    return {
        "vision_tower": siglip(config),
        "multi_modal_projector": _gated(wrapper, config, width, wrapper.size("alignment_intermediate_size")),
    }


def _lfm2(wrapper: Config, config: Config, width: int) -> Table:
    """Reads LFM2-VL: concatenated square blocks of patches, a norm, and two linear layers."""
    bias, act = wrapper.flag("projector_bias"), wrapper.choice(ACTIVATIONS, "projector_hidden_act")
    norm_fields: Table = {"norm": layernorm(), "norm_of": "merged"} if wrapper.flag("projector_use_layernorm") else {}
    maps = ((wrapper.size("projector_hidden_size"), bias, act), (width, bias, "identity"))
    return {
        "vision_tower": siglip2(config),
        "multi_modal_projector": projector(
            config.size("hidden_size"), *maps, merge=wrapper.size("downsample_factor"), **norm_fields
        ),
    }


COMMON: Table = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}
SIGLIP: Table = {**COMMON, "image_size": 224}
SIGLIP2: Table = {**COMMON, "num_patches": 256}
CLIP: Table = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}

ONLY_SIGLIP = {"siglip_vision_model": SIGLIP}
SO400M: Table = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "num_attention_heads": 16,
    "vision_use_head": False,
}
"""The encoder that several classes build if their config describes none."""

WRAPPERS = {
    "gemma3": {"vision_config": Section(_gemma3, ONLY_SIGLIP, {"mm_tokens_per_image": 256})},
    "t5gemma2": {
        "vision_config": Section(_t5gemma2, ONLY_SIGLIP, {"mm_tokens_per_image": 256, "tie_word_embeddings": True})
    },
    "shieldgemma2": {"vision_config": Section(_gemma3, ONLY_SIGLIP, {"mm_tokens_per_image": 256})},
    "paligemma": {
        "vision_config": Section(
            _paligemma,
            ONLY_SIGLIP,
            {"projection_dim": 2048},
            {**SO400M, "intermediate_size": 4096, "image_size": 224, "num_hidden_layers": 27},
        )
    },
    "aya_vision": {
        "vision_config": Section(
            _aya,
            ONLY_SIGLIP,
            {"downsample_factor": 2, "adapter_layer_norm_eps": 1e-6},
            {**SO400M, "image_size": 384, "num_hidden_layers": 26, "num_attention_heads": 14},
        )
    },
    "cohere2_vision": {
        "vision_config": Section(
            _cohere2,
            ONLY_SIGLIP,
            {"downsample_factor": 2, "alignment_intermediate_size": 36864},
            {
                "hidden_size": 1152,
                "intermediate_size": 3072,
                "image_size": 512,
                "num_hidden_layers": 27,
                "num_attention_heads": 12,
            },
        )
    },
    "video_llama_3": {
        "vision_config": Section(
            _video_llama,
            {"video_llama_3_vision": {k: v for k, v in COMMON.items() if k != "vision_use_head"}},
            ignored=frozenset({"rope_parameters"}),
        )
    },
    "lfm2_vl": {
        "vision_config": Section(
            _lfm2,
            {"siglip2_vision_model": SIGLIP2},
            {
                "projector_hidden_act": "gelu",
                "projector_hidden_size": 2560,
                "projector_bias": True,
                "projector_use_layernorm": True,
                "downsample_factor": 2,
            },
        )
    },
}
