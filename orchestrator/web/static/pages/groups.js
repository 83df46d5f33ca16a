// Groups: filters, newest first.

import { href } from "../address.js";
import { clock, number, outOf, visible, words } from "../format.js";
import { useTitle } from "../hooks.js";
import { scaffoldName } from "../scaffold.js";
import { groupState } from "../states.js";
import { field, purposeField, Search } from "../trajectory/search.js";
import { html } from "../vendor/preact.js";

const STATES = ["accepted", "dispatched", "ready", "taken", "trained", "scored", "filtered", "dead"];

/** @param {{ reward: number | null, lowest: number, highest: number }} row */
const range = (row) =>
  row.reward === null
    ? "–"
    : row.lowest === row.highest
      ? `all ${number(row.lowest)}`
      : `${number(row.lowest)} to ${number(row.highest)}`;

/** @type {import("../table.js").Column[]} */
const COLUMNS = [
  { name: "group", value: (row) => row.group_id, cell: (row) => String(row.group_id) },
  { name: "position", value: (row) => row.seq, cell: (row) => row.seq ?? "–", numeric: true },
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
    ],
  },
  {
    name: "state",
    value: (row) => row.state,
    cell: (row) => [
      groupState(row.state),
      row.reason ? html`<div class="small soft verbatim">${words(visible(row.reason))}</div>` : null,
    ],
  },
  { name: "members", value: (row) => row.done, cell: (row) => outOf(row.done, row.size), numeric: true },
  {
    name: "reward",
    title: "mean reward",
    value: (row) => row.reward,
    cell: (row) =>
      row.judged && row.judged < row.size
        ? `${number(row.reward)} (${outOf(row.judged, row.size)} judged)`
        : number(row.reward),
    numeric: true,
  },
  {
    name: "range",
    value: (row) => (row.reward === null ? null : row.highest - row.lowest),
    cell: range,
    numeric: true,
  },
  {
    name: "batch",
    value: (row) => row.batch_no,
    cell: (row) =>
      row.batch_no === null ? "–" : html`<a href=${href(`/batches/${row.batch_no}`)}>${row.batch_no}</a>`,
    numeric: true,
  },
  { name: "accepted", value: (row) => row.created, cell: (row) => clock(row.created), numeric: true },
];

const FIELDS = [
  field("task", "Task", { type: "search", placeholder: "part of its name" }),
  field("state", "State", { choices: STATES }),
  purposeField(),
  field("domain", "Domain"),
  field("scaffold", "Scaffold"),
  field("reason", "Reason"),
];
const TABLE = {
  columns: COLUMNS,
  rowKey: (/** @type {any} */ row) => row.group_id,
  href: (/** @type {any} */ row) => href(`/groups/${row.group_id}`),
  caption: "Groups",
  empty: "No group fits.",
};

/** @param {{ page: import("../router.js").Page }} props */
export function Page({ page }) {
  useTitle(page, "Groups");
  return html`
    <header class="page-head"><div><h1>Groups</h1></div></header>
    <section class="panel">
      <${Search}
        page=${page}
        path="/api/groups"
        unit="groups"
        fields=${FIELDS}
        rows=${(/** @type {any} */ answer) => answer.groups}
        table=${TABLE} />
    </section>
  `;
}
