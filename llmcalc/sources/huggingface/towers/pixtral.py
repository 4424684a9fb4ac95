"""Vision encoders with RoPE (Mistral 3 and Large 4, LightOnOCR, Llama 4, LFM3-VL), and HunyuanOCR's vision encoder.

Pixtral (Agrawal 2024, arXiv:2410.07073). transformers: models/pixtral with models/mistral3, mistral_large4,
lighton_ocr; models/llama4, lfm3_vl, hunyuan_vl.
"""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, Table, glu, layer_pattern, layernorm, listed_kinds, qk_norm, rmsnorm
from .section import Section, biased, merged_side, projector, require_one_layer, side, two_layer_projector, vit


def pixtral(config: Config) -> Table:
    """Returns Pixtral's encoder: gated layers without biases, and a norm before them."""
    norm, width, heads = rmsnorm(1e-5), config.size("hidden_size"), config.size("num_attention_heads")
    mixer = {
        "num_attention_heads": heads,
        "head_dim": config.divided("num_attention_heads", width, heads),
        "position": {"type": "rope"},
    }
    block = {"attention": mixer, "feed_forward": glu(config), "norm": norm, "norm_placement": "pre"}
    return vit(config, block, stack={"embedding_norm": norm}, patches={"num_channels": config.size("num_channels")})


