"""The gateway: the process between agents and rollout servers. It records every completion as a step (state, action, logprobs, version spans).

A request on its way: `http` (routes and wires) → `sessions` (which attempt, which recorded state) → `render` (messages to token ids) →
`completions` (`service` runs one call, `record` makes its step durable) → `servers` (placement, segments, weight syncs). `server` puts them together.
"""
