"""The supported model types, the file that reads each of them, and the conversion of a parsed `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ...components.head_kind import HeadKind
from ...errors import InputError, shown, suggest
from .class_defaults import class_defaults, class_fields
from .config import Config
from .drafts import CLASSES, with_draft_type
from .dropout import dropout_of
from .family import Family
from .head_kinds import architecture_of, head_kind_of_config
from .unknown_fields import UnknownField, remark_on_ignored_fields

FILES: dict[str, tuple[str, ...]] = {
    file: tuple(kinds) for file, kinds in json.loads(Path(__file__).with_name("families.json").read_text()).items()
}
"""File in `families` (`bert.electra`: a folder and a file) → the model types that it reads, in the order in which
`convert` tries them. It is generated from the files' records by `python -m tests.sources.test_registry`.
"""

FILE_OF = {kind: file for file, kinds in FILES.items() for kind in kinds}
"""Model type → the file that reads it."""

OTHER_NAMES = {
    "minimax_m3": "minimax_m3_vl",
    "aria_moe_lm": "aria_text",
    "DeepseekOCR": "deepseek_vl_v2",
    "deepseek_ref": "deepseek_v4",
    "diff_llama": "diffllama",
    "domyn_edge": "domynedge",
    "glm53_flash": "glm5_next",
    "glm53_flash_text": "glm5_next_text",
    "glm53_flash_vision": "glm5_next_vision",
    "qwen3_8_flash_next": "qwen4_exp",
    "qwen3_8_flash_next_text": "qwen4_exp_text",
    "ernie4_5_moe_vl": "ernie4_5_vl_moe",
    "cogvlm2": "cogvlm",
    "joyai_llm_flash": "deepseek_v3",
    "llava_qwen2": "llava_qwen",
    "klear": "Klear",
    "youtu_llm": "youtu",
    "LLaVAOneVision1_5_text": "qwen3",
    "exaone4_5_text": "exaone4",
    "Emu3": "emu3_text_model",
}
"""Older model type, or folder name of a family in transformers if it differs from the model type → the model type."""

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

WRAPPER_CLASSES = {"HCXVisionV2ForCausalLM": ("hyperclovax_vision_v2", "HyperCLOVAXVisionV2ForConditionalGeneration")}
"""Class of a wrapper whose published configs state a model type of many models (`vlm`) → the model type that reads
them, and its class in `transformers`.
"""

CODE_FIELDS = {
    ("nomic_bert", "moe_every_n_layers"): "nomic_bert_moe",
    ("kimi_linear", "attn_res_block_size"): "kimi_k3_text",
    ("bailing_hybrid", "q_lora_rank"): "bailing_moe_v3",
    ("bert", "alibi_starting_size"): "mosaic_bert",
    ("esm", "add_bias_fnn"): "nucleotide_transformer_v2",
    ("Emu3", "max_window_layers"): "emu3_5",
    ("mamba", "fuse_cross_entropy"): "fla_mamba",
    ("mamba2", "fuse_cross_entropy"): "fla_mamba2",
    **{
        ("mpt", field): "llm_foundry_mpt"
        for field in (
            *("attention_bias", "block_overrides", "head_dim", "ffn_config.ffn_act_fn", "ffn_config.ffn_hidden_size"),
            *("attn_config.kv_n_heads", "attn_config.qk_gn", "attn_config.rope", "attn_config.sliding_window_size"),
        )
    },
}
"""Model type and a field that only the code of another model's repository reads → the model type that reads them.

With a path (`attn_config.rope`) it is a field of a table.

