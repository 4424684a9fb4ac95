// What a device holds, by kind: a legend, a bar, and the memory of accelerators beside it.
import { h } from "./dom.js";
import { bytes, joined, percent } from "./format.js";
import { KINDS } from "./palette.js";
import { t } from "./words.js";

const NAMES = {
  weights: t("weights"), gradients: t("gradients"), optimizer: t("optimizer"), activations: t("activations kept"), temporary: t("temporary tensors"),
  communication: t("communication"), cache: t("KV cache"), overhead: t("library workspaces"), beside: t("fragmentation and context"),
};

/** Phase of a run → its name in a sentence. */
export const PHASES = { prefill: t("prefill"), decode: t("decoding step"), forward: t("forward pass"), backward: t("backward pass"), step: t("optimizer’s step") };

export const paint = (kind) => KINDS[kind] ?? "var(--dim)";
export const named = (kind) => NAMES[kind] ?? kind;

/** [kind, bytes] of what stands at the peak, and of what the allocator and the runtime take beside it. */
export function partsOf({ by_kind: kinds, peak_bytes: peak, device_bytes: device }) {
  const parts = Object.entries(kinds).filter(([, size]) => size > 0);
  return device > peak ? [...parts, ["beside", device - peak]] : parts;
}

export const words = (parts) => parts.map(([kind, size]) => `${named(kind)} ${joined(bytes(size))}`).join(", ");

/** The colours of parts with their sizes, but for those too small to be seen. */
export function legend(parts, whole, sized = true) {
  return h("div", { class: "legend" }, parts.filter(([, size]) => size / whole > 0.004).map(([kind, size]) => h("span", {}, h("i", { style: `background:${paint(kind)}` }), sized ? `${named(kind)} ${joined(bytes(size))}` : named(kind))));
}

/** scale: the bytes of the whole bar. limit: where a line stands; none if undefined. */
export function bar(parts, scale, limit) {
  return h("div", { class: "bar", "aria-hidden": "true" }, parts.map(([kind, size]) => h("i", { style: `width:${(100 * size) / scale}%;background:${paint(kind)}` })),
    limit === undefined ? "" : h("u", { style: `left:${(100 * limit) / scale}%` }));
}

/** One bar an accelerator, and what is free or short there. */
export function fitting(fits, parts, needed) {
  const rows = fits.map((fit) => {
    const left = fit.usable_bytes - needed;
    const size = joined(bytes(Math.abs(left)));
    const text = fit.verdict === "tight" ? t("{0}, tight", left < 0 ? `−${size}` : size) : t(left < 0 ? "{0} short" : "{0} free", size);
    return h("li", { class: fit.verdict, title: `${fit.hardware}: ${t("{0} of {1}", percent(needed / fit.usable_bytes), joined(bytes(fit.usable_bytes)))}` },
      h("span", {}, fit.hardware), bar(parts, Math.max(fit.usable_bytes, needed), fit.verdict === "no" ? fit.usable_bytes : undefined), h("span", {}, text));
  });
  return h("ul", { class: "fits", "aria-label": words(parts) }, rows);
}
