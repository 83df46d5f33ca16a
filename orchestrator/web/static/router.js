// Real paths and the history API. A page module exports Page({ page }), a component; `page` is described below.

import { href } from "./address.js";
import { askText, messageOf, Refusal, stopped } from "./api.js";
import { follow } from "./live.js";
import { html, render } from "./vendor/preact.js";

/** @typedef {import("./address.js").Value} Value */
/** @typedef {import("./api.js").Params} Params */
/** @typedef {import("./live.js").Tick} Tick */
/** @typedef {{ Page: (props: { page: Page }) => any }} Module */
/**
 * @typedef {object} Place a page: path with :names, title, how to load it
 * @property {string} path
 * @property {string} title
 * @property {boolean} [nav] whether it is in the navigation
 * @property {string} [key] the letter after g
 * @property {string} [under] the navigation path that it belongs to
 * @property {() => Promise<Module>} load
 */
/** @typedef {Place & { expression: RegExp, names: string[] }} Known */
/** @typedef {ReturnType<typeof pageOf>} Page */

const RETRY_MS = 3000;
const TICK_MS = 1000;
const NOW = "now"; // a manual request is not delayed
let leaving = new AbortController();
let visit = 0;
/** Path and query of the page that is shown. */
let address = "";
/** @type {HTMLElement} */
let root;
let home = "/";
/** @type {Known[]} */
let known = [];
/** @type {(place: Place | null) => void} */
let changed = () => {};

/** @param {string} path */
function pattern(path) {
  /** @type {string[]} */
  const names = [];
  const source = path.replace(/:(\w+)/g, (_, name) => {
    names.push(name);
    return "([^/]+)";
  });
  return { expression: new RegExp(`^${source}/?$`), names };
}

/** @param {string} path */
function match(path) {
  for (const place of known) {
    const found = place.expression.exec(path);
    if (found)
      return {
        place,
        params: Object.fromEntries(place.names.map((name, i) => [name, decodeURIComponent(found[i + 1])])),
      };
  }
  return null;
}

/**
 * Opens a path.
 * @param {string} path
 * @param {Record<string, Value>} [params]
 */
export function go(path, params = {}, { replace = false } = {}) {
  const to = href(path, params);
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  enter();
}

/**
 * A panel instead of a page, with the reason.
 * @param {{ title: string, children?: any }} props
 */
const Message = ({ title, children }) => html`<section class="message"><h1>${title}</h1>${children}</section>`;

/** Shown until a page is loaded. */
export const loading = html`<div class="loading" aria-busy="true">Loading…</div>`;

/**
 * Replaces the current content.
 * @param {any} shown
 */
const put = (shown) => render(html`<${shown.type} ...${shown.props} key=${++visit} />`, root);

/**
 * @param {Record<string, string>} params of the path
 * @param {AbortSignal} signal aborts when the page is left
 */
function pageOf(params, signal) {
  let refused = false;
  const page = {
    params,
    query: new URLSearchParams(location.search),
    signal,
    href,
    go,
    /**
     * Sets the page's title, also the window's.
     * @param {string} text
     */
    title(text) {
      document.title = `${text} · Penstock`;
    },
    /**
     * Changes parameters of the address without leaving the page; empty ones are removed.
     * @param {Record<string, Value>} params
     */
    filter(params, { push = false } = {}) {
      const to = href(location.pathname + location.search, params);
      if (push) history.pushState(null, "", to);
      else history.replaceState(null, "", to);
      address = location.pathname + location.search;
      page.query = new URLSearchParams(location.search);
    },
    /**
     * Shows the reason for a refusal instead of the page, the first one.
     * @param {Refusal} error
     */
    refuse(error) {
      if (refused) return;
      refused = true;
      const title = error.status === 404 ? "Not there" : "This cannot be shown";
      put(html`<${Message} title=${title}><p>${error.message}</p><//>`);
    },
    /**
     * Requests `path` with `params` (an object, or a function that returns one), passes the answer to `shown`, and repeats this when something
     * has changed and the answer differs. Returns a function that refreshes at once. Permanent errors replace the page, until a later
     * answer is good; after passing ones it retries. `every`: minimum milliseconds between two automatic requests.
     * @param {string} path
     * @param {Params | (() => Params)} params
     * @param {(answer: any) => void} shown
     */
    live(path, params, shown, { every = TICK_MS } = {}) {
      /** @type {string | null} */
      let last = null;
      let busy = false;
      let wrong = false; // the last answer was a refusal
      /** @type {Tick | "now" | null} */
      let again = null;
      let requestedAt = 0;
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let later;
      /** @param {Tick | null} [tick] */
      const load = async (tick) => {
        if (signal.aborted || tick?.away) return;
        if (busy) {
          again = tick && again !== NOW ? tick : NOW;
          return;
        }
        clearTimeout(later);
        const wait = tick ? requestedAt + every - Date.now() : 0;
        if (wait > 0) {
          later = setTimeout(load, wait);
          return;
        }
        busy = true;
        requestedAt = Date.now();
        try {
          const text = await askText(path, typeof params === "function" ? params() : params, signal);
          if (wrong && !signal.aborted) return void enter();
          if (!signal.aborted && text !== last) {
            last = text;
            shown(JSON.parse(text));
          }
        } catch (error) {
          if (signal.aborted || stopped(error)) return;
          if (!(error instanceof Refusal)) throw error;
          if (error.passing) later = setTimeout(load, RETRY_MS);
          else {
            wrong = true;
            page.refuse(error);
          }
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
      return () => {
        last = null;
        return load(null);
      };
    },
  };
  return page;
}

async function enter() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (location.pathname === "/") history.replaceState(null, "", href(home));
  address = location.pathname + location.search;
  const found = match(location.pathname);
  changed(found?.place ?? null);
  window.scrollTo(0, 0);
  if (!found) {
    document.title = "Not there · Penstock";
    put(html`
      <${Message} title="Not there">
        <p>This dashboard has no such page.</p>
        <p><a href=${href(home)}>Go to the run</a></p>
      <//>
    `);
    return;
  }
  document.title = `${found.place.title} · Penstock`;
  put(loading);
  try {
    const { Page } = await found.place.load();
    if (signal.aborted) return;
    put(html`<${Page} page=${pageOf(found.params, signal)} />`);
  } catch (error) {
    if (signal.aborted || stopped(error)) return;
    const why = error instanceof Refusal ? error.message : `The page has a fault: ${messageOf(error)}`;
    put(html`<${Message} title="This page failed"><p>${why}</p><//>`);
    if (!(error instanceof Refusal)) throw error;
  }
}

/** Goes back or forward, unless only the fragment differs: the page has that place. */
function moved() {
  if (location.pathname + location.search !== address) enter();
}

/** @param {MouseEvent} event */
function follows(event) {
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || to.pathname.startsWith("/api/")) return;
  if (link.getAttribute("href")?.startsWith("#")) return;
  event.preventDefault();
  go(to.pathname + to.search);
}

/**
 * Starts the router: shows one of `pages` in `element`, `first` if the address names none; `onChange` gets the shown one.
 * @param {HTMLElement} element
 * @param {Place[]} pages
 * @param {string} first
 * @param {(place: Place | null) => void} onChange
 */
export function start(element, pages, first, onChange) {
  root = element;
  known = pages.map((place) => ({ ...place, ...pattern(place.path) }));
  home = first;
  changed = onChange;
  window.addEventListener("popstate", moved);
  document.addEventListener("click", follows);
  enter();
}
