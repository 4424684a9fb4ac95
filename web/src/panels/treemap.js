// Parameters as areas. What a token does not use of the experts is hatched.
import { colour, inkOn, named } from "../components.js";
import { $, h, pressable, s } from "../dom.js";
import { count, integer, joined, percent } from "../format.js";
import { state } from "../state.js";
import { t } from "../words.js";

const HINT = () => t("Point at a part to see its size.");
const STACKS = ["encoder", "decoder"]; // their layers have the same names
const HEAD = 17; // pixels of the name of a group of layers

/** Leaves of the tree with their paths; `params_in_all` counts every repeat. */
function leaves(node, kind = null, path = "") {
  const found = [];
  for (const child of node.children ?? []) {
    if (child.optional || !child.params_in_all) continue;
    const below = { path: path ? `${path}.${child.name}` : child.name, kind: child.kind ?? kind };
    if (child.children?.some((one) => one.params_in_all)) found.push({ ...below, name: child.name, group: child.kind === "layer" ? `${child.label ?? (STACKS.includes(path) ? path : child.name)} × ${child.repeat ?? 1}` : null, children: leaves(child, below.kind, below.path) });
    else found.push({ ...below, name: child.name, value: child.params_in_all, active: (child.active ?? child.params) / child.params });
  }
  return found;
}

function legend(parts, total) {
  const kinds = Object.entries(parts).filter(([, size]) => size / total > 0.0005).sort((a, b) => b[1] - a[1]);
  return kinds.map(([kind, size]) => h("span", {}, h("i", { style: `background:${colour(kind)}` }), `${named(kind)} ${percent(size / total)}`));
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function draw({ model, pick, room }) {
  const place = $("treemap"), { answer } = model;
  if (!answer) { $("legend").replaceChildren(); $("treemap-said").value = ""; return place.replaceChildren(); }
  const { params, tree } = answer.params;
  const { width, height } = room.treemap;
  const root = window.d3.hierarchy({ children: leaves(tree) }).sum((one) => one.value ?? 0).sort((a, b) => b.value - a.value);
  const layers = root.descendants().filter((box) => box.data.group), several = layers.length > 1; // kinds of layers are told apart by a heading
  window.d3.treemap().size([width, height]).paddingInner(2).paddingTop((box) => (several && box.data.group ? HEAD : 0)).round(true)(root);
  const heads = several ? layers.filter((box) => box.x1 - box.x0 > 60).map((box) => s("text", { class: "head", "aria-hidden": "true", x: box.x0 + 2, y: box.y0 + 12 }, cut(box.data.group.replaceAll("_", " "), (box.x1 - box.x0) / 6.6))) : [];
  const say = (text) => { $("treemap-said").value = text; };
  const boxes = root.leaves().filter((box) => (box.x1 - box.x0) * (box.y1 - box.y0) > 8).map((box) => {
    const { name, kind, path, active } = box.data, w = box.x1 - box.x0, tall = box.y1 - box.y0;
    const text = `${path}: ${t("{0} parameters", integer(box.value))}, ${percent(box.value / root.value)}${active < 1 ? `, ${t("{0} of them active for a token", percent(active))}` : ""}`;
    const ink = inkOn(colour(kind)), fits = w > 7.4 * name.length + 14 && tall > 22;
    const small = `${joined(count(box.value))} · ${percent(box.value / root.value)}`;
    const idle = active < 1 ? s("rect", { x: box.x0 + w * active, y: box.y0, width: w * (1 - active), height: tall, fill: "url(#idle)", "pointer-events": "none" }) : "";
    const upright = !fits && tall > 7.4 * name.length + 14 && w > 18; // the name from below to above
    const label = (dy, words, quiet) => s("text", { "aria-hidden": "true", x: box.x0 + 8, y: box.y0 + dy, fill: ink, class: quiet ? "quiet" : "", style: active < 1 ? `paint-order:stroke;stroke:${colour(kind)};stroke-width:6px` : "" }, words);
    return s("g", { ...pressable(() => pick(path)), onpointerenter: () => say(text), onfocus: () => say(text), "data-node": path, class: state.node === path ? "on" : "" },
      s("title", {}, text), s("rect", { x: box.x0, y: box.y0, width: w, height: tall, rx: 4, fill: colour(kind) }), idle,
      upright ? s("text", { "aria-hidden": "true", fill: ink, transform: `translate(${box.x0 + w / 2 + 4} ${box.y1 - 8}) rotate(-90)` }, name) : "", fits ? label(17, name) : "", fits && tall > 40 && w > 7 * small.length + 14 ? label(34, small, true) : "");
  });
  const idle = s("pattern", { id: "idle", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 2.2, height: 7, fill: "var(--card)", opacity: 0.55 }));
  place.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": t("Parameters by part"), onpointerleave: () => say(HINT()) }, s("defs", {}, idle), heads, boxes));
  if (!$("treemap-said").value || !place.matches(":hover, :focus-within")) say(HINT());
  const someIdle = root.leaves().some((box) => box.data.active < 1);
  const key = someIdle ? [h("span", {}, h("i", { class: "hatched" }), t("not used by a token"))] : [];
  $("legend").replaceChildren(...legend(params.by_component, params.total), ...key);
}
