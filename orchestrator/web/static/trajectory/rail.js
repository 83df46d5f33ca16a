// The steps of an attempt as a tree, drawn as branches next to their rows: sub-agents and rewritten contexts leave the line that they came from.

import { compact, markOf, signed, visible, words } from "../format.js";
import { html, useLayoutEffect, useMemo, useRef } from "../vendor/preact.js";

const ROW = 30;
const LANE = 14;
const LEFT = 10;
const MOST_LANES = 9; // deeper ones share the last lane

/**
 * Lanes: a chain of continuations keeps its lane; a chain takes the first lane that is free from where it leaves its parent to its end.
 * @param {any[]} steps
 */
export function lanes(steps) {
  /** @type {Map<number, number>} */
  const row = new Map(steps.map((step, i) => [step.idx, i]));
  /** @param {number} idx */
  const rowOf = (idx) => /** @type {number} */ (row.get(idx));
  /** @type {Map<number, number>} */
  const chainOf = new Map();
  /** @type {{ from: number, to: number, lane: number }[]} */
  const chains = [];
  /** @type {Map<number, number>} */
  const tip = new Map();
  for (const step of steps) {
    const above = step.parent === null ? undefined : chainOf.get(step.parent);
    let chain = above;
    if (chain === undefined || step.kind !== "continues" || tip.get(chain) !== step.parent) {
      chain = chains.length;
      const from = step.parent === null ? rowOf(step.idx) : (row.get(step.parent) ?? rowOf(step.idx));
      chains.push({ from, to: 0, lane: 0 });
    }
    chainOf.set(step.idx, chain);
    tip.set(chain, step.idx);
    chains[chain].to = rowOf(step.idx);
  }
  /** @type {number[]} */
  const free = [];
  for (const chain of chains) {
    let lane = free.findIndex((end) => end < chain.from);
    if (lane < 0) {
      lane = free.length;
      free.push(-1);
    }
    free[lane] = chain.to;
    chain.lane = lane;
  }
  return {
    lane: (/** @type {number} */ idx) => chains[/** @type {number} */ (chainOf.get(idx))].lane,
    row: (/** @type {number} */ idx) => row.get(idx),
    count: Math.max(1, free.length),
  };
}

/** @param {any} step */
function what(step) {
  if (step.tools.length) return step.tools.join(", ");
  if (step.finish === "stop") return "answer";
  return step.finish === "length" ? "cut off" : words(step.finish);
}

/**
 * The branches of the tree.
 * @param {any[]} steps
 */
function branches(steps) {
  const at = lanes(steps);
  const shown = Math.min(at.count, MOST_LANES);
  /** @param {number} idx */
  const x = (idx) => LEFT + Math.min(at.lane(idx), shown - 1) * LANE;
  /** @param {number} idx */
  const y = (idx) => (at.row(idx) ?? 0) * ROW + ROW / 2;
  /** @param {any} step */
  const line = (step) => {
    if (step.parent === null || at.row(step.parent) === undefined) return null;
    const [x1, y1, x2, y2] = [x(step.parent), y(step.parent), x(step.idx), y(step.idx)];
    const bend = Math.min(ROW, y2 - y1);
    const curve = `C${x1} ${y1 + bend * 0.7} ${x2} ${y1 + bend * 0.3} ${x2} ${y1 + bend}V${y2}`;
    return html`<path class=${`rail-line ${step.kind}`} d=${`M${x1} ${y1}${x1 === x2 ? `V${y2}` : curve}`} />`;
  };
  /** @param {any} step */
  const dot = (step) => {
    const looks = `rail-dot${step.marks.length ? " marked" : ""}${step.parse !== "ok" ? " ill" : ""}`;
    return html`<circle class=${looks} cx=${x(step.idx)} cy=${y(step.idx)} r=${step.parent === null ? 5 : 4} />`;
  };
  const width = LEFT * 2 + (shown - 1) * LANE;
  const picture = html`
    <svg class="rail-tree" width=${width} height=${steps.length * ROW} aria-hidden="true">
      ${steps.map(line)}${steps.map(dot)}
    </svg>
  `;
  return { width, picture };
}

/** @param {{ step: any, here: boolean }} props */
function Row({ step, here }) {
  const paid = step.rewards?.advantage;
  const note = [step.agent !== "main" ? step.agent : null, step.branch_reason ? words(step.branch_reason) : null]
    .filter(Boolean)
    .join(" · ");
  const marks = step.marks.length ? `; ${step.marks.map(markOf).join(", ")}` : "";
  const title = `step ${step.idx}: ${what(step)}; ${step.added} tokens added, ${step.action} sampled${note ? `; ${note}` : ""}${marks}`;
  const known = paid !== null && paid !== undefined;
  return html`
    <a
      href=${`#step-${step.idx}`}
      class=${here ? "rail-row here" : "rail-row"}
      title=${visible(title)}
      data-idx=${step.idx}>
      <span class="rail-idx">${step.idx}</span>
      <span class="rail-what">${visible(what(step))}${note ? html`<small>${visible(note)}</small>` : null}</span>
      <span class="rail-side">
        ${known ? html`<span class=${paid > 0 ? "up" : paid < 0 ? "down" : "none"}>${signed(paid)}</span>` : compact(step.action)}
      </span>
    </a>
  `;
}

/**
 * The tree. `onPick(idx)` is called when a step is clicked.
 * @param {{ steps: any[], chosen: number | null, onPick: (idx: number) => void }} props
 */
export function Rail({ steps, chosen, onPick }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const tree = useMemo(() => branches(steps), [steps]);
  useLayoutEffect(() => {
    const rail = element.current;
    /** @type {HTMLElement | null | undefined} */
    const row = rail?.querySelector(".rail-row.here");
    if (!rail || !row) return;
    const [top, bottom] = [row.offsetTop, row.offsetTop + ROW];
    if (top < rail.scrollTop || bottom > rail.scrollTop + rail.clientHeight)
      rail.scrollTop = top - rail.clientHeight / 2;
  }, [chosen]);
  /** @param {MouseEvent} event */
  const click = (event) => {
    const row = event.target instanceof Element ? event.target.closest("a.rail-row") : null;
    if (!(row instanceof HTMLElement)) return;
    event.preventDefault();
    onPick(Number(row.dataset.idx));
  };
  return html`
    <nav class="rail" aria-label="Steps" ref=${element} onClick=${click}>
      ${
        steps.length
          ? html`
            <div class="rail-body" style=${{ "--rail": `${tree.width}px` }}>
              ${tree.picture}
              <div class="rail-rows">
                ${steps.map((step) => html`<${Row} key=${step.idx} step=${step} here=${step.idx === chosen} />`)}
              </div>
            </div>
          `
          : html`<p class="empty">No step is recorded yet.</p>`
      }
    </nav>
  `;
}
