"""Counts the parameters of an unsupported model type: its `transformers` class on the meta device, module by module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..flow.tree import index_ranges
from ..sources.huggingface.config_file import read_json
from ..sources.huggingface.drafts import CLASS_PATTERN_BY_TYPE, with_draft_type
from ..sources.huggingface.head_kinds import architecture_of
from ..sources.huggingface.registry import model_type_of_class_name, usual_name
from .module_measurements import parameter_counts_by_path
from .transformers import build_class_model, require_transformers
from .transformers_class import class_model_type

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

TREE_DEPTH = 4
"""Number of levels of modules in a measured tree."""


@dataclass(frozen=True)
class ModuleTree:
    """The parameters of a module and its submodules. Equal members of a `ModuleList` are one node with a repeat."""

    name: str
    params: int
    repeat: int = 1
    children: tuple[ModuleTree, ...] = ()


def measure_config(config_path: Path) -> tuple[str, ModuleTree]:
    """Returns a config's model name, and the module tree of its `transformers` class on the meta device.

    The class is the one that `architectures` names, or else the language model of its model type.

    Raises `InputError` if the library has no such class, or if the class rejects the config.
    """
    require_transformers("--measure")
    config_fields = read_json(config_path)
    try:
        draft_type = with_draft_type(config_fields)[0].get("model_type")
    except InputError as error:
        raise InputError(f"{config_path}: {error}") from None
    if draft_type in CLASS_PATTERN_BY_TYPE:
        raise InputError(
            f"{config_path}: --measure: a draft of {draft_type} has no class in transformers; expected no --measure"
        )
    model_type = config_fields.get("model_type") or model_type_of_class_name(architecture_of(config_fields))
    if not isinstance(model_type, str) or not model_type:
        raise InputError(f"{config_path}: model_type: missing; expected a config.json of a transformers model")
    class_config = {**config_fields, "model_type": model_type}
    if model_type_of_class_name(architecture_of(config_fields)) not in ("", usual_name(model_type)):
        del class_config["architectures"]  # a class of another model type, which does not fit this config
    _require_class(config_path, model_type, "auto_map" in config_fields)
    try:
        module = build_class_model(class_config, will_run=False)
    except InputError:
        raise
    except Exception as error:  # any error that a class may raise for a config
        raise InputError(
            f"{config_path}: {architecture_of(class_config) or model_type} cannot be built from it: "
            f"{type(error).__name__}: {error}"
        ) from None
    return type(module).__name__, measured_tree(module)


def _require_class(config_path: Path, model_type: str, has_remote_code: bool) -> None:
    """Raises `InputError` if the installed transformers has no config class for the model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if class_model_type(model_type) not in CONFIG_MAPPING:
        remote_note = ""
        if has_remote_code:
            remote_note = "; its classes are code of its own repository (auto_map), which llmcalc never runs"
        raise InputError(f"{config_path}: model_type: the installed transformers has no '{model_type}'{remote_note}")


def measured_tree(module: nn.Module) -> ModuleTree:
    """Returns the parameters by module as a tree. A shared parameter counts in its first module."""
    parameters_by_path = parameter_counts_by_path(module)
    return _module_tree(module, "", type(module).__name__, parameters_by_path, TREE_DEPTH)


def _module_tree(
    module: nn.Module, module_path: str, module_name: str, parameters_by_path: dict[str, int], depth: int
) -> ModuleTree:
    children: list[ModuleTree] = []
    if depth:
        for child_name, child_module in module.named_children():
            child_path = f"{module_path}.{child_name}" if module_path else child_name
            if parameters_by_path.get(child_path):
                children.append(_module_tree(child_module, child_path, child_name, parameters_by_path, depth - 1))
    return ModuleTree(module_name, parameters_by_path.get(module_path, 0), 1, tuple(_merge_equal_modules(children)))


def _merge_equal_modules(children: list[ModuleTree]) -> list[ModuleTree]:
    """Merges equal children with numbers as names into one node with a repeat: `0-2`, `{0,3-5}`."""
    indices_of_equal: dict[tuple[int, tuple[ModuleTree, ...]], list[int]] = {}
    for child_module in children:
        if child_module.name.isdigit():
            indices_of_equal.setdefault((child_module.params, child_module.children), []).append(int(child_module.name))
    named_children = [child_module for child_module in children if not child_module.name.isdigit()]
    return [
        ModuleTree(index_ranges(indices), params, len(indices), grandchildren)
        for (params, grandchildren), indices in indices_of_equal.items()
    ] + named_children


def module_data(module_tree: ModuleTree) -> dict[str, Any]:
    """Returns a module tree's parameters as nested dicts for JSON."""
    module_document: dict[str, Any] = {"name": module_tree.name, "params": module_tree.params * module_tree.repeat}
    if module_tree.repeat > 1:
        module_document |= {"repeat": module_tree.repeat, "params_each": module_tree.params}
    if module_tree.children:
        module_document["children"] = [module_data(child_module) for child_module in module_tree.children]
    return module_document
