// The queue: why it waits, positions with the window drawn over them, the mix of domains, the stages with open work.

import { href } from "../address.js";
import { figure } from "../figure.js";
import { ago, number, outOf, percent, plural, seconds, sentence, visible, words } from "../format.js";
import { useKeys, useLive, useTitle, useWidth } from "../hooks.js";
import { scaffoldName } from "../scaffold.js";
import { cancelButton, confirmed, orderButton } from "../steer.js";
import { Table } from "../table.js";
import { html, useRef, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */
/**
 * @typedef {object} Position a group in the queue
 * @property {number} seq
 * @property {number} group_id
 * @property {string} task
 * @property {string} domain
 * @property {string} scaffold
 * @property {string} state
 * @property {number} size
 * @property {number} over verified rollouts
 * @property {number} running
 * @property {number} waiting
 * @property {number} lost
 * @property {number} dispatched
 * @property {number | null} batch_no
 * @property {string | null} reason
 */

const COLORS = /** @type {Record<string, string>} */ ({
  dispatched: "running",
  ready: "ready",
  taken: "trained",
  trained: "trained",
  filtered: "filtered",
  dead: "failed",
});
const OF_GROUPS = ["lease", "run", "settle", "verify", "grade", "conclude", "take"]; // stages that block the head
const GAP = 3;

/**
 * The class of a position's colour: failed as soon as a rollout of an open group is lost.
 * @param {Position} position
 */
const color = (position) =>
  position.state === "dispatched" && position.lost ? "failed" : (COLORS[position.state] ?? "waiting");

/** @param {Position} position */
const progress = ({ over, size, running, waiting }) =>
  `${outOf(over, size)} rollouts over, ${running} under way, ${waiting} waiting`;

/** @param {Position} position */
const described = (position) => {
  const base = `${position.seq}: group ${position.group_id}, ${position.task}, ${position.domain}, ${words(position.state)}`;
  if (position.state === "dispatched") {
    const lost = position.lost ? `, ${position.lost} lost` : "";
    return `${base}; ${outOf(position.over, position.size)} rollouts over, ${position.running} under way${lost}`;
  }
  if (position.batch_no !== null) return `${base}, batch ${position.batch_no}`;
  return position.reason ? `${base}: ${words(position.reason)}` : base;
};

/**
 * One position of the strip.
 * @param {{ position: Position, x: number, y: number, side: number, inside: boolean, numbered: boolean, head: boolean, picked: boolean }} props
 */
function Cell({ position, x, y, side, inside, numbered, head, picked }) {
  const hole = position.state === "filtered" || position.state === "dead";
  const inset = hole ? 0.75 : 0;
  const looks = `strip-cell ${color(position)}${hole ? " hole" : ""}${position.state === "trained" ? " past" : ""}`;
  const done = ((position.over + position.lost) / position.size) * side;
  const around = { x: x - GAP / 2, width: side + GAP };
  return html`
    ${
      inside
        ? html`
          <rect class="strip-window" ...${around} y=${y - 3} height=${side + 6} />
          <rect class="strip-under" ...${around} y=${y + side + 2} height="2" />
        `
        : null
    }
    ${
      numbered || head
        ? html`<text class="strip-seq" x=${x} y=${y - 5}>${head ? `▾ ${position.seq}` : position.seq}</text>`
        : null
    }
    <rect class=${looks} x=${x + inset} y=${y + inset} width=${side - 2 * inset} height=${side - 2 * inset} rx="3" />
    ${
      position.state === "dispatched" && position.size
        ? html`
          <rect class="strip-done" x=${x} y=${y + side - done} width=${side} height=${done} rx=${done > 5 ? 3 : 1} />
        `
        : null
    }
    ${
      picked
        ? html`<rect class="strip-picked" x=${x - 2} y=${y - 2} width=${side + 4} height=${side + 4} rx="5" />`
        : null
    }
    <rect
      class="strip-hit"
      ...${around}
      y=${y - GAP}
      height=${side + 2 * GAP}
      data-key=${position.seq}
      data-seq=${position.seq}>
      <title>${described(position)}</title>
    </rect>
  `;
}

/**
 * The strip of positions: wraps to the width, the window as a frame behind its cells.
 * @param {{ queue: any, picked: number | null, onPick: (seq: number) => void, onOpen: () => void }} props
 */
function Strip({ queue, picked, onPick, onOpen }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const width = Math.max(200, useWidth(element));
  /** @type {Position[]} */
  const positions = queue?.positions ?? [];
  const side = positions.length <= 160 && width > 600 ? 19 : 14;
  const per = Math.max(10, Math.floor((width + GAP) / (side + GAP)));
  const line = side + 18;
  const rows = Math.max(1, Math.ceil(positions.length / per));
  /** @param {MouseEvent} event */
  const seqOf = ({ target }) =>
    target instanceof SVGElement && target.dataset.seq ? Number(target.dataset.seq) : null;
  /** @param {MouseEvent} event */
  const click = (event) => {
    const seq = seqOf(event);
    if (seq !== null) onPick(seq);
  };
  /** @param {MouseEvent} event */
  const twice = (event) => {
    if (seqOf(event) !== null) onOpen();
  };
  /** @param {number} seq */
  const isInside = (seq) => queue.head !== null && seq >= queue.head && seq < queue.head + queue.window;
  return html`
    <div
      class="strip"
      ref=${element}
      role="listbox"
      tabindex="0"
      aria-label="Queue positions"
      aria-describedby="strip-help"
      onClick=${click}
      onDblClick=${twice}>
      ${
        queue
          ? html`
            <svg width=${width} height=${rows * line + 2} role="presentation">
              ${positions.map(
                (position, i) => html`
                  <${Cell}
                    key=${position.seq}
                    position=${position}
                    x=${(i % per) * (side + GAP)}
                    y=${Math.floor(i / per) * line + 14}
                    side=${side}
                    inside=${isInside(position.seq)}
                    numbered=${i % per === 0}
                    head=${position.seq === queue.head}
                    picked=${position.seq === picked} />
                `,
              )}
            </svg>
          `
          : null
      }
    </div>
  `;
}

/** @param {{ queue: any }} props */
function Mix({ queue }) {
  if (!queue.mix.length) return html`<p class="empty">No domain has offered or been served anything yet.</p>`;
  const served = queue.mix.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.served, 0);
  return html`
    <div class="mix">
      ${queue.mix.map((/** @type {any} */ one) => {
        const is = served ? one.served / served : 0;
        return html`
          <div class="mix-row">
            <div class="mix-name">
              <b>${visible(one.domain)}</b>
              <span class="soft"> ${plural(one.waiting, "group")} waiting</span>
            </div>
            <div
              class="mix-bar"
              role="img"
              aria-label=${`${one.domain}: served ${percent(is)}, offered ${percent(one.share)}`}>
              <div class="mix-served" style=${{ "--part": is }} />
              <div class="mix-share" style=${{ "--part": one.share }} />
            </div>
            <div class="mix-number">
              ${served ? percent(is) : "–"}
              <span class="soft">, offered ${percent(one.share)}</span>
            </div>
          </div>
        `;
      })}
    </div>
  `;
}

