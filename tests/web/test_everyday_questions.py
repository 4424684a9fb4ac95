"""Everyday questions that somebody answers on the page without reading its documentation: each is a function that
clicks and types, and then reads what the command line says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import llmcalc

from .loading import PATIENCE, Open, settled, until
from .test_bridge import CONFIG
from .test_memory_panels import seen

pytestmark = pytest.mark.browser

GIB = 2**30

PASTE = """text => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text", text);
  const paste = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
  document.getElementById("add").dispatchEvent(paste);
}"""


def add(page: Any, words: str, title: str) -> None:
    """Types words into the box, and takes the first model of the list, whose title begins with that."""
    page.fill("#add", words)
    until(page, "title => document.querySelector('#models li b')?.textContent.startsWith(title)", title)
    page.locator("#models li").first.click()
    until(page, "title => document.querySelector('.chip.on').textContent.includes(title)", title)
    settled(page)


def card(page: Any, name: str) -> str:
    """What the card of that name says."""
    return str(page.locator(".card", has=page.locator("small", has_text=name)).inner_text())


def room(page: Any, panel: str, accelerator: str) -> str:
    """What a panel says of the room on an accelerator."""
    rows = page.locator(f"#{panel} .fits li")
    return str(rows.filter(has=page.locator("span", has_text=accelerator)).first.locator("span").last.inner_text())


def how_many_parameters(page: Any) -> None:
    add(page, "gemma 3 27b", "Gemma 3 27B")
    assert page.inner_text("#total") == f"{llmcalc.params('gemma3-27b').total:,}"
    assert "published" in page.inner_text("#hero")


def how_many_a_token_uses(page: Any) -> None:
    add(page, "deepseek-v3", "DeepSeek-V3")
    page.locator("#chips .drop").first.click()  # one model has cards
    settled(page)
    active = llmcalc.params("deepseek-v3").active
    assert f"a token uses {active / 1e9:.1f} B" in card(page, "Weights")


def how_large_the_cache_gets(page: Any) -> None:
    page.focus("#ctx")
    while page.input_value("#ctx") != "7":
        page.keyboard.press("ArrowRight")
    settled(page)
    cached = llmcalc.kv("llama3-8b", seq=131072).bytes
    assert f"{cached // GIB} GiB for 1 × 128K tokens" in card(page, "KV cache per token")


def whether_it_runs_in_4_bits_on_a_card(page: Any) -> None:
    page.get_by_role("button", name="nf4").click()
    settled(page)
    assert room(page, "memory", "rtx-4090").endswith("free")


def which_of_two_caches_less(page: Any) -> None:
    add(page, "gemma 3 27b", "Gemma 3 27B")
    rows = page.locator("#cards tbody tr").all_inner_texts()
    assert "128 KiB" in next(row for row in rows if row.startswith("Llama 3 8B"))
    assert "496 KiB" in next(row for row in rows if row.startswith("Gemma 3 27B"))


def which_server_for_64_users(page: Any) -> None:
    seen(page, "serve")
    chosen = page.evaluate("window.llmcalc.serve")["chosen"]
    headline = page.inner_text("#serve .said")
    assert headline.startswith(f"{chosen['devices']} × h100-sxm")
    assert "for 64 users" in headline


def what_a_million_tokens_cost(page: Any) -> None:
    seen(page, "serve")
    page.locator("#serve").get_by_label("price").fill("2.5")
    page.locator("#serve").get_by_label("price").press("Enter")
    until(page, "window.llmcalc.serve.price === 2.5")
    cost = page.evaluate("window.llmcalc.serve.chosen.cost_per_million")
    until(page, "document.querySelector('#serve .said').textContent.includes('per million tokens out')")
    assert f"{cost:.3g}" in page.inner_text("#serve .said")


def how_long_training_takes_and_what_it_costs(page: Any) -> None:
    seen(page, "cost")
    page.locator("#cost").get_by_label("price").fill("2.5")
    page.locator("#cost").get_by_label("price").press("Enter")
    until(page, "window.llmcalc.cost.price === 2.5 && document.querySelectorAll('#cost .figure').length === 3")
    assert "days for 1T tokens of Llama 3 8B on 64 × h100-sxm" in page.inner_text("#cost .said")


def whether_training_fits_on_one_card(page: Any) -> None:
    seen(page, "training")
    needed = page.evaluate("window.llmcalc.training.memory.device_bytes")
    counted = llmcalc.memory(
        "llama3-8b", "training", seq=2048, precision="bf16-master", optimizer="adamw", recompute="none"
    )
    assert needed == counted.report().data["memory"]["device_bytes"]
    assert room(page, "training", "h100-sxm").endswith("short")


def whether_qlora_fits_on_a_card_of_24_gb(page: Any) -> None:
    seen(page, "training")
    page.locator("#training").get_by_label("Frozen weights").select_option("nf4")
    until(page, "window.llmcalc.training.execution.lora?.base === 'nf4'")
    until(page, "document.querySelector('#training .status').textContent === ''")
    assert page.input_value("#training label:has-text('LoRA rank') input") == "16"
    assert room(page, "training", "rtx-4090").endswith(("free", "tight"))
    assert "--lora-rank 16" in page.inner_text("#training .command code")


def how_to_divide_it_over_accelerators(page: Any) -> None:
    seen(page, "cluster")
    page.get_by_label("Devices", exact=True).last.fill("16")
    page.click("#cluster button:has-text('Find layouts that fit')")
    page.wait_for_selector("#cluster .plan tbody tr", timeout=4 * PATIENCE)
    page.locator("#cluster .plan tbody button").first.click()
    first = page.evaluate("window.llmcalc.plan")["feasible"][0]["layout"]
    until(page, "tp => window.llmcalc.cluster.layout.tp === tp", first["tp"])


def what_my_own_config_needs(page: Any) -> None:
    page.focus("#add")
    page.evaluate(PASTE, json.dumps(CONFIG, indent=1))
    until(page, "document.querySelectorAll('.chip').length === 2")
    settled(page)
    assert page.inner_text("h1") == "Pasted config"
    assert int(page.inner_text("#total").replace(",", "")) > 0


def what_the_formula_of_a_part_is(page: Any) -> None:
    page.locator("#architecture [data-node$='mlp']").click()
    page.wait_for_selector("#formula .katex")
    until(page, "document.getElementById('node').textContent.endsWith('mlp')")
    assert f"{3 * 4096 * 14336:,}" in page.inner_text("#formula")
    assert "Shazeer 2020" in page.inner_text("#formula")


def whether_deeper_costs_more(page: Any) -> None:
    page.locator("#shape").scroll_into_view_if_needed()
    page.wait_for_selector("#shape svg")
    page.click("#shape summary")
    rows = [row.split("\t") for row in page.locator("#shape tbody tr").all_inner_texts()]
    work = [float(row[5]) for row in rows]
    assert work == sorted(work, reverse=True)


QUESTIONS: list[Callable[[Any], None]] = [
    how_many_parameters,
    how_many_a_token_uses,
    how_large_the_cache_gets,
    whether_it_runs_in_4_bits_on_a_card,
    which_of_two_caches_less,
    which_server_for_64_users,
    what_a_million_tokens_cost,
    how_long_training_takes_and_what_it_costs,
    whether_training_fits_on_one_card,
    whether_qlora_fits_on_a_card_of_24_gb,
    how_to_divide_it_over_accelerators,
    what_my_own_config_needs,
    what_the_formula_of_a_part_is,
    whether_deeper_costs_more,
]


@pytest.mark.parametrize("answer", QUESTIONS, ids=lambda question: question.__name__)
def test_a_question_is_answered_by_clicking(answer: Callable[[Any], None], visit: Open) -> None:
    answer(visit())
