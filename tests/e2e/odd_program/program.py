"""An agent program that writes drawn texts into everything that it can name or write: SOCKET TOKEN INSTRUCTION.

The instruction is `PART SEED`. A part is a wire (its requests; the answer is JSON: numbers of answers by status, and the unclear ones) or `files`
(files, directories, links, outputs and an answer of drawn bytes). It knows nothing of Penstock.
"""

import contextlib
import http.client
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from texts import FILES, file_name, length, texts  # type: ignore[import-not-found]  # it lies next to this file, inside

ANSWER_S = 300.0  # only a hanging gateway takes so long
LONGEST_SENTENCE = 2_000
EVERY = 12  # after as many odd requests comes a plain one
USER: dict[str, Any] = {"role": "user", "content": "Say 1."}
Body = dict[str, Any]
Places = Callable[[str], Iterator[Body]]
Paths = dict[str, tuple[str, Places]]


class Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(sys.argv[1])


def tool(**more: Any) -> Body:
    return {"name": "bash", "description": "d", "parameters": {"type": "object", "properties": {}}, **more}


def chat(text: str) -> Iterator[Body]:
    def calls(arguments: str = "{}", name: str = "bash", call: str = "c", result: str = "x") -> Body:
        called = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        reply = {"role": "assistant", "content": None, "tool_calls": [called]}
        return {"messages": [USER, reply, {"role": "tool", "tool_call_id": call, "content": result}]}

    plain: Body = {"model": "policy", "messages": [USER]}
    properties = {"type": "object", "properties": {text: {"type": "string", "description": text}}}
    for change in (
        {"model": text},
        {"user": text},
        {"stop": [text]},
        {"metadata": {text: text}},
        {text: text},
        {"messages": [{"role": text, "content": "Say 1."}]},
        {"messages": [{**USER, "name": text}]},
        {"messages": [{"role": "system", "content": text}, USER]},
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
        {"tools": [{"type": "function", "function": tool(name=text)}]},
        {"tools": [{"type": "function", "function": tool(description=text)}]},
        {"tools": [{"type": "function", "function": tool(parameters=properties)}]},
        calls(name=text),
        calls(json.dumps({text: text})),
        calls(text),
        calls(call=text),
        calls(result=text),
    ):
        yield {**plain, **change}


def responses(text: str) -> Iterator[Body]:
    def calls(arguments: str = "{}", name: str = "bash", call: str = "c", result: str = "x") -> Body:
        called = {"type": "function_call", "call_id": call, "name": name, "arguments": arguments}
        return {"input": [USER, called, {"type": "function_call_output", "call_id": call, "output": result}]}

    plain: Body = {"model": "policy", "input": [USER]}
    for change in (
        {"model": text},
        {"metadata": {text: text}},
        {text: text},
        {"previous_response_id": text},
        {"instructions": text},
        {"input": text},
        {"input": [{"role": text, "content": "Say 1."}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]},
        {"tools": [{"type": "function", **tool(name=text)}]},
        {"tools": [{"type": text, **tool()}]},
        calls(name=text),
        calls(json.dumps({text: text})),
        calls(call=text),
        calls(result=text),
    ):
        yield {**plain, **change}


