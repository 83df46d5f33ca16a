// The frame around every page: navigation, the chosen run, the live light, the theme.

import { chosenRun, href } from "./address.js";
import { ask, onAway } from "./api.js";
import { themeNow, useRedraw, useTheme } from "./hooks.js";
import { everywhere, start as startKeys } from "./keys.js";
import { onState } from "./live.js";
import { HOME, pages } from "./pages.js";
import { go, start } from "./router.js";
import { html, render, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/** @typedef {import("./router.js").Place} Place */
/** @typedef {{ name: string, state: string }} Run */

const AGAIN_MS = 5000;
const LIGHT = { live: "live", ended: "the run has ended", away: "away: waiting for it", paused: "not following" };
const nav = pages.filter((page) => page.nav);

const mark = html`
  <svg viewBox="0 0 32 32" class="mark" aria-hidden="true">
    <path d="M5 8h8l4 14h10" class="mark-line" />
    <circle cx="27" cy="22" r="3" class="mark-drop" />
  </svg>
`;

function flip() {
  const next = themeNow() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("penstock.theme", next);
  } catch {
    /* then only for this page */
  }
}

function ThemeButton() {
  const label = useTheme() === "dark" ? "Light theme" : "Dark theme";
  return html`<button class="quiet" type="button" onClick=${flip}>${label}</button>`;
}

/** Shows which service is away. */
function Banner() {
  const [sentence, say] = useState("");
  useLayoutEffect(() => {
    const end = onAway(say);
    return () => void end();
  }, []);
  return html`<div class="banner" role="status" aria-live="polite" hidden=${!sentence}>${sentence}</div>`;
}

/** @param {{ runState: string }} props */
function Light({ runState }) {
  const [state, setState] = useState(/** @type {import("./live.js").State} */ ("paused"));
  useLayoutEffect(() => {
    const end = onState(setState);
    return () => void end();
  }, []);
  const label = LIGHT[state === "live" && runState === "ended" ? "ended" : state];
  return html`<span class="light" data-state=${state} data-run=${runState}>${label}</span>`;
}

/**
 * The runs of the database. `visit` counts page visits: each one reloads the runs.
 * @param {{ visit: number, report: (state: string) => void }} props
 */
function RunSwitch({ visit, report }) {
  const [runs, setRuns] = useState(/** @type {Run[] | null} */ (null));
  const [chosen, setChosen] = useState("");
  useLayoutEffect(() => {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let later;
    let over = false;
    async function fill() {
      try {
        const me = await ask("/api/me", { run: "" });
        if (over) return;
        const name = chosenRun() || me.home;
        report(me.runs.find((/** @type {Run} */ run) => run.name === name)?.state ?? "");
        setRuns(me.runs);
        setChosen(name);
      } catch {
        if (over) return;
        setRuns(null);
        later = setTimeout(fill, AGAIN_MS);
      }
    }
    if (visit) fill();
    return () => {
      over = true;
      clearTimeout(later);
    };
  }, [visit]);
  /** @param {Event} event */
  const change = (event) =>
    go(location.pathname.split("/").slice(0, 2).join("/"), {
      run: /** @type {HTMLSelectElement} */ (event.target).value,
    });
  if (!runs)
    return html`<select aria-label="Run"><option>${visit ? chosenRun() || "run unknown" : ""}</option></select>`;
  const known = runs.some((run) => run.name === chosen);
  return html`
    <select aria-label="Run" onChange=${change} value=${chosen}>
      ${known ? null : html`<option value=${chosen} key=${`gone ${chosen}`}>${chosen} (not there)</option>`}
      ${runs.map(
        ({ name, state }) =>
          html`<option value=${name} key=${name}>${state === "active" ? name : `${name} (${state})`}</option>`,
      )}
    </select>
  `;
}

/** @type {(place: Place | null) => void} */
let changed = () => {};

function Frame() {
  const place = useRef(/** @type {Place | null} */ (null));
  const visit = useRef(0);
  const [runState, setRunState] = useState("");
  const redraw = useRedraw();
  changed = (next) => {
    place.current = next;
    visit.current += 1;
    redraw();
  };
  const on = place.current && (place.current.nav ? place.current.path : place.current.under);
  return html`
    <header class="frame-head">
      <a class="brand" href=${href("/run")}>${mark}Penstock</a>
      <${RunSwitch} visit=${visit.current} report=${setRunState} />
      <nav aria-label="Pages">
        ${nav.map(
          ({ path, title }) =>
            html`<a href=${href(path)} data-path=${path} aria-current=${path === on ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <div class="frame-foot"><${Light} runState=${runState} /><${ThemeButton} /></div>
    </header>
    <div class="frame-body">
      <${Banner} />
      <main id="main" tabindex="-1" />
    </div>
  `;
}

function search() {
  /** @type {HTMLElement | null} */
  const field = document.querySelector("input[type=search]");
  if (!field) return false;
  field.focus();
}

everywhere([
  ...nav.map(({ key, title, path }) => ({ keys: [`g ${key}`], what: `go to ${title}`, run: () => go(path) })),
  { keys: ["t"], what: "light or dark", run: flip },
  { keys: ["/"], what: "search", run: search },
]);
startKeys();
render(html`<${Frame} />`, /** @type {HTMLElement} */ (document.getElementById("frame")));
start(/** @type {HTMLElement} */ (document.getElementById("main")), pages, HOME, (place) => changed(place));
