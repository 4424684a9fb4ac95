// Making elements. Text is always set as text, so nothing that a config says can become markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);
export const $ = (id) => document.getElementById(id);

const LATEST = 300; // ms
/** Resolves when what was drawn is on the screen; soon also where the page is in the background and nothing is painted.
    What takes the processors that the picture needs waits for it. */
export const painted = () => new Promise((resolve) => {
  requestAnimationFrame(() => setTimeout(resolve));
  setTimeout(resolve, LATEST);
});

/** The address of one of the page's own files: the page itself may stand in a folder of a language. */
export const here = (path) => new URL(path, import.meta.url).href;

/** Attributes that make a group of a drawing a button for the mouse, the keyboard and a screen reader: its title is its name. */
export function pressable(act) {
  const onkeydown = (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(event); }
  };
  return { role: "button", tabindex: 0, onclick: act, onkeydown };
}

let loaded = new Map();
/** Loads a script once, for libraries that are no modules. */
export function script(path) {
  if (!loaded.has(path)) {
    loaded.set(path, new Promise((resolve, reject) => {
      document.head.append(h("script", { src: here(path), onload: resolve, onerror: () => reject(new Error(`${path}: not found`)) }));
    }));
  }
  return loaded.get(path);
}
