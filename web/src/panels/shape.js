// Depth against width: other shapes with as many parameters as each model, and what a token costs in them. The shapes
// are those of `llmcalc shape`, and the table is the one that it prints.
import { short, ticks } from "../axes.js";
import { $, h, s } from "../dom.js";
import { line } from "../fields.js";
import { bytes, flops, integer, joined, tokens } from "../format.js";
import { SERIES } from "../palette.js";
import { readout } from "../readout.js";
import { ask, Refused } from "../python.js";
import { commandLine } from "../shell.js";
import { asked, state, target } from "../state.js";
import { t, translated } from "../words.js";

const HEIGHT = 236, LEFT = 84, RIGHT = 22, TOP = 10, BOTTOM = 42;
const DEEPEST = 8, WIDEST = 1024; // h/L of the axis, as far as a study goes
const RESTS = 250; // ms without a change before shapes are counted: it takes longer than a slider's step

let latest = "", counted = "", studies = [], view = null, open = false;

async function study(model, at) {
  const title = short(model.title);
  try {
    return { title, at, model, ...(await ask("shape", { model: asked(model.model), ctx: state.ctx, kv: state.kv })) };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { title, at, model, error: translated(error.line.replace(/^shape: /, "")) };
  }
}

export async function draw(next) {
  view = next;
  const { models } = view;
  const key = JSON.stringify([models.map((model) => [asked(model.model), Boolean(model.answer)]), state.ctx, state.kv]);
  if (key === latest) return key === counted ? paint() : undefined; // else what is drawn is of other settings
  latest = key;
  if (!studies.length) $("shape").replaceChildren(h("p", { class: "quiet" }, t("Counting other shapes of the same size…")));
  await new Promise((resolve) => setTimeout(resolve, RESTS));
  const found = [];
  for (const [at, model] of models.entries()) {
    if (key !== latest) return;
    try {
      if (model.answer) found.push(await study(model, at));
    } catch (error) {
      latest = "";
      throw error;
    }
  }
  if (key !== latest) return;
  studies = found;
  counted = key;
  paint();
}

const words = ({ num_hidden_layers: layers, hidden_size: size, aspect_ratio: ratio, flops_per_token: work, kv_bytes_per_token: cache }) =>
  t("{0} layers of {1}, h/L {2}: {3} and {4} per token", integer(layers), integer(size), ratio.toFixed(1), joined(flops(work)), joined(bytes(cache)));

function chart(figure, drawn, band, { key, write, base, what }) {
  const width = figure.clientWidth;
  const shapes = drawn.flatMap((one) => one.shape.shapes), values = shapes.map((one) => one[key]), ratios = shapes.map((one) => one.aspect_ratio);
  const pad = Math.max(Math.max(...values) / Math.min(...values), 1.2) ** 0.07, low = Math.min(...values) / pad, high = Math.max(...values) * pad;
  const x0 = Math.log2(Math.min(DEEPEST, ...ratios)), x1 = Math.log2(Math.max(WIDEST, ...ratios)), bottom = HEIGHT - BOTTOM;
  const X = (x) => LEFT + ((width - LEFT - RIGHT) * (Math.log2(x) - x0)) / (x1 - x0);
  const Y = (y) => bottom - ((bottom - TOP) * Math.log(y / low)) / Math.log(high / low);
  const grid = ticks(low, high, base).map((y) => [
    s("path", { class: "rule", d: `M${LEFT} ${Y(y)}H${width - RIGHT}` }),
    s("text", { x: LEFT - 8, y: Y(y) + 4, "text-anchor": "end" }, joined(write(y)).replace(/\.0+(?= )/, "")),
  ]);
  const axis = ticks(2 ** x0, 2 ** x1, 2, 8).map((x) => s("text", { x: X(x), y: bottom + 18, "text-anchor": "middle" }, integer(x)));
  axis.push(s("text", { x: LEFT, y: HEIGHT - 5 }, t("← deeper")), s("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "h / L"), s("text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, t("wider →")));
  const usual = s("rect", { class: "band", x: X(band[0]), y: TOP, width: X(band[1]) - X(band[0]), height: bottom - TOP });
  const lines = drawn.map(({ at, shape: { shapes: own } }) => s("path", { class: "line", stroke: SERIES[at], d: `M${own.map((one) => `${X(one.aspect_ratio).toFixed(1)} ${Y(one[key]).toFixed(1)}`).join("L")}` }));
  const places = [];
  const marks = drawn.flatMap(({ at, title, shape: { shapes: own } }) => own.map((one, i) => {
    const x = X(one.aspect_ratio), y = Y(one[key]);
    const drawing = one.target ? s("path", { d: `M${x} ${y - 8}l8 8l-8 8l-8 -8z`, fill: SERIES[at] }) : s("circle", { cx: x, cy: y, r: 4, fill: SERIES[at] });
    places.push({ x, y, shape: `${at}:${i}`, text: `${title}, ${words(one)}` });
    return s("g", { class: "mark", "data-shape": `${at}:${i}` }, s("circle", { cx: x, cy: y, r: 12, fill: "transparent" }), drawing);
  }));
  const drawing = s("svg", { width, height: HEIGHT }, usual, grid, axis, lines, marks);
  figure.append(h("figcaption", {}, what), drawing);
  places.sort((a, b) => a.x - b.x);
  readout(drawing, { xs: places.map(({ x }) => x), ys: places.map(({ y }) => y), texts: places.map((place) => place.text), start: null, show: (i) => point(places[i].shape, places[i].text), label: t("{0} by h/L", what) });
}

