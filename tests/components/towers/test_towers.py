"""Vision and audio encoders with a text model: their parameters against the modules of their class, and the text model
alone.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llmcalc import load, params
from llmcalc.components.towers.davit import DaVit
from llmcalc.costs.context_length import learned_positions
from llmcalc.costs.encoders import encoded_inputs
from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import buffer_elements_of, total_params_of
from llmcalc.errors import InputError
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.config import IRRELEVANT_FIELDS
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, library_classes, model_types
from llmcalc.sources.huggingface.towers import sections_of
from llmcalc.sources.huggingface.towers.section import IGNORED_FIELDS
from llmcalc.witnesses.module_measurements import buffer_counts_by_path, parameter_counts_by_path
from llmcalc.witnesses.reference import LEAST_SEQ, verify_reference
from llmcalc.witnesses.transformers import build_class_model, verify_config
from llmcalc.workload.inputs import EncoderPass, Inputs
from llmcalc.workload.run_config import RunConfig
from tests.builders import fields_of, parts_of, spec_of
from tests.components.towers.tower_shapes import GEMMA4, GEMMA4_AUDIO, KIMI, LLAMA4, PIXTRAL, SIGLIP, WRAPPERS
from tests.families import shapes_of
from tests.samples import in_one_test, sampled, spread
from tests.witnesses.verdicts import hold

TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "head_dim": 8,
}


def without_towers(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != "towers"}


def test_hunyuan_vl_is_its_text_model_nested_or_flat() -> None:
    plain, _ = read_config(
        {
            "model_type": "hunyuan_v1_dense",
            "architectures": ["HunYuanDenseV1ForCausalLM"],
            "tie_word_embeddings": True,
            **TEXT,
        }
    )
    wrapper = {"model_type": "hunyuan_vl", "architectures": ["HunYuanVLForConditionalGeneration"]}
    for config in ({**wrapper, "text_config": {**TEXT, "model_type": "hunyuan_vl_text"}}, {**wrapper, **TEXT}):
        assert without_towers(read_config(config)[0]) == plain


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_qwen_vl_is_its_text_model_nested_or_flat(kind: str) -> None:
    """Configs on the hub are flat, and the class accepts them."""
    nested = wrapped(kind, WRAPPERS[kind][2][1])
    flat = {
        **{k: v for k, v in nested["text_config"].items() if k != "model_type"},
        **{k: v for k, v in nested.items() if k != "text_config"},
    }
    (table, notes), (other, _) = read_config({**flat, "vision_token_id": 7}), read_config(nested)
    assert table == other
    assert not notes
    assert (
        params(ModelSpec.model_validate(table), with_towers=True).total
        == parameter_counts_by_path(build_class_model(flat))[""]
    )


# --- vision and audio encoders with the text model --------------------------------------------------------------------

WRAPPED = [
    pytest.param(kind, shape, id=f"{kind}-{i}")
    for kind, (_, _, shapes) in WRAPPERS.items()
    for i, shape in enumerate(shapes)
]


FLAT = {
    "model_type": "phi4_multimodal",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 0,
}


def wrapped(kind: str, shape: dict[str, Any]) -> dict[str, Any]:
    """A small config of a wrapper around the first shape of its text model."""
    text, cls = family_of(kind).text_type, WRAPPERS[kind][0] if kind in WRAPPERS else "ForConditionalGeneration"
    if text is None:
        fields = {**FLAT, "model_type": kind, "architectures": [cls], **shape}
        return {name: value for name, value in fields.items() if value is not None}
    section = family_of(kind).text_section
    if family_of(text).text_type is not None:  # a wrapper of a wrapper
        inner_shape = WRAPPERS[text][2][0] if text in WRAPPERS else {}
        return {
            "model_type": kind,
            "architectures": [cls],
            section: wrapped(text, {"architectures": [cls], **inner_shape}),
            **shape,
        }
    small = {"tie_word_embeddings": False, **shapes_of(text)[0]}
    return {
        "model_type": kind,
        "architectures": [cls],
        "tie_word_embeddings": small["tie_word_embeddings"],
        section: small,
        **shape,
    }


def held(model: torch.nn.Module, place: str) -> int:
    """Parameters of a module, of several modules (`a + b`), or of a bare parameter."""
    return sum(
        p.numel()
        for name, p in model.named_parameters()
        if re.match(rf"(model\.)?({'|'.join(place.split(' + '))})(\.|$)", name)
    )


def towers_of(spec: ModelSpec) -> dict[str, Node]:
    return {child.name: child for node in spec.tree().children if node.name == "towers" for child in node.children}


def kind_and_towers(case: tuple[str, dict[str, Any]]) -> set[Any]:
    """Each kind of wrapper, and what its encoders have."""
    kind, shape = case
    return {kind, *fields_of(spec_of(wrapped(kind, shape)).towers)}


@pytest.mark.parametrize(
    ("kind", "shape"), spread(sampled({str(case.id): case.values for case in WRAPPED}, kind_and_towers))
)
def test_towers_hold_what_their_class_holds(kind: str, shape: dict[str, Any]) -> None:
    """Compares node by node with the class's modules, and the total with encoders with the whole class."""
    config = wrapped(kind, shape)
    table, notes = read_config(config)
    spec, model = ModelSpec.model_validate(table), build_class_model(config)
    nodes, counted = towers_of(spec), parameter_counts_by_path(model)
    known = {place: [name for name in names if name in nodes] for place, names in WRAPPERS[kind][1].items()}
    assert not [note for note in notes if "not counted" not in note and "loaded untied" not in note]
    assert sorted(nodes) == sorted(name for names in known.values() for name in names)
    for place, names in known.items():
        assert sum(nodes[name].total(total_params_of) for name in names) == held(model, place), place
    assert params(spec, with_towers=True).total == counted[""] == params(spec).total + params(spec).left_out["towers"]
    elements = sum(
        count for path, count in buffer_counts_by_path(model).items() if path.removeprefix("model.") in known
    )
    assert sum(node.total(buffer_elements_of) for node in nodes.values()) == elements