/**
 * The domains that the stage takes: those which it left still have positions, and no weight.
 * @param {{ domain: string, share: number }[]} mix
 */
export const weighed = (mix) => mix.filter(({ share }) => share > 0);

/**
 * Fields of a command: the weight of every domain of the stage, or the stage's configured ones.
 * @param {{ mix: any[] }} props
 */
function Weights({ mix }) {
  const [own, setOwn] = useState(false);
  return html`
    <div class="weights">
      ${weighed(mix).map(
        ({ domain, share }) => html`
          <label class="weight" key=${domain}>
            <span>${visible(domain)}</span>
            <input
              type="number"
              min="0.000001"
              step="any"
              required
              defaultValue=${Number(share.toPrecision(3))}
              data-domain=${domain}
              disabled=${own} />
          </label>
        `,
      )}
      <label class="check">
        <input type="checkbox" checked=${own} onChange=${(/** @type {any} */ event) => setOwn(event.target.checked)} />
        as the stage is configured
      </label>
    </div>
  `;
}

/**
 * The contents of the fields of Weights.
 * @param {HTMLFormElement} form
 */
function weightsOf(form) {
  if (form.querySelector("input:checked")) return { domains: null };
  /** @type {NodeListOf<HTMLInputElement>} */
  const fields = form.querySelectorAll("input[data-domain]");
  return { domains: Object.fromEntries([...fields].map((field) => [field.dataset.domain, Number(field.value)])) };
}

