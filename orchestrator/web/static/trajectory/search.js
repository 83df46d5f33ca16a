// Lists that are searched: filters in the address, pages that go on by themselves until there is enough, and how far the search came.

import { Refusal, ask } from "../api.js";
import { h, show } from "../dom.js";
import { number, visible } from "../format.js";
import { follow } from "../live.js";

const ENOUGH = 50;
const AGAIN_MS = 3000;
const ANY = "any"; // of a field whose first choice is another one

/** A field of a filter: text, number or a choice. `first`: what is chosen where the address says nothing at all; `chips`: { value: what a button says }. */
export function field(name, title, options = {}) {
  const { choices, type = "text", placeholder = "", step, first, chips } = options;
  const id = `filter-${name}`;
  const input = choices
    ? h("select", { id, name, data: first ? { first } : {} }, h("option", { value: first ? ANY : "" }, "any"), choices.map((one) => h("option", { value: one }, one.replaceAll("_", " "))))
    : h("input", { id, name, type, placeholder, step, autocomplete: "off", spellcheck: "false", inputmode: type === "number" ? "decimal" : null });
  const chip = ([value, said]) => h("button", { type: "button", class: "tiny", data: { value }, on: { click: () => { input.value = value; input.dispatchEvent(new Event("change")); } } }, said);
  return h("div", { class: `field field-${name}` }, h("label", { for: id }, title), input, chips ? h("div", { class: "tools", data: { of: name } }, Object.entries(chips).map(chip)) : null);
}

/** Which groups or rollouts by their purpose: those of training, unless somebody asks for others. */
export const purposeField = () => field("purpose", "Purpose", {
  choices: ["train", "eval", "record"], first: "train", chips: { train: "training", eval: "evaluations", record: "recordings", [ANY]: "all" },
});

/**
 * A form of fields over a table. options: { page, path, fields, more, rows(answer), table, unit }.
 * Returns { element, refresh() }: the newest page again, in place.
 */
export function searched({ page, path, fields, more, rows, list, unit }) {
  const status = h("p", { class: "soft small status", role: "status" });
  const next = h("button", { type: "button", hidden: true, on: { click: () => fetchMore() } }, "Show more");
  const rest = more?.length ? h("details", { class: "more-filters" }, h("summary", null, "More filters"), h("div", { class: "fields" }, more)) : null;
  const form = h("form", { class: "search", role: "search", on: { submit: (event) => { event.preventDefault(); start(); } } },
    h("div", { class: "fields" }, fields, h("button", { class: "strong" }, "Search"), h("button", { type: "button", class: "quiet", on: { click: clear } }, "Clear")), rest);
  const chips = form.querySelector(".field .tools"); // a row of their own
  if (chips) form.append(chips);
  const names = [...form.querySelectorAll("input, select")].map((input) => input.name);
  let found = [], before = null, searchedSoFar = 0, run = 0, timer = 0, idle = false, newest = "";

  const bare = !names.some((name) => page.query.get(name));
  for (const input of form.querySelectorAll("input, select")) {
    const wanted = page.query.get(input.name) ?? (input.dataset.first ? (bare ? input.dataset.first : ANY) : "");
    input.value = wanted;
    if (input.value !== wanted) { // what the field cannot hold is asked for all the same: the answer says what is wrong with it
      if (input.tagName === "SELECT") input.append(h("option", { value: wanted }, visible(wanted)));
      else input.type = "text";
      input.value = wanted;
    }
    input.addEventListener(input.tagName === "SELECT" ? "change" : "input", () => { clearTimeout(timer); timer = setTimeout(start, input.tagName === "SELECT" ? 0 : 350); });
  }
  if (rest && more.some((one) => one.querySelector("input, select").value)) rest.open = true;
  page.signal.addEventListener("abort", () => clearTimeout(timer));

  const told = () => Object.fromEntries(names.map((name) => [name, form.elements[name].value.trim()]));
  const given = () => Object.fromEntries(Object.entries(told()).map(([name, value]) => [name, value === ANY && form.elements[name].dataset.first ? "" : value]));

  function clear() {
    for (const input of form.querySelectorAll("input, select")) input.value = input.dataset.first ?? "";
    start();
  }

  function say(busy) {
    const filtered = Object.values(given()).some(Boolean);
    show(status, busy ? h("span", { class: "busy" }, "Searching… ") : null,
      filtered ? `${number(found.length)} found; the newest ${number(searchedSoFar)} ${unit} were looked at${before === null ? ", which is all of them" : ""}.` : `${number(found.length)} ${unit}${before === null ? "" : ", newest first"}.`);
    next.hidden = before === null || busy;
    list.element.hidden = busy && !found.length; // whether nothing fits is not known yet
  }

  async function walk(mine, wanted) {
    idle = false;
    say(true);
    try {
      while (mine === run && !page.signal.aborted) {
        const first = before === null;
        const answer = await ask(path, { ...given(), before, n: ENOUGH }, page.signal);
        if (mine !== run) return;
        newest = first ? JSON.stringify(answer) : "";
        found = [...found, ...rows(answer)];
        searchedSoFar += answer.searched;
        before = answer.next;
        list.update(found);
        if (before === null || found.length >= wanted) break;
        say(true);
      }
      if (mine === run) { idle = true; say(false); }
    } catch (error) {
      if (page.signal.aborted || mine !== run) return;
      next.hidden = true;
      list.element.hidden = !found.length;
      if (error instanceof Refusal && error.passing && error.status !== 504) timer = setTimeout(() => walk(mine, wanted), AGAIN_MS);
      show(status, h("span", { class: error instanceof Refusal && error.passing ? "soft" : "down" }, error.message));
    }
  }

  function start() {
    clearTimeout(timer);
    page.filter(told());
    for (const chip of chips?.children ?? []) chip.setAttribute("aria-pressed", String(form.elements[chips.dataset.of].value === chip.dataset.value));
    run += 1;
    found = [];
    before = null;
    searchedSoFar = 0;
    list.update(found);
    return walk(run, ENOUGH);
  }

  /** While one answer is all that is shown, it is asked for again when something has changed. */
  async function freshen(tick) {
    if (!idle || !newest || tick?.away) return;
    const mine = run;
    idle = false;
    try {
      const answer = await ask(path, { ...given(), n: ENOUGH }, page.signal), said = JSON.stringify(answer);
      if (mine !== run || said === newest) return;
      newest = said;
      found = rows(answer);
      searchedSoFar = answer.searched;
      before = answer.next;
      list.update(found);
      say(false);
    } catch { /* the banner says why */ } finally {
      if (mine === run) idle = true;
    }
  }

  follow(freshen, page.signal);
  const fetchMore = () => walk(run, found.length + ENOUGH);
  start();
  return { element: h("div", { class: "searched" }, form, status, list.element, h("p", null, next)), refresh: start };
}
