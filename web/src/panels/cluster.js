// A training run over many devices: what the ranks hold, what one sends, the order of its pipeline, and which layouts fit.
import { debouncedQuery } from "../debounced_query.js";
import { $, h } from "../dom.js";
import { check, choice, command, line, number, style } from "../fields.js";
import { bytes, gib, integer, joined, percent, range } from "../format.js";
import { bar, fitting, legend, partsOf, PHASES, words } from "../memory_bars.js";
import { FIELDS, layoutOf, options, request, same, starts } from "../training_settings.js";
import { timetable } from "../schedule.js";
import { commandLine } from "../shell.js";
import { asked, state, target } from "../state.js";

const FRAMEWORKS = { megatron: "Megatron-Core", fsdp2: "FSDP2", deepspeed: "DeepSpeed", torch: "torch" };
const GROUPS = { tp: "tensor (tp)", sp: "sequence (sp)", pp: "pipeline (pp)", cp: "context (cp)", dp: "replicas (dp)", ep: "experts (ep)", etp: "an expert (etp)" };
const SENDS = { all_reduce: "all-reduce", all_gather: "all-gather", reduce_scatter: "reduce-scatter", all_to_all: "all-to-all", send: "send" };
const DIVIDED = { 0: "nothing", 1: "optimizer states", 2: "states, gradients", 3: "states, gradients, weights" };
const LESS_COMMON = ["pp_layout", "etp", "cp_comm", "hsdp_replicas", "reshard", "prefetch"]; // without a control of their own
const NEAREST = "; nearest layouts: "; // in a message of the command line
const ROWS = 10; // of a plan

let made = null, view = null, answer = null, planned = null, width = 0;
let instead = null; // the layout in place of the first one, where a model cannot have that: {model, layout, why}

const layouts = debouncedQuery("cluster", "cluster-status", (found, along) => {
  if (found.error && unchanged() && same(along.model, asked(view.model.model))) return another(found.error, along.model);
  answer = { ...found, ...along };
  window.llmcalc.cluster = found.found?.cluster;
  paintAll();
});
const plans = debouncedQuery("plan", "plan-status", (found, along) => {
  planned = { ...found, ...along };
  window.llmcalc.plan = found.found?.plan;
  paintPlan();
});

function make() {
  const changed = () => { view.link(); ask(); };
  const size = (name, title, note) => number("layout", name, title, changed, { note });
  const controls = [
    size("tp", "tp", "Tensor parallelism: ranks that divide heads, widths and the vocabulary"),
    size("pp", "pp", "Pipeline parallelism: stages"),
    size("cp", "cp", "Context parallelism: ranks that divide each sequence"),
    size("ep", "ep", "Expert parallelism: ranks that divide the experts"),
    size("dp", "dp", "Data parallelism: replicas, each with micro-batches of its own"),
    number("steps", "num_microbatches", "micro-batches", changed, { note: "Of one step of each replica" }),
    size("vpp", "chunks a stage", "Virtual pipeline stages: chunks of layers of each rank of the pipeline"),
    choice("layout", "framework", "Framework", changed, { names: FRAMEWORKS }),
    choice("layout", "zero", "Replicas divide", changed, { note: "ZeRO 1, 2 and 3", names: DIVIDED, values: () => [0, 1, 2, 3] }),
    choice("run", "recompute", "Recompute", changed, { note: "The same setting as in Training memory", names: { none: "nothing", attention: "attention", "attention+matmuls": "attention and products", full: "whole layers", "every:2": "every 2nd layer", "every:4": "every 4th layer" } }),
    check("layout", "sequence_parallel", "Sequence parallel", changed, "What lies between the products of tensor parallelism is divided by tokens"),
  ];
  const again = () => { view.link(); drop(); };
  const plan = [
    number("plan", "devices", "devices", again),
    choice("plan", "hardware", "Accelerator", again, { values: () => view.model.memory?.memory?.fits.map((fit) => fit.hardware) ?? [] }),
    number("plan", "global_batch", "sequences a step", again, { empty: "default", note: "Of all devices; a micro-batch of each if not given" }),
  ];
  const button = h("button", { type: "button", class: "act", onclick: () => { view.link(); planned = null; plans.forget(); askPlan(); } }, "Find layouts that fit");
  made = { controls, plan, line: line(), planLine: line(), body: h("div", {}), ranked: h("div", {}), more: h("div", { class: "more" }) };
  $("cluster").replaceChildren(h("div", { class: "settings" }, controls.map((one) => one.row)), made.more,
    h("p", { id: "cluster-status", class: "status", role: "status" }), made.body, made.line.row,
    h("h3", {}, "Plan: which layouts fit"), h("div", { class: "settings" }, plan.map((one) => one.row), button),
    h("p", { id: "plan-status", class: "status", role: "status" }), made.ranked, made.planLine.row);
}

