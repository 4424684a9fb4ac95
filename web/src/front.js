// The Pareto front of servers: time per output token against tokens per second of a device, both on log axes.
import { ticks } from "./axes.js";
import { h, s } from "./dom.js";
import { integer, range, seconds } from "./format.js";
import { SERIES } from "./palette.js";
import { readout } from "./readout.js";
import { t } from "./words.js";

const COLOURS = 6; // the palette's next one is black, which a dark page hides in a legend
const HEIGHT = 264, LEFT = 62, BOTTOM = 38, TOP = 12, RIGHT = 18;

/** The chart, its legend and its readout. found: the document of `serve`. width: pixels. named: writes a server's layout.

    Every server is a curve, a dot for each number of users; those with a point on the front have a colour, up to the
    number of colours. The front is the wide band behind them: no other server is both quicker and busier. */
export function front(found, width, named) {
  const { servers, chosen, limits } = found;
  const points = servers.flatMap((server, index) => server.curve.map((point) => ({ ...point, index, tpot: point.tpot.estimate, spread: point.tpot })));
  const best = found.front.map(({ server, concurrency }) => points.find((point) => point.index === server && point.concurrency === concurrency));
  const coloured = [...new Set(best.map((point) => point.index))].slice(0, COLOURS);
  const colour = (index) => SERIES[coloured.indexOf(index)] ?? null;
  const edges = (values) => [Math.min(...values), Math.max(...values)].map((value, i) => value * (i ? 1.08 : 0.93));
  const [x0, x1] = edges([...points.map((point) => point.tpot), ...(limits.tpot === null ? [] : [limits.tpot])]), [y0, y1] = edges(points.map((point) => point.per_device));
  const X = (x) => LEFT + ((width - LEFT - RIGHT) * Math.log(x / x0)) / Math.log(x1 / x0);
  const Y = (y) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * Math.log(y / y0)) / Math.log(y1 / y0);
  const path = (some) => `M${some.map((point) => `${X(point.tpot).toFixed(1)} ${Y(point.per_device).toFixed(1)}`).join("L")}`;
  const grid = ticks(y0, y1, 10).map((y) => [
    s("path", { class: "rule", d: `M${LEFT} ${Y(y)}H${width - RIGHT}` }),
    s("text", { x: LEFT - 8, y: Y(y) + 4, "text-anchor": "end" }, integer(y)),
  ]);
  const axis = ticks(x0, x1, 10, width < 480 ? 4 : 8).map((x) => s("text", { x: X(x), y: HEIGHT - 20, "text-anchor": "middle" }, seconds(x)));
  const curves = servers.map((server, index) => ({ index, points: points.filter((point) => point.index === index) }));
  const drawn = [...curves.filter(({ index }) => !colour(index)), ...curves.filter(({ index }) => colour(index))].map((curve) =>
    s("path", colour(curve.index) ? { class: "line", stroke: colour(curve.index), d: path(curve.points) } : { class: "rule", d: path(curve.points) }));
  const limit = limits.tpot === null ? "" : s("path", { class: "here", d: `M${X(limits.tpot)} ${TOP}V${HEIGHT - BOTTOM}` });
  const cursor = s("circle", { class: "cursor", r: 6, fill: "none" }), said = h("output", { class: "readout" });
  const mark = chosen ? [s("circle", { class: "dot", cx: X(chosen.tpot.estimate), cy: Y(chosen.per_device), r: 4.5 })] : [];
  const drawing = s("svg", { class: "course front", width, height: HEIGHT }, grid, axis,
    s("path", { class: "best", d: path(best) }), drawn, limit, mark, cursor,
    s("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 2, "text-anchor": "middle" }, t("time per output token; up: tokens/s of a device")));
  const texts = points.map((point) => t("{0}, {1} users: {2} per token, likely {3}; {4} tokens/s a device", named(servers[point.index].options), integer(point.concurrency), range(point.spread), seconds(point.tpot), integer(point.per_device)));
  const show = (i) => {
    cursor.setAttribute("cx", X(points[i].tpot));
    cursor.setAttribute("cy", Y(points[i].per_device));
    said.value = texts[i];
  };
  const start = points.findIndex((point) => point.index === chosen?.server && point.concurrency === chosen.concurrency);
  readout(drawing, { xs: points.map((point) => X(point.tpot)), ys: points.map((point) => Y(point.per_device)), texts, start: Math.max(start, 0), show, label: t("Time per output token and tokens per second of a device, by server") });
  const names = coloured.map((index) => h("span", {}, h("i", { style: `background:${colour(index)}` }), named(servers[index].options)));
  return [h("div", { class: "legend" }, h("span", {}, h("i", { class: "best" }), t("Pareto front")), names), drawing, said];
}
