// The system: processes and their loops, rollout servers, sandboxes and leases, the outbox, refusal counts, dead letters, actions of people.

import { href } from "../address.js";
import { ask, messageOf, stopped } from "../api.js";
import { figure } from "../figure.js";
import { ago, bytes, clock, number, plural, seconds, timeNow, visible, words } from "../format.js";
import { useLive, useTitle } from "../hooks.js";
import { scaffoldName } from "../scaffold.js";
import { orderButton } from "../steer.js";
import { Table } from "../table.js";
import { html, useMemo, useRef, useState } from "../vendor/preact.js";

/** @typedef {import("../router.js").Page} Page */
/** @typedef {import("../table.js").Column} Column */

const STATE = /** @type {Record<string, string>} */ ({
  lives: "ready",
  stuck: "failed",
  silent: "failed",
  stopped: "",
  ready: "ready",
  syncing: "running",
  starting: "running",
  failed: "failed",
  backoff: "failed",
  waiting: "running",
  stopping: "running",
  finished: "trained",
});
/** @param {string} state */
const badge = (state) => html`<span class=${`state ${STATE[state] ?? ""}`}>${words(state)}</span>`;

/** @param {any} process */
function loops(process) {
  if (!process.loops.length)
    return html`<span class="faint">${process.state === "stopped" ? "it reported that it ends" : "it reports no loop"}</span>`;
  const hang = process.loops.filter((/** @type {any} */ loop) => loop.stuck_s || loop.ended);
  /** @param {any} loop */
  const line = (loop) =>
    html`
      <li class=${loop.stuck_s ? "bad" : null}>
        <b>${visible(loop.name)}</b>
        ${" "}
        ${
          loop.ended
            ? `has ended: ${visible(loop.ended)}`
            : loop.stuck_s
              ? `no progress for ${seconds(loop.stuck_s + process.silent_s)}`
              : loop.resting
                ? "rests"
                : `works${loop.item ? ` on ${visible(loop.item)}` : ""}`
        }
        ${loop.waits_for ? html`<span class="soft">, waits for ${visible(loop.waits_for)}</span>` : null}
        <span class="faint">
          ${" "}· ${seconds(loop.age_s)}${loop.restarts ? ` · ${plural(loop.restarts, "restart")}` : ""}
        </span>
      </li>
    `;
  return html`
    <details open=${hang.length > 0} data-process=${process.process}>
      <summary>
        ${hang.length ? `${hang.length} of ${process.loops.length} hang` : plural(process.loops.length, "loop")}
      </summary>
      <ul class="loops">${process.loops.map(line)}</ul>
    </details>
  `;
}

/**
 * Values by name, in readable form.
 * @param {object | null | undefined} value
 */
const json = (value) =>
  listed(value, (item) => (typeof item === "object" && item !== null ? listed(item, String) : String(item)));

/**
 * @param {object | null | undefined} value
 * @param {(item: unknown) => string} written
 */
const listed = (value, written) =>
  Object.entries(value ?? {})
    .map(([name, item]) => `${name} ${written(item)}`)
    .join(", ");

/**
 * A mix without weights belongs to a stage that takes every domain.
 * @param {any} value
 */
const mixed = (value) =>
  value?.domains && !Object.keys(value.domains).length ? { ...value, domains: "every one alike" } : value;

/** @param {any} row @param {string} kind @param {string} id @param {string} name */
const drainButton = (row, kind, id, name) =>
  row.draining
    ? orderButton("Work again", {
        title: `Let ${name} work again?`,
        what: "It takes new work from now on.",
        path: "/api/steer/undrain",
        body: () => ({ kind, id }),
        verb: "Work again",
      })
    : orderButton("Drain", {
        title: `Drain ${name}?`,
        what:
          kind === "server"
            ? "It gets no new calls, and those that it has end; its weights follow. Where no other server is left, calls are held until it works again."
            : "It takes no new work and finishes its current work. Drained, it may be stopped and nothing is lost.",
        path: "/api/steer/drain",
        body: () => ({ kind, id, last: true }),
        verb: "Drain",
      });
/** @param {any} row */
const drains = (row) =>
  row.draining
    ? html`
      <span class="soft">
        ${row.left === null ? " drains" : row.left ? ` drains: ${row.left} left` : " drained"}
      </span>
    `
    : null;

