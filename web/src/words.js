// The page's language. English text stands in the code; zh.json has every one of its strings in Chinese, and zh_answers.json
// the forms of the sentences that llmcalc's answers have.
import { here } from "./dom.js";
import { translator } from "./translator.js";

const chinese = globalThis.document?.documentElement.lang.startsWith("zh") ?? false; // tests run modules without a page
const loaded = (name) => (chinese ? fetch(here(name)).then((found) => found.json()) : {});
const [table, answers] = await Promise.all(["zh.json", "zh_answers.json"].map(loaded));

/** A sentence of llmcalc's answers (a note, an error, a reason) in the page's language; as it is where no form fits. */
export const translated = chinese ? translator(answers) : (text) => text;

/** A text in the page's language. values: what stands in place of {0}, {1}, … */
export const t = (text, ...values) => (table[text] ?? text).replace(/\{(\d)\}/g, (_, i) => values[i]);

const PHRASE = /, (?![^(]*\))/; // a comma outside of brackets
/** A headline of llmcalc, phrase by phrase: "32 layers, SwiGLU 14336" → "32 层，SwiGLU 14336". Its numbers are the values of a string. */
export const phrases = (headline) => headline.split(PHRASE).map((phrase) => {
  const numbers = [];
  const text = phrase.replace(/\d+(\.\d+)?/g, (digits) => `{${numbers.push(digits) - 1}}`);
  return t(text, ...numbers);
}).join(chinese ? "，" : ", ");
