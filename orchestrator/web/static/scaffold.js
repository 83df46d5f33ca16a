// A scaffold's name. For a path it shows the last part, and the whole path as a tooltip.

import { visible } from "./format.js";
import { html } from "./vendor/preact.js";

/** @param {string} name */
export function scaffoldName(name) {
  const whole = visible(name);
  const at = whole.lastIndexOf("/");
  return at < 0 ? whole : html`<span title=${whole}>${whole.slice(at + 1)}</span>`;
}
