"""What a soft lock's file is taken for: who holds it, and when time alone may change that.

L2  What cannot be decided is UNKNOWN. What nobody can read is left alone for as long as it changes,
    and some time more on our own clock; an empty file, a strict lock's and one of lifehold's own
    kinds for ever.
"""

from __future__ import annotations

from typing import Any

from ...core.deadline import NEVER
from ...core.grant import Holder
from ...core.owner import ALIVE, DEAD, UNKNOWN, Owner, Verdict
from ...local import record as form
from ...local.ground import place_at
from ...local.record_handle import look
from ...local.record_lock import Presence
from ...runtime import process
from . import pollers, whose
from .slip import Slip

AGE, LONGEST_NUMBER = 300.0, 10  # liblockfile's seconds without a touch; digits of a process
MALFORMED = 2.0  # seconds for which what cannot be read is left alone, while it stays as it is


class SoftLook(Presence):
    """The questions of `SoftFile`. `lifetime`: seconds of a file's age, None for any."""

    lifetime: float | None = None
    _place: Any = None
    words: Any = whose
    _seen: tuple[Any, float] | None = None

    def _judged(self, found: Slip) -> tuple[bytes, Verdict]:
        content: bytes = self.files.first(found.fd, whose.LONGEST + 1)
        one_kernel = (self._place or place_at(found)).one_kernel
        named = whose.read(content)
        if not content:
            return content, Verdict(UNKNOWN, "an owner that recorded no process")
        if content == whose.STRICT:
            return content, Verdict(UNKNOWN, "a StrictSoftFileLock")
        if content.startswith(form.MAGIC):
            return content, Verdict(UNKNOWN, "a lock of lifehold's own kinds")
        witness = found.asked() if one_kernel else None
        if named is not None and one_kernel and not named.witness:
            pollers.met(self.path)
        if named is None:
            return content, Verdict(UNKNOWN, "it cannot be read as a record")
        return content, self.words.verdict(named, witness, one_kernel)

    def _due(self, found: Slip, content: bytes) -> float | None:
        """When time alone permits to replace it; None for never."""
        if content.startswith(form.MAGIC):
            return None
        state = self.files.fstat(found.fd)
        found.stamp = state.st_mtime
        now, due = self.runtime.now(), NEVER
        if self.lifetime is not None:  # filelock's rule: the wall clock, against a live holder too
            due = now + self.lifetime - (self.files.clock_ns() / 1e9 - state.st_mtime)
        if whose.read(content) is None and not self._kept(content):
            due = min(
                due, self._unchanged_since(found, state, now) + self._patience(found, content)
            )
        return None if due == NEVER else due

    def _patience(self, found: Slip, content: bytes) -> float:
        """Seconds for which what cannot be read is left alone while it stays as it is.

        L2  filelock's own rule counts for what filelock may have written. A number alone is what
        liblockfile and dotlockfile write, and theirs counts: by the process, else by age.
        """
        line = content[:-1]
        if not (content.endswith(b"\n") and line.isdigit() and len(line) <= LONGEST_NUMBER):
            return MALFORMED
        if not int(line):
            return AGE
        one_kernel = (self._place or place_at(found)).one_kernel
        named = whose.Named(int(line), self.words.host_name())
        state = self.words.verdict(named, None, one_kernel).state
        return {DEAD: MALFORMED, ALIVE: NEVER}.get(state, AGE)

    def _unchanged_since(self, found: Slip, state: Any, now: float) -> float:
        """When we first saw it as it is, on our own clock."""
        key = found.key, state.st_mtime_ns, state.st_ctime_ns
        if self._seen is None or self._seen[0] != key:
            self._seen = key, now
        return self._seen[1]

    def _kept(self, content: bytes) -> bool:
        """Whether it is left alone for ever, though nobody can read it as a record."""
        return content in (b"", whose.STRICT) or content.startswith(whose.SECOND)

    def inspect(self, *, held: bool = False) -> Holder | None:
        try:
            found: Any = look(self.table, self.path, write=False, kind=Slip)
            if found is None:
                return None
            try:
                content, case = self._judged(found)
                since = self.files.fstat(found.fd).st_mtime
            finally:
                found.close()
        except OSError as error:
            return Holder(evidence=f"its file cannot be read: {error.strerror}")
        named = whose.read(content)
        lock = f"{self.path} (soft lock of filelock's format)"
        if named is None:
            return Holder(None, since, case.state, case.evidence, lock=lock)
        owner = Owner(named.pid, host=named.host)
        if case.state == ALIVE and self._near(named):
            owner = process.owner_of(named.pid)
        return Holder(owner, since, case.state, case.evidence, lock=lock)

    def _near(self, named: whose.Named | None) -> int | None:
        """A process number whose end can be told to us."""
        near = named is not None and named.host == self.words.host_name()
        return named.pid if near and named is not None else None


def breaker(content: bytes) -> int:
    """Whom filelock's placeholder names, which one of it leaves at a path while at work; or 0."""
    word, _, number = content.partition(b"\n")
    number = number.removesuffix(b"\n")
    return int(number) if word == b"filelock/break" and number.isdigit() else 0
