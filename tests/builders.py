"""Builders that several test files share: runs of a model, and the small models of every family."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from llmcalc.components.base import Component
from llmcalc.flow.axis import Axis
from llmcalc.flow.program import all_steps
from llmcalc.flow.record import Flow
from llmcalc.flow.tree import Node
from llmcalc.flow.value import Value
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import TYPES_BY_FILE, families_of_file
from llmcalc.workload.counting import Counting, Pairs
from llmcalc.workload.execution import AttentionImplementation, Execution, LatentForm
from llmcalc.workload.recompute import parse_recompute
from llmcalc.workload.rows import TOKENS
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload

T = TypeVar("T")

CASES = sorted(p.parent for p in (Path(__file__).parent / "data" / "cases").glob("*/config.json"))
"""The folders of published configs with the numbers measured on their classes."""


WITH_CLASSES = [file for file in TYPES_BY_FILE if not any(family.source for family in families_of_file(file).values())]
"""The files of families whose classes are in `transformers`; of the others the class is code of the model's repository,
which test_remote_code.py compares with the reference and with published checkpoints.
"""

SOME_PRESETS = [
    "bart-large",
    "bert-base",
    "bloom-560m",
    "deepseek-v3",
    "falcon-7b",
    "gemma3-4b",
    "gpt-oss-20b",
    "gpt2",
    "llama3-8b",
    "mamba2-130m",
    "mixtral-8x7b",
    "mpt-7b",
    "olmo2-7b",
    "opt-350m",
    "phi-2",
    "qwen3-next-80b-a3b",
    "t5-v1.1-xl",
    "whisper-tiny",
    "zamba2-1.2b",
]
"""One preset of each lineage."""


def json_lines(mapping: Mapping[str, Any], indent: str = "") -> str:
    """A JSON object with one line per key, the format of generated files that people read."""
    lines = (f"{indent}  {json.dumps(key)}: {json.dumps(value)}" for key, value in mapping.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def run_config(
    *,
    pairs: Pairs = "full",
    attention: AttentionImplementation = "eager",
    recompute: str = "none",
    mla: LatentForm = "auto",
    **workload: Any,
) -> RunConfig:
    """A run of a workload with these fields, counting convention and execution."""
    return RunConfig(Workload(**workload), Counting(pairs), Execution(attention, parse_recompute(recompute), mla))


def family_shapes(first_of_each_file: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (`LlamaForCausalLM-0`, a small config.json) for every shape of `tests/families` with a class.

    first_of_each_file: only the first shape of each class in each file.
    """
    for file in WITH_CLASSES:
        for cls, several in import_module(f"tests.families.{file}").SHAPES.items():
            for i, shape in enumerate(several[:1] if first_of_each_file else several):
                yield f"{cls}-{shape['model_type']}-{i}", {"architectures": [cls], **shape}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    """The spec of a config.json. Equal configs have the same spec, with its recorded programs."""
    return _spec_of_text(json.dumps(config))


@cache
def _spec_of_text(text: str) -> ModelSpec:
    """The spec of a config.json's text."""
    return ModelSpec.model_validate(read_config(json.loads(text))[0])


def with_other_causes(values: Iterable[T], causes: Callable[[T], Iterable[Hashable]]) -> list[T]:
    """Returns few of the values, in their order, that have every cause between them: one after another, that which has
    most of the causes that are missing; of several, the first.

    causes: what a test of a value may find wrong, each a key; two values with the same causes fail for the same reason.
    """
    listed = list(values)
    causes_of = [frozenset(causes(value)) for value in listed]
    missing = set().union(*causes_of)
    by_number = [(-len(own_causes), i) for i, own_causes in enumerate(causes_of)]
    heapq.heapify(by_number)
    chosen: list[int] = []
    while missing:
        number, i = heapq.heappop(by_number)
        still = -len(causes_of[i] & missing)
        if still == number:
            chosen.append(i)
            missing -= causes_of[i]
        elif still:
            heapq.heappush(by_number, (still, i))
    return [listed[i] for i in sorted(chosen)]


def verbs_of(spec: ModelSpec) -> set[str]:
    """What a model computes, as several causes: its kind, its head, and each verb of its steps."""
    return {spec.kind, spec.head.type, *(step.verb for step in all_steps(spec.shared_program.root.items))}


def parts_of(value: Any) -> set[tuple[str, str, str]]:
    """Returns (class of a part, field, class of the part there) of every part below a value."""
    return {(owner, name, kind) for owner, name, kind, is_part in _below(value) if is_part}


def kinds_of_parts(value: Any) -> set[str]:
    """Returns the classes of the parts below a value."""
    return {kind for _, _, kind in parts_of(value)}


def fields_of(value: Any) -> set[tuple[str, str, str]]:
    """Returns (class of a part, field, what it has) of everything below a value."""
    return {(owner, name, kind) for owner, name, kind, _ in _below(value)}


_KNOWN_BELOW: dict[int, tuple[Any, frozenset[tuple[str, str, str, bool]]]] = {}
"""Id of a value → (the value, which stays so that no other has its id; what is below it)."""


def _below(value: Any) -> frozenset[tuple[str, str, str, bool]]:
    """Returns (class of a part, field, what it has, whether that is a part) of everything below a value."""
    if id(value) not in _KNOWN_BELOW:
        _KNOWN_BELOW[id(value)] = value, frozenset(_find_below(value))
    return _KNOWN_BELOW[id(value)][1]


def _find_below(value: Any) -> set[tuple[str, str, str, bool]]:
    found: set[tuple[str, str, str, bool]] = set()
    left: list[tuple[Any, str, str]] = [(value, "", "")]
    while left:
        value, owner, name = left.pop()
        kind = type(value)
        if kind in PLAIN:
            found.add((owner, name, str(value), False))
        elif issubclass(kind, BaseModel):
            found.add((owner, name, kind.__name__, True))
            left += [(getattr(value, field), kind.__name__, field) for field in kind.model_fields]
        elif issubclass(kind, Mapping | tuple | list):
            found.add((owner, name, str(bool(value)), False))
            left += [(element, owner, name) for element in (value.values() if issubclass(kind, Mapping) else value)]
        else:
            found.add((owner, name, str(value) if isinstance(value, str) else kind.__name__, False))
    return found


PLAIN = frozenset({str, bool, type(None)})
"""Types of values that are compared by what they are, and not by their type."""


def recorded(part: Component, width: int) -> Node:
    """Returns the node of a single part, in a causal stack of that width."""
    recorder = Flow()
    x = Value(TOKENS, (Axis("hidden", width),))
    recorder.part("part", part, x)
    return recorder.node().children[0]