const devices = ({ world, tp, pp, cp, dp, ep }) => `${integer(world)} device${world === 1 ? "" : "s"}: ${[["tp", tp], ["pp", pp], ["cp", cp], ["dp", dp]].filter(([, n]) => n > 1).map(([name, n]) => `${name} ${n}`).join(" · ") || "one of each"}${ep > 1 ? `, experts over ${ep}` : ""}`;

function use(layout, micro) {
  Object.assign(state.layout, layout);
  if (micro) state.steps.num_microbatches = micro;
  view.link();
  ask();
  $("cluster").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

const unchanged = () => same(state.layout, starts().layout);

/** Goes on with a layout that the model may have, where nobody has asked for another than the first: the nearest, or, where
    the framework does not have the model, FSDP2 over as many devices. */
function another(error, model) {
  const [why, near] = error.split(NEAREST), { framework, tp, pp, dp } = state.layout;
  const layout = near ? layoutOf(near.split("; ")[0], framework) : layoutOf(`--zero 3 --dp ${tp * pp * dp}`, "fsdp2");
  instead = { model, layout, why: why.replace(/^.*?: (?=--)/, "").replace(/; expected .*$/, "") };
  Object.assign(state.layout, layout);
  view.link();
  ask();
}

/** Takes the layout back that another model was given in place of the first one. */
function first() {
  if (instead && (!same(instead.model, asked(view.model.model)) || !same(state.layout, instead.layout))) {
    if (same(state.layout, instead.layout)) Object.assign(state.layout, starts().layout);
    instead = null;
    view.link();
  }
}

/** What a plan or a link has set and has no control: each can be taken back. */
function more() {
  const found = LESS_COMMON.filter((name) => JSON.stringify(state.layout[name]) !== JSON.stringify(FIELDS.layout[name].usual));
  made.more.replaceChildren(...found.map((name) => {
    const text = options({ layout: { ...Object.fromEntries(Object.entries(FIELDS.layout).map(([one, { usual }]) => [one, usual])), framework: "", [name]: state.layout[name] } }, "layout").slice(2).join(" "); // without --framework
    return h("span", { class: "chip" }, h("code", {}, text.length > 40 ? `${text.slice(0, 39)}…` : text),
      h("button", { type: "button", class: "drop", "aria-label": `Without ${FIELDS.layout[name].option}`, onclick: () => { state.layout[name] = FIELDS.layout[name].usual; view.link(); ask(); } }, "×"));
  }));
}

function ask() {
  first();
  const { model } = view, config = asked(model.model);
  for (const one of [...made.controls, ...made.plan]) one.update();
  more();
  made.line.write(command(model.model, "run", "steps", "layout"));
  layouts.ask({ model: config, settings: request(state, "run", "steps"), layout: request(state, "layout") }, { title: model.title, model: config });
  drop();
}

const planRequest = () => {
  const { devices: count, hardware, global_batch: sequences } = state.plan;
  return { model: asked(view.model.model), settings: request(state, "run"), layout: { devices: count, framework: state.layout.framework }, hardware, global_batch: sequences, rows: ROWS };
};

/** The command of the plan; and what was planned is dropped where settings are others now. */
function drop() {
  made.planLine.write(commandLine("llmcalc", "plan", target(view.model.model), ...options(state, "plan", "run"), "--framework", state.layout.framework));
  if (planned && planned.key !== JSON.stringify(planRequest())) { planned = null; plans.forget(); }
  paintPlan();
}

function askPlan() {
  const asks = planRequest();
  plans.ask(asks, { key: JSON.stringify(asks), title: view.model.title });
}

/** A message of the command line; the layouts that it names as nearest are buttons. */
function refusal(text) {
  const [said, near] = text.split(NEAREST);
  if (!near) return [h("p", { class: "error" }, text)];
  return [h("p", { class: "error" }, said), h("p", { class: "near" }, "Nearest layouts: ", near.split("; ").map((one) => h("button", { type: "button", class: "offer", onclick: () => use(layoutOf(one, state.layout.framework)) }, h("code", {}, one))))];
}

const layersOf = (rank) => rank.layers.filter((ends) => ends.length).map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ") || "none";

/** A cell a rank, but for those that hold what the one before them in their stage does; its bar as long as that of the one that holds most. */
function grid(used, layout) {
  const most = Math.max(...used.by_rank.map((one) => one.device_bytes)), each = layout.world / layout.pp;
  const differs = (one, i) => { const { stage, device_bytes: size } = used.by_rank[i - 1] ?? {}; return stage !== one.stage || size !== one.device_bytes; };
  const cells = used.by_rank.filter(differs), columns = [6, 5, 4, 3].find((n) => cells.length % n === 0) ?? Math.min(cells.length, 6);
  return h("ol", { class: "ranks", style: `--columns:${columns}` }, cells.map((one, i) => {
    const worst = one.rank === used.device_rank, next = cells[i + 1]?.rank ?? layout.world;
    const last = Math.min(next, one.rank - (one.rank % each) + each) - 1; // of those that hold as much
    const ranks = last > one.rank ? `ranks ${one.rank}–${last}` : `rank ${one.rank}`;
    return h("li", { class: worst ? "worst" : "", title: words(partsOf(one)) },
      h("div", {}, h("b", {}, layout.pp === 1 ? "All layers" : `Stage ${one.stage}`), worst ? h("em", {}, layout.pp > 1 ? "most" : "") : ""),
      h("span", {}, `${ranks}, layers ${layersOf(one)}`), bar(partsOf(one), most), h("strong", {}, joined(bytes(one.device_bytes))));
  }));
}

/** Messages of one kind with one group together, the most first. */
function sent(messages) {
  if (messages === null) return h("p", { class: "quiet" }, "What is sent is not modelled for this run.");
  if (!messages.length) return h("p", { class: "quiet" }, "Nothing is sent.");
  const sums = new Map();
  for (const one of messages) {
    const key = `${one.group} ${one.ranks} ${one.kind}`, sum = sums.get(key) ?? { ...one, count: 0, buffer_bytes: 0, wire_bytes: 0 };
    sums.set(key, { ...sum, count: sum.count + one.count, buffer_bytes: Math.max(sum.buffer_bytes, one.buffer_bytes), wire_bytes: sum.wire_bytes + one.wire_bytes });
  }
  const rows = [...sums.values()].sort((a, b) => b.wire_bytes - a.wire_bytes), most = rows[0].wire_bytes;
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What one rank sends in a step" }, h("table", { class: "sent" },
    h("thead", {}, h("tr", {}, ["with its group", "what", "sent, GiB", "", "messages", "largest, GiB", "ranks"].map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))),
    h("tbody", {}, rows.map((one) => h("tr", {}, h("th", { scope: "row" }, GROUPS[one.group] ?? one.group), h("td", {}, SENDS[one.kind] ?? one.kind), h("td", {}, gib(one.wire_bytes)),
      h("td", { class: "track" }, bar([["communication", one.wire_bytes]], most)), h("td", {}, integer(one.count)), h("td", {}, gib(one.buffer_bytes)), h("td", {}, integer(one.ranks)))))));
}

