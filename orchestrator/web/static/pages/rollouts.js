// Rollouts: filters, full-text search, newest first.

import { href } from "../address.js";
import { clock, compact, number, seconds, visible, words } from "../format.js";
import { useTitle } from "../hooks.js";
import { scaffoldName } from "../scaffold.js";
import { ROLLOUT_STATES, rolloutState } from "../states.js";
import { advantage } from "../trajectory/reward.js";
import { field, purposeField, Search } from "../trajectory/search.js";
import { html } from "../vendor/preact.js";

const CLASSES = ["completed", "policy_failure", "timeout", "infra_failure", "verifier_failure", "poison", "cancelled"];

/** @param {any} row with `found` */
const place = ({ rollout_id, found }) => html`
  <a class="found" href=${href(`/rollouts/${rollout_id}`, { step: found.idx })}>
    <span class="soft">step ${found.idx}: </span>
    <span class="verbatim">${visible(found.before)}<mark>${visible(found.text)}</mark>${visible(found.after)}</span>
  </a>
`;

/** @type {import("../table.js").Column[]} */
const COLUMNS = [
  { name: "rollout", value: (row) => row.rollout_id, cell: (row) => String(row.rollout_id) },
  {
    name: "task",
    wide: true,
    value: (row) => row.task,
    cell: (row) => [
      html`<span class="verbatim">${visible(row.task)}</span>`,
      html`
        <div class="small soft">
          ${visible(row.domain)} · ${scaffoldName(row.scaffold)}${row.purpose === "train" ? "" : ` · ${row.purpose}`}
        </div>
      `,
      row.found ? place(row) : null,
    ],
  },
  {
    name: "state",
    value: (row) => row.state,
    cell: (row) => [
      rolloutState(row.state),
      row.failure_class && row.failure_class !== "completed"
        ? html`<div class="small down">${words(row.failure_class)}</div>`
        : null,
    ],
  },
  { name: "reward", value: (row) => row.total, cell: (row) => number(row.total), numeric: true },
  {
    name: "advantage",
    value: (row) => row.advantage,
    cell: (row) => (row.advantage === null ? "–" : advantage(row.advantage)),
    numeric: true,
  },
  { name: "steps", value: (row) => row.steps, cell: (row) => number(row.steps), numeric: true },
  { name: "longest", value: (row) => row.longest, cell: (row) => compact(row.longest), numeric: true },
  {
    name: "versions",
    value: (row) => row.v_lo,
    cell: (row) => (row.v_lo === null ? "–" : row.v_lo === row.v_hi ? `v${row.v_lo}` : `v${row.v_lo}–${row.v_hi}`),
    numeric: true,
  },
  { name: "stale", value: (row) => row.staleness, cell: (row) => number(row.staleness), numeric: true },
  { name: "time", value: (row) => row.agent_s, cell: (row) => seconds(row.agent_s), numeric: true },
  {
    name: "group",
    value: (row) => row.group_id,
    cell: (row) => html`<a href=${href(`/groups/${row.group_id}`)}>${row.group_id}</a>`,
    numeric: true,
  },
  {
    name: "batch",
    value: (row) => row.batch_no,
    cell: (row) =>
      row.batch_no === null ? "–" : html`<a href=${href(`/batches/${row.batch_no}`)}>${row.batch_no}</a>`,
    numeric: true,
  },
  { name: "changed", value: (row) => row.changed, cell: (row) => clock(row.changed), numeric: true },
];

const FIELDS = [
  field("text", "Text of messages and answers", { type: "search", placeholder: "any words, as they were written" }),
  field("state", "State", { choices: Object.keys(ROLLOUT_STATES) }),
  field("failure_class", "How it ended", { choices: CLASSES }),
  purposeField(),
];
const MORE = [
  field("task", "Task"),
  field("domain", "Domain"),
  field("scaffold", "Scaffold"),
  field("tool", "Tool called"),
  field("reward_min", "Reward from", { type: "number", step: "any" }),
  field("reward_max", "Reward to", { type: "number", step: "any" }),
  field("steps_min", "Steps from", { type: "number" }),
  field("steps_max", "Steps to", { type: "number" }),
  field("length_min", "Tokens from", { type: "number" }),
  field("length_max", "Tokens to", { type: "number" }),
  field("version", "Version", { type: "number" }),
  field("staleness_min", "Staleness from", { type: "number" }),
  field("group_id", "Group", { type: "number" }),
];
const TABLE = {
  columns: COLUMNS,
  rowKey: (/** @type {any} */ row) => row.rollout_id,
  href: (/** @type {any} */ row) => href(`/rollouts/${row.rollout_id}`),
  caption: "Rollouts",
  empty: "No rollout fits.",
};

/** @param {{ page: import("../router.js").Page }} props */
export function Page({ page }) {
  useTitle(page, "Rollouts");
  return html`
    <header class="page-head"><div><h1>Rollouts</h1></div></header>
    <section class="panel">
      <${Search}
        page=${page}
        path="/api/rollouts"
        unit="rollouts"
        fields=${FIELDS}
        more=${MORE}
        rows=${(/** @type {any} */ answer) => answer.rollouts}
        table=${TABLE} />
    </section>
  `;
}
