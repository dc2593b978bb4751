"""The kernel's id of this boot, if it is the kernel's."""

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
