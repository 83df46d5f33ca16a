// Tables: sortable by their heads, walked with the arrow keys, updated in place.

import { h, redraw } from "./dom.js";

/**
 * columns: [{ name, title?, value(row) → sortable, cell?(row) → node or text, numeric?, wide? }]; options: { key(row), href?(row), empty, sort: [name, "down"|"up"]?, caption }.
 * Returns { element, update(rows) }.
 */
export function table(columns, options) {
  let rows = [], [sorted, direction] = options.sort ?? [null, "up"];
  const heads = columns.map((column) =>
    h("th", { scope: "col", class: column.numeric ? "numeric" : null },
      column.value ? h("button", { type: "button", class: "sorter", on: { click: () => sort(column.name) } }, column.title ?? column.name) : column.title ?? column.name));
  const body = h("tbody");
  const none = h("p", { class: "empty", hidden: true }, options.empty ?? "Nothing here.");
  const shown = h("table", null, h("caption", { class: "unseen" }, options.caption), h("thead", null, h("tr", null, heads)), body);
  const element = h("div", { class: "table" }, shown, none);

  function sort(name) {
    direction = sorted === name && direction === "down" ? "up" : sorted === name ? "down" : columns.find((column) => column.name === name).numeric ? "down" : "up";
    sorted = name;
    draw();
  }

  function ordered() {
    const column = columns.find((each) => each.name === sorted);
    if (!column) return rows;
    const sign = direction === "down" ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      if (a === b) return 0;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      return (a < b ? -1 : 1) * sign;
    });
  }

  function line(row) {
    const to = options.href?.(row);
    const cells = columns.map((column, i) => {
      const inside = (column.cell ?? column.value)(row);
      return h("td", { class: [column.numeric && "numeric", column.wide && "wide"].filter(Boolean).join(" ") || null }, to && i === 0 ? h("a", { href: to }, inside) : inside);
    });
    return h("tr", { data: { key: options.key(row) } }, cells);
  }

  function draw() {
    const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.key : null;
    heads.forEach((head, i) => {
      if (columns[i].name === sorted) head.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    redraw(body, ordered().map(line));
    none.hidden = rows.length > 0;
    shown.hidden = rows.length === 0;
    if (focused && !body.contains(document.activeElement)) [...body.rows].find((each) => each.dataset.key === focused)?.querySelector("a, button")?.focus();
  }

  element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const current = event.target.closest("tbody tr");
    if (!step || !current || event.target.closest("input, select, textarea")) return;
    const next = [...body.rows][[...body.rows].indexOf(current) + step]?.querySelector("a, button");
    if (next) { next.focus(); event.preventDefault(); event.stopPropagation(); }
  });

  return { element, update(next) { rows = next; draw(); } };
}
