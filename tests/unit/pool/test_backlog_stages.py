"""Every stage of unfinished work has a process that works on it and a sentence for people, and the query names no other stage."""

import re

from orchestrator.contracts.states import BacklogStageName
from orchestrator.pool.backlog import _STAGES
from orchestrator.pool.stall_causes import TAKEN_ON
from orchestrator.queries.status import _WORDS


def test_every_stage_has_a_responsible_process_and_a_sentence() -> None:
    assert TAKEN_ON.keys() == _WORDS.keys() == set(BacklogStageName)


def test_the_query_finds_every_stage_but_take_which_needs_the_window() -> None:
    found = re.findall(r"SELECT '(\w+)', count|(?:THEN|ELSE) '(\w+)'", str(_STAGES))
    assert {"".join(names) for names in found} == set(BacklogStageName) - {BacklogStageName.TAKE}
