"""Multimodal wrappers of a text model; a remark names each encoder that is not counted.

transformers: the folders of `models` that the model types name.
"""

from __future__ import annotations

from ...family import Family

FAMILIES = {
    "vision-encoder-decoder": Family(
        None,
        text_type="bert",
        text_section="decoder",
        is_decoder=True,
        tying_source="text",
        tower_file="vit",
        uncounted_encoders={"encoder": "vit"},  # of other types
    ),
    "speech-encoder-decoder": Family(
        None,
        text_type="bert",
        text_section="decoder",
        is_decoder=True,
        tying_source="text",
        uncounted_encoders={"encoder": "wav2vec2"},
    ),
    "fast_vlm": Family(
        None, text_type="qwen2", tying_source="either", uncounted_encoders={"vision_config": "timm_wrapper"}
    ),
    "perception_lm": Family(None, text_type="llama", uncounted_encoders={"vision_config": "timm_wrapper"}),
    "blip-2": Family(
        None,
        ignored_fields=frozenset({"qformer_config"}),  # read with the vision encoder
        text_type="opt",
        tying_source="text",
        tower_file="blip",
        uncounted_classes=("ForImageTextRetrieval", "WithProjection", "Blip2QFormerModel"),
    ),
    **{
        kind: Family(
            None,
            ignored_fields=frozenset({"qformer_config"}),  # read with the vision encoder
            text_type="opt",
            tying_source="text",
            tower_file="blip",
        )
        for kind in ("instructblip", "instructblipvideo")
    },
}
