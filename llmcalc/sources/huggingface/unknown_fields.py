"""Handles unknown config fields: a misspelling or a size is an error, any other field a remark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import InputError, short_repr

ALLOW_OPTION = "--allow-unknown"
"""The option that ignores all unknown fields; in Python `allow_unknown=True`."""

COUNTING_WORDS = frozenset({"num", "n", "size", "dim", "dims", "of", "per", "max", "total", "number"})
"""Words in a field name that mark a size but not what is measured, such as `num` and `dim`."""

SIZED_THINGS = frozenset(
    {"layers", "blocks", "heads", "head", "experts", "rank", "groups", "channels", "width", "depth", "layer", "modules"}
    | {"window"}
)
"""Words in a field name for parts of an architecture that have a number or a size."""

SEGMENT_COUNT_FIELD = "type_vocab_size"
"""BERT's number of segments, which configs of decoders have as a leftover (those of `hf-internal-testing`)."""

PER_LAYER_FIELD = "per_layer_config"
"""The config field with a table of layer number → the fields in which the layer differs from the config."""


def name_same_size(first_name: str, second_name: str) -> bool:
    """Whether two field names may mean the same size, because they share a word, singular or plural.

    Words such as `num` that mean a count are left out. A number of things is no width of one of them (`n_heads` beside
    `head_dim`).
    """
    first_words, second_words = (frozenset(field_name.lower().split("_")) for field_name in (first_name, second_name))
    if any(
        {"num", "n", "number"} & count_words and {"dim", "dims"} & width_words
        for count_words, width_words in ((first_words, second_words), (second_words, first_words))
    ):
        return False
    first_things, second_things = (
        {word.removesuffix("s") for word in words - COUNTING_WORDS} for words in (first_words, second_words)
    )
    return bool(first_things & second_things)


class UnknownField(NamedTuple):
    """A config field that was never read.

    path: its name, with the path from the top of the file.
    value: its value in the config.
    intended_name: the field that it may misspell; empty if none is near.
    restates_read_field: whether it repeats the value of a field that was read, under a name with a word in common
        (`num_experts` beside `n_routed_experts`).
    layer_count: number of layers of the model; 0 if unknown.
    """

    path: str
    value: Any
    intended_name: str
    restates_read_field: bool
    layer_count: int = 0

    @property
    def is_size(self) -> bool:
        """Whether the field is a size of the architecture.

        That is a number above 0 with a name like `num_…`, `…_size` or `…_heads`, a list of numbers with a name like
        `num_…` (`num_experts: [16]` of Skywork-MoE), a list with several kinds of layers
        (`layer_types`), a table with other values for some layers (`per_layer_config`, which transformers accepts in
        every config), or a list with a number for every layer that is not the same in all of them.
        """
        field_name = self.path.rpartition(".")[2]
        name_words = field_name.lower().split("_")
        if field_name == PER_LAYER_FIELD and isinstance(self.value, dict):
            return any(self.value.values())
        if isinstance(self.value, list) and len(self.value) == self.layer_count:
            numbers = {list_value for list_value in self.value if type(list_value) is int}
            if len(numbers) > 1 and not numbers <= {0, 1} and all(type(value) is int for value in self.value):
                return True
        if name_words[-2:] == ["layer", "types"] and isinstance(self.value, list):
            return len({repr(nested_element) for nested_element in self.value}) > 1
        has_size_name = (
            bool({"num", "n", "size", "dim"} & {name_words[0], name_words[-1]}) or name_words[-1] in SIZED_THINGS
        )
        if name_words[0] == "num" and isinstance(self.value, list) and self.value:
            return all(type(number) is int and number > 0 for number in self.value)
        return has_size_name and type(self.value) is int and self.value > 0


def require_known(unknown_fields: Sequence[UnknownField], model_type: str, is_decoder: bool) -> None:
    """Raises one `InputError` that names all misspelt fields and all unknown sizes of a config.

    is_decoder: whether the model has no encoder, so that BERT's segments are a leftover.
    """
    problem_texts = [
        f"{unknown_field.path} (did you mean {unknown_field.intended_name}?)"
        if unknown_field.intended_name
        else f"{unknown_field.path} = {short_repr(unknown_field.value)}"
        for unknown_field in unknown_fields
        if not unknown_field.restates_read_field
        and (unknown_field.intended_name or unknown_field.is_size)
        and not (is_decoder and unknown_field.path.rpartition(".")[2] == SEGMENT_COUNT_FIELD)
    ]
    if problem_texts:
        field_noun = "unknown field" if len(problem_texts) == 1 else "unknown fields"
        raise InputError(
            f"{', '.join(problem_texts)}: {field_noun} of a {model_type} config; expected the name corrected or the "
            f"field removed ({ALLOW_OPTION} ignores it)"
        )


def remark_on_ignored_fields(ignored_paths: Sequence[str], has_repository_code: bool = False) -> list[str]:
    """Returns a remark on ignored fields; empty if there are none.

    has_repository_code: whether the config names classes of its repository (`auto_map`) for layers that are counted as
        those of `transformers`.
    """
    warning = " (the code that auto_map names may build other layers by them)" if has_repository_code else ""
    return [f"unrecognised fields, ignored: {', '.join(ignored_paths)}{warning}"] if ignored_paths else []


def remark_on_defaults(default_sizes: dict[str, int]) -> list[str]:
    """Returns a remark on sizes that the config leaves out and the class's defaults set; empty if there are none."""
    sizes_text = ", ".join(f"{path} = {default_size:,}" for path, default_size in default_sizes.items())
    if default_sizes:
        return [f"sizes that the config does not give, taken from its class's defaults: {sizes_text}"]
    return []
