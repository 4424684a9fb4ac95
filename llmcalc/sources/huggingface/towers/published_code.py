"""Vision encoders of wrappers whose class is repository code: InternViT, MoonViT, EVA-CLIP and others.

InternViT (Chen 2023, arXiv:2312.14238), MoonViT (Kimi-VL: 2025, arXiv:2504.07491), DeepSeek-VL2 (Wu 2024,
arXiv:2412.10302), EVA-CLIP (Sun 2023, arXiv:2303.15389) in GLM-4V, SigLIP in Eagle 2.5, Isaac, Keye-VL and
MiniCPM-V, CLIP in Phi-3-vision, OpenCLIP in Qwen-VL, and DeepSeek-V4.1's encoder.

Sources: vllm/model_executor/models/intern_vit.py, internvl.py, nvlm_d.py, h2ovl.py, skyworkr1v.py, interns1_vit.py,
interns1.py, moonvit.py, kimi_vl.py, deepseek_vl2.py, eagle2_5_vl.py, isaac.py, dots_ocr.py, keye.py, keye_vl1_5.py,
glm4v.py, minicpmv.py, qwen_vl.py, phi3v.py and layers/resampler.py of vllm-project/vllm at v0.19.0, and
models/deepseek_v41/common/vision.py at v0.33.0.
"""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, QKV, Table, biases, glu, layernorm, mlp, qk_norm, rmsnorm
from .llava import INTERNVL, internvl
from .section import Section, biased, merged_side, projector, side, vit
from .siglip import CLIP, SIGLIP, SO400M, clip, siglip, siglip2

DUMMY_HEADS = 7
"""Heads that NVLM's copy of InternViT has beside those of its config; their weights are zeros."""


def _internvit(config: Config, dummy_heads: int = 0) -> Table:
    """Returns InternViT: a class vector, and scaled sublayer outputs. dummy_heads: additional heads."""
    norm = config.choice(
        {
            "layer_norm": layernorm(config.number("layer_norm_eps")),
            "rms_norm": rmsnorm(config.number("layer_norm_eps")),
        },
        "norm_type",
    )
    h, heads = config.size("hidden_size"), config.size("num_attention_heads")
    normed = qk_norm(rmsnorm(config.number("layer_norm_eps")), "projection") if config.flag("qk_normalization") else {}
    block = {
        "attention": {
            "num_attention_heads": heads + dummy_heads,
            "head_dim": config.divided("num_attention_heads", h, heads),
            **biases(config.flag("qkv_bias"), *QKV),
            "o_bias": True,
            **normed,
        },
        "feed_forward": mlp(config.size("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act")),
        "norm": norm,
        "norm_placement": "pre",
        "residual_scale": "output",
    }
    return vit(
        config,
        block,
        patches={"num_channels": config.size("num_channels"), "bias": True},
        positions={"rows": side(config) ** 2 + 1},
        class_embedding=True,
    )


def _merged_patches_side(wrapper: Config) -> int:
    """Returns the side of the merged squares of patches. Raises `InputError` for an unsupported ratio."""
    ratio = wrapper.number("downsample_ratio")
    merge = merged_side(ratio)
    if not merge:
        raise wrapper.wrong("downsample_ratio", ratio, "1 / a whole number")
    return merge


def _merged_maps(wrapper: Config, encoder_width: int, width: int) -> Table:
    """Returns InternVL's projector: a norm on merged patches, and two linear layers."""
    maps = ((width, True, "gelu"), (width, True, "identity"))
    return projector(encoder_width, *maps, merge=_merged_patches_side(wrapper), norm=layernorm(), norm_of="merged")


