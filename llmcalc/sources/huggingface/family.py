"""The record of one family of Hugging Face configs: a `Family` for each `model_type`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .field_writers import FieldWriters

if TYPE_CHECKING:
    from torch import Tensor

    from ...algebra import Number
    from ...model import ModelSpec
    from ...ops import Op
    from .config import Config

ModuleNames: TypeAlias = Mapping[str, str]
"""Node of the tree → the module of the class that has its weights.

A node is named by its path in its layer (`self_attn.q_proj`) or by the last component of that path; outside of layers
by its path (`decoder.embed_tokens`, `lm_head`). The module is a path below the module of the node's parent, or below
the layer if it starts with a dot. ` | ` separates alternatives, and the first that the class has is used. ` + ` joins
modules (of layers, lists of modules that follow one another), ` - ` excludes one, and `/2` is half of a module that
fuses two. ` & ` joins lists of modules that make up the layers side by side, and `&name` is the layer's module in the
list of that name. Layers of a kind that are in a list of their own have an entry `layers.KIND`. Several nodes in one
module are compared as a sum.
"""


@cache
def _module_tables() -> dict[str, dict[str, str]]:
    modules_by_family: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("module_names.json").read_text())
    return modules_by_family


def module_names(table_name: str) -> ModuleNames:
    """Returns a named table of `module_names.json`; the entry `**` names a base table."""
    module_of_node = dict(_module_tables()[table_name])
    base_name = module_of_node.pop("**", None)
    return module_of_node if base_name is None else {**module_names(base_name), **module_of_node}


def default_module_names(model_type: str) -> ModuleNames:
    """Returns the module names listed for a model type in `module_names.json`; empty without an entry."""
    return module_names(model_type) if model_type in _module_tables() else {}


def field_names(field_list: str) -> frozenset[str]:
    """Returns the names of config fields that a text lists, separated by spaces."""
    return frozenset(field_list.split())


GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
"""Usual name of a field → its name in GPT-2's configs, for the aliases of a family."""

EVERY_CLASS = ("",)
"""Class-name suffix that matches all classes."""

CLASSIFIER_ENDINGS = ("ForSequenceClassification", "ForTokenClassification")


@dataclass(frozen=True)
class Deviation:
    """A difference between a family's classes and its architecture, and how to count it.

    quantity: the number that it changes.
    class_op: returns an op as the class runs it.
    further_quantity: what the class computes beyond the counted ops.
    node_path: the node where it does.
    applies_to: whether it applies to a model; default all models of the classes.
    """

    name: str
    explanation: str
    quantity: Literal["parameters", "forward_flops", "cache_bytes"]
    class_op: Callable[[Op], Op] = lambda op: op
    applies_to: Callable[[ModelSpec], bool] = lambda spec: True
    further_quantity: Callable[[ModelSpec], Number] = lambda spec: 0
    node_path: str = ""


def op_of_all_experts(op: Op) -> Op:
    """Returns an operation in which every expert processes every token (`top_k` = `num_experts`)."""
    from ...ops import ExpertLinear

    return replace(op, top_k=op.num_experts) if isinstance(op, ExpertLinear) else op


ATTENTION_DROPOUT = {"attention": "attention_dropout"}
"""The dropout fields of most decoders' configs: attention dropout only."""


def is_untied(spec: ModelSpec) -> bool:
    """Whether the model's output projection has a weight separate from the embedding."""
    from ...components.head import LMHead

    return not spec.tie_word_embeddings and isinstance(spec.head, LMHead)


@dataclass(frozen=True)
class Quirks:
    """What a family's classes need to run on the meta device, where tensors have no values.

    A field that is a tuple has suffixes of class names.

    value_reading_classes: classes that branch on tensor values (chosen experts, end of a sequence); they run with real
        weights on a CPU.
    mask_making_classes: classes that build a mask from the ids if they are given none, and read their values for it.
    bfloat16_refusing_classes: classes with operations that torch does not have in bfloat16 (Fourier transforms).
    cache_refusing_classes: classes that fail with a cache, because they pass `use_cache` twice or to an encoder that
        refuses it.
    decoder_ids: function from the class's config object and ids [batch, tokens] to the ids that its decoder takes, for
        classes with several tokens of audio at each position, whose embeddings they add.
    counted_field_values: config fields → the value that is counted, in families whose classes replace modules by the
        length of a sequence (BigBird); not class names.
    further_inputs: function from the class's config object to the arguments that it requires beside token ids, each
        with the shape of its zeros: numbers, `batch` and `seq`.
    """

    value_reading_classes: tuple[str, ...] = ()
    mask_making_classes: tuple[str, ...] = ()
    cache_refusing_classes: tuple[str, ...] = ()
    bfloat16_refusing_classes: tuple[str, ...] = ()
    decoder_ids: Callable[[Any, Tensor], Tensor] = lambda config, ids: ids
    counted_field_values: Mapping[str, Any] = field(default_factory=dict)
    further_inputs: Callable[[Any], Mapping[str, tuple[int | str, ...]]] = lambda config: {}


LAST_TOKEN_QUIRKS = Quirks(value_reading_classes=("ForSequenceClassification",))
"""Quirks of sequence classifiers that read the token ids to find the last token."""


