// Numbers, times and untrusted text in readable form.

const SHOWN = "⟨";
// C0 but tab and line feed, DEL, C1, and characters that reverse the writing direction or hide text: marks, embeddings, isolates, zero width,
// fillers, tags.
const UNSEEN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/**
 * Text from a model, task or tool: characters that could colour, move, reorder or hide are spelled out. A carriage return before a line feed goes.
 * @param {unknown} text
 */
export function visible(text) {
  return String(text ?? "")
    .replace(/\r\n/g, "\n")
    .replace(UNSEEN, (found) => {
      const code = found.codePointAt(0) ?? 0;
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      if (code === 0x7f) return "\u2421";
      return `${SHOWN}U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
    });
}

/**
 * Uses a true minus sign, and none before a zero: −0 is 0.
 * @param {string} text
 */
const minus = (text) => (/^-[0.]*$/.test(text) ? text.slice(1) : text.replace(/^-/, "−"));

/**
 * A number to a few significant digits, without an exponent at usual magnitudes; "–" for null.
 * @param {number | null | undefined} value
 */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return minus((value || 0).toLocaleString("en"));
  const size = Math.abs(value);
  if (size >= 1e4) return compact(value);
  if (size !== 0 && size < 1e-3) return minus(value.toExponential(digits - 1).replace("e-", "e−"));
  return minus(String(Number(value.toPrecision(digits))));
}

/** @type {[number, string][]} */
const UNITS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/**
 * 12.3k, 4.5M.
 * @param {number | null | undefined} value
 */
export function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, letter] of UNITS)
    if (size >= unit) return minus(`${Number((value / unit).toPrecision(3))}${letter}`);
  return minus(String(Number(value.toPrecision(3))));
}

/**
 * 0.42 → 42%. A share below 1 is never shown as 100%: it gets as many digits as it needs, four at most, then a >.
 * @param {number | null | undefined} value
 */
export function percent(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let text = (100 * value).toFixed(value ? digits : 0);
  for (let more = digits + 1; value < 1 && Number(text) === 100; more += 1) {
    if (more > 4) return ">99.99%";
    text = (100 * value).toFixed(more);
  }
  return `${minus(text)}%`;
}

/**
 * A number that always has its sign: advantages.
 * @param {number} value
 */
export function signed(value) {
  const text = number(value);
  return value > 0 ? `+${text}` : text;
}

/**
 * 3 of 8. Without a whole, or if it exceeds the whole, the number alone; without a number "–".
 * @param {number | null | undefined} n
 * @param {number | null | undefined} whole
 */
export function outOf(n, whole) {
  if (n === null || n === undefined || (!n && !whole)) return "–";
  return whole && n <= whole ? `${number(n)} of ${number(whole)}` : number(n);
}

/**
 * A share with its basis: 77% of 13, 95 %: 50% to 92%. `low` and `high` may be missing; without any count: "–".
 * @param {{ share: number | null | undefined, n: number | null | undefined, low?: number | null, high?: number | null }} of
 */
export function shareOf({ share, n, low = null, high = null }) {
  if (!n || share === null || share === undefined) return "–";
  const digits = share > 0 && share < 0.1 ? 1 : 0;
  return `${percent(share, digits)} of ${number(n)}${low === null || high === null ? "" : `, 95 %: ${percent(low, digits)} to ${percent(high, digits)}`}`;
}

/**
 * A text as a sentence: with a capital and a full stop.
 * @param {string} text
 */
export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/**
 * Seconds: 0.4 s, 75 s as 1 min 15 s, 2 h 1 min.
 * @param {number | null | undefined} value
 * @returns {string}
 */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 0.001) return value === 0 ? "0 s" : "< 1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/**
 * Bytes: 3.2 MiB.
 * @param {number | null | undefined} value
 */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : Number(value.toPrecision(3))} ${units[unit]}`;
}

/**
 * Seconds since 1970 as this browser's local time: 14:05:31 today, else with its date.
 * @param {number | null | undefined} value
 */
export function clock(value) {
  if (value === null || value === undefined) return "–";
  const at = new Date(value * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

const EXACT_MS = 2000; // a Date header has whole seconds
let ahead = 0;

/**
 * Corrects this browser's clock, where it is wrong, by the time of an answer: the times of rows come from the servers' clocks.
 * @param {string | null} date the answer's header Date
 */
export function correctClock(date) {
  const found = date === null ? Number.NaN : Date.parse(date) - Date.now();
  if (Math.abs(found - ahead) > EXACT_MS) ahead = Math.abs(found) > EXACT_MS ? found : 0;
}

/** The time now, in seconds since 1970. */
export const timeNow = () => (Date.now() + ahead) / 1000;

/**
 * Seconds since 1970 as an age.
 * @param {number | null | undefined} value
 */
export const ago = (value) =>
  value === null || value === undefined ? "–" : `${seconds(Math.max(0, timeNow() - value))} ago`;

/**
 * 1 group, 2 groups.
 * @param {number} n
 * @param {string} word
 */
export const plural = (n, word, words = `${word}s`) => `${number(n)} ${n === 1 ? word : words}`;

/**
 * An identifier in readable form: infra_failure → infra failure.
 * @param {unknown} name
 */
export const words = (name) => String(name ?? "").replaceAll("_", " ");

/**
 * A mark of a step as a note: cut_off alone does not keep it out of training.
 * @param {string} reason
 */
export const markOf = (reason) =>
  reason === "cut_off" ? "cut off: trains only with a negative advantage" : `does not train: ${words(reason)}`;
