// The prefix tree of a batch: depth in tokens to the right, a row for each sample. The area of all rectangles is what training every sample
// on its own would forward; merged, each rectangle is forwarded once, as one row of it.

import { compact, number, plural, visible } from "../format.js";
import { useWidth } from "../hooks.js";
import { html, useMemo, useRef, useState } from "../vendor/preact.js";

const HEIGHT = 460;
const THIN = 0.7;
const LETTER = 6.7;
const LEAST_WIDTH = 280;
const KEYS = "Arrow keys walk it, Enter enters a node, Backspace leaves it, o opens a step.";

/** @typedef {{ nodes: any[], children: number[][], tops: number[], depth: number }} Tree */

/**
 * @param {any[]} nodes
 * @param {number} depth
 * @returns {Tree}
 */
function treeOf(nodes, depth) {
  /** @type {number[][]} */
  const children = nodes.map(() => []);
  nodes.forEach((node, i) => {
    if (node.parent !== null) children[node.parent].push(i);
  });
  const tops = nodes.map((_, i) => i).filter((i) => nodes[i].parent === null);
  return { nodes, children, tops, depth };
}

/**
 * @param {Tree} tree
 * @param {number} i
 * @returns {number}
 */
const depthOf = ({ nodes, children }, i) => {
  let deepest = nodes[i].start + nodes[i].length;
  const below = [...children[i]];
  for (let child = below.pop(); child !== undefined; child = below.pop()) {
    deepest = Math.max(deepest, nodes[child].start + nodes[child].length);
    below.push(...children[child]);
  }
  return deepest;
};

/**
 * Where every node is drawn that is thick enough.
 * @param {Tree} tree
 * @param {number | null} root null: the whole batch
 * @param {number} width
 */
function placed(tree, root, width) {
  const { nodes, children, tops } = tree;
  const start = root === null ? 0 : nodes[root].start;
  const end = root === null ? Math.max(1, tree.depth) : depthOf(tree, root);
  const heads = root === null ? tops : [root];
  const rows = Math.max(
    1,
    heads.reduce((sum, i) => sum + nodes[i].count, 0),
  );
  const row = HEIGHT / rows;
  /** @param {number} depth */
  const x = (depth) => ((depth - start) / Math.max(1, end - start)) * width;
  /** @type {Map<number, { left: number, long: number, y: number, tall: number }>} */
  const boxes = new Map();
  /** @param {number} i @param {number} y */
  const place = (i, y) => {
    const node = nodes[i];
    const tall = node.count * row;
    if (tall < THIN) return;
    const left = x(node.start);
    boxes.set(i, { left, long: Math.max(0.8, x(node.start + node.length) - left), y, tall });
    let below = y;
    for (const child of children[i]) {
      place(child, below);
      below += nodes[child].count * row;
    }
  };
  let y = 0;
  for (const i of heads) {
    place(i, y);
    y += nodes[i].count * row;
  }
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, (end - start) / 5)));
  const by = [1, 2, 5, 10].map((n) => n * unit).find((n) => (end - start) / n <= 6) ?? unit;
  const ticks = [];
  for (let at = Math.ceil(start / by) * by; at <= end; at += by) ticks.push({ at, x: x(at) });
  return { boxes, ticks };
}

/**
 * What is known of a node.
 * @param {{ node: any, head: string | undefined, note: string | null, href: (node: any) => string }} props
 */
function Detail({ node, head, note, href }) {
  const saved = node.length * (node.count - 1);
  const where = `${plural(node.count, "sample")} of ${plural(node.rollouts, "rollout")}, ${plural(node.groups, "group")}`;
  return html`
    <p>
      <b>${plural(node.length, "token")}</b> from depth ${number(node.start)}, in ${where}
      ${saved ? [": ", html`<b class="up">${number(saved)} saved</b>`] : null}
      ${` · ${number(node.below)} unique tokens from here on · `}
      <a href=${href(node)}>rollout ${node.rollout_id}, step ${node.step}</a>
    </p>
    ${
      head
        ? html`
          <pre class="verbatim tree-head">
            ${visible(head)}${node.length > node.head.length ? html`<span class="faint"> …</span>` : null}
          </pre>
        `
        : note
          ? html`<p class="note">${visible(note)}</p>`
          : null
    }
  `;
}

/**
 * The tree of /api/batches/N/tree. `href(node)`: where a node leads; `go(node)`: goes there.
 * @param {{ tree: any, href: (node: any) => string, go: (node: any) => void }} props
 */
