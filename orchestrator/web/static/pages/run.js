// The run: how it stands, what it learned, how it trains, where its time went; beside other runs of the same database.

import { ask } from "../api.js";
import { Sync, chart } from "../chart.js";
import { h, redraw, show } from "../dom.js";
import { clock, compact, number, percent, plural, seconds, visible, words } from "../format.js";
import { keys } from "../keys.js";
import { href } from "../router.js";

const AGAIN_MS = 300; // until evaluations that one answer did not count are asked for

const SUCCESS_NOTE = "all verified rollouts, zero-signal groups too; band: 95 %";
const BUSY_NOTE = "training rollouts under way, against slots";

const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", null, name), h("dd", null, value), note ? h("p", null, note) : null);
const share = (value) => percent(value, value !== null && value < .1 && value > 0 ? 1 : 0);

/** Seconds since 1970 → train steps of these curves, between the commits in proportion; 0 is when the run began, after the last at most one more. */
function stepAt({ steps, at, created }, time) {
  if (!steps.length) return 0;
  const i = at.findIndex((each) => each >= time);
  if (i === 0) return steps[0] * Math.min(1, Math.max(0, (time - created) / Math.max(1e-9, at[0] - created)));
  if (i < 0) return steps.at(-1) + Math.min(1, (time - at.at(-1)) / Math.max(1e-9, (at.at(-1) - created) / steps.at(-1)));
  const part = at[i] > at[i - 1] ? (time - at[i - 1]) / (at[i] - at[i - 1]) : 1;
  return steps[i - 1] + part * (steps[i] - steps[i - 1]);
}

/** Means over `width` neighbours on either side; nulls stay out of it. */
function smooth(values, width) {
  if (!width) return values;
  return values.map((value, i) => {
    if (value === null) return null;
    const around = values.slice(Math.max(0, i - width), i + width + 1).filter((each) => each !== null);
    return around.reduce((sum, each) => sum + each, 0) / around.length;
  });
}

/** What a chart says that was drawn from some of the rollouts. */
const fromSample = (note, { stride, rollouts, sampled }) => (stride > 1 ? `${note}; a sample of ${number(sampled)} of ${plural(rollouts, "rollout")}` : note);

/** Suites that differ in when they were asked alone ("before", "after") are one line. */
const familyOf = (evaluation) => evaluation.suite.replace(/(^|-)(before|after)$/, "");
const familiesOf = (evaluations) => [...new Set(evaluations.map(familyOf))].sort((one, other) => one.length - other.length);
const SUITE = (suite) => words(suite || "evaluation");

