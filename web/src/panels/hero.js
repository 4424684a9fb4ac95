// The model's name, what it is, its exact number of parameters, and how that compares with the published one.
import { $, h } from "../dom.js";
import { integer } from "../format.js";
import { phrases, t, translated } from "../words.js";

function verdict({ params, exact }) {
  const { total, published } = params.params;
  if (published === null) return [translated(params.notes.find((note) => note.startsWith("published as")) ?? t("counted exactly")), ""];
  if (published === total) return [t("equal to the published count ✓"), "equal"];
  const difference = total - published;
  return [t(difference > 0 ? "{0} more than the published {1}" : "{0} fewer than the published {1}", integer(Math.abs(difference)), exact.params?.["params.published"] ?? integer(published)), ""];
}

export function draw({ model }) {
  const { answer, title, error } = model;
  if (error) return $("hero").replaceChildren(h("div", {}, h("h1", {}, title), h("p", { class: "error" }, error)));
  if (!answer) return $("hero").replaceChildren(h("div", {}, h("h1", {}, title), h("p", {}, t("Python is loading…"))));
  const [text, kind] = verdict(answer);
  const note = answer.params.notes.find((one) => one.startsWith("published "));
  const why = kind ? "" : note?.match(/\((.*)\)$/)?.[1].replace(/; llmcalc presets .*$/, "") ?? "";
  const remarks = answer.remarks.map((line) => h("p", { class: "warning" }, translated(line)));
  $("hero").replaceChildren(
    h("div", {}, h("h1", {}, title), h("p", {}, phrases(answer.headline)), remarks),
    h("div", { class: "total" }, h("b", { id: "total" }, integer(answer.params.params.total)), h("small", {}, t("parameters, "), h("span", { class: kind }, text), why ? h("span", { class: "why" }, translated(why)) : "")),
  );
}
