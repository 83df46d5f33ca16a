"""Penstock: an event-driven, asynchronous orchestrator for agent reinforcement learning.

`app` is the orchestrator process and the map of all processes. `roles` are its tasks; `gateway`, `runner` and `web` are processes of their own; the
trainer is the package `trainer`. `pool` writes to Postgres, `queries` reads. `api` is the public Python API, `cli` the command `penstock`.
"""
