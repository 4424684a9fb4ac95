// A panel's question to the second Python. While one is answered no other is sent; of those that come meanwhile only the
// last is asked afterwards.
import { $, h } from "./dom.js";
import { askApart, Refused, Stopped, stop } from "./python.js";
import { t } from "./words.js";

const RESTS = 300; // ms without a change before a question is asked

let running = 0, waiting = [];

/** Resolves when no panel waits for an answer. */
export const quiet = () => (running ? new Promise((resolve) => waiting.push(resolve)) : Promise.resolve());

/** status: the element that says that Python is at work. shows: called with {found}, {error} (with the command line's own
    `line`, where it is wrong input) or {stopped}, and what was given beside the question. */
export function debouncedQuery(call, status, shows) {
  let wanted = null, unwanted = null, busy = false;

  function working(since) {
    const text = h("span", {}, t("Python is at work…"));
    const end = () => { unwanted = wanted; stop(); }; // the question may not have been sent yet
    const ticking = setInterval(() => { text.textContent = t("Python is at work, {0} s", Math.round((performance.now() - since) / 1000)); }, 1000);
    $(status).replaceChildren(text, h("button", { type: "button", class: "plain", onclick: end }, t("Stop")));
    return () => { clearInterval(ticking); $(status).replaceChildren(); };
  }

  async function answered(request) {
    try {
      return { found: await askApart(call, request) };
    } catch (error) {
      if (error instanceof Stopped) return { stopped: true };
      return error instanceof Refused ? { error: error.message, line: error.line } : { error: t("Python does not run here: {0}", error.message) };
    }
  }

  async function run() {
    busy = true;
    running += 1;
    const done = working(performance.now());
    for (let now = null; wanted !== null && now !== wanted;) {
      now = wanted;
      await new Promise((resolve) => setTimeout(resolve, RESTS));
      if (now !== wanted) continue;
      const answer = now === unwanted ? { stopped: true } : await answered(now.request);
      if (now === wanted) shows(answer, now.along);
    }
    busy = false;
    done();
    running -= 1;
    if (!running) { waiting.forEach((resolve) => resolve()); waiting = []; }
  }

  return {
    /** Asks, unless the same was asked last. along: what `shows` is given too. */
    ask(request, along) {
      const key = JSON.stringify(request);
      if (wanted?.key === key) return;
      wanted = { key, request, along };
      if (!busy) run();
    },
    /** Forgets what was asked last, so that the same may be asked again. */
    forget() { wanted = null; },
  };
}
