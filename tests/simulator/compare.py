"""Prints where a part's model without values and torch's differ: `python -m tests.simulator.compare Attention-7`.

Without a name it lists all parts; names may be a beginning (`MoE`).
"""

from __future__ import annotations

import difflib
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from _pytest.mark.structures import ParameterSet

from llmcalc.components.base import Component
from llmcalc.components.choices import LAYERS, load_all_components
from llmcalc.components.stack import Stack
from llmcalc.evidence import UNTESTED, witness_of
from llmcalc.simulator.lowering import UnsupportedKernel
from tests.builders import fields_of, verbs_of
from tests.contracts.test_parts import around_a_model
from tests.samples import sampled
from tests.simulator.models import by_torch, without_values


@cache
def examples() -> Mapping[str, Component]:
    """Every part's examples, by the part's name and a number, without parts whose memory is stated as untested."""
    return MappingProxyType(
        {
            f"{part.__name__}-{i}": example
            for part in (*load_all_components(), *LAYERS.load_component_classes(), Stack)
            for i, example in enumerate(part.examples())
            if not is_untested(example)
        }
    )


def sampled_examples(names: Iterable[str]) -> list[ParameterSet]:
    """Those of a part's examples that compute something that no earlier example does; the others are exhaustive."""
    every = examples()
    return sampled({name: name for name in names}, lambda name: _computed(every[name]))


def _computed(part: Component) -> set[Any]:
    """A part's class, and the verbs of a small model around it."""
    return {type(part).__name__, *verbs_of(around_a_model(part))}


def examples_of_each_field(names: Iterable[str]) -> list[ParameterSet]:
    """Those of a part's examples in which a field has a value, or a verb runs, of no earlier example; the others are
    exhaustive.
    """
    every = examples()
    return sampled({name: name for name in names}, lambda name: _computed(every[name]) | fields_of(every[name]))


def is_untested(part: Component) -> bool:
    """Whether a part, or the streams of a stack, states no witness of its memory."""
    streams = part.streams if isinstance(part, Stack) else None
    return any(example is not None and witness_of(type(example)) is UNTESTED for example in (part, streams))


def differences(part: Component) -> list[str]:
    """What each side allocates and frees that the other does not, with a line around it."""
    spec = around_a_model(part)
    ours: list[str] = []
    theirs: list[str] = []
    without_values(spec, log=ours)
    by_torch(spec, log=theirs)
    matcher = difflib.SequenceMatcher(None, [_size(x) for x in ours], [_size(x) for x in theirs], autojunk=False)
    out = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            out += [f"@ {i} {k} {tag}", *(f"   ours  {line}" for line in ours[max(0, i - 1) : j + 1])]
            out += [f"   torch {line}" for line in theirs[max(0, k - 1) : m + 1]]
    return out


def _size(line: str) -> str:
    return line[:1] + line[1:13].strip()


def main() -> None:
    found, wanted = Counter[str](), sys.argv[1:]
    for name, part in examples().items():
        if wanted and not any(name.startswith(each) for each in wanted):
            continue
        try:
            ours = without_values(around_a_model(part))
        except UnsupportedKernel as error:
            print(f"{name}: {error}")
            found["unsupported"] += 1
            continue
        except Exception:
            traceback.print_exc()
            print(f"{name}: failed")
            found["failed"] += 1
            continue
        theirs = by_torch(around_a_model(part))
        found["equal" if ours == theirs else "different"] += 1
        if ours != theirs:
            print(f"{name}:\n  ours  {tuple(ours)}\n  torch {tuple(theirs)}")
            if name in wanted:
                print("\n".join(differences(part)))
    print(dict(found))


if __name__ == "__main__":
    main()
