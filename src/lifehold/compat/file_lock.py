"""`file_lock(path, ttl=120, timeout=30)` and `StalenessChecker`: two well-known shapes, made safe.

They replace the usual lock file with a PID, a time and an age after which anybody removes it. The
shapes are kept; inside is lifehold's soft lock. Rule: a lock is removed on proof that its holder is
dead, or when its lease has run out by our own clock while it did not change, never because its file
is old (L2). What is old and cannot be proven dead is reported.

    from lifehold.compat.file_lock import StalenessChecker, file_lock

    with file_lock("config.lock"):
        ...
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidArgument, NotAcquired, SystemRefused, UnsafeGround
from ..core.owner import DEAD
from ..lock import Lock
from ..runtime import clock

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..lock import Lease

LOGGER = logging.getLogger("lifehold")


@contextmanager
def file_lock(
    lock_path: str | os.PathLike[str], ttl: float = 120, timeout: float = 30
) -> Generator[Lease]:
    """Hold a lock file for a block: a lease that the holder renews while it lives.

    `ttl`: seconds after which a holder that fell silent may be followed; a holder that runs longer
    keeps it. `timeout`: seconds of waiting; `lifehold.Timeout`, which is a TimeoutError, names the
    holder. A file that a process without lifehold has left (a PID, or JSON with `pid`) is taken
    over at once when that process is gone.
    """
    lock = Lock(os.fspath(lock_path), kind="soft", ttl=ttl, wait=timeout)
    with lock as lease:
        yield lease


class StalenessChecker:
    """Looks at lock files, and removes those of the dead.

    `max_age_seconds`: from which age on a lock that cannot be judged is worth a report.
    """

    def __init__(self, max_age_seconds: float = 300) -> None:
        self.max_age = max_age_seconds

    def check(self, lock_path: str | os.PathLike[str]) -> dict[str, Any]:
        """What is known of a lock file.

        `exists`; `stale`: its holder is proven dead; `suspect`: it is older than `max_age_seconds`
        and no proof can be had; `age_seconds`, `alive`, `evidence` and `message`, in words. Raises
        OSError for what cannot be looked at.
        """
        path = os.fspath(lock_path)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return {"stale": False, "exists": False}
        age = max(0.0, clock.utc_now() - found.st_mtime)
        with _looked_at(path):
            holder = Lock(path, kind="soft").holder()
        alive = "free" if holder is None else holder.alive
        evidence = "nobody holds it" if holder is None else holder.evidence
        stale = alive == DEAD
        old = age > self.max_age
        answer = {
            "stale": stale,
            "exists": True,
            "suspect": not stale and old and alive == "unknown",
            "age_seconds": round(age),
            "alive": alive,
            "evidence": evidence,
        }
        if stale or answer["suspect"]:
            word = "its holder is dead" if stale else "nobody can prove its holder dead"
            answer["message"] = (
                f"Lock {path} is {age:.0f}s old (max {self.max_age:g}s): {word} ({evidence})"
            )
        return answer

    def clean_if_stale(self, lock_path: str | os.PathLike[str]) -> bool:
        """Remove a lock file whose holder is proven dead: whether it was one, and is gone.

        The judgement is made anew in the removal itself, so a lock that somebody took meanwhile
        stays. Raises OSError.
        """
        found = self.check(lock_path)
        if found.get("suspect"):
            LOGGER.warning("SUSPECT LOCK LEFT ALONE: %s", found["message"])
        if not found["stale"]:
            return False
        path = os.fspath(lock_path)
        try:
            with _looked_at(path):
                Lock(path, kind="soft").acquire(0).release()
        except NotAcquired:
            return False
        LOGGER.warning("STALE LOCK REMOVED: %s", found["message"])
        return True


@contextmanager
def _looked_at(path: str) -> Generator[None]:
    """What can be no lock file is told as an OSError, which programs of these shapes catch."""
    try:
        yield
    except (InvalidArgument, UnsafeGround) as error:
        raise SystemRefused(str(error), filename=path) from error
