// The steps as a conversation. A step's texts are fetched when it comes near the screen; what is far away is not laid out.

import { href } from "../address.js";
import { ask, messageOf } from "../api.js";
import { markOf, number, seconds, visible, words } from "../format.js";
import { useRedraw } from "../hooks.js";
import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { advantage } from "./reward.js";
import { Text, ToolCall, wholeOf } from "./texts.js";

/** How many steps the first question is for. */
export const FIRST = 12;
const PAGE = 20;
const ROLES = /** @type {Record<string, string>} */ ({
  system: "system",
  user: "user",
  assistant: "assistant",
  tool: "observation",
  developer: "developer",
});
const MOVES = ["wheel", "touchmove", "pointerdown", "keydown"];

/** @typedef {(part: string) => import("./texts.js").Whole} PathOf */
/** @typedef {{ attempt: number, step: number, page: Promise<any> }} Early */

/**
 * Versions as people say them: v3, or v3 to v5.
 * @param {{ spans: { version: number }[] }} step
 */
export const versions = (step) => {
  const made = [...new Set(step.spans.map((span) => span.version))];
  if (!made.length) return "no version";
  return made.length === 1 ? `v${made[0]}` : `v${Math.min(...made)} to v${Math.max(...made)}`;
};

/** The texts of a rollout's steps: those that were fetched, and those that are wanted. */
export class Texts {
  /** @type {Map<number, any>} */
  spoken = new Map();
  /** @type {Map<number, string>} */
  failed = new Map();
  /** Steps that came near the screen: most of a long trajectory are never looked at. @type {Set<number>} */
  started = new Set();
  /** The step that was gone to: it stays where it is while what is above it comes, until the reader scrolls. @type {number | null} */
  pinned = null;
  redraw = () => {};
  /** @type {Set<number>} */
  #waiting = new Set();
  #busy = false;
  #early;

  /**
   * @param {any} rollout
   * @param {Early | null} early the steps from `step` on, requested before it was known which attempt counts
   * @param {AbortSignal} signal
   */
  constructor(rollout, early, signal) {
    this.rollout = rollout;
    this.signal = signal;
    this.#early = early;
  }

  /** @param {any} rollout as it is now */
  update(rollout) {
    this.rollout = rollout;
    const early = this.#early?.step;
    if (early === undefined || !rollout.steps.some((/** @type {any} */ step) => step.idx === early)) return;
    this.#waiting.add(early);
    this.load();
  }

  /** @param {number[]} steps come near the screen */
  near(steps) {
    const wanted = steps.filter((idx) => !this.spoken.has(idx));
    if (!wanted.length) return;
    for (const idx of wanted) {
      this.started.add(idx);
      this.#waiting.add(idx);
    }
    this.redraw();
    this.load();
  }

  /** @param {number} idx */
  again(idx) {
    this.failed.delete(idx);
    this.near([idx]);
  }

