// Contents of the charts of the run page: curves of one run or of several, by train step or by time, of one domain or of each.

import { clock, number, plural, seconds, words } from "./format.js";

/** @typedef {import("./plot.js").Line} Line */
/** @typedef {import("./plot.js").Axis} Axis */
/** @typedef {[string, any]} Run its name, and its answer of /api/series */

const SUCCESS_NOTE = "judged rollouts, zero-signal groups too; band: 95 %";
const BUSY_NOTE = "training rollouts under way, against slots";
const MOST_PHASES = 7;

/**
 * Seconds since 1970 → train steps of these curves, interpolated between commits; 0 is the start of the run, after the last at most one more.
 * @param {{ steps: number[], at: number[], created: number }} curves
 * @param {number} time
 */
export function stepAt({ steps, at, created }, time) {
  if (!steps.length) return 0;
  const [last, ended] = [steps[steps.length - 1], at[at.length - 1]];
  const i = at.findIndex((each) => each >= time);
  if (i === 0) return steps[0] * Math.min(1, Math.max(0, (time - created) / Math.max(1e-9, at[0] - created)));
  if (i < 0) return last + Math.min(1, (time - ended) / Math.max(1e-9, (ended - created) / last));
  const part = at[i] > at[i - 1] ? (time - at[i - 1]) / (at[i] - at[i - 1]) : 1;
  return steps[i - 1] + part * (steps[i] - steps[i - 1]);
}

/**
 * Means over `width` neighbours on either side, ignoring nulls.
 * @param {(number | null)[]} values
 * @param {number} width
 */
function smooth(values, width) {
  if (!width) return values;
  return values.map((value, i) => {
    if (value === null) return null;
    const around = values.slice(Math.max(0, i - width), i + width + 1).filter((each) => each !== null);
    return around.reduce((sum, each) => sum + each, 0) / around.length;
  });
}

/**
 * The note of a chart that shows a sample of the rollouts.
 * @param {string} note
 * @param {{ stride: number, rollouts: number, sampled: number }} spending
 */
const fromSample = (note, { stride, rollouts, sampled }) =>
  stride > 1 ? `${note}; a sample of ${number(sampled)} of ${plural(rollouts, "rollout")}` : note;

/**
 * The note of the success chart: how many rollouts have no verdict.
 * @param {any} spending
 */
function successNote(spending) {
  const without = /** @type {number[]} */ (Object.values(spending.left_out)).reduce((sum, n) => sum + n, 0);
  const note = without ? `${SUCCESS_NOTE}; ${plural(without, "rollout")} without a verdict left out` : SUCCESS_NOTE;
  return fromSample(note, spending);
}

/** @param {{ suite: string }} evaluation Suites that differ only in their time ("before", "after") are one line. */
export const familyOf = (evaluation) => evaluation.suite.replace(/(^|-)(before|after)$/, "");

/** @param {{ suite: string }[]} evaluations */
export const familiesOf = (evaluations) =>
  [...new Set(evaluations.map(familyOf))].sort((one, other) => one.length - other.length);

/** @param {string} suite */
export const suiteName = (suite) => words(suite || "evaluation");

/**
 * The domains of runs.
 * @param {Run[]} runs
 * @returns {string[]}
 */
export function domainsOf(runs) {
  const all = runs.flatMap(([, series]) => [
    ...series.curves.lines.filter((/** @type {any} */ line) => line.key === "reward" && line.part).map(partOf),
    ...series.spending.success.map(domainOf),
    ...series.evaluations.flatMap((/** @type {any} */ one) => one.points.map(domainOf)),
  ]);
  return [...new Set(all.filter((domain) => domain !== "all"))].sort();
}

/** @param {{ part: string }} line */
const partOf = (line) => line.part;
/** @param {{ domain: string }} point */
const domainOf = (point) => point.domain;

/**
 * The axis of all charts. By time, several runs all start at 0.
 * @param {Run[]} runs
 * @param {boolean} byTime
 * @returns {Axis}
 */
function axisOf(runs, byTime) {
  const several = runs.length > 1;
  const ends = runs.flatMap(([, { curves }]) => {
    const all = byTime
      ? curves.at.map((/** @type {number} */ time) => time - (several ? curves.created : 0))
      : curves.steps;
    return all.length ? [all[0], all[all.length - 1]] : [];
  });
  const whole = ends.length ? /** @type {[number, number]} */ ([Math.min(...ends), Math.max(...ends)]) : null;
  if (!byTime) return { whole, label: "train step", format: (x) => number(Math.round(x)) };
  if (several) return { whole, label: "time since its start", format: (x) => seconds(Math.max(0, x)) };
  return { whole, label: "time", format: clock };
}

/**
 * The lines of every chart, by name, with their axis and notes.
 * @param {Run[]} runs the page's own first; `drawn`: the curves to draw, if these are not all of them
 * @param {{ byTime: boolean, domain: string, width: number, slots: number | null }} wanted `domain` empty: each; `width`: of smoothing; `slots`: of runners
 */
