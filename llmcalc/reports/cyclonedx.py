"""The models of a lock file as a bill of materials in CycloneDX's machine-learning format.

https://cyclonedx.org/docs/1.6/json/#components_items_modelCard
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..studies.lock import LockedModel, program_version
from .summary import headline

SCHEMA_URL = "http://cyclonedx.org/schema/bom-1.6.schema.json"
HUB_URL = "https://huggingface.co/"


def bill_of_materials(lock_entries: Sequence[LockedModel]) -> dict[str, Any]:
    """Returns the bill of materials: for each model a component with a model card and properties.

    It has no date, and its serial number follows from its contents, so equal models give equal bytes.
    """
    model_components = [_component_of_model(lock_entry) for lock_entry in lock_entries]
    serial_number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(model_components, sort_keys=True))
    tool_component = {"type": "application", "name": "llmcalc", "version": program_version()}
    return {
        "$schema": SCHEMA_URL,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial_number}",
        "version": 1,
        "metadata": {"tools": {"components": [tool_component]}},
        "components": model_components,
    }


def _component_of_model(lock_entry: LockedModel) -> dict[str, Any]:
    locked_values, preset = lock_entry.data, lock_entry.preset
    architecture = {
        "architectureFamily": locked_values["model_type"] or locked_values["kind"],
        "modelArchitecture": headline(preset.model),
    }
    skipped_keys = {"target", "name"}
    entry_values = _properties_of_entry(
        {value_key: entry_value for value_key, entry_value in locked_values.items() if value_key not in skipped_keys}
    )
    model_component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": locked_values["target"],
        "name": preset.title or locked_values["name"],
        "modelCard": {"modelParameters": architecture},
        "properties": [
            {"name": f"llmcalc:{property_name}", "value": property_value}
            for property_name, property_value in entry_values
        ],
    }
    if preset.developer:
        model_component["publisher"] = preset.developer
    if locked_values["revision"] is not None:
        repository = locked_values["name"].partition("@")[0]
        model_component["version"] = locked_values["revision"]
        model_component["externalReferences"] = [{"type": "distribution", "url": f"{HUB_URL}{repository}"}]
    return model_component


def _properties_of_entry(locked_values: Mapping[str, Any], key_path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the values of a lock file's entry as CycloneDX properties: dotted names and texts.

    Entries without a value are left out.
    """
    for value_key, entry_value in locked_values.items():
        property_name = f"{key_path}{value_key}"
        if isinstance(entry_value, Mapping):
            yield from _properties_of_entry(entry_value, f"{property_name}.")
        elif entry_value is not None:
            yield property_name, str(entry_value)
