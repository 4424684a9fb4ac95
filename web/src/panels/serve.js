// Servers under load: the cheapest that keeps the limit, all that fit, and how one fares with more users.
import { answerPanel } from "../answer_panel.js";
import { debouncedQuery } from "../debounced_query.js";
import { $, h, s } from "../dom.js";
import { choice, line, number, style } from "../fields.js";
import { integer, range, seconds } from "../format.js";
import { front } from "../front.js";
import { SERIES } from "../palette.js";
import { readout } from "../readout.js";
import { options, request, starts } from "../training_settings.js";
import { commandLine } from "../shell.js";
import { asked, state, target } from "../state.js";
import { t, translated } from "../words.js";

const ROWS = 8, HEIGHT = 220, LEFT = 62, BOTTOM = 34, TOP = 12, RIGHT = 18;
const SIZES = ["tp", "pp", "dp", "ep"];
const REASONS = { "TPOT above --tpot": t("more ms per token than the limit"), "the cache holds fewer requests than --concurrency": t("the cache holds fewer requests than there are users") }; // without options
const ENGINES = { vllm: "vLLM", sglang: "SGLang", "tensorrt-llm": "TensorRT-LLM" };

let made = null, view = null, answer = null, width = 0;

const servers = debouncedQuery("serve", "serve-status", (found, along) => {
  answer = { ...found, ...along };
  window.llmcalc.serve = found.found?.serve;
  paint();
});

function make() {
  const changed = () => { view.link(); ask(); };
  const controls = [
    choice("serve", "hardware", t("Accelerator"), changed, { values: () => view.model.memory?.memory?.fits.map((fit) => fit.hardware) ?? [] }),
    choice("serve", "engine", t("Engine"), changed, { note: t("The program that serves the model; by its own rule weights and cache fit"), names: ENGINES }),
    choice("serve", "quantize", t("Weights"), changed, { names: { auto: t("as published"), "fp8-dynamic": "fp8", "awq-int4-g128": t("4 bits (AWQ)"), nvfp4: "nvfp4" } }),
    choice("serve", "kv_dtype", t("KV cache"), changed, { names: { auto: t("default") } }),
    number("serve", "devices", t("Devices"), changed, { note: t("Of the whole server; by default as few as keep the limit"), empty: t("as needed") }),
    number("serve", "concurrency", t("Users at once"), changed, { note: t("Requests that are answered at the same time") }),
    number("serve", "input", t("Tokens in"), changed, { note: t("Of a prompt") }),
    number("serve", "output", t("Tokens out"), changed, { note: t("Of an answer") }),
    number("serve", "tpot", t("Most ms per token"), changed, { note: t("The limit of the time per output token, likely value"), empty: t("none") }),
    number("serve", "price", t("Price"), changed, { note: t("Of a device and hour, in any currency"), empty: t("none") }),
  ];
  made = { controls, line: line(), start: line(t("The command that starts it"), "launch") };
  Object.assign(made, answerPanel($("serve"), { ...made, status: "serve-status", title: t("Servers that hold the model, their Pareto front and their load") }));
}

const named = (options) => SIZES.filter((name) => options[name] > 1).map((name) => `${name} ${options[name]}`).join(" · ") || t("one device");

function ask() {
  for (const one of made.controls) one.update();
  made.line.write(commandLine("llmcalc", "serve", target(view.model.model), ...options(state, "serve")));
  servers.ask({ model: asked(view.model.model), options: request(state, "serve") }, { title: view.model.title });
}

/** What a server takes at a number of users; the nearest number below that its curve has. */
const at = (server, users) => server.curve.filter((point) => point.concurrency <= users).at(-1) ?? server.curve[0];