function paintAll() {
  if (!answer) return;
  width = $("cluster").clientWidth;
  if (answer.stopped) return made.body.replaceChildren(h("p", { class: "quiet" }, "Stopped. ", h("button", { type: "button", class: "offer", onclick: () => { layouts.forget(); ask(); } }, "Count again")));
  if (answer.error) return made.body.replaceChildren(...refusal(answer.error));
  const { memory: used, fits, layout, workload, framework, execution, communication } = answer.found.cluster;
  const worst = used.by_rank.find((one) => one.rank === used.device_rank), parts = partsOf(used);
  const { phase, node } = used.peak_at;
  const where = layout.pp > 1 ? `rank ${worst.rank} of stage ${worst.stage}` : `rank ${worst.rank}`;
  const holder = h("div", { class: "timetable" });
  made.body.replaceChildren(
    instead ? h("p", { class: "quiet instead" }, `The page begins with another layout, which this model cannot have: ${instead.why}.`) : "",
    h("p", { class: "quiet said" }, h("b", { class: "big", title: `${integer(used.device_bytes)} bytes` }, joined(bytes(used.device_bytes))), ` needed by ${where}${used.peak_rank === used.device_rank ? `, whose peak is in the ${PHASES[phase]}${node ? `, ${node}` : ""}` : ""}. ${answer.title} on ${devices(layout)}; ${workload.num_microbatches} micro-batch${workload.num_microbatches === 1 ? "" : "es"} of ${workload.batch} × ${integer(workload.seq)} tokens, ${workload.precision ?? workload.dtype}, ${execution.attn_implementation} attention, with ${FRAMEWORKS[framework.name]}.`),
    legend(parts, used.device_bytes, false), grid(used, layout),
    h("p", { class: "quiet" }, "Unlisted ranks need as much as the listed rank of their stage."),
    h("details", {}, h("summary", {}, `Rank ${worst.rank} on accelerators`), fitting(fits, parts, used.device_bytes)),
    h("h3", {}, `Sent by rank ${used.device_rank} in a step`), sent(communication), holder);
  timetable(holder, answer.found.schedule, layout, workload.num_microbatches);
}

