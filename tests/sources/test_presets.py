"""Model presets: every file loads, names its sources, and matches the published counts; `llmcalc presets` lists it."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from math import isnan
from pathlib import Path

import pytest

import llmcalc
from llmcalc.costs.context_length import longest_sequence
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.frameworks.ggml.encoder import encoder_bytes
from llmcalc.frameworks.ggml.gguf_model import GgufModel
from llmcalc.frameworks.ollama.server import tag_flags
from llmcalc.questions.listings import ask_presets
from llmcalc.reports.notes import gguf_tag_notes
from llmcalc.sources import presets
from llmcalc.sources.library_tags import LARGER_FILES, LIBRARY_NAMES, USUAL_SCHEME
from llmcalc.sources.presets import (
    checkpoint_of_tag,
    find_preset,
    is_library_tag,
    larger_file_gigabytes,
    load_preset,
    model_names,
    names_by_alias,
    read_preset,
    title_and_aliases,
)
from llmcalc.sources.search import search_presets
from llmcalc.sources.target import load
from llmcalc.sources.target_names import normalized, normalized_with_points
from llmcalc.units import parse_count
from tests.samples import sampled

NAMES = model_names()

# Totals derived by hand from the released code or checkpoint, independently of the files' `published` table.
BY_HAND = {
    # 131072·6144 + 64·(2·6144² + 2·6144·1024 + 4·6144 + 8·6144 + 8·3·6144·32768) + 6144
    "grok-1": 131072 * 6144 + 64 * (2 * 6144**2 + 2 * 6144 * 1024 + 4 * 6144 + 8 * 6144 + 8 * 3 * 6144 * 32768) + 6144,
    # the hub's 21,511,953,984 minus one scale per 32 weights of 24·32 experts of 3·2880²
    "gpt-oss-20b": 21_511_953_984 - 24 * 32 * 3 * 2880**2 // 32,
    "gpt-oss-120b": 120_412_337_472 - 36 * 128 * 3 * 2880**2 // 32,
    # the checkpoint's tensors minus the score corrections of 60 routers over 384 experts
    "kimi-k2": 1_026_408_232_448 - 60 * 384,
}


def test_every_preset_says_where_it_is_from():
    for name in NAMES:
        preset = load_preset(name)
        assert preset.sources, name
        assert all(source.url.startswith("https://") for source in preset.sources), name
        assert all(source.checked is None or source.checked.year >= 2024 for source in preset.sources), name
        assert preset.title, name
        assert preset.developer, name
        assert preset.released, name


def test_every_preset_counts_what_was_published():
    for name in NAMES:
        preset = load_preset(name)
        published = preset.published
        if published.parameters is None:
            assert published.parameters_difference == 0, name
            assert published.nominal, f"{name}: a model without an exact count has a rounded one"
            continue
        assert params(preset.model).total - published.parameters == published.parameters_difference, name
        assert not published.parameters_difference or published.parameters_note, f"{name}: a difference has its reason"


def test_every_preset_is_near_its_rounded_figure():
    """Where nothing better was published.
    Gopher and Chinchilla are the farthest off, 8 %: their papers do not say how they counted.
    """
    for name in NAMES:
        preset = load_preset(name)
        if preset.published.parameters is None and preset.published.nominal:
            nominal = parse_count(preset.published.nominal.lstrip("~"))
            total = params(preset.model).total
            if preset.published.nominal_without_head:
                assert not 0.9 <= total / nominal <= 1.1, f"{name}: the rounded figure includes the model's own head"
                total = params(llmcalc.load(f"{name}?head.type=none").model).total
            assert 0.9 <= total / nominal <= 1.1, name


@pytest.mark.parametrize("name", BY_HAND)
def test_totals_by_hand(name):
    assert params(load_preset(name).model).total == BY_HAND[name]


PREDICTION = {
    # the hub's totals leave these, without score corrections and copies of embedding and head (`parameters_note`)
    "deepseek-v4-flash": 7_669_110_651 - 256 - 1_059_061_760,
    "deepseek-v4-pro": 27_693_504_059 - 384 - 1_853_358_080,
    "ernie-4.5-300b-a47b": 989_888_512,
    "hy3-preview": 3_752_612_288 - 192,
    "longcat-flash": 1_197_899_776,
    "mimo-v2-flash": 3 * 329_273_408,
    "mimo-v2.5-pro": 3 * 644_905_088,
    "nemotron-3-super-120b-a12b": 2_942_324_736,
    "nemotron-3.5-lightning": 1_335_325_952 - 128,
}
"""Parameters of the modules of multi-token prediction in released weights."""


def test_modules_of_multi_token_prediction_have_the_published_sums() -> None:
    for name, parameters in PREDICTION.items():
        with_modules, without = (llmcalc.params(name, with_mtp=included).total for included in (True, False))
        assert with_modules - without == parameters, name


def test_the_module_of_k_exaone_has_a_dense_layer() -> None:
    """vLLM's exaone_moe_mtp.py: two norms, a projection, a dense layer, a norm; the hub shows 237B with it."""
    attention, network = 2 * 6144 * (64 + 8) * 128 + 2 * 128, 3 * 6144 * 18_432
    with_module, without = (llmcalc.params("k-exaone-236b-a23b", with_mtp=included).total for included in (True, False))
    assert with_module - without == 2 * 6144**2 + 5 * 6144 + attention + network
    assert round(with_module / 1e9) == 237


