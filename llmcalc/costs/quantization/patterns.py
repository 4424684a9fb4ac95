"""Matches entries of module lists in configs with the names of a module.

A module has several names (`flow/module_names`): those of its class in `transformers`, those of earlier checkpoints,
those of fused layers. An entry matches the module if it matches any of them. The rules of matching:
- `transformers`, should_convert_module: the entry is a prefix of the name up to a dot, or a suffix of the name, or a
  regular expression that matches at its start.
- AutoAWQ: the entry is part of the name; here only whole components match, so that `gate` does not match `gate_proj`.
- compressed-tensors, match_name: the entry is the whole name, or `re:` and a regular expression that matches at its
  start.
- ModelOpt: the entry is the whole name, with `*` for any text, or without it a prefix of the name up to a dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from time import process_time
from typing import Literal, TypeAlias

from ...errors import InputError

MatchingRule: TypeAlias = Literal["transformers", "awq", "compressed-tensors", "modelopt"]

PARTS_OF_FUSED_LAYER: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Name of a fused linear layer in vLLM, which a config may list → the separate layers in most classes."""

UNCONVERTED_MODULES = re.compile(
    r"norm|embed|lm_head|(^|\.)(gate|router)\W*$|vision|visual|audio|projector|correction_bias"
)
"""Pattern of list entries that may match no counted module without a note: norms, embeddings, heads, routers, encoders.
"""

REPEATED_GROUP = re.compile(r"\)[*+{]")
WORD_ALTERNATIVES = re.compile(r"\((?:\?:)?(?:\w|-|\\\.)+(?:\|(?:\w|-|\\\.)+)*\)")
LOG2_OF_MAX_MATCHES, WAYS_TO_REPEAT = 24, 6
"""Limits against slow patterns in untrusted configs: the log2 of the most ways to match, and of the ways per
repetition.

A pattern may match in at most 2^24 ways; a repetition counts as about 2^6 ways, an alternative as 2.
"""

LONGEST_MATCHING = 1.0
"""Time limit for matching all patterns of a list, in seconds."""

MAX_ENTRIES = 5000

ONE_EXPERT = re.compile(r"experts\.[1-9]\d*\b")


