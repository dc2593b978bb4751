"""What both faces are made of: redis-py's arguments and attributes, and what a thread holds.

Promise: what is in hand is one grant, whole: a call changes it only where its own grant still is.
Threads or tasks may share an object, and one may be granted the lock before another's release has
its answer.
"""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace

from redis.exceptions import LockError

from ...core.deadline import NEVER, terms
from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...core.value import replace
from ...ops.redis_locks import side_keys
from ...runtime import clock, fork, notify
from .protocol import SCRIPTS, LockRequest, RedisGrant, deadline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

NO_SIDE_KEY = (
    "the name's hash tag cannot be repeated, so no other key is certain to share its cluster slot"
)
_told = False  # of locks without a timeout, in this process


def misused(lock: LockArguments, text: str) -> LockError:
    """A bug of the caller."""
    return LockError(text, lock_name=lock._shown)


class LockArguments:
    """redis-py's arguments, kept under its names, and what the asking thread holds."""

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        auto_renew: bool = False,
    ) -> None:
        self.redis = redis
        self.name, self.timeout, self.sleep = name, timeout, sleep
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local = threading.local() if self.thread_local else SimpleNamespace()
        self.local.token = None
        self.auto_renew = auto_renew
        if auto_renew and terms(timeout) is None:
            raise InvalidArgument("auto_renew=True prolongs a lease: give timeout= in seconds")
        self.register_scripts()

    @property
    def name(self) -> str | bytes | memoryview:
        """Of the key. Set anew it counts from the next acquire on; what is held stays where it is.

        As redis-py's own does; what counts there is the name at the time of each call.
        """
        return self._name

    @name.setter
    def name(self, name: str | bytes | memoryview) -> None:
        self._name, self._key = name, self._encoded(name)
        self._shown = printable(self._key.decode("utf-8", "surrogateescape"))

    def register_scripts(self) -> None:
        """The scripts of this class, known by their digests; no request is made."""
        cls = self.__class__
        for each, text in SCRIPTS.items():
            if getattr(cls, f"lua_{each}", None) is None:
                setattr(cls, f"lua_{each}", self.redis.register_script(text))

    def _encoded(self, text: object) -> bytes:
        """As the client would send it."""
        try:
            encoder = self.redis.get_encoder()
        except AttributeError:  # of asyncio
            encoder = self.redis.connection_pool.get_encoder()
        return bytes(encoder.encode(text))

    def _request(self, value: object, sleep: float | None, patience: float | None) -> LockRequest:
        """What an acquire asks for. L6  The nonce is chosen before the first request."""
        sleep = self.sleep if sleep is None else sleep
        patience = self.blocking_timeout if patience is None else patience
        if not self.timeout and not self.auto_renew:
            _told_once()
        nonce = uuid.uuid1().hex  # as redis-py: it says when it was made
        content = nonce.encode()
        if value is not None:
            content = self._encoded(value)
            if side_keys(self._key) is None:
                nonce = ""  # somebody else may use that value too
        until = NEVER if patience is None else clock.now() + patience
        timeout = self.timeout or None
        renewed = terms(timeout) if self.auto_renew else None
        return LockRequest(content, nonce, timeout, sleep, until, renewed)

    def _mine(self) -> RedisGrant | None:
        """What the asking thread holds, as far as it knows; of a value put in by hand that alone.

        L9  A forked child holds nothing of its parent's.
        """
        grant: RedisGrant | None
        with _undivided():
            content, grant = getattr(self.local, "token", None), getattr(self.local, "grant", None)
        if content is None:
            return None
        if grant is None or grant.value != content:
            return RedisGrant(content if isinstance(content, bytes) else self._encoded(content))
        return grant if grant.generation in (-1, fork.here()) else None

    def _in_hand(self, grant: RedisGrant) -> bool:
        """Whether it still is, prolonged or not: who shares this object may have been granted it.

        From the moment at which the server frees the key, before our answer comes.
        """
        mine = self._mine()
        return mine is not None and (mine.value, mine.nonce) == (grant.value, grant.nonce)

    def _granted(self, grant: RedisGrant) -> None:
        with _undivided():
            before, self.local.kept = getattr(self.local, "kept", None), None
            self.local.grant, self.local.token, self.local.by_hand = grant, grant.value, None
        del before  # it ends outside of the gate

    def _kept(self, grant: RedisGrant, kept: object) -> bool:
        """Renewed from here on; False where another thread has released it meanwhile."""
        with _undivided():
            if still := self._in_hand(grant):
                self.local.kept = kept
            return still

    def _prolonged(self, grant: RedisGrant) -> None:
        """By hand, which may have been for less than the renewals count on."""
        with _undivided():
            if self._in_hand(grant):
                self.local.grant, self.local.by_hand = grant, clock.now()

    def _shortening(self, grant: RedisGrant, ms: int, mode: str) -> None:
        """L8  The key may end sooner from here on, whether or not an answer comes."""
        now, ends = clock.now(), self._deadline()
        soonest = ends + ms / 1000  # "0" adds
        if mode != "0":
            soonest = deadline(now, ms / 1000) if ms > 0 else now
        if soonest < ends:
            self._prolonged(replace(grant, deadline=soonest))

    def _forgotten(self, grant: RedisGrant) -> None:
        """That grant is over; what came after it stays in hand."""
        with _undivided():
            kept = getattr(self.local, "kept", None)  # it ends outside of the gate
            if self._in_hand(grant):
                self.local.token = self.local.grant = self.local.kept = self.local.by_hand = None
        del kept

    def _owns(self, stored: object) -> bool:
        """L8  The clock comes after the look: an answer that came late proves nothing."""
        mine = self._mine()
        if mine is None or stored is None or self._encoded(stored) != mine.value:
            return False
        return clock.now() < self._deadline()

    def _releasing(self, value: str | bytes) -> RedisGrant:
        """The grant with that value, which is the one in hand or nothing is known of."""
        mine, content = self._mine(), self._encoded(value)
        if mine is None or mine.value != content:
            return RedisGrant(content)
        self._renew_no_more(mine)
        return mine

    def _lost_unless(self, owned: bool) -> str | None:
        """Why it is lost, after the server has been asked."""
        why = self._why_lost()
        return why if why is not None or owned else "its key has another value, or none"

    def _extendable(self, what: str) -> RedisGrant:
        mine = self._mine()
        if mine is None:
            raise misused(self, f"Cannot {what} an unlocked lock")
        if self.timeout is None:
            raise misused(self, f"Cannot {what} a lock with no timeout")
        return mine

    def _milliseconds(self, what: str, seconds: float | str | bytes | bytearray) -> int:
        """Raises LockError for what is no length of time.

        A text among it, which `*` repeats: "3" would be a number of 1000 digits.
        """
        if isinstance(seconds, str | bytes | bytearray):
            raise misused(self, f"Cannot {what} a lock by {seconds!r}: that is no number")
        try:
            float(seconds)  # else an int of hundreds of digits, of which no deadline can be made
            return int(seconds * 1000)
        except (OverflowError, ValueError) as error:  # infinity, NaN
            raise misused(self, f"Cannot {what} a lock by that: no length of time") from error

    def _drop(self, grant: RedisGrant | None) -> None:
        """Hold no more what was just granted; an earlier grant stays in hand."""
        if grant is not None:
            self._renew_no_more(grant)
            self._forgotten(grant)

    def _renew_no_more(self, grant: RedisGrant) -> None:
        with _undivided():
            kept = getattr(self.local, "kept", None) if self._in_hand(grant) else None
        if kept is not None:
            kept.stop()

    # ---- what redis-py's lock does not have -----------------------------------------------------

    @property
    def token(self) -> int | None:
        """The fencing token of what this thread holds; None with the reason in `token_reason`.

        It orders the grants of this face alone: of a holder that uses another library nothing is
        known, and its grants take no token.
        """
        grant = self._mine()
        return None if grant is None else grant.token

    @property
    def token_reason(self) -> str | None:
        """Why there is no token; None when there is one."""
        grant = self._mine()
        if grant is None:
            return "it is not held by this thread"
        if grant.token is not None:
            return None
        return NO_SIDE_KEY if side_keys(self._key) is None else "its value was put in by hand"

    @property
    def nonce(self) -> str | None:
        """The name of this very grant; None when nothing is held."""
        grant = self._mine()
        return None if grant is None else grant.nonce or None

    def remaining(self) -> float | None:
        """Seconds until this holder must stop; 0.0 when it is over, None without a timeout.

        Reduced by a margin of a tenth of the timeout, at least 0.25 s and at most a quarter of it.
        """
        ends = self._deadline()
        return None if ends == NEVER else max(0.0, ends - clock.now())

    def _deadline(self) -> float:
        grant = self._mine()
        if grant is None:
            return 0.0
        kept = getattr(self.local, "kept", None)
        if kept is None:
            return grant.deadline
        ends, by_hand = float(kept.deadline), getattr(self.local, "by_hand", None)
        if by_hand is None or ends > kept.terms.deadline(by_hand):
            return ends
        return min(ends, grant.deadline)  # L8  until a renewal that was sent after it

    def _why_lost(self) -> str | None:
        """L8  Decided by our clock alone: no request is made."""
        if self._mine() is None:
            return "it is not held by this thread"
        if clock.now() < self._deadline():
            return None
        return f"its timeout of {self.timeout:g} s is over" if self.timeout else "it has ended"


def _undivided() -> AbstractContextManager[object]:
    """For what a thread has in hand, which is changed and read in one step."""
    fork.here()
    gate: AbstractContextManager[object] = fork.gate
    return gate


def _told_once() -> None:
    """A lock that nothing ends is worth one line in each process."""
    global _told
    if not _told:
        _told = True
        text = (
            "a Redis lock without timeout= stays for ever when its holder dies: give a timeout, "
            "and auto_renew=True for work that may take longer"
        )
        notify.unharmed(lambda: notify.warn(text, {}))
