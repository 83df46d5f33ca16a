"""YAML as people write it: keys in the order in which they were put, long texts as blocks, nothing by reference."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
    def ignore_aliases(self, data: Any) -> bool:
        """Never: two equal things are written twice."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Lists stand below their key, indented."""
        super().increase_indent(flow, False)


class Placed(int):
    """A number that another tool puts there: written as `place`, whatever it is."""

    place = ""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else '"' if PLACE in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


def _placed(dumper: yaml.SafeDumper, number: Placed) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:int", number.place)


PLACE = "\u27e6"
"""Begins the name of such a place inside of a text, which is then quoted."""
_Dumper.add_multi_representer(str, _string)
_Dumper.add_representer(str, _string)
_Dumper.add_multi_representer(Placed, _placed)


def to_yaml(value: Any) -> str:
    """One document."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def documents(comment: str, objects: list[dict[str, Any]]) -> str:
    """Several objects as one file, below a comment that says what they are."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "---\n".join(to_yaml(each) for each in objects)
