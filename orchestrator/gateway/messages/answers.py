"""The call that a tool's result answers: by its id, at any position; by its position only if it names no call.

| a result | answers |
|---|---|
| whose id is that of a call | that call; if several have the id: the newest message's, and there the first open one |
| with the id of no call of the history | an unknown call |
| without an id, with the name of a function (OpenAI's legacy form) | the oldest open call of that function in the last message with calls |
| without both | the oldest open call of that message |
"""

from collections.abc import Iterable, Mapping, Sequence
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


class _Message:
    """The calls of one message."""

    def __init__(self, number: int, names: Sequence[str]) -> None:
        self.number = number
        self.names = names
        self.answered: set[int] = set()  # places of calls


class _Places:
    """Calls of one message that a result may mean, in their order. Each answered call is passed once: a history may have very many."""

    def __init__(self, message: _Message, places: Iterable[int] = ()) -> None:
        self.message = message
        self._all = list(places)
        self._passed = 0

    def add(self, place: int) -> None:
        """Add the next call."""
        self._all.append(place)

    def first_open(self) -> int | None:
        """The first call without a result."""
        while self._passed < len(self._all) and self._all[self._passed] in self.message.answered:
            self._passed += 1
        return self._all[self._passed] if self._passed < len(self._all) else None

    def last(self) -> int:
        """The last call, open or not."""
        return self._all[-1]


class Calls:
    """The calls of a history so far."""

    def __init__(self) -> None:
        self._messages = 0  # with calls
        self._by_id: dict[str, _Places] = {}  # of the last message with a call of that id
        self._last: _Places | None = None  # all calls of the last message with calls
        self._by_name: dict[str, _Places] = {}  # the same calls by function, once a result needs them

    def made(self, ids: Sequence[object], names: Sequence[str]) -> None:
        """Add an assistant's message with calls."""
        message = _Message(self._messages, names)
        self._messages += 1
        self._last, self._by_name = _Places(message, range(len(names))), {}
        for place, identifier in enumerate(map(_identifier, ids)):
            if not identifier:
                continue
            if identifier not in self._by_id or self._by_id[identifier].message is not message:
                self._by_id[identifier] = _Places(message)
            self._by_id[identifier].add(place)

    def answered(self, result: Mapping[str, Any]) -> Answers:
        """The call that a tool's message, the next one of the history, answers."""
        identifier = _identifier(result.get("tool_call_id"))
        if identifier:
            return self._take(self._by_id.get(identifier), keep=True)
        named = self._named(result.get("name"))
        return self._take(named or self._last, keep=named is not None)

    def _named(self, name: object) -> _Places | None:
        """The calls of a function in the last message with calls."""
        if self._last is None or not isinstance(name, str):
            return None
        if not self._by_name:
            for place, each in enumerate(self._last.message.names):
                self._by_name.setdefault(each, _Places(self._last.message)).add(place)
        return self._by_name.get(name)

    def _take(self, places: _Places | None, *, keep: bool) -> Answers:
        """The first open call of `places`. If none is open: another result of the last of them, or with `keep` False an unknown call."""
        if places is None:
            return UNKNOWN
        index = places.first_open()
        if index is None and keep:
            index = places.last()
        if index is None:
            return UNKNOWN
        message = places.message
        message.answered.add(index)
        return Answers(self._messages - 1 - message.number, index, message.names[index])


def _identifier(value: object) -> str:
    return "" if value is None else str(value)
