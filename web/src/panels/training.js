// What one device holds over a training step: by kind in each phase, module by module, and which accelerators have room.
import { debouncedQuery } from "../debounced_query.js";
import { $, h, s } from "../dom.js";
import { choice, command, line, number, slider, style } from "../fields.js";
import { bytes, gib, integer, joined } from "../format.js";
import { bar, fitting, legend, named, paint, partsOf, PHASES } from "../memory_bars.js";
import { request, same } from "../training_settings.js";
import { asked, state } from "../state.js";
import { t } from "../words.js";

const HEIGHT = 232, LEFT = 62, RIGHT = 12, TOP = 26, BOTTOM = 10, GIB = 2 ** 30;
const NEAR = [0.4, 1.3]; // capacities that the chart marks: more and less than these parts of the peak
const RANK = 16; // of adapters, where only the format of the frozen weights is chosen
const SHORT = { forward: t("forward"), backward: t("backward"), step: t("step") }; // names of phases where there is no room
const pixels = (name) => [...name].reduce((sum, character) => sum + (character < "\u2e80" ? 6.5 : 11.5), 0); // of a label, roughly
const LABEL = 21; // pixels between two names of capacities

let made = null, view = null, answer = null, width = 0;

const question = debouncedQuery("training", "training-status", (found, along) => {
  answer = { ...found, ...along };
  window.llmcalc.training = found.found?.training;
  paintAll();
});

function make() {
  const changed = () => { view.link(); ask(); };
  const ranked = () => { if (!state.adapter.lora_rank) state.adapter.base = "none"; changed(); };
  const frozen = () => { // as PEFT trains them: with adapters, and every layer recomputed
    if (state.adapter.base !== "none") { state.adapter.lora_rank ??= RANK; state.run.recompute = "full"; }
    changed();
  };
  const controls = [
    slider("run", "seq", t("Sequence"), [256, 131072], t(" tokens"), changed),
    slider("run", "batch", t("Micro-batch"), [1, 64], "", changed, 1),
    choice("run", "precision", t("Precision"), changed, { note: t("bf16-master: weights and gradients in bf16, master weights and states in fp32; autocast: weights in fp32"), names: { "bf16-master": t("bf16, fp32 master"), autocast: t("autocast (fp32 weights)"), bf16: t("bf16 throughout"), fp32: "fp32" } }),
    choice("run", "optimizer", t("Optimizer"), changed, { names: { adamw: "AdamW", "adamw-8bit": t("AdamW, 8 bit"), sgd: "SGD", adafactor: "Adafactor", muon: "Muon" } }),
    choice("run", "recompute", t("Recompute"), changed, { note: t("What runs again in the backward pass instead of being kept"), names: { none: t("nothing"), attention: t("attention"), "attention+matmuls": t("attention and products"), full: t("whole layers"), "every:2": t("every 2nd layer"), "every:4": t("every 4th layer") } }),
    number("adapter", "lora_rank", t("LoRA rank"), ranked, { note: t("Adapters of that rank are trained, and the model's own weights are frozen"), empty: t("none") }),
    choice("adapter", "base", t("Frozen weights"), frozen, { note: t("QLoRA: the frozen weights in 4 or 8 bits beside adapters"), names: { none: t("as they are"), nf4: t("nf4 (QLoRA)"), "nf4-dq": t("nf4, scales quantised too"), int8: "int8" } }),
    choice("run", "attn_implementation", t("Attention"), changed, { note: t("Kernels of attention; by default those that torch, or the framework, chooses"), names: { default: t("default"), "sdpa-math": t("sdpa, math") } }),
  ];
  made = { controls, line: line(), body: h("div", {}) };
  $("training").replaceChildren(h("div", { class: "settings" }, controls.map((one) => one.row)),
    h("p", { id: "training-status", class: "status", role: "status" }), made.body, made.line.row);
}

function ask() {
  const { model } = view, config = asked(model.model);
  for (const one of made.controls) one.update();
  made.line.write(command(model.model, "run", "adapter"));
  question.ask({ model: config, settings: request(state, "run", "adapter") }, { title: model.title, model: config });
}

const moment = ({ phase, node }) => (node ? t("{0}, {1}", PHASES[phase], node) : PHASES[phase]);

