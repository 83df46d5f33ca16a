"""Chaos: the real stack, hurt on purpose while it works, and held against a ledger that Penstock does not write. Never imported by the product.

    plan      which faults, in which order: a pure function of the seed
    relay     stands on a connection: passes, stalls, cuts, delays, shuffles · proxy: stands before the rollout server, and keeps its generations
    harness/  the agent program of the run; it tells what it received
    ledger    what was submitted, answered and generated, as files
    load      the client that keeps the run busy · watch: what the data pool says is moving
    clock/, disk, victims, inject   doing the faults
    course    fault after fault, each with its recovery · tally, again, table: what came of it · gate: whether it was enough
    remains   what a killed run left · main: options

Everything happens in one process: the supervisor of the stack, the relays, the client. When it is killed the kernel ends the stack.
"""
