"""All that the package knows of one family of Hugging Face configs: its record, a `Family` for each `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .writes import Writes

if TYPE_CHECKING:
    from ...algebra import Number
    from ...model import ModelSpec
    from ...ops import Op
    from .config import Config

Modules: TypeAlias = Mapping[str, str]
"""A node of the tree → where the classes hold it.

A node is named by its path in its layer (`self_attn.q_proj`), or by the last part of that alone; beside the layers by
its path (`decoder.embed_tokens`, `lm_head`). Where it is held is a path below the modules of the node's parent, or,
with a dot before it, below the layer. ` | ` parts alternatives, of which the first holds that the class has; ` + `
joins modules, ` - ` leaves one out, and `/2` is the half of one that holds two alike. Several nodes in one module are
compared as a sum.
"""

EVERY = ("",)
"""How the names of all classes end."""

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")


@dataclass(frozen=True)
class Deviation:
    """Where the classes of a family depart from its architecture, and how a primitive is to be counted to follow them
    there.

    quantity: which of the numbers it changes. follow: an op as the class runs it. more: what the class has beside all
    that is counted, at: the node where it has it. when: of which models it is, where not of all that the classes run.
    """

    name: str
    what: str
    quantity: Literal["parameters", "forward_flops", "cache_bytes"]
    follow: Callable[[Op], Op] = lambda op: op
    when: Callable[[ModelSpec], bool] = lambda spec: True
    more: Callable[[ModelSpec], Number] = lambda spec: 0
    at: str = ""


def every_expert(op: Op) -> Op:
    """Of classes that run every expert on every token."""
    from ...ops import ExpertLinear

    return replace(op, top_k=op.num_experts) if isinstance(op, ExpertLinear) else op


def untied(spec: ModelSpec) -> bool:
    """Whether there is a map to the vocabulary that is not the embedding."""
    from ...components.head import LMHead

    return not spec.tie_word_embeddings and isinstance(spec.head, LMHead)


@dataclass(frozen=True)
class Quirks:
    """What classes need to be run without values, each a tuple of how the names of those classes end.

    reads_values: they branch on what a tensor holds (which experts are chosen, where a sequence ends), so they run with
    real weights on a CPU. makes_mask: they make a mask of the ids where they are given none, and look at their values
    to do so. refuses_cache: they fail where they are asked to keep a cache: they pass the word on twice, or to an
    encoder that refuses it.
    """

    reads_values: tuple[str, ...] = ()
    makes_mask: tuple[str, ...] = ()
    refuses_cache: tuple[str, ...] = ()


LOOKS_FOR_THE_END = Quirks(reads_values=("ForSequenceClassification",))
"""Of classes that classify a sequence by its last token, and look for that among the ids."""


@dataclass(frozen=True)
class Family:
    """How one `model_type` is read, how it is written, and what its class in `transformers` does of its own.

    read: a config → the `model` table of a native description. defaults: of its configuration class in `transformers`,
    for every field that `read` asks for (a test compares them with the installed class). ignored: fields of its own
    that change no count. text: the family of its `text_config`, for a model that wraps a text model. aliases: its
    `attribute_map`, usual name → the name in its configs (`hidden_size` → `n_embd`). like: the model type whose class
    in `transformers` computes it, where there is none under its own name. ties: whose `tie_word_embeddings` the class
    of a wrapper goes by, where both it and its `text_config` have one: the wrapper's, the text's, either that is true,
    or `never` where it ties nothing. filled: what the wrapper's class lays under its `text_config`. towers: how the
    names of the classes begin that build towers beside a text model whose config is not nested. tower_file: the file in
    `towers` that reads its towers.

    writes: field → its value, for fields of a config that mean something of their own here, or that only this family
    has. spelled_as_read: its aliases are those of older files, and not its class's own. alone: whether there is a class
    for the text by itself, which `convert` may name. writes_towers: towers, by the names that the wrapper's class has
    for them, → the sections of its config that describe them, and what else it says of them.

    modules: what its classes call a node of the tree otherwise than most do. quirks: what they need to be run without
    values. deviations: where they depart from the architecture.
    """

    read: Callable[[Config], dict[str, Any]] | None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    text: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    like: str | None = None
    ties: Literal["wrapper", "text", "either", "never"] = "wrapper"
    filled: Mapping[str, Any] = field(default_factory=dict)
    towers: str = ""
    tower_file: str = ""
    writes: Writes = field(default_factory=dict)
    spelled_as_read: bool = False
    alone: bool = True
    writes_towers: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    modules: Modules = field(default_factory=dict)
    quirks: Quirks = Quirks()
    deviations: tuple[Deviation, ...] = ()
