"""The reports of `penstock tasks vet` as one HTML page: no script, nothing loaded, every text escaped."""

import html
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from orchestrator.contracts.vetting import Level
from orchestrator.tasks.vetting.report import ControlResult, Status, TaskReport

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
code { font-size: .92em; overflow-wrap: anywhere; }
.holds { color: #1a7f37; } .fails { color: #cf222e; } .reported { color: #9a6700; } .skipped { color: #888; }
.remedy { color: #888; }
details { margin: .4rem 0; } summary { cursor: pointer; padding: .2rem 0; }
"""


def page(reports: Sequence[TaskReport], wanted: Level) -> str:
    """The whole document. `wanted`: the level that the tasks were to reach."""
    levels = Counter(report.level for report in reports)
    counts = ", ".join(f"{levels[level]} {level}" for level in reversed(Level) if levels[level])
    rows = "".join(_row(report, wanted) for report in reports)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Vetted tasks</title><style>{_STYLE}</style></head><body>"
        f"<h1>Vetted tasks</h1><p>{len(reports)} tasks: {_text(counts) or 'none'}.</p>"
        f"<table><thead><tr><th>task</th><th>level</th><th>faults</th></tr></thead><tbody>{rows}</tbody></table>"
        f"{''.join(_details(report, wanted) for report in reports)}</body></html>\n"
    )


def _row(report: TaskReport, wanted: Level) -> str:
    level = (report.undecided and "undecided") or report.level.value
    shown = "holds" if report.level.reaches(wanted) else "fails"
    faults = ", ".join(report.faults)
    return f'<tr><td>{_text(report.name)}</td><td class="{shown}">{_text(level)}</td><td>{_text(faults)}</td></tr>'


def _details(report: TaskReport, wanted: Level) -> str:
    opened = "" if report.level.reaches(wanted) else " open"
    warnings = "".join(f"<li><code>{_text(warning)}</code></li>" for warning in report.warnings)
    traps = f"<p>Traps that reading the tests shows:</p><ul>{warnings}</ul>" if warnings else ""
    undecided = f'<p class="fails">Not decided: {_text(report.undecided)}</p>' if report.undecided else ""
    return (
        f"<details{opened}><summary><b>{_text(report.name)}</b> · {_text(report.level)} · {report.seconds:.1f} s</summary>"
        f"<p><code>{_text(report.place)}</code><br><code>{_text(report.sha256)}</code></p>{undecided}"
        "<table><thead><tr><th>control</th><th>result</th><th>findings</th></tr></thead>"
        f"<tbody>{''.join(map(_control, report.results))}</tbody></table>{traps}</details>"
    )


def _control(result: ControlResult) -> str:
    findings = "".join(
        f"<li>{_text(finding.says)}<br><b>{_text(finding.fault)}</b>: "
        f'<span class="remedy">{_text(finding.what_to_do)}</span></li>'
        for finding in result.findings
    )
    listed = f"<ul>{findings}</ul>" if findings else ""
    details = f"<div>{_text(result.details)}</div>" if result.details else ""
    status = Status(result.status).value
    return f'<tr><td>{_text(result.control)}</td><td class="{status}">{status}</td><td>{details}{listed}</td></tr>'


def _text(value: str) -> str:
    return html.escape(_CONTROL.sub("\ufffd", value))
