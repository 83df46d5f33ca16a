// The steps as a conversation. A step's texts are fetched when it comes near the screen; what is far away is not laid out.

import { ask } from "../api.js";
import { h, show } from "../dom.js";
import { number, seconds, visible, words } from "../format.js";
import { advantage } from "./reward.js";
import { cutText, toolCall, wholeOf } from "./texts.js";

export const FIRST = 12;
const PAGE = 20;
const ROLES = { system: "system", user: "user", assistant: "assistant", tool: "observation", developer: "developer" };

const turn = (role, label, ...body) => h("div", { class: `turn ${role}` }, h("div", { class: "turn-role" }, label), h("div", { class: "turn-body" }, body));

function message(one, path) {
  const label = ROLES[one.role] ?? visible(one.role);
  return turn(ROLES[one.role] ? one.role : "other", label,
    one.reasoning ? h("div", { class: "reasoning" }, cutText(one.reasoning, path(`appended.${one.at}.reasoning`), { mono: false })) : null,
    one.content.length || !one.calls.length ? (one.content.length ? cutText(one.content, path(`appended.${one.at}.content`), { mono: one.role === "tool" }) : h("p", { class: "faint" }, "nothing")) : null,
    one.calls.map((call, n) => toolCall(call, path(`appended.${one.at}.calls.${n}`))));
}

function answer(spoken, step, path) {
  const parts = [
    spoken.reasoning ? h("div", { class: "reasoning" }, h("div", { class: "label" }, "reasoning"), cutText(spoken.reasoning, path("reasoning"), { mono: false })) : null,
    spoken.content.length ? cutText(spoken.content, path("content"), { mono: false }) : null,
    spoken.calls.map((call, n) => toolCall(call, path(`calls.${n}`))),
  ];
  const bare = !spoken.reasoning && !spoken.content.length && !spoken.calls.length;
  return turn("policy", "policy", parts, bare ? h("p", { class: "faint" }, step.action ? "tokens without text: see the token view" : "nothing was sampled") : null);
}

function executions(step) {
  if (!step.tool_runs.length) return null;
  return h("p", { class: "runs small soft" }, step.tool_runs.map((run, i) => [i ? " · " : "", h("b", null, visible(run.name)),
    run.start !== null && run.end !== null ? ` ran ${seconds(run.end - run.start)}` : " ran", run.exit_code !== null ? [", exit ", h("span", { class: run.exit_code ? "down" : null }, run.exit_code)] : "",
    run.bytes !== null ? `, ${number(run.bytes)} bytes out` : ""]));
}

/** Versions as people say them: v3, or v3 to v5. */
export const versions = (step) => {
  const made = [...new Set(step.spans.map((span) => span.version))];
  return made.length === 0 ? "no version" : made.length === 1 ? `v${made[0]}` : `v${Math.min(...made)} to v${Math.max(...made)}`;
};

/**
 * Returns { element, update(rollout), select(idx, scroll) }. `onSeen(idx)`: the step that is read now; `actions(step)`: buttons of its head.
 * `early` { attempt, step, page }: the steps from `step` on, asked for before it was known which attempt counts.
 */
