"""The supported model types of Hugging Face configs, the reader file of each type, and facts about their classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ...components.head_kind import HeadKind
from ...errors import InputError, short_repr, suggest
from .class_defaults import class_defaults, class_fields
from .config import Config
from .family import Family, default_module_names
from .head_kinds import architecture_of

TYPES_BY_FILE: dict[str, tuple[str, ...]] = {
    file: tuple(kinds) for file, kinds in json.loads(Path(__file__).with_name("families.json").read_text()).items()
}
"""File in `families` (`bert.electra`: a folder and a file) → the model types that it reads, in the order in which
`convert` tries them. It is generated from the files' records by `python -m tests.sources.test_registry`.
"""

FILE_BY_TYPE = {kind: file for file, kinds in TYPES_BY_FILE.items() for kind in kinds}
"""Model type → the file that reads it."""

OTHER_TYPE_NAMES = {
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
    "florence2_language": "bart",
    "Emu3": "emu3_text_model",
    **dict.fromkeys(("ovis2_6", "ovis2_6_moe", "ovis2_6_next"), "ovis2_5"),
}
"""Older model type, or folder name of a family in transformers if it differs from the model type → the model type.

vLLM's class of Ovis 2.5 runs Ovis 2.6 too, whose model types say which text model it has. `florence2_language` is the
text model of Florence-2's own code (microsoft/Florence-2-large, modeling_florence2.py), whose layers are BART's.
"""


TYPE_BY_CODE_FIELD = {
    ("nomic_bert", "moe_every_n_layers"): "nomic_bert_moe",
    ("kimi_linear", "attn_res_block_size"): "kimi_k3_text",
    ("bailing_hybrid", "q_lora_rank"): "bailing_moe_v3",
    ("bert", "alibi_starting_size"): "mosaic_bert",
    ("esm", "add_bias_fnn"): "nucleotide_transformer_v2",
    ("Emu3", "max_window_layers"): "emu3_5",
    ("deepseek_v3", "gated_attention"): "instella_moe",
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

TYPE_BY_SPELLING = {kind.replace("-", "_"): kind for kind in FILE_BY_TYPE} | OTHER_TYPE_NAMES
"""Model type with `_` for every `-`, or its other name → the model type."""


class LibraryClasses(NamedTuple):
    """The generated facts about the classes of `transformers` (`python -m tests.sources.test_classes` writes them).

    transformers: the version of the library.
    classes: model type → its classes.
    bases: model type → the `base_model_prefix` of its classes, if that is not `model`.
    names: model type → the `attribute_map` of its configuration class.
    section_names: model type of a wrapper → section with an encoder → the `attribute_map` of its configuration
        class.
    losses_of_logits: the classes whose loss reads the logits in the logits' own number format.
    float32_routers: the model types whose classes route tokens by a product of float32 copies.
    float32_weights: the model types whose classes weigh experts' outputs in float32.
    grouped_routers: the model types whose classes select a token's experts from some groups of experts.
    flat_wrappers: the wrappers whose configuration class takes the text model's sizes from the top of the config, too.
    fixed_sections: model type of a wrapper → the sections whose configuration class is the same whatever `model_type`
        they state.
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
    flat_wrappers: list[str]
    fixed_sections: dict[str, list[str]]


@cache
def library_classes() -> LibraryClasses:
    """Returns the generated list of facts about the classes of `transformers`."""
    return LibraryClasses(**json.loads(Path(__file__).with_name("classes.json").read_text()))


def is_fixed_section(root_model_type: str, section_name: str) -> bool:
    """Whether a wrapper's class reads a section as a fixed model type, whatever type the section states."""
    return section_name in library_classes().fixed_sections.get(root_model_type, ())


def fixed_type_remark(root_model_type: str, section_name: str, stated_model_type: Any, class_model_type: str) -> str:
    """Returns a remark that a wrapper's class reads a section as another model type than the section states."""
    return (
        f"{section_name}.model_type: {short_repr(stated_model_type)}; read as '{class_model_type}', for "
        f"{root_model_type}'s class builds that model whatever type the section states"
    )


def library_class_names() -> dict[str, list[str]]:
    """Returns the `transformers` classes of each model type."""
    return library_classes().classes


def has_grouped_router(model_type: str, family: Family) -> bool:
    """Whether the class, or its published code, selects a token's experts from a few groups of experts."""
    return family.has_grouped_router or (family.class_model_type or model_type) in library_classes().grouped_routers