/** A row a phase: what it holds at its highest point. */
function phases(used) {
  const all = Object.entries(used.by_phase), sum = (kinds) => Object.values(kinds).reduce((total, size) => total + size, 0);
  const had = Object.keys(all[0][1]).filter((kind) => all.some(([, kinds]) => kinds[kind] > 0));
  const most = Math.max(...all.map(([, kinds]) => sum(kinds)));
  const head = had.map((kind) => h("th", { scope: "col" }, h("i", { style: `background:${paint(kind)}` }), named(kind)));
  const rows = all.map(([phase, kinds]) => {
    const parts = had.map((kind) => [kind, kinds[kind]]);
    return h("tr", { class: phase === used.peak_at.phase ? "peak" : "" }, h("th", { scope: "row" }, PHASES[phase]), h("td", {}, h("b", {}, gib(sum(kinds)))), h("td", { class: "track" }, bar(parts, most)),
      parts.map(([, size]) => h("td", {}, size ? gib(size) : "")));
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("What each phase holds at its highest point, by kind") }, h("table", { class: "phases" },
    h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, t("at most, GiB")), h("td", {}), head)), h("tbody", {}, rows)));
}

/** The modules in the order in which they ran, without those that only hold others; the step of the optimizer, which is one moment, as broad as a twelfth of them. */
function course(timeline) {
  const holders = new Set();
  for (const { node } of timeline) for (let at = node.lastIndexOf("."); at > 0; at = node.lastIndexOf(".", at - 1)) holders.add(node.slice(0, at));
  const points = timeline.filter(({ phase, node }) => phase !== "step" && node && !holders.has(node));
  const step = timeline.filter(({ phase }) => phase === "step");
  return [...points, ...step.flatMap((point) => Array(Math.max(1, Math.round(points.length / 12 / step.length))).fill(point))];
}

/** Values for an axis of bytes, round in the unit in which it is written. */
function scale(high) {
  const unit = high >= 2 ** 40 ? 2 ** 40 : GIB, room = high / unit / 5, power = 10 ** Math.floor(Math.log10(room));
  const step = [1, 2, 5, 10].find((q) => q * power >= room) * power * unit;
  return Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => i * step);
}

/** What every phase holds as much of: the chart shows it below the rest. */
const steady = ({ by_phase: phases }) => ["weights", "optimizer"].map((kind) => [kind, Object.values(phases).map((kinds) => kinds[kind])])
  .filter(([, sizes]) => sizes[0] && sizes.every((size) => size === sizes[0])).map(([kind, sizes]) => [kind, sizes[0]]);

/** Accelerators whose capacity is not far from the peak, so many as there is room for their names. */
function marks(fits, peak, Y) {
  const found = [];
  for (const fit of fits.filter(({ usable_bytes: size }) => size > peak * NEAR[0] && size < peak * NEAR[1]).sort((a, b) => Math.abs(a.usable_bytes - peak) - Math.abs(b.usable_bytes - peak))) {
    if (found.every((one) => Math.abs(Y(one.usable_bytes) - Y(fit.usable_bytes)) > LABEL)) found.push(fit);
  }
  return found.slice(0, 5);
}

