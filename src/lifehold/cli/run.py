"""`lifehold run`: hold a lock while a command runs.

Promise: the lock is never free beside a running CMD, whichever of the processes is killed; CMD's
own exit code, output and input are left alone; who does not get the lock is told who has it.
Rule: CMD holds the lock itself, by inheriting the open file (cli/child.py); with -o a supervisor
does (cli/supervise.py). When CMD has been reaped the wrapper unlocks by hand, so that a process
which CMD left behind does not go on holding the lock; only if the wrapper was killed before, it
does.
"""

from __future__ import annotations

import os

from ..core import acquire as waiting
from ..core import around
from ..core.errors import LeaseLost, NotAcquired, SystemRefused, WouldBlock
from ..face import refusal
from ..local import places
from ..lock import Lock
from ..runtime import clock, fork
from . import exits
from .child import GRACE, CannotStart, attend, spawn
from .inbox import Inbox
from .options import RUN, Usage, arguments
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.events import Waiting
    from ..lock import Lease


class CommandLock(Lock):
    """A lock called by what the user typed, which tells who waits on stderr instead of in a log."""

    __slots__ = ("notices",)

    def __init__(self, typed: str, address: places.Address, given: dict[str, Any]) -> None:
        super().__init__(
            address.path, wait=given["wait"], label=given["label"], exclusive=given["exclusive"],
            shared=address.shared,
        )  # fmt: skip
        self._name = typed
        self.notices: Any = None  # made when there is something to tell, which is rare

    @property
    def _target(self) -> str:
        return self._name

    def _tell_waiting(self, told: Waiting) -> None:
        if self.notices is None:
            live: Any = fork.lazily("lifehold.cli.live")
            far = self._mechanism.far()
            self.notices = live.Notices(None if far else lambda: waiting.look(self._mechanism))
        self.notices.tell(told)


def run(words: list[str]) -> int:
    """The exit code of `lifehold run WORDS`."""
    given, (name, *command) = arguments(RUN, words)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        raise Usage(f"no command to run\nusage: {RUN.usage}")
    if not command[0]:
        raise Usage(f"CMD is empty: an unset variable?\nusage: {RUN.usage}")
    if not hasattr(os, "posix_spawnp"):
        raise SystemRefused("`lifehold run` needs Unix; here use lifehold.Lock from Python")
    address = places.address(name)
    if address.doubles:
        say(doubles_text(name, address))
    places.make_folder(address.path)
    lock = CommandLock(name, address, given)
    try:
        lease = acquire(lock)
    except NotAcquired as error:
        say(error.text, prefix="")
        return int(given["conflict"])
    return hold(lease, command, close=given["close"])


def acquire(lock: CommandLock) -> Lease:
    """The lease. Raises NotAcquired, at once when only the end of ourselves could free the lock."""
    outer = ancestor_of(lock.path)
    if outer is not None:
        try:
            return lock.acquire(wait=0)
        except WouldBlock:
            if still_held(outer, lock):
                raise nested(lock) from None
    asked_at = clock.now()
    try:
        lease = lock.acquire()
    finally:
        if lock.notices is not None:
            lock.notices.end()
    if lock.notices is not None:
        words = explain()
        say(f"'{words.printable(lease.name)}' is ours after {words.span(clock.now() - asked_at)}")
    return lease


def hold(lease: Lease, command: list[str], *, close: bool) -> int:
    """Run CMD under the lease, and let go. The exit code."""
    environment = environment_of(lease)
    inbox = Inbox()
    lost: list[str] = []

    def why_stop() -> str | None:
        try:
            lease.check()
        except LeaseLost as error:
            return error.text
        return None

    def stopping(reason: str) -> None:
        lost.append(reason)
        say(f"{reason}\nlifehold: stopping {command[0]!r}: TERM now, KILL after {GRACE:g} s")

    try:
        if close:
            from .supervise import run_supervised

            code = run_supervised(command, environment, lease.fileno(), inbox, why_stop, stopping)
        else:
            child = spawn(command, environment, lease.fileno(), inbox)
            code = attend(child, inbox, why_stop, stopping)
    except CannotStart as refused:
        say(str(refused))
        code = refused.code
    try:
        lease.release()
    except LeaseLost as error:
        if not lost:
            say(f"{error.text}; {command[0]!r} had ended with {code} when that was noticed")
        return exits.LOST if lost or code == 0 else code
    if code == exits.SIGNAL + 2 and was_interrupted(inbox):
        raise KeyboardInterrupt  # CMD ended by Ctrl-C, and so do we
    return code


def was_interrupted(inbox: Inbox) -> bool:
    """Whether Ctrl-C was typed, also if its message still waits behind that of CMD's end."""
    while not inbox.interrupted and inbox.next(0):
        pass
    return inbox.interrupted


def environment_of(lease: Lease) -> dict[str, str]:
    """What CMD finds in its environment."""
    environment = dict(os.environ)
    outer = environment.get(around.VARIABLE, "")
    environment["LIFEHOLD_NAME"] = lease.name
    environment["LIFEHOLD_LOCK"] = lease.path
    environment["LIFEHOLD_NONCE"] = lease.nonce
    environment["LIFEHOLD_TOKEN"] = "" if lease.token is None else str(lease.token)
    environment[around.VARIABLE] = around.added(outer, lease.nonce, lease.path)
    return environment


# ---- a lock that the run around us holds ------------------------------------------------------


def ancestor_of(path: str) -> around.Around | None:
    """The entry of LIFEHOLD_HELD for the file at `path`, under whatever name it is reached."""
    text = os.environ.get(around.VARIABLE)
    for outer in around.parse(text) if text else ():
        if outer.path == path or _same_file(outer.path, path):
            return outer
    return None


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def still_held(outer: around.Around, lock: CommandLock) -> bool:
    """Whether what holds the lock is the grant named in LIFEHOLD_HELD.

    Nothing in the file tells a grant without a record from another: then the environment is
    believed. A wrong belief is an error at once; the other, a hang.
    """
    holder = lock.holder()
    return holder is not None and holder.nonce in (None, outer.nonce)


def nested(lock: CommandLock) -> NotAcquired:
    why = (
        "the `lifehold run` around this command holds it, until this command has ended: to wait "
        "would be to wait for ever"
    )
    remedy = "run the inner command without `lifehold run`, or under another name"
    return refusal(WouldBlock, lock._name, lock._mechanism, why, None, following=[remedy])


def doubles_text(name: str, address: places.Address) -> str:
    quote = explain().quote
    others = " and ".join(quote(path) for path in address.doubles)
    return (
        f"'{name}' exists in more than one folder, and these locks do not exclude each "
        f"other: using {quote(address.path)}, not {others}. Give all jobs the same "
        "LIFEHOLD_DIR, or remove the file that nobody uses"
    )


def explain() -> Any:
    """The module of our texts. A run that gets its lock needs none: importing it takes 2 ms."""
    return fork.lazily("lifehold.core.explain")
