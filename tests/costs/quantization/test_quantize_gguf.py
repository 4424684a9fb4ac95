"""llama.cpp's mixes against files written by the package `gguf`, and published checkpoints against their published
sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.costs.params import params
from llmcalc.costs.quantization import quantized_size, scheme_named, scheme_of_config, with_published_experts
from llmcalc.costs.quantization.base import weight_tensors_of
from llmcalc.costs.quantization.gguf import BLOCKS, DEFAULT_TYPE_BY_MIX, GGUFMix, _ModelRules
from llmcalc.costs.quantization.schemes_by_name import nearest_gguf_mix
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.checkpoints.gguf import GGML_TYPES, read_gguf
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.presets import load_preset, model_names
from tests.contracts.test_parts import decoder
from tests.costs.quantization.test_quantize import DENSE, deep

# Files

NAMES = {
    "q_proj": "attn_q.weight",
    "k_proj": "attn_k.weight",
    "v_proj": "attn_v.weight",
    "o_proj": "attn_output.weight",
    "gate_proj": "ffn_gate.weight",
    "up_proj": "ffn_up.weight",
    "down_proj": "ffn_down.weight",
}
ROUND = deep(
    decoder(
        vocab_size=320,
        hidden_size=256,
        attention=Attention(num_attention_heads=8, num_key_value_heads=2, head_dim=32),
        feed_forward=FeedForward(intermediate_size=512, hidden_act="silu", gated=True),
    ),
    16,
)


def gguf_file(spec: ModelSpec, types: Callable[[str, int], str], path: Path) -> None:
    """Writes a file in which every matrix has the type that `types` (name here, layer) returns, and other tensors are
    F32.
    """
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "llama")
    for n, site in enumerate(weight_tensors_of(spec.tree())):
        kind = (
            types(site.name, -1 if site.layer_index is None else site.layer_index)
            if site.tensor.role != "vector"
            else "F32"
        )
        name = {"embed_tokens": "token_embd.weight", "lm_head": "output.weight"}.get(
            site.path, f"blk.{site.layer_index}.{NAMES.get(site.name, f'norm{n}')}"
        )
        qtype = gguf.GGMLQuantizationType[kind]
        shape = site.tensor.shape
        try:
            data = gguf.quants.quantize(numpy.zeros(shape, dtype=numpy.float32), qtype)
        except NotImplementedError:  # the package cannot write this type, but knows its size
            data = numpy.zeros(gguf.quants.quant_shape_to_byte_shape(shape, qtype), dtype=numpy.uint8)
        writer.add_tensor(name, data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MORE = {0, 1, 4, 7, 10, 13, 14, 15}
"""Of 16 layers the first two, the last two, and every third between, starting with the third: (i − 2) mod 3 = 2."""


def plainly(kind: str, output: str = "Q6_K", **others: str | Callable[[int], str]) -> Callable[[str, int], str]:
    def of(name: str, layer: int) -> str:
        if name == "lm_head":
            return output
        found = others.get(name, kind)
        return found if isinstance(found, str) else found(layer)

    return of


def more(kind: str) -> Callable[[int], str]:
    return lambda layer: "Q6_K" if layer in MORE else kind


EXPECTED = {
    "q8_0": plainly("Q8_0", "Q8_0"),
    "q4_0": plainly("Q4_0"),
    "q4_1": plainly("Q4_1"),
    "q5_0": plainly("Q5_0"),
    "q6_k": plainly("Q6_K"),
    "q4_k_m": plainly("Q4_K", v_proj=more("Q4_K"), down_proj=more("Q4_K")),
    "q5_k_m": plainly("Q5_K", v_proj=more("Q5_K"), down_proj=more("Q5_K")),
    "q4_k_s": plainly(
        "Q4_K", v_proj=lambda i: "Q5_K" if i < 4 else "Q4_K", down_proj=lambda i: "Q5_K" if i < 2 else "Q4_K"
    ),
    "q3_k_m": plainly(
        "Q3_K",
        v_proj=lambda i: "Q5_K" if i < 2 else "Q4_K",
        down_proj=lambda i: "Q5_K" if i < 1 else "Q4_K",
        o_proj="Q4_K",
    ),
    "q3_k_l": plainly("Q3_K", v_proj="Q5_K", down_proj="Q5_K", o_proj="Q5_K"),
    "q2_k": plainly("Q2_K", v_proj="Q4_K", down_proj="Q3_K", o_proj="Q3_K"),
    "iq4_xs": plainly("IQ4_XS", v_proj="Q5_K", down_proj=lambda i: "Q5_K" if i < 2 else "IQ4_XS"),
    "iq4_xs-imatrix": plainly("IQ4_XS", v_proj="Q5_K"),
    "q4_0-imatrix": plainly("Q4_0", down_proj=lambda i: "Q4_1" if i < 2 else "Q4_0"),
}
"""The mixes written out by hand for a model of 16 layers with four query heads per key/value head."""


@pytest.mark.parametrize("name", EXPECTED)
def test_a_gguf_file_of_that_mix_has_these_bytes(name: str, tmp_path: Path) -> None:
    gguf_file(ROUND, EXPECTED[name], tmp_path / "it.gguf")
    checkpoint = read_gguf(tmp_path / "it.gguf")
    got = quantized_size(ROUND, scheme_named(name))
    assert got.total == checkpoint.nbytes
    scheme = scheme_named(name)
    assert isinstance(scheme, GGUFMix)
    assert scheme.tensor_counts_by_type(ROUND) == {
        kind: tensors for kind, (tensors, _, _) in checkpoint.by_dtype().items()
    }


def test_block_sizes_are_those_of_the_header_reader() -> None:
    sizes = {name: (elements, nbytes) for name, elements, nbytes in GGML_TYPES.values()}
    assert {name: (one[0], sum(one[1:])) for name, one in BLOCKS.items()} == {name: sizes[name] for name in BLOCKS}
    assert set(DEFAULT_TYPE_BY_MIX.values()) <= set(BLOCKS)


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for name, one in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (one[0], sum(one[1:])), name


def mix(name: str) -> GGUFMix:
    scheme = scheme_named(name)
    assert isinstance(scheme, GGUFMix)
    return scheme


def types_by_place(spec: ModelSpec, name: str) -> dict[str, list[str]]:
    """Path → the types of the matrices, stacked matrices and embeddings there."""
    sites = list(weight_tensors_of(spec.tree()))
    model = _ModelRules(mix(name), spec, sites)
    return {site.path: model.storage_types(site) for site in sites if len(site.tensor.shape) > 1}


def test_rows_that_are_no_whole_blocks_fall_back() -> None:
    """96 columns are not a multiple of 256: Q4_K becomes Q5_0, Q6_K becomes Q8_0.

    40 columns are not a multiple of 32 either: F16, for a type with a fallback.
    """
    got = mix("q4_k_m")
    assert set(got.tensor_counts_by_type(DENSE)) == {"Q5_0", "Q8_0", "F32"}
    odd = decoder(vocab_size=64, hidden_size=64, attention=Attention(num_attention_heads=2, head_dim=32),
                  feed_forward=FeedForward(intermediate_size=40, hidden_act="silu"))  # fmt: skip
    assert types_by_place(odd, "q4_k_m")["layers.0.mlp.down_proj"] == ["F16"]
    assert types_by_place(odd, "q8_0")["layers.0.mlp.down_proj"] == ["F16"]  # as in convert_hf_to_gguf.py
    for name in ("q4_0", "q5_1", "iq4_nl", "mxfp4_moe"):
        with pytest.raises(
            InputError, match=r"down_proj: rows of 40 are not a multiple of .* 32, and llama-quantize has no other"
        ):
            mix(name).tensor_counts_by_type(odd)


# Tensors of other kinds, by their names in a file


def shape(file: str, cls: str, i: int = 0) -> ModelSpec:
    """A small model of a family of Hugging Face configs."""
    config: dict[str, Any] = import_module(f"tests.families.{file}").SHAPES[cls][i]
    return ModelSpec.model_validate(read_config({"architectures": [cls], **config})[0])


def test_eight_experts() -> None:
    """32 layers: attn_q, ffn_gate_exps, ffn_up_exps and half of ffn_down_exps in Q4_K, attn_k and attn_v in Q8_0,
    attn_output in Q5_K.
    """
    got = mix("q4_k_m").tensor_counts_by_type(llmcalc.load("mixtral-8x7b").model)
    assert got == {"F32": 65 + 32, "Q4_K": 32 + 64 + 16 + 1, "Q5_K": 32, "Q6_K": 16 + 1, "Q8_0": 64}


def test_latent_attention() -> None:
    """attn_k_b is transposed: rows of 128 are not a multiple of 256.

    Of 61 layers' ffn_down (also of shared experts) the first 7 are Q6_K, the last 8, and 15 between.
    """
    spec = llmcalc.load("deepseek-v3").model
    held = types_by_place(spec, "q4_k_m")
    assert held["layers.0.self_attn.kv_b_proj"] == ["Q5_0", "Q4_K"]
    assert held["layers.3.mlp.router"] == ["F32"]
    down = [kinds for path, kinds in held.items() if path.endswith("down_proj")]
    assert len(down) == 3 + 2 * 58
    more = {i for i in range(61) if i < 7 or i >= 53 or (i - 7) % 3 == 2}
    assert [path for path, kinds in held.items() if path.endswith("down_proj") and kinds == ["Q6_K"]] == [
        path for path in held if path.endswith("down_proj") and int(path.split(".")[1]) in more
    ]


def test_maps_that_the_quantizer_leaves_alone() -> None:
    """In Gemma 3n altup_*, laurel_* and per_layer_model_proj keep 16 bits, or 32 bits for some tensors of the
    converter.
    """
    held = types_by_place(shape("gemma.gemma3n", "Gemma3nForCausalLM"), "q8_0")
    kept = {
        path.rpartition("layers.")[2].partition(".")[2] or path: kinds
        for path, kinds in held.items()
        if kinds[0] in ("F16", "F32")
    }
    assert {kinds[0] for path, kinds in kept.items() if "coefficients" in path} == {"F32"}
    for part in ("laurel.left", "laurel.right", "predict.router", "projections"):
        assert {kinds[0] for path, kinds in held.items() if part in path} == {"F16"}, part
    assert held["per_layer_embedding.projection"] == ["F16"]


def test_gated_delta_net_has_one_tensor_of_q_k_and_v() -> None:
    held = types_by_place(shape("recurrent.delta", "Qwen3NextForCausalLM"), "q3_k_l")
    for name in ("q_proj", "k_proj", "v_proj"):
        assert {kinds[0] for path, kinds in held.items() if path.endswith(f"linear_attn.{name}")} == {
            "Q5_1"
        }  # Q5_K's fallback: narrow rows
    assert {kinds[0] for path, kinds in held.items() if path.endswith("linear_attn.g_proj")} == {"Q4_0"}  # Q3_K's
    assert {kinds[0] for path, kinds in held.items() if path.endswith("mlp.shared_expert_gate")} == {"F32"}


def test_q_k_and_v_in_one_tensor() -> None:
    apart, fused = mix("q4_k_m").tensor_counts_by_type(ROUND), mix("q4_k_m-qkv").tensor_counts_by_type(ROUND)
    assert apart["Q6_K"] == fused["Q6_K"]  # attn_qkv instead of attn_v
    assert sum(apart.values()) - sum(fused.values()) == 16 * 2
    held = types_by_place(ROUND, "q4_k_m-imatrix-qkv")
    for i in range(16):
        assert {held[f"layers.{i}.self_attn.{name}"][0] for name in ("q_proj", "k_proj", "v_proj")} == {
            "Q6_K" if i in MORE else "Q4_K"
        }


def test_q_k_and_v_of_a_class_that_fuses_them_are_one_tensor() -> None:
    assert (
        quantized_size(load_preset("phi-4").model, scheme_named("q4_k_m")).total == 9_055_703_040
    )  # 8,890,301,440 in three
    assert mix("q4_k_m").tensor_counts_by_type(load_preset("phi-4").model) == mix("q4_k_m-qkv").tensor_counts_by_type(
        load_preset("phi-4").model
    )


def test_a_tied_embedding_is_stored_as_the_output_head() -> None:
    tied = ROUND.model_copy(update={"tie_word_embeddings": True})
    got = quantized_size(tied, scheme_named("q4_k_m"))
    assert got.by_component["embedding"].total == 320 * 256 // 256 * 210
    assert quantized_size(ROUND, scheme_named("q4_k_m")).by_component["embedding"].total == 320 * 256 // 256 * 144


# Published files


LLAMA_CPP_BITS = {
    "iq1_s": 2.0042,
    "iq1_m": 2.1460,
    "iq2_xxs": 2.3824,
    "iq2_xs": 2.5882,
    "iq2_s": 2.7403,
    "iq2_m": 2.9294,
    "iq3_xxs": 3.2548,
    "iq3_xs": 3.4977,
    "iq3_s": 3.6606,
    "iq3_m": 3.7628,
    "q2_k_s": 2.9697,
    "q2_k": 3.1593,
    "q3_k_s": 3.6429,
    "q3_k_m": 3.9960,
    "q3_k_l": 4.2979,
    "iq4_xs": 4.4597,
    "iq4_nl": 4.6818,
    "q4_k_s": 4.6672,
    "q4_k_m": 4.8944,
    "q5_k_s": 5.5704,
    "q5_k_m": 5.7036,
    "q6_k": 6.5633,
    "q8_0": 8.5008,
}
"""Bits per weight of Llama 3.1 8B: llama.cpp, tools/quantize/README.md.

