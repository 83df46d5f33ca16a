"""The card of an exported dataset: the meaning of its columns, in the form that HF `datasets` reads."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from orchestrator.contracts.languages import json_text, markdown_code
from orchestrator.export.drive import ExportSummary


def card(done: ExportSummary, tables: Mapping[str, Mapping[str, tuple[str, str]]]) -> str:
    """Markdown with a YAML head: one configuration per table, each with its features."""
    lines = ["---", "configs:"]
    for name in tables:
        lines += [
            f"- config_name: {name}",
            "  data_files:",
            "  - split: train",
            f"    path: data/{name}/*.parquet",
        ]
    lines.append("dataset_info:")
    for name, columns in tables.items():
        lines += [f"- config_name: {name}", "  features:"]
        for column, (kind, _) in columns.items():
            lines.append(f"  - name: {column}")
            lines.append(
                f"    list: {kind[5:-1]}"
                if kind.startswith("list<")
                else f"    dtype: {kind!r}".replace("'", "")
            )
    filters = ", ".join(f"{name} = {markdown_code(_plain(value))}" for name, value in done.selection.items())
    lines += [
        "---",
        f"# Trajectories of the run {markdown_code(done.run)}",
        "",
        f"{done.attempts} attempts with {done.steps} steps, written by `penstock export parquet` (Penstock {version('penstock')}; {filters}).",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        'steps = load_dataset(".", "steps", split="train")',
        "```",
        "",
        "A step is one completion: the state is the whole context, the action what was sampled. State = the parent's state and action",
        "up to `kept`, and `delta_ids` behind that; of a root, `prompt_ids` and `delta_ids`. The split's name is what the library calls",
        "all rows: `purpose` says what they were made for.",
    ]
    for name, columns in tables.items():
        lines += ["", f"## {name}", "", "| column | type | what it is |", "|---|---|---|"]
        lines += [
            f"| `{column}` | {kind} | {description} |" for column, (kind, description) in columns.items()
        ]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    """A filter's value on one line, as JSON quotes a text."""
    return json_text(value) if isinstance(value, str) else str(value)
