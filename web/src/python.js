// Asks Python, which runs in a worker. Questions that are asked before it is there wait.

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let last = 0;

/** Times, for the footer and the tests: ready and answers in milliseconds. */
export const times = { ready: null, answers: [] };

export class Refused extends Error {} // the command line's one line for wrong input

let started;
export const ready = new Promise((resolve, reject) => { started = { resolve, reject }; });
ready.catch(() => {});

worker.onmessage = ({ data }) => {
  if (data.ready) {
    times.ready = performance.now();
    return started.resolve();
  }
  if (data.broken) return started.reject(new Error(data.broken));
  const { resolve, reject } = waiting.get(data.id);
  waiting.delete(data.id);
  if (data.failed) return reject(new Error(data.failed));
  times.answers.push(data.ms);
  const { result, error } = JSON.parse(data.text);
  return error === undefined ? resolve(result) : reject(new Refused(error));
};
worker.onerror = (event) => started.reject(new Error(event.message || "the worker did not start"));

/** Resolves with the answer of one of bridge.py's calls. Rejects with Refused for wrong input. */
export function ask(call, request = {}) {
  return new Promise((resolve, reject) => {
    last += 1;
    waiting.set(last, { resolve, reject });
    worker.postMessage({ id: last, call, request });
  });
}
