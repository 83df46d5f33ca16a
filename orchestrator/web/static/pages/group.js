// One group: its rollouts side by side, and how the files that two of them left differ.

import { ask } from "../api.js";
import { h, redraw, show } from "../dom.js";
import { bytes, clock, compact, number, plural, seconds, visible, words } from "../format.js";
import { keys } from "../keys.js";
import { scaffoldName } from "../scaffold.js";
import { cancelButton } from "../steer.js";
import { table } from "../table.js";
import { advantage, rewardBar, rewardLegend, scaleOf } from "../trajectory/reward.js";
import { cutText, wholeOf } from "../trajectory/texts.js";
import { STATES } from "./rollout.js";

const GROUP_STATES = { accepted: "waiting", dispatched: "running", ready: "ready", taken: "trained", trained: "trained", scored: "ready", filtered: "filtered", dead: "failed" };
export const groupState = (state) => h("span", { class: `state ${GROUP_STATES[state] ?? ""}` }, words(state));

const CHANGES = { same: "the same", changed: "changed", only_left: "only left", only_right: "only right", binary: "binary, and different" };

const size = (n) => (n === null ? "nothing" : bytes(n));
const sizes = (one) => ({ only_left: size(one.left), only_right: size(one.right) })[one.change] ?? `${size(one.left)} against ${size(one.right)}`;

function difference(one) {
  return h("details", { class: "difference", open: one.lines.length > 0 && one.lines.length < 200 },
    h("summary", null, h("span", { class: "mono said" }, visible(one.path)), " ", h("span", { class: "soft" }, CHANGES[one.change], one.compared ? "" : `, too large to compare here (${sizes(one)})`)),
    one.lines.length ? h("pre", { class: "diff" }, one.lines.map((line) =>
      h("span", { class: line.startsWith("+++") || line.startsWith("---") ? "faint" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "place" : null }, `${visible(line)}\n`))) : null,
    one.length > one.lines.length ? h("p", { class: "faint small" }, `${number(one.length - one.lines.length)} more lines.`) : null);
}

/** The files of two members against each other, chosen by two lists. */
function differences(group, page) {
  // The best against the worst, where rewards differ.
  const ranked = group.members.filter((one) => one.total !== null).sort((one, other) => other.total - one.total || one.member - other.member);
  const [best, worst] = ranked.length > 1 ? [ranked[0], ranked.at(-1)] : group.members;
  const left = Number(page.query.get("left") ?? best?.member ?? 0), right = Number(page.query.get("right") ?? worst?.member ?? 0);
  const shown = h("div");
  const choice = (name, value) => h("select", { "aria-label": `${name} member`, on: { change: () => load() } }, group.members.map((one) =>
    h("option", { value: one.member, selected: one.member === value }, `member ${one.member}${one.total === null ? "" : ` (${number(one.total)})`}`)));
  const [one, other] = [choice("left", left), choice("right", right)];
  async function load() {
    page.filter({ left: one.value, right: other.value });
    show(shown, h("p", { class: "loading" }, "Loading…"));
    try {
      const found = await ask(`/api/groups/${group.group_id}/difference`, { left: one.value, right: other.value }, page.signal);
      const same = found.filter((each) => each.change === "same");
      show(shown, found.length ? [found.filter((each) => each.change !== "same").map(difference), same.length ? h("p", { class: "soft small" }, `The same in both: `, same.map((each, i) => [i ? ", " : "", h("span", { class: "mono said" }, visible(each.path))]), ".") : null]
        : h("p", { class: "empty" }, "Neither left a file for its verifier."));
    } catch (error) {
      if (!page.signal.aborted) show(shown, h("p", { class: "note bad" }, error.message, " ", h("button", { type: "button", class: "quiet", on: { click: load } }, "Try again")));
    }
  }
  if (group.members.length > 1) load();
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", null, "Final files"), group.members.length > 1 ? h("div", { class: "tools" }, one, "against", other) : null),
    group.members.length > 1 ? shown : h("p", { class: "empty" }, "A group of one rollout has nothing to compare."));
}

const figure = (name, value, note) => h("div", { class: "figure" }, h("dt", null, name), h("dd", null, value), note ? h("p", null, note) : null);

