// One batch: its groups, what its train steps measured, and its prefix tree.

import { ask } from "../api.js";
import { h, redraw, show } from "../dom.js";
import { clock, compact, number, percent, plural, seconds, visible, words } from "../format.js";
import { keys } from "../keys.js";
import { scaffoldName } from "../scaffold.js";
import { table } from "../table.js";
import { icicle } from "../trajectory/icicle.js";
import { BATCH_STATES } from "./batches.js";
import { groupState } from "./group.js";

const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", null, name), h("dd", null, value), note ? h("p", null, note) : null);
const HIDDEN = new Set(["domains", "staleness", "seconds"]);

function measured(steps) {
  if (!steps.length) return h("p", { class: "empty" }, "It was not trained yet: its train steps are written when it is committed.");
  const names = Object.keys(steps[0].metrics).filter((name) => !HIDDEN.has(name) && steps.some((step) => step.metrics[name] !== null)).sort();
  const said = (value) => (typeof value === "number" ? number(value, 4) : value === null || value === undefined ? "–" : typeof value === "object" ? Object.entries(value).map(([name, each]) => `${words(visible(name))} ${said(each)}`).join(", ") : visible(String(value)));
  const stale = (step) => Object.entries(step.metrics.staleness ?? {}).map(([age, tokens]) => `${age}: ${compact(tokens)}`).join(", ");
  return h("div", { class: "table" }, h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "metric"), steps.map((step) => h("th", { scope: "col", class: "numeric" }, `train step ${step.train_step}`)))),
    h("tbody", null, names.map((name) => h("tr", null, h("th", { scope: "row" }, words(name)), steps.map((step) => h("td", { class: "numeric" }, said(step.metrics[name]))))),
      steps.some((step) => step.metrics.staleness) ? h("tr", null, h("th", { scope: "row" }, "tokens by staleness"), steps.map((step) => h("td", { class: "numeric" }, stale(step)))) : null)));
}

