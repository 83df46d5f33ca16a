"""Sandboxes: isolated places in which the programs of agents and tests run. `base` is the port: `Provider.open` starts one.

Providers: `bubblewrap` (the default), `container` (podman, docker), `kubernetes` (pods), `local` (no isolation, for development only).
`conformance` holds the checks that each provider must pass, escape attempts among them.
"""