def typed_config(
    config_data: Mapping[str, Any], model_type: str, family: Family, head: HeadKind, section_path: str
) -> Config:
    """Returns a config as a `Config` with the family's defaults and aliases. section_path: as in `Config`."""
    aliases = {**library_classes().names.get(model_type, {}), **family.aliases}
    return Config(config_data, family.defaults, model_type, head, section_path, aliases, family.unread_aliases)


def model_type_of_class_name(class_name: str) -> str:
    """Returns the model type that has a class of this name; empty if no supported type has it."""
    return next(
        (model_type for model_type, class_names in library_class_names().items() if class_name in class_names), ""
    )


def model_type_of_code_fields(config_data: Mapping[str, Any]) -> str:
    """Returns the model type that a config's field in `TYPE_BY_CODE_FIELD` implies; empty if none does."""
    config_type = config_data.get("model_type") or model_type_of_class_name(architecture_of(config_data))
    return next(
        (
            model_type
            for (stated_model_type, field_name), model_type in TYPE_BY_CODE_FIELD.items()
            if config_type == stated_model_type and _has_field_value(config_data, field_name)
        ),
        "",
    )


def _has_field_value(config_data: Mapping[str, Any], field_path: str) -> bool:
    """Whether a config has a field with a value other than null and 0. field_path: with a dot for a table's field."""
    table_name, _, field_name = field_path.rpartition(".")
    config_table = config_data.get(table_name) if table_name else config_data
    field_value = config_table.get(field_name) if isinstance(config_table, Mapping) else None
    return bool(field_value) or field_value is False


def model_types() -> list[str]:
    """Returns all supported model types, sorted."""
    return sorted(FILE_BY_TYPE)


@cache
def _add_unlisted_families() -> None:
    """Registers the families of files that `TYPES_BY_FILE` does not list."""
    for family_file in family_files():
        if family_file not in TYPES_BY_FILE:
            FILE_BY_TYPE.update(dict.fromkeys(families_of_file(family_file), family_file))


def family_files() -> list[str]:
    """Returns the names of all family files, including those that `TYPES_BY_FILE` does not list."""
    from pkgutil import iter_modules

    families_folder = Path(__file__).with_name("families")
    folder_names = (family_module.name for family_module in iter_modules([str(families_folder)]))
    return [
        f"{file_name}.{module.name}"
        for file_name in folder_names
        for module in iter_modules([str(families_folder / file_name)])
    ]


@cache
def families_of_file(family_file: str) -> Mapping[str, Family]:
    """Returns the `Family` of each model type that a file in `families` reads."""
    families_by_type: Mapping[str, Family] = import_module(f".families.{family_file}", __package__).FAMILIES
    return {model_type: _with_defaults(family, model_type) for model_type, family in families_by_type.items()}


def _with_defaults(family: Family, model_type: str) -> Family:
    """Returns a `Family` with the defaults, fields and module names of its configuration class added."""
    class_model_type = family.class_model_type or model_type
    return replace(
        family,
        defaults={**class_defaults(class_model_type), **family.defaults},
        ignored_fields=family.ignored_fields | class_fields(class_model_type),
        modules=family.modules or default_module_names(model_type),
    )


def usual_name(model_type: str) -> str:
    """Returns the model type in its class's spelling, from a spelling with `_` instead of `-` or a folder's name."""
    return TYPE_BY_SPELLING.get(model_type.replace("-", "_"), model_type)


def family_of(model_type: str, section_path: str = "", config: Mapping[str, Any] | None = None) -> Family:
    """Returns the `Family` of a model type: how configs of this type are read and written.

    section_path: the path to it in the config, for the message.
    config: the whole config, for the message; default one with this model type alone.

    Raises `InputError`, which lists near names, for an unknown model type.
    """
    if model_type not in FILE_BY_TYPE:
        _add_unlisted_families()
    if model_type not in FILE_BY_TYPE:
        suggestion = suggest(model_type, model_types())
        advice_text = _unsupported_type_advice({"model_type": model_type} if config is None else config)
        raise InputError(f"{section_path}model_type: '{model_type}' is not supported.{suggestion} ({advice_text})")
    return families_of_file(FILE_BY_TYPE[model_type])[model_type]


@cache
def other_classes() -> dict[str, dict[str, list[str]]]:
    """Returns the model types of `transformers` that llmcalc does not support, with their classes.

    Key `classes`: model type → its classes. `causal`: the types with a causal language model. `language`: the types
        with a language model of any kind.
    """
    other_classes_by_type: dict[str, dict[str, list[str]]] = json.loads(
        Path(__file__).with_name("other_classes.json").read_text()
    )
    return other_classes_by_type


