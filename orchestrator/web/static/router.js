// Real paths and the history API. A page module exports mount(root, page); what `page` can do stands below.

import { Refusal, askText, chosenRun } from "./api.js";
import { h, show } from "./dom.js";
import { follow } from "./live.js";
import { HOME, pages } from "./pages.js";

const RETRY_MS = 3000;
const TICK_MS = 1000;
const NOW = "now"; // what was asked for by hand waits for nothing
let leaving = new AbortController();
let root = null;
let changed = () => {};

function pattern(path) {
  const names = [];
  const source = path.replace(/:(\w+)/g, (_, name) => (names.push(name), "([^/]+)"));
  return { expression: new RegExp(`^${source}/?$`), names };
}

const known = pages.map((page) => ({ ...page, ...pattern(page.path) }));

function match(path) {
  for (const page of known) {
    const found = page.expression.exec(path);
    if (found) return { page, params: Object.fromEntries(page.names.map((name, i) => [name, decodeURIComponent(found[i + 1])])) };
  }
  return null;
}

/** A path of this dashboard with its parameters, and with the run that is looked at. */
export function href(path, params = {}) {
  const [bare, given = ""] = path.split("?");
  const query = new URLSearchParams(given);
  for (const [name, value] of Object.entries(params))
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, String(value));
  if (!query.has("run") && chosenRun()) query.set("run", chosenRun());
  const text = query.toString();
  return text ? `${bare}?${text}` : bare;
}

/** Goes to a path. */
export function go(path, params = {}, { replace = false } = {}) {
  const address = href(path, params);
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  enter();
}

/** A panel instead of a page: why there is nothing to see. */
export const message = (title, sentence, ...more) =>
  h("section", { class: "message" }, h("h1", null, title), h("p", null, sentence), more);

function pageOf(found, signal) {
  const page = {
    params: found.params,
    query: new URLSearchParams(location.search),
    signal,
    href,
    go,
    /** Names the page, in the window's title too. */
    title(text) {
      document.title = `${text} · Penstock`;
    },
    /** Changes parameters of the address without leaving the page; empty ones go. */
    filter(params, { push = false } = {}) {
      const address = href(location.pathname + location.search, params);
      if (push) history.pushState(null, "", address);
      else history.replaceState(null, "", address);
      page.query = new URLSearchParams(location.search);
    },
    /** Says instead of the page why it cannot be shown. */
    refuse(error) {
      show(root, message(error.status === 404 ? "Not there" : "This cannot be shown", error.message));
    },
    /**
     * Asks `path` with `params` (an object, or a function that gives one), gives the answer to `shown`, and does so again when something has
     * changed and the answer is another one. Returns a function that asks at once. What stays wrong replaces the page; what passes is waited for.
     * `every`: at least so many milliseconds lie between two questions that nobody asked for by hand.
     */
    live(path, params, shown, { every = TICK_MS } = {}) {
      let last = null, busy = false, again = null, asked = 0, later = 0;
      const load = async (tick) => {
        if (signal.aborted || tick?.away) return;
        if (busy) { again = tick && again !== NOW ? tick : NOW; return; }
        clearTimeout(later);
        const wait = tick ? asked + every - Date.now() : 0;
        if (wait > 0) { later = setTimeout(load, wait); return; }
        busy = true;
        asked = Date.now();
        try {
          const text = await askText(path, typeof params === "function" ? params() : params, signal);
          if (!signal.aborted && text !== last) { last = text; shown(JSON.parse(text)); }
        } catch (error) {
          if (signal.aborted || error.name === "AbortError") return;
          if (!(error instanceof Refusal)) throw error;
          if (error.passing) later = setTimeout(load, RETRY_MS);
          else page.refuse(error);
        } finally {
          busy = false;
        }
        const next = again;
        again = null;
        if (next) load(next === NOW ? null : next);
      };
      follow(load, signal);
      signal.addEventListener("abort", () => clearTimeout(later));
      load(null);
      return () => { last = null; return load(null); };
    },
  };
  return page;
}

async function enter() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (location.pathname === "/") history.replaceState(null, "", href(HOME));
  const found = match(location.pathname);
  changed(found?.page ?? null);
  window.scrollTo(0, 0);
  if (!found) {
    document.title = "Not there · Penstock";
    show(root, message("Not there", "This dashboard has no such page.", h("p", null, h("a", { href: href(HOME) }, "Go to the run"))));
    return;
  }
  document.title = `${found.page.title} · Penstock`;
  show(root, h("div", { class: "loading", "aria-busy": "true" }, "Loading…"));
  try {
    const module = await found.page.load();
    if (signal.aborted) return;
    show(root);
    await module.mount(root, pageOf(found, signal));
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    show(root, message("This page failed", error instanceof Refusal ? error.message : `The page has a fault: ${error.message}`));
    if (!(error instanceof Refusal)) throw error;
  }
}

/** Begins: pages are shown in `element`; `onChange` hears which page is on. */
export function start(element, onChange) {
  root = element;
  changed = onChange;
  window.addEventListener("popstate", enter);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
    const to = new URL(link.href);
    if (to.origin !== location.origin || to.pathname.startsWith("/api/") || link.getAttribute("href").startsWith("#")) return;
    event.preventDefault();
    go(to.pathname + to.search);
  });
  enter();
}
