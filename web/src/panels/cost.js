// A training run: its step, days, device hours, energy and money, each as a range.
import { answerPanel } from "../answer_panel.js";
import { debouncedQuery } from "../debounced_query.js";
import { $, h } from "../dom.js";
import { choice, line, number, style } from "../fields.js";
import { about, integer, range, seconds } from "../format.js";
import { options, request, same, starts } from "../training_settings.js";
import { commandLine } from "../shell.js";
import { asked, state, target } from "../state.js";
import { t, translated } from "../words.js";

const MORE = [4, 16]; // times the devices, which are offered where the run does not fit
const MOST = 4096; // devices that are offered
const NO_ROOM = /--devices \d+: no layout of /; // in a message of the command line
const TITLES = { device_hours: [t("device hours"), "h"], energy_kwh: [t("energy"), "kWh"], money: [t("money, as the price"), ""] };

let made = null, view = null, answer = null;
let picked = null; // the number of devices that somebody has typed
let instead = null; // more devices in place of the first number, where that has no room: {model, hardware, devices, refused}

const costs = debouncedQuery("cost", "cost-status", (found, along) => {
  if (NO_ROOM.test(found.line) && same(along.model, asked(view.model.model)) && double(found)) return;
  answer = instead?.devices === null ? { ...instead.refused, ...along } : { ...found, ...along };
  window.llmcalc.cost = found.found?.cost;
  paint();
});

function make() {
  const changed = () => { view.link(); ask(); };
  const controls = [
    choice("cost", "hardware", t("Accelerator"), changed, { values: () => view.model.memory?.memory?.fits.map((fit) => fit.hardware) ?? [] }),
    number("cost", "devices", t("Devices"), () => { picked = state.cost.devices; changed(); }),
    number("cost", "tokens", t("Tokens"), changed, { note: t("Of the whole run: 15T, 300B") }),
    number("cost", "price", t("Price"), changed, { note: t("Of a device and hour, in any currency"), empty: t("none") }),
  ];
  made = { controls, line: line() };
  Object.assign(made, answerPanel($("cost"), { ...made, status: "cost-status", title: t("How sure it is, and what is assumed") }));
}

/** Asks again with twice the devices, unless somebody has chosen their number: until a layout has room, or else shows why the first number has none. */
function double(refused) {
  if (state.cost.devices === picked || state.cost.devices !== (instead?.devices ?? starts().cost.devices) || instead?.devices === null) return false;
  instead ??= { model: asked(view.model.model), hardware: state.cost.hardware, refused };
  instead.devices = state.cost.devices * 2 <= MOST ? state.cost.devices * 2 : null;
  state.cost.devices = instead.devices ?? starts().cost.devices;
  view.link();
  ask();
  return true;
}

/** Takes the number of devices back that another model, or accelerator, was given in place of the first one. */
function first() {
  if (!instead || (same(instead.model, asked(view.model.model)) && instead.hardware === state.cost.hardware && (instead.devices ?? starts().cost.devices) === state.cost.devices)) return;
  if (state.cost.devices === instead.devices) state.cost.devices = starts().cost.devices;
  instead = null;
  view.link();
}

function ask() {
  first();
  for (const one of made.controls) one.update();
  made.line.write(commandLine("llmcalc", "cost", target(view.model.model), ...options(state, "cost")));
  costs.ask({ model: asked(view.model.model), options: request(state, "cost") }, { title: view.model.title, model: asked(view.model.model) });
}

/** Buttons with more devices, for a run that none of the layouts has room for. */
function offers() {
  const counts = MORE.map((times) => times * state.cost.devices).filter((devices) => devices <= MOST);
  const use = (devices) => { state.cost.devices = devices; view.link(); ask(); };
  return h("div", { class: "near" }, counts.map((devices) => h("button", { type: "button", class: "offer", onclick: () => use(devices) }, t("Count with {0} devices", integer(devices)))));
}

const fail = (reason) => { made.answer.replaceChildren(...[reason].flat()); made.details.replaceChildren(); };

function paint() {
  if (!answer) return;
  if (answer.stopped) return fail(h("p", { class: "quiet" }, t("Stopped. "), h("button", { type: "button", class: "offer", onclick: () => { costs.forget(); ask(); } }, t("Count again"))));
  if (answer.error) return fail([h("p", { class: "error" }, answer.error), ...(NO_ROOM.test(answer.line) && instead?.devices !== null ? [offers()] : [])]);
  const found = answer.found.cost, { layout } = found;
  const name = layout ? ["tp", "pp", "cp", "dp", "ep"].filter((one) => layout[one] > 1).map((one) => `${one} ${layout[one]}`).join(" · ") + (layout.zero ? ` · ZeRO ${layout.zero}` : "") : "";
  const devices = `${integer(found.devices)} × ${found.hardware}`;
  const cells = Object.entries(found.cost).filter(([key, value]) => value !== null && key !== "days") // which is the headline
    .map(([key, value]) => h("div", { class: "figure" }, h("span", {}, TITLES[key][0]), h("b", {}, `${about(value.low)}–${about(value.high)} ${TITLES[key][1]}`), h("span", { class: "quiet" }, t("likely {0}", about(value.estimate)))));
  made.answer.replaceChildren(
    h("p", { class: "quiet said" }, h("b", { class: "big" }, t("{0}–{1} days", about(found.cost.days.low), about(found.cost.days.high))), t(" for {0} tokens of {1} on {2}: {3} steps of {4} tokens, {5} each, likely {6}.", state.cost.tokens, answer.title, name ? t("{0}, {1}", devices, name) : devices, integer(found.steps), integer(found.step_tokens), range(found.step), seconds(found.step.estimate))),
    instead?.devices ? h("p", { class: "quiet instead" }, t("The page begins with {0} devices, which have no room for this model in any layout; it doubled them until one had.", integer(starts().cost.devices))) : "",
    h("div", { class: "figures" }, cells));
  made.details.replaceChildren(h("ul", { class: "notes" }, found.notes.map((note) => h("li", {}, translated(note)))));
}

export async function draw(next) {
  view = next;
  await style();
  if (!made) make();
  if (view.model.answer) ask();
}
