// The system: processes and their loops, rollout servers, sandboxes and leases, the outbox, what was refused, dead letters, what people did.

import { ask } from "../api.js";
import { h, redraw, show } from "../dom.js";
import { ago, bytes, clock, number, plural, seconds, visible, words } from "../format.js";
import { href } from "../router.js";
import { scaffoldName } from "../scaffold.js";
import { orderButton } from "../steer.js";
import { table } from "../table.js";

const STATE = { lives: "ready", stuck: "failed", silent: "failed", stopped: "", ready: "ready", syncing: "running", starting: "running", failed: "failed", backoff: "failed", waiting: "running", stopping: "running", finished: "trained" };
const badge = (state) => h("span", { class: `state ${STATE[state] ?? ""}` }, words(state));
const MEANS = {
  assignments_stale: "assignments whose lease epoch had passed: acked, nothing done",
  leases_lost: "leases that a worker lost before it was done",
  results_stale: "results of an attempt that did not count any more",
  verdicts_stale: "verdicts of an attempt that did not count any more",
  steps_stale: "steps of an old lease epoch", steps_duplicate: "steps that were there already", steps_conflict: "steps that said something else than what is stored",
  digests_wrong: "results whose digest is not that of the stored steps", admission_halted: "times that the circuit breaker opened", rollouts_resumed: "attempts that went on from their recorded steps",
  resumes_diverged: "resumed programs that asked for something else", rewinds: "rewinds", verdicts_rescored: "verifications asked for again",
};

function loops(process) {
  if (!process.loops.length) return h("span", { class: "faint" }, process.state === "stopped" ? "it said that it ends" : "it tells of no loop");
  const hang = process.loops.filter((loop) => loop.stuck_s || loop.ended);
  const line = (loop) => h("li", { class: loop.stuck_s ? "bad" : null },
    h("b", null, visible(loop.name)), " ",
    loop.ended ? `has ended: ${visible(loop.ended)}` : loop.stuck_s ? `no progress for ${seconds(loop.stuck_s + process.silent_s)}` : loop.resting ? "rests" : `works${loop.item ? ` on ${visible(loop.item)}` : ""}`,
    loop.waits_for ? h("span", { class: "soft" }, `, waits for ${visible(loop.waits_for)}`) : null,
    h("span", { class: "faint" }, ` · ${seconds(loop.age_s)}${loop.restarts ? ` · ${plural(loop.restarts, "restart")}` : ""}`));
  return h("details", { open: hang.length > 0, data: { process: process.process } }, h("summary", null, hang.length ? `${hang.length} of ${process.loops.length} hang` : plural(process.loops.length, "loop")), h("ul", { class: "loops" }, process.loops.map(line)));
}

const json = (value) => (value === null || value === undefined ? "" : Object.entries(value).map(([name, item]) => `${name} ${typeof item === "object" && item !== null ? Object.entries(item).map(([key, each]) => `${key} ${each}`).join(", ") : item}`).join(", "));

/** A mix without weights is that of a stage that takes every domain. */
const mixed = (value) => (value?.domains && !Object.keys(value.domains).length ? { ...value, domains: "every one alike" } : value);