@in_one_test
@pytest.mark.parametrize(
    ("kind", "section", "fields"),
    [
        ("qwen2_5_vl", "vision_config", {"num_hidden_layers": 3}),
        ("qwen2_5_omni_thinker", "audio_config", {"num_hidden_layers": 3, "intermediate_size": 44}),
        ("voxtral", "audio_config", {"encoder_layers": 3}),
        ("vipllava", "", {"vision_feature_layers": [-2, -1]}),
    ],
)
def test_the_usual_name_of_an_encoders_size_counts_as_in_its_class(
    kind: str, section: str, fields: dict[str, Any]
) -> None:
    """The `attribute_map` of its configuration class writes `num_hidden_layers` into `depth`, also beside it."""
    config = wrapped(kind, WRAPPERS[kind][2][0])
    config = {**config, **({section: {**config[section], **fields}} if section else fields)}
    table, notes = read_config(config)
    assert (
        params(ModelSpec.model_validate(table), with_towers=True).total
        == parameter_counts_by_path(build_class_model(config))[""]
    )
    assert not [note for note in notes if "unrecognised" in note]


FIXED = {kind: sections for kind, sections in library_classes().fixed_sections.items() if kind in WRAPPERS}


@in_one_test
@pytest.mark.parametrize(("kind", "section"), [(kind, name) for kind, names in FIXED.items() for name in names])
def test_a_section_is_read_as_its_class_reads_it_whatever_type_it_states(kind: str, section: str) -> None:
    """transformers 5, `SubConfigSpec.create_subconfig`: a stated class is built without a look at `model_type`."""
    config = wrapped(kind, WRAPPERS[kind][2][0])
    read = {family_of(kind).text_section, *sections_of(kind, family_of(kind).tower_file)}
    if section not in read or not isinstance(config.get(section), dict):
        return
    table, notes = read_config({**config, section: {**config[section], "model_type": "llama"}})
    same, _ = read_config(config)
    assert table == same
    assert any(note.startswith(f"{section}.model_type: 'llama'; read as") for note in notes)


def test_a_class_ignores_the_type_of_a_section_that_it_fixes() -> None:
    config = wrapped("gemma3", WRAPPERS["gemma3"][2][0])
    for section in FIXED["gemma3"]:
        config = {**config, section: {**config[section], "model_type": "llama"}}
    assert params(spec_of(config), with_towers=True).total == parameter_counts_by_path(build_class_model(config))[""]


def wrappers() -> dict[str, ModelSpec]:
    """The models of `WRAPPED`, by kind and number."""
    return {
        f"{kind}-{i}": spec_of(wrapped(kind, shape))
        for kind, (_, _, shapes) in WRAPPERS.items()
        for i, shape in enumerate(shapes)
    }


@pytest.mark.parametrize("spec", sampled(wrappers(), lambda spec: parts_of(spec.towers)))
def test_towers_agree_with_the_reference(spec: ModelSpec) -> None:
    """Each part in each place; test_tower_parts.py compares the values of their fields."""
    verdict = verify_reference(spec, batch=2)
    assert verdict.ok, verdict.failures[:8]
    compared = {check.node for check in verdict.checks if check.quantity == "parameters"}
    assert {f"towers.{name}" for name in spec.towers} < compared


def rules_of(kind: str) -> set[Any]:
    """What a comparison with the whole class has beside that of the encoders above and that of the text model's own
    class: the file that reads the wrapper, and what its record says of its class.
    """
    family = family_of(kind)
    return {FILE_BY_TYPE[kind], *map(repr, (family.quirks, *family.deviations, *family.modules.items()))}


NEED_INPUTS = {
    *(
        "blip",
        "blip-2",
        "clip",
        "instructblip",
        "instructblipvideo",
        "kosmos-2",
        "metaclip_2",
        "pix2struct",
        "pp_formulanet",
        "siglip",
        "siglip2",
    ),
    "voxtral_realtime",
}
"""Wrappers whose classes do not run without an image or a recording."""


