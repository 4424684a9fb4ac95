// Charts that answer with values: to the pointer the nearest place, to the keyboard one after the other.

/** Makes an SVG a slider over its places. xs: pixels of each from the left, ascending. ys: from above, where places lie
    over each other; without them the nearest column counts. texts: what each says. start: the place that is shown while
    nobody points; null for none. show: draws a place's marks. label: what the chart is of. */
export function readout(svg, { xs, ys, texts, start, show, label }) {
  let at = start ?? -1, resting = start;
  const move = (index) => {
    at = Math.min(Math.max(index, 0), xs.length - 1);
    svg.setAttribute("aria-valuenow", at);
    svg.setAttribute("aria-valuetext", texts[at]);
    show(at);
  };
  const nearest = ({ clientX, clientY }) => {
    const { left, top } = svg.getBoundingClientRect();
    const far = xs.map((x, i) => Math.hypot(x - (clientX - left), ys ? ys[i] - (clientY - top) : 0));
    return far.indexOf(Math.min(...far));
  };
  const attributes = { role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": 0, "aria-valuemax": xs.length - 1, "aria-valuenow": 0, "aria-valuetext": texts[0] };
  for (const [name, value] of Object.entries(attributes)) svg.setAttribute(name, value);
  svg.addEventListener("pointermove", (event) => move(nearest(event)));
  svg.addEventListener("pointerleave", () => { if (resting !== null) move(resting); });
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: xs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
    resting = at;
  });
  if (start !== null) move(start);
}
