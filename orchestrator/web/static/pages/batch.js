// One batch: its groups, the metrics of its train steps, and its prefix tree.

import { href } from "../address.js";
import { ask, messageOf } from "../api.js";
import { figure } from "../figure.js";
import { clock, compact, number, outOf, percent, plural, seconds, visible, words } from "../format.js";
import { useKeys, useLive, useTitle } from "../hooks.js";
import { loading } from "../router.js";
import { scaffoldName } from "../scaffold.js";
import { batchState, groupState } from "../states.js";
import { Table } from "../table.js";
import { Icicle } from "../trajectory/icicle.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */

const HIDDEN = new Set(["domains", "staleness", "seconds"]);
const HOW =
  "To the right: tokens from the start of a sample. Downwards: samples. Click a run of tokens to see it, double-click to go into it. " +
  "The trainer merges train step by train step, in packs that fit its memory: its own merge ratio is among the metrics below.";

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
      html`<span class="small soft"> ${visible(row.domain)} · ${scaffoldName(row.scaffold)}</span>`,
    ],
  },
  { name: "state", value: (row) => row.state, cell: (row) => groupState(row.state) },
  { name: "rollouts", value: (row) => row.rollouts, cell: (row) => outOf(row.rollouts, row.size), numeric: true },
  { name: "reward", value: (row) => row.reward, cell: (row) => number(row.reward), numeric: true },
  { name: "performance", value: (row) => row.performance, cell: (row) => number(row.performance), numeric: true },
  {
    name: "spread",
    title: "advantage spread",
    value: (row) => row.advantage_spread,
    cell: (row) => number(row.advantage_spread),
    numeric: true,
  },
  { name: "taken", value: (row) => row.taken, cell: (row) => clock(row.taken), numeric: true },
];

/**
 * A metric in readable form.
 * @param {unknown} value
 * @returns {string}
 */
function readable(value) {
  if (typeof value === "number") return number(value, 4);
  if (value === null || value === undefined) return "–";
  if (typeof value !== "object") return visible(String(value));
  const parts = Object.entries(value).map(([name, each]) => `${words(visible(name))} ${readable(each)}`);
  return parts.join(", ");
}

/** @param {any} step */
const stale = (step) =>
  Object.entries(step.metrics.staleness ?? {})
    .map(([age, tokens]) => `${age}: ${compact(tokens)}`)
    .join(", ");

/** @param {any} step */
const nameOf = (step) => `train step ${step.train_step}`;

/** @param {{ steps: any[] }} props */
function Measured({ steps }) {
  if (!steps.length)
    return html`<p class="empty">It was not trained yet: its train steps are written when it is committed.</p>`;
  // Some metrics are of one train step alone: the checkpoint of the last one.
  const measured = new Set(steps.flatMap((step) => Object.keys(step.metrics)));
  const names = [...measured]
    .filter((name) => !HIDDEN.has(name) && steps.some((step) => (step.metrics[name] ?? null) !== null))
    .sort();
  /** @param {string} name @param {(step: any) => string} cell */
  const line = (name, cell) => html`
    <tr role="row">
      <th scope="row" role="rowheader">${name}</th>
      ${steps.map((step) => html`<td role="cell" class="numeric" data-name=${nameOf(step)}>${cell(step)}</td>`)}
    </tr>
  `;
  return html`
    <div class="table">
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            <th scope="col" role="columnheader">metric</th>
            ${steps.map((step) => html`<th scope="col" role="columnheader" class="numeric">${nameOf(step)}</th>`)}
          </tr>
        </thead>
        <tbody role="rowgroup">
          ${names.map((name) => line(words(name), (step) => readable(step.metrics[name])))}
          ${steps.some((step) => step.metrics.staleness) ? line("tokens by staleness", stale) : null}
        </tbody>
      </table>
    </div>
  `;
}

/**
 * The prefix tree, as of its request; of the whole batch, or of a part of it.
 * @param {{ page: Page, part: string, parts: number }} props
 */
function PrefixTree({ page, part, parts }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [wrong, setWrong] = useState("");

  async function load() {
    setWrong("");
    try {
      const params = part === "" ? {} : { part, of: parts };
      setFound(await ask(`/api/batches/${page.params.batch}/tree`, params, page.signal));
    } catch (error) {
      if (!page.signal.aborted) setWrong(messageOf(error));
    }
  }
  useEffect(() => {
    load();
  }, []);
  if (wrong)
    return html`
      <p class="note bad">${wrong}${" "}<button type="button" class="quiet" onClick=${load}>Try again</button></p>
    `;
  if (!found) return html`<p class="loading">Loading…</p>`;
  const { batch, ratio } = found;
  const { samples, naive, unique, nodes } = batch.tree;
  const saved = naive - unique;
  return html`
    <p class="lead tree-sum">
      ${
        samples
          ? html`
            <b>${number(ratio)}×</b>
            ${` less to forward: ${plural(samples, "sample")} hold ${number(naive)} tokens, ${number(unique)} of them different. `}
            ${`Merging saves ${number(saved)} tokens, ${percent(saved / naive)} of the work.`}
          `
          : "No sample of this batch trains."
      }
    </p>
    ${
      batch.groups_in < batch.groups
        ? html`
          <p class="note">
            The batch is too large for one picture: this is the tree of its first${" "}
            ${plural(batch.groups_in, "group")} of ${batch.groups}.
          </p>
        `
        : null
    }
    ${
      nodes.length
        ? html`
          <${Icicle}
            tree=${found}
            href=${(/** @type {any} */ node) => href(`/rollouts/${node.rollout_id}`, { step: node.step })}
            go=${(/** @type {any} */ node) => page.go(`/rollouts/${node.rollout_id}`, { step: node.step })} />
        `
        : null
    }
    <p class="small faint">${HOW}</p>
  `;
}