@pytest.mark.parametrize("kind", sampled({kind: kind for kind in WRAPPERS if kind not in NEED_INPUTS}, rules_of))
def test_a_wrapper_agrees_with_its_whole_class_in_all_that_is_counted(kind: str) -> None:
    config = wrapped(kind, WRAPPERS[kind][2][0])
    spec = spec_of(config)
    verdict = verify_config(spec, config, seq=min(learned_positions(spec) or LEAST_SEQ, LEAST_SEQ))
    assert verdict.ok, verdict.failures
    hold(config, spec, verdict)
    caches = spec.kind != "encoder" and kind != "diffusion_gemma"  # which reads the cache of the prompt and fills none
    measured = {"parameters", "forward_flops"} | ({"cache_bytes"} if caches else set())
    assert measured <= {check.quantity for check in verdict.checks}


ENCODER_DECODERS = {"vision-encoder-decoder": "its sections are whole models; compared below"}
READ = [
    kind
    for kind in model_types()
    if family_of(kind).tower_file and not family_of(kind).source and kind not in ENCODER_DECODERS
]
UNMEASURED = {"gemma3n": "its class needs timm", "muse_spark": "its audio encoder is not counted; compared below"}
TIMM: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/mobilenetv5_300m_enc.json").read_text())
NAMES_OF_OTHERS = {("minimax_m3_vl", "clip_vision_model")}
"""Wrappers and encoder types of published configs that the wrapper's class reads as an encoder of its own."""
MEASURED_WHOLE = {"t5gemma2": "its shapes in tests/families have towers"}


def as_in_config(value: Any) -> Any:
    """Returns a class's value as a config.json has it: a list in the place of a tuple."""
    return list(value) if isinstance(value, tuple) else value


