// What the charts have in common: values for their axes, and names of models.

/** Round values between two, at most so many: powers of the base, or 1, 2, 5 of each power of ten; where they are fewer than three, equal steps. */
export function ticks(low, high, base, most = 5) {
  const found = [];
  if (base === 2) for (let k = Math.ceil(Math.log2(low)); 2 ** k <= high; k += 1) found.push(2 ** k);
  else for (let k = Math.floor(Math.log10(low)); 10 ** k <= high; k += 1) for (const q of [1, 2, 5]) if (q * 10 ** k >= low && q * 10 ** k <= high) found.push(q * 10 ** k);
  const every = Math.ceil(found.length / most);
  return found.length > 2 ? found.filter((_, i) => i % every === 0) : steps(low, high, base);
}

function steps(low, high, base) {
  const room = (high - low) / 5;
  const k = base === 2 ? Math.ceil(Math.log2(room)) : Math.floor(Math.log10(room));
  const step = base === 2 ? 2 ** k : [1, 2, 5, 10].find((q) => q * 10 ** k >= room) * 10 ** k;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) found.push(i * step);
  return found;
}

/** Llama 3.2 11B (vision) → Llama 3.2 11B */
export const short = (title) => title.replace(/ \(.*/, "");