export function mount(root, page) {
  page.title("Run");
  const sync = new Sync((range) => look(range));
  const lead = h("p", { class: "lead" }), figures = h("dl", { class: "figures" }), costs = h("div"), compare = h("div", { class: "tools compare" });
  const title = h("h1", null, "Run");
  const state = { axis: page.query.get("x") === "time" ? "time" : "step", domain: page.query.get("domain") ?? "", width: Number(page.query.get("smooth")) || 0 };
  const others = new Set((page.query.get("compare") ?? "").split(",").filter(Boolean));
  const data = new Map();
  /** Of the train steps within the zoom, by run: read more closely than the whole. */
  const close = new Map();
  let own = null, heads = null, looking = new AbortController();

  const make = (heading, options = {}) => chart({ title: heading, sync, ...options });
  const charts = {
    success: make("Success while training", { note: SUCCESS_NOTE, format: share, from: 0 }),
    heldout: make("Held-out success", { note: "evaluations pinned to a version; 95 % intervals", format: share, from: 0, empty: "no evaluation has been scored yet" }),
    reward: make("Reward of trained groups", { note: "performance + speed + process" }),
    staleness: make("Staleness", { note: "policy versions between a token and its training", from: 0 }),
    busy: make("Rollouts at once", { note: BUSY_NOTE, from: 0 }),
    kl: make("KL to the behavior policy", { note: "estimates k1 and k3, nats per token", from: 0 }),
    clip: make("Clip fraction", { note: "tokens whose ratio was bounded", format: (y) => percent(y, y !== null && Math.abs(y) < .1 ? 2 : 0), from: 0 }),
    entropy: make("Entropy", { note: "nats per action token", from: 0 }),
    merge: make("Merge ratio", { note: "tokens of samples ÷ tokens forwarded; 1: nothing is shared", from: 1 }),
    tokens: make("Tokens per second", { note: "of samples in a train step; of actions over the whole run", format: compact, log: true }),
    loss: make("Loss and gradient norm", {}),
    phases: make("Seconds of a train step", { note: "by phase; the last of a batch reads, saves and commits for all of it", format: seconds, from: 0 }),
  };

  const axes = h("select", { "aria-label": "Horizontal axis", on: { change: () => { state.axis = axes.value; sync.zoom(null); page.filter({ x: state.axis === "time" ? "time" : "" }); draw(); } } },
    h("option", { value: "step" }, "by train step"), h("option", { value: "time" }, "by time"));
  axes.value = state.axis;
  const domains = h("select", { "aria-label": "Domain", on: { change: () => { state.domain = domains.value; page.filter({ domain: state.domain }); draw(); } } });
  const smoothing = h("select", { "aria-label": "Smoothing", on: { change: () => { state.width = Number(smoothing.value); page.filter({ smooth: state.width || "" }); draw(); } } },
    h("option", { value: 0 }, "as it is"), h("option", { value: 1 }, "smoothed"), h("option", { value: 4 }, "smoother"), h("option", { value: 12 }, "smoothest"));
  smoothing.value = String(state.width);

  const drawn = h("div", { class: "grid charts" }, Object.values(charts).map((each) => each.element));
  const spentPanel = h("section", { class: "panel" }, h("h2", null, "Where the time goes"), costs);
  const nothing = h("section", { class: "panel", hidden: true }, h("p", { class: "empty" }, "No rollout is over and no train step is committed yet: curves come with the first ones."));
  show(root,
    h("header", { class: "page-head" }, h("div", null, title, lead), h("div", { class: "tools" }, axes, domains, smoothing)),
    h("section", { class: "panel" }, figures), compare,
    nothing, drawn, spentPanel);

  keys("Run", [
    { keys: ["0"], what: "reset the zoom of all charts", run: () => sync.zoom(null) },
    { keys: ["x"], what: "by train step or by time", run: () => { axes.value = state.axis === "step" ? "time" : "step"; axes.dispatchEvent(new Event("change")); } },
  ], page.signal);

  /** Asks for the train steps within the zoom, where the whole run is drawn from a sample or in bins. The whole stays drawn until they are there. */
  async function look(range, moved = true) {
    looking.abort();
    if (moved && close.size) { close.clear(); draw(); }
    if (!range) return;
    looking = new AbortController();
    const signal = AbortSignal.any([looking.signal, page.signal]), lines = runs();
    await Promise.all(lines.map(async ([name, { curves }]) => {
      const { first, last, steps } = curves;
      if (!steps.length || last - first + 1 <= steps.length) return;
      const ends = state.axis === "time" ? range.map((x) => stepAt(curves, x + (lines.length > 1 ? curves.created : 0))) : range;
      const most = Math.min(last, Math.ceil(ends[1]) + 1), least = Math.min(most, Math.max(first, Math.floor(ends[0]) - 1)); // whence and whither lines go
      if (most < first || least === first && most === last) return;
      try { close.set(name, await ask("/api/curves", { ...(name === (heads?.run ?? "") ? {} : { run: name }), first: least, last: most }, signal)); }
      catch (error) { if (error.name !== "AbortError") throw error; }
    }));
    if (close.size && !signal.aborted) draw();
  }

  /** The runs that are drawn, the page's own first: [name, series]. */
  const runs = () => [[heads?.run ?? "", own], ...[...others].map((name) => [name, data.get(name)])].filter(([, series]) => series);

  function draw() {
    if (!own) return;
    const lines = runs().map(([name, series]) => [name, { ...series, drawn: close.get(name) ?? series.curves }]), several = lines.length > 1;
    nothing.hidden = Boolean(own.curves.steps.length || own.spending.success.length || own.evaluations.length || several);
    drawn.hidden = spentPanel.hidden = !nothing.hidden;
    const names = [...new Set(lines.flatMap(([, series]) => [...series.curves.lines.filter((line) => line.key === "reward" && line.part).map((line) => line.part), ...series.spending.success.map((one) => one.domain).filter((domain) => domain !== "all")]))].sort();
    if (domains.options.length !== names.length + 1) {
      show(domains, h("option", { value: "" }, "every domain"), names.map((name) => h("option", { value: name }, visible(name))));
      if (!names.includes(state.domain)) state.domain = "";
      domains.value = state.domain;
    }
    const byTime = state.axis === "time";
    const origin = (series) => (several ? series.curves.created : 0);
    const ends = lines.flatMap(([, series]) => (byTime ? series.curves.at.map((time) => time - origin(series)) : series.curves.steps).filter((_, i, all) => i === 0 || i === all.length - 1));
    const whole = ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
    const axis = byTime
      ? { whole, label: several ? "time since its start" : "time", format: (x) => (several ? seconds(Math.max(0, x)) : clock(x)) }
      : { whole, label: "train step", format: (x) => number(Math.round(x)) };
    const timed = (series, times) => times.map((time) => (byTime ? time - origin(series) : stepAt(series.curves, time)));
    const stepped = (series) => (byTime ? series.drawn.at.map((time) => time - origin(series)) : series.drawn.steps);
    const line = (series, key, part = "") => series.drawn.lines.find((each) => each.key === key && each.part === part);
    const prefix = (name, text) => (several ? (text ? `${name}: ${text}` : name) : text);
    /** Lines of plain keys: [key, name, dashed?]; of several runs each has its own colour. */
    const plain = (...wanted) => lines.flatMap(([name, series], r) => wanted.map(([key, text, dashed], i) => {
      const found = line(series, key);
      return found && { name: prefix(name, wanted.length > 1 || !several ? text : ""), color: several ? r + 1 : i + 1, dashed: several ? i > 0 : dashed, x: stepped(series), y: smooth(found.mean, state.width), ...(found.low.length && i === 0 ? { low: found.low, high: found.high } : {}) };
    }).filter(Boolean));
    /** One line per domain, or of several runs one per run, of the chosen domain. */
    const parts = several || state.domain ? [state.domain] : ["", ...names];
    const perDomain = (make) => lines.flatMap(([name, series], r) => parts.map((domain) => make(series, domain, several ? r + 1 : domain ? names.indexOf(domain) + 2 : 1, prefix(name, several ? "" : domain || "all"))).flat().filter(Boolean));

    charts.success.update(perDomain((series, domain, color, name) => {
      const found = series.spending.success.find((one) => one.domain === (domain || "all"));
      return found && { name, color, x: timed(series, found.at), y: smooth(found.mean, state.width), thin: parts.length > 1 && domain !== "", ...(parts.length === 1 || !domain ? { low: found.low, high: found.high } : {}) };
    }), axis, fromSample(SUCCESS_NOTE, lines[0][1].spending));
    charts.reward.update(perDomain((series, domain, color, name) => {
      const found = line(series, "reward", domain);
      return found && { name, color, x: stepped(series), y: smooth(found.mean, state.width), thin: parts.length > 1 && domain !== "" };
    }), axis);
    const families = familiesOf(lines.flatMap(([, series]) => series.evaluations));
    const curves = families.flatMap((family, f) => [[family, state.domain || "all", f, false], ...(f === 0 && !several && !state.domain ? names.map((domain) => [family, domain, 0, true]) : [])]);
    charts.heldout.update(lines.flatMap(([name, series], r) => curves.map(([family, domain, f, thin]) => {
      const points = series.evaluations
        .filter((one) => familyOf(one) === family)
        .map((one) => ({ one, found: one.points.find((point) => point.domain === domain) }))
        .filter(({ found }) => found)
        .map(({ one, found }) => ({ x: byTime ? (Date.parse(one.last ?? one.first) / 1000) - origin(series) : one.train_step ?? 0, ...found }))
        .sort((a, b) => a.x - b.x);
      return { name: prefix(name, thin ? domain : SUITE(family)), color: several ? r + 1 : thin ? names.indexOf(domain) + 2 : f ? 8 - f + 1 : 1, dashed: several && f > 0, thin, marks: true, x: points.map((p) => p.x), y: points.map((p) => p.success), low: points.map((p) => p.low), high: points.map((p) => p.high) };
    })).filter((each) => each.x.length), axis);
    charts.staleness.update(plain(["staleness", "mean"], ["staleness_max", "oldest token", true]), axis);
    charts.kl.update(plain(["kl_k3", "k3"], ["kl_k1", "k1", true]), axis);
    charts.clip.update(plain(["clip_fraction", "clipped"], ["cut_fraction", "masked or truncated", true]), axis);
    charts.entropy.update(plain(["entropy", "entropy"]), axis);
    charts.merge.update(plain(["merge_ratio", "merge ratio"]), axis);
    charts.tokens.update(plain(["trained_tokens_per_s", "in a train step"], ["tokens_per_s", "over the run", true]), axis);
    charts.loss.update(plain(["loss", "loss"], ["gradient_norm", "gradient norm", true]), axis);
    charts.busy.update(lines.flatMap(([name, series], r) => [
      { name: prefix(name, several ? "" : "running"), color: several ? r + 1 : 1, x: timed(series, series.spending.busy_at), y: smooth(series.spending.busy, state.width) },
      !several && heads && series.spending.busy_at.length ? { name: "slots", color: 8, dashed: true, x: timed(series, [series.spending.busy_at[0], series.spending.busy_at.at(-1)]), y: [heads.slots, heads.slots] } : null,
    ].filter(Boolean)), axis, fromSample(BUSY_NOTE, lines[0][1].spending));
    charts.phases.update(several ? plain(["seconds", "whole"]) : [...plain(["seconds", "whole"]), ...lines[0][1].drawn.lines.filter((each) => each.key === "seconds" && each.part).slice(0, 7).map((each, i) => ({ name: each.part, color: i + 2, thin: true, x: stepped(lines[0][1]), y: smooth(each.mean, state.width) }))], axis);
  }

  function heading() {
    if (!heads) return;
    redraw(title, visible(heads.run), " ", h("span", { class: `state ${{ active: "running", ending: "filtered", ended: "trained" }[heads.state]}` }, heads.state));
    redraw(lead, visible(heads.standing.why));
    lead.classList.toggle("bad", heads.standing.bad);
    const success = own?.spending.success.find((one) => one.domain === "all"), now = own?.spending.now;
    const main = familiesOf(own?.evaluations ?? [])[0];
    const evaluated = own?.evaluations.filter((one) => familyOf(one) === main).map((one) => ({ ...one, all: one.points.find((point) => point.domain === "all") })).filter((one) => one.all).sort((a, b) => a.version - b.version);
    const last = evaluated?.at(-1), same = evaluated?.find((one) => one.version < last.version);
    const value = (key) => own?.curves.lines.find((line) => line.key === key && !line.part)?.mean.findLast((each) => each !== null) ?? null;
    redraw(figures,
      figure("policy version", heads.version === null ? "–" : number(heads.version), plural(heads.batches, "batch", "batches")),
      figure("train steps", number(heads.train_steps), `${plural(heads.trained_groups, "group")} trained of ${number(heads.dispatched)}`),
      figure("success now", now ? share(now.mean) : "–", now ? `last ${plural(now.n, "rollout")}${success && success.mean.length > 1 ? `; ${share(success.mean[0])} at the start` : ""}` : "while training"),
      figure("held out", last ? share(last.all.success) : "–", last ? `version ${last.version}${same ? `, ${share(same.all.success)} at ${same.version}` : ""}` : "no evaluation yet"),
      figure("staleness", number(value("staleness"), 2), `bound ${heads.max_staleness} batches`),
      figure("merge ratio", number(value("merge_ratio"), 3), "in the last train step"),
      figure("tokens/s", compact(value("trained_tokens_per_s")), "in a train step"),
      figure(heads.ended ? "took" : "running for", seconds((heads.ended ?? Date.now() / 1000) - heads.created), `since ${clock(heads.created)}`));
  }

  function spent() {
    if (!own) return;
    const { costs: stages, rollouts, sampled, failures, stride } = own.spending;
    const whole = stages.reduce((sum, one) => sum + one.mean_s, 0);
    const phases = own.curves.lines.filter((line) => line.key === "seconds" && line.part).map((line) => {
      const known = line.mean.filter((each) => each !== null);
      return { stage: line.part, mean_s: known.reduce((sum, each) => sum + each, 0) / (known.length || 1) };
    });
    const step = phases.reduce((sum, one) => sum + one.mean_s, 0);
    const cpu = own.curves.lines.find((line) => line.key === "cpu_s" && !line.part)?.mean.filter((each) => each !== null) ?? [];
    const bar = (heading, list, sum, note) => h("div", { class: "spent" }, h("h3", null, heading),
      h("div", { class: "spent-bar", role: "img", "aria-label": list.map((one) => `${one.stage} ${seconds(one.mean_s)}`).join(", ") }, list.map((one, i) => h("span", { class: `c${i + 1}`, vars: { "--part": sum ? one.mean_s / sum : 0 } }))),
      h("div", { class: "legend" }, list.map((one, i) => h("span", { class: `legend-item c${i + 1}` }, one.stage, h("b", null, seconds(one.mean_s))))), note ? h("p", { class: "small faint" }, note) : null);
    show(costs,
      stages.length ? bar("One rollout, on average", stages, whole, `${plural(rollouts, "rollout")}${stride > 1 ? `, estimated from a sample of ${number(sampled)}` : ""}; together ${seconds(stages.reduce((all, one) => all + one.total_s, 0))} of runners' time. ${Object.entries(failures).map(([name, n]) => `${number(n)} ${words(name)}`).join(", ")}.`) : h("p", { class: "empty" }, "No rollout is over yet."),
      phases.length ? bar("One train step, on average", phases, step, cpu.length ? `${seconds(cpu.reduce((all, each) => all + each, 0) / cpu.length)} of CPU time each.` : null) : null);
  }

  ask("/api/me", {}, page.signal).then((me) => {
    const rest = me.runs.filter((run) => run.name !== me.run && run.batches > 0).slice(0, 12);
    if (!rest.length) return;
    show(compare, h("span", { class: "small soft" }, "Compare with"), rest.map((run) => {
      const box = h("input", { type: "checkbox", checked: others.has(run.name), on: { change: () => { if (box.checked) others.add(run.name); else others.delete(run.name); page.filter({ compare: [...others].join(",") }); load(run.name); } } });
      return h("label", { class: "check" }, box, visible(run.name));
    }));
    for (const name of others) load(name);
  }).catch(() => {});

  async function load(name) {
    if (others.has(name) && !data.has(name)) {
      try { data.set(name, await ask("/api/series", { run: name }, page.signal)); }
      catch (error) { if (error.name === "AbortError") return; others.delete(name); }
    }
    draw();
    look(sync.range, false);
    if (data.get(name)?.uncounted) setTimeout(() => { data.delete(name); load(name); }, AGAIN_MS);
  }

  page.live("/api/run", {}, (found) => { const first = !heads; heads = found; heading(); if (first) draw(); }, { every: 2000 });
  const again = page.live("/api/series", {}, (found) => {
    own = found;
    draw();
    heading();
    spent();
    look(sync.range, false);
    if (found.uncounted) setTimeout(again, AGAIN_MS);
  }, { every: 10000 });
}