@in_one_test
@pytest.mark.parametrize("kind", READ)
def test_tower_defaults_are_those_of_the_configuration_class(kind: str) -> None:
    """Compares defaults of the section's class, of the wrapper's class, and of an encoder without a section."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = CONFIG_MAPPING[kind]()
    whole = whole.encoder if kind in MEASURED_WHOLE else whole  # the module that contains its encoders
    for name, section in sections_of(kind, family_of(kind).tower_file).items():
        for field, value in section.wrapper_defaults.items():
            assert getattr(whole, field) == value, f"{kind}: {field}"
        if section.is_flat:
            continue
        for own, defaults in section.defaults_by_type.items():
            is_encoder = own in CONFIG_MAPPING and own not in model_types() and (kind, own) not in NAMES_OF_OTHERS
            first_type = next(iter(section.defaults_by_type))  # of which others are names in published configs
            other = CONFIG_MAPPING[first_type] if getattr(whole, name) is None else type(getattr(whole, name))
            made = CONFIG_MAPPING[own]() if is_encoder else other()
            for field, value in defaults.items():
                stated = (as_in_config(getattr(made, field)), as_in_config(getattr(type(made), field, None)))
                assert as_in_config(value) in stated, f"{kind}: {name}.{field}"
        given = getattr(whole, name)
        assert (given is None) == (section.default_section is None)
        if section.default_section is not None:
            assert given.model_type == next(iter(section.defaults_by_type))
            for field, value in {**next(iter(section.defaults_by_type.values())), **section.default_section}.items():
                stated = (as_in_config(getattr(given, field)), None)
                is_read = field not in IGNORED_FIELDS | IRRELEVANT_FIELDS | section.ignored_fields
                assert not is_read or as_in_config(value) in stated, f"{kind}: {name}.{field}, where it is not given"


@in_one_test
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        ({"model_type": "vit"}, {}),
        ({"model_type": "vit", "qkv_bias": False, "num_channels": 1}, {"cross_attention_hidden_size": 24}),
        ({"model_type": "vit", "pooler_output_size": 12}, {"hidden_size": 24, "n_embd": 24}),
        ({"model_type": "deit"}, {}),
    ],
)
def test_an_image_encoder_before_a_decoder_holds_what_its_class_holds(
    encoder: dict[str, Any], decoder: dict[str, Any]
) -> None:
    """ViT and DeiT of a VisionEncoderDecoderModel: embeddings, layers, the pooler and the projection to the decoder."""
    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
    config = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "encoder": {**small, "image_size": 24, "patch_size": 8, **encoder},
        "decoder": {
            "model_type": "bert",
            **{**TEXT, "max_position_embeddings": 64, "is_decoder": True, "add_cross_attention": True},
            **decoder,
        },
    }
    spec = ModelSpec.model_validate(read_config(config)[0])
    assert params(spec, with_towers=True).total == parameter_counts_by_path(build_class_model(config))[""]


SWIN: dict[str, Any] = {
    "image_size": [64, 32], "patch_size": 2, "num_channels": 3, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize(
    "encoder",
    [
        {"model_type": "donut-swin", "use_absolute_embeddings": True},
        {"model_type": "swin", "use_absolute_embeddings": True, "qkv_bias": False, "mlp_ratio": 2.5},
        {"model_type": "donut-swin", "embed_dim": 16, "num_channels": 1},
    ],
)
def test_swin_before_a_decoder_holds_and_computes_what_its_class_does(encoder: dict[str, Any]) -> None:
    """Donut and Nougat: parameters, buffers, and FLOPs of two images of whole windows."""
    config = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "encoder": {**SWIN, **encoder},
        "decoder": {"model_type": "bert", **TEXT, "max_position_embeddings": 64, "is_decoder": True}
        | {"add_cross_attention": True},
    }
    table, notes = read_config(config)
    spec, model = ModelSpec.model_validate(table), build_class_model(config)
    assert not [note for note in notes if "encoder" in note and "not counted" in note and "cross" not in note]
    assert params(spec, with_towers=True).total == parameter_counts_by_path(model)[""]
    node = towers_of(spec)["vision_encoder"]
    assert node.total(buffer_elements_of) == sum(buffer.numel() for buffer in model.encoder.buffers())
    if encoder["model_type"] == "donut-swin" and "use_absolute_embeddings" in encoder:
        return  # its table has a row more than there are patches, so the class does not run
    channels = config["encoder"]["num_channels"]
    with FlopCounterMode(display=False) as counter:
        model.encoder(torch.zeros(2, channels, 64, 32, device="meta", dtype=model.dtype))
    run = RunConfig(EncoderPass(batch=2, rows=16, columns=8))
    assert node.total(forward_flops_of, run) == counter.get_total_flops()


def test_positions_of_swin_need_the_sides_of_an_image() -> None:
    config = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "encoder": {**SWIN, "model_type": "swin", "use_absolute_embeddings": True, "image_size": None},
        "decoder": {"model_type": "bert", **TEXT, "is_decoder": True, "add_cross_attention": True},
    }
    assert any("encoder.image_size: null; expected a positive whole number" in note for note in read_config(config)[1])
    config["encoder"] |= {"image_size": 64, "hidden_size": 77}  # another width than the last stage has
    assert any("encoder.hidden_size: 77; expected one of 16" in note for note in read_config(config)[1])


def test_the_product_of_strides_may_be_larger_than_a_field() -> None:
    encoder = DaVit.examples()[0]
    stages = tuple(stage.model_copy(update={"stride": 10**6}) for stage in encoder.stages)
    assert encoder.model_copy(update={"stages": stages}).patches.patch_size == 10**12


def test_the_decoder_of_donut_says_that_its_cross_attention_is_not_run() -> None:
    decoder = {"model_type": "mbart", "vocab_size": 50, "d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 8}
    config = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "encoder": {**SWIN, "model_type": "donut-swin"},
        "decoder": {**decoder, "decoder_attention_heads": 2, "is_decoder": True, "add_cross_attention": True},
    }
    notes = read_config(config)[1]
    (note,) = (note for note in notes if "cross-attention: its parameters are counted; its products" in note)
    assert "keys and values of that output in the cache, are not counted" in note
    assert not [note for note in notes if "its encoder is not counted" in note]


def test_muse_spark_sees_as_muse_glimmer_does() -> None:
    shape = {**WRAPPERS["muse_glimmer"][2][0], "audio_config": {"out_hidden_size": 32}}
    config = wrapped("muse_spark", {**shape, "architectures": ["MuseSparkForConditionalGeneration"]})
    spec, modules = spec_of(config), parameter_counts_by_path(build_class_model(config))
    vision_modules = {f"model.{name}" for name in WRAPPERS["muse_glimmer"][1]}
    assert sum(node.total(total_params_of) for node in towers_of(spec).values()) == sum(
        modules[name] for name in vision_modules
    )


def test_every_wrapper_that_is_read_has_two_shapes() -> None:
    assert {*WRAPPERS, *UNMEASURED, *MEASURED_WHOLE} == set(READ)
    assert all(len(shapes) >= 2 for _, _, shapes in WRAPPERS.values())


def test_every_wrapper_has_its_towers_read_or_named_as_uncounted() -> None:
    wrappers = {kind for kind in model_types() if family_of(kind).text_type is not None and not family_of(kind).source}
    around_a_wrapper = {kind for kind in wrappers if family_of(kind).projection_size is not None}
    uncounted = {kind for kind in wrappers if family_of(kind).uncounted_encoders}
    assert wrappers - uncounted - around_a_wrapper <= set(READ)


def test_published_totals_hold_their_towers() -> None:
    gemma3, gemma4 = load("gemma3-27b"), load("gemma4-31b")
    assert {k: v.total(total_params_of) for k, v in towers_of(gemma3.model).items()} == {
        "vision_tower": 416_866_032,
        "multi_modal_projector": 6_194_304,
    }
    assert {k: v.total(total_params_of) for k, v in towers_of(gemma4.model).items()} == {
        "vision_tower": 569_548_080,
        "embed_vision": 6_193_152,
    }
    assert params(gemma3, with_towers=True).total == gemma3.published.parameters == 27_432_406_640
    assert params(gemma4, with_towers=True).total + 2_364 == gemma4.published.parameters == 31_273_088_876
    for name, sharing_layers in (
        ("gemma3n-e2b", 10),
        ("gemma3n-e4b", 15),
    ):  # of which the checkpoint has keys and values
        gemma3n, keys_and_values = load(name), 2 * 2048 * 2 * 256 + 256
        total = params(gemma3n, with_towers=True).total
        assert total + sharing_layers * keys_and_values == gemma3n.published.parameters


CASE_TOWERS = {
    "gemma-3-27b": (416_866_032, 6_194_304),
    "gemma-4-26b-a4b": (569_548_080, 3_244_032),
    "llama-4-scout": (850_960_896 - 39_845_888, 39_845_888, 20_971_520),
    "mistral-small-4-119b": (403_305_472, 25_166_848),
    "qwen3.5-35b-a3b": (446_571_248 - 30_679_808, 30_679_808),
}
"""Parameters of the modules of the classes in transformers 5.23."""


@pytest.mark.parametrize("name", CASE_TOWERS)
def test_towers_of_published_configs(name: str) -> None:
    preset = load(str(Path(__file__).parents[2] / "data/cases" / name / "config.json"))
    assert tuple(node.total(total_params_of) for node in towers_of(preset.model).values()) == CASE_TOWERS[name]
    assert not any("tower" in note or "vision" in note for note in preset.notes)


@in_one_test
@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (
            "gemma3",
            {"vision_config": {"model_type": "unheard_of", "hidden_size": 99}},
            "vision_config.model_type: 'unheard_of'",
        ),
        (
            "gemma3",
            {"vision_config": {**SIGLIP, "num_attention_heads": 5}, "mm_tokens_per_image": 9},
            "vision_config.num_attention_heads: 5",
        ),
        ("gemma3", {"vision_config": {**SIGLIP, "image_size": [24, 24]}}, "vision_config.image_size: a list"),
        ("gemma3", {"vision_config": {**SIGLIP, "image_size": 2}}, "vision_config.image_size: 2"),
        ("gemma3", {"vision_config": SIGLIP, "mm_tokens_per_image": 256}, "mm_tokens_per_image: 256"),
        ("gemma3", {"vision_config": 3}, "vision_config: 3; expected a table of fields"),
        ("mistral3", {"vision_config": PIXTRAL, "vision_feature_layer": [-1, -2]}, "vision_feature_layer: a list"),
        ("llama4", {"vision_config": {**LLAMA4, "intermediate_size": 80}}, "vision_config.intermediate_size: 80"),
        ("llama4", {"vision_config": {**LLAMA4, "pixel_shuffle_ratio": 0.3}}, "vision_config.pixel_shuffle_ratio: 0.3"),
        (
            "kimi_k25",
            {"vision_config": {**KIMI, "vt_hidden_size": 99}, "projection_hidden_size": 24},
            "vision_config.vt_hidden_size: 99",
        ),
        ("kimi_k25", {"vision_config": KIMI, "projection_hidden_size": 48}, "projection_hidden_size: 48"),
        (
            "kimi_k25",
            {"vision_config": {**KIMI, "merge_kernel_size": [2, 1]}, "projection_hidden_size": 24},
            "vision_config.merge_kernel_size",
        ),
    ],
)
def test_a_tower_that_is_not_understood_is_named_and_left_out(kind: str, change: dict[str, Any], says: str) -> None:
    table, notes = read_config(wrapped(kind, change))
    assert len(notes) == 1
    assert notes[0].startswith(f"its encoder is not counted: {says}")
    assert table == read_config(wrapped(kind, change)["text_config"])[0]


@in_one_test
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("use_ln_pre", False, "true"),
        ("use_abs_posemb", False, "true"),
        ("use_rope2d", False, "true"),
        ("use_cls_token", True, "false"),
        ("ls_init_value", None, "a number"),
        ("layer_scale_init_value", None, "a number"),
    ],
)
def test_an_encoder_of_step_without_what_is_counted_is_named(field: str, value: bool | None, expected: str) -> None:
    """Fields of the published code, which vllm's step_vl.py reads, and transformers' class does not."""
    [note] = read_config(wrapped("step3p7", {"vision_config": {"image_size": 56, field: value}}))[1]
    spelling = json.dumps(value)
    assert note.startswith(f"its encoder is not counted: vision_config.{field}: {spelling}; expected {expected}")


def test_a_section_that_no_class_knows_is_named_and_left_out() -> None:
    table, notes = read_config(
        wrapped(
            "gemma3",
            {"vision_config": SIGLIP, "mm_tokens_per_image": 9, "audio_config": {"model_type": "gemma4_audio"}},
        )
    )
    assert notes == ["its encoder is not counted: audio_config: 'gemma4_audio' is not supported"]
    assert list(table["towers"]) == ["vision_tower", "multi_modal_projector"]


def test_one_tower_is_counted_where_another_is_not_understood() -> None:
    table, notes = read_config(
        wrapped("gemma4", {"vision_config": {**GEMMA4, "num_attention_heads": 5}, "audio_config": GEMMA4_AUDIO})
    )
    assert len(notes) == 1
    assert notes[0].startswith("its encoder is not counted: vision_config")
    assert list(table["towers"]) == ["audio_tower", "embed_audio"]


def test_a_config_whose_sections_are_null_has_no_towers() -> None:
    table, notes = read_config(wrapped("gemma4", {"vision_config": None, "audio_config": None}))
    assert "towers" not in table
    assert not notes


def test_a_config_without_sections_is_said_to_describe_no_tower() -> None:
    table, notes = read_config(wrapped("gemma4", {}))
    assert "towers" not in table
    assert notes == ["no vision or audio encoder is described: there is no vision_config and no audio_config"]


@pytest.mark.parametrize(
    "kind", ["paligemma", "mistral3", "qwen2_vl", "qwen3_vl", "llava", "voxtral", "phi4_multimodal", "lfm3_vl"]
)
def test_a_section_that_is_not_given_is_what_the_class_makes_then(kind: str) -> None:
    config = wrapped(kind, {})
    table, notes = read_config(config)
    assert notes
    assert all("not given; its encoder has its class's defaults" in note for note in notes)
    assert (
        params(ModelSpec.model_validate(table), with_towers=True).total
        == parameter_counts_by_path(build_class_model(config))[""]
    )


def test_a_class_that_needs_an_image_says_so(run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(wrapped("blip-2", WRAPPERS["blip-2"][2][0])))
    error = run("verify", str(tmp_path), "--against", "transformers").error
    assert "Blip2ForConditionalGeneration does not run without pixel_values" in " ".join(error.split())
    bert = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    donut = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "encoder": {**SWIN, "model_type": "donut-swin"},
        "decoder": {**bert, "is_decoder": True, "add_cross_attention": True},
    }
    (tmp_path / "config.json").write_text(json.dumps(donut))
    error = run("verify", str(tmp_path), "--against", "transformers").error
    assert "VisionEncoderDecoderModel does not run on tokens alone" in " ".join(error.split())
    text = {"model_type": "florence2_language", "vocab_size": 50, "d_model": 16}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "florence2", "text_config": text}))
    error = run("verify", str(tmp_path), "--against", "transformers").error
    assert "subconfig: florence2_language; expected --against reference" in " ".join(error.split())


@pytest.mark.skipif(find_spec("timm") is not None, reason="the class is built where timm is installed")
def test_a_class_that_needs_another_package_says_so(run: Any, tmp_path: Path) -> None:
    config = {
        **wrapped("gemma3n", {"vision_config": {}, "audio_config": {}}),
        "architectures": ["Gemma3nForConditionalGeneration"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    error = run("verify", str(tmp_path), "--against", "transformers").error
    assert "Gemma3nForConditionalGeneration cannot be built here" in " ".join(error.split())
    assert "timm" in error


def test_a_head_of_other_rows_than_the_embedding_is_refused() -> None:
    """Ovis2's class sizes the output layer by the wrapper's vocab_size, which is 151,643 where the file has none."""
    config = wrapped("ovis2", WRAPPERS["ovis2"][2][0])
    assert read_config(config)[0]["vocab_size"] == 96
    tied = {**config, "tie_word_embeddings": True, "vocab_size": 192}
    assert read_config(tied)[0]["vocab_size"] == 96
    with pytest.raises(InputError, match=r"^vocab_size: 192; expected 96 as in text_config"):
        read_config({**config, "vocab_size": 192})
    with pytest.raises(InputError, match=r"^vocab_size: missing, where its class takes 151643; expected 96"):
        read_config({field: value for field, value in config.items() if field != "vocab_size"})


def test_a_text_model_alone_has_no_towers() -> None:
    """The class of a text model may be given the config of its wrapper."""
    config = {**wrapped("gemma3", {"vision_config": SIGLIP}), "architectures": ["Gemma3ForCausalLM"]}
    assert "towers" not in read_config(config)[0]
    flat = {**wrapped("phi4_multimodal", {}), "architectures": ["Phi3ForCausalLM"]}
    assert "towers" not in read_config(flat)[0]


def test_gemma3n_has_the_modules_of_its_classes_and_of_timm() -> None:
    """The vision encoder is compared with figures of timm's model, the rest with the modules of its class."""
    from transformers.models.gemma3n.configuration_gemma3n import (
        Gemma3nAudioConfig,
        Gemma3nTextConfig,
        Gemma3nVisionConfig,
    )
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioEncoder, Gemma3nMultimodalEmbedder

    audio: dict[str, Any] = {
        "hidden_size": 24,
        "conf_num_attention_heads": 4,
        "conf_num_hidden_layers": 2,
        "input_feat_size": 21,
        "vocab_size": 7,
        "sscp_conv_channel_size": [10, 6],
        "sscp_conv_kernel_size": [[3, 3], [3, 5]],
        "sscp_conv_stride_size": [[2, 2], [2, 3]],
    }
    for sound in (audio, {}):
        config = wrapped("gemma3n", {"vision_config": {"vocab_size": 9}, "audio_config": sound})
        table, notes = read_config(config)
        with torch.device("meta"):
            text, heard = Gemma3nTextConfig(**config["text_config"]), Gemma3nAudioConfig(**sound)
            modules = {
                "embed_vision": Gemma3nMultimodalEmbedder(Gemma3nVisionConfig(vocab_size=9), text),
                "audio_tower": Gemma3nAudioEncoder(heard), "embed_audio": Gemma3nMultimodalEmbedder(heard, text),
            }  # fmt: skip
        spec = ModelSpec.model_validate(table)
        assert {name: node.total(total_params_of) for name, node in towers_of(spec).items()} == {
            "vision_tower": TIMM["parameters"],
            **{name: parameter_counts_by_path(m)[""] for name, m in modules.items()},
        }
        assert not notes
        verdict = verify_reference(spec)
        assert verdict.ok, verdict.failures[:8]


