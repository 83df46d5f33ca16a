"""Options that have no effect without another one, or with another one. They are refused: a person who gives one expects an effect."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """When the option or argument `param` has an effect: with one of `needs` (empty: always), and with none of `against`. `why` ends the sentence."""

    param: str
    needs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    why: str = ""


def _needing(needs: tuple[str, ...], *params: str) -> tuple[Combination, ...]:
    return tuple(Combination(param=param, needs=needs) for param in params)


def _against(other: str, *params: str, why: str = "") -> tuple[Combination, ...]:
    return tuple(Combination(param=param, against=(other,), why=why) for param in params)


_OF_CLUSTER: Final = ("topology", "monitor", "write_probe", "read_probe")
_WHOLE_JSON: Final = "JSON is never shortened"
_OWN_STACK: Final = "the run that --config names has its own"

COMBINATIONS: Final[Mapping[str, Sequence[Combination]]] = {
    "doctor": (
        *_needing(("cluster",), *_OF_CLUSTER),
        *_needing(("cluster", "sandbox"), "provider"),
        *_against("cluster", "sandbox"),
        *_against("write_probe", "topology", "monitor", "provider", "as_json", "read_probe"),
        *_against("read_probe", "topology", "monitor", "provider", "as_json"),
    ),
    "show rollout": (
        *_needing(("step",), "tokens"),
        *_against("html", "step", "tokens", "full", "as_json"),
    ),
    "show group": _against("as_json", "full", why=_WHOLE_JSON),
    "show batch": _against("as_json", "full", why=_WHOLE_JSON),
    "sft record": _against("config", "model", "slots", "sandbox", why=_OWN_STACK),
    "scale": _needing(("target",), "out", "config"),
    "tasks import swe": _needing(("repositories",), "git_timeout_s"),
    "drain": _against("undo", "yes"),
    "run mix": _needing(("weights", "configured"), "reason", "yes"),
}
"""By the full name of a command."""


def without_effect(command: str, given: Collection[str], names: Mapping[str, str]) -> tuple[str, str] | None:
    """The first parameter without an effect, and the sentence about it. `given`: the parameters of the command line; `names`: how people write
    each."""
    for each in COMBINATIONS.get(command, ()):
        if each.param not in given:
            continue
        because = f": {each.why}" if each.why else ""
        if each.needs and not any(other in given for other in each.needs):
            return (
                each.param,
                f"it has no effect without {' or '.join(names[other] for other in each.needs)}{because}",
            )
        if found := [names[other] for other in each.against if other in given]:
            return each.param, f"it has no effect with {found[0]}{because}"
    return None