function table(found) {
  const users = found.limits.concurrency, limit = found.limits.tpot, priced = found.price !== null;
  const head = [t("server"), t("devices"), t("cache, tokens"), t("users"), t("first token"), t("a token"), t("likely"), t("tokens/s"), priced ? t("a million tokens") : t("tokens/s a device")];
  const rows = found.servers.map((server, i) => ({ server, i, point: at(server, users) })).sort((a, b) => (b.i === found.chosen?.server) - (a.i === found.chosen?.server) || a.server.devices - b.server.devices);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("Servers that hold the model") }, h("table", { class: "plan servers" },
    h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, rows.slice(0, ROWS).map(({ server, i, point }) => h("tr", { class: i === found.chosen?.server ? "worst" : "" },
      h("th", { scope: "row" }, named(server.options)), h("td", {}, integer(server.devices)), h("td", {}, integer(server.replicas * server.kv_tokens)), h("td", {}, point.concurrency < users ? t("{0} at most", integer(point.concurrency)) : integer(point.concurrency)),
      h("td", {}, range(point.ttft)), h("td", {}, range(point.tpot)), h("td", {}, limit !== null && point.tpot.estimate > limit ? t("{0}, too slow", seconds(point.tpot.estimate)) : seconds(point.tpot.estimate)),
      h("td", {}, integer(point.output_tokens_per_second)), h("td", {}, priced ? point.cost_per_million.toPrecision(3) : integer(point.per_device)))))));
}

/** The engine's own command for the chosen server. */
function launch({ command, options, replicas }) {
  if (!command) return options.quantize ? h("p", { class: "quiet" }, t("To start it, give the engine a checkpoint in {0}.", options.quantize)) : "";
  made.start.write(command);
  return h("div", { class: "start" }, h("h3", {}, replicas > 1 ? t("Start each of its {0} replicas", integer(replicas)) : t("Start it")), made.start.row);
}