def test_every_block_of_gemma3n_has_the_parameters_and_flops_of_timms() -> None:
    spec = ModelSpec.model_validate(read_config(wrapped("gemma3n", {"vision_config": {}, "audio_config": {}}))[0])
    encoder, run = towers_of(spec)["vision_tower"], encoded_inputs(spec, Inputs(image="1024x300")).encoder_runs[0]
    assert (encoder.total(total_params_of), run.total(forward_flops_of)) == (TIMM["parameters"], TIMM["flops"])
    sizes, flop_counts = dict[str, int](), dict[str, int]()
    for stage in (node for node in encoder.children if node.name.startswith("stage_")):
        blocks = [block for group in stage.children for block in group.children * group.repeat]
        for i, block in enumerate(blocks):
            name = f"blocks.{int(stage.name.removeprefix('stage_')) - 1}.{i}"
            sizes[name], flop_counts[name] = block.total(total_params_of), block.total(forward_flops_of, run.run_config)
    blocks_of_timm = {name: counts for name, counts in TIMM["modules"].items() if name.startswith("blocks.")}
    assert sizes == {name: counts["parameters"] for name, counts in blocks_of_timm.items()}
    assert flop_counts == {name: counts["flops"] for name, counts in blocks_of_timm.items()}


@in_one_test
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"vision_config": {"architecture": "mobilenetv5_base"}},
            "architecture: 'mobilenetv5_base'; expected mobilenet",
        ),
        ({"vision_config": {"hidden_size": 40}}, "vision_config.hidden_size: 40; expected 2048"),
        ({"vision_config": {"model_args": {"stem_size": 32}}}, "vision_config.model_args: "),
        ({"vision_config": {}, "vision_soft_tokens_per_image": 64}, "vision_soft_tokens_per_image: 64; expected 256"),
    ],
)
def test_an_encoder_of_gemma3n_that_timm_does_not_build_is_named(change: dict[str, Any], says: str) -> None:
    table, notes = read_config(wrapped("gemma3n", {"audio_config": {}, **change}))
    assert list(table["towers"]) == ["audio_tower", "embed_audio"]
    assert [note for note in notes if note.startswith("its encoder is not counted") and says in note], notes


