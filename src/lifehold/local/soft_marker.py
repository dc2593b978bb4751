"""The two records of a soft reader/writer lock: a reader's marker, and a claim that waits.

Rule: a marker's name is random and never used twice, so what is judged under a name is what is
removed under it (L3). A reader draws no token: it carries that of the last writer (L4).
"""

from __future__ import annotations

import errno

from ..core.deadline import NEVER
from ..core.grant import Grant, Holder
from ..core.liveness import DEAD
from . import content
from .anew import hand_back
from .counter import LENGTH, counter_of, stored_in
from .files import READ_ONLY
from .ground import is_far
from .soft import SoftLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .paper import Paper

KIND = "soft-read-write"
SUFFIX = ".readers"  # the folder of their markers, beside the claim
FRONT, ASKS = "r.", "w."  # of a reader's name, of one's who waits; and 128 random bits


def is_marker(name: str, front: str = FRONT) -> bool:
    """Whether an entry of that folder is a reader's record."""
    return name.startswith(front) and len(name) == 34 and not name[2:].strip("0123456789abcdef")


class Marker(SoftLock):
    """A reader's record. Its name is its nonce's: nobody else ever posts there.

    `lasting`: its path, while `path` leads there through the open folder.
    """

    writer = lasting = ""

    def posted(self) -> Grant | None:
        """The grant. None: its name was swept, or over NFS it looks as if it were not there."""
        answer = self._publish()
        return answer if isinstance(answer, Grant) else None

    def _enter(self, ours: Paper, sent_at: float) -> Grant:
        token = generation(self.files, self.writer, ours.fresh)
        reason = None if token else content.SHARED_REASON
        deadline = None if self.terms is None else self.terms.deadline(sent_at)
        now = self.files.clock_ns()
        if ours.fresh:
            hand_back(self.files, ours.fd)
        key = (KIND, self.writer)
        self.path = ours.posted = self.lasting or self.path
        grant = Grant(self.path, ours.nonce, token, reason, now, key, [ours], deadline)
        ours.granted = True
        return grant


def generation(files: Any, path: str, far: bool = False) -> int | None:
    """The token that the last writer drew; None before the first. `far`: on a file server."""
    try:
        fd = files.open(counter_of(path), READ_ONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ELOOP):
            return None
        raise
    try:
        token = stored_in(files.pread(fd, LENGTH, 0), path)
        if far:
            hand_back(files, fd)  # the next writer writes into it
    finally:
        files.close(fd)
    return token or None


class Claim:
    """A record that is kept while its owner waits.

    A writer's claim while readers are still in, the marker of a reader that waits for a writer.
    `at`: what is to change, "" for the claim that is there; `due`: when time alone may change it.
    """

    __slots__ = ("at", "due", "grant", "renew_at", "terms")

    def __init__(self, grant: Grant, terms: Any, now: float) -> None:
        self.grant, self.terms, self.at, self.due = grant, terms, "", NEVER
        self.renew_at = NEVER if terms is None else now + terms.heartbeat

    def sure(self, now: float) -> bool:
        """L8  Whether it is still ours for sure."""
        return self.grant.deadline is None or now < self.grant.deadline

    def renewed(self, grant: Grant, now: float) -> None:
        self.grant, self.renew_at = grant, now + self.terms.heartbeat


class Questions:
    """What can be asked of a soft reader/writer lock without holding it."""

    path: str
    folder: str
    exclusive: bool
    files: Any
    claim: SoftLock
    _marker: Callable[[str], Marker]

    @property
    def watched(self) -> tuple[str, Callable[[], bool]]:
        """What tells of a loss when it changes, and whether events of that do not reach us."""
        return (self.path if self.exclusive else f"{self.folder}/"), self.far

    def far(self) -> bool:
        """Whether its calls may wait for a file server."""
        return is_far(self.path)

    def taken(self) -> bool:
        """Whether anybody reads or writes; the dead are nobody."""
        holder = self.inspect()
        return holder is not None and holder.alive != DEAD

    def inspect(self, *, held: bool = False) -> Holder | None:
        """The writer, or one of the readers."""
        found = self.claim.inspect(held=held)
        if found is not None:
            return found
        try:
            names = list(filter(is_marker, self.files.listdir(self.folder)))
        except OSError:
            return None
        readers = (self._marker(f"{self.folder}/{name}").inspect(held=held) for name in names)
        return next((reader for reader in readers if reader is not None), None)