function timeline(place, used, fits) {
  const points = course(used.timeline), wide = place.clientWidth;
  const peak = Math.max(...points.map((point) => point.bytes));
  const high = Math.max(peak * 1.06, ...fits.map((fit) => fit.usable_bytes).filter((size) => size > peak && size < peak * NEAR[1]).map((size) => size * 1.04));
  const X = (i) => LEFT + ((wide - LEFT - RIGHT) * i) / points.length;
  const Y = (size) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * size) / high;
  const grid = scale(high).map((at) => [s("path", { class: "rule", d: `M${LEFT} ${Y(at)}H${wide - RIGHT}` }), s("text", { x: LEFT - 8, y: Y(at) + 4, "text-anchor": "end" }, joined(bytes(at)))]);
  const outline = (from, to) => points.slice(from, to).map((point, i) => `L${X(from + i).toFixed(1)} ${Y(point.bytes).toFixed(1)}H${X(from + i + 1).toFixed(1)}`).join("").slice(1);
  const whole = outline(0, points.length);
  let below = 0;
  const bands = steady(used).map(([kind, size]) => {
    const y = Y(below + size), drawn = s("rect", { x: LEFT, y, width: wide - LEFT - RIGHT, height: Y(below) - y, fill: paint(kind) });
    below += size;
    return drawn;
  });
  const starts = points.flatMap((point, i) => (i === 0 || points[i - 1].phase !== point.phase ? [i] : []));
  const names = starts.map((from, k) => {
    const to = starts[k + 1] ?? points.length, middle = (X(from) + X(to)) / 2, { phase } = points[from];
    const name = pixels(PHASES[phase]) < X(to) - X(from) ? PHASES[phase] : SHORT[phase];
    return [from ? s("path", { class: "rule", d: `M${X(from)} ${TOP - 6}V${HEIGHT - BOTTOM}` }) : "", s("text", { x: Math.min(middle, wide - RIGHT - pixels(name) / 2), y: 12, "text-anchor": "middle" }, name)];
  });
  const capacities = marks(fits, peak, Y).map((fit) => [s("path", { class: "here", d: `M${LEFT} ${Y(fit.usable_bytes)}H${wide - RIGHT}` }), s("text", { class: "name", x: LEFT + 6, y: Y(fit.usable_bytes) - 4 }, fit.hardware)]);
  const cursor = s("path", { class: "cursor" }), dot = s("circle", { class: "dot", r: 4 });
  const text = h("output", {});
  const at = h("input", { type: "range", min: 0, max: points.length - 1, "aria-label": t("Moment of the step"), oninput: () => show() });
  function show() {
    const i = +at.value, point = points[i], x = (X(i) + X(i + 1)) / 2;
    const said = t("{0} in the {1}", joined(bytes(point.bytes)), moment(point));
    cursor.setAttribute("d", `M${x} ${TOP - 6}V${HEIGHT - BOTTOM}`);
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", Y(point.bytes));
    text.value = said;
    at.setAttribute("aria-valuetext", said);
  }
  const move = (event) => {
    const from = event.currentTarget.getBoundingClientRect();
    at.value = Math.floor(((event.clientX - from.left - LEFT) / (wide - LEFT - RIGHT)) * points.length);
    show();
  };
  place.replaceChildren(s("svg", { width: wide, height: HEIGHT, "aria-hidden": "true", onpointermove: move },
    s("clipPath", { id: "course" }, s("path", { d: `M${LEFT} ${HEIGHT - BOTTOM}L${whole}V${HEIGHT - BOTTOM}z` })),
    grid, s("g", { "clip-path": "url(#course)" }, s("rect", { class: "rest", x: LEFT, y: 0, width: wide - LEFT - RIGHT, height: HEIGHT }), bands),
    s("path", { class: "outline", d: `M${whole}` }), names, capacities, cursor, dot),
  h("label", { class: "moment" }, at, text));
  at.value = points.findIndex((point) => point.bytes === peak);
  show();
}

function paintAll() {
  if (!answer) return;
  width = $("training").clientWidth;
  if (answer.stopped) return made.body.replaceChildren(h("p", { class: "quiet" }, t("Stopped. "), h("button", { type: "button", class: "offer", onclick: () => { question.forget(); ask(); } }, t("Count again"))));
  if (answer.error) return made.body.replaceChildren(h("p", { class: "error" }, answer.error));
  const { memory: used, fits, workload } = answer.found.training;
  const parts = partsOf(used), place = h("div", { class: "course" });
  const key = steady(used).map(([kind]) => h("span", {}, h("i", { style: `background:${paint(kind)}` }), named(kind)));
  const tensors = joined(bytes(used.peak_bytes)), run = t("{0} × {1} tokens", workload.batch, integer(workload.seq));
  made.body.replaceChildren(
    h("p", { class: "quiet said" }, h("b", { class: "big", title: t("{0} bytes", integer(used.device_bytes)) }, joined(bytes(used.device_bytes))), t(" needed to train {0} on {1}. The peak, {2} in the allocator's blocks, is in the {3}; {4} stay after a step.", answer.title, run, tensors, moment(used.peak_at), joined(bytes(used.after_step_bytes)))),
    phases(used), h("h3", {}, t("Module by module")), h("div", { class: "legend" }, key, h("span", {}, h("i", { class: "rest" }), t("gradients, activations kept and temporary tensors"))), place,
    h("h3", {}, t("On one accelerator")), legend(parts, used.device_bytes), fitting(fits, parts, used.device_bytes));
  timeline(place, used, fits);
}

export async function draw(next) {
  view = next;
  await style();
  if (!made) make();
  if (view.model.answer) ask();
  if (width !== $("training").clientWidth) paintAll();
}
