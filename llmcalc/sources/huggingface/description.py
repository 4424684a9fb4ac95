"""Describes the model of a parsed `config.json`: its text model, `model` table, remarks and unknown fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from ...components.head_kind import HeadKind
from ...errors import InputError, short_repr
from .config import SIZE_FIELDS, Config, is_json_integer
from .drafts import with_draft_type
from .dropout import dropout_of
from .family import Deviation, Family, is_untied
from .head_kinds import ARTIFACT_FILE, PROJECTION_BY_CLASS, PROJECTION_FIELD, architecture_of, head_kind_of_config
from .parts import with_router_fields
from .registry import (
    FILE_BY_TYPE,
    OTHER_TYPE_NAMES,
    causal_class,
    family_of,
    fixed_type_remark,
    has_grouped_router,
    is_fixed_section,
    library_class_names,
    library_classes,
    model_type_of_code_fields,
    typed_config,
    usual_name,
)
from .unknown_fields import UnknownField, remark_on_ignored_fields


def _expert_group_sizes(config: Config) -> dict[str, Any]:
    """Returns a router's groups of experts; empty if each token may have any experts."""
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
    """Returns the output head's fields for the loss: the logits' number format, scale and cap.

    Without a class in the config it is that of the model type's first class with such a head.
    """
    class_name = architecture_of(config.config_fields) or next(
        (
            class_name
            for class_name in library_class_names().get(config.model_type, ())
            if head_kind_of_config({"architectures": [class_name]}) == "lm"
        ),
        "",
    )
    cap_fields_in_config = ("final_logit_softcapping", "logits_soft_cap")
    logit_cap = next(
        (config.config_fields[field_name] for field_name in cap_fields_in_config if field_name in config.config_fields),
        LOGIT_CAPS.get(config.model_type),
    )
    logit_scale = config.config_fields.get("logit_scale", config.defaults.get("logit_scale"))
    logit_fields = {
        field_name: float(loss_value)
        for field_name, loss_value in (("logit_scale", logit_scale), ("logit_softcapping", logit_cap))
        if isinstance(loss_value, int | float) and loss_value > 0 and (field_name, loss_value) != ("logit_scale", 1)
    }
    return {**logit_fields, **({"float32_loss": False} if class_name in library_classes().losses_of_logits else {})}


