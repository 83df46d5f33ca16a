// One rollout: conversation, tokens, timings, verdict, files; its steps as a tree beside them.

import { ask, url } from "../api.js";
import { h, redraw, show } from "../dom.js";
import { bytes, clock, number, plural, seconds, visible, words } from "../format.js";
import { keys } from "../keys.js";
import { scaffoldName } from "../scaffold.js";
import { table } from "../table.js";
import { FIRST, conversation, versions } from "../trajectory/conversation.js";
import { rail } from "../trajectory/rail.js";
import { advantage, rewardBar, scaleOf, signed } from "../trajectory/reward.js";
import { cutText, wholeOf } from "../trajectory/texts.js";
import { tokenView } from "../trajectory/tokens.js";
import { waterfall } from "../trajectory/waterfall.js";

const TAIL_MS = 1500;
const VIEWS = { conversation: "Conversation", tokens: "Tokens", timings: "Timings", verdict: "Verdict", files: "Files" };
export const STATES = { waiting: "waiting", queued: "waiting", running: "running", reported: "running", finished: "running", verifying: "running", verified: "ready", lost: "failed" };

const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", null, name), h("dd", null, value), note ? h("p", null, note) : null);

function siblings(rollout, page) {
  const scale = Math.max(0.001, ...rollout.siblings.map((one) => Math.abs(one.total ?? 0)));
  return h("nav", { class: "siblings", "aria-label": "Members of the group" }, rollout.siblings.map((one) =>
    h("a", { href: page.href(`/rollouts/${one.rollout_id}`, { view: page.query.get("view") }), class: one.rollout_id === rollout.rollout_id ? "here" : null, "aria-current": one.rollout_id === rollout.rollout_id ? "page" : null,
      title: `rollout ${one.rollout_id}, ${words(one.state)}${one.total === null ? "" : `, reward ${number(one.total)}`}` },
      h("span", { class: `sibling-bar ${STATES[one.state] ?? ""}`, vars: { "--part": one.total === null ? 0.04 : Math.max(0.04, Math.max(0, one.total) / scale) } }), h("span", null, one.member))));
}

function rewardPanel(rollout) {
  const reward = rollout.reward;
  if (!reward) return null;
  const parts = { performance: reward.performance, speed_part: reward.beta * reward.speed, process_part: reward.alpha * reward.process, total: reward.total };
  return h("div", { class: "reward-line" }, rewardBar(parts, scaleOf([parts]), 220, 16),
    h("span", { class: "formula" }, `${number(reward.total)} = performance ${number(reward.performance)} + speed ${number(parts.speed_part)} ${parts.process_part < 0 ? "−" : "+"} process ${number(Math.abs(parts.process_part))}`,
      reward.baseline !== null ? h("span", { class: "soft" }, `; the group's baseline is ${number(reward.baseline)}`, reward.divisor !== null && reward.divisor !== 1 ? `, its divisor ${number(reward.divisor)}` : "") : null));
}

