// Batches, newest first.

import { ask } from "../api.js";
import { clock, compact, number, outOf } from "../format.js";
import { useLive, useTitle } from "../hooks.js";
import { batchState } from "../states.js";
import { Table } from "../table.js";
import { html, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */

const PAGE = 50;

/** @type {import("../table.js").Column[]} */
const COLUMNS = [
  { name: "batch", value: (row) => row.batch_no, cell: (row) => String(row.batch_no) },
  {
    name: "state",
    value: (row) => row.state,
    cell: (row) => batchState(row.state),
  },
  { name: "groups", value: (row) => row.taken, cell: (row) => outOf(row.taken, row.size), numeric: true },
  {
    name: "trained",
    title: "train steps",
    value: (row) => row.train_steps,
    cell: (row) => number(row.train_steps),
    numeric: true,
  },
  {
    name: "version",
    title: "published",
    value: (row) => row.version,
    cell: (row) => (row.version === null ? "–" : `v${row.version}`),
    numeric: true,
  },
  { name: "reward", value: (row) => row.reward, cell: (row) => number(row.reward), numeric: true },
  {
    name: "tokens",
    title: "tokens trained",
    value: (row) => row.action_tokens,
    cell: (row) => compact(row.action_tokens),
    numeric: true,
  },
  {
    name: "merge",
    title: "merge ratio",
    value: (row) => row.merge_ratio,
    cell: (row) => (row.merge_ratio === null ? "–" : `${number(row.merge_ratio)}×`),
    numeric: true,
  },
  { name: "opened", value: (row) => row.opened, cell: (row) => clock(row.opened), numeric: true },
  { name: "committed", value: (row) => row.committed, cell: (row) => clock(row.committed), numeric: true },
];

/** @param {{ page: Page }} props */
export function Page({ page }) {
  useTitle(page, "Batches");
  const [newest] = useLive(page, "/api/batches");
  /** Answers to manual requests, all of them older. */
  const [older, setOlder] = useState(/** @type {any[]} */ ([]));
  const [ended, setEnded] = useState(false);
  const first = newest?.at(-1)?.batch_no ?? 0;
  const rest = older.filter((row) => row.batch_no < first);
  const rows = newest && [...newest, ...rest];

  async function more() {
    try {
      const next = await ask("/api/batches", { before: rows.at(-1).batch_no }, page.signal);
      setOlder([...rest, ...next]);
      setEnded(next.length < PAGE);
    } catch {
      /* the banner shows the reason; the button stays */
    }
  }

  const all = rest.length ? ended : (newest?.length ?? 0) < PAGE;
  return html`
    <header class="page-head"><div><h1>Batches</h1></div></header>
    <section class="panel">
      <${Table}
        columns=${COLUMNS}
        rows=${rows}
        rowKey=${(/** @type {any} */ row) => row.batch_no}
        href=${(/** @type {any} */ row) => page.href(`/batches/${row.batch_no}`)}
        caption="Batches"
        empty="No batch was opened yet: it takes ready groups as soon as the trainer asks." />
      <p><button type="button" hidden=${all} onClick=${more}>Show older ones</button></p>
    </section>
  `;
}
