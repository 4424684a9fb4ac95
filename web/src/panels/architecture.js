// The tree of modules as a drawing: the residual stream on the left, sublayers that read it and add to it.
import { colour } from "../components.js";
import { $, pressable, s } from "../dom.js";
import { count, integer, joined } from "../format.js";
import { state } from "../state.js";
import { t } from "../words.js";

const WIDTH = 240, STREAM = 14, BOX = 32, NORM = 23, GAP = 8;
const SHORT = 350; // pixels that stand beside the treemap alone; a taller drawing stands beside the formula too

const sublayer = (name) => name.replace(/_(pre|post)_norm$/, "").replace(/_norm$/, "");

/** Children of a layer that belong together: a mixer or a network with its norms; all of them, where they are parallel. */
function groups(children, placement) {
  if (placement.startsWith("parallel")) return [children];
  const found = [];
  for (const child of children) {
    const last = found.at(-1);
    if (last && sublayer(last[0].name) === sublayer(child.name)) last.push(child);
    else found.push([child]);
  }
  return found;
}

function box(node, path, x, y, width, height, act) {
  const { name, kind, params, optional } = node;
  const full = `${path}: ${t(optional ? "{0} parameters, optional and not counted" : "{0} parameters", integer(params))}`;
  const words = name.replaceAll("_", " ");
  const size = joined(count(params)), room = Math.floor((width - 20) / 6.9) - size.length;
  const attributes = optional ? { class: "optional" } : { ...pressable(() => act(path)), "data-node": path, class: state.node === path ? "on" : "" };
  return s("g", attributes, s("title", {}, full),
    s("rect", { x, y, width, height, rx: 6, style: `fill:color-mix(in srgb, ${colour(kind)} 16%, var(--card));stroke:${colour(kind)}` }),
    s("text", { "aria-hidden": "true", x: x + 9, y: y + height / 2 + 4 }, words.length > room ? `${words.slice(0, room - 1)}…` : words),
    s("text", { "aria-hidden": "true", class: "quiet", x: x + width - 8, y: y + height / 2 + 4, "text-anchor": "end" }, size));
}

const plus = (y) => s("g", { class: "plus" }, s("circle", { cx: STREAM, cy: y, r: 5.5 }), s("path", { d: `M${STREAM - 3} ${y}h6M${STREAM} ${y - 3}v6` }));
const arrow = (d) => s("path", { class: "wire", d, "marker-end": "url(#tip)" });
const wire = (d) => s("path", { class: "wire", d });

/** One kind of layer: its sublayers along the residual stream. Returns the drawing and where it ends. */
function layer(node, path, y, placements, act) {
  const children = node.children.filter((child) => child.params);
  const plain = placements.length === 1, placement = plain ? placements[0] : "";
  const left = plain ? 38 : 14, parts = [], title = (node.label ?? node.name.split(".")[0]).replaceAll("_", " ");
  let at = y + 28;
  for (const group of groups(children, placement)) {
    const top = at;
    let add = null;
    for (const child of group) {
      const tall = child.kind === "norm" ? NORM : BOX;
      const afterwards = placement === "post" && child.kind === "norm" && group.length > 1; // on the stream, behind the sum
      if (afterwards) { add = at + 4; at += 14; }
      parts.push(box(child, `${path}.${child.name}`, afterwards ? 6 : left, at, (afterwards ? WIDTH - 12 : WIDTH - 8 - left), tall, act));
      at += tall + 4;
    }
    if (plain) {
      const first = group[0].kind === "norm" ? NORM : BOX;
      parts.push(arrow(`M${STREAM} ${top + first / 2}H${left - 2}`));
      const sum = add ?? at + 5;
      parts.push(wire(`M${left + 30} ${add === null ? at - 4 : sum - 8}V${sum}H${STREAM + 6}`), plus(sum));
      if (add === null) at += 14;
    }
    at += GAP - 4;
  }
  const height = at - y + 2;
  const stream = plain ? wire(`M${STREAM} ${y + 20}V${y + height}`) : "";
  return {
    drawn: s("g", {}, s("rect", { class: "stack", x: 2, y, width: WIDTH - 4, height, rx: 9 }),
      s("text", { class: "quiet", x: 26, y: y + 17 }, title === "layers" ? t("layer") : t("{0} layer", title)),
      s("text", { class: "times", x: WIDTH - 10, y: y + 17, "text-anchor": "end" }, `× ${node.repeat ?? 1}`), stream, parts),
    end: y + height,
  };
}

export function draw({ model, pick }) {
  const { answer } = model;
  if (!answer) return $("architecture").replaceChildren();
  const parts = [];
  let y = 4;
  const link = () => { if (y > 4) { parts.push(wire(`M${STREAM} ${y}v12`)); y += 12; } };
  const visit = (node, path) => {
    for (const child of node.children ?? []) {
      const below = path ? `${path}.${child.name}` : child.name;
      if (!child.params) continue;
      if (child.kind === "layer") {
        link();
        const { drawn, end } = layer(child, below, y, answer.norms, pick);
        parts.push(drawn);
        y = end;
      } else if (["encoder", "decoder"].includes(child.name)) {
        y += y > 4 ? 22 : 12;
        parts.push(s("text", { class: "times", x: 4, y: y - 5 }, child.name));
        visit(child, below);
      } else {
        link();
        parts.push(box(child, below, 2, y, WIDTH - 4, child.kind === "norm" ? NORM : BOX, pick));
        y += child.kind === "norm" ? NORM : BOX;
      }
    }
  };
  visit(answer.params.tree, "");
  const tip = s("marker", { id: "tip", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" }, s("path", { d: "M0 0L6 3L0 6z", fill: "var(--dim)" }));
  $("architecture").parentElement.classList.toggle("short", y <= SHORT);
  $("architecture").replaceChildren(s("svg", { viewBox: `0 0 ${WIDTH} ${y + 4}`, role: "group", "aria-label": t("Architecture, from input to output") }, s("defs", {}, tip), parts));
}
