// Two log-log charts against context: the cache of all sequences, and FLOPs per token. Names of models stand at the ends
// of their lines, or above the chart where there is no room for them.
import { short, ticks } from "../axes.js";
import { $, h, s } from "../dom.js";
import { bytes, flops, integer, joined, tokens } from "../format.js";
import { SERIES } from "../palette.js";
import { readout } from "../readout.js";
import { state } from "../state.js";
import { t } from "../words.js";

const HEIGHT = 214, LEFT = 86, BOTTOM = 26, TOP = 14, LABEL = 7.8, NARROW = 360;

function chart(place, width, curves, write, base, what) {
  const points = curves.flatMap((one) => one.points);
  if (!points.length) return place.replaceChildren(h("p", { class: "quiet" }, t("None: an encoder reads a sequence in one pass and keeps nothing.")));
  const drawn = curves.filter((one) => one.points.length);
  const names = 30 + LABEL * Math.max(...drawn.map((one) => one.title.length));
  const beside = width >= NARROW && names <= Math.min(190, width * 0.36), right = beside ? names : 16;
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const x0 = Math.log2(Math.min(...xs)), x1 = Math.max(Math.log2(Math.max(...xs)), x0 + 1);
  const spread = Math.max(...ys) / Math.min(...ys);
  const low = Math.min(...ys) / (spread < 4 ? 2 : 1), high = Math.max(...ys) * (spread < 4 ? 2 : 1);
  const X = (x) => LEFT + ((width - LEFT - right) * (Math.log2(x) - x0)) / (x1 - x0);
  const Y = (y) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * Math.log(y / low)) / Math.log(high / low || 2);
  const grid = ticks(low * 0.999, high * 1.001, base).map((y) => [
    s("path", { class: "rule", d: `M${LEFT} ${Y(y)}H${width - right}` }),
    s("text", { x: LEFT - 8, y: Y(y) + 4, "text-anchor": "end" }, joined(write(y)).replace(/\.0+(?= )/, "")),
  ]);
  const step = x1 - x0 > 5 && width < 480 ? 2 : 1, axis = [];
  for (let k = Math.ceil(x0); k <= x1; k += step) axis.push(s("text", { x: X(2 ** k), y: HEIGHT - 6, "text-anchor": "middle" }, tokens(2 ** k)));
  const here = state.ctx >= 2 ** x0 && state.ctx <= 2 ** x1 ? s("path", { class: "here", d: `M${X(state.ctx)} ${TOP}V${HEIGHT - BOTTOM}` }) : "";
  const paths = new Map(); // what lies over an equal curve is dashed, so that both are seen
  const lines = drawn.map(({ points: own, at }) => {
    const d = `M${own.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L")}`, below = paths.get(d) ?? 0;
    paths.set(d, below + 1);
    return s("path", { class: "line", stroke: SERIES[at], "stroke-dasharray": below ? `${8 / below} 8` : undefined, d });
  });
  const ends = drawn.map((one) => ({ ...one, x: X(one.points.at(-1)[0]), y: Y(one.points.at(-1)[1]) })).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 14); });
  const labels = beside ? ends.map((end) => s("text", { class: "name", x: end.x + 8, y: end.y + 4 }, s("tspan", { fill: SERIES[end.at] }, "● "), end.title)) : [];
  const legend = beside ? [] : [h("div", { class: "legend" }, drawn.map((one) => h("span", {}, h("i", { style: `background:${SERIES[one.at]}` }), one.title)))];
  const marks = s("g", { "aria-hidden": "true" }), said = h("output", { class: "readout" });
  const drawing = s("svg", { width, height: HEIGHT }, grid, axis, here, lines, labels, marks);
  place.replaceChildren(...legend, drawing, said);
  const columns = [...new Set(xs)].sort((a, b) => a - b), at = (one, x) => one.points.find(([tokensOf]) => tokensOf === x)?.[1];
  const texts = columns.map((x) => t("{0}: {1}", t("{0} tokens", integer(x)), drawn.filter((one) => at(one, x)).map((one) => `${drawn.length > 1 ? `${one.title} ` : ""}${joined(write(at(one, x)))}`).join(t(", "))));
  const show = (i) => {
    const x = columns[i];
    marks.replaceChildren(s("path", { class: "cursor", d: `M${X(x)} ${TOP}V${HEIGHT - BOTTOM}` }), ...drawn.filter((one) => at(one, x)).map((one) => s("circle", { cx: X(x), cy: Y(at(one, x)), r: 4, fill: SERIES[one.at] })));
    said.value = texts[i];
  };
  const start = columns.reduce((best, x, i) => (Math.abs(Math.log(x / state.ctx)) < Math.abs(Math.log(columns[best] / state.ctx)) ? i : best), 0);
  readout(drawing, { xs: columns.map(X), texts, start, show, label: what });
}

export function draw({ models, room }) {
  const of = (name) => models.map((model, at) => ({ title: short(model.title), at, points: model.answer?.curves[name].filter(([, y]) => y > 0) ?? [] }));
  if (!models.some((model) => model.answer)) return;
  chart($("kv"), room.kv.width, of("kv"), bytes, 2, t("Bytes of the cache of {0} sequences by context", state.batch));
  chart($("flops"), room.flops.width, of("flops"), flops, 10, t("FLOPs per token by context"));
}
