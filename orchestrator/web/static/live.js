// One event stream for the whole page, while it has followers and is visible.

import { away } from "./api.js";

/** @typedef {{ away?: string }} Tick */
/** @typedef {"live" | "away" | "paused"} State */

/** @type {Set<(tick: Tick | null) => void>} */
const followers = new Set();
/** @type {Set<(state: State) => void>} */
const watchers = new Set();
const AGAIN_MS = 3000;
/** @type {EventSource | null} */
let source = null;
/** @type {State} */
let state = "paused";

/** @param {State} next */
function become(next) {
  state = next;
  for (const watcher of watchers) watcher(state);
}

function open() {
  if (source || !followers.size || document.hidden) return;
  source = new EventSource("/api/events");
  source.onopen = () => become("live");
  source.onerror = () => {
    become("away");
    // The browser retries by itself, but not after an answer that is not a stream.
    if (source?.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(open, AGAIN_MS);
  };
  source.onmessage = (message) => {
    const tick = JSON.parse(message.data);
    become(tick.away ? "away" : "live");
    if (tick.away) away(`${tick.away[0].toUpperCase()}${tick.away.slice(1)}.`);
    for (const follower of [...followers]) follower(tick);
  };
}

function close() {
  source?.close();
  source = null;
  become("paused");
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return close();
  open();
  for (const follower of [...followers]) follower(null);
});

/**
 * Calls `follower` at every tick, until `signal` aborts.
 * @param {(tick: Tick | null) => void} follower
 * @param {AbortSignal} signal
 */
export function follow(follower, signal) {
  followers.add(follower);
  signal.addEventListener("abort", () => {
    followers.delete(follower);
    if (!followers.size) close();
  });
  open();
}

/**
 * Calls `watcher` with live, away or paused: now, and at every change. Returns a function that stops it.
 * @param {(state: State) => void} watcher
 */
export function onState(watcher) {
  watchers.add(watcher);
  watcher(state);
  return () => watchers.delete(watcher);
}
