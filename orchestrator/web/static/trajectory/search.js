// Lists that are searched: filters in the address, pages that go on by themselves until there is enough, and how far the search came.

import { ask, messageOf, Refusal } from "../api.js";
import { number, visible, words } from "../format.js";
import { useRedraw } from "../hooks.js";
import { follow } from "../live.js";
import { PRUNED } from "../states.js";
import { Table } from "../table.js";
import { html, useLayoutEffect, useMemo } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */
/**
 * @typedef {object} Field a field of a filter: text, number or a choice
 * @property {string} name
 * @property {string} title
 * @property {string[]} [choices]
 * @property {string} [type]
 * @property {string} [placeholder]
 * @property {string} [step]
 * @property {string} [first] what is chosen where the address says nothing at all
 * @property {Record<string, string>} [chips] value → what a button says
 */

const ENOUGH = 50;
const AGAIN_MS = 3000;
const TYPING_MS = 350;
const ANY = "any"; // of a field whose first choice is another one

/**
 * @param {string} name
 * @param {string} title
 * @param {Partial<Field>} [options]
 * @returns {Field}
 */
export const field = (name, title, options = {}) => ({ name, title, ...options });

/** Which groups or rollouts by their purpose: those of training, unless others are requested. */
export const purposeField = () =>
  field("purpose", "Purpose", {
    choices: ["train", "eval", "record"],
    first: "train",
    chips: { train: "training", eval: "evaluations", record: "recordings", [ANY]: "all" },
  });

/** A search under way: what is requested, what was found, how far it came. */
export class Walk {
  /** @type {any[]} */
  found = [];
  /** @type {number | null} */
  before = null;
  searched = 0;
  pruned = false;
  busy = false;
  /** @type {unknown} */
  problem = null;
  #run = 0;
  /** Walks of all runs: a refresh that one has overtaken is stale. */
  #walks = 0;
  #idle = false;
  #newest = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /**
   * @param {Page} page
   * @param {string} path
   * @param {Field[]} fields
   * @param {(answer: any) => any[]} rows
   * @param {() => void} redraw
   */
  constructor(page, path, fields, rows, redraw) {
    this.page = page;
    this.path = path;
    this.fields = fields;
    this.rows = rows;
    this.redraw = redraw;
    const bare = !fields.some(({ name }) => page.query.get(name));
    /** @type {Record<string, string>} */
    this.values = Object.fromEntries(
      fields.map(({ name, first }) => [name, page.query.get(name) ?? (first ? (bare ? first : ANY) : "")]),
    );
    /** The values in the address: a field must be able to show them, even if they are not among its choices. */
    this.requested = { ...this.values };
  }

  get given() {
    return Object.fromEntries(
      this.fields.map(({ name, first }) => {
        const value = this.values[name].trim();
        return [name, value === ANY && first ? "" : value];
      }),
    );
  }

  get filtered() {
    return Object.values(this.given).some(Boolean);
  }

