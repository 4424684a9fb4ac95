// The frame of a panel on servers or on a training run: the answer first, its controls beside it, details on demand.
import { h } from "./dom.js";
import { t } from "./words.js";

const NARROW = "(max-width: 640px)"; // where the controls are folded below the answer

/** Draws the frame into an element. controls: rows of settings. status: id of the place that says that Python is at work.
    line: the command with the same answer. title: what the details are. Returns the places of the answer and of the details. */
export function answerPanel(place, { controls, status, line, title }) {
  const answer = h("div", { class: "answer" }, h("p", { class: "quiet" }, t("Python is loading…"))), details = h("div", {});
  place.replaceChildren(
    h("div", { class: "answer-panel" },
      h("div", {}, answer, h("p", { id: status, class: "status", role: "status" })),
      h("details", { class: "beside", open: !matchMedia(NARROW).matches }, h("summary", {}, t("Settings")), h("div", { class: "settings" }, controls.map((one) => one.row)))),
    h("details", { class: "on-demand" }, h("summary", {}, title), details, line.row));
  return { answer, details };
}
