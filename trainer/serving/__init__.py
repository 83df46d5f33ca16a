"""The embedded rollout server: a small CPU engine behind a subset of SGLang 0.5.23's HTTP protocol.

Run as `python -m trainer.serving --model-path DIR --port P`. From the wire inwards:

| module | job | knows |
|---|---|---|
| `__main__`, `settings` | start, refuse, stop | everything |
| `app` | routes, statuses, bodies | service |
| `protocol`, `replies`, `state`, `metrics` | requests in; replies, descriptions and metrics out | sequence |
| `service` | completions, pauses, weight updates for the event loop | engine |
| `engine` | the thread: commands between steps | scheduler |
| `scheduler` | continuous batching, retraction, versions per token | all below |
| `sequence`, `stopping`, `sampling` | one completion: record, end, draw | |
| `prefix_cache`, `kv`, `packing` | keys and values: cached, stored, attended | |
| `model`, `dense`, `hf`, `directory` | weights and their forward pass | packing |
"""
