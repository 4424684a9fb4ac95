"""What stands around the panels: the list of models, light and dark, values at the pointer, pictures, and print."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from .loading import PATIENCE, Open, bridge, draw_all, inaccessible, settled, until
from .test_memory_panels import seen

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"


def test_the_list_of_models_is_searched_and_chosen_from(visit: Open) -> None:
    page = visit()
    page.focus("#add")
    page.wait_for_selector("#models li")
    newest = page.locator("#models li").first.inner_text()
    page.keyboard.type("deepseek 2024-12")
    until(page, "document.querySelectorAll('#models li').length === 1")
    assert page.locator("#models li").first.inner_text() != newest
    row = page.locator("#models li").first.inner_text().split("\n")
    assert row == ["DeepSeek-V3", "DeepSeek", "671 B", "2024-12-26", "deepseek-v3"]
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#add", "aria-activedescendant") == "model-0"
    assert page.get_attribute("#model-0", "aria-selected") == "true"
    assert inaccessible(page) == {}
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.chip').length === 2")
    assert page.inner_text("h1") == "DeepSeek-V3"
    assert page.get_attribute("#add", "aria-expanded") == "false"


def test_the_list_of_models_is_closed_without_a_choice(visit: Open) -> None:
    page = visit()
    page.focus("#add")
    page.wait_for_selector("#models li")
    page.keyboard.type("llama")
    page.keyboard.press("Escape")
    assert page.locator("#model-list").is_hidden()
    page.focus("#ctx")
    assert page.locator(".chip").count() == 1
    page.focus("#add")
    page.wait_for_selector("#models li")
    page.locator("#models li", has_text="gpt2").first.wait_for(state="detached")
    for typed, title in ("deepseek r1", "DeepSeek-R1"), ("phi4", "Phi-4"), ("llama3.1:8b", "Llama 3.1 8B"):
        page.fill("#add", typed)
        until(page, "title => document.querySelector('#models li b')?.textContent === title", title)
    page.fill("#add", "gpt-2 small")
    page.locator("#models li", has_text="GPT-2 small").first.click()
    until(page, "document.querySelectorAll('.chip').length === 2")


def test_light_and_dark_are_chosen_and_remembered(visit: Open) -> None:
    page = visit(color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    assert page.get_attribute("#theme", "aria-label") == "Use dark colours"
    page.click("#theme")
    dark = page.evaluate(colour)
    assert dark != light
    again = visit(color_scheme="light", live=False)
    assert again.evaluate(colour) == dark
    again.click("#theme")
    assert again.evaluate(colour) == light
    again.evaluate("localStorage.removeItem('theme')")


def test_curves_answer_to_the_pointer_and_to_the_keyboard(visit: Open) -> None:
    page = visit("#m=llama3-8b,gemma3-27b&ctx=8192")
    points = dict(bridge().answer({"model": "llama3-8b", **bridge().DEFAULTS})["curves"]["kv"])
    said = page.locator("#kv output")
    assert "8,192 tokens: Llama 3 8B 1 GiB" in said.inner_text()
    page.focus("#kv svg")
    page.keyboard.press("ArrowRight")
    assert points[16384] == 2 * 2**30
    assert "16,384 tokens: Llama 3 8B 2 GiB" in said.inner_text()
    assert page.get_attribute("#kv svg", "aria-valuetext") == said.inner_text()
    page.keyboard.press("Home")
    assert said.inner_text().startswith("1,024 tokens")
    box = page.locator("#kv svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 200, box["y"] + 60)
    assert not said.inner_text().startswith("1,024 tokens")
    page.mouse.move(box["x"], box["y"] - 200)
    assert said.inner_text().startswith("1,024 tokens")


def test_equal_curves_are_both_seen(visit: Open) -> None:
    page = visit("#m=llama3-8b,llama3-8b?vocab_size=1000")
    assert [page.locator("#kv .line").nth(i).get_attribute("stroke-dasharray") for i in (0, 1)] == [None, "8 8"]


def test_tiles_say_their_sizes_and_kinds_of_layers_have_headings(visit: Open) -> None:
    page = visit("#m=gemma3-27b")
    assert page.locator("#treemap .head").all_text_contents() == ["sliding × 52", "full × 10"]
    page.focus("#treemap [data-node='embed_tokens']")
    assert "1,409,630,208 parameters" in page.inner_text("#treemap-said")
    page.hover("#treemap [data-node$='full.mlp.gate_proj'], #treemap [data-node*='mlp.gate_proj']")
    assert "mlp.gate_proj" in page.inner_text("#treemap-said")
    assert visit("#m=gpt2", live=False).locator("#treemap .head").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_panel_is_saved_with_its_source(visit: Open, tmp_path: Path, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    for name, word in (("kv", "128K"), ("parameters", "feed-forward"), ("memory", "a100-80gb")):
        with page.expect_download() as svg:
            page.click(f"[data-name={name}] .save button:has-text('SVG')")
        assert svg.value.suggested_filename == f"llmcalc-llama3-8b-{name}.svg"
        svg.value.save_as(tmp_path / "picture.svg")
        root = ElementTree.parse(tmp_path / "picture.svg").getroot()
        texts = [text.text or "" for text in root.iter(f"{SVG}text")]
        assert any(word in text for text in texts)
        assert any(text.startswith("llmcalc memory llama3-8b --seq 8192") for text in texts)
        assert not [e for e in root.iter() if any("color(" in value or "var(" in value for value in e.attrib.values())]
        with page.expect_download() as png:
            page.click(f"[data-name={name}] .save button:has-text('PNG')")
        png.value.save_as(tmp_path / "picture.png")
        width, height = struct.unpack(">II", (tmp_path / "picture.png").read_bytes()[16:24])
        assert width == pytest.approx(2 * float(root.get("width", 0)), abs=1)
        assert height == pytest.approx(2 * float(root.get("height", 0)), abs=1)


def test_a_picture_has_the_colours_of_the_panel(visit: Open) -> None:
    """Orange (230, 159, 0) is no transparent colour."""
    page = visit()
    with page.expect_download() as svg:
        page.click("[data-name=parameters] .save button:has-text('SVG')")
    legend = page.locator("#legend i").count()
    root = ElementTree.parse(svg.value.path()).getroot()
    assert len([box for box in root.findall(f"{SVG}rect") if box.get("width") == "10"]) == legend


def test_a_picture_in_chinese_has_whole_lines_and_no_room_for_controls(visit: Open) -> None:
    """Chinese is broken between any two characters, and a table is wider than a telephone."""
    page = visit("zh/#m=qwen3-0.6b", 390)
    seen(page, "serve")
    for place in (".on-demand", ".beside"):
        page.click(f"#serve {place} > summary")
    with page.expect_download() as svg:
        page.click("[data-name=serve] .save button:has-text('SVG')")
    root = ElementTree.parse(svg.value.path()).getroot()
    written = [text for text in root.findall(f"{SVG}text") if text.text]
    said = re.sub(r"\s", "", page.locator("#serve .said").inner_text())
    lines = [re.sub(r"\s", "", text.text or "") for text in written]
    shown = [line for line in lines if line in said]
    assert said in "".join(shown)
    assert max(map(len, shown)) < len(said) / 2
    assert any(line == "token/秒" for line in lines)  # a column that the page shows after scrolling
    panel = page.locator("[data-name=serve]").bounding_box()
    left_out = sum(
        page.locator(f"#serve {name}").bounding_box()["height"] for name in (".settings", ".start", ".command")
    )
    assert float(root.get("height", 0)) < panel["height"] - 0.8 * left_out
    assert page.locator("#serve .settings").is_visible()


def test_a_model_that_fits_no_accelerator_leads_to_the_servers(visit: Open) -> None:
    page = visit("#m=deepseek-v3")
    page.click("#memory .offer")
    page.wait_for_selector("#serve .said", timeout=4 * PATIENCE)
    assert "h100-sxm" in page.inner_text("#serve .said")
    assert visit("#m=llama3-8b").locator("#memory .offer").count() == 0


def test_all_panels_are_drawn_for_print(visit: Open) -> None:
    page = visit()
    assert page.locator("#presets svg").count() == 0
    draw_all(page)
    for name in ("serve", "cost", "training", "cluster", "shape", "presets"):
        assert page.locator(f"#{name} svg, #{name} .figures, #{name} table").count(), name
        assert page.locator(f"#{name} > .error").count() == 0
    page.emulate_media(media="print")
    assert page.locator("#share").is_hidden()


def test_a_page_of_a_preset_leads_to_the_calculator(visit: Open) -> None:
    page: Any = visit("m/gemma3-27b/", live=False)
    assert page.inner_text("h1").startswith("Gemma 3 27B")
    assert page.locator(".shares").bounding_box()["height"] == 40
    assert visit("m/gemma3-27b/", 390, live=False).evaluate("document.documentElement.scrollWidth") == 390
    assert inaccessible(page) == {}
    page.click("text=Open in the calculator")
    settled(page)
    assert page.inner_text("#total") == "27,009,346,304"
