// Rollouts: filters, full-text search, newest first.

import { h, show } from "../dom.js";
import { clock, compact, number, seconds, visible, words } from "../format.js";
import { scaffoldName } from "../scaffold.js";
import { table } from "../table.js";
import { advantage } from "../trajectory/reward.js";
import { field, purposeField, searched } from "../trajectory/search.js";
import { STATES } from "./rollout.js";

const CLASSES = ["completed", "policy_failure", "timeout", "infra_failure", "verifier_failure", "poison", "cancelled"];

const place = (row, page) => h("a", { class: "found", href: page.href(`/rollouts/${row.rollout_id}`, { step: row.found.idx }) },
  h("span", { class: "soft" }, `step ${row.found.idx}: `), h("span", { class: "said" }, visible(row.found.before), h("mark", null, visible(row.found.text)), visible(row.found.after)));

export function mount(root, page) {
  page.title("Rollouts");
  const list = table([
    { name: "rollout", value: (row) => row.rollout_id, cell: (row) => String(row.rollout_id) },
    { name: "task", wide: true, value: (row) => row.task, cell: (row) => [h("span", { class: "said" }, visible(row.task)), h("div", { class: "small soft" }, `${visible(row.domain)} · `, scaffoldName(row.scaffold), `${row.purpose === "train" ? "" : ` · ${row.purpose}`}`), row.found ? place(row, page) : null] },
    { name: "state", value: (row) => row.state, cell: (row) => [h("span", { class: `state ${STATES[row.state] ?? ""}` }, words(row.state)), row.failure_class && row.failure_class !== "completed" ? h("div", { class: "small down" }, words(row.failure_class)) : null] },
    { name: "reward", value: (row) => row.total, cell: (row) => number(row.total), numeric: true },
    { name: "advantage", value: (row) => row.advantage, cell: (row) => (row.advantage === null ? "–" : advantage(row.advantage)), numeric: true },
    { name: "steps", value: (row) => row.steps, cell: (row) => number(row.steps), numeric: true },
    { name: "longest", value: (row) => row.longest, cell: (row) => compact(row.longest), numeric: true },
    { name: "versions", value: (row) => row.v_lo, cell: (row) => (row.v_lo === null ? "–" : row.v_lo === row.v_hi ? `v${row.v_lo}` : `v${row.v_lo}–${row.v_hi}`), numeric: true },
    { name: "stale", value: (row) => row.staleness, cell: (row) => number(row.staleness), numeric: true },
    { name: "time", value: (row) => row.agent_s, cell: (row) => seconds(row.agent_s), numeric: true },
    { name: "group", value: (row) => row.group_id, cell: (row) => h("a", { href: page.href(`/groups/${row.group_id}`) }, row.group_id), numeric: true },
    { name: "batch", value: (row) => row.batch_no, cell: (row) => (row.batch_no === null ? "–" : h("a", { href: page.href(`/batches/${row.batch_no}`) }, row.batch_no)), numeric: true },
    { name: "changed", value: (row) => row.changed, cell: (row) => clock(row.changed), numeric: true },
  ], { key: (row) => row.rollout_id, href: (row) => page.href(`/rollouts/${row.rollout_id}`), caption: "Rollouts", empty: "No rollout fits." });
  const found = searched({
    page, path: "/api/rollouts", unit: "rollouts", list, rows: (answer) => answer.rollouts,
    fields: [
      field("text", "Text of messages and answers", { type: "search", placeholder: "any words, as they were written" }),
      field("state", "State", { choices: ["waiting", "queued", "running", "reported", "finished", "verifying", "verified", "lost"] }),
      field("failure_class", "How it ended", { choices: CLASSES }),
      purposeField(),
    ],
    more: [
      field("task", "Task"), field("domain", "Domain"), field("scaffold", "Scaffold"), field("tool", "Tool called"),
      field("reward_min", "Reward from", { type: "number", step: "any" }), field("reward_max", "Reward to", { type: "number", step: "any" }),
      field("steps_min", "Steps from", { type: "number" }), field("steps_max", "Steps to", { type: "number" }),
      field("length_min", "Tokens from", { type: "number" }), field("length_max", "Tokens to", { type: "number" }),
      field("version", "Version", { type: "number" }), field("staleness_min", "Staleness from", { type: "number" }), field("group_id", "Group", { type: "number" }),
    ],
  });
  show(root, h("header", { class: "page-head" }, h("div", null, h("h1", null, "Rollouts"))), h("section", { class: "panel" }, found.element));
}
