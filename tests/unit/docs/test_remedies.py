"""Remedies of guides and runbooks can be applied: a run keeps its keys, so a remedy that changes one is for a new run."""

import re
from collections.abc import Iterator

from orchestrator.settings.config import Config, is_process_key
from tests.guides import PAGES, prose

CHANGES = re.compile(r"\b([Rr]aise|[Ll]ower)\b")
NEW = re.compile(r"(new|next) run|before the run begins|before the first|another run")


def remedies(text: str) -> Iterator[tuple[str, list[str]]]:
    """Sentences and cells of tables that change keys of a run, with these keys."""
    for part in re.split(r"(?<=[.;])\s|\n\n|\n- |\|", text):
        keys = [
            f"{section}.{key}"
            for section, key in re.findall(r"`(\w+)\.(\w+)", part)
            if section in Config.model_fields
            and key in type(getattr(Config(), section)).model_fields
            and not is_process_key(f"{section}.{key}")
        ]
        if keys and CHANGES.search(part):
            yield " ".join(part.split()), keys


def test_a_remedy_that_changes_a_key_of_the_run_is_for_a_new_one() -> None:
    found = {(page, part): keys for page in PAGES for part, keys in remedies(prose(page))}
    assert len(found) > 3
    assert [(*where, keys) for where, keys in found.items() if not NEW.search(where[1])] == []
