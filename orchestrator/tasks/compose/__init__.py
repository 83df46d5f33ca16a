"""`environment/docker-compose.yaml`: what it says about the agent's sandbox (the service `main`), and the side services next to it.

    document.py   YAML, and the values that compose files of tasks share with those of the older form (importing/compose.py)
    keys.py       every key and its treatment: honoured, refused or without effect
    services.py   the file → variables of `main`, and the side services in the order of their start
    health.py     a service's `healthcheck`

Only the provider `container` runs side services (sandboxes/container/services.py). Errors are ValueError, one sentence each.
"""
