"""The HTTP side of the gateway: routes, bodies, listeners. `dialects` holds the wires, `app` the routes for sandboxes, `admin` those for runners."""
