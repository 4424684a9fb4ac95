// How a model is served, trained, and over which devices: the settings of the panels further down. One table says what each
// is in the link, in a question to Python (fields of llmcalc's Settings and LayoutRequest), and as an option of the command
// line.
import { DECLARED, ENGINES, FRAMEWORKS } from "./declared_settings.js";

const READS = {
  number: ({ least, most }) => (text) => {
    const [, digits, unit] = /^(\d{1,8}(?:\.\d{1,3})?)(k|m)?i?$/i.exec(text) ?? [], value = digits * { k: 1024, m: 1024 ** 2 }[unit?.toLowerCase()] || +digits;
    return Number.isInteger(value) && value >= least && value <= most ? value : undefined;
  },
  numbers: () => (text) => (/^\d{1,4}(x\d{1,3})?(,\d{1,4}(x\d{1,3})?)*$/.test(text) ? text.split(",").flatMap(repeated) : undefined),
  flag: () => (text) => ({ true: true, false: false })[text],
  word: ({ of }) => (text) => (of.includes(text) ? text : undefined),
  name: () => (text) => (/^[a-z0-9.-]{1,40}$/.test(text) ? text : undefined),
  decimal: ({ least, most }) => (text) => (/^\d{1,8}(\.\d{1,4})?$/.test(text) && +text >= least && +text <= most ? +text : undefined),
  count: () => (text) => (/^\d{1,6}(\.\d{1,3})?[kmbt]?$/i.test(text) && parseFloat(text) > 0 ? text.toUpperCase() : undefined),
};
/** `2x3` is 2, 2, 2, as --pp-layout takes it. */
const repeated = (item) => {
  const [value, times = 1] = item.split("x").map(Number);
  return Array(times).fill(value);
};
const WRITES = { numbers: (value) => value.join(","), flag: null };

/** One field. start: before anybody has changed it. usual: the value that need not be said; undefined where it always is.
    own: what the page knows of it beside its declaration. of: all values, where they are few. */
function field(name, start, usual, own = {}) {
  const declared = { ...DECLARED[name], of: DECLARED[name]?.words, ...own }, { kind } = declared.of ? { kind: "word" } : declared;
  return { option: declared.option, of: declared.of, start, usual, kind, least: declared.least, most: declared.most, read: READS[kind](declared), word: own.word ?? (kind in WRITES ? WRITES[kind] : String) };
}

const HARDWARE = field("hardware", "h100-sxm", undefined, { option: "--hardware", kind: "name" });
const PRICE = field("price", null, null, { option: "--price", kind: "decimal", least: 0, most: 1e6 });
const whole = (name, start, most = 2 ** 22) => field(name, start, undefined, { option: `--${name}`, kind: "number", least: 1, most });

