"""A file under its lock: read as one writer left it, replaced whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import struct
import sys
import threading

import pytest

from ground import needs
from lifehold import (
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    Lock,
    ReadWriteLock,
    Semaphore,
    SystemRefused,
    UnsafeGround,
    WouldBlock,
    locked_file,
)
from lifehold import data_file as room
from lifehold.aio import AsyncLock
from lifehold.aio import locked_file as locked_file_async
from lifehold.local import files

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "data.txt"
    found.write_text("before")
    return found


def left(path):
    """What lies beside the file and its lock."""
    return {each.name for each in path.parent.iterdir()} - {path.name, f"{path.name}.lock"}


@pytest.mark.parametrize(
    ("mode", "after"),
    [("w", "new"), ("r+", "newore"), ("a", "beforenew"), ("w+", "new"), ("rb+", "newore")],
)
def test_a_file_is_replaced_when_the_block_ends(path, mode, after):
    with locked_file(path, mode) as file:
        file.write(b"new" if "b" in mode else "new")
        file.flush()
        assert path.read_text() == "before"
        assert file.name == str(path)
        with pytest.raises(WouldBlock):
            Lock(f"{path}.lock").acquire(wait=0)
    assert path.read_text() == after
    assert left(path) == set()
    assert not Lock(f"{path}.lock").locked()


def test_a_new_file_comes_with_its_folders_and_x_makes_no_old_one(tmp_path):
    path = tmp_path / "folder" / "data.txt"
    with locked_file(path, "x") as file:
        file.write("new")
    assert path.read_text() == "new"
    with pytest.raises(SystemRefused) as caught, locked_file(path, "x"):
        pytest.fail("entered")
    assert caught.value.errno == errno.EEXIST
    assert left(path) == set()


def test_readers_read_together_and_no_writer_comes_between(path):
    with locked_file(path) as one, locked_file(path, "rb") as two:
        assert (one.read(), two.read()) == ("before", b"before")
        with pytest.raises(WouldBlock):
            locked_file(path, "r+", wait=0).__enter__()
    with locked_file(path, "r+"), pytest.raises(WouldBlock):
        locked_file(path, "r", wait=0).__enter__()


@pytest.mark.parametrize("mode", ["w", "r+", "a"])
def test_a_body_that_raises_replaces_nothing(path, mode):
    inode = path.stat().st_ino

    def write():
        with locked_file(path, mode) as file:
            file.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert (path.read_text(), path.stat().st_ino, left(path)) == ("before", inode, set())
    assert not Lock(f"{path}.lock").locked()


def test_a_file_closed_in_the_block_is_replaced_all_the_same(path):
    with locked_file(path, "w") as file, file:
        file.write("new")
    assert path.read_text() == "new"


def test_owner_and_mode_are_those_of_before(path):
    path.chmod(0o1640)  # the sticky bit is not ours to give (L13)
    with locked_file(path, "w") as file:
        file.write("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@needs("root")
def test_the_owner_stays_when_root_writes(path):
    os.chown(path, 1234, 1235)
    with locked_file(path, "w") as file:
        file.write("new")
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (1234, 1235)


def test_an_owner_that_cannot_be_kept_is_refused(path, monkeypatch):
    real = os.fstat

    def another(fd):
        found = real(fd)
        return os.stat_result((*found[:4], found.st_uid + (found.st_ino != inode), *found[5:]))

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    inode = path.stat().st_ino
    draft = room.FileDraft(str(path), "w", True, {})
    monkeypatch.setattr(draft.files, "fstat", another)
    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(UnsafeGround, match="owner"):
        draft.begin()
    assert left(path) == set()


def made(tmp_path, what):
    path = tmp_path / "bad"
    if what == "link":
        (tmp_path / "real").write_text("real")
        path.symlink_to("real")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "two names":
        path.write_text("real")
        os.link(path, tmp_path / "other")
    elif what == "device":
        return "/dev/null"
    return path


@pytest.mark.parametrize("mode", ["r", "r+", "w", "a", "x"])
@pytest.mark.parametrize("what", ["link", "fifo", "folder"])
def test_what_is_no_file_is_neither_followed_nor_replaced(what, mode, tmp_path):
    path = made(tmp_path, what)
    before = path.lstat().st_ino
    with pytest.raises(InvalidArgument, match="regular file"), locked_file(path, mode):
        pytest.fail("entered")
    assert path.lstat().st_ino == before
    assert not (tmp_path / "bad.new").exists()


def test_a_file_of_two_names_and_one_that_runs_as_its_owner_are_read_and_not_replaced(tmp_path):
    path = made(tmp_path, "two names")
    with locked_file(path) as file:
        assert file.read() == "real"
    with pytest.raises(UnsafeGround, match="2 names"), locked_file(path, "r+"):
        pytest.fail("entered")
    (tmp_path / "other").unlink()
    path.chmod(0o4755)
    with pytest.raises(UnsafeGround, match="runs as"), locked_file(path, "r+"):
        pytest.fail("entered")


LOCKS = {
    "held": lambda path: Lock(path).acquire(),
    "read": lambda path: Lock(path, exclusive=False).acquire(),
    "released": lambda path: Lock(path).acquire().release(),
    "soft": lambda path: Lock(path, kind="soft", ttl=60).acquire(),
    "semaphore": lambda path: Semaphore(path, 2).acquire(),
    "writer": lambda path: ReadWriteLock(path).acquire_write(),
    "behind a number": lambda path: path.write_text(f'1234\n{{"lifehold":1,"ino":{" " * 600}'),
}


@pytest.mark.parametrize("mode", ["w", "r+", "a"])
@pytest.mark.parametrize("how", LOCKS)
def test_a_lock_file_is_not_replaced(how, mode, tmp_path):
    path = tmp_path / "job.lock"
    lease = LOCKS[how](path)
    before = path.read_bytes()
    with pytest.raises(UnsafeGround, match="second holder"), locked_file(path, mode) as file:
        file.write("mine")
    assert path.read_bytes() == before
    if hasattr(lease, "release"):
        lease.check()
        lease.release()


@pytest.mark.parametrize("call", ["fsync", "pwrite", "rename"])
def test_a_full_disk_leaves_what_was_there(call, path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    files = room.files_for(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(files, call, full)
        if call == "pwrite":  # of the copy; the record of the lock is made of another table's
            draft = room.FileDraft(str(path), "r+", True, {})
            with pytest.raises(SystemRefused) as caught:
                draft.begin()
        else:
            draft = room.FileDraft(str(path), "w", True, {}).begin()
            draft.file.write("new")
            with pytest.raises(SystemRefused) as caught:
                draft.commit(lambda: None)
    assert caught.value.errno == errno.ENOSPC
    assert (path.read_text(), left(path)) == ("before", set())


def test_a_file_that_may_not_be_written_is_not_replaced_either(path, monkeypatch):
    real = os.open

    def refusing(name, flags, *mode, **more):
        if os.fspath(name) == str(path) and flags & 3:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(name, flags, *mode, **more)

    draft = room.FileDraft(str(path), "w", True, {})
    monkeypatch.setattr(draft.files, "open", refusing)
    with pytest.raises(SystemRefused) as caught:
        draft.begin()
    assert caught.value.errno == errno.EACCES
    assert left(path) == set()


@pytest.mark.parametrize("how", ["replaced", "written", "removed", "made"])
def test_a_file_changed_meanwhile_without_the_lock_is_told_and_kept(how, path):
    if how == "made":
        path.unlink()

    def meddle():
        if how in ("replaced", "made"):
            other = path.with_name("other")
            other.write_text("theirs")
            other.rename(path)
        elif how == "written":
            with path.open("a") as theirs:
                theirs.write("theirs")
        else:
            path.unlink()

    block = locked_file(path, "w")
    block.__enter__().write("ours")
    meddle()
    with pytest.raises((UnsafeGround, SystemRefused)):
        block.__exit__(None, None, None)
    assert not path.exists() if how == "removed" else "theirs" in path.read_text()
    assert left(path) == set()


def test_a_lock_that_was_lost_replaces_nothing(path):
    block = locked_file(path, "w")
    block.__enter__().write("late")
    os.unlink(f"{path}.lock")
    with pytest.raises(LeaseLost):
        block.__exit__(None, None, None)
    assert (path.read_text(), left(path)) == ("before", set())


def test_a_file_of_the_users_own_that_ends_in_new_is_left_alone(path):
    own = path.with_name("data.txt.new")
    own.write_text("own")
    with locked_file(path, "w") as file:
        file.write("new")
    assert (path.read_text(), own.read_text(), left(path)) == ("new", "own", {own.name})


def copy_of(path):
    """The one copy that lies beside the file."""
    (name,) = left(path)
    return path.with_name(name)


def test_who_lost_the_lock_leaves_the_copy_of_the_next_writer_alone(path):
    late = locked_file(path, "w")
    late.__enter__().write("late")
    os.unlink(f"{path}.lock")
    with locked_file(path, "w") as file:
        with pytest.raises(LeaseLost):
            late.__exit__(None, None, None)
        file.write("next")
    assert (path.read_text(), left(path)) == ("next", set())


@pytest.mark.parametrize("ends", ["commit", "abandon"])
def test_what_stands_under_the_name_of_the_copy_and_is_another_file_is_not_touched(path, ends):
    draft = room.FileDraft(str(path), "w", True, {}).begin()
    copy = copy_of(path)
    copy.unlink()
    copy.write_text("theirs")
    if ends == "commit":
        with pytest.raises(UnsafeGround, match="copy"):
            draft.commit(lambda: None)
    draft.abandon()
    assert (path.read_text(), copy.read_text()) == ("before", "theirs")
    copy.unlink()


def test_what_a_killed_writer_left_is_removed_by_the_next_one(path):
    pid = os.fork()
    if pid == 0:
        block = locked_file(path, "w")
        block.__enter__()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    stale = copy_of(path)
    with locked_file(path, "w") as file:
        assert copy_of(path) != stale
        file.write("new")
    assert (path.read_text(), left(path)) == ("new", set())


def test_who_is_killed_while_a_new_file_gets_its_name_leaves_one_that_can_be_written(
    tmp_path, monkeypatch
):
    """Where no rename replaces nothing, it is link and unlink."""
    path = tmp_path / "data.txt"
    monkeypatch.setattr(files, "_rename_call", False)
    pid = os.fork()
    if pid == 0:
        os.unlink = lambda *_, **__: os._exit(7)
        with locked_file(path, "w") as file:
            file.write("first")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert path.stat().st_nlink == 2
    with locked_file(path, "r+") as file:
        assert file.read() == "first"
        file.write(" second")
    assert (path.read_text(), left(path)) == ("first second", set())


@pytest.mark.parametrize("what", ["link", "folder", "two names", "another path"])
def test_what_only_has_the_name_of_a_copy_is_left_alone(path, what):
    with locked_file(path, "w"):
        copy = copy_of(path)
    aside = path.with_name("aside")
    aside.write_text("aside")
    if what == "link":
        copy.symlink_to("aside")
    elif what == "folder":
        copy.mkdir()
    elif what == "two names":
        os.link(aside, copy)
    else:
        with locked_file(path.with_name("other.txt"), "w"):
            (name,) = left(path) - {"aside", "other.txt", "other.txt.lock"}
        copy = path.with_name(name)
        copy.write_text("of other.txt")
    with locked_file(path, "w") as file:
        file.write("new")
    assert (path.read_text(), aside.read_text()) == ("new", "aside")
    assert os.path.lexists(copy)


def test_a_child_that_ends_the_block_of_its_parent_leaves_the_copy_to_it(path):
    block = locked_file(path, "w")
    file = block.__enter__()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            block.__exit__(None, None, None)
        except LifeholdError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    file.write("parent")
    block.__exit__(None, None, None)
    assert path.read_text() == "parent"


def test_a_file_without_an_access_list_gets_none_of_its_folder(path):
    everyone, name = 0xFFFFFFFF, "system.posix_acl_default"
    kinds = [(1, 7), (2, 7), (4, 5), (16, 7), (32, 0)]
    entries = (struct.pack("<HHI", k, bits, 12345 if k == 2 else everyone) for k, bits in kinds)
    path.chmod(0o640)
    try:
        os.setxattr(path.parent, name, struct.pack("<I", 2) + b"".join(entries))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
            raise
        pytest.skip("needs a file system with access control lists")
    with locked_file(path, "w") as file:
        file.write("new")
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", ["a", "a+", "ab"])
def test_what_is_appended_comes_at_the_end_wherever_the_writer_stands(path, mode):
    with locked_file(path, mode) as file:
        file.seek(0)
        file.write(b"new" if "b" in mode else "new")
    assert path.read_text() == "beforenew"


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_child_that_ends_the_block_writes_nothing_of_its_parent_a_second_time(path, error):
    block = locked_file(path, "w")
    file = block.__enter__()
    file.write("once")
    pid = os.fork()
    if pid == 0:
        try:
            block.__exit__(None if error is None else type(error), error, None)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    block.__exit__(None, None, None)
    assert path.read_text() == "once"


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted_at(count, call):
    """`call()`, interrupted at its line number `count` in the file of the drafts."""
    left = [count]

    def trace(frame, event, _):
        if frame.f_code.co_filename != room.__file__:
            return None
        if event in ("line", "return"):
            left[0] -= 1
            if not left[0]:
                sys.settrace(None)
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)


def open_data(path):
    """The descriptors of the file and of its copies."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    folder = f"{path.parent}/"
    return [each for each in found if each.startswith(folder) and not each.endswith(".lock")]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*was dropped without release:ResourceWarning")
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_an_interrupt_while_it_is_opened_leaves_no_descriptor(path, mode):
    draft = None

    def begun():
        nonlocal draft
        draft = room.FileDraft(str(path), mode, False, {})
        draft.begin()

    count, whole = 0, False
    while not whole:
        count += 1
        try:
            interrupted_at(count, begun)
            whole = True
        except Interrupt:
            draft = None
        if not whole:  # the exception kept the frames, and they the draft
            assert (open_data(path), left(path)) == ([], set()), count
    draft.abandon()
    assert count > 20
    assert (open_data(path), left(path)) == ([], set())


