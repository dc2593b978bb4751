"""Being told when a path changes or a process ends: real files, real inotify."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bell import Bell, no_sweep, watching
from ground import needs
from lifehold.runtime import clock, fork, watch_thread
from patience import until as wait_until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")
pytestmark = LINUX


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Watches of these tests alone: a lock of another, not yet collected, may have some."""
    mine = watch_thread.WatchThread()
    monkeypatch.setattr(watch_thread, "near", mine)
    yield mine
    mine.stop()
    mine.give_back()


@pytest.fixture
def by_event(monkeypatch):
    no_sweep(monkeypatch)


def heard_by_events():
    """Wait until each folder that is watched has its events again."""
    wait_until(lambda: all(each.number is not None for each in watch_thread.near.folders.values()))


@pytest.fixture
def bell():
    return Bell()


@pytest.fixture(params=["events", "looks"])
def post(request, monkeypatch):
    """Both ways of being told."""
    if request.param == "looks":
        monkeypatch.setattr(watch_thread, "near", watch_thread.WatchThread(deaf=True))
    yield request.param
    if request.param == "looks":
        watch_thread.near.stop()


def ended(post, within=60.0):
    until = clock.now() + within
    while post.running and clock.now() < until:
        time.sleep(0.01)
    return not post.running


def replace(path):
    other = path.with_name("other")
    other.write_text("another")
    other.rename(path)