/** Group → its settings; options, bounds and words are those that llmcalc declares. */
export const FIELDS = {
  run: {
    seq: field("seq", 2048),
    batch: field("batch", 1, undefined, { option: "--micro-batch" }),
    precision: field("precision", "bf16-master", undefined, { of: ["bf16", "bf16-master", "autocast", "fp32"] }),
    optimizer: field("optimizer", "adamw", undefined, { of: ["adamw", "adamw-8bit", "sgd", "adafactor", "muon"] }),
    recompute: field("recompute", "none", undefined, { of: ["none", "attention", "attention+matmuls", "full", "every:2", "every:4"] }),
    attn_implementation: field("attn_implementation", "default", "default", { of: ["default", ...DECLARED.attn_implementation.words] }),
  },
  adapter: {
    base: field("base", "none", "none"),
    lora_rank: field("lora_rank", null, null, { most: 65536 }),
  },
  steps: { num_microbatches: field("num_microbatches", 8) },
  layout: {
    framework: field("framework", "megatron", undefined, { of: FRAMEWORKS }),
    tp: field("tp", 2, 1),
    pp: field("pp", 4, 1),
    cp: field("cp", 1, 1),
    ep: field("ep", 1, 1),
    dp: field("dp", 2, 1),
    sequence_parallel: field("sequence_parallel", true, false),
    zero: field("zero", 0, 0, { least: 0, most: 3 }),
    vpp: field("vpp", 1, 1),
    pp_layout: field("pp_layout", null, null),
    etp: field("etp", null, null),
    cp_comm: field("cp_comm", "p2p", "p2p"),
    hsdp_replicas: field("hsdp_replicas", 1, 1),
    reshard: field("reshard", true, true),
    prefetch: field("prefetch", 0, 0),
  },
  plan: {
    devices: field("devices", 64),
    hardware: HARDWARE,
    global_batch: field("global_batch", null, null, { option: "--global-batch", kind: "number", least: 1, most: 2 ** 24 }),
  },
  serve: {
    hardware: HARDWARE,
    engine: field("engine", "vllm", "vllm", { option: "--engine", of: ENGINES }),
    quantize: field("quantize", "auto", "auto", { option: "--quantize", of: ["auto", "fp8-dynamic", "awq-int4-g128", "nvfp4"] }),
    kv_dtype: field("kv_dtype", "auto", "auto", { option: "--kv-dtype", of: ["auto", "fp8"] }),
    concurrency: whole("concurrency", 64, 2 ** 16),
    input: whole("input", 4096),
    output: whole("output", 1024),
    tpot: field("tpot", 30, null, { option: "--tpot", kind: "decimal", least: 0.1, most: 60000, word: (value) => `${value}ms` }),
    devices: field("devices", null, null, { option: "--devices", kind: "number", least: 1, most: 1024 }),
    price: PRICE,
  },
  cost: {
    hardware: HARDWARE,
    devices: field("devices", 64),
    tokens: field("tokens", "1T", undefined, { option: "--tokens", kind: "count" }),
    price: PRICE,
  },
};

const MARKS = { run: "r", adapter: "a", steps: "n", layout: "l", plan: "p", serve: "s", cost: "c" }; // of a group, in the link

/** Every setting before anybody has changed one. */
export const starts = () => Object.fromEntries(Object.entries(FIELDS).map(([group, fields]) => [group, Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.start]))]));

export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const said = (settings, group) => Object.entries(FIELDS[group]).filter(([name, field]) => field.usual === undefined || !same(settings[group][name], field.usual));

/** What Python is given of these groups: every field that is not as usual. */
export const request = (settings, ...groups) => Object.fromEntries(groups.flatMap((group) => said(settings, group).map(([name]) => [name, settings[group][name]])));

/** The same as options: words of a command. */
export const options = (settings, ...groups) => groups.flatMap((group) => said(settings, group).flatMap(([name, { option, word }]) => {
  const value = settings[group][name];
  if (word) return [option, word(value)];
  return value ? option : `--no-${option.slice(2)}`;
}));

/** What the link says of them: what somebody has changed. */
export const linked = (settings) => Object.entries(FIELDS).flatMap(([group, fields]) => Object.entries(fields).filter(([name, { start }]) => !same(settings[group][name], start))
  .map(([name]) => `&${MARKS[group]}.${name}=${encodeURIComponent(settings[group][name] ?? "")}`)).join("");

/** The settings that a link says; what it does not say, or says wrongly, is as at the start. given: name → text. */
export function unlinked(given) {
  const found = starts();
  for (const [group, fields] of Object.entries(FIELDS)) {
    for (const [name, field] of Object.entries(fields)) {
      const text = given[`${MARKS[group]}.${name}`];
      if (text !== undefined) found[group][name] = field.read(decodeURIComponent(text)) ?? field.start;
    }
  }
  return found;
}

/** The layout that options ask for, such as "--tp 4 --zero 1": what they do not name is as usual; --vpp says its schedule.
    framework: whose. */
export function layoutOf(text, framework) {
  const words = text.split(/\s+/);
  const found = Object.entries(FIELDS.layout).map(([name, field]) => {
    const at = words.indexOf(field.option);
    if (name === "framework") return [name, framework];
    if (field.word) return [name, at < 0 ? field.usual : field.read(words[at + 1])];
    return [name, at < 0 ? field.usual && !words.includes(`--no-${field.option.slice(2)}`) : true];
  });
  return Object.fromEntries(found);
}
