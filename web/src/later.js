// Panels that the first screen does not need: each is fetched when its place first comes into view, and is drawn only
// while it can be seen.
import { $, h } from "./dom.js";

/** The panel src/panels/NAME.js, which draws into the element with that id. */
export function later(name) {
  let view = null, drawn = null, seen = false;
  const place = $(name);
  const show = async () => {
    if (!seen || !view || view === drawn) return;
    drawn = view;
    try {
      const panel = await import(`./panels/${name}.js`);
      if (drawn.models.length) await panel.draw(drawn);
    } catch (error) {
      drawn = null;
      place.replaceChildren(h("p", { class: "error" }, error.message));
    }
  };
  new IntersectionObserver((entries) => { seen = entries.at(-1).isIntersecting; show(); }, { rootMargin: "120px" }).observe(place);
  // Two frames later, since what is drawn above may first push the place out of view.
  return { draw(next) { view = next; requestAnimationFrame(() => requestAnimationFrame(show)); } };
}
