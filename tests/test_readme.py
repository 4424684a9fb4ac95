"""The README and the pages under docs/ show the program's real output, and the commands in them run.

`python -m tests.test_readme` rewrites the outputs and the tables.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest

from llmcalc.cli.main import main
from llmcalc.model import ModelSpec
from llmcalc.simulator.published import KERNELS, LIBRARIES
from llmcalc.sources.huggingface.family import Deviation
from llmcalc.sources.huggingface.registry import TYPES_BY_FILE, family_of, model_types
from llmcalc.witnesses.deviations import COMMON_DEVIATIONS
from tests import prose
from tests.builders import CASES, WITH_CLASSES
from tests.components.towers.tower_shapes import WRAPPERS
from tests.device_memory.published import Outcome, fine_tuning, servers
from tests.families import shapes_of
from tests.samples import in_one_test, sampled, spread
from tests.witnesses.class_memory import classes_table
from tests.witnesses.verdicts import QUANTITIES, coverage, recorded

ROOT = Path(__file__).parent.parent
README, GUIDE = ROOT / "README.md", ROOT / "docs/guide.md"
READMES = [README, ROOT / "README.zh-CN.md"]
PAGES = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
ANSWER = re.compile(r"^\| .*? \| `(llmcalc [^`]*)` \| (.*?) \|$", re.MULTILINE)
SHOWN = re.compile(r"<!-- output: (llmcalc [^>]*?) -->\n```\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SECONDS = re.compile(r" +\d+\.\d s$", re.MULTILINE)


def printed(command: str) -> str:
    """Returns the output of a command at 80 columns without colour and times."""
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", shlex.split(command)),
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def without_times(text: str) -> str:
    return SECONDS.sub("", text)


def printed_without_times(command: str) -> str:
    """Returns the output of a command without times. Times of a slow machine would make their column wider."""
    with mock.patch("time.perf_counter", return_value=0.0):
        return without_times(printed(command))


def texts_by_command() -> dict[str, set[str]]:
    """Returns what the pages show of each command; a page and its translation show the same."""
    texts: dict[str, set[str]] = {}
    for page in PAGES:
        for command, shown in SHOWN.findall(page.read_text()):
            texts.setdefault(command, set()).add(without_times(shown))
    return texts


SEARCHES = (
    "llmcalc fit llama3-70b --phase training",
    "llmcalc serve llama3.1-70b",
    "llmcalc plan llama3-8b",
    "llmcalc plot serve",
    "llmcalc plot aspect",
    "llmcalc compare --all",
    "llmcalc verify smollm2-135m --memory",
)
"""Beginnings of commands that take seconds. The same commands with other options run in the goldens and in the tests of
their own (studies, plots, witnesses/test_verify_memory.py).
"""
SHOWN_BY = {command: (command, shown) for command, shown in texts_by_command().items()}


def answered(command: str) -> set[tuple[str, bool]]:
    """What changes a screen: the command, and whether it has options, which reports/test_goldens.py has by themselves.
    What a screen says of one model, it says of others.
    """
    if command.startswith(SEARCHES):
        return set()
    _, name, *words = command.split()
    return {(name, any(word.startswith("-") for word in words))}


@pytest.mark.parametrize(("command", "shown"), spread(sampled(SHOWN_BY, lambda shown_by: answered(shown_by[0]))))
def test_outputs_are_current(command: str, shown: set[str]) -> None:
    assert shown == {printed_without_times(command)}, "run python -m tests.test_readme"


@pytest.mark.parametrize(("command", "answer"), ANSWER.findall(README.read_text()))
def test_the_answers_are_those_of_the_commands(command: str, answer: str) -> None:
    assert answer in printed(command)


def test_the_readme_has_eight_answers_and_is_short() -> None:
    assert len(ANSWER.findall(README.read_text())) == 8
    assert len(README.read_text().splitlines()) <= 80


def test_the_chinese_readme_has_the_same_answers() -> None:
    english, chinese = (ANSWER.findall(page.read_text()) for page in READMES)
    assert chinese == english


@pytest.mark.parametrize(
    "page", [page for page in PAGES if prose.VALUE.search(page.read_text())], ids=lambda page: page.stem
)
def test_values_in_sentences_are_current(page: Path) -> None:
    text = page.read_text()
    assert text == prose.renewed(text), "run python -m tests.test_readme"
    assert not re.search(r"^ *<!-- /?value", text, re.MULTILINE), "a comment at the start of a line ends a paragraph"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name in ("tutorials", "how-to") and PYTHON.search(page.read_text())],
    ids=lambda page: page.stem,
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program; `expression  # value` says what the expression is."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in PYTHON.findall(page.read_text()):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            source = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            expected = lines[(statement.end_lineno or 1) - 1][statement.end_col_offset :].partition("# ")[2]
            if isinstance(statement, ast.Expr) and expected:
                assert str(eval(source.partition("  # ")[0], space)) == expected, source
            else:
                exec(source, space)


@in_one_test
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_its_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def example_commands() -> dict[str, str]:
    block = GUIDE.read_text().split("## Commands")[1].split("```sh\n")[1].split("```")[0]
    return {command: command for line in block.splitlines() if (command := line.partition(" #")[0].strip())}


def options_of(command: str) -> set[tuple[str, str]]:
    """What may be wrong in an example: an option of a command. `serve` and `cost` are searches, as those above are."""
    if command.startswith((*SEARCHES, "llmcalc serve", "llmcalc cost")):
        return set()
    _, name, *words = command.split()
    return {(name, word) for word in ("", *words) if not word or word.startswith("-")}


@pytest.mark.parametrize("command", sampled(example_commands(), options_of))
def test_every_example_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed(command) or list(tmp_path.iterdir())


def test_the_guide_has_an_example_of_most_commands() -> None:
    assert len(example_commands()) >= 19


@pytest.mark.parametrize("page", [GUIDE, READMES[1]], ids=lambda page: page.stem)
def test_python_example(page: Path) -> None:
    code = page.read_text().split("<!-- python -->\n```python\n")[1].split("```")[0]
    space: dict[str, object] = {}
    for line in code.splitlines():
        expression, _, expected = line.partition("#")
        if expected:
            assert eval(expression, space) == ast.literal_eval(expected.strip()), line
        else:
            exec(line, space)


def test_toml_example() -> None:
    described = GUIDE.read_text().split("## A description of your own")[1]
    data = tomllib.loads(described.split("```toml\n")[1].split("```")[0])
    spec = ModelSpec.model_validate(data["model"])
    assert (
        spec.tree().total(lambda use: use.params())
        == 32000 * 2048 + 24 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 5632 + 2 * 2048) + 2048
    )


def test_a_model_type_that_is_read_is_not_among_the_unsupported() -> None:
    for page, start in zip(READMES, ("- Not supported: ", "- 不支持的模型："), strict=True):
        names = re.split(r" and |, |、", re.split(", of which|（", page.read_text().partition(start)[2])[0])
        assert len(names) > 1, page
        assert {name.lower() for name in names}.isdisjoint(model_types()), page


EXACT, IN_PART, NONE = "exact", "in part ²", "–"
WORDS = {"exact": EXACT, "followed": "exact ¹", "": NONE}


def families_table() -> str:
    """Every supported family: the number of shapes compared with its class, the number of real configs, and the exact
    quantities.

    test_families.py compares every shape here, test_towers.py every wrapper.
    """
    real = Counter(json.loads((case / "config.json").read_text())["model_type"] for case in CASES)
    lines = [
        "| model_type | parameters | FLOPs | cache | encoders' parameters | individually | shapes | real configs |",
        "|:---|:---|:---|:---|:---|---:|---:|---:|",
    ]
    verdicts = recorded()
    for file in sorted(WITH_CLASSES, key=lambda file: min(TYPES_BY_FILE[file])):
        kinds = sorted(TYPES_BY_FILE[file])
        context = [shape for kind in kinds if kind in WRAPPERS for shape in WRAPPERS[kind][2]]
        cells = [WORDS[verdicts.get(file, {}).get(quantity, "")] for quantity in QUANTITIES]
        alone, leaves = coverage(file)
        untold = any(family_of(kind).text_type for kind in set(kinds) - set(WRAPPERS))
        cells += [
            IN_PART if untold else EXACT if context else NONE,
            f"{100 * alone // leaves} %" if leaves else NONE,
            str(sum(len(shapes_of(kind)) for kind in kinds) + len(context)),
            str(sum(real[k] for k in kinds) or ""),
        ]
        lines.append(f"| {', '.join(kinds)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def deviations_table() -> str:
    """Every deviation that the comparison with transformers allows."""
    lines = ["| classes of | what they do | changes |", "|:---|:---|:---|"]
    whose: dict[int, tuple[Deviation, list[str]]] = {id(deviation): (deviation, []) for deviation in COMMON_DEVIATIONS}
    for kind in model_types():
        for deviation in family_of(kind).deviations:
            whose.setdefault(id(deviation), (deviation, []))[1].append(kind)
    for deviation, kinds in whose.values():
        lines.append(
            f"| {', '.join(kinds) or 'all'} | {deviation.explanation} | {deviation.quantity.replace('_', ' ')} |"
        )
    return "\n".join(lines) + "\n"


def kernels_table() -> str:
    """Every published kernel that recurrent layers run."""
    lines = ["| kernel | library | where | how it is known |", "|:---|:---|:---|:---|"]
    for kernel in KERNELS:
        library = LIBRARIES[kernel.library]
        source = f"[{library.name}](https://github.com/{library.repository}/tree/{library.commit})"
        known = f"{kernel.memory_source}; {kernel.note}" if kernel.note else kernel.memory_source
        lines.append(f"| `{kernel.name}` | {source} | {kernel.source_location} | {known} |")
    return "\n".join(lines) + "\n"


def outcomes_table(outcomes: Iterable[Outcome]) -> str:
    """Published figures beside what is computed for them."""
    lines = ["| row | measured | computed | error |", "|:---|---:|---:|---:|"]
    for one in outcomes:
        if one.left_out or one.measured is None or one.note == "out of memory":
            continue
        found = f"{one.low:,.2f}" if one.low == one.high else f"{one.low:,.2f} to {one.high:,.2f}"
        error = "within" if one.low != one.high and not one.error else f"{100 * one.error:+.1f} %".replace("-", "−")
        lines.append(f"| {one.id} | {one.measured:,.2f} | {found} | {error} |")
    return "\n".join(lines) + "\n"


GENERATED = {
    "families": families_table,
    "deviations": deviations_table,
    "kernels": kernels_table,
    "published": lambda: outcomes_table(fine_tuning()),
    "servers": lambda: outcomes_table(servers()),
    "classes": classes_table,
}


def section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", GENERATED)
def test_tables_are_current(name: str) -> None:
    (found,) = filter(None, (section(name).search(page.read_text()) for page in PAGES))
    assert found[2].strip() == GENERATED[name]().strip(), "run python -m tests.test_readme"


def renewed(command: str, shown: str) -> str:
    """Returns the current output; the old output if only times differ."""
    now = printed(command)
    return shown if without_times(now) == without_times(shown) else now


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text()
        for name, make in GENERATED.items():
            text = section(name).sub(lambda m, make=make: f"{m[1]}\n{make()}\n{m[3]}", text)  # type: ignore[misc]
        text = prose.renewed(text)
        page.write_text(SHOWN.sub(lambda m: f"<!-- output: {m[1]} -->\n```\n{renewed(m[1], m[2])}```", text))
