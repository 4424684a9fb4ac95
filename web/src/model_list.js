// The list below the model box: presets whose name, title, developer or date has the words that somebody types. It is a
// combobox with a list (WAI-ARIA Authoring Practices, https://www.w3.org/WAI/ARIA/apg/patterns/combobox/).
import { $, h, here } from "./dom.js";
import { count, joined } from "./format.js";
import { t } from "./words.js";

const MOST = 60; // rows that are drawn; more are said

const PUNCTUATION = /[^\p{L}\p{N}]+/gu, OTHER_THAN_POINTS = /(?<!\d)\.|\.(?!\d)|[^\p{L}\p{N}.]+/gu;
/** Text without punctuation, so that `phi4` and `deepseek r1` find Phi-4 and DeepSeek-R1; for a `word` with a number such
    as `2.5` the points of numbers stay, so that it finds no 25. */
const bare = (text, word = text) => text.toLowerCase().replace(/\d\.\d/.test(word) ? OTHER_THAN_POINTS : PUNCTUATION, "");

/** Whether each word stands in a model's name, title, developer or date. words: in lower case. */
export const matches = ({ name, title, developer, released }, words) => words.every((word) =>
  [name, title, developer, released].some((value) => value.toLowerCase().includes(word))
  || (bare(word) !== "" && [name, title, developer].some((value) => hasParts(value, word))));

/** Whether a word's letters and digits begin with a part of a name and go on with the next ones: `r1` in DeepSeek-R1, but
    not in deepseek-coder-1.3b, where an `r` ends a part. */
const hasParts = (value, word) => [...value.matchAll(/(?<![\p{L}\p{N}])[\p{L}\p{N}]/gu)].some(({ index }) => bare(value.slice(index), word).startsWith(bare(word)));

/** input: the model box. choose: called with the name of a preset, or with the text where none is chosen. */
export function modelList(input, choose) {
  const list = $("models"), rest = $("models-rest"), box = $("model-list");
  let models = null, shown = [], active = -1;

  const loaded = () => (models ??= fetch(here("models.json")).then((found) => found.json()).catch(() => { models = null; return []; }));
  /** Whether the text is a model's name or title (2), or the beginning of one (1). */
  const near = (model, text) => Math.max(...[model.name, model.title].map((name) => (bare(name, text) === bare(text) ? 2 : bare(name, text).startsWith(bare(text)) ? 1 : 0)));

  function mark(index) {
    active = index;
    [...list.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === index)));
    if (index >= 0) list.children[index].scrollIntoView({ block: "nearest" });
    if (index >= 0) input.setAttribute("aria-activedescendant", `model-${index}`);
    else input.removeAttribute("aria-activedescendant");
  }

  function close() {
    box.hidden = true;
    input.setAttribute("aria-expanded", "false");
    mark(-1);
  }

  function take(text) {
    close();
    choose(text);
  }

  const row = (model, i) => h("li", { role: "option", id: `model-${i}`, "aria-selected": "false", onclick: () => take(model.name) },
    h("b", {}, model.title), h("span", {}, model.developer), h("span", {}, joined(count(model.parameters))), h("span", {}, model.released), h("code", {}, model.name));

  async function open() {
    const all = await loaded(), text = input.value.trim().toLowerCase();
    if (document.activeElement !== input) return;
    const matching = text.startsWith("{") ? [] : all.filter((model) => matches(model, text.split(/\s+/)));
    if (text) matching.sort((a, b) => near(b, text) - near(a, text)); // of those that are as near, the newest first
    shown = matching.slice(0, MOST);
    list.replaceChildren(...shown.map(row));
    rest.textContent = matching.length > MOST ? t("{0} more; type a name, a developer or a year", matching.length - MOST) : "";
    box.hidden = !shown.length;
    input.setAttribute("aria-expanded", String(shown.length > 0));
    mark(-1);
  }

  const MOVES = { ArrowDown: () => (active + 1) % shown.length, ArrowUp: () => (active <= 0 ? shown.length : active) - 1 };
  input.addEventListener("keydown", async (event) => {
    if (event.key === "Escape") return close();
    if (event.key === "Enter") {
      event.preventDefault();
      return take(shown[active]?.name ?? input.value);
    }
    if (!(event.key in MOVES)) return undefined;
    event.preventDefault();
    if (box.hidden) await open();
    if (shown.length) mark(MOVES[event.key]());
    return undefined;
  });
  input.addEventListener("focus", open);
  input.addEventListener("click", () => { if (box.hidden) open(); });
  input.addEventListener("input", open);
  input.addEventListener("blur", close);
  box.addEventListener("pointerdown", (event) => event.preventDefault()); // the box keeps the focus
  return { close };
}
