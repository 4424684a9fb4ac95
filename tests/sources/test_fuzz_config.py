"""Damaged `config.json` files: each is read and counted, or rejected with one line that names a field of the file.

In a config of every model type, of every wrapper's vision and audio encoders and of every quantisation method, every
field is replaced by invalid values. Random damage reaches any depth of these and of published configs. Each takes less
than 2 s; `test_bad_config.py` has the worst known ones.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import example, given
from hypothesis import strategies as st

import llmcalc
from llmcalc.costs.quantization.config import READERS_BY_METHOD
from llmcalc.sources.huggingface.registry import family_of, model_types
from llmcalc.sources.preset import Preset
from llmcalc.sources.target import load
from tests.builders import CASES, with_other_causes
from tests.cli.damage import NO_SIZES, anything_of, counts, fuzzed, refused, rewrite
from tests.components.towers.tower_shapes import WRAPPERS
from tests.families import shapes_of

Config: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str | int, ...]

PUBLISHED = {case.name: json.loads((case / "config.json").read_text()) for case in CASES}
READ = [kind for kind in model_types() if family_of(kind).read_model is not None]
WRAPPING = [kind for kind in model_types() if family_of(kind).text_type is not None]
VALUES = 3
"""Number of invalid values that each field of a quantization gets in an exhaustive run; other fields get others."""
SIZED = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "num_hidden_layers": 2,
}
LLAMA = {"model_type": "llama", **SIZED}
WEIGHTS = {
    "num_bits": 4,
    "type": "int",
    "group_size": 32,
    "strategy": "group",
    "symmetric": True,
    "actorder": None,
    "observer": "minmax",
}
ENDLESS = "a number of 5001 digits"
"""Placeholder for a number with 5001 digits, which Python refuses to write."""

CHOOSES = ("modules_to_not_convert", "modules_in_block_to_quantize", 0)
"""Lists of modules: the message names these if another selection matches no module."""

QUANTIZED: dict[str, list[Config]] = {
    "fp8": [
        {
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "modules_to_not_convert": ["lm_head"],
            "scale_fmt": "ue8m0",
        }
    ],
    "fbgemm_fp8": [{"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}],
    "awq": [{"bits": 4, "group_size": 32, "version": "gemm", "zero_point": True, "modules_to_not_convert": ["gate"]}],
    "gptq": [
        {
            "bits": 4,
            "group_size": 32,
            "desc_act": True,
            "sym": True,
            "checkpoint_format": "gptq",
            "lm_head": False,
            "modules_in_block_to_quantize": [["self_attn.q_proj"]],
        }
    ],
    "bitsandbytes": [
        {
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "llm_int8_skip_modules": ["lm_head"],
        }
    ],
    "compressed-tensors": [
        {
            "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*gate"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
        },
        {
            "format": "float-quantized",
            "ignore": [],
            "kv_cache_scheme": None,
            "config_groups": {
                "group_0": {
                    "targets": ["re:.*proj"],
                    "input_activations": {"dynamic": True, "num_bits": 8, "type": "float"},
                    "weights": {
                        "num_bits": 8,
                        "type": "float",
                        "strategy": "block",
                        "block_structure": [32, 32],
                        "dynamic": False,
                    },
                }
            },
        },
    ],
    "mxfp4": [{"modules_to_not_convert": ["lm_head"]}],
    "modelopt": [
        {"quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*gate"]},
        {"quant_algo": "FP8", "exclude_modules": []},
        {
            "quant_algo": "MIXED_PRECISION",
            "ignore": ["mtp*"],
            "quantized_layers": {
                "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_AWQ", "group_size": 32},
            },
        },
    ],
    "auto-round": [
        {"bits": 4, "group_size": 32, "sym": True, "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 16}}}
    ],
    "hqq": [
        {
            "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}},
            "skip_modules": ["lm_head"],
        }
    ],
    "quark": [
        {
            "global_quant_config": {
                "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                "input_tensors": {"is_dynamic": False},
            },
            "layer_quant_config": {"*.mlp.*": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}},
            "exclude": ["lm_head"],
        }
    ],
    "torchao": [{"quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}}}],
    "quanto": [{"weights": "int4", "activations": None, "modules_to_not_convert": ["lm_head"]}],
    "aqlm": [
        {
            "in_group_size": 8,
            "out_group_size": 1,
            "num_codebooks": 1,
            "nbits_per_codebook": 16,
            "linear_weights_not_to_quantize": ["lm_head.weight"],
        }
    ],
    "vptq": [
        {
            "config_for_layers": {
                "model.layers.0.self_attn.q_proj": {
                    "vector_lens": [-1, 8],
                    "num_centroids": [-1, 256],
                    "group_size": 16,
                }
            }
        }
    ],
    "metal": [{"bits": 4, "group_size": 32, "modules_to_not_convert": ["lm_head"]}],
    "higgs": [{"bits": 3, "group_size": 32, "p": 2, "hadamard_size": 512}],
    "gemma": [{"num_bits": 4, "module_quant_configs": {"mlp": {"num_bits": 8}}, "modules_to_not_convert": ["lm_head"]}],
    "exl2": [{"bits": 4.5, "head_bits": 6, "version": "0.1"}],
    "exl3": [{"bits": 3.0, "head_bits": 6, "codebook": "mcg"}],
    "bitnet": [{"quantization_mode": "offline", "linear_class": "bitlinear", "modules_to_not_convert": None}],
    "eetq": [{"weights": "int8", "modules_to_not_convert": ["lm_head"]}],
    "mlx": [
        {
            "group_size": 32,
            "bits": 4,
            "mode": "affine",
            "lm_head": False,
            "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 6},
        }
    ],
}
"""Method → configs with it."""


def wrapped(kind: str) -> list[Config]:
    """Configs of a wrapper around a small text model, with each of its encoders' shapes."""
    text = family_of(kind).text_type
    assert text is not None
    cls, _, towers = WRAPPERS.get(kind, ("ForConditionalGeneration", {}, [{}]))
    outer = {
        "model_type": kind,
        "architectures": [cls],
        family_of(kind).text_section: wrapped(text)[0] if family_of(text).text_type is not None else shapes_of(text)[0],
        "quantization_config": {"quant_method": "fp8"},
    }
    return [json.loads(json.dumps({**outer, **tower})) for tower in towers]


