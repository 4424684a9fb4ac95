// All presets by their proportions, h/L and d_ff/h, against their size, with the models of the page highlighted. The data
// were made when the page was built. A point is a button: the mouse finds the nearest, arrow keys go from one to the next.
import { short, ticks } from "../axes.js";
import { $, h, here, pressable, s } from "../dom.js";
import { count, integer, joined } from "../format.js";
import { SERIES } from "../palette.js";
import { ask, Refused } from "../python.js";
import { asked, MOST, state } from "../state.js";
import { t } from "../words.js";

const HEIGHT = 320, LEFT = 44, RIGHT = 12, TOP = 12, BOTTOM = 42, NEAR = 24, LABEL = 7.6, NARROW = 420;
const HINT = t("Point at a model to see its sizes. A click, or Enter, adds it to this page.");
const CHARTS = [{ key: "aspect_ratio", title: "h / L" }, { key: "feed_forward_ratio", title: t("d_ff / h, in a mixture of experts the width that a token uses") }];

let data = null, view = null, charts = [], room = 0, width = 0; // room: of the panel, width: of a chart
const others = new Map(); // proportions of the page's models that are no presets

async function loaded() {
  const answer = await fetch(here("proportions.json"));
  if (!answer.ok) throw new Error(`proportions.json: ${answer.status} ${answer.statusText}`);
  const { band, models } = await answer.json(), alike = new Map(); // models of the same sizes are one point
  for (const model of models) {
    const key = [model.parameters, model.hidden_size, model.num_hidden_layers, model.feed_forward_width].join();
    if (!alike.has(key)) alike.set(key, { ...model, models: [] });
    alike.get(key).models.push(model);
  }
  return { band, all: models, places: [...alike.values()].sort((a, b) => a.parameters - b.parameters) };
}

/** Where a model of the page stands: a preset's place, or what Python says of any other model. */
async function proportions(model) {
  const found = data.all.find((one) => one.name === model.model.preset);
  if (found) return found;
  const key = JSON.stringify(asked(model.model));
  if (!others.has(key)) others.set(key, await ask("proportions", { model: asked(model.model) }));
  return others.get(key);
}

const upTo = (words, most) => (words.length > most ? t("{0} and {1} more", words.slice(0, most).join(", "), words.length - most) : words.join(", "));

function words(place) {
  const [model, ...alike] = place.models, width = place.feed_forward_width;
  const sizes = t("{0} parameters, {1} layers of {2}, h/L {3}", joined(count(place.parameters)), integer(place.num_hidden_layers), integer(place.hidden_size), place.aspect_ratio.toFixed(1));
  const network = width ? `, d_ff/h ${place.feed_forward_ratio.toFixed(2)}` : "";
  return `${model.title}: ${sizes}${network}${alike.length ? t(". Of the same sizes: {0}", upTo(alike.map((one) => one.title), 3)) : ""}`;
}

const say = (text) => { $("presets-said").textContent = text; };

/** Rings a place in both charts, names it in one of them, and says its sizes. */
function point(place, chart) {
  for (const one of charts) {
    const at = place && one.at(place);
    const title = at && one === chart && width > NARROW ? short(place.title) : "", left = at && at.x + 12 + LABEL * title.length < width;
    one.hot.replaceChildren(...(at ? [s("circle", { class: "ring", cx: at.x, cy: at.y, r: 8 }), s("text", { class: "name", x: at.x + (left ? 12 : -12), y: at.y + 4, "text-anchor": left ? "start" : "end" }, title)] : []));
  }
  say(place ? `${words(place)}.` : HINT);
}

async function chosen(place) {
  const there = view.models.findIndex(({ model }) => place.models.some((one) => one.name === model.preset));
  if (there >= 0) return view.choose(there);
  say(t("Adding {0}…", place.models[0].title));
  const problem = await view.add(place.models[0].name);
  say(problem ?? t("{0} is added: {1} of at most {2} models.", place.models[0].title, state.models.length, MOST));
}

function shape(place, x, y) {
  return place.mixture_of_experts ? s("rect", { class: "experts", x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4 }) : s("circle", { cx: x, cy: y, r: 3.4 });
}

function move(event, chart, place) {
  const { ordered, upwards } = chart;
  const next = { ArrowRight: [ordered, 1], ArrowLeft: [ordered, -1], ArrowUp: [upwards, 1], ArrowDown: [upwards, -1] }[event.key];
  const to = next ? next[0][next[0].indexOf(place) + next[1]] : { Home: ordered[0], End: ordered.at(-1) }[event.key];
  if (!next && !to) return;
  event.preventDefault();
  if (to) chart.focus(to);
}