export function mount(root, page) {
  const id = page.params.group;
  page.title(`Group ${id}`);
  const head = h("div"), steering = h("div", { class: "tools" }), figures = h("dl", { class: "figures" }), answers = h("div"), files = h("div");
  let scale = { least: 0, most: 1 }, built = false, group = null;
  const members = table([
    { name: "member", value: (row) => row.member, cell: (row) => h("span", { class: "whole" }, String(row.member), h("small", null, ` rollout ${row.rollout_id}`)) },
    { name: "state", value: (row) => row.state, cell: (row) => [h("span", { class: `state ${STATES[row.state] ?? ""}` }, words(row.state)), row.failure_class && row.failure_class !== "completed" ? [" ", h("span", { class: "state failed" }, words(row.failure_class))] : null, row.reason ? h("div", { class: "small soft said" }, visible(row.reason)) : null] },
    { name: "parts", title: "reward", value: (row) => row.total, cell: (row) => (row.total === null ? h("span", { class: "faint" }, "–") : h("span", { class: "reward-cell" }, rewardBar(row, scale), number(row.total))) },
    { name: "advantage", value: (row) => row.advantage, cell: (row) => (row.advantage === null ? "–" : advantage(row.advantage)), numeric: true },
    { name: "tests", value: (row) => row.tests_passed, cell: (row) => (row.tests === null ? "–" : `${row.tests_passed} of ${row.tests}`), numeric: true },
    { name: "steps", value: (row) => row.steps, cell: (row) => number(row.steps), numeric: true },
    { name: "sampled", title: "tokens", value: (row) => row.action_tokens, cell: (row) => compact(row.action_tokens), numeric: true },
    { name: "longest", value: (row) => row.longest, cell: (row) => compact(row.longest), numeric: true },
    { name: "versions", value: (row) => row.v_lo, cell: (row) => (row.v_lo === null ? "–" : row.v_lo === row.v_hi ? `v${row.v_lo}` : `v${row.v_lo}–${row.v_hi}`), numeric: true },
    { name: "time", value: (row) => row.agent_s, cell: (row) => seconds(row.agent_s), numeric: true },
    { name: "files", value: (row) => row.files.length, cell: (row) => number(row.files.length), numeric: true },
  ], { key: (row) => row.rollout_id, href: (row) => page.href(`/rollouts/${row.rollout_id}`), caption: "Members", empty: "It has no rollouts yet." });
  const all = [h("header", { class: "page-head" }, head, steering), h("section", { class: "panel summary" }, figures),
    h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", null, "Rollouts side by side"), rewardLegend()), members.element), answers, files];
  show(root, h("div", { class: "loading", "aria-busy": "true" }, "Loading…"));

  keys("Group", [
    { keys: ["Enter"], what: "open the first rollout", run: () => { if (document.activeElement?.closest("a, button, summary, select") || !group?.members.length) return false; page.go(`/rollouts/${group.members[0].rollout_id}`); return true; } },
    { keys: ["ArrowRight", "j"], what: "next group", run: () => page.go(`/groups/${Number(id) + 1}`) },
    { keys: ["ArrowLeft", "k"], what: "group before", run: () => { if (Number(id) < 2) return false; page.go(`/groups/${Number(id) - 1}`); return true; } },
  ], page.signal);

  const again = page.live(`/api/groups/${id}`, {}, (next) => {
    group = next;
    redraw(steering, ["accepted", "dispatched", "ready"].includes(next.state) ? cancelButton(next.group_id, () => again()) : null);
    if (!built) show(root, all);
    scale = scaleOf(next.members);
    const rewarded = next.members.filter((one) => one.total !== null);
    const mean = rewarded.length ? rewarded.reduce((sum, one) => sum + one.total, 0) / rewarded.length : null;
    const spread = rewarded.length ? Math.max(...rewarded.map((one) => one.total)) - Math.min(...rewarded.map((one) => one.total)) : null;
    redraw(head, h("h1", null, `Group ${next.group_id}`, " ", groupState(next.state)),
      h("p", { class: "lead" }, h("span", { class: "said" }, visible(next.task)), ` · ${visible(next.domain)} · `, scaffoldName(next.scaffold), `${next.difficulty ? ` · ${visible(next.difficulty)}` : ""}`),
      h("p", { class: "small soft" }, next.seq !== null ? ["queue position ", next.seq] : `${words(next.purpose)}${next.label ? ` ${visible(next.label)}` : ""}${next.pinned_version !== null ? `, version ${next.pinned_version}` : ""}`,
        next.batch_no !== null ? [" · ", h("a", { href: page.href(`/batches/${next.batch_no}`) }, `batch ${next.batch_no}`), ` (${next.batch_state})`] : "",
        next.reason ? h("span", { class: "said" }, ` · ${words(visible(next.reason))}`) : null));
    redraw(figures,
      figure("mean reward", number(mean), `of ${plural(rewarded.length, "rewarded rollout")}`),
      figure("spread", number(spread), spread === 0 ? "nothing to learn from" : "highest minus lowest"),
      figure("members", number(next.size), `${next.members.filter((one) => one.state === "verified").length} verified, ${next.members.filter((one) => one.state === "lost").length} lost`),
      figure("accepted", clock(next.created), next.dispatched ? `dispatched ${seconds(next.dispatched - next.created)} later` : "not dispatched"),
      figure("ran for", next.dispatched && next.ready ? seconds(next.ready - next.dispatched) : "–", next.ready ? "until its last member was verified" : next.ended ? "it never waited for a batch" : "not ready yet"),
      figure("ended", next.ended ? clock(next.ended) : "–", next.ended && next.ready ? `${seconds(next.ended - next.ready)} after it was ready` : ""));
    members.update(next.members);
    const said = next.members.filter((one) => one.answer);
    show(answers, h("div", { class: "grid" },
      next.instruction ? h("section", { class: "panel" }, h("h2", null, "Task"), cutText(next.instruction, next.members.length ? wholeOf(next.members[0].rollout_id, next.members[0].attempt, 0, "instruction", page.signal) : async () => next.instruction.text, { mono: false })) : null,
      said.length ? h("section", { class: "panel" }, h("h2", null, "Answers"), h("dl", { class: "answers" }, said.map((one) => [h("dt", null, h("a", { href: page.href(`/rollouts/${one.rollout_id}`) }, `member ${one.member}`), " ", h("span", { class: "soft" }, number(one.total))), h("dd", null, cutText(one.answer, wholeOf(one.rollout_id, one.attempt, 0, "answer", page.signal)))]))) : null));
    const known = next.members.map((one) => `${one.rollout_id}:${one.attempt}:${one.files.length}`).join();
    if (!built || files.dataset.known !== known) { built = true; files.dataset.known = known; show(files, differences(next, page)); }
  });
}
