"""Rollout servers as the gateway uses them: `pool` places calls, `segmented` assembles one call from its segments, `server` is one server,
`health` checks it, `weight_sync` updates it, `client` speaks its protocol.
"""
