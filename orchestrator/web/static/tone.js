// The eight colours of lines and parts (`.c1` to `.c8` in style.css).

const TONES = 8;

/**
 * The class of the colour of the nth line, from 1 on: after the eighth the colours repeat, so that every line and swatch has one.
 * @param {number} n
 */
export const tone = (n) => `c${((((n - 1) % TONES) + TONES) % TONES) + 1}`;
