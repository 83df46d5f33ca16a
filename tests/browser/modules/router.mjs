// The router: a refused page comes back; a fragment of the address leaves the page as it is.

import assert from "node:assert/strict";
import { moveTo, serve, stream, until } from "./page.js";

const { start } = await import("./static/router.js");
const { useLive } = await import("./static/hooks.js");
const { html } = await import("./static/vendor/preact.js");

let status = 404;
let requests = 0;
let visits = 0;
serve(() => {
  requests += 1;
  return [status, status === 200 ? { batch_no: 9 } : { error: "batch 9 does not exist in this run" }];
});
function Page({ page }) {
  const [batch] = useLive(page, "/api/batches/9", {}, { every: 0 });
  return html`<h1>${batch ? `Batch ${batch.batch_no}` : "none yet"}</h1>`;
}
const root = document.createElement("main");
moveTo("/batches/9");
start(root, [{ path: "/batches/:batch", title: "Batch", load: async () => ({ Page }) }], "/batches/9", () => {
  visits += 1;
});
await until(() => root.textContent.includes("does not exist"));
const refusal = root.firstChild;
for (let i = 0; i < 3; i += 1) {
  const before = requests;
  stream.tick();
  await until(() => requests > before);
}
assert.equal(root.firstChild, refusal, "a refusal that stays is drawn once");

status = 200;
stream.tick();
await until(() => root.textContent === "Batch 9");

const seen = visits;
moveTo("/batches/9#main");
assert.equal(visits, seen, "a fragment is a place of the same page");
moveTo("/batches/9?x=time");
assert.equal(visits, seen + 1);
process.exit();
