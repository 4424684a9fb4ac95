// The attention of training where nobody can have flash: eager goes on in its place, until another model is shown.
import { h } from "./dom.js";
import { same } from "./training_settings.js";
import { state } from "./state.js";

let instead = null; // {model, why}: the model that flash does not take, and the reason

/** Takes flash back where another model is shown. Called before a question about a model. Whether it has. */
export function usual(model) {
  if (!instead || same(instead.model, model)) return false;
  const taken = state.run.attn_implementation === "eager";
  if (taken) state.run.attn_implementation = "flash";
  instead = null;
  return taken;
}

/** Whether an error says that flash does not take a model. If so, eager is set. */
export function goesOn(error, model) {
  const why = error?.match(/--attn-implementation flash (.*); expected eager/)?.[1];
  if (!why || state.run.attn_implementation !== "flash") return false;
  state.run.attn_implementation = "eager";
  instead = { model, why };
  return true;
}

/** That eager runs in the place of flash, if it does. */
export const said = (model) => (instead && same(instead.model, model) && state.run.attn_implementation === "eager"
  ? h("p", { class: "quiet instead" }, `Attention is eager here: flash ${instead.why}.`) : "");
