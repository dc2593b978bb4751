"""A port for a server that is killed and started again, or not there yet.

Not one of those that the system gives to clients: while the server is down a connection of anybody
could come to have it, that of a client to itself among them, and the server would not come up.
"""

from __future__ import annotations

import random
import socket

PORTS = range(12000, 22000)  # and 10,000 above each of them the bus of a Redis cluster


_given: set[int] = set()


def free_port() -> int:
    """One that nobody has, nor the one 10,000 above it, and nobody of this process ever had.

    A store is known by its URL for as long as its process lives: another server there would be
    taken for the one whose tables are made already.
    """
    chosen = random.SystemRandom()
    for _ in range(1000):
        port = chosen.choice(PORTS)
        if port in _given:
            continue
        try:
            for each in (port, port + 10000):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", each))
            _given.add(port)
            return port
        except OSError:
            continue
    raise AssertionError("no port is free")
