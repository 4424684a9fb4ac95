"""Every family of Hugging Face configs against its real class, at small shapes.

`tests/families` has the shapes of the families in `llmcalc/sources/huggingface/families`, file by file.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from llmcalc.costs.context_length import learned_positions
from llmcalc.costs.flops import forward_flops_of
from llmcalc.flow.tree import NodePosition
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, TYPES_BY_FILE, family_of, model_types
from llmcalc.witnesses.reference import LEAST_SEQ, verify_reference
from llmcalc.witnesses.transformers import verify_config
from llmcalc.witnesses.transformers_class import class_model_type
from tests.builders import (
    WITH_CLASSES,
    family_shapes,
    parts_of,
    run_config,
    spec_of,
    verbs_of,
    with_other_causes,
)
from tests.families import shapes_of
from tests.samples import in_one_test, sampled
from tests.witnesses.verdicts import coverage, hold


def _rules(config: dict[str, Any]) -> set[Any]:
    """What reads a config: the file of its family, and what the family's record says of it alone."""
    kind = config["model_type"]
    family, file = family_of(kind), FILE_BY_TYPE[kind]
    rules = (family.tying_source, family.class_model_type, family.quirks, *family.deviations, *family.modules.items())
    return {file, family.read_model, *((file, name) for name in family.defaults), *map(repr, rules)}


def shapes_with_lengths() -> Iterator[Any]:
    """Yields every small config with the length of its pass, or None for two lengths.

    Two have every part of a part, so every rule that depends on the length; one has every file of families, and every
    field and rule that a family has of its own. Other values of the fields are compared by test_config_fields.py, and
    windows by test_masks.py. The other configs have nothing of their own, and are exhaustive.
    """
    shapes = dict(family_shapes())
    parts = {name: frozenset(parts_of(spec_of(config))) for name, config in shapes.items()}
    two_lengths = set(with_other_causes(shapes, parts.__getitem__))
    known = set().union(*(_rules(shapes[name]) for name in two_lengths))
    sample = two_lengths | set(with_other_causes(shapes, lambda name: _rules(shapes[name]) - known))
    for name, config in shapes.items():
        marks = () if name in sample else pytest.mark.exhaustive
        if name in two_lengths:
            yield pytest.param(config, None, id=name)
        else:
            longest = learned_positions(spec_of(config)) or LEAST_SEQ
            yield pytest.param(config, min(longest, LEAST_SEQ), id=name, marks=marks)
            yield pytest.param(config, None, id=f"{name}-two lengths", marks=pytest.mark.exhaustive)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # MobileBERT without further columns
@pytest.mark.parametrize(("config", "seq"), list(shapes_with_lengths()))
def test_small_shapes_agree_with_their_class(config: dict[str, Any], seq: int | None) -> None:
    spec, notes = spec_of(config), read_config(config)[1]
    verdict = verify_config(spec, config, seq=seq)
    assert verdict.ok, [
        (c.node, c.quantity, c.closed_form, c.measured_value, c.explanation()) for c in verdict.failures
    ]
    assert not [note for note in notes if "not counted" not in note and "a token is" not in note]
    hold(config, spec, verdict)
    shares = any(stack.shared_layers for _, stack in spec.stacks())  # ALBERT's layers share one module
    compared = {(check.node, check.quantity) for check in verdict.checks}
    missing = {(place.path, "forward_flops") for place in _with_products(spec)} - compared
    uncalled = config["model_type"] in UNCALLED
    assert shares or uncalled or not missing, "layers, or parts of them, that the class was not seen to have"


UNCALLED = {"pegasus_x", "squeezebert"}
"""Families whose class calls the `forward` of its layers, which no hook of the layer sees, or parts of a layer twice,
for text and for global tokens; their other parts and the whole model are compared.
"""


def test_nearly_all_leaves_are_compared_by_themselves() -> None:
    """Over all families; the README's table has the share of each."""
    found = [coverage(file) for file in WITH_CLASSES]
    assert sum(alone for alone, _ in found) >= 0.99 * sum(leaves for _, leaves in found)


IN_THE_LAYER = frozenset({"predict", "correct", "self_attn_connection", "mlp_connection", "adapters"})
"""Parts with matrix products that classes compute in the layer itself, so they have no module."""


def _with_products(spec: ModelSpec) -> list[NodePosition]:
    """Every layer with FLOPs, and its parts with FLOPs that are modules of a class."""
    places = list(spec.tree().walk(run_config(seq=LEAST_SEQ)))
    layers = [place for place in places if place.node.kind == "layer"]
    parts = {
        f"{layer.path}.{part.path_segment}"
        for layer in layers
        for part in layer.node.children
        if part.name not in IN_THE_LAYER
    }
    costly = layers + [place for place in places if place.path in parts]
    return [place for place in costly if place.cost_per_repeat(forward_flops_of)]


@in_one_test
@pytest.mark.parametrize("spec", lambda: sampled({name: spec_of(config) for name, config in family_shapes()}, verbs_of))
def test_small_shapes_agree_with_the_reference(spec: ModelSpec) -> None:
    """All of them are compared with their class above, and every part's examples with its reference."""
    verdict = verify_reference(spec, batch=2)
    assert verdict.ok, [
        (c.node, c.quantity, c.closed_form, c.measured_value, c.explanation()) for c in verdict.failures[:8]
    ]


