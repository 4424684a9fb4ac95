"""The list of classes in `llmcalc/sources/huggingface/classes.json` matches the installed `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from llmcalc.sources import huggingface
from llmcalc.sources.huggingface.heads import HEAD_ENDINGS
from llmcalc.sources.huggingface.registry import model_types
from tests.builders import json_lines

LIST = Path(huggingface.__path__[0]) / "classes.json"


def modeling(kind: str) -> Iterator[Any]:
    """Yields the modules with the classes of a model type; none if there is no module of that name."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    try:
        package = import_module(f"transformers.models.{model_type_to_module_name(kind)}")
    except ModuleNotFoundError:
        return
    for module in iter_modules(package.__path__):
        if module.name.startswith("modeling_"):
            yield import_module(f"{package.__name__}.{module.name}")


def classes_of(kind: str) -> list[str]:
    """Returns the public classes that a config of this model type builds, with or without a head, sorted."""
    return sorted(
        name
        for module in modeling(kind)
        for name in getattr(module, "__all__", ())
        if name.endswith(tuple(HEAD_ENDINGS))
        and "pretrained" not in name.lower()
        and getattr(getattr(getattr(module, name), "config_class", None), "model_type", None) == kind
    )


def bases_of(names: list[str]) -> list[str]:
    """Returns the attribute that holds the model without a head in these classes, without the usual `model`."""
    import transformers

    found = {getattr(getattr(transformers, name, None), "base_model_prefix", "") for name in names}
    return sorted(found - {"model", ""})


def written() -> str:
    """Returns the file's text: one line per model type with a class."""
    import transformers

    found = {kind: classes_of(kind) for kind in model_types()}
    named = json_lines({kind: names for kind, names in found.items() if names}, indent="  ")
    bases = json_lines({kind: some for kind, names in found.items() if (some := bases_of(names))}, indent="  ")
    version = json.dumps(transformers.__version__)
    return f'{{\n  "transformers": {version},\n  "classes": {named},\n  "bases": {bases}\n}}\n'


def test_the_list_is_that_of_the_installed_classes() -> None:
    pytest.importorskip("transformers")
    assert LIST.read_text() == written(), "run python -m tests.sources.test_classes"


if __name__ == "__main__":
    LIST.write_text(written())