export function curvesOf(runs, { byTime, domain: chosen, width, slots }) {
  const several = runs.length > 1;
  const names = domainsOf(runs);
  /** @param {any} series */
  const origin = (series) => (several ? series.curves.created : 0);
  /** @param {any} series @param {number[]} times */
  const timed = (series, times) => times.map((time) => (byTime ? time - origin(series) : stepAt(series.curves, time)));
  /** @param {any} series @returns {number[]} */
  const stepped = (series) =>
    byTime ? series.drawn.at.map((/** @type {number} */ time) => time - origin(series)) : series.drawn.steps;
  /** @param {any} series @param {string} key @param {string} [part] */
  const line = (series, key, part = "") =>
    series.drawn.lines.find((/** @type {any} */ each) => each.key === key && each.part === part);
  /** @param {string} name @param {string} text */
  const prefix = (name, text) => (several ? (text ? `${name}: ${text}` : name) : text);

  /**
   * Lines of plain keys: [key, name, dashed?]; with several runs each has its own colour.
   * @param {[string, string, boolean?][]} wanted
   * @returns {Line[]}
   */
  const plain = (...wanted) =>
    runs.flatMap(([name, series], r) =>
      wanted.flatMap(([key, text, dashed], i) => {
        const found = line(series, key);
        if (!found) return [];
        return {
          name: prefix(name, wanted.length > 1 || !several ? text : ""),
          color: several ? r + 1 : i + 1,
          dashed: several ? i > 0 : dashed,
          x: stepped(series),
          y: smooth(found.mean, width),
          ...(found.low.length && i === 0 ? { low: found.low, high: found.high } : {}),
        };
      }),
    );

  const parts = several || chosen ? [chosen] : ["", ...names];
  /**
   * One line per domain; with several runs one per run, of the chosen domain.
   * @param {(series: any, domain: string) => object | null | undefined} make
   */
  const perDomain = (make) =>
    runs.flatMap(([name, series], r) =>
      parts.flatMap((domain) => {
        const made = make(series, domain);
        if (!made) return [];
        const color = several ? r + 1 : domain ? names.indexOf(domain) + 2 : 1;
        const thin = parts.length > 1 && domain !== "";
        return /** @type {Line} */ ({ name: prefix(name, several ? "" : domain || "all"), color, thin, ...made });
      }),
    );

  const success = perDomain((series, domain) => {
    const found = series.spending.success.find((/** @type {any} */ one) => one.domain === (domain || "all"));
    if (!found) return null;
    return {
      x: timed(series, found.at),
      y: smooth(found.mean, width),
      ...(width ? {} : { n: found.n }),
      ...(parts.length === 1 || !domain ? { low: found.low, high: found.high } : {}),
    };
  });
  const reward = perDomain((series, domain) => {
    const found = line(series, "reward", domain);
    return found && { x: stepped(series), y: smooth(found.mean, width) };
  });

  const families = familiesOf(runs.flatMap(([, series]) => series.evaluations));
  /** @type {{ family: string, domain: string, f: number, thin: boolean }[]} */
  const evaluated = families.flatMap((family, f) => [
    { family, domain: chosen || "all", f, thin: false },
    ...(f === 0 && !several && !chosen ? names.map((domain) => ({ family, domain, f: 0, thin: true })) : []),
  ]);
  const heldout = runs.flatMap(([name, series], r) =>
    evaluated.flatMap(({ family, domain, f, thin }) => {
      /** @type {{ x: number, success: number, low: number, high: number, n: number, wanted: number }[]} */
      const points = series.evaluations
        .filter((/** @type {any} */ one) => familyOf(one) === family && one.superseded_by === null)
        .flatMap((/** @type {any} */ one) => {
          const found = one.points.find((/** @type {any} */ point) => point.domain === domain);
          const x = byTime ? Date.parse(one.last ?? one.first) / 1000 - origin(series) : (one.train_step ?? 0);
          return found ? [{ ...found, x }] : [];
        })
        .sort((/** @type {any} */ a, /** @type {any} */ b) => a.x - b.x);
      if (!points.length) return [];
      return {
        name: prefix(name, thin ? domain : suiteName(family)),
        color: several ? r + 1 : thin ? names.indexOf(domain) + 2 : f ? 8 - f + 1 : 1,
        dashed: several && f > 0,
        thin,
        marks: true,
        x: points.map((point) => point.x),
        y: points.map((point) => point.success),
        low: points.map((point) => point.low),
        high: points.map((point) => point.high),
        n: points.map((point) => point.n),
        wanted: points.map((point) => point.wanted),
      };
    }),
  );

  const busy = runs.flatMap(([name, series], r) => {
    const { busy_at: at, busy: running } = series.spending;
    /** @type {Line[]} */
    const lines = [
      {
        name: prefix(name, several ? "" : "running"),
        color: several ? r + 1 : 1,
        x: timed(series, at),
        y: smooth(running, width),
      },
    ];
    if (!several && slots !== null && at.length)
      lines.push({
        name: "slots",
        color: 8,
        dashed: true,
        x: timed(series, [at[0], at[at.length - 1]]),
        y: [slots, slots],
      });
    return lines;
  });

  const [, first] = runs[0];
  /** @type {Line[]} */
  const phases = several
    ? []
    : first.drawn.lines
        .filter((/** @type {any} */ each) => each.key === "seconds" && each.part)
        .slice(0, MOST_PHASES)
        .map((/** @type {any} */ each, /** @type {number} */ i) => ({
          name: each.part,
          color: i + 2,
          thin: true,
          x: stepped(first),
          y: smooth(each.mean, width),
        }));

  return {
    axis: axisOf(runs, byTime),
    notes: { success: successNote(first.spending), busy: fromSample(BUSY_NOTE, first.spending) },
    lines: {
      success,
      heldout,
      reward,
      staleness: plain(["staleness", "mean"], ["staleness_max", "oldest token", true]),
      busy,
      kl: plain(["kl_k3", "k3"], ["kl_k1", "k1", true]),
      clip: plain(["clip_fraction", "clipped"], ["cut_fraction", "masked or truncated", true]),
      entropy: plain(["entropy", "entropy"]),
      merge: plain(["merge_ratio", "merge ratio"]),
      tokens: plain(["trained_tokens_per_s", "in a train step"], ["tokens_per_s", "over the run", true]),
      loss: plain(["loss", "loss"], ["gradient_norm", "gradient norm", true]),
      phases: [...plain(["seconds", "whole"]), ...phases],
    },
  };
}
