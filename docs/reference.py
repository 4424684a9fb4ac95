"""Writes the pages of the reference from the program: commands, Python, fields of descriptions, accelerators, JSON.

python docs/reference.py FOLDER
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import documents
from fields import listed
from running import printed

ROOT = Path(__file__).resolve().parent.parent

PYTHON = {
    "llmcalc.arguments": ("load", "Model"),
    "llmcalc.api": (
        "params",
        "flops",
        "kv",
        "memory",
        "fit",
        "plan",
        "plot",
        "compare",
        "diff",
        "shape",
        "explain",
        "explain_log",
        "verify",
        "check",
        "budget",
        "lock",
        "convert",
        "presets",
        "hardware",
        "schema",
        "web",
        "mcp",
    ),
    "llmcalc.reports.params": ("Params",),
    "llmcalc.reports.flops": ("Flops",),
    "llmcalc.reports.kv": ("Cache",),
    "llmcalc.reports.memory_answer": ("DeviceMemoryAnswer",),
    "llmcalc.reports.ranks_answer": ("RanksMemoryAnswer",),
    "llmcalc.reports.answer": ("ReportedAnswer",),
    "llmcalc.testing": ("assert_counts",),
    "llmcalc.errors": ("InputError",),
}


def commands() -> str:
    """Every command with its help."""
    from llmcalc.cli.main import COMMANDS

    page = "# Commands\n\nThe help of every command, as `llmcalc COMMAND --help` prints it.\n"
    page += f"\n```text\n{printed('--help')}```\n"
    for name in COMMANDS:
        text = printed(f"{name} --help")
        page += f"\n## {name}\n\n```text\n{text}```\n"
        if "\nCommands:\n" in text:
            for command in re.findall(r"^  (\w+)  ", text.split("\nCommands:\n")[1], re.MULTILINE):
                page += f"\n### {name} {command}\n\n```text\n{printed(f'{name} {command} --help')}```\n"
    return page


def python() -> str:
    """The Python API; mkdocstrings fills in signatures and docstrings."""
    page = "# Python\n\nWhat `import llmcalc` offers, what its functions return, and the tests for your own models.\n"
    for module, names in PYTHON.items():
        for name in names:
            page += f"\n::: {module}.{name}\n"
    return page


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def kind_of(field: dict[str, Any]) -> str:
    """What a field may hold, in words of JSON Schema; a part is a link to its section."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1].removesuffix("Partial")
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(word)}`" for word in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(
                dict.fromkeys(kind_of(choice) for choice in field[several] if choice.get("type") != "null")
            )
    if field.get("type") == "array":
        inside = kind_of(field["items"]) if field.get("items") else "values"
        return f"list of {inside}"
    kind = field.get("type", "any")
    return ", ".join(kind) if isinstance(kind, list) else str(kind)


def part(name: str, schema: dict[str, Any], level: int = 2) -> str:
    """One part of a description: its documentation and a table of its fields."""
    page = f"\n{'#' * level} {name}\n"
    if about := schema.get("description", ""):
        page += f"\n{listed(about, frozenset(schema.get('properties', ())))}\n"
    if rows := schema.get("properties"):
        page += "\n| field | value | default |\n|:---|:---|:---|\n"
        required = schema.get("required", [])
        for key, field in rows.items():
            stated_default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
            default = "required" if key in required else stated_default
            page += f"| `{key}` | {cell(kind_of(field))} | {default} |\n"
    elif kinds := kind_of(schema):
        page += f"\n{kinds}\n"
    return page


def descriptions() -> str:
    """Every table and field of a native description, from its JSON Schema."""
    from llmcalc.sources.json_schema import description_schema

    document = description_schema()
    page = "# Descriptions\n\nEvery field of a description of your own (TOML), from the JSON Schema that "
    page += "`llmcalc schema` prints. A description begins with the fields of the file itself.\n"
    page += "In `variants` every field is optional: what is left out is taken from `block`.\n"
    page += part("The file", {k: v for k, v in document.items() if k != "$defs"})
    parts = sorted(
        (name, part_schema) for name, part_schema in document["$defs"].items() if not name.endswith("Partial")
    )
    return page + "".join(part(name, part_schema) for name, part_schema in parts)


def anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def accelerators() -> str:
    """Every accelerator with its figures and the sources of each."""
    page = "# Accelerators\n\nThe accelerators that come with llmcalc, with the source of each figure. "
    page += "Peaks are dense, without sparsity.\n"
    rows = json.loads(printed("hardware --format json"))["hardware"]
    page += "\n| name | vendor | memory, GiB | bandwidth, TB/s | bf16, TFLOPs |\n|:---|:---|---:|---:|---:|\n"
    for accelerator in rows:
        peak = accelerator["peak_flops"].get("bfloat16")
        bf16 = f"{peak / 1e12:,.0f}" if peak else ""
        page += f"| [{accelerator['title']}](#{anchor(accelerator['name'])}) | {accelerator['vendor']} "
        page += (
            f"| {accelerator['memory_bytes'] / 2**30:.0f} | {accelerator['memory_bandwidth'] / 1e12:.2f} | {bf16} |\n"
        )
    for accelerator in rows:
        name = accelerator["name"]
        page += f"\n## {accelerator['title']} {{ #{anchor(name)} }}\n\n```text\n{printed(f'hardware {name}')}```\n"
    return page


PAGES = {
    "commands.md": commands,
    "python.md": python,
    "descriptions.md": descriptions,
    "accelerators.md": accelerators,
    "json.md": documents.page,
}


def write(folder: Path) -> None:
    """Writes all pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (folder / name).write_text(make())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    write(Path(sys.argv[1]))
