// One rollout: conversation, tokens, timings, verdict, files; next to them its steps as a tree.

import { href } from "../address.js";
import { ask, messageOf, url } from "../api.js";
import { figure } from "../figure.js";
import { clock, number, plural, seconds, signed, visible, words } from "../format.js";
import { useKeys, useLive, useTitle } from "../hooks.js";
import { loading } from "../router.js";
import { scaffoldName } from "../scaffold.js";
import { PRUNED, ROLLOUT_STATES, rolloutState } from "../states.js";
import { Conversation, FIRST, Texts, versions } from "../trajectory/conversation.js";
import { Rail } from "../trajectory/rail.js";
import { advantage } from "../trajectory/reward.js";
import { Text, wholeOf } from "../trajectory/texts.js";
import { TokenView } from "../trajectory/tokens.js";
import { FilesView, Reward, VerdictView } from "../trajectory/verdict.js";
import { waterfall } from "../trajectory/waterfall.js";
import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */

const TAIL_MS = 1500;
const COPIED_MS = 1500;
const VIEWS = /** @type {Record<string, string>} */ ({
  conversation: "Conversation",
  tokens: "Tokens",
  timings: "Timings",
  verdict: "Verdict",
  files: "Files",
});
const COPY = "copy the request to the gateway that makes this step";

/** @param {{ rollout: any, view: string }} props */
function Siblings({ rollout, view }) {
  const totals = rollout.siblings.map((/** @type {any} */ one) => Math.abs(one.total ?? 0));
  const scale = Math.max(0.001, ...totals);
  /** @param {any} one */
  const link = (one) => {
    const here = one.rollout_id === rollout.rollout_id;
    const paid = one.total === null ? "" : `, reward ${number(one.total)}`;
    return html`
      <a
        key=${one.rollout_id}
        href=${href(`/rollouts/${one.rollout_id}`, { view: view === "conversation" ? null : view })}
        class=${here ? "here" : undefined}
        aria-current=${here ? "page" : undefined}
        title=${`rollout ${one.rollout_id}, ${words(one.state)}${paid}`}>
        <span
          class=${`sibling-bar ${ROLLOUT_STATES[one.state] ?? ""}`}
          style=${{ "--part": Math.max(0.04, Math.max(0, one.total ?? 0) / scale) }} />
        <span>${one.member}</span>
      </a>
    `;
  };
  return html`<nav class="siblings" aria-label="Members of the group">${rollout.siblings.map(link)}</nav>`;
}

/** Copies a text, or shows it if copying is not allowed. @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const dialog = document.createElement("dialog");
    document.body.append(dialog);
    dialog.addEventListener("close", () => dialog.remove());
    render(
      html`
        <h2>The request as curl</h2>
        <textarea rows="8" readonly value=${text} />
        <form method="dialog"><button>Close</button></form>
      `,
      dialog,
    );
    dialog.showModal();
    dialog.querySelector("textarea")?.select();
    return false;
  }
}

/** @param {{ fetched: () => Promise<string>, signal: AbortSignal }} props */
function CurlButton({ fetched, signal }) {
  const [label, setLabel] = useState("curl");
  const [title, setTitle] = useState(COPY);
  async function click() {
    try {
      if (await copy(await fetched())) setLabel("Copied");
      setTimeout(() => setLabel("curl"), COPIED_MS);
    } catch (error) {
      if (signal.aborted) return;
      setLabel("not available");
      setTitle(messageOf(error));
    }
  }
  return html`<button type="button" class="quiet" title=${title} onClick=${click}>${label}</button>`;
}

