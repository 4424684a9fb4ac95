"""Configs of speculative-decoding draft models, which state the `model_type` of a whole model, such as `llama`.

A draft is recognised by its class, by a field, or, for EAGLE and EAGLE-2 (SafeAILab/EAGLE, eagle/train), by its one
layer: their configs are those of a Llama cut to one layer of full size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import InputError, short_repr
from .config import is_json_integer
from .head_kinds import architecture_of

CLASS_PATTERN_BY_TYPE: dict[str, re.Pattern[str]] = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "peagle": r"P(arallel)?Eagle(?=[A-Z]|$)",
        "eagle3_deepseek": r"Eagle3Deep[Ss]eek|^Deep[Ss]eek\w*Eagle3(?=[A-Z]|$)",
        "eagle3_qwen3_moe": r"^Qwen3MoE\w*Eagle3(?=[A-Z]|$)",
        "eagle3_gpt_oss": r"^GptOss\w*Eagle3(?=[A-Z]|$)",
        "eagle3": r"Eagle3(?=[A-Z]|$)",
        "dspark": r"DSpark",
        "domino": r"DominoDraft",
        "dflash": r"DFlash(?!\d)",
        "dflash2": r"DFlash2(DraftModel|Qwen3)",
        "eagle": r"Eagle(?=[A-Z]|$)",
        "medusa": r"^MedusaModel$",
        "mlp_speculator": r"^MLPSpeculatorPreTrainedModel$",
    }.items()
}
"""Model type of a draft → pattern in the draft's class name; the first entry that matches decides."""

MTP_CLASS, MTP_TYPE = re.compile(r"(MTP|NextN)(?=[A-Z]|$)"), re.compile(r"(^|_)(mtp|nextn)$")
"""Patterns in the class names and model types of multi-token-prediction modules that vLLM and SGLang load as drafts."""

OTHER_DRAFT_CLASS = re.compile(rf"DFlare|DFlash\d|Medusa|Speculator|Draft(er|Model)|{MTP_CLASS.pattern}")
"""Pattern in the class names of drafts that are not supported: AngelSlim's DFlare, which has projections besides
DFlash's fields, other layers of DFlash 2, whole models with Medusa's heads, Snowflake's and other speculators, modules
of multi-token prediction as files.
"""

OTHER_LAYERS_CLASS = re.compile(r"Eagle2?Deep[Ss]eek|Eagle\d*(MiniCPM|MistralLarge3|Llama4)|DSparkV\d|KimiK3DSpark")
"""Pattern in the names of vLLM's draft classes whose layers are neither Llama's nor Qwen3's."""

FIELDS_OF_OTHER_LAYERS = (
    *("kv_lora_rank", "q_lora_rank", "n_mtp_layers", "num_experts", "num_local_experts", "n_routed_experts"),
    *("linear_attn_config", "target_kv_heads"),
)
"""Config fields that show that a draft's layers are not Llama's: latent or linear attention, experts, or the target's
keys and values. Ignored if the class says that the layers are Llama's.
"""

ACCEPTED_FIELDS: dict[str, tuple[str, ...]] = {
    "eagle3_deepseek": ("kv_lora_rank", "q_lora_rank", "n_routed_experts"),
    "eagle3_qwen3_moe": ("num_experts",),
    "eagle3_gpt_oss": ("num_local_experts",),
    "dflash": ("n_routed_experts",),
    "dspark": ("n_routed_experts",),
}
"""Model type of a draft → the fields of `FIELDS_OF_OTHER_LAYERS` that are accepted: its reader reads them, or its class
ignores them.
"""

ATTENTION_MODES = (None, "gqa", "mha")
"""Supported values of `attention_mode` and of each entry of `attention_modes`."""

LATENT_MODE = dict.fromkeys(("dflash", "dflash2", "dspark", "domino"), ("mla", ("kv_lora_rank", "q_lora_rank")))
"""Model type of a draft → the value of `attention_mode` that means latent attention, and the fields then accepted."""

