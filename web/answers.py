"""What the build of the page asks llmcalc: the documents that the page shows until its own Python is ready.

They come from `bridge.py`, as the page's later answers do. The build runs this in several processes, so it is a module
that they can import: the folders `web` and `web/src` are on their path.
"""

from __future__ import annotations

from typing import Any

import bridge

from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.sources.target import load
from llmcalc.studies.compare import DENSE_BAND

DEFAULTS: dict[str, Any] = bridge.DEFAULTS


def names() -> list[str]:
    """All presets."""
    preset_names: list[str] = bridge.names({})
    return preset_names


def of_preset(name: str) -> dict[str, Any]:
    """Folder → what its file says of a preset: the first answer at default settings, and the formulas of its parts.

    Of a preset whose memory is not modelled, the first answer has the error in the place of the memory.
    """
    request = {"model": name, **DEFAULTS}
    answer = bridge.answer(request)
    return {
        "first": {"answer": answer, "memory": _memory(request)},
        "formulas": {node: bridge.explain({**request, "node": node}) for node in nodes_of(answer["params"]["tree"])},
    }


def _memory(request: dict[str, Any]) -> dict[str, Any]:
    try:
        used = bridge.memory(request)["memory"]
    except InputError as error:
        return {"error": str(error)}
    moments = {key: value for key, value in used["memory"].items() if key != "timeline"}  # which the page does not draw
    return {**used, "memory": moments}


def nodes_of(tree: dict[str, Any]) -> list[str]:
    """Paths of the boxes in the drawing of an architecture: the model's parts, and what its layers consist of."""
    formula_nodes = []

    def visit(node: dict[str, Any], path: str) -> None:
        for child in node.get("children", ()):
            below = f"{path}.{child['name']}" if path else child["name"]
            if child.get("optional") or not child["params"]:
                continue
            stack = child.get("kind") == "layer" or child["name"] in ("encoder", "decoder")
            if not stack:
                formula_nodes.append(below)
            else:
                visit(child, below)

    visit(tree, "")
    return formula_nodes


def proportions() -> dict[str, Any]:
    """What all presets are drawn by, the oldest first: of those with the same sizes, the page names that one."""
    ordered_names = sorted(names(), key=lambda name: (load(name).released or "9999", len(name), name))
    return {
        "band": DENSE_BAND,
        "models": [{"name": name, **bridge.proportions({"model": name})} for name in ordered_names],
    }


def models() -> list[dict[str, Any]]:
    """What the list of models says of every preset, the newest first."""
    presets = sorted((load(name) for name in names()), key=lambda preset: preset.released, reverse=True)
    return [
        {
            "name": preset.name,
            "title": preset.display,
            "developer": preset.developer,
            "released": preset.released,
            "parameters": params(preset.model).total,
        }
        for preset in presets
    ]
