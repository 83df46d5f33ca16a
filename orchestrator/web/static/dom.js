// Elements from text nodes: nothing that comes from the data pool is ever read as HTML.
//
//   h("p", { class: "note" }, "by ", h("b", null, name))
//
// props: `class`, `on: { click: f }`, `data: { key: value }`, `vars: { "--x": "3px" }` (CSSOM, which the CSP allows), any attribute; true sets
// an empty attribute, false, null and undefined set none. Children: nodes, text, numbers, arrays of these; null and false are nothing.

const SVG = "http://www.w3.org/2000/svg";
const listeners = new WeakMap(); // element → its `on`, which `redraw` hands over

const hear = (event) => listeners.get(event.currentTarget)?.[event.type]?.(event);

function listen(element, on) {
  const before = listeners.get(element) ?? {};
  for (const type of Object.keys(on)) if (!(type in before)) element.addEventListener(type, hear);
  listeners.set(element, on);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") listen(element, value);
    else if (name === "data") for (const [key, item] of Object.entries(value)) element.dataset[key] = String(item);
    else if (name === "vars") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, String(item));
    else if (name === "value") element.value = String(value);
    else if (/^on|^style$|^srcdoc$/i.test(name)) throw new Error(`h() takes no ${name}`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Appends children as `h` does. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An HTML element. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Replaces all that is in `element`. */
export function show(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

const kind = (node) => `${node.nodeName} ${node.dataset?.key ?? (node.localName === "a" ? node.getAttribute("href") : "")}`;

/** Makes `old` what `next` is: its attributes, its listeners, what is in it. What a person opened stays open, what is being written stays. */
function become(old, next) {
  if (old === next) return;
  if (!(old instanceof Element)) { if (old.data !== next.data) old.data = next.data; return; }
  for (const name of old.getAttributeNames()) if (!next.hasAttribute(name) && name !== "open" && name !== "style") old.removeAttribute(name);
  for (const name of next.getAttributeNames()) if (name !== "style" && old.getAttribute(name) !== next.getAttribute(name)) old.setAttribute(name, next.getAttribute(name));
  if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText; // by CSSOM, which the CSP allows
  if ("value" in next && old.value !== next.value && old !== document.activeElement) old.value = next.value;
  if (listeners.has(old) || listeners.has(next)) listen(old, listeners.get(next) ?? {});
  settle(old, [...next.childNodes]);
}

function settle(element, nodes) {
  const there = new Set(element.childNodes), known = new Map();
  for (const node of nodes) there.delete(node);
  for (const old of there) known.set(kind(old), [...(known.get(kind(old)) ?? []), old]);
  const kept = nodes.map((next) => {
    const old = next.parentNode === element ? next : known.get(kind(next))?.shift() ?? next;
    there.delete(old);
    become(old, next);
    return old;
  });
  for (const gone of there) gone.remove();
  let at = element.firstChild;
  for (const node of kept) {
    if (node === at) at = at.nextSibling;
    else element.insertBefore(node, at);
  }
}

/**
 * Like `show`, but what is there already stays the same node and keeps focus, a click under way and what was opened: for what is drawn again at
 * every tick. Nodes are the same by `data-key`, links by where they lead, all else by its place among its like. Listeners given as `on` are
 * handed over; one that needs its element takes it from the event, for the element that `h` returned may not be the one that is shown.
 */
export function redraw(element, ...children) {
  const focused = document.activeElement;
  const nodes = children.flat(Infinity).filter((child) => child !== null && child !== undefined && typeof child !== "boolean");
  settle(element, nodes.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  if (focused !== document.activeElement && element.contains(focused)) focused.focus({ preventScroll: true });
  return element;
}
