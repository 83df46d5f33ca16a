"""The generated suite, without running it: split, balance, vocabulary, determinism. tests/integration/tasks/test_oracle.py runs it."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.tasks.harbor import load
from orchestrator.tasks.suite import (
    COMMAND_WORDS,
    DONE,
    EXTENSIONS,
    FAMILIES,
    PHRASINGS,
    WORDS,
    SuiteTask,
    Trajectory,
    generate,
)
from orchestrator.tasks.suite.__main__ import main
from sandboxes.base import digest_of
from tests.unit.tasks.task_lines import iter_jsonl

TRAIN = generate("train", 400, seed=0)
HELDOUT = generate("heldout", 100, seed=0)
DEMO = generate("demo", 1000, seed=0)
ALL = [*TRAIN, *HELDOUT, *DEMO]


def content_hashes(tasks: Iterable[SuiteTask]) -> set[bytes]:
    """Hashes of every file of the packed tasks: settings, instruction, initial files, tests and solution."""
    return {digest_of(file) for t in tasks for file in t.task.files.values()}


def trajectories(tasks: Iterable[SuiteTask]) -> Iterable[Trajectory]:
    return (trajectory for t in tasks for trajectory in (*t.good, *t.bad))


def test_heldout_tasks_share_no_instruction_and_no_file_content_with_the_others_for_any_seed() -> None:
    seen = content_hashes(TRAIN) | content_hashes(DEMO) | content_hashes(generate("train", 300, seed=1))
    seen_instructions = {t.task.instruction for t in ALL if t not in HELDOUT}
    for seed in (0, 1, 2):
        heldout = generate("heldout", 100, seed)
        assert not content_hashes(heldout) & seen
        assert not {t.task.instruction for t in heldout} & seen_instructions


def test_heldout_tasks_share_no_demonstrated_solution_with_the_others() -> None:
    def commands(tasks: Iterable[SuiteTask]) -> set[tuple[str, str]]:
        """Last commands, in the families whose last command depends on the instruction alone."""
        return {(t.family.name, t.good[0].turns[-1].command) for t in tasks if t.family.calls == 1}

    assert not commands(HELDOUT) & (commands(TRAIN) | commands(DEMO))


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    assert generate("train", 40, seed=7) == generate("train", 40, seed=7)
    assert generate("train", 40, seed=7) == generate("train", 80, seed=7)[:40]
    assert not content_hashes(generate("train", 40, seed=7)) & content_hashes(generate("train", 40, seed=8))
    everything = "".join(
        t.task.content_hash for t in HELDOUT
    )  # the same in another process, on another machine
    assert hashlib.sha256(everything.encode()).hexdigest()[:16] == "25c15bc01b15129c"


def test_no_task_occurs_twice_and_no_instruction_in_a_suite_of_the_usual_size() -> None:
    for tasks in (TRAIN, HELDOUT):
        assert len({t.task.instruction for t in tasks}) == len(tasks)
    for tasks in (TRAIN, HELDOUT, DEMO):
        assert len({t.task.name for t in tasks}) == len({t.task.content_hash for t in tasks}) == len(tasks)


def test_domains_are_balanced_and_every_family_occurs_in_every_phrasing() -> None:
    cells = {(family, phrasing) for family in FAMILIES for phrasing in range(PHRASINGS)}
    assert len(FAMILIES) == 17
    for tasks in (TRAIN, HELDOUT, TRAIN[100:180]):
        assert {(t.family.name, t.phrasing) for t in tasks} == cells
        assert set(Counter(t.family.domain for t in tasks).values()) == {len(tasks) // 4}


def test_difficulty_is_graded_and_a_tenth_needs_a_call_that_depends_on_another() -> None:
    for tasks in (TRAIN, HELDOUT):
        difficulties = Counter(t.task.settings.metadata.difficulty for t in tasks)
        assert set(difficulties) == {"easy", "medium", "hard"}
        assert min(difficulties.values()) >= len(tasks) / 8
        chained = [t for t in tasks if t.family.calls == 2]
        assert len(chained) >= len(tasks) / 10
        for t in chained:
            assert t.task.settings.metadata.tags == ("two-calls",)
            unknown_before = set(re.findall(r"\w+", t.good[0].turns[1].command))
            unknown_before -= set(re.findall(r"\w+", t.task.instruction)) | set(COMMAND_WORDS)
            files = t.task.environment(None).files
            found_in_files = {
                *re.findall(r"\w+", " ".join([*files, *(f.data.decode() for f in files.values())]))
            }
            assert unknown_before and unknown_before <= found_in_files


def test_settings_repeat_what_the_generator_knows() -> None:
    for t in TRAIN:
        metadata = t.task.settings.metadata
        assert (metadata.domain, metadata.family, metadata.phrasing) == (
            t.family.domain,
            t.family.name,
            t.phrasing,
        )
        assert metadata.name == t.task.name
        assert t.task.settings.agent.max_turns == 4


def test_trajectories_come_in_the_wanted_numbers_and_none_is_both_good_and_bad() -> None:
    for t in ALL:
        assert 1 <= len(t.good) <= 2
        assert 3 <= len(t.bad) <= 5
        assert len({*t.good, *t.bad}) == len(t.good) + len(t.bad)
        assert min(len(good.turns) for good in t.good) == t.family.calls


def test_thoughts_are_two_words_and_final_messages_copy_or_say_done() -> None:
    for trajectory in trajectories(ALL):
        assert trajectory.answer in (None, DONE)
        for turn in trajectory.turns:
            assert re.fullmatch(r"[a-z]+ [a-z]+", turn.think)


def test_commands_use_only_the_closed_vocabulary_and_nothing_that_json_escapes() -> None:
    used: set[str] = set()
    for trajectory in trajectories(ALL):
        for turn in trajectory.turns:
            assert not set('"\\\n\t') & set(turn.command)
            assert turn.command.isascii()
            used |= set(re.findall(r"[A-Za-z]+", turn.command))
    assert used == {*WORDS, *EXTENSIONS, *COMMAND_WORDS}


def test_words_are_short_and_no_word_hides_in_another() -> None:
    assert len(set(WORDS)) == 32
    assert len(set(EXTENSIONS)) == 4
    assert len(set(COMMAND_WORDS)) == len(COMMAND_WORDS)
    for word in WORDS:
        assert re.fullmatch(r"[a-z]{3,5}", word)
        for other in {*WORDS, *EXTENSIONS, *(c for c in COMMAND_WORDS if len(c) > 1)} - {word}:
            assert word not in other and other not in word


def test_instructions_are_short_lines_of_plain_words() -> None:
    for t in ALL:
        assert re.fullmatch(r"[a-z0-9 .,:?]{8,70}", t.task.instruction)


def test_a_family_that_runs_out_of_tasks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.tasks.suite.generator._MAX_DRAWS", 0)
    with pytest.raises(ValueError, match="family add_nums cannot give so many different train tasks"):
        generate("train", 1, seed=0)


def test_the_command_writes_directories_that_load_and_refuses_to_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path), "--train", "8", "--heldout", "4", "--seed", "3"]
    assert main(arguments) == 0
    written = [load(folder) for folder in sorted((tmp_path / "train").iterdir())]
    assert written == sorted((t.task for t in generate("train", 8, seed=3)), key=lambda task: task.name)
    assert len(list((tmp_path / "heldout").iterdir())) == 4
    assert main(arguments) == 1
    assert f"{tmp_path / 'train'} exists already" in capsys.readouterr().err


def test_the_command_writes_json_lines(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--train", "8", "--heldout", "4", "--jsonl"]) == 0
    assert list(iter_jsonl(tmp_path / "heldout.jsonl")) == [t.task for t in generate("heldout", 4, seed=0)]
    assert len(list(iter_jsonl(tmp_path / "train.jsonl"))) == 8
