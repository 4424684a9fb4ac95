// A panel as a picture that stands alone: what can be seen of it, its opened details too, as SVG, with a line that says
// where it comes from.
import { s } from "./dom.js";

const LEFT_OUT = "button, input, select, label, details:not(.on-demand), .on-demand:not([open]), .on-demand > summary, .settings, .command, .start, .asked, .save, .status, .more, .near, .hint, [hidden]";
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
const MARGIN = 16, SOURCE = 12, LINE = 16; // pixels: around the panel; size and distance of the lines of the source
const ink = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const plainColours = new Map();

/** A computed colour in the words of SVG 1.1: color-mix() and light-dark() leave color(srgb …). */
function plain(value) {
  if (!value.startsWith("color(") && !value.startsWith("okl")) return value;
  if (!plainColours.has(value)) {
    ink.clearRect(0, 0, 1, 1);
    ink.fillStyle = value;
    ink.fillRect(0, 0, 1, 1);
    const [r, g, b] = ink.getImageData(0, 0, 1, 1).data;
    plainColours.set(value, `rgb(${r}, ${g}, ${b})`);
  }
  return plainColours.get(value);
}

const clear = (colour) => colour === "transparent" || /^rgba\(.*, 0\)$/.test(colour);

/** A drawing of the panel, with the styles that it has here. */
function drawing(svg, left, top) {
  const copy = svg.cloneNode(true), box = svg.getBoundingClientRect();
  const copies = [copy, ...copy.querySelectorAll("*")];
  [svg, ...svg.querySelectorAll("*")].forEach((element, i) => {
    const styles = getComputedStyle(element), keep = element.matches("marker, pattern, clipPath, svg");
    copies[i].removeAttribute("style");
    for (const { name } of [...element.attributes]) if (/^(class|role|tabindex|aria-.*|data-.*)$/.test(name)) copies[i].removeAttribute(name);
    if (!keep || element.matches("svg")) for (const name of STYLES) copies[i].setAttribute(name, plain(styles.getPropertyValue(name)).replaceAll('"', "'"));
  });
  for (const [name, value] of Object.entries({ x: box.left - left, y: box.top - top, width: box.width, height: box.height })) copy.setAttribute(name, value);
  return copy;
}

/** The lines of a text as they are broken here: [words, box]. A word that is broken itself, as Chinese is between any two
    characters, is taken character by character. */
function lines(text) {
  const runs = [], range = document.createRange();
  function put(from, to, gap) {
    range.setStart(text, from);
    range.setEnd(text, to);
    const tops = [...range.getClientRects()].map((box) => box.top), box = range.getBoundingClientRect(), last = runs.at(-1);
    if (!box.width) return;
    if (to - from > 1 && Math.max(...tops) - Math.min(...tops) > 3) {
      for (let at = from; at < to; at += 1) put(at, at + 1, gap && at === from);
      return;
    }
    const word = text.data.slice(from, to);
    if (last && Math.abs(last.box.top - box.top) < 3) {
      last.words += gap ? ` ${word}` : word;
      last.right = box.right;
    } else runs.push({ words: word, box, right: box.right });
  }
  for (const { 0: word, index } of text.data.matchAll(/\S+/g)) put(index, index + word.length, true);
  return runs;
}

function written(text, left, top) {
  const styles = getComputedStyle(text.parentElement), end = ["right", "end"].includes(styles.textAlign);
  ink.font = styles.font;
  const { fontBoundingBoxAscent: above, fontBoundingBoxDescent: below } = ink.measureText("x");
  return lines(text).map(({ words, box, right }) => s("text", {
    x: (end ? right : box.left) - left, y: box.top - top + (box.height - above - below) / 2 + above, fill: plain(styles.color), "text-anchor": end ? "end" : "start",
    "font-size": styles.fontSize, "font-weight": styles.fontWeight, "font-family": styles.fontFamily.replaceAll('"', "'"), "letter-spacing": styles.letterSpacing,
  }, words));
}

function filled(element, left, top) {
  const { backgroundColor: colour, borderRadius, opacity } = getComputedStyle(element), box = element.getBoundingClientRect();
  if (clear(colour) || !box.width) return [];
  return [s("rect", { x: box.left - left, y: box.top - top, width: box.width, height: box.height, rx: parseFloat(borderRadius) || 0, fill: plain(colour), "fill-opacity": opacity })];
}

function* parts(element, left, top) {
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) yield* written(child, left, top);
    if (child.nodeType !== Node.ELEMENT_NODE || child.matches(LEFT_OUT) || !child.getClientRects().length && child.tagName !== "DIV") continue;
    if (child.matches("svg")) yield drawing(child, left, top);
    else {
      yield* filled(child, left, top);
      yield* parts(child, left, top);
    }
  }
}

/** A text in lines of at most that width. */
function broken(text, width) {
  ink.font = `${SOURCE}px system-ui, sans-serif`;
  return text.split(" ").reduce((rows, word) => {
    const longer = `${rows.at(-1)} ${word}`.trim();
    return ink.measureText(longer).width > width ? [...rows, word] : [...rows.slice(0, -1), longer];
  }, [""]);
}

/** An SVG element of what a panel shows. source: the words below it. */
export function picture(panel, source) {
  const controls = [...panel.querySelectorAll(LEFT_OUT)], before = controls.map(({ style }) => style.display);
  for (const { style } of controls) style.display = "none"; // so that they leave no room; nothing is painted meanwhile
  try {
    return drawn(panel, source);
  } finally {
    controls.forEach(({ style }, i) => { style.display = before[i]; });
  }
}

function drawn(panel, source) {
  const { left, top, width: wide } = panel.getBoundingClientRect(), { backgroundColor, color } = getComputedStyle(panel);
  const content = [...parts(panel, left, top)], seen = [...panel.querySelectorAll("svg, p, li, tr, output, .bar, .legend, figure, .figure")].map((element) => element.getBoundingClientRect());
  const tables = [...panel.querySelectorAll("table")].map((table) => table.getBoundingClientRect().right - left + MARGIN); // which scroll on a narrow page
  const width = Math.ceil(Math.max(wide, ...tables)), low = Math.max(...seen.map(({ bottom }) => bottom - top));
  const below = broken(source, width - 2 * MARGIN), height = Math.ceil(low + 2 * MARGIN + LINE * below.length);
  return s("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height }, s("rect", { width, height, fill: plain(backgroundColor) }), content,
    below.map((line, i) => s("text", { x: MARGIN, y: height - MARGIN + 4 - LINE * (below.length - 1 - i), "font-size": SOURCE, "font-family": "system-ui, sans-serif", fill: plain(color), opacity: 0.7 }, line)));
}

export const svgText = (drawn) => new XMLSerializer().serializeToString(drawn);

/** The picture as a PNG, with two pixels to each of the page. */
export async function png(drawn) {
  const address = URL.createObjectURL(new Blob([svgText(drawn)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * drawn.width.baseVal.value;
    canvas.height = 2 * drawn.height.baseVal.value;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}
