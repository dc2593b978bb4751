"""Locks that are broken on purpose: each oracle of the table must catch its own."""

from __future__ import annotations

import os
import time


class Broken:
    """What a lock is asked for, and nothing that it takes."""

    def __init__(self, path):
        self.path, self.token = path, 0

    def _number(self):
        self.token = time.time_ns() // 1000
        return self

    def check(self):
        pass

    def release(self):
        pass


class Open(Broken):
    """Lets everybody in."""

    def acquire(self, wait):
        return self._number()


class Forever(Broken):
    """A file made with O_EXCL, which nobody removes for the dead."""

    def acquire(self, wait):
        import lifehold

        until = time.monotonic() + (60 if wait is None else wait)
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                return self._number()
            except FileExistsError:
                if time.monotonic() >= until:
                    raise lifehold.WouldBlock("held") from None
            time.sleep(0.01)

    def release(self):
        os.unlink(self.path)


class Stealing(Forever):
    """Goes by the age of the file, and its holder never hears of it."""

    age = 0.3

    def acquire(self, wait):
        until = time.monotonic() + (60 if wait is None else wait)
        while True:
            try:
                if time.time() - os.stat(self.path).st_mtime > self.age:
                    os.unlink(self.path)
            except FileNotFoundError:
                pass
            try:
                return super().acquire(0)
            except Exception:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.01)

    def release(self):
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass


class Numberless(Stealing):
    """The same with one and the same token for all."""

    def _number(self):
        self.token = 7
        return self


class Slow(Stealing):
    """Takes its time to see that a holder is gone."""

    age = 2.0
