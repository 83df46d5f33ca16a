"""Rollout servers as the gateway uses them: `pool` places calls, `segmented` assembles one call from its segments, `server` is one server,
`health` checks it, `weight_sync` updates it to the version of `targets`, `canary` shows what it serves, `client` speaks its protocol.
"""