def quantized(method: str) -> list[Config]:
    base = {**shapes_of("mixtral")[0], **SIZED} if method == "mxfp4" else LLAMA
    return [{**base, "quantization_config": {"quant_method": method, **fields}} for fields in QUANTIZED[method]]


def places(table: Any, before: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yields every path in tables and lists, with its value."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        yield (*before, key), value
        if isinstance(value, dict | list):
            yield from places(value, (*before, key))


def holder(table: Any, path: Place) -> Any:
    """Returns the table or list that contains the value at a path."""
    for step in path[:-1]:
        table = table[step]
    return table


def replaced(table: Config, path: Place, value: Any) -> Config:
    out = copy.deepcopy(table)
    holder(out, path)[path[-1]] = value
    return out


def text_of(config: Config) -> str:
    """JSON as Python writes it, with NaN and Infinity."""
    return json.dumps(config).replace(json.dumps(ENDLESS), "1" + "0" * 5000)


def counts_and_bytes(preset: Preset) -> None:
    """Runs `counts`, and computes the bytes of the weights as its config stores them."""
    counts(preset)
    assert llmcalc.memory(preset, with_towers=True).states.total_bytes >= 0


def described(_: Preset) -> None:
    """Computes nothing: for tests of what reading alone rejects."""


def read(path: Path, config: Config, count: Callable[[Preset], None] = counts_and_bytes) -> str:
    """Returns the error message for a config with that content; empty if it is read and can be counted."""
    rewrite(path, text_of(config))
    return refused(lambda: load(str(path)), count)


def name_of(path: Place) -> str:
    """Returns the field that contains the value at a path."""
    return [step for step in path if isinstance(step, str)][-1]


def damage_all(config: Config, found: list[tuple[Place, Any]], file: Path, several: int) -> int:
    """Replaces the value at each place by `several` of the invalid sizes in turn, and every integer by one too large
    for lists. The first of them differs by model type, since few fields of some are damaged.

    Returns the number of rejected configs.
    """
    invalid = (*NO_SIZES, None, ENDLESS, 10**6)
    first = crc32(config["model_type"].encode()) % len(invalid)
    values, refusals = islice(cycle(invalid), first, None), 0
    for path, before in found:
        for value in (*islice(values, several), *([10**9] if type(before) is int else [])):
            message = read(file, replaced(config, path, value))
            refusals += bool(message)
            if message and type(value) is not type(before) and value is not ENDLESS and path[-1] not in CHOOSES:
                assert re.search(rf"(?<!\w){re.escape(name_of(path))}(?!\w)", message), (path, value, message)
    return refusals


def fields_of(kind: str) -> set[str]:
    """The fields of a family's first shape, and those with a default in its class."""
    return {*family_of(kind).defaults, *shapes_of(kind)[0]}


def around_the_text(kind: str, config: Config) -> list[tuple[Place, Any]]:
    """The places of a wrapper's config outside its text model, with their values."""
    section = family_of(kind).text_section
    return [(path, value) for path, value in places(config) if path[0] != section or path[1:] in ((), ("model_type",))]


def fields_around_the_text(kind: str) -> set[str]:
    """What may be read of a wrapper: the names of its fields outside its text model."""
    return {name_of(path) for config in wrapped(kind) for path, _ in around_the_text(kind, config)}


def damaged(kinds: list[str], fields: Callable[[str], set[str]]) -> list[ParameterSet]:
    """Returns the parameters of a test: (model type, its fields that are damaged).

    The ordinary run has model types that have every field between them, and of these each field once, since
    common functions read a size, a list or a table. All fields of all model types are `exhaustive`.
    """
    seen: set[str] = set()
    few = []
    for kind in with_other_causes(kinds, fields):
        new_fields = fields(kind) - seen
        seen |= new_fields
        if new_fields:
            few.append(pytest.param(kind, new_fields, id=kind))
    every = [pytest.param(kind, fields(kind), id=f"{kind}-every", marks=pytest.mark.exhaustive) for kind in kinds]
    return [*few, *every]


FAMILIES = damaged(READ, fields_of)


@pytest.mark.parametrize(("kind", "fields"), FAMILIES)
def test_every_field_of_a_family(kind: str, fields: set[str], tmp_path: Path) -> None:
    """Damages the first shape, with nested lists and tables, and every field with a default in its class."""
    shape = shapes_of(kind)[0]
    defaults = [((name,), value) for name, value in family_of(kind).defaults.items() if name not in shape]
    found = [(path, value) for path, value in [*places(shape), *defaults] if path[0] in fields]
    refusals = damage_all(shape, found, tmp_path / "config.json", several=1)
    assert refusals >= 8 or fields < fields_of(kind)


@pytest.mark.parametrize(("kind", "fields"), FAMILIES)
def test_a_size_that_the_model_cannot_have_is_named_as_the_config_has_it(
    kind: str, fields: set[str], tmp_path: Path
) -> None:
    """The message names the config field itself, or the config field behind a field of the description. Multiples of a
    size, and large ones that other fields bound, are tried where all fields of a family are.
    """
    shape = shapes_of(kind)[0]
    for name, size in {**family_of(kind).defaults, **shape}.items():
        further_factors = (7 * size, 10**6) if type(size) is int and fields == fields_of(kind) else ()
        for other in (1, 3, 2**39, *further_factors) if type(size) is int and name in fields else ():
            message = read(tmp_path / "config.json", {**shape, name: other}, count=described)
            if ": model." in message:  # the reader accepted it, and the description was rejected
                assert re.search(rf"\b{re.escape(name)}\b", message), (name, other, message)


@pytest.mark.parametrize(("kind", "fields"), damaged(WRAPPING, fields_around_the_text))
def test_every_field_of_a_wrapper(kind: str, fields: set[str], tmp_path: Path) -> None:
    """An encoder that is not supported is left out, so its wrong fields raise no error. Of several shapes of encoders,
    the first that has a field is damaged in it, but where all fields of a wrapper are.
    """
    left = set(fields)
    for config in wrapped(kind):
        found = [(path, value) for path, value in around_the_text(kind, config) if name_of(path) in left]
        left -= {name_of(path) for path, _ in found} if fields < fields_around_the_text(kind) else set()
        refusals = damage_all(config, found, tmp_path / "config.json", several=1)
        assert refusals > 2 or fields < fields_around_the_text(kind)


@pytest.mark.parametrize("several", [1, pytest.param(VALUES, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("method", READERS_BY_METHOD)
def test_every_field_of_a_quantization(method: str, several: int, tmp_path: Path) -> None:
    for config in quantized(method):
        assert read(tmp_path / "config.json", config) == ""
        found = [(path, value) for path, value in places(config) if path[0] == "quantization_config"]
        assert damage_all(config, found, tmp_path / "config.json", several=several) >= several


def test_every_method_has_a_config() -> None:
    assert sorted(QUANTIZED) == sorted(READERS_BY_METHOD)


# --- random damage ----------------------------------------------------------------------------------------------------

CONFIGS: dict[str, Config] = {
    **{kind: shapes_of(kind)[-1] for kind in READ},
    **{f"wrapped {kind}": wrapped(kind)[0] for kind in WRAPPING},
    **{f"quantized {method}": quantized(method)[-1] for method in READERS_BY_METHOD},
    **PUBLISHED,
}
NESTED = [
    (name, path)
    for name, config in CONFIGS.items()
    for path, _ in places(config)
    if len(path) > 1 and path[0] not in ("id2label", "label2id")
]
NAMES = sorted(
    {str(path[-1]) for config in CONFIGS.values() for path, _ in places(config)}
    | {name for kind in READ for name in family_of(kind).defaults}
)
words = st.one_of(
    st.text(max_size=8),
    st.sampled_from([*NAMES, "full_attention", "sliding_attention", "linear_attention", "mamba", "sparse", "\x1b[0m"]),
)
anything = st.one_of(
    anything_of(words),
    st.just(ENDLESS),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "mamba", 1, 0]), max_size=70),
)
anywhere = st.one_of(
    st.sampled_from([(name, path) for name, config in CONFIGS.items() for path, _ in places(config)]),
    st.sampled_from(NESTED),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed") / "config.json"


@fuzzed
@given(place=anywhere, value=anything)
@example(place=("olmo-3-32b", ("num_hidden_layers",)), value=10**9)
@example(place=("granite-4.0-h-micro", ("layer_types",)), value=["mamba"] * 99_999 + ["attention"])
@example(place=("albert", ("inner_group_num",)), value=10**9)
@example(place=("cohere2_moe", ("first_k_dense_replace",)), value=10**9)
@example(place=("gpt_neo", ("attention_types",)), value=[[["global"], 2**62]])
@example(place=("gpt_neo", ("attention_types",)), value=[[[], 2**63]])
@example(place=("recurrent_gemma", ("block_types",)), value=[["recurrent"]])
@example(place=("gemma3n_text", ("intermediate_size",)), value=list(range(1, 100_001)))
@example(place=("wrapped kimi_k25", ("vision_config", "pos_emb_height")), value=float("nan"))
def test_a_field_replaced_by_anything(place: tuple[str, Place], value: Any, file: Path) -> None:
    name, path = place
    read(file, replaced(CONFIGS[name], path, value))


@fuzzed
@given(place=anywhere, key=words, value=anything, remove=st.booleans())
@example(place=("plamo3", ("interleaved_sliding_window", 0)), key="", value=[], remove=False)
def test_a_field_removed_or_inserted(place: tuple[str, Place], key: str, value: Any, remove: bool, file: Path) -> None:
    name, path = place
    config = copy.deepcopy(CONFIGS[name])
    below = holder(config, path)
    if remove:
        del below[path[-1]]
    elif isinstance(below, dict):
        below[key] = value
    else:
        below.insert(int(path[-1]), value)
    read(file, config)


@fuzzed
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    changes=st.dictionaries(words, anything, min_size=1, max_size=4),
    head=st.sampled_from(["lm", "none", "classification", None]),
)
def test_several_fields_at_once(name: str, changes: Config, head: Any, file: Path) -> None:
    rewrite(file, text_of({**CONFIGS[name], **changes}))
    refused(lambda: load(str(file), head=head), counts_and_bytes)


@fuzzed
@given(
    content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)),
    cut=st.integers(0, 900),
    name=st.sampled_from(sorted(PUBLISHED)),
)
def test_a_file_of_anything(content: bytes, cut: int, name: str, file: Path) -> None:
    rewrite(file, json.dumps(PUBLISHED[name]).encode()[:cut] + content)
    refused(lambda: load(str(file)), counts_and_bytes)
