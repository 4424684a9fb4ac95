// Puts the panels together: asks Python whenever a setting changes, and draws what it answers.
import { $, h, here, painted } from "./dom.js";
import { config } from "./hub.js";
import { drawAll, drawRest, lazyPanel } from "./lazy_panel.js";
import { modelList } from "./model_list.js";
import * as architecture from "./panels/architecture.js";
import * as cards from "./panels/cards.js";
import * as command from "./panels/command.js";
import * as controls from "./panels/controls.js";
import * as curves from "./panels/curves.js";
import * as formula from "./panels/formula.js";
import * as hero from "./panels/hero.js";
import * as memory from "./panels/memory.js";
import * as treemap from "./panels/treemap.js";
import { SERIES } from "./palette.js";
import { ask, ready, Refused, times } from "./python.js";
import { saveButtons } from "./save_buttons.js";
import { asked, hash, MOST, restore, state, target } from "./state.js";
import { themeSwitch } from "./theme_switch.js";
import { t, translated } from "./words.js";

const PANELS = [hero, lazyPanel("serve"), lazyPanel("cost"), cards, controls, architecture, treemap, memory, curves, command, formula, lazyPanel("training"), lazyPanel("cluster"), lazyPanel("shape"), lazyPanel("presets")];
const LINK_WAITS = 120; // ms without a change before the link is written
const MEMORY_WAITS = 180; // ms without a change before memory is counted: it takes longer than all else

let withFirst = new Set(); // presets whose first answer was made at build
let defaults = { ctx: 8192, batch: 1, weights: "bf16", kv: "bf16" };
const fetched = {}; // preset → the promise of its first answer
let shown = []; // one entry a model: {model, title, answer, memory, error}
let first = true, running = false, again = false, waiting = null, linking = null, rest = null;

/** For the tests: times in milliseconds, whether all that was asked is drawn, and later whether every panel is. */
window.llmcalc = { times, live: false, settled: false };

const problem = (text) => { $("problem").textContent = text; $("problem").hidden = !text; };
/** The model that is looked at; the last one drawn, while one that was just added is not. */
const current = () => shown[Math.min(state.on, shown.length - 1)];
const request = (model) => ({ model: asked(model), ctx: state.ctx, batch: state.batch, weights: state.weights, kv: state.kv });
const entry = (model) => shown.find((one) => one.model === model) ?? { model, title: model.hub ?? model.preset ?? "config.json" };

/** Whether a tree has the node of that path. */
const has = ({ children = [] }, path) => children.some((child) => path === child.name || (path.startsWith(`${child.name}.`) && has(child, path.slice(child.name.length + 1))));

function chooseNode(model) {
  if (!model.answer) return;
  if (state.node && !has(model.answer.params.tree, state.node)) state.node = null; // of a link, or of another model
  if (state.node) return;
  const layer = (node, path) => (node.children ?? []).map((child) => [child, path ? `${path}.${child.name}` : child.name]);
  for (const [child, path] of layer(model.answer.params.tree, "").flatMap(([one, at]) => (one.kind === "layer" ? layer(one, at) : [[one, at], ...layer(one, at).flatMap(([two, below]) => (two.kind === "layer" ? layer(two, below) : []))]))) {
    if (child.params && ["attention", "state_space", "linear_attention"].includes(child.kind) && child.children) { state.node = path; return; }
  }
}

function chips() {
  const drop = (i) => { state.models.splice(i, 1); state.on = Math.min(state.on, state.models.length - 1); state.node = null; update(); };
  $("chips").replaceChildren(...shown.map((model, i) => h("span", { class: `chip ${i === state.on ? "on" : ""}` },
    h("button", { type: "button", "aria-pressed": String(i === state.on), onclick: () => choose(i) }, h("i", { style: `background:${SERIES[i]}` }), model.title),
    shown.length > 1 ? h("button", { type: "button", class: "drop", "aria-label": t("Remove {0}", model.title), onclick: () => drop(i) }, "×") : "")));
}

function draw() {
  const model = current();
  chooseNode(model);
  // Measured before anything is drawn: the browser would lay out the page once more for each place that is asked later.
  const room = Object.fromEntries(["treemap", "kv", "flops"].map((name) => [name, { width: $(name).clientWidth, height: $(name).clientHeight }]));
  const view = { models: shown, model, room, defaults, withFirst, choose, pick, act, add, link, copy: copied };
  chips();
  document.querySelector("main").classList.toggle("unanswered", Boolean(model.error));
  for (const panel of PANELS) panel.draw(view);
  const own = times.answers.at(-1);
  $("progress").textContent = window.llmcalc.live
    ? t("Counted in this page by llmcalc's own Python, without a server; ready after {0} s, last answer {1} ms.", (times.ready / 1000).toFixed(1), Math.round(own ?? 0))
    : t("Numbers made when the page was built are shown; Python is loading.");
}

function choose(i) {
  state.on = i;
  state.node = null;
  draw();
  link();
}

function pick(node) {
  state.node = node;
  draw();
  link();
}

function act(settings) {
  Object.assign(state, settings);
  update();
}

async function link() {
  clearTimeout(linking);
  try {
    history.replaceState(null, "", `#${await hash()}`);
    $("language").hash = location.hash;
    return true;
  } catch {
    history.replaceState(null, "", "#");
    return false;
  }
}

/** Writes the link when a control rests: browsers take their time for it, and refuse many in a row. */
function linkSoon() {
  clearTimeout(linking);
  linking = setTimeout(link, LINK_WAITS);
}

