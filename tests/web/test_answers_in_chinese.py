"""Sentences of llmcalc's answers on the page in Chinese: `zh_answers.json` has their forms."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from functools import cache
from typing import Any

import pytest

from llmcalc.parallel import layout_search
from llmcalc.reports.serve import UNCOUNTED_EFFECTS
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.studies.cost import UNCOUNTED_COSTS as COST_NOT_COUNTED
from llmcalc.studies.layout_order import TOO_MUCH_MEMORY, UNTRIED_REASON

from .loading import ROOT, WEB, Open, bridge, draw_all, inaccessible
from .test_links import node

CLASSES = ROOT / "presets" / "timing" / "classes.toml"
FILE = WEB / "src" / "zh_answers.json"
TABLE: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
VALUE = re.compile(r"\{\d\}")

NAMES = re.compile(
    r"--[\w-]+( [\w:+.,-]+)?|'[^']*'|\b(num_\w+|[a-z]+_[a-z_]+|max_position_embeddings)\b|torch\.compile[\w ]*|hub id"
    r"|\(text model\)|vllm serve|python -m|trtllm-serve"
)
"""What is the same in every language: options, quoted values, names of fields."""

ENGLISH = re.compile(r"\b[a-z]{3,} [a-z]{2,}\b")
"""Two words of English side by side."""

SERVED = {"concurrency": 16, "input": 1024, "output": 256}
LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"seq": 2048}, {"tp": 3, "framework": "megatron"}),
    ({"seq": 2048}, {"tp": 2, "pp": 5, "framework": "megatron"}),
    ({"seq": 2048}, {"tp": 2, "framework": "torch", "zero": 3}),
    ({"seq": 2048}, {"tp": 2, "framework": "deepspeed"}),
    ({"seq": 2048}, {"dp": 2, "zero": 2, "ep": 4, "framework": "megatron"}),
    ({"seq": 2048, "num_microbatches": 3}, {"pp": 2, "vpp": 2, "framework": "megatron"}),
    ({"seq": 2048}, {"vpp": 2, "framework": "megatron"}),
    ({"seq": 2049}, {"cp": 2, "framework": "megatron"}),
    ({"seq": 2048, "optimizer": "adafactor"}, {"dp": 2, "framework": "megatron"}),
]
"""Layouts, most of which are refused."""


def in_chinese(sentences: list[str]) -> dict[str, str]:
    """Sentence → the page's."""
    program = f"""
        import {{ translator }} from "#translator.js";
        const said = translator(JSON.parse(readFileSync({json.dumps(str(FILE))}, "utf8")));
        console.log(JSON.stringify(given.map(said)));"""
    return dict(zip(sentences, json.loads(node(program, json.dumps(sentences))), strict=True))


def left(sentences: set[str]) -> dict[str, str]:
    """Those that the page still says in English, with what it says."""
    translations = in_chinese(sorted(sentences))
    return {
        text: translation
        for text, translation in translations.items()
        if translation == text or ENGLISH.search(NAMES.sub("", translation))
    }


@cache
def published_notes() -> frozenset[str]:
    """Why counts of presets differ from the published ones, as the page shows it."""
    notes = {load_preset(name).published.parameters_note or "" for name in model_names()}
    return frozenset(note.partition("; ")[0] for note in notes if note)


def ask(call: str, **request: Any) -> tuple[dict[str, Any] | None, set[str]]:
    """The result of a question, and the error."""
    answer = json.loads(bridge().call(call, json.dumps(request)))
    return answer.get("result"), {answer["error"]} if "error" in answer else set()


def answered(model: str) -> set[str]:
    """Sentences of the panels that every model has: the headline's notes, the cards, memory and other shapes."""
    settings = {**bridge().DEFAULTS, "ctx": 65536}
    result, sentences = ask("answer", model=model, **settings)
    assert result is not None
    sentences |= {note for note in result["params"]["notes"] if note.startswith("published as")}
    sentences |= {result[name]["error"] for name in ("kv", "flops") if "error" in result[name]}
    for weights, kv in (("nf4", "fp8"), ("q4_k_m", "int4")):
        sentences |= ask("memory", model=model, **{**settings, "weights": weights, "kv": kv})[1]
    result, errors = ask("shape", model=model, **settings)
    sentences |= {error.removeprefix("shape: ") for error in errors}
    if result is not None:
        cells = {cell for row in result["table"]["rows"] for cell in row["cells"]}
        sentences |= {cell for cell in cells if re.search("[a-z]{4}", cell)}
        sentences |= {*result["table"]["notes"]} | {text for text in result["table"]["head"] if "," in text}
    return sentences


