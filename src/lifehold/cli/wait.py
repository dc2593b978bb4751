"""`lifehold wait`: until nobody holds a lock, of whatever tool; then hold nothing.

Promise: woken by the kernel, not by looking again and again; exits 0 only when the lock was free at
some instant after the question. Rule: stand in the kernel's own queue, by the kind of lock that is
held, on a descriptor of our own that is closed as soon as the lock has come: shared, or exclusive
where the holders are shared ones or cannot be seen. For these microseconds a try without patience
can be turned away, and nobody else is disturbed. Nothing is made or written. For a pid file the end
of its process is waited for; for a lock that is kept in a folder, a change in it.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import signal
import struct

from ..core.acquire import Ask
from ..core.deadline import FIRST_NOTICE, next_gap
from ..core.errors import SystemRefused
from ..core.events import Waiting
from ..core.mask import printable
from ..local import kinds, lock_names, soft_readwrite
from ..local.files import HOST, READ_ONLY, READ_WRITE
from ..local.ground import is_far
from ..local.kernel_holders import how_taken
from ..local.kernel_semaphore import slot_path
from ..local.proc_locks import FLOCK, OFD, POSIX, key_of, lines_of
from ..lock import absolute
from ..ops import databases, held
from ..ops.foreign import bytes_in_the_way, sees_all_locks
from ..ops.who import FREE, HELD, LEASED, STALE, LockAnswer, numbers_of, permits_of, who
from ..runtime import clock
from ..runtime.blocking import BLOCKING, finish
from ..runtime.flock_wait import FIRST_BYTE
from . import exits, target
from .locks import doubles_text
from .options import WAIT, arguments
from .render import put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SCHEMA = "lifehold.wait/1"
NEVER = float("inf")
F_OFD_SETLKW: int = getattr(fcntl, "F_OFD_SETLKW", getattr(fcntl, "F_SETLKW", -1))
AGAIN = 0.05  # seconds: a signal that comes just before the system call is lost, so it is repeated
LOOK_AGAIN = 1.0  # seconds, when no event came: a lease runs out in silence
PAUSE = 0.5  # where there is nothing that could wake us


class _Alarm(BaseException):
    """The patience of one stand in the queue is over."""


def wait(words: list[str]) -> int:
    """The exit code of `lifehold wait WORDS`."""
    given, (name,) = arguments(WAIT, words)
    if not hasattr(fcntl, "flock"):
        raise SystemRefused("`lifehold wait` needs Unix; here use lifehold.Lock from Python")
    address = lock_names.address(name)
    if address.doubles:
        say(doubles_text(name, address))
    target.tell_of_users(name)
    typed = name
    if lock_names.is_store(address.path):
        from ..ops import stored

        path, name = stored.canonical(address.path), lock_names.shown(name)
    else:
        path = absolute(address.path)
    if given["wait"] is None and held.of_environment(path).valid:
        say(
            f"'{printable(name)}' is held by the `lifehold run` around this command, until this "
            "command has ended: to wait would be to wait for ever"
        )
        return exits.HELD
    began = clock.now()
    until = NEVER if given["wait"] is None else began + given["wait"]
    answer = until_free(name, address.path, until)
    waited = clock.now() - began
    free = answer.holder is None or answer.state == STALE
    if given["json"]:
        import json

        facts = {"name": name, "path": answer.path, "free": free, "waited": round(waited, 3)}
        put(json.dumps({"schema": SCHEMA} | facts, indent=2))
    if free:
        target.tell_like(typed, answer.path)
        return exits.DONE
    say(_still_held(name, answer, waited if given["wait"] else 0.0), prefix="")
    return exits.HELD


def _still_held(name: str, answer: LockAnswer, waited: float) -> str:
    """The one text for "held", or suspect, under our own head. `waited`: 0 when none was wanted."""
    from ..core import explain

    quoted = explain.quote(name)
    text = explain.held_text(
        name,
        answer.holder,
        waited,
        clock.utc_now(),
        waiters=len(answer.waiting) or None,
        following=[f"wait:  lifehold wait -w 1h {quoted}", f"look:  lifehold who {quoted}"],
    )
    how = f"still {answer.state} after {explain.span(waited)}" if waited else answer.state
    return f"'{printable(name)}' is {how}\n" + text.partition("\n")[2]


def until_free(name: str, path: str, until: float) -> LockAnswer:
    """The last answer about it: free, or who held it when `until` came."""
    from .notice import WaitNotice

    began = clock.now()
    notices, gap = WaitNotice(), FIRST_NOTICE
    notice_at = began + gap
    try:
        while True:
            answer = who(name, path, plain="/" not in name, removed=False)
            if answer.holder is None and answer.state != FREE:
                raise SystemRefused(f"'{printable(name)}': {answer.note}")
            now = clock.now()
            if answer.holder is None or answer.state == STALE or now >= until:
                return answer
            if now >= notice_at:
                notices.tell(Waiting(name, now - began, answer.holder, len(answer.waiting)))
                gap = next_gap(gap)
                notice_at = now + gap
            if stand(answer, min(until, notice_at)):
                return LockAnswer(name, answer.path, FREE)
    finally:
        notices.end()


def stand(answer: LockAnswer, until: float) -> bool:
    """Wait for its holder. True: it was free; False: time to look again."""
    if answer.kind.startswith(("lease", "session")) or answer.note == LEASED:
        # A store tells nobody who does not ask for the lock; a file with a lease is not opened.
        clock.pause(max(0.0, min(until - clock.now(), PAUSE)))
        return False
    if answer.kind == "pidfile":
        return _end_of_process(answer, until)
    if kinds.is_record(answer.kind) or answer.kind in (soft_readwrite.KIND, "existence"):
        return _change(answer, until)
    if answer.family == "sqlite":
        return _end_of_writer(answer, until)
    fd = _opened(answer.path)
    if fd is None:
        return False
    try:
        if (permits := permits_of(HOST, fd)) is not None:
            return _end_of_slots(answer.path, permits, until)
        shared = any(
            line.kind == FLOCK and not line.waiting and not line.exclusive
            for line in lines_of([key_of(fd)]) or ()
        )
        if answer.kind == "flock":
            alone = shared or not sees_all_locks()
            came = _within(until, lambda: _stand_for_file(fd, alone))
        else:
            came = _within(until, lambda: _stand_for_bytes(fd))
        if came and not _others(fd, answer):
            return True
    finally:
        os.close(fd)
    if came:  # where a file may only be read, who shares its bytes cannot be waited for
        clock.pause(max(0.0, min(until - clock.now(), AGAIN)))
    return False


def _end_of_slots(path: str, permits: int, until: float) -> bool:
    """Of whoever holds slots of a semaphore, one after the other. False: look again."""
    for number in numbers_of(path, permits):
        fd = _opened(slot_path(path, number))
        if fd is None:
            continue
        try:
            _within(until, functools.partial(fcntl.flock, fd, fcntl.LOCK_SH))
        finally:
            os.close(fd)
    clock.pause(max(0.0, min(until - clock.now(), AGAIN)))
    return False


def _opened(path: str) -> int | None:
    """For writing where we may: an exclusive lock of bytes needs that, and some file servers do."""
    for how in (READ_WRITE, READ_ONLY):
        try:
            return HOST.open(path, how)
        except FileNotFoundError:
            return None
        except OSError as error:
            if how == READ_ONLY:
                raise SystemRefused(
                    f"'{printable(path)}' cannot be waited for: {error.strerror}", errno=error.errno
                ) from error
    return None


def _stand_for_file(fd: int, alone: bool) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    except OSError as error:  # of a file server, which wants a descriptor open for writing
        if not alone or error.errno != errno.EBADF:
            raise
        fcntl.flock(fd, fcntl.LOCK_SH)


def _stand_for_bytes(fd: int) -> None:
    """All bytes that programs lock, and not the line of fair askers behind them."""
    writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR
    kind = fcntl.F_WRLCK if writable else fcntl.F_RDLCK
    fcntl.fcntl(fd, F_OFD_SETLKW, struct.pack("hhqqi", kind, os.SEEK_SET, 0, FIRST_BYTE, 0))


def _end_of_writer(answer: LockAnswer, until: float) -> bool:
    """Of whoever keeps others out of an SQLite database, by the bytes that it locks.

    False: look again, since another may write by now.
    """
    for place in databases.to_wait_for(answer.path):
        fd = _opened(place.path)
        if fd is None:
            continue
        try:
            writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR
            kind = fcntl.F_WRLCK if place.exclusive and writable else fcntl.F_RDLCK
            asked = struct.pack("hhqqi", kind, os.SEEK_SET, place.start, place.length, 0)
            _within(until, functools.partial(fcntl.fcntl, fd, F_OFD_SETLKW, asked))
        finally:
            os.close(fd)
    clock.pause(max(0.0, min(until - clock.now(), AGAIN)))
    return False


def _others(fd: int, answer: LockAnswer) -> bool:
    """With the lock in our hand: whether others hold it too, or the path leads elsewhere by now."""
    try:
        if not os.path.samestat(os.fstat(fd), os.lstat(answer.path)):
            return True
    except OSError:
        return True
    shown = [
        line
        for line in lines_of([key_of(fd)]) or ()
        if line.kind in (FLOCK, POSIX, OFD) and not line.waiting and not line.place
    ]
    if len(shown) > 1:  # one is ours
        return True
    if sees_all_locks():
        return False
    return _are_bytes_locked(fd) or (answer.kind != "flock" and bool(how_taken(HOST, answer.path)))


def _are_bytes_locked(fd: int) -> bool:
    try:
        return bytes_in_the_way(fd) is not None
    except OSError:
        return False


def _change(answer: LockAnswer, until: float) -> bool:
    """Of a record that is the lock, or the end of its process. False: look again."""
    ask, watched = Ask(answer.name), answer.path
    if answer.kind in ("generation", "folder"):
        watched += "/"
    elif answer.kind == soft_readwrite.KIND and not os.path.lexists(watched):
        watched += f"{soft_readwrite.SUFFIX}/"  # readers alone are in
    far, pid = is_far(answer.path), (answer.holder and answer.holder.pid_here) or None
    try:
        while (now := clock.now()) < until:  # with one ask: another one is armed, and looks, anew
            end = min(until, now + LOOK_AGAIN)
            finish(BLOCKING.changed(ask, watched, end, blind=far, pid=pid))
            seen = who(answer.name, answer.path, removed=False)
            if seen.holder != answer.holder or seen.state != answer.state:
                break
    finally:
        ask.leave()
    return False


def _end_of_process(answer: LockAnswer, until: float) -> bool:
    """Of the process that a pid file names. False: look again, the file may have changed."""
    owner = answer.holder.owner if answer.holder else None
    left = max(0.0, until - clock.now())
    try:
        if answer.state != HELD or owner is None:
            raise OSError  # a number that proves nothing is not waited for
        fd = os.pidfd_open(owner.pid)
    except (OSError, AttributeError):
        clock.pause(min(PAUSE, left))
        return False
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(min(left, 3600.0) * 1000)
    finally:
        os.close(fd)
    return False


# ---- a system call that ends in time; the command has no other use for SIGALRM

_armed = False


def _within(until: float, call: Callable[[], object]) -> bool:
    """Whether `call()` came to its end before `until`."""
    global _armed
    left = until - clock.now()
    if left <= 0:
        return False
    before = signal.signal(signal.SIGALRM, _ring)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})  # our caller's, by exec
    try:
        _armed = True
        signal.setitimer(signal.ITIMER_REAL, min(left, 1e8), AGAIN)
        call()
        _armed = False
        return True
    except _Alarm:
        return False
    finally:
        _armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, before)


def _ring(number: int, frame: object) -> None:
    global _armed
    if _armed:
        _armed = False
        raise _Alarm