def test_a_field_of_a_tower_that_nobody_knows_is_named() -> None:
    _, notes = read_config(wrapped("gemma3", {"vision_config": {**SIGLIP, "num_experts": 4}, "mm_tokens_per_image": 9}))
    assert notes == ["unrecognised fields, ignored: vision_config.num_experts"]


def test_towers_are_not_converted(run: Any) -> None:
    plain, with_towers = (
        run("memory", "gemma3-27b", "--quantize", "fp8", "--format", "json", *more).document
        for more in ((), ("--with-towers",))
    )
    assert with_towers["memory"]["total_bytes"] - plain["memory"]["total_bytes"] == 2 * 423_060_336
    error = run("memory", "gemma3-27b", "--quantize", "q4_k_m", "--with-towers").error
    assert "do not include vision and audio encoders" in error.replace("\n", " ")


def test_the_command_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(wrapped("gemma3", WRAPPERS["gemma3"][2][0])))
    without, counted = (
        run("params", str(tmp_path), "--format", "json", *more).document["params"] for more in ((), ("--with-towers",))
    )
    assert counted["total"] - without["total"] == without["left_out"]["towers"] == counted["by_component"]["towers"] > 0
    assert "towers" not in without["by_component"]
    assert not counted["left_out"]
    assert "--with-towers includes it" in run("params", str(tmp_path), columns=200).out
    flops_of = run("flops", str(tmp_path), "--notes", columns=200).out
    assert "of vision and audio encoders only the parameters are" in flops_of
    assert "towers" not in [
        node["name"] for node in run("flops", str(tmp_path), "--format", "json").document["tree"]["children"]
    ]
    assert "FLOPs" not in run("explain", str(tmp_path), "vision_tower", columns=200).out
    error = run("explain", str(tmp_path), "vision_tower", "--quantity", "flops").error
    assert "of towers, parameters alone are counted" in error
    converted = run("convert", str(tmp_path), "--to", "hf").document
    assert read_config(converted)[0] == read_config(json.loads((tmp_path / "config.json").read_text()))[0]


