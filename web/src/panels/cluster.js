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
import { t, translated } from "../words.js";

const FRAMEWORKS = { megatron: "Megatron-Core", fsdp2: "FSDP2", deepspeed: "DeepSpeed", torch: "torch" };
const GROUPS = { tp: t("tensor (tp)"), sp: t("sequence (sp)"), pp: t("pipeline (pp)"), cp: t("context (cp)"), dp: t("replicas (dp)"), ep: t("experts (ep)"), etp: t("an expert (etp)") };
const SENDS = { all_reduce: t("all-reduce"), all_gather: t("all-gather"), reduce_scatter: t("reduce-scatter"), all_to_all: t("all-to-all"), send: t("send") };
const DIVIDED = { 0: t("nothing"), 1: t("optimizer states"), 2: t("states, gradients"), 3: t("states, gradients, weights") };
const LESS_COMMON = ["pp_layout", "etp", "cp_comm", "hsdp_replicas", "reshard", "prefetch"]; // without a control of their own
const NEAREST = "; nearest layouts: "; // in a message of the command line
const ROWS = 10; // of a plan

let made = null, view = null, answer = null, planned = null, width = 0;
let instead = null; // the layout in place of the first one, where a model cannot have that: {model, layout, why}

const layouts = debouncedQuery("cluster", "cluster-status", (found, along) => {
  if (found.line && replaceable(found.line) && same(along.model, asked(view.model.model))) return another(found.line, along.model);
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
    size("tp", "tp", t("Tensor parallelism: ranks that divide heads, widths and the vocabulary")),
    size("pp", "pp", t("Pipeline parallelism: stages")),
    size("cp", "cp", t("Context parallelism: ranks that divide each sequence")),
    size("ep", "ep", t("Expert parallelism: ranks that divide the experts")),
    size("dp", "dp", t("Data parallelism: replicas, each with micro-batches of its own")),
    number("steps", "num_microbatches", t("Micro-batches"), changed, { note: t("Of one step of each replica") }),
    size("vpp", t("Chunks a stage"), t("Virtual pipeline stages: chunks of layers of each rank of the pipeline")),
    choice("layout", "framework", t("Framework"), changed, { names: FRAMEWORKS }),
    choice("layout", "zero", t("Replicas divide"), changed, { note: t("ZeRO 1, 2 and 3"), names: DIVIDED, values: () => [0, 1, 2, 3] }),
    choice("run", "recompute", t("Recompute"), changed, { note: t("The same setting as in Training memory"), names: { none: t("nothing"), attention: t("attention"), "attention+matmuls": t("attention and products"), full: t("whole layers"), "every:2": t("every 2nd layer"), "every:4": t("every 4th layer") } }),
    check("layout", "sequence_parallel", t("Sequence parallel"), changed, t("What lies between the products of tensor parallelism is divided by tokens")),
  ];
  const again = () => { view.link(); drop(); };
  const plan = [
    number("plan", "devices", t("Devices"), again),
    choice("plan", "hardware", t("Accelerator"), again, { values: () => view.model.memory?.memory?.fits.map((fit) => fit.hardware) ?? [] }),
    number("plan", "global_batch", t("Sequences a step"), again, { empty: t("default"), note: t("Of all devices; a micro-batch of each if not given") }),
  ];
  const button = h("button", { type: "button", class: "act", onclick: () => { view.link(); planned = null; plans.forget(); askPlan(); } }, t("Find layouts that fit"));
  made = { controls, plan, line: line(), planLine: line(), body: h("div", {}), ranked: h("div", {}), more: h("div", { class: "more" }) };
  $("cluster").replaceChildren(h("div", { class: "settings" }, controls.map((one) => one.row)), made.more,
    h("p", { id: "cluster-status", class: "status", role: "status" }), made.body, made.line.row,
    h("h3", {}, t("Plan: which layouts fit")), h("div", { class: "settings" }, plan.map((one) => one.row), button),
    h("p", { id: "plan-status", class: "status", role: "status" }), made.ranked, made.planLine.row);
}