function verdictView(rollout, page) {
  const attempts = table([
    { name: "attempt", value: (row) => row.attempt, cell: (row) => (row.attempt === rollout.shown ? h("b", null, row.attempt) : h("a", { href: page.href(`/rollouts/${rollout.rollout_id}`, { attempt: row.attempt, view: "verdict" }) }, row.attempt)) },
    { name: "ended", value: (row) => row.failure_class, cell: (row) => h("span", { class: `state ${row.failure_class === "completed" ? "ready" : row.failure_class ? "failed" : "running"}` }, words(row.failure_class ?? "running")) },
    { name: "steps", value: (row) => row.steps, cell: (row) => number(row.steps), numeric: true },
    { name: "time", title: "agent", value: (row) => row.agent_s, cell: (row) => seconds(row.agent_s), numeric: true },
    { name: "queued", value: (row) => row.queued_s, cell: (row) => seconds(row.queued_s), numeric: true },
    { name: "began", value: (row) => row.started, cell: (row) => clock(row.started), numeric: true },
    { name: "runner", value: (row) => row.runner, cell: (row) => visible(row.runner ?? "–") },
    { name: "why", wide: true, value: (row) => row.reason, cell: (row) => visible(row.reason ?? "") },
  ], { key: (row) => row.attempt, caption: "Attempts", empty: "No runner has begun it yet." });
  attempts.update(rollout.attempts);
  const history = table([
    { name: "at", value: (row) => row.at, cell: (row) => clock(row.at) },
    { name: "state", value: (row) => row.to_state, cell: (row) => [row.from_state ? h("span", { class: "faint" }, `${words(row.from_state)} → `) : null, h("span", { class: `state ${STATES[row.to_state] ?? ""}` }, words(row.to_state))] },
    { name: "epoch", value: (row) => row.epoch, cell: (row) => row.epoch ?? "–", numeric: true },
    { name: "why", wide: true, value: (row) => row.reason, cell: (row) => visible(row.reason ?? "") },
  ], { key: (row) => `${row.at}${row.to_state}`, caption: "Changes of state" });
  history.update(rollout.history);
  const own = rollout.attempts.find((row) => row.attempt === rollout.shown);
  const held = (part) => wholeOf(rollout.rollout_id, rollout.shown, 0, part, page.signal);
  return [
    rollout.verdicts.length ? rollout.verdicts.map((verdict) => h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", null, rollout.verdicts.length > 1 ? `Verdict, revision ${verdict.revision}` : "Verdict"), h("span", { class: "soft" }, `reward ${number(verdict.reward)}, exit ${verdict.exit_code ?? "–"}, took ${seconds(verdict.verify_s)}, attempt ${verdict.attempt}`)),
      verdict.checks.length ? h("ul", { class: "checks" }, verdict.checks.map((check, i) => h("li", { class: check.passed ? "passed" : "not-passed" }, h("span", { class: "check-name" }, h("span", { class: "unseen" }, check.passed ? "passed: " : "failed: "), visible(check.name)), check.message ? cutText(check.message, held(`verdict.${verdict.revision}.check.${i}`)) : null))) : h("p", { class: "empty" }, "It reports no single tests."),
      verdict.log ? [h("h3", null, "Log of the verifier"), h("div", { class: "log" }, cutText(verdict.log, held(`verdict.${verdict.revision}.log`)))] : h("p", { class: "faint small" }, "The verifier wrote no log.")))
      : h("section", { class: "panel" }, h("h2", null, "Verdict"), h("p", { class: "empty" }, rollout.pruned ? "The steps of this run were pruned: what is left is how it was rewarded, and its verdict." : rollout.live ? "Not verified yet." : "It was never verified.")),
    h("section", { class: "panel" }, h("h2", null, "Attempts"), attempts.element,
      rollout.resumes.length ? h("ul", { class: "plain" }, rollout.resumes.map((one) => h("li", null, `Attempt ${one.attempt} went on under lease ${one.epoch} with ${plural(one.steps, "recorded step")} (${visible(one.reason)}): ${one.replay ? words(one.replay) : "under way"}${one.replayed !== null ? `, ${number(one.replayed)} replayed` : ""}.`))) : null,
      own?.answer ? [h("h3", null, "Answer"), cutText(own.answer, held("answer"))] : null,
      own?.log ? [h("h3", null, "Log of the runner"), h("div", { class: "log" }, cutText(own.log, held("log")))] : null),
    h("section", { class: "panel" }, h("h2", null, "History"), history.element),
  ];
}

function filesView(rollout) {
  if (!rollout.files.length) return h("section", { class: "panel" }, h("h2", null, "Files"), h("p", { class: "empty" }, "This attempt left no files for its verifier."));
  const address = (file) => url(`/api/rollouts/${rollout.rollout_id}/file`, { attempt: rollout.shown, path: file.path });
  return rollout.files.map((file) => h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", { class: "mono said" }, visible(file.path)), h("span", { class: "soft" }, file.kind === "deleted" ? "deleted by the agent" : [`${file.kind}, ${bytes(file.bytes)}, mode ${(file.mode & 0o7777).toString(8)} · `, h("a", { href: address(file), download: true }, "download")])),
    file.text ? h("div", { class: "log" }, cutText(file.text, async () => new TextDecoder().decode(await (await fetch(address(file), { credentials: "same-origin" })).arrayBuffer()))) : null));
}

async function copied(button, text) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    show(button, "Copied");
  } catch {
    const dialog = h("dialog", null, h("h2", null, "The request as curl"), h("textarea", { rows: 8, readonly: true, value: text }), h("form", { method: "dialog" }, h("button", null, "Close")));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("textarea").select();
  }
  setTimeout(() => show(button, said), 1500);
}