@pytest.mark.parametrize("model", ["llama3-8b", "bert-base", "t5-small", "mamba2-2.7b", "deepseek-v2-lite", "gpt2"])
def test_sentences_of_a_model_are_in_chinese(model: str) -> None:
    assert left(answered(model)) == {}


def test_sentences_of_servers_and_costs_are_in_chinese() -> None:
    sentences: set[str] = set()
    for hardware, more in (("h100-sxm", {"price": 2.5}), ("rtx-4090", {"tpot": 1})):
        result, errors = ask("serve", model="qwen3-0.6b", options={"hardware": hardware, **SERVED, **more})
        assert result is not None, errors
        sentences |= {*result["serve"]["notes"], *result["serve"]["why_not"]}
    for more in ({"price": 2.5}, {}):
        options = {"hardware": "h100-sxm", "devices": 8, "tokens": "300B", **more}
        result, errors = ask("cost", model="qwen3-0.6b", options=options)
        assert result is not None, errors
        sentences |= {*result["cost"]["notes"]}
    assert left(sentences) == {}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("gpt-oss-20b", {"quantize": "awq-int4-g128"}),
    ("lfm2-24b-a2b", {"engine": "tensorrt-llm"}),
    ("mamba2-2.7b", {}),
    ("bert-base", {}),
    ("deepseek-v4.1-flash", {}),
    ("whisper-large-v2", {"engine": "sglang"}),
    ("qwen3-0.6b", {"hardware": "tpu-v5e"}),
    ("qwen3-0.6b", {"hardware": "mi300x", "engine": "tensorrt-llm"}),
    ("qwen3-0.6b", {"engine": "tensorrt-llm", "kv_dtype": "fp8", "concurrency": 10**6}),
    ("pythia-1b", {"input": 4096, "hardware": "l4"}),
    ("deepseek-v3", {"hardware": "rtx-4090", "devices": 8}),
]
"""Servers that are refused, and those with reasons or warnings."""


def test_refused_servers_and_runs_are_in_chinese() -> None:
    sentences: set[str] = set()
    for model, more in REFUSED:
        result, errors = ask("serve", model=model, options={"hardware": "h100-sxm", **SERVED, **more})
        sentences |= errors
        sentences |= set() if result is None else {*result["serve"]["notes"], *result["serve"]["why_not"]}
    for model in ("jamba-v0.1", "bloom-7b1", "gpt-oss-20b", "glm-4.6", "zamba2-7b"):
        sentences |= ask("cost", model=model, options={"hardware": "h100-sxm", "devices": 1, "tokens": "1T"})[1]
    lora = {"seq": 512, "lora_rank": 16, "base": "nf4", "recompute": "full"}
    sentences |= ask("training", model="deepseek-v3.2", settings={**lora, "lora_targets": "v_proj"})[1]
    sentences |= ask("memory", model="deepseek-v4.1-flash", ctx=8192, batch=1, weights="bf16", kv="bf16")[1]
    sentences |= ask("shape", model="deepseek-v4.1-flash", ctx=8192, kv="bf16")[1]
    for model in ("bert-base", "t5-11b"):
        layout = {"framework": "megatron", "tp": 2, "dp": 8}
        sentences |= ask("cluster", model=model, settings={"seq": 512}, layout=layout)[1]
    assert len(sentences) > len(REFUSED)
    assert left(sentences) == {}


def test_refused_layouts_are_in_chinese() -> None:
    sentences: set[str] = set()
    for settings, layout in LAYOUTS:
        sentences |= ask("cluster", model="qwen3-0.6b", settings=settings, layout=layout)[1]
    assert len(sentences) > len(LAYOUTS) // 2
    impossible: tuple[dict[str, Any], ...] = {"tp": 3}, {"pp": 40}, {"dp": 8, "framework": "fsdp2"}
    for layout in impossible:
        plan = {"settings": {"seq": 2048}, "layout": {"devices": 8 if "pp" not in layout else 40, **layout}}
        request = {"hardware": "h100-sxm", "rows": 4, "global_batch": 5 if "dp" in layout else None}
        _, errors = ask("plan", model="qwen3-0.6b", **plan, **request)
        assert errors, layout
        sentences |= errors
    assert left({sentence.partition("; nearest layouts")[0] for sentence in sentences}) == {}


