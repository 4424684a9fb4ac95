// What one device needs at its peak, by kind, against the memory of accelerators.
import { $, h } from "../dom.js";
import { bytes, joined } from "../format.js";
import { fitting, legend, partsOf } from "../memory_bars.js";
import { t } from "../words.js";

export function draw({ model }) {
  const place = $("memory"), { memory } = model;
  if (!memory) return place.replaceChildren(model.error ? "" : h("p", { class: "quiet" }, t("Counting what a prefill and a decoding step take…")));
  if (memory.error) return place.replaceChildren(h("p", { class: "error" }, memory.error));
  const { memory: used, fits } = memory.memory;
  const parts = partsOf(used);
  const when = model.answer?.params.model.kind === "encoder" ? t(" at the peak") : t(" at the peak of prefill and decoding");
  const short = fits.length && fits.every((fit) => fit.verdict === "no"); // what fits then is several, in the panel on servers
  const servers = h("button", { type: "button", class: "offer", onclick: () => $("serve").closest("article").scrollIntoView() }, t("See the servers that hold it"));
  place.replaceChildren(h("p", { class: "quiet" }, h("b", {}, joined(bytes(used.device_bytes))), when, short ? [t(". "), t("No single accelerator has room. "), servers] : ""), legend(parts, used.device_bytes), fitting(fits, parts, used.device_bytes));
}
