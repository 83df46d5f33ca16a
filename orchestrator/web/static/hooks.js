// Hooks shared by pages: a live answer, keys while mounted, the theme, an element's width.

import { keys } from "./keys.js";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact.js";

/** @typedef {import("./router.js").Page} Page */

/**
 * The answer to `path`, refreshed live (`page.live`); null until the first. `onAnswer(answer)` runs before it is drawn.
 * @param {Page} page
 * @param {string} path
 * @param {import("./api.js").Params} [params]
 * @param {{ every?: number, onAnswer?: (answer: any) => void }} [options]
 * @returns {[any, () => void]} the answer, and a function that refreshes it at once
 */
export function useLive(page, path, params = {}, { every, onAnswer } = {}) {
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  const again = useRef(() => {});
  useLayoutEffect(() => {
    again.current = page.live(
      path,
      params,
      (found) => {
        onAnswer?.(found);
        setAnswer(found);
      },
      { every },
    );
  }, []);
  return [answer, () => again.current()];
}

/**
 * Sets the page's title.
 * @param {Page} page
 * @param {string} text
 */
export const useTitle = (page, text) => useLayoutEffect(() => page.title(text), [text]);

/**
 * Keys while the component is on the page: see keys.js.
 * @param {string} title
 * @param {import("./keys.js").Entry[]} entries
 */
export const useKeys = (title, entries) => useLayoutEffect(() => keys(title, entries));

/** A function that redraws the component. */
export function useRedraw() {
  const [, redraw] = useReducer((/** @type {number} */ n) => n + 1, 0);
  return /** @type {() => void} */ (redraw);
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** The current theme: the chosen one, else the system's. */
export const themeNow = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");

/** The current theme, also after changes. */
export function useTheme() {
  const [theme, setTheme] = useState(themeNow());
  useEffect(() => {
    const look = () => setTheme(themeNow());
    const observer = new MutationObserver(look);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    dark.addEventListener("change", look);
    look();
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", look);
    };
  }, []);
  return theme;
}

/**
 * Width of an element in pixels; 0 until it is on the page.
 * @param {{ current: Element | null }} ref
 */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);
  return width;
}