  async load() {
    if (this.#busy) return;
    const wanted = [...this.#waiting].filter((idx) => !this.spoken.has(idx)).sort((a, b) => a - b);
    this.#waiting.clear();
    if (!wanted.length) return;
    this.#busy = true;
    try {
      const first = this.pinned !== null && wanted.includes(this.pinned) ? this.pinned : wanted[0];
      const { rollout_id: id, shown: attempt, steps } = this.rollout;
      const n = steps.length > FIRST ? PAGE : FIRST;
      const page =
        (await this.#known(first)) ??
        (await ask(`/api/rollouts/${id}/steps`, { attempt, step: first, n }, this.signal));
      for (const spoken of page.steps) {
        this.started.add(spoken.idx);
        this.spoken.set(spoken.idx, spoken);
      }
      for (const idx of wanted) if (!this.spoken.has(idx)) this.#waiting.add(idx);
    } catch (error) {
      if (this.signal.aborted) return;
      for (const idx of wanted) this.failed.set(idx, messageOf(error));
    } finally {
      this.#busy = false;
    }
    if (this.signal.aborted) return;
    this.redraw();
    if (this.#waiting.size) this.load();
  }

  /** @param {number} first What `early` has of these steps, once. */
  async #known(first) {
    const known = this.#early;
    this.#early = null;
    return known && known.attempt === this.rollout.shown && known.step === first ? known.page : null;
  }
}

/** @param {{ role: string, label: string, children?: any }} props */
const Turn = ({ role, label, children }) => html`
  <div class=${`turn ${role}`}>
    <div class="turn-role">${label}</div>
    <div class="turn-body">${children}</div>
  </div>
`;

/** @param {{ one: any, path: PathOf }} props */
function Message({ one, path }) {
  const at = `appended.${one.at}`;
  const content = () => {
    if (one.content.length)
      return html`<${Text} cut=${one.content} whole=${path(`${at}.content`)} mono=${one.role === "tool"} />`;
    return one.calls.length ? null : html`<p class="faint">nothing</p>`;
  };
  return html`
    <${Turn} role=${ROLES[one.role] ? one.role : "other"} label=${ROLES[one.role] ?? visible(one.role)}>
      ${
        one.reasoning
          ? html`
            <div class="reasoning">
              <${Text} cut=${one.reasoning} whole=${path(`${at}.reasoning`)} mono=${false} />
            </div>
          `
          : null
      }
      ${content()}
      ${one.calls.map(
        (/** @type {any} */ call, /** @type {number} */ n) =>
          html`<${ToolCall} call=${call} whole=${path(`${at}.calls.${n}`)} />`,
      )}
    <//>
  `;
}

/** @param {{ spoken: any, step: any, path: PathOf }} props */
function Answer({ spoken, step, path }) {
  const bare = !spoken.reasoning && !spoken.content.length && !spoken.calls.length;
  return html`
    <${Turn} role="policy" label="policy">
      ${
        spoken.reasoning
          ? html`
            <div class="reasoning">
              <div class="label">reasoning</div>
              <${Text} cut=${spoken.reasoning} whole=${path("reasoning")} mono=${false} />
            </div>
          `
          : null
      }
      ${spoken.content.length ? html`<${Text} cut=${spoken.content} whole=${path("content")} mono=${false} />` : null}
      ${spoken.calls.map(
        (/** @type {any} */ call, /** @type {number} */ n) =>
          html`<${ToolCall} call=${call} whole=${path(`calls.${n}`)} />`,
      )}
      ${
        bare
          ? html`<p class="faint">${step.action ? "tokens without text: see the token view" : "nothing was sampled"}</p>`
          : null
      }
    <//>
  `;
}

/** @param {{ run: any }} props */
const ToolRun = ({ run }) => html`
  <b>${visible(run.name)}</b>
  ${run.start !== null && run.end !== null ? ` ran ${seconds(run.end - run.start)}` : " ran"}
  ${run.exit_code !== null ? [", exit ", html`<span class=${run.exit_code ? "down" : undefined}>${run.exit_code}</span>`] : null}
  ${run.bytes !== null ? `, ${number(run.bytes)} bytes out` : null}
`;

/** @param {{ runs: any[] }} props */
const Executions = ({ runs }) =>
  runs.length
    ? html`<p class="runs small soft">${runs.map((run, i) => [i ? " · " : null, html`<${ToolRun} run=${run} />`])}</p>`
    : null;

/** @param {{ step: any, tools: any, onPick: (idx: number) => void }} props */
function Head({ step, tools, onPick }) {
  /** @param {MouseEvent} event */
  const picked = (event) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    onPick(step.idx);
  };
  const facts = [
    step.kind === "root"
      ? `${number(step.full_len - step.action)} tokens of prompt`
      : step.kind === "rewrites"
        ? `keeps ${number(step.keep_len)} tokens of step ${step.parent}, ${number(step.added)} new`
        : `${number(step.added)} tokens added`,
    `${number(step.action)} sampled`,
    versions(step),
    `${seconds(step.t_gen)} generation`,
  ];
  const rewritten = step.branch_reason || step.kind === "rewrites";
  return html`
    <header class="step-head">
      <h3>
        <a href=${href(location.pathname + location.search, { step: step.idx })} onClick=${picked}>Step ${step.idx}</a>
        ${step.agent !== "main" ? html`<span class="agent">${visible(step.agent)}</span>` : null}
      </h3>
      ${rewritten ? html`<span class="state filtered">${words(visible(step.branch_reason ?? "rewritten"))}</span>` : null}
      ${step.parse !== "ok" ? html`<span class="state failed">${words(visible(step.parse))}</span>` : null}
      ${step.finish !== "stop" ? html`<span class="state failed">finish: ${visible(step.finish)}</span>` : null}
      ${step.marks.map(
        (/** @type {string} */ reason) => html`<span class="state filtered">${markOf(visible(reason))}</span>`,
      )}
      ${step.rewards && step.rewards.advantage !== null ? advantage(step.rewards.advantage) : null}
      <span class="step-facts">${facts.join(" · ")}</span>
      <span class="step-tools">${tools}</span>
    </header>
  `;
}

/** @param {{ spoken: any, step: any, path: PathOf }} props */
function Body({ spoken, step, path }) {
  const known = spoken.appended.slice(0, spoken.known);
  const fresh = spoken.appended.slice(spoken.known);
  return html`
    ${
      spoken.tools.length
        ? html`
          <p class="small soft shown-tools">
            The prompt shows the tools${" "}
            ${spoken.tools.map((/** @type {string} */ name, /** @type {number} */ i) => [
              i ? ", " : null,
              html`<code>${visible(name)}</code>`,
            ])}.
          </p>
        `
        : null
    }
    ${
      spoken.text_left_out
        ? html`
          <p class="note">
            The request of this step was too large to be kept as text with its tokens: the token view has all of it.
          </p>
        `
        : null
    }
    ${
      known.length
        ? html`
          <details class="known">
            <summary>
              ${number(known.length)} earlier ${known.length === 1 ? "message" : "messages"}, as in the conversation of step ${spoken.near ?? step.parent}
            </summary>
            ${known.map((/** @type {any} */ one) => html`<${Message} one=${one} path=${path} />`)}
          </details>
        `
        : null
    }
    ${fresh.map((/** @type {any} */ one) => html`<${Message} one=${one} path=${path} />`)}
    <${Answer} spoken=${spoken} step=${step} path=${path} />
    <${Executions} runs=${step.tool_runs} />
  `;
}

/**
 * @param {{ step: any, texts: Texts, started: boolean, spoken: any, failed: string | undefined, here: boolean, tools: any,
 *   onPick: (idx: number) => void }} props
 */
function Step({ step, texts, started, spoken, failed, here, tools, onPick }) {
  const { rollout, signal } = texts;
  /** @type {PathOf} */
  const path = (part) => wholeOf(rollout.rollout_id, rollout.shown, step.idx, part, signal);
  const inside = () => {
    if (spoken) return html`<${Body} spoken=${spoken} step=${step} path=${path} />`;
    if (!failed) return html`<p class="loading">Loading…</p>`;
    return html`
      <p class="note bad">
        ${failed}${" "}
        <button type="button" class="quiet" onClick=${() => texts.again(step.idx)}>Try again</button>
      </p>
    `;
  };
  return html`
    <article
      class=${`step${spoken ? "" : " pending"}${here ? " here" : ""}`}
      id=${`step-${step.idx}`}
      data-idx=${step.idx}
      tabindex="-1"
      aria-label=${`Step ${step.idx}`}>
      ${started ? html`<${Head} step=${step} tools=${tools(step)} onPick=${onPick} /><div class="step-body">${inside()}</div>` : null}
    </article>
  `;
}

/**
 * The conversation. `target`: the step that was gone to, a new object each time; `onSeen(idx)`: the step that is read now; `onPick(idx)`: a step
 * was clicked; `tools(step)`: buttons of its head.
 * @param {object} props
 * @param {any} props.rollout
 * @param {Texts} props.texts
 * @param {{ idx: number } | null} props.target
 * @param {(idx: number) => void} props.onSeen
 * @param {(idx: number) => void} props.onPick
 * @param {(step: any) => any} props.tools
 */
export function Conversation({ rollout, texts, target, onSeen, onPick, tools }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const seen = useRef(onSeen);
  seen.current = onSeen;
  const picks = useRef(onPick);
  picks.current = onPick;
  const drawn = useRef(/** @type {Map<number, { of: unknown[], vnode: any }>} */ (new Map()));
  const redraw = useRedraw();

  useLayoutEffect(() => {
    texts.redraw = redraw;
    texts.update(rollout);
  }, [texts, rollout]);

  useLayoutEffect(() => {
    const free = () => {
      texts.pinned = null;
    };
    const over = new AbortController();
    const options = { passive: true, capture: true, signal: over.signal };
    for (const type of MOVES) window.addEventListener(type, free, options);
    return () => over.abort();
  }, [texts]);

  useLayoutEffect(() => {
    /** @param {IntersectionObserverEntry[]} entries */
    const there = (entries) =>
      entries
        .filter((entry) => entry.isIntersecting)
        .map((entry) => Number(/** @type {HTMLElement} */ (entry.target).dataset.idx));
    const near = new IntersectionObserver((entries) => texts.near(there(entries)), { rootMargin: "900px 0px" });
    const read = new IntersectionObserver(
      (entries) => {
        const steps = there(entries);
        if (steps.length && texts.pinned === null) seen.current(Math.min(...steps));
      },
      { rootMargin: "-15% 0px -70% 0px" },
    );
    for (const article of element.current?.children ?? []) {
      near.observe(article);
      read.observe(article);
    }
    return () => {
      near.disconnect();
      read.disconnect();
    };
  }, [texts, rollout.steps.length]);

  useLayoutEffect(() => {
    if (target) texts.pinned = target.idx;
  }, [texts, target]);
  useLayoutEffect(() => {
    if (texts.pinned !== null)
      element.current?.querySelector(`#step-${texts.pinned}`)?.scrollIntoView({ block: "start" });
  });

  /** A step as it was drawn, where nothing of it has changed: there may be thousands. @param {any} step */
  const one = (step) => {
    const { idx } = step;
    const of = [step, texts, texts.started.has(idx), texts.spoken.get(idx), texts.failed.get(idx), idx === target?.idx];
    const before = drawn.current.get(idx);
    if (before?.of.every((each, i) => each === of[i])) return before.vnode;
    const [, , started, spoken, failed, here] = of;
    const vnode = html`
      <${Step}
        key=${idx}
        step=${step}
        texts=${texts}
        started=${started}
        spoken=${spoken}
        failed=${failed}
        here=${here}
        tools=${tools}
        onPick=${(/** @type {number} */ picked) => picks.current(picked)} />
    `;
    drawn.current.set(idx, { of, vnode });
    return vnode;
  };
  return html`<div class="conversation" ref=${element}>${rollout.steps.map(one)}</div>`;
}
