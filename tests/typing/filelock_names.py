"""The names of the filelock face, as a program sees them. Checked in test_api.py, never run."""

from __future__ import annotations

from abc import ABC
from contextlib import AbstractContextManager
from typing import assert_type

from lifehold.compat.filelock import (
    AsyncFileLock,
    BaseFileLock,
    FileLock,
    ReadWriteLock,
    SoftFileLease,
    SoftFileLock,
    Timeout,
    UnixFileLock,
)


class Ours(SoftFileLock):
    """A subclass of what is loaded late."""


class Abstract(FileLock, ABC):
    """A subclass of ours and of an abstract class."""


class Manager(FileLock, AbstractContextManager["Manager"]):
    """Likewise."""


assert_type(FileLock("a"), UnixFileLock)
assert_type(Ours("a", timeout=3), Ours)
assert_type(SoftFileLease("a", lease_duration=3.0), SoftFileLease)
with FileLock("a") as held:
    assert_type(held.is_locked, bool)
base: BaseFileLock = SoftFileLock("a")
error = Timeout("a")
assert_type(error.lock_file, str)
assert_type(error.__notes__, list[str])
ReadWriteLock("a")
AsyncFileLock("a")
FileLock("a", timeot=3)  # type: ignore[call-arg]
SoftFileLock(5)  # type: ignore[arg-type]
