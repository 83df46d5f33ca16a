"""The lines of `penstock up` on a terminal, from processes whose logs hold any text."""

import io

import pytest
from rich.console import Console

from orchestrator.cli.runs import shown
from orchestrator.deploy.embedded.process_spec import ProcessEvent, ProcessState


@pytest.mark.parametrize(
    "line",
    [
        "OSError: no file [/etc/ssl/x.pem]",
        "[rank0]: loss [bold]nan",
        "[error    ] [/] a [link=x]",
        ":warning: 3",
    ],
)
def test_the_end_of_a_log_is_shown_as_it_is(line: str) -> None:
    output = io.StringIO()
    event = ProcessEvent(
        name="web",
        state=ProcessState.FAILED,
        pid=None,
        detail=f"web ended; the end of web.log:\n  {line}\x1b[2J",
    )
    Console(file=output, soft_wrap=True).print(shown(event), highlight=False)
    assert output.getvalue() == f"web failed  web ended; the end of web.log:\n  {line}\\x1b[2J\n"