Its file has 64 more numbers than Llama 3's (rope_freqs).
"""


@pytest.mark.parametrize("name", LLAMA_CPP_BITS)
def test_bits_a_weight_that_llama_cpp_publishes(name: str) -> None:
    spec = llmcalc.load("llama3-8b").model
    assert round(8 * quantized_size(spec, scheme_named(name)).total / params(spec).total, 4) == LLAMA_CPP_BITS[name]


FILE_SIZES = json.loads((Path(__file__).parents[2] / "data/gguf/file_sizes.json").read_text())


def spec_of(entry: dict[str, Any], folder: Path) -> ModelSpec:
    if "model" in entry:
        return llmcalc.load(entry["model"]).model
    (folder / "config.json").write_text(json.dumps(entry["config"]))
    return llmcalc.load(str(folder)).model


@pytest.mark.parametrize("entry", [pytest.param(one, id=one["repo"]) for one in FILE_SIZES["separate"]])
def test_published_files_to_the_byte(entry: dict[str, Any], tmp_path: Path) -> None:
    """All files of a repository have the same metadata, mostly the vocabulary: file size minus tensor bytes is one
    number.

    It may vary by 64 bytes, for the metadata's own names and the padding after them.
    """
    spec, suffix = spec_of(entry, tmp_path), "-imatrix" if entry["imatrix"] else ""
    left = {
        name: size - quantized_size(spec, scheme_named(name.lower() + suffix)).total
        for name, size in entry["sizes"].items()
    }
    assert max(left.values()) - min(left.values()) <= 64, left
    assert 5e5 < min(left.values()) < 1e7  # 32,768 to 262,144 words


def test_published_files_of_the_mixes_of_one_to_three_bits() -> None:
    """Two files of ThomasBaruzier/Qwen2.5-3B-Instruct-GGUF leave the same metadata; its embedding is the output head.

    With eight experts, mradermacher/Mixtral-8x7b-v0.1-sft-i1-GGUF lists 12.6, 21.4 and 19.4 GB.
    """
    spec = llmcalc.load("qwen2.5-3b").model
    sizes = {"iq2_xxs": 948_249_728, "iq2_xs": 1_031_545_984}
    assert {size - quantized_size(spec, scheme_named(name)).total for name, size in sizes.items()} == {5_956_736}
    mixtral = llmcalc.load("mixtral-8x7b").model
    for name, gb in {"iq2_xxs": 12.6, "iq3_m": 21.4, "iq3_xs": 19.4}.items():
        assert quantized_size(mixtral, scheme_named(name)).total / 1e9 == pytest.approx(gb, abs=0.06), name


def test_files_with_larger_embeddings_and_those_of_no_known_types() -> None:
    """The sizes in GB that bartowski/Meta-Llama-3.1-8B-Instruct-GGUF lists, with 8 MB of metadata."""
    spec = llmcalc.load("llama3-8b").model
    for name, gb in {"q2_k_l": 3.69, "q3_k_xl": 4.78, "q4_k_l": 5.31, "q5_k_l": 6.06, "q6_k_l": 6.85}.items():
        assert round(quantized_size(spec, scheme_named(name)).total / 1e9 + 0.008, 2) == gb, name
    with pytest.raises(InputError, match=r"ud-q6_k_xl: Unsloth chooses .*expected the .gguf file itself .* as q6_k"):
        scheme_named("ud-q6_k_xl")


def test_the_mix_near_a_dynamic_file() -> None:
    names = ("ud-q4_k_xl", "UD-Q8_K_XL", "ud-iq2_xxs", "ud-q3_k_s", "q5_k_xl", "q3_k_xl", "q4_k_m", "ud-none")
    assert list(map(nearest_gguf_mix, names)) == ["q4_k_m", "q8_0", "iq2_xxs", "q3_k_s", "q5_k_m", None, None, None]


BEFORE_2026_03 = {"Q4_K_M": 176, "Q5_K_M": 210, "Q3_K_M": 144, "Q3_K_L": 144, "Q2_K": 84, "Q4_K_S": 144}
"""Mix → bytes of 256 weights of `attn_qkv` in its type before March 2026: Q5_K, Q6_K, Q4_K, Q4_K, and the mix's own."""


