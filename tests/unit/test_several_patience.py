"""`lock_all(wait=...)`: a wait that has ended is a Timeout, whichever lock it ended at."""

from __future__ import annotations

import asyncio

import pytest

from ground import needs
from lifehold import Lock, Timeout, WouldBlock, lock_all
from lifehold.aio import lock_all as lock_all_async

pytestmark = needs("linux")


@pytest.fixture
def paths(tmp_path):
    """Two names, the second of which somebody holds."""
    names = [str(tmp_path / name) for name in ("a.lock", "b.lock")]
    with Lock(names[1]):
        yield names


def blocking(paths, **options):
    lock_all(paths, **options).acquire()


def awaited(paths, **options):
    asyncio.run(lock_all_async(paths, **options).acquire())


FACES = pytest.mark.parametrize("acquire", [blocking, awaited])


@FACES
@pytest.mark.parametrize("wait", [1e-9, 5e-324])
def test_a_wait_that_is_used_up_before_the_last_lock_is_a_timeout(paths, acquire, wait):
    with pytest.raises(Timeout):
        acquire(paths, wait=wait)
    with pytest.raises(Timeout):
        acquire(paths[1:], wait=wait)


@FACES
def test_one_try_of_all_is_no_wait(paths, acquire):
    with pytest.raises(WouldBlock):
        acquire(paths, wait=0)