def _internvl_chat(wrapper: Config, config: Config, width: int) -> Table:
    """Reads InternVL's repository code: up to `max_dynamic_patch` tiles, with two marks around an image."""
    wrapper.must("select_layer", -1)
    tokens = max(side(config) ** 2 // _merged_patches_side(wrapper) ** 2, 1)
    image = {"type": "tiles", "size": config.size("image_size"), "max_tiles": wrapper.size("max_dynamic_patch")}
    return {
        "vision_model": {**_internvit(config), "image": {**image, "tokens": tokens, "marks": 2}},
        "vision_projector": _merged_maps(wrapper, config.size("hidden_size"), width),
    }


def _internvit_chat(wrapper: Config, config: Config, width: int) -> Table:
    """Reads a class with InternVL's encoder and projector, without a rule for its processor."""
    return {
        "vision_model": _internvit(config),
        "vision_projector": _merged_maps(wrapper, config.size("hidden_size"), width),
    }


def _nvlm(wrapper: Config, config: Config, width: int) -> Table:
    """Reads NVLM: its projector is as wide as the text model's feed-forward network, without biases."""
    text = wrapper.table("llm_config")
    ffn_width = Config(text, {}, "llm_config", where="llm_config.").size("intermediate_size")
    maps = ((ffn_width, False, "gelu"), (width, False, "identity"))
    merging_projector = projector(
        config.size("hidden_size"), *maps, merge=_merged_patches_side(wrapper), norm=layernorm(), norm_of="merged"
    )
    return {"vision_model": _internvit(config, DUMMY_HEADS), "vision_projector": merging_projector}


def _eagle(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Eagle 2.5: SigLIP with InternVL's projector."""
    return {
        "vision_model": siglip(config),
        "vision_projector": _merged_maps(wrapper, config.size("hidden_size"), width),
    }


def _kimi_vl(wrapper: Config, config: Config, width: int) -> Table:
    """Reads MoonViT: a position embedding of rows by columns, and RoPE."""
    kernel = config.get("merge_kernel_size")
    if not isinstance(kernel, list | tuple) or len(kernel) != 2 or kernel[0] != kernel[1] or type(kernel[0]) is not int:
        raise config.wrong("merge_kernel_size", kernel, "two equal numbers")
    if kernel[0] < 1:
        raise config.wrong("merge_kernel_size", kernel, "two positive numbers")
    norm, edge, h = layernorm(1e-5), kernel[0], config.size("hidden_size")
    rows = config.size("init_pos_emb_height") * config.size("init_pos_emb_width")
    network = mlp(config.size("intermediate_size"), "gelu_tanh")
    tower = vit(
        config,
        biased(config, norm, network=network, position={"type": "rope"}),
        stack={"final_norm": norm},
        patches={"bias": True},
        positions={"rows": rows},
    )
    maps = ((h * edge * edge, True, "gelu"), (width, True, "identity"))
    return {"vision_tower": tower, "multi_modal_projector": projector(h, *maps, merge=edge, norm=norm)}


def _kimi_k3(wrapper: Config, config: Config, width: int) -> Table:
    """Reads MoonViT-V2 of Kimi K3: RMSNorm, heads wider than the encoder, and no biases."""
    expected = {
        "merge_kernel_size": [2, 2],
        "merge_type": "sd2_tpool",
        "mlp_type": "mlp2",
        "norm_type": "rmsnorm",
        "mm_projector_type": "patchmergerv2",
        "pos_emb_type": "divided_fixed",
    }
    for name, value in expected.items():
        if config.get(name) is not None:
            config.must(name, value)
    config.must("text_hidden_size", width)
    norm, h, heads = rmsnorm(2**-7), config.size("hidden_size"), config.size("num_attention_heads")
    linear_bias, attention_bias = config.flag("linear_bias"), config.flag("attn_bias")
    block = {
        "attention": {
            "num_attention_heads": heads,
            "head_dim": config.divided("num_attention_heads", config.size("qkv_hidden_size"), heads),
            "position": {"type": "rope"},
            **biases(attention_bias, *QKV, "o_bias"),
        },
        "feed_forward": mlp(config.size("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"), linear_bias),
        "norm": norm,
        "norm_placement": "pre",
    }
    tower = vit(
        config,
        block,
        stack={"final_norm": norm},
        patches={"bias": config.flag("patch_embed_proj_bias")},
        positions={"rows": config.size("init_pos_emb_height") * config.size("init_pos_emb_width")},
    )
    merged_width = 4 * (config.maybe("mm_hidden_size") or h)
    act = config.choice(ACTIVATIONS, "projector_hidden_act")
    maps = ((merged_width, False, act), (width, False, "identity"))
    out_norm = rmsnorm(config.number("projector_ln_eps"))
    return {"vision_tower": tower, "mm_projector": projector(h, *maps, merge=2, out_norm=out_norm)}


def _deepseek_vl2(wrapper: Config, config: Config, width: int) -> Table:
    """Reads DeepSeek-VL2: SigLIP under timm's names with a pooling head, and vectors for row ends and views."""
    wrapper.must("tile_tag", "2D")
    config.must("class_token", False)
    config.must("global_pool", "map")
    h, heads = config.size("width"), config.size("heads")
    ratio = config.number("mlp_ratio")
    if not 0 < ratio <= 100:
        raise config.wrong("mlp_ratio", ratio, "a number between 0 and 100")
    norm = layernorm(1e-6)
    timm = Config({**config.data, "hidden_size": h}, config.defaults, config.model_type, where=config.where)
    block = biased(timm, norm, heads="heads", network=mlp(int(h * ratio), "gelu"))
    config.divided("heads", h, heads)
    tower = vit(
        timm,
        block,
        depth="layers",
        stack={"final_norm": norm},
        patches={"bias": True},
        positions={"rows": side(config) ** 2},
        pooling={"attention": block["attention"], "feed_forward": block["feed_forward"], "norm": norm},
    )
    config.fields_read |= timm.fields_read
    fields = Config(wrapper.table("projector_config"), MLP_PROJECTOR, "mlp_projector", where="projector_config.")
    fields.must("projector_type", "downsample_mlp_gelu")
    fields.must("token_pooling", False)
    fields.must("n_embed", width)
    fields.must("input_dim", h)
    inner_width = width * fields.size("mlp_ratio")
    maps = [(inner_width, True, "gelu")] * (fields.size("depth") - 1) + [(width, True, "identity")]
    if not 2 <= len(maps) <= 10:
        raise fields.wrong("depth", fields.get("depth"), "2 to 10")
    return {
        "vision": tower,
        "projector": projector(h, *maps, merge=fields.size("downsample_ratio"), output_marks=2),
    }


def _isaac(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Isaac: SigLIP 2 without its head, merged patches, and two linear layers without biases."""
    changed_config = Config(
        {**config.data, "vision_use_head": False}, config.defaults, config.model_type, where=config.where
    )
    h, merge = config.size("hidden_size"), config.size("pixel_shuffle_scale_factor")
    tower = siglip2(changed_config)
    config.fields_read |= changed_config.fields_read
    inner_width = 4 * h * merge**2
    maps = projector(h, (inner_width, False, "silu"), (width, False, "identity"), merge=merge)
    return {"vision_embedding": tower, "vision_projector": maps}


def _deepseek_v41(wrapper: Config, config: Config, width: int) -> Table:
    """Reads DeepSeek-V4.1: gated layers with RMSNorm and RoPE, merged patches, and three marks around them."""
    norm = rmsnorm(1e-6)
    block = biased(config, norm, network=glu(config), position={"type": "rope"})
    tower = vit(config, block, stack={"final_norm": norm}, patches={"bias": True})
    maps = ((width, True, "gelu"), (width, True, "identity"))
    merge = config.size("downsample_ratio")
    return {
        "vision": tower,
        "aligner": projector(config.size("hidden_size"), *maps, merge=merge, output_marks=3),
    }


def _dots_ocr(wrapper: Config, config: Config, width: int) -> Table:
    """Reads dots.ocr: gated layers with RMSNorm and RoPE, a norm on the patches, and a merger of four patches."""
    config.must("hidden_size", width)
    h, heads, eps, bias = (
        config.size("embed_dim"),
        config.size("num_attention_heads"),
        config.number("rms_norm_eps"),
        config.flag("use_bias"),
    )
    norm = rmsnorm(eps)
    mixer = {
        "num_attention_heads": heads,
        "head_dim": config.divided("num_attention_heads", h, heads),
        "position": {"type": "rope"},
        **biases(bias, *QKV, "o_bias"),
    }
    block = {
        "attention": mixer,
        "feed_forward": glu(config, bias),
        "norm": norm,
        "norm_placement": "pre",
    }
    final_norm_fields: Table = {"final_norm": norm} if config.flag("post_norm") else {}
    tower = vit(
        config,
        block,
        stack={"embedding_norm": norm, **final_norm_fields},
        patches={
            "num_channels": config.size("num_channels"),
            "temporal_patch_size": config.size("temporal_patch_size"),
            "bias": True,
        },
    )
    edge = config.size("spatial_merge_size")
    maps = ((h * edge * edge, True, "gelu"), (width, True, "identity"))
    merger = projector(h, *maps, merge=edge, norm=layernorm(1e-6))
    return {"vision_tower": {**tower, "hidden_size": h}, "vision_merger": merger}


DEEPSEEK_V41: Table = {
    "num_hidden_layers": 32,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 2816,
    "hidden_act": "silu",
    "patch_size": 14,
    "downsample_ratio": 3,
}
"""The encoder that DeepSeek-V4.1's class builds by default."""

PACKED_POSITIONS = 32768
"""Rows of Keye-VL's second position embedding, which images of packed sequences use."""


def _keye(wrapper: Config, config: Config, width: int) -> Table:
    return _keye_towers(config, width, "patch")


def _keye_1_5(wrapper: Config, config: Config, width: int) -> Table:
    return _keye_towers(config, width, "merged")


def _keye_towers(config: Config, width: int, normed_vectors: str) -> Table:
    """Reads Keye-VL: SigLIP with RoPE and two position embeddings, which are counted as one embedding."""
    norm, h, edge = layernorm(config.number("layer_norm_eps")), config.size("hidden_size"), 2
    config.must("spatial_merge_size", edge)
    tower = vit(
        config,
        biased(config, norm, position={"type": "rope"}),
        stack={"final_norm": norm},
        patches={"num_channels": config.size("num_channels"), "bias": True},
        positions={"rows": side(config) ** 2 + PACKED_POSITIONS},
    )
    maps = ((h * edge * edge, True, "gelu"), (width, True, "identity"))
    merging_projector = projector(h, *maps, merge=edge, norm=layernorm(), norm_of=normed_vectors)
    return {"vision_model": tower, "vision_projector": merging_projector}


def _glm4v(wrapper: Config, config: Config, width: int) -> Table:
    """Reads GLM-4V: EVA-CLIP with norms on the sublayer outputs, and a convolution that merges patches.

    Its adapter has a norm, an activation, a gated network of the text model's width, and two vectors around an image.
    """
    norm, h = layernorm(config.number("layer_norm_eps")), config.size("hidden_size")
    inner_width = wrapper.size("ffn_hidden_size")
    block = biased(config, norm, heads="num_heads") | {"norm_placement": "output"}
    tower = vit(
        config,
        block,
        patches={"num_channels": config.size("in_channels"), "bias": True},
        positions={"rows": config.size("num_positions")},
        class_embedding=True,
    )
    merging_projector = projector(
        h, (width, True, "identity"), (width, False, "identity"), merge=2, out_norm=layernorm(), out_act="gelu"
    )
    gated = [{"size": 2 * inner_width, "hidden_act": "silu", "gated": True}, {"size": width}]
    adapter = {**projector(width), "maps": gated, "output_marks": 2}
    return {"vision_model": tower, "vision_projector": merging_projector, "vision_adapter_projector": adapter}


def _resampler(config: Config, input_width: int, width: int, queries: int, positions: bool = False) -> Table:
    """Returns the projector of Qwen-VL and MiniCPM-V: learned queries, a norm, and a square linear layer.

    input_width: the encoder's width. width: that of the queries, with heads of 128.
    """
    if width % HEAD_DIM:
        raise config.wrong("hidden_size", width, f"a text model whose width is a multiple of {HEAD_DIM}")
    norm = layernorm(1e-6)
    attention = {"num_attention_heads": width // HEAD_DIM, "head_dim": HEAD_DIM, **biases(True, *QKV, "o_bias")}
    resampler = {"queries": queries, "hidden_size": width, "attention": attention, "norm": norm}
    resampler |= {"projected": input_width != width, "positions": positions}
    return projector(input_width, (width, False, "identity"), norm=norm, resampler=resampler)


HEAD_DIM = 128
"""The size of a head of the resamplers of Qwen-VL and MiniCPM-V."""


def _minicpmv(wrapper: Config, config: Config, width: int) -> Table:
    """Reads MiniCPM-V: SigLIP without its head, without its last layer if the config says so, and a resampler.

    Version 2.0 has timm's encoder of images of 384 pixels, and stores the positions of its queries.
    """
    is_first_version = str(wrapper.get("version")) == "2.0" or (wrapper.get("version") is None and width == 2304)
    changed_fields = {
        "vision_use_head": False,
        **({"image_size": 384} if is_first_version and not wrapper.has("vision_config") else {}),
    }
    resized_config = Config({**config.data, **changed_fields}, config.defaults, config.model_type, where=config.where)
    tower = siglip(resized_config)
    config.fields_read |= resized_config.fields_read
    if wrapper.flag("drop_vision_last_layer"):
        depth = tower["stack"]["num_hidden_layers"]
        if depth < 2:
            raise config.wrong("num_hidden_layers", depth, "at least 2, for the last one is dropped")
        tower["stack"]["num_hidden_layers"] = depth - 1
    queries = wrapper.size("query_num")
    return {
        "vision": tower,
        "resampler": _resampler(config, config.size("hidden_size"), width, queries, is_first_version),
    }


def _qwen_vl(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Qwen-VL: OpenCLIP's encoder, whose position embedding has 256 rows, and a resampler."""
    config.must("output_dim", width)
    h, heads, ratio = config.size("width"), config.size("heads"), config.number("mlp_ratio")
    if not 0 < ratio <= 100:
        raise config.wrong("mlp_ratio", ratio, "a number between 0 and 100")
    config.divided("heads", h, heads)
    resized_config = Config({**config.data, "hidden_size": h}, config.defaults, config.model_type, where=config.where)
    norm = layernorm(1e-6)
    tower = vit(
        resized_config,
        biased(resized_config, norm, heads="heads", network=mlp(int(h * ratio), "gelu")),
        depth="layers",
        stack={"embedding_norm": norm},
        positions={"rows": QWEN_VL_ROWS},
    )
    config.fields_read |= resized_config.fields_read
    maps = _resampler(config, h, width, config.size("n_queries"), True)
    return {"visual": tower, "resampler": maps}


QWEN_VL_ROWS = 256
"""Rows of the position embedding of Qwen-VL's encoder, between which larger images interpolate."""


def _phi3v(wrapper: Config, config: Config, width: int) -> Table:
    """Reads Phi-3-vision: CLIP's large encoder, whose sizes are constants in its class, and two linear layers.

    Two vectors of four patches' width mark the ends of lines and of the whole image.
    """
    config.must("name", "clip_vision_model")
    config.must("image_dim_out", CLIP_LARGE["hidden_size"])
    clip_config = Config({**CLIP_LARGE}, CLIP, "clip_vision_model", where=config.where)
    maps = ((width, True, "gelu"), (width, True, "identity"))
    return {
        "vision_model": clip(clip_config),
        "vision_projector": projector(CLIP_LARGE["hidden_size"], *maps, merge=2, input_marks=2),
    }


CLIP_LARGE: Table = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""Sizes of openai/clip-vit-large-patch14-336, which Phi-3-vision's class states."""
MINICPM_VIT: Table = {**SIGLIP, **SO400M, "image_size": 980, "num_hidden_layers": 27}
QWEN_VL: Table = {
    "heads": 16,
    "image_size": 448,
    "layers": 48,
    "mlp_ratio": 4.9231,
    "n_queries": 256,
    "output_dim": 4096,
    "patch_size": 14,
    "width": 1664,
}
MINICPM_SECTION = {"siglip_vision_model": MINICPM_VIT, "siglip": MINICPM_VIT, "idefics2": MINICPM_VIT}
MINICPM_ABOVE: Table = {"version": None, "drop_vision_last_layer": True, "query_num": 64}
INTERNVIT: Table = {
    "num_channels": 3,
    "patch_size": 14,
    "image_size": 224,
    "qkv_bias": False,
    "hidden_size": 3200,
    "num_attention_heads": 25,
    "intermediate_size": 12800,
    "qk_normalization": True,
    "num_hidden_layers": 48,
    "hidden_act": "gelu",
    "norm_type": "rms_norm",
    "layer_norm_eps": 1e-6,
}
INTERNVIT_FIELDS = frozenset(
    """
    capacity_factor drop_path_rate dropout eval_capacity_factor laux_allreduce moe_coeff_ratio moe_intermediate_size
    moe_output_scale noisy_gate_policy num_experts num_routed_experts num_shared_experts shared_expert_intermediate_size
    use_moe use_residual use_rts use_weighted_residual
    """.split()  # noqa: SIM905
)
"""Fields of InternViT's configs that change no count: those of experts that no published encoder has."""
CHAT: Table = {"downsample_ratio": 0.5, "select_layer": -1, "max_dynamic_patch": 6}
MLP_PROJECTOR: Table = {
    "projector_type": "downsample_mlp_gelu",
    "input_dim": 1152,
    "n_embed": 2048,
    "depth": 2,
    "mlp_ratio": 1,
    "downsample_ratio": 2,
    "token_pooling": False,
}
DEEPSEEK_VL2: Table = {
    "image_size": 384,
    "patch_size": 16,
    "width": 1024,
    "layers": 24,
    "heads": 16,
    "mlp_ratio": 4,
    "global_pool": "map",
    "class_token": False,
}
TIMM_FIELDS = frozenset(
    "deterministic ignore_head model_name num_classes num_recomputing_layers use_checkpoint weight_init".split()  # noqa: SIM905
)
MOONVIT: Table = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "merge_kernel_size": (2, 2),
}
MOONVIT_V2: Table = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "num_attention_heads": 12,
    "num_hidden_layers": 27,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "qkv_hidden_size": 1536,
    "attn_bias": False,
    "linear_bias": False,
    "patch_embed_proj_bias": False,
    "hidden_act": "gelu_pytorch_tanh",
    "mm_hidden_size": None,
    "text_hidden_size": 7168,
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-5,
}
MOONVIT_V2_NAMES = {
    "hidden_size": "vt_hidden_size",
    "intermediate_size": "vt_intermediate_size",
    "num_attention_heads": "vt_num_attention_heads",
    "num_hidden_layers": "vt_num_hidden_layers",
    "hidden_act": "activation_func",
}
DOTS: Table = {
    "embed_dim": 1536,
    "hidden_size": 1536,
    "intermediate_size": 4224,
    "num_hidden_layers": 42,
    "num_attention_heads": 12,
    "num_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
    "rms_norm_eps": 1e-5,
    "use_bias": False,
    "post_norm": True,
    "hidden_act": "silu",
}
KEYE: Table = {**SIGLIP, "spatial_merge_size": 2}
KEYE_SECTION = {"KeyeVisionModel": KEYE, "siglip_vision_model": KEYE}
KEYE_FIELDS = frozenset({"has_learnable_position_embedding", "temporal_patch_size", "tokens_per_second"})
EVA: Table = {"hidden_act": "gelu", "layer_norm_eps": 1e-6}
INTERNVIT_SECTION = {"intern_vit_6b": INTERNVIT}

WRAPPERS = {
    "internvl_chat": {
        "vision_config": Section(_internvl_chat, INTERNVIT_SECTION, CHAT, None, ignored=INTERNVIT_FIELDS)
    },
    **{
        kind: {"vision_config": Section(_internvit_chat, INTERNVIT_SECTION, CHAT, None, ignored=INTERNVIT_FIELDS)}
        for kind in ("h2ovl_chat", "skywork_chat")
    },
    "NVLM_D": {"vision_config": Section(_nvlm, INTERNVIT_SECTION, CHAT, None, ignored=INTERNVIT_FIELDS)},
    "interns1": {
        "vision_config": Section(
            internvl,
            {"interns1_vision": INTERNVL},
            {"projector_hidden_act": "gelu", "downsample_ratio": 0.5, "vision_feature_layer": -1},
            None,
        )
    },
    "eagle_2_5_vl": {
        "vision_config": Section(_eagle, {"siglip_vision_model": SIGLIP}, {"downsample_ratio": 0.5}, None)
    },
    "kimi_k3": {
        "vision_config": Section(
            _kimi_k3,
            {"kimi_k3_vision": MOONVIT_V2},
            ignored=frozenset({"init_pos_emb_time", "pos_emb_interpolation_mode", "video_attn_type"}),
            aliases=MOONVIT_V2_NAMES,
        )
    },
    "kimi_vl": {"vision_config": Section(_kimi_vl, {"moonvit": MOONVIT}, ignored=frozenset({"text_hidden_size"}))},
    "deepseek_v41": {
        "vision_config": Section(
            _deepseek_v41,
            {"deepseek_v41_vision": DEEPSEEK_V41},
            ignored=frozenset({"max_image_tokens", "max_wh_ratio", "min_pixels", "rope_theta"}),
        )
    },
    "deepseek_vl_v2": {
        "vision_config": Section(_deepseek_vl2, {"vision": DEEPSEEK_VL2}, {"tile_tag": "2D"}, None, TIMM_FIELDS)
    },
    "isaac": {
        "vision_config": Section(
            _isaac,
            {
                "pixel_shuffle_siglip2": {**SIGLIP, "num_patches": 256, "pixel_shuffle_scale_factor": 1},
                "siglip2_vision_model": {**SIGLIP, "num_patches": 256, "pixel_shuffle_scale_factor": 1},
            },
            built=None,
        )
    },
    **{
        kind: {
            "vision_config": Section(
                _dots_ocr, {"dots_vit": DOTS}, ignored=frozenset({"is_causal", "init_merger_std", "initializer_range"})
            )
        }
        for kind in ("dots_ocr", "dots_vlm")
    },
    "Keye": {"vision_config": Section(_keye, KEYE_SECTION, built=None, ignored=KEYE_FIELDS)},
    "KeyeVL1_5": {"vision_config": Section(_keye_1_5, KEYE_SECTION, built=None, ignored=KEYE_FIELDS)},
    "chatglm": {
        "vision_config": Section(
            _glm4v, {"eva_clip": EVA}, built=None, ignored=frozenset({"dropout_prob", "scaling_factor"})
        )
    },
    "minicpmv": {"vision_config": Section(_minicpmv, MINICPM_SECTION, MINICPM_ABOVE)},
    "minicpmo": {"vision_config": Section(_minicpmv, MINICPM_SECTION, MINICPM_ABOVE)},
    "qwen": {"visual": Section(_qwen_vl, {"visual": QWEN_VL}, built=None, ignored=frozenset({"image_start_id"}))},
    "phi3_v": {
        "img_processor": Section(
            _phi3v,
            {"img_processor": {"name": "clip_vision_model", "image_dim_out": 1024}},
            ignored=frozenset({"model_name", "num_img_tokens"}),
        )
    },
}
