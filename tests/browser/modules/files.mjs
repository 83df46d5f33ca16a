// Lists of files that the server cut say so.

import assert from "node:assert/strict";
import "./page.js";

const { FilesView } = await import("./static/trajectory/verdict.js");
const { Found } = await import("./static/pages/group.js");
const { html, render } = await import("./static/vendor/preact.js");

/** The text of something that is drawn. */
function drawn(shown) {
  const root = document.createElement("main");
  render(shown, root);
  return root.textContent;
}

const file = (n) => ({ path: `${n}.txt`, mode: 0o644, kind: "text", bytes: 1, text: null });
const left = (n) => ({ rollout_id: 7, shown: 1, files: Array.from({ length: n }, (_, i) => file(i)) });
assert.match(drawn(html`<${FilesView} rollout=${left(500)} />`), /At most 500 files are shown/);
assert.doesNotMatch(drawn(html`<${FilesView} rollout=${left(499)} />`), /At most/);

const change = (n) => ({ path: `${n}.txt`, change: "same", compared: true, lines: [], length: 0, left: 1, right: 1 });
const found = (n) => Array.from({ length: n }, (_, i) => change(i));
assert.match(drawn(html`<${Found} found=${found(200)} />`), /At most 200 paths are compared/);
assert.doesNotMatch(drawn(html`<${Found} found=${found(199)} />`), /At most/);