export function mount(root, page) {
  const no = page.params.batch;
  page.title(`Batch ${no}`);
  const head = h("div"), figures = h("dl", { class: "figures" }), metrics = h("div"), tree = h("div", null, h("p", { class: "loading" }, "Loading…")), parts = h("div", { class: "tools" });
  const groups = table([
    { name: "group", value: (row) => row.group_id, cell: (row) => String(row.group_id) },
    { name: "position", value: (row) => row.seq, cell: (row) => row.seq ?? "–", numeric: true },
    { name: "task", wide: true, value: (row) => row.task, cell: (row) => [h("span", { class: "said" }, visible(row.task)), h("span", { class: "small soft" }, ` ${visible(row.domain)} · `, scaffoldName(row.scaffold))] },
    { name: "state", value: (row) => row.state, cell: (row) => groupState(row.state) },
    { name: "rollouts", value: (row) => row.rollouts, cell: (row) => number(row.rollouts), numeric: true },
    { name: "reward", value: (row) => row.reward, cell: (row) => number(row.reward), numeric: true },
    { name: "performance", value: (row) => row.performance, cell: (row) => number(row.performance), numeric: true },
    { name: "spread", title: "advantage spread", value: (row) => row.advantage_spread, cell: (row) => number(row.advantage_spread), numeric: true },
    { name: "taken", value: (row) => row.taken, cell: (row) => clock(row.taken), numeric: true },
  ], { key: (row) => row.group_id, href: (row) => page.href(`/groups/${row.group_id}`), caption: "Groups", empty: "It has taken no group yet." });
  const all = [h("header", { class: "page-head" }, head), h("section", { class: "panel summary" }, figures),
    h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", null, "Prefix tree"), parts), tree),
    h("section", { class: "panel" }, h("h2", null, "Groups"), groups.element), h("section", { class: "panel" }, h("h2", null, "Train steps"), metrics)];
  show(root, h("div", { class: "loading", "aria-busy": "true" }, "Loading…"));
  let drawn = null, part = page.query.get("part") ?? "";

  async function draw(of) {
    const asked = part === "" ? {} : { part, of };
    show(tree, h("p", { class: "loading" }, "Loading…"));
    try {
      const found = await ask(`/api/batches/${no}/tree`, asked, page.signal);
      const sum = found.batch.tree;
      const to = (node) => page.href(`/rollouts/${node.rollout_id}`, { step: node.step });
      show(tree,
        h("p", { class: "lead tree-sum" }, sum.samples ? [h("b", null, `${number(found.ratio)}×`), ` less to forward: ${plural(sum.samples, "sample")} hold ${number(sum.naive)} tokens, ${number(sum.unique)} of them different. Merging saves ${number(sum.naive - sum.unique)} tokens, ${percent(1 - sum.unique / sum.naive)} of the work.`] : "No sample of this batch trains."),
        found.batch.groups_in < found.batch.groups ? h("p", { class: "note" }, `The batch is too large for one picture: this is the tree of its first ${plural(found.batch.groups_in, "group")} of ${found.batch.groups}.`) : null,
        sum.nodes.length ? icicle(found, to, (node) => page.go(`/rollouts/${node.rollout_id}`, { step: node.step })) : null,
        h("p", { class: "small faint" }, "To the right: tokens from the start of a sample. Downwards: samples. Click a run of tokens to see it, double-click to go into it. The trainer merges train step by train step, in packs that fit its memory: its own merge ratio is among the metrics below."));
    } catch (error) {
      if (!page.signal.aborted) show(tree, h("p", { class: "note bad" }, error.message, " ", h("button", { type: "button", class: "quiet", on: { click: () => draw(of) } }, "Try again")));
    }
  }

  keys("Batch", [
    { keys: ["ArrowRight", "j"], what: "next batch", run: () => page.go(`/batches/${Number(no) + 1}`) },
    { keys: ["ArrowLeft", "k"], what: "batch before", run: () => { if (Number(no) < 1) return false; page.go(`/batches/${Number(no) - 1}`); return true; } },
  ], page.signal);

  page.live(`/api/batches/${no}`, {}, (batch) => {
    const steps = batch.train_steps, of = steps.length;
    if (drawn === null) { drawn = ""; show(root, all); }
    const sum = (name) => (of ? steps.reduce((total, step) => total + (step.metrics[name] ?? 0), 0) : null);
    redraw(head, h("h1", null, `Batch ${batch.batch_no}`, " ", h("span", { class: `state ${BATCH_STATES[batch.state]}` }, words(batch.state))),
      h("p", { class: "lead" }, batch.version !== null ? `Trained on version ${batch.trainer_version ?? "–"}, published version ${batch.version}` : batch.state === "open" ? "Takes ready groups until it is full" : batch.state === "voided" ? "Given up; its number is free again" : "Waits for its commit"),
      batch.voided.map((gone) => h("p", { class: "note" }, `Voided ${clock(gone.at)} with ${plural(gone.groups.length, "group")} · ${visible(gone.reason)}${gone.detail === null ? "" : `: ${visible(gone.detail)}`}`)));
    redraw(figures,
      figure("groups", [number(batch.groups.length), h("small", null, ` of ${batch.size}`)], batch.closed ? `closed ${clock(batch.closed)}` : "open"),
      figure("train steps", number(of), batch.committed ? `committed ${clock(batch.committed)}` : "not committed"),
      figure("mean reward", number(batch.groups.length ? batch.groups.reduce((total, row) => total + (row.reward ?? 0) * row.rollouts, 0) / Math.max(1, batch.groups.reduce((total, row) => total + row.rollouts, 0)) : null), "of the rollouts that train"),
      figure("tokens trained", compact(sum("action_tokens")), of ? `${compact(sum("tokens_merged"))} forwarded instead of ${compact(sum("tokens_naive"))}` : ""),
      figure("merge ratio", of && sum("tokens_merged") ? `${number(sum("tokens_naive") / sum("tokens_merged"))}×` : "–", "as the trainer packed it"),
      figure("trained in", seconds(sum("wall_s")), "all train steps"));
    groups.update(batch.groups);
    show(metrics, measured(steps));
    show(parts, of > 1 ? h("label", null, "of ", h("select", { on: { change: (event) => { part = event.target.value; page.filter({ part }); draw(of); } } }, h("option", { value: "" }, "the whole batch"), steps.map((step) => h("option", { value: step.part, selected: String(step.part) === part }, `train step ${step.train_step}`)))) : null);
    const known = `${batch.state !== "open"}:${batch.groups.length}:${of}`;
    if (batch.state === "open") show(tree, h("p", { class: "empty" }, "The tree is there once the batch is closed."));
    else if (known !== drawn) { drawn = known; draw(of); }
  });
}
