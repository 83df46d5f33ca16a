// One step token by token: heat for how unlikely each was, a line in the colour of the version that sampled it, dim where it does not train.
// Blocks far from the screen are emptied and keep their height, so that 200,000 tokens scroll like 2,000.

import { ask } from "../api.js";
import { h, s, show } from "../dom.js";
import { number, visible, words } from "../format.js";
import { signed } from "./reward.js";

const BLOCK = 400;
const LEVELS = [0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.005]; // probabilities: below the last one, the strongest heat
const RATIOS = [0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6]; // |ln ratio|
const SPECIAL = /^<\|[^|]*\|>$|^<\/?[a-z_]+>$/;

const heat = (logprob) => { const p = Math.exp(logprob); let level = 0; while (level < LEVELS.length && p < LEVELS[level]) level += 1; return level; };
const drift = (ratio) => { const size = Math.abs(Math.log(ratio)); let level = 0; while (level < RATIOS.length && size >= RATIOS[level]) level += 1; return level; };

const drawn = (text) => visible(text).replaceAll("\t", "⇥\t").replaceAll("\n", "↵\n");

/** Returns { element, show(step) }: the tokens of one step of a rollout. */
export function tokenView(rollout, signal) {
  const element = h("div", { class: "token-view" });
  let told = null, observer = null, mode = "logprob", pages = new Map(), generation = 0, current = null;

  /** The segment that holds a position: they are in order and leave no gap. */
  function segmentAt(position) {
    let low = 0, high = told.segments.length;
    while (low < high) { const middle = (low + high) >> 1; if (position < told.segments[middle].end) high = middle; else low = middle + 1; }
    return told.segments[low];
  }
  const trains = (position) => position >= told.state_len && told.weight !== 0; // not rewarded yet: it may

  function fill(block, page) {
    const made = document.createDocumentFragment();
    for (let i = 0; i < page.ids.length; i += 1) {
      const position = page.start + i, segment = segmentAt(position), text = page.texts ? page.texts[i] : String(page.ids[i]);
      const token = document.createElement("span");
      const logprob = page.logprobs[i], ratio = page.ratios?.[i] ?? null;
      let names = "k";
      if (mode === "ratio" ? ratio !== null : logprob !== null) names += ` h${mode === "ratio" ? drift(ratio) : heat(logprob)}`;
      if (segment?.version !== null && segment?.version !== undefined) names += ` v${segment.version % 8}`;
      if (!trains(position)) names += " off";
      if (page.clipped?.[i]) names += " clipped";
      if (SPECIAL.test(text)) names += " special";
      if (!text) names += " joined";
      if (position === told.state_len) names += " first";
      token.className = names;
      token.dataset.at = i;
      token.textContent = text ? drawn(text) : "·";
      made.append(token);
      if (!page.texts) made.append(" ");
    }
    block.replaceChildren(made);
    block.style.removeProperty("--tall");
  }

  async function load(block) {
    const start = Number(block.dataset.start), mine = generation;
    if (block.dataset.state) return;
    block.dataset.state = "loading";
    try {
      let page = pages.get(start);
      if (!page) {
        page = await ask(`/api/rollouts/${rollout.rollout_id}/tokens`, { attempt: rollout.shown, step: current, start, n: BLOCK }, signal);
        pages.set(start, page);
        if (pages.size > 60) pages.delete(pages.keys().next().value);
      }
      if (mine !== generation || block.dataset.state !== "loading") return;
      if (page.ratios) modes.hidden = false;
      if (page.note) { note.hidden = false; show(note, visible(page.note)); }
      fill(block, page);
      block.dataset.state = "full";
    } catch (error) {
      if (signal.aborted || mine !== generation) return;
      delete block.dataset.state;
      show(block, h("p", { class: "note bad" }, error.message, " ", h("button", { type: "button", class: "quiet", on: { click: () => load(block) } }, "Try again")));
    }
  }

  function empty(block) {
    if (block.dataset.state !== "full") { if (block.dataset.state === "loading") delete block.dataset.state; return; }
    block.style.setProperty("--tall", `${block.offsetHeight}px`);
    block.replaceChildren();
    delete block.dataset.state;
  }

  const note = h("p", { class: "note", hidden: true });
  const inspector = h("div", { class: "inspector", "aria-live": "off" });
  const rest = () => { inspector.classList.add("resting"); show(inspector, h("span", { class: "soft" }, "Point at a token, or click one to keep it here; arrow keys walk from there.")); };
  let kept = false;

  function inspect(target) {
    const token = target.closest?.(".k");
    const block = token?.parentElement;
    const page = block && pages.get(Number(block.dataset.start));
    if (!page) return;
    const i = Number(token.dataset.at), position = page.start + i, segment = segmentAt(position), action = position >= told.state_len;
    const logprob = page.logprobs[i], facts = [
      ["position", action ? `${number(position)}, action token ${number(position - told.state_len)}` : `${number(position)} of the state`],
      ["id", page.ids[i]],
      ["text", page.texts ? h("code", { class: "said" }, JSON.stringify(visible(page.texts[i]))) : "–"],
      ["written by", segment ? [`step ${segment.step}`, segment.version !== null ? `, sampled by v${segment.version}` : segment.part === "prompt" ? ", the prompt" : ", messages and template"] : "–"],
      logprob !== null ? ["logprob", `${number(logprob, 4)} (p ${number(Math.exp(logprob), 3)})`] : null,
      page.trainer_logprobs?.[i] !== null && page.trainer_logprobs?.[i] !== undefined ? ["trainer", number(page.trainer_logprobs[i], 4)] : null,
      page.ratios?.[i] !== null && page.ratios?.[i] !== undefined ? ["ratio", [number(page.ratios[i], 4), page.clipped?.[i] ? h("b", { class: "down" }, " clipped") : null]] : null,
      action ? ["trains", told.weight === null ? "not rewarded yet" : trains(position) ? ["yes", told.advantage !== null ? `, advantage ${signed(told.advantage)}` : ""] : `no${told.marks.length ? `: ${told.marks.map(words).join(", ")}` : ""}`] : ["trains", "not in this step's sample"],
    ];
    inspector.classList.remove("resting"); // at rest it would only cover lines
    show(inspector, h("dl", null, facts.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))));
    element.querySelector(".k.kept")?.classList.remove("kept");
    if (kept) token.classList.add("kept");
  }

  element.addEventListener("mouseover", (event) => { if (!kept) inspect(event.target); });
  element.addEventListener("click", (event) => {
    const token = event.target.closest?.(".k");
    if (!token) return;
    kept = !token.classList.contains("kept");
    if (kept) element.querySelector(".token-flow").focus({ preventScroll: true });
    if (kept) inspect(token);
    else { token.classList.remove("kept"); rest(); }
  });

  /** Walks the tokens that are drawn: from the one that is kept, else from the first sampled one. */
  function walk(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const from = element.querySelector(".k.kept");
    let to = from ?? element.querySelector(".token-flow .k.first") ?? element.querySelector(".token-flow .k");
    if (from) {
      to = by > 0 ? from.nextElementSibling : from.previousElementSibling;
      const block = by > 0 ? from.parentElement.nextElementSibling : from.parentElement.previousElementSibling;
      to ??= by > 0 ? block?.firstElementChild : block?.lastElementChild;
    }
    if (!to?.classList.contains("k")) return;
    kept = true;
    inspect(to);
    to.scrollIntoView({ block: "nearest" });
  }

  function strip() {
    const width = 1000, height = 22, total = Math.max(1, told.full_len), paths = new Map();
    const x = (position) => Math.round((position / total) * width * 100) / 100;
    for (const segment of told.segments) { // a path for each colour: a long trajectory has thousands of segments
      const name = segment.version === null ? `by-${segment.part}` : `by-version b${segment.version % 8}`, top = segment.part === "action" ? 0 : 7;
      const [left, right] = [x(segment.start), Math.max(x(segment.end), x(segment.start) + 0.3)];
      paths.set(name, `${paths.get(name) ?? ""}M${left} ${top}H${right}V${height}H${left}Z`);
    }
    const at = (event) => { const box = event.currentTarget.getBoundingClientRect(); return Math.min(total - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * total))); };
    const label = s("title", null, "Who wrote which tokens; click to go there");
    const name = (event) => {
      const segment = segmentAt(at(event));
      label.textContent = segment ? `${number(segment.start)} to ${number(segment.end - 1)}: step ${segment.step}, ${segment.version === null ? segment.part === "prompt" ? "prompt" : "messages and template" : `sampled by v${segment.version}`}` : "";
    };
    return s("svg", { class: "token-strip", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "Who wrote which tokens; click to go there", on: { click: (event) => reach(at(event)), mousemove: name } },
      label, [...paths].map(([colour, d]) => s("path", { class: colour, d })), s("rect", { class: "strip-edge", x: x(told.state_len) - 1, y: 0, width: 2, height }));
  }

  const [least, most] = [h("span"), h("span")];
  const name = () => { show(least, mode === "ratio" ? "ratio near 1 " : "likely "); show(most, mode === "ratio" ? " far from it" : " unlikely"); };
  const modes = h("fieldset", { class: "modes", hidden: true }, h("legend", { class: "unseen" }, "Colour"),
    ["logprob", "ratio"].map((each) => h("label", null, h("input", { type: "radio", name: "mode", value: each, checked: each === mode, on: { change: () => { mode = each; name(); redraw(); } } }), each)));

  function redraw() {
    for (const block of element.querySelectorAll(".token-block")) if (block.dataset.state === "full") fill(block, pages.get(Number(block.dataset.start)));
  }

  function reach(position) {
    const block = element.querySelector(`.token-block[data-start="${Math.floor(position / BLOCK) * BLOCK}"]`);
    if (!block) return;
    load(block).then(() => {
      const token = [...block.querySelectorAll(".k")][position % BLOCK] ?? block;
      token.scrollIntoView({ block: "center" });
    });
    block.scrollIntoView({ block: "center" });
  }

  function legend() {
    const made = [...new Set(told.segments.filter((segment) => segment.version !== null).map((segment) => segment.version))].sort((a, b) => a - b);
    name();
    return h("div", { class: "token-legend" },
      h("span", { class: "scale" }, least, [0, 1, 2, 3, 4, 5, 6, 7].map((level) => h("i", { class: `k h${level}` })), most),
      made.map((version) => h("span", { class: "scale" }, h("i", { class: `line v${version % 8}` }), ` v${version}`)),
      h("span", { class: "scale" }, h("i", { class: "k off" }, "dim"), " does not train"), modes);
  }

  return {
    element,
    async show(step) {
      generation += 1;
      const mine = generation;
      observer?.disconnect();
      pages = new Map();
      kept = false;
      current = step.idx;
      show(element, h("p", { class: "loading" }, "Loading…"));
      let found;
      try {
        found = await ask(`/api/rollouts/${rollout.rollout_id}/token-map`, { attempt: rollout.shown, step: step.idx }, signal);
      } catch (error) {
        if (!signal.aborted && mine === generation) show(element, h("p", { class: "note bad" }, error.message, " ", h("button", { type: "button", class: "quiet", on: { click: () => this.show(step) } }, "Try again")));
        return;
      }
      if (mine !== generation) return;
      told = found;
      observer = new IntersectionObserver((entries) => { for (const entry of entries) if (entry.isIntersecting) load(entry.target); else empty(entry.target); }, { rootMargin: "1200px 0px" });
      signal.addEventListener("abort", () => observer.disconnect());
      const blocks = [];
      for (let start = 0; start < told.full_len; start += BLOCK)
        blocks.push(h("div", { class: "token-block", data: { start }, vars: { "--tall": `${Math.ceil(Math.min(BLOCK, told.full_len - start) / 22) * 26}px` } }));
      rest();
      show(element,
        h("div", { class: "token-top" }, h("p", { class: "soft" }, `Step ${step.idx}: ${number(told.state_len)} tokens of state, then ${number(told.full_len - told.state_len)} sampled ones.`,
          told.weight === 0 ? ` It does not train${told.marks.length ? `: ${told.marks.map(words).join(", ")}` : ""}.` : ""), note, strip(), legend()),
        h("div", { class: "token-flow", tabindex: 0, role: "group", "aria-label": "Tokens: arrow keys walk them", on: { keydown: walk } }, blocks), inspector);
      for (const block of blocks) observer.observe(block);
      if (told.state_len > BLOCK) requestAnimationFrame(() => { if (mine === generation) reach(told.state_len); });
    },
  };
}
