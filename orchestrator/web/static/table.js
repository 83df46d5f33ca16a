// Tables: sortable by their heads, navigable with the arrow keys, updated in place. On a narrow screen each row is a card, each cell below its
// column's name (style.css); the roles keep it a table for assistive technology.

import { html, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {string} [title] text of its head; default: the name
 * @property {(row: any) => any} [value] sort value; without it the column is not sortable
 * @property {(row: any) => any} [cell] displayed content; default: the value
 * @property {boolean} [numeric]
 * @property {boolean} [wide]
 */

/**
 * The rows sorted by a column, those without a value last.
 * @param {any[]} rows
 * @param {Column | undefined} column
 * @param {string} direction
 */
function ordered(rows, column, direction) {
  const value = column?.value;
  if (!value) return rows;
  const sign = direction === "down" ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b) return 0;
    if (a === null || a === undefined) return 1;
    if (b === null || b === undefined) return -1;
    return (a < b ? -1 : 1) * sign;
  });
}

/** @param {Column} column */
const classOf = (column) => [column.numeric && "numeric", column.wide && "wide"].filter(Boolean).join(" ") || undefined;

/**
 * Keeps the focus when rows move: on its element, or if that is gone, in its row.
 * @param {{ current: HTMLElement | null }} body
 */
function useFocusKept(body) {
  const active = document.activeElement;
  const held = active instanceof HTMLElement && body.current?.contains(active) ? active : null;
  const key = held?.closest("tr")?.dataset.key;
  useLayoutEffect(() => {
    if (!held || document.activeElement === held) return;
    if (body.current?.contains(held)) return held.focus({ preventScroll: true });
    const row = [...(body.current?.querySelectorAll("tr") ?? [])].find((each) => each.dataset.key === key);
    /** @type {HTMLElement | null | undefined} */
    const next = row?.querySelector("a, button");
    next?.focus();
  });
}

/** @param {KeyboardEvent} event */
function walk(event) {
  const step = /** @type {Record<string, number>} */ ({ ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 })[event.key];
  const target = /** @type {Element} */ (event.target);
  const current = target.closest("tbody tr");
  if (!step || !current || target.closest("input, select, textarea")) return;
  /** @type {HTMLElement | null | undefined} */
  const next = (step > 0 ? current.nextElementSibling : current.previousElementSibling)?.querySelector("a, button");
  if (!next) return;
  next.focus();
  event.preventDefault();
  event.stopPropagation();
}

/**
 * A table. `rows`: null until loaded; `rowKey(row)`: identity of a row; `href(row)`: link of its first cell; `empty`: text without rows;
 * `hidden`: whether it is hidden.
 * @param {object} props
 * @param {Column[]} props.columns
 * @param {any[] | null | undefined} props.rows
 * @param {(row: any) => string | number} props.rowKey
 * @param {(row: any) => string} [props.href]
 * @param {string} [props.empty]
 * @param {string} props.caption
 * @param {boolean} [props.hidden]
 */
export function Table({ columns, rows, rowKey, href, empty = "Nothing here.", caption, hidden = false }) {
  const [{ name, direction }, setOrder] = useState({ name: "", direction: "up" });
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  useFocusKept(body);

  /** @param {Column} column */
  const sort = (column) => {
    const first = column.numeric ? "down" : "up";
    setOrder({ name: column.name, direction: name !== column.name ? first : direction === "down" ? "up" : "down" });
  };
  /** @param {Column} column */
  const head = (column) => {
    const sorted = name === column.name ? (direction === "down" ? "descending" : "ascending") : undefined;
    const label = column.title ?? column.name;
    return html`
      <th scope="col" role="columnheader" class=${column.numeric ? "numeric" : undefined} aria-sort=${sorted}>
        ${column.value ? html`<button type="button" class="sorter" onClick=${() => sort(column)}>${label}</button>` : label}
      </th>
    `;
  };
  /** @param {any} row */
  const line = (row) => {
    const to = href?.(row);
    return html`
      <tr role="row" key=${rowKey(row)} data-key=${rowKey(row)}>
        ${columns.map((column, i) => {
          const inside = (column.cell ?? column.value)?.(row);
          return html`
            <td role="cell" data-name=${column.title ?? column.name} class=${classOf(column)}>
              ${to && i === 0 ? html`<a href=${to}>${inside}</a>` : inside}
            </td>
          `;
        })}
      </tr>
    `;
  };
  const chosen = columns.find((column) => column.name === name);
  return html`
    <div class="table" hidden=${hidden} onKeyDown=${walk}>
      <table role="table" hidden=${rows?.length === 0}>
        <caption class="unseen">${caption}</caption>
        <thead role="rowgroup"><tr role="row">${columns.map(head)}</tr></thead>
        <tbody role="rowgroup" ref=${body}>${ordered(rows ?? [], chosen, direction).map(line)}</tbody>
      </table>
      <p class="empty" hidden=${rows?.length !== 0}>${empty}</p>
    </div>
  `;
}
