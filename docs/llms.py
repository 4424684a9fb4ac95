"""Pages for language models: `llms.txt` (https://llmstxt.org) and a page of Markdown for each command.

A page has the command's help with every option, and the keys of its JSON document with their meanings and units.
`docs/build.py` writes them into the site.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from documents import described
from running import printed

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "llms"
"""The folder of the commands' pages in the site."""


def address() -> str:
    """The address of the documentation's site, which pyproject.toml states."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"])


def command_page(name: str) -> str:
    """The page of a command: its help, and the keys of its document."""
    help_text = printed(f"{name} --help-all")
    page = f"# llmcalc {name}\n\n```text\n{help_text}```\n"
    for command in re.findall(r"^  (\w+)  ", help_text.partition("\nCommands:\n")[2], re.MULTILINE):
        page += f"\n## {name} {command}\n\n```text\n{printed(f'{name} {command} --help-all')}```\n"
    documents = described()
    keys = documents.documents.get(name)
    if keys is None:
        return page
    page += "\n## Keys of the document (`--format json`)\n\n"
    rows = dict(keys.rows)
    for path, key in keys.rows.items():
        if key.part:
            rows |= {f"{path}.{below}": row for below, row in documents.parts[key.part].rows.items()}
    return page + "".join(
        f"- `{path}`{f' ({row.unit})' if row.unit else ''}: {row.meaning}\n" for path, row in rows.items()
    )


def index(names: tuple[str, ...]) -> str:
    """The text of `llms.txt`: what llmcalc is, and its pages with a sentence on each."""
    from llmcalc.cli.help import command_summary
    from llmcalc.cli.main import command_module_name

    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    text = f"# llmcalc\n\n> {about}\n\n"
    text += (
        "Every command takes a preset's name, a config.json, a description in TOML or a hub id, and prints JSON with "
    )
    text += "`--format json`. In Python each command is a function of its name. `llmcalc mcp` offers the commands as "
    text += "tools.\n\n## Commands\n\n"
    for name in names:
        summary = command_summary(f"llmcalc.cli.{command_module_name(name)}")
        text += f"- [{name}]({address()}{FOLDER}/{name}.md): {summary}\n"
    pages = {"guide": "Every command with an example", "conventions": "What each number includes"}
    pages |= {"memory": "Memory of one device", "layouts": "Memory of many devices", "time": "How times are estimated"}
    text += "\n## Documentation\n\n"
    return text + "".join(f"- [{title}]({address()}{name}.html)\n" for name, title in pages.items())


def write(site: Path) -> None:
    """Writes `llms.txt` and the commands' pages into the site."""
    from llmcalc.cli.main import COMMANDS

    (site / FOLDER).mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        (site / FOLDER / f"{name}.md").write_text(command_page(name), encoding="utf-8")
    (site / "llms.txt").write_text(index(COMMANDS), encoding="utf-8")