def is_measurable(config: Mapping[str, Any]) -> bool:
    """Whether `transformers` has a class for a config, as `--measure` requires.

    It is the class in `architectures`, else a language model of the model type.
    """
    stated_model_type = usual_name(config["model_type"])
    class_name = architecture_of(config)
    classes = other_classes()
    class_names = library_class_names().get(stated_model_type) or classes["classes"].get(stated_model_type, [])
    if class_name.lower() in {cls.lower() for cls in class_names}:
        return True
    if class_name.endswith("ForCausalLM"):
        return stated_model_type in classes["causal"]
    return not class_name and stated_model_type in classes["language"]


UNDESCRIBED_PARTS = {
    "abc": "attention to a bounded number of slots (ABC)",
    "caduceus": "state-space scans in both directions with common projections, and reverse complements",
    "comba": "a delta rule that decays its keys and corrects its output (Comba)",
    "dory": "residual sums that turn towards a normalized update at a learned rate (nGPT), within loops",
    "evabyte": "attention to chunks that are summarized by random features (EVA)",
    "forgetting_transformer": "attention whose scores decay by forget gates (FoX)",
    "gated_deltaproduct": "several steps of a delta rule for each token (DeltaProduct)",
    "granite_switch": "adapters of low rank that each token chooses",
    "gsa": "attention to slots that decay (GSA)",
    "hgrn": "a gated recurrence with lower bounds by layer (HGRN)",
    "hyenadna": "convolutions as long as the text (Hyena)",
    "hymba": "attention and a state-space scan on the same input, and learned tokens before the text",
    "infimm-zephyr": "cross-attention to images between those of its text model",
    "inkling2_loop": "loops that mix the blocks of the pass before by gates of low rank",
    "interns2_mobius": "routed experts that several layers share",
    "megrez_moe": "routed experts that several layers share",
    "mesa_net": "a linear system to solve for each token (MesaNet)",
    "motif": "activations of normalized powers (PolyNorm)",
    "neo_chat": "a second set of projections and norms for tokens of generated images",
    "openpangu_v2": "convolutions over tokens within latent attention, and learned entries that all tokens attend to",
    "path_attn": "positions from products of reflections (PaTH)",
    "rwkv6qwen2": "RWKV-6's mixing with grouped keys beside Qwen2's networks",
    "step5": "queries scaled by the logarithm of their position",
    "step5_text": "queries scaled by the logarithm of their position",
    "stripedhyena": "convolutions as long as the text (Hyena)",
    "xgenmm": "embeddings beside those of its text model",
    "yuan": "convolutions over tokens before queries and keys (localized filtering)",
    "zaya1_vl": "adapters for image tokens alone",
}
"""Model type that is not supported → what its published code has that a description cannot express."""

TOML_ADVICE = "its layers can be described in TOML, whose fields llmcalc schema lists"
"""The advice for a config of a model type that is not supported."""


def _unsupported_type_advice(config: Mapping[str, Any]) -> str:
    """Returns advice for a config of an unsupported model type, as the end of an error message."""
    if is_measurable(config):
        return "llmcalc params --measure counts its transformers class instead"
    class_name = architecture_of(config)
    model_types_of_class = [
        model_type for model_type, class_names in library_class_names().items() if class_name in class_names
    ]
    if model_types_of_class:
        return f"its class is named as that of {model_types_of_class[0]}: with that model_type it is read as one"
    undescribed_part = UNDESCRIBED_PARTS.get(config["model_type"].lower())
    if undescribed_part is not None:
        return f"its layers have {undescribed_part}, which a description in TOML does not have either"
    if "auto_map" in config:
        return f"its classes are code of its own repository (auto_map), which llmcalc never runs; {TOML_ADVICE}"
    known_classes = other_classes()["classes"].get(usual_name(config["model_type"]), [])
    if known_classes:
        return (
            f"its classes in transformers, {', '.join(known_classes[:4])}, are no language model; with one of them in "
            "architectures, llmcalc params --measure counts it"
        )
    return f"transformers has no class for it either; {TOML_ADVICE}"


def causal_class(model_type: str, section_path: str, config: Mapping[str, Any]) -> str:
    """Returns the class that `AutoModelForCausalLM` builds for a model type.

    Raises `InputError` for a model type without such a class.
    """
    family_of(model_type, section_path, config)
    class_name = next(
        (
            class_name
            for class_name in library_class_names().get(model_type, ())
            if class_name.endswith(("ForCausalLM", "LMHeadModel", "GenerationDecoder"))
        ),
        "",
    )
    if not class_name:
        raise InputError(
            f"{section_path}model_type: '{model_type}' has no class for causal language models; expected a decoder"
        )
    return class_name