/** @type {Column[]} */
const PROCESSES = [
  { name: "process", value: (row) => row.process, cell: (row) => html`<b>${visible(row.process)}</b>` },
  { name: "state", value: (row) => row.state, cell: (row) => badge(row.state) },
  { name: "loops", wide: true, cell: loops },
  {
    name: "seen",
    title: "last seen",
    value: (row) => row.silent_s,
    cell: (row) => `${seconds(row.silent_s)} ago`,
    numeric: true,
  },
  { name: "pid", value: (row) => row.pid, cell: (row) => String(row.pid), numeric: true },
  { name: "host", value: (row) => row.host, cell: (row) => visible(row.host) },
  {
    name: "",
    cell: (row) =>
      row.drains === null
        ? ""
        : html`
          <span class="tools nowrap">
            ${row.left ? html`<span class="soft">${row.left} left</span>` : null}
            ${drainButton(row, row.drains, `${row.process}@${row.host}`, `the ${row.process}`)}
          </span>
        `,
  },
];

/** @type {Column[]} */
const SUPERVISED = [
  { name: "process", value: (row) => row.name },
  {
    name: "state",
    value: (row) => row.state,
    cell: (row) => (row.state === "failed" ? html`<span class="state failed">given up</span>` : badge(row.state)),
  },
  { name: "restarts", value: (row) => row.restarts, numeric: true },
  { name: "since", value: (row) => row.since, cell: (row) => ago(row.since), numeric: true },
  {
    name: "last exit",
    wide: true,
    value: (row) => row.last_exit,
    cell: (row) => visible(row.detail || row.last_exit || "–"),
  },
];

/** @type {Column[]} */
const SERVERS = [
  { name: "server", value: (row) => row.url, cell: (row) => visible(row.url) },
  { name: "state", value: (row) => row.state, cell: (row) => badge(row.state) },
  {
    name: "version",
    value: (row) => row.version,
    cell: (row) =>
      html`
        <span class=${row.version === row.wanted || !row.leased ? null : "behind"}>
          ${row.version === null ? "none" : number(row.version)}
          ${row.version === row.wanted || row.wanted === null ? "" : `, newest ${number(row.wanted)}`}
        </span>
      `,
    numeric: true,
  },
  {
    name: "lease",
    value: (row) => row.lease_until,
    cell: (row) => (row.leased ? "held by a gateway" : "free"),
  },
  { name: "detail", wide: true, value: (row) => row.detail, cell: (row) => visible(row.detail ?? "–") },
  { name: "changed", value: (row) => row.changed, cell: (row) => ago(row.changed), numeric: true },
  {
    name: "",
    cell: (row) =>
      html`
        <span class="tools nowrap">
          ${drains(row)}
          ${row.leased || row.draining ? drainButton(row, "server", row.url, row.url) : null}
        </span>
      `,
  },
];

/** @type {Column[]} */
const LEASES = [
  { name: "rollout", value: (row) => row.rollout_id },
  {
    name: "group",
    value: (row) => row.group_id,
    cell: (row) => html`<a href=${href(`/groups/${row.group_id}`)}>${String(row.group_id)}</a>`,
  },
  {
    name: "state",
    value: (row) => row.state,
    cell: (row) => html`<span class="state running">${row.state}</span>`,
  },
  { name: "since", value: (row) => row.since, cell: (row) => ago(row.since), numeric: true },
  {
    name: "lease ends",
    value: (row) => row.until,
    cell: (row) =>
      row.until === null
        ? "–"
        : row.until < timeNow()
          ? html`<span class="behind">${ago(row.until)}</span>`
          : `in ${seconds(row.until - timeNow())}`,
    numeric: true,
  },
  { name: "attempt", value: (row) => row.attempt, numeric: true },
  {
    name: "domain",
    value: (row) => row.domain,
    cell: (row) => [`${visible(row.domain)} · `, scaffoldName(row.scaffold)],
  },
  { name: "owner", value: (row) => row.owner, cell: (row) => visible((row.owner ?? "").split(":").at(-1)) },
];

/** @type {Column[]} */
const OUTBOX = [
  { name: "kind", value: (row) => row.kind },
  { name: "owed", value: (row) => row.owed, cell: (row) => number(row.owed), numeric: true },
  { name: "due", value: (row) => row.due, cell: (row) => number(row.due), numeric: true },
  { name: "oldest", value: (row) => row.oldest_s, cell: (row) => seconds(row.oldest_s), numeric: true },
];

/** @type {Column[]} */
const COUNTERS = [
  { name: "counted", value: (row) => row[0], cell: (row) => words(row[0]) },
  { name: "times", value: (row) => row[1], cell: (row) => number(row[1]), numeric: true },
  { name: "what it means", wide: true, cell: (row) => html`<span class="soft">${visible(row[2])}</span>` },
];

