// Rewards as bars: performance, speed and process on one scale, so that members of a group compare at a glance.

import { number, signed } from "../format.js";
import { html } from "../vendor/preact.js";

/** @typedef {{ performance?: number | null, speed_part?: number | null, process_part?: number | null, total?: number | null }} Parts */
/** @typedef {{ least: number, most: number }} Scale */

/**
 * The scale that holds every member's parts, with 0 and the performance of a success inside.
 * @param {Parts[]} members
 * @returns {Scale}
 */
export function scaleOf(members) {
  let least = 0;
  let most = 1;
  for (const one of members) {
    if (one.total === null || one.total === undefined) continue;
    const gains = Math.max(0, one.speed_part ?? 0) + Math.max(0, one.process_part ?? 0);
    most = Math.max(most, (one.performance ?? 0) + gains);
    least = Math.min(least, one.process_part ?? 0, one.total);
  }
  return { least, most };
}

/**
 * One bar: parts that are positive follow each other, those that are negative go to the left of 0.
 * @param {Parts} parts
 * @param {Scale} scale
 */
export function rewardBar(parts, scale, width = 180, height = 14) {
  /** @param {number} value */
  const x = (value) => ((value - scale.least) / (scale.most - scale.least)) * width;
  /** @param {string} name @param {number} from @param {number} to */
  const rect = (name, from, to) => {
    const [left, right] = [Math.min(x(from), x(to)), Math.max(x(from), x(to))];
    if (right - left < 0.2) return null;
    return html`<rect class=${`part-${name}`} x=${left} y="0" width=${Math.max(1, right - left)} height=${height} rx="2" />`;
  };
  const performance = parts.performance ?? 0;
  const speed = Math.max(0, parts.speed_part ?? 0);
  const process = parts.process_part ?? 0;
  const before = process > 0 ? performance + speed : 0;
  const text = `performance ${number(performance)}, speed ${number(speed)}, process ${number(process)}: total ${number(parts.total)}`;
  return html`
    <svg class="reward-bar" viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} role="img" aria-label=${text}>
      <title>${text}</title>
      <rect class="part-base" x="0" y=${height - 1} width=${width} height="1" />
      ${rect("performance", 0, performance)}
      ${rect("speed", performance, performance + speed)}
      ${rect("process", before, before + process)}
      <rect class="part-zero" x=${Math.max(0, x(0) - 0.5)} y="0" width="1" height=${height} />
    </svg>
  `;
}

/** The legend of reward bars. */
export const rewardLegend = html`
  <div class="chips">
    <span class="chip part-performance">performance</span>
    <span class="chip part-speed">speed</span>
    <span class="chip part-process">process</span>
  </div>
`;

/**
 * An advantage, coloured by its sign.
 * @param {number} value
 */
export const advantage = (value) =>
  html`<span class=${`advantage ${value > 0 ? "up" : value < 0 ? "down" : "none"}`} title="advantage">${signed(value)}</span>`;
