// Compared runs: read again with the page's own series, and kept while a service is away.

import assert from "node:assert/strict";
import { serve, until } from "./page.js";

const { useOthers } = await import("./static/pages/run.js");
const { html, render } = await import("./static/vendor/preact.js");

let status = 200;
let batches = 1;
let requests = 0;
serve((url) => {
  assert.equal(url.searchParams.get("run"), "other");
  requests += 1;
  return [status, status === 200 ? { batches } : { error: "the run is away" }];
});
const page = { query: new URLSearchParams("compare=other"), signal: new AbortController().signal, filter() {} };
function Compared({ own }) {
  const { others, series } = useOthers(page, own);
  return html`<p>${others.join()} ${series.other?.batches ?? "none"}</p>`;
}
const root = document.createElement("main");
const draw = (own) => render(html`<${Compared} own=${own} />`, root);
draw({ n: 1 });
await until(() => root.textContent === "other 1");

batches = 2;
draw({ n: 2 });
await until(() => root.textContent === "other 2");

status = 503;
batches = 3;
const before = requests;
draw({ n: 3 });
await until(() => requests > before);
status = 200;
await until(() => root.textContent === "other 3"); // by itself, after a while

status = 404;
draw({ n: 4 });
await until(() => root.textContent.startsWith(" "));
process.exit();