/** Marks a shape in both charts and in the table, and says what it is. */
function point(shape, text) {
  for (const one of $("shape").querySelectorAll("[data-shape]")) one.classList.toggle("hot", one.dataset.shape === shape);
  $("shape-said").textContent = text;
}

function table({ at, table: { head, rows, notes } }) {
  const body = rows.map(({ cells, strong }, i) => h("tr", { class: strong ? "on" : "", "data-shape": `${at}:${i}` }, cells.map((cell, j) => h(j ? "td" : "th", j ? {} : { scope: "row" }, translated(cell)))));
  return [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("Shapes as a table") },
    h("table", {}, h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, translated(text))))), h("tbody", {}, body))),
  h("ul", { class: "notes" }, notes.slice(1).map((note) => h("li", {}, translated(note))))];
}

function paint() {
  const drawn = studies.filter((one) => one.shape), place = $("shape");
  const refused = studies.filter((one) => one.error).map((one) => h("p", { class: "warning" }, h("b", {}, one.title), t(" has no study: {0}.", one.error)));
  if (!drawn.length) return place.replaceChildren(...refused);
  const one = drawn.find(({ model }) => model.model === view.model.model) ?? drawn[0];
  const { shapes, budget } = one.shape, deep = shapes[0], wide = shapes.at(-1);
  const legend = h("div", { class: "legend" }, drawn.map(({ title, at }) => h("span", {}, h("i", { style: `background:${SERIES[at]}` }), title)),
    h("span", {}, t("◆ the model itself")), h("span", {}, h("i", { class: "band" }), t("h/L {0} to {1}: most large dense decoders", ...one.band)));
  const range = shapes.length > 1 ? t("from {0} layers of {1} to {2} of {3}", integer(deep.num_hidden_layers), integer(deep.hidden_size), integer(wide.num_hidden_layers), integer(wide.hidden_size)) : t("no other of the same proportions");
  const said = t(shapes.length > 1 ? "{0}: {1} shapes of {2} parameters ± {3} %, {4}" : "{0}: {1} shape of {2} parameters ± {3} %, {4}", one.title, shapes.length, integer(budget.value), 100 * budget.tolerance, range);
  const command = commandLine("llmcalc", "shape", target(one.model.model), "--seq", String(state.ctx), "--kv-dtype", state.kv);
  const more = h("details", { open, ontoggle: (event) => { open = event.target.open; } }, h("summary", {}, t("The numbers of {0} as a table", one.title)), table(one));
  const figures = [h("figure", {}), h("figure", {})], below = line();
  place.replaceChildren(legend, h("div", { class: "pair" }, figures), h("p", { class: "said", id: "shape-said" }, said), h("p", { class: "warning" }, translated(one.table.notes[0])), ...refused, more, below.row);
  below.write(command);
  chart(figures[0], drawn, one.band, { key: "flops_per_token", write: flops, base: 10, what: t("FLOPs per token at {0} tokens, forward pass", tokens(state.ctx)) });
  chart(figures[1], drawn, one.band, { key: "kv_bytes_per_token", write: bytes, base: 2, what: t("KV cache per token, {0}", state.kv) });
}
