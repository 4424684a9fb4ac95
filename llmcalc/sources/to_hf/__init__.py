"""Converts a spec to the `config.json` of an equivalent `transformers` class.

It is the inverse of `sources.huggingface`. The fields that a family's reader reads are filled with the spec's values,
the reader reads that config, and the config is accepted only if it gives the same spec. So a wrong field can lose a
config, but never produce a wrong one. Among families that compute the same architecture the first in the registry's
order is chosen, and families with the spec's own activation come before others.

How fields are filled may be changed without reading the readers: each config is read back and compared with the spec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from ...errors import InputError
from ...model import ModelSpec
from ..huggingface.absent_value import AbsentValue
from ..huggingface.config import Config
from ..huggingface.description import LOGIT_CAPS, read_config
from ..huggingface.family import Family
from ..huggingface.head_kinds import head_kind_of_config
from ..huggingface.parts import ACTIVATIONS
from ..huggingface.registry import FILE_BY_TYPE, family_of, has_grouped_router
from .classes import class_names, wrapper_names
from .compare import Difference, canonical_values, count_changed_values, differences, has_canonical_values
from .config_fields import EXTRA_READ_FIELDS, USUAL_NAME_BY_SYNONYM, VALUE_GETTERS
from .config_values import ConfigValues
from .wrappers import wrapped_config, wrapper_type_of

ABSENT_FIELD_ERRORS = (LookupError, AttributeError, TypeError)
"""Exceptions raised when a field is read from a part that does not have it: the spec has no value for the config field.
"""


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """Converts a spec to the `config.json` of an equivalent class, with `model_type` and `architectures`.

    Raises `InputError` if no known class computes the spec; it names the nearest class and the difference.
    """
    other_configs: list[tuple[str, dict[str, Any]]] = []
    config = find_config(spec, other_configs)
    if config is None:
        raise InputError(
            "no transformers class is known here that computes this architecture"
            + _nearest_class_text(canonical_values(spec), other_configs)
        )
    return config


def find_config(
    spec: ModelSpec,
    other_configs: list[tuple[str, dict[str, Any]]] | None = None,
    families: Iterable[tuple[str, Family]] | None = None,
) -> dict[str, Any] | None:
    """Converts a spec to a `config.json` as `to_config` does; None if no known class computes the spec.

    other_configs: as in `_nearest_class_text`; classes that compute another spec are added to it; None for no list.
    families: the families that are tried, also those whose class is never alone; None for all that `convert` may name.
    """
    return next(_configs_of(spec, other_configs, families), None)


def _configs_of(
    spec: ModelSpec,
    other_configs: list[tuple[str, dict[str, Any]]] | None,
    families: Iterable[tuple[str, Family]] | None,
) -> Iterator[dict[str, Any]]:
    """Yields the configs of all classes that compute the spec. Arguments: as of `find_config`."""
    model_values, spec_values = ConfigValues(spec, VALUE_GETTERS), canonical_values(spec)
    for model_type, family in _possible_families(model_values) if families is None else families:
        if spec.towers and other_configs is None and not wrapper_type_of(model_type):
            continue  # a config without the encoders
        for class_name in class_names(model_type, spec) or [""] * (families is not None):
            config = wrapped_config(_candidate_config(model_type, family, class_name, model_values), spec)
            config_spec = _spec_of_config(config)
            if config_spec is None:
                continue
            if has_canonical_values(config_spec, spec_values):
                yield config
            elif other_configs is not None:
                other_configs.append((config["architectures"][0], canonical_values(config_spec)))


def wrapper_class(spec: ModelSpec) -> str:
    """Returns the multimodal class whose text model the spec is; empty if there is none, or more than one.

    Only wrappers in the file of their text model count: those in other files share theirs with many.
    """
    decoder = spec.model_copy(update={"towers": {}})
    text_types = {
        model_type: text_type
        for model_type, family_file in FILE_BY_TYPE.items()
        if (text_type := family_of(model_type).text_type)
        and FILE_BY_TYPE[text_type] == family_file
        and family_of(text_type).read_model is not None
    }
    text_families = {text_type: family_of(text_type) for text_type in text_types.values()}
    computing_types = {config["model_type"] for config in _configs_of(decoder, None, text_families.items())}
    known_names = [
        class_name
        for model_type, text_type in text_types.items()
        if text_type in computing_types
        for class_name in wrapper_names(model_type, lacks_head=False)[:1]
    ]
    return known_names[0] if len(known_names) == 1 else ""


def _nearest_class_text(spec_values: dict[str, Any], other_configs: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns a text on the class with the fewest differences from the spec, and its first difference.

    other_configs: (name of a class, what it computes in canonical form).
    """
    if not other_configs:
        return ""
    mismatches_of_class = [
        (mismatched_class, sorted(differences(spec_values, class_values), key=_is_in_tower))
        for mismatched_class, class_values in other_configs
    ]
    class_name, mismatches = min(mismatches_of_class, key=lambda item: _difference_counts(item[1]))
    path, spec_value, class_value = mismatches[0]
    hint_text = " (--set towers={} leaves towers out)" if path.startswith("towers") else ""
    values_text = f"{_displayed_value(class_value)} where {path} is {_displayed_value(spec_value)}"
    return f"; nearest is {class_name}, which has {values_text}{hint_text}"


