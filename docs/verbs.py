"""Writes docs/verbs.md from the recorder: each verb with its arguments, what it records, and a call with its shapes.

python docs/verbs.py

Signatures and words are those of the code. The calls are made by the package's own parts: the examples of every part
are recorded, and of each verb's calls the shortest is shown, with the shapes of the values that it read and gave there.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "verbs.md"
LINE = 120
"""The longest line of Python in the package, and in the page."""

FIELD = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)

HEAD = """# Verbs of a flow

For whoever writes a part. A part's `flow(self, recorder, x)` calls a verb of the recorder once per operation, in the
order of the forward pass; the recorder keeps a step with its inputs, its outputs and the op that has its cost. A verb
takes values and returns values. A value is `[rows, *axes]`: rows are tokens, patches, routed tokens, …, and each axis
has a name and a length (`Axis("heads", 32)`). The `name` of a verb is the module that holds the operation's weights.

Below each call stand the shapes of the values that it reads and gives there. The words are the docstrings of
`llmcalc/flow/recorder.py` and `llmcalc/flow/verbs`.
"""


@dataclass(frozen=True)
class Call:
    """A call of a verb in a part. file, line: where. text: its source. takes, gives: shapes. steps: what it records."""

    file: str
    line: int
    text: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    steps: tuple[str, ...]


def classes() -> list[type]:
    """The recorder, and the classes of verbs, in the order of the page."""
    from llmcalc.flow.record import Flow
    from llmcalc.flow.recorder import Recorder

    return [Recorder, *Flow.__bases__]


def verbs(cls: type) -> dict[str, Callable[..., Any]]:
    """The public methods that a class has of its own."""
    return {name: method for name, method in vars(cls).items() if inspect.isfunction(method) and name[0] != "_"}


def shape(value: Any) -> str:
    """The rows and the axes of a value."""
    from llmcalc.flow.axis import JoinedShapes

    def axis(value_axis: Any) -> str:
        if isinstance(value_axis, JoinedShapes):
            return " + ".join(" · ".join(map(axis, part)) or "1" for part in value_axis.shapes)
        return str(value_axis.name)

    return f"[{', '.join((value.rows.name, *map(axis, value.axes)))}]"


def shapes(values: Any) -> Iterator[str]:
    """The shapes of every value in arguments or results."""
    from llmcalc.flow.value import Value

    if isinstance(values, Value):
        yield shape(values)
    elif isinstance(values, dict | tuple | list):
        for member in values.values() if isinstance(values, dict) else values:
            yield from shapes(member)


def quoted(text: str) -> str:
    """Python with double quotes, as the package is written."""
    return re.sub(r"'([^'\"\\]*)'", r'"\1"', text)


@functools.cache
def source(file: str) -> dict[tuple[int, str], str]:
    """(line, name of a method) → the shortest call of it that begins there."""
    text, shortest_calls = Path(file).read_text(encoding="utf-8"), dict[tuple[int, str], str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                before, written = shortest_calls.get((line, node.func.attr)), quoted(ast.unparse(node))
                if before is None or len(written) < len(before):
                    shortest_calls[line, node.func.attr] = written
    return shortest_calls


@contextmanager
def watched(calls: dict[str, list[Call]]) -> Iterator[None]:
    """Calls of verbs by parts are noted meanwhile."""
    package, recorder = str(ROOT / "llmcalc"), str(ROOT / "llmcalc" / "flow")

    def watching(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            frame, items = sys._getframe(1), self.current_scope.items
            count = len(items)
            result = method(self, *arguments, **named)
            file, line = frame.f_code.co_filename, frame.f_lineno
            is_part = file.startswith(package) and not file.startswith(recorder)
            text = source(file).get((line, name)) if is_part else None
            if text is not None:
                recorded_steps = [step for step in items[count:] if hasattr(step, "verb")]
                ops = [
                    f"`{step.verb}`" + (f" with `ops.{type(step.op).__name__}`" if step.op else "")
                    for step in recorded_steps
                ]
                takes, gives = tuple(shapes([arguments, named])), tuple(shapes(result))
                place = Path(file).relative_to(ROOT).as_posix()
                calls.setdefault(name, []).append(Call(place, line, text, takes, gives, tuple(dict.fromkeys(ops))))
            return result

        return call

    before = [(cls, name, method) for cls in classes() for name, method in verbs(cls).items()]
    for cls, name, method in before:
        setattr(cls, name, watching(name, method))
    try:
        yield
    finally:
        for cls, name, method in before:
            setattr(cls, name, method)


def recorded() -> dict[str, list[Call]]:
    """The calls of every verb by the examples of every part, and by the towers of a few presets."""
    import llmcalc
    from tests.contracts.test_parts import EXAMPLES, around_a_model

    calls: dict[str, list[Call]] = {}
    with watched(calls):
        for example in EXAMPLES:
            around_a_model(example.values[0]).tree()
        for name in ("gemma4-e2b", "whisper-tiny"):
            llmcalc.load(name).model.tree()
    return calls


def wrapped(call: str) -> str:
    """A call on one line, or with its arguments on a line of their own if it is too long."""
    called, _, arguments = call.partition("(")
    return call if len(call) <= LINE else f"{called}(\n    {arguments[:-1]}\n)"


def described(name: str, method: Callable[..., Any], calls: list[Call]) -> str:
    """A verb's section."""
    signature = inspect.signature(method)
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    head = re.sub(
        r'\w+\(name="(\w+)", batched=True\)', lambda rows: rows[1].upper(), quoted(str(inspect.Signature(plain)))
    )
    words, _, more = (inspect.getdoc(method) or "").partition("\n")
    listed = re.sub(r"(?<=[^\n])\n(?=- `)", "\n", FIELD.sub(r"- `\1`: ", more))
    listed = re.sub(r"^(?!- |\s|$)(.*)\n(?=- `)", r"\1\n\n", listed, flags=re.MULTILINE)
    text = f"### {name}\n\n```python\n{wrapped(f'recorder.{name}{head}')}\n```\n\n{words}\n{listed}".rstrip() + "\n"
    if not calls:
        return text
    named = head.startswith("(name")  # then a call with the name in it says the most
    call = min(
        calls,
        key=lambda candidate: (
            named and not re.search(r'"\w', candidate.text),
            len(candidate.text),
            candidate.file,
            candidate.line,
        ),
    )
    records = f"Records {', '.join(call.steps)}. " if call.steps else ""
    text += f"\n{records}As in `{call.file.removeprefix('llmcalc/')}`:\n\n```python\n{wrapped(call.text)}\n```\n"
    if call.takes or call.gives:
        text += f"\n`{', '.join(call.takes) or 'no value'}` → `{', '.join(call.gives) or 'no value'}`\n"
    return text


RECORDS, MODULES = "Methods that record ", "modules and variables"
"""How the docstring of a group of verbs begins, before its heading; and the heading of those of the recorder itself."""


def page() -> str:
    """The page."""
    calls, text = recorded(), HEAD
    for cls in classes():
        words = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        title = words.removeprefix(RECORDS).rstrip(".").partition(":")[0] if words.startswith(RECORDS) else MODULES
        text += f"\n## {title[0].upper()}{title[1:]}\n\n{words}\n"
        for name, method in verbs(cls).items():
            text += "\n" + described(name, method, calls.get(name, []))
    return text


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
