"""The other shapes of lock, asked as a `Lock` is, for the rows of the table.

`reader`: the first party of a scene reads and all others write, so that a reader stands in the
way. `Once`: who runs has the lock, until it is told to come to its end.
"""

import sys
import threading

from lifehold import NotAcquired, ReadWriteLock, once


def writer(path, **options):
    return ReadWriteLock(path, **options)._writes


def reader(path, me, **options):
    lock = ReadWriteLock(path, **options)
    if me != "p1":
        return lock._writes
    try:
        lock.acquire_write(0).release()  # a reader has the token of the last writer
    except NotAcquired:
        pass
    return lock._reads


class Once:
    """Each acquire is a call of `once` in a thread, whose function ends with the release."""

    def __init__(self, path, **options):
        self.path, self.options = str(path), options

    def acquire(self, wait=None):
        while True:
            run = Run(self, wait)
            if run.lease is not None:
                self._mechanism = run.lease._lock._mechanism
                return run
            if run.errors:
                raise run.errors[0]
            # else somebody else ran it to its end while we waited: ours is the next

    def holder(self):
        return None


class Run:
    """One run. `lease`: the lock's, while the function runs."""

    def __init__(self, lock, wait):
        self.lock, self.wait, self.lease, self.errors = lock, wait, None, []
        self._begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()
        self._begun.wait()

    def _call(self):
        try:
            once(self.lock.path, self._work, keep=0, wait=self.wait, **self.lock.options)
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._begun.set()

    def _work(self):
        self.lease = sys._getframe(1).f_locals["lease"]
        self._begun.set()
        self._end.wait()
        return True

    @property
    def token(self):
        return self.lease.token

    @property
    def _grant(self):
        return self.lease._grant

    def check(self):
        self.lease.check()

    def release(self):
        self._end.set()
        self._thread.join()
        if self.errors:
            raise self.errors[0]
