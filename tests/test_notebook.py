"""The tutorial notebook runs, and its stored outputs are current.

The cells are plain Python, so they run here in one namespace, as a kernel runs them: the last expression of a cell is
displayed. A kernel of Jupyter would need forty more packages and a process with sockets, for the same check. Stored are
tables and text, not pictures, whose bytes change with the version of matplotlib. The file takes 2 seconds.

`python -m tests.test_notebook` rewrites the outputs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs/notebooks/tutorial.ipynb"


def displayed(value: object) -> dict[str, str]:
    """What Jupyter stores of a displayed value: its text, and its HTML or its picture where it has one."""
    found = {"text/plain": repr(value)}
    for mime, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        shown = getattr(value, method, lambda: None)()
        if shown is not None:
            found[mime] = shown
    return found


def run(source: str, space: dict[str, Any]) -> tuple[str, dict[str, str] | None]:
    """Runs a cell: what it prints, and what it displays."""
    body = ast.parse(source)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    out, shown = io.StringIO(), None
    with contextlib.redirect_stdout(out):
        exec(compile(body, NOTEBOOK.name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), space)
            shown = None if value is None else displayed(value)
    return out.getvalue(), shown


def outputs(printed: str, shown: dict[str, str] | None, count: int) -> list[dict[str, Any]]:
    """The outputs of a cell as the notebook stores them, without pictures."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": lines(printed)})
    if shown is not None and "image/svg+xml" not in shown:
        data = {mime: lines(text) for mime, text in shown.items()}
        found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def executed() -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The notebook with the outputs of a fresh run, and everything that its cells display."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    space: dict[str, Any] = {"__name__": "__main__"}
    all_shown = []
    for count, cell in enumerate((one for one in notebook["cells"] if one["cell_type"] == "code"), 1):
        printed, shown = run("".join(cell["source"]), space)
        cell["execution_count"], cell["outputs"] = count, outputs(printed, shown, count)
        all_shown += [shown] if shown else []
    return notebook, all_shown


def written(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def test_its_outputs_are_current() -> None:
    pytest.importorskip("matplotlib", reason="pip install '.[plot]'")
    notebook, shown = executed()
    assert NOTEBOOK.read_text(encoding="utf-8") == written(notebook), "run python -m tests.test_notebook"
    assert sum("text/html" in one for one in shown) == 2
    pictures = [one["image/svg+xml"] for one in shown if "image/svg+xml" in one]
    assert len(pictures) == 2
    assert all(label in pictures[0] for label in ("Qwen3 8B", "Gemma 3 27B", "DeepSeek-V3", "KV cache"))
    assert "Qwen3 0.6B" in pictures[1]


def test_it_is_a_notebook() -> None:
    """Format 4.5: every cell has an id of its own, and the links of its text lead somewhere."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    assert all((NOTEBOOK.parent / link).exists() for link in links)


if __name__ == "__main__":
    NOTEBOOK.write_text(written(executed()[0]), encoding="utf-8")
