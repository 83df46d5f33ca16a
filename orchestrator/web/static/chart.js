// A line chart with its keys and its legend, which shows and hides lines and gives the values under the cursor. plot.js draws the lines.

import { number } from "./format.js";
import { useRedraw, useWidth } from "./hooks.js";
import { drawable, longest, nearest, usePlot } from "./plot.js";
import { tone } from "./tone.js";
import { html, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/** @typedef {import("./plot.js").Y} Y */
/** @typedef {import("./plot.js").Line} Line */
/** @typedef {import("./plot.js").Axis} Axis */

/** @param {Line} line @param {boolean} log */
const pointsOf = (line, log) => line.y.filter((y) => drawable(y, log)).length;

/** @param {Y[]} values */
const lastOf = (values) => values.findLastIndex((y) => y !== null);

/**
 * The range of x over all lines.
 * @param {Line[]} lines
 * @returns {[number, number]}
 */
function endsOf(lines) {
  const ends = lines.filter((line) => line.x.length).flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
  return [Math.min(...ends), Math.max(...ends)];
}

/**
 * A chart. `note`: a line below its title; `format(y)`; `log`: starts logarithmic; `from`: a number that y always reaches; `empty`: text for a
 * chart without data; `series`: null until they are loaded.
 * @param {object} props
 * @param {string} props.title
 * @param {string} [props.note]
 * @param {import("./plot.js").Sync} props.sync
 * @param {(y: Y) => string} [props.format]
 * @param {boolean} [props.log]
 * @param {number} [props.from]
 * @param {string} [props.empty]
 * @param {Line[] | null} props.series
 * @param {Axis} props.axis
 */
export function Chart({ title, note, sync, format = number, log: begins = false, from, empty, series, axis }) {
  const [log, setLog] = useState(begins);
  const [off, setOff] = useState(/** @type {Set<string>} */ (new Set()));
  const redraw = useRedraw();
  const picture = useRef(/** @type {HTMLElement | null} */ (null));
  const width = useWidth(picture);
  useLayoutEffect(() => sync.join(redraw), [sync]);

  const all = series ?? [];
  const memo = useRef(
    /** @type {{ of: Line[] | null, off: Set<string>, shown: Line[] }} */ ({ of: null, off, shown: [] }),
  );
  if (memo.current.of !== series || memo.current.off !== off)
    memo.current = { of: series, off, shown: all.filter((line) => !off.has(line.name)) };
  const { shown } = memo.current;
  const [x0, x1] = sync.range ?? [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  /** @param {Line} line */
  const isIn = (line) =>
    line.y.some(
      (y, i) =>
        // A point just outside of the range is an end of a visible segment.
        drawable(y, log) && (line.x[i] >= x0 || line.x[i + 1] >= x0) && (line.x[i] <= x1 || line.x[i - 1] <= x1),
    );
  const drawing = shown.some(isIn) ? { shown, axis, log, ends: endsOf(all) } : null;
  usePlot(picture, drawing, sync, width, { format, from });

  /**
   * A point's value, with the count behind a share, and the interval of a mark.
   * @param {Line} line
   * @param {number} k
   */
  const described = (line, k) => {
    if (k < 0 || line.y[k] === null) return format(null);
    const wanted =
      line.n && line.wanted && line.wanted[k] > line.n[k] ? ` judged, ${number(line.wanted[k])} wanted` : "";
    const of = line.n ? ` of ${number(line.n[k])}${wanted}` : "";
    const low = line.low?.[k] ?? null;
    return `${format(line.y[k])}${of}${line.marks && low !== null ? ` (${format(low)}–${format(line.high?.[k] ?? null)})` : ""}`;
  };
  /** @param {Line} line */
  const valueAt = (line) => {
    const k = !line.x.length ? -1 : sync.cursor === null ? lastOf(line.y) : nearest(line.x, sync.cursor);
    return k < 0 ? "" : described(line, k);
  };
  /** @param {string} name */
  const toggle = (name) => {
    const next = new Set(off);
    if (!next.delete(name)) next.add(name);
    setOff(next);
  };

  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const line = longest(shown);
    if (!drawing || !line) return;
    const [first, last] = axis.whole ?? [line.x[0], line.x[line.x.length - 1]];
    const [left, right] = sync.range ?? endsOf(all);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      const i = sync.cursor === null ? nearest(line.x, right) : nearest(line.x, sync.cursor) + by;
      sync.point(line.x[Math.min(line.x.length - 1, Math.max(0, i))]);
    } else if (event.key === "Escape" && sync.range) sync.zoom(null);
    else if (event.key === "+" || event.key === "-") {
      const middle = sync.cursor ?? (left + right) / 2;
      const half = ((right - left) / 2) * (event.key === "+" ? 0.5 : 2);
      sync.zoom(event.key === "-" && half > (last - first) / 2 ? null : [middle - half, middle + half]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const none = all.length && log ? "nothing above zero here" : series ? (empty ?? "nothing to show yet") : "…";
  const label = drawing
    ? `${title}. ${shown.map((line) => `${line.name}: ${described(line, lastOf(line.y))}`).join(", ")}`
    : `${title}: nothing to show`;
  const where =
    sync.cursor === null || !all.length
      ? axis.label && `by ${axis.label}`
      : `${axis.label} ${axis.format(sync.cursor)}`;
  return html`
    <figure class="panel chart">
      <figcaption class="panel-head">
        <div><h2>${title}</h2>${note ? html`<p class="small faint">${note}</p>` : null}</div>
        <div class="tools">
          <button class="quiet tiny" type="button" hidden=${!sync.range} onClick=${() => sync.zoom(null)}>reset zoom</button>
          <button
            class="quiet tiny"
            type="button"
            aria-pressed=${String(log)}
            title="logarithmic y"
            onClick=${() => setLog(!log)}>
            log
          </button>
        </div>
      </figcaption>
      <div class="chart-box">
        <div
          class="chart-picture"
          ref=${picture}
          tabindex="0"
          role="img"
          aria-label=${label}
          onKeyDown=${pressed}
          onBlur=${() => sync.point(null)} />
        ${drawing ? null : html`<p class="chart-none">${none}</p>`}
      </div>
      <div class="legend">
        ${all.map(
          (line) => html`
            <button
              key=${line.name}
              type="button"
              title="show or hide"
              class=${`legend-item ${tone(line.color)}${line.dashed ? " dashed" : ""}${line.thin ? " thin" : ""}`}
              aria-pressed=${String(!off.has(line.name))}
              data-points=${pointsOf(line, log)}
              onClick=${() => toggle(line.name)}>
              ${line.name}<b>${valueAt(line)}</b>
            </button>
          `,
        )}
        <span class="faint">${where}</span>
      </div>
    </figure>
  `;
}
