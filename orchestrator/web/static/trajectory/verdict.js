// How a rollout was judged: verdicts with their tests and logs, its attempts, its changes of state, the files that it left.

import { href } from "../address.js";
import { url } from "../api.js";
import { bytes, clock, number, plural, seconds, visible, words } from "../format.js";
import { rolloutState } from "../states.js";
import { Table } from "../table.js";
import { html } from "../vendor/preact.js";
import { rewardBar, scaleOf } from "./reward.js";
import { Text, wholeOf } from "./texts.js";

/** @typedef {import("../table.js").Column} Column */
/** @typedef {(part: string) => import("./texts.js").Whole} Held what fetches a part of the rollout */

const MOST_FILES = 500; // of an answer: orchestrator/queries/files.py
const ORIGINS = /** @type {Record<string, string>} */ ({
  reference: "the task's reference time",
  siblings: "the median of its successful siblings",
  itself: "its own time, as no sibling succeeded",
});

/**
 * Where the reference time comes from, what each process signal paid, and why the group gives no training signal.
 * @param {any} reward
 */
function explained(reward) {
  const lines = [];
  if (reward.t_base !== null) {
    const origin = ORIGINS[reward.t_base_origin] ?? "origin not recorded";
    lines.push(`speed: ${seconds(reward.t_agent)} against ${seconds(reward.t_base)}, ${origin}`);
  }
  const paid = Object.entries(/** @type {Record<string, number>} */ (reward.process_by_signal ?? {}))
    .filter(([, value]) => value !== 0)
    .map(([name, value]) => `${words(name)} ${number(value)}`);
  const cap = reward.alpha < 1 ? `, each already times ${number(reward.alpha)} by the cap` : "";
  if (paid.length) lines.push(`process: ${paid.join(", ")}${cap}`);
  if (reward.silent !== null) {
    const spread = reward.sd_log_t === null ? "" : `; sd(log T) ${number(reward.sd_log_t)}`;
    const noise = reward.speed_noise === null ? "" : `, noise ${number(reward.speed_noise)}`;
    lines.push(`the group gives no training signal: ${reward.silent}${spread}${noise}`);
  }
  return lines;
}

/** @param {{ reward: any }} props */
export function Reward({ reward }) {
  const { total, performance, baseline, divisor } = reward;
  const speed = reward.beta * reward.speed;
  const process = reward.alpha * reward.process;
  const parts = { performance, speed_part: speed, process_part: process, total };
  const sum = `${number(total)} = performance ${number(performance)} + speed ${number(speed)}`;
  return html`
    <div class="reward-line">
      ${rewardBar(parts, scaleOf([parts]), 220, 16)}
      <span class="formula">
        ${sum} ${process < 0 ? "−" : "+"} process ${number(Math.abs(process))}
        ${
          baseline === null
            ? null
            : html`
              <span class="soft">
                ; the group's baseline is ${number(baseline)}
                ${divisor !== null && divisor !== 1 ? `, its divisor ${number(divisor)}` : null}
              </span>
            `
        }
      </span>
      ${explained(reward).map((line) => html`<span class="soft">${visible(line)}</span>`)}
    </div>
  `;
}

/**
 * The columns of attempts.
 * @param {any} rollout
 * @returns {Column[]}
 */
const attemptsOf = (rollout) => [
  {
    name: "attempt",
    value: (row) => row.attempt,
    cell: (row) =>
      row.attempt === rollout.shown
        ? html`<b>${row.attempt}</b>`
        : html`
          <a href=${href(`/rollouts/${rollout.rollout_id}`, { attempt: row.attempt, view: "verdict" })}>
            ${row.attempt}
          </a>
        `,
  },
  {
    name: "ended",
    value: (row) => row.failure_class,
    cell: (row) =>
      html`
        <span
          class=${`state ${row.failure_class === "completed" ? "ready" : row.failure_class ? "failed" : "running"}`}>
          ${words(row.failure_class ?? "running")}
        </span>
      `,
  },
  { name: "steps", value: (row) => row.steps, cell: (row) => number(row.steps), numeric: true },
  { name: "time", title: "agent", value: (row) => row.agent_s, cell: (row) => seconds(row.agent_s), numeric: true },
  { name: "queued", value: (row) => row.queued_s, cell: (row) => seconds(row.queued_s), numeric: true },
  { name: "began", value: (row) => row.started, cell: (row) => clock(row.started), numeric: true },
  { name: "runner", wide: true, value: (row) => row.runner, cell: (row) => visible(row.runner ?? "–") },
  { name: "why", wide: true, value: (row) => row.reason, cell: (row) => visible(row.reason ?? "") },
];

/** @type {Column[]} */
const HISTORY = [
  { name: "at", value: (row) => row.at, cell: (row) => clock(row.at) },
  {
    name: "state",
    value: (row) => row.to_state,
    cell: (row) => [
      row.from_state ? html`<span class="faint">${words(row.from_state)} → </span>` : null,
      rolloutState(row.to_state),
    ],
  },
  { name: "epoch", value: (row) => row.epoch, cell: (row) => row.epoch ?? "–", numeric: true },
  { name: "why", wide: true, value: (row) => row.reason, cell: (row) => visible(row.reason ?? "") },
];

/** @param {{ check: any, whole: import("./texts.js").Whole }} props */
const Check = ({ check, whole }) => html`
  <li class=${check.passed ? "passed" : "not-passed"}>
    <span class="check-name">
      <span class="unseen">${check.passed ? "passed: " : "failed: "}</span>
      ${visible(check.name)}
    </span>
    ${check.message ? html`<${Text} cut=${check.message} whole=${whole} />` : null}
  </li>
`;

