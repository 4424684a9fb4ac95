"""The panels that compare shapes: other shapes of a model's size, and all presets by their proportions.

The tests of what Python answers need no browser (2 s). The others are marked, as those of `test_page.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from llmcalc.sources.presets import model_names

from .loading import Open, bridge, resting_box, settled, until
from .test_bridge import CONFIG, ask, printed

ASKED = {"ctx": 32768, "kv": "fp8"}
"""A setting that is not the command's own default."""

LONG_NAMES = "#m=deepseek-r1-distill-qwen-1.5b,qwen3-235b-a22b-2507,llama3-8b,bert-base&ctx=1048576"
"""Models with long names, and one that has no cache and no other shapes."""


@pytest.mark.parametrize("model", ["llama3-8b", "gemma3-27b", "mixtral-8x7b"])
def test_shapes_are_those_of_the_command(model: str, run: Any) -> None:
    found = ask("shape", model=model, **ASKED)
    args = ("shape", model, "--seq", str(ASKED["ctx"]), "--kv-dtype", str(ASKED["kv"]))
    assert found["shape"] == printed(run, *args)
    lines = run(*args, "--format", "markdown").out.splitlines()
    plain = [re.sub(r"\\(.)", r"\1", line) for line in lines if line.startswith("|")]  # without Markdown's escapes
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in plain]
    assert [found["table"]["head"], *(row["cells"] for row in found["table"]["rows"])] == [cells[0], *cells[2:]]
    assert found["table"]["notes"][0].startswith("held fixed: ")
    assert [row["strong"] for row in found["table"]["rows"]].count(True) == 1


@pytest.mark.parametrize("model", ["deepseek-v3", "bert-base"])
def test_a_model_without_other_shapes_is_refused_as_by_the_command(model: str, run: Any) -> None:
    found = json.loads(bridge().call("shape", json.dumps({"model": model, **ASKED})))
    assert run("shape", model).err == f"error: {model}: {found['error']}\n"


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3", "t5-11b", "falcon-mamba-7b"])
def test_proportions_are_those_of_the_commands(model: str, run: Any) -> None:
    found = ask("proportions", model=model)
    compared = printed(run, "compare", model)["compare"]
    stack = compared.get("decoder", compared)
    assert found["parameters"] == printed(run, "params", model)["params"]["total"]
    for key in ("hidden_size", "num_hidden_layers", "feed_forward_ratio", "aspect_ratio"):
        assert found[key] == stack[key], key


def seen(page: Any, *names: str) -> None:
    """Scrolls to panels, and waits until they have drawn."""
    for name in names:
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{name} figure svg")


def chips(page: Any) -> list[str]:
    return [text.removesuffix("×").strip() for text in page.locator(".chip").all_inner_texts()]


@pytest.mark.browser
def test_the_browser_counts_the_same_shapes(same: Callable[[Any], None]) -> None:
    models = ["llama3-8b", "gemma3-27b", "gpt-oss-20b", "deepseek-v3", {"config": json.dumps(CONFIG)}]
    shapes = [("shape", {"model": model, **ASKED}) for model in models]
    same([*shapes, *(("proportions", {"model": model}) for model in [*models, *model_names()[::40]])])


@pytest.mark.browser
def test_nothing_is_fetched_before_the_panels_are_seen(visit: Open) -> None:
    page = visit()
    mine = "performance.getEntriesByType('resource').map(one => new URL(one.name).pathname)"
    files = {"/panels/shape.js", "/panels/presets.js", "/proportions.json"}
    assert not files & set(page.evaluate(mine))
    seen(page, "shape", "presets")
    assert files <= set(page.evaluate(mine))


@pytest.mark.browser
def test_the_shapes_are_drawn_and_stand_in_a_table(visit: Open) -> None:
    page = visit("#m=llama3-8b,deepseek-v3")
    seen(page, "shape")
    found = ask("shape", model="llama3-8b", ctx=8192, kv="bf16")
    number = len(found["shape"]["shapes"])
    assert page.locator("#shape figure").count() == 2
    assert page.locator("#shape .mark").count() == 2 * number
    assert page.locator("#shape path.line").count() == 2
    assert "DeepSeek-V3 has no study: attention of type 'mla'" in page.inner_text("#shape")
    assert page.inner_text("#shape .command code") == "llmcalc shape llama3-8b --seq 8192 --kv-dtype bf16"
    page.focus("#shape summary")
    page.keyboard.press("Enter")
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#shape tbody tr").all()]
    assert rows == [row["cells"] for row in found["table"]["rows"]]
    page.locator("#shape .mark").nth(0).hover()
    deepest = found["shape"]["shapes"][0]
    assert f"{deepest['num_hidden_layers']} layers of {deepest['hidden_size']:,}" in page.inner_text("#shape-said")
    assert page.locator("#shape .hot").count() == 3  # in both charts, and in the table


