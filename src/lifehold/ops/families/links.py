"""Families whose lock is a symbolic link that leads nowhere: what it says is the holder."""

from __future__ import annotations

import os

from ..foreign_verdict import Family, LockPath, StatedHolder, number


def _chromium(sight: LockPath) -> StatedHolder | None:
    """`host-pid`; the host of a container is its id, and is another one after a restart."""
    if sight.name != "SingletonLock" or not sight.target:
        return None
    host, _, pid = sight.target.rpartition("-")
    found = number(pid)
    if not host or found is None:
        return None
    return StatedHolder(found, host=host)


def _firefox(sight: LockPath) -> StatedHolder | None:
    """`address:+pid`; the address is not looked at, since it is that of any network card."""
    if sight.name != "lock" or ":+" not in sight.target:
        return None
    address, _, pid = sight.target.rpartition(":+")
    found = number(pid)
    if found is None or "/" in address:
        return None
    return StatedHolder(
        found, works_in=sight.folder, programs=("firefox", "firefox-esr", "thunderbird")
    )


def _emacs(sight: LockPath) -> StatedHolder | None:
    """`user@host.pid:boot`; the boot is UTC seconds by a clock that may have been set."""
    if not sight.name.startswith(".#") or "@" not in sight.target:
        return None
    user, _, rest = sight.target.partition("@")
    host, _, numbers = rest.rpartition(".")
    pid = number(numbers.partition(":")[0])
    if pid is None or not host or "/" in sight.target:
        return None
    return StatedHolder(pid, host=host, user=user, programs=("emacs", "emacsclient"))


def _mercurial(sight: LockPath) -> StatedHolder | None:
    """`host/namespace:pid`, or `host:pid`."""
    if sight.name not in ("lock", "wlock") or "/.hg/" not in sight.path + "/":
        return None
    text = sight.target or sight.text.strip()
    where, _, pid = text.rpartition(":")
    host, _, space = where.partition("/")
    found = number(pid)
    if found is None or not host:
        return None
    try:
        pid_ns = int(space, 16) if space else None
    except ValueError:
        return None
    return StatedHolder(found, host=host, pid_ns=pid_ns)


def _numbered(sight: LockPath) -> StatedHolder | None:
    """`ln -s $$ NAME.lock`: the target is a process number, and leads nowhere."""
    if not sight.name.endswith((".lock", ".lck", ".lk", ".pid")):
        return None
    found = number(sight.target)
    return None if found is None or os.path.exists(sight.path) else StatedHolder(found)


FAMILIES = (
    Family("chromium", "Chromium's lock of a profile", _chromium, also_locks=False),
    Family("firefox", "Firefox's lock of a profile", _firefox, also_locks=False),
    Family("emacs", "Emacs' lock of a file", _emacs, also_locks=False),
    Family("mercurial", "Mercurial's lock of a repository", _mercurial, also_locks=False),
    Family("symlink", "a lock made by ln -s", _numbered, also_locks=False),
)
