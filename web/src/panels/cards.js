// Four cards for one model, a table for several.
import { $, h } from "../dom.js";
import { bytes, count, flops, joined, tokens } from "../format.js";
import { SERIES } from "../palette.js";
import { state } from "../state.js";
import { t, translated } from "../words.js";

const none = () => [t("none"), ""];
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
    weights: device ? bytes(device.by_kind.weights) : memory?.error ? ["–", ""] : STALE,
    flopsNote: answer.flops.error ? translated(answer.flops.error) : t("forward, mean over {0} tokens, no mask", tokens(state.ctx)),
    perToken: cache ? bytes(cache.bytes_per_token) : none(),
    cache: cache ? bytes(cache.bytes) : none(),
    cacheNote: cache ? t(filled(cache) ? "{0} for {1} × {2} tokens, as windows fill" : "{0} for {1} × {2} tokens", joined(bytes(cache.bytes)), state.batch, tokens(state.ctx)) : t("it reads a sequence in one pass"),
    memory: device ? bytes(device.device_bytes) : memory?.error ? ["–", ""] : STALE,
    memoryNote: device ? t("peak, {0} weights, on one device", state.weights) : memory?.error ?? t("counting…"),
  };
}

function card(title, [value, unit], note) {
  return h("div", { class: "card" }, h("small", {}, title), h("b", {}, value, unit ? h("span", {}, ` ${unit}`) : ""), h("em", {}, note));
}

function cards(model) {
  const it = figures(model);
  return h("div", { class: "cards" },
    card(t("Weights"), it.weights, it.whole ? t("{0}, all used for each token", state.weights) : t("{0}; a token uses {1} parameters", state.weights, joined(it.active))),
    card(t("FLOPs per token"), it.flops, it.flopsNote),
    card(t("KV cache per token"), it.perToken, it.cacheNote),
    card(t("Memory"), it.memory, it.memoryNote));
}

function table(models, choose) {
  const head = [t("parameters"), t("active"), t("FLOPs per token"), t("KV cache per token"), t("KV cache"), t("memory")];
  const rows = models.map((model, i) => {
    const name = h("th", { scope: "row" }, h("button", { type: "button", onclick: () => choose(i), "aria-pressed": String(i === state.on) }, h("i", { style: `background:${SERIES[i]}` }), model.title));
    if (model.error) return h("tr", {}, name, h("td", { colspan: 6, class: "error" }, model.error));
    if (!model.answer) return h("tr", {}, name, h("td", { colspan: 6 }, t("Python is loading…")));
    const it = figures(model);
    const cells = [it.parameters, it.active, it.flops, it.perToken, it.cache, it.memory];
    return h("tr", { class: i === state.on ? "on" : "" }, name, cells.map((cell) => h("td", {}, joined(cell))));
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("Models side by side") },
    h("table", {}, h("thead", {}, h("tr", {}, h("td", {}), head.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows)));
}

export function draw({ models, model, choose }) {
  const drawn = models.length > 1 ? table(models, choose) : model.answer ? cards(model) : "";
  $("cards").replaceChildren(drawn);
}
