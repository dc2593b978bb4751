"""Guards of plain files and of objects: the same claims, then those of each."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from crash.terrain import as_nobody, folder_for_all, result
from ground import needs
from lifehold import (
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    Lock,
    NotHeld,
    StaleToken,
    StoreUnavailable,
    SystemRefused,
    Timeout,
    UnsafeGround,
)
from lifehold.fence import (
    Fenced,
    FencedFile,
    FencedObject,
    FolderObjects,
    MemoryObjects,
    S3Objects,
)
from lifehold.local import ground
from lifehold.local.files import HOST
from lifehold.recipes.fence.file import FencedPair
from lifehold.recipes.fence.objects import FRONT, sealed


class Refused(Exception):
    """Shaped as botocore's ClientError."""

    def __init__(self, code):
        self.response = {"Error": {"Code": code}}


class Bucket:
    """Shaped as boto3's client of S3: its ETag is a digest of the bytes, and of nothing else."""

    heeds = True

    def __init__(self):
        self.objects, self.puts = {}, 0

    def get_object(self, *, Bucket, Key):  # noqa: N803
        if Key not in self.objects:
            raise Refused("NoSuchKey")
        return {"Body": io.BytesIO(self.objects[Key]), "ETag": self.etag(Key)}

    def put_object(self, *, Bucket, Key, Body, IfMatch=None, IfNoneMatch=None):  # noqa: N803
        self.puts += 1
        if self.heeds and IfNoneMatch == "*" and Key in self.objects:
            raise Refused("PreconditionFailed")
        if self.heeds and IfMatch is not None and IfMatch != self.etag(Key):
            raise Refused("PreconditionFailed" if Key in self.objects else "NoSuchKey")
        self.objects[Key] = Body

    def delete_object(self, *, Bucket, Key):  # noqa: N803
        self.objects.pop(Key, None)

    def etag(self, key):
        body = self.objects.get(key)
        return body and f'"{hashlib.md5(body).hexdigest()}"'


@pytest.fixture(params=["file", "memory", "folder", "s3"])
def guard(request, tmp_path):
    """Makes a guard of one thing for a token."""
    if request.param == "file":
        return lambda token=None: FencedFile(tmp_path / "x", token, durable=False)
    makers = {
        "memory": MemoryObjects,
        "folder": lambda: FolderObjects(tmp_path, durable=False),
        "s3": lambda: S3Objects(Bucket(), "bucket", prefix="jobs/"),
    }
    store = makers[request.param]()
    return lambda token=None: FencedObject(store, "x", token)


def test_a_late_write_changes_nothing_and_a_holder_may_write_often(guard):
    assert guard().read() == Fenced(None, None, 0)
    guard(5).write(b"one")
    guard(5).write(b"two")
    assert guard().read() == Fenced(b"two", 5, 5)
    guard(6).write(b"six")
    with pytest.raises(StaleToken) as caught:
        guard(5).write(b"late")
    assert (caught.value.token, caught.value.fence) == (5, 6)
    assert guard().read() == Fenced(b"six", 6, 6)


def test_a_late_read_modify_write_is_refused_before_its_successor_wrote(guard):
    first = guard(5)
    first.advance()
    first.write(b"a")
    seen = first.read().data
    guard(6).advance()
    assert guard().read()[::2] == (b"a", 6)
    with pytest.raises(StaleToken):
        first.write(seen + b"late")
    with pytest.raises(StaleToken):
        first.update(lambda data: data + b"late")
    with pytest.raises(StaleToken):
        first.advance()
    assert guard(6).update(lambda data: data + b"b") == b"ab"
    assert guard().read() == Fenced(b"ab", 6, 6)


def test_advance_of_nothing_keeps_it_nothing_and_refuses_older_tokens(guard):
    guard(6).advance()
    guard(6).advance()
    found = guard().read()
    assert (found.data, found.fence) == (None, 6)
    with pytest.raises(StaleToken):
        guard(5).write(b"late")
    guard(6).write(b"")
    assert guard().read() == Fenced(b"", 6, 6)


def test_what_cannot_be_written_is_refused_before_anything_happens(guard):
    for bad in ("text", None, 5):
        with pytest.raises(InvalidArgument, match="data is bytes"):
            guard(5).write(bad)
        with pytest.raises(InvalidArgument, match="data is bytes"):
            guard(5).update(lambda _, bad=bad: bad)
    with pytest.raises(InvalidArgument, match="needs the lease"):
        guard().write(b"x")
    with pytest.raises(StaleToken, match="no token"):
        guard(SimpleNamespace(token=None)).write(b"x")
    assert guard().read().data is None


