"""A lock that is a folder of numbered records: how these are named, opened, looked at.

What `generation` stands on. A file server is asked anew for the names in the folder (anew.py), and
for the file by a fresh open(2); a disk of our own kernel by lstat(2).
"""

from __future__ import annotations

from stat import ST_DEV, ST_INO

from ..core.grant import Lost
from .files import READ_ONLY
from .marker import RELEASED, VOID
from .numbered import listed, name_of
from .present import Present
from .seen import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

    from .evidence import Judged
    from .stake import Stake


class Numbered(Present):
    """What is asked of the folder at `path`."""

    @property
    def at(self) -> str:
        return f"{self.path}/"

    def _gone(self, stake: Stake) -> Lost | None:
        """Two looks: at the next number, which only a successor makes, and at our own."""
        try:
            if not self.near:
                self.files.anew(self.path)
            self.files.lstat(self._name(stake.number + 1))
            return Lost("it was taken over: others may be in", gone=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            return Lost(f"its folder cannot be looked at any more ({error.strerror})", gone=True)
        try:
            found = self.files.lstat(self._name(stake.number))
        except OSError:
            return Lost("its record was removed: others may be in", gone=True)
        if (found[ST_DEV], found[ST_INO]) != stake.key:
            return Lost("its record was replaced by another: others may be in", gone=True)
        return None

    # ---- names

    def _name(self, number: int) -> str:
        return f"{self.path}/{name_of(number)}"

    def _open(self, number: int) -> int | None:
        """A descriptor of its own for each look, which asks the server what is in the file."""
        try:
            fd: int = self.files.open(self._name(number), READ_ONLY)
        except FileNotFoundError:
            return None
        return fd

    def _key_of(self, fd: int) -> tuple[int, int]:
        found = self.files.fstat(fd)
        return found[ST_DEV], found[ST_INO]

    def _leads(self, number: int, key: Hashable) -> bool | None:
        """Whether a number leads to this very file; None when there is no such number.

        A file server is asked anew: its client opens what it remembers.
        """
        if self.near:
            try:
                found = self.files.lstat(self._name(number))
            except FileNotFoundError:
                return None
            return bool((found[ST_DEV], found[ST_INO]) == key)
        self.files.anew(self.path)
        fd = self._open(number)
        if fd is None:
            return None
        try:
            same = self._key_of(fd) == key
        finally:
            self.files.close(fd)
        return same

    def _forget(self, aside: str) -> None:
        try:
            self.files.unlink(aside)
        except FileNotFoundError:
            pass

    def _look(self) -> Judged | None:
        numbers, _ = listed(self.files, self.path) or ([], [])
        fd = self._open(numbers[-1]) if numbers else None
        if fd is None:
            return None
        try:
            case = self.judged(self._name(numbers[-1]), Seen(self.files, fd))
            return None if case.marker.stage in (RELEASED, VOID) else case
        finally:
            self.files.close(fd)
