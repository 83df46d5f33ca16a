// The frame around every page: navigation, the run that is looked at, the live light, the theme.

import { ask, bannerElement, chosenRun } from "./api.js";
import { h, redraw, s, show } from "./dom.js";
import { everywhere, start as startKeys } from "./keys.js";
import { onState } from "./live.js";
import { pages } from "./pages.js";
import { go, href, start } from "./router.js";

const AGAIN_MS = 5000;
const LIGHT = { live: "live", ended: "the run has ended", away: "away: waiting for it", paused: "not following" };

const mark = () =>
  s("svg", { viewBox: "0 0 32 32", class: "mark", "aria-hidden": "true" },
    s("path", { d: "M5 8h8l4 14h10", class: "mark-line" }), s("circle", { cx: 27, cy: 22, r: 3, class: "mark-drop" }));

function themeButton() {
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const button = h("button", { class: "quiet", type: "button", on: { click: flip } });
  function label() {
    show(button, dark() ? "Light theme" : "Dark theme");
  }
  function flip() {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("penstock.theme", next); } catch { /* only for this page, then */ }
    label();
  }
  label();
  return { button, flip };
}

function runSwitch(told) {
  const choice = h("select", { "aria-label": "Run", on: { change: () => go(location.pathname.split("/").slice(0, 2).join("/"), { run: choice.value }) } });
  async function fill() {
    try {
      const me = await ask("/api/me", { run: "" });
      const chosen = chosenRun() || me.home;
      const gone = me.runs.some((run) => run.name === chosen) ? null : h("option", { value: chosen }, `${chosen} (not there)`);
      told(me.runs.find((run) => run.name === chosen)?.state ?? "");
      redraw(choice, gone, me.runs.map((run) => h("option", { value: run.name }, run.state === "active" ? run.name : `${run.name} (${run.state})`)));
      choice.value = chosen;
    } catch {
      show(choice, h("option", null, chosenRun() || "run unknown"));
      setTimeout(fill, AGAIN_MS);
    }
  }
  return { choice, fill };
}

const nav = pages.filter((page) => page.nav);
const links = nav.map((page) => h("a", { href: href(page.path), data: { path: page.path } }, page.title));
const light = h("span", { class: "light" });
let state = "paused", runState = "";
function shine() {
  light.dataset.state = state;
  light.dataset.run = runState;
  show(light, LIGHT[state === "live" && runState === "ended" ? "ended" : state]);
}
const runs = runSwitch((found) => { runState = found; shine(); });
const theme = themeButton();
const main = h("main", { id: "main", tabindex: -1 });

show(
  document.getElementById("frame"),
  h("header", { class: "frame-head" },
    h("a", { class: "brand", href: href("/run") }, mark(), "Penstock"),
    runs.choice,
    h("nav", { "aria-label": "Pages" }, links),
    h("div", { class: "frame-foot" }, light, theme.button)),
  h("div", { class: "frame-body" }, bannerElement(), main),
);

onState((next) => { state = next; shine(); });

everywhere([
  ...nav.filter((page) => page.key).map((page) => ({ keys: [`g ${page.key}`], what: `go to ${page.title}`, run: () => go(page.path) })),
  { keys: ["t"], what: "light or dark", run: theme.flip },
  { keys: ["/"], what: "search", run: () => { const field = document.querySelector("input[type=search]"); if (!field) return false; field.focus(); return true; } },
]);
startKeys();
start(main, (page) => {
  runs.fill();
  for (const link of links) {
    link.href = href(link.dataset.path);
    if (page && (page.nav ? page.path : page.under) === link.dataset.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
});