def test_published_files_with_fused_attention() -> None:
    """Phi-3.5 mini: 32 layers with q, k and v of 3072 × 3072 in one tensor.

    All other tensors are as counted; so is this one in the other mixes.
    """
    entry = FILE_SIZES["fused"]
    spec, fused = llmcalc.load(entry["model"]).model, 32 * 3 * 3072 * 3072
    left = {}
    for name, size in entry["sizes"].items():
        scheme = mix(name.lower() + "-imatrix-qkv")
        left[name] = size - quantized_size(spec, scheme).total
        if name in BEFORE_2026_03:
            held = types_by_place(spec, scheme.label)
            counted = [held[f"layers.{i}.self_attn.q_proj"][0] for i in range(32)]
            left[name] += (
                sum(fused // 32 // 256 * sum(BLOCKS[kind][1:]) for kind in counted)
                - fused // 256 * BEFORE_2026_03[name]
            )
    assert len(set(left.values())) == 1, left


def test_published_mxfp4_files() -> None:
    """gpt-oss: experts in MXFP4, all other tensors in Q8_0 or F32.

    The larger model has 12 more layers, whose tensor descriptions take about 14 kB.
    """
    small, large = (
        size - quantized_size(llmcalc.load(name).model, scheme_named("mxfp4_moe")).total
        for name, size in FILE_SIZES["mxfp4_moe"]["sizes"].items()
    )
    assert 0 < large - small < 20_000
    assert 12e6 < small < 14e6


@pytest.mark.parametrize(
    ("model", "mix", "tensors"),
    [
        ("llama2-7b", "q4_k_m", {"F32": 65, "Q4_K": 193, "Q6_K": 33}),  # as llama.cpp prints when it loads them
        ("llama3-8b", "q4_k_m", {"F32": 65, "Q4_K": 193, "Q6_K": 33}),
        ("mistral-7b", "q3_k_m", {"F32": 65, "Q3_K": 129, "Q4_K": 92, "Q5_K": 4, "Q6_K": 1}),
        (
            "gemma2-9b",
            "q4_k_m",
            {"F32": 169, "Q4_K": 252, "Q6_K": 43},
        ),  # 42 layers: 5 + 6 + 10 have more bits, twice; and the tied embedding
    ],
)
def test_tensors_of_each_type(model: str, mix: str, tensors: dict[str, int]) -> None:
    scheme = scheme_named(mix)
    assert isinstance(scheme, GGUFMix)
    assert scheme.tensor_counts_by_type(llmcalc.load(model).model) == tensors


def test_deepseek_v3_checkpoint() -> None:
    """The hub's count of DeepSeek-V3's and R1's safetensors: 680,571,043,840 F8_E4M3, 3,918,786,560 BF16 and 41,555,600
    F32 numbers.

    F32: the scales and 256 score corrections in each of 59 layers. BF16: unconverted tensors, including the MTP
        module's own copies of embedding and output head.
    """
    spec = llmcalc.load("deepseek-v3").model
    got = quantized_size(spec, scheme_named("fp8-block128"), included_parts=frozenset({"mtp"})).by_part
    assert got.weights == 680_571_043_840
    assert got.scales == 4 * (41_555_600 - 59 * 256)
    assert got.unconverted == 2 * (3_918_786_560 - 2 * 129_280 * 7_168)


WITHOUT_TABLE = frozenset(
    """
    deepseek-r1-0528 deepseek-v3-0324 deepseek-v3.1 devstral-2-123b devstral-small-2-24b kimi-k2-0905 minimax-m2.1
    ministral-3-14b-instruct ministral-3-3b-instruct ministral-3-8b-instruct mistral-medium-3.5-128b
    """.split()  # noqa: SIM905
)
"""Presets in float8 of which no copy of the published config was found, so that none of their scales is known."""


def test_presets_in_float8_state_how_their_weights_are_stored() -> None:
    in_float8 = [preset for preset in map(load_preset, model_names()) if preset.dtype == "float8"]
    assert {preset.name for preset in in_float8 if preset.storage_table is None} == WITHOUT_TABLE
    for name in ("deepseek-v3", "deepseek-r1", "kimi-k2", "mimo-v2-flash"):
        scheme = scheme_of_config({"quantization_config": llmcalc.load(name).storage_table})
        assert scheme is not None
        assert scheme.label == "fp8-block128"


def test_memory_counts_deepseek_v3_as_its_checkpoint_stores_it() -> None:
    """The hub's numbers, less those of the MTP module, which the document does not count by default.

    F32: 41,555,600, of which 702,264 scales and 256 score corrections are the module's; the corrections are buffers.
    """
    mtp_float8 = 11_505_434_624
    mtp_bfloat16 = 2 * 129_280 * 7_168 + 2 * 7_168 * 7_168 + 256 * 7_168 + 3 * 7_168 + 2 * 7_168 + 1_536 + 512
    expected = 680_571_043_840 - mtp_float8 + 2 * (3_918_786_560 - mtp_bfloat16) + 4 * (41_555_600 - 59 * 256 - 702_264)
    assert llmcalc.memory("deepseek-v3").document["memory"]["by_kind"]["weights"] == expected


@pytest.mark.parametrize(("name", "total"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)])
def test_gpt_oss_checkpoints(name: str, total: int) -> None:
    """Compares with `total_size` of each model.safetensors.index.json."""
    assert quantized_size(llmcalc.load(name).model, scheme_named("mxfp4")).total == total


def test_files_of_a_model_that_is_published_in_mxfp4_keep_its_experts() -> None:
    """unsloth/gpt-oss-20b-GGUF: gpt-oss-20b-Q4_K_M.gguf has 11,624,759,488 bytes, with 13 MB of metadata.

    The other matrices have 2,880 columns, no multiple of 256: Q5_0 in place of Q4_K, Q8_0 in place of Q6_K.
    """
    preset = llmcalc.load("gpt-oss-20b")
    scheme = with_published_experts(scheme_named("q4_k_m"), preset.quantization_config)
    stored = quantized_size(preset.model, scheme).total
    assert 12e6 < 11_624_759_488 - stored < 14e6, stored
    experts = 24 * 32 * 3 * 2880 * 2880
    assert stored > experts * 17 // 32
    document = llmcalc.memory("gpt-oss-20b", quantize="q4_k_m").document
    assert document["memory"]["by_kind"]["weights"] == stored
    assert with_published_experts(scheme_named("q4_k_m"), None) == scheme_named("q4_k_m")