def test_the_module_of_glm_5_3_flash_has_the_bytes_of_its_headers() -> None:
    """7,493,399,168 bytes of layer 45 in the headers of all files, as summed in T0mSIlver/working-set.

    Experts and latent projections are in FP8 with a float32 scale per 128 × 128, the score correction in float32, what
    remains in bfloat16 (research/model_glm53flash.md, §4).
    """
    with_module, without = (llmcalc.params("glm-5.3-flash", with_mtp=included).total for included in (True, False))
    module, h = with_module - without, 4096
    experts, latents = 289 * 3 * h * 2048, 1536 * (h + 64 * 256) + 512 * h + 64 * 256 * h
    fp8 = experts + latents
    assert fp8 + 4 * fp8 // 128**2 + 4 * 288 + 2 * (module - fp8) == 7_493_399_168


def test_the_modules_of_step_3_5_have_heads_of_their_own() -> None:
    """vLLM's step3p5_mtp.py: a dense layer with a window, and a head; the hub shows 199B with the three."""
    h, heads = 4096, 96
    attention, network = 2 * h * (heads + 8) * 128 + heads * h + 2 * 128, 3 * h * 11_264
    module = 2 * h * h + 5 * h + attention + network + 128_896 * h
    with_modules, without = (llmcalc.params("step-3.5-flash", with_mtp=included).total for included in (True, False))
    assert with_modules - without == 3 * module
    assert round(with_modules / 1e9) == 199


def test_the_module_of_ling_3_has_latent_attention_and_experts() -> None:
    """vLLM's bailing_moe_v3_mtp.py: two norms, a projection, a layer, a norm, and the model's head."""
    h, heads = 2560, 32
    attention = h * heads * 192 + h * (512 + 64) + 512 + 512 * heads * 256 + heads * 128 * h + heads * h
    experts = 513 * 3 * h * 768 + 512 * h
    with_module, without = (llmcalc.params("ling-3.0-flash", with_mtp=included).total for included in (True, False))
    assert with_module - without == 2 * h * h + 5 * h + attention + experts


def test_presets_without_the_encoders_of_their_model_say_so() -> None:
    for name in ("inkling", "mimo-v2.5"):
        preset = load_preset(name)
        assert any("encoder" in note for note in preset.notes), name
        assert not preset.model.towers, name


def test_the_index_of_minimax_m3_has_its_encoder_and_one_module_of_prediction():
    """Its `total_size`: bfloat16, but float32 routers of 57 layers and a module, score corrections, and patches."""
    total = llmcalc.params("minimax-m3", with_mtp=True, with_towers=True).total
    routers, score_corrections, patches = 58 * 128 * 6144, 58 * 128, 1280 * 3 * 2 * 14 * 14
    assert 2 * total + 2 * (routers + patches) + 4 * score_corrections == 869_157_697_024


def test_the_hub_total_of_deepseek_v3():
    """Main weights, float8 scales, and an MTP module with its own embedding, head and score corrections."""
    count = params(load_preset("deepseek-v3").model)
    assert (count.total, count.buffers) == (671_026_404_352, 58 * 256)
    assert count.total + count.buffers == 671_026_419_200
    module = count.left_out["mtp"] + 256 + 2 * 129280 * 7168
    assert module == 13_463_426_304
    assert 671_026_419_200 + module + 41_540_496 == 684_531_386_000


