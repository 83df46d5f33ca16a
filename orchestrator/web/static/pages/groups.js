// Groups: filters, newest first.

import { h, show } from "../dom.js";
import { clock, number, visible, words } from "../format.js";
import { scaffoldName } from "../scaffold.js";
import { table } from "../table.js";
import { field, purposeField, searched } from "../trajectory/search.js";
import { groupState } from "./group.js";

const range = (row) => (row.reward === null ? "–" : row.lowest === row.highest ? `all ${number(row.lowest)}` : `${number(row.lowest)} to ${number(row.highest)}`);

export function mount(root, page) {
  page.title("Groups");
  const list = table([
    { name: "group", value: (row) => row.group_id, cell: (row) => String(row.group_id) },
    { name: "position", value: (row) => row.seq, cell: (row) => row.seq ?? "–", numeric: true },
    { name: "task", wide: true, value: (row) => row.task, cell: (row) => [h("span", { class: "said" }, visible(row.task)), h("div", { class: "small soft" }, `${visible(row.domain)} · `, scaffoldName(row.scaffold), `${row.purpose === "train" ? "" : ` · ${row.purpose}`}`)] },
    { name: "state", value: (row) => row.state, cell: (row) => [groupState(row.state), row.reason ? h("div", { class: "small soft said" }, words(visible(row.reason))) : null] },
    { name: "members", value: (row) => row.done, cell: (row) => `${row.done} of ${row.size}`, numeric: true },
    { name: "reward", title: "mean reward", value: (row) => row.reward, cell: (row) => number(row.reward), numeric: true },
    { name: "range", value: (row) => (row.reward === null ? null : row.highest - row.lowest), cell: range, numeric: true },
    { name: "batch", value: (row) => row.batch_no, cell: (row) => (row.batch_no === null ? "–" : h("a", { href: page.href(`/batches/${row.batch_no}`) }, row.batch_no)), numeric: true },
    { name: "accepted", value: (row) => row.created, cell: (row) => clock(row.created), numeric: true },
  ], { key: (row) => row.group_id, href: (row) => page.href(`/groups/${row.group_id}`), caption: "Groups", empty: "No group fits." });
  const found = searched({
    page, path: "/api/groups", unit: "groups", list, rows: (answer) => answer.groups,
    fields: [
      field("task", "Task", { type: "search", placeholder: "part of its name" }),
      field("state", "State", { choices: ["accepted", "dispatched", "ready", "taken", "trained", "scored", "filtered", "dead"] }),
      purposeField(), field("domain", "Domain"), field("scaffold", "Scaffold"), field("reason", "Reason"),
    ],
  });
  show(root, h("header", { class: "page-head" }, h("div", null, h("h1", null, "Groups"))), h("section", { class: "panel" }, found.element));
}