/** @type {import("../table.js").Column[]} */
const STAGES = [
  { name: "stage", value: (row) => row.name },
  { name: "open", value: (row) => row.open, numeric: true },
  { name: "oldest", value: (row) => row.oldest_s, cell: (row) => seconds(row.oldest_s), numeric: true },
  { name: "item", value: (row) => row.item, cell: (row) => visible(row.item) },
  {
    name: "why",
    title: "why it waits",
    wide: true,
    value: (row) => row.stall_cause || row.held,
    cell: (row) =>
      row.stall_cause
        ? html`<span><span class="state failed">stuck</span> ${visible(row.stall_cause)}</span>`
        : visible(row.held),
  },
];

/**
 * The selected position.
 * @param {{ position: Position, again: () => void }} props
 */
function Picked({ position, again }) {
  const { state, lost, reason, batch_no: batch } = position;
  const facts = () => {
    if (state === "dispatched")
      return ` · ${progress(position)}${lost ? `, ${lost} lost` : ""} · dispatched ${ago(position.dispatched)}`;
    if (reason) return ` · ${words(visible(reason))}`;
    return batch !== null ? ` · batch ${batch}` : "";
  };
  return html`
    <span class=${`state ${color(position)}`}>${words(state)}</span>${" "}
    <a href=${href(`/groups/${position.group_id}`)}>group ${position.group_id}</a> at ${position.seq} ·${" "}
    <span class="verbatim">${visible(position.task)}</span>
    ${` · ${visible(position.domain)} · `}${scaffoldName(position.scaffold)}
    <span class="soft">${facts()}</span>
    ${state === "dispatched" || state === "ready" ? [" ", cancelButton(position.group_id, again)] : null}
  `;
}

/**
 * The head, and the process that blocks it: shown while no position is selected.
 * @param {{ queue: any }} props
 */
function HeadOf({ queue }) {
  /** @type {Position | undefined} */
  const head = queue?.positions.find((/** @type {Position} */ position) => position.seq === queue.head);
  if (!head)
    return html`<span class="soft">Nothing is open. Click a position, or walk them with the arrow keys.</span>`;
  const held = queue.status.stages.find((/** @type {any} */ one) => one.stall_cause && OF_GROUPS.includes(one.name));
  return html`
    <span class="soft">The head: </span>
    <a href=${href(`/groups/${head.group_id}`)}>group ${head.group_id}</a> at ${head.seq},${" "}
    ${
      head.state === "ready"
        ? "is ready: the window is free to move."
        : `${progress(head)}, dispatched ${ago(head.dispatched)}.`
    }
    ${held ? html`<span class="behind"> Held up: ${visible(held.stall_cause)}.</span>` : null}
  `;
}

/** @param {{ queue: any }} props */
function Figures({ queue }) {
  const open = queue.open_batch !== null;
  return html`
    <dl class="figures">
      ${figure("dispatched", number(queue.next_seq), "positions given out")}
      ${figure(
        "in flight",
        [number(queue.outstanding), html`<small> of ${queue.capacity}</small>`],
        "groups, ready ones included",
      )}
      ${figure(
        "room now",
        number(queue.room),
        queue.status.admission_open ? "groups could be dispatched" : "groups, once admission is open",
      )}
      ${figure("head", queue.head === null ? "–" : number(queue.head), `window of ${plural(queue.window, "position")}`)}
      ${figure(
        "batch",
        open ? number(queue.open_batch) : "–",
        open ? `${outOf(queue.open_batch_taken, queue.open_batch_size)} groups taken` : "none is open",
      )}
      ${figure("rollouts busy", number(queue.running_rollouts), `stage ${queue.stage}, policy ${queue.policy}`)}
    </dl>
  `;
}

/**
 * The reasons why groups are not dispatched, or carry no signal.
 * @param {{ queue: any }} props
 */
const Blame = ({ queue: { status, intake_open: intake } }) => html`
  <div>
    ${status.no_signal ? html`<p class="note bad">${visible(sentence(status.no_signal))}</p>` : null}
    ${status.without_verdict ? html`<p class="note">${visible(sentence(status.without_verdict))}</p>` : null}
    ${
      status.admission_open
        ? null
        : html`
          <p class="note busy">
            Admission is closed: ${visible(status.admission_reason ?? "no reason is recorded")}
          </p>
        `
    }
    ${intake ? null : html`<p class="note">Intake is closed: no further task is accepted.</p>`}
  </div>
`;