/** Time per output token against users, with its range, and the limit. */
function chart(server, limit, users) {
  const points = server.curve, xs = points.map((one) => Math.log2(one.concurrency));
  const x1 = Math.max(xs.at(-1), 1), highest = Math.max(limit ?? 0, ...points.map((one) => one.tpot.high));
  const power = 10 ** Math.floor(Math.log10(highest)), step = power * ([0.2, 0.5, 1, 2].find((one) => highest / power / one <= 5) ?? 2), y1 = Math.ceil(highest / step) * step;
  const X = (x) => LEFT + ((width - LEFT - RIGHT) * x) / x1, Y = (y) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * y) / y1;
  const path = (of) => points.map((one, i) => `${X(xs[i]).toFixed(1)} ${Y(of(one.tpot)).toFixed(1)}`);
  const grid = Array.from({ length: Math.round(y1 / step) + 1 }, (_, i) => i * step).map((y) => [
    s("path", { class: "rule", d: `M${LEFT} ${Y(y)}H${width - RIGHT}` }),
    s("text", { x: LEFT - 8, y: Y(y) + 4, "text-anchor": "end" }, y ? seconds(y) : "0"),
  ]);
  const axis = points.filter((_, i) => i === points.length - 1 || xs.at(-1) - xs[i] > 0.6).map((one) => s("text", { x: X(Math.log2(one.concurrency)), y: HEIGHT - 16, "text-anchor": "middle" }, integer(one.concurrency)));
  const dots = points.map((one, i) => s("circle", { cx: X(xs[i]), cy: Y(one.tpot.estimate), r: 4, class: "dot" }));
  const texts = points.map((one) => t("{0} users: {1} per token, likely {2}; {3} tokens/s", integer(one.concurrency), range(one.tpot), seconds(one.tpot.estimate), integer(one.output_tokens_per_second)));
  const line = limit === null ? "" : s("path", { class: "here", d: `M${LEFT} ${Y(limit)}H${width - RIGHT}` });
  const cursor = s("path", { class: "cursor" }), said = h("output", { class: "readout" });
  const drawing = s("svg", { class: "course", width, height: HEIGHT }, grid,
    s("path", { class: "band", d: `M${path((one) => one.high).join("L")}L${path((one) => one.low).reverse().join("L")}Z` }),
    s("path", { class: "line", stroke: SERIES[0], d: `M${path((one) => one.estimate).join("L")}` }), line, dots, axis, cursor,
    s("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 2, "text-anchor": "middle" }, t("users at once")));
  const show = (i) => {
    cursor.setAttribute("d", `M${X(xs[i])} ${TOP}V${HEIGHT - BOTTOM}`);
    said.value = texts[i];
  };
  const start = points.findLastIndex((point) => point.concurrency <= users);
  readout(drawing, { xs: xs.map(X), texts, start: Math.max(start, 0), show, label: t("Time per output token by users") });
  return [drawing, said];
}

const fail = (...reason) => { made.answer.replaceChildren(...reason); made.details.replaceChildren(); };

/** A button that counts with other settings. */
const offer = (text, settings) => h("button", { type: "button", class: "offer", onclick: () => { Object.assign(state.serve, settings); view.link(); ask(); } }, text);

/** Ways on where there is no server: without a setting that may be the reason, and what one accelerator needs. */
function offers() {
  const { hardware, engine } = starts().serve;
  const usual = [["hardware", t("Accelerator"), hardware, hardware], ["engine", t("Engine"), engine, ENGINES[engine]], ["quantize", t("Weights"), "auto", t("as published")], ["kv_dtype", t("KV cache"), "auto", t("default")], ["devices", t("Devices"), null, t("as needed")], ["tpot", t("Most ms per token"), null, t("none")]];
  const back = usual.filter(([name, , value]) => state.serve[name] !== value && (name !== "tpot" || answer.found)).map(([name, title, value, text]) => offer(t("{0}: {1}", title, text), { [name]: value }));
  const alone = h("button", { type: "button", class: "offer", onclick: () => $("memory").closest("article").scrollIntoView() }, t("Memory on one accelerator"));
  return h("div", { class: "near" }, back, answer.error && view.model.memory?.memory ? alone : "");
}

/** What is said where a request is longer than a sequence of the model may be. */
function tooLong({ input, output }) {
  const { limit } = view.model.answer, shorter = { input: limit - Math.floor(limit / 4), output: Math.floor(limit / 4) };
  if (!limit || input + output <= limit) return "";
  return h("p", { class: "error" }, t("{0} tokens are more than the {1} that this model was made for.", integer(input + output), integer(limit)), " ", offer(t("Count with {0} + {1} tokens", integer(shorter.input), integer(shorter.output)), shorter));
}

function paint() {
  if (!answer || !view.model.answer) return; // the answer of a model that is shown no more
  width = $("serve").clientWidth;
  if (answer.stopped) return fail(h("p", { class: "quiet" }, t("Stopped. "), h("button", { type: "button", class: "offer", onclick: () => { servers.forget(); ask(); } }, t("Count again"))));
  if (answer.error) return fail(h("p", { class: "error" }, answer.error), offers());
  const found = answer.found.serve, { chosen, why_not: reasons, price, limits } = found;
  const shown = found.servers[chosen?.server ?? 0];
  const said = chosen
    ? [h("b", { class: "big" }, `${integer(chosen.devices)} × ${found.hardware}`), t(price === null ? " ({0}) for {1} users of {2} + {3} tokens: {4} a token, likely {5}; {6} tokens/s." : " ({0}) for {1} users of {2} + {3} tokens: {4} a token, likely {5}; {6} tokens/s; {7} per million tokens out.", named(chosen.options), integer(limits.concurrency), integer(found.requests.input), integer(found.requests.output), range(chosen.tpot), seconds(chosen.tpot.estimate), integer(chosen.output_tokens_per_second), chosen.cost_per_million?.toPrecision(3))]
    : [h("b", { class: "big" }, t("No server keeps the limit")), t(" {0} on {1}: {2}.", answer.title, found.hardware, Object.entries(reasons).map(([why, many]) => `${REASONS[why] ?? translated(why)} (${many})`).join(", "))];
  made.answer.replaceChildren(h("p", { class: "quiet said" }, said),
    tooLong(found.requests), chosen ? launch(chosen) : offers());
  made.details.replaceChildren(
    found.servers.length ? table(found) : "",
    ...(found.servers.length ? [h("h3", {}, t("Which layout: the Pareto front")), h("div", {}, front(found, width, named))] : []),
    shown ? h("h3", {}, t("Time per output token of {0}, by users", named(shown.options))) : "", shown ? h("div", {}, chart(shown, limits.tpot, limits.concurrency)) : "",
    h("details", {}, h("summary", {}, t("How sure it is; {0}", `${found.engine.name} ${found.engine.version}`)), h("ul", { class: "notes" }, found.notes.map((note) => h("li", {}, translated(note))))));
}

export async function draw(next) {
  view = next;
  await style();
  if (!made) make();
  if (view.model.answer) ask();
  if (width !== $("serve").clientWidth) paint();
}