const devices = ({ world, tp, pp, cp, dp, ep }) => t("{0}: {1}", t(world === 1 ? "{0} device" : "{0} devices", integer(world)), `${[["tp", tp], ["pp", pp], ["cp", cp], ["dp", dp]].filter(([, n]) => n > 1).map(([name, n]) => `${name} ${n}`).join(" · ") || t("one of each")}${ep > 1 ? t(", experts over {0}", ep) : ""}`);

function use(layout, micro) {
  Object.assign(state.layout, layout);
  if (micro) state.steps.num_microbatches = micro;
  view.link();
  ask();
  $("cluster").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

/** Whether nobody has chosen the layout that is refused, and another may be tried in its place. */
const replaceable = (line) => (line.includes(NEAREST) || state.layout.framework !== "fsdp2") && (same(state.layout, starts().layout) || (instead && same(state.layout, instead.layout)));

/** Goes on with a layout that the model may have, where nobody has asked for another than the first: the nearest, or, where
    the framework does not have the model, FSDP2 over as many devices. */
function another(error, model) {
  const [why, near] = error.split(NEAREST), { framework, tp, pp, dp } = state.layout;
  const layout = near ? layoutOf(near.split("; ")[0], framework) : layoutOf(`--zero 3 --dp ${tp * pp * dp}`, "fsdp2");
  instead = { model, layout, why: why.replace(/^\S+: (?:[\w.]+: )?/, "").replace(/; expected .*$/, "") };
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
      h("button", { type: "button", class: "drop", "aria-label": t("Without {0}", FIELDS.layout[name].option), onclick: () => { state.layout[name] = FIELDS.layout[name].usual; view.link(); ask(); } }, "×"));
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

/** The layout of as many replicas under the framework that a message names, or under FSDP2, which has most models; null under it. */
function replicas(text) {
  const { framework, tp, pp, cp, dp } = state.layout, other = /expected .*--framework (\w+)/.exec(text)?.[1] ?? "fsdp2";
  return other === framework || !FRAMEWORKS[other] ? null : [`--framework ${other} ${other === "fsdp2" ? "--zero 3 " : ""}--dp ${tp * pp * cp * dp}`, other];
}

/** A message of the command line. The layouts that it names as nearest are buttons; without any, one of replicas is. */
function refusal(text) {
  const [said, near] = text.split(NEAREST), others = near ? near.split("; ").map((one) => [one, state.layout.framework]) : [replicas(text)].filter(Boolean);
  return [h("p", { class: "error" }, translated(said)), others.length ? h("p", { class: "near" }, t("Nearest layouts: "), others.map(([one, framework]) => h("button", { type: "button", class: "offer", onclick: () => use(layoutOf(one.replace(/--framework \w+ /, ""), framework)) }, h("code", {}, one)))) : ""];
}

const layersOf = (rank) => rank.layers.filter((ends) => ends.length).map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ") || t("none");

/** A cell a rank, but for those that hold what the one before them in their stage does; its bar as long as that of the one that holds most. */
function grid(used, layout) {
  const most = Math.max(...used.by_rank.map((one) => one.device_bytes)), each = layout.world / layout.pp;
  const differs = (one, i) => { const { stage, device_bytes: size } = used.by_rank[i - 1] ?? {}; return stage !== one.stage || size !== one.device_bytes; };
  const cells = used.by_rank.filter(differs), columns = [6, 5, 4, 3].find((n) => cells.length % n === 0) ?? Math.min(cells.length, 6);
  return h("ol", { class: "ranks", style: `--columns:${columns}` }, cells.map((one, i) => {
    const worst = one.rank === used.device_rank, next = cells[i + 1]?.rank ?? layout.world;
    const last = Math.min(next, one.rank - (one.rank % each) + each) - 1; // of those that hold as much
    const ranks = last > one.rank ? t("ranks {0}–{1}", one.rank, last) : t("rank {0}", one.rank);
    return h("li", { class: worst ? "worst" : "", title: words(partsOf(one)) },
      h("div", {}, h("b", {}, layout.pp === 1 ? t("All layers") : t("Stage {0}", one.stage)), worst ? h("em", {}, layout.pp > 1 ? t("most") : "") : ""),
      h("span", {}, t("{0}, layers {1}", ranks, layersOf(one))), bar(partsOf(one), most), h("strong", {}, joined(bytes(one.device_bytes))));
  }));
}

/** Messages of one kind with one group together, the most first. */
function sent(messages) {
  if (messages === null) return h("p", { class: "quiet" }, t("What is sent is not modelled for this run."));
  if (!messages.length) return h("p", { class: "quiet" }, t("Nothing is sent."));
  const sums = new Map();
  for (const one of messages) {
    const key = `${one.group} ${one.ranks} ${one.kind}`, sum = sums.get(key) ?? { ...one, count: 0, buffer_bytes: 0, wire_bytes: 0 };
    sums.set(key, { ...sum, count: sum.count + one.count, buffer_bytes: Math.max(sum.buffer_bytes, one.buffer_bytes), wire_bytes: sum.wire_bytes + one.wire_bytes });
  }
  const rows = [...sums.values()].sort((a, b) => b.wire_bytes - a.wire_bytes), most = rows[0].wire_bytes;
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("What one rank sends in a step") }, h("table", { class: "sent" },
    h("thead", {}, h("tr", {}, [t("with its group"), t("what"), t("sent, GiB"), "", t("messages"), t("largest, GiB"), t("ranks")].map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))),
    h("tbody", {}, rows.map((one) => h("tr", {}, h("th", { scope: "row" }, GROUPS[one.group] ?? one.group), h("td", {}, SENDS[one.kind] ?? one.kind), h("td", {}, gib(one.wire_bytes)),
      h("td", { class: "track" }, bar([["communication", one.wire_bytes]], most)), h("td", {}, integer(one.count)), h("td", {}, gib(one.buffer_bytes)), h("td", {}, integer(one.ranks)))))));
}

