"""This boot: the kernel's id of it, if it is the kernel's, and when a process began."""

from __future__ import annotations

import os

NAME = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str | None:
    """The kernel's random id of this boot; None where something was mounted over it.

    Some containers are given an id of their own there. It would tell the kernel's other processes
    that the machine has been restarted since, and they would take a live holder for dead (L2).
    """
    try:
        if os.stat(NAME).st_dev != os.stat("/proc/sys").st_dev or _is_mounted():
            return None
        with open(NAME, encoding="utf-8", errors="replace") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _is_mounted() -> bool:
    """Whether something is mounted right there."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return any(line.split()[4] == NAME for line in file)


def began_at(start_ticks: int) -> float | None:
    """When a process that began so many ticks after the boot did so, UTC seconds, as psutil says.

    By the wall clock as it is set now: when that is set, the answer changes. None where the
    kernel does not tell.
    """
    try:
        with open("/proc/stat", "rb") as file:
            for line in file:
                if line.startswith(b"btime"):
                    return start_ticks / os.sysconf("SC_CLK_TCK") + float(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
