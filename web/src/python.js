// Asks Python, which runs in a worker. Questions that are asked before it is there wait.
import { translated } from "./words.js";

/** Times, for the footer and the tests: ready and answers in milliseconds. */
export const times = { ready: null, answers: [] };

/** The command line's one line for wrong input, in the page's language; `line` is it as the command line says it. */
export class Refused extends Error {
  constructor(line) {
    super(translated(line));
    this.line = line;
  }
}
export class Stopped extends Error {} // somebody did not wait for the answer

/** One Python, which starts with this call. measured: what is told the times. */
function python(measured = { answers: [] }) {
  const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  const waiting = new Map();
  let last = 0, started;
  const ready = new Promise((resolve, reject) => { started = { resolve, reject }; });
  ready.catch(() => {});

  const refuse = (error) => {
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  const broken = (text) => { started.reject(new Error(text)); refuse(new Error(text)); };

  worker.onmessage = ({ data }) => {
    if (data.ready) {
      measured.ready = performance.now();
      return started.resolve();
    }
    if (data.broken) return broken(data.broken);
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.failed) return reject(new Error(data.failed));
    measured.answers.push(data.ms);
    const { result, error } = JSON.parse(data.text);
    return error === undefined ? resolve(result) : reject(new Refused(error));
  };
  worker.onerror = (event) => broken(event.message || "the worker did not start");

  const ask = (call, request = {}) => new Promise((resolve, reject) => {
    last += 1;
    waiting.set(last, { resolve, reject });
    worker.postMessage({ id: last, call, request });
  });
  const stop = () => { worker.terminate(); refuse(new Stopped("stopped")); };
  return { ask, ready, stop };
}

let first = null, second = null;

/** Starts the first Python, if it has not been asked yet: resolves when it is ready. */
export const ready = () => (first ??= python(times)).ready;

/** Resolves with the answer of one of bridge.py's calls. Rejects with Refused for wrong input. */
export function ask(call, request) {
  ready();
  return first.ask(call, request);
}

/** The same of a second Python, for questions that take seconds, so that the first always answers the controls. It is
    started by the first such question, when the first Python is ready: neither is to slow the first numbers down. */
export async function askApart(call, request) {
  await ready();
  second ??= python();
  return second.ask(call, request);
}

/** Ends what the second Python is at: whoever waits for it is told with Stopped. The next question starts it anew. */
export function stop() {
  second?.stop();
  second = null;
}