function planTable(plan) {
  const rows = plan.feasible;
  const head = ["", "layout", "a step", "needed, GiB", "headroom, GiB", "sent, GiB", "idle", "micro-batches"];
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Layouts that fit, the best first" }, h("table", { class: "plan" },
    h("thead", {}, h("tr", {}, head.map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))),
    h("tbody", {}, rows.map((one) => {
      const { tp, pp, cp, dp, ep, vpp, zero, world } = one.layout;
      const name = [["tp", tp], ["pp", pp], ["cp", cp], ["dp", dp], ["ep", ep], ["vpp", vpp]].filter(([, n]) => n > 1).map(([key, n]) => `${key} ${n}`).join(" · ") + (zero ? ` · ZeRO ${zero}` : "");
      const button = h("button", { type: "button", class: "offer", "aria-label": `Use ${name}`, onclick: () => use(layoutOf(one.options, plan.framework), one.num_microbatches) }, "Use");
      return h("tr", {}, h("td", {}, button), h("th", { scope: "row", title: one.options }, name || `${world} device`), h("td", {}, one.seconds ? range(one.seconds) : ""), h("td", {}, gib(one.device_bytes)), h("td", {}, gib(one.headroom_bytes)), h("td", {}, gib(one.communication_bytes)), h("td", {}, percent(one.bubble)), h("td", {}, integer(one.num_microbatches)));
    }))));
}

function paintPlan() {
  if (!planned) return made.ranked.replaceChildren();
  if (planned.stopped) { planned = null; return made.ranked.replaceChildren(); }
  if (planned.error) return made.ranked.replaceChildren(h("p", { class: "error" }, planned.error));
  const { plan } = planned.found, many = plan.feasible.length;
  const refused = Object.entries(plan.refused).sort((a, b) => b[1] - a[1]).map(([reason, count]) => h("li", {}, `${integer(count)}: ${reason}`));
  const nearest = plan.nearest, full = plan.feasible_with_recompute;
  made.ranked.replaceChildren(
    h("p", { class: "quiet said" }, h("b", {}, plan.unreplayed.length ? `${integer(many)} layouts fit, ${integer(plan.unreplayed.length)} more of ${integer(plan.tried)} may` : `${integer(many)} of ${integer(plan.tried)} layouts fit`), ` ${planned.title} on ${integer(plan.devices)} × ${plan.hardware}, ${integer(plan.global_batch)} sequences a step. ${plan.by === "time" ? "Order: by the likely time of a step; ranges move together, so that the order is surer than the seconds." : "Order: by headroom, by what is sent and by idle time."}`),
    full === null ? "" : h("p", { class: "quiet" }, `With whole layers recomputed ${integer(full)} may fit: their tensors do.`),
    many ? planTable(plan) : nearest ? h("p", {}, `The one that needs least, ${nearest.options}, is ${joined(bytes(-nearest.headroom_bytes))} short.`) : "",
    refused.length ? h("details", {}, h("summary", {}, "Why others are left out"), h("ul", { class: "notes" }, refused)) : "");
}

export async function draw(next) {
  view = next;
  await style();
  if (!made) make();
  if (view.model.answer) ask();
  if (width !== $("cluster").clientWidth) paintAll();
}
