// Orders share a dialog: the answer to one that was left does not close the next. Keys of the page rest under it.

import assert from "node:assert/strict";
import { serve, until } from "./page.js";

const { confirmed } = await import("./static/steer.js");
const { keys, start } = await import("./static/keys.js");
const [dialog, toast] = document.body.children;
const answers = [];
let pressed = 0;
start();
keys("Page", [{ keys: ["j"], what: "the next", run: () => (pressed += 1) }]);
serve((url) => {
  if (url.pathname === "/api/me") return [200, { steering: "token" }];
  return new Promise((answer) => answers.push(answer));
});
const wanted = (title) => ({ title, what: "", path: "/api/steer/pause", verb: "Pause" });
const form = () => dialog.all.find((node) => node.localName === "form");

const slow = confirmed(wanted("The first"));
form().send("submit");
await until(() => answers.length === 1);
dialog.close(); // Escape
assert.equal(await slow, false);
const next = confirmed(wanted("The second"));
answers[0]([200, { done: "The first is done." }]);
await until(() => toast.textContent === "The first is done.");
assert.equal(dialog.open, true);
assert(dialog.textContent.includes("The second"));
document.send("keydown", { key: "j" });
assert.equal(pressed, 0);

form().send("submit");
await until(() => answers.length === 2);
answers[1]([200, { done: "The second is done." }]);
assert.equal(await next, true);
assert.equal(dialog.open, false);
document.send("keydown", { key: "j" });
assert.equal(pressed, 1);
process.exit();
