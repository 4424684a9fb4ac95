// The same numbers on the command line.
import { $ } from "../dom.js";
import { state, target } from "../state.js";

export function command(model, kind) {
  const weights = ["bf16", "fp16", "fp32"].includes(state.weights) ? `--dtype ${state.weights}` : `--quantize ${state.weights}`;
  const cache = kind === "encoder" ? "" : ` --kv-dtype ${state.kv}`;
  return `llmcalc memory ${target(model)} --seq ${state.ctx} --batch ${state.batch} ${weights}${cache}`;
}

export function draw({ model }) {
  $("command").textContent = command(model.model, model.answer?.params.model.kind);
}
