"""The controls of `penstock tasks vet`, as pure functions: measured values in, findings out. `orchestrator.vetting` runs them in sandboxes.

findings.py     what a control finds, and the name of each fault
outcomes.py     oracle, nothing, flaky: rewards of repeated runs → findings
remedies.py    reasons → what to do
conditions.py   what the flaky runs vary: draws, orders of tests, clocks, time zones
secrets.py      what only the solution and the hidden tests contain
forms.py        the texts in a file: plain, base64, hex, UTF-16, compressed, reversed
compiled.py     what a compiled Python module keeps of its source
leaks.py        secrets in what the agent can read → suspects, which a run without them confirms
tamper.py       rewards of the reward-hacking probes → findings with a remedy
instruction.py  names that the tests check and the instruction does not mention
budget.py       measured time, memory and disk against the declared limits
report.py       the results of one task: levels, JSON
page.py         a report as one HTML page
"""