export function conversation(rollout, { onSeen, actions, signal, early = null }) {
  const element = h("div", { class: "conversation" });
  const shown = new Map(); // idx → { article, body, step, loaded }
  const waiting = new Set();
  let busy = false, pinned = null; // the step that was gone to: it stays where it is while what is above it comes, until somebody moves
  for (const type of ["wheel", "touchmove", "pointerdown", "keydown"]) window.addEventListener(type, () => { pinned = null; }, { passive: true, capture: true, signal });

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      const idx = Number(entry.target.dataset.idx);
      begin(shown.get(idx));
      waiting.add(idx);
    }
    load();
  }, { rootMargin: "900px 0px" });
  const seen = new IntersectionObserver((entries) => {
    const top = entries.filter((entry) => entry.isIntersecting).map((entry) => Number(entry.target.dataset.idx));
    if (top.length && !pinned) onSeen(Math.min(...top));
  }, { rootMargin: "-15% 0px -70% 0px" });
  signal.addEventListener("abort", () => { near.disconnect(); seen.disconnect(); });

  async function load() {
    if (busy) return;
    const wanted = [...waiting].filter((idx) => !shown.get(idx)?.loaded).sort((a, b) => a - b);
    waiting.clear();
    if (!wanted.length) return;
    busy = true;
    try {
      const first = wanted.includes(pinned?.step.idx) ? pinned.step.idx : wanted[0];
      const page = (await asked(first)) ?? await ask(`/api/rollouts/${rollout.rollout_id}/steps`, { attempt: rollout.shown, step: first, n: shown.size > FIRST ? PAGE : FIRST }, signal);
      for (const spoken of page.steps) fill(spoken);
      if (pinned) pinned.article.scrollIntoView({ block: "start" });
      for (const idx of wanted) if (!shown.get(idx)?.loaded) waiting.add(idx);
    } catch (error) {
      if (signal.aborted) return;
      for (const idx of wanted) fail(idx, error);
    } finally {
      busy = false;
    }
    if (waiting.size && !signal.aborted) load();
  }

  /** What `early` has of these steps, once. */
  async function asked(first) {
    const known = early;
    early = null;
    return known && known.attempt === rollout.shown && known.step === first ? known.page : null;
  }

  function fail(idx, error) {
    const one = shown.get(idx);
    if (one && !one.loaded)
      show(one.body, h("p", { class: "note bad" }, error.message, " ", h("button", { type: "button", class: "quiet", on: { click: () => { waiting.add(idx); load(); } } }, "Try again")));
  }

  function fill(spoken) {
    const one = shown.get(spoken.idx);
    if (!one || one.loaded) return;
    begin(one);
    one.loaded = true;
    one.article.classList.remove("pending");
    near.unobserve(one.article);
    const path = (part) => wholeOf(rollout.rollout_id, rollout.shown, spoken.idx, part, signal);
    const known = spoken.appended.slice(0, spoken.known), fresh = spoken.appended.slice(spoken.known);
    show(one.body,
      spoken.tools.length ? h("p", { class: "small soft shown-tools" }, "The prompt shows the tools ", spoken.tools.map((name, i) => [i ? ", " : "", h("code", null, visible(name))]), ".") : null,
      spoken.text_left_out ? h("p", { class: "note" }, "What this step was asked was too large to be kept as text beside its tokens: the token view has all of it.") : null,
      known.length ? h("details", { class: "known" }, h("summary", null, `${number(known.length)} earlier ${known.length === 1 ? "message" : "messages"}, as in the conversation of step ${spoken.near ?? one.step.parent}`), known.map((each) => message(each, path))) : null,
      fresh.map((each) => message(each, path)), answer(spoken, one.step, path), executions(one.step));
  }

  function head(step) {
    const facts = [
      step.kind === "root" ? `${number(step.full_len - step.action)} tokens of prompt` : step.kind === "rewrites" ? `keeps ${number(step.keep_len)} tokens of step ${step.parent}, ${number(step.added)} new` : `${number(step.added)} tokens added`,
      `${number(step.action)} sampled`, versions(step), `${seconds(step.t_gen)} generation`,
    ];
    return h("header", { class: "step-head" },
      h("h3", null, h("a", { href: `#step-${step.idx}`, data: { pick: step.idx } }, `Step ${step.idx}`), step.agent !== "main" ? h("span", { class: "agent" }, visible(step.agent)) : null),
      step.branch_reason || step.kind === "rewrites" ? h("span", { class: "state filtered" }, words(visible(step.branch_reason ?? "rewritten"))) : null,
      step.parse !== "ok" ? h("span", { class: "state failed" }, words(visible(step.parse))) : null,
      step.finish !== "stop" ? h("span", { class: "state failed" }, `finish: ${visible(step.finish)}`) : null,
      step.marks.map((reason) => h("span", { class: "state filtered", title: "train weight 0" }, `does not train: ${words(visible(reason))}`)),
      step.rewards?.advantage !== null && step.rewards ? advantage(step.rewards.advantage) : null,
      h("span", { class: "step-facts" }, facts.join(" · ")), h("span", { class: "step-tools" }, actions(step)));
  }

  /** Gives a step its head and a place for its texts: most steps of a long trajectory are never looked at. */
  function begin(one) {
    if (one.body) return;
    one.body = h("div", { class: "step-body" }, h("p", { class: "loading" }, "Loading…"));
    one.article.append(head(one.step), one.body);
  }

  function add(step) {
    const article = h("article", { class: "step pending", id: `step-${step.idx}`, data: { idx: step.idx }, tabindex: -1, "aria-label": `Step ${step.idx}` });
    shown.set(step.idx, { article, body: null, step, loaded: false });
    element.append(article);
    near.observe(article);
    seen.observe(article);
  }

  return {
    element,
    update(next) {
      rollout = next;
      for (const step of next.steps) {
        const one = shown.get(step.idx);
        if (!one) {
          add(step);
          if (step.idx === early?.step) { waiting.add(step.idx); load(); }
        }
        else if (JSON.stringify(one.step) !== JSON.stringify(step)) {
          one.step = step;
          one.article.querySelector(".step-head")?.replaceWith(head(step));
        }
      }
    },
    select(idx, { focus = false } = {}) {
      const one = shown.get(idx);
      if (!one) return;
      pinned = one;
      one.article.scrollIntoView({ block: "start" });
      for (const each of shown.values()) each.article.classList.toggle("here", each === one);
      if (focus) one.article.focus({ preventScroll: true });
    },
  };
}