Nucleotide Transformer 2 states no model type, or that of its class's name.
"""

SPELLED = {kind.replace("-", "_"): kind for kind in FILE_OF} | OTHER_NAMES
"""Model type with `_` for every `-`, or its other name → the model type."""


class LibraryClasses(NamedTuple):
    """Facts about the classes of `transformers`, which `python -m tests.sources.test_classes` lists.

    transformers: the version of the library.
    classes: model type → its classes.
    bases: model type → the `base_model_prefix` of its classes, if that is not `model`.
    names: model type → the `attribute_map` of its configuration class.
    section_names: model type of a wrapper → section with an encoder → the `attribute_map` of its configuration class.
    losses_of_logits: the classes whose loss reads the logits in the logits' own number format.
    float32_routers: the model types whose classes route tokens by a product of float32 copies.
    float32_weights: the model types whose classes weigh experts' outputs in float32.
    grouped_routers: the model types whose classes select a token's experts from some groups of experts.
    """

    transformers: str
    classes: dict[str, list[str]]
    bases: dict[str, list[str]]
    names: dict[str, dict[str, str]]
    section_names: dict[str, dict[str, dict[str, str]]]
    losses_of_logits: list[str]
    float32_routers: list[str]
    float32_weights: list[str]
    grouped_routers: list[str]


@cache
def library_classes() -> LibraryClasses:
    """Reads the listed facts about the classes of `transformers`."""
    return LibraryClasses(**json.loads(Path(__file__).with_name("classes.json").read_text()))


def library_class_names() -> dict[str, list[str]]:
    """Returns the `transformers` classes of each model type."""
    return library_classes().classes


def with_router_fields(description_table: Any, router_fields: dict[str, Any], is_linear_only: bool = False) -> Any:
    """Returns a description with these fields set in every router. is_linear_only: only in linear routers."""
    if isinstance(description_table, list):
        return [
            with_router_fields(nested_element, router_fields, is_linear_only) for nested_element in description_table
        ]
    if not isinstance(description_table, dict):
        return description_table
    filled_table = {
        field_name: with_router_fields(field_value, router_fields, is_linear_only)
        for field_name, field_value in description_table.items()
    }
    router = filled_table.get("router", {})
    is_mixture = "num_experts" in filled_table and "expert" in filled_table
    if is_mixture and (not is_linear_only or router.get("type", "linear") == "linear"):
        filled_table["router"] = {**router, **router_fields}
    return filled_table


def has_grouped_router(model_type: str, family: Family) -> bool:
    """Whether the model's class or its published code selects a token's experts from some groups of experts."""
    return family.grouped_router or (family.class_model_type or model_type) in library_classes().grouped_routers


def _expert_groups(config: Config) -> dict[str, Any]:
    """Returns a router's expert groups; empty if the router selects among all experts."""
    group_count = config.optional_integer("n_group")
    reads_topk_method = "topk_method" in config.defaults  # of the classes with groups, those of DeepSeek-V2
    if group_count in (None, 1) or (reads_topk_method and config.get("topk_method") == "greedy"):
        return {}
    return {"n_group": group_count, "topk_group": config.integer("topk_group")}


LOGIT_CAPS = {
    "beam": 30.0,
    "diffusion_gemma_text": 30.0,
    "gemma2": 30.0,
    "gemma3n_text": 30.0,
    "mistral_large4_text": 30.0,
    "nanochat": 15.0,
    "recurrent_gemma": 30.0,
    "t5gemma": 30.0,
    "vaultgemma": 30.0,
}
"""Model type → the default of its configuration class for the soft cap of the logits."""


def _loss_fields(config: Config) -> dict[str, Any]:
    """Returns head fields for the loss: the number format of its logits, and their cap.

    Without a class in the config it is that of the model type's first class with such a head.
    """
    class_name = architecture_of(config.data) or next(
        (
            class_name
            for class_name in library_class_names().get(config.model_type, ())
            if head_kind_of_config({"architectures": [class_name]}) == "lm"
        ),
        "",
    )
    cap_fields_in_config = ("final_logit_softcapping", "logits_soft_cap")
    logit_cap = next(
        (config.data[field] for field in cap_fields_in_config if field in config.data),
        LOGIT_CAPS.get(config.model_type),
    )
    cap_fields = {"logit_softcapping": float(logit_cap)} if isinstance(logit_cap, int | float) and logit_cap > 0 else {}
    return {**cap_fields, **({"float32_loss": False} if class_name in library_classes().losses_of_logits else {})}


def typed_config(
    config_data: Mapping[str, Any], model_type: str, family: Family, head: HeadKind, section_path: str
) -> Config:
    """Returns a config with the family's defaults and aliases. section_path: as in `Config`."""
    aliases = {**library_classes().names.get(model_type, {}), **family.aliases}
    return Config(config_data, family.defaults, model_type, head, section_path, aliases, family.unread_aliases)


