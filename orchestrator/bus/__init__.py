"""The bus: NATS JetStream as a transport that may be wiped. `base` is the port, `nats` its adapter, `subjects` lists every subject and stream.

`journal` and `courier` make the gateway's steps durable: a step is on disk before its reply is sent, and stays there until Postgres has it.
"""
