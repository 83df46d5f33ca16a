// Steering: a dialog confirms a command, takes a reason, and then reports the result.

import { messageOf, order } from "./api.js";
import { visible } from "./format.js";
import { html, render, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/**
 * @typedef {object} Wanted
 * @property {string} title
 * @property {string} what its effect
 * @property {string} path
 * @property {string} verb of the button
 * @property {(form: HTMLFormElement) => object} [body]
 * @property {any} [fields] between the text and the reason
 * @property {boolean} [danger]
 */

const TOAST_MS = 6000;
const dialog = document.createElement("dialog");
dialog.className = "order";
dialog.setAttribute("aria-label", "Order");
const toast = document.createElement("div");
toast.className = "toast";
toast.setAttribute("role", "status");
toast.setAttribute("aria-live", "polite");
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
document.body.append(dialog, toast);

/**
 * Shows the result for a while.
 * @param {string} sentence
 */
export function tell(sentence) {
  render(html`<p>${visible(sentence)}</p>`, toast);
  clearTimeout(timer);
  timer = setTimeout(() => render(null, toast), TOAST_MS);
}

/** @param {{ wanted: Wanted, done: () => void }} props */
function Order({ wanted, done }) {
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const reason = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const drawn = useRef(true);
  useLayoutEffect(
    () => () => {
      drawn.current = false;
    },
    [],
  );
  useLayoutEffect(() => (wanted.fields ? form.current?.querySelector("input") : reason.current)?.focus(), []);

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    if (!form.current || busy) return;
    setBusy(true);
    setWrong("");
    try {
      const answer = await order(wanted.path, { ...wanted.body?.(form.current), reason: reason.current?.value ?? "" });
      done();
      if (drawn.current) dialog.close(); // else it shows another order
      tell(answer.done);
    } catch (error) {
      if (drawn.current && dialog.open) setWrong(visible(messageOf(error)));
      else tell(messageOf(error));
    } finally {
      setBusy(false);
    }
  }

  return html`
    <form ref=${form} onSubmit=${submit}>
      <h2>${wanted.title}</h2>
      <p class="soft">${wanted.what}</p>
      ${wanted.fields}
      <input ref=${reason} type="text" maxlength="500" placeholder="why (kept with the action)" aria-label="Reason" />
      <p class="note bad" role="alert" hidden=${!wrong}>${wrong}</p>
      <div class="tools">
        <button type="button" class="quiet" onClick=${() => dialog.close()}>Leave it</button>
        <button type="submit" class=${wanted.danger ? "danger" : "strong"} disabled=${busy}>${wanted.verb}</button>
      </div>
    </form>
  `;
}

/**
 * Asks for confirmation and a reason, then POSTs `body(form)` with the reason to `path`. Resolves with true on success.
 * @param {Wanted} wanted
 * @returns {Promise<boolean>}
 */
export function confirmed(wanted) {
  return new Promise((resolve) => {
    let done = false;
    const ended = () => {
      done = true;
    };
    render(null, dialog);
    dialog.showModal();
    render(html`<${Order} wanted=${wanted} done=${ended} />`, dialog);
    dialog.addEventListener("close", () => resolve(done), { once: true });
  });
}

/**
 * A button for a command; `then` is called on success.
 * @param {string} label
 * @param {Wanted} wanted
 * @param {() => void} [then]
 */
export const orderButton = (label, wanted, then) => html`
  <button
    type="button"
    class=${wanted.danger ? "danger small" : "small"}
    onClick=${async () => {
      if (await confirmed(wanted)) then?.();
    }}>
    ${label}
  </button>
`;

const CANCELLED =
  "It ends as filtered (cancelled): its rollouts under way lose their leases, and it is never trained. This cannot be undone.";

/**
 * Cancels a group; for pages about groups.
 * @param {number} group
 * @param {() => void} [then]
 */
export const cancelButton = (group, then) =>
  orderButton(
    "Cancel the group",
    {
      title: `Cancel group ${group}?`,
      what: CANCELLED,
      path: "/api/steer/cancel",
      body: () => ({ group }),
      verb: "Cancel the group",
      danger: true,
    },
    then,
  );