def model_type_of_class_name(class_name: str) -> str:
    """Returns the model type that has a class of this name; empty if no supported type has it."""
    return next(
        (model_type for model_type, class_names in library_class_names().items() if class_name in class_names), ""
    )


def with_model_type(config_data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Returns the config with its model type (by class name if missing), and remarks.

    Raises `InputError` if the class belongs to another family than the model type.
    """
    config_data, draft_notes = with_draft_type(config_data)
    class_name, model_type = architecture_of(config_data), config_data.get("model_type")
    if isinstance(model_type, str) and model_type in CLASSES:
        return config_data, draft_notes
    if class_name in WRAPPER_CLASSES:
        root_model_type, cls = WRAPPER_CLASSES[class_name]
        return {**config_data, "model_type": root_model_type, "architectures": [cls]}, []
    code_type = _model_type_of_repository_code(config_data, class_name)
    if code_type:
        return {**config_data, "model_type": code_type}, []
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
        and model_type in family_of(class_model_type).published_as
    ):
        return {**config_data, "model_type": class_model_type}, [
            f"model_type: '{model_type}'; read as '{class_model_type}', for architectures names {class_name}"
        ]
    if (
        isinstance(model_type, str)
        and usual_name(model_type) in FILE_OF
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
        " ".join(path for path in auto_map.values() if isinstance(path, str)) if isinstance(auto_map, dict) else ""
    )
    candidate_types = (
        model_type
        for class_prefix, model_type in CODE_CLASSES.items()
        if class_name.startswith(class_prefix) or f"/{class_prefix}" in code_paths
    )
    return next(candidate_types, "") or _model_type_of_code_fields(config_data)


def _model_type_of_code_fields(config_data: Mapping[str, Any]) -> str:
    """Returns the model type that reads a config with a field of `CODE_FIELDS`; empty without one or with 0."""
    config_type = config_data.get("model_type") or model_type_of_class_name(architecture_of(config_data))
    return next(
        (
            model_type
            for (stated_model_type, field), model_type in CODE_FIELDS.items()
            if config_type == stated_model_type and _has_value(config_data, field)
        ),
        "",
    )


def _has_value(config_data: Mapping[str, Any], field_path: str) -> bool:
    """Whether a config has a field, of a table if its path has a dot, with a value other than null and 0."""
    table_name, _, field_name = field_path.rpartition(".")
    table = config_data.get(table_name) if table_name else config_data
    field_value = table.get(field_name) if isinstance(table, Mapping) else None
    return bool(field_value) or field_value is False


def _are_different_models(config_data: Mapping[str, Any], stated_model_type: str, model_type: str) -> bool:
    """Whether the class's model type and the stated model type read the config as different models.

    It is False if both model types are in one file, if the config cannot be read as the other type, if the other type
    is a wrapper of this one, and if this type has no class for the text model and uses another type's.
    """
    stated_and_usual_family = (family_of(stated_model_type), family_of(model_type))
    reads_any_class = stated_model_type not in library_class_names() or not stated_and_usual_family[0].has_text_class
    if (
        reads_any_class
        or FILE_OF[stated_model_type] == FILE_OF[model_type]
        or any(family.read_model is None for family in stated_and_usual_family)
    ):
        return False
    try:
        return read_config(config_data)[0] != read_config({**config_data, "model_type": model_type})[0]
    except InputError:
        return False


def model_types() -> list[str]:
    """Returns all supported model types, sorted."""
    return sorted(FILE_OF)


@cache
def _add_unlisted_families() -> None:
    """Adds the families of files that are missing in `FILES`."""
    for family_file in family_files():
        if family_file not in FILES:
            FILE_OF.update(dict.fromkeys(families_of_file(family_file), family_file))


def family_files() -> list[str]:
    """Returns the names of all family files, also of those missing in `FILES`."""
    from pkgutil import iter_modules

    families_folder = Path(__file__).with_name("families")
    folder_names = (family_module.name for family_module in iter_modules([str(families_folder)]))
    return [
        f"{folder_name}.{family_module.name}"
        for folder_name in folder_names
        for family_module in iter_modules([str(families_folder / folder_name)])
    ]


@cache
def families_of_file(family_file: str) -> Mapping[str, Family]:
    """Returns the `Family` of each model type that a file in `families` reads."""
    families_by_type: Mapping[str, Family] = import_module(f".families.{family_file}", __package__).FAMILIES
    return {
        model_type: _with_class_fields(family, family.class_model_type or model_type)
        for model_type, family in families_by_type.items()
    }


def _with_class_fields(family: Family, model_type: str) -> Family:
    """Returns a `Family` completed with the defaults and fields of a model type's configuration class."""
    return replace(
        family,
        defaults={**class_defaults(model_type), **family.defaults},
        ignored_fields=family.ignored_fields | class_fields(model_type),
    )


def usual_name(model_type: str) -> str:
    """Returns a model type in the class's spelling, from a spelling with `_` for `-` or a folder name."""
    return SPELLED.get(model_type.replace("-", "_"), model_type)


def family_of(model_type: str, section_path: str = "", config: Mapping[str, Any] | None = None) -> Family:
    """Returns the `Family` of a model type: how configs of this type are read and written.

    section_path: the path to it in the config, for the message.
    config: the whole config, for the message; default one with this model type alone.

    Raises `InputError`, which lists near names, for an unknown model type.
    """
    if model_type not in FILE_OF:
        _add_unlisted_families()
    if model_type not in FILE_OF:
        suggestion = suggest(model_type, model_types())
        advice_text = _unsupported_type_advice({"model_type": model_type} if config is None else config)
        raise InputError(f"{section_path}model_type: '{model_type}' is not supported.{suggestion} ({advice_text})")
    return families_of_file(FILE_OF[model_type])[model_type]


@cache
def other_classes() -> dict[str, dict[str, list[str]]]:
    """Returns the model types of `transformers` that llmcalc does not support, with their classes.

    Key `classes`: model type → its classes. `causal`: the types with a causal language model. `language`: the types
        with a language model of any kind.
    """
    classes_by_type: dict[str, dict[str, list[str]]] = json.loads(
        Path(__file__).with_name("other_classes.json").read_text()
    )
    return classes_by_type


def is_measurable(config: Mapping[str, Any]) -> bool:
    """Whether `--measure` finds a class of `transformers` for a config.

    It is the class in `architectures`, else a language model of the model type.
    """
    stated_model_type, class_name, unsupported_classes = (
        usual_name(config["model_type"]),
        architecture_of(config),
        other_classes(),
    )
    class_names = library_class_names().get(stated_model_type) or unsupported_classes["classes"].get(
        stated_model_type, []
    )
    if class_name.lower() in {cls.lower() for cls in class_names}:
        return True
    if class_name.endswith("ForCausalLM"):
        return stated_model_type in unsupported_classes["causal"]
    return not class_name and stated_model_type in unsupported_classes["language"]


UNDESCRIBED_PARTS = {
    "caduceus": "state-space scans in both directions with common projections, and reverse complements",
    "evabyte": "attention to chunks that are summarized by random features (EVA)",
    "gigachat3_5": "norms gated by a projection of rank 16, also within latent attention",
    "gsa": "attention to slots that decay (GSA)",
    "hgrn": "a gated recurrence with lower bounds by layer (HGRN)",
    "hyenadna": "convolutions as long as the text (Hyena)",
    "hymba": "attention and a state-space scan on the same input, and learned tokens before the text",
    "infimm-zephyr": "cross-attention to images between those of its text model",
    "iquest_q1": "residual sums after norms, and keys as attention sinks",
    "motif": "activations of normalized powers (PolyNorm)",
    "step5": "queries scaled by the logarithm of their position",
    "step5_text": "queries scaled by the logarithm of their position",
    "stripedhyena": "convolutions as long as the text (Hyena)",
    "xgenmm": "embeddings beside those of its text model",
    "yuan": "convolutions over tokens before queries and keys (localized filtering)",
    "zaya1_vl": "adapters for image tokens alone",
}
"""Model type of published code → what its layers have that no part of a description has."""

IN_TOML = "its layers can be described in TOML, whose fields llmcalc schema lists"
"""What can be done about a config of a model type that is not supported."""


def _unsupported_type_advice(config: Mapping[str, Any]) -> str:
    """Returns the advice for an error message about a config of an unsupported model type."""
    if is_measurable(config):
        return "llmcalc params --measure counts its transformers class instead"
    class_name = architecture_of(config)
    types_of_class = [
        model_type for model_type, class_names in library_class_names().items() if class_name in class_names
    ]
    if types_of_class:
        return f"its class is named as that of {types_of_class[0]}: with that model_type it is read as one"
    undescribed_part = UNDESCRIBED_PARTS.get(config["model_type"].lower())
    if undescribed_part is not None:
        return f"its layers have {undescribed_part}, which a description in TOML does not have either"
    if "auto_map" in config:
        return f"its classes are code of its own repository (auto_map), which llmcalc never runs; {IN_TOML}"
    known_classes = other_classes()["classes"].get(usual_name(config["model_type"]), [])
    if known_classes:
        return (
            f"its classes in transformers, {', '.join(known_classes[:4])}, are no language model; with one of them in "
            "architectures, llmcalc params --measure counts it"
        )
    return f"transformers has no class for it either; {IN_TOML}"


def text_model_of(config_data: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    """Returns the path of a config's text model, with the text model's fields and model type.

    Raises `InputError` if the wrapper or the section with its text model is not supported.
    """
    model_type = config_data.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(
            f"model_type: {'missing' if model_type is None else shown(model_type)}; expected the name of a model type, "
            "or a description in TOML, whose fields llmcalc schema lists"
        )
    model_type = usual_name(model_type)
    family = family_of(model_type, config=config_data)
    wrapped_type, section_name = family.text_type, family.text_section
    if wrapped_type is None:
        return "", config_data, model_type
    text_section = config_data.get(section_name)
    if text_section is None and family.text_id_field and config_data.get(family.text_id_field):
        raise InputError(
            f"{family.text_id_field}: {shown(config_data[family.text_id_field])} names the text model, whose sizes are "
            f"not in this config; expected a {section_name} with them, or that model's own config"
        )
    if text_section is None:
        return "", {**config_data, "architectures": []} if family.generates_text else config_data, wrapped_type
    if not isinstance(text_section, dict):
        raise InputError(f"{section_name}: {shown(text_section)}; expected a table of fields")
    text_type = text_section.get("model_type") or wrapped_type
    if not isinstance(text_type, str):
        raise InputError(f"{section_name}.model_type: {shown(text_type)}; expected the name of a model type")
    text_type = _model_type_of_code_fields(text_section) or usual_name(text_type)
    architecture_field = {"architectures": config_data["architectures"]} if "architectures" in config_data else {}
    if family.generates_text:
        architecture_field = {"architectures": []}
    text_fields = {
        **architecture_field,
        **family.text_defaults,
        **text_section,
        **_tying_field(family, config_data),
        **_text_fields_of_root(family, config_data),
    }
    if family.is_decoder:
        text_fields["architectures"] = [causal_class(text_type, f"{section_name}.", config_data)]
    if text_type in FILE_OF and isinstance(text_section.get(family_of(text_type).text_section), dict):
        path, inner_fields, text_type = text_model_of({**text_fields, "model_type": text_type})
        return f"{section_name}.{path}", inner_fields, text_type
    return f"{section_name}.", text_fields, text_type


def causal_class(model_type: str, section_path: str, config: Mapping[str, Any]) -> str:
    """Returns the class that `AutoModelForCausalLM` builds for a model type.

    Raises `InputError` for a model type without such a class.
    """
    family_of(model_type, section_path, config)
    class_name = next(
        (
            class_name
            for class_name in library_class_names().get(model_type, ())
            if class_name.endswith(("ForCausalLM", "LMHeadModel"))
        ),
        "",
    )
    if not class_name:
        raise InputError(
            f"{section_path}model_type: '{model_type}' has no class for causal language models; expected a decoder"
        )
    return class_name


def _text_fields_of_root(family: Family, root_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the text model's fields that the wrapper's class takes from other config sections."""
    text_fields: dict[str, Any] = {}
    for field_name, (section_name, field, default_value) in family.text_fields_from_sections.items():
        section_data = root_config.get(section_name)
        if isinstance(section_data, dict):
            text_fields[field_name] = section_data.get(field, default_value)
    return text_fields


def _tying_field(family: Family, root_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the wrapper's `tie_word_embeddings` if it takes precedence over the text model's; else empty.

    Without one in the wrapper's config, the text model's is used: a checkpoint with both tensors is loaded untied,
    whatever the default of the wrapper's class.
    """
    if family.tying_source == "never":
        return {"tie_word_embeddings": False}
    tying_fields = dict.fromkeys(
        (family.aliases.get("tie_word_embeddings", "tie_word_embeddings"), "tie_word_embeddings")
    )
    stated_tying = next((root_config[field] for field in tying_fields if root_config.get(field) is not None), None)
    if (
        stated_tying is None
        or family.tying_source == "text"
        or (family.tying_source == "either" and stated_tying is False)
    ):
        return {}
    if type(stated_tying) is not bool:
        raise InputError(f"tie_word_embeddings: {shown(stated_tying)}; expected true or false")
    return dict.fromkeys(tying_fields, stated_tying)


def _remark_on_other_class(model_type: str, config_data: Mapping[str, Any], has_head: bool) -> list[str]:
    """Returns a remark on a class that is counted as the model type's, or without a head, if it is not known.

    It may have weights beside the model's: `LlamaRewardModel` of UltraRM has a head with one score, the first
    `BitnetForCausalLM` had two norms more in each layer of Llama. Names of the same class in TensorFlow and JAX are
    known, and so is a class with a head whose name starts with the model type's letters (`Step3p7FlashForCausalLM`).
    """
    class_name, family = architecture_of(config_data), family_of(model_type)
    class_names = library_class_names()
    has_remark = "For" in class_name and not class_name.endswith(("ForCausalLM", "ForMaskedLM"))  # that of `head_table`
    if family.source or not class_names.get(model_type) or not class_name or has_remark:
        return []
    if class_name.removeprefix("TF").removeprefix("Flax").lower() in _library_class_names_in_lower_case():
        return []
    class_start = class_name.lower().removesuffix("forcausallm").removesuffix("formaskedlm")
    type_letters = model_type.lower().replace("_", "").replace("-", "")
    if class_name.endswith("Model") and not has_head:
        counted_text, uncounted_text = "its layers and norms are counted", "no head or other weights that it may have"
    elif class_start != class_name.lower() and not (
        class_start.startswith(type_letters) or type_letters.startswith(class_start)
    ):
        counted_text, uncounted_text = (
            f"the layers of {model_type} are counted",
            "no other weights that its code may have",
        )
    else:
        return []
    return [f"architectures: {class_name} is no known class of '{model_type}'; {counted_text}, and {uncounted_text}"]


@cache
def _library_class_names_in_lower_case() -> frozenset[str]:
    return frozenset(class_name.lower() for names in library_class_names().values() for class_name in names)


def _check_wrapper_vocabulary(model_type: str, root_config: Mapping[str, Any], model_fields: Mapping[str, Any]) -> None:
    """Raises `InputError` if the class's output layer has other rows than the text model's vocabulary."""
    family = family_of(model_type)
    if not family.wrapper_sizes_head or model_fields["tie_word_embeddings"] or family.text_section not in root_config:
        return
    stated_rows, text_rows = root_config.get("vocab_size"), model_fields["vocab_size"]
    head_rows = family.defaults["vocab_size"] if stated_rows is None else stated_rows
    if head_rows != text_rows:
        problem_text = f"missing, where its class takes {head_rows}" if stated_rows is None else shown(stated_rows)
        raise InputError(
            f"vocab_size: {problem_text}; expected {text_rows} as in {family.text_section} (the class sizes an untied "
            "output layer by this field, the embedding by that one; two sizes are not counted)"
        )


def _tying_remark(model_type: str, root_config: Mapping[str, Any], model_fields: Mapping[str, Any]) -> list[str]:
    """Returns a remark if the wrapper's config omits weight tying and the class's default differs.

    The text model's default counts.
    """
    family = family_of(model_type)
    default_tying, is_tied = family.defaults.get("tie_word_embeddings"), model_fields["tie_word_embeddings"]
    is_stated = any(
        root_config.get(field_name) is not None
        for field_name in ("tie_word_embeddings", family.aliases.get("tie_word_embeddings", ""))
    )
    if (
        family.text_type is None
        or family.tying_source == "text"
        or is_stated
        or default_tying is None
        or default_tying == is_tied
        or (family.tying_source == "either" and is_tied)
        or model_fields["head"]["type"] != "lm"
    ):
        return []
    tied_text, default_text = str(is_tied).lower(), str(default_tying).lower()
    return [
        f"tie_word_embeddings: not given beside text_config; counted as {tied_text}, as the text model has it, where "
        f"{model_type}'s class takes {default_text}"
    ]


def _builds_towers(model_type: str, root_config: Mapping[str, Any]) -> bool:
    """Whether the class in `architectures` builds vision or audio encoders; false for a text model's class."""
    family, cls = family_of(model_type), architecture_of(root_config)
    if family.tower_class_prefixes:
        return not cls or cls.startswith(family.tower_class_prefixes)
    return family.text_type is not None and not cls.endswith("ForCausalLM")


def _wrapper_towers(
    root_model_type: str, root_config: Mapping[str, Any], text_hidden_size: int
) -> tuple[dict[str, Any], list[str]]:
    """Returns the `towers` table of a wrapper, and of the wrapper inside it if there is one, with remarks."""
    from .towers import read_towers

    family = family_of(root_model_type)
    class_facts = library_classes()
    section_aliases = {
        **class_facts.section_names.get(root_model_type, {}),
        "": class_facts.names.get(root_model_type, {}),
    }
    towers, notes = read_towers(
        root_model_type, family, _with_usual_model_types(root_config), text_hidden_size, section_aliases
    )
    inner_config = root_config.get(family.text_section)
    if (
        isinstance(inner_config, dict)
        and family.text_type is not None
        and family_of(family.text_type).text_type is not None
    ):
        inner_towers, inner_notes = _wrapper_towers(family.text_type, inner_config, text_hidden_size)
        return {**towers, **inner_towers}, [*notes, *(f"{family.text_section}: {note}" for note in inner_notes)]
    return towers, notes


def _encoders_of_another_class(model_type: str, root_config: Mapping[str, Any]) -> list[str]:
    """Returns a remark for each encoder that is not counted because the config's class is not supported."""
    from .towers import SECTIONS

    encoder_remark = f"its encoder is not counted: that of {architecture_of(root_config)} is not supported"
    encoder_sections = (section_name for section_name in SECTIONS if isinstance(root_config.get(section_name), dict))
    return [
        f"{section_name}: {encoder_remark}"
        for section_name in encoder_sections
        if section_name not in family_of(model_type).uncounted_fields
    ]


def _with_usual_model_types(root_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a wrapper's config whose sections have the model types of `transformers` instead of other names."""
    return {
        section_name: {**section_value, "model_type": OTHER_NAMES[section_value["model_type"]]}
        if isinstance(section_value, dict) and str(section_value.get("model_type")) in OTHER_NAMES
        else section_value
        for section_name, section_value in root_config.items()
    }


def _inner_model_config(
    root_model_type: str, root_config: Mapping[str, Any], field: str, default_value: int
) -> tuple[str, Mapping[str, Any], int]:
    """Returns the type and config of the model inside a projection class, and the size of the projected vectors."""
    section_value = root_config[family_of(root_model_type).text_section]
    inner_model_type = usual_name(section_value.get("model_type") or str(family_of(root_model_type).text_type))
    vector_size = Config(root_config, {field: default_value}, root_model_type).integer(field)
    return inner_model_type, {**section_value, "architectures": []}, vector_size


class ConfigDescription(NamedTuple):
    """The result of reading a config: the description, remarks and unknown fields.

    model: the `model` table of a native description.
    notes: remarks for the user.
    model_type: the text model's type.
    unknown: fields that were never read.
    from_defaults: sizes that the config leaves to its class.
    """

    model: dict[str, Any]
    notes: list[str]
    model_type: str
    unknown: list[UnknownField]
    from_defaults: dict[str, int]


def read_config(config_data: Mapping[str, Any], head: HeadKind | None = None) -> tuple[dict[str, Any], list[str]]:
    """Returns the `model` table and the remarks of a config, and ignores unknown fields.

    Raises `InputError`, which names the field, its value and the expected value.
    """
    config_description = read_description(config_data, head)
    return config_description.model, [
        *config_description.notes,
        *remark_on_ignored_fields([field.path for field in config_description.unknown]),
    ]


def read_description(config_data: Mapping[str, Any], head: HeadKind | None = None) -> ConfigDescription:
    """Reads a config, and collects all remarks and unknown fields.

    Raises `InputError`, which names the field, its value and the expected value.
    """
    config_data, draft_notes = with_draft_type(config_data)
    root_config, (section_path, config_data, model_type) = config_data, text_model_of(config_data)
    root_model_type, family = usual_name(root_config["model_type"]), family_of(model_type, section_path, root_config)
    if family.read_model is None:
        raise InputError(
            f"{section_path}model_type: '{model_type}' wraps a text model, but the config has no {family.text_section}"
        )
    generates_text = family_of(root_model_type).generates_text or family_of(root_model_type).is_decoder
    stated_head = (
        "lm"
        if generates_text
        else "none"
        if family_of(root_model_type).projection_size
        else head_kind_of_config(root_config)
    )
    config = typed_config(config_data, model_type, family, head or stated_head, section_path)
    model_fields = family.read_model(config)
    model_fields |= dropout_of(config, family)
    if model_fields["head"]["type"] == "lm":
        _check_wrapper_vocabulary(root_model_type, root_config, model_fields)
        model_fields["head"] = {**model_fields["head"], **_loss_fields(config)}
    if model_type in library_classes().float32_routers:
        model_fields = with_router_fields(model_fields, {"float32_product": True}, is_linear_only=True)
    if model_type in library_classes().float32_weights:
        model_fields = with_router_fields(model_fields, {"float32_weights": True})
    if has_grouped_router(model_type, family):
        model_fields = with_router_fields(model_fields, _expert_groups(config), is_linear_only=True)
    family_records = (
        (family,) if section_path or root_model_type == model_type else (family, family_of(root_model_type))
    )
    uncounted_towers = {
        ignored_field: tower_notes
        for family_record in family_records
        for ignored_field, tower_notes in family_record.uncounted_fields.items()
    }
    encoder_tables = (() if section_path else family_record.uncounted_encoders for family_record in family_records)
    nested_fields = (
        ignored_field.removeprefix(section_path)
        for ignored_field in family_of(root_model_type).ignored_fields
        if section_path and section_path in ignored_field
    )
    config.finish(
        frozenset(nested_fields).union(
            uncounted_towers, *encoder_tables, *(family_record.ignored_fields for family_record in family_records)
        )
    )
    uncounted_notes = [
        f"{ignored_field}: {tower_notes.format(shown(fields[ignored_field]))}"
        for fields, notes_by_field in (
            (config_data, uncounted_towers),
            (root_config, family_of(root_model_type).uncounted_fields if section_path else {}),
        )
        for ignored_field, tower_notes in notes_by_field.items()
        if fields.get(ignored_field)
    ]
    notes = [*draft_notes, *config.notes, *uncounted_notes, *_tying_remark(root_model_type, root_config, model_fields)]
    if head is None:
        notes += _remark_on_other_class(root_model_type, root_config, model_fields["head"]["type"] != "none")
    projection_field = family_of(root_model_type).projection_size
    if projection_field is not None:
        root_model_type, root_config, vector_size = _inner_model_config(root_model_type, root_config, *projection_field)
        model_fields["head"] = {"type": "projection", "size": vector_size, "bias": True}
    if _builds_towers(root_model_type, root_config):
        towers, tower_notes = _wrapper_towers(root_model_type, root_config, model_fields["hidden_size"])
        model_fields |= {"towers": towers} if towers else {}
        notes += tower_notes
    elif family_of(root_model_type).tower_class_prefixes:
        notes += _encoders_of_another_class(root_model_type, root_config)
    return ConfigDescription(model_fields, notes, model_type, config.unknown, config.from_defaults)
