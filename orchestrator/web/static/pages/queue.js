// The queue: why it waits, positions with the window drawn over them, the mix of domains, the stages with open work.

import { h, redraw, s, show } from "../dom.js";
import { ago, number, percent, plural, seconds, visible, words } from "../format.js";
import { keys } from "../keys.js";
import { href } from "../router.js";
import { scaffoldName } from "../scaffold.js";
import { cancelButton, confirmed, orderButton } from "../steer.js";
import { table } from "../table.js";

const COLORS = { dispatched: "running", ready: "ready", taken: "trained", trained: "trained", filtered: "filtered", dead: "failed" };
const GAP = 3;

/** The class of a position's colour: failed as soon as a rollout of an open group is lost. */
const color = (position) => (position.state === "dispatched" && position.lost ? "failed" : COLORS[position.state] ?? "waiting");

const said = (position) => {
  const base = `${position.seq}: group ${position.group_id}, ${position.task}, ${position.domain}, ${words(position.state)}`;
  if (position.state === "dispatched") return `${base}; ${position.over} of ${position.size} rollouts over, ${position.running} under way${position.lost ? `, ${position.lost} lost` : ""}`;
  if (position.batch_no !== null) return `${base}, batch ${position.batch_no}`;
  return position.reason ? `${base}: ${words(position.reason)}` : base;
};

/** The strip of positions: wraps to the width, the window as a frame behind its cells. Returns { element, update, select }. */
function strip(onPick) {
  const element = h("div", { class: "strip", role: "listbox", tabindex: 0, "aria-label": "Queue positions", "aria-describedby": "strip-help" });
  let queue = null, picked = null;

  function draw() {
    const width = Math.max(200, element.clientWidth), CELL = queue.positions.length <= 160 && width > 600 ? 19 : 14, per = Math.max(10, Math.floor((width + GAP) / (CELL + GAP)));
    const rows = Math.ceil(queue.positions.length / per);
    const line = CELL + 18;
    const picture = s("svg", { width, height: Math.max(1, rows) * line + 2, role: "presentation" });
    queue.positions.forEach((position, i) => {
      const x = (i % per) * (CELL + GAP), y = Math.floor(i / per) * line + 14;
      const inside = queue.head !== null && position.seq >= queue.head && position.seq < queue.head + queue.window;
      if (inside) picture.append(s("rect", { class: "strip-window", x: x - GAP / 2, y: y - 3, width: CELL + GAP, height: CELL + 6 }), s("rect", { class: "strip-under", x: x - GAP / 2, y: y + CELL + 2, width: CELL + GAP, height: 2 }));
      if (i % per === 0 || position.seq === queue.head) picture.append(s("text", { class: "strip-seq", x, y: y - 5 }, position.seq === queue.head ? `▾ ${position.seq}` : String(position.seq)));
      const hole = position.state === "filtered" || position.state === "dead";
      picture.append(s("rect", { class: `strip-cell ${color(position)}${hole ? " hole" : ""}${position.state === "trained" ? " past" : ""}`, x: x + (hole ? .75 : 0), y: y + (hole ? .75 : 0), width: CELL - (hole ? 1.5 : 0), height: CELL - (hole ? 1.5 : 0), rx: 3 }));
      if (position.state === "dispatched" && position.size) {
        const done = ((position.over + position.lost) / position.size) * CELL;
        picture.append(s("rect", { class: "strip-done", x, y: y + CELL - done, width: CELL, height: done, rx: done > 5 ? 3 : 1 }));
      }
      const cell = s("rect", { class: "strip-hit", x: x - GAP / 2, y: y - GAP, width: CELL + GAP, height: CELL + 2 * GAP, data: { key: position.seq, seq: position.seq } }, s("title", null, said(position)));
      if (position.seq === picked) picture.append(s("rect", { class: "strip-picked", x: x - 2, y: y - 2, width: CELL + 4, height: CELL + 4, rx: 5 }));
      picture.append(cell);
    });
    redraw(element, picture);
  }

  function select(seq) {
    picked = seq;
    if (queue) draw();
    onPick(queue?.positions.find((position) => position.seq === seq) ?? null);
  }

  element.addEventListener("click", (event) => { if (event.target.dataset?.seq) select(Number(event.target.dataset.seq)); });
  element.addEventListener("dblclick", (event) => { if (event.target.dataset?.seq) element.dispatchEvent(new CustomEvent("open")); });
  new ResizeObserver(() => { if (queue) draw(); }).observe(element);
  return {
    element,
    select,
    step(by) {
      if (!queue?.positions.length) return;
      const at = queue.positions.findIndex((position) => position.seq === picked);
      const start = queue.positions.findIndex((position) => position.seq === queue.head);
      select(queue.positions[Math.min(queue.positions.length - 1, Math.max(0, at < 0 ? Math.max(0, start) : at + by))].seq);
    },
    update(next) {
      queue = next;
      draw();
      onPick(queue.positions.find((position) => position.seq === picked) ?? null);
    },
  };
}

