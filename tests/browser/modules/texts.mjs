// Texts: the server counts characters; hidden characters are spelled out; fields for the domains that the stage takes.

import assert from "node:assert/strict";
import "./page.js";

const { argumentsOf, isCut } = await import("./static/trajectory/texts.js");
const { visible } = await import("./static/format.js");
const { weighed } = await import("./static/pages/queue.js");

const cut = `${"🟢".repeat(150)}${"x".repeat(5850)}`; // 6,000 characters, 6,150 of JavaScript's units
assert.equal(isCut({ text: cut, length: 6100 }), true);
assert.equal(isCut({ text: cut, length: 6000 }), false);
const given = JSON.stringify({ command: "echo 🎉" });
assert.deepEqual(argumentsOf({ text: given, length: [...given].length }), [["command", "echo 🎉"]]);
assert.equal(argumentsOf({ text: given, length: given.length + 100 }), null);

assert.equal(visible("a\u{e0068}\u3164\u115f\u1160\uffa0\u180eb"), "a⟨U+E0068⟩⟨U+3164⟩⟨U+115F⟩⟨U+1160⟩⟨U+FFA0⟩⟨U+180E⟩b");
assert.equal(visible("한국어 🎉"), "한국어 🎉");

const mix = [
  { domain: "left", share: 0 },
  { domain: "taken", share: 1 },
];
assert.deepEqual(weighed(mix), [{ domain: "taken", share: 1 }]);
