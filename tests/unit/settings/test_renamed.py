"""A key that was renamed is refused by its new name: in a file, in `--set`, in a stored run."""

from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import Config, effective, ignored, load
from orchestrator.settings.renamed import RENAMED


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_in_a_file_is_refused_with_the_new_one(tmp_path: Path, old: str, new: str) -> None:
    section, _, key = old.partition(".")
    file = tmp_path / "penstock.toml"
    file.write_text(f"[{section}]\n{key} = 7.0\n")
    with pytest.raises(ConfigurationError) as refused:
        load(file)
    assert str(refused.value) == f"{file}: {old} is called {new} now"
    with pytest.raises(ConfigurationError, match=f"^override {old}=7.0: {old} is called {new} now$"):
        load(None, [f"{old}=7.0"])


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_run_that_was_stored_with_an_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    section, _, key = old.partition(".")
    stored = Config().to_json()
    stored.setdefault(section, {})[key] = 7.0
    for read in (
        Config.from_json,
        lambda kept: effective(kept, Config()),
        lambda kept: ignored(kept, Config()),
    ):
        with pytest.raises(ConfigurationError, match=f"{old} is called {new} now"):
            read(stored)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_the_new_name_is_a_key_and_the_old_one_is_none(old: str, new: str) -> None:
    section, _, key = new.partition(".")
    assert key in type(getattr(Config(), section)).model_fields
    section, _, key = old.partition(".")
    assert not hasattr(getattr(Config(), section, None), key)
