// The run: its status, what it learned, how it trains, where its time went; compared with other runs of the same database.

import { ask, Refusal, stopped } from "../api.js";
import { Chart } from "../chart.js";
import { curvesOf, domainsOf, familiesOf, familyOf, stepAt, suiteName } from "../curves.js";
import { figure } from "../figure.js";
import {
  clock,
  compact,
  number,
  outOf,
  percent,
  plural,
  seconds,
  sentence,
  shareOf,
  timeNow,
  visible,
  words,
} from "../format.js";
import { useKeys, useLive, useTitle } from "../hooks.js";
import { Sync } from "../plot.js";
import { Table } from "../table.js";
import { tone } from "../tone.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */
/** @typedef {import("../plot.js").Axis} Axis */
/** @typedef {[number, number] | null} Range */
/** @typedef {keyof ReturnType<typeof curvesOf>["lines"]} Name */

const AGAIN_MS = 300; // until evaluations left uncounted by one answer are requested
const AWAY_MS = 3000; // until a compared run is requested again after a service was away
const MOST_RUNS = 12; // that can be compared
const STATES = /** @type {Record<string, string>} */ ({ active: "running", ending: "filtered", ended: "trained" });
/** @type {Axis} */
const NO_AXIS = { label: "", format: number };

/** @param {number | null} value */
const share = (value) => percent(value, value !== null && value < 0.1 && value > 0 ? 1 : 0);

/** @type {[Name, Record<string, any>][]} */
const CHARTS = [
  ["success", { title: "Success while training", format: share, from: 0 }],
  [
    "heldout",
    {
      title: "Held-out success",
      note: "evaluations pinned to a version; 95 % intervals",
      format: share,
      from: 0,
      empty: "no evaluation has been scored yet",
    },
  ],
  ["reward", { title: "Reward of trained groups", note: "performance + speed + process" }],
  ["staleness", { title: "Staleness", note: "policy versions between a token and its training", from: 0 }],
  ["busy", { title: "Rollouts at once", from: 0 }],
  ["kl", { title: "KL to the behavior policy", note: "estimates k1 and k3, nats per token", from: 0 }],
  [
    "clip",
    {
      title: "Clip fraction",
      note: "tokens whose ratio was bounded",
      format: (/** @type {number | null} */ y) => percent(y, y !== null && Math.abs(y) < 0.1 ? 2 : 0),
      from: 0,
    },
  ],
  ["entropy", { title: "Entropy", note: "nats per action token", from: 0 }],
  ["merge", { title: "Merge ratio", note: "tokens of samples ÷ tokens forwarded; 1: nothing is shared", from: 1 }],
  [
    "tokens",
    {
      title: "Tokens per second",
      note: "of samples in a train step; of actions over the whole run",
      format: compact,
      log: true,
    },
  ],
  ["loss", { title: "Loss and gradient norm" }],
  [
    "phases",
    {
      title: "Seconds of a train step",
      note: "by phase; the last of a batch reads, saves and commits for all of it",
      format: seconds,
      from: 0,
    },
  ],
];

/**
 * The interval of a share, shown below it.
 * @param {{ low: number, high: number }} of
 */
const interval = ({ low, high }) => `95 %: ${share(low)} to ${share(high)}`;

/** @param {number} value @param {number} n */
const ofN = (value, n) => [share(value), html`<small> of ${number(n)}</small>`];

/**
 * Counts by reason: 2 verifier failure, 1 poison.
 * @param {Iterable<[string, number]>} counted
 */
const listed = (counted) => [...counted].map(([reason, n]) => `${number(n)} ${words(visible(reason))}`).join(", ");

/**
 * Rollouts of an evaluation without a verdict, by reason.
 * @param {{ left_out: { reason: string, rollouts: number }[] }} evaluation
 */
function reasonsOf({ left_out: leftOut }) {
  /** @type {Map<string, number>} */
  const counted = new Map();
  for (const { reason, rollouts } of leftOut) counted.set(reason, (counted.get(reason) ?? 0) + rollouts);
  return listed(counted);
}

/**
 * Rollouts and groups of an evaluation that its share leaves out.
 * @param {any} evaluation
 */
const missing = ({ unscored, open, groups, judged, rollouts, left_out: leftOut }) =>
  [
    judged < rollouts ? `; ${outOf(judged, rollouts)} rollouts judged` : "",
    leftOut.length ? `; no verdict: ${reasonsOf({ left_out: leftOut })}` : "",
    unscored ? `; ${outOf(unscored, groups)} groups gave no result` : "",
    open ? `; ${outOf(open, groups)} groups are open` : "",
  ].join("");