def test_published_active_counts_of_gpt_oss_leave_out_the_embedding():
    for name, active in (
        ("gpt-oss-20b", 3_608_307_264),
        ("gpt-oss-120b", 5_132_849_472),
    ):  # 3.61B and 5.13B in the model card
        assert params(load_preset(name).model).active - 201088 * 2880 == active


def test_names_and_aliases_are_unique():
    owners: dict[str, set[str]] = {}
    for name in NAMES:
        for spelling in (name, *load_preset(name).aliases):
            owners.setdefault(normalized_with_points(spelling), set()).add(name)
    assert {spelling: names for spelling, names in owners.items() if len(names) > 1} == {}


def test_every_alias_finds_its_preset():
    assert names_by_alias() == {
        normalized(alias): name for name in reversed(NAMES) for alias in load_preset(name).aliases
    }
    assert all(find_preset(alias) == name for name in NAMES[::20] for alias in load_preset(name).aliases)


def test_models_that_the_documentation_lists_without_a_preset_have_none() -> None:
    pages = Path(__file__).parents[2] / "docs"
    section = (pages / "families.md").read_text(encoding="utf-8").partition("## Models without a preset")[2]
    hub_ids = re.findall("`([^`/]+/[^`]+)`", section.partition("\n- ")[2])
    assert len(hub_ids) > 10
    assert [hub_id for hub_id in hub_ids if find_preset(hub_id) is not None] == []


def test_tags_of_ollama_with_a_size_alone_find_their_presets() -> None:
    for tag, name in (
        ("qwen3:30b", "qwen3-30b-a3b-2507"),  # has the id of 30b-a3b-thinking-2507-q4_K_M, as 4b and 235b of theirs
        ("qwen3:4b", "qwen3-4b-2507"),
        ("qwen3:32b", "qwen3-32b"),
        ("magistral:24b", "mistral-small-24b-2501"),  # Magistral-Small-2506, which has no encoder
        ("command-r:35b", "command-r-08-2024"),  # the id of 35b-08-2024-q4_0
        ("deepseek-v2:latest", "deepseek-v2-lite"),
        ("mistral:v0.2", "mistral-7b-v0.2"),
        ("qwen:14b", "qwen1.5-14b"),
        ("mistral-small:24b", "mistral-small-24b-2501"),
        ("deepseek-r1:14b", "deepseek-r1-distill-qwen-14b"),
        ("deepseek-r1:671b", "deepseek-r1"),  # registry.ollama.ai/library/deepseek-r1, as the others: a size of its own
        ("deepseek-v2:16b", "deepseek-v2-lite"),
        ("phi4:14b", "phi-4"),
        ("llama4:16x17b", "llama4-scout"),
        ("llama3.2-vision:11b", "llama3.2-11b-vision"),
        ("mistral:7b-instruct", "mistral-7b-v0.3"),
        ("mistral:7b", "mistral-7b-v0.3"),  # ollama.com/library/mistral/tags: 7b has the id of latest
        ("phi3:3.8b", "phi3-mini-128k"),  # ollama.com/library/phi3: 3.8B is Mini, 14B Medium, and both have 128K
        ("phi3:14b", "phi3-medium-128k"),
        ("phi3:mini-4k", "phi3-mini"),
        ("llama3:1b", None),  # and not llama3-1 with the wrong size
        ("qwen2.5:7", None),
    ):
        assert find_preset(tag) == name, tag


def test_a_name_of_ollamas_library_without_a_size_is_its_tag_latest() -> None:
    """README.md of Ollama, "Model library": `ollama run llama3.2` is 3B, `llama3.3` 70B, `gemma3` 4B, `mistral` 7B.

    deepseek-r1:latest and qwen3:latest have 5.2 GB, the first with the id 6995872bfe4c of deepseek-r1:8b.
    """
    for name, preset_name in (
        ("llama3.2", "llama3.2-3b"),
        ("llama3.2:latest", "llama3.2-3b"),
        ("Llama3.3:latest", "llama3.3-70b"),
        ("gemma3", "gemma3-4b"),
        ("mistral:latest", "mistral-7b-v0.3"),
        ("qwen3:latest", "qwen3-8b"),
        ("deepseek-r1:latest", "deepseek-r1-0528-qwen3-8b"),
        ("deepseek-r1", "deepseek-r1"),  # a preset's own name
        ("devstral:latest", "devstral-small-24b"),
        ("phi4", "phi-4"),
        ("phi3:mini", "phi3-mini-128k"),
        ("phi3:medium", "phi3-medium-128k"),
        ("llama4:scout", "llama4-scout"),
        ("granite3.3", "granite-3.3-8b"),
        ("granite4:tiny-h", "granite-4.0-h-tiny"),
        ("smollm2", "smollm2-1.7b"),
        ("no-such-model:latest", None),
        ("no-such-model:mini", None),
    ):
        assert find_preset(name) == preset_name, name
        assert is_library_tag(name) == (preset_name is not None and name not in ("deepseek-r1", "phi4")), name
    assert all(preset in NAMES for library_name in LIBRARY_NAMES.values() for preset in library_name.presets.values())