/** What was made at build of a preset, fetched once; null where it cannot be had now. */
const made = (preset) => (fetched[preset] ??= fetch(here(`first/${encodeURIComponent(preset)}.json`)).then((found) => (found.ok ? found.json() : null)).catch(() => {
  delete fetched[preset];
  return null;
}));

/** The same, where it is what the state asks for. */
async function prepared(model) {
  return withFirst.has(model.preset) && Object.keys(defaults).every((key) => state[key] === defaults[key]) ? made(model.preset) : null;
}

async function answered(model) {
  try {
    if (model.hub && !model.config) model.config = await config(model.hub, model.revision);
    const answer = await ask("answer", request(model));
    return { answer, title: model.hub ?? (model.preset ? answer.params.model.title : t("Pasted config")), error: undefined };
  } catch (error) {
    if (error instanceof Refused) return { error: error.message, answer: undefined, memory: undefined };
    throw error;
  }
}

async function update() {
  linkSoon();
  window.llmcalc.settled = false;
  if (running) {
    again = true;
    if (shown.length) controls.draw({ model: current(), act });
    return;
  }
  running = true;
  const models = [...state.models];
  try {
    if (first) {
      shown = await Promise.all(models.map(async (model) => {
        const found = await prepared(model);
        return found ? { model, title: found.answer.params.model.title, answer: found.answer, memory: found.memory.error ? { error: translated(found.memory.error) } : { memory: found.memory } } : entry(model);
      }));
      first = false;
      draw();
      await painted();
      window.llmcalc.first = performance.now();
      ready().catch((error) => problem(t("Python does not run here: {0}", error.message)));
    }
    const fresh = await Promise.all(models.map(async (model) => ({ ...entry(model), ...(await answered(model)) })));
    window.llmcalc.live = true;
    shown = fresh;
    if (!again) draw();
    clearTimeout(waiting);
    waiting = setTimeout(remember, MEMORY_WAITS);
  } catch (error) {
    problem(t("Python does not run here: {0}", error.message));
  } finally {
    running = false;
    if (again) { again = false; update(); }
  }
}

/** Counts the memory of every model shown, unless a setting changes meanwhile. */
async function remember() {
  const models = shown;
  for (const model of models) {
    if (!model.answer) continue;
    try {
      model.memory = await ask("memory", request(model.model));
    } catch (error) {
      if (!(error instanceof Refused)) return problem(t("Python does not run here: {0}", error.message));
      model.memory = { error: error.message };
    }
    if (shown !== models) return;
  }
  draw();
  window.llmcalc.settled = true;
  rest ??= drawRest().then(() => { window.llmcalc.whole = true; });
}

/** Adds the model that a text names. Resolves with what is wrong, which is shown, or with null. */
async function add(text) {
  const given = text.trim();
  if (!given) return null;
  problem("");
  $("add").setAttribute("aria-busy", "true");
  try {
    let model;
    if (given.startsWith("{")) {
      model = { config: given };
    } else {
      const found = await ask("find", { text: given });
      model = found.preset ? { preset: found.preset } : { ...found, config: await config(found.hub, found.revision) };
    }
    await ask("answer", request(model));
    if (state.models.some((one) => target(one) === target(model) && one.config === model.config)) throw new Refused(t("{0} is shown already", target(model)));
    if (state.models.length === MOST) throw new Refused(t("{0} models are shown already; remove one of them first", MOST));
    state.models.push(model);
    state.on = state.models.length - 1;
    state.node = null;
    $("add").value = "";
    await update();
    return null;
  } catch (error) {
    problem(error.message);
    return error.message;
  } finally {
    $("add").removeAttribute("aria-busy");
  }
}

function said(button, text) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = text;
  setTimeout(() => { button.textContent = before; }, 1500);
}

async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    said(button, t("Copied"));
  } catch {
    said(button, t("Not allowed"));
  }
}

function listen() {
  const input = $("add");
  modelList(input, add);
  themeSwitch($("theme"));
  saveButtons(document.querySelectorAll("article[data-name]"));
  $("print").addEventListener("click", async () => {
    $("print").disabled = true;
    await drawAll();
    $("print").disabled = false;
    window.print();
  });
  window.addEventListener("beforeprint", drawAll); // what is not there yet is there for the next print
  input.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text");
    if (text.trim().startsWith("{")) { event.preventDefault(); add(text); } // the field would drop its line breaks
  });
  $("share").addEventListener("click", async () => {
    if (await link()) copied($("share"), window.location.href);
    else problem(t("A pasted config of this length does not fit into a link."));
  });
  $("copy").addEventListener("click", () => copied($("copy"), $("command").textContent));
  window.addEventListener("hashchange", begin);
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (width !== window.innerWidth) { width = window.innerWidth; if (shown.length) draw(); } });
}

async function begin() {
  problem("");
  try {
    await restore(window.location.hash.slice(1));
  } catch {
    state.models = [{ preset: "llama3-8b" }];
    problem(t("This link is damaged: it does not hold a state of the page."));
  }
  state.on = Math.min(state.on, state.models.length - 1);
  first = true;
  await update();
}

async function start() {
  listen();
  if (window.location.hash.length < 2) made(state.models[0].preset); // which is shown, whatever the list of presets says
  const presets = fetch(here("presets.json")).then((found) => found.json()).then((found) => {
    defaults = found.defaults;
    withFirst = new Set(found.first);
  });
  document.head.append(h("link", { rel: "stylesheet", href: here("vendor/katex.min.css") }));
  await presets.catch(() => {});
  await begin();
}

start();
