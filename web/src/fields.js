// Controls of the panels further down, each of one setting of training_settings.js.
import { h, here } from "./dom.js";
import { integer } from "./format.js";
import { FIELDS, options } from "./training_settings.js";
import { commandLine, commandParts } from "./shell.js";
import { state, target } from "./state.js";
import { t } from "./words.js";

let styled = null;
/** Loads the panels' own look, once. */
export function style() {
  styled ??= new Promise((resolve) => document.head.append(h("link", { rel: "stylesheet", href: here("training_settings.css"), onload: resolve, onerror: resolve })));
  return styled;
}

let last = 0;
const label = (title, note, control, tall) => h("label", { class: "field", title: note }, h("span", {}, title), control, tall ?? "");

/** What a field takes, in words. */
const expected = ({ kind, least, most }) => (kind === "count" ? t("a number such as 15T or 300B") : kind === "numbers" ? t("numbers such as 8,8,8,8") : kind === "decimal" ? t("a number from {0} to {1}", least, integer(most)) : t("a whole number from {0} to {1}", integer(least), integer(most)));

/** Text typed in a field, without spaces. A whole number is also without commas if each stands before a group of three
    digits (`1,5` and `0,500` stay as they are). A decimal number keeps commas, which the command line refuses, and so
    does a list, whose items they separate. */
export function ungrouped(text, { kind }) {
  const typed = text.replaceAll(/\s/g, "");
  return !["decimal", "numbers"].includes(kind) && /^[1-9]\d{0,2}(,\d{3})+(?!\d|,)/.test(typed) ? typed.replaceAll(",", "") : typed;
}

/** A number somebody types; what it cannot be is put back, and the browser says at the field what it takes. */
export function number(group, name, title, changed, { note, empty } = {}) {
  const field = FIELDS[group][name];
  const input = h("input", { type: "text", inputmode: "numeric", autocomplete: "off", placeholder: empty, oninput: () => input.setCustomValidity(""), onchange: () => {
    const typed = input.value, value = input.value.trim() === "" && empty ? null : field.read(ungrouped(input.value, field));
    if (value !== undefined && value !== state[group][name]) { state[group][name] = value; changed(); }
    update();
    input.setCustomValidity(value === undefined ? t("{0}: expected {1}", typed, expected(field)) : "");
    if (value === undefined) input.reportValidity();
  }, onkeydown: (event) => {
    const step = { ArrowUp: 2, ArrowDown: 0.5 }[event.key];
    if (!step || !input.value) return;
    event.preventDefault();
    const value = field.read(String(Math.floor(field.read(input.value) * step)));
    if (value) { state[group][name] = value; update(); changed(); }
  } });
  const update = () => { input.value = state[group][name] ?? ""; };
  return { row: label(title, note, input), update };
}

/** A number on a scale of powers of two. */
export function slider(group, name, title, [from, to], unit, changed, step = 0.5) {
  last += 1;
  const id = `${group}-${name}-${last}`, output = h("output", { for: id });
  const write = () => { output.value = `${integer(state[group][name])}${unit}`; input.setAttribute("aria-valuetext", output.value); };
  const input = h("input", { id, type: "range", min: Math.log2(from), max: Math.log2(to), step, oninput: () => {
    const size = 2 ** +input.value;
    state[group][name] = size > 256 ? Math.round(size / 256) * 256 : Math.round(size);
    write();
    changed();
  } });
  const update = () => { input.value = Math.log2(state[group][name]); write(); };
  return { row: h("label", { class: "slide" }, h("span", {}, title), output, input), update };
}

/** One of a few, from a list. names: what a value is called; itself where it is not there. */
export function choice(group, name, title, changed, { note, names = {}, values } = {}) {
  const select = h("select", { onchange: () => { state[group][name] = typeof FIELDS[group][name].start === "number" ? +select.value : select.value; changed(); } });
  const update = () => {
    const all = values?.() ?? FIELDS[group][name].of, own = state[group][name];
    select.replaceChildren(...[...new Set([...all, own])].map((value) => h("option", { value, selected: value === own }, names[value] ?? String(value))));
  };
  return { row: label(title, note, select), update };
}

/** Yes or no. */
export function check(group, name, title, changed, note) {
  const input = h("input", { type: "checkbox", onchange: () => { state[group][name] = input.checked; changed(); } });
  return { row: h("label", { class: "check", title: note }, input, h("span", {}, title)), update: () => { input.checked = state[group][name]; } };
}

/** A command with a button that copies it: the same on the command line, or another. named: what it is. kind: its class. */
export function line(named = t("The same on the command line"), kind = "command") {
  const code = h("code", { tabindex: 0, role: "group", "aria-label": named });
  const button = h("button", { type: "button", onclick: async () => {
    button.textContent = await navigator.clipboard.writeText(code.textContent).then(() => t("Copied"), () => t("Not allowed"));
    setTimeout(() => { button.textContent = t("Copy"); }, 1500);
  } }, t("Copy"));
  return { row: h("div", { class: kind }, code, button), write: (text) => code.replaceChildren(...commandParts(text)) };
}

/** `llmcalc memory TARGET --phase training …` with the options of these groups. */
export const command = (model, ...groups) => commandLine("llmcalc", "memory", target(model), "--phase", "training", ...options(state, ...groups));
