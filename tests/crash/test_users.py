"""Several users on one lock file: umasks, modes, sticky folders, folders that may not be written.

The claims: whoever may open the file takes part, and is told who holds it; whoever may not is told
what to ask for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crash.containers import FRESH
from crash.scene import free, hold, next_token, open_files, until, waits_in_the_kernel
from crash.terrain import NOBODY, as_nobody, folder_for_all, refusal_of, result, tree
from ground import needs
from lifehold import Lock, ReadWriteLock, Semaphore, WouldBlock
from lifehold.ops import doctor
from lifehold.ops.inventory import of_folder
from lifehold.ops.who import who
from lifehold.runtime import wakeup_pipes
from lifehold.testing.crash import Child, point

pytestmark = needs("root")
PROTECTED = Path("/proc/sys/fs/protected_regular")


def hold_under(umask, path, **options):
    os.umask(umask)
    hold(path, **options)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def take(path, wait=0, **options):
    """[token, why None] of a grant."""
    with Lock(path, wait=wait, **options) as lease:
        lease.check()
        return [lease.token, lease.token_reason]


def test_a_shared_lock_made_under_umask_077_is_for_all_users_with_record_and_token():
    with folder_for_all() as folder:
        path = str(folder / "lock")

        def made():
            hold_under(0o077, path, shared=True)

        with Child(made) as holder:
            first = holder.at("held")
            assert mode_of(path) == 0o666
            assert result(as_nobody(refusal_of, Lock(path).acquire, 0))[0] == "WouldBlock"
        second, reason = result(as_nobody(take, path))
        assert reason is None
        assert first < second < next_token(path)
        assert mode_of(path) == 0o666


def test_a_second_user_waits_is_told_who_holds_it_and_gets_in():
    with folder_for_all() as folder:
        path = str(folder / "lock")

        def waits():
            lock = Lock(path, shared=True)
            told = refusal_of(lock.acquire, 0.05)
            point("told", told)
            with lock.acquire(60) as lease:
                return lease.token

        with Child(lambda: hold(path, shared=True, label="of root")) as holder:
            token = holder.at("held")
            with as_nobody(waits) as waiter:
                kind, text, _ = waiter.at("told")
                assert kind == "Timeout"
                for fact in (f"pid {holder.pid}", "user root", "label of root", "alive  yes"):
                    assert fact in text
                waiter.go()
                until(lambda: waits_in_the_kernel(waiter.pid))
                holder.go()
                end = waiter.end()
        assert end.well, end.error
        assert end.value > token


def test_root_is_told_which_user_holds_it():
    with folder_for_all(0o777) as folder:
        path = str(folder / "lock")
        with as_nobody(hold, path) as holder:
            holder.at("held")
            with pytest.raises(WouldBlock) as caught:
                Lock(path).acquire(0)
            assert (caught.value.holder.owner.uid, caught.value.holder.owner.pid) == (
                NOBODY, holder.pid,
            )  # fmt: skip
        assert os.stat(path).st_uid == NOBODY
        assert next_token(path) > 0
        assert os.stat(path).st_uid == NOBODY


def test_who_gave_up_the_rights_of_root_is_told_as_who_he_is_now():
    with folder_for_all(0o777) as folder:
        path = str(folder / "lock")

        def began_as_root():
            with Lock(str(folder / "first")):
                pass
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            hold(path)

        with Child(began_as_root) as holder:
            holder.at("held")
            with pytest.raises(WouldBlock) as caught:
                Lock(path).acquire(0)
            assert caught.value.holder.owner.uid == NOBODY


@pytest.mark.parametrize("kind", ["soft", "link", "directory", "generation", "folder"])
def test_another_user_is_not_told_that_a_living_holder_is_gone(kind):
    def looks(path):
        answer = who(path, path)
        return answer.state, answer.holder.evidence, answer.holder.pid_here

    with folder_for_all() as folder:
        path = str(folder / "lock")
        with Child(lambda: hold(path, kind=kind, shared=True)) as holder:
            holder.at("held")
            who(path, path)  # loads what nobody may not be able to
            told = result(as_nobody(looks, path))
    assert told == ["held", "kernel witness", holder.pid]


def test_another_user_sees_that_there_are_readers_who_cannot_be_read():
    def looks(folder):
        return [[each.path, each.state] for each in of_folder(folder)]

    def reads(path):
        with ReadWriteLock(path, kind="soft").reading():
            point("held")

    with folder_for_all() as folder:
        path = str(folder / "x")
        (folder / "private").mkdir(0o700)
        with Child(reads, path) as holder:
            holder.at("held")
            looks(str(folder))
            assert result(as_nobody(looks, str(folder))) == [[path, "suspect"]]
            holder.go()


def test_a_bid_that_another_user_may_not_read_is_not_called_damaged():
    def looks(path):
        answer = who(path, path)
        return answer.state, answer.note

    with folder_for_all() as folder:
        path = str(folder / "lock")
        with Child(lambda: hold(path, kind="folder")) as holder:
            holder.at("held")
            os.chmod(path, 0o755)
            who(path, path)
            assert result(as_nobody(looks, path)) == ["suspect", ""]


@needs("unshare")
def test_another_user_is_told_the_record_of_a_holder_in_a_container():
    def looks(path):
        answer = who(path, path)
        return answer.state, answer.holder.owner.pid, answer.holder.token

    with folder_for_all() as folder:
        path = str(folder / "lock")
        code = (
            "import sys, lifehold; lease = lifehold.Lock(sys.argv[1]).acquire(0); "
            "print(lease.token, flush=True); sys.stdin.read(); lease.release()"
        )
        with subprocess.Popen(
            [*FRESH, sys.executable, "-c", code, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as container:
            try:
                token = int(container.stdout.readline())
                who(path, path)
                told = result(as_nobody(looks, path))
            finally:
                container.stdin.close()
                container.wait(60)
    assert told == ["held", 1, token]


@pytest.mark.parametrize("kind", ["soft", "link", "directory", "generation", "folder"])
def test_an_object_that_locks_again_without_the_rights_of_root_says_so(kind):
    with folder_for_all(0o777) as folder:

        def used_as_root():
            lock = Lock(folder / "lock", kind=kind, shared=True)
            lock.acquire().release()
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with lock:
                return lock.holder().owner.uid

        with Child(used_as_root) as child:
            end = child.end()
        assert (end.well, end.value) == (True, NOBODY), end.error


def test_slots_that_a_new_number_makes_are_for_all_users_as_the_first_ones():
    with folder_for_all(0o777) as folder:
        path = str(folder / "slots")

        def made():
            os.umask(0o077)
            for permits in (4, 6):
                Semaphore(path, permits, shared=True).acquire().release()

        with Child(made) as child:
            assert child.end().well
        assert {mode_of(each) for each in folder.iterdir()} == {0o666}

        def all_of_them():
            leases = [Semaphore(path, 6, shared=True).acquire(0) for _ in range(6)]
            return [lease.token_reason for lease in leases]

        assert result(as_nobody(all_of_them)) == [None] * 6


def test_a_refusal_names_its_path_once():
    with folder_for_all(0o755) as folder:
        path = folder / "lock"
        path.touch(0o644)
        kind, text, *_ = result(as_nobody(refusal_of, Lock(path, fair=True).acquire, 0))
        assert kind == "NotPermitted"
        assert text.count(str(path)) == 1, text


@pytest.mark.parametrize("kind", ["soft", "directory"])
def test_in_a_sticky_folder_who_may_not_follow_a_dead_holder_is_told_why(kind):
    with folder_for_all(0o1777) as folder:
        path = str(folder / "lock")
        with Child(lambda: hold(path, kind=kind, shared=True)) as holder:
            holder.at("held")
            holder.kill()
        told = result(as_nobody(refusal_of, Lock(path, kind=kind, shared=True).acquire, 0))
        assert told[0] == "NotPermitted"
        assert "in a folder with the sticky bit" in told[1]
        assert "kind='kernel' or 'generation'" in told[1]
        Lock(path, kind=kind, shared=True).acquire(0).release()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_folder_of_readers_has_the_mode_that_was_asked_for(umask):
    with folder_for_all(0o2777) as folder:
        for mode, expected in ((0o660, 0o770), (0o640, 0o750)):
            path = str(folder / f"{mode:o}")

            def made(path=path, mode=mode):
                os.umask(umask)
                ReadWriteLock(path, kind="soft", mode=mode).acquire_read().release()

            with Child(made) as child:
                assert child.end().well
            assert mode_of(f"{path}.readers") == 0o2000 | expected


@pytest.mark.parametrize("kind", ["soft", "link", "directory", "generation", "folder"])
def test_each_user_who_may_break_a_lock_may_note_it(kind):
    with folder_for_all(0o777) as folder:
        path = str(folder / "lock")

        def broken():
            os.umask(0o077)
            return Lock(path, kind=kind, shared=True).break_("it hangs").owner.pid

        for breaks in (Child, as_nobody, Child):
            with Child(lambda: hold(path, kind=kind, shared=True)) as holder:
                holder.at("held")
                with breaks(broken) as breaker:
                    end = breaker.end()
                holder.kill()
            assert (end.well, end.value) == (True, holder.pid), end.error


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize(
    ("options", "expected"),
    [({"shared": True}, 0o666), ({"mode": 0o600}, 0o600), ({"mode": 0o660}, 0o660), ({}, None)],
    ids=str,
)
def test_a_new_lock_file_has_the_mode_that_was_asked_for(umask, options, expected):
    with folder_for_all() as folder:
        path = str(folder / "lock")

        def made():
            hold_under(umask, path, **options)

        with Child(made) as holder:
            holder.at("held")
            assert mode_of(path) == (0o666 & ~umask if expected is None else expected)
        os.chmod(path, 0o640)
        next_token(path)
        with Lock(path, **options):
            assert mode_of(path) == 0o640, "one that exists keeps its own"


def test_a_private_lock_keeps_other_users_out_and_says_what_to_ask_for():
    with folder_for_all() as folder:
        path = str(folder / "lock")
        with Lock(path, mode=0o600):
            pass
        before = tree(folder)

        def play():
            opened = open_files()
            answers = [refusal_of(Lock(path, exclusive=exclusive).acquire, 1)
                       for exclusive in (True, False)]  # fmt: skip
            assert open_files() == opened
            return answers

        for kind, text, number in result(as_nobody(play)):
            assert (kind, number) == ("NotPermitted", 13)
            assert path in text
            assert "right to read it" in text
        assert tree(folder) == before
        assert free(path)


@contextlib.contextmanager
def protected_regular():
    """As systemd sets it: no O_CREAT on a file of another user in a sticky folder."""
    try:
        before = PROTECTED.read_text()
        PROTECTED.write_text("2")
    except OSError as error:
        pytest.skip(f"needs fs.protected_regular: {error.strerror}")
    try:
        yield
    finally:
        PROTECTED.write_text(before)


@pytest.mark.parametrize("first", ["root", "nobody"])
def test_in_a_sticky_folder_users_share_a_lock_that_any_of_them_made(first):
    with folder_for_all(0o1777) as folder, protected_regular():
        path = str(folder / "lock")
        os.chown(folder, 1234, 1234)  # its owner is excepted
        takers = [lambda: result(Child(take, path)), lambda: result(as_nobody(take, path))]
        made = Child(made_shared, path) if first == "root" else as_nobody(made_shared, path)
        tokens = [result(made)[0]]
        other = as_nobody(creates, path) if first == "root" else Child(creates, path)
        assert result(other) == "PermissionError", "what a plain O_CREAT meets here"
        for taker in [*takers, *takers]:
            token, reason = taker()
            assert reason is None
            tokens.append(token)
        assert tokens == sorted(set(tokens))


def made_shared(path):
    return take(path, shared=True)


def creates(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
    except OSError as error:
        return type(error).__name__
    return "opened"


def test_a_folder_that_may_not_be_written_is_enough_where_the_file_is_there():
    with folder_for_all(0o755) as folder:
        for name, mode in (("all.lock", 0o666), ("read.lock", 0o644)):
            (folder / name).touch()
            (folder / name).chmod(mode)
        token, reason = result(as_nobody(take, str(folder / "all.lock")))
        assert token
        assert reason is None
        token, reason = result(as_nobody(take, str(folder / "read.lock")))
        assert token is None
        assert "can only be read" in reason
        kind, text, _ = result(as_nobody(refusal_of, Lock(folder / "new.lock").acquire))
        assert kind == "NotPermitted"
        assert str(folder / "new.lock") in text
        assert sorted(os.listdir(folder)) == ["all.lock", "read.lock"]


def test_cleanup_in_a_folder_that_may_not_be_written_is_told_and_frees_the_lock():
    with folder_for_all(0o755) as folder:
        path = str(folder / "lock")
        (folder / "lock").touch()
        (folder / "lock").chmod(0o666)

        def play():
            lease = Lock(path, cleanup=True).acquire()
            return [refusal_of(lease.release), free(path)]

        (kind, text, _), freed = result(as_nobody(play))
        assert kind == "NotPermitted"
        assert path in text
        assert freed
        assert os.path.exists(path)


def test_a_user_who_lost_the_way_to_the_file_is_told_so_and_can_let_go():
    with folder_for_all(0o755) as folder:
        (folder / "in").mkdir()
        path = str(folder / "in" / "lock")
        Lock(path, shared=True).acquire().release()

        def play():
            lease = Lock(path).acquire()
            point("held")
            return [refusal_of(lease.check), refusal_of(lease.release),
                    refusal_of(Lock(path).acquire, 0)]  # fmt: skip

        with as_nobody(play) as child:
            child.at("held")
            (folder / "in").chmod(0o700)
            end = child.end()
            assert end.well, end.error
            assert [kind for kind, _, _ in end.value] == ["LeaseLost", "LeaseLost", "NotPermitted"]
            assert "cannot be looked at any more (Permission denied)" in end.value[0][1]
        assert free(path)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_another_user_can_do_what_doctor_says_of_the_umask(mask):
    with folder_for_all() as folder:
        before = os.umask(mask)
        try:
            with Lock(folder / "x.lock"):
                pass
            (told,) = (each for each in doctor.looked_at("/", "rw") if each.what == "umask")
        finally:
            os.umask(before)
        refused = result(as_nobody(taken, folder / "x.lock"))
        assert (refused is None) == (mask == 0o022)
        assert ("other users can lock" in told.why) == (refused is None)


def taken(path):
    return refusal_of(lambda: Lock(path).acquire(0).release())


# ---- root waits at a user's store


USER = 65534


@pytest.fixture
def of_a_user(tmp_path):
    """A database of a user, in a folder of theirs, and root's wakeups beside it."""
    file = tmp_path / "x.db"
    file.touch()
    for path in (tmp_path, file):
        os.chown(path, USER, USER)
    made = wakeup_pipes.PipeWakeups(f"{file}-bells", False, str(file))
    yield made
    made.close()


