"""`clear` removes what is proven dead, as the lock that was judged, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import unit_formats as formats
from ground import needs, require
from lifehold import LeaseLost, Lock, WouldBlock
from lifehold.cli import clear as cli
from lifehold.core.owner import INITIAL_PID_NAMESPACE, Owner
from lifehold.ops import clear as ops
from lifehold.ops import clear as removal
from lifehold.ops import families, foreign_verdict
from lifehold.ops.answer import SUSPECT
from lifehold.ops.clear import FREED, KEPT, NOTHING, REMOVED, WOULD, WOULD_FREE, clear, placeholder
from lifehold.ops.foreign import ForeignFiles
from lifehold.runtime import process

pytestmark = needs("linux", "proc")
REMOVABLE = {
    "chromium", "firefox", "emacs", "mercurial", "flufl", "git-gc", "postgres", "celery",
    "gunicorn", "rails", "x-server", "uucp",
}  # fmt: skip
EMPTIED = {"dotlockfile", "pidfile"}  # whoever writes such a file may lock it by the kernel, too


TAKEN_OVER = {"filelock-soft", "filelock-marker", "filelock-lease"}  # by its next holder


@pytest.fixture(autouse=True)
def log(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("names")
    monkeypatch.setenv("LIFEHOLD_DIR", str(folder))
    return folder / ".cleared.history"


@pytest.fixture(scope="module")
def gone() -> int:
    pid = 4_190_000
    while process.look(pid).exists:
        pid -= 1
    return pid


@pytest.fixture
def all_seen() -> None:
    require("all processes")


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("family", formats.FORMATS)
def test_a_stale_lock_is_removed_or_left_to_its_own_tool(family, tmp_path, gone, all_seen, log):
    path = formats.FORMATS[family](tmp_path, gone)
    before = sorted(each.name for each in path.parent.iterdir())
    done = clear(str(path))
    left = NOTHING if family in TAKEN_OVER else FREED if family in EMPTIED else KEPT
    assert done.action == (REMOVED if family in REMOVABLE else left), done.why
    assert os.path.lexists(path) == (family not in REMOVABLE)
    after = sorted(each.name for each in path.parent.iterdir())
    assert set(after) == set(before) - ({path.name} if family in REMOVABLE else set())
    if family in EMPTIED:
        assert (path.read_bytes(), path.stat().st_mtime) == (b"", 0)
        assert clear(str(path)).action == NOTHING
    if family in REMOVABLE | EMPTIED:
        (entry,) = lines(log)
        assert (entry["event"], entry["name"], entry["label"]) == ("clear", str(path), family)
        assert str(gone) in entry["reason"] or "restarted" in entry["reason"]
    else:
        assert lines(log) == []


@pytest.mark.parametrize("family", ["pidfile", "chromium", "filelock-soft", "borg", "dvc"])
def test_a_lock_of_the_living_stays_and_only_its_word_removes_it(family, tmp_path, log):
    path = formats.FORMATS[family](tmp_path, os.getpid())
    done = clear(str(path))
    assert done.action == KEPT
    assert os.path.lexists(path)
    assert lines(log) == []
    if family in REMOVABLE | EMPTIED:
        assert clear(str(path), force="deadbeef").action == KEPT
        freed = FREED if family in EMPTIED else REMOVED
        assert clear(str(path), force=done.word).action == freed
        assert lines(log)[0]["reason"].startswith("by order, although")


def test_a_word_is_wrong_when_the_lock_is_another_one(tmp_path):
    path = formats.file(tmp_path, "a.pid", f"{os.getpid()}\n")
    word = clear(str(path)).word
    path.unlink()
    formats.file(tmp_path, "a.pid", f"{os.getpid()}\n")
    assert clear(str(path), force=word).action == KEPT
    assert path.exists()


def test_the_file_of_a_kernel_lock_is_never_removed(tmp_path):
    path = tmp_path / "a.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held = clear(str(path))
        assert clear(str(path), force=ops.word_of(str(path))).action == KEPT
    assert (held.action, held.word) == (KEPT, "")
    assert clear(str(path)).action == NOTHING
    with Lock(path):
        assert clear(str(path)).action == KEPT
    assert clear(str(path)).action == NOTHING
    assert path.exists()


def test_a_record_of_a_newer_version_is_kept_and_not_called_free(tmp_path):
    path = formats.file(tmp_path, "x.lock", '{"lifehold":99,"x":1' + " " * 1000 + "}")
    outcome = clear(str(path))
    assert outcome.action == KEPT
    assert outcome.why.startswith("its record has version 99, of a newer lifehold")
    assert path.exists()


def test_a_pid_file_under_a_kernel_lock_is_never_removed(tmp_path, gone):
    path = formats.file(tmp_path, "daemon.pid", f"{gone}\n")
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert clear(str(path)).action == KEPT
    assert path.exists()


@pytest.mark.parametrize("name", ["x.lock", "cron.pid", "rsyncd.pid"])
@pytest.mark.parametrize("way", ["opened", "locked by fcntl", "waits in flock"])
def test_who_locks_a_file_while_it_is_cleared_locks_the_one_that_stays(
    name, way, tmp_path, gone, all_seen, monkeypatch
):
    """Removed under its hands, it would hold a file without a name, and the next one another."""
    path = formats.file(tmp_path, name, f"{gone}\n")
    note, opened, children = ops.history.append, [], []

    def use_it(*words, **more):
        if opened or children:
            return note(*words, **more)
        if way == "opened":
            opened.append(os.open(path, os.O_RDWR))
        elif not (child := os.fork()):
            fd = os.open(path, os.O_RDWR)
            if way == "locked by fcntl":
                fcntl.lockf(fd, fcntl.LOCK_EX)
            os.write(told[1], b"x")
            fcntl.flock(fd, fcntl.LOCK_EX)
            signal.pause()
        else:
            children.append(child)
            os.read(told[0], 1)
        return note(*words, **more)

    told = os.pipe()
    monkeypatch.setattr(ops.history, "append", use_it)
    before = path.stat().st_ino
    try:
        assert clear(str(path)).action == KEPT
        assert path.stat().st_ino == before
        assert path.read_text() == f"{gone}\n"
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        for fd in (*opened, *told):
            os.close(fd)


def test_a_file_with_a_second_name_is_not_emptied(tmp_path, gone, all_seen):
    path = formats.file(tmp_path, "job.pid", f"{gone}\n")
    os.link(path, tmp_path / "data")
    done = clear(str(path))
    assert (done.action, path.read_text()) == (KEPT, f"{gone}\n")
    assert "another name" in done.why


@pytest.mark.parametrize("name", ["state.json", "worker.pid", "job.lock"])
@pytest.mark.parametrize(
    "more",
    [{"done": [1, 2]}, {"node": "other"}, {"created": {"at": 1}}, {"host": ["other"]}],
    ids=str,
)
def test_json_that_says_more_than_a_lock_s_record_is_never_emptied(
    more, name, tmp_path, gone, all_seen
):
    path = formats.file(tmp_path, name, json.dumps({"pid": gone, **more}))
    done = clear(str(path))
    assert (done.action, done.answer.state) == (KEPT, SUSPECT)
    assert "may be somebody's data" in done.why
    with pytest.raises(WouldBlock):
        Lock(path, kind="soft", wait=0).acquire()
    assert json.loads(path.read_text()) == {"pid": gone, **more}


@pytest.mark.parametrize("more", [{}, {"created": 1.0}, {"hostname": None}], ids=str)
def test_json_that_only_names_its_process_is_emptied(more, tmp_path, gone, all_seen):
    path = formats.file(tmp_path, "worker.pid", json.dumps({"pid": gone, **more}))
    assert clear(str(path)).action == FREED


def test_a_dry_run_removes_and_notes_nothing(tmp_path, gone, all_seen, log):
    path = formats.file(tmp_path, "a.pid", f"{gone}\n")
    assert clear(str(path), dry_run=True).action == WOULD_FREE
    assert path.read_text() == f"{gone}\n"
    other = formats.file(tmp_path, "LCK..ttyS0", f"{gone}\n")
    assert clear(str(other), dry_run=True).action == WOULD
    assert other.exists()
    assert not log.exists()


@pytest.mark.parametrize("what", ["another name", "has it open", "not permitted"])
def test_a_dry_run_tells_what_would_be_kept(what, tmp_path, gone, all_seen, log):
    path = formats.file(tmp_path, "a.pid", f"{gone}\n")
    with ExitStack() as left:
        if what == "another name":
            os.link(path, tmp_path / "data")
        elif what == "has it open":
            left.enter_context(path.open())
        else:
            require("root")
            if subprocess.run(["chattr", "+i", path], check=False, capture_output=True).returncode:
                pytest.skip("this file system knows no immutable files")
            left.callback(subprocess.run, ["chattr", "-i", path], check=True)
        tried, done = clear(str(path), dry_run=True), clear(str(path))
    assert (tried.action, done.action) == (KEPT, KEPT)
    assert what in tried.why
    assert what in done.why
    assert tried.left


@pytest.mark.parametrize("kind", ["soft", "link", "directory", "generation"])
def test_a_dead_lock_of_ours_is_cleared_by_its_own_takeover(kind, tmp_path, log):
    path = tmp_path / "a.lock"
    child = os.fork()
    if child == 0:
        Lock(path, kind=kind).acquire(wait=0)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    done = clear(str(path))
    assert done.action == (FREED if kind == "generation" else REMOVED), done.why
    assert os.path.exists(path) == (kind == "generation")
    assert lines(log)[0]["event"] == "clear"
    with Lock(path, kind=kind, wait=0) as lease:
        assert lease.token is None or lease.token > 1
        assert clear(str(path)).action == KEPT
        lease.release()


def test_nothing_is_removed_without_a_line_in_the_log(tmp_path, gone, all_seen, monkeypatch):
    path = formats.file(tmp_path, "a.pid", f"{gone}\n")
    monkeypatch.setattr(ops.history, "append", lambda *args, **more: False)
    with pytest.raises(Exception, match="audit log"):
        clear(str(path))
    assert path.exists()


@pytest.mark.parametrize("at", ["judged", "posted", "checked", "exchanged", "unlinked"])
@pytest.mark.parametrize("form", ["file", "link"])
def test_a_lock_taken_at_any_step_is_not_lost(at, form, tmp_path, gone):
    """Another tool breaks the dead lock by its path and takes it, in the middle of our removal."""
    path = tmp_path / "lock"
    make = {
        "file": lambda pid: path.write_text(f"{pid}\n"),
        "link": lambda pid: path.symlink_to(f"host-{pid}"),
    }[form]
    make(gone)
    found, words = os.lstat(path), removal.words_of(str(path))

    def intrude(step: str) -> None:
        if step == at:
            path.unlink()
            make(os.getpid())

    try:
        removal.remove_judged(str(path), found, words, Owner(gone), intrude)
    except removal.ChangedMeanwhile:
        pass
    assert str(os.getpid()).encode() in removal.words_of(str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_a_placeholder_that_another_exchanges_aside_and_puts_back_frees_nothing(
    tmp_path, gone, monkeypatch
):
    """filelock judges the same dead lock, exchanges its own for ours, sees it, and undoes that."""
    path, theirs = tmp_path / "lock", tmp_path / "theirs"
    path.write_text(f"{gone}\n")
    theirs.write_text("theirs\n")
    found, words = os.lstat(path), removal.words_of(str(path))

    def swap(*_: object) -> None:
        removal.exchange(str(theirs), str(path))

    monkeypatch.setattr(removal.clock, "pause", swap)
    removal.remove_judged(
        str(path), found, words, Owner(gone), lambda step: step == "unlinked" and swap()
    )
    assert theirs.read_text() == "theirs\n"
    assert [each.name for each in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("fourth", [False, True])
def test_a_lock_made_before_the_last_rename_is_put_back_or_told(
    fourth, tmp_path, gone, monkeypatch
):
    """Others break the placeholder by its path and take the lock, between our look and our step."""
    path = tmp_path / "lock"
    path.write_text(f"{gone}\n")
    found, words = os.lstat(path), removal.words_of(str(path))
    stands, rename_new = removal._stands, removal.rename_new

    def taken(*given):
        stood = stands(*given)
        path.unlink()
        path.write_text("third\n")
        return stood

    def late(*given):
        if fourth:
            path.write_text("fourth\n")
        rename_new(*given)

    monkeypatch.setattr(removal, "_stands", taken)
    monkeypatch.setattr(removal, "rename_new", late)
    remove = partial(removal.remove_judged, str(path), found, words, Owner(gone))
    if not fourth:
        remove()
        assert [each.read_text() for each in tmp_path.iterdir()] == ["third\n"]
        return
    with pytest.raises(removal.ChangedMeanwhile, match="two of them have it now") as told:
        remove()
    assert path.read_text() == "fourth\n"
    (aside,) = (each for each in tmp_path.iterdir() if each != path)
    assert aside.read_text() == "third\n"
    assert aside.name in str(told.value)


@pytest.mark.parametrize("at", ["judged", "posted", "checked", "exchanged", "unlinked"])
def test_a_lock_released_at_any_step_leaves_nothing(at, tmp_path, gone):
    path = tmp_path / "lock"
    path.write_text(f"{gone}\n")
    found, words = os.lstat(path), removal.words_of(str(path))
    try:
        removal.remove_judged(
            str(path), found, words, Owner(gone), lambda step: step == at and path.unlink()
        )
    except removal.ChangedMeanwhile:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_written_to_meanwhile_is_put_back(tmp_path, gone):
    path = tmp_path / "lock"
    path.write_text(f"{gone}\n")
    found, words = os.lstat(path), removal.words_of(str(path))

    def adopt(step: str) -> None:
        if step == "posted":
            path.write_text("777\n")

    with pytest.raises(removal.ChangedMeanwhile, match="another took it"):
        removal.remove_judged(str(path), found, words, Owner(gone), adopt)
    assert path.read_text() == "777\n"
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_what_stands_there_during_a_removal_is_a_lock_of_this_process(tmp_path, gone):
    path = tmp_path / "SingletonLock"
    path.symlink_to(f"host-{gone}")
    seen = []
    removal.remove_judged(
        str(path), os.lstat(path), removal.words_of(str(path)), Owner(gone),
        lambda step: seen.append((step, os.readlink(path) if path.is_symlink() else "")),
    )  # fmt: skip
    assert dict(seen)["exchanged"] == f"host-{os.getpid()}"
    assert not path.is_symlink()


HERE = process.here()


@pytest.mark.parametrize(
    ("link", "words", "expected"),
    [
        (False, "77\n", "{pid}\n"),
        (False, "772 77 x", "772 {pid} x"),
        (False, "00077 minicom ana\n", "000{pid} minicom ana\n"),
        (False, "1077 077", "1077 0{pid}"),
        (True, "vm-77-77", "vm-77-{pid}"),
        (True, "ana@web77.77:1790000000", "ana@web77.{pid}:1790000000"),
    ],
)
def test_a_placeholder_names_us_where_the_dead_was_named(link, words, expected):
    told = placeholder(words.encode(), Owner(77), link=link)
    assert told.decode() == expected.format(pid=os.getpid())


def test_a_placeholder_of_a_serial_line_s_int_is_one(tmp_path):
    told = placeholder((77).to_bytes(4, sys.byteorder), Owner(77), link=False)
    assert told == os.getpid().to_bytes(4, sys.byteorder)


def test_a_placeholder_of_filelock_has_our_begin_and_is_alive_by_its_rules(tmp_path):
    """With the begin of the dead beside our number, filelock takes it over in our hands."""
    ticks, ns = 4321, 0xF0000158
    began = int(HERE.boot_id.replace("-", ""), 16) << 64
    words = f"77\nvm?pidns-{ns:08x}\n{began | ticks}\n".encode()
    dead = Owner(77, boot_id=HERE.boot_id, start_ticks=ticks, pid_ns=ns)
    path = tmp_path / "a.lock"
    path.write_bytes(placeholder(words, dead, link=False))
    family, claim = families.recognised(families.LockPath(str(path)))
    assert family.name == "filelock-soft"
    assert (claim.pid, claim.ticks, claim.boot) == (HERE.pid, HERE.start_ticks, HERE.boot_id)
    ours = None if HERE.pid_ns == INITIAL_PID_NAMESPACE else HERE.pid_ns
    assert claim.pid_ns == ours


def test_at_boot_only_what_an_earlier_boot_left_is_cleared(tmp_path, gone, all_seen, monkeypatch):
    """By the boot that a record names; of a bare number by the time of the file, too."""
    path = formats.file(tmp_path, "a.pid", f"{gone}\n")
    kept = clear(str(path), earlier_boot=True)
    assert (kept.action, path.exists()) == (KEPT, True)
    assert "since this machine has started" in kept.why
    monkeypatch.setattr(ops.process, "began_at", lambda ticks: 2e10)  # all files are older
    assert clear(str(path), earlier_boot=True).action == FREED
    before = "0123abcd-0000-4000-8000-000000000001"
    for boot_id, action in ((HERE.boot_id, KEPT), (before, REMOVED)):
        began = int(boot_id.replace("-", ""), 16) << 64 | 4321
        host = f"{HERE.host}?pidns-f0000158"  # of a container: no filelock here takes it over
        path = formats.file(tmp_path, "x.lock", f"{gone}\n{host}\n{began}\n")
        assert clear(str(path), earlier_boot=True).action == action


def test_a_live_lock_that_is_older_than_the_boot_stays(tmp_path, all_seen, monkeypatch):
    """A clock that was set forward after the file was made makes it look so."""
    monkeypatch.setattr(ops.process, "began_at", lambda ticks: 2e10)
    path = formats.file(tmp_path, "a.pid", f"{os.getpid()}\n")
    assert clear(str(path), earlier_boot=True).action == KEPT


def test_the_locks_of_a_folder_share_their_looks_at_all_processes(
    tmp_path, gone, all_seen, monkeypatch
):
    for number in range(40):
        formats.file(tmp_path, f"{number}.pid", f"{gone}\n")
    looks = []

    def processes(real=foreign_verdict.processes):
        looks.append(1)
        return real()

    monkeypatch.setattr(foreign_verdict, "processes", processes)
    given = {"deep": False, "boot": False}
    outcomes = cli._of_folder(str(tmp_path), given, {"dry_run": True})
    assert [each.action for each in outcomes] == [WOULD_FREE] * 40
    assert len(looks) < 40, len(looks)


def test_a_lock_is_removed_by_a_look_of_its_own(tmp_path, gone, all_seen, monkeypatch):
    """An older look is enough to be asked about, and no proof."""
    path = formats.file(tmp_path, "my.pid", f"{gone}\n")
    files = ForeignFiles([str(path)])
    files.eyes._seen = []  # it was made before a container's process took that number
    monkeypatch.setattr(
        foreign_verdict.ProcessTable,
        "called",
        lambda self, number: [] if self is files.eyes else [os.getpid()],
    )
    assert clear(str(path), dry_run=True, found=True, files=files).action == WOULD_FREE
    assert clear(str(path), found=True, files=files).action == KEPT
    assert path.read_text() == f"{gone}\n"


OURS = ["soft", "link", "generation", "folder", "directory"]


@pytest.mark.parametrize("kind", OURS)
def test_who_comes_while_the_holder_of_the_word_goes_is_not_broken(
    kind, tmp_path, monkeypatch, log
):
    path = tmp_path / "a.lock"
    first = Lock(path, kind=kind).acquire()
    word = clear(str(path)).word
    note, second = ops._note, []

    def others_meet(*noted):
        note(*noted)
        if not second:
            first.release()
            second.append(Lock(path, kind=kind).acquire(wait=0))

    monkeypatch.setattr(ops, "_note", others_meet)
    done = clear(str(path), force=word)
    second[0].check()
    assert (done.action, "let go meanwhile" in done.why) == (KEPT, True)
    assert [each["event"] for each in lines(log)] == ["clear", "kept"]
    second[0].release()


@pytest.mark.parametrize("kind", OURS)
def test_the_word_ends_the_grant_that_it_names(kind, tmp_path):
    path = tmp_path / "a.lock"
    lease = Lock(path, kind=kind).acquire()
    assert clear(str(path), force=clear(str(path)).word).action in (REMOVED, FREED)
    with pytest.raises(LeaseLost):
        lease.release()
    Lock(path, kind=kind).acquire(wait=0).release()


@pytest.mark.parametrize("kind", sorted({*OURS} - {"folder"}))
def test_a_heartbeat_leaves_the_word_and_another_grant_does_not(kind, tmp_path):
    path, changed = tmp_path / "a.lock", time.monotonic() + 60
    with Lock(path, kind=kind, ttl=0.5) as lease:
        word, before = clear(str(path)).word, times(path)
        while times(path) == before:
            assert time.monotonic() < changed, "no heartbeat"
            time.sleep(0.02)
        assert clear(str(path)).word == word
        lease.check()
    with Lock(path, kind=kind, ttl=0.5):
        assert clear(str(path)).word != word
        assert clear(str(path), force=word).action == KEPT


def times(path):
    """Of the lock, and of what stands in it."""
    return {each: os.lstat(each).st_ctime_ns for each in [path, *path.glob("*")]}