def text_model_of(config_data: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    """Returns the path of the text model's section in a config, with its fields and model type.

    Raises `InputError` if the wrapper or the section with its text model is not supported.
    """
    model_type = config_data.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(
            f"model_type: {'missing' if model_type is None else short_repr(model_type)}; expected the name of a model "
            "type, or a description in TOML, whose fields llmcalc schema lists"
        )
    model_type = usual_name(model_type)
    family = family_of(model_type, config=config_data)
    wrapped_model_type, section_name = family.text_type, family.text_section
    if wrapped_model_type is None:
        return "", config_data, model_type
    text_section = config_data.get(section_name)
    if text_section is None and family.text_id_field and config_data.get(family.text_id_field):
        raise InputError(
            f"{family.text_id_field}: {short_repr(config_data[family.text_id_field])} names the text model, whose "
            f"sizes are not in this config; expected a {section_name} with them, or that model's own config"
        )
    if text_section is None:
        no_class: dict[str, Any] = {"architectures": []} if family.generates_text else {}
        wrapper_fields = {**_tying_field(family, config_data), **_text_fields_of_root(family, config_data), **no_class}
        return "", {**config_data, **wrapper_fields}, wrapped_model_type
    if not isinstance(text_section, dict):
        raise InputError(f"{section_name}: {short_repr(text_section)}; expected a table of fields")
    text_model_type = text_section.get("model_type") or wrapped_model_type
    if not isinstance(text_model_type, str):
        raise InputError(f"{section_name}.model_type: {short_repr(text_model_type)}; expected the name of a model type")
    text_model_type = model_type_of_code_fields(text_section) or usual_name(text_model_type)
    if is_fixed_section(model_type, section_name):
        text_model_type = wrapped_model_type
    architecture_field = {"architectures": config_data["architectures"]} if "architectures" in config_data else {}
    if family.generates_text:
        architecture_field = {"architectures": []}
    text_fields = {
        **family.text_defaults,
        **text_section,
        **architecture_field,  # the whole class has the head, whatever class the section names
        **_tying_field(family, config_data),
        **_text_fields_of_root(family, config_data),
    }
    if family.is_decoder:
        text_fields["architectures"] = [causal_class(text_model_type, f"{section_name}.", config_data)]
    if text_model_type in FILE_BY_TYPE and isinstance(text_section.get(family_of(text_model_type).text_section), dict):
        section_path, inner_fields, text_model_type = text_model_of({**text_fields, "model_type": text_model_type})
        return f"{section_name}.{section_path}", inner_fields, text_model_type
    return f"{section_name}.", text_fields, text_model_type


def _states_text_model(family: Family, root_config: Mapping[str, Any]) -> bool:
    """Whether a wrapper's config states its text model, in a section or by sizes at the top level."""
    return root_config.get(family.text_section) is not None or any(
        size_field in root_config for size_field in SIZE_FIELDS
    )


def _with_defaults_of_wrapper(text_family: Family, root_family: Family, root_config: Mapping[str, Any]) -> Family:
    """Returns the text model's `Family` with the wrapper's defaults for a config without a text section.

    They may differ from those of an empty section (`mistral3`, `got_ocr2`). A config without a section that has sizes
    of a text model is read with the text model's defaults.
    """
    if root_family.text_type is None or _states_text_model(root_family, root_config):
        return text_family
    section_defaults = root_family.defaults.get(root_family.text_section) or {}
    return replace(text_family, defaults={**text_family.defaults, **root_family.text_defaults, **section_defaults})


def _text_fields_of_root(family: Family, root_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the text model's fields that the wrapper's class takes from outside the text section."""
    text_fields: dict[str, Any] = {}
    for field_name, (section_name, section_field, default_value) in family.text_fields_from_sections.items():
        section_data = root_config.get(section_name) if section_name else root_config
        if isinstance(section_data, Mapping):
            stated_value = section_data.get(section_field, default_value)
            is_unnamed = section_field == "architectures" and stated_value in (None, [])
            text_fields[field_name] = default_value if is_unnamed else stated_value
    return text_fields


def _tying_field(family: Family, root_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the wrapper's weight-tying field if it overrides the text model's field; otherwise an empty text.

    Without one in the wrapper's config, the text model's is used: a checkpoint with both tensors is loaded untied,
    where the wrapper's class ties by default. A class that unties by default does so where no section states a value,
    and one that ties by default where the config says nothing of the text model.
    """
    tying_source = family.tying_source
    if tying_source == "never":
        return {"tie_word_embeddings": False}
    tying_fields = dict.fromkeys(
        (family.aliases.get("tie_word_embeddings", "tie_word_embeddings"), "tie_word_embeddings")
    )
    stated_tying = next(
        (root_config[tying_field] for tying_field in tying_fields if root_config.get(tying_field) is not None), None
    )
    if stated_tying is None and tying_source == "wrapper":
        default_tying, text_section = family.defaults.get("tie_word_embeddings"), root_config.get(family.text_section)
        states_no_tying = text_section is None or tying_fields.keys().isdisjoint(text_section)
        counts_default = default_tying is False or (default_tying and not _states_text_model(family, root_config))
        return {"tie_word_embeddings": default_tying} if states_no_tying and counts_default else {}
    if stated_tying is None or tying_source == "text" or (tying_source == "either" and stated_tying is False):
        return {}
    if type(stated_tying) is not bool:
        raise InputError(f"tie_word_embeddings: {short_repr(stated_tying)}; expected true or false")
    return dict.fromkeys(tying_fields, stated_tying)


def _remark_on_other_class(model_type: str, config_data: Mapping[str, Any], has_head: bool) -> list[str]:
    """Returns a remark if the config's class is unknown, and so is counted as a class of the model type.

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
        counted_text = f"the layers of {model_type} are counted"
        uncounted_text = "no other weights that its code may have"
    else:
        return []
    return [f"architectures: {class_name} is no known class of '{model_type}'; {counted_text}, and {uncounted_text}"]


@cache
def _library_class_names_in_lower_case() -> frozenset[str]:
    return frozenset(class_name.lower() for class_names in library_class_names().values() for class_name in class_names)


MTP_COUNT_FIELDS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Fields with a number of modules of multi-token prediction."""


def _remarks_on_prediction(config: Config, notes: Sequence[str]) -> list[str]:
    """Returns a remark for each field that adds uncounted modules, unless another remark names the field."""
    noted_fields = {note.partition(":")[0] for note in notes}
    unknown_names = {unknown_field.path.rpartition(".")[2] for unknown_field in config.unknown_fields}
    return [
        f"{field_name}: the multi-token-prediction modules are not counted"
        for field_name in MTP_COUNT_FIELDS
        if field_name not in noted_fields | unknown_names
        and is_json_integer(config.config_fields.get(field_name))
        and config.config_fields[field_name] > 0
    ]


def _check_wrapper_vocabulary(model_type: str, root_config: Mapping[str, Any], model_fields: Mapping[str, Any]) -> None:
    """Raises `InputError` if the output layer has more or fewer rows than the text model's vocabulary."""
    family = family_of(model_type)
    if not family.wrapper_sizes_head or model_fields["tie_word_embeddings"] or family.text_section not in root_config:
        return
    stated_rows, text_rows = root_config.get("vocab_size"), model_fields["vocab_size"]
    head_rows = family.defaults["vocab_size"] if stated_rows is None else stated_rows
    if head_rows != text_rows:
        problem_text = f"missing, where its class takes {head_rows}" if stated_rows is None else short_repr(stated_rows)
        raise InputError(
            f"vocab_size: {problem_text}; expected {text_rows} as in {family.text_section} (the class sizes an untied "
            "output layer by this field, the embedding by that one; two sizes are not counted)"
        )


def _check_wrapper_class(model_type: str, root_config: Mapping[str, Any]) -> None:
    """Raises `InputError` if a wrapper's class builds modules that the counted class does not have."""
    class_name, family = architecture_of(root_config), family_of(model_type)
    if class_name.endswith(family.uncounted_classes):
        advice = measure_option = "--measure of llmcalc params, which counts its transformers class"
        encoder_name = "text" if "Text" in class_name else "vision" if "Vision" in class_name else ""
        if encoder_name and "For" not in class_name and family.text_type == f"{model_type}_text_model":
            advice = f"model_type {model_type}_{encoder_name}_model with the fields of {encoder_name}_config"
            advice += f", and {measure_option}" if encoder_name == "vision" else ""
        raise InputError(
            f"architectures: {class_name} has other modules than those that are counted for '{model_type}'; expected "
            f"{advice}"
        )


def _class_projection(
    config: Config, root_config: Mapping[str, Any], text_hidden_size: int
) -> tuple[dict[str, Any], list[str]]:
    """Returns the output head of a class that projects every hidden state, and remarks. config: the text model's."""
    projection = PROJECTION_BY_CLASS[architecture_of(root_config)]
    sized_config = (
        config if projection.size_field in config.config_fields else Config(root_config, {}, config.model_type)
    )
    is_stated = sized_config.config_fields.get(projection.size_field) is not None
    head_table = {
        "type": "projection",
        "size": sized_config.integer(projection.size_field) if is_stated else projection.vector_size,
        **({"bias": True} if projection.has_bias else {}),
        **({"inner_size": text_hidden_size // 2} if projection.has_half_width_layer else {}),
    }
    if is_stated or projection.size_field != PROJECTION_FIELD:
        return head_table, []
    return head_table, [
        f"dim: not in the config, and no {ARTIFACT_FILE} is beside it; tokens are projected to ColBERT's usual "
        f"{projection.vector_size} numbers"
    ]


def _tying_remark(model_type: str, root_config: Mapping[str, Any], model_fields: Mapping[str, Any]) -> list[str]:
    """Returns a remark if the wrapper's class, or its text section, ties weights differently than is counted.

    The text model's default counts.
    """
    family = family_of(model_type)
    text_section = root_config.get(family.text_section) if family.text_type is not None else None
    text_ties_embeddings = text_section.get("tie_word_embeddings") if isinstance(text_section, dict) else None
    if text_ties_embeddings is False and model_fields["tie_word_embeddings"] and model_fields["head"]["type"] == "lm":
        return [
            f"tie_word_embeddings: false in {family.text_section}, and counted as true, as {model_type}'s class has it "
            "beside that section; weights with an lm_head of their own are loaded untied"
        ]
    default_tying, is_tied = family.defaults.get("tie_word_embeddings"), model_fields["tie_word_embeddings"]
    field_names = ("tie_word_embeddings", family.aliases.get("tie_word_embeddings", ""))
    is_stated = any(root_config.get(field_name) is not None for field_name in field_names)
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


def _remark_on_sizes_beside_section(model_type: str, root_config: Mapping[str, Any]) -> list[str]:
    """Returns a remark if a wrapper's config has sizes at the top level, but its class reads them in a section."""
    family, class_facts = family_of(model_type), library_classes()
    size_fields = [field_name for field_name in SIZE_FIELDS if root_config.get(field_name) is not None]
    if (
        family.text_type is None
        or family.source
        or model_type in class_facts.flat_wrappers
        or root_config.get(family.text_section) is not None
        or not size_fields
        or architecture_of(root_config) not in ("", *class_facts.classes.get(model_type, ()))
    ):
        return []
    return [
        f"{', '.join(size_fields)}: counted as the text model's; {model_type}'s class reads no sizes outside "
        f"{family.text_section}, which the config lacks"
    ]


def _remarks_on_untied_head(family: Family, model_fields: Mapping[str, Any]) -> list[str]:
    """Returns a remark if the head is untied and the class has parameters that the architecture does not have."""
    if model_fields["tie_word_embeddings"] or model_fields["head"]["type"] != "lm":
        return []
    return [
        f"not counted of the class of transformers: {deviation.explanation}"
        for deviation in family.deviations
        if deviation.quantity == "parameters"
        and deviation.applies_to is is_untied
        and deviation.further_quantity is not Deviation.further_quantity
    ]


def _remark_on_fixed_text_type(model_type: str, root_config: Mapping[str, Any]) -> list[str]:
    """Returns a remark if a wrapper's class reads the text section as another model type than the stated type.

    Models of both types may differ (Gemma 3 whose `text_config` states Llama). No remark on a wrapper's own type, which
    some published sections state.
    """
    family = family_of(model_type)
    text_section = root_config.get(family.text_section)
    if not isinstance(text_section, dict) or not is_fixed_section(model_type, family.text_section):
        return []
    stated_model_type = text_section.get("model_type")
    if not isinstance(stated_model_type, str) or usual_name(stated_model_type) in ("", family.text_type, model_type):
        return []
    return [fixed_type_remark(model_type, family.text_section, stated_model_type, str(family.text_type))]


def _builds_towers(model_type: str, root_config: Mapping[str, Any]) -> bool:
    """Whether the class in `architectures` has vision or audio encoders; false for a text model's class."""
    family, class_name = family_of(model_type), architecture_of(root_config)
    if family.tower_class_prefixes:
        return not class_name or class_name.startswith(family.tower_class_prefixes)
    return family.text_type is not None and not class_name.endswith("ForCausalLM")


def _wrapper_towers(
    root_model_type: str, root_config: Mapping[str, Any], text_hidden_size: int
) -> tuple[dict[str, Any], list[str]]:
    """Returns a wrapper's table `towers` and remarks, including those of a wrapper inside it."""
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


def _uncounted_encoder_remarks(model_type: str, root_config: Mapping[str, Any]) -> list[str]:
    """Returns a remark for each encoder that is not counted because the config's class is not supported."""
    from .towers import TOWER_SECTIONS

    remark = f"its encoder is not counted: that of {architecture_of(root_config)} is not supported"
    sections = (section_name for section_name in TOWER_SECTIONS if isinstance(root_config.get(section_name), dict))
    return [
        f"{section_field}: {remark}"
        for section_field in sections
        if section_field not in family_of(model_type).uncounted_fields
    ]


def _with_usual_model_types(root_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a wrapper's config in which each section has the model type's name in `transformers`."""
    return {
        section_name: {**section_value, "model_type": OTHER_TYPE_NAMES[section_value["model_type"]]}
        if isinstance(section_value, dict) and str(section_value.get("model_type")) in OTHER_TYPE_NAMES
        else section_value
        for section_name, section_value in root_config.items()
    }


def _inner_model_config(
    root_model_type: str, root_config: Mapping[str, Any], field_name: str, default_value: int
) -> tuple[str, Mapping[str, Any], int]:
    """Returns the model inside a projection class (type and config), and the size of the projected vectors."""
    section_value = root_config[family_of(root_model_type).text_section]
    inner_model_type = usual_name(section_value.get("model_type") or str(family_of(root_model_type).text_type))
    vector_size = Config(root_config, {field_name: default_value}, root_model_type).integer(field_name)
    return inner_model_type, {**section_value, "architectures": []}, vector_size


class ConfigDescription(NamedTuple):
    """The result of reading a config: description, remarks and unknown fields.

    model: the `model` table of a native description.
    notes: remarks for the user.
    model_type: the text model's type.
    unknown_fields: fields that were never read.
    default_sizes: sizes that the config leaves to its class.
    """

    model: dict[str, Any]
    notes: list[str]
    model_type: str
    unknown_fields: list[UnknownField]
    default_sizes: dict[str, int]


def read_config(config_data: Mapping[str, Any], head: HeadKind | None = None) -> tuple[dict[str, Any], list[str]]:
    """Returns the `model` table and the remarks of a config, and ignores unknown fields.

    Raises `InputError`, which names the field, its value and the expected value.
    """
    config_description = read_description(config_data, head)
    ignored_paths = [unknown_field.path for unknown_field in config_description.unknown_fields]
    return config_description.model, [*config_description.notes, *remark_on_ignored_fields(ignored_paths)]


def read_description(config_data: Mapping[str, Any], head: HeadKind | None = None) -> ConfigDescription:
    """Reads a config, and collects all remarks and unknown fields.

    Raises `InputError`, which names the field, its value and the expected value.
    """
    config_data, draft_notes = with_draft_type(config_data)
    root_config, (section_path, config_data, model_type) = config_data, text_model_of(config_data)
    root_model_type = usual_name(root_config["model_type"])
    text_family = family_of(model_type, section_path, root_config)
    family = _with_defaults_of_wrapper(text_family, family_of(root_model_type), root_config)
    _check_wrapper_class(root_model_type, root_config)
    if family.read_model is None:
        wrapper_section = section_path.removesuffix(".") or family_of(root_model_type).text_section
        raise InputError(
            f"{section_path}model_type: '{model_type}' wraps a text model, but the config has no "
            f"{family.text_section}; expected a {family.text_section} in {wrapper_section}"
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
    model_fields = {**family.read_model(config), **dropout_of(config, family)}
    if model_fields["head"]["type"] == "lm":
        _check_wrapper_vocabulary(root_model_type, root_config, model_fields)
        model_fields["head"] = {**model_fields["head"], **_loss_fields(config)}
    if model_type in library_classes().float32_routers:
        model_fields = with_router_fields(model_fields, {"float32_product": True}, is_linear_only=True)
    if model_type in library_classes().float32_weights:
        model_fields = with_router_fields(model_fields, {"float32_weights": True})
    if has_grouped_router(model_type, family):
        model_fields = with_router_fields(model_fields, _expert_group_sizes(config), is_linear_only=True)
    if head == "none" and model_fields["head"]["type"] == "latents":
        model_fields["head"] = {"type": "none"}
    projection_notes: list[str] = []
    if head is None and architecture_of(root_config) in PROJECTION_BY_CLASS:
        model_fields["head"], projection_notes = _class_projection(config, root_config, model_fields["hidden_size"])
    family_records = (
        (family,) if section_path or root_model_type == model_type else (family, family_of(root_model_type))
    )
    uncounted_towers = {
        uncounted_field: tower_notes
        for family in family_records
        for uncounted_field, tower_notes in family.uncounted_fields.items()
    }
    uncounted_encoders = (() if section_path else family_record.uncounted_encoders for family_record in family_records)
    nested_fields = (
        ignored_field.removeprefix(section_path)
        for ignored_field in family_of(root_model_type).ignored_fields
        if section_path and section_path in ignored_field
    )
    config.finish(
        frozenset(nested_fields).union(
            uncounted_towers, *uncounted_encoders, *(family_record.ignored_fields for family_record in family_records)
        )
    )
    uncounted_memory_notes = [
        f"{ignored_field}: {tower_notes.format(short_repr(config_fields[ignored_field]))}"
        for config_fields, notes_by_field in (
            (config_data, uncounted_towers),
            (root_config, family_of(root_model_type).uncounted_fields if section_path else {}),
        )
        for ignored_field, tower_notes in notes_by_field.items()
        if config_fields.get(ignored_field)
    ]
    notes = [
        *draft_notes,
        *config.notes,
        *projection_notes,
        *uncounted_memory_notes,
        *_remark_on_fixed_text_type(root_model_type, root_config),
        *_remark_on_sizes_beside_section(root_model_type, root_config),
        *_tying_remark(root_model_type, root_config, model_fields),
        *_remarks_on_untied_head(family, model_fields),
    ]
    is_draft = FILE_BY_TYPE[model_type].startswith("drafts.")
    if "mtp" not in model_fields and model_fields["head"]["type"] == "lm" and not is_draft:
        notes += _remarks_on_prediction(config, notes)
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
        notes += _uncounted_encoder_remarks(root_model_type, root_config)
    return ConfigDescription(model_fields, notes, model_type, config.unknown_fields, config.default_sizes)