ACT = some.tuples(some.integers(1, 5), some.sampled_from(["advance", "write", "update"]))


@settings(max_examples=60, deadline=None)
@given(some.lists(ACT, max_size=20))
def test_whatever_the_order_no_token_is_admitted_after_a_newer_one(acts):
    store, newest, content = MemoryObjects(), 0, None
    for token, act in acts:
        guard = FencedObject(store, "x", token)
        try:
            if act == "advance":
                guard.advance()
            elif act == "write":
                guard.write(b"%d" % token)
            else:
                guard.update(lambda data, token=token: (data or b"") + b"%d" % token)
        except StaleToken as error:
            assert error.fence == newest > token  # noqa: PT017
        else:
            assert token >= newest
            newest = token
            written = b"%d" % token
            content = {"advance": content, "write": written}.get(act, (content or b"") + written)
        assert guard.read()[::2] == (content, newest)


# ---- files


def test_bytes_that_something_else_wrote_have_no_token(tmp_path):
    guard = FencedFile(tmp_path / "x", 5)
    guard.write(b"ours")
    (tmp_path / "x").write_bytes(b"theirs")
    assert guard.read() == Fenced(b"theirs", None, 5)
    with pytest.raises(StaleToken):
        FencedFile(tmp_path / "x", 4).write(b"late")


def test_a_file_is_replaced_in_one_step_and_keeps_its_mode(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with path.open("rb") as reader:
        FencedFile(path, 5).write(b"new" * 1000)
        assert reader.read() == b"old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_bytes() == b"new" * 1000
    assert sorted(os.listdir(tmp_path)) == ["x", "x.fence", "x.fence.lock"]


@pytest.mark.parametrize("bits", [0o4755, 0o2755, 0o6711])
@pytest.mark.parametrize("mode", [None, 0o600])
def test_a_file_that_runs_as_its_owner_is_not_replaced(tmp_path, bits, mode):
    """Who writes it may be another user than who made it run so."""
    path = tmp_path / "x"
    path.write_bytes(b"#!/bin/sh")
    path.chmod(bits)
    guard = FencedFile(path, 5, mode=mode)
    for act in (lambda: guard.write(b"new"), lambda: guard.update(lambda data: data + b"more")):
        with pytest.raises(UnsafeGround, match="chmod ug-s"):
            act()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"#!/bin/sh", bits)


def test_nothing_of_ours_is_sticky(tmp_path):
    FencedFile(tmp_path / "x", 5).write(b"old")
    for each in ("x", "x.fence"):
        (tmp_path / each).chmod(0o1640)
    FencedFile(tmp_path / "x", 6).write(b"new")
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("x", "x.fence")]
    assert modes == [0o640, 0o640]


def test_an_update_lets_in_whom_the_data_let_in_that_it_was_made_of(tmp_path):
    """And nobody else, whatever was put in its place meanwhile."""
    path = tmp_path / "x"
    path.write_bytes(b"secret")
    path.chmod(0o600)

    def change(data):
        path.unlink()
        path.touch(0o666)
        path.chmod(0o666)
        return data

    assert FencedFile(path, 5).update(change) == b"secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_copy_of_private_data_is_never_open_to_others(tmp_path, monkeypatch):
    """Who opened it while it was empty would read what comes into it."""
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "x").chmod(0o600)
    made, plain = [], HOST.open

    def opened(path, *given):
        fd = plain(path, *given)
        if path.endswith(".new"):
            made.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return fd

    monkeypatch.setattr(HOST, "open", opened)
    FencedFile(tmp_path / "x", 5).write(b"secret")
    assert made[0] == 0o600  # the second one is of the fence


def test_each_file_is_flushed_before_its_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    """Or lost power could leave the newer data beside the older fence."""
    log, names = [], {}

    def opened(path, *given):
        fd = plain["open"](path, *given)
        names[fd] = os.path.basename(path)
        return fd

    plain = {name: getattr(HOST, name) for name in ("open", "fsync", "rename")}
    monkeypatch.setattr(HOST, "open", opened)
    monkeypatch.setattr(HOST, "fsync", lambda fd: log.append(names[fd]) or plain["fsync"](fd))
    monkeypatch.setattr(
        HOST,
        "rename",
        lambda a, b: log.append(f"rename {os.path.basename(b)}") or plain["rename"](a, b),
    )
    FencedFile(tmp_path / "x", 5).write(b"data")
    folder = tmp_path.name
    copies, log[:2] = log[:2], []
    assert len({*copies}) == 2
    assert all(each.startswith(".lifehold-") and each.endswith(".new") for each in copies)
    assert log == ["rename x.fence", folder, "rename x", folder]