export function mount(root, page) {
  page.title("System");
  const lead = h("p", { class: "lead" }), stuck = h("div");
  const opened = new Set();
  root.addEventListener("toggle", (event) => { const name = event.target.dataset?.process; if (name) (event.target.open ? opened.add(name) : opened.delete(name)); }, { capture: true, signal: page.signal });

  const drainButton = (row, kind, id, name) => (row.draining
    ? orderButton("Work again", { title: `Let ${name} work again?`, what: "It takes new work from now on.", path: "/api/steer/undrain", body: () => ({ kind, id }), verb: "Work again" })
    : orderButton("Drain", { title: `Drain ${name}?`, what: kind === "server"
      ? "It gets no new calls, and those that it has end; its weights follow. Where no other server is left, calls are held until it works again."
      : "It takes no new work, and what it has ends. Drained, it may be stopped and nothing is lost.", path: "/api/steer/drain", body: () => ({ kind, id, last: true }), verb: "Drain" }));
  const drains = (row) => (row.draining ? h("span", { class: "soft" }, row.left === null ? " drains" : row.left ? ` drains: ${row.left} left` : " drained") : null);
  const processes = table([
    { name: "process", value: (row) => row.process, cell: (row) => h("b", null, visible(row.process)) },
    { name: "state", value: (row) => row.state, cell: (row) => badge(row.state) },
    { name: "loops", wide: true, cell: loops },
    { name: "heard", title: "last heard of", value: (row) => row.silent_s, cell: (row) => `${seconds(row.silent_s)} ago`, numeric: true },
    { name: "pid", value: (row) => row.pid, cell: (row) => String(row.pid), numeric: true },
    { name: "host", value: (row) => row.host, cell: (row) => visible(row.host) },
    { name: "", cell: (row) => (row.drains === null ? "" : h("span", { class: "tools nowrap" }, row.left ? h("span", { class: "soft" }, `${row.left} left`) : null, drainButton(row, row.drains, `${row.process}@${row.host}`, `the ${row.process}`))) },
  ], { key: (row) => `${row.host} ${row.process}`, caption: "Processes", empty: "No process of this run was heard of within a day." });
  const supervised = table([
    { name: "process", value: (row) => row.name },
    { name: "state", value: (row) => row.state, cell: (row) => (row.state === "failed" ? h("span", { class: "state failed" }, "given up") : badge(row.state)) },
    { name: "restarts", value: (row) => row.restarts, numeric: true },
    { name: "since", value: (row) => row.since, cell: (row) => ago(row.since), numeric: true },
    { name: "last exit", wide: true, value: (row) => row.last_exit, cell: (row) => visible(row.detail || row.last_exit || "–") },
  ], { key: (row) => row.name, caption: "Supervised processes" });
  const servers = table([
    { name: "server", value: (row) => row.url, cell: (row) => visible(row.url) },
    { name: "state", value: (row) => row.state, cell: (row) => badge(row.state) },
    { name: "version", value: (row) => row.version, cell: (row) => h("span", { class: row.version === row.wanted || !row.leased ? null : "behind" }, row.version === null ? "none" : number(row.version), row.version === row.wanted ? "" : ` of ${number(row.wanted)}`), numeric: true },
    { name: "lease", value: (row) => row.lease_until, cell: (row) => (row.leased ? "held by a gateway" : "nobody's") },
    { name: "detail", wide: true, value: (row) => row.detail, cell: (row) => visible(row.detail ?? "–") },
    { name: "changed", value: (row) => row.changed, cell: (row) => ago(row.changed), numeric: true },
    { name: "", cell: (row) => h("span", { class: "tools nowrap" }, drains(row), row.leased || row.draining ? drainButton(row, "server", row.url, row.url) : null) },
  ], { key: (row) => row.url, caption: "Rollout servers", empty: "No rollout server belongs to this run yet." });
  const leases = table([
    { name: "rollout", value: (row) => row.rollout_id },
    { name: "group", value: (row) => row.group_id, cell: (row) => h("a", { href: href(`/groups/${row.group_id}`) }, String(row.group_id)) },
    { name: "state", value: (row) => row.state, cell: (row) => h("span", { class: "state running" }, row.state) },
    { name: "since", value: (row) => row.since, cell: (row) => ago(row.since), numeric: true },
    { name: "lease ends", value: (row) => row.until, cell: (row) => (row.until === null ? "–" : row.until < Date.now() / 1000 ? h("span", { class: "behind" }, `${ago(row.until)}`) : `in ${seconds(row.until - Date.now() / 1000)}`), numeric: true },
    { name: "attempt", value: (row) => row.attempt, numeric: true },
    { name: "domain", value: (row) => row.domain, cell: (row) => [`${visible(row.domain)} · `, scaffoldName(row.scaffold)] },
    { name: "owner", value: (row) => row.owner, cell: (row) => visible((row.owner ?? "").split(":").at(-1)) },
  ], { key: (row) => String(row.rollout_id), href: (row) => href(`/rollouts/${row.rollout_id}`), caption: "Leases", empty: "Nobody holds a lease." });
  const outbox = table([
    { name: "kind", value: (row) => row.kind }, { name: "owed", value: (row) => row.owed, cell: (row) => number(row.owed), numeric: true },
    { name: "due", value: (row) => row.due, cell: (row) => number(row.due), numeric: true }, { name: "oldest", value: (row) => row.oldest_s, cell: (row) => seconds(row.oldest_s), numeric: true },
  ], { key: (row) => row.kind, caption: "Outbox", empty: "Nothing is owed to the bus." });
  const counters = table([
    { name: "counted", value: (row) => row[0], cell: (row) => words(row[0]) }, { name: "times", value: (row) => row[1], cell: (row) => number(row[1]), numeric: true },
    { name: "what it means", wide: true, cell: (row) => h("span", { class: "soft" }, MEANS[row[0]] ?? "") },
  ], { key: (row) => row[0], caption: "Counters", empty: "Nothing was refused or came twice." });
  const sandboxes = h("dl", { class: "figures" });

  const letters = table([
    { name: "letter", value: (row) => Number(row.letter.slice(1)), cell: (row) => h("button", { type: "button", class: "quiet tiny", on: { click: () => whole(row.letter) } }, row.letter) },
    { name: "at", value: (row) => row.at, cell: (row) => clock(row.at) },
    { name: "what", wide: true, value: (row) => row.what, cell: (row) => h("span", { class: "said" }, visible(row.what), row.bytes !== null ? h("span", { class: "faint" }, ` · ${bytes(row.bytes)}`) : null) },
    { name: "reason", wide: true, value: (row) => row.reason, cell: (row) => h("span", { class: "said" }, visible(row.reason)) },
    { name: "", cell: (row) => h("span", { class: "tools nowrap" },
      orderButton("Retry", { title: `Try ${row.letter} again?`, what: row.letter.startsWith("m") ? "The message is published once more as it was; it is no dead letter then." : "The group's task is submitted again under a name of its own. What became of the group stays on record.", path: "/api/steer/retry", body: () => ({ letter: row.letter }), verb: "Retry" }, reload),
      row.letter.startsWith("m") ? orderButton("Drop", { title: `Drop ${row.letter}?`, what: "The message is forgotten for good. That it was there, who dropped it and why stays in the history.", path: "/api/steer/drop", body: () => ({ letter: row.letter }), verb: "Drop", danger: true }, reload) : null) },
  ], { key: (row) => row.letter, caption: "Dead letters", empty: "Nothing is dead." });
  const actions = table([
    { name: "at", value: (row) => row.at, cell: (row) => clock(row.at) },
    { name: "who", value: (row) => row.who, cell: (row) => visible(row.who) },
    { name: "what", value: (row) => row.what, cell: (row) => h("span", null, h("b", null, row.what), " ", visible(row.target)) },
    { name: "change", wide: true, cell: (row) => h("span", { class: "soft" }, visible(json(mixed(row.before))), row.after ? ` → ${visible(json(mixed(row.after)))}` : "") },
    { name: "reason", wide: true, value: (row) => row.reason, cell: (row) => h("span", { class: "said" }, visible(row.reason)) },
  ], { key: (row) => String(row.action_id), caption: "Actions", empty: "Nobody has steered this run." });

  const detail = h("dialog", { class: "letter", "aria-label": "Dead letter" });
  async function whole(letter) {
    try {
      const found = await ask(`/api/letters/${letter}`, {}, page.signal);
      show(detail, h("h2", null, `${found.letter}: `, visible(found.what)), h("p", { class: "note bad" }, visible(found.reason)), h("p", { class: "small soft" }, clock(found.at)),
        found.attempts.map((one) => h("details", null, h("summary", null, `rollout ${one.rollout_id}, attempt ${one.attempt}: ${words(one.failure_class)}${one.reason ? `: ${visible(one.reason)}` : ""}`), h("pre", { class: "said" }, visible(one.log ?? "no log")))),
        h("details", { open: !found.attempts.length }, h("summary", null, found.cut ? "Its body, cut" : "Its body"), h("pre", { class: "said" }, visible(found.body))),
        h("form", { method: "dialog" }, h("div", { class: "tools" }, h("button", { class: "quiet" }, "Close"))));
      detail.showModal();
    } catch (error) {
      if (error.name !== "AbortError") show(detail, h("p", null, error.message), h("form", { method: "dialog" }, h("button", null, "Close"))), detail.showModal();
    }
  }

  const up = h("section", { class: "panel", hidden: true }, h("h2", null, "Kept alive here"), supervised.element);
  const leaseHead = h("h2", null, "Leases");
  show(root,
    h("header", { class: "page-head" }, h("div", null, h("h1", null, "System"), lead)), stuck,
    h("section", { class: "panel" }, h("h2", null, "Processes and their loops"), processes.element), up,
    h("section", { class: "panel" }, h("h2", null, "Rollout servers"), servers.element),
    h("section", { class: "panel" }, h("h2", null, "Dead letters"), letters.element),
    h("div", { class: "grid wide" },
      h("section", { class: "panel" }, h("h2", null, "Sandboxes"), sandboxes),
      h("section", { class: "panel" }, h("h2", null, "Outbox"), outbox.element)),
    h("section", { class: "panel" }, leaseHead, h("div", { class: "short" }, leases.element)),
    h("section", { class: "panel" }, h("h2", null, "Refused, doubled, late"), counters.element),
    h("section", { class: "panel" }, h("h2", null, "What people did"), actions.element), detail);

  page.live("/api/system", {}, ({ system, supervised: kept }) => {
    redraw(lead, visible(system.standing.why));
    lead.classList.toggle("bad", system.standing.bad);
    redraw(stuck, system.standing.stuck.length ? h("section", { class: "panel" }, h("h2", null, "Stuck"), system.standing.stuck.map((sentence) => h("p", { class: "note bad" }, visible(sentence)))) : null);
    processes.update(system.processes);
    for (const name of opened) root.querySelector(`details[data-process="${CSS.escape(name)}"]`)?.setAttribute("open", "");
    supervised.update(kept);
    up.hidden = !kept.length;
    servers.update(system.servers);
    const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", null, name), h("dd", null, value), h("p", null, note));
    redraw(sandboxes, figure("agents", number(system.sandboxes.attempts), "attempts under way"), figure("verifiers", number(system.sandboxes.verifications), "verifications under way"),
      figure("no room", number(system.sandboxes.no_room), "slots that wait for their disk"));
    redraw(leaseHead, "Leases ", h("small", { class: "faint" }, system.leased > system.leases.length ? `the ${system.leases.length} that end first of ${number(system.leased)}` : ""));
    leases.update(system.leases);
    outbox.update(system.outbox);
    counters.update(Object.entries(system.counters));
  });
  const again = [
    page.live("/api/letters", {}, ({ messages, groups }) => letters.update([...messages, ...groups])),
    page.live("/api/actions", {}, actions.update),
  ];
  function reload() {
    for (const each of again) each();
  }
}