/** @type {Column[]} */
const ACTIONS = [
  { name: "at", value: (row) => row.at, cell: (row) => clock(row.at) },
  { name: "who", value: (row) => row.who, cell: (row) => visible(row.who) },
  {
    name: "what",
    value: (row) => row.what,
    cell: (row) => html`<span><b>${row.what}</b> ${visible(row.target)}</span>`,
  },
  {
    name: "change",
    wide: true,
    cell: (row) =>
      html`
        <span class="soft">
          ${visible(json(mixed(row.before)))}
          ${row.after ? ` → ${visible(json(mixed(row.after)))}` : ""}
        </span>
      `,
  },
  {
    name: "reason",
    wide: true,
    value: (row) => row.reason,
    cell: (row) => html`<span class="verbatim">${visible(row.reason)}</span>`,
  },
];

/**
 * Dead letters. `whole(letter)` shows one; `reload()` is called after one is removed.
 * @param {(letter: string) => void} whole
 * @param {() => void} reload
 * @returns {Column[]}
 */
const lettersOf = (whole, reload) => [
  {
    name: "letter",
    value: (row) => Number(row.letter.slice(1)),
    cell: (row) =>
      html`<button type="button" class="quiet tiny" onClick=${() => whole(row.letter)}>${row.letter}</button>`,
  },
  { name: "at", value: (row) => row.at, cell: (row) => clock(row.at) },
  {
    name: "what",
    wide: true,
    value: (row) => row.what,
    cell: (row) =>
      html`
        <span class="verbatim">
          ${visible(row.what)}
          ${row.bytes !== null ? html`<span class="faint"> · ${bytes(row.bytes)}</span>` : null}
        </span>
      `,
  },
  {
    name: "reason",
    wide: true,
    value: (row) => row.reason,
    cell: (row) => html`<span class="verbatim">${visible(row.reason)}</span>`,
  },
  {
    name: "",
    cell: (row) =>
      html`
        <span class="tools nowrap">
          ${orderButton(
            "Retry",
            {
              title: `Try ${row.letter} again?`,
              what: row.letter.startsWith("m")
                ? "The message is published once more as it was; it is then no longer a dead letter."
                : "The group's task is submitted again under a name of its own. What became of the group stays on record.",
              path: "/api/steer/retry",
              body: () => ({ letter: row.letter }),
              verb: "Retry",
            },
            reload,
          )}
          ${
            row.letter.startsWith("m")
              ? orderButton(
                  "Drop",
                  {
                    title: `Drop ${row.letter}?`,
                    what: "The message is forgotten for good. That it was there, who dropped it and why stays in the history.",
                    path: "/api/steer/drop",
                    body: () => ({ letter: row.letter }),
                    verb: "Drop",
                    danger: true,
                  },
                  reload,
                )
              : null
          }
        </span>
      `,
  },
];

/** @param {{ found: any }} props */
const Letter = ({ found }) => html`
  <h2>${found.letter}: ${visible(found.what)}</h2>
  <p class="note bad">${visible(found.reason)}</p>
  <p class="small soft">${clock(found.at)}</p>
  ${found.attempts.map(
    (/** @type {any} */ one) => html`
      <details>
        <summary>
          rollout ${one.rollout_id}, attempt ${one.attempt}: ${words(one.failure_class)}
          ${one.reason ? `: ${visible(one.reason)}` : null}
        </summary>
        <pre class="verbatim">${visible(one.log ?? "no log")}</pre>
      </details>
    `,
  )}
  <details open=${!found.attempts.length}>
    <summary>${found.cut ? "Its body, cut" : "Its body"}</summary>
    <pre class="verbatim">${visible(found.body)}</pre>
  </details>
`;