def test_several_users_can_write_a_shared_file(tmp_path):
    FencedFile(tmp_path / "x", 5, shared=True).write(b"all")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in os.listdir(tmp_path)}
    assert modes == {0o666}


def test_a_folder_that_a_link_leads_to_is_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    FencedFile(tmp_path / "link" / "data", 5).write(b"one")
    assert (tmp_path / "real" / "data").read_bytes() == b"one"
    assert FencedFile(tmp_path / "link" / "data").read() == Fenced(b"one", 5, 5)


def test_a_link_is_neither_followed_nor_replaced(tmp_path):
    (tmp_path / "there").write_bytes(b"precious")
    (tmp_path / "x").symlink_to("there")
    for act in (lambda g: g.write(b"new"), lambda g: g.read()):
        with pytest.raises(InvalidArgument, match="not a regular file"):
            act(FencedFile(tmp_path / "x", 5))
    assert (tmp_path / "there").read_bytes() == b"precious"
    assert (tmp_path / "x").is_symlink()
    with pytest.raises(InvalidArgument):
        FencedFile(tmp_path, 5).write(b"new")


def is_not_replaced(path, why):
    guard = FencedFile(path, 5)
    for act in (lambda: guard.write(b"new"), lambda: guard.update(lambda _: b"new")):
        with pytest.raises(UnsafeGround, match=why):
            act()
    assert not os.path.exists(f"{path}.fence")


@pytest.mark.parametrize(
    "options", [{}, {"kind": "kernel"}, {"kind": "soft", "ttl": 30}, {"exclusive": False}]
)
def test_a_lock_file_is_not_replaced(tmp_path, options):
    """Another one in its place would let a second holder in."""
    path = tmp_path / "job.lock"
    with Lock(path, **options).acquire() as lease:
        is_not_replaced(path, "second holder")
        lease.check()


def test_a_file_of_several_names_is_not_torn_from_them(tmp_path):
    path, other = tmp_path / "x", tmp_path / "y"
    path.write_bytes(b"old")
    other.hardlink_to(path)
    is_not_replaced(path, "has 2 names")
    assert path.samefile(other)
    other.unlink()
    FencedFile(path, 5).write(b"new")
    assert path.read_bytes() == b"new"


def test_data_that_another_writer_replaces_meanwhile_is_written(tmp_path, monkeypatch):
    """What was opened has no name left then."""
    path, other, opened = tmp_path / "x", tmp_path / "y", HOST.open
    path.write_bytes(b"old")
    other.write_bytes(b"another's")

    def raced(name, *how):
        fd = opened(name, *how)
        if name == str(path) and other.exists():
            other.replace(path)
        return fd

    monkeypatch.setattr(HOST, "open", raced)
    FencedFile(path, 5).write(b"new")
    assert path.read_bytes() == b"new"
    assert not other.exists()


@needs("root")
@pytest.mark.parametrize("content", [b"", b"old"])
@pytest.mark.parametrize("mode", [0o000, 0o200])
def test_data_that_may_not_be_read_is_written(content, mode):
    with folder_for_all(0o777) as folder:
        FencedFile(folder / "warm", 5).write(b"")  # loads what that user may not read
        path, other = folder / "x", folder / "y"
        path.write_bytes(content)
        path.chmod(mode)
        other.hardlink_to(path)
        assert "2 names" in result(as_nobody(written, path))
        other.unlink()
        assert result(as_nobody(written, path)) == "written"
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)


def written(path):
    try:
        FencedFile(path, 5).write(b"new")
    except UnsafeGround as error:
        return str(error)
    return "written"


