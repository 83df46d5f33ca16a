"""These tests run on the event loop of the product's processes."""

from tests.event_loop import anyio_backend

__all__ = ["anyio_backend"]