LIBRARY_LISTING = Path(__file__).parents[1] / "data" / "ollama_library.txt"
"""Tags of Ollama's library without a format, with the sizes, formats and contexts of their files."""

OTHER_SIZES = {
    "qwen:0.5b": "the tied head once more, as the next",
    "qwen3:0.6b": "",
    "qwen3:1.7b": "",
    "gemma:2b": "its embeddings in Q8_0",
    "llama-guard3:1b": "an untied head",
    "cogito:3b": "its head once more, in more bits",
    "muse-glimmer": "an encoder in 4 bits",
    "bge-m3": "beside the tensors its vocabulary, as the next",
    "snowflake-arctic-embed2": "",
    "functiongemma": "",
}
"""Tags whose files differ by more than 5 % from the tensors that llama-quantize makes: what they have."""


def listed_tags() -> dict[str, tuple[str, float, str, float]]:
    """Returns tag → tag, bytes of its files, scheme (`-` if unknown) and context (nan if unknown), as listed."""
    units = {"K": 2**10, "M": 2**20, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    rows = [line.split() for line in LIBRARY_LISTING.read_text(encoding="utf-8").splitlines() if line[0] != "#"]

    def number(text: str) -> float:
        digits = text.rstrip("KMGTB")
        return float("nan") if text == "None" else float(digits) * units.get(text[len(digits) :], 1)

    return {tag: (tag, number(size), scheme, number(context)) for tag, size, scheme, context in rows}


def test_tags_without_a_format_have_the_format_and_context_that_the_library_lists() -> None:
    """Formats are those of the tags with the same id; contexts are rounded."""
    for tag, _, scheme, context in listed_tags().values():
        tagged_checkpoint = checkpoint_of_tag(tag)
        assert scheme in ("-", USUAL_SCHEME if tagged_checkpoint is None else tagged_checkpoint[1]), tag
        if not isnan(context):
            assert longest_sequence(load(tag).model) == pytest.approx(context, rel=0.03), tag


@pytest.mark.parametrize(
    ("tag", "context"),
    [
        ("codellama:70b-instruct-q4_K_M", 2048),
        ("codellama:70b-code-q4_0", 16_384),
        ("granite4:tiny-h-q4_K_M", 2**20),
        ("granite-code:3b-instruct-q4_0", 2048),  # 3b has the id of 3b-instruct-128k-q4_0
        ("granite-code:3b-instruct", 128_000),
        ("granite-code:8b-base", 4096),
        ("mistral:7b-text-q4_0", 32_768),
        ("glm4:9b-chat-q8_0", 131_072),
        ("glm4:9b-text-fp16", 8192),
        ("nemotron-3-nano:30b-a3b-q8_0", 2**20),
        ("qwen2-math:7b-instruct-q8_0", 4096),
        ("deepseek-coder-v2:236b-instruct-q8_0", 4096),
        ("llama3.1:8b-instruct-q4_K_M", 131_072),
    ],
)
def test_a_tag_with_a_format_has_the_context_of_its_file(tag: str, context: int) -> None:
    """The contexts in data/models.json, the source of `sources/library_tags.py`."""
    assert longest_sequence(load(tag).model) == context


def causes_of_size(listed_tag: tuple[str, float, str, float]) -> list[str]:
    """Returns the format, whether it is a mixture, and names of models with encoders or tensors of 16 bits."""
    tag, _, scheme, _ = listed_tag
    return [scheme, "mixture" if re.search(":[0-9]+x|-a[0-9]|oss", tag) else "", *re.findall("vl|gemma[34]n?", tag)]


@pytest.mark.parametrize("listed_tag", sampled(listed_tags(), causes_of_size))
def test_tags_without_a_format_have_the_bytes_that_the_library_lists(listed_tag: tuple[str, float, str, float]) -> None:
    tag, listed_bytes, _, _ = listed_tag
    if tag.startswith(tuple(OTHER_SIZES)):
        return
    preset, tagged_checkpoint = load(tag), checkpoint_of_tag(tag)
    scheme = USUAL_SCHEME if tagged_checkpoint is None else tagged_checkpoint[1]
    published = (preset.quantization_config or {}).get("quant_method")
    model = GgufModel.from_quantize_flag(preset, None if published == "mxfp4" else scheme, is_library_file=True)
    assert model.file_bytes + encoder_bytes(tag_flags(preset), preset) == pytest.approx(listed_bytes, rel=0.05)


def test_tags_whose_files_have_more_bits_are_counted_by_their_size() -> None:
    """The sizes are the listed ones, and more than 5 % above the bytes of the tag's scheme."""
    for tag, gigabytes in LARGER_FILES.items():
        assert listed_tags()[tag][1] == gigabytes * 1e9
        file_bytes, scheme_bytes = (
            GgufModel.from_quantize_flag(load(tag), USUAL_SCHEME, is_library_file=is_library_file).file_bytes
            + encoder_bytes(tag_flags(load(tag)), load(tag))
            for is_library_file in (True, False)
        )
        assert 1.05 * scheme_bytes < file_bytes == pytest.approx(gigabytes * 1e9, rel=1e-6), tag
    shortened = load("phi4-reasoning:14b?num_hidden_layers=2")
    assert not GgufModel.from_quantize_flag(shortened, USUAL_SCHEME, is_library_file=True).listed_bytes
    fit_answer = llmcalc.fit("phi4-reasoning:14b", hardware="rtx-3060", seq=8192)
    assert fit_answer.result.fit.verdict == "no"  # 10.38 of 11.75 GiB in q4_k_m
    assert larger_file_gigabytes("phi4-reasoning:latest") == larger_file_gigabytes("Phi4-Reasoning:14b") == 11
    assert larger_file_gigabytes("phi4-reasoning:14b-q8_0") is larger_file_gigabytes("qwen3:8b") is None
    size_note = (
        "Ollama's file of this tag has 11 GB, with tensors in more bits than q4_k_m has; the buffers of llama.cpp and "
        "Ollama are counted with its size, other figures without it"
    )
    assert size_note in gguf_tag_notes(load("phi4-reasoning:14b"), "q4_k_m")
    assert size_note not in gguf_tag_notes(load("phi4-reasoning:14b"), "q8_0")
    for engine in ("ollama", "llama.cpp"):
        answer = llmcalc.memory("phi4-reasoning:14b", engine=engine, hardware="rtx-3090")
        assert size_note in answer.document["notes"]


def test_tags_of_ollama_state_their_format() -> None:
    for tag, name_and_scheme in (
        ("llama3.2:3b-instruct-q8_0", ("llama3.2-3b", "q8_0")),
        ("qwen3:30b-a3b-instruct-2507-q4_K_M", ("qwen3-30b-a3b-2507", "q4_k_m")),
        ("gemma3:4b-it-qat", ("gemma3-4b", "q4_0")),
        ("llama3.1:8b-instruct-fp16", ("llama3.1-8b", "none")),
        ("glm-4.7-flash:q4_K_M", ("glm-4.7-flash", "q4_k_m")),
        ("llama3.2:3b-instruct-q8_0?num_hidden_layers=20", ("llama3.2-3b", "q8_0")),
        ("qwen3:8b", None),
        ("qwen3:8b-fp8", None),
        ("unsloth/Qwen3-8B-GGUF:Q8_0", ("qwen3-8b", "q8_0")),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", ("llama3.2-3b", "q4_k_m")),
        ("bartowski/Llama-3.2-3B-Instruct-GGUF", ("llama3.2-3b", "q4_k_m")),
        ("ggml-org/gpt-oss-20b-GGUF", ("gpt-oss-20b", "mxfp4-moe")),
        ("mradermacher/Qwen3-8B-i1-GGUF:IQ4_XS", ("qwen3-8b", "iq4_xs")),
        ("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", None),  # types of its own
        ("Qwen3-8B-GGUF:Q8_0", None),
        ("lmstudio-community/gemma-3-12b-it-GGUF@Q4_K_M", ("gemma3-12b", "q4_k_m")),
        ("unsloth/Qwen3-8B", None),
        ("unsloth/Qwen3-8B@main", None),
    ):
        checkpoint = checkpoint_of_tag(tag)
        assert (checkpoint and (checkpoint[0].name, checkpoint[1])) == name_and_scheme, tag


class TestSearch:
    def test_nothing_means_all(self):
        assert search_presets([]) == (list(NAMES), False)

    def test_a_full_name_means_that_one(self):
        assert search_presets(["GPT-2"]) == (["gpt2"], True)

    def test_a_hub_id_means_that_one(self):
        assert search_presets(["openai/gpt-oss-20b"]) == (["gpt-oss-20b"], True)

    def test_a_tag_with_a_format_means_its_model(self):
        assert search_presets(["gemma3:4b-it-qat", "phi3:mini"]) == (["gemma3-4b", "phi3-mini-128k"], True)

    def test_a_part_means_all_that_have_it(self):
        assert search_presets(["gpt-oss"]) == (["gpt-oss-120b", "gpt-oss-20b"], False)

    def test_case_and_punctuation_do_not_matter(self):
        assert search_presets(["MIXTRAL 8"])[0] == ["mixtral-8x22b", "mixtral-8x22b-instruct", "mixtral-8x7b"]

    def test_several_are_joined(self):
        assert search_presets(["gpt-oss", "kimi-k2"]) == (["gpt-oss-120b", "gpt-oss-20b", "kimi-k2"], False)

    def test_an_unknown_one_gets_suggestions(self):
        with pytest.raises(InputError, match=r"no preset has 'mixtrl' in its name\. Did you mean mixtral"):
            search_presets(["mixtrl"])

    @pytest.mark.parametrize("text", ["", "--", "?"])
    def test_nothing_but_punctuation_finds_nothing(self, text):
        with pytest.raises(InputError, match="no preset has"):
            search_presets([text])


def test_the_list_fits_80_columns(run):
    code, out, err = run("presets")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert [line.split()[0] for line in out.splitlines() if line.split() and line.split()[0] in NAMES] == list(NAMES)


def test_one_preset_in_full(run):
    code, out, _ = run("presets", "deepseek-v3")
    flat = " ".join(out.split())
    assert code == 0
    assert "671,026,419,200" in flat
    assert "also called: deepseek-ai/DeepSeek-V3" in flat
    assert "source of paper: https://arxiv.org/abs/2412.19437 (checked 2026-11-21)" in flat
    assert "weight decay 0.1" in flat


def test_details_of_a_list(run):
    _, short, _ = run("presets", "gpt-oss")
    _, long, _ = run("presets", "gpt-oss", "--details")
    assert "source of" not in short
    assert long.count("source of config") == 2


def test_json(run):
    code, out, _ = run("presets", "mixtral-8x7b", "--format", "json")
    (mixtral,) = json.loads(out)["presets"]
    assert code == 0
    assert mixtral["name"] == "mixtral-8x7b"
    assert mixtral["kind"] == "decoder"
    assert mixtral["parameters"]["total"] == mixtral["published"]["parameters"] == 46_702_792_704
    assert "mistralai/Mixtral-8x7B-v0.1" in mixtral["aliases"]
    assert mixtral["sources"][0].keys() == {"url", "gives", "checked", "revision"}


def test_a_mistyped_name_exits_with_2(run):
    assert run("presets", "mixtrl").error.startswith("error: no preset has 'mixtrl'")


def test_stale_presets_are_those_that_nobody_checked_lately():
    """A preset is stale without a date, and on the 181st day after the last one."""
    checked = load_preset("qwen2.5-vl-7b").checked_date
    assert checked == date(2026, 11, 22)
    fresh, stale = checked + timedelta(days=180), checked + timedelta(days=181)
    listed = ask_presets(["qwen2.5-vl"], only_stale=True, today=stale)
    assert "qwen2.5-vl-7b" in [preset.name for preset, _ in listed.result]
    unchecked = [name for name in NAMES if load_preset(name).checked_date is None]
    every = [preset.name for preset, _ in ask_presets(only_stale=True, today=fresh).result]
    assert set(unchecked) <= set(every) < set(NAMES)
    assert "qwen2.5-vl-7b" not in every
    with pytest.raises(InputError, match="--stale: every preset was checked within 180 days"):
        ask_presets(["qwen2.5-vl-7b"], only_stale=True, today=fresh)


def test_titles_and_aliases_are_read_without_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search reads the start of every file, which has the same title and aliases as the whole file."""
    names = model_names()[::60]
    descriptions = {name: read_preset(name) for name in names}
    monkeypatch.setattr(presets, "read_preset", None)
    for name, description in descriptions.items():
        assert title_and_aliases.__wrapped__(name) == (description["title"], tuple(description.get("aliases", ())))
