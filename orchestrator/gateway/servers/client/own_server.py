"""Connections to rollout servers that this user has started on this machine: a program of another user that took their port gets no request."""

from typing import Any

import aiohttp

from orchestrator.runtime.peer import until_accepted_by
from orchestrator.settings.timeouts import timeouts


class OwnServerConnector(aiohttp.TCPConnector):
    """Every new connection must have been accepted by a process of `user`."""

    def __init__(self, user: int, **options: Any) -> None:
        super().__init__(**options)
        self._user = user

    async def _create_connection(self, *args: Any, **options: Any) -> Any:
        """Raises StrangeServer, an OSError."""
        protocol = await super()._create_connection(*args, **options)
        transport = protocol.transport
        assert transport is not None
        try:
            ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            await until_accepted_by(*ends, self._user, within_s=timeouts().server_connect_s)
        except BaseException:
            transport.abort()
            raise
        return protocol
