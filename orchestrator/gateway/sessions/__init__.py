"""Sessions: one attempt of one rollout under one lease. `registry` opens, finds and seals them; `store` keeps their rows; `forest` places
requests among the recorded steps (`node`), and `branches` gives the reason why a step is a branch.
"""