/** @param {{ left_out: Record<string, number> }} now Rollouts among the newest that have no verdict. */
function unjudged({ left_out: leftOut }) {
  const reasons = listed(Object.entries(leftOut));
  return reasons ? `; no verdict: ${reasons}` : "";
}

/** @param {any} evaluation */
const withAll = (evaluation) => ({
  ...evaluation,
  all: evaluation.points.find((/** @type {any} */ point) => point.domain === "all"),
});

/** @param {any} row */
const byDomain = (row) =>
  row.points
    .filter((/** @type {any} */ point) => point.domain !== "all")
    .map(
      (/** @type {any} */ { domain, success, n, low, high }) =>
        `${visible(domain)} ${shareOf({ share: success, n, low, high })}`,
    )
    .join(" · ");

/**
 * Every evaluation with the number of rollouts behind its share, the interval, and the groups left out.
 * @type {import("../table.js").Column[]}
 */
const EVALUATIONS = [
  {
    name: "suite",
    value: (row) => row.suite,
    cell: (row) => html`<span class="verbatim">${visible(suiteName(row.suite))}</span>`,
  },
  {
    name: "version",
    value: (row) => row.version,
    cell: (row) => [
      number(row.version),
      row.superseded_by === null ? null : html`<div class="small soft">undone by a rewind</div>`,
    ],
    numeric: true,
  },
  {
    name: "success",
    value: (row) => row.all?.success ?? null,
    cell: (row) => (row.all ? shareOf({ share: row.all.success, n: row.all.n }) : "–"),
    numeric: true,
  },
  {
    name: "interval",
    title: "95 % interval",
    value: (row) => row.all?.low ?? null,
    cell: (row) => (row.all ? `${share(row.all.low)} to ${share(row.all.high)}` : "–"),
    numeric: true,
  },
  {
    name: "scored",
    title: "groups scored",
    value: (row) => row.scored,
    cell: (row) => outOf(row.scored, row.groups),
    numeric: true,
  },
  {
    name: "unscored",
    title: "no result",
    value: (row) => row.unscored,
    cell: (row) => html`<span class=${row.unscored ? "behind" : undefined}>${number(row.unscored)}</span>`,
    numeric: true,
  },
  { name: "open", value: (row) => row.open, cell: (row) => number(row.open), numeric: true },
  {
    name: "judged",
    title: "rollouts judged",
    value: (row) => row.judged,
    cell: (row) => [
      outOf(row.judged, row.rollouts),
      row.left_out.length ? html`<div class="small behind">no verdict: ${reasonsOf(row)}</div>` : null,
    ],
    numeric: true,
  },
  { name: "domains", wide: true, cell: (row) => html`<span class="small soft">${byDomain(row)}</span>` },
];

/**
 * The numbers of the run.
 * @param {{ heads: any, own: any }} props
 */
function Figures({ heads, own }) {
  const success = own?.spending.success.find((/** @type {any} */ one) => one.domain === "all");
  const now = own?.spending.now;
  const main = familiesOf(own?.evaluations ?? [])[0];
  const evaluated = (own?.evaluations ?? [])
    .filter((/** @type {any} */ one) => familyOf(one) === main && one.superseded_by === null)
    .map(withAll)
    .filter((/** @type {any} */ one) => one.all)
    .sort((/** @type {any} */ a, /** @type {any} */ b) => a.version - b.version);
  const last = evaluated.at(-1);
  const same = evaluated.find((/** @type {any} */ one) => one.version < last.version);
  /** @param {string} key */
  const value = (key) =>
    own?.curves.lines
      .find((/** @type {any} */ line) => line.key === key && !line.part)
      ?.mean.findLast((/** @type {number | null} */ each) => each !== null) ?? null;
  const began =
    success && success.mean.length > 1 ? `; at the start ${shareOf({ share: success.mean[0], n: success.n[0] })}` : "";
  const before = same ? `; at ${same.version} ${shareOf({ share: same.all.success, n: same.all.n })}` : "";
  return html`
    <dl class="figures">
      ${figure(
        "policy version",
        heads.version === null ? "–" : number(heads.version),
        plural(heads.batches, "batch", "batches"),
      )}
      ${figure(
        "train steps",
        number(heads.train_steps),
        heads.dispatched
          ? `${outOf(heads.trained_groups, heads.dispatched)} groups trained`
          : "no group is dispatched yet",
      )}
      ${figure(
        "success now",
        now ? ofN(now.mean, now.n) : "–",
        now ? `newest judged rollouts; ${interval(now)}${unjudged(now)}${began}` : "while training",
      )}
      ${figure(
        "held out",
        last ? ofN(last.all.success, last.all.n) : "–",
        last ? `version ${last.version}; ${interval(last.all)}${before}${missing(last)}` : "no evaluation yet",
      )}
      ${figure(
        "staleness",
        number(value("staleness"), 2),
        heads.staleness_bound === null ? "without bound" : `bound ${heads.staleness_bound} batches`,
      )}
      ${figure("merge ratio", number(value("merge_ratio"), 3), "in the last train step")}
      ${figure("tokens/s", compact(value("trained_tokens_per_s")), "in a train step")}
      ${figure(
        heads.ended ? "took" : "running for",
        seconds(Math.max(0, (heads.ended ?? timeNow()) - heads.created)),
        `since ${clock(heads.created)}`,
      )}
    </dl>
  `;
}