def _difference_counts(mismatches: list[Difference]) -> tuple[int, int]:
    """Returns how many values differ in the text model, and how many in vision and audio encoders."""
    tower_difference_count = sum(
        count_changed_values(value_difference) for value_difference in mismatches if _is_in_tower(value_difference)
    )
    return sum(map(count_changed_values, mismatches)) - tower_difference_count, tower_difference_count


def _possible_families(model_values: ConfigValues) -> Iterator[tuple[str, Family]]:
    """Yields the families whose `transformers` class may compute the spec, the likeliest first."""
    unlikely_families: list[tuple[str, Family]] = []
    has_experts, activation = bool(model_values.expert_layers()), _activation_of(model_values)
    for model_type in FILE_BY_TYPE:
        family = family_of(model_type)
        if (
            family.read_model is None
            or family.class_model_type is not None
            or family.source
            or not family.has_text_class
        ):
            continue
        if _is_likely_family(family, has_experts, activation):
            yield model_type, family
        else:
            unlikely_families.append((model_type, family))
    yield from unlikely_families


def _is_likely_family(family: Family, has_experts: bool, activation: str | None) -> bool:
    """Whether a family's default activation is the spec's, and both or neither have experts."""
    default_fields = [USUAL_NAME_BY_SYNONYM.get(field_name, field_name) for field_name in family.defaults]
    default_activations = [
        family.defaults[name] for name in family.defaults if USUAL_NAME_BY_SYNONYM.get(name, name) == "hidden_act"
    ]
    return ("num_experts" in default_fields) == has_experts and (
        not default_activations or ACTIVATIONS.get(default_activations[0], default_activations[0]) == activation
    )


def _activation_of(model_values: ConfigValues) -> str | None:
    try:
        activation: str = VALUE_GETTERS["hidden_act"](model_values)
    except ABSENT_FIELD_ERRORS:
        return None
    return ACTIVATIONS.get(activation, activation)


def _candidate_config(model_type: str, family: Family, class_name: str, model_values: ConfigValues) -> dict[str, Any]:
    """Returns a family's config with the spec's values in all fields that llmcalc can compute."""
    config: dict[str, Any] = {"model_type": model_type, "architectures": [class_name]}
    _fill_fields(config, family, model_values, [*family.defaults, *family.field_writers])
    read_fields = _fields_read(family, config)
    written_fields = {"model_type", "architectures", *family.field_writers} | read_fields
    config = {field_name: field_value for field_name, field_value in config.items() if field_name in written_fields}
    field_names = [field_name for field_name in EXTRA_READ_FIELDS if field_name in read_fields]
    _fill_fields(config, family, model_values, field_names)
    return (
        config
        | _logit_fields(model_type, family, model_values.spec)
        | _dropout_fields(family, model_values.spec)
        | _group_fields(model_type, family, model_values)
    )


def _group_fields(model_type: str, family: Family, model_values: ConfigValues) -> dict[str, Any]:
    """Returns the fields of expert groups, for a class that selects each token's experts from a few groups."""
    if not has_grouped_router(model_type, family) or not model_values.expert_layers():
        return {}
    router_groups = model_values.moe.router.expert_groups
    if router_groups.n_group > 1 and "topk_method" in family.defaults:
        method_field = {"topk_method": "group_limited_greedy"}
    else:
        method_field = {}
    return router_groups._asdict() | method_field


