"""How far a task is trusted: its level, as the controls of `penstock tasks vet` found it, bound to the task's content hash."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

VETTING: Final = 1
"""The version of the controls. A level that an older version gave does not count."""


class Level(StrEnum):
    """From the lowest to the highest. Each includes the levels before it."""

    NONE = "none"  # it cannot be read, or asks for what the sandboxes do not have
    WELL_FORMED = "well-formed"
    BUILDS = "builds"
    CONTROLS_HOLD = "controls-hold"
    VETTED = "vetted"

    @property
    def rank(self) -> int:
        return list(Level).index(self)

    def reaches(self, wanted: "Level") -> bool:
        """
        >>> Level.VETTED.reaches(Level.BUILDS), Level.BUILDS.reaches(Level.VETTED)
        (True, False)
        """
        return self.rank >= wanted.rank


class Vetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The level of one task. It travels with the task's message and is a row of `vettings`.

    `sha256`: the task's content hash, 64 hex digits; `times`: runs of each control; `provider`: the sandboxes that it was vetted in; `version`: of
    the controls."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    level: Level
    times: Annotated[int, msgspec.Meta(ge=1, le=100)]
    provider: Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]{1,64}$", max_length=64)]
    version: Annotated[int, msgspec.Meta(ge=1, le=9999)] = VETTING

    def counts_for(self, content_hash: str) -> bool:
        """Whether it is about exactly these bytes, by the controls of this version."""
        return self.sha256 == content_hash and self.version == VETTING