/**
 * One verdict. `only`: whether it is the only one.
 * @param {{ verdict: any, only: boolean, held: Held }} props
 */
function Verdict({ verdict, only, held }) {
  const { revision, reward, exit_code: exit, verify_s: took, attempt, checks, log, components } = verdict;
  return html`
    <section class="panel">
      <div class="panel-head">
        <h2>${only ? "Verdict" : `Verdict, revision ${revision}`}</h2>
        <span class="soft">
          reward ${number(reward)}, exit ${exit ?? "–"}, took ${seconds(took)}, attempt ${attempt}
        </span>
      </div>
      ${
        components &&
        html`
          <p class="soft">
            Components:
            ${Object.entries(components)
              .map(([name, value]) => `${visible(name)} ${number(value)}`)
              .join(", ")}
          </p>
        `
      }
      ${
        checks.length
          ? html`
            <ul class="checks">
              ${checks.map(
                (/** @type {any} */ check, /** @type {number} */ i) =>
                  html`<${Check} check=${check} whole=${held(`verdict.${revision}.check.${i}`)} />`,
              )}
            </ul>
          `
          : html`<p class="empty">It reports no single tests.</p>`
      }
      ${
        log
          ? html`
            <h3>Log of the verifier</h3>
            <div class="log"><${Text} cut=${log} whole=${held(`verdict.${revision}.log`)} /></div>
          `
          : html`<p class="faint small">The verifier wrote no log.</p>`
      }
    </section>
  `;
}

/** @param {any} rollout */
function notJudged({ live }) {
  return live ? "Not verified yet." : "It was never verified.";
}

/** @param {{ resume: any }} props */
function Resume({ resume }) {
  const { attempt, epoch, steps, reason, replay, replayed } = resume;
  const went = `Attempt ${attempt} went on under lease ${epoch} with ${plural(steps, "recorded step")}`;
  const how = replay ? words(replay) : "under way";
  return html`<li>${went} (${visible(reason)}): ${how}${replayed !== null ? `, ${number(replayed)} replayed` : ""}.</li>`;
}

/** @param {{ rollout: any, signal: AbortSignal }} props */
export function VerdictView({ rollout, signal }) {
  const { verdicts, attempts, resumes, history, shown } = rollout;
  const own = attempts.find((/** @type {any} */ row) => row.attempt === shown);
  /** @type {Held} */
  const held = (part) => wholeOf(rollout.rollout_id, shown, 0, part, signal);
  return html`
    ${verdicts.map(
      (/** @type {any} */ verdict) => html`
        <${Verdict} key=${verdict.revision} verdict=${verdict} only=${verdicts.length === 1} held=${held} />
      `,
    )}
    ${
      verdicts.length
        ? null
        : html`<section class="panel"><h2>Verdict</h2><p class="empty">${notJudged(rollout)}</p></section>`
    }
    <section class="panel">
      <h2>Attempts</h2>
      <${Table}
        columns=${attemptsOf(rollout)}
        rows=${attempts}
        rowKey=${(/** @type {any} */ row) => row.attempt}
        caption="Attempts"
        empty="No runner has started it yet." />
      ${
        resumes.length
          ? html`
            <ul class="plain">${resumes.map((/** @type {any} */ one) => html`<${Resume} resume=${one} />`)}</ul>
          `
          : null
      }
      ${own?.answer ? html`<h3>Answer</h3><${Text} cut=${own.answer} whole=${held("answer")} />` : null}
      ${
        own?.log
          ? html`
            <h3>Log of the runner</h3>
            <div class="log"><${Text} cut=${own.log} whole=${held("log")} /></div>
          `
          : null
      }
    </section>
    <section class="panel">
      <h2>History</h2>
      <${Table}
        columns=${HISTORY}
        rows=${history}
        rowKey=${(/** @type {any} */ row) => `${row.at}${row.to_state}`}
        caption="Changes of state" />
    </section>
  `;
}

/** @param {{ file: any, address: string }} props */
function File({ file, address }) {
  const mode = `mode ${(file.mode & 0o7777).toString(8)}`;
  const what = () => {
    if (file.kind === "deleted") return "deleted by the agent";
    if (file.kind === "behind") return "did not reach the tests";
    if (file.kind === "directory") return `directory, ${mode}`;
    return html`${file.kind}, ${bytes(file.bytes)}, ${mode} · <a href=${address} download="">download</a>`;
  };
  const whole = async () => {
    const answer = await fetch(address, { credentials: "same-origin" });
    return new TextDecoder().decode(await answer.arrayBuffer());
  };
  return html`
    <section class="panel">
      <div class="panel-head">
        <h2 class="mono verbatim">${visible(file.path)}</h2>
        <span class="soft">${what()}</span>
      </div>
      ${file.text ? html`<div class="log"><${Text} cut=${file.text} whole=${whole} /></div>` : null}
    </section>
  `;
}

/** @param {{ rollout: any }} props */
export function FilesView({ rollout }) {
  const { rollout_id: id, shown: attempt, files } = rollout;
  if (!files.length)
    return html`
      <section class="panel">
        <h2>Files</h2>
        <p class="empty">This attempt left no files for its verifier.</p>
      </section>
    `;
  const shown = files.map((/** @type {any} */ file) => {
    const address = url(`/api/rollouts/${id}/file`, { attempt, path: file.path });
    return html`<${File} key=${file.path} file=${file} address=${address} />`;
  });
  return files.length < MOST_FILES
    ? shown
    : html`${shown}<p class="note">At most ${MOST_FILES} files are shown, the first by path.</p>`;
}