export function mount(root, page) {
  const id = page.params.rollout;
  page.title(`Rollout ${id}`);
  const asked = { attempt: page.query.get("attempt"), step: page.query.has("step") ? Number(page.query.get("step")) : null };
  let view = VIEWS[page.query.get("view")] ? page.query.get("view") : "conversation";
  let rollout = null, talk = null, tokens = null, step = asked.step, built = false;
  const first = { attempt: Number(asked.attempt ?? 1), step: asked.step ?? 0 };
  const early = view === "conversation" ? { ...first, page: ask(`/api/rollouts/${id}/steps`, { ...first, n: FIRST }, page.signal).catch(() => null) } : null;

  const head = h("div"), aside = h("div", { class: "page-tools tools" }), figures = h("dl", { class: "figures" }), parts = h("div"), task = h("div"), body = h("div", { class: "views" });
  const tabs = h("nav", { class: "tabs", "aria-label": "Views" }, Object.entries(VIEWS).map(([name, title]) =>
    h("button", { type: "button", data: { view: name }, on: { click: () => choose(name) } }, title)));
  const tree = rail((idx) => pick(idx));
  const follow = h("label", { class: "follow", hidden: true }, h("input", { type: "checkbox", checked: asked.step === null }), "follow the newest step");
  const beside = h("details", { class: "beside", open: matchMedia("(min-width: 64rem)").matches }, h("summary", null, "Steps"), follow, tree.element);
  const all = [h("header", { class: "page-head" }, head, aside), h("section", { class: "panel summary" }, figures, parts, task), tabs, h("div", { class: "trajectory" }, beside, body)];
  show(root, h("div", { class: "loading", "aria-busy": "true" }, "Loading…"));

  const stepTools = (one) => [
    h("button", { type: "button", class: "quiet", on: { click: () => { step = one.idx; choose("tokens"); } } }, "tokens"),
    h("button", { type: "button", class: "quiet", title: "copy the request to the gateway that makes this step", on: { click: async (event) => {
      const button = event.currentTarget;
      try { await copied(button, (await ask(`/api/rollouts/${id}/curl`, { attempt: rollout.shown, step: one.idx }, page.signal)).text); }
      catch (error) { if (!page.signal.aborted) { show(button, "cannot be told"); button.title = error.message; } }
    } } }, "curl"),
  ];

  function choose(name) {
    view = name;
    page.filter({ view: name === "conversation" ? null : name, step });
    draw();
  }

  function pick(idx) {
    if (!rollout?.steps.some((one) => one.idx === idx)) return;
    step = idx;
    tree.select(idx);
    page.filter({ step: idx });
    if (view === "tokens") tokens.show(rollout.steps.find((one) => one.idx === idx));
    else if (view === "conversation") talk.select(idx);
    else choose("conversation");
  }

  function draw() {
    for (const tab of tabs.children) tab.setAttribute("aria-current", String(tab.dataset.view === view));
    beside.hidden = view !== "conversation" && view !== "tokens";
    beside.parentElement.classList.toggle("single", beside.hidden);
    if (view === "conversation") {
      talk ??= conversation(rollout, { signal: page.signal, early, actions: stepTools, onSeen: (idx) => { step = idx; tree.select(idx); } });
      talk.update(rollout);
      show(body, rollout.steps.length ? talk.element : h("p", { class: "empty" }, rollout.live ? "No step is recorded yet: they appear here as they come." : "No step was recorded."));
      if (step !== null) { tree.select(step); talk.select(step); }
    } else if (view === "tokens") {
      tokens ??= tokenView(rollout, page.signal);
      const chosen = rollout.steps.find((one) => one.idx === step) ?? rollout.steps[0];
      show(body, chosen ? h("section", { class: "panel" }, tokens.element) : h("p", { class: "empty" }, "No step is recorded yet."));
      if (chosen) { step = chosen.idx; tree.select(chosen.idx); tokens.show(chosen); }
    } else if (view === "timings") show(body, h("section", { class: "panel" }, h("h2", null, "Timings"), waterfall(rollout, (idx) => { step = idx; choose("conversation"); })));
    else if (view === "verdict") show(body, verdictView(rollout, page));
    else show(body, filesView(rollout));
  }

  function top() {
    const last = rollout.steps.at(-1);
    const sampled = rollout.steps.reduce((sum, one) => sum + one.action, 0), longest = Math.max(0, ...rollout.steps.map((one) => one.full_len));
    const state = h("span", { class: `state ${STATES[rollout.state] ?? ""}` }, words(rollout.state));
    redraw(head,
      h("h1", null, `Rollout ${rollout.rollout_id}`, " ", state, rollout.failure_class && rollout.failure_class !== "completed" ? [" ", h("span", { class: "state failed" }, words(rollout.failure_class))] : null),
      h("p", { class: "lead" }, h("span", { class: "said" }, visible(rollout.task)), ` · ${visible(rollout.domain)} · `, scaffoldName(rollout.scaffold), rollout.purpose !== "train" ? ` · ${rollout.purpose}${rollout.label ? ` ${visible(rollout.label)}` : ""}` : ""),
      h("p", { class: "small soft" }, h("a", { href: page.href(`/groups/${rollout.group_id}`) }, `Group ${rollout.group_id}`), `, member ${rollout.member}`, rollout.seq !== null ? ` · queue position ${rollout.seq}` : "",
        rollout.batch ? [" · ", h("a", { href: page.href(`/batches/${rollout.batch.batch_no}`) }, `batch ${rollout.batch.batch_no}`), ` (${rollout.batch.state})`] : "", rollout.reason ? h("span", { class: "said" }, ` · ${visible(rollout.reason)}`) : null));
    redraw(aside,
      siblings(rollout, page),
      rollout.attempts.length > 1 ? h("label", null, "attempt ", h("select", { value: rollout.shown, on: { change: (event) => page.go(`/rollouts/${id}`, { attempt: event.target.value, view: view === "conversation" ? null : view }) } },
        rollout.attempts.map((one) => h("option", { value: one.attempt, selected: one.attempt === rollout.shown }, `${one.attempt}${one.attempt === rollout.attempt ? " (counts)" : ""}`)))) : null,
      h("a", { class: "button", href: url(`/api/rollouts/${id}.html`, { attempt: rollout.shown }), download: true }, "Save as HTML"));
    redraw(figures,
      figure("reward", rollout.reward ? number(rollout.reward.total) : "–", rollout.reward ? `revision ${rollout.reward.revision}` : rollout.live ? "not verified yet" : "none"),
      figure("advantage", rollout.reward?.advantage !== null && rollout.reward ? advantage(rollout.reward.advantage) : "–", rollout.batch ? `pinned ${signed(rollout.batch.advantage)}` : "first step"),
      figure("steps", number(rollout.steps.length), `${number(sampled)} tokens sampled`),
      figure("longest", number(longest), "tokens of state and action"),
      figure("versions", rollout.steps.length ? versions({ spans: rollout.steps.flatMap((one) => one.spans) }) : "–", rollout.batch?.staleness !== null && rollout.batch ? `${plural(rollout.batch.staleness, "version")} behind its trainer` : "not trained on"),
      figure("agent time", seconds(rollout.attempts.find((one) => one.attempt === rollout.shown)?.agent_s), last ? `last step ${clock(last.at)}` : ""));
    show(parts, rewardPanel(rollout));
    if (!task.hasChildNodes()) show(task, rollout.instruction ? h("details", { class: "task" }, h("summary", null, "Task"), cutText(rollout.instruction, wholeOf(rollout.rollout_id, rollout.shown, 0, "instruction", page.signal), { mono: false })) : null);
    follow.hidden = !rollout.live;
  }

  const sibling = (by) => {
    const at = rollout?.siblings.findIndex((one) => one.rollout_id === rollout.rollout_id) ?? -1;
    const next = rollout?.siblings[at + by];
    if (at < 0 || !next) return false;
    page.go(`/rollouts/${next.rollout_id}`, { view: view === "conversation" ? null : view });
    return true;
  };
  const move = (by) => {
    if (!rollout?.steps.length) return false;
    const at = rollout.steps.findIndex((one) => one.idx === step);
    pick(rollout.steps[Math.min(rollout.steps.length - 1, Math.max(0, at < 0 ? 0 : at + by))].idx);
    return true;
  };
  keys("Rollout", [
    { keys: ["j"], what: "next step", run: () => move(1) },
    { keys: ["k"], what: "step before", run: () => move(-1) },
    { keys: ["ArrowRight"], what: "next rollout of the group", run: () => sibling(1) },
    { keys: ["ArrowLeft"], what: "rollout before", run: () => sibling(-1) },
    ...Object.entries(VIEWS).map(([name, title], i) => ({ keys: [String(i + 1)], what: title, run: () => choose(name) })),
    { keys: ["u"], what: "its group", run: () => { if (rollout) page.go(`/groups/${rollout.group_id}`); } },
  ], page.signal);

  const refresh = page.live(`/api/rollouts/${id}`, { attempt: asked.attempt }, (next) => {
    const grown = built && rollout.live && next.steps.length > rollout.steps.length;
    rollout = next;
    if (!built) show(root, all);
    top();
    tree.update(next.steps);
    if (!built || (view !== "tokens" && view !== "conversation")) { built = true; draw(); }
    else if (view === "conversation") {
      if (!talk.element.isConnected) draw();
      talk.update(next);
      if (step !== null) tree.select(step);
      if (grown && follow.querySelector("input").checked) pick(next.steps.at(-1).idx);
    }
  });

  // A recorded step changes no state that the live ticks look at: while it runs, the next one is asked for.
  const tail = setInterval(async () => {
    if (!rollout?.live || document.hidden || asked.attempt) return;
    try {
      const after = (rollout.steps.at(-1)?.idx ?? -1) + 1;
      if ((await ask(`/api/rollouts/${id}/steps`, { attempt: rollout.shown, step: after, n: 1, limit: 100 }, page.signal)).steps.length) refresh();
    } catch { /* the ticks say what is away */ }
  }, TAIL_MS);
  page.signal.addEventListener("abort", () => clearInterval(tail));
}