@in_one_test
@pytest.mark.parametrize("kind", [k for k in model_types() if family_of(k).read_model is not None])
def test_every_family_has_two_shapes(kind: str) -> None:
    assert len(shapes_of(kind)) >= 2


def _text(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the text model alone."""
    return {name: value for name, value in table.items() if name != "towers"}


def _wraps_a_text_model(kind: str) -> bool:
    """Whether the text model lies in the wrapper itself, and not in a wrapper within it."""
    text = family_of(kind).text_type
    return text is not None and family_of(text).text_type is None


@in_one_test
@pytest.mark.parametrize("kind", [kind for kind in model_types() if _wraps_a_text_model(kind)])
def test_a_wrapped_text_model_is_read_as_the_text_model(kind: str) -> None:
    """The text config has the same meaning inside its wrapper, whose class may tie differently (test_ties.py) or add
    fields.
    """
    family = family_of(kind)
    file = next(f for f, kinds in TYPES_BY_FILE.items() if family.text_type in kinds)
    shapes = [
        s
        for shapes in import_module(f"tests.families.{file}").SHAPES.values()
        for s in shapes
        if s["model_type"] == family.text_type and s.get("is_encoder_decoder") is not False  # a decoder alone
        if kind != "diffusion_gemma" or not s.get("attention_bias")  # the wrapper ties no biases, and refuses them
    ]
    unties = family.tying_source == "wrapper" and family.defaults.get("tie_word_embeddings") is False
    assert shapes
    for shape in shapes:
        is_untied = family.tying_source == "never" or (unties and "tie_word_embeddings" not in shape)
        never = {"tie_word_embeddings": False} if is_untied else {}
        wrapper = {"model_type": kind, "architectures": ["ForConditionalGeneration"], "image_token_id": 7}
        if family.wrapper_sizes_head:
            wrapper["vocab_size"] = shape["vocab_size"]
        assert _without_loss(_text(read_config({**wrapper, family.text_section: shape})[0])) == _without_loss(
            _text(read_config({**family.text_defaults, **shape, **never})[0])
        )
        if "tie_word_embeddings" in shape and family.tying_source == "wrapper":
            untold = {k: v for k, v in shape.items() if k not in ("model_type", "tie_word_embeddings")}
            outer = {**wrapper, "tie_word_embeddings": shape["tie_word_embeddings"]}
            assert _without_loss(_text(read_config({**outer, family.text_section: untold})[0])) == _without_loss(
                read_config({**family.text_defaults, **shape})[0]
            )


def _without_loss(table: dict[str, Any]) -> dict[str, Any]:
    """Returns a model without the format of its loss, which is that of the wrapper's class or of the text model's."""
    return {**table, "head": {name: value for name, value in table["head"].items() if name != "float32_loss"}}


OF_NO_CLASS: dict[str, tuple[Any, ...]] = {
    "add_full_attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (True,),
    "attention_bias": (True, False),
    "conv_act": ("tanh",),
    "conv_groups": (1,),
    "first_k_dense_replace": (0, 1),
    "full_attention_interval": (4,),
    "global_attn_every_n_layers": (3,),
    "global_head_dim": (512,),
    "index_skip_topk_offset": (2,),
    "index_topk_freq": (1,),
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "qk_norm_type": ("per_layer",),
    "router_bias": (False,),
    "shared_intermediate_size": (0,),
    "sliding_window_pattern": (4, 6),
    "sliding_window_size": (512,),
    "swa_head_dim": (256,),
    "swa_kv_lora_rank": (1024,),
    "swa_num_attention_heads": (64,),
    "swa_q_lora_rank": (1024,),
    "swa_qk_nope_head_dim": (192,),
    "swa_v_head_dim": (128,),
    "summary_proj_to_labels": (True,),
    "summary_use_proj": (True,),
    "tie_word_embeddings": (False, True),
    "type_vocab_size": (2,),
    "use_qk_norm": (True,),
    "use_routing_bias": (True,),
    "use_sliding_window": (True,),
    "zero_expert_type": ("identity",),
}
"""Defaults of fields that a configuration class does not have: its `__init__` or its modules read them with their own
default. Any other such field does not exist if a config omits it.
"""


@in_one_test
@pytest.mark.parametrize("kind", [kind for kind in model_types() if not family_of(kind).source])
def test_defaults_are_those_of_the_configuration_class(kind: str) -> None:
    """A field that a config omits has the default of its class; a changed default in another version of transformers
    fails here.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[class_model_type(kind)]
    made = cls()
    made.allow_global_per_layer_attribute_access = True  # Gemma 4's layers have different head sizes
    for name, value in family_of(kind).defaults.items():
        if isinstance(value, dict):  # a text section's (test_classes.py)
            continue
        has = [getattr(holder, name) for holder in (cls, made) if hasattr(holder, name)]
        if has and isinstance(has[0], property):  # what it makes of a config that omits the field
            has.append(None)
        has = [list(default) if isinstance(default, tuple) else default for default in has]
        allowed = has or [None, *OF_NO_CLASS.get(name, ())]
        assert value in allowed, f"{kind}.{name}: {value!r} here, {has!r} in transformers"
