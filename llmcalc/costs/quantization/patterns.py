"""Which modules a config's list names, though our modules are called otherwise.

A module of ours has the names that published models give it (`mlp.router` is `mlp.gate` in most); a list names a module
where it names any of them. Rules of matching:
- `transformers`, should_convert_module: a name is the start of the module's up to a step, or its end, or a regular
  expression at its start.
- AutoAWQ: part of a name; taken here as whole steps of it, so that `gate` does not name `gate_proj`.
- compressed-tensors, match_name: the whole name, or `re:` and a regular expression at its start.
- ModelOpt: the whole name with `*` for anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from time import process_time
from typing import Literal, TypeAlias

from ...errors import InputError

Rule: TypeAlias = Literal["transformers", "awq", "compressed-tensors", "modelopt"]

PREFIXES = ("", "model.", "model.language_model.", "language_model.model.")
STEPS: dict[str, tuple[str, ...]] = {
    "mlp": ("mlp", "block_sparse_moe", "feed_forward"),
    "router": ("router", "gate"),
    "shared_expert": ("shared_expert", "shared_experts"),
    "kv_a_proj": ("kv_a_proj", "kv_a_proj_with_mqa"),
    "mamba": ("mamba", "mixer"),
    "self_attn": ("self_attn", "attention", "attn"),
}
"""A step of our paths → what else published models call it."""

LEAVES: dict[str, tuple[str, ...]] = {
    "q_proj": ("q_proj", "qkv_proj"), "k_proj": ("k_proj", "qkv_proj"), "v_proj": ("v_proj", "qkv_proj"),
    "gate_proj": ("gate_proj", "gate_up_proj"), "up_proj": ("up_proj", "gate_up_proj"),
}  # fmt: skip
EXPERTS: dict[str, tuple[str, ...]] = {
    "gate_proj": ("gate_proj", "gate_up_proj", "w1"),
    "up_proj": ("up_proj", "gate_up_proj", "w3"),
    "down_proj": ("down_proj", "w2"),
}

NEVER_CONVERTED = re.compile(r"norm|embed|lm_head|(^|\.)(gate|router)\W*$")
"""Entries that may name nothing here and are no surprise: norms under other names than ours, heads that are tied."""

REPEATED_GROUP = re.compile(r"\)[*+{]")
WORDS = re.compile(r"\((?:\?:)?(?:\w|-|\\\.)+(?:\|(?:\w|-|\\\.)+)*\)")
MOST_WAYS, WAYS_TO_REPEAT = 24, 6
"""A config may come from anyone: no pattern is tried that could match in more than 2^24 ways.
A repeat has about 2^6, a choice 2.
"""

LONGEST_MATCHING = 1.0
"""Seconds that all patterns of a list may take."""

MOST_ENTRIES = 5000

ONE_EXPERT = re.compile(r"experts\.[1-9]\d*\b")


@cache
def names_of(path: str) -> tuple[str, ...]:
    """Every name that a module of ours may have in a published model."""
    steps = path.split(".")
    ours = "experts" in steps
    choices: list[tuple[str, ...]] = [STEPS.get(step, (step,)) for step in steps[:-1]]
    choices.append((EXPERTS if ours else LEAVES).get(steps[-1], STEPS.get(steps[-1], (steps[-1],))))
    if ours:
        choices.insert(len(choices) - 1, ("0", ""))
    found = [".".join(step for step in chosen if step) for chosen in product(*choices)]
    return tuple(prefix + name for prefix in PREFIXES for name in found)


class Named:
    """Modules that a list names. Remembers which of its entries named one.

    Raises `InputError` for an entry that is no regular expression where it must be one or a slow one, and for one that
    names single
    experts: experts are counted alike.
    """

    def __init__(
        self, entries: Iterable[str], rule: Rule = "transformers", field: str = "modules_to_not_convert"
    ) -> None:
        self.entries, self.rule, self.used = tuple(dict.fromkeys(entries)), rule, set[str]()
        if len(self.entries) > MOST_ENTRIES:
            raise InputError(
                f"quantization_config.{field}: {len(self.entries):,} entries; expected at most {MOST_ENTRIES:,}"
            )
        for entry in self.entries:
            if ONE_EXPERT.search(entry):
                raise InputError(
                    f"quantization_config.{field}: '{entry[:60]}' names one expert; expected entries that treat "
                    "all experts of a layer alike"
                )
        self._plain, self._tests = set[str](), list[tuple[str, Callable[[str], bool]]]()
        for entry in self.entries:
            test = self._test(entry, field)
            if test is None:
                self._plain.add(entry)
            else:
                self._tests.append((entry, test))
        self._lengths = sorted({len(entry) for entry in self._plain})
        self._field, self._spent = field, 0.0

    def _test(self, entry: str, field: str) -> Callable[[str], bool] | None:
        """How an entry that is more than a name is tested."""
        if self.rule == "modelopt":
            return (lambda name: fnmatchcase(name, entry)) if set(entry) & set("*?[") else None
        text, boundary = entry, ""
        if self.rule == "compressed-tensors":
            if not entry.startswith("re:"):
                return None
            text = entry.removeprefix("re:")
        elif set(entry) & set("*+?[](){}|\\^$"):
            boundary = r"(?:(?<=\.)|(?=\.|$))"
        else:
            return None
        if REPEATED_GROUP.search(text) or _ways(text) > MOST_WAYS:
            raise InputError(
                f"quantization_config.{field}: '{entry[:60]}' repeats a group or too much else; expected a pattern "
                "that is quick to match"
            )
        try:
            pattern = re.compile(f"(?:{text}){boundary}")
        except re.error:
            raise InputError(
                f"quantization_config.{field}: '{entry[:60]}' is no regular expression; expected a module's name or one"
            ) from None
        return lambda name: pattern.match(name) is not None

    def __contains__(self, path: object) -> bool:
        return any(self._names(name) for name in names_of(str(path)))

    def _names(self, name: str) -> bool:
        if name in self._plain:
            self.used.add(name)
            return True
        if self.rule == "awq" and self._plain:
            within = self._plain.intersection(_runs(name))
            if within:
                self.used |= within
                return True
        if self.rule in ("transformers", "awq"):
            start = next((part for part in _starts(name) if part in self._plain), None)
            at_end = (name[-length:] for length in self._lengths)
            start = start if start is not None else next((end for end in at_end if end in self._plain), None)
            if start is not None:
                self.used.add(start)
                return True
        began = process_time()
        entry = next((entry for entry, test in self._tests if test(name)), None)
        self._spent += process_time() - began
        if self._spent > LONGEST_MATCHING:
            raise InputError(
                f"quantization_config.{self._field}: its patterns take longer than {LONGEST_MATCHING:g} s; "
                "expected names, or simpler patterns"
            )
        if entry is not None:
            self.used.add(entry)
        return entry is not None

    @property
    def unused(self) -> list[str]:
        """Entries that have named nothing yet, but for those of modules that no scheme converts."""
        return [entry for entry in self.entries if entry not in self.used and not NEVER_CONVERTED.search(entry)]


def _ways(pattern: str) -> int:
    """The power of two of the ways in which a pattern may match, at most: a choice of words is one or the other."""
    rest, words = WORDS.subn("", pattern)
    optional = len(re.findall(r"(?<![(*+?}])\?", rest))
    return words + rest.count("|") + optional + WAYS_TO_REPEAT * sum(rest.count(one) for one in "*+{")


def _runs(name: str) -> Iterable[str]:
    """Every run of whole steps of a path."""
    steps = name.split(".")
    return (".".join(steps[i:j]) for i in range(len(steps)) for j in range(i + 1, len(steps) + 1))


def _starts(name: str) -> Iterable[str]:
    at = name.find(".")
    while at >= 0:
        yield name[:at]
        at = name.find(".", at + 1)
