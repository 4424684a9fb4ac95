// The schedule of a pipeline: a row a stage, time to the right. Passes differ by colour and by hatching.
import { h, s } from "./dom.js";
import { percent } from "./format.js";
import { PASSES } from "./palette.js";
import { t } from "./words.js";

const ROW = 26, TALL = 20, LEFT = 62, RIGHT = 4, AXIS = 4;
const THINNEST = 2.5; // pixels of a pass that can be seen
const NAMES = { F: t("forward"), B: t("backward") };
const TITLES = { "1f1b": "1F1B", interleaved: "Interleaved 1F1B" };

const hatching = () => s("defs", {}, s("pattern", { id: "backward", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 1.3, height: 6, fill: "#fff", opacity: 0.75 })));

/** found: the timetable; null where there is none. layout, micro: of the run. */
export function timetable(place, found, layout, micro) {
  if (layout.pp === 1) return place.replaceChildren();
  const title = h("h3", {}, t("Schedule: {0}", TITLES[layout.schedule] ?? layout.schedule));
  const wide = place.clientWidth - LEFT - RIGHT;
  const shortest = found && Math.min(...found.by_rank[0].actions.map(([, , , from, to]) => to - from));
  const unit = found && wide / found.time;
  if (!found || unit * shortest < THINNEST) {
    const picture = `llmcalc plot schedule --pp ${layout.pp}${layout.vpp > 1 ? ` --vpp ${layout.vpp}` : ""} --num-microbatches ${micro} -o schedule.svg`;
    return place.replaceChildren(title, h("p", { class: "quiet" }, t("It has too many passes to be drawn here. ")), h("code", {}, picture));
  }
  const rows = found.by_rank.map(({ rank, actions, most_in_flight: held }, at) => {
    const top = at * ROW + AXIS;
    const cells = actions.map(([kind, chunk, batch, from, to]) => {
      const x = LEFT + from * unit, width = (to - from) * unit;
      const box = (fill) => s("rect", { x, y: top, width: Math.max(width - 0.8, 0.8), height: TALL - 0.8, style: `fill:${fill}` });
      const text = String(batch), own = found.vpp > 1 ? 100 - (60 * chunk) / (found.vpp - 1) : 100; // later chunks are paler
      const label = width > 8 * text.length + 3 ? s("text", { x: x + width / 2, y: top + TALL / 2 + 4, "text-anchor": "middle" }, text) : "";
      return [box(`color-mix(in srgb, ${PASSES[kind]} ${own}%, #fff)`), kind === "B" && width > 5 ? box("url(#backward)") : "", label];
    });
    return [s("title", {}, t("stage {0}: {1} in flight", rank, held)), s("text", { class: "row", x: 0, y: top + TALL / 2 + 4 }, t("stage {0}", rank)), s("rect", { class: "idle", x: LEFT, y: top, width: wide, height: TALL - 0.8 }), cells];
  });
  const height = found.by_rank.length * ROW + AXIS;
  const key = Object.entries(NAMES).map(([kind, name]) => h("span", {}, h("i", { class: `pass ${kind}`, style: `background-color:${PASSES[kind]}` }), name));
  const held = found.by_rank.map((one) => one.most_in_flight).join(", ");
  const text = t("idle {0} of the time, with a backward pass twice as long as a forward pass; the most micro-batches in flight by stage: {1}", percent(found.bubble), held);
  place.replaceChildren(title, h("p", { class: "quiet" }, text), h("div", { class: "legend" }, key, h("span", {}, h("i", { class: "pass none" }), t("idle")), found.vpp > 1 ? t("paler: later chunks of layers") : ""),
    s("svg", { width: LEFT + wide + RIGHT, height, role: "img", "aria-label": t("Schedule of {0} stages: {1}", found.by_rank.length, text) }, hatching(), rows.map((row) => s("g", {}, row))));
}