/** @param {{ page: Page }} props */
export function Page({ page }) {
  useTitle(page, "System");
  const [answer] = useLive(page, "/api/system");
  const [letters, lettersAgain] = useLive(page, "/api/letters");
  const [actions, actionsAgain] = useLive(page, "/api/actions");
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [shown, show] = useState(/** @type {any} */ (null));
  const latest = useRef(""); // the letter that was clicked last: earlier answers may come after its own

  /** @param {string} letter */
  async function whole(letter) {
    latest.current = letter;
    try {
      const found = await ask(`/api/letters/${letter}`, {}, page.signal);
      if (latest.current !== letter) return;
      show(html`<${Letter} key=${letter} found=${found} />`);
    } catch (error) {
      if (stopped(error) || latest.current !== letter) return;
      show(html`<p>${messageOf(error)}</p>`);
    }
    dialog.current?.showModal();
  }
  const reload = () => {
    lettersAgain();
    actionsAgain();
  };
  const columns = useMemo(() => lettersOf(whole, reload), []);
  const system = answer?.system;
  const kept = answer?.supervised ?? [];
  const counted =
    system && Object.entries(system.counters).map(([name, times]) => [name, times, system.meanings[name]]);
  const dead = letters ? letters.all_messages + letters.all_groups : 0;
  const fewer =
    letters && (letters.messages.length < letters.all_messages || letters.groups.length < letters.all_groups)
      ? ": the newest are shown, `penstock dead list` has all"
      : "";
  return html`
    <header class="page-head">
      <div>
        <h1>System</h1>
        <p class=${system?.status.bad ? "lead bad" : "lead"}>${system && visible(system.status.why)}</p>
      </div>
    </header>
    <div>
      ${
        system?.status.stuck.length
          ? html`
            <section class="panel">
              <h2>Stuck</h2>
              ${system.status.stuck.map((/** @type {string} */ one) => html`<p class="note bad">${visible(one)}</p>`)}
            </section>
          `
          : null
      }
    </div>
    <section class="panel">
      <h2>Processes and their loops</h2>
      <${Table}
          columns=${PROCESSES}
          rows=${system?.processes}
          rowKey=${(/** @type {any} */ row) => `${row.host} ${row.process}`}
          caption="Processes"
          empty="No process of this run reported within a day." />
    </section>
    <section class="panel" hidden=${!kept.length}>
      <h2>Kept alive here</h2>
      <${Table}
          columns=${SUPERVISED}
          rows=${kept}
          rowKey=${(/** @type {any} */ row) => row.name}
          caption="Supervised processes" />
    </section>
    <section class="panel">
      <h2>Rollout servers</h2>
      <${Table}
          columns=${SERVERS}
          rows=${system?.servers}
          rowKey=${(/** @type {any} */ row) => row.url}
          caption="Rollout servers"
          empty="No rollout server belongs to this run yet." />
    </section>
    <section class="panel">
      <h2>
        Dead letters${" "}
        ${
          dead
            ? html`
              <small class="faint">
                ${plural(letters.all_messages, "message")}, ${plural(letters.all_groups, "group")}${fewer}
              </small>
            `
            : null
        }
      </h2>
      <${Table}
          columns=${columns}
          rows=${letters && [...letters.messages, ...letters.groups]}
          rowKey=${(/** @type {any} */ row) => row.letter}
          caption="Dead letters"
          empty="Nothing is dead." />
    </section>
    <div class="grid wide">
      <section class="panel">
        <h2>Sandboxes</h2>
        <dl class="figures">
          ${
            system
              ? [
                  figure("agents", number(system.sandboxes.attempts), "attempts under way"),
                  figure("verifiers", number(system.sandboxes.verifications), "verifications under way"),
                  figure("no room", number(system.sandboxes.no_room), "slots that wait for their disk"),
                ]
              : null
          }
        </dl>
      </section>
      <section class="panel">
        <h2>Outbox</h2>
        <${Table}
          columns=${OUTBOX}
          rows=${system?.outbox}
          rowKey=${(/** @type {any} */ row) => row.kind}
          caption="Outbox"
          empty="Nothing is owed to the bus." />
      </section>
    </div>
    <section class="panel">
      <h2>
        Leases${" "}
        ${
          system
            ? html`
              <small class="faint">
                ${
                  system.leased > system.leases.length
                    ? `the ${system.leases.length} that end first of ${number(system.leased)}`
                    : null
                }
              </small>
            `
            : null
        }
      </h2>
      <div class="short">
        <${Table}
          columns=${LEASES}
          rows=${system?.leases}
          rowKey=${(/** @type {any} */ row) => String(row.rollout_id)}
          href=${(/** @type {any} */ row) => href(`/rollouts/${row.rollout_id}`)}
          caption="Leases"
          empty="No process holds a lease." />
      </div>
    </section>
    <section class="panel">
      <h2>Refused, doubled, late</h2>
      <${Table}
          columns=${COUNTERS}
          rows=${counted}
          rowKey=${(/** @type {any} */ row) => row[0]}
          caption="Counters"
          empty="Nothing was refused or came twice." />
    </section>
    <section class="panel">
      <h2>What people did</h2>
      <${Table}
          columns=${ACTIONS}
          rows=${actions}
          rowKey=${(/** @type {any} */ row) => String(row.action_id)}
          caption="Actions"
          empty="This run was never steered." />
    </section>
    <dialog class="letter" aria-label="Dead letter" ref=${dialog}>
      ${shown}
      <form method="dialog"><div class="tools"><button class="quiet">Close</button></div></form>
    </dialog>
  `;
}
