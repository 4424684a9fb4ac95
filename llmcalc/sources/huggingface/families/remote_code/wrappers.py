"""Multimodal wrappers whose class is code of the model's own repository; their text model is counted.

Sources: the modeling files of the models' repositories, in `Family.code` of each model type.
"""

from __future__ import annotations

from ...family import Family

HUB = "https://huggingface.co/"


FAMILIES = {
    "internvl_chat": Family(
        None,
        text="llama",
        text_section="llm_config",
        generates=True,
        ties="text",
        code=f"{HUB}OpenGVLab/InternVL2-8B modeling_internvl_chat.py",
    ),
    "kimi_vl": Family(
        None,
        text="deepseek_v3",
        ties="text",
        code=f"{HUB}moonshotai/Kimi-VL-A3B-Instruct modeling_kimi_vl.py",
    ),
    "deepseek_vl_v2": Family(
        None,
        text="deepseek_v2",
        text_section="language_config",
        ties="text",
        code="https://github.com/deepseek-ai/DeepSeek-VL2/blob/main/deepseek_vl2/models/modeling_deepseek_vl_v2.py",
    ),
    "ovis": Family(
        None,
        text="qwen2",
        text_section="llm_config",
        generates=True,
        ties="text",
        code=f"{HUB}AIDC-AI/Ovis1.6-Gemma2-9B modeling_ovis.py",
    ),
    "phi3_v": Family(
        None,
        text="phi3",
        uncounted={"img_processor": "the image encoder is not counted", "embd_layer": "its projector is not counted"},
        ignored=frozenset({"img_processor", "embd_layer"}),
        code=f"{HUB}microsoft/Phi-3-vision-128k-instruct modeling_phi3_v.py",
    ),
}
