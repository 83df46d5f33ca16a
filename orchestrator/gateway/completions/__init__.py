"""One completion, from request to recorded step: `service` runs it, `parse` reads the sampled action, `record` makes the step durable,
`offload` takes large requests off the event loop.
"""
