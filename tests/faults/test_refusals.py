"""What a file system refuses is told in one sentence with a remedy, by whatever kind meets it."""

from __future__ import annotations

import errno
import os

import pytest

from lifehold import LifeholdError, Lock
from lifehold.local import refusals
from lifehold.local.files import HOST

ENOTSUPP = 524  # what the kernel's NFS client lets out; the C library has no words for it
FLOCK = {
    errno.ENOLCK: "generation", errno.ENOSYS: "generation", errno.EOPNOTSUPP: "generation",
    ENOTSUPP: "generation", errno.EBADF: "written",
}  # fmt: skip
OPEN = {errno.ESTALE: "try again", errno.EROFS: "written|read-only", errno.EACCES: "owner|shared="}
KINDS = ["kernel", "soft", "link", "generation"]


def failing(monkeypatch, call, code):
    def fail(*args, **named):
        raise OSError(code, os.strerror(code), args[0] if isinstance(args[0], str) else None)

    monkeypatch.setattr(HOST, call, fail)


def sentence(path, text):
    """It names the path, says what happened, and goes on to a remedy."""
    assert path in text or os.path.dirname(path) in text, text
    remedy = text.rpartition(": ")[2]
    assert len(remedy) > 8, f"no remedy: {text}"
    assert remedy != os.strerror(errno.EACCES)
    assert "\n" not in text


@pytest.mark.parametrize("code", FLOCK, ids=lambda code: errno.errorcode.get(code, str(code)))
def test_a_kernel_lock_where_nothing_is_locked_names_the_kind_that_works(
    tmp_path, monkeypatch, code
):
    path = str(tmp_path / "lock")
    failing(monkeypatch, "flock", code)
    with pytest.raises(LifeholdError) as caught:
        Lock(path, kind="kernel", wait=0).acquire()
    sentence(path, str(caught.value))
    assert FLOCK[code] in str(caught.value)


@pytest.mark.parametrize("kind", ["link", "generation"])
@pytest.mark.parametrize("code", FLOCK, ids=lambda code: errno.errorcode.get(code, str(code)))
def test_a_kind_that_needs_no_flock_works_where_there_is_none(tmp_path, monkeypatch, kind, code):
    failing(monkeypatch, "flock", code)
    with Lock(tmp_path / "lock", kind=kind, ttl=30, wait=0) as lease:
        lease.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", OPEN, ids=errno.errorcode.get)
def test_a_refused_open_is_told_in_one_sentence_with_a_remedy(tmp_path, monkeypatch, kind, code):
    path = str(tmp_path / "lock")
    if kind != "kernel":  # which keeps what it has opened, and opens nothing the next time
        Lock(path, kind=kind, wait=0).acquire().release()
    failing(monkeypatch, "open", code)
    with pytest.raises(LifeholdError) as caught:
        Lock(path, kind=kind, wait=0).acquire()
    sentence(path, str(caught.value))


@pytest.mark.parametrize("kind", ["kernel", "soft"])
def test_a_read_only_file_system_is_told_with_what_can_be_locked_there(tmp_path, monkeypatch, kind):
    failing(monkeypatch, "open", errno.EROFS)
    with pytest.raises(LifeholdError) as caught:
        Lock(tmp_path / "lock", kind=kind, wait=0).acquire()
    said = str(caught.value)
    assert (
        ": Read-only file system: only a lock file that exists already can be locked here" in said
    )
    assert said.endswith("choose another folder, for plain names of the command by LIFEHOLD_DIR")


def test_every_errno_of_the_issue_has_its_remedy():
    for code in (*FLOCK, *OPEN):
        assert code in refusals.REMEDIES, errno.errorcode.get(code, code)
