"""Vision encoders of wrappers whose class is repository code: InternViT, MoonViT, EVA-CLIP and others.

InternViT (Chen 2023, arXiv:2312.14238), MoonViT (Kimi-VL: 2025, arXiv:2504.07491), DeepSeek-VL2 (Wu 2024,
arXiv:2412.10302), EVA-CLIP (Sun 2023, arXiv:2303.15389) in GLM-4V, SigLIP in Eagle 2.5, Isaac, Keye-VL and
MiniCPM-V and Moondream, CLIP in Phi-3-vision, OpenCLIP in Qwen-VL, and DeepSeek-V4.1's encoder.

Sources: vllm/model_executor/models/intern_vit.py, internvl.py, nvlm_d.py, h2ovl.py, skyworkr1v.py, interns1_vit.py,
interns1.py, moonvit.py, kimi_vl.py, deepseek_vl2.py, eagle2_5_vl.py, isaac.py, dots_ocr.py, keye.py, keye_vl1_5.py,
glm4v.py, minicpmv.py, qwen_vl.py, phi3v.py and layers/resampler.py of vllm-project/vllm at v0.19.0, and
models/deepseek_v41/common/vision.py at v0.33.0; moondream/torch/vision.py of vikhyat/moondream.
"""

from __future__ import annotations

from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, QKVO_BIASES, Table, biases, glu, layer_table, layernorm, mlp, rmsnorm
from .llava import INTERNVL_DEFAULTS, INTERNVL_PROJECTOR_DEFAULTS, internvit_layer, read_internvl
from .qwen import KIMI_SIDE, moonvit
from .sam import read_published_ocr
from .section import (
    ROTARY_POSITION,
    LinearLayer,
    TowerSection,
    biased_layer,
    merged_square_side,
    patches_per_side,
    projector,
    self_attention,
    two_linear_layers,
    vision_section,
    vision_transformer,
)
from .siglip import CLIP_DEFAULTS, SIGLIP_DEFAULTS, SO400M, VIT_L, clip_encoder, siglip_encoder, siglip_with_positions

DUMMY_HEADS = 7
"""Number of heads that NVLM's copy of InternViT has in addition to its config's heads; their weights are zeros."""


def _internvit_encoder(config: Config, dummy_heads: int = 0) -> Table:
    """Returns InternViT: a class vector, and scaled sublayer outputs. dummy_heads: heads beyond the config's number."""
    return vision_transformer(
        config,
        internvit_layer(config, config.flag("qkv_bias"), config.flag("qk_normalization"), dummy_heads),
        patch_fields={"num_channels": config.integer("num_channels"), "bias": True},
        positions={"rows": patches_per_side(config) ** 2 + 1},
        class_embedding=True,
    )


def _patch_merger(root_config: Config, encoder_width: int, *linear_layers: LinearLayer) -> Table:
    """Returns InternVL's projector: a norm and linear layers over merged blocks of patches."""
    merge_size = merged_square_side(root_config, "downsample_ratio")
    return projector(encoder_width, *linear_layers, merge=merge_size, norm=layernorm(), norm_of="merged")