/**
 * Parts of a time as segments of a bar.
 * @param {{ heading: string, parts: { stage: string, mean_s: number }[], note: string | null }} props
 */
function Parts({ heading, parts, note }) {
  const sum = parts.reduce((all, one) => all + one.mean_s, 0);
  const label = parts.map((one) => `${one.stage} ${seconds(one.mean_s)}`).join(", ");
  return html`
    <div class="spent">
      <h3>${heading}</h3>
      <div class="spent-bar" role="img" aria-label=${label}>
        ${parts.map((one, i) => html`<span class=${tone(i + 1)} style=${{ "--part": sum ? one.mean_s / sum : 0 }} />`)}
      </div>
      <div class="legend">
        ${parts.map(
          (one, i) =>
            html`<span class=${`legend-item ${tone(i + 1)}`}>${one.stage}<b>${seconds(one.mean_s)}</b></span>`,
        )}
      </div>
      ${note ? html`<p class="small faint">${note}</p>` : null}
    </div>
  `;
}

/** @param {number[]} values */
const meanOf = (values) => values.reduce((sum, each) => sum + each, 0) / (values.length || 1);

/** @param {(number | null)[] | undefined} values @returns {number[]} */
const knownOf = (values) => /** @type {number[]} */ ((values ?? []).filter((each) => each !== null));

/** @param {{ own: any }} props */
function Spent({ own }) {
  const { costs, rollouts, sampled, failures, stride } = own.spending;
  const phases = own.curves.lines
    .filter((/** @type {any} */ line) => line.key === "seconds" && line.part)
    .map((/** @type {any} */ line) => ({ stage: line.part, mean_s: meanOf(knownOf(line.mean)) }));
  const cpu = knownOf(own.curves.lines.find((/** @type {any} */ line) => line.key === "cpu_s" && !line.part)?.mean);
  const estimated = stride > 1 ? `, estimated from a sample of ${number(sampled)}` : "";
  const together = seconds(costs.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + one.total_s, 0));
  const failed = Object.entries(failures).map(([name, n]) => `${number(/** @type {number} */ (n))} ${words(name)}`);
  const note = `${plural(rollouts, "rollout")}${estimated}; together ${together} of runners' time. ${failed.join(", ")}.`;
  return html`
    ${
      costs.length
        ? html`<${Parts} heading="One rollout, on average" parts=${costs} note=${note} />`
        : html`<p class="empty">No rollout is over yet.</p>`
    }
    ${
      phases.length
        ? html`
          <${Parts}
            heading="One train step, on average"
            parts=${phases}
            note=${cpu.length ? `${seconds(meanOf(cpu))} of CPU time each.` : null} />
        `
        : null
    }
  `;
}

/**
 * The series of other runs, by name, and the compared names: kept in the address. They are read again with the page's `own`.
 * @param {Page} page
 * @param {any} own
 */
