// The keyboard: ? lists the keys, `g` and a letter opens a page, j/k and arrows move, / searches. Pages add their own by keys().

import { html, render } from "./vendor/preact.js";

/**
 * @typedef {object} Entry
 * @property {string[]} keys as KeyboardEvent names them; "g r" is one after the other
 * @property {string} what it does
 * @property {(event: KeyboardEvent) => unknown} run `false` leaves the key to the browser
 */

const NAMES = /** @type {Record<string, string>} */ ({
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Escape: "Esc",
});
const PENDING_MS = 1200;
/** @type {Entry[]} */
const general = [];
/** @type {Set<{ title: string, entries: Entry[] }>} */
const own = new Set();
let pending = "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
const dialog = document.createElement("dialog");
dialog.className = "keys";
dialog.setAttribute("aria-label", "Keyboard");

/**
 * @param {Entry[]} list
 * @param {string} name
 * @param {KeyboardEvent} event
 */
function hit(list, name, event) {
  for (const entry of list) {
    if (!entry.keys.includes(name)) continue;
    if (entry.run(event) !== false) event.preventDefault();
    return true;
  }
  return false;
}

/** @param {{ entry: Entry }} props */
const Line = ({ entry }) => html`
  <dt>
    ${entry.keys
      .slice(0, 2)
      .map((key, i) => [i ? " or " : null, key.split(" ").map((part) => html`<kbd>${NAMES[part] ?? part}</kbd>`)])}
  </dt>
  <dd>${entry.what}</dd>
`;

function help() {
  const sections = [{ title: "Everywhere", entries: general }, ...own];
  render(
    html`
      <h2>Keyboard</h2>
      ${sections.map(
        ({ title, entries }) => html`
          <h3>${title}</h3>
          <dl>${entries.map((entry) => html`<${Line} entry=${entry} />`)}</dl>
        `,
      )}
      <form method="dialog"><button class="quiet">Close</button></form>
    `,
    dialog,
  );
  dialog.showModal();
}

/**
 * Global keys.
 * @param {Entry[]} entries
 */
export function everywhere(entries) {
  general.push(...entries);
}

/**
 * Keys of a page, until the returned function is called.
 * @param {string} title
 * @param {Entry[]} entries
 */
export function keys(title, entries) {
  const section = { title, entries };
  own.add(section);
  return () => {
    own.delete(section);
  };
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (
    event.defaultPrevented ||
    event.metaKey ||
    event.ctrlKey ||
    event.altKey ||
    document.querySelector("dialog[open]")
  )
    return;
  const target = event.target;
  if (target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const name = pending ? `${pending} ${event.key}` : event.key;
  clearTimeout(timer);
  pending = "";
  for (const section of own) if (hit(section.entries, name, event)) return;
  if (hit(general, name, event)) return;
  const all = [...general, ...[...own].flatMap((section) => section.entries)];
  if (!all.some((entry) => entry.keys.some((key) => key.startsWith(`${name} `)))) return;
  pending = name;
  timer = setTimeout(() => {
    pending = "";
  }, PENDING_MS);
}

/** Starts listening. */
export function start() {
  document.body.append(dialog);
  everywhere([{ keys: ["?"], what: "show these keys", run: help }]);
  document.addEventListener("keydown", pressed);
}
