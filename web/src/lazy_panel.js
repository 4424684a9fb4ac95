// Panels that the first numbers do not need: each is fetched when its place first comes into view, and is drawn again only
// while it can be seen, or where somebody prints the page. Those that nobody has scrolled to are drawn once, when the page
// has answered everything else: pictures of the whole page, and readers of it, find them.
import { quiet } from "./debounced_query.js";
import { $, h } from "./dom.js";

const MARGIN = 120; // pixels outside of the window in which a place is as good as seen

const panels = [];
let all = false;

/** Draws the panels that were not seen yet. Resolves when the questions that they ask are answered. */
export async function drawAll() {
  all = true;
  for (const details of document.querySelectorAll("details.on-demand")) details.open = true; // paper has nothing to click
  await Promise.all(panels.map((show) => show()));
  await quiet();
}

const idle = () => new Promise((resolve) => { (window.requestIdleCallback ?? setTimeout)(resolve); });

/** Draws the panels that are out of view, one after the other while nothing else is asked; not where somebody saves data. */
export async function drawRest() {
  if (navigator.connection?.saveData) return;
  for (const show of panels) {
    await idle();
    await quiet();
    await show(true);
  }
  await quiet();
}

/** The panel src/panels/NAME.js, which draws into the element with that id. */
export function lazyPanel(name) {
  let view = null, drawn = null, drawing = Promise.resolve();
  const place = $(name);
  const near = () => { // measured when asked: an observer tells late where the page has grown meanwhile
    const { top, bottom } = place.getBoundingClientRect();
    return bottom > -MARGIN && top < window.innerHeight + MARGIN;
  };
  const show = (wanted = false) => {
    if (view && view !== drawn && place.clientWidth && (all || (wanted === true && !drawn) || near())) {
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
