// Two buttons in the heading of each panel with a chart, which save it as a picture.
import { h } from "./dom.js";
import { png, picture, svgText } from "./picture.js";
import { state, target } from "./state.js";
import { t } from "./words.js";

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Where the picture comes from: the command with the same numbers, and the page's address. */
function source(panel) {
  const command = panel.querySelector(".command code, .asked") ?? document.querySelector("#command");
  const home = document.querySelector("link[rel=canonical]")?.href ?? location.origin;
  return `${command.textContent.replace(/^\$ /, "")} · ${home.replace(/^https?:\/\//, "").replace(/\/$/, "")}`;
}

async function save(panel, kind) {
  const drawn = picture(panel, source(panel)), names = state.models.map((model) => target(model).replaceAll(/[^A-Za-z0-9.-]+/g, "-"));
  const blob = kind === "png" ? await png(drawn) : new Blob([svgText(drawn)], { type: "image/svg+xml" });
  download(blob, `llmcalc-${names.join("-")}-${panel.dataset.name}.${kind}`);
}

/** Puts the buttons into panels: those with a name for files. */
export function saveButtons(panels) {
  for (const panel of panels) {
    const title = panel.querySelector("h2"), button = (kind) => h("button", { type: "button", "aria-label": t("Save as {0}: {1}", kind.toUpperCase(), title.textContent), onclick: () => save(panel, kind) }, kind.toUpperCase());
    title.after(h("div", { class: "save" }, button("svg"), button("png")));
  }
}
