"""`penstock scaffold check`: a scaffold, in its sandbox, against the real gateway and a rollout server that answers from a script.

    program ─▶ tap (fails on purpose) ─▶ gateway ─▶ scripted rollout server
                     one runner, verifier, orchestrator, PostgreSQL and NATS of its own behind them

What it shows is what a run would see: failure classes, verdicts, stored steps. `seen` reads requests, `policy` decides replies, `server` and
`tap` are the two ends, `bench` is the stack, `scenarios` are the questions.
"""
