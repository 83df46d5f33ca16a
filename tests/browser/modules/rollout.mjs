// The page of a rollout: after a retry it shows the new attempt alone; the heading of a step goes to it.

import assert from "node:assert/strict";
import { serve, until } from "./page.js";

const { Page } = await import("./static/pages/rollout.js");
const { html, render } = await import("./static/vendor/preact.js");

serve((url) => {
  const { attempt, step } = Object.fromEntries(url.searchParams);
  const content = { text: `attempt ${attempt} step ${step}`, length: 16 };
  const one = { idx: Number(step), appended: [], known: 0, tools: [], reasoning: null, content, calls: [] };
  return [200, { steps: [one] }];
});
const step = {
  idx: 0, parent: null, kind: "root", full_len: 9, action: 4, added: 9, keep_len: 0, spans: [], t_gen: 1, agent: "main",
  branch_reason: null, parse: "ok", finish: "stop", marks: [], rewards: null, tool_runs: [], tools: [], at: 0,
};
const rollout = (shown) => ({
  rollout_id: 7, group_id: 1, member: 0, state: "running", attempt: shown, shown, live: false, pruned: false, purpose: "train",
  task: "t", domain: "d", scaffold: "shell", siblings: [], attempts: [{ attempt: shown, steps: 1, agent_s: 1 }], steps: [step],
  reward: null, batch: null, seq: null, reason: null, instruction: null, failure_class: null, verdicts: [], files: [], bars: [],
});
let show = () => {};
const filtered = [];
const page = {
  params: { rollout: "7" },
  query: new URLSearchParams(),
  signal: new AbortController().signal,
  title() {},
  filter: (given) => filtered.push(given),
  live(_path, _params, shown) {
    show = shown;
    return () => {};
  },
};
const root = document.createElement("main");
render(html`<${Page} page=${page} />`, root);
show(rollout(1));
await until(() => root.textContent.includes("attempt 1 step 0"));
show(rollout(2));
await until(() => root.textContent.includes("attempt 2 step 0"));
assert(!root.textContent.includes("attempt 1 step 0"));

const heading = root.all.find((node) => node.localName === "a" && node.textContent === "Step 0");
heading.send("click");
assert.deepEqual(filtered.at(-1), { step: 0 });
process.exit();
