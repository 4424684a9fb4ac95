"""Multimodal wrappers whose class is code in the model's repository; only the text model is counted.

Sources: the modeling files of the models' repositories, in `Family.source` of each model type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...class_defaults import class_defaults, class_fields
from ...code_addresses import GITHUB, HUB, MLX_VLM, SGLANG, VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import Table
from ..qwen import qwen_vl

TOWER_FILE = "published_code"
"""The file in `towers` that reads the encoders of such wrappers."""

QWEN3_VL_MOE = qwen_vl.FAMILIES["qwen3_vl_moe_text"]
"""The family of Intern-S1-Pro's layers."""


def _read_interns1_pro_text(config: Config) -> Table:
    """Reads Intern-S1-Pro: Qwen3-VL's experts, chosen within groups, and FoPE, whose coefficients are buffers."""
    rope_scaling = config.get("rope_scaling") if config.has("rope_scaling") else None
    if isinstance(rope_scaling, dict) and rope_scaling.get("fope_init_factor") is not None:
        config.notes.append(
            "rope_scaling: FoPE: the products of its sines and cosines with its coefficients, once a pass, are not "
            "counted"
        )
    return qwen_vl.read_qwen3_vl_moe_text(config)


def _wrapper_family(
    text_model_type: str, source_url: str, text_section: str = "text_config", **family_fields: Any
) -> Family:
    """Returns the `Family` of a multimodal wrapper whose text section states whether embeddings are tied.

    text_model_type: the model type of its text model.
    family_fields: further fields of the record.
    """
    return Family(
        None,
        text_type=text_model_type,
        text_section=text_section,
        generates_text=True,
        tying_source="text",
        source=source_url,
        **family_fields,
    )