/** @param {{ batch: any }} props */
function Figures({ batch }) {
  const steps = batch.train_steps;
  /** @param {string} name @returns {number | null} */
  const sum = (name) =>
    steps.length
      ? steps.reduce((/** @type {number} */ all, /** @type {any} */ step) => all + (step.metrics[name] ?? 0), 0)
      : null;
  let rollouts = 0;
  let reward = 0;
  for (const row of batch.groups) {
    rollouts += row.rollouts;
    reward += (row.reward ?? 0) * row.rollouts;
  }
  const [naive, merged] = [sum("tokens_naive"), sum("tokens_merged")];
  return html`
    <dl class="figures">
      ${figure(
        "groups",
        outOf(batch.groups.length, batch.size),
        batch.closed ? `closed ${clock(batch.closed)}` : "open",
      )}
      ${figure(
        "train steps",
        number(steps.length),
        batch.committed ? `committed ${clock(batch.committed)}` : "not committed",
      )}
      ${figure(
        "mean reward",
        number(batch.groups.length ? reward / Math.max(1, rollouts) : null),
        `of ${plural(rollouts, "rollout")} that train`,
      )}
      ${figure(
        "tokens trained",
        compact(sum("action_tokens")),
        naive ? `${compact(merged)} forwarded instead of ${compact(naive)}` : "",
      )}
      ${figure("merge ratio", naive !== null && merged ? `${number(naive / merged)}×` : "–", "as the trainer packed it")}
      ${figure("trained in", seconds(sum("wall_s")), "all train steps")}
    </dl>
  `;
}

/** @param {any} batch */
function stands(batch) {
  if (batch.version !== null)
    return `Trained on version ${batch.trainer_version ?? "–"}, published version ${batch.version}`;
  if (batch.state === "open") return "Takes ready groups until it is full";
  return batch.state === "voided" ? "Given up; its number is free again" : "Waits for its commit";
}

/** @param {{ page: Page }} props */
export function Page({ page }) {
  const no = Number(page.params.batch);
  useTitle(page, `Batch ${page.params.batch}`);
  const [batch] = useLive(page, `/api/batches/${page.params.batch}`);
  const [part, setPart] = useState(page.query.get("part") ?? "");
  useKeys("Batch", [
    { keys: ["ArrowRight", "j"], what: "next batch", run: () => page.go(`/batches/${no + 1}`) },
    {
      keys: ["ArrowLeft", "k"],
      what: "batch before",
      run: () => {
        if (no < 1) return false;
        page.go(`/batches/${no - 1}`);
      },
    },
  ]);
  if (!batch) return loading;
  /** @type {any[]} */
  const steps = batch.train_steps;
  /** @param {any} event */
  const choose = (event) => {
    setPart(event.target.value);
    page.filter({ part: event.target.value });
  };
  return html`
    <header class="page-head">
      <div>
        <h1>
          Batch ${batch.batch_no} ${batchState(batch.state)}
        </h1>
        <p class="lead">${stands(batch)}</p>
        ${batch.voided.map(
          (/** @type {any} */ gone) => html`
            <p class="note">
              Voided ${clock(gone.at)} with ${plural(gone.groups.length, "group")} · ${visible(gone.reason)}
              ${gone.detail === null ? null : `: ${visible(gone.detail)}`}
            </p>
          `,
        )}
      </div>
    </header>
    <section class="panel summary"><${Figures} batch=${batch} /></section>
    <section class="panel">
      <div class="panel-head">
        <h2>Prefix tree</h2>
        <div class="tools">
          ${
            steps.length > 1
              ? html`
                <label>
                  of${" "}
                  <select value=${part} onChange=${choose}>
                    <option value="">the whole batch</option>
                    ${steps.map((step) => html`<option value=${String(step.part)}>${nameOf(step)}</option>`)}
                  </select>
                </label>
              `
              : null
          }
        </div>
      </div>
      <div>
        ${
          batch.state === "open"
            ? html`<p class="empty">The tree is there once the batch is closed.</p>`
            : html`
              <${PrefixTree}
                key=${`${batch.groups.length}:${steps.length}:${part}`}
                page=${page}
                part=${part}
                parts=${steps.length} />
            `
        }
      </div>
    </section>
    <section class="panel">
      <h2>Groups</h2>
      <${Table}
        columns=${COLUMNS}
        rows=${batch.groups}
        rowKey=${(/** @type {any} */ row) => row.group_id}
        href=${(/** @type {any} */ row) => href(`/groups/${row.group_id}`)}
        caption="Groups"
        empty="It has taken no group yet." />
    </section>
    <section class="panel"><h2>Train steps</h2><div><${Measured} steps=${steps} /></div></section>
  `;
}
