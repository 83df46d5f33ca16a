// Lists: a refresh that "Show more" has overtaken changes nothing, in whichever order their answers come.

import assert from "node:assert/strict";
import { serve, until } from "./page.js";

const { Walk } = await import("./static/trajectory/search.js");

for (const first of [0, 1]) {
  let newest = 200;
  const waiting = [];
  serve(
    (url) =>
      new Promise((answer) => {
        const from = Math.min(newest, Number(url.searchParams.get("before") ?? newest + 1) - 1);
        const rollouts = Array.from({ length: 50 }, (_, i) => ({ rollout_id: from - i }));
        waiting.push(() => answer([200, { rollouts, searched: 50, next: from - 49 }]));
      }),
  );
  const page = { query: new URLSearchParams(), signal: new AbortController().signal, filter() {} };
  const walk = new Walk(page, "/api/rollouts", [], (answer) => answer.rollouts, () => {});
  const started = walk.start();
  await until(() => waiting.length === 1);
  waiting.pop()();
  await started;
  newest = 205;
  const both = [walk.freshen({}), walk.more()];
  await until(() => waiting.length === 2);
  waiting[first]();
  await both[first];
  waiting[1 - first]();
  await both[1 - first];
  const ids = walk.found.map((row) => row.rollout_id);
  assert.equal(ids.length, 100);
  assert.deepEqual(ids, Array.from({ length: 100 }, (_, i) => ids[0] - i), "no row is missing between two pages");
  assert.equal(walk.before, ids.at(-1));
}
