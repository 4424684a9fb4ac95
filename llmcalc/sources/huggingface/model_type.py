"""Finds the model type of a parsed `config.json`: the stated type, or the type of its class and fields if different."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from .description import read_config
from .drafts import CLASS_PATTERN_BY_TYPE, with_draft_type
from .head_kinds import architecture_of
from .registry import (
    FILE_BY_TYPE,
    family_of,
    library_class_names,
    model_type_of_class_name,
    model_type_of_code_fields,
    usual_name,
)

CODE_CLASSES = {
    "BailingMoeV2_5": "bailing_moe_v2_5",
    "LongcatFlashNgram": "longcat_flash_ngram",
    "CogVLM": "cogvlm",
    "Grok1ForCausalLM": "grok-2",
    "JinaBert": "jina_bert",
    "BitnetForCausalLM": "bitnet",
    "GPT2LMHeadCustomModel": "gpt_bigcode",
    "xlm-roberta-flash-implementation": "xlm_roberta_flash",
    "LlavaLlama": "llava_llama",
    "LlavaMistral": "llava_mistral",
    "LlavaMpt": "llava_mpt",
    "LlavaQwen": "llava_qwen",
    "LlavaGemma": "llava_gemma",
}
"""Start of the name of a class, or of its repository in `auto_map`, whose published configs state the model type of
another class (Grok-2 `git`, Jina embeddings 2 `bert`, BitNet b1.58 of 1bitLLM `llama`, SantaCoder `gpt2`, LLaVA
`llava`) → the model type that reads them.
"""


WRAPPER_CLASSES = {
    "HCXVisionV2ForCausalLM": ("hyperclovax_vision_v2", "HyperCLOVAXVisionV2ForConditionalGeneration"),
    "UnlimitedOCRForCausalLM": ("unlimited_ocr", "UnlimitedOcrForConditionalGeneration"),
}
"""Class of a wrapper's own code, whose published configs state another model type or have no other class → the model
type that reads them, and its class in `transformers`.
"""


def with_model_type(config_data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Returns the config with its model type (by class name if missing), and remarks.

    Raises `InputError` if the class belongs to another family than the model type.
    """
    config_data, draft_notes = with_draft_type(config_data)
    class_name, model_type = architecture_of(config_data), config_data.get("model_type")
    if isinstance(model_type, str) and model_type in CLASS_PATTERN_BY_TYPE:
        return config_data, draft_notes
    if class_name in WRAPPER_CLASSES:
        root_model_type, root_class_name = WRAPPER_CLASSES[class_name]
        return {**config_data, "model_type": root_model_type, "architectures": [root_class_name]}, []
    code_model_type = _model_type_of_repository_code(config_data, class_name)
    if code_model_type:
        return {**config_data, "model_type": code_model_type}, []
    class_model_type = model_type_of_class_name(class_name) if class_name else ""
    if not class_model_type:
        return config_data, []
    if model_type is None or model_type == "":
        return {**config_data, "model_type": class_model_type}, [
            f"model_type: not given; taken as '{class_model_type}', for architectures names {class_name}"
        ]
    if (
        isinstance(model_type, str)
        and model_type != class_model_type
        and model_type in family_of(class_model_type).other_model_types
    ):
        return {**config_data, "model_type": class_model_type}, [
            f"model_type: '{model_type}'; read as '{class_model_type}', for architectures names {class_name}"
        ]
    if (
        isinstance(model_type, str)
        and usual_name(model_type) in FILE_BY_TYPE
        and _are_different_models(config_data, usual_name(model_type), class_model_type)
    ):
        raise InputError(
            f"architectures: {class_name} is a class of '{class_model_type}', but model_type says '{model_type}', and "
            "these are two models; expected fields that name one"
        )
    return config_data, []


def _model_type_of_repository_code(config_data: Mapping[str, Any], class_name: str) -> str:
    """Returns the model type of a config whose class is repository code; empty if llmcalc cannot read the config.

    class_name: the name of the class.
    """
    if "text_config" in config_data:
        return ""
    auto_map = config_data.get("auto_map")
    code_paths = (
        " ".join(code_path for code_path in auto_map.values() if isinstance(code_path, str))
        if isinstance(auto_map, dict)
        else ""
    )
    candidate_types = (
        model_type
        for class_prefix, model_type in CODE_CLASSES.items()
        if class_name.startswith(class_prefix) or f"/{class_prefix}" in code_paths
    )
    return next(candidate_types, "") or model_type_of_code_fields(config_data)


def _are_different_models(config_data: Mapping[str, Any], stated_model_type: str, model_type: str) -> bool:
    """Whether the class's model type and the stated model type would read the config as different models.

    It is False if both model types are in one file, if the config cannot be read as the other type, if the other type
    is a wrapper of this one, and if this type has no class for the text model and uses another type's.
    """
    stated_and_usual_families = (family_of(stated_model_type), family_of(model_type))
    reads_any_class = stated_model_type not in library_class_names() or not stated_and_usual_families[0].has_text_class
    if (
        reads_any_class
        or FILE_BY_TYPE[stated_model_type] == FILE_BY_TYPE[model_type]
        or any(family.read_model is None for family in stated_and_usual_families)
    ):
        return False
    try:
        return read_config(config_data)[0] != read_config({**config_data, "model_type": model_type})[0]
    except InputError:
        return False
