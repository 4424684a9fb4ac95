"""Multimodal wrappers whose class is code in the model's own repository; only their text model is counted.

Sources: the modeling files of the models' repositories, in `Family.code` of each model type.
"""

from __future__ import annotations

from dataclasses import replace

from ...config import Config
from ...family import Family
from ...parts import Table
from ..qwen import qwen_vl

HUB = "https://huggingface.co/"
VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/models/"
SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/models/"
MLX_VLM = "https://github.com/Blaizzy/mlx-vlm/tree/main/mlx_vlm/models/"
READ_HERE = "published_code"
"""The file in `towers` that reads the encoders of such wrappers."""


def _interns1_pro_text(config: Config) -> Table:
    """Reads Intern-S1-Pro: Qwen3-VL's experts, chosen within groups, and FoPE, whose coefficients are buffers."""
    scaling = config.get("rope_scaling") if config.has("rope_scaling") else None
    if isinstance(scaling, dict) and scaling.get("fope_init_factor") is not None:
        config.notes.append(
            "rope_scaling: FoPE: the products of its sines and cosines with its coefficients, once a pass, are not "
            "counted"
        )
    return qwen_vl.qwen3_vl_moe_text(config)


FAMILIES = {
    "internvl_chat": Family(
        None,
        text="llama",
        text_section="llm_config",
        generates=True,
        ties="text",
        code=f"{HUB}OpenGVLab/InternVL2-8B modeling_internvl_chat.py",
        tower_file=READ_HERE,
    ),
    "kimi_vl": Family(
        None,
        text="deepseek_v3",
        ties="text",
        code=f"{HUB}moonshotai/Kimi-VL-A3B-Instruct modeling_kimi_vl.py",
        tower_file=READ_HERE,
    ),
    "deepseek_vl_v2": Family(
        None,
        text="deepseek_v2",
        text_section="language_config",
        ties="text",
        code="https://github.com/deepseek-ai/DeepSeek-VL2/blob/main/deepseek_vl2/models/modeling_deepseek_vl_v2.py",
        towers="DeepseekVLV2",
        tower_file=READ_HERE,
    ),
    "ovis": Family(
        None,
        text="qwen2",
        text_section="llm_config",
        generates=True,
        ties="text",
        code=f"{HUB}AIDC-AI/Ovis1.6-Gemma2-9B modeling_ovis.py",
    ),
    "multi_modality": Family(
        None,
        text="llama",
        text_section="language_config",
        generates=True,
        ties="text",
        uncounted_encoders={"gen_vision_config": "a decoder of images"},
        code="https://github.com/deepseek-ai/Janus/blob/main/janus/models/modeling_vlm.py",
    ),
    "interns1": Family(None, text="qwen3", code=f"{HUB}internlm/Intern-S1 modeling_interns1.py", tower_file=READ_HERE),
    "interns1_pro": Family(
        None,
        {"tie_word_embeddings": False},
        text="interns1_pro_text",
        code=f"{HUB}internlm/Intern-S1-Pro modeling_interns1_pro.py",
        tower_file="qwen",
    ),
    "interns1_pro_text": replace(
        qwen_vl.FAMILIES["qwen3_vl_moe_text"],
        read=_interns1_pro_text,
        defaults={**qwen_vl.FAMILIES["qwen3_vl_moe_text"].defaults, "tie_word_embeddings": False},
        ignored=qwen_vl.FAMILIES["qwen3_vl_moe_text"].ignored | {"router_n_groups"},
        code=f"{HUB}internlm/Intern-S1-Pro modeling_interns1_pro.py",
    ),
    "intern_s2_preview": Family(
        None,
        {"tie_word_embeddings": False},
        text="qwen3_5_moe_text",
        code=f"{SGLANG}interns2preview.py",
        tower_file="qwen",
    ),
    "minimax_vl_01": Family(
        None, text="minimax_text_01", ties="text", code=f"{HUB}MiniMaxAI/MiniMax-VL-01 modeling_minimax_vl_01.py"
    ),
    "eagle_2_5_vl": Family(
        None,
        text="qwen2",
        ties="text",
        code=f"{HUB}nvidia/Eagle2.5-8B modeling_eagle2_5_vl.py",
        tower_file=READ_HERE,
    ),
    "llavaonevision1_5": Family(
        None,
        text="qwen3",
        ties="text",
        code=f"{HUB}lmms-lab/LLaVA-OneVision-1.5-8B-Instruct modeling_llavaonevision1_5.py",
    ),
    "ultravox": Family(
        None,
        text="llama",
        text_id="text_model_id",
        generates=True,
        ties="text",
        tower_file="audio",
        code="https://github.com/fixie-ai/ultravox/blob/main/ultravox/model/ultravox_model.py",
    ),
    "tinyllava": Family(
        None,
        text="llama",
        generates=True,
        ties="text",
        code="https://github.com/TinyLLaVA/TinyLLaVA_Factory/blob/main/tinyllava/model/modeling_tinyllava.py",
    ),
    "openvla": Family(
        None,
        text="llama",
        generates=True,
        ties="text",
        uncounted_encoders={"timm_model_ids": "timm"},
        code="https://github.com/openvla/openvla/blob/main/prismatic/extern/hf/modeling_prismatic.py",
    ),
    "hyperclovax_vlm": Family(
        None,
        text="llama",
        ties="text",
        generates=True,
        towers="HCXVision",
        code=f"{HUB}naver-hyperclovax/HyperCLOVAX-SEED-Vision-Instruct-3B modeling_hyperclovax.py",
    ),
    **{
        kind: Family(
            None, text=text, text_section="llm_config", generates=True, ties="text", code=code, tower_file=READ_HERE
        )
        for kind, text, code in (
            ("NVLM_D", "qwen2", f"{HUB}nvidia/NVLM-D-72B modeling_nvlm_d.py"),
            ("h2ovl_chat", "mistral", f"{HUB}h2oai/h2ovl-mississippi-2b modeling_h2ovl_chat.py"),
            ("skywork_chat", "qwen2", f"{HUB}Skywork/Skywork-R1V-38B modeling_skywork_chat.py"),
        )
    },
    **{
        kind: Family(None, text=text, text_section="llm_config", generates=True, ties="text", code=code)
        for kind, text, code in (
            ("ovis2_5", "qwen3", f"{HUB}AIDC-AI/Ovis2.5-9B modeling_ovis2_5.py"),
            ("eagle_chat", "qwen2", f"{HUB}nvidia/Eagle2-9B modeling_eagle_chat.py"),
            ("Llama_Nemotron_Nano_VL", "llama", f"{HUB}nvidia/Llama-3.1-Nemotron-Nano-VL-8B-V1 modeling.py"),
            ("NemotronH_Nano_VL_V2", "nemotron_h", f"{HUB}nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16 modeling.py"),
            ("pointsv1.5_chat", "qwen2", f"{SGLANG}points_v15_chat.py"),
        )
    },
    **{
        kind: Family(None, text=text, generates=True, ties="text", code=code)
        for kind, text, code in (
            ("kanana-1.5-v", "llama", f"{VLLM}kanana_v.py"),
            ("R", "qwen3", f"{VLLM}rvl.py"),
            ("bee", "qwen3", f"{VLLM}bee.py"),
            ("opencua", "qwen2", f"{VLLM}opencua.py"),
            ("step_robotics", "qwen3", f"{VLLM}step_vl.py"),
            ("llava_onevision2", "qwen3", f"{VLLM}llava_onevision2.py"),
            ("mage_vl", "qwen3", f"{MLX_VLM}mage_vl"),
            ("llmjpvl", "llama", f"{MLX_VLM}llmjpvl"),
            ("locateanything", "qwen2", f"{MLX_VLM}locateanything"),
            ("nvila", "qwen2", f"{SGLANG}nvila.py"),
            ("nvila_lite", "qwen2", f"{SGLANG}nvila_lite.py"),
            ("plamo2vl", "plamo2", f"{MLX_VLM}plamo2vl"),
            ("bailing_moe_v3_vl", "bailing_hybrid", f"{VLLM}bailing_moe_v3_vl.py"),
        )
    },
    **{
        kind: Family(None, text=text, generates=True, ties="text", uncounted_encoders=encoders, code=code)
        for kind, text, encoders, code in (
            ("midashenglm", "qwen2_5_omni_text", {"audio_encoder_config": "dasheng"}, f"{VLLM}midashenglm.py"),
            (
                "molmo_point",
                "molmo2_text",
                {
                    "vision_config": "molmo2_vision",
                    "adapter_config": "molmo_point",
                    "patch_location": "the heads that choose a patch, a subpatch and a location",
                },
                f"{MLX_VLM}molmo_point",
            ),
            (
                "funaudiochat",
                "qwen3",
                {"audio_config": "funaudiochat_audio_encoder"},
                f"{VLLM}funaudiochat.py",
            ),
            (
                "meralion2",
                "gemma2",
                {"speech_config": "whisper"},
                f"{HUB}MERaLiON/MERaLiON-2-10B modeling_meralion2.py",
            ),
        )
    },
    "alpamayo2_super": Family(
        None,
        text="qwen3_vl",
        text_section="vlm_config",
        generates=True,
        ties="text",
        uncounted_encoders={
            "vlm_config.vision_config": "qwen3_vl_vision",
            "expert_config": "the expert that generates trajectories",
        },
        code=f"{VLLM}alpamayo2_super.py",
    ),
    "dots_vlm": Family(
        None,
        text="deepseek_v3",
        ties="text",
        generates=True,
        towers="DotsVLM",
        tower_file=READ_HERE,
        code=f"{SGLANG}dots_vlm.py",
    ),
    "lfm2_audio": Family(
        None,
        text="lfm2",
        text_section="lfm",
        generates=True,
        ties="text",
        uncounted_encoders={"encoder": "conformer", "depthformer": "a decoder of audio tokens"},
        code="https://github.com/Liquid4All/liquid-audio/blob/main/src/liquid_audio/model/lfm2_audio.py",
    ),
    "sarashina2_vision": Family(
        None,
        text="llama",
        generates=True,
        ties="text",
        towers="Sarashina2Vision",
        code=f"{SGLANG}sarashina2_vision.py",
    ),
    "phi3_v": Family(
        None,
        text="phi3",
        ignored=frozenset({"img_processor", "embd_layer"}),
        towers="Phi3V",
        tower_file=READ_HERE,
        code=f"{HUB}microsoft/Phi-3-vision-128k-instruct modeling_phi3_v.py",
    ),
}
