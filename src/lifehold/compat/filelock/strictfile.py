"""The mechanism of `StrictSoftFileLock`: a doorway of claims, with which no death is ever inferred.

Promise: at most one holder, among ours and filelock's on the same path, on any file system with
hard links. Nobody's claim is ever removed but by its owner, or by order: who is killed leaves a
lock that stays until `force_break()`.

Acquire   Look: any claim, and it is held. Publish an intent with a random token. Look again: a held
          claim, or a smaller token than ours, and we withdraw. Link our intent to a held claim, and
          keep both. Look a last time: both are there, and no smaller token: the lock is ours.
Release   Unlink the held claim, then the intent.

How it could fail, and what keeps it:
- Two publish at once: both intents are there before either looks again; the smaller one stays.
- A look that runs beside the making of a held claim may miss it; the intent beside it was there
  before, so every look lists it.
- An owner of a soft lock's file at the path is met by the sentinel that has to stand there, and
  which reads as nobody's soft lock to anybody: who wants the one cannot have the other.
- A name over NFS may be a client's memory: each claim is asked of the server by a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from ...core.grant import Grant, Held, Holder, Lost
from ...core.liveness import DEAD, UNKNOWN
from ...core.owner import Owner
from ...local.ground import is_far
from ...local.hint import NO_HINT, Hint
from ...local.presence import OF_PARENT, RELEASED
from ...runtime import fork
from . import pollers, whose
from .claims import (
    Claims,
    claim_name,
    is_of_ours,
    new_token,
    parts_of,
    record,
    without_links,
)
from .errors import SoftFileLockProtocolError, tell_path
from .folder import NotAFolder
from .private import Reclaimed, published
from .strictlook import StrictLook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...core.acquire import Ask

NO_TOKEN = "the claims of filelock's protocol have no room for a token"  # noqa: S105
GONE = "its claims were removed: others may be in"


class Claim:
    """Ours: the sentinel's open file, and the names that are to go."""

    __slots__ = ("claims", "fd", "generation", "names", "slot")

    def __init__(self, slot: Any, claims: Claims) -> None:
        self.slot, self.fd, self.generation = slot, slot.fd, fork.generation
        self.names: list[str] = []
        self.claims = claims

    def withdraw(self) -> None:
        """Remove what is ours; what cannot be removed stays in `names`, and raises OSError."""
        failed: list[Exception] = []
        for name in list(self.names):
            try:
                self.claims.removed(name)
            except FileNotFoundError:
                self.names.remove(name)
            except NotAFolder as error:
                failed.append(OSError(errno.ENOTDIR, str(error), error.where))
            except OSError as error:
                failed.append(error)
            else:
                self.names.remove(name)
        if len(failed) > 1:
            raise BaseExceptionGroup("strict claim release failed", failed)
        if failed:
            raise failed[0]

    _ending = staticmethod(sys.is_finalizing)

    def __del__(self) -> None:
        """L6  What an exception between two bytecodes drops."""
        if self.names and not self._ending() and self.generation == fork.here():
            with contextlib.suppress(Exception):
                self.withdraw()


class Claimants(pollers.Met):
    """A strict lock that another program claims now and then."""

    def __init__(self, path: str, where: str) -> None:
        super().__init__(path)
        self._where = where

    def looked(self) -> bool:
        """Whether a claim of another program's is there."""
        try:
            parts = [parts_of(name) for name in os.listdir(self._where)]
        except OSError:
            return False
        return any(part is not None and not is_of_ours(part[1]) for part in parts)


