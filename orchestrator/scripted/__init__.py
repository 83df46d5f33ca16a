"""A run without weights: real services, orchestrator, gateway and workers, and a rollout server that answers from a script.

`server` and `reply` are the policy, `services` PostgreSQL and NATS in a temporary directory, `version` the policy version that is published.
`penstock scaffold check` and the small runs of `orchestrator.api.testing` are built on it.
"""
