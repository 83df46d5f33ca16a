"""The call that a tool's result answers: by its id, at any position; by its position only if it names no call.

| a result | answers |
|---|---|
| whose id is that of a call | that call; if several have the id: the newest message's, and there the first open one |
| with the id of no call of the history | an unknown call |
| without an id, with the name of a function (OpenAI's legacy form) | the oldest open call of that function in the last message with calls |
| without both | the oldest open call of that message |
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Answers(msgspec.Struct, frozen=True, gc=False):
    """`back`: how many messages with calls come between (0: the call is in the last one); `call`: the place of the call in its message; `name`:
    of its function. UNKNOWN: no call has the id."""

    back: int
    call: int
    name: str

    def plain(self) -> dict[str, Any] | None:
        """The JSON form that is recorded; None for UNKNOWN."""
        if self.call < 0:
            return None
        fields = {"call": self.call, "name": self.name}
        return {**fields, "back": self.back} if self.back else fields

    @classmethod
    def from_plain(cls, value: Mapping[str, Any] | None) -> "Answers":
        """The inverse of `plain`."""
        return (
            UNKNOWN
            if value is None
            else cls(int(value.get("back", 0)), int(value["call"]), str(value["name"]))
        )


UNKNOWN = Answers(0, -1, "")


class Calls:
    """The calls of a history so far."""

    def __init__(self) -> None:
        # Ids, names, places of answered calls.
        self._messages: list[tuple[list[str], list[str], set[int]]] = []
        self._newest: dict[str, int] = {}  # the last message with a call of that id

    def made(self, ids: Sequence[object], names: Sequence[str]) -> None:
        """Add an assistant's message with calls."""
        known = [_identifier(value) for value in ids]
        for identifier in filter(None, known):
            self._newest[identifier] = len(self._messages)
        self._messages.append((known, list(names), set()))

    def answered(self, result: Mapping[str, Any]) -> Answers:
        """The call that a tool's message, the next one of the history, answers."""
        identifier = _identifier(result.get("tool_call_id"))
        if identifier:
            at = self._newest.get(identifier)
            if at is None:
                return UNKNOWN
            ids = self._messages[at][0]
            return self._take(
                at, [index for index, candidate in enumerate(ids) if candidate == identifier], keep=True
            )
        if not self._messages:
            return UNKNOWN
        names, name = self._messages[-1][1], result.get("name")
        same_name = [index for index, candidate in enumerate(names) if candidate == name]
        return self._take(len(self._messages) - 1, same_name or list(range(len(names))), keep=bool(same_name))

    def _take(self, at: int, places: Sequence[int], *, keep: bool) -> Answers:
        """The first open place of `places`. If none is open: another result of the last of them, or with `keep` False an unknown call."""
        _, names, answered = self._messages[at]
        index = next(
            (candidate for candidate in places if candidate not in answered), places[-1] if keep else None
        )
        if index is None:
            return UNKNOWN
        answered.add(index)
        return Answers(len(self._messages) - 1 - at, index, names[index])


def _identifier(value: object) -> str:
    return "" if value is None else str(value)