def messages(text: str) -> Iterator[Body]:
    def calls(given: Body, name: str = "bash", call: str = "c", result: str = "x") -> Body:
        use = {"type": "tool_use", "id": call, "name": name, "input": given}
        back = {"type": "tool_result", "tool_use_id": call, "content": result}
        return {
            "messages": [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
        }

    plain: Body = {"model": "policy", "max_tokens": 64, "messages": [USER]}
    for change in (
        {"model": text},
        {"metadata": {"user_id": text}},
        {text: text},
        {"stop_sequences": [text]},
        {"system": text},
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": text, "content": "Say 1."}]},
        {"tools": [{"name": text, "input_schema": {"type": "object"}}]},
        {"tools": [{"name": "bash", "description": text, "input_schema": {"type": "object", text: text}}]},
        calls({}, name=text),
        calls({text: text}),
        calls({}, call=text),
        calls({}, result=text),
    ):
        yield {**plain, **change}


def native(text: str) -> Iterator[Body]:
    plain: Body = {"call": 0, "messages": [USER]}
    for change in (
        {"agent": text},
        {"replace_reason": text},
        {"stop": [text]},
        {text: text},
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": text, "content": text}]},
        {"tools": [{"type": "function", "function": tool(name=text)}]},
    ):
        yield {**plain, **change}


WIRES: Paths = {
    "chat": ("/v1/chat/completions", chat),
    "responses": ("/v1/responses", responses),
    "messages": ("/v1/messages", messages),
    "native": ("/native/complete", native),
}


def unclear(status: int, raw: bytes) -> str:
    """Why an answer is not one that a client can use; empty: it is."""
    if not (200 <= status < 300 or 400 <= status < 500):
        return f"status {status}: {raw[:500]!r}"
    try:
        answer = json.loads(raw)
        if status < 300:
            return ""
        sentence = answer["error"]["message"]
    except (ValueError, KeyError, TypeError) as error:
        return f"status {status}, {error!r}: {raw[:500]!r}"
    if not sentence or "\n" in sentence or len(sentence) > LONGEST_SENTENCE:
        return f"status {status}, no sentence: {sentence[:500]!r}"
    return ""


class Asking:
    """The requests of one wire, and their answers."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.answers, self.unclear = dice, Counter[str](), list[str]()

    def ask(self, path: str, raw: bytes | None, headers: dict[str, str] | None = None) -> int:
        connection = Connection("gateway")
        given = {"Authorization": f"Bearer {sys.argv[2]}", "Content-Type": "application/json"}
        try:
            connection.request("GET" if raw is None else "POST", path, raw, {**given, **(headers or {})})
            answer = connection.getresponse()
            status, got = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.unclear.append(f"no answer: {error!r}")
            return 0
        finally:
            connection.close()
        if why := unclear(status, got):
            self.unclear.append(why)
        self.answers[str(status)] += 1
        return status

    def encoded(self, body: Body) -> bytes:
        """With escapes, or with the bytes themselves."""
        return json.dumps(body, ensure_ascii=self.dice.random() < 0.5).encode(errors="surrogatepass")

    def wire(self, path: str, places: Places) -> None:
        path = f"/s/{sys.argv[2]}{path}"
        plain = self.encoded(next(iter(places("policy"))))
        drawn = [body for text in texts(self.dice) for body in places(text)]
        for n, body in enumerate(drawn):
            self.ask(path, self.encoded(body))
            if n % EVERY == 0 and (status := self.ask(path, plain)) != 200:
                self.unclear.append(f"a plain request after {n} others: {status}")

    def names(self) -> None:
        """In paths and headers."""
        for text in texts(self.dice, 60_000):
            raw = text.encode(errors="surrogatepass")
            line = raw.translate(None, b"\r\n\0").decode("latin-1")[:6_000]
            self.ask(f"/v1/models/{quote(raw)[:7_000]}", None)
            self.ask("/v1/models", None, {"X-Agent": line, "User-Agent": line})
            self.ask("/v1/models", None, {"Authorization": f"Bearer {line}"})


def leave(dice: random.Random) -> bytes:
    """Leave files, directories and links, print to both outputs; returns the answer."""
    contents: list[bytes] = [text.encode(errors="surrogatepass") for text in texts(dice)]
    for n in range(FILES):
        above = b"/".join(file_name(dice)[:40] for _ in range(n % 24)) or b"."
        with contextlib.suppress(OSError):  # two drawn names may be the same, a cut one may be `..`
            os.makedirs(above, exist_ok=True)
            if n % 5 == 4:
                os.symlink(file_name(dice) * (1 + length(dice, 15)), os.path.join(above, file_name(dice)))
            else:
                with open(os.path.join(above, file_name(dice)), "wb") as file:
                    file.write(dice.choice(contents))
    for content in contents:
        os.write(1, content + b"\n")
        os.write(2, content + b"\n")
    return contents[dice.randrange(len(contents))]


def main() -> None:
    part, seed = sys.argv[3].split()
    dice = random.Random(seed)
    asking = Asking(dice)
    if part == "files":
        wire, places = WIRES["chat"]  # an attempt without any completion is the platform's failure
        assert asking.ask(f"/s/{sys.argv[2]}{wire}", asking.encoded(next(places("policy")))) == 200
        answer = leave(dice)
    else:
        asking.wire(*WIRES[part])
        asking.names()
        answer = json.dumps({"answers": asking.answers, "unclear": asking.unclear}).encode()
    with open("/logs/answer.txt", "wb") as file:
        file.write(answer)


if __name__ == "__main__":
    main()
