// The colours of states: classes of style.css.

import { words } from "./format.js";
import { html } from "./vendor/preact.js";

/** @typedef {Record<string, string>} Classes */

/** @type {Classes} */
export const ROLLOUT_STATES = {
  waiting: "waiting",
  queued: "waiting",
  running: "running",
  reported: "running",
  finished: "running",
  verifying: "running",
  verified: "ready",
  lost: "failed",
};

/** @type {Classes} */
const GROUP_STATES = {
  accepted: "waiting",
  dispatched: "running",
  ready: "ready",
  taken: "trained",
  trained: "trained",
  scored: "ready",
  filtered: "filtered",
  dead: "failed",
};

/** @type {Classes} */
const BATCH_STATES = { open: "running", closed: "ready", committed: "trained", voided: "failed" };

/**
 * @param {string} state
 * @param {string | undefined} looks
 */
const badge = (state, looks) => html`<span class=${`state ${looks ?? ""}`}>${words(state)}</span>`;

/** @param {string} state */
export const rolloutState = (state) => badge(state, ROLLOUT_STATES[state]);

/** @param {string} state */
export const groupState = (state) => badge(state, GROUP_STATES[state]);

/** @param {string} state */
export const batchState = (state) => badge(state, BATCH_STATES[state]);

export const PRUNED = "This run was pruned: its steps, messages, tool calls and files were dropped.";
