// As much of a browser as the dashboard's modules need in Node: elements without layout, an address, an event stream that the test feeds.

class Node {
  childNodes = [];
  parentNode = null;
  listeners = {};
  style = { setProperty() {} };
  dataset = {};
  attributes = {};
  namespaceURI = "http://www.w3.org/1999/xhtml";
  constructor(name, data = "") {
    this.localName = name;
    this.nodeName = name;
    this.nodeType = name === "#text" ? 3 : 1;
    this.data = data;
    this.ownerDocument = globalThis.document;
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get nextSibling() {
    const all = this.parentNode?.childNodes ?? [];
    return all[all.indexOf(this) + 1] ?? null;
  }
  get children() {
    return this.childNodes.filter((node) => node.nodeType === 1);
  }
  get all() {
    return this.childNodes.flatMap((node) => [node, ...node.all]);
  }
  get textContent() {
    return this.nodeType === 3 ? this.data : this.childNodes.map((node) => node.textContent).join("");
  }
  insertBefore(node, before) {
    node.remove();
    const at = before ? this.childNodes.indexOf(before) : -1;
    this.childNodes.splice(at < 0 ? this.childNodes.length : at, 0, node);
    node.parentNode = this;
    return node;
  }
  appendChild(node) {
    return this.insertBefore(node, null);
  }
  append(...nodes) {
    for (const node of nodes) this.appendChild(node);
  }
  removeChild(node) {
    this.childNodes = this.childNodes.filter((each) => each !== node);
    node.parentNode = null;
  }
  remove() {
    this.parentNode?.removeChild(this);
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = String(value);
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener(type, listener) {
    this.listeners[type] = [...(this.listeners[type] ?? []), listener];
  }
  removeEventListener(type, listener) {
    this.listeners[type] = (this.listeners[type] ?? []).filter((each) => each !== listener);
  }
  /** What a browser does with an event here. */
  send(type, event = {}) {
    const sent = { type, target: this, preventDefault() {}, ...event };
    for (const listener of this.listeners[type] ?? []) listener.call(this, sent);
  }
  querySelector() {
    return null;
  }
  closest() {
    return null;
  }
  focus() {}
  showModal() {
    this.open = true;
  }
  close() {
    if (!this.open) return;
    this.open = false;
    const once = this.listeners.close ?? [];
    this.listeners.close = [];
    for (const listener of once) listener.call(this, { type: "close" });
  }
}

globalThis.document = new Node("#document");
Object.assign(document, {
  createElementNS: (_, name) => new Node(name),
  createElement: (name) => new Node(name),
  createTextNode: (data) => new Node("#text", data),
  body: new Node("body"),
  documentElement: new Node("html"),
  hidden: false,
  querySelector: (wanted) => (wanted === "dialog[open]" ? document.body.children.find((one) => one.open) : null) ?? null,
});
globalThis.window = globalThis;
const events = new Node("window");
globalThis.addEventListener = (type, listener) => events.addEventListener(type, listener);
globalThis.removeEventListener = (type, listener) => events.removeEventListener(type, listener);
globalThis.scrollTo = () => {};
globalThis.navigator ??= { language: "en" }; // Node has it from 21 on
globalThis.devicePixelRatio = 1;
globalThis.dispatchEvent = () => {};
globalThis.Element = globalThis.HTMLElement = Node;
globalThis.HTMLAnchorElement = class extends Node {};
globalThis.matchMedia = () => ({ matches: false, addEventListener() {}, removeEventListener() {} });
globalThis.IntersectionObserver = class {
  constructor(seen) {
    this.observe = (target) => seen([{ target, isIntersecting: true }]);
  }
  disconnect() {}
};
globalThis.location = new URL("http://dashboard/");
const turn = (_state, _title, path) => {
  globalThis.location = new URL(path, "http://dashboard/");
};
globalThis.history = { pushState: turn, replaceState: turn };

/** Goes to an address as the buttons of a browser do. */
export function moveTo(path) {
  turn(null, "", path);
  events.send("popstate");
}

/** The event stream: `tick()` says that something has changed. */
export const stream = { tick() {} };
let ticks = 0;
globalThis.EventSource = class {
  constructor() {
    stream.tick = () => this.onmessage({ data: JSON.stringify({ n: ++ticks }) });
  }
  close() {}
};

/** Answers requests: `answer(url)` returns [status, JSON], or a promise of that. */
export function serve(answer) {
  globalThis.fetch = async (path) => {
    await new Promise((next) => setImmediate(next)); // other work goes on in between
    const [status, body] = await answer(new URL(path, "http://dashboard/"));
    return { ok: status === 200, status, headers: { get: () => null }, text: async () => JSON.stringify(body) };
  };
}

/** Waits until `state()` holds, through any number of turns of the event loop. */
export async function until(state) {
  const end = Date.now() + 60_000;
  while (!state()) {
    if (Date.now() > end) throw new Error(`it never came: ${state}`);
    await new Promise((next) => setImmediate(next));
  }
}