/** @param {{ rollout: any }} props */
function Head({ rollout }) {
  const { failure_class: failure, purpose, label, seq, batch, reason } = rollout;
  return html`
    <div>
      <h1>
        Rollout ${rollout.rollout_id} ${rolloutState(rollout.state)}
        ${failure && failure !== "completed" ? [" ", html`<span class="state failed">${words(failure)}</span>`] : null}
      </h1>
      <p class="lead">
        <span class="verbatim">${visible(rollout.task)}</span>
        ${` · ${visible(rollout.domain)} · `}${scaffoldName(rollout.scaffold)}
        ${purpose !== "train" ? ` · ${purpose}${label ? ` ${visible(label)}` : ""}` : null}
      </p>
      <p class="small soft">
        <a href=${href(`/groups/${rollout.group_id}`)}>Group ${rollout.group_id}</a>, member ${rollout.member}
        ${seq !== null ? ` · queue position ${seq}` : null}
        ${batch ? html` · <a href=${href(`/batches/${batch.batch_no}`)}>batch ${batch.batch_no}</a> (${batch.state})` : null}
        ${reason ? html`<span class="verbatim"> · ${visible(reason)}</span>` : null}
      </p>
    </div>
  `;
}

/** @param {{ rollout: any }} props */
function Figures({ rollout }) {
  const { reward, batch, steps, attempts, live, pruned } = rollout;
  const last = steps.at(-1);
  const spans = steps.flatMap((/** @type {any} */ one) => one.spans);
  const sampled = steps.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.action, 0);
  const longest = Math.max(0, ...steps.map((/** @type {any} */ one) => one.full_len));
  const own = attempts.find((/** @type {any} */ one) => one.attempt === rollout.shown);
  const paid = reward && reward.advantage !== null;
  /** @param {{ attempt: number }} one */
  const whose = ({ attempt }) => (attempt === rollout.shown ? "" : ` of attempt ${attempt}`);
  const trained = () => {
    if (!batch) return "not trained on";
    if (batch.staleness !== null) return `${plural(batch.staleness, "version")} behind its trainer`;
    if (whose(batch)) return `trained on attempt ${batch.attempt}`;
    return pruned ? "pruned" : `its batch is ${batch.state}`;
  };
  return html`
    <dl class="figures">
      ${figure(
        "reward",
        reward ? number(reward.total) : "–",
        reward ? `revision ${reward.revision}${whose(reward)}` : live ? "not verified yet" : "none",
      )}
      ${figure(
        "advantage",
        paid ? advantage(reward.advantage) : "–",
        batch ? `pinned ${signed(batch.advantage)}${whose(batch)}` : `first step${reward ? whose(reward) : ""}`,
      )}
      ${
        pruned
          ? figure("steps", number(own?.steps), "pruned")
          : figure("steps", number(steps.length), `${number(sampled)} tokens sampled`)
      }
      ${pruned ? figure("longest", "–", "pruned") : figure("longest", number(longest), "tokens of state and action")}
      ${figure("versions", steps.length ? versions({ spans }) : "–", trained())}
      ${figure("agent time", seconds(own?.agent_s), last ? `last step ${clock(last.at)}` : "")}
    </dl>
  `;
}

/**
 * Polls for the next step while the rollout is live: a recorded step changes none of the states behind the live ticks.
 * @param {Page} page
 * @param {any} rollout
 * @param {() => void} again
 */
function useTail(page, rollout, again) {
  const now = useRef(rollout);
  now.current = rollout;
  useEffect(() => {
    if (page.query.get("attempt")) return;
    let busy = false;
    const tail = setInterval(async () => {
      if (busy || !now.current?.live || document.hidden) return;
      busy = true;
      const { rollout_id: id, shown: attempt, steps } = now.current;
      const step = (steps.at(-1)?.idx ?? -1) + 1;
      try {
        const params = { attempt, step, n: 1, limit: 100 };
        if ((await ask(`/api/rollouts/${id}/steps`, params, page.signal)).steps.length) again();
      } catch {
        /* the ticks report the outage */
      } finally {
        busy = false;
      }
    }, TAIL_MS);
    return () => clearInterval(tail);
  }, []);
}

/**
 * Fetches the texts of steps; those of the first ones before the attempt that counts is known.
 * @param {Page} page
 * @param {any} rollout
 * @param {boolean} begins whether the page starts with the conversation
 */
