"""Whether a descriptor can be read."""

import select


def readable(fd: int) -> bool:
    """Whether a read would not wait. Of any descriptor: `select.select` takes none above 1,023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
