"""The panels on training: what one device holds over a step, and a run over many devices.

The tests of what Python answers need no browser (20 s). The others are marked, as those of `test_page.py`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from llmcalc.parallel.layout import Layout
from llmcalc.parallel.schedules import pipeline, timetable

from .conftest import Question
from .loading import WEB, Open, bridge, module, settled, until
from .test_bridge import ask, printed

SMALL = "qwen3-0.6b?num_hidden_layers=4"

ODD = "qwen3-0.6b?num_hidden_layers=9"

TRAINING: dict[str, dict[str, Any]] = {
    "llama3-8b": {"seq": 2048, "batch": 1, "precision": "bf16-master", "optimizer": "adamw"},
    "deepseek-v3": {"seq": 512, "batch": 4, "recompute": "full", "attn_implementation": "flash"},
    "bert-base": {"seq": 128, "batch": 16, "precision": "autocast", "optimizer": "sgd"},
}
"""Model → fields of `Settings`."""

CLUSTERS: dict[str, dict[str, Any]] = {
    "megatron": {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True},
    "torch": {"tp": 2, "pp": 2, "vpp": 2},
    "fsdp2": {"dp": 4, "zero": 3},
    "deepspeed": {"dp": 4, "zero": 2},
}
"""Framework → fields of `LayoutRequest`."""

STEP = {"seq": 256, "batch": 1, "num_microbatches": 4, "attn_implementation": "flash"}

PLAN: dict[str, Any] = {
    "model": SMALL,
    "settings": {"seq": 256, "batch": 1, "attn_implementation": "flash"},
    "layout": {"devices": 8, "framework": "megatron"},
    "hardware": "h100-sxm",
    "global_batch": 16,
    "rows": 3,
}

QUESTIONS: list[Question] = [
    *(("training", {"model": model, "settings": settings}) for model, settings in TRAINING.items()),
    *(
        ("cluster", {"model": SMALL, "settings": STEP, "layout": {"framework": name, **layout}})
        for name, layout in CLUSTERS.items()
    ),
    ("cluster", {"model": SMALL, "settings": STEP, "layout": {"framework": "megatron", "pp": 3}}),
    ("plan", PLAN),
]


def options(**given: Any) -> list[str]:
    """Fields as options."""
    words: list[str] = []
    for name, value in given.items():
        option = "--micro-batch" if name == "batch" else f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return words


@pytest.mark.parametrize("model", TRAINING)
def test_training_is_the_document_of_the_command(model: str, run: Any) -> None:
    settings = TRAINING[model]
    found = ask("training", model=model, settings=settings)
    assert found["training"] == printed(run, "memory", model, "--phase", "training", *options(**settings))


@pytest.mark.parametrize("framework", CLUSTERS)
def test_a_cluster_is_the_document_of_the_command(framework: str, run: Any) -> None:
    layout = {"framework": framework, **CLUSTERS[framework]}
    found = ask("cluster", model=SMALL, settings=STEP, layout=layout)
    assert found["cluster"] == printed(run, "memory", SMALL, "--phase", "training", *options(**STEP, **layout))
    assert (found["schedule"] is None) == ("pp" not in layout)


def test_a_plan_is_the_document_of_the_command(run: Any) -> None:
    asked = options(**PLAN["settings"], **PLAN["layout"], hardware="h100-sxm", global_batch=16, rows=3)
    plan = ask("plan", **PLAN)["plan"]
    assert plan == printed(run, "plan", SMALL, *asked)
    assert plan["feasible"]


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        (STEP, {"framework": "megatron", "pp": 3}),
        (STEP, {"framework": "megatron", "tp": 3, "dp": 2}),
        ({**STEP, "optimizer": "sgd"}, {"framework": "megatron", "tp": 2}),
    ],
)
def test_a_layout_that_cannot_be_is_refused_in_the_commands_words(
    settings: dict[str, Any], layout: dict[str, Any], run: Any
) -> None:
    request = {"model": SMALL, "settings": settings, "layout": layout}
    said = json.loads(bridge().call("cluster", json.dumps(request)))["error"]
    assert run("memory", SMALL, "--phase", "training", *options(**settings, **layout)).err == f"error: {said}\n"


def test_layers_of_each_rank_are_those_of_the_table(run: Any) -> None:
    words = ("memory", SMALL, "--phase", "training", *options(**STEP, pp=2, vpp=2, framework="megatron"))
    layers = [one["layers"] for one in printed(run, *words)["memory"]["by_rank"]]
    assert layers[:2] == [[[0, 0], [2, 2]], [[1, 1], [3, 3]]]
    lines = run(*words, "--table", "ranks", "--format", "csv").out.splitlines()
    assert '"0, 2"' in lines[1]
    assert '"1, 3"' in lines[2]


def test_the_schedule_is_the_one_that_is_plotted() -> None:
    layout = {"framework": "megatron", "pp": 2, "vpp": 2}
    found = ask("cluster", model=SMALL, settings=STEP, layout=layout)["schedule"]
    expected = timetable(pipeline(Layout(pp=2, vpp=2, schedule="interleaved"), STEP["num_microbatches"]))
    assert found["bubble"] == expected.bubble
    assert [len(rank["actions"]) for rank in found["by_rank"]] == [len(spans) for spans in expected.spans_by_rank]
    many = {**STEP, "num_microbatches": bridge().MAX_PASSES}
    assert ask("cluster", model=SMALL, settings=many, layout=layout)["schedule"] is None


NEEDED = """
import json, sys
sys.path[:0] = sys.argv[1:3]
import bridge
for call, request in json.loads(sys.argv[3]):
    bridge.call(call, json.dumps(request))
