// Lines drawn by uPlot: points, bands, whiskers, zoom by dragging, log scale. Charts that share a `Sync` share cursor and zoom. The colours are
// those of style.css, passed explicitly because a canvas does not inherit them.

import { number } from "./format.js";
import { useTheme } from "./hooks.js";
import { tone } from "./tone.js";
import { useLayoutEffect, useRef } from "./vendor/preact.js";
import uPlot from "./vendor/uplot.js";

/** @typedef {number | null} Y */
/**
 * @typedef {object} Line
 * @property {string} name
 * @property {number} color 1, 2, …
 * @property {number[]} x ascending
 * @property {Y[]} y
 * @property {Y[]} [low] of the interval around y
 * @property {Y[]} [high]
 * @property {number[]} [n] count behind each y that is a share
 * @property {number[]} [wanted] count that was wanted, if some have no verdict
 * @property {boolean} [dashed]
 * @property {boolean} [thin]
 * @property {boolean} [marks] points with whiskers, without a band
 */
/**
 * @typedef {object} Axis
 * @property {string} label
 * @property {(x: number) => string} format
 * @property {[number, number] | null} [whole] the full extent, if the series hold only a part of it
 */
/**
 * @typedef {object} Drawing
 * @property {Line[]} shown
 * @property {Axis} axis
 * @property {boolean} log
 * @property {[number, number]} ends of x
 */

const HEIGHT = 200;
const LEFT = 46;
const BOTTOM = 22;
const MOST_MARKS = 48; // a line with more points is drawn without them
const LEAST_DRAG = 6; // pixels
const [BAND, THIN, WHISKER] = ["21", "9e", "99"]; // opacities of colours

