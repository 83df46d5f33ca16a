"""The search for many texts in one: the same answer as one search for each, in hardly more time than for few."""

import random
import threading
import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.lab.task_set.small import WELL_MADE
from orchestrator.probing import Left
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.needles import Needles
from orchestrator.tasks.vetting.leaks import Readable, Searched
from orchestrator.vetting import leak
from orchestrator.vetting.trials import Trials
from sandboxes.bubblewrap import BubblewrapProvider

FEW, MANY = 50, 5000


@given(
    wanted=st.lists(st.text("ab", min_size=8, max_size=14), max_size=12),
    parts=st.lists(st.text("ab ", max_size=40), max_size=30),
    front=st.sampled_from([0, 1, 511, 700]),
)
def test_the_answer_is_that_of_one_search_for_each(wanted: list[str], parts: list[str], front: int) -> None:
    text = b"-" * front + "".join(parts + wanted[::2]).encode()
    texts = [each.encode() for each in wanted]
    assert Needles(texts).within(text) == {each for each in texts if each in text}


def test_texts_of_one_piece_that_stands_everywhere_are_searched_for_each_by_itself() -> None:
    texts = [b"ab" * 40 + b"%03d" % number for number in range(300)]
    text = b"ab" * 5000 + texts[7][30:] + b"ab" * 5000 + texts[9]
    assert Needles(texts).within(text) == {texts[7], texts[9]}
    repeated = [b"abababab" * count for count in range(1, 300)]
    assert Needles(repeated).within(b"ab" * 100) == set(repeated[:25])


def test_many_texts_take_hardly_longer_than_few() -> None:
    rng = random.Random(3)
    rows = [f"2026-01-{n % 28 + 1:02d},{rng.randrange(10**15, 10**16)},open".encode() for n in range(30_000)]
    text, others = b"\n".join(rows[MANY:]), rows[:MANY]

    def seconds(count: int) -> float:
        needles = Needles(others[:count])
        began = time.thread_time()
        for _ in range(3):
            assert needles.within(text) == set()
        return time.thread_time() - began

    few, many = min(seconds(FEW) for _ in range(3)), min(seconds(MANY) for _ in range(3))
    print(f"{FEW} texts {few:.3f} s, {MANY} texts {many:.3f} s")
    assert many <= 20 * few, "a search for each takes 100 times as long"


@pytest.mark.anyio
async def test_the_search_runs_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the event loop it would stop the clocks of the other tasks."""
    threads: list[threading.Thread] = []

    def searching(*_: object) -> Searched:
        threads.append(threading.current_thread())
        return Searched([], ())

    monkeypatch.setattr(leak, "search", searching)
    trials = Trials(Task.from_files(WELL_MADE["write"]), BubblewrapProvider(), section=SandboxSection())
    with anyio.fail_after(60):
        await leak.leak_findings(trials, Left(answer="", artifacts=()), Readable(files={}, variables={}))
    assert threads and threads[0] is not threading.current_thread()