CHANGES = {
    "created": (False, lambda path: path.write_text("")),
    "linked": (False, lambda path: os.link(__file__, path)),
    "made a folder": (False, lambda path: path.mkdir()),
    "removed": (True, lambda path: path.unlink()),
    "renamed away": (True, lambda path: path.rename(path.with_name("elsewhere"))),
    "replaced": (True, replace),
    "written": (True, lambda path: path.write_text("b")),
    "touched": (True, os.utime),
    "truncated": (True, lambda path: os.truncate(path, 0)),
    "made private": (True, lambda path: path.chmod(0o600)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_an_entry_is_told(post, tmp_path, bell, change):
    there, act = CHANGES[change]
    path = tmp_path / "lock"
    if there:
        path.write_text("a")
    if change == "linked":
        act = lambda path: os.link(path.with_name("first"), path)  # noqa: E731
        path.with_name("first").write_text("")
    with watching(path, bell.ring):
        if post == "looks":
            assert bell.heard()  # for nothing: who begins to wait is told once
        act(path)
        assert bell.heard(), f"{change} was not told"


def test_the_entry_next_to_it_rings_nobody(tmp_path, bell, by_event):
    with watching(tmp_path / "lock", bell.ring):
        (tmp_path / "lock2").write_text("")
        time.sleep(0.05)
        assert bell.count == 0
        (tmp_path / "lock").write_text("")
        assert bell.heard()


def test_who_wants_names_only_is_not_told_of_writes(tmp_path, bell, by_event):
    path = tmp_path / "lock"
    path.write_text("a")
    with watching(path, bell.ring, content=False):
        path.write_text("b")
        time.sleep(0.05)
        assert bell.count == 0
        path.unlink()
        assert bell.heard()


def made_aside(path):
    """A descriptor of a file that was opened by another name than the one it has now."""
    aside = path.with_name("aside")
    fd = os.open(aside, os.O_CREAT | os.O_RDWR)
    path.unlink(missing_ok=True)
    os.link(aside, path)
    aside.unlink()
    return fd


@pytest.mark.parametrize("when", ["before", "while it is watched", "in place of another"])
def test_a_file_that_was_opened_by_another_name_is_told_of(tmp_path, bell, when, by_event):
    """A record is made aside and linked to its place; its folder tells of the name aside."""
    path = tmp_path / "lock"
    if when == "before":
        fd = made_aside(path)
    elif when == "in place of another":
        path.write_text("")
    with watching(path, bell.ring):
        if when != "before":
            fd = made_aside(path)
            while bell.heard(0.05):
                pass
        os.pwrite(fd, b"released", 0)
        assert bell.heard(), "a write was not told"
        os.close(fd)
        assert bell.heard(), "its end was not told"
    assert not watch_thread.near.files


def test_a_slash_at_the_end_means_everything_in_the_folder(tmp_path, bell):
    with watching(f"{tmp_path}/", bell.ring):
        (tmp_path / "a").write_text("")
        assert bell.heard()


def test_a_folder_of_two_names_rings_both(tmp_path, bell, by_event):
    folder, alias, other = tmp_path / "folder", tmp_path / "alias", Bell()
    folder.mkdir()
    alias.symlink_to(folder)
    with watching(folder / "lock", bell.ring), watching(alias / "lock", other.ring):
        (folder / "lock").write_text("")
        assert bell.heard()
        assert other.heard()
    with watching(folder / "lock", bell.ring):
        with watching(alias / "lock", other.ring):
            pass
        bell.heard(0.1)
        (folder / "lock").unlink()  # the other's end has not taken the watch away
        assert bell.heard()


def test_a_folder_that_is_not_there_yet_is_no_obstacle(tmp_path, bell):
    path = tmp_path / "a" / "b" / "lock"
    with watching(path, bell.ring):
        path.parent.mkdir(parents=True)
        path.write_text("")
        assert bell.heard()
        heard_by_events()
        bell.heard(0.1)
        path.unlink()
        assert bell.heard()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_folder_that_goes_away_and_comes_back_is_told_and_watched(tmp_path, bell, how):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "lock"
    with watching(path, bell.ring):
        if how == "removed":
            folder.rmdir()
        else:
            folder.rename(tmp_path / "moved")
        if how == "replaced":
            folder.mkdir()
        assert bell.heard(), "the folder's end was not told"
        folder.mkdir(exist_ok=True)
        heard_by_events()
        bell.event.clear()
        path.write_text("")
        assert bell.heard()
        while bell.heard(0.1):
            pass
        path.unlink()
        assert bell.heard(), "events did not come back"


def test_what_no_event_tells_is_seen_by_the_sweep(tmp_path, bell):
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    with watching(folder / "lock", bell.ring):
        (tmp_path / "above").rename(tmp_path / "away")
        folder.mkdir(parents=True)
        (folder / "lock").write_text("")
        assert bell.heard()


def test_lost_events_wake_everybody(tmp_path, bell, by_event):
    with watching(tmp_path / "lock", bell.ring):
        post = watch_thread.near
        with fork.gate:
            notifier = post.notifier
            post.notifier = type("Overflown", (), {
                "fd": notifier.fd, "fds": notifier.fds, "sees_content": True, "add": notifier.add,
                "add_file": notifier.add_file, "remove": notifier.remove, "close": notifier.close,
                "read": lambda: [notifier.read(), [(-1, None)]][1],
            })  # fmt: skip
            (tmp_path / "another").write_text("")
        assert bell.heard()
        with fork.gate:
            post.notifier = notifier


def test_an_unmounted_folder_is_told(tmp_path, bell, by_event):
    require_mount()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    try:
        with watching(tmp_path / "lock", bell.ring):
            subprocess.run(["umount", str(tmp_path)], check=True)
            assert bell.heard()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=False, stderr=subprocess.DEVNULL)


def require_mount():
    from ground import require

    require("root", "unshare")


def test_a_thousand_watches_are_one_instance_and_one_thread(tmp_path):
    folders = [tmp_path / str(number) for number in range(100)]
    bells, watches = [], []
    threads, others = watchers(), instances()
    for folder in folders:
        folder.mkdir()
        for number in range(10):
            bells.append(Bell())
            watches.append(watch_thread.watch(str(folder / f"lock{number}"), bells[-1].ring))
    assert instances() <= others + 1
    assert watchers() <= threads + 1
    for number, bell in enumerate(bells):
        (folders[number // 10] / f"lock{number % 10}").write_text("")
        assert bell.heard()
    for watch in watches:
        watch.close()
    assert not any(folder.names for folder in watch_thread.near.folders.values())
    assert ended(watch_thread.near)
    assert not watch_thread.near.numbers


def watchers():
    """Threads that watch. Those of other tests may end meanwhile, and none begins."""
    return sum(within_watch_thread(frame) for frame in sys._current_frames().values())


def within_watch_thread(frame):
    while frame is not None:
        if frame.f_code.co_filename == watch_thread.__file__ and frame.f_code.co_name == "keep":
            return True
        frame = frame.f_back
    return False


def instances(*more):
    """Descriptors of inotify, and of what else."""
    links = [link(fd) for fd in Path("/proc/self/fd").iterdir()]
    return sum(any(word in each for word in ("inotify", *more)) for each in links)


def link(path):
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def test_nothing_is_left_when_the_last_watch_is_closed(tmp_path, bell):
    before, fds = watchers(), instances("eventfd", "pidfd", "eventpoll")
    with watching(tmp_path / "lock", bell.ring):
        pass
    child = subprocess.Popen(["sleep", "60"])
    watch_thread.watch_process(child.pid, bell.ring).close()
    child.kill()
    child.wait()
    assert ended(watch_thread.near)
    wait_until(lambda: watchers() <= before)
    wait_until(lambda: instances("eventfd", "pidfd", "eventpoll") <= fds)


def test_a_watch_may_be_closed_twice_and_rings_no_more(tmp_path, bell):
    watch = watch_thread.watch(str(tmp_path / "lock"), bell.ring)
    watch.close()
    watch.close()
    (tmp_path / "lock").write_text("")
    assert not bell.heard(0.1)


def test_what_a_ring_raises_is_shown_and_disturbs_nobody(tmp_path, bell, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: shown.append(found.exc_type))
    with (
        watching(tmp_path / "lock", lambda: 1 / 0),
        watching(tmp_path / "lock", bell.ring),
    ):
        (tmp_path / "lock").write_text("")
        assert bell.heard()
    assert ZeroDivisionError in shown


# ---- processes ----------------------------------------------------------------------------------


def test_a_number_that_is_another_process_by_now_is_not_told_as_ended(bell):
    """It was ready, was given back and is used again before the thread comes to it."""
    child = subprocess.Popen(["sleep", "60"])
    watch = watch_thread.watch_process(child.pid, bell.ring)
    told = {}
    with fork.gate:
        watch_thread.near.hear([watch.number], told)
    assert not told
    child.kill()
    assert bell.heard()
    child.wait()
    watch.close()


def test_the_end_of_a_process_is_told_once(post, bell):
    child = subprocess.Popen(["sleep", "60"])
    watch = watch_thread.watch_process(child.pid, bell.ring)
    if post == "events":
        time.sleep(0.05)
        assert bell.count == 0
    child.kill()
    assert bell.heard()
    child.wait()
    watch.close()


def test_who_waits_for_a_process_that_is_gone_is_told_at_once(bell):
    child = subprocess.Popen(["true"])
    child.wait()
    watch_thread.watch_process(child.pid, bell.ring).close()
    assert bell.count == 1


# ---- fork, exit, signals ------------------------------------------------------------------------


def test_a_forked_child_watches_for_itself_and_leaves_the_parents_events_alone(tmp_path, bell):
    path = tmp_path / "lock"
    with watching(path, bell.ring) as watch:
        parents = watch_thread.near.notifier.fd
        child = os.fork()
        if child == 0:
            code = 1
            try:
                watch.close()  # the parent's: nothing to do with us
                mine = Bell()
                clean = parents not in fds_of_inotify() and not watch_thread.near.running
                with watching(path, mine.ring):
                    path.write_text("child")
                    code = 0 if clean and mine.heard() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bell.heard(), "the child has read its parent's event"


def fds_of_inotify():
    return [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if "inotify" in link(fd)]


@pytest.mark.large
def test_forks_while_watches_come_and_go_leave_no_child_behind(tmp_path):
    over, errors = threading.Event(), []

    def come_and_go():
        while not over.is_set():
            with watching(tmp_path / "lock", lambda: None):
                pass

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(60):
            child = os.fork()
            if child == 0:
                try:
                    bell = Bell()
                    with watching(tmp_path / "lock", bell.ring):
                        (tmp_path / "lock").touch()
                        os._exit(0 if bell.heard() else 3)
                finally:
                    os._exit(4)
            until = clock.now() + 60
            while not (found := os.waitpid(child, os.WNOHANG))[0]:
                if clock.now() > until:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    pytest.fail("a child hangs")
                time.sleep(0.001)
            errors.append(os.waitstatus_to_exitcode(found[1]))
    finally:
        over.set()
        thread.join()
    assert set(errors) == {0}


def python(code, *arguments, **options):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


EXIT = """
import sys
from lifehold.runtime import watch_thread
for number in range(50):
    watch_thread.watch(f"{sys.argv[1]}/{number}", lambda: None)
open(sys.argv[1] + "/1", "w").close()
print("done")
"""


def test_a_program_ends_with_its_watches_open(tmp_path):
    for _ in range(5):
        done = python(EXIT, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


SIGNALS = """
import os, signal, sys, threading, time
from lifehold.runtime import watch_thread
count = 0
def handler(*_):
    global count
    count += 1
    watch_thread.watch(sys.argv[1] + "/a", lambda: None).close()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    bell = threading.Event()
    watch = watch_thread.watch(sys.argv[1] + "/a", bell.set)
    with open(sys.argv[1] + "/a", "w"):
        pass
    assert bell.wait(60), "missed"
    watch.close()
signal.setitimer(signal.ITIMER_REAL, 0)
assert count, "no signal came"
from lifehold.runtime.watch_thread import near
assert not near.folders, near.folders
# A signal is for the main thread: one that sleeps there is woken.
watch = watch_thread.watch(sys.argv[1] + "/a", lambda: None)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
asleep = threading.Lock()
asleep.acquire()
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
asleep.acquire(timeout=60)
"""


def test_signal_handlers_may_watch_too_and_signals_do_not_go_to_the_thread(tmp_path):
    done = python(SIGNALS, tmp_path)
    assert (done.returncode, done.stderr) == (7, "")


# ---- at the limits ------------------------------------------------------------------------------


LIMITED = """
import logging, sys, threading, time
from pathlib import Path
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
from lifehold.runtime import watch_thread
limit = Path("/proc/sys/user", sys.argv[2])  # of our user namespace alone
before = limit.read_text()
limit.write_text(sys.argv[3])
bells = []
for number in range(20):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir(exist_ok=True)
    bells.append(threading.Event())
    watch_thread.watch(str(folder / "lock"), bells[-1].set)
time.sleep(0.1)
for number, bell in enumerate(bells):
    bell.clear()
    Path(sys.argv[1], str(number), "lock").touch()
assert all(bell.wait(60) for bell in bells), "missed"
counted = sum(folder.number is not None for folder in watch_thread.near.folders.values())
sys.stdout.write(f"heard {counted}\\n")  # in one piece: a thread that watches writes there too
sys.stdout.flush()
if sys.stdin.readline():
    limit.write_text(before)
    until = time.monotonic() + 60
    while any(folder.number is None for folder in watch_thread.near.folders.values()):
        assert time.monotonic() < until, "events were not asked for again"
        time.sleep(0.02)
    sys.stdout.write("heard again\\n")
"""


@needs("user namespace")
@pytest.mark.parametrize(("name", "value"), [("instances", 0), ("watches", 5)])
def test_at_the_limits_of_inotify_it_looks_says_so_once_and_comes_back(tmp_path, name, value):
    apart = ["unshare", "--user", "--map-root-user"]
    which = [str(tmp_path), f"max_inotify_{name}", str(value)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*apart, sys.executable, "-c", LIMITED, *which], **pipes) as child:
        said = []
        while not said or not said[-1].startswith("heard"):
            said.append(child.stdout.readline())
            assert said[-1], said
        rest, _ = child.communicate("again\n", timeout=120)
    *later, last = rest.splitlines()
    assert last == "heard again"
    # A file that was made meanwhile may have taken the watch of a folder.
    assert int(said[-1].split()[1]) <= value
    why = [line for line in [*said, *later] if "looking instead" in line]
    assert all("looking instead" in line for line in later)
    assert 1 <= len(why) <= 20
    assert len(set(why)) == len(why)


NO_DESCRIPTORS = """
import os, resource, sys, threading
from lifehold.runtime import watch_table, watch_thread
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
kept = []
try:
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
bell, gone = threading.Event(), threading.Event()
pid = int(sys.argv[2])
watch, other = watch_thread.watch(sys.argv[1], bell.set), watch_thread.watch_process(pid, gone.set)
assert bell.wait(60)
bell.clear()
os.symlink("x", sys.argv[1])
assert bell.wait(60), "missed"
os.kill(pid, 9)
assert gone.wait(60), "missed"
for fd in kept:
    os.close(fd)
import time
until = time.monotonic() + 60
while not any(folder.number is not None for folder in watch_thread.near.folders.values()):
    assert time.monotonic() < until
    time.sleep(0.02)
bell.clear()
os.unlink(sys.argv[1])
assert bell.wait(60), "missed"
"""


def test_without_a_descriptor_left_it_looks(tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    done = python(NO_DESCRIPTORS, tmp_path / "lock", child.pid)
    child.kill()
    child.wait()
    assert (done.returncode, done.stderr) == (0, "")


def test_descriptors_closed_by_other_code_are_opened_anew(tmp_path, bell):
    with watching(tmp_path / "lock", bell.ring):
        os.close(watch_thread.near.notifier.fd)
        (tmp_path / "lock").write_text("")
        assert bell.heard()
        while bell.heard(0.1):
            pass
        (tmp_path / "lock").unlink()
        assert bell.heard()


def test_processes_that_were_watched_leave_no_descriptor_when_others_close_one(own, bell):
    before = instances("pidfd")
    child = subprocess.Popen(["sleep", "60"])
    watch = watch_thread.watch_process(child.pid, bell.ring)
    own.hearing()
    try:
        os.close(own.notifier.fd)
        with fork.gate:
            own.drop_notifier()
        assert instances("pidfd") == before
        child.kill()
        assert bell.heard()
    finally:
        watch.close()
        child.kill()
        child.wait()


REUSED = """
import os, sys, threading, time
from lifehold.runtime import watch_thread
bell = threading.Event()
watch = watch_thread.watch(sys.argv[1] + "/lock", bell.set)
notifier, door = watch_thread.near.notifier.fd, watch_thread.near.sleeper.fd
ours = [os.pipe(), os.pipe()]
os.dup2(ours[0][0], notifier)                       # as a program does that closes all, and goes on
file = os.open(sys.argv[1] + "/mine", os.O_RDWR | os.O_CREAT)
os.dup2(file, door)
os.write(ours[0][1], b"not for you")
open(sys.argv[1] + "/lock", "w").close()
assert bell.wait(60), "missed"
for number in range(20):
    watch_thread.watch(f"{sys.argv[1]}/{number}/x", lambda: None)
time.sleep(0.3)
until = time.monotonic() + 60
while watch_thread.near.notifier is None or watch_thread.near.notifier.fd == notifier:
    assert time.monotonic() < until, "not opened anew"
    time.sleep(0.02)
assert os.read(ours[0][0], 100) == b"not for you"
assert os.fstat(file).st_size == 0, "written into the program's own file"
"""


def test_descriptors_that_the_program_has_reused_are_not_touched(tmp_path):
    done = python(REUSED, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


IDLE = """
import os, resource, sys, time
from lifehold.runtime import watch_thread
for number in range(int(sys.argv[2])):
    watch_thread.watch(f"{sys.argv[1]}/{number}", lambda: None)
time.sleep(0.2)
def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime
before = used()
time.sleep(float(sys.argv[3]))
print(used() - before)
"""


def test_an_idle_watcher_costs_next_to_nothing(tmp_path):
    done = python(IDLE, tmp_path, 1, 4)
    assert float(done.stdout) < 0.02
    assert resource.RLIMIT_NOFILE


@pytest.mark.large
def test_a_busy_folder_does_not_eat_the_processor(tmp_path):
    writer = "import sys\nwhile True: open(sys.argv[1] + '/noise', 'w').close()"
    noise = subprocess.Popen([sys.executable, "-c", writer, str(tmp_path)])
    try:
        done = python(IDLE, tmp_path, 1, 2)
    finally:
        noise.kill()
        noise.wait()
    assert float(done.stdout) < 1.0