def _logit_fields(model_type: str, family: Family, spec: ModelSpec) -> dict[str, float | None]:
    """Returns the scale and the soft cap of the logits, if different from the class's defaults."""
    if spec.head.type != "lm":
        return {}
    logit_fields: dict[str, float | None] = {}
    logit_cap, logit_scale = spec.head.logit_softcapping, spec.head.logit_scale or 1.0
    if "final_logit_softcapping" in family.ignored_fields and logit_cap != LOGIT_CAPS.get(model_type):
        logit_fields["final_logit_softcapping"] = logit_cap
    if family.defaults.get("logit_scale") not in (None, logit_scale):
        logit_fields["logit_scale"] = logit_scale
    return logit_fields


def _dropout_fields(family: Family, spec: ModelSpec) -> dict[str, float]:
    """Returns the dropout probabilities that differ from the class's defaults; empty for a spec without dropout."""
    if spec.dropout is None:
        return {}
    dropout_fields = {name: getattr(spec.dropout, place) or 0.0 for place, name in family.dropout_fields.items()}
    return {
        field_name: probability
        for field_name, probability in dropout_fields.items()
        if probability != family.defaults.get(field_name, 0.0)
    }


def _fill_fields(config: dict[str, Any], family: Family, model_values: ConfigValues, field_names: list[str]) -> None:
    """Sets each config field that has a value in the spec, except a null that equals the class's default."""
    field_aliases = {} if family.has_older_aliases else family.aliases
    usual_names = {field_alias: field_name for field_name, field_alias in family.aliases.items()}
    for config_field in (field_aliases.get(field_name, field_name) for field_name in field_names):
        try:
            usual_name = usual_names.get(config_field, config_field)
            field_value = _value_of_field(family, config_field, usual_name, model_values)
        except ABSENT_FIELD_ERRORS:
            continue
        default_value = family.defaults.get(config_field)
        if config_field not in config and (
            field_value is not None or default_value is not None or config_field in family.field_writers
        ):
            config[config_field] = default_value if _is_same_activation(field_value, default_value) else field_value


def _is_same_activation(field_value: Any, default_value: Any) -> bool:
    """Whether two activation names mean the same function, so that the class's default can stay."""
    return (
        isinstance(field_value, str)
        and isinstance(default_value, str)
        and ACTIVATIONS.get(field_value, field_value) == ACTIVATIONS.get(default_value)
    )


def _value_of_field(family: Family, config_field: str, usual_name: str, model_values: ConfigValues) -> Any:
    """Returns a config field's value: by the family's rule, for an alias, or for the field of the usual name.

    usual_name: the name of which the field's is the family's alias, or the field's own.
    """
    field_names = (
        usual_name,
        config_field,
        USUAL_NAME_BY_SYNONYM.get(usual_name, usual_name),
        USUAL_NAME_BY_SYNONYM.get(config_field, config_field),
    )
    field_writer = next((family.field_writers[name] for name in field_names if name in family.field_writers), None)
    if callable(field_writer):
        return field_writer(model_values)
    for field_name in (field_writer, *field_names):
        if field_name in VALUE_GETTERS:
            return model_values.usual_value(field_name)
    for field_name in field_names[:-1]:
        try:
            return model_values.first_value(field_name)
        except AbsentValue:
            continue
    return model_values.first_value(field_names[-1])


def _fields_read(family: Family, config: dict[str, Any]) -> set[str]:
    """Returns every config field that a family's reader reads, even if it raises an error."""
    model_type, head = config["model_type"], head_kind_of_config(config)
    tracked_config = Config(config, family.defaults, model_type, head, "", family.aliases, family.unread_aliases)
    assert family.read_model is not None
    with suppress(InputError):
        family.read_model(tracked_config)
    return tracked_config.fields_read


def _spec_of_config(config: dict[str, Any]) -> ModelSpec | None:
    """Reads a written config back as a spec; None if the reader rejects the config."""
    try:
        return ModelSpec.model_validate(read_config(config)[0])
    except (InputError, ValidationError):
        return None


def _is_in_tower(difference: Difference) -> bool:
    """Whether a difference is in a vision or audio encoder, which is reported after text model differences."""
    return difference[0].startswith("towers")


def _displayed_value(field_value: Any) -> str:
    if isinstance(field_value, dict | list):
        return "others" if isinstance(field_value, list) else f"'{field_value.get('type', 'given')}'"
    return "none" if field_value is None else json.dumps(field_value)