function useTexts(page, rollout, begins) {
  const early = useMemo(() => {
    if (!begins) return null;
    const first = { attempt: Number(page.query.get("attempt") ?? 1), step: Number(page.query.get("step") ?? 0) };
    const path = `/api/rollouts/${page.params.rollout}/steps`;
    return { ...first, page: ask(path, { ...first, n: FIRST }, page.signal).catch(() => null) };
  }, []);
  return useMemo(() => rollout && new Texts(rollout, early, page.signal), [rollout?.shown]);
}

/** @param {{ page: Page }} props */
export function Page({ page }) {
  const id = page.params.rollout;
  useTitle(page, `Rollout ${id}`);
  const requested = useMemo(
    () => ({
      attempt: page.query.get("attempt"),
      step: page.query.has("step") ? Number(page.query.get("step")) : null,
      view: page.query.get("view") ?? "",
    }),
    [],
  );
  const [rollout, again] = useLive(page, `/api/rollouts/${id}`, { attempt: requested.attempt });
  const [view, setView] = useState(VIEWS[requested.view] ? requested.view : "conversation");
  const [step, setStep] = useState(requested.step);
  const [target, setTarget] = useState(requested.step === null ? null : { idx: requested.step });
  const [follows, setFollows] = useState(requested.step === null);
  const wide = useMemo(() => matchMedia("(min-width: 64rem)").matches, []);
  const texts = useTexts(page, rollout, view === "conversation");
  useTail(page, rollout, again);

  /** @type {any[]} */
  const steps = rollout?.steps ?? [];
  const tokens = view === "tokens";
  const chosen = tokens ? (steps.find((one) => one.idx === step) ?? steps[0]) : null;
  const here = chosen ? chosen.idx : step;

  /** @param {string} name @param {number | null} [at] */
  const choose = (name, at = here) => {
    setView(name);
    setStep(at);
    if (name === "conversation" && at !== null) setTarget({ idx: at });
    page.filter({ view: name === "conversation" ? null : name, step: at });
  };
  /** @param {number} idx */
  const pick = (idx) => {
    if (!steps.some((one) => one.idx === idx)) return;
    page.filter({ step: idx });
    if (!tokens && view !== "conversation") return choose("conversation", idx);
    setStep(idx);
    if (!tokens) setTarget({ idx });
  };
  /** @param {number} by */
  const sibling = (by) => {
    const at = rollout?.siblings.findIndex((/** @type {any} */ one) => one.rollout_id === rollout.rollout_id) ?? -1;
    const next = rollout?.siblings[at + by];
    if (at < 0 || !next) return false;
    page.go(`/rollouts/${next.rollout_id}`, { view: view === "conversation" ? null : view });
  };
  /** @param {number} by */
  const move = (by) => {
    if (!steps.length) return false;
    const at = steps.findIndex((one) => one.idx === here);
    pick(steps[Math.min(steps.length - 1, Math.max(0, at < 0 ? 0 : at + by))].idx);
  };
  useKeys("Rollout", [
    { keys: ["j"], what: "next step", run: () => move(1) },
    { keys: ["k"], what: "step before", run: () => move(-1) },
    { keys: ["ArrowRight"], what: "next rollout of the group", run: () => sibling(1) },
    { keys: ["ArrowLeft"], what: "rollout before", run: () => sibling(-1) },
    ...Object.entries(VIEWS).map(([name, title], i) => ({
      keys: [String(i + 1)],
      what: title,
      run: () => choose(name),
    })),
    { keys: ["u"], what: "its group", run: () => rollout && page.go(`/groups/${rollout.group_id}`) },
  ]);

  const before = useRef(/** @type {any} */ (null));
  useLayoutEffect(() => {
    const grown = before.current?.live && steps.length > before.current.steps.length;
    before.current = rollout;
    if (grown && follows && view === "conversation") pick(steps[steps.length - 1].idx);
  }, [rollout]);

  if (!rollout) return loading;
  const { shown, attempts, live } = rollout;
  /** @param {any} one */
  const tools = (one) => {
    const params = { attempt: shown, step: one.idx };
    const fetched = async () => (await ask(`/api/rollouts/${id}/curl`, params, page.signal)).text;
    return html`
      <button type="button" class="quiet" onClick=${() => choose("tokens", one.idx)}>tokens</button>
      <${CurlButton} fetched=${fetched} signal=${page.signal} />
    `;
  };
  const inside = () => {
    if (rollout.pruned && view !== "verdict") return html`<p class="empty">${PRUNED}</p>`;
    if (view === "conversation" && steps.length)
      return html`
        <${Conversation}
          key=${shown}
          rollout=${rollout}
          texts=${texts}
          target=${target}
          onSeen=${setStep}
          onPick=${pick}
          tools=${tools} />
      `;
    if (view === "conversation")
      return html`
        <p class="empty">
          ${live ? "No step is recorded yet: they appear here as they come." : "No step was recorded."}
        </p>
      `;
    if (tokens)
      return chosen
        ? html`
          <section class="panel">
            <${TokenView} key=${`${shown} ${chosen.idx}`} rollout=${rollout} step=${chosen} signal=${page.signal} />
          </section>
        `
        : html`<p class="empty">No step is recorded yet.</p>`;
    if (view === "timings")
      return html`
        <section class="panel">
          <h2>Timings</h2>
          ${waterfall(rollout, (idx) => choose("conversation", idx))}
        </section>
      `;
    if (view === "verdict") return html`<${VerdictView} key=${shown} rollout=${rollout} signal=${page.signal} />`;
    return html`<${FilesView} key=${shown} rollout=${rollout} />`;
  };
  const withSidePanel = tokens || view === "conversation";
  return html`
    <header class="page-head">
      <${Head} rollout=${rollout} />
      <div class="page-tools tools">
        <${Siblings} rollout=${rollout} view=${view} />
        ${
          attempts.length > 1
            ? html`
              <label>
                attempt${" "}
                <select
                  value=${String(shown)}
                  onChange=${(/** @type {any} */ event) =>
                    page.go(`/rollouts/${id}`, {
                      attempt: event.target.value,
                      view: view === "conversation" ? null : view,
                    })}>
                  ${attempts.map(
                    (/** @type {any} */ { attempt }) => html`
                      <option value=${String(attempt)}>
                        ${attempt}${attempt === rollout.attempt ? " (counts)" : ""}
                      </option>
                    `,
                  )}
                </select>
              </label>
            `
            : null
        }
        <a class="button" href=${url(`/api/rollouts/${id}.html`, { attempt: shown })} download="">Save as HTML</a>
      </div>
    </header>
    <section class="panel summary">
      <${Figures} rollout=${rollout} />
      <div>${rollout.reward ? html`<${Reward} reward=${rollout.reward} />` : null}</div>
      <div>
        ${
          rollout.instruction
            ? html`
              <details class="task">
                <summary>Task</summary>
                <${Text}
                  cut=${rollout.instruction}
                  whole=${wholeOf(rollout.rollout_id, shown, 0, "instruction", page.signal)}
                  mono=${false} />
              </details>
            `
            : null
        }
      </div>
    </section>
    <nav class="tabs" aria-label="Views">
      ${Object.entries(VIEWS).map(
        ([name, title]) => html`
          <button type="button" data-view=${name} aria-current=${String(name === view)} onClick=${() => choose(name)}>
            ${title}
          </button>
        `,
      )}
    </nav>
    <div class=${withSidePanel ? "trajectory" : "trajectory single"}>
      <details class="side-panel" open=${wide} hidden=${!withSidePanel}>
        <summary>Steps</summary>
        <label class="follow" hidden=${!live}>
          <input
            type="checkbox"
            checked=${follows}
            onChange=${(/** @type {any} */ event) => setFollows(event.target.checked)} />
          follow the newest step
        </label>
        <${Rail} steps=${steps} chosen=${here} onPick=${pick} />
      </details>
      <div class="views">${inside()}</div>
    </div>
  `;
}