class StrictFile(StrictLook):
    """The mechanism of one path."""

    exclusive, safety, terms = True, 1.0, None

    def __init__(
        self, path: str, lock_file: str, runtime: Any, table: Any, mode: int, *,
        claims: Claims | None = None, words: Any = record,
    ) -> None:  # fmt: skip
        self.path, self.runtime, self.table, self.files = path, runtime, table, table.files
        self.label, self.mode, self.lock_file = "", mode, lock_file
        self.claims = claims or Claims(lock_file, path, self.files)
        self.words = words  # the record of a claim of ours
        self._seen: Any = None
        self.left: list[Claim] = []  # of ours, whose removal has failed
        self._near: bool | None = None

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return is_far(self.path)

    # ---- one try

    async def try_acquire(self, ask: Ask) -> Grant | Held:
        return self.attempt()

    def attempt(self) -> Grant | Held:
        """One try that does not wait. Raises OSError."""
        try:
            return self._tried()
        except OSError as error:
            tell_path(error, self.path)
            raise

    def _tried(self) -> Grant | Held:
        if self._near is None:
            self._near = not self.far()
            self.claims.table = self.table if self._near else None
        self._withdraw_left()
        try:
            self.claims.make(self.mode | (self.mode & 0o444) >> 2, self._settled)
        except NotAFolder as error:
            raise SoftFileLockProtocolError(self.lock_file, None, str(error)) from error
        sentinel, due = self._sentinel()
        if sentinel is None:
            return Held("a soft lock's owner is at its path", hint=Hint(due))
        ours = Claim(sentinel, self.claims)
        try:
            if self._through_the_door(ours):
                now = self.files.clock_ns()
                mark = os.urandom(8).hex()
                return Grant(self.path, mark, None, NO_TOKEN, now, sentinel.key, [ours])
        except BaseException:
            self._given_up(ours)
            raise
        self._given_up(ours)
        return Held("another claim is there")

    def _settled(self, fd: int, found: os.stat_result) -> None:
        """Narrow, and sticky: nobody else may remove our claims."""
        mode = self.mode | (self.mode & 0o444) >> 2
        right = found.st_mode & 0o7000 | found.st_mode & mode & 0o777 | stat.S_ISVTX
        if found.st_uid == os.geteuid() and right != stat.S_IMODE(found.st_mode):
            os.fchmod(fd, right)

    def _withdraw_left(self) -> None:
        """What could not be removed last time. Each is taken by one thread."""
        while self.left:
            ours = self.left.pop()
            try:
                ours.withdraw()
            except BaseException:
                self.left.append(ours)
                raise

    def _look(self, ours: Iterable[str] = ()) -> list[Any]:
        found = self.claims.seen(tidy=True, proven=not self._near, ours=ours)
        if self._near and not all(is_of_ours(each.token) for each in found):
            pollers.met(self.path, lambda: Claimants(self.path, self.claims.where))
        return found

    def _through_the_door(self, ours: Claim) -> bool:
        if self._look():
            return False
        token = new_token()
        intent, held = claim_name("intent", token), claim_name("held", token)
        ours.names = [intent]
        try:
            with self.claims.entered() as room:
                published(room, intent, self.words(token), self.mode)
        except Reclaimed:
            return False
        except FileExistsError:
            ours.names = []  # another's
            return False
        except OSError as error:
            raise without_links(self.lock_file, error) or error from None
        if not self._is_first(intent):
            return False
        ours.names = [held, intent]
        try:
            with self.claims.entered() as room:
                room.linked(intent, held)
        except OSError as error:
            if isinstance(error, FileExistsError):
                ours.names = [intent]
            raise without_links(self.lock_file, error) or error from None
        return self._stands(ours, token)

    def _is_first(self, intent: str) -> bool:
        """Whether our intent is the smallest, and none is held."""
        found = self._look((intent,))
        names = [claim.name for claim in found]
        return bool(names) and min(names) == intent and all(each.state != "held" for each in found)

    def _stands(self, ours: Claim, token: str) -> bool:
        """The last look: both of ours are there, and nobody's is smaller."""
        found = self._look(ours.names)
        both = set(ours.names) <= {claim.name for claim in found}
        return both and min(claim.token for claim in found) == token

    def _given_up(self, ours: Claim) -> None:
        try:
            ours.withdraw()
        except BaseException:
            self.left.append(ours)
            raise
        finally:
            ours.slot.close()

    # ---- waiting, the end, and questions

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Sleep until a claim goes, then one try."""
        hint: Hint = ask.slot or NO_HINT  # of this waiter: another thread's is another
        limit = min(until, hint.due, self.runtime.now() + self.safety)
        await self.runtime.changed(ask, self.claims.where, limit, blind=self.far())
        answer = self.attempt()
        ask.slot = answer.hint if isinstance(answer, Held) else None
        return answer

    def drop(self, grant: Grant) -> Lost | None:
        """Let go. Raises OSError when a claim stays: the lock is then still held."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        there = self.check(grant)
        ours.withdraw()
        grant.handle.clear()
        ours.slot.close()
        return there

    async def release(self, grant: Grant) -> Lost | None:
        return self.drop(grant)

    def check(self, grant: Grant) -> Lost | None:
        """Whether both claims of ours are there."""
        ours = next(iter(grant.handle), None)
        if ours is None:
            return Lost(RELEASED)
        if ours.generation != fork.here():
            return Lost(OF_PARENT)
        try:
            with self.claims.entered() as room:
                there = all(room.key_at(name) is not None for name in ours.names)
        except (OSError, NotAFolder):
            there = False
        return None if there else Lost(GONE, gone=True)

    def inspect(self, *, held: bool = False) -> Holder | None:
        try:
            found = self.claims.seen(tidy=False, proven=False)
            if not found:
                return None
        except OSError as error:
            return Holder(evidence=str(error))
        first = min(found, key=lambda claim: (claim.state != "held", claim.token))
        named = whose.Named(first.pid, first.hostname, first.start)
        seen = whose.verdict(named, None, not self.far())
        lock = f"{self.path} (strict soft lock of filelock's format)"
        owner = Owner(first.pid, host=first.hostname)
        state = UNKNOWN if seen.state == DEAD else seen.state  # a claim stays whoever is dead
        return Holder(owner, None, state, seen.evidence, lock=lock)