/** State shared by the charts of a page. */
export class Sync {
  /** @type {[number, number] | null} */
  range = null;
  /** @type {number | null} */
  cursor = null;
  /** @type {Set<() => void>} */
  #charts = new Set();
  #zoomed;
  /** @param {(range: [number, number] | null) => void} [zoomed] gets every new range, null: the whole */
  constructor(zoomed = () => {}) {
    this.#zoomed = zoomed;
  }
  /**
   * Calls `drawn` whenever range or cursor changes. Returns a function that stops it.
   * @param {() => void} drawn
   */
  join(drawn) {
    this.#charts.add(drawn);
    return () => {
      this.#charts.delete(drawn);
    };
  }
  /** @param {[number, number] | null} range */
  zoom(range) {
    this.range = range;
    for (const drawn of this.#charts) drawn();
    this.#zoomed(range);
  }
  /** @param {number | null} x */
  point(x) {
    this.cursor = x;
    for (const drawn of this.#charts) drawn();
  }
}

/**
 * Index of the number nearest to x in ascending numbers.
 * @param {number[]} xs
 * @param {number} x
 */
export function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/**
 * @param {Y | undefined} y
 * @param {boolean} log
 */
export const drawable = (y, log) => y !== null && y !== undefined && Number.isFinite(y) && (!log || y > 0);

/**
 * The columns that uPlot draws: one x for all lines, then y, low and high of each. An x that a line has twice appears twice.
 * @param {Line[]} lines
 * @param {boolean} log
 * @returns {uPlot.AlignedData}
 */
function columnsOf(lines, log) {
  /** @type {Map<string, { x: number, again: number }>} */
  const places = new Map();
  const keys = lines.map((line) => {
    /** @type {Map<number, number>} */
    const seen = new Map();
    return line.x.map((x) => {
      const again = seen.get(x) ?? 0;
      seen.set(x, again + 1);
      const key = `${x} ${again}`;
      places.set(key, { x, again });
      return key;
    });
  });
  const rows = [...places].sort(([, a], [, b]) => a.x - b.x || a.again - b.again);
  const at = new Map(rows.map(([key], i) => [key, i]));
  const columns = lines.flatMap((line, i) =>
    [line.y, line.low, line.high].map((values) => {
      const column = new Array(rows.length).fill(null);
      values?.forEach((y, k) => {
        if (drawable(y, log)) column[/** @type {number} */ (at.get(keys[i][k]))] = y;
      });
      return column;
    }),
  );
  return /** @type {uPlot.AlignedData} */ ([rows.map(([, { x }]) => x), ...columns]);
}

/**
 * The range of y for values between low and high. `from`: a number that it always reaches.
 * @param {number | null} low
 * @param {number | null} high
 * @param {boolean} log
 * @param {number} [from]
 * @returns {uPlot.Range.MinMax}
 */
function rangeOf(low, high, log, from) {
  if (low === null || high === null) return [null, null];
  if (log) return low === high ? [low / 2, high * 2] : [low, high];
  let [y0, y1] = from === undefined ? [low, high] : [Math.min(low, from), Math.max(high, from)];
  if (y0 >= 0 && y0 < y1 * 0.5 && !(from && from > 0)) y0 = 0;
  const pad = y1 === y0 ? Math.abs(y1) * 0.1 || 0.5 : (y1 - y0) * 0.06;
  if (y0 !== 0 && y0 !== from) y0 -= pad;
  return [y0, y1 + pad];
}

/**
 * Powers of ten as the labels of a logarithmic axis, if there are several; else its ends.
 * @param {uPlot} _
 * @param {number[]} ys
 */
function powers(_, ys) {
  const round = ys.map((y) => Math.abs(Math.log10(y) - Math.round(Math.log10(y))) < 1e-9);
  const several = round.filter(Boolean).length > 1;
  return ys.map((y, i) => ((several ? round[i] : i === 0 || i === ys.length - 1) ? y : null));
}

/** @param {string} name of a custom property */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * Intervals of marks.
 * @param {uPlot} plot
 * @param {Drawing} drawing
 */
function whiskers(plot, { shown, log }) {
  const { ctx } = plot;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.lineWidth = 1.4 * ratio;
  for (const line of shown) {
    if (!line.marks || line.thin || !line.low || !line.high) continue;
    ctx.strokeStyle = colour(`--${tone(line.color)}`) + WHISKER;
    line.x.forEach((x, i) => {
      const [low, high] = [line.low?.[i], line.high?.[i]];
      if (low == null || high == null || !drawable(line.y[i], log)) return;
      const left = plot.valToPos(x, "x", true);
      ctx.beginPath();
      ctx.moveTo(left, plot.valToPos(log ? Math.max(Number(plot.scales.y.min), low) : low, "y", true));
      ctx.lineTo(left, plot.valToPos(high, "y", true));
      ctx.stroke();
    });
  }
  ctx.restore();
}

/**
 * The options of uPlot. `now()`: the current drawing.
 * @param {object} wanted
 * @param {() => Drawing} wanted.now
 * @param {Sync} wanted.sync
 * @param {number} wanted.width
 * @param {(y: Y) => string} wanted.format
 * @param {number} [wanted.from]
 * @returns {uPlot.Options}
 */
function optionsOf({ now, sync, width, format, from }) {
  const { shown, log } = now();
  const font = `11px ${colour("--sans")}`;
  const axis = { stroke: colour("--faint"), font, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    padding: [10, 10, 0, 0],
    legend: { show: false },
    scales: {
      x: {
        time: false,
        range: () => {
          const [low, high] = sync.range ?? now().ends;
          return low === high ? [low - 0.5, high + 0.5] : [low, high];
        },
      },
      y: { distr: log ? 3 : 1, range: (_, low, high) => rangeOf(low, high, now().log, from) },
    },
    axes: [
      {
        ...axis,
        size: BOTTOM,
        gap: 6,
        space: 60,
        grid: { show: false },
        values: (_, xs) => {
          const labels = xs.map(now().axis.format);
          return labels.map((each, i) => (i && each === labels[i - 1] ? null : each));
        },
      },
      {
        ...axis,
        size: LEFT,
        space: 36,
        grid: { stroke: colour("--line"), width: 1, ...(log ? { filter: powers } : {}) },
        ...(log ? { filter: powers } : {}),
        values: (_, ys) => ys.map((y) => (y === null ? "" : format(y))),
      },
    ],
    series: [
      {},
      ...shown.flatMap((line) => {
        const own = colour(`--${tone(line.color)}`);
        const stroke = line.thin ? own + THIN : own;
        const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
        const marked = line.marks || line.x.length <= MOST_MARKS;
        return [
          {
            label: line.name,
            stroke,
            width: line.thin ? 1.1 : line.dashed ? 1.3 : 1.8,
            ...(line.dashed ? { dash: [4, 4] } : {}),
            points: { show: marked, size: line.marks ? 6 : 3.6, width: 0, fill: stroke },
            spanGaps: true, // a train step without this domain does not break its line
          },
          edge,
          edge,
        ];
      }),
    ],
    bands: shown.flatMap((line, i) =>
      line.low && !line.marks
        ? [
            {
              series: /** @type {[number, number]} */ ([3 * i + 3, 3 * i + 2]),
              fill: colour(`--${tone(line.color)}`) + BAND,
            },
          ]
        : [],
    ),
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: LEAST_DRAG },
      bind: {
        dblclick: () => () => {
          sync.zoom(null);
          return null;
        },
      },
    },
    hooks: {
      draw: [(plot) => whiskers(plot, now())],
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (!wide) return;
          const range = /** @type {[number, number]} */ ([plot.posToVal(left, "x"), plot.posToVal(left + wide, "x")]);
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          sync.zoom(range);
        },
      ],
    },
  };
}

