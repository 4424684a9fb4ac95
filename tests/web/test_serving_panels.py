"""The panels on servers under load and on the cost of a training run.

The tests of what Python answers need no browser (5 s). The others are marked, as those of `test_page.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Question
from .loading import Open, until
from .test_bridge import ask, printed
from .test_memory_panels import seen, shown

SERVERS: list[tuple[str, dict[str, Any]]] = [
    ("llama3-8b", {"hardware": "h100-sxm", "concurrency": 64, "input": 4096, "output": 1024, "tpot": 30, "price": 2.5}),
    ("deepseek-v2-lite", {"hardware": "h200", "concurrency": 32, "input": 2048, "output": 512, "devices": 2}),
    (
        "qwen3-8b",
        {"hardware": "h100-sxm", "engine": "sglang", "quantize": "fp8-dynamic", "kv_dtype": "fp8", "devices": 2}
        | {"concurrency": 16, "input": 1024, "output": 256},
    ),
    (
        "qwen3-8b",
        {"hardware": "h100-sxm", "engine": "tensorrt-llm", "concurrency": 16, "input": 1024, "output": 256},
    ),
]
COST: dict[str, Any] = {"hardware": "h100-sxm", "devices": 64, "tokens": "1T", "price": 2.5}

QUESTIONS: list[Question] = [
    *(("serve", {"model": model, "options": options}) for model, options in SERVERS),
    ("cost", {"model": "llama3-8b", "options": COST}),
]


def words(options: dict[str, Any]) -> list[str]:
    """Settings as options; the page's limit of a token's time is in milliseconds."""
    texts = {name: f"{value}ms" if name == "tpot" else str(value) for name, value in options.items()}
    return [word for name, value in texts.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize(
    ("model", "options"),
    SERVERS[:3],
    ids=["dense", "experts", "engine and formats"],
)
def test_servers_are_those_of_the_command(model: str, options: dict[str, Any], run: Any) -> None:
    assert ask("serve", model=model, options=options)["serve"] == printed(run, "serve", model, *words(options))


def test_a_cost_is_that_of_the_command(run: Any) -> None:
    assert ask("cost", model="llama3-8b", options=COST)["cost"] == printed(run, "cost", "llama3-8b", *words(COST))


# --- in the browser ---------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_answers_are_cpythons_byte_for_byte(same: Callable[[list[Question]], None]) -> None:
    same(QUESTIONS)


@pytest.mark.browser
def test_servers_and_their_load(visit: Open, run: Any) -> None:
    page = visit("#m=llama3-8b&s.price=2.5")
    seen(page, "serve")
    shown(page, run, "serve")
    page.click("#serve .on-demand > summary")
    found = page.evaluate("window.llmcalc.serve")
    chosen = found["chosen"]
    assert f"{chosen['devices']} × h100-sxm" in page.inner_text("#serve .said")
    assert page.locator("#serve .plan tbody tr").count() == min(8, len(found["servers"]))
    assert page.locator("#serve .plan .worst").count() == 1
    front, load = page.locator("#serve .course").all()
    assert load.locator(".dot").count() == len(found["servers"][chosen["server"]]["curve"])
    on_front = {point["server"] for point in found["front"]}
    assert front.locator(".line").count() == min(len(on_front), 6)
    assert f"{chosen['concurrency']} users" in page.locator("#serve .readout").first.inner_text()
    prompt = page.get_by_label("Tokens in")
    expected = "expected a whole number from 1 to 4,194,304"
    for typed, kept, message in (
        ("abc", "4096", f"abc: {expected}"),
        ("1,5", "4096", f"1,5: {expected}"),
        ("2k", "2048", ""),
    ):
        prompt.fill(typed)
        prompt.press("Enter")
        assert prompt.input_value() == kept
        assert prompt.evaluate("field => field.validationMessage") == message
    page.get_by_label("Most ms per token").fill("1")
    page.get_by_label("Most ms per token").press("Enter")
    until(page, "window.llmcalc.serve.chosen === null")
    assert page.inner_text("#serve .said").startswith("No server keeps the limit")
    assert "s.tpot=1" in page.url


@pytest.mark.browser
def test_an_engine_its_formats_and_the_command_that_starts_it(visit: Open, run: Any) -> None:
    page = visit("#m=llama3.1-70b&s.devices=8")
    seen(page, "serve")
    panel = page.locator("#serve")
    panel.locator("label:has(> span:text-is('Engine')) select").select_option("sglang")
    panel.locator("label:has(> span:text-is('Weights')) select").select_option("fp8-dynamic")
    panel.locator("label:has(> span:text-is('KV cache')) select").select_option("fp8")
    until(
        page, "window.llmcalc.serve.engine.name === 'sglang' && window.llmcalc.serve.chosen?.options.kv_dtype === 'fp8'"
    )
    shown(page, run, "serve")
    page.click("#serve .on-demand > summary")
    chosen = page.evaluate("window.llmcalc.serve.chosen")
    assert chosen["command"].startswith("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B")
    assert {"--quantization fp8", "--kv-cache-dtype fp8_e4m3"} <= set(re.findall(r"--\S+ \S+", chosen["command"]))
    assert " ".join(panel.locator(".launch code").inner_text().split()) == chosen["command"]
    server = page.evaluate("window.llmcalc.serve.servers[window.llmcalc.serve.chosen.server]")
    assert f"{server['kv_tokens'] * server['replicas']:,}" in panel.locator(".worst").inner_text()
    panel.locator("label:has(> span:text-is('Weights')) select").select_option("awq-int4-g128")
    until(page, "window.llmcalc.serve.chosen?.options.quantize === 'awq-int4-g128'")
    until(page, "document.querySelector('#serve .launch') === null")
    assert "give the engine a checkpoint in awq-int4-g128" in panel.inner_text()


@pytest.mark.browser
def test_the_cost_of_a_run(visit: Open, run: Any) -> None:
    page = visit("#m=llama3-8b&c.tokens=300B&c.price=2")
    seen(page, "cost")
    shown(page, run, "cost")
    assert page.evaluate("window.llmcalc.cost.tokens") == 300 * 10**9
    assert page.locator("#cost .figure").count() == 3  # the days are the headline


@pytest.mark.browser
def test_servers_and_training_stand_first_with_their_answers(visit: Open) -> None:
    page = visit("#m=llama3-8b")
    tops = [page.locator(place).bounding_box()["y"] for place in ("#hero", "#serve", "#cost", "#cards", "#treemap")]
    assert tops == sorted(tops)
    for panel in ("serve", "cost"):
        page.wait_for_selector(f"#{panel} .said")
        answer, controls = (page.locator(f"#{panel} {place}").bounding_box() for place in (".answer", ".settings"))
        assert answer["x"] + answer["width"] <= controls["x"]  # beside it
        assert page.get_attribute(f"#{panel} .on-demand", "open") is None


@pytest.mark.browser
def test_more_devices_are_offered_where_a_run_has_no_room(visit: Open) -> None:
    page = visit("#m=llama3.1-70b&c.devices=4&c.hardware=rtx-4090")
    page.wait_for_selector("#cost .error")
    page.click("#cost .offer >> nth=1")
    until(page, "window.llmcalc.cost?.devices === 64")
    assert "c.devices=64" not in page.url  # the page's own number
    page.wait_for_selector("#cost .said")


@pytest.mark.browser
def test_a_run_without_room_on_the_first_devices_is_answered_on_more(visit: Open) -> None:
    page = visit("#m=deepseek-v3")
    seen(page, "cost")
    until(page, "window.llmcalc.cost?.devices === 256")
    assert "begins with 64 devices, which have no room" in page.inner_text("#cost .instead")
    assert page.locator("#cost .error").count() == 0
    assert page.locator("#cost").get_by_label("Devices").input_value() == "256"
    page.locator("#chips ~ input").fill("gpt2")
    page.locator("#chips ~ input").press("Enter")
    until(page, "window.llmcalc.cost.devices === 64")
    assert page.locator("#cost .instead").count() == 0


@pytest.mark.browser
def test_where_there_is_no_server_the_page_leads_on(visit: Open) -> None:
    page = visit("#m=mamba2-2.7b")
    page.wait_for_selector("#serve .error")
    page.wait_for_selector("#serve .offer:has-text('Memory on one accelerator')")
    page.locator("#serve").get_by_label("Engine").select_option("sglang")
    page.wait_for_selector("#serve .offer:has-text('Engine: vLLM')")
    page = visit("#m=gpt2&s.tpot=1")
    page.wait_for_selector("#serve .said:has-text('No server keeps the limit')")
    page.click("#serve .offer:has-text('Count with 768 + 256 tokens')")
    until(page, "window.llmcalc.serve.requests.input === 768")
    page.click("#serve .offer:has-text('Most ms per token: none')")
    until(page, "window.llmcalc.serve.chosen !== null")
    assert page.locator("#serve .error").count() == 0
