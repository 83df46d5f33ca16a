"""The metrics that dashboards and alert rules query, read from their PromQL."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
DIRECTORY = REPOSITORY / "ops" / "dashboards"
OF_PROMETHEUS = {"up"}  # made by every scrape
_WORDS = {"and", "or", "unless", "bool", "offset"}
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")


def boards() -> list[dict[str, Any]]:
    """Every Grafana dashboard."""
    return [json.loads(file.read_text()) for file in sorted(DIRECTORY.glob("*.json"))]


def alerts() -> list[dict[str, Any]]:
    """Every alert rule."""
    groups = yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """(its place, PromQL)"""
    for board in boards():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield f"{board['uid']}: {panel['title']}", target["expr"]
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def names(expression: str) -> set[str]:
    """The metrics of an expression.

    >>> sorted(names('histogram_quantile(0.9, sum by (le, at) (rate(a_bucket{run="$run"}[5m]))) > 2 * max(b) and on (run) c_total'))
    ['a_bucket', 'b', 'c_total']
    """
    plain = re.sub(r'"[^"]*"', "", expression)
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", plain)
    plain = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", plain)
    plain = re.sub(r"\b(group_left|group_right)\b", " ", plain)
    plain = re.sub(r"\b\d[\w.]*", " ", plain)
    found = set()
    for match in _NAME.finditer(plain):
        word, behind = match[0], plain[match.end() :].lstrip()
        called = behind.startswith("(") or re.match(r"(by|without)\b", behind) or word in ("by", "without")
        if not called and word not in _WORDS:
            found.add(word)
    return found