print(json.dumps([f"{name}.__init__" if hasattr(module, "__path__") else name for name, module in sys.modules.items()]))
"""


@pytest.mark.parametrize(
    ("call", "absent"),
    [
        ("answer", "LATER CLUSTER SHAPES CONFIGS"),
        ("training", "CLUSTER SHAPES CONFIGS"),
        ("shape", "LATER CONFIGS"),
        ("explain", "CLUSTER SHAPES CONFIGS"),
    ],
)
def test_what_is_asked_first_needs_no_later_archive(call: str, absent: str) -> None:
    """In a process of its own, whose modules are those that the questions need: of llmcalc, and of SymPy."""
    defaults = bridge().DEFAULTS
    questions = [(name, request) for name, request in QUESTIONS if name == call]
    part = {"node": "lm_head"} if call == "explain" else {}
    questions = questions or [(call, {"model": model, **part, **defaults}) for model in TRAINING]
    text = json.dumps(questions)
    command = [sys.executable, "-c", NEEDED, str(WEB.parent), str(WEB / "src"), text]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    build = module(WEB / "build.py")
    prefixes = build.NOT_ON_THE_PAGE + sum((getattr(build, name) for name in absent.split()), ())
    needed = [f"{name.replace('.', '/')}." for name in json.loads(done.stdout)]
    assert [path for path in needed if path.startswith(prefixes)] == []
    assert ("sympy/__init__." in needed) == (call == "explain")


# --- in the browser ---------------------------------------------------------------------------------------------------


def seen(page: Any, panel: str) -> None:
    """Scrolls to a panel and waits for what it draws."""
    page.evaluate("name => document.getElementById(name).scrollIntoView()", panel)
    page.wait_for_selector(f"#{panel} .said, #{panel} .error")
    page.wait_for_selector(f"#{panel}-status:empty", state="attached")


def shown(page: Any, run: Any, panel: str, at: int = 0) -> None:
    """Compares the document that a panel shows with that of the command that it shows."""
    page.wait_for_selector(f"#{panel}-status:empty", state="attached")
    place = "cluster" if panel == "plan" else panel
    program, *words = shlex.split(page.locator(f"#{place} .command code").nth(at).text_content())
    assert program == "llmcalc"
    assert page.evaluate(f"window.llmcalc.{panel}") == printed(run, *words)


@pytest.mark.browser
def test_answers_are_cpythons_byte_for_byte(same: Callable[[list[Question]], None]) -> None:
    same(QUESTIONS)


@pytest.mark.browser
def test_where_data_is_saved_nothing_is_fetched_before_it_is_seen(visit: Open) -> None:
    page = visit(live=False)
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url.rpartition("/")[2]))
    page.reload()
    settled(page)
    late = {"training.js", "cluster.js"}
    assert late.isdisjoint(fetched)
    seen(page, "cluster")
    assert late.issubset(fetched)


@pytest.mark.browser
def test_training_memory(visit: Open, run: Any) -> None:
    page = visit("#m=bert-base&r.seq=128&r.batch=16&r.optimizer=adafactor")
    seen(page, "training")
    shown(page, run, "training")
    memory = page.evaluate("window.llmcalc.training.memory")
    assert page.get_attribute("#training .big", "title") == f"{memory['device_bytes']:,} bytes"
    assert page.locator("#training .phases tbody tr").count() == 3
    assert page.locator("#training .fits li").count() == 20
    point = max(memory["timeline"], key=lambda one: one["bytes"])
    assert page.inner_text("#training .moment output").endswith(point["node"] or "optimizer’s step")
    page.focus("#training .moment input")
    page.keyboard.press("Home")
    first = next(one["node"] for one in memory["timeline"] if one["node"])
    assert page.inner_text("#training .moment output").endswith(f"in the forward pass, {first}")
    page.get_by_label("Recompute").first.select_option("full")
    until(page, "window.llmcalc.training.execution.recompute === 'full'")
    shown(page, run, "training")
    assert "r.recompute=full" in page.url


@pytest.mark.browser
def test_a_cluster_and_its_plan(visit: Open, run: Any) -> None:
    page = visit(f"#m={quote(SMALL)}&r.seq=256&p.devices=8&p.global_batch=16&n.num_microbatches=4")
    seen(page, "cluster")
    shown(page, run, "cluster")
    assert page.locator("#cluster .ranks li").count() == 4
    worst = page.evaluate("window.llmcalc.cluster.memory.device_rank")
    assert page.locator("#cluster .ranks .worst").count() == 1
    assert f"needed by rank {worst} of stage" in page.inner_text("#cluster .said")
    sums = {(one["group"], one["kind"]) for one in page.evaluate("window.llmcalc.cluster.communication")}
    assert page.locator("#cluster .sent tbody tr").count() == len(sums)
    assert re.search(r"\d [KM]iB", page.inner_text("#cluster .sent tbody"))  # small parts name their unit
    assert page.locator("#cluster .timetable svg g").count() == 4
    page.click("text=Find layouts that fit")
    page.wait_for_selector("#cluster .plan")
    shown(page, run, "plan", at=1)
    best = page.evaluate("window.llmcalc.plan.feasible[0]")
    page.click("#cluster .plan tbody tr:first-child button")
    until(page, "world => window.llmcalc.cluster.layout.world === world", 8)
    shown(page, run, "cluster")
    found = page.evaluate("window.llmcalc.cluster")
    assert found["layout"] == best["layout"]
    assert found["workload"]["num_microbatches"] == best["num_microbatches"]


@pytest.mark.browser
def test_an_impossible_layout_says_why_and_what_is_near(visit: Open, run: Any) -> None:
    page = visit(f"#m={quote(ODD)}&r.seq=256&l.pp=2")
    seen(page, "cluster")
    words = shlex.split(page.locator("#cluster .command code").first.inner_text())[1:]
    said, near = run(*words).err.removeprefix("error: ").strip().split("; nearest layouts: ")
    assert page.inner_text("#cluster .error") == said
    assert page.locator("#cluster .near button").all_inner_texts() == near.split("; ")
    page.click("#cluster .near button")
    page.wait_for_selector("#cluster .ranks")
    shown(page, run, "cluster")
    assert "l.pp_layout=" in page.url
    page.get_by_label("Without --pp-layout").click()
    page.wait_for_selector("#cluster .near")
    page.get_by_label("Framework").select_option("deepspeed")
    until(page, "document.querySelector('#cluster .error')?.textContent.includes('with DeepSpeed')")
    assert page.locator("#cluster .near button").all_inner_texts() == ["--framework fsdp2 --zero 3 --dp 8"]
    page.click("#cluster .near button")
    page.wait_for_selector("#cluster .ranks")
    shown(page, run, "cluster")


@pytest.mark.browser
def test_a_model_that_cannot_have_the_first_layout_is_given_another(visit: Open, run: Any) -> None:
    page = visit(f"#m={quote(ODD)},qwen3-0.6b,bert-base&r.seq=128")  # 9 layers in 4 stages; 28; no decoder
    seen(page, "cluster")
    shown(page, run, "cluster")
    assert sorted(page.evaluate("window.llmcalc.cluster.layout.pp_layout")) == [2, 2, 2, 3]
    assert "4 stages do not divide 9 layers" in page.inner_text("#cluster .instead")
    page.locator(".chip button").nth(2).click()
    until(page, "!document.querySelector('#cluster .instead')")
    shown(page, run, "cluster")
    assert "l." not in page.url
    page.locator(".chip button").nth(4).click()
    page.wait_for_selector("#cluster .instead")
    shown(page, run, "cluster")
    assert page.evaluate("window.llmcalc.cluster.framework.name") == "fsdp2"


@pytest.mark.browser
def test_the_controls_above_do_not_wait_for_a_plan(visit: Open, address: str) -> None:
    page = visit("#m=llama3-8b&p.devices=16")
    seen(page, "cluster")
    asked_for: list[str] = []

    def hold_plans(route: Any) -> None:
        """Leaves a plan without an answer."""
        call = json.loads(route.request.post_data)[0]
        asked_for.append(call)
        if call != "plan":
            route.continue_()

    page.route(address, hold_plans)
    page.click("text=Find layouts that fit")
    page.wait_for_selector("#plan-status:not(:empty)")
    until(page, "getComputedStyle(document.querySelector('#plan-status + div')).opacity === '0.4'")
    before = page.evaluate("window.llmcalc.times.answers.length")
    page.focus("#ctx")
    page.keyboard.press("ArrowRight")
    until(page, "before => window.llmcalc.times.answers.length > before", before)
    assert "plan" in asked_for
    assert page.inner_text("#plan-status").startswith("Python is at work")
    page.get_by_role("button", name="Stop").last.click()
    page.wait_for_selector("#plan-status:empty", state="attached")
    assert page.locator("#cluster .plan").count() == 0
    asked_for.clear()
    page.get_by_role("button", name="Find layouts that fit").evaluate(AT_ONCE)
    page.wait_for_selector("#plan-status:empty", state="attached")
    assert page.locator("#cluster .plan").count() == 0
    assert "plan" not in asked_for


AT_ONCE = "button => { button.click(); document.querySelector('#plan-status button').click(); }"
"""Asks for a plan, and stops it before the question is sent."""


@pytest.mark.browser
def test_a_link_is_restored_and_nonsense_is_not(visit: Open) -> None:
    page = visit("#m=bert-base&r.seq=64&r.optimizer=sgd&l.framework=deepspeed&l.zero=2&l.pp=0&l.tp=x&p.devices=32")
    seen(page, "cluster")
    texts = page.locator("#cluster .command code").all_inner_texts()
    assert "--seq 64 --micro-batch 1 --precision bf16-master --optimizer sgd" in texts[0]
    assert (
        "--framework deepspeed --tp 2 --pp 4 --dp 2 --sequence-parallel --zero 2" in texts[0]
    )  # pp and tp as at first
    assert texts[1].startswith("llmcalc plan bert-base --devices 32 --hardware h100-sxm ")


@pytest.mark.browser
def test_the_keyboard_alone_sets_a_layout(visit: Open) -> None:
    page = visit("#m=llama3-8b&r.seq=256")
    seen(page, "cluster")
    page.get_by_label("pp", exact=True).focus()
    page.keyboard.press("ArrowDown")
    until(page, "window.llmcalc.cluster?.layout.pp === 2")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('label').textContent") == "cp"
    assert "l.pp=2" in page.url