export function useOthers(page, own) {
  const [others, setOthers] = useState(() => (page.query.get("compare") ?? "").split(",").filter(Boolean));
  const [series, setSeries] = useState(/** @type {Record<string, any>} */ ({}));
  const busy = useRef(/** @type {Set<string>} */ (new Set()));

  /** @param {string} name */
  async function load(name) {
    if (busy.current.has(name)) return;
    busy.current.add(name);
    let later = 0;
    try {
      const found = await ask("/api/series", { run: name }, page.signal);
      setSeries((known) => ({ ...known, [name]: found }));
      if (found.uncounted) later = AGAIN_MS;
    } catch (error) {
      if (stopped(error)) return;
      if (error instanceof Refusal && error.passing) later = AWAY_MS;
      else setOthers((names) => names.filter((each) => each !== name));
    }
    const free = () => busy.current.delete(name);
    if (!later) free();
    else
      setTimeout(() => {
        free();
        if (!page.signal.aborted) load(name);
      }, later);
  }

  useEffect(() => {
    for (const name of others) load(name);
  }, [others, own]);

  /** @param {string} name */
  const toggle = (name) => {
    const next = others.includes(name) ? others.filter((each) => each !== name) : [...others, name];
    page.filter({ compare: next.join(",") });
    setOthers(next);
  };
  return { others, series, toggle };
}

/**
 * Other runs that have trained.
 * @param {Page} page
 */
function useRest(page) {
  const [rest, setRest] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    ask("/api/me", {}, page.signal).then(
      (me) => {
        const trained = me.runs.filter((/** @type {any} */ run) => run.name !== me.run && run.batches > 0);
        setRest(trained.slice(0, MOST_RUNS).map((/** @type {any} */ run) => run.name));
      },
      () => {}, // the banner shows the reason
    );
  }, []);
  return rest;
}

/**
 * The train steps within the zoom, by run, if the whole run is sampled or binned. The whole run stays drawn until they are loaded.
 * @param {Page} page
 * @param {[string, any][]} runs
 * @param {string} home the page's own run
 * @param {boolean} byTime
 */
function useClose(page, runs, home, byTime) {
  const [range, setRange] = useState(/** @type {Range} */ (null));
  const [close, setClose] = useState(/** @type {Record<string, any>} */ ({}));
  const sync = useMemo(
    () =>
      new Sync((next) => {
        setRange(next);
        setClose({});
      }),
    [],
  );
  useEffect(() => {
    if (!range) return;
    const looking = new AbortController();
    const signal = AbortSignal.any([looking.signal, page.signal]);
    const several = runs.length > 1;
    /** @param {[string, any]} run */
    const look = async ([name, { curves }]) => {
      const { first, last, steps } = curves;
      if (!steps.length || last - first + 1 <= steps.length) return null;
      const ends = byTime ? range.map((x) => stepAt(curves, x + (several ? curves.created : 0))) : range;
      const most = Math.min(last, Math.ceil(ends[1]) + 1);
      const least = Math.min(most, Math.max(first, Math.floor(ends[0]) - 1)); // one more step, so that lines reach the edges
      if (most < first || (least === first && most === last)) return null;
      const own = name === home ? {} : { run: name };
      return [name, await ask("/api/curves", { ...own, first: least, last: most }, signal)];
    };
    Promise.all(runs.map(look)).then(
      (found) => {
        const there = found.filter((each) => each !== null);
        if (there.length && !signal.aborted) setClose(Object.fromEntries(there));
      },
      (error) => {
        if (!stopped(error)) throw error;
      },
    );
    return () => looking.abort();
  }, [range, runs, byTime]);
  return { sync, close };
}

