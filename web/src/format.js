// Numbers, as text for people.
import { t } from "./words.js";

/** "8030261248" → "8,030,261,248". The browser's own formatter takes as long to start as all else takes to draw. */
const grouped = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ",");

export const integer = (value) => grouped(Number(value).toFixed(0));

/** 8030261248 → ["8.03", "B"] */
export function count(value) {
  for (const [power, unit] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (value >= power * 0.9995) return [(value / power).toPrecision(3), unit];
  }
  return [String(Math.round(value)), ""];
}

/** 1.93e10 → ["19.3", "GFLOPs"] */
export function flops(value) {
  for (const [power, unit] of [[1e18, "EFLOPs"], [1e15, "PFLOPs"], [1e12, "TFLOPs"], [1e9, "GFLOPs"], [1e6, "MFLOPs"]]) {
    if (value >= power * 0.9995) return [(value / power).toPrecision(3), unit];
  }
  return [integer(value), "FLOPs"];
}

/** 1073741824 → ["1", "GiB"] */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = Math.abs(value), unit = 0;
  while (size >= 1023.5 && unit < units.length - 1) { size /= 1024; unit += 1; }
  const digits = size < 10 ? 2 : size < 100 ? 1 : 0;
  return [String(Math.sign(value) * Number(size.toFixed(digits))), units[unit]];
}

/** 1600000000 → "1.49", 16384 → "16 KiB": for columns of one unit, in which small parts name their own. */
export function gib(value) {
  if (value > 0 && value < 2 ** 30 / 200) return joined(bytes(value));
  const [whole, hundredths] = (value / 2 ** 30).toFixed(2).split(".");
  return `${grouped(whole)}.${hundredths}`;
}

export const joined = (parts) => parts.join(" ").trim();

/** 8192 → "8K" */
export function tokens(value) {
  if (value >= 2 ** 20) return `${+(value / 2 ** 20).toFixed(1)}M`;
  return value >= 1024 ? `${+(value / 1024).toFixed(1)}K` : String(value);
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

const UNITS = [[86400, t("days")], [3600, "h"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const unitOf = (value) => UNITS.find(([size]) => value >= size * 0.9995) ?? UNITS.at(-1);
const digits = (value) => (value >= 100 ? grouped(value.toFixed(0)) : String(Number(value.toPrecision(2))));

/** 0.0283 → "28 ms" */
export function seconds(value) {
  const [size, unit] = unitOf(value);
  return `${digits(value / size)} ${unit}`;
}

/** {low, high} of seconds → "20–43 ms" */
export function range({ low, high }) {
  const [size, unit] = unitOf(high);
  return `${digits(low / size)}–${digits(high / size)} ${unit}`;
}

/** 60120 → "60,000": two digits */
export const about = (value) => digits(Number(value.toPrecision(2)));
