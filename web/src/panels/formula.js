// The formula of the chosen part. Those of presets at default settings were made when the page was built; any other
// is made by SymPy in the browser, which is fetched once, when somebody asks for it.
import { $, h, here, painted, script } from "../dom.js";
import { integer } from "../format.js";
import { ask, Refused } from "../python.js";
import { asked, state } from "../state.js";
import { t, translated } from "../words.js";

const TITLES = { params: t("Parameters"), active: t("Active parameters"), flops: t("FLOPs per token"), flops_absorbed: t("FLOPs per token, absorbed"), kv: t("KV cache per token, bytes"), state: t("State, bytes") };
const prepared = new Map();
const RESTS = 250; // ms without a change before SymPy is asked: it takes longer than a slider's step
let latest = "";
let algebra = false; // whether somebody has asked for what needs SymPy

async function before(model, withFirst) {
  if (!withFirst.has(model.preset)) return {};
  if (!prepared.has(model.preset)) {
    prepared.set(model.preset, fetch(here(`formulas/${encodeURIComponent(model.preset)}.json`)).then((found) => (found.ok ? found.json() : {})).catch(() => ({})));
  }
  return prepared.get(model.preset);
}

const nearby = (found, settings) => (found ? { found, settings } : null);

/** The formula and the settings of its values; null where only SymPy can make it, and SymPy is not asked for yet. */
async function explained(model, node, defaults, withFirst) {
  const usual = state.ctx === defaults.ctx && state.kv === defaults.kv;
  const made = (await before(model, withFirst))[node];
  if (usual && made) return nearby(made, defaults);
  if (!algebra) return nearby(made, defaults);
  const settings = { ctx: state.ctx, kv: state.kv };
  return { found: await ask("explain", { model: asked(model), node, ...settings }), settings };
}

function typeset(latex) {
  const place = h("div", { class: "latex" });
  window.katex.render(latex, place, { throwOnError: false });
  return place;
}

function drawn(document, copy) {
  const rows = document.formulas.map((formula) => h("div", { class: "row" },
    h("small", {}, `${TITLES[formula.quantity] ?? formula.quantity}${formula.repeat > 1 ? t(", one of {0}", formula.repeat) : ""}`),
    typeset(formula.latex),
    h("p", {}, "= ", h("b", {}, integer(formula.value)), formula.in_units_of_h ? h("span", { class: "quiet" }, `  = ${formula.in_units_of_h}`) : "",
      h("button", { type: "button", class: "plain", onclick: (event) => copy(event.currentTarget, formula.latex) }, t("Copy LaTeX")))));
  const symbols = Object.entries(document.symbols).map(([name, { field, value }]) => h("li", {}, h("i", {}, name), ` ${translated(field)}${value === null || value === undefined ? "" : ` = ${integer(value)}`}`));
  const sources = [...new Set(document.formulas.map((formula) => formula.source).filter(Boolean))];
  return [h("div", { class: "rows" }, rows), h("ul", { class: "symbols" }, symbols), sources.length ? h("p", { class: "quiet" }, t("Source: {0}", sources.join("; "))) : ""];
}

function offer(again, text) {
  const act = () => { algebra = true; latest = ""; again(); };
  return h("p", { class: "quiet" }, text, h("button", { type: "button", class: "offer", onclick: act }, t("Load SymPy (6 MB, once)")));
}

export async function draw(view) {
  const { model, defaults, withFirst } = view;
  const { node } = state, place = $("formula");
  const key = JSON.stringify([model.model, node, state.ctx, state.kv, Boolean(model.answer)]);
  if (key === latest) return;
  latest = key;
  $("node").textContent = (node ?? "").replace(/\{.*?\}/, "{…}");
  $("node").title = node ?? "";
  if (!model.answer || !node) {
    place.replaceChildren(h("p", { class: "quiet" }, t("Choose a part of the model to see its formula, with values and its source.")));
    return;
  }
  const slow = setTimeout(() => place.replaceChildren(h("p", { class: "quiet" }, t("SymPy is at work…"))), 400 + RESTS);
  try {
    if (algebra) await new Promise((resolve) => setTimeout(resolve, RESTS));
    if (key !== latest) return;
    const [made] = await Promise.all([explained(model.model, node, defaults, withFirst), painted().then(() => script("vendor/katex.min.js"))]);
    if (key !== latest) return;
    const again = () => draw(view);
    if (!made) return place.replaceChildren(offer(again, t("Formulas of this model are made in your browser. ")));
    const { found, settings } = made;
    const elsewhere = settings.ctx !== state.ctx || settings.kv !== state.kv;
    const text = t("Values at {0} tokens and a {1} cache. For others: ", integer(settings.ctx), settings.kv);
    place.replaceChildren(...drawn(found, view.copy), elsewhere ? offer(again, text) : "");
  } catch (error) {
    if (key !== latest) return;
    place.replaceChildren(h("p", { class: "error" }, error.message));
    if (!(error instanceof Refused)) latest = "";
  } finally {
    clearTimeout(slow);
  }
}