def test_a_file_that_is_empty_and_may_not_be_written_is_replaced(tmp_path):
    path = tmp_path / "x"
    path.touch(0o444)
    FencedFile(path, 5).write(b"")
    FencedFile(path, 5).write(b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o444)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"lifehold":1,"kind":"fence","fence":"x"}', b"\0" * 50,
     b'{"lifehold":1,"kind":"fence","fence":-1,"written":null,"before":null}',
     b'{"lifehold":1,"kind":"fence","fence":1,"written":[1],"before":null}',
     b'{"lifehold":2,"kind":"fence","fence":1,"written":null,"before":null}',
     b"[" * 4000,
     b'{"lifehold":1,"kind":"fence","fence":1.5,"written":null,"before":null}',
     b'{"lifehold":1,"kind":"fence","fence":true,"written":null,"before":null}',
     b'{"lifehold":1e999,"kind":"fence","fence":1,"written":null,"before":null}',
     b'{"lifehold":1,"kind":"fence","fence":1,"written":[1e999,[1,2,3]],"before":null}',
     b'{"lifehold":1,"kind":"fence","fence":1,"written":["9",["1","2","3"]],"before":null}',
     b'{"lifehold":1,"kind":"fence","fence":1,"written":[1,[1,2,1e999]],"before":null}'],
)  # fmt: skip
def test_a_fence_that_cannot_be_read_admits_nobody(tmp_path, content):
    (tmp_path / "x").write_bytes(b"data")
    (tmp_path / "x.fence").write_bytes(content)
    for act in (lambda g: g.write(b"new"), lambda g: g.advance(), lambda g: g.read()):
        with pytest.raises(CorruptRecord):
            act(FencedFile(tmp_path / "x", 5))
    assert (tmp_path / "x").read_bytes() == b"data"


@pytest.mark.parametrize("number", range(1, 5))
def test_a_full_disk_leaves_the_file_and_its_fence_as_they_were(tmp_path, monkeypatch, number):
    FencedFile(tmp_path / "x", 5).write(b"old")
    calls = []

    def full(fd):
        calls.append(fd)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(fd)

    plain = HOST.fsync
    monkeypatch.setattr(HOST, "fsync", full)
    with pytest.raises(SystemRefused, match="free some space"):
        FencedFile(tmp_path / "x", 6).write(b"new")
    monkeypatch.undo()
    found = FencedFile(tmp_path / "x").read()
    assert found in (Fenced(b"old", 5, 5), Fenced(b"old", 5, 6), Fenced(b"new", 6, 6))
    assert (found.data == b"new") == (number == 4)
    FencedFile(tmp_path / "x", 6).write(b"next")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


def test_a_writer_that_waits_for_another_one_is_told_who_it_is(tmp_path):
    with Lock(tmp_path / "x.fence.lock", label="a long write"):
        with pytest.raises(Timeout, match="a long write"):
            FencedFile(tmp_path / "x", 5, wait=0.05).write(b"x")
        assert FencedFile(tmp_path / "x").read().data is None


def test_a_write_whose_lock_file_was_removed_meanwhile_is_not_made(tmp_path, monkeypatch):
    note = FencedPair._note

    def removed(self, fence, still, *more):
        note(self, fence, still, *more)
        os.unlink(tmp_path / "x.fence.lock")

    FencedFile(tmp_path / "x", 5).write(b"old")
    monkeypatch.setattr(FencedPair, "_note", removed)
    with pytest.raises(LeaseLost):
        FencedFile(tmp_path / "x", 6).write(b"new")
    monkeypatch.undo()
    assert FencedFile(tmp_path / "x").read() == Fenced(b"old", 5, 6)


