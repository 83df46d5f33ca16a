"""The data pool: tables, every write, and the reads that the trainer and the roles act on.

A write is a compare-and-set with its history and outbox rows in one transaction. A read belongs here if a decision or a claim depends on it
(the next lease, the next batch, an attempt's steps). Reads for people are read models of `orchestrator.queries`.
"""
