// Four cards for one model, a table for several.
import { $, h } from "../dom.js";
import { bytes, count, flops, joined, tokens } from "../format.js";
import { SERIES } from "../palette.js";
import { state } from "../state.js";

const NONE = ["none", ""];
const STALE = ["…", ""];

/** Whether a window is full, so that later tokens need less than the first ones. */
const filled = (cache) => cache.bytes < cache.bytes_per_token * state.batch * state.ctx;

function figures({ answer, memory }) {
  const { total, active } = answer.params.params;
  const cache = answer.kv.cache;
  const device = memory?.memory?.memory;
  return {
    parameters: count(total),
    active: count(active),
    whole: active === total,
    flops: answer.flops.error ? ["–", ""] : flops(answer.flops.flops.per_token),
    flopsNote: answer.flops.error ?? `forward, mean over ${tokens(state.ctx)} tokens, no mask`,
    perToken: cache ? bytes(cache.bytes_per_token) : NONE,
    cache: cache ? bytes(cache.bytes) : NONE,
    cacheNote: cache ? `${joined(bytes(cache.bytes))} for ${state.batch} × ${tokens(state.ctx)} tokens${filled(cache) ? ", as windows fill" : ""}` : "it reads a sequence in one pass",
    memory: device ? bytes(device.device_bytes) : memory?.error ? ["–", ""] : STALE,
    memoryNote: device ? `peak, ${state.weights} weights, on one device` : memory?.error ?? "counting…",
  };
}

function card(title, [value, unit], note) {
  return h("div", { class: "card" }, h("small", {}, title), h("b", {}, value, unit ? h("span", {}, ` ${unit}`) : ""), h("em", {}, note));
}

function cards(model) {
  const it = figures(model);
  return h("div", { class: "cards" },
    card("Parameters", it.parameters, it.whole ? "all active for each token" : `${joined(it.active)} active per token`),
    card("FLOPs per token", it.flops, it.flopsNote),
    card("KV cache per token", it.perToken, it.cacheNote),
    card("Memory", it.memory, it.memoryNote));
}

function table(models, choose) {
  const head = ["parameters", "active", "FLOPs per token", "KV per token", "KV cache", "memory"];
  const rows = models.map((model, i) => {
    const name = h("th", { scope: "row" }, h("button", { type: "button", onclick: () => choose(i), "aria-pressed": String(i === state.on) }, h("i", { style: `background:${SERIES[i]}` }), model.title));
    if (model.error) return h("tr", {}, name, h("td", { colspan: 6, class: "error" }, model.error));
    if (!model.answer) return h("tr", {}, name, h("td", { colspan: 6 }, "Python is loading…"));
    const it = figures(model);
    const cells = [it.parameters, it.active, it.flops, it.perToken, it.cache, it.memory];
    return h("tr", { class: i === state.on ? "on" : "" }, name, cells.map((cell) => h("td", {}, joined(cell))));
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Models side by side" },
    h("table", {}, h("thead", {}, h("tr", {}, h("td", {}), head.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows)));
}

export function draw({ models, model, choose }) {
  const drawn = models.length > 1 ? table(models, choose) : model.answer ? cards(model) : "";
  $("cards").replaceChildren(drawn);
}
