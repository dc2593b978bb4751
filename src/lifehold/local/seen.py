"""A record that is looked at through a descriptor which somebody else closes: what a judge asks."""

from __future__ import annotations

from .files import LOCK_NB, LOCK_SH, LOCK_UN
from .marker import SIZE
from .refusals import no_flock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

    from .files import Files


class Seen:
    """An open record. `by_touch`: whether its times tell that it was renewed, as liblockfile's."""

    __slots__ = ("by_touch", "dev", "fd", "files", "ino", "key")

    def __init__(self, files: Files, fd: int, *, by_touch: bool = False) -> None:
        found = files.fstat(fd)
        self.files, self.fd, self.by_touch = files, fd, by_touch
        self.dev, self.ino = found.st_dev, found.st_ino
        self.key: Hashable = (found.st_dev, found.st_ino)

    def read(self) -> bytes:
        """Its content."""
        return self.files.pread(self.fd, SIZE, 0)  # type: ignore[no-any-return]

    def touched(self) -> int:
        """What a touch changes."""
        return getattr(self.files.fstat(self.fd), "st_mtime_ns", 0) if self.by_touch else 0

    def has_witness(self) -> bool | None:
        """Whether somebody who lives locks it; None where nothing can be locked.

        Tried shared, and let go at once: judges do not meet.
        """
        try:
            self.files.flock(self.fd, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in no_flock:
                return None
            raise
        self.files.flock(self.fd, LOCK_UN)
        return False