export function Icicle({ tree: { batch, heads, note }, href, go }) {
  const tree = useMemo(() => treeOf(batch.tree.nodes, batch.tree.depth), [batch]);
  const { nodes, children, tops } = tree;
  const picture = useRef(/** @type {HTMLElement | null} */ (null));
  const width = Math.max(LEAST_WIDTH, useWidth(picture));
  const [root, setRoot] = useState(/** @type {number | null} */ (null));
  const [chosen, setChosen] = useState(/** @type {number | null} */ (tops[0] ?? null));
  const { boxes, ticks } = useMemo(() => placed(tree, root, width), [tree, root, width]);
  const most = Math.max(1, ...nodes.map((node) => node.count));
  /** @param {number} count */
  const level = (count) => Math.min(7, Math.ceil((Math.log(count) / Math.log(most || 2)) * 7) || 0);

  /** @param {number | null | undefined} i */
  const choose = (i) => {
    if (i !== null && i !== undefined) setChosen(i);
  };
  /** @param {number | null} i */
  const enter = (i) => {
    setRoot(i);
    choose(i);
  };
  /** @param {Event} event */
  const nodeOf = (event) => (event.target instanceof SVGElement ? event.target.dataset.node : undefined);
  /** @param {MouseEvent} event */
  const click = (event) => {
    const at = nodeOf(event);
    if (at !== undefined) choose(Number(at));
  };
  /** @param {MouseEvent} event */
  const twice = (event) => {
    const at = nodeOf(event);
    if (at !== undefined) enter(Number(at));
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (chosen === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const parent = nodes[chosen].parent;
    const siblings = (parent === null ? tops : children[parent]).filter((i) => boxes.has(i));
    const at = siblings.indexOf(chosen);
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowRight: () => choose(children[chosen].find((i) => boxes.has(i))),
      ArrowLeft: () => choose(parent),
      ArrowDown: () => choose(siblings[at + 1]),
      ArrowUp: () => choose(siblings[at - 1]),
      Enter: () => enter(chosen),
      Backspace: () => enter(root === null ? null : nodes[root].parent),
      o: () => go(nodes[chosen]),
    };
    if (!(event.key in acts)) return;
    acts[event.key]();
    event.preventDefault();
    event.stopPropagation();
  };

  /** @param {[number, { left: number, long: number, y: number, tall: number }]} box */
  const rectangle = ([i, { left, long, y, tall }]) => {
    const depth = level(nodes[i].count);
    const head = heads?.[i] ? visible(heads[i]).replace(/\s+/g, " ").trim() : "";
    const text = `${nodes[i].count > 1 ? `×${nodes[i].count} ` : ""}${head}`;
    const room = Math.floor((long - 10) / LETTER);
    return html`
      <rect
        class=${`tree-node m${depth}${i === chosen ? " chosen" : ""}`}
        x=${left}
        y=${y}
        width=${Math.max(0.5, long - 0.6)}
        height=${Math.max(0.5, tall - Math.min(1, tall / 5))}
        rx=${Math.min(3, tall / 4, long / 4)}
        data-node=${i} />
      ${
        tall >= 13 && room >= 4
          ? html`
            <text class=${`tree-text${depth > 4 ? " on-dark" : ""}`} x=${left + 5} y=${y + Math.min(tall / 2 + 4, 15)}>
              ${text.length > room ? `${text.slice(0, room - 1)}…` : text}
            </text>
          `
          : null
      }
    `;
  };
  const trail = [];
  for (let i = root; i !== null; i = nodes[i].parent) trail.unshift(i);
  return html`
    <div>
      <nav class="trail small" aria-label="Where in the tree">
        <button type="button" class="quiet" disabled=${root === null} onClick=${() => enter(null)}>whole batch</button>
        ${trail.map((i) => [
          " › ",
          html`
            <button type="button" class="quiet" disabled=${i === root} onClick=${() => enter(i)}>
              depth ${number(nodes[i].start)}, ×${nodes[i].count}
            </button>
          `,
        ])}
      </nav>
      <div
        class="icicle"
        ref=${picture}
        tabindex="0"
        role="application"
        aria-label=${`Prefix tree. ${KEYS}`}
        onClick=${click}
        onDblClick=${twice}
        onKeyDown=${pressed}>
        <svg width=${width} height=${HEIGHT + 20} aria-hidden="true">
          ${[...boxes].map(rectangle)}
          ${ticks.map(
            ({ at, x }) => html`
              <line class="tree-tick" x1=${x} x2=${x} y1=${HEIGHT} y2=${HEIGHT + 4} />
              <text class="tree-axis" x=${Math.min(width - 14, Math.max(8, x))} y=${HEIGHT + 15} text-anchor="middle">
                ${compact(at)}
              </text>
            `,
          )}
        </svg>
      </div>
      <div class="tree-detail" aria-live="polite">
        ${
          chosen === null
            ? html`<p class="soft">Nothing trains in this batch, so it has no tree.</p>`
            : html`<${Detail} node=${nodes[chosen]} head=${heads?.[chosen]} note=${note} href=${href} />`
        }
      </div>
      ${
        batch.tree.left_out
          ? html`
            <p class="small faint">
              ${plural(batch.tree.left_out, "node")} of ${plural(batch.tree.left_out_tokens, "token")} are too thin to be drawn; the numbers count them.
            </p>
          `
          : null
      }
    </div>
  `;
}
