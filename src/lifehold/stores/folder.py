"""What both faces of a store in files share: its folder, its options, and what can be asked.

Rule: a lock of a store is the lock at the path that its URL names (local/lock_names.py). So
`Lock(path)`, `Lock(url)`, the command and a store are always speaking of the same lock.
"""

from __future__ import annotations

import os

from ..core.errors import InvalidArgument, SystemRefused
from ..core.value import value
from ..local import lock_names
from ..local.ground import ground_of
from ..registry import choose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What stands beside a lock: its last token, its readers, who was broken.
BESIDE = frozenset({"token", "readers", "audit"})


@value
class Ground:
    """What the locks of a store stand on.

    `file_system`: its type, "" if unknown; `one_kernel`: whether one machine alone can mount it, so
    that the death of a holder can be proven at once; `kind`, `ttl`: of locks that name none;
    `words`: all that, for people.
    """

    file_system: str
    one_kernel: bool
    kind: str
    ttl: float | None
    words: str

    def __str__(self) -> str:
        return self.words


class Folder:
    """A store in files. `FileStore` and `AsyncFileStore` add how its locks are used."""

    __slots__ = ("folder", "kind", "label", "shared", "ttl", "url")

    def __init__(
        self,
        url: str,
        *,
        kind: str = "auto",
        ttl: float | None = None,
        label: str = "",
        shared: bool = False,
    ) -> None:
        if "#" in url:
            raise InvalidArgument(
                f"a store is named without a lock: {url.partition('#')[0]!r}; give the name to its "
                "lock(), or the whole URL to Lock()"
            )
        self.folder = lock_names.folder_of(url)
        self.url = lock_names.url_of(self.folder)
        self.kind, self.ttl, self.label, self.shared = kind, ttl, label, shared

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def address(self, name: str) -> str:
        """The URL of a lock: what `Lock` and the command take for it. Raises InvalidArgument."""
        lock_names.file_of(name)
        return f"{self.url}#{name}"

    def path(self, name: str) -> str:
        """The file of a lock."""
        return os.path.join(self.folder, lock_names.file_of(name))

    def _options(self, given: dict[str, Any], *, leased: bool = True) -> dict[str, Any]:
        """The store's own, under those of the call."""
        usual: dict[str, Any] = {"label": self.label, "shared": self.shared}
        if leased:
            usual["kind"] = self.kind
            if self.ttl is not None:
                usual["ttl"] = self.ttl
        if "mode" in given:
            del usual["shared"]
        return usual | given

    def _listed(self, prefix: str) -> list[str]:
        """The names of all locks that were ever taken here, in order."""
        try:
            with os.scandir(self.folder) as entries:
                files = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SystemRefused(
                f"{self.folder!r} cannot be listed: {error.strerror}",
                errno=error.errno,
                filename=self.folder,
            ) from error
        names = {
            name for file in map(_lock_of, files) if (name := lock_names.name_of(file)) is not None
        }
        return sorted(name for name in names if name.startswith(prefix))

    def _ground(self) -> Ground:
        try:
            place = ground_of(self.folder)
        except OSError as error:
            raise SystemRefused(
                f"{self.folder!r} cannot be looked at: {error.strerror}",
                errno=error.errno,
                filename=self.folder,
            ) from error
        kind, ttl = self.kind, self.ttl
        if kind == "auto":
            kind, ttl = choose(self.path("x"), ttl)
        proof = (
            "one machine alone can mount it: a dead holder is proven dead at once"
            if place.one_kernel
            else "other machines may mount it: only a lease that has run out frees a dead holder's "
            "lock, and whether the file system excludes between machines is unproven from here"
        )
        lease = "no lease" if ttl is None else f"leases of {ttl:g} s"
        words = f"{self.folder} on {place.kind or 'an unknown file system'}; {proof}; "
        return Ground(place.kind, place.one_kernel, kind, ttl, f"{words}kind {kind}, {lease}")


def _lock_of(file: str) -> str:
    """The lock that a file stands beside: it stays when the lock itself is let go of."""
    front, dot, end = file.rpartition(".")
    return front if dot and end in BESIDE else file
