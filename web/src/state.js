// What the page shows, and the link that restores it.
//
// A model is {preset}, {hub, revision, config} or {config}. In a link a preset is its name, a model of the hub its id
// with an @ (the page fetches the config again), and a pasted config is the config itself, compressed.

import { LARGEST_CONFIG, readBytes } from "./bounded.js";
import { linked, starts, unlinked } from "./training_settings.js";

export const MOST = 4; // models beside one another

export const state = { models: [{ preset: "llama3-8b" }], on: 0, ctx: 8192, batch: 1, weights: "bf16", kv: "bf16", node: null, ...starts() };

export const WEIGHTS = ["bf16", "fp8", "nf4", "q4_k_m"];
export const CACHES = ["bf16", "fp8", "int4"];

const TOO_LONG = 8000; // characters of a link; longer ones are cut by chats and mail

async function through(stream, bytes) {
  return readBytes(new Blob([bytes]).stream().pipeThrough(stream), LARGEST_CONFIG);
}

async function packed(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
}

/** What bridge.py is given for a model. */
export const asked = (model) => model.preset ?? { config: model.config, name: model.hub ?? "config.json" };

/** The TARGET of the command line for it, before it is quoted for a shell. */
export const target = (model) => {
  if (model.preset) return model.preset;
  if (model.hub) return model.revision === "main" ? model.hub : `${model.hub}@${model.revision}`;
  return "config.json";
};

/** The part of the link after #. Throws where a pasted config is too long for one. */
export async function hash() {
  const models = [];
  for (const model of state.models) {
    if (model.preset) models.push(encodeURIComponent(model.preset));
    else if (model.hub) models.push(encodeURIComponent(`${model.hub}@${model.revision}`));
    else models.push(`~${await packed(JSON.stringify(JSON.parse(model.config)))}`);
  }
  const text = `m=${models.join(",")}&ctx=${state.ctx}&b=${state.batch}&w=${state.weights}&kv=${state.kv}${state.on ? `&on=${state.on + 1}` : ""}${state.node ? `&node=${encodeURIComponent(state.node)}` : ""}${linked(state)}`;
  if (text.length > TOO_LONG) throw new Error("the pasted config is too long for a link");
  return text;
}

const within = (text, least, most, otherwise) => (/^\d+$/.test(text ?? "") && +text >= least && +text <= most ? +text : otherwise);

// Forms of the names in a link. A command line would take a name that begins with - as an option, and a terminal obeys
// control characters (Cc, Cf), in quotes as well.
const PRESET = /^[A-Za-z0-9][^\p{C}\p{Zl}\p{Zp}]{0,999}$/u;
const HUB = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}\/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$/;
const REVISION = /^(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}$/;

/** The model that a name in a link stands for. Throws where it can be no name. */
function named(name) {
  const at = name.lastIndexOf("@");
  const model = at > 0 && name.includes("/") ? { hub: name.slice(0, at), revision: name.slice(at + 1) } : { preset: name };
  if (!(model.hub ? HUB.test(model.hub) && REVISION.test(model.revision) : PRESET.test(name))) throw new Error("no name of a model");
  return model;
}

/** Sets the state from the part of a link after #. Throws where a model of the link can be none. */
export async function restore(text) {
  const given = Object.fromEntries(text.split("&").map((part) => part.split(/=(.*)/s).slice(0, 2)));
  state.ctx = within(given.ctx, 1, 2 ** 24, 8192);
  state.batch = within(given.b, 1, 4096, 1);
  state.weights = WEIGHTS.includes(given.w) ? given.w : "bf16";
  state.kv = CACHES.includes(given.kv) ? given.kv : "bf16";
  state.node = given.node ? decodeURIComponent(given.node) : null;
  state.on = within(given.on, 1, MOST, 1) - 1;
  Object.assign(state, unlinked(given));
  if (!given.m) { state.models = [{ preset: "llama3-8b" }]; return; }
  state.models = [];
  for (const one of given.m.split(",").slice(0, MOST)) {
    if (one.startsWith("~")) {
      state.models.push({ config: await unpacked(one.slice(1)) });
      continue;
    }
    state.models.push(named(decodeURIComponent(one)));
  }
}