@pytest.mark.browser
def test_the_shapes_follow_a_setting(visit: Open) -> None:
    page = visit()
    seen(page, "shape")
    page.click(".segment button:text-is('fp8') >> nth=1")
    page.locator("#shape").scroll_into_view_if_needed()
    until(page, "document.querySelector('#shape .command code').textContent.endsWith('--kv-dtype fp8')")
    shapes = ask("shape", model="llama3-8b", ctx=8192, kv="fp8")["shape"]["shapes"]
    (own,) = (i for i, one in enumerate(shapes) if one["target"])
    chart = page.locator("#shape svg").nth(1)
    chart.focus()
    for _ in range(own + 1):
        page.keyboard.press("ArrowRight")
    assert shapes[own]["kv_bytes_per_token"] == 64 * 1024
    said = chart.get_attribute("aria-valuetext")
    assert "h/L 128.0: " in said
    assert said.endswith(" and 64 KiB per token")
    assert page.inner_text("#shape-said") == said


@pytest.mark.browser
def test_all_presets_are_points_and_a_click_adds_one(visit: Open) -> None:
    page = visit()
    seen(page, "presets")
    page.wait_for_selector("#presets .own")
    sizes = ("parameters", "hidden_size", "num_hidden_layers", "feed_forward_width")
    places = {tuple(ask("proportions", model=name)[key] for key in sizes) for name in model_names()}
    assert page.locator("#presets svg >> nth=0 >> .dots > g").count() == len(places)
    assert page.locator("#presets .own").count() == 2
    box = resting_box(page, page.locator("#presets svg >> nth=0 >> [data-preset='grok-1'] > *"))
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(page, "document.querySelectorAll('#presets .own').length === 4")
    settled(page)
    assert chips(page) == ["Llama 3 8B", "Grok-1"]
    assert page.inner_text("#presets-said") == "Grok-1 is added: 2 of at most 4 models."


@pytest.mark.browser
def test_the_keyboard_goes_from_point_to_point_and_adds_one(visit: Open) -> None:
    page = visit("#m=llama3-8b,gpt2,gpt2-xl")
    seen(page, "presets")
    page.wait_for_selector("#presets .own")
    points = page.locator("#presets svg >> nth=0 >> .dots > g")
    assert page.locator("#presets svg >> nth=0 >> [tabindex='0']").count() == 1
    page.locator("#presets svg >> nth=0 >> [tabindex='0']").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    name = points.nth(points.count() - 2).get_attribute("data-preset")
    assert page.evaluate("document.activeElement.dataset.preset") == name
    title = ask("proportions", model=name)["title"]
    assert page.inner_text("#presets-said").startswith(f"{title}: ")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.chip').length === 4")
    settled(page)
    assert page.evaluate("document.activeElement.dataset.preset") == name
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")  # a fifth model has no room, and the panel says so
    until(page, "document.querySelector('#presets-said').textContent.includes('4 models are shown already')")


@pytest.mark.browser
def test_a_model_that_is_no_preset_has_its_place(visit: Open) -> None:
    page = visit("#m=llama3-8b,llama3-8b?num_hidden_layers=16")
    seen(page, "presets")
    until(page, "document.querySelectorAll('#presets .own').length === 4")
    own, half = page.locator("#presets svg >> nth=0 >> .own").all()
    up = float(own.get_attribute("cy")) - float(half.get_attribute("cy"))
    grid = [float(one.get_attribute("y")) for one in page.locator("#presets svg >> nth=0 >> text[x='36']").all()[:2]]
    assert up == pytest.approx(grid[0] - grid[1], abs=0.01)  # twice h/L is one step of the axis further up


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_no_label_of_a_chart_is_cut(visit: Open, width: int) -> None:
    page = visit(LONG_NAMES, width)
    seen(page, "shape", "presets")
    page.wait_for_selector("#presets .own")
    cut = page.evaluate(
        """() => [...document.querySelectorAll("#kv svg, #flops svg, #shape svg, #presets svg")].flatMap((svg) => {
          const box = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")].filter((text) => {
            const own = text.getBoundingClientRect();
            const outside = own.left < box.left - 0.5 || own.right > box.right + 0.5 || own.bottom > box.bottom + 0.5;
            return outside || text.textContent.includes("…");
          }).map((text) => text.textContent);
        })"""
    )
    assert cut == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