@dataclass(frozen=True)
class Family:
    """The record of a `model_type`: how configs are read and written, and how its classes deviate from the spec.

    read_model: function from a config to the `model` table of a native description.
    defaults: defaults of fields that its configuration class in `transformers` does not state, or all of its defaults
        if it has no class there; `registry` adds those of the class (`class_defaults`).
    ignored_fields: fields of its configs that change no count and that its class in `transformers` does not have; of
        the class's own fields `registry` adds all, for a test compares those that are not read with the class. With a
        path (`text_config.block_size`) a field of the text model that only the wrapper's class has.
    uncounted_fields: field of its configs → the remark that the part it describes is not counted, because its class
        does not have it; `{}` in the remark is the field's value.
    other_model_types: other model types in published configs whose class is of this family; the class's name decides.
    text_type: the family of its text model, for a model that wraps one.
    text_section: the section of its config with the text model, or with a wrapper of it (`thinker_config`); by default
        `text_config`.
    text_id_field: the field of its configs that may name the repository of the text model in the place of that section;
        such a config does not state the model's sizes and is refused. Empty if there is no such field.
    is_decoder: whether its text model is the decoder of an encoder-decoder, which `AutoModelForCausalLM` builds
        whatever class the decoder's config names.
    generates_text: whether its classes generate text whatever their names end with (`InternVLChatModel`).
    aliases: usual name → name in its configs (`hidden_size` → `n_embd`), beside those of its class's `attribute_map`,
        which `classes.json` lists; also the usual names of `unread_aliases`.
    unread_aliases: usual names in `aliases` that are not in its `attribute_map`, so that its class does not read them.
    class_model_type: the model type whose `transformers` class computes it, if it has no class of its own.
    source: the published source of its class, if that is code of the model's own repository (`auto_map`), or a class
        that `transformers` cannot build. It is never run: the witnesses of such a family are the reference and the
        sizes of published checkpoints.
    has_grouped_router: whether the source in `source` selects a token's experts from `topk_group` of `n_group` groups.
    projection_size: for a class that projects the hidden state of every token to a vector (ColPali) around a wrapper of
        images, the field with the vector's size and its default; none by default.
    tying_source: which `tie_word_embeddings` the class of a wrapper uses if both it and its `text_config` have one: the
        wrapper's, the text's, either that is true, or `never` if it ties nothing.
    wrapper_sizes_head: whether the class of a wrapper sizes its output layer by the `vocab_size` beside `text_config`,
        not by the one in it (Ovis2).
    text_defaults: defaults that the wrapper's class adds to its `text_config`.
    text_fields_from_sections: field of the text model → the section and the field of the wrapper's config that its
        class takes it from, and that field's default; no section for a field of the config itself.
    dropout_fields: place of a dropout (`components/dropout.py`) → the field of its configs with the probability, which
        is 0 by default; by default `attention_dropout` alone.
    tower_class_prefixes: prefixes of the names of classes that build vision or audio encoders for a text model with a
        flat config.
    tower_file: the file in `towers` that reads its vision and audio encoders.
    uncounted_encoders: section of a wrapper's config → the model type of the encoder that its class builds from it, for
        encoders that are not supported; a remark names each.
    uncounted_classes: endings of the names of a wrapper's classes that have other modules beside the text model, or
        another text model; they are refused.
    uncounted_modules: the modules of its class that hold what is not counted, joined by ` + ` (`*` is an index), for a
        class that has them beside a text model whose config is flat; a comparison leaves them out.

    field_writers: field → its value, for config fields that have a special meaning here or exist only in this family.
    has_older_aliases: whether its aliases are those of older files and not those of its class.
    has_text_class: whether a class for the text model alone exists, which `convert` may name.
    write_tower_sections: vision and audio encoders, by their names in the wrapper's class, → the config sections that
        describe them and other fields of the wrapper.

    modules: nodes of the tree whose modules have unusual names in its classes; by default those of the table of its
        model type in `module_names.json`, if there is one.
    earlier_names: components of its classes' names → the names in checkpoints that other versions or libraries wrote,
        applied in their order (`self_attn.q_a_proj` → `self_attn.wq_a`, then `self_attn` → `attn`); `*` is an index in
        both.
    unconverted_modules: patterns of modules that its checkpoints keep in the model's number format although their
        `quantization_config` does not list them, because its code never converts them.
    quirks: requirements for running its classes without real values.
    deviations: differences between its classes and the architecture.
    """

    read_model: Callable[[Config], dict[str, Any]] | None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored_fields: frozenset[str] = frozenset()
    uncounted_fields: Mapping[str, str] = field(default_factory=dict)
    other_model_types: frozenset[str] = frozenset()
    text_type: str | None = None
    text_section: str = "text_config"
    text_id_field: str = ""
    is_decoder: bool = False
    generates_text: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    unread_aliases: frozenset[str] = frozenset()
    class_model_type: str | None = None
    source: str = ""
    has_grouped_router: bool = False
    projection_size: tuple[str, int] | None = None
    tying_source: Literal["wrapper", "text", "either", "never"] = "wrapper"
    wrapper_sizes_head: bool = False
    text_defaults: Mapping[str, Any] = field(default_factory=dict)
    text_fields_from_sections: Mapping[str, tuple[str, str, Any]] = field(default_factory=dict)
    dropout_fields: Mapping[str, str] = field(default_factory=lambda: ATTENTION_DROPOUT)
    tower_class_prefixes: str = ""
    tower_file: str = ""
    uncounted_encoders: Mapping[str, str] = field(default_factory=dict)
    uncounted_classes: tuple[str, ...] = ()
    uncounted_modules: str = ""
    field_writers: FieldWriters = field(default_factory=dict)
    has_older_aliases: bool = False
    has_text_class: bool = True
    write_tower_sections: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    modules: ModuleNames = field(default_factory=dict)
    earlier_names: Mapping[str, str] = field(default_factory=dict)
    unconverted_modules: tuple[str, ...] = ()
    quirks: Quirks = Quirks()
    deviations: tuple[Deviation, ...] = ()
