// A scaffold's name. One that is named by its place shows the last part of it, and the whole to whoever points at it.

import { h } from "./dom.js";
import { visible } from "./format.js";

export function scaffoldName(name) {
  const whole = visible(name), at = whole.lastIndexOf("/");
  return at < 0 ? whole : h("span", { title: whole }, whole.slice(at + 1));
}
