"""One trainer, many ranks: data parallel over whole groups, parameters and moments spread by FSDP2. The guide: ops/guides/ranks.md.

    share ──own samples──▶ walk (rounds of passes, the same on all ranks) over a spread model (shard) ──▶ update: one norm, one decision

Rank 0 is the trainer that there would be without the others: it alone knows the data pool, claims, commits and publishes.
"""
