"""The results of one `once` in a store: kept under the name itself, by the token of who ran it.

Promise: as of a folder of results (once_shelf.py): a result is seen whole or not at all; a run that
has lost its lease never puts its result over that of a later one. Rule: the store keeps a text only
for who holds the name at that very step, so a late writer is refused by the store itself.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

from ..core.errors import SystemRefused
from ..core.storage import keeps
from ..registry import store_at
from ..runtime import fork
from ..store.site import checked, decoded
from .once_run import superseded
from .once_shelf import Listing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.storage import State

LIMIT = 1 << 20  # bytes of a result: a store is no place for files


class StoreShelf:
    """What a name of a store has kept. Used as a `Shelf` is."""

    def __init__(self, url: str) -> None:
        where, _, name = url.partition("#")
        self._site: Any = store_at(where)
        self._name = checked(decoded(name))
        self.path = self._site.address(self._name)

    def _state(self) -> State | None:
        return self._site.state(self._name)  # type: ignore[no-any-return]

    def listing(self) -> Listing:
        """The number of the latest result: the token of its run."""
        state = self._state()
        return Listing(dones=(state.kept[0],)) if state and state.kept else Listing()

    def read(self) -> tuple[int, bytes] | None:
        """(number, content) of the latest result; None when there is none."""
        state = self._state()
        if state is None or state.kept is None:
            return None
        token, text = state.kept
        return token, base64.b64decode(text)

    def begin(self, token: int, check: Callable[[], None]) -> StoreRun:
        """The run of a grant."""
        return StoreRun(self, token, self.listing().latest)

    def keep(self, token: int, content: bytes) -> None:
        """Leave a result. Raises LeaseLost when its run does not hold the name any more."""
        if len(content) > LIMIT:
            raise SystemRefused(
                f"{self.path!r}: a result of {len(content):,} bytes is too large to be kept in a "
                f"store, {LIMIT:,} at most: keep it in a file, and return its path",
                name=self.path,
            )
        text = base64.b64encode(content).decode()
        before = self._site.order("keep", self._name, "", token, text)
        if before is None or not keeps(before, token):
            raise superseded(self.path)

    def forget(self) -> int:
        """Remove what is kept; how many results there were."""
        before: State | None = self._site.order("forget", self._name, "")
        return 1 if before is not None and before.kept is not None else 0

    # ---- the output of a command, which is a part of its result here

    def spool(self, number: int) -> int:
        """A file without a name for the output of a run, open."""
        tempfile: Any = fork.lazily("tempfile")
        with tempfile.TemporaryFile(buffering=0) as file:
            fd = os.dup(file.fileno())
        fcntl: Any = fork.lazily("fcntl")
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        return fd

    def output(self, number: int, content: bytes) -> int:
        """The output of a result, open at its begin."""
        fd = self.spool(number)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def with_output(self, fd: int, size: int) -> bytes:
        """What is published of an output."""
        return os.pread(fd, min(size, LIMIT + 1), 0)


class StoreRun:
    """One run, from its begin to `publish` or `withdraw`. `latest`: the result at its begin."""

    def __init__(self, shelf: StoreShelf, number: int, latest: int) -> None:
        self.shelf, self.number, self.latest, self.published = shelf, number, latest, False

    def publish(self, content: bytes) -> None:
        """Make this the latest result. Raises LeaseLost, StoreUnavailable."""
        self.shelf.keep(self.number, content)
        self.published = True

    def withdraw(self) -> None:
        """Nothing of it was left."""