/** @param {Line[]} lines */
export const longest = (lines) =>
  lines.reduce(
    (best, line) => (line.x.length > (best?.x.length ?? 0) ? line : best),
    /** @type {Line | null} */ (null),
  );

/**
 * The nearest x of the line with the most points.
 * @param {Line[]} lines
 * @param {number} x
 */
function snapped(lines, x) {
  const line = longest(lines);
  return line ? line.x[nearest(line.x, x)] : x;
}

/**
 * Sends the position of the mouse over one chart to all charts. uPlot's own event also comes after every change of scale.
 * @param {uPlot} plot
 * @param {Sync} sync
 * @param {() => Drawing} now
 */
function pointed(plot, sync, now) {
  plot.over.addEventListener("mousemove", (event) => {
    const left = event.clientX - plot.over.getBoundingClientRect().left;
    sync.point(snapped(now().shown, plot.posToVal(left, "x")));
  });
  plot.over.addEventListener("mouseleave", (event) => {
    if (!event.buttons) sync.point(null);
  });
}

/**
 * Keeps a plot in `element` that shows the current drawing.
 * @param {{ current: HTMLElement | null }} element
 * @param {Drawing | null} drawing null: nothing to draw
 * @param {Sync} sync
 * @param {number} width
 * @param {{ format: (y: Y) => string, from?: number }} looks
 */
export function usePlot(element, drawing, sync, width, { format, from }) {
  const theme = useTheme();
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const now = useRef(drawing);
  now.current = drawing;
  const kinds = drawing?.shown.map((line) => [
    line.name,
    line.color,
    line.dashed,
    line.thin,
    line.marks,
    Boolean(line.low),
    line.x.length <= MOST_MARKS,
  ]);
  // Options that uPlot takes only once: a change needs a new plot.
  const key = drawing && width ? JSON.stringify([kinds, drawing.log, theme]) : "";
  const range = sync.range;
  const shown = drawing?.shown;
  const axis = drawing?.axis;

  useLayoutEffect(() => {
    if (!key || !now.current || !element.current) return;
    const own = () =>
      /** @type {Drawing} */ (
        now.current ?? { shown: [], log: false, ends: [0, 1], axis: { label: "", format: number } }
      );
    const data = columnsOf(own().shown, own().log);
    plot.current = new uPlot(optionsOf({ now: own, sync, width, format, from }), data, element.current);
    pointed(plot.current, sync, own);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [key]);
  useLayoutEffect(() => {
    if (plot.current && shown) plot.current.setData(columnsOf(shown, Boolean(now.current?.log)));
  }, [shown, axis, range?.[0], range?.[1]]);
  useLayoutEffect(() => {
    if (plot.current && width) plot.current.setSize({ width, height: HEIGHT });
  }, [width]);
  useLayoutEffect(() => {
    const at = sync.cursor;
    if (!plot.current) return;
    plot.current.setCursor({ left: at === null ? -10 : plot.current.valToPos(at, "x"), top: 10 }, false);
  }, [sync.cursor, key, shown, range?.[0], range?.[1], width]);
  return plot;
}
