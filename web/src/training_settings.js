// How a model is trained and over which devices: the settings of the panels further down. One table says what each is in
// the link, in a question to Python (fields of llmcalc's Settings and Asked), and as an option of the command line.

const whole = (option, start, usual, least = 1, most = 2 ** 24) => ({ option, start, usual, read: (text) => (/^\d{1,8}$/.test(text) && +text >= least && +text <= most ? +text : undefined), word: String });
const one = (option, start, usual, of) => ({ option, start, usual, of, read: (text) => (of.includes(text) ? text : undefined), word: String });
const flag = (option, start, usual) => ({ option, start, usual, read: (text) => ({ true: true, false: false })[text], word: null });
const list = (option) => ({ option, start: null, usual: null, read: (text) => (/^\d{1,4}(,\d{1,4})*$/.test(text) ? text.split(",").map(Number) : undefined), word: (value) => value.join(",") });

/** Group → its settings. start: before anybody has changed it. usual: the value that need not be said; undefined where it
    always is. of: all values, where they are few. */
export const FIELDS = {
  run: {
    seq: whole("--seq", 2048),
    batch: whole("--micro-batch", 1),
    precision: one("--precision", "bf16-master", undefined, ["bf16-master", "autocast", "bf16", "fp32"]),
    optimizer: one("--optimizer", "adamw", undefined, ["adamw", "adamw-8bit", "sgd", "adafactor", "muon"]),
    recompute: one("--recompute", "none", "none", ["none", "attention", "attention+matmuls", "full", "every:2", "every:4"]),
    attn_implementation: one("--attn-implementation", "flash", undefined, ["flash", "sdpa-math", "eager"]),
  },
  steps: { num_microbatches: whole("--num-microbatches", 8, 1) },
  layout: {
    framework: one("--framework", "megatron", undefined, ["megatron", "fsdp2", "deepspeed", "torch"]),
    tp: whole("--tp", 2, 1),
    pp: whole("--pp", 4, 1),
    cp: whole("--cp", 1, 1),
    ep: whole("--ep", 1, 1),
    dp: whole("--dp", 2, 1),
    sequence_parallel: flag("--sequence-parallel", true, false),
    zero: whole("--zero", 0, 0, 0, 3),
    vpp: whole("--vpp", 1, 1),
    pp_layout: list("--pp-layout"),
    etp: whole("--etp", null, null),
    cp_comm: one("--cp-comm", "p2p", "p2p", ["p2p", "a2a", "allgather"]),
    hsdp_replicas: whole("--hsdp-replicas", 1, 1),
    reshard: flag("--reshard", true, true),
    prefetch: whole("--prefetch", 0, 0, 0),
  },
  plan: { devices: whole("--devices", 64), hardware: { option: "--hardware", start: "h100-sxm", read: (text) => (/^[a-z0-9.-]{1,40}$/.test(text) ? text : undefined), word: String }, global_batch: whole("--global-batch", null, null) },
};

const MARKS = { run: "r", steps: "n", layout: "l", plan: "p" }; // of a group, in the link

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
