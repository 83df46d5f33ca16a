"""`penstock scaffold check`: a scaffold, in its sandbox, against the real gateway and a rollout server that answers from a script.

    program ─▶ tap (fails on purpose) ─▶ gateway ─▶ scripted rollout server
                     one runner, verifier, orchestrator, PostgreSQL and NATS of its own behind them

It shows what a run would see: failure classes, verdicts, stored steps. `seen` reads requests, `policy` makes tool calls, `tap` is the
program's end, `bench` is the stack on `orchestrator.scripted`, `scenarios` are the questions.
"""