FAMILIES = {
    "internvl_chat": _wrapper_family(
        "llama", f"{HUB}OpenGVLab/InternVL2-8B modeling_internvl_chat.py", "llm_config", tower_file=TOWER_FILE
    ),
    "NVLM_D": _wrapper_family(
        "qwen2", f"{HUB}nvidia/NVLM-D-72B modeling_nvlm_d.py", "llm_config", tower_file=TOWER_FILE
    ),
    "h2ovl_chat": _wrapper_family(
        "mistral", f"{HUB}h2oai/h2ovl-mississippi-2b modeling_h2ovl_chat.py", "llm_config", tower_file=TOWER_FILE
    ),
    "skywork_chat": _wrapper_family(
        "qwen2", f"{HUB}Skywork/Skywork-R1V-38B modeling_skywork_chat.py", "llm_config", tower_file=TOWER_FILE
    ),
    "kimi_vl": _wrapper_family(
        "deepseek_v3", f"{HUB}moonshotai/Kimi-VL-A3B-Instruct modeling_kimi_vl.py", tower_file=TOWER_FILE
    ),
    "deepseek_vl_v2": _wrapper_family(
        "deepseek_v2",
        f"{GITHUB}deepseek-ai/DeepSeek-VL2/blob/main/deepseek_vl2/models/modeling_deepseek_vl_v2.py",
        "language_config",
        tower_class_prefixes="Deepseek",
        tower_file=TOWER_FILE,
    ),
    "eagle_2_5_vl": _wrapper_family("qwen2", f"{HUB}nvidia/Eagle2.5-8B modeling_eagle2_5_vl.py", tower_file=TOWER_FILE),
    "dots_vlm": _wrapper_family(
        "deepseek_v3", f"{SGLANG}dots_vlm.py", tower_class_prefixes="DotsVLM", tower_file=TOWER_FILE
    ),
    "phi3_v": Family(
        None,
        text_type="phi3",
        ignored_fields=frozenset({"img_processor", "embd_layer"}),
        tower_class_prefixes="Phi3V",
        tower_file=TOWER_FILE,
        source=f"{HUB}microsoft/Phi-3-vision-128k-instruct modeling_phi3_v.py",
    ),
    "interns1": Family(
        None, text_type="qwen3", source=f"{HUB}internlm/Intern-S1 modeling_interns1.py", tower_file=TOWER_FILE
    ),
    "interns1_pro": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="interns1_pro_text",
        source=f"{HUB}internlm/Intern-S1-Pro modeling_interns1_pro.py",
        tower_file="qwen",
    ),
    "interns1_pro_text": replace(
        QWEN3_VL_MOE,
        read_model=_read_interns1_pro_text,
        defaults={**class_defaults("qwen3_vl_moe_text"), "tie_word_embeddings": False},
        ignored_fields=QWEN3_VL_MOE.ignored_fields | class_fields("qwen3_vl_moe_text") | {"router_n_groups"},
        source=f"{HUB}internlm/Intern-S1-Pro modeling_interns1_pro.py",
    ),
    "intern_s2_preview": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="qwen3_5_moe_text",
        source=f"{SGLANG}interns2preview.py",
        tower_file="qwen",
    ),
    "ovis": _wrapper_family(
        "qwen2", f"{HUB}AIDC-AI/Ovis1.6-Gemma2-9B modeling_ovis.py", "llm_config", tower_file="ovis"
    ),
    "ovis2_5": _wrapper_family(
        "qwen3", f"{HUB}AIDC-AI/Ovis2.5-9B modeling_ovis2_5.py", "llm_config", tower_file="ovis"
    ),
    "eagle_chat": _wrapper_family("qwen2", f"{HUB}nvidia/Eagle2-9B modeling_eagle_chat.py", "llm_config"),
    "Llama_Nemotron_Nano_VL": _wrapper_family(
        "llama", f"{HUB}nvidia/Llama-3.1-Nemotron-Nano-VL-8B-V1 modeling.py", "llm_config"
    ),
    "NemotronH_Nano_VL_V2": _wrapper_family(
        "nemotron_h", f"{HUB}nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16 modeling.py", "llm_config"
    ),
    "pointsv1.5_chat": _wrapper_family("qwen2", f"{SGLANG}points_v15_chat.py", "llm_config"),
    "minimax_vl_01": _wrapper_family(
        "minimax_text_01", f"{HUB}MiniMaxAI/MiniMax-VL-01 modeling_minimax_vl_01.py", tower_file="llava"
    ),
    "llavaonevision1_5": _wrapper_family(
        "qwen3", f"{HUB}lmms-lab/LLaVA-OneVision-1.5-8B-Instruct modeling_llavaonevision1_5.py", tower_file=TOWER_FILE
    ),
    "tinyllava": _wrapper_family(
        "llama", f"{GITHUB}TinyLLaVA/TinyLLaVA_Factory/blob/main/tinyllava/model/modeling_tinyllava.py"
    ),
    "kanana-1.5-v": _wrapper_family("llama", f"{VLLM}kanana_v.py"),
    "R": _wrapper_family("qwen3", f"{VLLM}rvl.py"),
    "bee": _wrapper_family("qwen3", f"{VLLM}bee.py"),
    "opencua": _wrapper_family("qwen2", f"{VLLM}opencua.py"),
    "step_robotics": _wrapper_family("qwen3", f"{VLLM}step_vl.py", tower_file="step"),
    "llava_onevision2": _wrapper_family("qwen3", f"{VLLM}llava_onevision2.py"),
    "mage_vl": _wrapper_family("qwen3", f"{MLX_VLM}mage_vl"),
    "llmjpvl": _wrapper_family("llama", f"{MLX_VLM}llmjpvl"),
    "locateanything": _wrapper_family(
        "qwen2",
        f"{MLX_VLM}locateanything",
        tower_file=TOWER_FILE,
        ignored_fields=frozenset({"text_config.block_size", "text_config.causal_attn"}),
    ),
    "nvila": _wrapper_family("qwen2", f"{SGLANG}nvila.py"),
    "nvila_lite": _wrapper_family("qwen2", f"{SGLANG}nvila_lite.py"),
    "plamo2vl": _wrapper_family("plamo2", f"{MLX_VLM}plamo2vl"),
    "bailing_moe_v3_vl": _wrapper_family("bailing_hybrid", f"{VLLM}bailing_moe_v3_vl.py"),
    "sarashina2_vision": _wrapper_family(
        "llama", f"{SGLANG}sarashina2_vision.py", tower_class_prefixes="Sarashina2Vision"
    ),
    "hyperclovax_vlm": _wrapper_family(
        "llama",
        f"{HUB}naver-hyperclovax/HyperCLOVAX-SEED-Vision-Instruct-3B modeling_hyperclovax.py",
        tower_class_prefixes="HCXVision",
    ),
    "multi_modality": _wrapper_family(
        "llama",
        f"{GITHUB}deepseek-ai/Janus/blob/main/janus/models/modeling_vlm.py",
        "language_config",
        uncounted_encoders={"gen_vision_config": "a decoder of images"},
    ),
    "ultravox": _wrapper_family(
        "llama",
        f"{GITHUB}fixie-ai/ultravox/blob/main/ultravox/model/ultravox_model.py",
        text_id_field="text_model_id",
        tower_file="audio",
    ),
    "openvla": _wrapper_family(
        "llama", f"{GITHUB}openvla/openvla/blob/main/prismatic/extern/hf/modeling_prismatic.py", tower_file="timm"
    ),
    "midashenglm": _wrapper_family(
        "qwen2_5_omni_text", f"{VLLM}midashenglm.py", uncounted_encoders={"audio_encoder_config": "dasheng"}
    ),
    "molmo_point": _wrapper_family(
        "molmo2_text",
        f"{MLX_VLM}molmo_point",
        uncounted_encoders={
            "vision_config": "molmo2_vision",
            "adapter_config": "molmo_point",
            "patch_location": "the heads that choose a patch, a subpatch and a location",
        },
    ),
    "funaudiochat": _wrapper_family(
        "qwen3", f"{VLLM}funaudiochat.py", uncounted_encoders={"audio_config": "funaudiochat_audio_encoder"}
    ),
    "moss_audio": replace(
        _wrapper_family(
            "qwen3",
            f"{HUB}OpenMOSS-Team/MOSS-Audio-4B-Instruct modeling_moss_audio.py",
            "language_config",
            ignored_fields=field_names("adapter_hidden_size deepstack_num_inject_layers num_hidden_layers vocab_size"),
            uncounted_encoders={"audio_config": "moss_audio_encoder"},
        ),
        tying_source="never",
    ),
    "meralion2": _wrapper_family(
        "gemma2", f"{HUB}MERaLiON/MERaLiON-2-10B modeling_meralion2.py", uncounted_encoders={"speech_config": "whisper"}
    ),
    "alpamayo2_super": _wrapper_family(
        "qwen3_vl",
        f"{VLLM}alpamayo2_super.py",
        "vlm_config",
        uncounted_encoders={
            "vlm_config.vision_config": "qwen3_vl_vision",
            "expert_config": "the expert that generates trajectories",
        },
    ),
    "andesvl-aimv2-qwen3": _wrapper_family("qwen3", f"{HUB}OPPOer/AndesVL-0_6B-Instruct modeling_andesvl.py"),
    "bailingmm": _wrapper_family(
        "bailing_moe",
        f"{GITHUB}inclusionAI/Ming/blob/main/Ming-omni/modeling_bailingmm.py",
        "llm_config",
        ignored_fields=frozenset({"mlp_depth", "llm_config.image_patch_token"}),
        uncounted_encoders={"vision_config": "qwen2_5_vit", "audio_config": "sanm"},
    ),
    "lfm2_audio": _wrapper_family(
        "lfm2",
        f"{GITHUB}Liquid4All/liquid-audio/blob/main/src/liquid_audio/model/lfm2_audio.py",
        "lfm",
        uncounted_encoders={"encoder": "conformer", "depthformer": "a decoder of audio tokens"},
    ),
}
