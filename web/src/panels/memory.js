// What one device needs at its peak, by kind, against the memory of accelerators.
import { $, h } from "../dom.js";
import { bytes, joined, percent } from "../format.js";
import { KINDS } from "../palette.js";

const NAMES = { temporary: "temporary tensors", overhead: "library workspaces" };

export function draw({ model }) {
  const place = $("memory"), { memory } = model;
  if (!memory) return place.replaceChildren(model.error ? "" : h("p", { class: "quiet" }, "Counting what a prefill and a decoding step take…"));
  if (memory.error) return place.replaceChildren(h("p", { class: "error" }, memory.error));
  const { memory: used, fits } = memory.memory;
  const parts = Object.entries(used.by_kind).filter(([, size]) => size > 0);
  const rest = used.device_bytes - used.peak_bytes;
  if (rest > 0) parts.push(["free blocks and context", rest]);
  const paint = (kind) => KINDS[kind] ?? "var(--dim)";
  const text = parts.map(([kind, size]) => `${NAMES[kind] ?? kind} ${joined(bytes(size))}`).join(", ");
  const legend = h("div", { class: "legend" }, parts.filter(([, size]) => size / used.device_bytes > 0.004).map(([kind, size]) => h("span", {}, h("i", { style: `background:${paint(kind)}` }), `${NAMES[kind] ?? kind} ${joined(bytes(size))}`)));
  const rows = fits.map((fit) => {
    const scale = Math.max(fit.usable_bytes, used.device_bytes);
    const bar = parts.map(([kind, size]) => h("i", { style: `width:${(100 * size) / scale}%;background:${paint(kind)}` }));
    const limit = fit.verdict === "no" ? h("u", { style: `left:${(100 * fit.usable_bytes) / scale}%` }) : "";
    const left = fit.usable_bytes - used.device_bytes;
    const words = left < 0 ? `${joined(bytes(-left))} short` : `${joined(bytes(left))} free${fit.verdict === "tight" ? ", tight" : ""}`;
    return h("li", { class: fit.verdict, title: `${fit.hardware}: ${percent(used.device_bytes / fit.usable_bytes)} of ${joined(bytes(fit.usable_bytes))}` },
      h("span", {}, fit.hardware), h("div", { class: "bar", "aria-hidden": "true" }, bar, limit), h("span", {}, words));
  });
  place.replaceChildren(h("p", { class: "quiet" }, h("b", {}, joined(bytes(used.device_bytes))), ` at the peak${model.answer?.params.model.kind === "encoder" ? "" : " of prefill and decoding"}`), legend, h("ul", { class: "fits", "aria-label": text }, rows));
}
