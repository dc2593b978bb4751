"""Families whose lock is the kernel's, on a file of theirs: the file is never to be removed."""

from __future__ import annotations

from ..foreign_verdict import Family, LockPath, StatedHolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _ending(*tails: str) -> Callable[[LockPath], StatedHolder | None]:
    """Who knows a file by the end of its path."""
    ends = tuple(f"/{tail.lstrip('/')}" for tail in tails)

    def read(sight: LockPath) -> StatedHolder | None:
        return StatedHolder() if sight.path.endswith(ends) and sight.is_file else None

    return read


def _sqlite(sight: LockPath) -> StatedHolder | None:
    return StatedHolder() if sight.content.startswith(b"SQLite format 3\0") else None


FAMILIES = (
    Family(
        "dpkg",
        "a lock of dpkg",
        _ending("dpkg/lock", "dpkg/lock-frontend", "dpkg/triggers/Lock"),
        kernel=True,
    ),
    Family(
        "apt",
        "a lock of apt",
        _ending("apt/lists/lock", "apt/archives/lock", "apt/daily_lock"),
        kernel=True,
    ),
    Family("rpm", "a lock of rpm", _ending("/.rpm.lock"), kernel=True),
    Family("sqlite", "an SQLite database", _sqlite, kernel=True),
    Family(
        "lucene", "Lucene's lock of an index", _ending("/write.lock", "/node.lock"), kernel=True
    ),
    Family("dvc", "DVC's lock", _ending("/.dvc/tmp/lock"), kernel=True),
    Family("cargo", "a lock of cargo", _ending("/.cargo-lock", "/.package-cache"), kernel=True),
    Family("mongodb", "mongod's lock", _ending("/mongod.lock"), kernel=True),
    Family("firefox", "Firefox's lock of a profile", _ending("/.parentlock"), kernel=True),
)
