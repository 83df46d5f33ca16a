"""YAML in a readable style: keys in insertion order, long texts as blocks, no references. Texts are texts for readers of YAML 1.1, 1.2 and Go."""

import re
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
    def ignore_aliases(self, data: Any) -> bool:
        """Always true: two equal values are written twice."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)


class PlaceholderNumber(int):
    """A number that another tool fills in: written as `place`, regardless of its value."""

    place = ""


_NOT_A_TEXT = re.compile(r"[-+]?\.?[0-9].*|[-+]?\.(inf|nan)|y|n", re.IGNORECASE | re.DOTALL)
"""Texts that some reader takes for a number, a time or a truth value: 1e3, 0o17 and 25921e05 are none in YAML 1.1, which PyYAML writes."""

_OTHER_BREAKS = frozenset("\r\x85\u2028\u2029")
"""Characters that YAML 1.1 takes for line breaks, and YAML 1.2 does not: between single quotes or in a block, PyYAML reads a blank or a line
break back."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    block = "\n" in text and _OTHER_BREAKS.isdisjoint(text)
    quoted = PLACE in text or _NOT_A_TEXT.fullmatch(text) or not _OTHER_BREAKS.isdisjoint(text)
    style = "|" if block else '"' if quoted else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


def _placed(dumper: yaml.SafeDumper, number: PlaceholderNumber) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:int", number.place)


PLACE = "\u27e6"
"""Prefix of the name of such a place inside a text, which is then quoted."""
_Dumper.add_multi_representer(str, _string)
_Dumper.add_representer(str, _string)
_Dumper.add_multi_representer(PlaceholderNumber, _placed)


def to_yaml(value: Any) -> str:
    """One document."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def documents(comment: str, objects: list[dict[str, Any]]) -> str:
    """Several objects as one file, below a comment that describes them."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "---\n".join(to_yaml(each) for each in objects)
