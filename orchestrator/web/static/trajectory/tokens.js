// One step token by token: heat for how unlikely each was, a line in the colour of the version that sampled it, dim where it does not train.
// Blocks far from the screen are emptied and keep their height, so that 200,000 tokens scroll like 2,000.

import { ask, messageOf } from "../api.js";
import { number, signed, visible, words } from "../format.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";

const BLOCK = 400;
const MOST_PAGES = 60; // that are kept
const LEVELS = [0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.005]; // probabilities: below the last one, the strongest heat
const RATIOS = [0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6]; // |ln ratio|
const SPECIAL = /^<\|[^|]*\|>$|^<\/?[a-z_]+>$/;
const STRIP = { width: 1000, height: 22 };
const STRIP_SAYS = "Who wrote which tokens; click to go there";

/** @typedef {{ step: number, start: number, end: number, part: string, version: number | null }} Segment */
/**
 * @typedef {object} TokenMap of /api/rollouts/N/token-map
 * @property {number} state_len
 * @property {number} full_len
 * @property {number | null} weight
 * @property {number | null} advantage
 * @property {string[]} marks
 * @property {Segment[]} segments
 */
/**
 * @typedef {object} Tokens of /api/rollouts/N/tokens
 * @property {number} start
 * @property {number[]} ids
 * @property {string[] | null} texts
 * @property {(number | null)[]} logprobs
 * @property {(number | null)[]} [trainer_logprobs]
 * @property {(number | null)[]} [ratios]
 * @property {(boolean | null)[]} [clipped]
 * @property {string | null} note
 */
/** @typedef {{ load: () => Promise<void>, empty: () => void }} Loader of a block */

/** @param {number} logprob */
const heat = (logprob) => {
  const p = Math.exp(logprob);
  const level = LEVELS.findIndex((least) => p >= least);
  return level < 0 ? LEVELS.length : level;
};

/** @param {number} ratio */
const drift = (ratio) => {
  const size = Math.abs(Math.log(ratio));
  const level = RATIOS.findIndex((most) => size < most);
  return level < 0 ? RATIOS.length : level;
};

/** @param {string} text */
const drawn = (text) => visible(text).replaceAll("\t", "⇥\t").replaceAll("\n", "↵\n");

/**
 * The segment that holds a position: they are in order and leave no gap.
 * @param {TokenMap} map
 * @param {number} position
 * @returns {Segment | undefined}
 */
function segmentAt({ segments }, position) {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (position < segments[middle].end) high = middle;
    else low = middle + 1;
  }
  return segments[low];
}

/** @param {TokenMap} map @param {number} position */
const trains = (map, position) => position >= map.state_len && map.weight !== 0; // not rewarded yet: it may

/**
 * The classes of a token.
 * @param {TokenMap} map
 * @param {Tokens} page
 * @param {number} i its place in the page
 * @param {string} mode logprob or ratio
 */
function looks(map, page, i, mode) {
  const position = page.start + i;
  const version = segmentAt(map, position)?.version ?? null;
  const text = page.texts ? page.texts[i] : String(page.ids[i]);
  const logprob = page.logprobs[i];
  const ratio = page.ratios?.[i] ?? null;
  let names = "k";
  if (mode === "ratio") names += ratio === null ? "" : ` h${drift(ratio)}`;
  else if (logprob !== null) names += ` h${heat(logprob)}`;
  if (version !== null) names += ` v${version % 8}`;
  if (!trains(map, position)) names += " off";
  if (page.clipped?.[i]) names += " clipped";
  if (SPECIAL.test(text)) names += " special";
  if (!text) names += " joined";
  if (position === map.state_len) names += " first";
  return names;
}

/**
 * Some tokens, when they are near the screen. `kept`: the position of the one that is kept, if it is one of these.
 * @param {object} props
 * @param {number} props.start
 * @param {TokenMap} props.map
 * @param {string} props.mode
 * @param {number | null} props.kept
 * @param {(start: number) => Promise<Tokens>} props.fetched
 * @param {Map<Element, Loader>} props.loaders
 */