def ended(pid):
    """The exit code of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_that_comes_out_of_the_change_touches_nothing_of_its_parents(
    tmp_path, monkeypatch
):
    pids, note = [], FencedPair._note
    told, tell = os.pipe()

    def change(_):
        pids.append(os.fork())
        if pids[0] == 0:
            os.read(told, 1)  # until its parent has made its copy
        return b"of the parent" if pids[0] else b"of the child!"

    def noted(self, *given):
        if pids and pids[0] and not codes:
            os.write(tell, b".")
            codes.append(ended(pids[0]))
        note(self, *given)

    guard, codes = FencedFile(tmp_path / "x", 5), []
    monkeypatch.setattr(FencedPair, "_note", noted)
    try:
        guard.update(change)
        if pids[0] == 0:
            os._exit(1)
    except NotHeld:
        os._exit(0)
    finally:
        if pids and pids[0] == 0:
            os._exit(2)
    assert codes == [0]
    assert guard.read() == Fenced(b"of the parent", 5, 5)
    assert sorted(os.listdir(tmp_path)) == ["x", "x.fence", "x.fence.lock"]


@pytest.mark.parametrize("number", range(1, 5))
def test_a_child_that_is_forked_inside_of_a_write_leaves_the_copy_to_its_parent(
    tmp_path, monkeypatch, number
):
    """As a signal handler does that forks."""
    pids, calls, plain = [], [], HOST.fsync

    def forks(fd):
        calls.append(fd)
        if len(calls) == number:
            pids.append(os.fork())
            if pids[0]:
                assert ended(pids[0]) == 0
        plain(fd)

    guard = FencedFile(tmp_path / "x", 5)
    monkeypatch.setattr(HOST, "fsync", forks)
    try:
        guard.write(b"once")
    except NotHeld:
        assert pids == [0]
    finally:
        if pids == [0]:
            os._exit(0)
    assert guard.read() == Fenced(b"once", 5, 5)
    assert sorted(os.listdir(tmp_path)) == ["x", "x.fence", "x.fence.lock"]


def test_a_new_file_that_another_one_took_the_place_of_is_not_renamed(tmp_path, monkeypatch):
    FencedFile(tmp_path / "x", 5).write(b"old")
    note = FencedPair._note

    def replaced(self, *given):
        (copy,) = tmp_path.glob(".lifehold-*.new")
        copy.unlink()
        copy.write_bytes(b"of another one")
        note(self, *given)

    monkeypatch.setattr(FencedPair, "_note", replaced)
    with pytest.raises(SystemRefused, match="try again"):
        FencedFile(tmp_path / "x", 5).write(b"new")
    assert (tmp_path / "x").read_bytes() == b"old"


def test_the_next_writer_removes_what_a_killed_one_has_left(tmp_path, monkeypatch):
    """Under the names of now, and under those that an older lifehold gave its copies."""
    names = []
    for store, name in ((FencedFile(tmp_path / "x", 5), "x"), (None, "y.object")):
        guard = store or FencedObject(FolderObjects(tmp_path), "y", 5)
        opened = HOST.open
        monkeypatch.setattr(HOST, "open", lambda *a, o=opened: names.append(a[0]) or o(*a))
        guard.write(b"old")
        monkeypatch.undo()
        copies = {os.path.basename(each) for each in names if each.endswith(".new")}
        names.clear()
        old = {"x.fence.new", "x.fence.data.new"} if name == "x" else {"y.object.new"}
        for each in copies | old:
            (tmp_path / each).write_bytes(b"half")
        (tmp_path / "x.new").write_bytes(b"of the user")
        before = set(os.listdir(tmp_path))
        guard.write(b"new")
        assert guard.read().data == b"new"
        assert before - set(os.listdir(tmp_path)) == copies | old


def test_an_error_of_the_change_is_the_callers_own(tmp_path):
    def change(_):
        raise FileNotFoundError(errno.ENOENT, "of the caller")

    with pytest.raises(FileNotFoundError, match="of the caller"):
        FencedFile(tmp_path / "x", 5).update(change)
    FencedFile(tmp_path / "x", 5, wait=0).write(b"the lock is free")


def test_a_file_that_other_machines_may_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ground, "is_unproven", lambda _: True)
    with pytest.raises(UnsafeGround, match="server_locks=True"):
        FencedFile(tmp_path / "x", 5)
    with pytest.raises(UnsafeGround):
        FolderObjects(tmp_path)
    FencedFile(tmp_path / "x", 5, server_locks=True).write(b"x")


def test_a_path_that_names_no_file_is_refused():
    for bad in ("", "a\0b", "folder/", 5, b"x"):
        with pytest.raises(InvalidArgument):
            FencedFile(bad, 5)


# ---- objects


@pytest.mark.parametrize("make", [MemoryObjects, lambda: S3Objects(Bucket(), "b", trusted=True)])
def test_a_mark_never_comes_back_not_even_with_the_same_bytes(make):
    store = make()
    assert store.put_if("x", b"same", 5, None)
    before = store.get("x").etag
    assert store.put_if("x", b"same", 5, before)
    assert not store.put_if("x", b"late", 5, before)


def test_a_write_that_was_overtaken_between_look_and_put_looks_again():
    store, late = MemoryObjects(), []

    class Slow(MemoryObjects):
        get = store.get

        def put_if(self, key, data, token, etag):
            if not late:
                late.append(store.put_if(key, b"newer", 6, etag))
            return store.put_if(key, data, token, etag)

    FencedObject(store, "x", 5).write(b"first")
    with pytest.raises(StaleToken):
        FencedObject(Slow(), "x", 5).write(b"late")
    assert late == [True]
    assert FencedObject(store, "x").read().data == b"newer"


def test_a_request_that_was_sent_again_after_a_lost_reply_is_done_once():
    class Again(Bucket):
        def put_object(self, **request):
            super().put_object(**request)
            super().put_object(**request)  # as botocore does when it heard nothing

    store = S3Objects(Again(), "b", trusted=True)
    for number in range(3):
        made = FencedObject(store, "x", 5).update(lambda data: (data or b"") + b"+")
        assert made == b"+" * (number + 1)
    assert FencedObject(store, "x").read().data == b"+++"


def test_an_object_that_never_stands_still_is_an_unknown_outcome():
    class Restless(MemoryObjects):
        def put_if(self, key, data, token, etag):
            return False

    with pytest.raises(StoreUnavailable, match="without the lock"):
        FencedObject(Restless(), "x", 5).write(b"x")


def test_a_server_that_passes_over_conditions_is_refused():
    bucket = Bucket()
    bucket.heeds = False
    with pytest.raises(UnsafeGround, match="If-Match"):
        FencedObject(S3Objects(bucket, "b"), "x", 5).write(b"x")
    assert bucket.objects == {}


def test_an_object_that_was_there_before_is_data_without_a_token():
    bucket = Bucket()
    bucket.objects["x"] = b'{"a": 1}\nplain'
    guard = FencedObject(S3Objects(bucket, "b"), "x", 5)
    assert guard.read() == Fenced(b'{"a": 1}\nplain', 0, 0)
    guard.write(b"new")
    assert guard.read() == Fenced(b"new", 5, 5)


def test_an_object_whose_first_line_was_cut_is_corrupt():
    bucket = Bucket()
    for cut in (sealed(b"data", 5)[:60], sealed(b"data", 5).replace(b'"token":5', b'"token":-5')):
        bucket.objects["x"] = cut
        with pytest.raises(CorruptRecord):
            FencedObject(S3Objects(bucket, "b"), "x", 5).write(b"x")


@pytest.mark.parametrize(
    "members",
    [b'"x":' + b"[" * 100_000, b'"token":1e999,"void":false,"nonce":"x"}',
     b'"token":1.5,"void":false,"nonce":"x"}', b'"token":true,"void":false,"nonce":"x"}',
     b'"token":"5","void":false,"nonce":"x"}', b'"token":5,"void":false,"nonce":[]}',
     b'"token":5,"void":"no","nonce":"x"}'],
)  # fmt: skip
def test_an_object_with_a_first_line_of_another_is_corrupt(tmp_path, members):
    (tmp_path / "x.object").write_bytes(FRONT + members + b"\ndata")
    guard = FencedObject(FolderObjects(tmp_path), "x", 5)
    for act in (guard.read, guard.advance, lambda: guard.write(b"new")):
        with pytest.raises(CorruptRecord):
            act()


def test_another_error_of_the_server_is_the_callers_to_see():
    class Denied(Bucket):
        def get_object(self, **_):
            raise Refused("AccessDenied")

    with pytest.raises(Refused):
        FencedObject(S3Objects(Denied(), "b"), "x", 5).write(b"x")


def test_an_object_in_a_folder_keeps_its_mode(tmp_path):
    path = tmp_path / "x.object"
    guard = FencedObject(FolderObjects(tmp_path), "x", 5)
    guard.write(b"secret")
    path.chmod(0o600)
    guard.write(b"another")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    FencedObject(FolderObjects(tmp_path, mode=0o640), "x", 5).write(b"by order")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o4755)
    with pytest.raises(UnsafeGround, match="runs as its owner"):
        guard.write(b"more")


def test_a_key_stays_in_its_folder(tmp_path):
    store = FolderObjects(tmp_path / "in", durable=False)
    keys = ["../out/a b", ".", "..", "x", "x.lock", "x.object.lock", "x.object.new"]
    for key in keys:
        FencedObject(store, key, 5).write(key.encode())
    assert os.listdir(tmp_path) == ["in"]
    assert [FencedObject(store, key).read().data for key in keys] == [k.encode() for k in keys]
    with pytest.raises(InvalidArgument, match="too long"):
        FencedObject(store, "x" * 300, 5).write(b"x")


@needs("package:moto", "package:boto3")
@pytest.mark.filterwarnings("ignore")
def test_the_client_of_boto3_is_spoken_to_as_it_wants(monkeypatch):
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        store = S3Objects(client, "bucket")
        first = FencedObject(store, "x", 5)
        first.advance()
        assert first.read().data is None
        first.write(b"one")
        FencedObject(store, "x", 6).advance()
        with pytest.raises(StaleToken):
            first.write(b"late")
        assert FencedObject(store, "x").read() == Fenced(b"one", 6, 6)
