"""The kernel lock when the system says no or the path moves, played through the files seam."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from lifehold import InvalidArgument, Lock, SystemRefused, registry
from lifehold.core.acquire import Ask
from lifehold.core.grant import Grant, Held
from lifehold.local.files import Files
from lifehold.local.handles import Descriptors
from lifehold.local.kernel import KernelLock
from lifehold.runtime.blocking import BLOCKING, finish
from lifehold.testing.clock import VirtualRuntime


class Refusing(Files):
    """The host's files; the next uses of some calls fail."""

    def __init__(self):
        super().__init__()
        self.errors: dict[str, list[object]] = {}

    def refuse(self, call, *errors):
        real = getattr(self, call)
        self.errors[call] = list(errors)

        def refusing(*args, **more):
            error = self.errors[call].pop(0) if self.errors[call] else None
            if error is None:
                return real(*args, **more)
            raise error if isinstance(error, BaseException) else OSError(error, os.strerror(error))

        setattr(self, call, refusing)


@pytest.fixture
def files():
    return Refusing()


@pytest.fixture
def mechanism(files, tmp_path):
    table = Descriptors(files)
    yield KernelLock(str(tmp_path / "build.lock"), BLOCKING, table=table)
    table.close_idle()
    assert not table.open, "a descriptor was left open"


CALLS = {
    "open": (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE, errno.EMFILE),
    "flock": (errno.ENOLCK, errno.EIO, errno.EBADF, errno.ESTALE),
    "lstat": (errno.EIO, errno.ESTALE, errno.EACCES),
    "fstat": (errno.EIO,),
    "pread": (errno.EIO,),
    "pwrite": (errno.ENOSPC, errno.EDQUOT, errno.EIO),
}


@pytest.mark.parametrize(
    ("call", "number"),
    [(call, number) for call, numbers in CALLS.items() for number in numbers],
    ids=lambda value: errno.errorcode.get(value, value) if isinstance(value, int) else value,
)
def test_a_refusal_of_any_call_is_one_clear_error_and_nothing_is_held(
    mechanism, files, call, number
):
    mechanism.drop(mechanism.attempt())
    mechanism.table.close_idle()
    files.refuse(call, number)
    with pytest.raises(SystemRefused) as caught:
        mechanism.attempt()
    assert caught.value.errno == number
    assert caught.value.filename == mechanism.path
    assert os.strerror(number) in str(caught.value)
    assert not mechanism.table.open
    Lock(mechanism.path).acquire(0).release()


@pytest.mark.parametrize("call", ["open", "flock", "lstat", "pread", "pwrite"])
@pytest.mark.parametrize("error", [TimeoutError("alarm"), KeyboardInterrupt(), ValueError("x")])
def test_what_a_signal_handler_raises_goes_through_unchanged(mechanism, files, call, error):
    files.refuse(call, error)
    with pytest.raises(type(error)) as caught:
        mechanism.attempt()
    assert caught.value is error
    assert not mechanism.table.open
    Lock(mechanism.path).acquire(0).release()


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR])
def test_a_path_that_cannot_be_is_the_callers_mistake(mechanism, files, number):
    files.refuse("open", number, number)
    with pytest.raises(InvalidArgument):
        mechanism.attempt()


def test_no_descriptor_left_closes_the_idle_ones_and_tries_again(mechanism, files, tmp_path):
    other = KernelLock(str(tmp_path / "other.lock"), BLOCKING, table=mechanism.table)
    other.drop(other.attempt())
    assert mechanism.table.idle
    files.refuse("open", errno.EMFILE)
    grant = mechanism.attempt()
    assert isinstance(grant, Grant)
    assert other.path not in mechanism.table.idle
    mechanism.drop(grant)


def test_without_the_right_to_write_it_is_locked_for_reading(mechanism, files):
    mechanism.drop(mechanism.attempt())
    mechanism.table.close_idle()
    files.refuse("open", errno.EPERM, errno.EACCES)
    grant = mechanism.attempt()
    assert grant.token is None
    assert "can only be read" in grant.token_reason
    mechanism.drop(grant)