@pytest.mark.parametrize(
    "kind",
    ["gemma3", "gemma4", "phi4_multimodal", "lfm3_vl", "glm4v", "ernie4_5_vl_moe", "hunyuan_vl", "voxtral", "internvl"],
)
def test_descriptions_come_back(run: Any, tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(wrapped(kind, WRAPPERS[kind][2][-1])))
    assert run("convert", str(tmp_path), "-o", str(tmp_path / "model.toml")).code == 0
    assert load(str(tmp_path / "model.toml")).model == load(str(tmp_path)).model


def test_a_wrapper_whose_towers_are_not_read_says_so_given_or_not() -> None:
    remark = "its encoder is not counted: vision_config: 'molmo2_vision' is not supported"
    table, notes = read_config(wrapped("molmo2", {"vision_config": {"model_type": "molmo2_vision"}}))
    assert remark in notes
    assert "towers" not in table
    assert remark in read_config(wrapped("molmo2", {}))[1]


def test_the_published_aria_has_the_parameters_of_its_index() -> None:
    """The config of rhymes-ai/Aria, and half the bytes of its index, whose weights are in bfloat16."""
    text = {"hidden_size": 2560, "intermediate_size": 1664, "num_hidden_layers": 28, "vocab_size": 100_352}
    text |= {"model_type": "aria_text", "moe_num_experts": 64, "moe_topk": 6, "num_experts_per_tok": 6}
    vision = {"model_type": "idefics3_vision", "attention_heads": 16, "image_size": 980, "intermediate_size": 4304}
    config = {
        "model_type": "aria",
        "projector_patch_to_query_dict": {"1225": 128, "4900": 256},
        "text_config": {**text, "num_attention_heads": 20, "num_key_value_heads": 20},
        "vision_config": {**vision, "num_hidden_layers": 27, "patch_size": 14},
    }
    spec = ModelSpec.model_validate(read_config(config)[0])
    assert params(spec, with_towers=True).total == 50_614_622_432 // 2
    assert encoded_inputs(spec, Inputs(image="640x480")).image_tokens == 256
    (note,) = (n for n in read_config({**config, "projector_patch_to_query_dict": [128]})[1] if "not counted" in n)
    assert "projector_patch_to_query_dict: a list; expected a positive number of queries for each number" in note
    rows = {"max_value_projector_patch_to_query_dict": 300}  # as in a saved config, from which the class reads it
    longer = ModelSpec.model_validate(read_config({**config, **rows})[0])
    assert params(longer, with_towers=True).total == 50_614_622_432 // 2 + (300 - 256) * 1152


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("colpali", "ColPaliForRetrieval"),
        ("colqwen2", "ColQwen2ForRetrieval"),
        ("colmodernvbert", "ColModernVBertForRetrieval"),
    ],
)
def test_a_class_that_projects_every_token_agrees_with_what_is_counted(kind: str, cls: str) -> None:
    inner = str(family_of(kind).text_type)
    section = {name: value for name, value in wrapped(inner, WRAPPERS[inner][2][0]).items() if name != "architectures"}
    config = {"model_type": kind, "architectures": [cls], "embedding_dim": 20, "vlm_config": section}
    table = read_config(config)[0]
    assert table["head"] == {"type": "projection", "size": 20, "bias": True}
    spec = ModelSpec.model_validate(table)
    assert spec.towers
    verdict = verify_config(spec, config)
    assert verdict.ok, verdict.failures


