// Where the time of an attempt went: a row per step, bars from the attempt's start.

import { number, seconds, visible } from "../format.js";
import { html } from "../vendor/preact.js";

/** @type {Record<string, string>} */
const NAMES = {
  start: "sandbox and program start",
  queue: "queue",
  generation: "generation",
  gap: "agent and tools",
  tool: "tool",
  finish: "agent ends",
  reported: "last steps arrive",
  verify_wait: "waits for a verifier",
  verify: "verification",
  waiting: "waits for a runner",
};
/** @typedef {{ kind: string, start: number, end: number, name: string, detail: string, step: number | null }} Bar */

// What is not between the first call and the last, and what the sentence calls it.
const OUTSIDE = [
  ["start", "of start"],
  ["finish", "until the agent had ended"],
  ["reported", "until its last steps had arrived"],
  ["verify_wait", "waiting for a verifier"],
  ["verify", "of verification"],
];
const ONCE = "Calls at the same time count once.";
const END_TO_END = "These steps tell how long they took, not when: they are laid end to end.";
const LEGEND = ["queue", "generation", "gap", "tool", "verify"];

/** @param {number} end */
function ticks(end) {
  const rough = end / 6;
  const unit = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough) ?? 1;
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

/**
 * Seconds in which at least one of the bars lies.
 * @param {Bar[]} bars
 */
function covered(bars) {
  let until = Number.NEGATIVE_INFINITY;
  let total = 0;
  for (const bar of [...bars].sort((a, b) => a.start - b.start)) {
    total += Math.max(0, bar.end - Math.max(bar.start, until));
    until = Math.max(until, bar.end);
  }
  return total;
}

/**
 * The waterfall of a rollout's shown attempt. `onPick(idx)`: a step's row was clicked.
 * @param {any} rollout
 * @param {(idx: number) => void} onPick
 */
export function waterfall(rollout, onPick) {
  /** @type {Bar[]} */
  const all = rollout.bars;
  const bars = all.filter(
    ({ kind, start, end }) => (kind === "waiting" ? start >= 0 : end >= 0) && (kind !== "start" || end - start > 0.001),
  );
  const waited = all.find((bar) => bar.kind === "waiting" && bar.start < 0);
  if (!bars.length) return html`<p class="empty">This attempt has no step yet: nothing was timed.</p>`;
  const end = Math.max(...bars.map((bar) => bar.end), 0.001);
  /** @param {Bar} bar */
  const span = (bar) => {
    const from = Math.max(0, bar.start);
    const lasted = `${seconds(bar.end - bar.start)}, from ${seconds(bar.start)}`;
    const title = `${visible(bar.name) || NAMES[bar.kind]}: ${lasted}${bar.detail ? `, ${visible(bar.detail)}` : ""}`;
    return html`
      <span
        class=${`bar ${bar.kind}`}
        style=${{ "--from": from / end, "--long": (bar.end - from) / end }}
        title=${title} />
    `;
  };
  const steps = new Map(rollout.steps.map((/** @type {any} */ step) => [step.idx, step]));
  /** @type {Map<number, Bar[]>} */
  const rows = new Map();
  /** @type {Record<string, number>} */
  const order = { start: -2, waiting: -1, finish: 1e9, reported: 1e9 + 1, verify_wait: 1e9 + 2, verify: 1e9 + 3 };
  for (const bar of bars) {
    const key = bar.step ?? order[bar.kind];
    rows.set(key, [...(rows.get(key) ?? []), bar]);
  }
  const drawn = [...rows]
    .sort(([a], [b]) => a - b)
    .map(([key, own]) => {
      const step = steps.get(key);
      const label = step
        ? html`
          <a
            href=${`#step-${key}`}
            onClick=${(/** @type {Event} */ event) => {
              event.preventDefault();
              onPick(key);
            }}>
            step ${key}
            <small> ${visible(step.tools.join(", ")) || visible(step.agent !== "main" ? step.agent : "")}</small>
          </a>
        `
        : NAMES[own[0].kind];
      const long = own.reduce(
        (sum, bar) => sum + (bar.kind === "first" || bar.kind === "tool" ? 0 : bar.end - bar.start),
        0,
      );
      return html`
        <div class="fall-row">
          <div class="fall-label">${label}</div>
          <div class="fall-track">${own.map(span)}</div>
          <div class="fall-long">${seconds(long)}</div>
        </div>
      `;
    });
  /** @param {string[]} kinds */
  const lasted = (...kinds) => covered(bars.filter((bar) => kinds.includes(bar.kind)));
  const queue = lasted("queue", "generation", "tool") - lasted("generation", "tool");
  const timed = rollout.steps.every((/** @type {any} */ step) => step.ended !== null);
  return html`
    <div class="fall">
      <p class="soft">
        ${waited ? `It waited ${seconds(waited.end - waited.start)} for a runner, then took ` : "It took "}${seconds(end)}:${" "}
        ${seconds(lasted("generation"))} of generation, ${seconds(queue)} waiting for it,${" "}
        ${seconds(lasted("gap"))} with the agent and its tools between its calls
        ${OUTSIDE.filter(([kind]) => lasted(kind)).map(([kind, what]) => `, ${seconds(lasted(kind))} ${what}`)}.
      </p>
      <div class="chips">
        ${LEGEND.map((kind) => html`<span class=${`chip fall-${kind}`}>${NAMES[kind]}</span>`)}
      </div>
      <div class="fall-rows" role="list" aria-label="Timings">
        <div class="fall-row axis" aria-hidden="true">
          <div class="fall-label" />
          <div class="fall-track">
            ${ticks(end).map(
              (at) => html`<span class="tick" style=${{ "--from": at / end }}>${at === 0 ? "0" : seconds(at)}</span>`,
            )}
          </div>
          <div class="fall-long" />
        </div>
        ${drawn}
      </div>
      <p class="small faint">
        ${timed ? ONCE : END_TO_END} ${number(rollout.steps.length)} steps.
      </p>
    </div>
  `;
}
