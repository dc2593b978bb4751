"""What root does in a folder of another user gives that user nothing.

The claims of docs/explanation/threat-model.md. Root clears, watches, locks and examines in a folder
of nobody's, who swaps, links and renames at each call in turn. Whatever it does and when:
- no file of root's has a special bit, or the attacker's words;
- what root and a third user own elsewhere stays as it was, and nothing is added there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from crash.attacks import ATTACKS, THIRD
from crash.terrain import NOBODY, as_nobody, folder_for_all, result
from ground import needs
from lifehold import Lock, OnceFailed, UnsafeGround, WouldBlock, once
from lifehold.fence import FencedFile
from lifehold.local import ground_probe, proc_locks
from lifehold.local.files import Files
from lifehold.ops import clear, doctor, foreign_verdict, history
from lifehold.recipes.once_build import build_once
from lifehold.registry import maker
from warm import Warm

pytestmark = needs("root", "linux", "proc", "all processes")
KINDS = ("soft", "link", "generation", "directory", "folder")
TESTS = str(Path(__file__).parents[1])
SCRIPT = "attacks.main(*sys.argv[1:]); sys.stdout.flush(); attacks.os._exit(0)"  # without a long farewell
PRELOAD = f"import sys; sys.path[:0] = [{TESTS!r}]; from crash import attacks"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Iterator[Callable[..., int]]:
    """Plays every attack before every call of some work of root's; says how many runs it took."""
    warm = Warm(PRELOAD)
    cwd = tmp_path_factory.mktemp("root")

    def played(work: str, form: str, attacks: Iterable[str], kind: str = "") -> int:
        done = warm.run(SCRIPT, work, form, kind, *attacks, cwd=cwd, within=240)
        assert done.returncode == 0, done.stderr
        runs, fell = json.loads(done.stdout)
        assert not fell, "\n".join(fell[:20])
        return int(runs)

    yield played
    warm.close()


@pytest.fixture(autouse=True)
def names(tmp_path_factory, monkeypatch):
    """And everything that root's work may load is loaded: a child imports nothing."""
    folder = tmp_path_factory.mktemp("names")
    monkeypatch.setenv("LIFEHOLD_DIR", str(folder))
    for module in (ground_probe, doctor):  # another Python is another test
        monkeypatch.setattr(module, "other_process", lambda *words: 3)
    monkeypatch.setattr(doctor, "PATIENCE", 0.01)
    for module in (foreign_verdict, proc_locks):  # nobody else comes there, and each look is long
        monkeypatch.setattr(module, "processes", lambda: [os.getppid(), os.getpid()])