class ModuleList:
    """A config's list of modules, which remembers the entries that have matched a module.

    Raises `InputError` for an entry that is an invalid or a slow regular expression, and for an entry that names a
    single expert: all experts of a layer are counted alike.
    """

    def __init__(
        self,
        list_entries: Iterable[str],
        matching_rule: MatchingRule = "transformers",
        config_field: str = "modules_to_not_convert",
    ) -> None:
        self.entries: tuple[str, ...] = tuple(dict.fromkeys(list_entries))
        self.rule: MatchingRule = matching_rule
        self.used_entries: set[str] = set[str]()
        if len(self.entries) > MAX_ENTRIES:
            raise InputError(
                f"quantization_config.{config_field}: {len(self.entries):,} entries; expected at most {MAX_ENTRIES:,}"
            )
        for list_entry in self.entries:
            if ONE_EXPERT.search(list_entry):
                raise InputError(
                    f"quantization_config.{config_field}: '{list_entry[:60]}' names one expert; expected entries that "
                    "treat all experts of a layer alike"
                )
        self._exact_entries, self._pattern_tests = dict[str, str](), list[tuple[str, Callable[[str], bool]]]()
        for list_entry in self.entries:
            for entry_text in _unfused_entries(list_entry):
                pattern_test = self._pattern_test(entry_text, config_field)
                if pattern_test is None:
                    self._exact_entries.setdefault(entry_text, list_entry)
                else:
                    self._pattern_tests.append((list_entry, pattern_test))
        self._lengths = sorted({len(list_entry) for list_entry in self._exact_entries})
        self._field, self._matching_seconds = config_field, 0.0

    def _pattern_test(self, list_entry: str, config_field: str) -> Callable[[str], bool] | None:
        """Returns a function that matches a pattern entry with a name; None if the entry is a plain name."""
        if self.rule == "modelopt":
            if not set(list_entry) & set("*?["):
                return None
            compiled_glob = re.compile(translate(list_entry))
            return lambda module_name: compiled_glob.match(module_name) is not None
        pattern_text, name_boundary = list_entry, ""
        if self.rule == "compressed-tensors":
            if not list_entry.startswith("re:"):
                return None
            pattern_text = list_entry.removeprefix("re:")
        elif set(list_entry) & set("*+?[](){}|\\^$"):
            name_boundary = r"(?:(?<=\.)|(?=\.|$))"
        else:
            return None
        if REPEATED_GROUP.search(pattern_text) or _match_count_log2(pattern_text) > LOG2_OF_MAX_MATCHES:
            raise InputError(
                f"quantization_config.{config_field}: '{list_entry[:60]}' repeats a group or too much else; expected a "
                "pattern that is quick to match"
            )
        try:
            compiled_pattern = re.compile(f"(?:{pattern_text}){name_boundary}")
        except re.error:
            raise InputError(
                f"quantization_config.{config_field}: '{list_entry[:60]}' is no regular expression; expected a "
                "module's name or one"
            ) from None
        return lambda module_name: compiled_pattern.match(module_name) is not None

    def __contains__(self, module_names: Iterable[str]) -> bool:
        """Whether an entry of the list matches one of these names of a module."""
        return bool(self.entries) and any(self._matches_name(module_name) for module_name in module_names)

    def mark_entries_used(self, module_names: Iterable[str]) -> None:
        """Marks list entries that match a module as used, although the module's weights are not counted."""
        _ = module_names in self

    def _matches_name(self, module_name: str) -> bool:
        """Whether an entry matches this name. Raises `InputError` if all matching so far has taken too long."""
        matching_entries = (
            {
                self._exact_entries[entry_text]
                for entry_text in self._matching_texts(module_name)
                if entry_text in self._exact_entries
            }
            if self._exact_entries
            else set()
        )
        if matching_entries:
            self.used_entries |= matching_entries
            return True
        if not self._pattern_tests:
            return False
        start_time = process_time()
        list_entry = next(
            (entry_text for entry_text, entry_test in self._pattern_tests if entry_test(module_name)), None
        )
        self._matching_seconds += process_time() - start_time
        if self._matching_seconds > LONGEST_MATCHING:
            raise InputError(
                f"quantization_config.{self._field}: its patterns take longer than {LONGEST_MATCHING:g} s; "
                "expected names, or simpler patterns"
            )
        if list_entry is not None:
            self.used_entries.add(list_entry)
        return list_entry is not None

    def _matching_texts(self, module_name: str) -> Iterator[str]:
        """Yields every text that a plain-name entry may have to match this module name."""
        yield module_name
        if self.rule != "compressed-tensors":
            yield from _path_prefixes(module_name)
        if self.rule == "awq":
            yield from _contiguous_subpaths(module_name)
        if self.rule in ("transformers", "awq"):
            yield from (module_name[-suffix_length:] for suffix_length in self._lengths)

    @property
    def unmatched_entries(self) -> list[str]:
        """Entries without a matching module, except entries for modules that no scheme converts."""
        pattern_tests, used_entries = dict(self._pattern_tests), self.used_entries

        def is_covered(list_entry: str) -> bool:
            """Whether another entry, which has matched a module, covers the same module as this entry."""
            entry_test, example_name = pattern_tests.get(list_entry), _example_name(list_entry)
            is_matched = any(pattern_tests[entry](example_name) for entry in used_entries if entry in pattern_tests)
            return is_matched or (
                entry_test is not None and any(entry_test(_example_name(entry_text)) for entry_text in used_entries)
            )

        return [
            entry
            for entry in self.entries
            if entry not in used_entries and not UNCONVERTED_MODULES.search(entry) and not is_covered(entry)
        ]


def _example_name(list_entry: str) -> str:
    """Returns an example of a module name that an entry with a trailing `*` matches."""
    return f"{list_entry.rstrip('*.')}.module"


def _unfused_entries(list_entry: str) -> Iterator[str]:
    """Yields a list entry and, if it names a fused layer, also entries with the names of the layer's parts."""
    yield list_entry
    for fused_name, part_names in PARTS_OF_FUSED_LAYER.items():
        fused_pattern = re.compile(rf"(?<![a-zA-Z0-9_]){fused_name}(?![a-zA-Z0-9_])")
        if fused_pattern.search(list_entry):
            yield from (fused_pattern.sub(part_name, list_entry) for part_name in part_names)


def _match_count_log2(module_pattern: str) -> int:
    """Returns the base-2 logarithm of an upper bound on how many ways a regular expression can match."""
    remaining_pattern, word_count = WORD_ALTERNATIVES.subn("", module_pattern)
    optional_count = len(re.findall(r"(?<![(*+?}])\?", remaining_pattern))
    return (
        word_count
        + remaining_pattern.count("|")
        + optional_count
        + WAYS_TO_REPEAT * sum(remaining_pattern.count(quantifier) for quantifier in "*+{")
    )


def _contiguous_subpaths(module_name: str) -> Iterable[str]:
    """Returns every contiguous part of a dotted module name, such as `self_attn.q_proj`."""
    path_components = module_name.split(".")
    return (
        ".".join(path_components[first_component:sequence_end])
        for first_component in range(len(path_components))
        for sequence_end in range(first_component + 1, len(path_components) + 1)
    )


def _path_prefixes(module_name: str) -> Iterable[str]:
    dot_position = module_name.find(".")
    while dot_position >= 0:
        yield module_name[:dot_position]
        dot_position = module_name.find(".", dot_position + 1)