function Block({ start, map, mode, kept, fetched, loaders }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [page, setPage] = useState(/** @type {Tokens | null} */ (null));
  const [wrong, setWrong] = useState("");
  const tall = useRef(`${Math.ceil(Math.min(BLOCK, map.full_len - start) / 22) * 26}px`);
  const wanted = useRef(false);

  async function load() {
    if (wanted.current) return;
    wanted.current = true;
    setWrong("");
    try {
      const found = await fetched(start);
      if (wanted.current) setPage(found);
    } catch (error) {
      wanted.current = false;
      setWrong(messageOf(error));
    }
  }
  function empty() {
    if (page && element.current) tall.current = `${element.current.offsetHeight}px`;
    wanted.current = false;
    setPage(null);
  }
  useLayoutEffect(() => {
    if (element.current) loaders.set(element.current, { load, empty });
  });

  const tokens = useMemo(() => {
    if (!page) return null;
    return page.ids.map((id, i) => {
      const text = page.texts ? page.texts[i] : String(id);
      const names = `${looks(map, page, i, mode)}${page.start + i === kept ? " kept" : ""}`;
      const token = html`<span class=${names} data-at=${i}>${text ? drawn(text) : "·"}</span>`;
      return page.texts ? token : [token, " "];
    });
  }, [page, map, mode, kept]);
  return html`
    <div class="token-block" ref=${element} data-start=${start} style=${page ? {} : { "--tall": tall.current }}>
      ${
        wrong
          ? html`
            <p class="note bad">
              ${wrong}${" "}<button type="button" class="quiet" onClick=${load}>Try again</button>
            </p>
          `
          : tokens
      }
    </div>
  `;
}

/**
 * Who wrote which tokens, as one strip.
 * @param {{ map: TokenMap, reach: (position: number) => void }} props
 */
