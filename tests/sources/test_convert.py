"""A model that is written and read back is the same model."""

from __future__ import annotations

import json
import re
import tomllib
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.api import params
from llmcalc.components.choices import Head
from llmcalc.components.classifier import Classifier
from llmcalc.components.head import LMHead
from llmcalc.components.no_head import NoHead
from llmcalc.components.pooler import Pooler
from llmcalc.components.stack import Stack
from llmcalc.errors import InputError
from llmcalc.questions.listings import missing_rope_scaling_note
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, model_types
from llmcalc.sources.presets import model_names, presets_dir
from llmcalc.sources.target import load, load_config
from llmcalc.sources.to_hf import find_config, to_config
from llmcalc.sources.to_hf.classes import class_names
from llmcalc.sources.to_hf.config_fields import VALUE_GETTERS
from llmcalc.sources.to_toml import dump_toml
from llmcalc.witnesses.module_measurements import parameter_counts_by_path
from llmcalc.witnesses.reference import LEAST_SEQ
from llmcalc.witnesses.transformers import build_class_model, verify_config
from tests.builders import kinds_of_parts, spec_of
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS
from tests.families import shapes_of
from tests.samples import in_one_test, sampled
from tests.sources.test_classes import classes_of
from tests.sources.test_presets_as_configs import is_read_as
from tests.witnesses.test_real_configs import REAL_CONFIGS

READ = [kind for kind in model_types() if family_of(kind).read_model is not None]


def fields_of_family(kind: str) -> set[Any]:
    """What is written of a family: its lineage, its own rules, and its file if it departs from its class."""
    family = family_of(kind)
    rules = {rule if callable(rule) else (name, rule) for name, rule in family.field_writers.items()}
    return {FILE_BY_TYPE[kind].partition(".")[0], *rules, *((FILE_BY_TYPE[kind],) if family.deviations else ())}


FAMILIES = (
    "llama",
    "qwen2_moe",
    "gemma3_text",
    "falcon",
    "opt",
    "bert",
    "albert",
    "t5",
    "bart",
    "deepseek_v3",
    "mamba2",
    "jamba",
    "nemotron_h",
    "zamba2",
)
"""A selection of families of every kind."""

WITHOUT_A_CLASS = {
    "chinchilla-70b": "transformer_xl",  # RMSNorm and Transformer-XL's positions
    "gopher-280b": "transformer_xl",
    "cogview-4b": "norm_placement",  # GPT-2 with a norm before and after each sublayer
    "grok-1": "attn_logit_softcapping",  # Mixtral with soft-capped scores, norms before and after sublayers, and GELU
    "lamda-137b": "relative_bias",  # a decoder-only model with T5's relative position bias
    "transformer-base": "sinusoidal",  # post-norm with sinusoidal positions that are not a table; Marian's are one
    "transformer-big": "sinusoidal",
}
"""Preset without a transformers class → the first feature that the nearest class lacks."""


def lines_of(name: str) -> set[tuple[str, str, str]]:
    """Returns (table, key, kind of value) of the lines of a preset's file, without the names of variants and towers. Of
    the model, another word is another kind; elsewhere, another list or text is one only for what TOML escapes in it.
    """
    table, found = "", set()
    for line in (presets_dir() / "models" / f"{name}.toml").read_text().splitlines():
        key, _, value = line.partition(" = ")
        table = re.sub(r"(variants|towers)\.[^].]+", r"\1", line) if line.startswith("[") else table
        kind = re.sub(r"[\d, ]+", "0", value)
        if kind.startswith(('"', "[")) and not table.startswith("[model"):
            kind = kind[0] + "".join(sorted({letter for letter in kind if not letter.isascii() or letter in "\\'"}))
        found.add((table, key if value else "", kind))
    return found


@in_one_test
@pytest.mark.parametrize("name", lambda: sampled({name: name for name in model_names()}, lines_of))
def test_presets_come_back(name: str, tmp_path: Path) -> None:
    file, preset = tmp_path / f"{name}.toml", load(name)
    file.write_text(dump_toml(preset))
    assert load(str(file)).model_copy(update={"asked": name}) == preset


