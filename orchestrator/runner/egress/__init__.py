"""The egress proxy: the only way by which a sandbox reaches a network, for tasks to which the run grants it.

    program ─ 127.0.0.1:port ─ relay.py (inside) ─ Unix socket ─ proxy (the runner's process) ─ a checked address, port 443 or 80

`sandbox.py` gives a sandbox its own listener; `proxy.py` decides on each connection; `heads.py` and `client_hello.py` read what the program sent;
`addresses.py` knows which addresses are public.
"""