def test_minimax_vl_has_llava_next_encoders_without_the_last_norm() -> None:
    """MiniMax-VL-01: CLIP's large encoder, two linear layers of the text model's width, and a vector of line ends."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    text = {"model_type": "minimax_text_01", "num_hidden_layers": 2, "attn_type_list": [0, 1], "postnorm": True}
    text |= {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99}
    spec = spec_of({"model_type": "minimax_vl_01", "text_config": {**text, "intermediate_size": 96}})
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    with torch.device("meta"):
        clip = CLIPVisionModel(CLIPVisionConfig(**sizes, image_size=336, patch_size=14))
    nodes = {node.name: node.total(total_params_of) for node in towers_of(spec).values()}
    assert nodes["vision_tower"] == sum(weight.numel() for weight in clip.parameters()) - 2 * 1024
    assert nodes["multi_modal_projector"] == 1024 * 64 + 64 + 64 * 64 + 64 + 64


def test_fuyu_has_the_parameters_of_its_checkpoint() -> None:
    """The index of adept/fuyu-8b states 18,816,477,184 bytes of 16-bit numbers."""
    config = {"model_type": "fuyu", "architectures": ["FuyuForCausalLM"], "text_config": {"model_type": "persimmon"}}
    spec = spec_of({**config, "patch_size": 30, "num_channels": 3, "tie_word_embeddings": False})
    assert towers_of(spec)["vision_embed_tokens"].total(total_params_of) == (30 * 30 * 3 + 1) * 4096
    assert 2 * params(spec, with_towers=True).total == 18_816_477_184
