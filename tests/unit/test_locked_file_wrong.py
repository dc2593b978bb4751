"""`locked_file` used wrongly: what is kept, what is refused, and what is not left behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import stat
import struct
import threading

import pytest

from ground import needs
from lifehold import AsyncLock, InvalidArgument, Lock, SystemRefused, UnsafeGround, locked_file
from lifehold import data_file as room
from lifehold.aio import locked_file as locked_file_async

pytestmark = needs("linux")


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "data.txt"
    found.write_text("before")
    return found


def left(path):
    """What lies beside the file and its lock."""
    return {each.name for each in path.parent.iterdir()} - {path.name, f"{path.name}.lock"}


def descriptors():
    return len(os.listdir("/proc/self/fd"))


# ---- what stands in the way is told before anything is made


@pytest.mark.parametrize("mode", ["r", "r+", "rb"])
def test_a_file_that_is_missing_makes_no_lock_and_no_folder(mode, tmp_path):
    path = tmp_path / "no" / "such" / "data.txt"
    with pytest.raises(FileNotFoundError) as caught, locked_file(path, mode):
        pytest.fail("entered")
    assert isinstance(caught.value, SystemRefused)
    assert caught.value.errno == errno.ENOENT
    assert str(path) in caught.value.strerror
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_missing_is_waited_for_where_somebody_makes_it(tmp_path):
    path = tmp_path / "data.txt"
    inside, found = threading.Event(), []

    def read():
        inside.wait(60)
        with locked_file(path) as file:
            found.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    with locked_file(path, "x") as file:
        inside.set()
        file.write("made")
    reader.join(60)
    assert found == ["made"]


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("what", ["link", "folder", "fifo"])
def test_what_is_no_file_gets_no_lock_beside_it(what, mode, tmp_path):
    path = tmp_path / "thing"
    if what == "link":
        path.symlink_to("elsewhere")
    elif what == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(InvalidArgument, match="not a regular file"), locked_file(path, mode):
        pytest.fail("entered")
    assert [each.name for each in tmp_path.iterdir()] == ["thing"]


def test_a_file_that_is_there_is_pythons_file_exists_error(path):
    with pytest.raises(FileExistsError) as caught, locked_file(path, "x"):
        pytest.fail("entered")
    assert isinstance(caught.value, SystemRefused)


def test_what_may_not_be_written_is_pythons_permission_error(path, monkeypatch):
    draft = room.FileDraft(str(path), "w", True, {})
    real = os.open

    def refusing(name, flags, *mode, **more):
        if os.fspath(name) == str(path) and flags & 3:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(name, flags, *mode, **more)

    monkeypatch.setattr(draft.files, "open", refusing)
    with pytest.raises(PermissionError, match="right to read and write it"):
        draft.begin()


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_file_server_is_refused_by_its_name_for_readers_too(mode, path, monkeypatch):
    monkeypatch.setattr(room.ground, "is_unproven", lambda _: True)
    with pytest.raises(UnsafeGround, match="FencedFile"):
        locked_file(path, mode)


@pytest.mark.parametrize("option", ["reentrant", "singleton"])
def test_a_block_inside_of_a_block_cannot_be_asked_for(option, path):
    with pytest.raises(InvalidArgument, match=f"{option}=True: each block has a copy"):
        locked_file(path, "r+", **{option: True})


@pytest.mark.parametrize("use", [lambda it: it.read(), lambda it: it.write("x")])
@pytest.mark.parametrize("make", [locked_file, locked_file_async])
def test_a_locked_file_used_without_a_block_names_the_block(make, use, path):
    with pytest.raises((TypeError, AttributeError), match="with locked_file"):
        use(make(path))


# ---- what a file keeps


@pytest.mark.parametrize("how", ["mode", "name", "attribute"])
def test_what_was_changed_at_the_file_meanwhile_is_not_lost(how, path):
    block = locked_file(path, "r+")
    block.__enter__().write("ours")
    if how == "mode":
        path.chmod(0o600)
    elif how == "name":
        os.link(path, path.with_name("other"))
    else:
        noted(path, b"theirs")
    with pytest.raises(UnsafeGround, match="changed meanwhile"):
        block.__exit__(None, None, None)
    assert path.read_text() == "before"
    if how == "mode":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    elif how == "name":
        assert path.stat().st_nlink == 2


def noted(path, value):
    try:
        os.setxattr(path, "user.comment", value)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("needs a file system with attributes of users")


def test_attributes_of_users_stay(path):
    noted(path, b"mine")
    with locked_file(path, "w") as file:
        file.write("new")
    assert (path.read_text(), os.getxattr(path, "user.comment")) == ("new", b"mine")


def test_attributes_that_cannot_be_kept_are_a_refusal(path, monkeypatch):
    noted(path, b"mine")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "setxattr", full)
    with pytest.raises(UnsafeGround, match="attributes"), locked_file(path, "w"):
        pytest.fail("entered")
    assert (path.read_text(), left(path)) == ("before", set())


@needs("root")
def test_a_file_with_rights_of_its_own_is_not_replaced(path):
    try:  # cap_net_raw, as setcap(8) writes it
        os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
    except OSError:
        pytest.skip("needs a file system with capabilities")
    with pytest.raises(UnsafeGround, match="rights of its own"), locked_file(path, "w"):
        pytest.fail("entered")


# ---- what is told at the end


def refusing(monkeypatch, draft, folder, error):
    """The folder cannot be opened, or not be flushed."""
    files, real, flush = draft.files, draft.files.open, draft.files.fsync

    def opened(name, flags, *mode):
        if error.errno == errno.EACCES and os.fspath(name) == folder:
            raise error
        return real(name, flags, *mode)

    def flushed(fd):
        if error.errno == errno.EIO and stat.S_ISDIR(os.fstat(fd).st_mode):
            raise error
        flush(fd)

    monkeypatch.setattr(files, "open", opened)
    monkeypatch.setattr(files, "fsync", flushed)


def test_a_folder_that_may_not_be_read_is_told_before_anything_is_replaced(path, monkeypatch):
    draft = room.FileDraft(str(path), "w", True, {}).begin()
    draft.file.write("new")
    with monkeypatch.context() as patch:
        refusing(patch, draft, str(path.parent), PermissionError(errno.EACCES, "denied"))
        with pytest.raises(SystemRefused, match="durable=False") as caught:
            draft.commit(lambda: None)
    assert caught.value.errno == errno.EACCES
    assert (path.read_text(), left(path)) == ("before", set())


def test_a_folder_that_cannot_be_flushed_is_told_and_the_file_is_said_to_be_replaced(
    path, monkeypatch
):
    draft = room.FileDraft(str(path), "w", True, {}).begin()
    draft.file.write("new")
    with monkeypatch.context() as patch:
        refusing(patch, draft, str(path.parent), OSError(errno.EIO, "Input/output error"))
        with pytest.raises(SystemRefused, match="was replaced, and its folder"):
            draft.commit(lambda: None)
    assert (path.read_text(), left(path)) == ("new", set())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_that_was_taken_apart_in_the_block_is_told_and_not_replaced(path):
    block = locked_file(path, "w")
    block.__enter__().detach()
    with pytest.raises(InvalidArgument, match="taken apart"):
        block.__exit__(None, None, None)
    assert (path.read_text(), left(path)) == ("before", set())
    assert not Lock(f"{path}.lock").locked()


# ---- one object in several hands, or in none


def test_one_object_is_one_block_for_threads(path):
    block, refused, ended = locked_file(path), [], []

    def use():
        try:
            with block as file:
                assert file.read() == "before"
                both.wait(60)
            ended.append(block.lease)
        except InvalidArgument as error:
            refused.append(str(error))
            both.wait(60)

    both = threading.Barrier(2)
    users = [threading.Thread(target=use) for _ in range(2)]
    with Lock(f"{path}.lock"):  # so that both wait
        for user in users:
            user.start()
    for user in users:
        user.join(60)
    assert refused == ["one locked_file() is one block: call it again for another"]
    assert ended == [None]
    with block as file:  # when that has ended it may be used again
        assert file.read() == "before"


def test_one_object_is_one_block_for_tasks(path):
    async def main():
        block, refused = locked_file_async(path), []

        async def use():
            try:
                async with block as file:
                    assert file.read() == "before"
            except InvalidArgument as error:
                refused.append(str(error))

        lease = await AsyncLock(f"{path}.lock").acquire()
        both = asyncio.gather(use(), use())
        await asyncio.sleep(0.05)
        await lease.release()
        await both
        assert (len(refused), block.lease) == (1, None)
        await use()
        assert len(refused) == 1

    asyncio.run(main())
    assert not Lock(f"{path}.lock").locked()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_block_that_is_dropped_leaves_no_copy_no_descriptor_and_no_lock(path):
    with locked_file(path, "w"):
        pass
    path.write_text("before")
    gc.collect()
    before = descriptors()
    block = locked_file(path, "w")
    block.__enter__().write("half")
    del block
    gc.collect()
    assert (path.read_text(), left(path)) == ("before", set())
    assert descriptors() <= before
    assert not Lock(f"{path}.lock").locked()


@needs("root")
def test_a_copy_that_root_made_for_the_owner_is_removed_by_root(path):
    os.chown(path, 1234, 1235)
    pid = os.fork()
    if pid == 0:
        block = locked_file(path, "w")
        block.__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(left(path)) == 1
    with locked_file(path, "w") as file:
        file.write("new")
    assert (path.read_text(), left(path)) == ("new", set())


# ---- where the file stands


@pytest.mark.parametrize("mode", ["w", "r+", "a", "x"])
def test_a_folder_that_a_link_leads_to_is_a_folder(mode, path):
    link = path.with_name("link")
    link.symlink_to(".")
    if mode == "x":
        path.unlink()
    with locked_file(link / path.name, mode) as file:
        file.write("after!")
    assert path.read_text().endswith("after!")
    assert left(path) == {"link"}


def test_a_file_that_is_a_mount_of_its_own_is_told_before_the_block(path, monkeypatch):
    def another(fd):
        return [str(stat.S_ISDIR(os.fstat(fd).st_mode))]

    monkeypatch.setattr(room, "_mount", another)
    with pytest.raises(UnsafeGround, match="Mount its folder"), locked_file(path, "r+"):
        pytest.fail("entered")
    assert left(path) == set()
    with locked_file(path) as file:
        assert file.read() == "before"


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.ENOSPC, "as much as the file"), (errno.EROFS, "read-only"), (errno.EFBIG, "ulimit -f")],
)
def test_the_remedy_is_for_a_file_and_not_for_a_lock(number, cure, path, monkeypatch):
    def refusal(*_):
        raise OSError(number, os.strerror(number))

    draft = room.FileDraft(str(path), "w", False, {}).begin()
    with monkeypatch.context() as patch:
        patch.setattr(draft.files, "rename", refusal)
        with pytest.raises(SystemRefused, match=cure) as caught:
            draft.commit(lambda: None)
    assert "lock" not in caught.value.strerror.replace(str(path), "")


def test_a_copy_that_cannot_be_reached_any_more_hides_no_error(tmp_path):
    """What the block has raised is told, and no error of cleaning up behind it."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def block():
        with locked_file(folder / "x", "w") as file:
            file.write("new")
            folder.rename(tmp_path / "away")
            folder.write_text("a file stands there now")
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        block()
    assert not (tmp_path / "away" / "x").exists()