def _mistral3(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Mistral 3: square blocks of patches are merged to the width of one patch, then two linear layers."""
    require_one_layer(wrapper)
    maps = two_layer_projector(
        wrapper, config.size("hidden_size"), width, merge=wrapper.size("spatial_merge_size"), norm=rmsnorm(1e-5)
    )
    image = {"type": "longest_edge", "size": config.size("image_size"), "merge": wrapper.size("spatial_merge_size")}
    return {
        "vision_tower": {**pixtral(config), "image": image},
        "multi_modal_projector": {**maps, "maps": [{"size": config.size("hidden_size")}, *maps["maps"]]},
    }


def _lighton(wrapper: Config, config: Config, width: int) -> Table:
    """Reads LightOnOCR: like Mistral 3, without biases in its projector."""
    edge, h = wrapper.size("spatial_merge_size"), config.size("hidden_size")
    maps = ((h, False, "identity"), (width, False, "gelu"), (width, False, "identity"))
    return {
        "vision_encoder": pixtral(config),
        "vision_projection": projector(h, *maps, merge=edge, norm=rmsnorm(1e-6)),
    }


LLAMA4_TILES = 16
"""The most tiles of an image in the published processors of Llama 4."""


def _llama4_image(config: Config, merge: int) -> Table:
    """Returns Llama 4's rule for cutting an image into tiles."""
    tokens = max(side(config) ** 2 // merge**2, 1)
    return {"type": "canvas", "size": config.size("image_size"), "max_tiles": LLAMA4_TILES, "tokens": tokens}


def _llama4(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Llama 4: a class vector, norms before and after the layers, and a pixel shuffle before the adapter.

    The adapter has two linear layers.
    """
    ratio, adapter_width, out = (
        config.number("pixel_shuffle_ratio"),
        config.size("projector_input_dim"),
        config.size("projector_output_dim"),
    )
    merge = merged_side(ratio)
    if not merge:
        raise config.wrong("pixel_shuffle_ratio", ratio, "1 / a whole number")
    config.must("intermediate_size", config.size("hidden_size") * merge * merge)
    config.must("projector_input_dim", out)
    config.must("vision_output_dim", out)
    norm = layernorm(config.number("norm_eps"))
    tower = vit(
        config, biased(config, norm, position={"type": "rope"}), stack={"embedding_norm": norm, "final_norm": norm},
        patches={"num_channels": config.size("num_channels")}, positions={"rows": side(config) ** 2 + 1},
        class_embedding=True, image=_llama4_image(config, merge),
    )  # fmt: skip
    adapter = projector(config.size("hidden_size"), (adapter_width, False, "gelu"), (out, False, "gelu"), merge=merge)
    return {
        "vision_model": tower,
        "vision_adapter": adapter,
        "multi_modal_projector": projector(out, (width, False, "identity")),
    }


def _lfm3(wrapper: Config, config: Config, width: int) -> Table:
    """Reads LFM3-VL: gated convolutions over the grid of patches, and some attention layers."""
    norm, h, heads, kv = (
        rmsnorm(config.number("norm_eps")),
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        config.size("num_key_value_heads"),
    )
    config.divided("num_key_value_heads", heads, kv)
    mixer = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": config.divided("num_attention_heads", h, heads),
        "position": {"type": "rope"},
    }
    kernel = config.size("conv_kernel_size")
    if kernel % 2 == 0:
        raise config.wrong("conv_kernel_size", kernel, "an odd number")
    mixers: Table = {
        "conv": {"type": "short_conv", "conv_L_cache": kernel, "grid": True},
        "full": {"type": "attention", **mixer, **qk_norm(norm)},
    }
    default = ["conv" if i < 2 or i % 2 else "full" for i in range(config.size("num_hidden_layers"))]
    names = listed_kinds(config, "layer_types", {"conv": "conv", "full_attention": "full"}, default)
    network = {"intermediate_size": config.size("intermediate_size"), "hidden_act": "silu", "gated": True}
    block = {"attention": mixers[names[0]], "feed_forward": network, "norm": norm, "norm_placement": "pre"}
    kinds = {name: {"attention": mixers[name]} for name in dict.fromkeys(names)}
    layers: Table = {"variants": kinds, **layer_pattern(names)} if len(kinds) > 1 else {}
    patches = {"num_channels": config.size("in_channels"), "temporal_patch_size": config.size("temporal_patch_size")}
    tower = vit(config, block, stack={"embedding_norm": norm, **layers}, patches=patches)
    bias, act = wrapper.flag("projector_bias"), wrapper.choice(ACTIVATIONS, "projector_hidden_act")
    maps = ((wrapper.size("projector_hidden_size"), bias, act), (width, bias, "identity"))
    return {
        "vision_tower": tower,
        "multi_modal_projector": projector(h, *maps, merge=config.size("spatial_merge_size"), norm=layernorm(1e-6)),
    }


def _hunyuan(wrapper: Config, config: Config, width: int) -> Table:
    """Reads HunyuanOCR: a position embedding, and a merger that is four times as wide as the encoder.

    Vectors mark the ends of lines and of images.
    """
    norm, rms, h = (
        layernorm(config.number("rms_norm_eps")),
        rmsnorm(config.number("rms_norm_eps")),
        config.size("hidden_size"),
    )
    rows = (config.size("max_image_size") // config.size("patch_size")) ** 2 + 1
    patches = {"num_channels": config.size("num_channels"), "bias": True}
    tower = vit(config, biased(config, norm), patches=patches, positions={"rows": rows})
    act = config.choice(ACTIVATIONS, "hidden_act")
    merger = projector(
        h, (2 * h, True, act), (4 * h, True, "identity"), merge=config.size("spatial_merge_size"), norm=rms
    )
    mark_projector = projector(4 * h, (width, True, "identity"), input_marks=1, output_marks=3, out_norm=rms)
    return {"vision_tower": tower, "vision_merger": merger, "vision_projector": mark_projector}


PIXTRAL: Table = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}

WRAPPERS = {
    "mistral3": {
        "vision_config": Section(
            _mistral3,
            {"pixtral": PIXTRAL},
            {
                "projector_hidden_act": "gelu",
                "vision_feature_layer": -1,
                "multimodal_projector_bias": False,
                "spatial_merge_size": 2,
            },
            {"patch_size": 14, "image_size": 1540},
        )
    },
    "mistral_large4": {
        "vision_config": Section(
            _mistral3,
            {"pixtral": PIXTRAL},
            {
                "projector_hidden_act": "gelu",
                "vision_feature_layer": -1,
                "multimodal_projector_bias": False,
                "spatial_merge_size": 2,
            },
            {
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_hidden_layers": 30,
                "num_attention_heads": 16,
                "patch_size": 14,
                "image_size": 1540,
                "hidden_act": "silu",
            },
        )
    },
    "lighton_ocr": {
        "vision_config": Section(
            _lighton,
            {"pixtral": PIXTRAL},
            {"spatial_merge_size": 2},
            {"patch_size": 14, "image_size": 1540, "hidden_act": "silu"},
        )
    },
    "llama4": {
        "vision_config": Section(
            _llama4,
            {
                "llama4_vision_model": {
                    "hidden_size": 768,
                    "hidden_act": "gelu",
                    "num_hidden_layers": 34,
                    "num_attention_heads": 16,
                    "num_channels": 3,
                    "intermediate_size": 5632,
                    "vision_output_dim": 7680,
                    "image_size": 448,
                    "patch_size": 14,
                    "norm_eps": 1e-5,
                    "pixel_shuffle_ratio": 0.5,
                    "projector_input_dim": 4096,
                    "projector_output_dim": 4096,
                }
            },
        )
    },
    "lfm3_vl": {
        "vision_config": Section(
            _lfm3,
            {
                "lfm3_vl_vision": {
                    "hidden_size": 1024,
                    "intermediate_size": 2560,
                    "in_channels": 3,
                    "patch_size": 16,
                    "spatial_merge_size": 2,
                    "temporal_patch_size": 2,
                    "num_hidden_layers": 14,
                    "num_attention_heads": 16,
                    "num_key_value_heads": 8,
                    "layer_types": None,
                    "conv_kernel_size": 3,
                    "norm_eps": 1e-5,
                }
            },
            {"projector_hidden_act": "gelu", "projector_hidden_size": 4096, "projector_bias": True},
        )
    },
    "hunyuan_vl": {
        "vision_config": Section(
            _hunyuan,
            {
                "hunyuan_vl_vision": {
                    "hidden_act": "gelu",
                    "hidden_size": 1152,
                    "intermediate_size": 4304,
                    "rms_norm_eps": 1e-5,
                    "num_attention_heads": 16,
                    "num_channels": 3,
                    "num_hidden_layers": 27,
                    "patch_size": 16,
                    "spatial_merge_size": 2,
                    "max_image_size": 2048,
                }
            },
            ignored=frozenset(
                """
                add_patchemb_bias anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views cat_extra_token
                hidden_size_text img_max_token_num interpolate_mode max_vit_seq_len min_image_size num_key_value_heads
                out_hidden_size remove_prenorm resize_resolution temporal_patch_size text_hidden_size
                video_max_image_size video_min_image_size
                """.split()  # noqa: SIM905
            ),
        )
    },
}
