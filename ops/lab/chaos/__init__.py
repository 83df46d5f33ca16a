"""Chaos: faults are injected into the real stack while it works. The results are checked against a ledger that Penstock does not write.
The product never imports this package.

    plan      which faults, in which order: a pure function of the seed
    relay     on one connection: passes, stalls, cuts, delays, shuffles · proxy: in front of the rollout server, records its generations
    harness/  the agent program of the run; it reports the answers that it received
    ledger    submissions, answers and generations, as files
    load      the client that keeps the run busy · watch: progress and work in flight, from the data pool
    clock/, disk, victims, inject   injecting the faults
    scenario  fault after fault, each with its recovery · results, regenerated, table: the outcome · gate: whether it was enough
    leftovers processes that a killed run left behind · main: options

The supervisor of the stack, the relays and the client run in one process. If it is killed, the kernel ends the stack.
"""