def test_root_that_waits_at_a_users_store_leaves_the_user_the_folder_and_is_called(of_a_user):
    pipe = of_a_user.listen("ab", print).partition(":")[0]
    for path in (of_a_user.folder, os.path.join(of_a_user.folder, pipe)):
        assert os.stat(path).st_uid == USER


def test_root_that_may_give_nothing_away_is_called_all_the_same(of_a_user, monkeypatch):
    """As in a container that drops CAP_CHOWN."""
    os.mkdir(of_a_user.folder, 0o700)
    os.chown(of_a_user.folder, USER, USER)

    def denied(*given):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", denied)
    rung = []
    address = of_a_user.listen("ab", lambda: rung.append(None))
    caller = wakeup_pipes.PipeWakeups(of_a_user.folder, False, of_a_user.beside)
    assert caller.call(address)
    until(lambda: rung)


def test_root_that_waits_gives_the_user_an_older_folder_of_root_when_it_is_empty(of_a_user):
    os.mkdir(of_a_user.folder, 0o700)
    of_a_user.listen("ab", print)
    assert os.stat(of_a_user.folder).st_uid == USER


@pytest.mark.parametrize("what", ["full", "file is a link", "file of root"])
def test_root_gives_away_nothing_that_a_user_puts_there(of_a_user, what):
    file = Path(of_a_user.beside)
    os.mkdir(of_a_user.folder, 0o700)
    if what == "full":
        Path(of_a_user.folder, "of root").touch()
    elif what == "file is a link":
        file.rename(f"{file}.moved")
        file.symlink_to(f"{file}.moved")
    else:
        os.chown(file, 0, 0)
    pipe = of_a_user.listen("ab", print).partition(":")[0]
    assert os.stat(of_a_user.folder).st_uid == 0
    assert os.stat(os.path.join(of_a_user.folder, pipe)).st_uid == (USER if what == "full" else 0)


def test_root_gives_away_no_folder_that_a_link_in_place_of_its_own_leads_to(
    of_a_user, tmp_path, monkeypatch
):
    """The user has exchanged it in the very instant."""
    secret = tmp_path / "secret"
    secret.mkdir(0o700)
    made = os.mkdir

    def exchanged(path, mode):
        made(path, mode)
        os.rename(path, f"{path}.moved")
        os.symlink(secret, path)

    monkeypatch.setattr(os, "mkdir", exchanged)
    of_a_user.listen("ab", print)
    assert os.stat(secret).st_uid == 0
    assert all(entry.lstat().st_uid == 0 for entry in secret.iterdir())
