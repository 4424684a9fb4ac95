// The same numbers on the command line.
import { $ } from "../dom.js";
import { commandLine, commandParts } from "../shell.js";
import { state, target } from "../state.js";

export function command(model, kind) {
  const weights = ["bf16", "fp16", "fp32"].includes(state.weights) ? "--dtype" : "--quantize";
  const cache = kind === "encoder" ? [] : ["--kv-dtype", state.kv];
  return commandLine("llmcalc", "memory", target(model), "--seq", String(state.ctx), "--batch", String(state.batch), weights, state.weights, ...cache);
}

export function draw({ model }) {
  $("command").replaceChildren(...commandParts(command(model.model, model.answer?.params.model.kind)));
}