def test_a_signal_after_the_lock_was_taken_leaves_no_lock(path, monkeypatch):
    real = Lock.acquire

    def interrupted(self, *given, **more):
        real(self, *given, **more)
        raise KeyboardInterrupt

    block = locked_file(path, "w")
    with monkeypatch.context() as patch:
        patch.setattr(Lock, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            block.__enter__()
    assert not Lock(f"{path}.lock").locked()
    assert left(path) == set()


@pytest.mark.parametrize("mode", ["", "q", "rw", "rr", "r++", "rbt", "U", 5, None, "b"])
def test_a_mode_that_means_nothing_is_refused(mode, path):
    with pytest.raises(InvalidArgument, match="mode"):
        locked_file(path, mode)


def test_other_wrong_calls_name_the_argument(path):
    with pytest.raises(InvalidArgument, match="encoding"):
        locked_file(path, "rb", encoding="utf-8")
    with pytest.raises(InvalidArgument, match="durable"):
        locked_file(path, "w", durable="no")
    with pytest.raises(TypeError, match="wait=3"):
        locked_file(path, "w", timeout=3)
    block = locked_file(path)
    with block, pytest.raises(InvalidArgument, match="one block"):
        block.__enter__()


def test_many_writers_lose_no_update(path):
    path.write_text("0")

    def add():
        for _ in range(5):
            with locked_file(path, "r+", durable=False) as file:
                number = int(file.read()) + 1
                file.seek(0)
                file.write(str(number))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert path.read_text() == "20"


# ---- for tasks


LOOPS = ["asyncio", pytest.param("trio", marks=needs("package:trio"))]


def run(loop, main):
    if loop == "asyncio":
        return asyncio.run(main())
    import trio

    return trio.run(main)


async def cancelled_in(loop, work, stop):
    """Run `work()`, which calls `stop()` where it is to be cancelled."""
    if loop == "asyncio":
        task = asyncio.ensure_future(work())
        here = asyncio.get_running_loop()
        stop.append(lambda: here.call_soon_threadsafe(task.cancel))
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    import trio

    with trio.CancelScope() as scope:
        token = trio.lowlevel.current_trio_token()
        stop.append(lambda: token.run_sync_soon(scope.cancel))
        await work()
    assert scope.cancelled_caught


@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_replaces_a_file_when_its_block_ends(loop, path):
    async def main():
        async with locked_file_async(path, "r+") as file:
            file.write("new")
            assert path.read_text() == "before"
        assert path.read_text() == "newore"
        with pytest.raises(ZeroDivisionError):
            async with locked_file_async(path, "w"):
                1 / 0  # noqa: B018
        assert path.read_text() == "newore"
        with pytest.raises(SystemRefused):
            async with locked_file_async(f"{path}-not", "r"):
                pytest.fail("entered")
        assert left(path) == set()
        assert not Lock(f"{path}.lock").locked()

    run(loop, main)


def test_a_task_does_not_replace_a_lock_file_either(path):
    async def main():
        async with locked_file_async(path, "w") as file:
            file.write("mine")

    path.unlink()
    with Lock(path), pytest.raises(UnsafeGround, match="second holder"):
        asyncio.run(main())


@pytest.mark.parametrize("step", ["begin", "body", "commit", "abandon"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_cancelled_in_any_step_leaves_a_whole_file_and_no_lock(
    loop, step, path, monkeypatch
):
    stop = []
    if step != "body":
        real = getattr(room.FileDraft, step)

        def stopped(self, *given):
            if stop:
                stop.pop()()
            return real(self, *given)

        monkeypatch.setattr(room.FileDraft, step, stopped)

    async def work():
        async with locked_file_async(path, "w") as file:
            file.write("new")
            if step == "body":
                stop.pop()()
                await pause()
        await pause()

    async def pause():
        if loop == "asyncio":
            await asyncio.sleep(30)
        else:
            import trio

            await trio.sleep(30)

    async def main():
        await cancelled_in(loop, work, stop)

    run(loop, main)
    assert path.read_text() == ("new" if step in ("commit", "abandon") else "before")
    assert left(path) == set()
    assert not Lock(f"{path}.lock").locked()


@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupt_after_a_task_took_the_lock_leaves_no_lock(path, loop, monkeypatch):
    real = AsyncLock.acquire

    class Interrupted(BaseException):
        pass

    async def interrupted(self, *given, **more):
        await real(self, *given, **more)
        raise Interrupted

    async def main():
        block = locked_file_async(path, "w")
        with monkeypatch.context() as patch:
            patch.setattr(AsyncLock, "acquire", interrupted)
            with pytest.raises(Interrupted):
                await block.__aenter__()
        assert not Lock(f"{path}.lock").locked()

    run(loop, main)
    assert left(path) == set()