@pytest.mark.parametrize(
    ("form", "attacks"),
    [
        ("terraform", ("swapped for root's and back", "stolen", "replaced")),
        ("number", ("swapped for root's and back", "hard link", "fifo")),
        ("uucp", ("swapped for a third's and back", "hard link", "replaced")),
        ("link", ("swapped for root's and back", "stolen")),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_root_clears_gives_a_user_no_right_of_root(attacked, form, attacks):
    assert attacked("clear_it", form, attacks) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_what_root_clears_of_our_own_kinds_gives_a_user_no_right_of_root(attacked, kind):
    attacks = ("swapped for root's and back", "stolen")
    assert attacked("clear_it", "own", attacks[: 2 if kind == "generation" else 1], kind) > 10


def test_a_watch_of_root_that_clears_gives_a_user_no_right_of_root(attacked):
    assert attacked("watch_it", "terraform", ("swapped for root's and back",)) > 20


def test_what_a_watch_of_root_notes_goes_to_no_file_of_another(attacked):
    assert attacked("tell", "number", ATTACKS) > 20


def test_what_root_mends_gives_a_user_no_right_of_root(attacked):
    assert attacked("mend", "source", ATTACKS) > 50


def test_a_doctor_of_root_removes_nothing_but_what_it_made(attacked):
    assert attacked("examine", "number", ("swapped for root's", "stolen")) > 50


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_a_lock_of_root_for_all_opens_nothing_but_what_it_made(attacked, kind):
    attacked("lock_it_for_all", "none", ("stolen",), kind)


def test_a_once_of_root_for_all_opens_nothing_but_what_it_made(attacked):
    attacked("run_once_for_all", "none", ("stolen",))


@pytest.mark.parametrize("kind", ["generation", "directory", "folder"])
def test_a_lock_of_root_for_all_opens_no_folder_that_root_had_there(attacked, kind):
    attacked("lock_it_for_all", "none", ("root's in its place",), kind)


SWAPS = ("swapped for root's", "swapped for root's and back", "swapped for a third's and back")


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_a_lock_of_root_follows_nobody_out_of_the_folder_it_was_named_in(attacked, kind):
    attacks = (SWAPS[1], "a link for the lock")
    assert attacked("hold_it", "none", attacks, kind) > 20


@pytest.mark.parametrize(
    "work", ["lock_by_zc_lockfile", "lock_by_portalocker", "count_by_portalocker"]
)
def test_a_file_that_is_a_lock_alone_is_opened_where_it_was_named(attacked, work):
    attacks = (SWAPS[1], "a link for the lock", "stolen")
    assert attacked(work, "none", attacks) > 3


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory", "folder"])
def test_what_root_takes_over_in_a_folder_of_others_leads_it_nowhere(attacked, kind):
    assert attacked("hold_it", "own", (SWAPS[1],), kind) > 20


@pytest.mark.parametrize(
    "work",
    ["run_once", "write_fenced", "write_a_file", "share_it",
     "lock_by_filelock", "lock_by_lockfolder", "lock_by_liblockfile"],
)  # fmt: skip
def test_what_is_made_of_a_lock_of_root_follows_nobody_either(attacked, work):
    assert attacked(work, "none", (SWAPS[1],)) > 20


@pytest.mark.parametrize("kind", ["kernel", "soft", "generation"])
def test_a_command_that_root_runs_under_a_lock_follows_nobody(attacked, kind):
    assert attacked("run_a_command", "none", (SWAPS[1],), kind) > 20


# ---- what root did in such folders before, it does


@pytest.fixture
def theirs():
    """nobody's folder, in a folder of nobody's."""
    with folder_for_all() as base:
        folder = base / "home" / "d"
        folder.mkdir(parents=True)
        for each in (folder.parent, folder):
            os.chown(each, NOBODY, NOBODY)
        yield folder


def held_and_again(path: Path, kind: str, **more: object) -> None:
    """Two holds one after the other, and one that is refused meanwhile."""
    tokens = []
    for _ in range(2):
        with Lock(path, kind=kind, **more).acquire(wait=0) as lease:
            lease.check()
            tokens.append(lease.token)
            with pytest.raises(WouldBlock):
                Lock(path, kind=kind, **more).acquire(wait=0)
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_locks_in_a_users_folder_and_in_one_of_its_own_below_it(theirs, kind):
    own = theirs / "roots"
    own.mkdir(0o700)
    for folder in (theirs, own, theirs / "made" / "anew"):
        held_and_again(folder / "x.lock", kind)


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_goes_by_a_users_link_to_another_folder_of_that_user(theirs, kind):
    link = theirs.parent / "current"
    result(as_nobody(os.symlink, "d", link))
    held_and_again(link / "x.lock", kind)
    assert Lock(theirs / "x.lock", kind=kind).holder() is None


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_goes_by_no_link_of_a_user_to_a_folder_that_is_not_that_users(theirs, kind):
    vault = theirs.parent.parent / "vault"
    vault.mkdir()
    link = theirs.parent / "current"
    result(as_nobody(os.symlink, vault, link))
    with pytest.raises(UnsafeGround, match="nobody"):
        Lock(link / "x.lock", kind=kind).acquire(wait=0)
    assert not list(vault.iterdir())


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_locks_in_a_sticky_folder_of_roots_as_anybody_does(kind):
    with folder_for_all(0o1777) as folder:
        held_and_again(folder / "x.lock", kind)
        theirs = folder / "theirs"
        result(as_nobody(os.mkdir, theirs))
        held_and_again(theirs / "x.lock", kind)


def test_the_results_and_fences_of_root_are_kept_in_a_users_folder(theirs):
    assert [once(theirs / "o", lambda: each, wait=0) for each in (1, 2)] == [1, 1]
    guard = FencedFile(theirs / "data", 7)
    guard.write(b"words")
    assert (guard.read().data, guard.read().token) == (b"words", 7)


LEFTOVERS = (".out.removed-0123456789abcdef-0", ".out.building-0123456789abcdef")


@pytest.mark.parametrize("mode", [0o700, 0o000], ids=["open", "closed"])
@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_build_of_root_removes_nothing_that_a_user_has_renamed(theirs, name, mode, caplog):
    roots = theirs / "backup"
    roots.mkdir(0o700)
    (roots / "dump").write_text("root's")
    mine = theirs / LEFTOVERS[0].replace("0", "1")
    result(as_nobody(mine.mkdir))
    mine.chmod(mode)
    result(as_nobody(roots.rename, theirs / name))
    for _ in range(2):
        build_once(theirs / "out", fill)
        shutil.rmtree(theirs / "out")
    assert [each.read_text() for each in theirs.rglob("dump")] == ["root's"]
    assert not mine.exists()  # that user could remove it, too
    (told,) = [each.getMessage() for each in caplog.records if "leftover" in each.getMessage()]
    assert "rights of nobody" in told


def test_what_a_killed_build_of_root_left_goes_and_what_it_put_in_place_stays(theirs):
    if not bears_attributes(theirs):
        pytest.skip("no attributes on this file system")
    killed_build(theirs / "out")
    (left,) = theirs.glob(".out.building-*")
    assert (left / "x").exists()
    build_once(theirs / "out", fill)
    assert not list(theirs.glob(".out.*-*"))
    result(as_nobody((theirs / "out").rename, theirs / LEFTOVERS[1]))
    build_once(theirs / "out", fill)
    assert len(list(theirs.glob(".out.removed-*/x"))) == 1


def test_what_a_killed_build_gave_to_a_user_in_a_folder_of_root_goes(tmp_path):
    left = tmp_path / LEFTOVERS[1]
    (left / "roots").mkdir(parents=True)
    (left / "roots" / "x").touch()
    os.chown(left, NOBODY, NOBODY)
    build_once(tmp_path / "out", fill)
    assert not list(tmp_path.glob(".out.*-*"))


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_folder_that_a_user_puts_in_the_place_of_a_build_of_root_is_left_alone(theirs, ends):
    roots = theirs / "backup"
    roots.mkdir(0o700)
    (roots / "dump").touch()

    def build(staging: str) -> None:
        fill(staging)
        result(as_nobody(os.rename, staging, theirs / "taken"))
        result(as_nobody(roots.rename, staging))
        if ends == "badly":
            raise ValueError("the build")

    with pytest.raises(OnceFailed, match="not there" if ends == "well" else "the build"):
        build_once(theirs / "out", build)
    assert len(list(theirs.rglob("dump"))) == 1
    assert not (theirs / "out").exists()


def fill(staging: str) -> None:
    Path(staging, "x").touch()


def killed_build(target: Path) -> None:
    def build(staging: str) -> None:
        fill(staging)
        os.kill(os.getpid(), signal.SIGKILL)

    if not (child := os.fork()):
        build_once(target, build)
    os.waitpid(child, 0)


def bears_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.lifehold.test", b"")
        os.removexattr(folder, "user.lifehold.test")
    except OSError:
        return False
    return True


def test_a_users_data_that_root_writes_stays_the_users_and_gets_no_rights(theirs):
    path = theirs / "data"
    result(as_nobody(theirs_with_mode, path, 0o640))
    guard = FencedFile(path, 7)
    guard.update(lambda data: data + b" and root's")
    guard.write(path.read_bytes() + b", again")
    found = path.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o640)
    assert path.read_bytes() == b"words and root's, again"
    result(as_nobody(os.chmod, path, 0o4755))
    with pytest.raises(UnsafeGround, match="runs as its owner"):
        guard.update(lambda data: data)
    assert path.stat().st_uid == NOBODY


def theirs_with_mode(path: Path, mode: int) -> None:
    path.write_bytes(b"words")
    path.chmod(mode)


def test_only_root_among_strangers_walks_its_paths(tmp_path, theirs):
    seams = {
        type(Lock(folder / "x.lock", kind="generation")._mechanism.files)
        for folder in (tmp_path, Path("/var/lib"))
    }
    assert seams == {Files}
    assert result(as_nobody(seam_of, theirs / "x.lock")) == "Files"
    assert seam_of(theirs / "x.lock") == "AnchoredFiles"


def seam_of(path: Path) -> str:
    return type(Lock(path, kind="kernel")._mechanism.files).__name__


# ---- what is left is the owner's, and the log is root's


def again(path: Path, kind: str) -> object:
    with Lock(path, kind=kind).acquire(wait=0) as lease:
        return lease.token


def killed(path: Path, kind: str) -> None:
    if not (child := os.fork()):
        Lock(path, kind=kind).acquire(wait=0)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)


