"""Neutral code names no framework: what is known of one stands in its folder, behind its record.

Read are identifiers and strings of every file outside of a framework's folder, but not comments and docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmcalc
from llmcalc.frameworks.launch.file_kinds import LAUNCH_FILE_BY_PROGRAM
from llmcalc.frameworks.registry import FRAMEWORK_NAMES

PACKAGE = Path(llmcalc.__file__).parent

FRAMEWORKS = re.compile(
    "|".join((*(name for name in FRAMEWORK_NAMES if name != "torch"), "torchtitan", "fsdp2")), re.IGNORECASE
)

OTHERWISE = {
    "costs/recomputation.py": "a refusal of modules by Megatron-Core's names",
    "device_memory/simulated_run.py": "a refusal that says which frameworks have an option",
    "frameworks/registry.py": "the list of the frameworks",
    "frameworks/logs/registry.py": "the list of the readers of logs",
    "frameworks/launch/file_kinds.py": "the list of the programs",
    "frameworks/launch/command_line.py": "an installed program that is called after Megatron",
    "frameworks/launch/refused_programs.py": "scripts of NeMo that are called after Megatron",
    "frameworks/launch/accelerate_command.py": "accelerate's own keys",
    "frameworks/launch/trainer.py": "arguments of a script that adds a framework's own",
    "studies/flop_rules.py": "a rule of thumb that is called after the paper of Megatron-LM",
    "questions/runs.py": "a refusal of modules by Megatron-Core's names under other frameworks",
    "sources/huggingface/families/bert/bert.py": "the model type megatron-bert",
    "witnesses/distributed/job.py": "runs FSDP2 itself",
    "workload/lora.py": "a library of adapters that is called after Megatron",
}
"""File → why it has the name of a framework."""


def neutral_files() -> list[str]:
    """The files of the package outside of the folders of frameworks, and of programs that run one."""
    folders = tuple(f"frameworks/{name}/" for name in (*FRAMEWORK_NAMES, *LAUNCH_FILE_BY_PROGRAM))
    found = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return sorted(name for name in found if not name.startswith(folders))


def words_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of every identifier and string, without docstrings."""
    bodies = (body for parent in ast.walk(tree) if isinstance(body := getattr(parent, "body", None), list))
    alone = (node.value for body in bodies for node in body if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in alone if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, name, None), str):
                yield line, value
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield line, node.value


def faults(source: str) -> list[str]:
    """Names of frameworks, and comparisons with the word `torch`."""
    if not FRAMEWORKS.search(source) and not re.search(r"['\"]torch['\"]", source):
        return []  # most files: not parsed
    tree = ast.parse(source)
    names = [f"line {line}: {word}" for line, word in words_of(tree) if FRAMEWORKS.search(word)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "framework" in ast.unparse(node):
            values = [node.left, *node.comparators]
            if any(isinstance(value, ast.Constant) and value.value == "torch" for value in values):
                names.append(f"line {node.lineno}: {ast.unparse(node)}")
    return names


def test_neutral_code_names_no_framework() -> None:
    names = [name for name in neutral_files() if name not in OTHERWISE]
    by_file = {name: faults((PACKAGE / name).read_text(encoding="utf-8")) for name in names}
    assert len(names) > 500
    assert {name: lines for name, lines in by_file.items() if lines} == {}


@pytest.mark.parametrize("name", OTHERWISE)
def test_each_exception_is_one(name: str) -> None:
    assert faults((PACKAGE / name).read_text(encoding="utf-8"))


def test_a_branch_is_found() -> None:
    assert faults('if framework == "torch": pass') == ["line 1: framework == 'torch'"]
    assert faults("from .megatron import x")
    assert faults('name = "DeepSpeed"')
    assert not faults('"""Megatron-LM does so."""\nx = 1  # as FSDP2')
