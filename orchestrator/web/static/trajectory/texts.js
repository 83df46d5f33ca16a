// Texts of models, tasks and tools: cut ones with a button for the whole, binary ones named, calls with their arguments taken apart.

import { ask, messageOf } from "../api.js";
import { compact, number, visible } from "../format.js";
import { html, useState } from "../vendor/preact.js";

/** @typedef {{ text: string, length: number }} Cut the beginning of a text, and how many characters the whole has */
/** @typedef {() => Promise<string>} Whole fetches all of a text */

/**
 * Whether a text was cut: its length counts characters, that of JavaScript halves of those above U+FFFF.
 * @param {Cut} given
 */
export const isCut = ({ text, length }) => length > [...text].length;

const BLOCK = 50_000; // characters of one block: those out of sight are not laid out
const LINE = 60; // characters of an argument that stands next to its name
const UNREADABLE = /[\u0000-\u0008\u000e-\u001f\u007f-\u009f\ufffd]/g;

/**
 * Whether a text is rather something else: a tenth of it cannot be read.
 * @param {string} text
 */
export const looksBinary = (text) => {
  const head = text.slice(0, 4000);
  return head.length > 16 && (head.match(UNREADABLE)?.length ?? 0) > head.length / 10;
};

/** @param {string} text */
function blocks(text) {
  if (text.length <= BLOCK) return [html`<pre class="verbatim">${visible(text)}</pre>`];
  const made = [];
  for (let at = 0; at < text.length; ) {
    let end = Math.min(text.length, at + BLOCK);
    const line = text.lastIndexOf("\n", end);
    if (end < text.length && line > at) end = line + 1;
    made.push(html`<pre class="verbatim block">${visible(text.slice(at, end))}</pre>`);
    at = end;
  }
  return made;
}

/**
 * A text that may be cut, with a button for the whole.
 * @param {{ cut: Cut, whole: Whole, mono?: boolean }} props
 */
export function Text({ cut, whole, mono = true }) {
  const [fetched, setFetched] = useState(/** @type {string | null} */ (null));
  const [note, setNote] = useState("");
  const [busy, setBusy] = useState(false);
  const [binary, setBinary] = useState(() => looksBinary(cut.text));

  async function all() {
    setBusy(true);
    setNote("Fetching…");
    try {
      setFetched(await whole());
    } catch (error) {
      setNote(`${messageOf(error)} Try again`);
    } finally {
      setBusy(false);
    }
  }

  const inside = () => {
    if (binary)
      return html`
        <p class="faint">
          Binary: ${compact(cut.length)} characters that are not text.${" "}
          <button type="button" class="quiet" onClick=${() => setBinary(false)}>Show them spelled out</button>
        </p>
      `;
    const text = fetched ?? cut.text;
    const more = fetched === null && isCut(cut);
    return html`
      ${blocks(text)}
      ${
        more
          ? html`
            <button type="button" class="quiet more" disabled=${busy} onClick=${all}>
              ${note || `Show all ${number(cut.length)} characters`}
            </button>
          `
          : null
      }
    `;
  };
  return html`<div class=${mono ? "text mono" : "text"}>${inside()}</div>`;
}

/**
 * What fetches a part of a step whole, or of the rollout: instruction, answer, log, verdict.R.log, verdict.R.check.N.
 * @param {number} rollout
 * @param {number} attempt
 * @param {number} step
 * @param {string} part
 * @param {AbortSignal} signal
 * @returns {Whole}
 */
export const wholeOf = (rollout, attempt, step, part, signal) => async () =>
  (await ask(`/api/rollouts/${rollout}/text`, { attempt, step, part }, signal)).text;

/** @param {{ name: string, value: unknown }} props */
function Argument({ name, value }) {
  const long = typeof value === "string" && (value.includes("\n") || value.length > LINE);
  const shown = visible(typeof value === "string" ? value : JSON.stringify(value));
  return html`
    <div class=${long ? "argument long" : "argument"}>
      <span class="argument-name">${visible(name)}</span>
      ${long ? html`<pre class="verbatim">${shown}</pre>` : html`<code class="verbatim">${shown}</code>`}
    </div>
  `;
}

/**
 * The arguments by name, where they were kept whole and are an object.
 * @param {Cut} given
 * @returns {[string, unknown][] | null}
 */
export function argumentsOf(given) {
  if (isCut(given)) return null;
  try {
    const read = JSON.parse(given.text);
    return read && typeof read === "object" && !Array.isArray(read) ? Object.entries(read) : null;
  } catch {
    return null; // shown as it is
  }
}

/**
 * A tool call.
 * @param {{ call: { name: string, arguments: Cut }, whole: Whole }} props
 */
export function ToolCall({ call, whole }) {
  const entries = argumentsOf(call.arguments);
  const [name, value] = entries?.length === 1 ? entries[0] : ["", null];
  const body = () => {
    if (typeof value === "string" && /^(cmd|command|input|code|script)$/.test(name))
      return html`<pre class="verbatim command">${visible(value)}</pre>`;
    if (entries) return entries.map(([key, each]) => html`<${Argument} name=${key} value=${each} />`);
    return html`<${Text} cut=${call.arguments} whole=${whole} />`;
  };
  return html`
    <div class="call">
      <div class="call-head">calls <span class="call-name">${visible(call.name) || "no name"}</span></div>
      ${body()}
    </div>
  `;
}