@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["a folder of theirs", "sticky"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_root_clears_stays_its_owners_who_gets_in_next(kind, mode):
    with folder_for_all(mode) as folder:
        if mode == 0o755:
            os.chown(folder, NOBODY, NOBODY)
        path = folder / "x.lock"
        maker(kind)
        result(as_nobody(killed, path, kind))
        done = clear.clear(str(path))
        stays = clear.FREED if kind in ("generation", "folder") else clear.REMOVED
        assert done.action == stays, done.why
        owners = {each: each.lstat().st_uid for each in folder.rglob("*")}
        assert set(owners.values()) <= {NOBODY}, owners
        assert result(as_nobody(again, path, kind))


def test_a_program_of_root_leaves_a_users_numbered_lock_to_the_user():
    with folder_for_all(0o755) as folder:
        os.chown(folder, NOBODY, NOBODY)
        path = folder / "x.lock"
        maker("generation")
        first = result(as_nobody(again, path, "generation"))
        second = again(path, "generation")
        assert first < second < result(as_nobody(again, path, "generation"))


def test_root_clears_its_own_in_a_sticky_folder_and_refuses_by_name_where_two_may_swap():
    with folder_for_all(0o1777) as folder:
        (folder / "LCK..own").write_text("4190001\n")
        assert clear.clear(str(folder / "LCK..own")).action == clear.REMOVED
        inner = folder / "in"
        inner.mkdir()
        (inner / "LCK..x").write_text("4190001\n")
        os.chown(inner / "LCK..x", THIRD, THIRD)
        inner.chmod(0o777)
        os.chown(folder, NOBODY, NOBODY)
        done = clear.clear(str(inner / "LCK..x"))
        assert done.action == clear.REMOVED, done.why
        (inner / "LCK..x").write_text("4190001\n")
        os.chown(inner, THIRD, THIRD)
        done = clear.clear(str(inner / "LCK..x"))
        assert (done.action, (inner / "LCK..x").exists()) == (clear.KEPT, True)
        assert "nobody" in done.why


@pytest.mark.parametrize("trap", ["fifo", "file", "link", "folder"])
def test_the_audit_log_of_root_is_roots_in_a_folder_of_names_that_is_open_to_all(
    trap, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("lifehold.local.lock_names.MACHINE", str(tmp_path / "machine"))
    with folder_for_all(0o1777) as folder:
        monkeypatch.setenv("LIFEHOLD_DIR", str(folder))
        own = folder / ".cleared.history"
        {"fifo": lambda: os.mkfifo(own), "file": own.touch, "folder": own.mkdir,
         "link": lambda: own.symlink_to(folder / "elsewhere")}[trap]()  # fmt: skip
        os.chown(own, NOBODY, NOBODY, follow_symlinks=False)
        lock = folder / "LCK..x"
        lock.write_text("4190001\n")
        assert clear.clear(str(lock)).action == clear.REMOVED
        assert [entry.name for entry in history.logged()] == [str(lock)]
        assert not own.is_file() or own.read_bytes() == b""
        log = tmp_path / "machine" / ".cleared.history"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