function Strip({ map, reach }) {
  const { width, height } = STRIP;
  const total = Math.max(1, map.full_len);
  const [label, setLabel] = useState(STRIP_SAYS);
  /** @param {number} position */
  const x = (position) => Math.round((position / total) * width * 100) / 100;
  const paths = useMemo(() => {
    /** A path for each colour: a long trajectory has thousands of segments. @type {Map<string, string>} */
    const found = new Map();
    for (const { start, end, part, version } of map.segments) {
      const name = version === null ? `by-${part}` : `by-version b${version % 8}`;
      const right = Math.max(x(end), x(start) + 0.3);
      const path = `M${x(start)} ${part === "action" ? 0 : 7}H${right}V${height}H${x(start)}Z`;
      found.set(name, `${found.get(name) ?? ""}${path}`);
    }
    return [...found];
  }, [map]);
  /** @param {MouseEvent} event */
  const at = (event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    return Math.min(total - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * total)));
  };
  /** @param {MouseEvent} event */
  const name = (event) => {
    const segment = segmentAt(map, at(event));
    if (!segment) return setLabel("");
    const { start, end, step, version, part } = segment;
    const by = version !== null ? `sampled by v${version}` : part === "prompt" ? "prompt" : "messages and template";
    setLabel(`${number(start)} to ${number(end - 1)}: step ${step}, ${by}`);
  };
  return html`
    <svg
      class="token-strip"
      viewBox=${`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label=${STRIP_SAYS}
      onClick=${(/** @type {MouseEvent} */ event) => reach(at(event))}
      onMouseMove=${name}>
      <title>${label}</title>
      ${paths.map(([colour, d]) => html`<path class=${colour} d=${d} />`)}
      <rect class="strip-edge" x=${x(map.state_len) - 1} y="0" width="2" height=${height} />
    </svg>
  `;
}

/**
 * What the colours mean. `modes`: whether there are ratios to colour by.
 * @param {{ map: TokenMap, mode: string, setMode: (mode: string) => void, modes: boolean }} props
 */
function Legend({ map, mode, setMode, modes }) {
  const versions = map.segments.map((segment) => segment.version).filter((version) => version !== null);
  const made = [...new Set(versions)].sort((a, b) => a - b);
  return html`
    <div class="token-legend">
      <span class="scale">
        <span>${mode === "ratio" ? "ratio near 1 " : "likely "}</span>
        ${[0, 1, 2, 3, 4, 5, 6, 7].map((level) => html`<i class=${`k h${level}`} />`)}
        <span>${mode === "ratio" ? " far from it" : " unlikely"}</span>
      </span>
      ${made.map((version) => html`<span class="scale"><i class=${`line v${version % 8}`} /> v${version}</span>`)}
      <span class="scale"><i class="k off">dim</i> does not train</span>
      <fieldset class="modes" hidden=${!modes}>
        <legend class="unseen">Colour</legend>
        ${["logprob", "ratio"].map(
          (each) => html`
            <label>
              <input type="radio" name="mode" value=${each} checked=${each === mode} onChange=${() => setMode(each)} />
              ${each}
            </label>
          `,
        )}
      </fieldset>
    </div>
  `;
}

/**
 * All that is known of a token.
 * @param {TokenMap} map
 * @param {Tokens} page
 * @param {number} position
 * @returns {[string, any][]}
 */
function factsOf(map, page, position) {
  const i = position - page.start;
  const segment = segmentAt(map, position);
  const action = position >= map.state_len;
  const logprob = page.logprobs[i];
  const trained = page.trainer_logprobs?.[i] ?? null;
  const ratio = page.ratios?.[i] ?? null;
  const place = action ? `, action token ${number(position - map.state_len)}` : " of the state";
  const made = () => {
    if (!segment) return "–";
    if (segment.version !== null) return `step ${segment.step}, sampled by v${segment.version}`;
    return `step ${segment.step}${segment.part === "prompt" ? ", the prompt" : ", messages and template"}`;
  };
  const teaches = () => {
    if (!action) return "not in this step's sample";
    if (map.weight === null) return "not rewarded yet";
    if (trains(map, position)) return `yes${map.advantage !== null ? `, advantage ${signed(map.advantage)}` : ""}`;
    return `no${map.marks.length ? `: ${map.marks.map(words).join(", ")}` : ""}`;
  };
  /** @type {[string, any][]} */
  const facts = [
    ["position", `${number(position)}${place}`],
    ["id", page.ids[i]],
    ["text", page.texts ? html`<code class="verbatim">${JSON.stringify(visible(page.texts[i]))}</code>` : "–"],
    ["written by", made()],
  ];
  if (logprob !== null) facts.push(["logprob", `${number(logprob, 4)} (p ${number(Math.exp(logprob), 3)})`]);
  if (trained !== null) facts.push(["trainer", number(trained, 4)]);
  if (ratio !== null)
    facts.push(["ratio", [number(ratio, 4), page.clipped?.[i] ? html`<b class="down"> outside bounds</b>` : null]]);
  return [...facts, ["trains", teaches()]];
}

/** @param {{ facts: [string, any][] | null }} props */
const Inspector = ({ facts }) => html`
  <div class=${facts ? "inspector" : "inspector resting"} aria-live="off">
    ${
      facts
        ? html`<dl>${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
        : html`<span class="soft">Point at a token, or click one to keep it here; arrow keys walk from there.</span>`
    }
  </div>
`;

/**
 * The tokens of one step, whose map is known.
 * @param {{ rollout: any, step: any, map: TokenMap, signal: AbortSignal }} props
 */
function Flow({ rollout, step, map, signal }) {
  const flow = useRef(/** @type {HTMLElement | null} */ (null));
  const pages = useRef(/** @type {Map<number, Tokens>} */ (new Map()));
  const loaders = useRef(/** @type {Map<Element, Loader>} */ (new Map()));
  const [mode, setMode] = useState("logprob");
  const [modes, setModes] = useState(false);
  const [note, setNote] = useState("");
  const [kept, setKept] = useState(/** @type {number | null} */ (null));
  const [pointed, setPointed] = useState(/** @type {number | null} */ (null));

  /** @param {number} start */
  async function fetched(start) {
    const params = { attempt: rollout.shown, step: step.idx, start, n: BLOCK };
    /** @type {Tokens} */
    const page = pages.current.get(start) ?? (await ask(`/api/rollouts/${rollout.rollout_id}/tokens`, params, signal));
    pages.current.set(start, page);
    const [oldest] = pages.current.keys();
    if (pages.current.size > MOST_PAGES) pages.current.delete(oldest);
    if (page.ratios) setModes(true);
    if (page.note) setNote(page.note);
    return page;
  }

  /** @param {number} position */
  async function reach(position) {
    const start = Math.floor(position / BLOCK) * BLOCK;
    const block = flow.current?.querySelector(`.token-block[data-start="${start}"]`);
    if (!block) return;
    block.scrollIntoView({ block: "center" });
    await loaders.current.get(block)?.load();
    requestAnimationFrame(() =>
      (block.querySelectorAll(".k")[position % BLOCK] ?? block).scrollIntoView({ block: "center" }),
    );
  }

  useLayoutEffect(() => {
    const near = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          const loader = loaders.current.get(target);
          if (isIntersecting) loader?.load();
          else loader?.empty();
        }
      },
      { rootMargin: "1200px 0px" },
    );
    for (const block of flow.current?.children ?? []) near.observe(block);
    const first = requestAnimationFrame(() => map.state_len > BLOCK && reach(map.state_len));
    return () => {
      near.disconnect();
      cancelAnimationFrame(first);
    };
  }, []);

  /**
   * The position of the token that an element is.
   * @param {EventTarget | Element | null | undefined} target
   */
  const positionOf = (target) => {
    const token = target instanceof Element ? target.closest(".token-flow .k") : null;
    if (!(token instanceof HTMLElement)) return null;
    return Number(token.parentElement?.dataset.start) + Number(token.dataset.at);
  };
  /** @param {MouseEvent} event */
  const point = (event) => {
    const position = positionOf(event.target);
    if (kept === null && position !== null) setPointed(position);
  };
  /** @param {MouseEvent} event */
  const click = (event) => {
    const position = positionOf(event.target);
    if (position === null) return;
    const keeps = position !== kept;
    setKept(keeps ? position : null);
    setPointed(keeps ? position : null);
    if (keeps) flow.current?.focus({ preventScroll: true });
  };
  /**
   * Walks the tokens that are drawn: from the one that is kept, else from the first sampled one.
   * @param {KeyboardEvent} event
   */
  const walk = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || !flow.current || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    /** @param {number} position */
    const tokenAt = (position) => {
      const start = Math.floor(position / BLOCK) * BLOCK;
      return flow.current?.querySelector(`.token-block[data-start="${start}"] > .k[data-at="${position - start}"]`);
    };
    const to =
      kept === null ? (flow.current.querySelector(".k.first") ?? flow.current.querySelector(".k")) : tokenAt(kept + by);
    const position = positionOf(to);
    if (position === null) return;
    setKept(position);
    setPointed(position);
    to?.scrollIntoView({ block: "nearest" });
  };

  const blocks = useMemo(() => {
    const made = [];
    for (let start = 0; start < map.full_len; start += BLOCK)
      made.push(html`
        <${Block}
          key=${start}
          start=${start}
          map=${map}
          mode=${mode}
          kept=${kept !== null && kept >= start && kept < start + BLOCK ? kept : null}
          fetched=${fetched}
          loaders=${loaders.current} />
      `);
    return made;
  }, [map, mode, kept]);
  const page = pointed === null ? undefined : pages.current.get(Math.floor(pointed / BLOCK) * BLOCK);
  const why = map.marks.length ? `: ${map.marks.map(words).join(", ")}` : "";
  return html`
    <div class="token-top">
      <p class="soft">
        Step ${step.idx}: ${number(map.state_len)} tokens of state, then ${number(map.full_len - map.state_len)} sampled ones.
        ${map.weight === 0 ? ` It does not train${why}.` : null}
      </p>
      <p class="note" hidden=${!note}>${visible(note)}</p>
      <${Strip} map=${map} reach=${reach} />
      <${Legend} map=${map} mode=${mode} setMode=${setMode} modes=${modes} />
    </div>
    <div
      class="token-flow"
      ref=${flow}
      tabindex="0"
      role="group"
      aria-label="Tokens: arrow keys walk them"
      onKeyDown=${walk}
      onMouseOver=${point}
      onClick=${click}>
      ${blocks}
    </div>
    <${Inspector} facts=${page && pointed !== null ? factsOf(map, page, pointed) : null} />
  `;
}

/**
 * The tokens of one step of a rollout: a component of its own for each step (`key`).
 * @param {{ rollout: any, step: any, signal: AbortSignal }} props
 */
export function TokenView({ rollout, step, signal }) {
  const [map, setMap] = useState(/** @type {TokenMap | null} */ (null));
  const [wrong, setWrong] = useState("");

  async function load() {
    setWrong("");
    const params = { attempt: rollout.shown, step: step.idx };
    try {
      setMap(await ask(`/api/rollouts/${rollout.rollout_id}/token-map`, params, signal));
    } catch (error) {
      if (!signal.aborted) setWrong(messageOf(error));
    }
  }
  useEffect(() => {
    load();
  }, []);
  const inside = () => {
    if (map) return html`<${Flow} rollout=${rollout} step=${step} map=${map} signal=${signal} />`;
    if (!wrong) return html`<p class="loading">Loading…</p>`;
    return html`
      <p class="note bad">${wrong}${" "}<button type="button" class="quiet" onClick=${load}>Try again</button></p>
    `;
  };
  return html`<div class="token-view">${inside()}</div>`;
}
