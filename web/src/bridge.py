"""What the page asks of llmcalc: JSON text in, JSON text out.

The same file runs in the browser (Pyodide), in the build (first numbers and formulas of the presets) and in the tests.
It computes nothing: a document is the one that a command prints with `--format json`, from the same function. Beside
the documents it gives the points of two curves, and as text the integers that JavaScript's numbers cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llmcalc import api
from llmcalc.costs.context_length import longest_sequence
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.reports.document import Report, Table, cell_text
from llmcalc.reports.formats.plain import json_text
from llmcalc.reports.summary import headline, norm_placement_of
from llmcalc.sources.preset import Preset, target_in_errors
from llmcalc.sources.presets import find_preset, model_names
from llmcalc.sources.target import load, load_text
from llmcalc.sources.target_names import hub_id_of, is_hub_id
from llmcalc.studies.distinct_layers import distinct_layers

DEFAULTS = {"ctx": 8192, "batch": 1, "weights": "bf16", "kv": "bf16"}
"""Context, sequences, and formats of weights and cache before anybody has moved a control."""

CONTEXTS = tuple(2**i for i in range(10, 21))
"""Tokens at which the curves have points: 1K to 1M."""

FLOATS = ("bf16", "fp32", "fp16")
"""Weights in these are a number format (`--dtype`); every other choice is a quantization scheme (`--quantize`)."""

MAX_PASSES = 2048
"""Forward passes of micro-batches through stages that a drawing of a schedule has room for."""

LISTED_BY_COMMAND = " (llmcalc presets lists all)"
"""What errors say of a command; the page has a list of its own."""

SAFE = 2**53 - 1
"""The largest integer of JavaScript's numbers."""


def document(report: Report) -> dict[str, Any]:
    """The document as the command writes it."""
    parsed: dict[str, Any] = json.loads(json_text(report))
    return parsed


def exact(data: Any, path: str = "") -> dict[str, str]:
    """Path → text of every integer in a document that JavaScript's numbers cannot hold."""
    if isinstance(data, dict):
        below = [(f"{path}.{key}" if path else key, value) for key, value in data.items()]
    elif isinstance(data, list):
        below = [(f"{path}.{i}", value) for i, value in enumerate(data)]
    else:
        return {path: str(data)} if isinstance(data, int) and abs(data) > SAFE else {}
    return {key: text for name, value in below for key, text in exact(value, name).items()}


@lru_cache(maxsize=32)
def _loaded(model: str) -> Preset:
    """The model. model: JSON; the name of a preset, or a config's text and what to call it."""
    target = json.loads(model)
    if isinstance(target, str):
        return load(target)
    name = target.get("name") or "config.json"
    return load_text(target["config"], name, name)


def _or_error(ask: Callable[[], Report]) -> dict[str, Any]:
    try:
        return document(ask())
    except InputError as error:
        return {"error": str(error)}


@lru_cache(maxsize=32)
def _params(model: str) -> dict[str, Any]:
    return document(api.params(_loaded(model)).report())


@lru_cache(maxsize=64)
def _curves(model: str, kv: str, batch: int) -> dict[str, list[list[float]]]:
    """Bytes of the cache and FLOPs per token by context, up to the context that the model was made for if that is
    longer than 128K tokens, and else to 128K; nothing for what the model does not have.
    """
    preset = _loaded(model)
    longest = longest_sequence(preset.model)
    tokens = [n for n in CONTEXTS if n <= max(longest or 0, 2**17)]
    points: dict[str, list[list[float]]] = {"kv": [], "flops": []}
    for n in tokens:
        try:
            points["flops"].append([n, api.flops(preset, seq=n).per_token])
        except InputError:  # no positions for so many tokens
            break
    for n in tokens:
        try:
            points["kv"].append([n, api.kv(preset, batch=batch, seq=n, kv_dtype=kv).bytes])
        except InputError:  # an encoder has no cache
            break
    return points


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One model at one setting: the documents of params, kv and flops, the curves, and what stands above them."""
    key = json.dumps(request["model"])
    preset = _loaded(key)
    seq, batch, dtype = request["ctx"], request["batch"], request["kv"]
    documents = {
        "params": _params(key),
        "kv": _or_error(lambda: api.kv(preset, batch=batch, seq=seq, kv_dtype=dtype).report()),
        "flops": _or_error(lambda: api.flops(preset, batch=batch, seq=seq).report()),
    }
    return {
        "headline": headline(preset.model),
        "limit": longest_sequence(preset.model),
        "norms": list(dict.fromkeys(norm_placement_of(block) for block in distinct_layers(preset.model))),
        "remarks": list(preset.notes),
        **documents,
        "curves": _curves(key, dtype, batch),
        "exact": {name: texts for name, report in documents.items() if (texts := exact(report))},
    }


@lru_cache(maxsize=64)
def _memory(model: str, seq: int, batch: int, weights: str, kv: str) -> dict[str, Any]:

    preset = _loaded(model)
    settings: dict[str, Any] = {"dtype" if weights in FLOATS else "quantize": weights, "batch": batch, "seq": seq}
    if preset.model.kind != "encoder":
        settings["kv_dtype"] = kv
    with_torchs_kernels = replace(api.memory(preset, **settings), find_engine_fit=None)  # the page reads no engines
    return document(with_torchs_kernels.report())


def memory(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc memory`: the most that inference takes on one device, and where it fits."""
    report = _memory(json.dumps(request["model"]), request["ctx"], request["batch"], request["weights"], request["kv"])
    return {"memory": report, "exact": exact(report)}