def test_convert_writes_what_is_read_back(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "gpt2.toml"
    assert run("convert", "gpt2", "-o", str(file)).code == 0
    assert load(str(file)).model_copy(update={"asked": "gpt2"}) == load("gpt2")


@pytest.mark.parametrize("case", REAL_CONFIGS)
def test_configs_come_back_as_descriptions(run: Any, tmp_path: Path, case: Path) -> None:
    file = tmp_path / "model.toml"
    assert run("convert", str(case), "-o", str(file)).code == 0
    assert load(str(file)).model.tree() == load(str(case)).model.tree()


@pytest.mark.parametrize("name", sorted(WITHOUT_A_CLASS))
def test_presets_without_a_class_say_what_the_nearest_lacks(name: str) -> None:
    with pytest.raises(
        InputError, match=f"no transformers class is known .*; nearest is [A-Z]\\w+, which .*{WITHOUT_A_CLASS[name]}"
    ):
        to_config(load(name).model)


def _config_of(shape: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the config written for the spec of a family's shape; None if no class computes it."""
    written = _written(json.dumps(shape))
    return None if written is None else deepcopy(written)


@cache
def _written(shape: str) -> dict[str, Any] | None:
    """The config written for a shape, cached: the search through all classes takes most of this file's time."""
    return find_config(spec_of(json.loads(shape)))


@pytest.mark.parametrize(
    "shape",
    sampled(
        {f"{kind}-{i}": shape for kind in READ for i, shape in reversed([*enumerate(shapes_of(kind))])},
        lambda shape: {*kinds_of_parts(spec_of(shape)), *fields_of_family(shape["model_type"])},
    ),
)
def test_a_written_config_reads_back(shape: dict[str, Any]) -> None:
    """Every part and each family with a field or a rule of its own; the config may be of another family, or none."""
    config = _config_of(shape)
    if config is not None:
        assert is_read_as(spec_of(shape), config)
        assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize(
    "kind", sampled({kind: kind for kind in READ}, lambda kind: [FILE_BY_TYPE[kind].partition(".")[0]])
)
def test_a_written_config_is_one_that_its_class_computes(kind: str) -> None:
    """A family of each lineage: what is read back equals its class, of every file, in test_families.py."""
    shape = shapes_of(kind)[-1]
    config = _config_of(shape)
    if config is not None:
        verdict = verify_config(spec_of(shape), config, seq=LEAST_SEQ)
        assert verdict.ok, (
            config,
            [(c.node, c.quantity, c.closed_form, c.measured_value) for c in verdict.failures[:5]],
        )


WITH_TOWERS = ("gemma3", "shieldgemma2", "paligemma", "gemma4")
"""Wrappers whose vision and audio encoders can be written. (ShieldGemma 2 is Gemma 3.)"""


def causes_of_wrapper(wrapper: tuple[str, dict[str, Any]]) -> set[Any]:
    """What decides whether encoders are written: the wrapper, if its encoders can be, or else the classes of the
    encoders, all of whose fields one function compares.
    """
    kind, shape = wrapper
    if kind in WITH_TOWERS:
        return {(kind, *shape)}
    return {type(tower) for tower in spec_of(wrapped(kind, shape)).towers.values()}


BESIDE = sampled(
    {f"{kind}-{i}": (kind, shape) for kind, (_, _, shapes) in WRAPPERS.items() for i, shape in enumerate(shapes)},
    causes_of_wrapper,
)


@pytest.mark.parametrize("wrapper", BESIDE)
def test_towers_are_written_or_the_model_is_refused(wrapper: tuple[str, dict[str, Any]]) -> None:
    kind, shape = wrapper
    spec = spec_of(wrapped(kind, shape))
    if kind in WITH_TOWERS:
        config = to_config(spec)
        assert is_read_as(spec, config)
        assert parameter_counts_by_path(build_class_model(config))[""] == params(spec, with_towers=True).total
        return
    with pytest.raises(
        InputError,
        match=r"nearest is \w+, which has .* where (towers\.\w+.* \(--set towers=\{\} leaves towers "
        r"out\)|.*vision_experts|.*position_scale|.*shared_expert_gate|.*idle_cross_attention|.*decoder\.streams)",
    ):
        to_config(spec)


def test_a_model_is_written_without_its_towers_where_that_is_asked_for(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(wrapped("llava", WRAPPERS["llava"][2][0])))
    assert (
        run("convert", str(file), "--to", "hf").code,
        run("convert", str(file), "--to", "hf", "--set", "towers={}").code,
    ) == (2, 0)


def test_nearly_all_shapes_have_a_class() -> None:
    written = [_config_of(shape) for kind in FAMILIES for shape in shapes_of(kind)]
    assert written.count(None) <= len(written) // 20


def test_classes_that_are_written_exist() -> None:
    """Every class that a config of a family can name, for each kind of head and of stack. transformers lists the
    classes of its modules; to import all of them would take seconds.
    """
    import transformers

    existing = set(dir(transformers))
    decoder, both = load("llama3-8b").model, load("t5-base").model
    bodies = [
        decoder,
        decoder.model_copy(update={"encoder": decoder.decoder, "decoder": None}),
        both,
        both.model_copy(update={"decoder": None}),
    ]
    heads: list[Head] = [LMHead(), NoHead(), Classifier(num_labels=2)]
    specs = [
        body.model_copy(update={"head": head, "pooler": pooled})
        for body in bodies
        for head in heads
        for pooled in (Pooler(), None)
    ]
    for kind in READ:
        if family_of(kind).class_model_type is None and not family_of(kind).source and family_of(kind).has_text_class:
            named = {name for spec in specs for name in class_names(kind, spec)}
            assert named <= existing, (kind, named - existing)
            assert named or not classes_of(kind), kind


def test_a_field_that_is_proposed_wrongly_costs_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load("llama3-8b").model
    monkeypatch.setitem(VALUE_GETTERS, "vocab_size", lambda facts: facts.spec.vocab_size + 1)
    with pytest.raises(InputError, match=r"nearest is LlamaForCausalLM, which has 128257 where vocab_size is 128256"):
        to_config(spec)


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("llama3-8b", "position=none"),
        ("llama3-8b", "o_bias=true"),
        ("llama3-8b", "partial_rotary_factor=0.5"),
        ("mixtral-8x7b", "router.bias=true"),
        ("gpt2", "k_bias=false"),
        ("bert-base", "block.norm_placement=sandwich"),
        ("gemma3-27b", "towers.vision_tower.class_embedding=true"),
    ],
)
def test_what_its_class_lacks_is_not_passed_over(name: str, override: str) -> None:
    """A spec that differs in one field gets another family's config, or none."""
    before, spec = to_config(load(name).model), load(name, (override,)).model
    try:
        after = to_config(spec)
    except InputError:
        return
    assert after["model_type"] != before["model_type"]
    assert is_read_as(spec, after)


