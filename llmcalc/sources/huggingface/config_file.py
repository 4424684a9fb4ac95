"""Reads a `config.json`, in a file or a folder, as a description of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...components.head_kind import HeadKind
from ...errors import InputError, one_line, short_repr
from ..files import LARGEST_CONFIG, parse_json, read_text
from .description import read_description
from .head_kinds import ARTIFACT_FILE, PROJECTION_BY_CLASS, PROJECTION_FIELD, architecture_of
from .model_type import with_model_type
from .other_config_forms import config_of_other_form
from .registry import family_of, model_type_of_class_name, usual_name
from .text_section import require_read_sizes, with_text_section
from .unknown_fields import remark_on_defaults, remark_on_ignored_fields, require_known

QUANTIZATION_FILE = "hf_quant_config.json"
"""The file beside a `config.json` in which ModelOpt says how the weights are stored."""

FILES_BESIDE = (QUANTIZATION_FILE, ARTIFACT_FILE)
"""Names of the files that are read together with a `config.json` in the same folder."""

STATE_DTYPES = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
"""Keys of a config that state the number format of recurrent states."""

LONGEST_NAME = 200
"""Largest length of a model's name in a config, in characters."""


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises `InputError` for a file that is too large, not text, not a JSON object, or nested too deeply.
    """
    return parse_config(read_text(path, LARGEST_CONFIG, allows_stdin=path.name not in FILES_BESIDE), str(path))


def files_beside(path: Path) -> tuple[str, ...]:
    """Returns the names of the files beside a config that may complete it.

    Raises `InputError` as `read_json` does.
    """
    return FILES_BESIDE if _is_colbert(read_json(path)) else (QUANTIZATION_FILE,)


def parse_config(config_text: str, error_location: str) -> dict[str, Any]:
    """Parses a JSON object. Raises `InputError` for text that is not a JSON object or nested too deeply.

    error_location: name of the source in error messages.
    """
    config_data = parse_json(config_text, error_location)
    if not isinstance(config_data, dict):
        raise InputError(f"{error_location}: expected a JSON object, the config.json of a transformers model")
    return config_data


def require_counted_type(config_text: str, error_location: str) -> None:
    """Raises `InputError` unless a text is a `config.json` with a supported model type.

    Other fields may be wrong.
    """
    config_data, _ = config_of_other_form(parse_config(config_text, error_location))
    model_type = config_data.get("model_type") or model_type_of_class_name(architecture_of(config_data))
    if not isinstance(model_type, str) or not model_type:
        raise InputError(f"{error_location}: has no model_type")
    family_of(usual_name(model_type), config=config_data)


def describe_config(
    path: Path, head: HeadKind | None = None, allow_unknown: bool = False
) -> tuple[str, dict[str, Any]]:
    """Returns a model's name and its description: `model` table, config and remarks.

    Raises `InputError`, which names the field, for a config that is not supported.
    """
    config_data = read_json(path)
    quantization_fields, remarks = _quantization_of_folder(path, config_data)
    projection_fields = _projection_of_folder(path, config_data)
    try:
        model_description = describe_config_data(
            {**config_data, **quantization_fields, **projection_fields}, head, allow_unknown
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    model_description["notes"] += remarks
    stated_name = config_data.get("_name_or_path")
    model_name = (
        one_line(stated_name)[:LONGEST_NAME]
        if isinstance(stated_name, str) and stated_name
        else (path.parent.name if path.name == "config.json" else path.stem)
    )
    return model_name or path.stem, model_description


def _quantization_of_folder(path: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the `quantization_config` that ModelOpt wrote to a file in a config's folder, and remarks.

    Both are empty for a config that has one, and without such a file. A file without an algorithm for weights
    quantises the KV cache alone.
    Raises `InputError` for a file that cannot be read or that has no table `quantization_table`.
    """
    quantization_file = path.with_name(QUANTIZATION_FILE)
    config_sections = (config, *(field_value for field_value in config.values() if isinstance(field_value, dict)))
    is_stated = any(config_section.get("quantization_config") is not None for config_section in config_sections)
    if path.name != "config.json" or is_stated or not quantization_file.exists():
        return {}, []
    quantization_table = read_json(quantization_file).get("quantization")
    if not isinstance(quantization_table, dict):
        raise InputError(
            f"{quantization_file}: quantization: {short_repr(quantization_table)}; expected a table of fields, "
            "as ModelOpt writes it"
        )
    if quantization_table.get("quant_algo") is None:
        return {}, [
            f"{quantization_file.name}: no quant_algo, so the weights count as the config's; "
            "give --kv-dtype for its cache"
        ]
    return {"quantization_config": {**quantization_table, "quant_method": "modelopt"}}, [
        f"quantization_config: not in the config; taken from {quantization_file.name} beside it"
    ]