def test_a_file_made_by_somebody_else_at_that_very_moment_is_taken(mechanism, files):
    files.refuse("open", errno.ENOENT, errno.EEXIST)
    grant = mechanism.attempt()
    assert grant.token
    mechanism.drop(grant)


def test_a_file_that_comes_and_goes_is_given_up_with_a_word(mechanism, files):
    files.refuse("open", *[errno.ENOENT, errno.EEXIST] * 200)
    with pytest.raises(SystemRefused, match="comes and goes too fast"):
        mechanism.attempt()


def test_a_path_that_always_leads_elsewhere_ends_in_words(mechanism, files, tmp_path):
    (tmp_path / "other").touch()
    found = os.lstat(tmp_path / "other")
    files.lstat = lambda path: found
    with pytest.raises(SystemRefused, match="inode numbers are not stable"):
        mechanism.attempt()


def test_a_mode_that_cannot_be_set_leaves_no_descriptor(files, tmp_path):
    table = Descriptors(files)
    files.refuse("fchmod", errno.EPERM)
    with pytest.raises(SystemRefused):
        KernelLock(str(tmp_path / "a"), BLOCKING, table=table, mode=0o600).attempt()
    assert not table.open


def test_a_release_that_the_system_refuses_is_said_and_frees_it_all_the_same(mechanism, files):
    grant = mechanism.attempt()
    files.refuse("flock", errno.EIO)
    with pytest.raises(SystemRefused):
        mechanism.drop(grant)
    Lock(mechanism.path).acquire(0).release()


def test_a_waiter_moves_over_when_the_file_is_replaced(tmp_path):
    runtime, path = VirtualRuntime(), tmp_path / "build.lock"
    mechanism = registry.maker("kernel")(str(path), runtime)
    held = Lock(path).acquire()
    runtime.after(1, path.unlink)
    asked = Ask("x", runtime.now() + 10)
    answer = mechanism.attempt()
    while isinstance(answer, Held):
        answer = finish(mechanism.wait(asked, runtime.now() + 2))
    assert runtime.now() <= asked.deadline
    assert mechanism.check(answer) is None
    mechanism.drop(answer)
    with pytest.raises(Exception, match="replaced by another"):
        held.release()


def test_a_waiter_behind_a_newer_record_looks_again_now_and_then(tmp_path):
    runtime, path = VirtualRuntime(), tmp_path / "build.lock"
    path.write_bytes(b'{"lifehold":2,"x":1}')
    mechanism = registry.maker("kernel")(str(path), runtime)
    asked = Ask("x", runtime.now() + 10)
    began, answer = runtime.now(), finish(mechanism.wait(asked, asked.deadline))
    assert "newer lifehold" in answer.reason
    assert 0.2 < runtime.now() - began < 0.5
    path.write_bytes(b"")
    answer = finish(mechanism.wait(asked, asked.deadline))
    assert isinstance(answer, Grant)
    mechanism.drop(answer)


def test_a_kernel_grant_is_renewed_for_as_long_as_it_is_held(tmp_path):
    mechanism = registry.maker("kernel")(str(tmp_path / "a"), BLOCKING)
    grant = mechanism.attempt()
    assert finish(mechanism.renew(grant)) is grant
    assert finish(mechanism.release(grant)) is None
    assert finish(mechanism.renew(grant)).reason == "released already"
    assert finish(mechanism.release(grant)).reason == "released already"


def test_two_threads_that_release_one_grant_have_one_winner(tmp_path):
    mechanism = registry.maker("kernel")(str(tmp_path / "a"), BLOCKING)
    for _ in range(100):
        grant, answers = mechanism.attempt(), []
        threads = [
            threading.Thread(
                target=lambda grant=grant, answers=answers: answers.append(mechanism.drop(grant))
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers.count(None) == 1