def training(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc memory --phase training`. settings: fields of `Settings`."""
    preset = _loaded(json.dumps(request["model"]))
    with target_in_errors(preset):
        report = document(api.memory(preset, "training", **request["settings"]).report())
    return {"training": report, "exact": exact(report)}


def cluster(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc memory --phase training` on many devices, and the timetable of its pipeline, if it has
    one that can be drawn. layout: fields of `llmcalc.parallel.layout_request.LayoutRequest`.
    """
    preset = _loaded(json.dumps(request["model"]))
    with target_in_errors(preset):
        run = api.memory(preset, "training", **request["settings"], **request["layout"] or {"devices": 1})
        report = document(run.report())
    return {"cluster": report, "schedule": _timetable(run), "exact": exact(report)}


def plan(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc plan`: layouts of all that `layout` leaves open, the best first."""
    preset = _loaded(json.dumps(request["model"]))
    options = {**request["settings"], **request["layout"], "global_batch": request["global_batch"]}
    with target_in_errors(preset):
        report = document(api.plan(preset, request["hardware"], "training", rows=request["rows"], **options).report())
    return {"plan": report, "exact": exact(report)}


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc serve`. options: its options by their names, `tpot` in milliseconds."""
    options = dict(request["options"])
    if (limit := options.pop("tpot", None)) is not None:
        options["tpot"] = f"{limit}ms"
    preset = _loaded(json.dumps(request["model"]))
    with target_in_errors(preset):
        report = document(api.serve(preset, **options).report())
    return {"serve": report, "exact": exact(report)}


def cost(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc cost` for a training run. options: its options by their names."""
    preset = _loaded(json.dumps(request["model"]))
    with target_in_errors(preset):
        report = document(api.cost(preset, **request["options"]).report())
    return {"cost": report, "exact": exact(report)}


def _timetable(run: Any) -> dict[str, Any] | None:
    """What each rank of the pipeline runs, and when; None without a pipeline, and where it runs too many passes."""
    from llmcalc.parallel.schedules import pipeline, timetable
    from llmcalc.reports.schedule import schedule_data

    layout = run.layout
    if layout.pp == 1 or layout.pp * layout.vpp * run.micro_batches > MAX_PASSES:
        return None
    return schedule_data(layout, timetable(pipeline(layout, run.micro_batches)))


def explain(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc explain` for one node; needs SymPy."""
    preset = _loaded(json.dumps(request["model"]))
    return document(api.explain(preset, request["node"], seq=request["ctx"], kv_dtype=request["kv"]).report())


def _table(table: Table) -> dict[str, Any]:
    """A table as the command prints it, every cell as text."""
    rows = [
        {"cells": [cell_text(c, v) for c, v in zip(table.columns, row.cells, strict=True)], "strong": row.is_bold}
        for row in table.rows
    ]
    return {"head": [column.title for column in table.columns], "rows": rows, "notes": list(table.notes)}


@lru_cache(maxsize=32)
def _shape(model: str, seq: int, kv: str) -> dict[str, Any]:
    from llmcalc.studies.compare import DENSE_BAND

    preset = _loaded(model)
    try:
        report = api.shape(preset, seq=seq, kv_dtype=kv).report()
    except InputError as error:  # the page names the model itself
        raise InputError(str(error).removeprefix(f"{preset.name}: ")) from None
    return {"shape": document(report), "table": _table(report.tables[0]), "band": list(DENSE_BAND)}


def shape(request: dict[str, Any]) -> dict[str, Any]:
    """The document of `llmcalc shape`, shapes with as many parameters as the model, and the table that it prints."""
    return _shape(json.dumps(request["model"]), request["ctx"], request["kv"])


def proportions(request: dict[str, Any]) -> dict[str, Any]:
    """What a model is drawn by among all presets: its size and its ratios; those that it does not have are None."""
    from llmcalc.studies.compare import stack_shape

    preset = _loaded(json.dumps(request["model"]))
    stack = stack_shape(preset.model.main, preset.model.hidden_size)
    return {
        "title": preset.display,
        "parameters": params(preset.model).total,
        "hidden_size": stack.hidden_size,
        "num_hidden_layers": stack.num_hidden_layers,
        "aspect_ratio": stack.aspect_ratio,
        "feed_forward_width": stack.feed_forward_width,
        "feed_forward_ratio": stack.feed_forward_ratio,
        "mixture_of_experts": stack.mixture_of_experts,
    }


def find(request: dict[str, Any]) -> dict[str, Any]:
    """What a text names: a preset (by its name or an alias, with `?field=value` after it), or a model of the hub, whose
    config the page fetches. Raises `InputError` where it names neither.
    """
    text = request["text"].strip()
    name, mark, changes = text.partition("?")
    preset = find_preset(name) or find_preset(hub_id_of(text) or "")
    if preset is not None:
        load(preset + mark + changes)
        return {"preset": preset + mark + changes}
    hub_id = hub_id_of(text) or text
    if is_hub_id(hub_id):
        repository, _, revision = hub_id.partition("@")
        return {"hub": repository, "revision": revision or "main"}
    load(text)
    return {"preset": text}


def names(_: dict[str, Any]) -> list[str]:
    """The names of all presets."""
    return list(model_names())


CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "answer": answer,
    "memory": memory,
    "training": training,
    "cluster": cluster,
    "plan": plan,
    "serve": serve,
    "cost": cost,
    "explain": explain,
    "shape": shape,
    "proportions": proportions,
    "find": find,
    "names": names,
}


def call(name: str, request: str) -> str:
    """Answers one question of the page: `{"result": …}`, or `{"error": …}` with the command line's one line."""
    try:
        return json.dumps({"result": CALLS[name](json.loads(request))}, ensure_ascii=False)
    except InputError as error:
        return json.dumps({"error": str(error).replace(LISTED_BY_COMMAND, "")}, ensure_ascii=False)