def test_values_that_cost_nothing_are_written_too() -> None:
    config = to_config(load("gemma3-27b").model)["text_config"]
    assert (config["rms_norm_eps"], config["rope_theta"], config["rope_local_base_freq"]) == (1e-6, 1e6, 1e4)
    assert to_config(load("gpt2").model)["layer_norm_epsilon"] == 1e-5


def test_stdout_holds_the_description_alone(run: Any) -> None:
    result = run("convert", "llama3-8b", "--set", "num_hidden_layers=2")
    assert tomllib.loads(result.out)["model"]["decoder"]["num_hidden_layers"] == 2
    assert run("convert", "llama3-8b", "--to", "hf").document["model_type"] == "llama"


def test_a_spec_without_a_class_says_so(run: Any) -> None:
    assert "no transformers class" in run("convert", "gopher-280b", "--to", "hf").error


def test_a_variant_can_take_a_field_away() -> None:
    spec = load("llama3-8b").model.model_dump()["decoder"]
    spec |= {"variants": {"nope": {"attention": {"position": "none"}}}, "pattern": ["block", "nope"]}
    stack = Stack.model_validate(spec)
    assert stack.variants["nope"].attention.position is None
    assert stack.variants["nope"].attention.head_dim == 128
    assert stack.block.attention.position is not None


@pytest.mark.parametrize(
    ("name", "field", "written"),
    [
        ("gemma4-e2b", "final_logit_softcapping", 30.0),
        ("gemma2-2b", "final_logit_softcapping", None),
        ("gemma3-1b", "final_logit_softcapping", None),
        ("command-r7b", "logit_scale", 0.25),
        ("aya-23-8b", "logit_scale", None),
        ("qwen3-8b", "logit_scale", None),
    ],
)
def test_scale_and_cap_of_logits_are_written_where_they_are_not_the_default(
    name: str, field: str, written: float | None
) -> None:
    spec = load(name).model
    config = to_config(spec.model_copy(update={"towers": {}}))
    assert config.get(field) == written
    assert load_config(config).model.head == spec.head
    without = spec.model_copy(update={"towers": {}, "head": spec.head.model_copy(update={"logit_scale": None})})
    assert load_config(to_config(without)).model.head.logit_scale is None


@pytest.mark.parametrize("name", ["gpt2", "gpt-oss-20b"])
def test_a_written_config_has_the_format_of_the_weights(name: str) -> None:
    """gpt2 is published in fp32; gpt-oss has experts in MXFP4, and a table of what is not converted."""
    config = json.loads(llmcalc.convert(name, to="hf"))
    assert llmcalc.memory(config, seq=64).device.device_bytes == llmcalc.memory(name, seq=64).device.device_bytes


def test_a_format_whose_table_is_not_known_is_remarked() -> None:
    assert "quantization_config" in missing_rope_scaling_note(llmcalc.load("deepseek-r1-0528"), "hf")


def test_a_config_keeps_the_scaling_of_positions(tmp_path: Path) -> None:
    """A config's `rope_scaling` is written again; a preset, which has none, is named as sizes alone."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = json.loads(llmcalc.convert("qwen3-8b", to="hf")) | {"rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert json.loads(llmcalc.convert(str(tmp_path), to="hf"))["rope_scaling"] == scaling
    assert "rope_scaling" in missing_rope_scaling_note(llmcalc.load("qwen3-8b"), "hf")
    assert not missing_rope_scaling_note(llmcalc.load(str(tmp_path)), "hf")
    assert not missing_rope_scaling_note(llmcalc.load("gpt2"), "hf")


def test_factors_of_longrope_that_a_preset_lacks_are_named(tmp_path: Path) -> None:
    """transformers refuses a table without them (`modeling_rope_utils.py`, required keys of longrope)."""
    note = missing_rope_scaling_note(llmcalc.load("phi3.5-mini"), "hf")
    assert note.startswith("rope_scaling lacks short_factor and long_factor, which transformers requires")
    assert not missing_rope_scaling_note(llmcalc.load("phi3.5-mini"), "toml")
    (tmp_path / "config.json").write_text(json.dumps(shapes_of("phi3")[1]))
    assert not missing_rope_scaling_note(llmcalc.load(str(tmp_path)), "hf")