def _is_colbert(config: Mapping[str, Any]) -> bool:
    """Whether a config's class is ColBERT, whose vector size may be in another file of the folder."""
    projection = PROJECTION_BY_CLASS.get(architecture_of(config))
    return projection is not None and projection.size_field == PROJECTION_FIELD


def _projection_of_folder(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ColBERT's vector size (`dim`) from a file in the config's folder; empty if no file states it.

    Raises `InputError` for a file that cannot be read.
    """
    projection_file = path.with_name(ARTIFACT_FILE)
    needs_size = _is_colbert(config) and config.get(PROJECTION_FIELD) is None
    if path.name != "config.json" or not needs_size or not projection_file.exists():
        return {}
    vector_size = read_json(projection_file).get("dim")
    return {} if vector_size is None else {PROJECTION_FIELD: vector_size}


def describe_config_data(
    config_data: Mapping[str, Any], head: HeadKind | None = None, allow_unknown: bool = False
) -> dict[str, Any]:
    """Returns the description of a parsed config: the `model` table, the config, remarks and the number format.

    allow_unknown: whether to ignore unknown fields; otherwise a misspelt field or an unknown size is an `InputError`.
    """
    config_data, form_remarks = config_of_other_form(config_data)
    config, type_remarks = with_model_type(config_data)
    config, section_remarks = with_text_section(config)
    config_remarks = [*form_remarks, *type_remarks, *section_remarks]
    config_description = read_description(config, head)
    if not allow_unknown:
        is_decoder = "encoder" not in config_description.model
        require_known(config_description.unknown_fields, config_description.model_type, is_decoder)
        require_read_sizes(config_description)
    config_remarks += [
        *config_description.notes,
        *remark_on_defaults(config_description.default_sizes),
        *remark_on_ignored_fields(
            [unknown_field.path for unknown_field in config_description.unknown_fields],
            bool(config.get("auto_map")) and not family_of(config_description.model_type).source,
        ),
    ]
    notes = [one_line(remark_text) for remark_text in config_remarks]
    model_description: dict[str, Any] = {"model": config_description.model, "config": dict(config), "notes": notes}
    dtype = config_data.get("dtype") or config_data.get("torch_dtype")
    if isinstance(dtype, str):
        model_description["dtype"] = dtype
    config_tables = [*_config_tables(config_data)]
    state_dtype = next(
        (
            config_table[field_name]
            for config_table in config_tables
            for field_name in STATE_DTYPES
            if field_name in config_table
        ),
        None,
    )
    if isinstance(state_dtype, str) and state_dtype != "auto":
        model_description["state_dtype"] = state_dtype
    rope_parameters = _rope_parameters(next(iter(config_tables)))
    if rope_parameters:
        model_description["rope_parameters"] = rope_parameters
    return model_description


def _rope_parameters(config_table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config's scaling of rotary positions, in the form of `rope_parameters`; empty if the config has none.

    The older `rope_scaling` does not hold for layers with a window that have a base of their own (Gemma 3).
    """
    rope_parameters = config_table.get("rope_parameters") or config_table.get("rope_scaling")
    if not isinstance(rope_parameters, Mapping):
        return {}
    original_length = config_table.get("original_max_position_embeddings")
    rope_parameters = {
        **({} if original_length is None else {"original_max_position_embeddings": original_length}),
        **rope_parameters,
    }
    if "rope_local_base_freq" in config_table and "rope_parameters" not in config_table:
        return {"full_attention": rope_parameters, "sliding_attention": {}}
    return rope_parameters


def _config_tables(config_data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the config's table for its text model, if it has one, and then the whole config."""
    text_config = config_data.get("text_config")
    if isinstance(text_config, Mapping):
        yield text_config
    yield config_data