/** @param {{ page: Page }} props */
export function Page({ page }) {
  useTitle(page, "Run");
  const [heads] = useLive(page, "/api/run", {}, { every: 2000 });
  const [own, again] = useLive(page, "/api/series", {}, { every: 10000 });
  const [axis, setAxis] = useState(page.query.get("x") === "time" ? "time" : "step");
  const [wanted, setDomain] = useState(page.query.get("domain") ?? "");
  const [width, setWidth] = useState(Number(page.query.get("smooth")) || 0);
  const { others, series, toggle } = useOthers(page, own);
  const rest = useRest(page);
  useEffect(() => {
    if (!own?.uncounted) return;
    const later = setTimeout(again, AGAIN_MS);
    return () => clearTimeout(later);
  }, [own]);

  const home = heads?.run ?? "";
  const byTime = axis === "time";
  /** The runs that are drawn, the page's own first. */
  const runs = useMemo(
    () =>
      /** @type {[string, any][]} */ ([[home, own], ...others.map((name) => [name, series[name]])]).filter(
        ([, each]) => each,
      ),
    [home, own, others, series],
  );
  const { sync, close } = useClose(page, runs, home, byTime);
  const names = useMemo(() => domainsOf(runs), [runs]);
  const domain = names.includes(wanted) ? wanted : "";
  const slots = heads?.slots ?? null;
  const drawn = useMemo(
    () =>
      own &&
      curvesOf(
        runs.map(([name, each]) => [name, { ...each, drawn: close[name] ?? each.curves }]),
        { byTime, domain, width, slots },
      ),
    [own, runs, close, byTime, domain, width, slots],
  );

  /** @type {Record<string, string> | undefined} */
  const notes = drawn?.notes;

  /** @param {string} next */
  const turn = (next) => {
    setAxis(next);
    sync.zoom(null);
    page.filter({ x: next === "time" ? "time" : "" });
  };
  useKeys("Run", [
    { keys: ["0"], what: "reset the zoom of all charts", run: () => sync.zoom(null) },
    { keys: ["x"], what: "by train step or by time", run: () => turn(byTime ? "step" : "time") },
  ]);

  const evaluations = own?.evaluations ?? [];
  const nothing =
    own && !(own.curves.steps.length || own.spending.success.length || evaluations.length || runs.length > 1);
  /** @param {Event} event */
  const chosen = (event) => /** @type {HTMLSelectElement} */ (event.target).value;
  return html`
    <header class="page-head">
      <div>
        ${
          heads
            ? html`<h1>${visible(heads.run)} <span class=${`state ${STATES[heads.state]}`}>${heads.state}</span></h1>`
            : html`<h1>Run</h1>`
        }
        <p class=${heads?.status.bad ? "lead bad" : "lead"}>${heads && visible(heads.status.why)}</p>
        ${
          heads?.status.no_signal
            ? html`<div><p class="note bad">${visible(sentence(heads.status.no_signal))}</p></div>`
            : null
        }
        ${
          heads?.status.without_verdict
            ? html`<div><p class="note">${visible(sentence(heads.status.without_verdict))}</p></div>`
            : null
        }
      </div>
      <div class="tools">
        <select aria-label="Horizontal axis" value=${axis} onChange=${(/** @type {Event} */ event) => turn(chosen(event))}>
          <option value="step">by train step</option>
          <option value="time">by time</option>
        </select>
        <select
          aria-label="Domain"
          value=${domain}
          onChange=${(/** @type {Event} */ event) => {
            setDomain(chosen(event));
            page.filter({ domain: chosen(event) });
          }}>
          <option value="">every domain</option>
          ${names.map((name) => html`<option value=${name}>${visible(name)}</option>`)}
        </select>
        <select
          aria-label="Smoothing"
          value=${String(width)}
          onChange=${(/** @type {Event} */ event) => {
            setWidth(Number(chosen(event)));
            page.filter({ smooth: Number(chosen(event)) || "" });
          }}>
          <option value="0">as it is</option>
          <option value="1">smoothed</option>
          <option value="4">smoother</option>
          <option value="12">smoothest</option>
        </select>
      </div>
    </header>
    <section class="panel">${heads && html`<${Figures} heads=${heads} own=${own} />`}</section>
    <div class="tools compare">
      ${rest.length ? html`<span class="small soft">Compare with</span>` : null}
      ${rest.map(
        (name) => html`
          <label class="check" key=${name}>
            <input type="checkbox" checked=${others.includes(name)} onChange=${() => toggle(name)} />
            ${visible(name)}
          </label>
        `,
      )}
    </div>
    <section class="panel" hidden=${!nothing}>
      <p class="empty">No rollout is over and no train step is committed yet: curves come with the first ones.</p>
    </section>
    <div class="grid charts" hidden=${nothing}>
      ${CHARTS.map(
        ([name, { note, ...looks }]) => html`
          <${Chart}
            key=${name}
            sync=${sync}
            note=${notes?.[name] ?? note}
            series=${drawn?.lines[name] ?? null}
            axis=${drawn?.axis ?? NO_AXIS}
            ...${looks} />
        `,
      )}
    </div>
    <section class="panel" hidden=${!evaluations.length}>
      <h2>Evaluations</h2>
      <div class="short">
        <${Table}
          columns=${EVALUATIONS}
          rows=${[...evaluations].reverse().map(withAll)}
          rowKey=${(/** @type {any} */ row) => `${row.suite} ${row.version}`}
          caption="Evaluations" />
      </div>
    </section>
    <section class="panel" hidden=${nothing}>
      <h2>Where the time goes</h2>
      <div>${own && html`<${Spent} own=${own} />`}</div>
    </section>
  `;
}
