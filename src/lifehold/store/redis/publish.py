"""How waiters of this process are woken by Redis: SUBSCRIBE, on the connection of listening.py.

Promise: who is called is rung within the time of one message. The scripts see by PUBSUB NUMSUB
whether somebody listens on its channel.

How it could fail, and what keeps it. A connection that is dead without a word is found by PING. Who
is heard of is a connection, and not a life: whoever is let in asked a moment ago (rules.py), and
all others look for themselves (waiter.py).
"""

from __future__ import annotations

from ...runtime import clock
from ..listening import LOOK, ListeningThread
from .wire import NoRedisReply, packed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .connect import RedisUrl
    from .wire import RedisConnection, Reply

PING = 5.0  # seconds of silence after which the server is asked whether it lives
SILENT = 15.0  # seconds of silence after which the connection is dead


class PublishedWakeups(ListeningThread):
    """The waiters of this process at one server."""

    _prefix = "lifehold:wake:"

    def __init__(self, plan: RedisUrl, *, hands: bool = True) -> None:
        self._plan, self._hands = plan, hands
        super().__init__()

    @property
    def hands(self) -> bool:
        """Whether who waits here can be let in unasked: somebody listens."""
        return self._hands and self._listener is not None

    def _serve(self) -> None:
        line = self._plan.opened(strict=False)
        try:
            self._hear(line)
        finally:
            self._ended(line)
            line.close()

    def _hear(self, line: RedisConnection) -> None:
        line.sock.settimeout(self._plan.limit)
        line.sock.sendall(packed([("SUBSCRIBE", self.channel)]))
        line.sock.settimeout(0)
        heard_at = asked_at = now = clock.now()
        while not self._unwanted(now):
            if line.where != self._plan.where:
                raise NoRedisReply("another server is the primary")
            reply = line.pushed(LOOK)
            now = clock.now()
            if reply is not None:
                heard_at = now
                self._heard(line, reply)
            elif now > heard_at + SILENT:
                raise NoRedisReply("the server is silent")
            elif now > max(heard_at, asked_at) + PING:
                asked_at = now
                line.sock.send(packed([("PING",)]))

    def _heard(self, line: RedisConnection, reply: Reply) -> None:
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, list | tuple):
            return  # the answer to PING
        if reply[0] == b"message":
            try:
                self.told(reply[2].decode())
            except (ValueError, TypeError, IndexError):  # of somebody else: no call of ours
                return
        elif reply[0] == b"subscribe":
            self._wake_all(line)
