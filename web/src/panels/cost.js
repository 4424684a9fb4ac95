// A training run: its step, days, device hours, energy and money, each as a range.
import { answerPanel } from "../answer_panel.js";
import { debouncedQuery } from "../debounced_query.js";
import { $, h } from "../dom.js";
import { choice, line, number, style } from "../fields.js";
import { about, integer, range, seconds } from "../format.js";
import { options, request } from "../training_settings.js";
import { commandLine } from "../shell.js";
import { asked, state, target } from "../state.js";
import { t, translated } from "../words.js";

const TITLES = { days: [t("days"), ""], device_hours: [t("device hours"), "h"], energy_kwh: [t("energy"), "kWh"], money: [t("money, as the price"), ""] };

let made = null, view = null, answer = null;

const costs = debouncedQuery("cost", "cost-status", (found, along) => {
  answer = { ...found, ...along };
  window.llmcalc.cost = found.found?.cost;
  paint();
});

function make() {
  const changed = () => { view.link(); ask(); };
  const controls = [
    choice("cost", "hardware", t("Accelerator"), changed, { values: () => view.model.memory?.memory?.fits.map((fit) => fit.hardware) ?? [] }),
    number("cost", "devices", t("Devices"), changed),
    number("cost", "tokens", t("Tokens"), changed, { note: t("Of the whole run: 15T, 300B") }),
    number("cost", "price", t("Price"), changed, { note: t("Of a device and hour, in any currency"), empty: t("none") }),
  ];
  made = { controls, line: line() };
  Object.assign(made, answerPanel($("cost"), { ...made, status: "cost-status", title: t("How sure it is, and what is assumed") }));
}

function ask() {
  for (const one of made.controls) one.update();
  made.line.write(commandLine("llmcalc", "cost", target(view.model.model), ...options(state, "cost")));
  costs.ask({ model: asked(view.model.model), options: request(state, "cost") }, { title: view.model.title });
}

const fail = (reason) => { made.answer.replaceChildren(reason); made.details.replaceChildren(); };

function paint() {
  if (!answer) return;
  if (answer.stopped) return fail(h("p", { class: "quiet" }, t("Stopped. "), h("button", { type: "button", class: "offer", onclick: () => { costs.forget(); ask(); } }, t("Count again"))));
  if (answer.error) return fail(h("p", { class: "error" }, answer.error));
  const found = answer.found.cost, { layout } = found;
  const name = layout ? ["tp", "pp", "cp", "dp", "ep"].filter((one) => layout[one] > 1).map((one) => `${one} ${layout[one]}`).join(" · ") + (layout.zero ? ` · ZeRO ${layout.zero}` : "") : "";
  const devices = `${integer(found.devices)} × ${found.hardware}`;
  const cells = Object.entries(found.cost).filter(([, value]) => value !== null).map(([key, value]) => h("div", { class: "figure" }, h("span", {}, TITLES[key][0]), h("b", {}, `${about(value.low)}–${about(value.high)} ${TITLES[key][1]}`), h("span", { class: "quiet" }, t("likely {0}", about(value.estimate)))));
  made.answer.replaceChildren(
    h("p", { class: "quiet said" }, h("b", { class: "big" }, t("{0}–{1} days", about(found.cost.days.low), about(found.cost.days.high))), t(" for {0} tokens of {1} on {2}: {3} steps of {4} tokens, {5} each, likely {6}.", state.cost.tokens, answer.title, name ? t("{0}, {1}", devices, name) : devices, integer(found.steps), integer(found.step_tokens), range(found.step), seconds(found.step.estimate))),
    h("div", { class: "figures" }, cells));
  made.details.replaceChildren(h("ul", { class: "notes" }, found.notes.map((note) => h("li", {}, translated(note)))));
}

export async function draw(next) {
  view = next;
  await style();
  if (!made) make();
  if (view.model.answer) ask();
}
