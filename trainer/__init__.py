"""The trainer process: `loop` claims a batch, trains, saves and publishes a policy version; `phases` says what a crash in between costs.

`batch` reads the rows of a batch into `samples`; `tree` merges their common prefixes; `loss` holds the formulas (`cispo`); `update` is one train
step; `ranks` spreads it over GPUs. `serving` is the embedded rollout server, a process of its own.
"""
