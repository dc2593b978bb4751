"""What one host may say of a file system, whose view counts, and refreshed attributes."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from ground import needs
from lifehold import InvalidArgument, Lock, SystemRefused, UnsafeGround
from lifehold.core.owner import Owner
from lifehold.local import ground_probe, record, record_lock, refusals
from lifehold.local.files import HOST
from lifehold.local.ground import MountInfo
from lifehold.local.judge import LivenessJudge
from lifehold.local.record_handle import BorrowedRecord
from lifehold.local.refresh import refresh_attributes
from lifehold.runtime import clock

NEAR, FAR = MountInfo("ext4", "8:1"), MountInfo("nfs4", "0:50")


def test_on_a_disk_of_our_own_what_works_is_proven(tmp_path):
    survey = ground_probe.probe(str(tmp_path), anew=True)
    assert survey.place.one_kernel
    assert {survey.verdict(what) for what in ground_probe.WHAT} == {"proven"}
    assert survey.kinds == ("kernel", "generation", "link")
    assert os.listdir(tmp_path) == []
    assert ground_probe.probe(str(tmp_path)) is survey


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "cifs", ""])
def test_one_host_proves_nothing_of_a_shared_file_system(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(ground_probe, "ground_of", lambda path: MountInfo(kind, "0:9"))
    survey = ground_probe.probe(str(tmp_path), anew=True)
    assert {survey.verdict(what) for what in ground_probe.WHAT} == {"unproven"}
    assert "kernel" not in survey.kinds


def test_what_fails_here_is_refuted(tmp_path):
    class Odd(type(HOST)):
        def flock(self, fd, operation):
            raise OSError(errno.ENOLCK, "No locks available")

        def link(self, old, new):
            """Says that it was done."""

    survey = ground_probe.probe(str(tmp_path), files=Odd(), anew=True)
    assert (survey.verdict("flock"), survey.verdict("link")) == ("refuted", "refuted")
    assert survey.kinds == ()
    assert os.listdir(tmp_path) == []
    ground_probe._forget()


def judged(path, theirs, ours):
    """What is made of a record of another boot, whose writer and reader saw these grounds."""
    words = record.RecordTemplate(
        "link", Owner(pid=1, boot_id="another"), None, theirs, witness=True
    )
    path.write_bytes(record.WrittenRecord(words, 1, 7, 7).text)
    with path.open("rb") as file:
        return LivenessJudge("link", {}).judged(
            str(path), BorrowedRecord(HOST, file.fileno()), ours, clock.now
        )


@pytest.mark.parametrize(("theirs", "ours"), [(FAR, NEAR), (NEAR, FAR), (FAR, FAR)])
def test_the_weaker_of_both_views_counts(theirs, ours, tmp_path):
    assert judged(tmp_path / "record", theirs, ours).state == "unknown"


def test_a_free_witness_counts_where_both_see_one_kernel(tmp_path):
    assert judged(tmp_path / "record", NEAR, NEAR).state == "dead"


@pytest.mark.parametrize("kind", ["generation"])
def test_without_a_ttl_it_is_refused_on_shared_ground(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(record_lock, "ground_of", lambda path: FAR)
    with pytest.raises(UnsafeGround, match="ttl=30"):
        Lock(tmp_path / "a", kind=kind).acquire(0)
    with Lock(tmp_path / "a", kind=kind, ttl=30) as lease:
        lease.check()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, 524])
def test_where_there_are_no_locks_a_kind_that_needs_none_is_named(number):
    found = refusals.refused("/far/lock", OSError(number, os.strerror(number)))
    assert "kind='generation'" in str(found)


def test_attributes_are_refreshed_in_both_ways(tmp_path):
    path = tmp_path / "box"
    path.write_text("mail")
    path.chmod(0o640)
    refresh_attributes(path)
    with path.open("r+b") as file:
        refresh_attributes(file.fileno())
        refresh_attributes(file.fileno(), way="lockf")
    assert path.stat().st_mode & 0o7777 == 0o640
    with pytest.raises(InvalidArgument, match="descriptor"):
        refresh_attributes(path, way="lockf")
    with path.open("rb") as file, pytest.raises(SystemRefused, match="way='chmod'"):
        refresh_attributes(file.fileno(), way="lockf")
    with pytest.raises(SystemRefused, match="lockf"):
        refresh_attributes(tmp_path / "none")


@needs("linux")
@pytest.mark.parametrize("by", ["link", "file"])
def test_what_is_swapped_meanwhile_gets_no_mode_of_another(by, tmp_path, monkeypatch):
    """A user who may swap the file must not make one of root's run as its owner."""
    box, tool = tmp_path / "box", tmp_path / "tool"
    tool.write_text("tool")
    tool.chmod(0o755)
    box.write_text("mail")
    box.chmod(0o6777)
    inode = [os.lstat(box).st_ino]

    def swapped(look):
        def looked(*given, **named):
            found = look(*given, **named)
            if [found.st_ino] == inode:
                inode.clear()
                box.unlink()
                box.symlink_to(tool) if by == "link" else os.link(tool, box)
            return found

        return looked

    for name in ("stat", "fstat"):
        monkeypatch.setattr(os, name, swapped(getattr(os, name)))
    refresh_attributes(box)
    monkeypatch.undo()
    assert tool.samefile(box), "it was not swapped"
    assert tool.stat().st_mode & 0o7777 == 0o755


@needs("linux")
def test_attributes_are_refreshed_of_no_link_and_without_a_right_to_read(tmp_path):
    path = tmp_path / "box"
    path.write_text("mail")
    path.chmod(0)
    before = path.stat().st_ctime_ns
    refresh_attributes(path)
    assert path.stat().st_mode & 0o7777 == 0
    assert path.stat().st_ctime_ns >= before
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SystemRefused, match="symbolic link"):
        refresh_attributes(tmp_path / "link")


@needs("linux")
def test_refreshing_by_the_path_drops_no_posix_lock(tmp_path):
    path = tmp_path / "box"
    with path.open("w", encoding="utf-8") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        refresh_attributes(path)
        child = os.fork()
        if child == 0:
            with path.open("r+b") as other:
                try:
                    fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