function paintAll() {
  if (!answer) return;
  width = $("cluster").clientWidth;
  if (answer.stopped) return made.body.replaceChildren(h("p", { class: "quiet" }, t("Stopped. "), h("button", { type: "button", class: "offer", onclick: () => { layouts.forget(); ask(); } }, t("Count again"))));
  if (answer.error) return made.body.replaceChildren(...refusal(answer.line ?? answer.error));
  const { memory: used, fits, layout, workload, framework, execution, communication } = answer.found.cluster;
  const worst = used.by_rank.find((one) => one.rank === used.device_rank), parts = partsOf(used);
  const { phase, node } = used.peak_at;
  const where = layout.pp > 1 ? t("rank {0} of stage {1}", worst.rank, worst.stage) : t("rank {0}", worst.rank);
  const holder = h("div", { class: "timetable" });
  made.body.replaceChildren(
    h("p", { class: "quiet said" }, h("b", { class: "big", title: t("{0} bytes", integer(used.device_bytes)) }, joined(bytes(used.device_bytes))), `${used.peak_rank === used.device_rank ? t(" needed by {0}, whose peak is in the {1}.", where, node ? t("{0}, {1}", PHASES[phase], node) : PHASES[phase]) : t(" needed by {0}.", where)}${t(" {0} on {1}; micro-batches of a step: {2}, each of {3} × {4} tokens, {5}, {6} attention, with {7}.", answer.title, devices(layout), workload.num_microbatches, workload.batch, integer(workload.seq), workload.precision ?? workload.dtype, execution.attn_implementation, FRAMEWORKS[framework.name])}`),
    instead ? h("p", { class: "quiet instead" }, t("The page begins with another layout, which this model cannot have: {0}.", translated(instead.why))) : "",
    legend(parts, used.device_bytes, false), grid(used, layout),
    h("p", { class: "quiet" }, t("Unlisted ranks need as much as the listed rank of their stage.")),
    h("details", {}, h("summary", {}, t("Rank {0} on accelerators", worst.rank)), fitting(fits, parts, used.device_bytes)),
    h("h3", {}, t("Sent by rank {0} in a step", used.device_rank)), sent(communication), holder);
  timetable(holder, answer.found.schedule, layout, workload.num_microbatches);
}

