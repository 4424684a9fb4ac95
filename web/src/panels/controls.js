// Context, sequences, and number formats.
import { $, h } from "../dom.js";
import { integer } from "../format.js";
import { CACHES, state, WEIGHTS } from "../state.js";
import { t } from "../words.js";

let change = () => {};
let made = null;

function slider(id, title, most, step, value, read) {
  const output = h("output", { for: id });
  const input = h("input", { id, type: "range", min: 0, max: most, step, oninput: () => change({ [value]: read(+input.value) }) });
  return { row: h("label", {}, h("span", {}, title), output, input), input, output };
}

function segment(title, name, options) {
  const buttons = options.map((option) => h("button", { type: "button", onclick: () => change({ [name]: option }) }, option));
  return { row: h("div", { role: "group", "aria-label": title }, h("span", {}, title), h("div", { class: "segment" }, buttons)), buttons, name };
}

function make() {
  made = {
    ctx: slider("ctx", t("Context"), 10, 0.5, "ctx", (x) => Math.round(2 ** (10 + x) / 256) * 256),
    batch: slider("batch", t("Sequences"), 8, 1, "batch", (x) => 2 ** x),
    segments: [segment(t("Weights"), "weights", WEIGHTS), segment(t("KV cache"), "kv", CACHES)],
    over: h("p", { class: "error" }),
  };
  $("controls").append(made.ctx.row, made.batch.row, ...made.segments.map((one) => one.row), made.over);
}

/** Draws what the state says. act: called with the settings that somebody changes. */
export function draw({ model, act }) {
  if (!made) make();
  change = act;
  made.ctx.input.value = Math.log2(state.ctx) - 10;
  made.ctx.output.value = t("{0} tokens", integer(state.ctx));
  made.ctx.input.setAttribute("aria-valuetext", t("{0} tokens", integer(state.ctx)));
  made.batch.input.value = Math.log2(state.batch);
  made.batch.output.value = integer(state.batch);
  made.batch.input.setAttribute("aria-valuetext", t("{0} sequences", state.batch));
  for (const { buttons, name } of made.segments) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === state[name]));
  }
  const limit = model.answer?.limit;
  made.over.textContent = limit && state.ctx > limit ? t("{0} tokens are more than the {1} that this model was made for.", integer(state.ctx), integer(limit)) : "";
}
