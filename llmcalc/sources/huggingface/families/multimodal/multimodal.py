"""Multimodal wrappers of any text model: LLaVA models, InternVL, Idefics 3, SmolVLM, Qwen2-Audio, Voxtral.

Their vision and audio encoders are read in `towers`. transformers: models/llava, llava_next, llava_onevision, internvl,
idefics3, smolvlm, qwen2_audio, voxtral.
"""

from __future__ import annotations

from ...family import Family

OF_LLAVA = frozenset(
    """
    freeze_mm_mlp_adapter image_aspect_ratio image_grid_pinpoints mm_projector_type mm_use_im_patch_token
    mm_use_im_start_end mm_use_im_video_token mm_vision_select_feature mm_vision_select_layer tune_mm_mlp_adapter
    use_mm_proj
    """.split()  # noqa: SIM905
)
"""Fields of the original LLaVA code in its flat configs, which change no count of the text model."""

LLAVA_TOWERS = {
    "mm_hidden_size": "the projector from encoders of width {} is not counted",
    "mm_image_tower": "the image encoder {} is not counted",
    "mm_video_tower": "the video encoder {} is not counted",
    "mm_vision_tower": "the vision encoder {} is not counted",
}
"""Parts of flat LLaVA configs that their own code loads from other repositories; no class of transformers has them."""

UNTIED = {"tie_word_embeddings": False}

FAMILIES = {
    "llava": Family(None, UNTIED, OF_LLAVA, uncounted=LLAVA_TOWERS, text="llama", ties="either", tower_file="llava"),
    "llava_next": Family(None, UNTIED, text="llama", tower_file="llava"),
    "llava_onevision": Family(None, UNTIED, text="qwen2", ties="either", tower_file="llava"),
    "internvl": Family(None, {"tie_word_embeddings": True}, text="qwen2", tower_file="llava"),
    "idefics3": Family(None, UNTIED, text="llama", tower_file="llava"),
    "smolvlm": Family(None, UNTIED, text="llama", tower_file="llava"),
    "qwen2_audio": Family(None, text="qwen2", ties="never", tower_file="audio"),
    "voxtral": Family(
        None,
        text="llama",
        ties="never",
        filled={
            "vocab_size": 131072,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 30,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100_000_000.0,
            "head_dim": 128,
        },
        tower_file="audio",
    ),
}
