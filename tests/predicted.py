"""Predictions beside measurements: every folder of docs/measured has a config, a command and what was measured.

`python -m tests.predicted` writes the tables of docs/measured.md and docs/zh/measured.md anew.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from llmcalc.record import Record
from llmcalc.sources.files import parse_toml, read_text, validate
from tests.test_readme import printed

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "measured"
PAGES = {"en": ROOT / "docs/measured.md", "zh": ROOT / "docs/zh/measured.md"}
TABLE = re.compile(r"(<!-- measured -->\n)(.*?)(<!-- /measured -->)", re.DOTALL)
HEADINGS = {
    "en": ("run", "measured", "predicted", "error", "what was measured"),
    "zh": ("运行", "实测", "预测", "误差", "测的是什么"),
}
UNITS = {"bytes": (2**30, "GiB"), "s": (1, "s"), "tokens": (1, "tokens"), "tokens/s": (1, "tokens/s")}
"""Unit of a row → (how many of it make the unit of the table, its name)."""


class OtherTool(Record):
    """What another program answers to the same question. tool: its name and version. predicted: in the row's unit."""

    tool: str
    predicted: float
    source: str


class Row(Record):
    """The file `row.toml` of a folder.

    command: what predicts, run in the folder. key: path of the prediction in the command's document.
    measured: the measurement, in unit. what: what was measured, in words. on: device and versions. read: day on which
    the source was read. source: its address. within: the error that the prediction had when the row was added, as a
    share; a larger one fails the test. others: what other programs answer.
    """

    command: str
    key: str
    measured: float
    unit: str
    what: str
    on: str
    read: date
    source: str
    within: float
    others: tuple[OtherTool, ...] = ()


def rows() -> dict[str, Row]:
    """Folder → its row."""
    return {
        folder.name: validate(Row, parse_toml(read_text(folder / "row.toml"), folder.name), folder.name)
        for folder in sorted(FOLDER.iterdir())
        if folder.is_dir()
    }


@cache
def predicted(name: str) -> float:
    """What the command of a folder predicts, in the unit of its row."""
    row = rows()[name]
    with contextlib.chdir(FOLDER / name):
        document: Any = json.loads(printed(f"{row.command} --format json"))
    for key in row.key.split("."):
        document = document[key]
    return float(document)


def error(name: str) -> float:
    """Prediction over measurement, minus 1."""
    return predicted(name) / rows()[name].measured - 1


def table(language: str) -> str:
    """The table of a page."""
    lines = ["| " + " | ".join(HEADINGS[language]) + " |", "|:---|---:|---:|---:|:---|"]
    for name, row in rows().items():
        factor, unit = UNITS[row.unit]
        values = f"{row.measured / factor:,.3f} {unit} | {predicted(name) / factor:,.3f} {unit}"
        link = f"[{name}]({'../' * (language == 'zh')}measured/{name}/row.toml)"
        others = "".join(f"; {other.tool}: {other.predicted / factor:,.3f} {unit}" for other in row.others)
        lines.append(f"| {link} | {values} | {percent(error(name))} | {row.what}; {row.on}{others} |")
    return "\n".join(lines) + "\n"


def percent(share: float) -> str:
    """Writes a share with two decimals and its sign, or 0 without one."""
    text = f"{share:+.2%}".replace("%", " %").replace("-", "−")
    return "0.00 %" if text[1:] == "0.00 %" else text


def written(text: str, language: str, tables: Mapping[str, str]) -> str:
    """A page with its table in place."""
    return TABLE.sub(lambda match: f"{match[1]}\n{tables[language]}\n{match[3]}", text)


if __name__ == "__main__":
    for language, page in PAGES.items():
        page.write_text(written(page.read_text(), language, {language: table(language)}))
