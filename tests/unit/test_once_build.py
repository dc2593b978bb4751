"""`build_once`: whole or not at all, by one for all."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crash.scene import until
from crash.terrain import as_nobody, folder_for_all, result
from ground import needs
from lifehold import InvalidArgument, LeaseLost, NotHeld, OnceFailed, SystemRefused
from lifehold.local.files import HOST, Files
from lifehold.local.kernel_holders import waiters_of
from lifehold.recipes import once_build
from lifehold.recipes.once_build import build_once

NONCE = "0123456789abcdef"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "caches" / "model"


def write(staging: str) -> None:
    Path(staging, "weights").mkdir()
    Path(staging, "weights", "a").write_text("a")
    Path(staging, "index").write_text("i")


def beside(target: Path) -> list[str]:
    return sorted(each.name for each in target.parent.iterdir() if each.name.startswith("."))


def test_a_folder_is_built_once_for_all_who_ask(target):
    built = []

    def build(staging):
        built.append(staging)
        write(staging)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: build_once(target, build), range(8)))
    assert answers == [str(target)] * 8
    assert len(built) == 1
    assert (target / "weights" / "a").read_text() == "a"
    assert beside(target) == []


def test_a_folder_that_is_there_is_the_answer_without_a_lock(target):
    target.mkdir(parents=True)
    (target / "index").touch()
    assert build_once(f"{target}/", lambda _: pytest.fail("built")) == str(target)
    assert os.listdir(target.parent) == ["model"]


def test_an_empty_folder_is_yet_to_be_built(target):
    target.mkdir(parents=True)
    build_once(target, write)
    assert (target / "index").exists()


def test_a_build_that_fails_leaves_nothing_and_is_tried_again(target):
    def fails(staging):
        write(staging)
        raise ValueError("half done")

    with pytest.raises(OnceFailed, match="half done"):
        build_once(target, fails)
    assert not target.exists()
    assert beside(target) == []
    assert build_once(target, write) == str(target)


def test_what_ctrl_c_interrupts_leaves_nothing(target):
    def interrupted(staging):
        write(staging)
        os.chmod(Path(staging, "weights"), 0o555)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(target, interrupted)
    assert not target.exists()
    assert beside(target) == []


def test_a_build_that_makes_nothing_is_refused(target):
    with pytest.raises(OnceFailed, match="left nothing"):
        build_once(target, lambda staging: None)
    assert beside(target) == []


def test_what_a_killed_builder_left_is_removed_by_the_next(target):
    left = target.parent / f".model.building-{NONCE}"
    write_into(left)
    write_into(target.parent / f".model.removed-{NONCE}-1")
    other = target.parent / f".models.building-{NONCE}"
    write_into(other)
    build_once(target, write)
    assert beside(target) == [f".models.building-{NONCE}"]


@pytest.mark.parametrize(
    "other",
    [
        ".model.removed-2024",
        ".model.building-notes",
        f".model.removed-{NONCE}",
        f".model.removed-v1.building-{NONCE}",
        f".model.building-v1.removed-{NONCE}-0",
        f".model.building-{NONCE}.d",
        f".model.building-{NONCE}\n",
    ],
)
def test_a_folder_of_a_name_that_no_build_makes_is_left_alone(target, other):
    write_into(target.parent / other)
    build_once(target, write)
    assert beside(target) == [other]
    assert sorted(os.listdir(target.parent / other)) == ["index", "weights"]


def test_what_a_living_builder_has_in_hand_is_left_alone(target):
    left = target.parent / f".model.building-{NONCE}"
    write_into(left)
    fd = os.open(left, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # a process that the killed builder had forked
    build_once(target, write)
    assert beside(target) == [f".model.building-{NONCE}"]
    os.close(fd)


def write_into(folder: Path) -> None:
    folder.mkdir(parents=True)
    write(str(folder))


def test_where_no_flock_is_the_lock_alone_proves_the_end_of_a_builder(target, monkeypatch):
    class NoFlock(Files):
        def flock(self, *_):
            raise OSError(errno.ENOLCK, "no locks here")

    write_into(target.parent / f".model.building-{NONCE}")
    monkeypatch.setattr("lifehold.recipes.once_build.files_for", lambda path: NoFlock())
    build_once(target, write)
    assert beside(target) == []


def test_a_signal_amid_the_beginning_of_a_build_leaves_no_folder_open(target, monkeypatch):
    class Interrupted(Files):
        def flock(self, fd, how):
            raise KeyboardInterrupt

    monkeypatch.setattr("lifehold.recipes.once_build.files_for", lambda path: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        build_once(target, write)
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in opened if path.startswith(str(target.parent / ".model"))]
    monkeypatch.undo()
    assert build_once(target, write) == str(target)
    assert beside(target) == []


def test_of_two_builders_the_first_result_stays(target):
    def slow(staging):
        os.unlink(f"{target}.lock")
        build_once(target, write)
        Path(staging, "late").touch()

    assert build_once(target, slow) == str(target)
    assert sorted(os.listdir(target)) == ["index", "weights"]
    assert beside(target) == []


def test_a_builder_whose_folder_was_cleared_away_is_told(target):
    def robbed(staging):
        write(staging)
        os.rename(staging, f"{target}.elsewhere")

    with pytest.raises(OnceFailed, match="is not there any more") as caught:
        build_once(target, robbed)
    assert isinstance(caught.value.__cause__, LeaseLost)
    assert not target.exists()


@pytest.mark.parametrize("error", [None, FileNotFoundError("its folder")])
def test_a_builder_that_was_overtaken_gets_the_folder_of_the_later_one(target, error):
    def overtaken(staging):
        write(staging)
        os.unlink(f"{target}.lock")
        os.rename(staging, f"{target}.elsewhere")
        build_once(target, write)
        if error is not None:
            raise error

    assert build_once(target, overtaken) == str(target)
    assert sorted(os.listdir(target)) == ["index", "weights"]


def test_a_builder_that_lost_lock_and_folder_with_nothing_there_has_lost_its_lease(target):
    def robbed(staging):
        os.unlink(f"{target}.lock")
        os.rename(staging, f"{target}.elsewhere")

    with pytest.raises(LeaseLost):
        build_once(target, robbed)


def test_a_lease_that_the_build_itself_has_lost_is_a_failure_of_the_build(target):
    def loses(staging):
        raise LeaseLost("another lock")

    with pytest.raises(OnceFailed, match="another lock"):
        build_once(target, loses)


def test_a_child_forked_by_the_build_removes_nothing(target):
    parent = os.getpid()

    def build(staging):
        if os.fork() == 0:
            raise ValueError("in the child")
        os.wait()
        write(staging)

    try:
        build_once(target, build)
    except BaseException:
        if os.getpid() != parent:
            os._exit(0)
        raise
    assert sorted(os.listdir(target)) == ["index", "weights"]


def test_files_are_on_the_disk_before_the_folder_is_seen(target, monkeypatch):
    done = []
    for name in ("fsync", "rename"):
        call = getattr(os, name)

        def noted(*given, call=call, name=name):
            done.append((name, given))
            return call(*given)

        monkeypatch.setattr(os, name, noted)
    monkeypatch.setattr(HOST, "rename", os.rename)
    build_once(target, write)
    names = [name for name, given in done]
    at = next(i for i, (n, given) in enumerate(done) if given[-1] == str(target))
    assert names[:at].count("fsync") == 4  # two files, two folders
    assert "fsync" in names[at:]
    done.clear()
    build_once(target.with_name("other"), write, flush=False)
    assert [name for name, _ in done].count("fsync") <= 2  # of the message to the others


def test_no_fifo_is_waited_for_that_comes_in_the_place_of_a_file(target, monkeypatch):
    plain = os.lstat

    def lstat(path, **more):
        found = plain(path, **more)
        if path == "index":
            (staging,) = target.parent.glob(".model.building-*")
            (staging / "index").unlink()
            os.mkfifo(staging / "index")
        return found

    monkeypatch.setattr(os, "lstat", lstat)
    assert build_once(target, write) == str(target)
    assert (target / "index").is_fifo()


def test_a_build_may_put_another_folder_in_the_place_of_its_own(target):
    def build(staging):
        os.rmdir(staging)
        write_into(Path(staging))

    assert build_once(target, build) == str(target)
    assert sorted(os.listdir(target)) == ["index", "weights"]


@needs("root")
def test_what_may_not_be_read_is_left_to_sync():
    with folder_for_all(0o777) as folder:
        assert result(as_nobody(flushed, folder / "out")) == ["plain", "SYNC", folder.name]


def flushed(target: Path) -> list[str]:
    done: list[str] = []
    fsync, sync = os.fsync, os.sync

    def noted(fd):
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        return fsync(fd)

    def build(staging):
        Path(staging, "plain").touch()
        Path(staging, "drop").mkdir()
        Path(staging, "drop", "mail").touch()
        os.chmod(Path(staging, "drop"), 0o300)

    os.fsync = noted
    os.sync = lambda: done.append("SYNC") or sync()
    build_once(target, build)
    return [each for each in done if not each.startswith((".", "out"))]


def test_a_mount_point_cannot_be_renamed_over_and_says_so(target, monkeypatch):
    class Mounted(Files):
        def rename(self, *_):
            raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr("lifehold.recipes.once_build.files_for", lambda path: Mounted())
    with pytest.raises(OnceFailed, match="mount point") as caught:
        build_once(target, write)
    assert isinstance(caught.value.__cause__, SystemRefused)
    assert beside(target) == []


@pytest.mark.parametrize(
    ("path", "build", "why"),
    [
        (5, write, "path must be"),
        ("", write, "path must name"),
        ("/", write, "path must name"),
        ("..", write, "path must name"),
        ("a\0", write, "NUL"),
        ("file", write, "is a file"),
        ("x", None, "build must be callable"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(path, build, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=why):
        build_once(path, build)


def test_a_lock_lost_with_nothing_there_is_an_error(target, monkeypatch):
    def unlocked(staging):
        write(staging)
        os.unlink(f"{target}.lock")

    monkeypatch.setattr(once_build.Staging, "publish", lambda self: False)
    with pytest.raises(LeaseLost):
        build_once(target, unlocked)


def test_a_child_that_comes_out_of_a_build_puts_nothing_in_its_place(target):
    """The parent goes on building while the child is past the function."""
    parent = os.getpid()

    def build(staging):
        Path(staging, "a").touch()
        if not os.fork():
            return
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
        assert not target.exists()
        Path(staging, "b").touch()

    try:
        build_once(target, build)
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(3 if isinstance(error, NotHeld) else 4)
        raise
    if os.getpid() != parent:
        os._exit(5)
    assert sorted(os.listdir(target)) == ["a", "b"]


@needs("root")
def test_a_leftover_of_another_user_in_a_sticky_folder_stays_and_all_is_built(caplog):
    with folder_for_all(0o1777) as folder:
        build_once(folder / "warm", write)  # loads what that user may not read
        left = folder / f".model.building-{NONCE}"
        left.mkdir(mode=0o755)
        assert result(as_nobody(build_once, folder / "model", write)) == str(folder / "model")
        assert left.exists()


def test_who_waited_gets_the_path_as_it_was_asked_for(target):
    target.mkdir(parents=True)
    link = target.parent / "other"
    link.symlink_to(target)
    begun, go = threading.Event(), threading.Event()

    def build(staging):
        begun.set()
        go.wait(60)
        write(staging)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build_once, target / "m", build)
        assert begun.wait(60)
        second = pool.submit(build_once, link / "m", lambda _: pytest.fail("built"))
        until(lambda: waiters_of(HOST, str(target / "m.lock")), words="the second waits")
        go.set()
        assert (first.result(60), second.result(60)) == (str(target / "m"), str(link / "m"))


@pytest.mark.parametrize("given", ["cache/.", "cache/..", "cache/./"])
def test_a_path_that_ends_in_dots_names_no_folder_to_be_built(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    with pytest.raises(InvalidArgument, match="must name the folder to be built"):
        build_once(given, write)
    assert not os.listdir("cache")


@pytest.mark.parametrize("to", ["nowhere", "empty"])
def test_a_link_that_leads_to_nothing_is_refused_before_anything_is_built(target, to):
    (target.parent / "empty").mkdir(parents=True)
    target.symlink_to(to)
    with pytest.raises(InvalidArgument, match="is a link"):
        build_once(target, lambda _: pytest.fail("built"))


def test_a_build_is_a_plain_function(target):
    async def build(staging):
        raise AssertionError

    def builds(staging):
        yield

    with pytest.raises(InvalidArgument, match="plain function"):
        build_once(target, build)
    with pytest.raises(OnceFailed, match="plain function"):
        build_once(target, functools.partial(lambda run, staging: run(staging), build))
    with pytest.raises(InvalidArgument, match="generator"):
        build_once(target, builds)
    assert not target.exists()


@pytest.mark.parametrize("rule", ["keep", "unless", "dump", "limit"])
def test_a_build_takes_the_options_of_a_lock_alone(target, rule):
    with pytest.raises(InvalidArgument, match=rule):
        build_once(target, write, **{rule: 60})