def test_fixed_sentences_are_in_chinese() -> None:
    reasons = {
        layout_search.UNDIVIDED_HEADS,
        layout_search.UNDIVIDED_WIDTHS,
        layout_search.TOO_MANY_STAGES,
        layout_search.UNDIVIDED_BATCH,
        layout_search.UNDIVIDED_EXPERTS,
        layout_search.UNEVEN_ROUNDS,
        layout_search.UNDIVIDED_SEQUENCE,
    }
    counted = {*UNCOUNTED_EFFECTS, *(part for parts in COST_NOT_COUNTED.values() for part in parts)}
    classes = {row["words"] for row in tomllib.loads(CLASSES.read_text(encoding="utf-8"))["classes"]}
    assert left({*reasons, TOO_MUCH_MEMORY, UNTRIED_REASON, *counted, *classes, *published_notes()}) == {}


def test_what_somebody_types_wrongly_is_in_chinese() -> None:
    texts = ["lama3-8b", "qqqqqq", "llama3-8b?hidden_sise=1", "llama3-8b?num_hidden_layers=0", "llama3-8b,gpt2", "h100"]
    assert left(set().union(*(ask("find", text=text)[1] for text in texts))) == {}


def test_a_sentence_that_has_no_form_stays() -> None:
    sentences = ["a sentence that nobody writes", "a: b", "", "x; expected y", "not counted: failures, zebras"]
    sentences.append("energy: 9 W of each accelerator (its TDP, or --power), without hosts, network, cooling")
    assert list(in_chinese(sentences).values()) == [
        "a sentence that nobody writes",
        "a: b",
        "",
        "x；应为 y",
        "未计入：故障，zebras",
        "电量：每张加速卡 9 W（TDP 或 --power），不含主机、网络、散热",
    ]


def test_a_form_has_the_same_values_in_both_languages() -> None:
    for english, chinese in TABLE.items():
        assert sorted(VALUE.findall(english)) == sorted(VALUE.findall(chinese)), english
        assert chinese.strip()


def test_every_form_is_of_a_sentence_in_the_package() -> None:
    """Most of its words stand side by side in the code or in the presets; values and ends of lines may part them."""
    files = [*(ROOT / "llmcalc").rglob("*.py"), *(ROOT / "presets").rglob("*.toml")]
    text = " ".join(file.read_text(encoding="utf-8") for file in files)
    written = set(words_side_by_side(re.sub(r"\{[^}\n]*\}|\bf\"", " ", text)))
    for template in TABLE:
        pairs = [pair for piece in VALUE.split(template) for pair in words_side_by_side(piece)]
        assert sum(pair in written for pair in pairs) >= 0.75 * len(pairs), template


def words_side_by_side(text: str) -> list[tuple[str, str]]:
    return list(itertools.pairwise(re.findall(r"[A-Za-z]+", text)))


@pytest.mark.browser
def test_notes_and_errors_of_the_page_are_in_chinese(visit: Open) -> None:
    page = visit("zh/#m=bert-base")
    page.locator("#shape").scroll_into_view_if_needed()
    page.wait_for_selector("#shape .warning")
    assert "只支持解码器，而这个模型是编码器；请选择解码器模型" in page.inner_text("#shape .warning")
    page.fill("#add", "lama3-8b")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem").startswith("没有名为 'lama3-8b' 的预设、文件或 hub id。您是不是想用 ")


TEXTS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  const names = "code, #architecture, #treemap, #models, .chip, h1, svg .name, script";
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(names)) found.push(walker.currentNode.data);
  return found;
}"""
"""What the page writes, without names of modules and models."""


@pytest.mark.browser
@pytest.mark.parametrize(
    ("link", "schemes"),
    [
        pytest.param("m=llama3-8b&s.price=2&c.price=2", ["light"], id="answered"),
        pytest.param("m=bert-base", ["light", "dark"], id="refused"),
        pytest.param("m=gemma3-4b", [], id="two kinds of layers"),
    ],
)
def test_all_panels_are_in_chinese(link: str, schemes: list[str], visit: Open) -> None:
    """schemes: in which colours axe-core looks at panels that test_page.py has not, or not in Chinese."""
    page = visit(f"zh/#{link}")
    draw_all(page)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    texts = {NAMES.sub("", text) for text in page.evaluate(TEXTS)}
    assert {text for text in texts if ENGLISH.search(text)} == set()
    assert inaccessible(page, schemes) == {}
