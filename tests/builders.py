"""Builders that several test files share: runs of a model, and the small models of every family."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from llmcalc.components.base import Component
from llmcalc.flow.axis import Axis
from llmcalc.flow.record import Flow
from llmcalc.flow.tree import Node
from llmcalc.flow.value import Value
from llmcalc.model import ModelSpec
from llmcalc.simulator.evidence import every_step
from llmcalc.sources.huggingface.registry import FILES, families_in, read_config
from llmcalc.workload.counting import Counting, Pairs
from llmcalc.workload.execution import AttentionImplementation, Execution, LatentForm
from llmcalc.workload.recompute import recompute_of
from llmcalc.workload.rows import TOKENS
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload

T = TypeVar("T")

CASES = sorted(p.parent for p in (Path(__file__).parent / "data" / "cases").glob("*/config.json"))
"""The folders of published configs with the numbers measured on their classes."""


WITH_CLASSES = [file for file in FILES if not any(family.code for family in families_in(file).values())]
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
    return RunConfig(Workload(**workload), Counting(pairs), Execution(attention, recompute_of(recompute), mla))


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


def with_other_causes(values: Iterable[T], causes: Callable[[T], Iterable[Hashable]]) -> Iterator[T]:
    """Yields the values with a cause that no value before them has.

    causes: what a test of a value may find wrong, each a key; two values with the same causes fail for the same reason.
    """
    seen: set[Hashable] = set()
    for value in values:
        new = set(causes(value))
        if not new <= seen:
            seen |= new
            yield value


def verbs_of(spec: ModelSpec) -> set[str]:
    """What a model computes, as several causes: its kind, its head, and each verb of its steps."""
    return {spec.kind, spec.head.type, *(step.verb for step in every_step(spec.shared_program.root.items))}


def parts_of(value: Any, owner: str = "", name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields (class of a part, field, class of the part there) of every part below a value."""
    if isinstance(value, BaseModel):
        yield owner, name, type(value).__name__
        for field in type(value).model_fields:
            yield from parts_of(getattr(value, field), type(value).__name__, field)
    elif isinstance(value, Mapping | tuple | list):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from parts_of(element, owner, name)


def fields_of(value: Any, owner: str = "", name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields (class of a part, field, what it has) of everything below a value."""
    if isinstance(value, BaseModel):
        yield owner, name, type(value).__name__
        for field in type(value).model_fields:
            yield from fields_of(getattr(value, field), type(value).__name__, field)
    elif isinstance(value, Mapping | tuple | list):
        yield owner, name, str(bool(value))
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from fields_of(element, owner, name)
    else:
        yield owner, name, str(value) if isinstance(value, str | bool | None) else type(value).__name__


def recorded(part: Component, width: int) -> Node:
    """Returns the node of a single part, in a causal stack of that width."""
    f = Flow()
    x = Value(TOKENS, (Axis("hidden", width),))
    f.part("part", part, x)
    return f.node().children[0]
