// Queries and commands. An error is one sentence; while the dashboard or its data pool is away, a banner reports it.

import { chosenRun } from "./address.js";
import { correctClock } from "./format.js";

/** @typedef {import("./address.js").Value} Value */
/** @typedef {Record<string, Value | Value[]>} Params */

export class Refusal extends Error {
  /**
   * @param {number} status HTTP status; 0: no answer
   * @param {string} sentence
   */
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
  /** Whether a retry may help: a service is away. */
  get passing() {
    return this.status === 0 || this.status === 503 || this.status === 504;
  }
}

/** @type {Set<(sentence: string) => void>} */
const watchers = new Set();
let missing = "";
let steering = "";

/** @param {string} sentence */
function say(sentence) {
  if (sentence === missing) return;
  missing = sentence;
  for (const watcher of watchers) watcher(sentence);
}

/**
 * Calls `watcher` with a sentence about the service that is away, empty: none; now and at every change. Returns a function that stops it.
 * @param {(sentence: string) => void} watcher
 */
export function onAway(watcher) {
  watchers.add(watcher);
  watcher(missing);
  return () => watchers.delete(watcher);
}

/**
 * Reports that a service is away.
 * @param {string} sentence
 */
export const away = (sentence) => say(sentence);

/** Clears the report. */
export const back = () => say("");

/**
 * The address of an API path with its parameters; empty ones are left out; the chosen run is added unless `run` is given.
 * @param {string} path
 * @param {Params} [params]
 */
export function url(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const item of [value].flat())
      if (item !== null && item !== undefined && item !== "") query.append(name, String(item));
  if (!("run" in params) && chosenRun()) query.set("run", chosenRun());
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * @param {string} address
 * @param {RequestInit} options
 */
async function fetched(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (stopped(error)) throw error;
    throw new Refusal(0, "The dashboard does not answer: is `penstock web` running?");
  }
  correctClock(response.headers.get("Date"));
  const text = await response.text();
  if (response.ok) return text;
  let sentence = `The dashboard answered ${response.status}.`;
  try {
    sentence = JSON.parse(text).error ?? sentence;
  } catch {
    /* not our response: a proxy's */
  }
  throw new Refusal(
    response.status,
    sentence[0].toUpperCase() + sentence.slice(1) + (/[.!?:]$/.test(sentence) ? "" : "."),
  );
}

/**
 * Whether a request failed because its page was left.
 * @param {unknown} error
 */
export const stopped = (error) => error instanceof DOMException && error.name === "AbortError";

/**
 * The message of an error.
 * @param {unknown} error
 */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/**
 * The text of an answer. Raises Refusal.
 * @param {string} path
 * @param {Params} [params]
 * @param {AbortSignal} [signal]
 */
export async function askText(path, params, signal) {
  try {
    const text = await fetched(url(path, params), { signal });
    back();
    return text;
  } catch (error) {
    if (error instanceof Refusal && error.passing) away(error.message);
    throw error;
  }
}

/**
 * An answer. Raises Refusal.
 * @param {string} path
 * @param {Params} [params]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export const ask = async (path, params, signal) => JSON.parse(await askText(path, params, signal));

/**
 * Steers: POST. Raises Refusal.
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function order(path, body = {}) {
  steering ||= (await ask("/api/me")).steering;
  const headers = { "Content-Type": "application/json", "X-Penstock-Steer": steering };
  return JSON.parse(await fetched(url(path), { method: "POST", headers, body: JSON.stringify(body) }));
}
