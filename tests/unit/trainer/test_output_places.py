"""Commands that make a policy or demonstrations refuse a place that cannot be written, in one sentence and before their work."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestrator.runtime.output_place import directory_to_write, file_to_write
from trainer.policy.init import Shape, make_policy
from trainer.sft import train as training
from trainer.sft.corpus import Demonstrations, tokenizer_digest


def command(*arguments: object) -> str:
    """The only line of standard error of `python -m …`, which fails."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stdout == "", done
    return done.stderr


def test_a_place_is_made_and_left_empty_or_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    directory_to_write("--out", tmp_path / "a" / "b")
    file_to_write("--out", tmp_path / "c" / "d")
    assert list((tmp_path / "a" / "b").iterdir()) == [] == list((tmp_path / "c").iterdir())
    file_to_write("--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    for check, place in (
        (directory_to_write, tmp_path / "file"),
        (directory_to_write, tmp_path / "file" / "below"),
        (file_to_write, tmp_path / "file" / "below"),
        (file_to_write, tmp_path / "a"),
        (directory_to_write, Path("/proc/new")),
    ):
        with pytest.raises(ValueError, match=r"^--out '/.*' (is a directory|cannot be written)"):
            check("--out", place)


def test_a_random_policy_whose_place_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--out '" in command("trainer.policy", "--out", tmp_path / "file")


def test_supervised_training_refuses_its_places_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_policy(tmp_path / "model", seed=0, shape=Shape(hidden=32, layers=2, head_dim=8, ffn=64))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    with pytest.raises(ValueError, match="is a directory: name the file of demonstrations in it"):
        Demonstrations.load(corpus, tokenizer="")
    samples = [(list(range(9)), [False, *[True] * 8])]
    Demonstrations.of(samples, tokenizer=tokenizer_digest(model)).save(corpus / "file")
    monkeypatch.setattr(training, "_loop", lambda *_: pytest.fail("it trains"))
    with pytest.raises(ValueError, match=r"^--out .* cannot be written"):
        training.train(corpus / "file", model, corpus / "file", seed=0)
    assert np.array_equal(
        Demonstrations.load(corpus / "file", tokenizer=tokenizer_digest(model)).ids, range(9)
    )
    printed = command("trainer.sft", "--corpus", corpus, "--model", model, "--out", tmp_path / "out")
    assert "is a directory" in printed and not (tmp_path / "out").exists()