OTHER_DRAFT_TYPE = re.compile(rf"^recurrent_drafter$|_(dspark|dflash|eagle)|{MTP_TYPE.pattern}")
"""Pattern of the model types of drafts that are not supported."""

DRAFT_TYPE_BY_FIELD = {"draft_vocab_size": "eagle3", "eagle_config": "eagle3", "dflash_config": "dflash"}
"""Field that only configs of drafts have → the model type of the draft."""

OTHER_DRAFT_FIELDS = ("medusa_num_heads", "hydra_num_heads", "speculators_config", "speculators_model_type")

FLATTENED_SECTIONS = ("transformer_layer_config", "model", "eagle_config", "dflash_config", "dspark_config")
"""Tables of a draft's config whose fields are read as top-level fields: the layers' config of speculators, the
draft's config in vLLM's, the fields of SpecForge.
"""

SPECULATORS_DEFAULTS: dict[str, dict[str, Any]] = {
    "dspark": {"markov_rank": 256, "enable_confidence_head": True, "confidence_head_with_markov": True},
    "eagle": {"fusion_bias": False},
    "medusa": {"original_lm_head": True},
}
"""Model type of a draft → the defaults of its config class in the library speculators that differ from its reader's."""

LEAST_EAGLE_WIDTH = 1024
"""The least hidden_size at which a one-layer Llama is read as an EAGLE draft; smaller models are test models."""


