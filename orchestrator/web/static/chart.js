// A line chart: several series, points, bands, read-out under the cursor, zoom by dragging, log scale. Charts that share a `Sync` share cursor and zoom.

import { h, s, show } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 200, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 22, MARKS = 48;

/** What charts of one page share. */
export class Sync {
  range = null;
  cursor = null;
  #charts = new Set();
  #zoomed;
  /** `zoomed` is told every new range, null: the whole. */
  constructor(zoomed = () => {}) { this.#zoomed = zoomed; }
  join(chart) { this.#charts.add(chart); }
  zoom(range) { this.range = range; for (const chart of this.#charts) chart.draw(); this.#zoomed(range); }
  point(x) { this.cursor = x; for (const chart of this.#charts) chart.point(); }
}

/** Round numbers from low to high, about `count` of them. */
export function ticks(low, high, count = 4) {
  const step = 10 ** Math.floor(Math.log10((high - low) / count || 1));
  const error = (high - low) / count / step;
  const round = step * (error >= 7.5 ? 10 : error >= 3.5 ? 5 : error >= 1.5 ? 2 : 1);
  const found = [];
  for (let i = Math.ceil(low / round - 1e-9); i * round <= high + round * 1e-9; i += 1) found.push(Number((i * round).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) if (10 ** e >= low * .999 && 10 ** e <= high * 1.001) found.push(10 ** e);
  return found.length > 1 ? found : [low, high];
}

const nearest = (xs, x) => {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
};

/**
 * options: title, note?, format(y)?, sync, log? (begins so), from? (a number that y always reaches), empty?. Returns { element, update(series, axis, note?) }:
 * series [{ name, color 1–8, x, y, low?, high?, dashed?, thin?, marks? }], axis { label, format(x), whole? } (`whole`: the ends of
 * what can be shown, where the series hold a part of it); y may hold null.
 */
export function chart(options) {
  const format = options.format ?? number, sync = options.sync ?? new Sync();
  let all = [], axis = { label: "", format: number }, log = options.log ?? false, frame = null, loaded = false;
  const off = new Set();
  const logButton = h("button", { class: "quiet tiny", type: "button", "aria-pressed": String(log), title: "logarithmic y", on: { click: () => { log = !log; logButton.setAttribute("aria-pressed", String(log)); draw(); } } }, "log");
  const resetButton = h("button", { class: "quiet tiny", type: "button", hidden: true, on: { click: () => sync.zoom(null) } }, "reset zoom");
  const legend = h("div", { class: "legend" });
  const picture = s("svg", { class: "chart-picture", tabindex: 0, role: "img", height: HEIGHT });
  const note = h("p", { class: "small faint" }, options.note ?? "");
  const element = h("figure", { class: "panel chart" },
    h("figcaption", { class: "panel-head" }, h("div", null, h("h2", null, options.title), options.note ? note : null), h("div", { class: "tools" }, resetButton, logButton)),
    picture, legend);

  const shown = () => all.filter((line) => !off.has(line.name));

  function bounds() {
    let [x0, x1] = sync.range ?? [Infinity, -Infinity], y0 = Infinity, y1 = -Infinity;
    if (!sync.range) for (const line of all) for (const x of line.x) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); }
    for (const line of shown())
      line.x.forEach((x, i) => {
        // What lies just outside is where a line comes from, or goes to.
        if ((x < x0 && !(line.x[i + 1] >= x0)) || (x > x1 && !(line.x[i - 1] <= x1))) return;
        for (const y of [line.y[i], line.low?.[i], line.high?.[i]])
          if (y !== null && y !== undefined && Number.isFinite(y) && (!log || y > 0)) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
      });
    if (options.from !== undefined && !log) { y0 = Math.min(y0, options.from); y1 = Math.max(y1, options.from); }
    if (x0 === x1) { x0 -= .5; x1 += .5; }
    if (log) { if (y0 === y1) { y0 /= 2; y1 *= 2; } }
    else {
      if (y0 >= 0 && y0 < y1 * .5 && !(options.from > 0)) y0 = 0;
      const pad = y1 === y0 ? Math.abs(y1) * .1 || .5 : (y1 - y0) * .06;
      if (y0 !== 0 && y0 !== options.from) y0 -= pad;
      y1 += pad;
    }
    return { x0, x1, y0, y1 };
  }

  function draw() {
    show(picture);
    resetButton.hidden = !sync.range;
    const width = Math.max(160, picture.clientWidth || element.clientWidth - 40);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const { x0, x1, y0, y1 } = bounds();
    frame = null;
    if (!Number.isFinite(x0) || !Number.isFinite(y0) || !Number.isFinite(y1)) {
      picture.append(s("text", { class: "chart-none", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, all.length && log ? "nothing above zero here" : loaded ? options.empty ?? "nothing to show yet" : "…"));
      picture.setAttribute("aria-label", `${options.title}: nothing to show`);
      tell();
      return;
    }
    const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const scale = log ? (y) => (Math.log(y) - Math.log(y0)) / (Math.log(y1) - Math.log(y0)) : (y) => (y - y0) / (y1 - y0);
    const py = (y) => HEIGHT - BOTTOM - scale(y) * (HEIGHT - TOP - BOTTOM);
    frame = { x0, x1, px, py, width };
    for (const y of log ? logTicks(y0, y1) : ticks(y0, y1)) {
      picture.append(s("line", { class: "chart-grid", x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y) }));
      picture.append(s("text", { class: "chart-tick", x: LEFT - 7, y: py(y) + 3.5, "text-anchor": "end" }, format(y)));
    }
    const across = ticks(x0, x1, Math.max(2, Math.floor(width / 110))).filter((x) => x >= x0 && x <= x1);
    across.forEach((x, i) => i && axis.format(x) === axis.format(across[i - 1]) || picture.append(s("text", { class: "chart-tick", x: px(x), y: HEIGHT - 5, "text-anchor": px(x) > width - 30 ? "end" : "middle" }, axis.format(x))));
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    picture.append(s("clipPath", { id: clip }, s("rect", { x: LEFT - 4, y: 0, width: width - LEFT - RIGHT + 8, height: HEIGHT - BOTTOM + 4 })));
    const inside = s("g", { "clip-path": `url(#${clip})` });
    for (const line of shown()) {
      const ok = (i) => line.y[i] !== null && line.y[i] !== undefined && Number.isFinite(line.y[i]) && (!log || line.y[i] > 0);
      const marks = line.marks || line.x.length <= MARKS;
      if (line.low && !line.marks) {
        const part = line.x.map((_, i) => i).filter((i) => ok(i) && line.low[i] !== null && line.high[i] !== null && (!log || line.low[i] > 0));
        if (part.length > 1) inside.append(s("path", { class: `chart-band c${line.color}`, d: `M${part.map((i) => `${px(line.x[i]).toFixed(1)},${py(line.high[i]).toFixed(1)}`).join("L")}L${part.reverse().map((i) => `${px(line.x[i]).toFixed(1)},${py(line.low[i]).toFixed(1)}`).join("L")}Z` }));
      }
      let d = "", pen = false;
      // A train step without this domain is no break in its line.
      line.x.forEach((x, i) => { if (!ok(i)) return; d += `${pen ? "L" : "M"}${px(x).toFixed(1)},${py(line.y[i]).toFixed(1)}`; pen = true; });
      inside.append(s("path", { class: `chart-line c${line.color}${line.dashed ? " dashed" : ""}${line.thin ? " thin" : ""}`, d }));
      if (marks) line.x.forEach((x, i) => {
        if (!ok(i) || x < x0 || x > x1) return;
        if (line.marks && line.low && !line.thin) inside.append(s("line", { class: `chart-whisker c${line.color}`, x1: px(x), x2: px(x), y1: py(log ? Math.max(y0, line.low[i]) : line.low[i]), y2: py(line.high[i]) }));
        inside.append(s("circle", { class: `chart-mark c${line.color}${line.thin ? " thin" : ""}`, cx: px(x).toFixed(1), cy: py(line.y[i]).toFixed(1), r: line.marks ? 3 : 1.8 }));
      });
    }
    picture.append(inside, s("line", { class: "chart-cursor", y1: TOP, y2: HEIGHT - BOTTOM, hidden: true }), s("rect", { class: "chart-drag", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 0 }));
    picture.setAttribute("aria-label", `${options.title}. ${shown().map((line) => `${line.name}: ${format(line.y.findLast((y) => y !== null) ?? null)}`).join(", ")}`);
    point();
  }

  const where = h("span", { class: "faint" });
  let items = [];
  /** The legend's buttons: made anew when the lines are others, so that a click on one is not lost while the cursor moves. */
  function legendOf() {
    items = all.map((line) => {
      const value = h("b"), toggle = () => { if (!off.delete(line.name)) off.add(line.name); draw(); };
      const button = h("button", { type: "button", title: "show or hide", on: { click: toggle } }, line.name, value);
      return { name: line.name, button, value };
    });
    show(legend, items.map((item) => item.button), where);
  }

  function tell() {
    if (items.length !== all.length || items.some((item, i) => item.name !== all[i].name)) legendOf();
    const at = sync.cursor;
    all.forEach((line, i) => {
      const k = !line.x.length ? -1 : at === null ? line.y.findLastIndex((y) => y !== null) : nearest(line.x, at);
      items[i].button.setAttribute("class", `legend-item c${line.color}${line.dashed ? " dashed" : ""}${line.thin ? " thin" : ""}`);
      items[i].button.setAttribute("aria-pressed", String(!off.has(line.name)));
      show(items[i].value, k < 0 ? "" : format(line.y[k]) + (line.low && line.marks && !line.thin && line.low[k] !== null ? ` (${format(line.low[k])}–${format(line.high[k])})` : ""));
    });
    show(where, at === null || !all.length ? (axis.label ? `by ${axis.label}` : "") : `${axis.label} ${axis.format(at)}`);
  }

  function point() {
    const cursor = picture.querySelector(".chart-cursor");
    if (cursor && frame) {
      const on = sync.cursor !== null && sync.cursor >= frame.x0 && sync.cursor <= frame.x1;
      cursor.toggleAttribute("hidden", !on);
      if (on) { cursor.setAttribute("x1", frame.px(sync.cursor)); cursor.setAttribute("x2", frame.px(sync.cursor)); }
    }
    tell();
  }

  const longest = () => shown().reduce((best, line) => (line.x.length > (best?.x.length ?? 0) ? line : best), null);
  const place = (event) => {
    const { x0, x1, width } = frame, left = picture.getBoundingClientRect().left;
    return Math.min(x1, Math.max(x0, x0 + ((event.clientX - left - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0)));
  };
  const snap = (x) => { const line = longest(); return line?.x.length ? line.x[nearest(line.x, x)] : x; };
  let dragging = null;
  picture.addEventListener("pointermove", (event) => {
    if (!frame) return;
    const x = place(event);
    if (dragging !== null) {
      const [a, b] = [frame.px(Math.min(x, dragging)), frame.px(Math.max(x, dragging))], drag = picture.querySelector(".chart-drag");
      drag.setAttribute("x", a);
      drag.setAttribute("width", b - a);
    }
    sync.point(snap(x));
  });
  picture.addEventListener("pointerleave", () => { if (dragging === null) sync.point(null); });
  picture.addEventListener("pointerdown", (event) => { if (frame && event.button === 0 && event.pointerType !== "touch") { dragging = place(event); picture.setPointerCapture(event.pointerId); } });
  picture.addEventListener("pointerup", (event) => {
    if (dragging === null || !frame) return;
    const [a, b] = [dragging, place(event)].sort((one, other) => one - other);
    dragging = null;
    if (frame.px(b) - frame.px(a) > 6) sync.zoom([a, b]);
    else picture.querySelector(".chart-drag")?.setAttribute("width", 0);
  });
  picture.addEventListener("dblclick", () => sync.zoom(null));
  picture.addEventListener("blur", () => sync.point(null));
  picture.addEventListener("keydown", (event) => {
    const line = longest();
    if (!frame || !line?.x.length) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      const i = sync.cursor === null ? nearest(line.x, frame.x1) : nearest(line.x, sync.cursor) + by;
      sync.point(line.x[Math.min(line.x.length - 1, Math.max(0, i))]);
    } else if (event.key === "Escape" && sync.range) sync.zoom(null);
    else if (event.key === "+" || event.key === "-") {
      const middle = sync.cursor ?? (frame.x0 + frame.x1) / 2, half = ((frame.x1 - frame.x0) / 2) * (event.key === "+" ? .5 : 2);
      const [least, most] = axis.whole ?? [line.x[0], line.x.at(-1)];
      sync.zoom(event.key === "-" && half > (most - least) / 2 ? null : [middle - half, middle + half]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  new ResizeObserver(draw).observe(picture);
  const own = { element, draw, point, update(series, along, said) { all = series; loaded = true; axis = along ?? axis; if (said !== undefined) note.textContent = said; draw(); } };
  sync.join(own);
  return own;
}
