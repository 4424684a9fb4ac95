// Panels that the first screen does not need: each is fetched when its place first comes into view, and is drawn only
// while it can be seen, or where somebody prints the page.
import { quiet } from "./debounced_query.js";
import { $, h } from "./dom.js";

const MARGIN = 120; // pixels outside of the window in which a place is as good as seen

const panels = [];
let all = false;

/** Draws the panels that were not seen yet. Resolves when the questions that they ask are answered. */
export async function drawAll() {
  all = true;
  await Promise.all(panels.map((show) => show()));
  await quiet();
}

/** The panel src/panels/NAME.js, which draws into the element with that id. */
export function lazyPanel(name) {
  let view = null, drawn = null, drawing = Promise.resolve();
  const place = $(name);
  const near = () => { // measured when asked: an observer tells late where the page has grown meanwhile
    const { top, bottom, width } = place.getBoundingClientRect();
    return width > 0 && bottom > -MARGIN && top < window.innerHeight + MARGIN;
  };
  const show = () => {
    if (view && view !== drawn && (all || near())) {
      drawn = view;
      drawing = paint();
    }
    return drawing;
  };
  const paint = async () => {
    try {
      const panel = await import(`./panels/${name}.js`);
      if (drawn.models.length) await panel.draw(drawn);
    } catch (error) {
      drawn = null;
      place.replaceChildren(h("p", { class: "error" }, error.message));
    }
  };
  panels.push(show);
  new IntersectionObserver(show, { rootMargin: `${MARGIN}px` }).observe(place);
  // Two frames later, since what is drawn above may first push the place out of view.
  return { draw(next) { view = next; requestAnimationFrame(() => requestAnimationFrame(show)); } };
}