/** Draws one chart into its figure, and returns what finds and marks its places. */
function made(figure, { key, title }, band) {
  const ordered = data.places.filter((one) => one[key]), upwards = [...ordered].sort((a, b) => a[key] - b[key]);
  const low = upwards[0][key] / 1.15, high = upwards.at(-1)[key] * 1.15, least = ordered[0].parameters / 1.4, most = ordered.at(-1).parameters * 1.4;
  const bottom = HEIGHT - BOTTOM, right = width - RIGHT;
  const X = (x) => LEFT + ((right - LEFT) * Math.log(x / least)) / Math.log(most / least);
  const Y = (y) => bottom - ((bottom - TOP) * Math.log(y / low)) / Math.log(high / low);
  const at = (place) => (place[key] ? { x: X(place.parameters), y: Y(place[key]) } : null);
  const grid = ticks(low, high, 2, 8).map((y) => [s("path", { class: "rule", d: `M${LEFT} ${Y(y)}H${right}` }), s("text", { x: LEFT - 8, y: Y(y) + 4, "text-anchor": "end" }, String(y))]);
  const axis = [];
  for (let k = Math.ceil(Math.log10(least)); 10 ** k <= most; k += 1) axis.push(s("text", { x: X(10 ** k), y: bottom + 18, "text-anchor": "middle" }, joined(count(10 ** k)).replace(/\.0+(?= )/, "")));
  axis.push(s("text", { x: (LEFT + right) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, t("parameters")));
  const chart = { at, ordered, upwards, hot: s("g", { "aria-hidden": "true" }), own: s("g", { "aria-hidden": "true" }), current: null };
  const buttons = new Map(ordered.map((place) => {
    const { x, y } = at(place), { onclick, onkeydown, role } = pressable(() => chosen(place));
    const pressed = (event) => { onkeydown(event); move(event, chart, place); };
    return [place, s("g", { role, tabindex: -1, "aria-label": words(place), "data-preset": place.name, onclick, onkeydown: pressed, onfocus: () => point(place, chart) }, shape(place, x, y))];
  }));
  chart.reach = (place) => { // the one point that the Tab key reaches
    if (chart.current) buttons.get(chart.current).setAttribute("tabindex", -1);
    chart.current = place;
    buttons.get(place).setAttribute("tabindex", 0);
  };
  chart.focus = (place) => { chart.reach(place); buttons.get(place).focus({ preventScroll: true }); };
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const distance = (place) => Math.hypot(at(place).x - px, at(place).y - py);
    const best = ordered.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    return distance(best) <= NEAR ? best : null;
  };
  const click = (event) => { const place = event.target.closest("[role]") === drawing && nearest(event); if (place) { chart.reach(place); point(place, chart); chosen(place); } };
  const usual = band ? s("rect", { class: "band", x: LEFT, y: Y(band[1]), width: right - LEFT, height: Y(band[0]) - Y(band[1]) }) : "";
  const drawing = s("svg", { width, height: HEIGHT, role: "group", "aria-label": t("{0} of {1} points by parameters; arrow keys go from point to point", title, integer(ordered.length)), onclick: click, onpointermove: (event) => point(nearest(event), chart), onpointerleave: () => point(null) },
    s("rect", { width, height: HEIGHT, fill: "transparent" }), usual, grid, axis, s("g", { class: "dots" }, [...buttons.values()]), chart.own, chart.hot);
  figure.append(h("figcaption", {}, title), drawing);
  return chart;
}

function build() {
  const figures = CHARTS.map(() => h("figure", {}));
  const key = h("div", { class: "legend" }, h("span", {}, h("i", { class: "dense" }), t("dense")), h("span", {}, h("i", { class: "experts" }), t("mixture of experts")),
    h("span", {}, h("i", { class: "band" }), t("h/L {0} to {1}: most large dense decoders", ...data.band)), h("span", { id: "presets-own" }));
  $("presets").replaceChildren(key, h("div", { class: "pair" }, figures), h("p", { class: "said", id: "presets-said" }, HINT));
  room = $("presets").clientWidth;
  width = figures[0].clientWidth;
  charts = CHARTS.map((one, i) => made(figures[i], one, i ? null : data.band));
}

/** Where names stand beside their points, so that none lies over another name or point, as far as there is room. */
function labelled(points) {
  const taken = points.map(({ x, y }) => [x - 8, y - 8, x + 8, y + 8]);
  return points.map(({ x, y, title }) => {
    const wide = LABEL * title.length, sides = [[11, 0], [-11 - wide, 0], [-wide / 2, -15], [-wide / 2, 15], [11, 13], [11, -13], [-11 - wide, 13], [-11 - wide, -13]];
    const boxes = sides.map(([dx, dy]) => [x + dx, y + dy - 7, x + dx + wide, y + dy + 7]).filter(([left, , right]) => left > 0 && right < width);
    const free = boxes.find((box) => !taken.some((one) => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3])) ?? boxes[0];
    taken.push(free);
    return s("text", { class: "name", x: free[0], y: free[1] + 11 }, title);
  });
}

/** The page's models, over all others: large points, with names where the chart is wide enough, and in the legend. */
function highlight(owned) {
  $("presets-own").replaceChildren(...owned.map(({ title, at }) => h("span", {}, h("i", { style: `background:${SERIES[at]}` }), title)));
  for (const chart of charts) {
    const drawn = owned.map((one) => ({ ...one, ...chart.at(one.place) })).filter((one) => one.x !== undefined);
    chart.own.replaceChildren(...drawn.map(({ x, y, at }) => s("circle", { class: "own", cx: x, cy: y, r: 6.5, fill: SERIES[at] })), ...(width > NARROW ? labelled(drawn) : []));
    const first = data.places.find((place) => place.models.some((one) => owned.some(({ place: own }) => own.name === one.name)));
    if (!chart.current) chart.reach(first && chart.at(first) ? first : chart.ordered[0]);
  }
}

export async function draw(next) {
  view = next;
  data ??= await loaded();
  if (room !== $("presets").clientWidth || !$("presets-said")) build(); // an error stands in its place
  const owned = [];
  for (const [at, model] of view.models.entries()) {
    try {
      if (model.answer) owned.push({ at, title: short(model.title), place: await proportions(model) });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }
  if (view === next) highlight(owned);
}
