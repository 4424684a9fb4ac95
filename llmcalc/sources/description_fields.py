"""The fields that the tables of a model description can have, derived from the spec's pydantic models."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..components.part_choice import PartChoice
from ..components.stack import merge_tables
from ..model import ModelSpec


def models_of_type(field_type: Any) -> list[type[BaseModel]]:
    """Returns the pydantic models that a type annotation allows, also in unions, containers and component choices."""
    choice_classes = _choice_classes(getattr(field_type, "__metadata__", ()))
    if choice_classes:
        return choice_classes
    if isinstance(field_type, type):
        return [field_type] if issubclass(field_type, BaseModel) else []
    return [model for type_argument in get_args(field_type) for model in models_of_type(type_argument)]


def models_of_field(field: FieldInfo) -> list[type[BaseModel]]:
    """Returns the pydantic models that a pydantic field allows as its value or as its value's elements."""
    return _choice_classes(field.metadata) or models_of_type(field.annotation)


def _choice_classes(type_metadata: Iterable[Any]) -> list[type[BaseModel]]:
    """Returns the component classes that the metadata of a field's type (`PartChoice`) allow."""
    return [
        model
        for annotation in type_metadata
        if isinstance(annotation, PartChoice)
        for model in annotation.load_component_classes()
    ]


def model_of_table(union_members: list[type[BaseModel]], description_table: dict[str, Any]) -> type[BaseModel] | None:
    """Returns the pydantic model of a table: the member of the union with the table's `type`, else the first member."""
    for model in union_members:
        type_field = model.model_fields.get("type")
        if type_field is not None and description_table.get("type") in get_args(type_field.annotation):
            return model
    return union_members[0] if union_members else None


def field_paths(
    description_table: dict[str, Any], model: type[BaseModel] = ModelSpec, parent_keys: tuple[str, ...] = ()
) -> list[list[str]]:
    """Returns the paths of all fields that a description can have, those in tables it leaves out included."""
    paths_of_fields: list[list[str]] = []
    for field_name, field in model.model_fields.items():
        path = (*parent_keys, field_name)
        paths_of_fields.append(list(path))
        field_value = description_table.get(field_name)
        if field_name not in description_table and isinstance(field.default, BaseModel):
            paths_of_fields += field_paths({}, type(field.default), path)
        if not isinstance(field_value, dict):
            continue
        if get_origin(field.annotation) is dict:  # each of its tables is the `block` with some fields changed
            base_table = description_table.get("block")
            inner_tables = {
                table_key: merge_tables(base_table, inner_table) if isinstance(base_table, dict) else inner_table
                for table_key, inner_table in field_value.items()
                if isinstance(inner_table, dict)
            }
        else:
            inner_tables = {"": field_value}
        for table_key, inner_table in inner_tables.items():
            inner_model = model_of_table(models_of_field(field), inner_table)
            if inner_model is not None:
                paths_of_fields += field_paths(inner_table, inner_model, (*path, table_key) if table_key else path)
    return paths_of_fields


def reachable_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Returns a pydantic model and the models of all nested tables."""
    model_classes: dict[type[BaseModel], None] = {}
    unvisited_classes = [model]
    while unvisited_classes:
        visited_class = unvisited_classes.pop()
        if visited_class not in model_classes:
            model_classes[visited_class] = None
            fields = visited_class.model_fields.values()
            unvisited_classes += [member_class for field in fields for member_class in models_of_field(field)]
    return list(model_classes)


@cache
def all_field_names(model: type[BaseModel] = ModelSpec) -> list[str]:
    """Returns every field name that occurs anywhere in a spec."""
    return sorted({name for reachable_model in reachable_models(model) for name in reachable_model.model_fields})


def field_path(
    model: type[BaseModel], error_location: tuple[int | str, ...], has_unknown_field: bool = False
) -> list[str]:
    """Returns the path of the field in the file for a pydantic error, without the names of union members.

    has_unknown_field: whether the last step is a field that does not exist.
    """
    path: list[str] = []
    candidate_models, is_dict_key = [model], False
    for key_index, path_key in enumerate(error_location):
        matching_fields = (
            candidate_model.model_fields[path_key]
            for candidate_model in candidate_models
            if path_key in candidate_model.model_fields
        )
        field = next(matching_fields, None)
        if is_dict_key or isinstance(path_key, int):  # a key of a dict, an index of a list
            path.append(str(path_key))
            is_dict_key = False
        elif field is not None:
            path.append(str(path_key))
            candidate_models, is_dict_key = models_of_field(field), get_origin(field.annotation) is dict
        elif has_unknown_field and key_index == len(error_location) - 1:
            path.append(path_key)
    return path
