"""One trainer, many ranks: data parallel over whole groups, parameters and moments spread by FSDP2. The guide: ops/guides/ranks.md.

    balance ──own samples──▶ lockstep (rounds of passes, the same on all ranks) over a sharded model (fsdp) ──▶ update: one norm, one decision

Rank 0 does the work of a single trainer: it alone uses the data pool, claims, commits and publishes.
"""
