// Sentences of llmcalc's answers in another language, by their form: "{0} users of {1}" in the table is every sentence of
// that form, whatever its numbers and names are.

const escaped = (text) => text.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
const VALUE = "((?:[^;]|;(?! ))+?)"; // a sentence of several parts is translated part by part
const literal = (template) => template.replace(/\{\d\}/g, "").length;
const OUTSIDE = { "; ": /; (?![^(]*\))/, ", ": /, (?![^(]*\))/ }; // separators outside of brackets
const JOINS = { "; ": "；", ", ": "，" };
const COUNTED = /^(.+) \((\d[\d,]*)\)$/s; // a reason, and for how many it holds
const NAMED = /^([^:;]{1,60}): (.+)$/s; // what a sentence is about before it: the name of a model, an option with its value

/** table: template → its translation. Returns a function: sentence → the same in that language, as far as the table goes. */
export function translator(table) {
  const forms = Object.entries(table).filter(([template]) => template.includes("{0}")).sort(([a], [b]) => literal(b) - literal(a))
    .map(([template, meaning]) => {
      const order = [...template.matchAll(/\{(\d)\}/g)].map(([, digit]) => digit);
      return { pattern: new RegExp(`^${escaped(template).replace(/\{\d\}/g, VALUE)}$`, "s"), order, meaning };
    });

  function whole(text) {
    if (Object.hasOwn(table, text)) return table[text];
    for (const { pattern, order, meaning } of forms) {
      const match = pattern.exec(text);
      if (match) return meaning.replace(/\{(\d)\}/g, (_, digit) => said(match[1 + order.indexOf(digit)]));
    }
    return null;
  }

  function said(text) {
    const found = whole(text);
    if (found !== null) return found;
    for (const [mark, separator] of Object.entries(OUTSIDE)) {
      const parts = text.split(separator);
      if (parts.length > 1) {
        const meanings = parts.map(said);
        if (parts.every((part) => Object.hasOwn(table, part))) return meanings.join(mark === ", " ? "、" : JOINS[mark]); // an enumeration
        if (meanings.some((meaning, i) => meaning !== parts[i])) return meanings.join(JOINS[mark]);
      }
    }
    const [, reason, many] = COUNTED.exec(text) ?? [];
    if (many && said(reason) !== reason) return `${said(reason)}（${many}）`;
    const [, name, rest] = NAMED.exec(text) ?? [];
    const meaning = rest && said(rest);
    return meaning && meaning !== rest ? `${name}：${meaning}` : text;
  }

  return said;
}