def with_draft_type(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Replaces a draft model's model type by the draft method's type, and adds remarks.

    Raises `InputError` for a draft that is not supported, recognised by its class or by a field.
    """
    class_name, stated_model_type = architecture_of(config), config.get("speculators_model_type")
    model_type = config.get("model_type")
    is_draft = isinstance(model_type, str) and model_type in CLASS_PATTERN_BY_TYPE
    if is_draft and not any(field_name in config for field_name in ("architectures", *FLATTENED_SECTIONS)):
        return config, []
    draft_type = next(
        (draft_type for draft_type, class_pattern in CLASS_PATTERN_BY_TYPE.items() if class_pattern.search(class_name)),
        "",
    )
    if isinstance(stated_model_type, str):
        draft_type = stated_model_type if stated_model_type in CLASS_PATTERN_BY_TYPE else ""
    elif not draft_type and is_draft and not OTHER_DRAFT_CLASS.search(class_name):
        draft_type = str(model_type)
    if not draft_type and not OTHER_DRAFT_CLASS.search(class_name) and not isinstance(stated_model_type, str):
        draft_type = next(
            (
                draft_type
                for marking_field, draft_type in DRAFT_TYPE_BY_FIELD.items()
                if config.get(marking_field) is not None
            ),
            "",
        )
    if not draft_type and not model_type and not class_name and config.get("medusa_num_heads") is not None:
        draft_type = "medusa"
    if draft_type == "dflash":
        dflash_config = config.get("dflash_config")
        dflash_config = dflash_config.get("projector_type") if isinstance(dflash_config, dict) else None
        draft_type = dflash_config if dflash_config in ("dspark", "domino") else draft_type
    if draft_type:
        flattened_config = _flattened_config(config, draft_type)
        _require_described_layers(flattened_config, class_name)
        return flattened_config, []
    _require_described_draft(config, class_name)
    if _is_eagle(config):
        return _flattened_config(config, "eagle"), [
            f"num_hidden_layers: 1 layer of hidden_size {config['hidden_size']}; read as a draft of EAGLE, whose "
            "configs are such (of a Llama cut to one layer, give its whole config with --set num_hidden_layers=1)"
        ]
    return config, []


def _flattened_config(config: Mapping[str, Any], draft_type: str) -> dict[str, Any]:
    """Returns a draft's config with nested fields at the top level, where a field of the same name stays.

    The class's name, which says nothing of its head, is left out.
    """
    speculators_model_type = config.get("speculators_model_type")
    flattened_fields = dict(SPECULATORS_DEFAULTS.get(draft_type, {})) if speculators_model_type is not None else {}
    for section_name in FLATTENED_SECTIONS:
        section_data = config.get(section_name)
        if section_data is None:
            continue
        if not isinstance(section_data, dict):
            raise InputError(f"{section_name}: {short_repr(section_data)}; expected a table of fields")
        flattened_fields |= section_data
    layer_fields = config.get("transformer_layer_config") or {}
    if draft_type in ("eagle3", "peagle") and layer_fields.get("model_type") == "qwen3":
        flattened_fields["use_qk_norm"] = True
    unread_fields = (*FLATTENED_SECTIONS, "architectures")
    return {
        **flattened_fields,
        **{field_name: field_value for field_name, field_value in config.items() if field_name not in unread_fields},
        "model_type": draft_type,
    }


def _require_described_layers(config: Mapping[str, Any], class_name: str) -> None:
    """Raises `InputError` for a supported draft method whose layers are another model family's."""
    read_fields = (
        {*FIELDS_OF_OTHER_LAYERS} if "Llama" in class_name else {*ACCEPTED_FIELDS.get(config["model_type"], ())}
    )
    latent_mode, latent_fields = LATENT_MODE.get(config["model_type"], (None, ()))
    if config.get("attention_mode") == latent_mode:
        read_fields |= {*latent_fields}
    foreign_fields = [
        foreign_field
        for foreign_field in FIELDS_OF_OTHER_LAYERS
        if config.get(foreign_field) is not None and foreign_field not in read_fields
    ]
    attention_mode, listed_modes = config.get("attention_mode"), config.get("attention_modes")
    attention_modes = listed_modes if isinstance(listed_modes, list) else [listed_modes]
    other_modes = [
        attention_mode
        for attention_mode in [*attention_modes, *([] if attention_mode == latent_mode else [attention_mode])]
        if attention_mode not in ATTENTION_MODES
    ]
    if OTHER_LAYERS_CLASS.search(class_name):
        reason_text = f"architectures: {class_name} is the class"
    elif foreign_fields:
        reason_text = f"{foreign_fields[0]}: {short_repr(config[foreign_fields[0]])} is a field"
    elif other_modes:
        reason_text = f"attention_mode: {short_repr(other_modes[0])} is the attention"
    else:
        return
    raise InputError(
        f"{reason_text} of a draft model whose layers are not supported; expected the config of a draft with layers of "
        "Llama or Qwen3, or of a whole model"
    )


def _require_described_draft(config: Mapping[str, Any], class_name: str) -> None:
    """Raises `InputError` for a draft model that is not supported, though its model type is a whole model's."""
    foreign_fields = [field_name for field_name in OTHER_DRAFT_FIELDS if config.get(field_name) is not None]
    model_type = str(config.get("model_type"))
    if OTHER_DRAFT_CLASS.search(class_name):
        reason_text = f"architectures: {class_name} is"
    elif OTHER_DRAFT_TYPE.search(model_type):
        reason_text = f"model_type: {model_type} is of"
    elif foreign_fields:
        reason_text = f"{foreign_fields[0]}: {short_repr(config[foreign_fields[0]])} is a field of"
    else:
        return
    expected_text = f"the config of a whole model, or of a draft of {', '.join(sorted(CLASS_PATTERN_BY_TYPE))}"
    if MTP_CLASS.search(class_name) or MTP_TYPE.search(model_type):
        expected_text = "the config of its target, whose multi-token-prediction modules --with-mtp counts"
    raise InputError(
        f"{reason_text} a draft model for speculative decoding, which reads the hidden states of its target model and "
        f"is not supported; expected {expected_text}"
    )


def _is_eagle(config: Mapping[str, Any]) -> bool:
    """Whether a config describes an EAGLE draft: a single Llama layer as wide as a whole model.

    Llamas cut to one layer for tests have the same fields (tests/cpu/hf_configs/llama of intel-extension-for-pytorch
    and yuhuili/EAGLE-llama2-chat-7B), so the draft is assumed, and a remark says so.
    """
    hidden_size = config.get("hidden_size")
    return (
        architecture_of(config) == "LlamaForCausalLM"
        and config.get("num_hidden_layers") == 1
        and is_json_integer(hidden_size)
        and hidden_size >= LEAST_EAGLE_WIDTH
    )
