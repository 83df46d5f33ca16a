// A number with its name above it and its basis below.

import { html } from "./vendor/preact.js";

/**
 * @param {any} name
 * @param {any} value
 * @param {any} [note]
 */
export const figure = (name, value, note) =>
  html`<div class="figure"><dt>${name}</dt><dd>${value}</dd>${note ? html`<p>${note}</p>` : null}</div>`;