function mixBars(queue) {
  if (!queue.mix.length) return h("p", { class: "empty" }, "No domain has offered or been served anything yet.");
  const served = queue.mix.reduce((sum, one) => sum + one.served, 0);
  return h("div", { class: "mix" }, queue.mix.map((one) => {
    const is = served ? one.served / served : 0;
    return h("div", { class: "mix-row" },
      h("div", { class: "mix-name" }, h("b", null, visible(one.domain)), h("span", { class: "soft" }, ` ${plural(one.waiting, "group")} waiting`)),
      h("div", { class: "mix-bar", role: "img", "aria-label": `${one.domain}: served ${percent(is)}, offered ${percent(one.share)}` },
        h("div", { class: "mix-served", vars: { "--part": is } }), h("div", { class: "mix-share", vars: { "--part": one.share } })),
      h("div", { class: "mix-number" }, percent(is), h("span", { class: "soft" }, ` of ${percent(one.share)}`)));
  }));
}

const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", null, name), h("dd", null, value), note ? h("p", null, note) : null);

export function mount(root, page) {
  page.title("Queue");
  async function reweigh() {
    const fields = data.mix.map((one) => h("label", { class: "weight" }, h("span", null, visible(one.domain)), h("input", { type: "number", min: "0.001", step: "any", required: true, value: Number(one.share.toPrecision(3)), data: { domain: one.domain } })));
    const own = h("label", { class: "check" }, h("input", { type: "checkbox", on: { change: (event) => { for (const field of fields) field.querySelector("input").disabled = event.target.checked; } } }), "as the stage is configured");
    const done = await confirmed({
      title: `Weights of stage ${visible(data.stage)}`, what: "On any scale. They hold for groups dispatched from now on, while this stage is on; then the next stage's own weights hold.",
      fields: h("div", { class: "weights" }, fields, own), path: "/api/steer/weights", verb: "Set them",
      body: () => ({ domains: own.querySelector("input").checked ? null : Object.fromEntries(fields.map((field) => [field.querySelector("input").dataset.domain, Number(field.querySelector("input").value)])) }),
    });
    if (done) again();
  }
  const why = h("p", { class: "lead" });
  const detail = h("div", { class: "strip-detail", "aria-live": "polite" });
  /** The head, and who holds it up: what is said while no position is picked. */
  function headOf(queue) {
    const head = queue?.positions.find((position) => position.seq === queue.head);
    if (!head) return h("span", { class: "soft" }, "Nothing is open. Click a position, or walk them with the arrow keys.");
    const culprit = queue.standing.stages.find((stage) => stage.culprit && ["lease", "run", "settle", "verify", "grade", "conclude", "take"].includes(stage.name));
    return [h("span", { class: "soft" }, "The head: "), h("a", { href: href(`/groups/${head.group_id}`) }, `group ${head.group_id}`), ` at ${head.seq}, `,
      head.state === "ready" ? "is ready: the window is free to move." : `${head.over} of ${head.size} rollouts over, ${head.running} under way, ${head.waiting} waiting, dispatched ${ago(head.dispatched)}.`,
      culprit ? h("span", { class: "behind" }, ` Held up: ${visible(culprit.culprit)}.`) : null];
  }
  let last = null, data = null;
  const positions = strip((position) => {
    last = position;
    redraw(detail, position
      ? [h("span", { class: `state ${color(position)}` }, words(position.state)), " ",
         h("a", { href: href(`/groups/${position.group_id}`) }, `group ${position.group_id}`), ` at ${position.seq} · `, h("span", { class: "said" }, visible(position.task)), ` · ${visible(position.domain)} · `, scaffoldName(position.scaffold),
         h("span", { class: "soft" }, position.state === "dispatched"
           ? ` · ${position.over} of ${position.size} rollouts over, ${position.running} under way, ${position.waiting} waiting${position.lost ? `, ${position.lost} lost` : ""} · dispatched ${ago(position.dispatched)}`
           : position.reason ? ` · ${words(visible(position.reason))}` : position.batch_no !== null ? ` · batch ${position.batch_no}` : ""),
         position.state === "dispatched" || position.state === "ready" ? [" ", cancelButton(position.group_id, () => again())] : null]
      : headOf(data));
  });
  const steering = h("div", { class: "tools" });
  const figures = h("dl", { class: "figures" }), mix = h("div"), blame = h("div");
  const stages = table(
    [
      { name: "stage", value: (row) => row.name },
      { name: "open", value: (row) => row.open, numeric: true },
      { name: "oldest", value: (row) => row.oldest_s, cell: (row) => seconds(row.oldest_s), numeric: true },
      { name: "item", value: (row) => row.item, cell: (row) => visible(row.item) },
      { name: "why", title: "why it waits", wide: true, value: (row) => row.culprit || row.held, cell: (row) => (row.culprit ? h("span", null, h("span", { class: "state failed" }, "stuck"), " ", visible(row.culprit)) : visible(row.held)) },
    ],
    { key: (row) => row.name, caption: "Stages with open work", empty: "Nothing is unfinished." },
  );

  show(root,
    h("header", { class: "page-head" }, h("div", null, h("h1", null, "Queue"), why), steering),
    h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", null, "Positions"),
        h("div", { class: "chips" }, ["running", "ready", "trained", "failed"].map((state) => h("span", { class: `chip ${state}` }, state === "trained" ? "taken or trained" : state === "failed" ? "failed" : state)),
          h("span", { class: "chip filtered" }, "hole: filtered"), h("span", { class: "chip window" }, "window"))),
      h("p", { class: "unseen", id: "strip-help" }, "Arrow keys walk the positions, Enter opens the group."),
      positions.element, detail),
    h("div", { class: "grid wide" },
      h("section", { class: "panel" }, h("h2", null, "Admission"), figures, blame),
      h("section", { class: "panel" }, h("h2", null, "Mix served against offered"), mix)),
    h("section", { class: "panel" }, h("h2", null, "Unfinished work"), stages.element));

  const open = () => { if (last) page.go(`/groups/${last.group_id}`); };
  positions.element.addEventListener("open", open);
  keys("Queue", [
    { keys: ["ArrowRight", "j"], what: "next position", run: () => positions.step(1) },
    { keys: ["ArrowLeft", "k"], what: "position before", run: () => positions.step(-1) },
    { keys: ["h"], what: "the head of the queue", run: () => { if (data && data.head !== null) positions.select(data.head); } },
    { keys: ["Enter"], what: "open the group", run: () => { if (document.activeElement?.closest("a, button") || !last) return false; open(); } },
  ], page.signal);

  const again = page.live("/api/queue", {}, (queue) => {
    data = queue;
    redraw(steering, queue.standing.state !== "active" ? null : [
      queue.standing.admission_open
        ? orderButton("Pause admission", { title: "Pause admission?", what: "No further training group is dispatched; what is dispatched runs to its end, which drains the run. Evaluations go on.", path: "/api/steer/pause", verb: "Pause" }, () => again())
        : orderButton("Resume admission", { title: "Resume admission?", what: "Accepted groups are dispatched again.", path: "/api/steer/resume", verb: "Resume" }, () => again()),
      queue.mix.length ? h("button", { type: "button", class: "small", on: { click: reweigh } }, "Change the mix") : null,
    ]);
    redraw(why, visible(queue.standing.why));
    why.classList.toggle("bad", queue.standing.bad);
    positions.update(queue);
    redraw(figures,
      figure("dispatched", number(queue.next_seq), "positions given out"),
      figure("in flight", [number(queue.outstanding), h("small", null, ` of ${queue.capacity}`)], "groups, ready ones included"),
      figure("room now", number(queue.room), "groups could be dispatched"),
      figure("head", queue.head === null ? "–" : number(queue.head), `window of ${plural(queue.window, "position")}`),
      figure("batch", queue.open_batch === null ? "–" : number(queue.open_batch), queue.open_batch === null ? "none is open" : `${queue.open_batch_taken} of ${queue.open_batch_size} groups taken`),
      figure("rollouts busy", number(queue.running_rollouts), `stage ${queue.stage}, policy ${queue.policy}`));
    redraw(blame, !queue.standing.admission_open ? h("p", { class: "note busy" }, `Admission is closed: ${visible(queue.standing.admission_reason ?? "no reason is recorded")}`) : null,
      !queue.intake_open ? h("p", { class: "note" }, "Intake is closed: no further task is accepted.") : null);
    redraw(mix, mixBars(queue), queue.served_within ? h("p", { class: "small faint" }, `Of the latest ${plural(queue.served_within, "position")}; the mark is the share that stage ${visible(queue.stage)} offers.`) : null);
    stages.update(queue.standing.stages);
  });
}