function planTable(plan) {
  const rows = plan.feasible;
  const head = ["", t("layout"), t("a step"), t("needed, GiB"), t("headroom, GiB"), t("sent, GiB"), t("idle"), t("micro-batches")];
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("Layouts that fit, the best first") }, h("table", { class: "plan" },
    h("thead", {}, h("tr", {}, head.map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))),
    h("tbody", {}, rows.map((one) => {
      const { tp, pp, cp, dp, ep, vpp, zero, world } = one.layout;
      const name = [["tp", tp], ["pp", pp], ["cp", cp], ["dp", dp], ["ep", ep], ["vpp", vpp]].filter(([, n]) => n > 1).map(([key, n]) => `${key} ${n}`).join(" · ") + (zero ? ` · ZeRO ${zero}` : "");
      const button = h("button", { type: "button", class: "offer", "aria-label": t("Use {0}", name), onclick: () => use(layoutOf(one.options, one.framework ?? plan.framework), one.num_microbatches) }, t("Use"));
      return h("tr", {}, h("td", {}, button), h("th", { scope: "row", title: one.options }, name || t("{0} device", world)), h("td", {}, one.seconds ? range(one.seconds) : ""), h("td", {}, gib(one.device_bytes)), h("td", {}, gib(one.headroom_bytes)), h("td", {}, gib(one.communication_bytes)), h("td", {}, percent(one.bubble)), h("td", {}, integer(one.num_microbatches)));
    }))));
}

function paintPlan() {
  if (!planned) return made.ranked.replaceChildren();
  if (planned.stopped) { planned = null; return made.ranked.replaceChildren(); }
  if (planned.error) return made.ranked.replaceChildren(h("p", { class: "error" }, planned.error));
  const { plan } = planned.found, many = plan.feasible.length;
  const refused = Object.entries(plan.refused).sort((a, b) => b[1] - a[1]).map(([reason, count]) => h("li", {}, `${integer(count)}: ${translated(reason)}`));
  const nearest = plan.nearest, full = plan.feasible_with_recompute;
  made.ranked.replaceChildren(
    h("p", { class: "quiet said" }, h("b", {}, plan.unreplayed.length ? t("{0} layouts fit, {1} more of {2} may", integer(many), integer(plan.unreplayed.length), integer(plan.tried)) : t("{0} of {1} layouts fit", integer(many), integer(plan.tried))), t(" {0} on {1} × {2}, {3} sequences a step. ", planned.title, integer(plan.devices), plan.hardware, integer(plan.global_batch)), plan.by === "time" ? t("Order: by the likely time of a step; ranges move together, so that the order is surer than the seconds.") : t("Order: by headroom, by what is sent and by idle time.")),
    full === null ? "" : h("p", { class: "quiet" }, t("With whole layers recomputed {0} may fit: their tensors do.", integer(full))),
    many ? planTable(plan) : nearest ? h("p", {}, t("The one that needs least, {0}, is {1} short.", nearest.options, joined(bytes(-nearest.headroom_bytes)))) : "",
    refused.length ? h("details", {}, h("summary", {}, t("Why others are left out")), h("ul", { class: "notes" }, refused)) : "");
}

export async function draw(next) {
  view = next;
  await style();
  if (!made) make();
  if (view.model.answer) ask();
  if (width !== $("cluster").clientWidth) paintAll();
}