def _read_internvl_chat(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads InternVL's repository code: up to `max_dynamic_patch` tiles per image, between two marker tokens."""
    root_config.require("select_layer", -1)
    image_tokens = max(patches_per_side(config) ** 2 // merged_square_side(root_config, "downsample_ratio") ** 2, 1)
    image_size = config.integer("image_size")
    image_resizing = {"type": "tiles", "size": image_size, "max_tiles": root_config.integer("max_dynamic_patch")}
    towers = _read_internvit_chat(root_config, config, text_hidden_size)
    towers["vision_model"]["image"] = {**image_resizing, "tokens": image_tokens, "marks": 2}
    return towers


def _read_internvit_chat(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads a class with InternVL's encoder and projector, without an image rule."""
    merger = _patch_merger(root_config, config.integer("hidden_size"), *two_linear_layers(text_hidden_size))
    return {"vision_model": _internvit_encoder(config), "vision_projector": merger}


def _read_nvlm(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads NVLM, whose projector is as wide as the text model's FFN and has no biases."""
    text_config = root_config.table("llm_config")
    ffn_width = Config(text_config, {}, "llm_config", location="llm_config.").integer("intermediate_size")
    hidden_size = config.integer("hidden_size")
    merger = _patch_merger(
        root_config, hidden_size, *two_linear_layers(text_hidden_size, bias=False, inner_width=ffn_width)
    )
    return {"vision_model": _internvit_encoder(config, DUMMY_HEADS), "vision_projector": merger}


def _read_eagle(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Eagle 2.5: SigLIP with InternVL's projector."""
    merger = _patch_merger(root_config, config.integer("hidden_size"), *two_linear_layers(text_hidden_size))
    return {"vision_model": siglip_encoder(config), "vision_projector": merger}


def _read_kimi_vl(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads MoonViT: a position embedding of rows by columns, and RoPE."""
    position_rows = config.integer("init_pos_emb_height") * config.integer("init_pos_emb_width")
    ffn_width = config.integer("intermediate_size")
    tower, merger = moonvit(config, position_rows, text_hidden_size, ffn=mlp(ffn_width, "gelu_tanh"))
    tower["image"] = {
        "type": "padded",
        "merge": merger["merge"],
        "max_patches": KIMI_VL_PATCHES,
        "max_side": KIMI_VL_SIDE,
        "refuses_long": True,
    }
    return {"vision_tower": tower, "multi_modal_projector": merger}


KIMI_VL_PATCHES, KIMI_VL_SIDE = 4096, 511
"""The most patches of an image, and along one side, in the processor of Kimi-VL (image_processing_kimi_vl.py)."""


def _read_locateanything(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LocateAnything: MoonViT, and a projector with a norm on the merged patches."""
    root_config.require("mlp_connector_layers", 2)
    position_rows = config.integer("init_pos_emb_height") * config.integer("init_pos_emb_width")
    ffn_width = config.integer("intermediate_size")
    tower, merger = moonvit(config, position_rows, text_hidden_size, ffn=mlp(ffn_width, "gelu_tanh"))
    maps = projector(1, *two_linear_layers(text_hidden_size))["maps"]
    projector_fields = {"maps": maps, "norm": layernorm(), "norm_of": "merged"}
    return {"vision_model": tower, "vision_projector": merger | projector_fields}


def _read_rice(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LLaVA-OneVision 1.5: RICE-ViT with RoPE and a class vector with learned angles, and Qwen2's merger."""
    config.require("text_hidden_size", text_hidden_size)
    config.require("temporal_patch_size", 1)
    norm = layernorm(config.number("layer_norm_eps"))
    hidden_size = config.integer("hidden_size")
    merge_size = config.integer("spatial_merge_size")
    block = biased_layer(config, norm, heads_field="num_heads", **ROTARY_POSITION)
    angle_count = block["attention"]["head_dim"] // 2
    config.notes.append(
        f"class_pos_emb: the learned angles of the class vector are not counted: {angle_count} parameters"
    )
    stack_fields = {"embedding_norm": norm}
    patch_fields = {"num_channels": config.integer("in_channels")}
    tower = vision_transformer(
        config, block, depth_field="depth", stack=stack_fields, patch_fields=patch_fields, class_embedding=True
    )
    inner_width = hidden_size * merge_size * merge_size
    merger = projector(
        hidden_size, *two_linear_layers(text_hidden_size, inner_width=inner_width), merge=merge_size, norm=norm
    )
    return {"visual": tower, "visual_merger": merger}


def _read_kimi_k3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads MoonViT-V2 of Kimi K3: RMSNorm, heads wider than the encoder, and no biases."""
    expected_fields = {
        "merge_kernel_size": [2, 2],
        "merge_type": "sd2_tpool",
        "mlp_type": "mlp2",
        "norm_type": "rmsnorm",
        "mm_projector_type": "patchmergerv2",
        "pos_emb_type": "divided_fixed",
    }
    for field_name, field_value in expected_fields.items():
        if config.get(field_name) is not None:
            config.require(field_name, field_value)
    config.require("text_hidden_size", text_hidden_size)
    norm, has_linear_bias = rmsnorm(2**-7), config.flag("linear_bias")
    biases_of_attention = biases(config.flag("attn_bias"), *QKVO_BIASES)
    attention = self_attention(config, width_field="qkv_hidden_size", **ROTARY_POSITION, **biases_of_attention)
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"), has_linear_bias)
    tower = vision_transformer(
        config,
        layer_table(attention, ffn, norm),
        stack={"final_norm": norm},
        patch_fields={"bias": config.flag("patch_embed_proj_bias")},
        positions={"rows": config.integer("init_pos_emb_height") * config.integer("init_pos_emb_width")},
    )
    hidden_size = config.integer("hidden_size")
    merged_width = 4 * (config.optional_integer("mm_hidden_size") or hidden_size)
    activation = config.choice(ACTIVATIONS, "projector_hidden_act")
    linear_layers = two_linear_layers(text_hidden_size, activation, False, merged_width)
    out_norm = rmsnorm(config.number("projector_ln_eps"))
    tower["image"] = {"type": "padded", "merge": 2, "max_patches": KIMI_K3_PATCHES, "max_side": KIMI_SIDE}
    return {"vision_tower": tower, "mm_projector": projector(hidden_size, *linear_layers, merge=2, out_norm=out_norm)}


KIMI_K3_PATCHES = 65536
"""The most patches of an image in the processor of Kimi K3."""


def _with_width_fields(config: Config, norm: Table) -> tuple[Config, Table]:
    """Returns the config with `hidden_size` set to its `width`, and a layer with its `heads` and `mlp_ratio`."""
    width, mlp_ratio = config.integer("width"), config.number("mlp_ratio")
    if not 0 < mlp_ratio <= 100:
        raise config.error("mlp_ratio", mlp_ratio, "a number between 0 and 100")
    usual_config = config.with_fields(hidden_size=width)
    return usual_config, biased_layer(usual_config, norm, heads_field="heads", ffn=mlp(int(width * mlp_ratio), "gelu"))


def _read_deepseek_vl2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads DeepSeek-VL2: SigLIP in timm's form with a pooling head; learned vectors mark row ends and views.

    Configs of DeepSeek-OCR have the same model type, and the widths of two encoders.
    """
    if isinstance(config.get("width"), dict):
        return read_published_ocr(root_config, config, text_hidden_size)
    root_config.require("tile_tag", "2D")
    config.require_fields(class_token=False, global_pool="map")
    hidden_size, norm = config.integer("width"), layernorm(1e-6)
    timm_config, block = _with_width_fields(config, norm)
    tower = vision_transformer(
        timm_config,
        block,
        depth_field="layers",
        stack={"final_norm": norm},
        patch_fields={"bias": True},
        positions={"rows": patches_per_side(config) ** 2},
        pooling={"attention": block["attention"], "feed_forward": block["feed_forward"], "norm": norm},
    )
    config_fields = root_config.table("projector_config")
    projector_config = Config(config_fields, MLP_PROJECTOR_DEFAULTS, "mlp_projector", location="projector_config.")
    projector_config.require_fields(projector_type="downsample_mlp_gelu", token_pooling=False)
    projector_config.require("n_embed", text_hidden_size)
    projector_config.require("input_dim", hidden_size)
    inner_width = text_hidden_size * projector_config.integer("mlp_ratio")
    depth = projector_config.integer("depth")
    linear_layers = [(inner_width, True, "gelu")] * (depth - 1) + [(text_hidden_size, True, "identity")]
    if not 2 <= len(linear_layers) <= 10:
        raise projector_config.field_error("depth", "2 to 10")
    merge = projector_config.integer("downsample_ratio")
    return {"vision": tower, "projector": projector(hidden_size, *linear_layers, merge=merge, output_marks=2)}


def _read_isaac(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Isaac: SigLIP 2 without a head, merged patches, and two linear layers without biases."""
    config.has("vision_use_head")  # which the class does not read
    hidden_size, merge_size = config.integer("hidden_size"), config.integer("pixel_shuffle_scale_factor")
    linear_layers = two_linear_layers(text_hidden_size, "silu", bias=False, inner_width=4 * hidden_size * merge_size**2)
    tower = siglip_with_positions(config, config.integer("num_patches"))
    return {"vision_embedding": tower, "vision_projector": projector(hidden_size, *linear_layers, merge=merge_size)}


def _read_deepseek_v41(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads DeepSeek-V4.1: gated layers with RMSNorm and RoPE, merged patches, and three marker vectors."""
    norm = rmsnorm(1e-6)
    block = biased_layer(config, norm, ffn=glu(config), **ROTARY_POSITION)
    tower = vision_transformer(config, block, stack={"final_norm": norm}, patch_fields={"bias": True})
    merge_size = config.integer("downsample_ratio")
    input_width = config.integer("hidden_size")
    aligner_table = projector(input_width, *two_linear_layers(text_hidden_size), merge=merge_size, output_marks=3)
    return {"vision": tower, "aligner": aligner_table}


def _read_dots_ocr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads dots.ocr: gated layers with RMSNorm and RoPE, a norm on patches, and a merger of four patches to one."""
    config.require("hidden_size", text_hidden_size)
    norm, has_bias = rmsnorm(config.number("rms_norm_eps")), config.flag("use_bias")
    attention = self_attention(config, width_field="embed_dim", **ROTARY_POSITION, **biases(has_bias, *QKVO_BIASES))
    final_norm: Table = {"final_norm": norm} if config.flag("post_norm") else {}
    patch_fields = config.integer_fields("num_channels", "temporal_patch_size")
    hidden_size, merge_size = config.integer("embed_dim"), config.integer("spatial_merge_size")
    tower = vision_transformer(
        config.with_fields(hidden_size=hidden_size),
        layer_table(attention, glu(config, has_bias), norm),
        stack={"embedding_norm": norm, **final_norm},
        patch_fields={**patch_fields, "bias": True},
    )
    merger = projector(
        hidden_size,
        *two_linear_layers(text_hidden_size, inner_width=hidden_size * merge_size * merge_size),
        merge=merge_size,
        norm=layernorm(1e-6),
    )
    return {"vision_tower": tower, "vision_merger": merger}


DEEPSEEK_V41_DEFAULTS: Table = {
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


def _read_keye(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    return _keye_towers(config, text_hidden_size, "patch")


def _read_keye_1_5(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Keye-VL 1.5, with the limits of `KeyeVL1_5ImageProcessor`."""
    towers = _keye_towers(config, text_hidden_size, "merged")
    image_resizing = {"type": "smart_resize", "merge": 2, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
    return towers | {"vision_model": {**towers["vision_model"], "image": {**image_resizing, "rounds_sides": True}}}


def _keye_towers(config: Config, text_hidden_size: int, normed_vectors: str) -> Table:
    """Reads Keye-VL: SigLIP with RoPE and two position embeddings, which are counted as one."""
    hidden_size, merge_size = config.integer("hidden_size"), 2
    config.require("spatial_merge_size", merge_size)
    tower = siglip_with_positions(config, patches_per_side(config) ** 2 + PACKED_POSITIONS, **ROTARY_POSITION)
    linear_layers = two_linear_layers(text_hidden_size, inner_width=hidden_size * merge_size * merge_size)
    merger = projector(hidden_size, *linear_layers, merge=merge_size, norm=layernorm(), norm_of=normed_vectors)
    return {"vision_model": tower, "vision_projector": merger}


def _read_glm4v(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GLM-4V: EVA-CLIP with norms on the sublayer outputs, and a convolution that merges patches.

    Its adapter has a norm, an activation, a gated network of the text model's width, and two vectors around an image.
    """
    norm, hidden_size = layernorm(config.number("layer_norm_eps")), config.integer("hidden_size")
    inner_width = root_config.integer("ffn_hidden_size")
    block = biased_layer(config, norm, heads_field="num_heads") | {"norm_placement": "output"}
    patch_fields = {"num_channels": config.integer("in_channels"), "bias": True}
    positions = {"rows": config.integer("num_positions")}
    tower = vision_transformer(config, block, patch_fields=patch_fields, positions=positions, class_embedding=True)
    merging_projector = projector(
        hidden_size,
        (text_hidden_size, True, "identity"),
        (text_hidden_size, False, "identity"),
        merge=2,
        out_norm=layernorm(),
        out_act="gelu",
    )
    gated_layers = [{"size": 2 * inner_width, "hidden_act": "silu", "gated": True}, {"size": text_hidden_size}]
    adapter_table = {**projector(text_hidden_size), "maps": gated_layers, "output_marks": 2}
    return {"vision_model": tower, "vision_projector": merging_projector, "vision_adapter_projector": adapter_table}


def _query_projector(
    config: Config, input_width: int, text_hidden_size: int, query_count: int, has_positions: bool = False
) -> Table:
    """Returns the projector of Qwen-VL and MiniCPM-V: learned queries, a norm, and a square linear layer.

    input_width: the encoder's width. text_hidden_size: that of the queries, with heads of 128.
    """
    if text_hidden_size % HEAD_DIM:
        raise config.error("hidden_size", text_hidden_size, f"a text model whose width is a multiple of {HEAD_DIM}")
    norm = layernorm(1e-6)
    num_attention_heads = text_hidden_size // HEAD_DIM
    attention = {"num_attention_heads": num_attention_heads, "head_dim": HEAD_DIM, **biases(True, *QKVO_BIASES)}
    resampler = {"queries": query_count, "hidden_size": text_hidden_size, "attention": attention, "norm": norm}
    resampler |= {"projected": input_width != text_hidden_size, "positions": has_positions}
    return projector(input_width, (text_hidden_size, False, "identity"), norm=norm, resampler=resampler)


HEAD_DIM = 128
"""The size of a head of the resamplers of Qwen-VL and MiniCPM-V."""


def _read_minicpmv(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads MiniCPM-V: SigLIP without a head (and optionally without the last layer), and a resampler.

    Version 2.0 has timm's encoder of images of 384 pixels, and stores the positions of its queries.
    """
    version = root_config.get("version")
    is_first_version = str(version) == "2.0" or (version is None and text_hidden_size == 2304)
    config.has("vision_use_head")  # which the class does not read
    has_default_encoder = is_first_version and not root_config.has("vision_config")
    resized_config = config.with_fields(image_size=384) if has_default_encoder else config
    tower = siglip_with_positions(resized_config, patches_per_side(resized_config) ** 2)
    if root_config.flag("drop_vision_last_layer"):
        depth = tower["stack"]["num_hidden_layers"]
        if depth < 2:
            raise config.error("num_hidden_layers", depth, "at least 2, for the last one is dropped")
        tower["stack"]["num_hidden_layers"] = depth - 1
    query_count = root_config.integer("query_num")
    if str(version) in MINICPM_SLICED:
        stated_sizes = root_config.table("slice_config") if root_config.has("slice_config") else {}
        slice_config = Config({**MINICPM_SLICES, **stated_sizes}, {}, "slice_config", location="slice_config.")
        scale_resolution = slice_config.integer("scale_resolution")
        slice_rule = {"size": scale_resolution, "max_slices": slice_config.integer("max_slice_nums")}
        tower["image"] = {"type": "slices", **slice_rule, "tokens": query_count}
    resampler = _query_projector(config, config.integer("hidden_size"), text_hidden_size, query_count, is_first_version)
    return {"vision": tower, "resampler": resampler}


MINICPM_SLICED = ("2.6", "4.0", "4.5")
"""The versions of MiniCPM-V whose processors number images and write marks around slices."""

MINICPM_SLICES: Table = {"scale_resolution": 448, "max_slice_nums": 9}
"""The side of a square with a slice's number of pixels, and the most slices per image, in MiniCPM-V's processors."""


def _read_qwen_vl(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen-VL: OpenCLIP's encoder, whose position embedding has 256 rows, and a resampler."""
    config.require("output_dim", text_hidden_size)
    norm, position_table = layernorm(1e-6), {"rows": QWEN_VL_ROWS}
    usual_config, block = _with_width_fields(config, norm)
    stack_fields = {"embedding_norm": norm}
    tower = vision_transformer(usual_config, block, depth_field="layers", stack=stack_fields, positions=position_table)
    resampler = _query_projector(config, config.integer("width"), text_hidden_size, config.integer("n_queries"), True)
    return {"visual": tower, "resampler": resampler}


def _read_moondream(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Moondream 2 of 2025 and Moondream 3: SigLIP, and a projector of the whole image's and the tiles' patches.

    The vectors of the tiles are averaged to as many as the whole image has, so that they are a second image.
    """
    root_config.require("text_config", None)  # the field of the code of 2024, whose projector differs
    vision_config = config.section("vision", MOONDREAM_DEFAULTS)
    vision_config.require("proj_out_dim", text_hidden_size)
    usual_names = {
        "hidden_size": vision_config.integer("enc_dim"),
        "intermediate_size": vision_config.integer("enc_ff_dim"),
        "num_hidden_layers": vision_config.integer("enc_n_layers"),
        "num_attention_heads": vision_config.integer("enc_n_heads"),
        "num_channels": vision_config.integer("in_channels"),
        "patch_size": vision_config.integer("enc_patch_size"),
        "image_size": vision_config.integer("crop_size"),
    }
    inner_width = vision_config.integer("proj_inner_dim")
    linear_layers = two_linear_layers(text_hidden_size, "gelu_tanh", inner_width=inner_width)
    vision_config.finish(frozenset({"max_crops", "overlap_margin"}))
    config.unknown_fields += vision_config.unknown_fields
    tower_config = Config(usual_names, SIGLIP_DEFAULTS, config.model_type, location=vision_config.location)
    tower = siglip_with_positions(tower_config, patches_per_side(tower_config) ** 2)
    return {"vision": tower, "vision_projector": projector(usual_names["hidden_size"], *linear_layers, frames=2)}


QWEN_VL_ROWS = 256
"""Rows of the position embedding of Qwen-VL's encoder, between which larger images interpolate."""


def _read_phi3v(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Phi-3-vision: CLIP's large encoder, with sizes fixed in the class, and two linear layers.

    Two vectors of four patches' width mark the ends of lines and of the whole image. vLLM's phi3v.py reads num_crops of
    the config, which is 16 where the config does not state it.
    """
    config.require("name", "clip_vision_model")
    config.require("image_dim_out", VIT_L["hidden_size"])
    clip_config = Config(VIT_L, CLIP_DEFAULTS, "clip_vision_model", location=config.location)
    tile_rule: Table = {"size": VIT_L["image_size"], "max_tiles": root_config.integer("num_crops"), "merge": 2}
    input_width = VIT_L["hidden_size"]
    return {
        "vision_model": {**clip_encoder(clip_config), "image": {"type": "hd_transform", **tile_rule}},
        "vision_projector": projector(input_width, *two_linear_layers(text_hidden_size), merge=2, input_marks=2),
    }


MOONDREAM_DEFAULTS: Table = {
    "enc_dim": 1152,
    "enc_patch_size": 14,
    "enc_n_layers": 27,
    "enc_ff_dim": 4304,
    "enc_n_heads": 16,
    "proj_out_dim": 2048,
    "crop_size": 378,
    "in_channels": 3,
    "proj_inner_dim": 8192,
}
"""Sizes of openai/clip-vit-large-patch14-336, which Phi-3-vision's class states."""
MINICPM_VIT_DEFAULTS: Table = {**SIGLIP_DEFAULTS, **SO400M, "image_size": 980, "num_hidden_layers": 27}
QWEN_VL_DEFAULTS: Table = {
    "heads": 16,
    "image_size": 448,
    "layers": 48,
    "mlp_ratio": 4.9231,
    "n_queries": 256,
    "output_dim": 4096,
    "patch_size": 14,
    "width": 1664,
}
MINICPM_SECTION = {
    "siglip_vision_model": MINICPM_VIT_DEFAULTS,
    "siglip": MINICPM_VIT_DEFAULTS,
    "idefics2": MINICPM_VIT_DEFAULTS,
}
MINICPM_ROOT_DEFAULTS: Table = {"version": None, "drop_vision_last_layer": True, "query_num": 64}
INTERNVIT_DEFAULTS: Table = {
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
INTERNVIT_FIELDS = field_names("""
    capacity_factor drop_path_rate dropout eval_capacity_factor laux_allreduce moe_coeff_ratio moe_intermediate_size
    moe_output_scale noisy_gate_policy num_experts num_routed_experts num_shared_experts shared_expert_intermediate_size
    use_moe use_residual use_rts use_weighted_residual
    """)
"""Ignored fields of InternViT's configs, for experts that no published encoder has."""
CHAT_DEFAULTS: Table = {"downsample_ratio": 0.5, "select_layer": -1, "max_dynamic_patch": 6}
MLP_PROJECTOR_DEFAULTS: Table = {
    "projector_type": "downsample_mlp_gelu",
    "input_dim": 1152,
    "n_embed": 2048,
    "depth": 2,
    "mlp_ratio": 1,
    "downsample_ratio": 2,
    "token_pooling": False,
}
DEEPSEEK_VL2_DEFAULTS: Table = {
    "image_size": 384,
    "patch_size": 16,
    "width": 1024,
    "layers": 24,
    "heads": 16,
    "mlp_ratio": 4,
    "global_pool": "map",
    "class_token": False,
}
TIMM_FIELDS = field_names(
    "deterministic ignore_head model_name num_classes num_recomputing_layers use_checkpoint weight_init"
)
MOONVIT_DEFAULTS: Table = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "merge_kernel_size": (2, 2),
}
MOONVIT_V2_DEFAULTS: Table = {
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
DOTS_DEFAULTS: Table = {
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
KEYE_DEFAULTS: Table = {**SIGLIP_DEFAULTS, "spatial_merge_size": 2}
KEYE_SECTION = {"KeyeVisionModel": KEYE_DEFAULTS, "siglip_vision_model": KEYE_DEFAULTS}
KEYE_FIELDS = frozenset({"has_learnable_position_embedding", "temporal_patch_size", "tokens_per_second"})
EVA_DEFAULTS: Table = {"hidden_act": "gelu", "layer_norm_eps": 1e-6}
INTERNVIT_SECTION = {"intern_vit_6b": INTERNVIT_DEFAULTS}

ISAAC_DEFAULTS: Table = {**SIGLIP_DEFAULTS, "num_patches": 256, "pixel_shuffle_scale_factor": 1}
MOONDREAM_SECTION = {
    "config": TowerSection(
        _read_moondream,
        {"config": {}},
        {"text_config": None},
        ignored_fields=frozenset({"text", "region", "tokenizer", "tau"}),
        is_flat=True,
    )
}
RICE_DEFAULTS: Table = {
    "depth": 24,
    "hidden_size": 1024,
    "hidden_act": "gelu",
    "in_channels": 3,
    "intermediate_size": 4096,
    "layer_norm_eps": 1e-5,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
    "text_hidden_size": 4096,
}
KIMI_K3_FIELDS = frozenset({"init_pos_emb_time", "pos_emb_interpolation_mode", "video_attn_type"})
DEEPSEEK_V41_FIELDS = frozenset({"max_image_tokens", "max_wh_ratio", "min_pixels", "rope_theta"})
DOTS_SECTION = vision_section(
    _read_dots_ocr,
    {"dots_vit": DOTS_DEFAULTS},
    ignored_fields=frozenset({"is_causal", "init_merger_std", "initializer_range"}),
)
MINICPM = vision_section(_read_minicpmv, MINICPM_SECTION, MINICPM_ROOT_DEFAULTS)
INTERNVIT_CHAT = vision_section(
    _read_internvit_chat, INTERNVIT_SECTION, CHAT_DEFAULTS, None, ignored_fields=INTERNVIT_FIELDS
)

WRAPPERS = {
    "internvl_chat": vision_section(
        _read_internvl_chat, INTERNVIT_SECTION, CHAT_DEFAULTS, None, ignored_fields=INTERNVIT_FIELDS
    ),
    "h2ovl_chat": INTERNVIT_CHAT,
    "skywork_chat": INTERNVIT_CHAT,
    "NVLM_D": vision_section(_read_nvlm, INTERNVIT_SECTION, CHAT_DEFAULTS, None, ignored_fields=INTERNVIT_FIELDS),
    "interns1": vision_section(
        read_internvl, {"interns1_vision": INTERNVL_DEFAULTS}, INTERNVL_PROJECTOR_DEFAULTS, None
    ),
    "eagle_2_5_vl": vision_section(
        _read_eagle, {"siglip_vision_model": SIGLIP_DEFAULTS}, {"downsample_ratio": 0.5}, None
    ),
    "kimi_k3": vision_section(
        _read_kimi_k3, {"kimi_k3_vision": MOONVIT_V2_DEFAULTS}, ignored_fields=KIMI_K3_FIELDS, aliases=MOONVIT_V2_NAMES
    ),
    "kimi_vl": vision_section(
        _read_kimi_vl, {"moonvit": MOONVIT_DEFAULTS}, ignored_fields=frozenset({"text_hidden_size"})
    ),
    "llavaonevision1_5": vision_section(
        _read_rice, {"rice_vit": RICE_DEFAULTS}, default_section=None, ignored_fields=frozenset({"embed_dim"})
    ),
    "locateanything": vision_section(
        _read_locateanything, {"moonvit": MOONVIT_DEFAULTS}, {"mlp_connector_layers": 2}, None
    ),
    "deepseek_v41": vision_section(
        _read_deepseek_v41, {"deepseek_v41_vision": DEEPSEEK_V41_DEFAULTS}, ignored_fields=DEEPSEEK_V41_FIELDS
    ),
    "deepseek_vl_v2": vision_section(
        _read_deepseek_vl2, {"vision": DEEPSEEK_VL2_DEFAULTS}, {"tile_tag": "2D"}, None, TIMM_FIELDS
    ),
    "isaac": vision_section(
        _read_isaac,
        {"pixel_shuffle_siglip2": ISAAC_DEFAULTS, "siglip2_vision_model": ISAAC_DEFAULTS},
        default_section=None,
    ),
    "dots_ocr": DOTS_SECTION,
    "dots_vlm": DOTS_SECTION,
    "Keye": vision_section(_read_keye, KEYE_SECTION, default_section=None, ignored_fields=KEYE_FIELDS),
    "KeyeVL1_5": vision_section(_read_keye_1_5, KEYE_SECTION, default_section=None, ignored_fields=KEYE_FIELDS),
    "chatglm": vision_section(
        _read_glm4v,
        {"eva_clip": EVA_DEFAULTS},
        default_section=None,
        ignored_fields=frozenset({"dropout_prob", "scaling_factor"}),
    ),
    "minicpmv": MINICPM,
    "minicpmo": MINICPM,
    "qwen": {
        "visual": TowerSection(
            _read_qwen_vl,
            {"visual": QWEN_VL_DEFAULTS},
            default_section=None,
            ignored_fields=frozenset({"image_start_id"}),
        )
    },
    "moondream1": MOONDREAM_SECTION,
    "moondream2": MOONDREAM_SECTION,
    "moondream3": MOONDREAM_SECTION,
    "phi3_v": {
        "img_processor": TowerSection(
            _read_phi3v,
            {"img_processor": {"name": "clip_vision_model", "image_dim_out": 1024}},
            {"num_crops": 16},
            ignored_fields=frozenset({"model_name", "num_img_tokens"}),
        )
    },
}
