// One group: its rollouts side by side, and the differences between the files of two members.

import { href } from "../address.js";
import { ask, messageOf } from "../api.js";
import { figure } from "../figure.js";
import { bytes, clock, compact, number, outOf, plural, seconds, visible, words } from "../format.js";
import { useKeys, useLive, useTitle } from "../hooks.js";
import { loading } from "../router.js";
import { scaffoldName } from "../scaffold.js";
import { groupState, PRUNED, rolloutState } from "../states.js";
import { cancelButton } from "../steer.js";
import { Table } from "../table.js";
import { advantage, rewardBar, rewardLegend, scaleOf } from "../trajectory/reward.js";
import { Text, wholeOf } from "../trajectory/texts.js";
import { html, useEffect, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */
/**
 * @typedef {object} Change difference of a file between two members
 * @property {string} path
 * @property {string} change
 * @property {boolean} compared
 * @property {number | null} left bytes
 * @property {number | null} right
 * @property {string[]} lines
 * @property {number} length of all lines
 */

const CHANGES = /** @type {Record<string, string>} */ ({
  same: "the same",
  changed: "changed",
  only_left: "only left",
  only_right: "only right",
  binary: "binary, and different",
});
const OPEN = ["accepted", "dispatched", "ready"];
const MOST_LINES = 200; // of an unfolded difference
const MOST_PATHS = 200; // of an answer: orchestrator/queries/differences.py

/** @param {number | null} n */
const size = (n) => (n === null ? "nothing" : bytes(n));

/** @param {Change} one */
function sizes({ change, left, right }) {
  if (change === "only_left") return size(left);
  return change === "only_right" ? size(right) : `${size(left)} against ${size(right)}`;
}

/** @param {string} line */
function lineClass(line) {
  if (line.startsWith("+++") || line.startsWith("---")) return "faint";
  if (line.startsWith("+")) return "added";
  if (line.startsWith("-")) return "removed";
  return line.startsWith("@@") ? "place" : undefined;
}

/** @param {{ one: Change }} props */
const Difference = ({ one }) => html`
  <details class="difference" open=${one.lines.length > 0 && one.lines.length < MOST_LINES}>
    <summary>
      <span class="mono verbatim">${visible(one.path)}</span>${" "}
      <span class="soft">${CHANGES[one.change]}${one.compared ? "" : `, too large to compare here (${sizes(one)})`}</span>
    </summary>
    ${
      one.lines.length
        ? html`
          <pre class="diff">
            ${one.lines.map((line) => html`<span class=${lineClass(line)}>${`${visible(line)}\n`}</span>`)}
          </pre>
        `
        : null
    }
    ${
      one.length > one.lines.length
        ? html`<p class="faint small">${number(one.length - one.lines.length)} more lines.</p>`
        : null
    }
  </details>
`;

/** @param {{ found: Change[] }} props */
export function Found({ found }) {
  if (!found.length) return html`<p class="empty">Neither left a file for its verifier.</p>`;
  const same = found.filter((each) => each.change === "same");
  return html`
    ${found.filter((each) => each.change !== "same").map((one) => html`<${Difference} key=${one.path} one=${one} />`)}
    ${
      same.length
        ? html`
          <p class="soft small">
            The same in both:${" "}
            ${same.map(({ path }, i) => [i ? ", " : null, html`<span class="mono verbatim">${visible(path)}</span>`])}.
          </p>
        `
        : null
    }
    ${
      found.length >= MOST_PATHS
        ? html`<p class="note">At most ${MOST_PATHS} paths are compared, the first by name.</p>`
        : null
    }
  `;
}

/**
 * Differences between the files of two members, chosen in two lists.
 * @param {{ group: any, page: Page }} props
 */
function Differences({ group, page }) {
  // The best against the worst, if rewards differ.
  const ranked = group.members
    .filter((/** @type {any} */ one) => one.total !== null)
    .sort((/** @type {any} */ one, /** @type {any} */ other) => other.total - one.total || one.member - other.member);
  const [best, worst] = ranked.length > 1 ? [ranked[0], ranked.at(-1)] : group.members;
  const [pair, setPair] = useState({
    left: Number(page.query.get("left") ?? best?.member ?? 0),
    right: Number(page.query.get("right") ?? worst?.member ?? 0),
  });
  const [found, setFound] = useState(/** @type {Change[] | null} */ (null));
  const [wrong, setWrong] = useState("");
  const several = group.members.length > 1;

  /** @param {AbortSignal} signal */
  async function load(signal) {
    page.filter(pair);
    setFound(null);
    setWrong("");
    try {
      const answer = await ask(`/api/groups/${group.group_id}/difference`, pair, signal);
      if (!signal.aborted) setFound(answer);
    } catch (error) {
      if (!signal.aborted) setWrong(messageOf(error));
    }
  }
  useEffect(() => {
    if (!several) return;
    const other = new AbortController();
    load(AbortSignal.any([other.signal, page.signal]));
    return () => other.abort();
  }, [pair]);

  /** @param {"left" | "right"} side */
  const choice = (side) => html`
    <select
      aria-label=${`${side} member`}
      value=${String(pair[side])}
      onChange=${(/** @type {any} */ event) => setPair({ ...pair, [side]: Number(event.target.value) })}>
      ${group.members.map(
        (/** @type {any} */ one) => html`
          <option value=${String(one.member)}>
            member ${one.member}${one.total === null ? "" : ` (${number(one.total)})`}
          </option>
        `,
      )}
    </select>
  `;
  const inside = () => {
    if (wrong)
      return html`
        <p class="note bad">
          ${wrong}${" "}
          <button type="button" class="quiet" onClick=${() => load(page.signal)}>Try again</button>
        </p>
      `;
    return found ? html`<${Found} found=${found} />` : html`<p class="loading">Loading…</p>`;
  };
  return html`
    <section class="panel">
      <div class="panel-head">
        <h2>Final files</h2>
        ${several ? html`<div class="tools">${choice("left")}against${choice("right")}</div>` : null}
      </div>
      ${
        several
          ? html`<div>${inside()}</div>`
          : html`<p class="empty">A group of one rollout has nothing to compare.</p>`
      }
    </section>
  `;
}

/**
 * The columns of the members table, with rewards on one scale.
 * @param {import("../trajectory/reward.js").Scale} scale
 * @param {boolean} pruned
 * @returns {import("../table.js").Column[]}
 */
const columnsOf = (scale, pruned) => [
  {
    name: "member",
    value: (row) => row.member,
    cell: (row) => html`<span class="whole">${String(row.member)}<small> rollout ${row.rollout_id}</small></span>`,
  },
  {
    name: "state",
    value: (row) => row.state,
    cell: (row) => [
      rolloutState(row.state),
      row.failure_class && row.failure_class !== "completed"
        ? [" ", html`<span class="state failed">${words(row.failure_class)}</span>`]
        : null,
      row.reason ? html`<div class="small soft verbatim">${visible(row.reason)}</div>` : null,
    ],
  },
  {
    name: "parts",
    title: "reward",
    value: (row) => row.total,
    cell: (row) =>
      row.total === null
        ? html`<span class="faint">–</span>`
        : html`<span class="reward-cell">${rewardBar(row, scale)}${number(row.total)}</span>`,
  },
  {
    name: "advantage",
    value: (row) => row.advantage,
    cell: (row) => (row.advantage === null ? "–" : advantage(row.advantage)),
    numeric: true,
  },
  {
    name: "tests",
    value: (row) => row.tests_passed,
    cell: (row) => outOf(row.tests_passed, row.tests),
    numeric: true,
  },
  { name: "steps", value: (row) => row.steps, cell: (row) => number(row.steps), numeric: true },
  {
    name: "sampled",
    title: "tokens",
    value: (row) => row.action_tokens,
    cell: (row) => compact(row.action_tokens),
    numeric: true,
  },
  { name: "longest", value: (row) => row.longest, cell: (row) => compact(row.longest), numeric: true },
  {
    name: "versions",
    value: (row) => row.v_lo,
    cell: (row) => (row.v_lo === null ? "–" : row.v_lo === row.v_hi ? `v${row.v_lo}` : `v${row.v_lo}–${row.v_hi}`),
    numeric: true,
  },
  { name: "time", value: (row) => row.agent_s, cell: (row) => seconds(row.agent_s), numeric: true },
  {
    name: "files",
    value: (row) => row.all_files,
    cell: (row) => number(pruned ? null : row.all_files),
    numeric: true,
  },
];

/** @param {{ group: any }} props */
function Figures({ group }) {
  const rewarded = group.members.filter((/** @type {any} */ one) => one.total !== null);
  /** @type {number[]} */
  const totals = rewarded.map((/** @type {any} */ one) => one.total);
  const mean = totals.length ? totals.reduce((sum, one) => sum + one, 0) / totals.length : null;
  const spread = totals.length ? Math.max(...totals) - Math.min(...totals) : null;
  const { created, dispatched, ready, ended } = group;
  /** @param {string} state */
  const count = (state) => group.members.filter((/** @type {any} */ one) => one.state === state).length;
  return html`
    <dl class="figures">
      ${figure(
        "mean reward",
        number(mean),
        totals.length ? `of ${plural(totals.length, "rewarded rollout")}` : "no rollout is rewarded yet",
      )}
      ${figure("spread", number(spread), spread === 0 ? "nothing to learn from" : "highest minus lowest")}
      ${figure("members", number(group.size), `${count("verified")} verified, ${count("lost")} lost`)}
      ${figure(
        "accepted",
        clock(created),
        dispatched ? `dispatched ${seconds(dispatched - created)} later` : "not dispatched",
      )}
      ${figure(
        "ran for",
        dispatched && ready ? seconds(ready - dispatched) : "–",
        ready ? "until its last member was verified" : ended ? "it never waited for a batch" : "not ready yet",
      )}
      ${figure(
        "ended",
        ended ? clock(ended) : "–",
        ended && ready ? `${seconds(ended - ready)} after it was ready` : "",
      )}
    </dl>
  `;
}

/** @param {{ group: any }} props */
function Head({ group }) {
  const pinned = group.pinned_version !== null ? `, version ${group.pinned_version}` : "";
  return html`
    <div>
      <h1>Group ${group.group_id} ${groupState(group.state)}</h1>
      <p class="lead">
        <span class="verbatim">${visible(group.task)}</span>
        ${` · ${visible(group.domain)} · `}${scaffoldName(group.scaffold)}
        ${group.difficulty ? ` · ${visible(group.difficulty)}` : null}
      </p>
      <p class="small soft">
        ${
          group.seq !== null
            ? `queue position ${group.seq}`
            : `${words(group.purpose)}${group.label ? ` ${visible(group.label)}` : ""}${pinned}`
        }
        ${
          group.batch_no !== null
            ? html` · <a href=${href(`/batches/${group.batch_no}`)}>batch ${group.batch_no}</a> (${group.batch_state})`
            : null
        }
        ${group.reason ? html`<span class="verbatim"> · ${words(visible(group.reason))}</span>` : null}
      </p>
    </div>
  `;
}

/** @param {{ group: any, signal: AbortSignal }} props */
function Answers({ group, signal }) {
  const [first] = group.members;
  const answered = group.members.filter((/** @type {any} */ one) => one.answer);
  const instruction = first
    ? wholeOf(first.rollout_id, first.attempt, 0, "instruction", signal)
    : async () => group.instruction.text;
  return html`
    <div>
      <div class="grid">
        ${
          group.instruction
            ? html`
              <section class="panel">
                <h2>Task</h2>
                <${Text} cut=${group.instruction} whole=${instruction} mono=${false} />
              </section>
            `
            : null
        }
        ${
          answered.length
            ? html`
              <section class="panel">
                <h2>Answers</h2>
                <dl class="answers">
                  ${answered.map(
                    (/** @type {any} */ one) => html`
                      <dt>
                        <a href=${href(`/rollouts/${one.rollout_id}`)}>member ${one.member}</a>${" "}
                        <span class="soft">${number(one.total)}</span>
                      </dt>
                      <dd>
                        <${Text} cut=${one.answer} whole=${wholeOf(one.rollout_id, one.attempt, 0, "answer", signal)} />
                      </dd>
                    `,
                  )}
                </dl>
              </section>
            `
            : null
        }
      </div>
    </div>
  `;
}

/** @param {{ page: Page }} props */
export function Page({ page }) {
  const id = Number(page.params.group);
  useTitle(page, `Group ${page.params.group}`);
  const [group, again] = useLive(page, `/api/groups/${page.params.group}`);
  useKeys("Group", [
    {
      keys: ["Enter"],
      what: "open the first rollout",
      run: () => {
        if (document.activeElement?.closest("a, button, summary, select") || !group?.members.length) return false;
        page.go(`/rollouts/${group.members[0].rollout_id}`);
      },
    },
    { keys: ["ArrowRight", "j"], what: "next group", run: () => page.go(`/groups/${id + 1}`) },
    {
      keys: ["ArrowLeft", "k"],
      what: "group before",
      run: () => {
        if (id < 2) return false;
        page.go(`/groups/${id - 1}`);
      },
    },
  ]);
  if (!group) return loading;
  const known = group.members.map((/** @type {any} */ one) => `${one.rollout_id}:${one.attempt}:${one.all_files}`);
  return html`
    <header class="page-head">
      <${Head} group=${group} />
      <div class="tools">${OPEN.includes(group.state) ? cancelButton(group.group_id, again) : null}</div>
    </header>
    ${group.pruned ? html`<p class="note">${PRUNED}</p>` : null}
    <section class="panel summary"><${Figures} group=${group} /></section>
    <section class="panel">
      <div class="panel-head"><h2>Rollouts side by side</h2>${rewardLegend}</div>
      <${Table}
        columns=${columnsOf(scaleOf(group.members), group.pruned)}
        rows=${group.members}
        rowKey=${(/** @type {any} */ row) => row.rollout_id}
        href=${(/** @type {any} */ row) => href(`/rollouts/${row.rollout_id}`)}
        caption="Members"
        empty="It has no rollouts yet." />
    </section>
    <${Answers} group=${group} signal=${page.signal} />
    <div>${group.pruned ? null : html`<${Differences} key=${known.join()} group=${group} page=${page} />`}</div>
  `;
}