/** @param {{ queue: any, again: () => void }} props */
function Steering({ queue, again }) {
  async function reweigh() {
    const done = await confirmed({
      title: `Weights of stage ${visible(queue.stage)}`,
      what: "On any scale. They hold for groups dispatched from now on, while this stage is on; then the next stage's own weights hold.",
      fields: html`<${Weights} mix=${queue.mix} />`,
      path: "/api/steer/weights",
      verb: "Set them",
      body: weightsOf,
    });
    if (done) again();
  }
  const pause = {
    title: "Pause admission?",
    what: "No further training group is dispatched; what is dispatched runs to its end, which drains the run. Evaluations go on.",
    path: "/api/steer/pause",
    verb: "Pause",
  };
  const resume = {
    title: "Resume admission?",
    what: "Accepted groups are dispatched again.",
    path: "/api/steer/resume",
    verb: "Resume",
  };
  return html`
    ${
      queue.status.admission_open
        ? orderButton("Pause admission", pause, again)
        : orderButton("Resume admission", resume, again)
    }
    ${queue.mix.length ? html`<button type="button" class="small" onClick=${reweigh}>Change the mix</button>` : null}
  `;
}

/** @param {{ page: Page }} props */
export function Page({ page }) {
  useTitle(page, "Queue");
  const [queue, again] = useLive(page, "/api/queue");
  const [seq, pick] = useState(/** @type {number | null} */ (null));
  /** @type {Position[]} */
  const positions = queue?.positions ?? [];
  const picked = positions.find((position) => position.seq === seq) ?? null;

  /** @param {number} by */
  const step = (by) => {
    if (!positions.length) return;
    const at = positions.findIndex((position) => position.seq === seq);
    const head = positions.findIndex((position) => position.seq === queue.head);
    const next = at < 0 ? Math.max(0, head) : at + by;
    pick(positions[Math.min(positions.length - 1, Math.max(0, next))].seq);
  };
  const open = () => {
    if (picked) page.go(`/groups/${picked.group_id}`);
  };
  useKeys("Queue", [
    { keys: ["ArrowRight", "j"], what: "next position", run: () => step(1) },
    { keys: ["ArrowLeft", "k"], what: "position before", run: () => step(-1) },
    {
      keys: ["h"],
      what: "the head of the queue",
      run: () => {
        if (queue && queue.head !== null) pick(queue.head);
      },
    },
    {
      keys: ["Enter"],
      what: "open the group",
      run: () => {
        if (document.activeElement?.closest("a, button") || !picked) return false;
        open();
      },
    },
  ]);
  return html`
    <header class="page-head">
      <div>
        <h1>Queue</h1>
        <p class=${queue?.status.bad ? "lead bad" : "lead"}>${queue && visible(queue.status.why)}</p>
      </div>
      <div class="tools">
        ${queue?.status.state === "active" ? html`<${Steering} queue=${queue} again=${again} />` : null}
      </div>
    </header>
    <section class="panel">
      <div class="panel-head">
        <h2>Positions</h2>
        <div class="chips">
          ${["running", "ready", "failed"].map((state) => html`<span class=${`chip ${state}`}>${state}</span>`)}
          <span class="chip trained">taken</span>
          <span class="chip past">trained</span>
          <span class="chip hole">hole: filtered</span>
          <span class="chip window">window</span>
        </div>
      </div>
      <p class="unseen" id="strip-help">Arrow keys walk the positions, Enter opens the group.</p>
      <${Strip} queue=${queue} picked=${seq} onPick=${pick} onOpen=${open} />
      <div class="strip-detail" aria-live="polite">
        ${queue && (picked ? html`<${Picked} position=${picked} again=${again} />` : html`<${HeadOf} queue=${queue} />`)}
      </div>
    </section>
    <div class="grid wide">
      <section class="panel">
        <h2>Admission</h2>
        ${queue && html`<${Figures} queue=${queue} /><${Blame} queue=${queue} />`}
      </section>
      <section class="panel">
        <h2>Mix served against offered</h2>
        <div>
          ${queue && html`<${Mix} queue=${queue} />`}
          ${
            queue?.served_within
              ? html`
                <p class="small faint">
                  Of the latest ${plural(queue.served_within, "position")}; the mark is the share that stage${" "}
                  ${visible(queue.stage)} offers.
                </p>
              `
              : null
          }
        </div>
      </section>
    </div>
    <section class="panel">
      <h2>Unfinished work</h2>
      <${Table}
        columns=${STAGES}
        rows=${queue?.status.stages}
        rowKey=${(/** @type {any} */ row) => row.name}
        caption="Stages with open work"
        empty="Nothing is unfinished." />
    </section>
  `;
}