  /**
   * @param {string} name
   * @param {string} value
   * @param {number} wait milliseconds: the reader may be typing
   */
  set(name, value, wait) {
    this.values = { ...this.values, [name]: value };
    this.redraw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.start(), wait);
  }

  clear() {
    this.values = Object.fromEntries(this.fields.map(({ name, first }) => [name, first ?? ""]));
    this.start();
  }

  stop() {
    clearTimeout(this.#timer);
  }

  start() {
    clearTimeout(this.#timer);
    this.page.filter(Object.fromEntries(Object.entries(this.values).map(([name, value]) => [name, value.trim()])));
    this.#run += 1;
    this.found = [];
    this.before = null;
    this.searched = 0;
    return this.#walk(this.#run, ENOUGH);
  }

  more() {
    return this.#walk(this.#run, this.found.length + ENOUGH);
  }

  /**
   * @param {number} mine
   * @param {number} wanted rows
   */
  async #walk(mine, wanted) {
    const { signal } = this.page;
    this.#walks += 1;
    this.#idle = false;
    this.#say(true);
    try {
      while (mine === this.#run && !signal.aborted) {
        const first = this.before === null;
        const answer = await ask(this.path, { ...this.given, before: this.before, n: ENOUGH }, signal);
        if (mine !== this.#run) return;
        this.#newest = first ? JSON.stringify(answer) : "";
        this.found = [...this.found, ...this.rows(answer)];
        this.searched += answer.searched;
        this.pruned = answer.pruned ?? false;
        this.before = answer.next;
        if (this.before === null || this.found.length >= wanted) break;
        this.#say(true);
      }
      if (mine !== this.#run) return;
      this.#idle = true;
      this.#say(false);
    } catch (error) {
      if (signal.aborted || mine !== this.#run) return;
      const passes = error instanceof Refusal && error.passing && error.status !== 504;
      if (passes) this.#timer = setTimeout(() => this.#walk(mine, wanted), AGAIN_MS);
      this.#say(false, error);
    }
  }

  /**
   * @param {boolean} busy
   * @param {unknown} [problem]
   */
  #say(busy, problem = null) {
    this.busy = busy;
    this.problem = problem;
    this.redraw();
  }

  /**
   * While a single answer is shown, it is requested again when something has changed.
   * @param {import("../live.js").Tick | null} tick
   */
  async freshen(tick) {
    if (!this.#idle || !this.#newest || tick?.away) return;
    const mine = this.#walks;
    this.#idle = false;
    try {
      const answer = await ask(this.path, { ...this.given, n: ENOUGH }, this.page.signal);
      const text = JSON.stringify(answer);
      if (mine !== this.#walks || text === this.#newest) return;
      this.#newest = text;
      this.found = this.rows(answer);
      this.searched = answer.searched;
      this.before = answer.next;
      this.#say(false);
    } catch {
      /* the banner says why */
    } finally {
      if (mine === this.#walks) this.#idle = true;
    }
  }
}

/** @param {{ of: Field, walk: Walk }} props */
function Input({ of, walk }) {
  const { name, title, choices, type = "text", placeholder = "", step, first } = of;
  const id = `filter-${name}`;
  const value = walk.values[name];
  /** @param {Event} event */
  const inputOf = (event) => /** @type {HTMLInputElement} */ (event.target).value;
  // A value that the field cannot hold is requested all the same: the answer says what is wrong with it.
  const known = ["", first ? ANY : "", ...(choices ?? [])];
  const odd = choices && !known.includes(walk.requested[name]) ? walk.requested[name] : null;
  const readable = type !== "number" || !walk.requested[name] || Number.isFinite(Number(walk.requested[name]));
  return html`
    <div class=${`field field-${name}`}>
      <label for=${id}>${title}</label>
      ${
        choices
          ? html`
            <select id=${id} name=${name} value=${value} onChange=${(/** @type {Event} */ event) => walk.set(name, inputOf(event), 0)}>
              <option value=${first ? ANY : ""}>any</option>
              ${choices.map((one) => html`<option value=${one}>${words(one)}</option>`)}
              ${odd === null ? null : html`<option value=${odd}>${visible(odd)}</option>`}
            </select>
          `
          : html`
            <input
              id=${id}
              name=${name}
              type=${readable ? type : "text"}
              placeholder=${placeholder}
              step=${step}
              autocomplete="off"
              spellcheck=${false}
              inputmode=${type === "number" ? "decimal" : undefined}
              value=${value}
              onInput=${(/** @type {Event} */ event) => walk.set(name, inputOf(event), TYPING_MS)} />
          `
      }
    </div>
  `;
}

/** @param {{ of: Field, walk: Walk }} props */
const Chips = ({ of: { name, chips = {} }, walk }) => html`
  <div class="tools" data-of=${name}>
    ${Object.entries(chips).map(
      ([value, label]) => html`
        <button
          type="button"
          class="tiny"
          data-value=${value}
          aria-pressed=${String(walk.values[name] === value)}
          onClick=${() => walk.set(name, value, 0)}>
          ${label}
        </button>
      `,
    )}
  </div>
`;

/** @param {{ walk: Walk, unit: string }} props */
function Status({ walk, unit }) {
  const { found, searched, before, busy, problem, filtered, pruned } = walk;
  if (problem) {
    const passing = problem instanceof Refusal && problem.passing;
    return html`<span class=${passing ? "soft" : "down"}>${messageOf(problem)}</span>`;
  }
  const all = before === null;
  return html`
    ${busy ? html`<span class="busy">Searching… </span>` : null}
    ${
      filtered
        ? `${number(found.length)} found; the newest ${number(searched)} ${unit} were looked at${all ? ", which is all of them" : ""}.`
        : `${number(found.length)} ${unit}${all ? "" : ", newest first"}.`
    }
    ${pruned ? html`<span class="soft"> ${PRUNED}</span>` : null}
  `;
}

/**
 * A form of fields over a table. `more`: fields that are folded away while they are empty; `rows(answer)`: what is listed; `table`: what Table takes.
 * @param {object} props
 * @param {Page} props.page
 * @param {string} props.path
 * @param {string} props.unit
 * @param {Field[]} props.fields
 * @param {Field[]} [props.more]
 * @param {(answer: any) => any[]} props.rows
 * @param {Record<string, any>} props.table
 */
export function Search({ page, path, unit, fields, more = [], rows, table }) {
  const redraw = useRedraw();
  const walk = useMemo(() => new Walk(page, path, [...fields, ...more], rows, redraw), []);
  const open = useMemo(() => more.some(({ name }) => walk.values[name]), []);
  useLayoutEffect(() => {
    follow((tick) => walk.freshen(tick), page.signal);
    page.signal.addEventListener("abort", () => walk.stop());
    walk.start();
  }, []);
  const { found, before, busy, problem } = walk;
  const chips = fields.find((one) => one.chips);
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    walk.start();
  };
  return html`
    <div class="searched">
      <form class="search" role="search" onSubmit=${submit}>
        <div class="fields">
          ${fields.map((of) => html`<${Input} key=${of.name} of=${of} walk=${walk} />`)}
          <div class="tools nowrap">
            <button class="strong">Search</button>
            <button type="button" class="quiet" onClick=${() => walk.clear()}>Clear</button>
          </div>
        </div>
        ${
          more.length
            ? html`
              <details class="more-filters" open=${open}>
                <summary>More filters</summary>
                <div class="fields">${more.map((of) => html`<${Input} key=${of.name} of=${of} walk=${walk} />`)}</div>
              </details>
            `
            : null
        }
        ${chips ? html`<${Chips} of=${chips} walk=${walk} />` : null}
      </form>
      <p class="soft small status" role="status"><${Status} walk=${walk} unit=${unit} /></p>
      <${Table} ...${table} rows=${found} hidden=${!found.length && (busy || Boolean(problem))} />
      <p><button type="button" hidden=${before === null || busy || Boolean(problem)} onClick=${() => walk.more()}>Show more</button></p>
    </div>
  `;
}
