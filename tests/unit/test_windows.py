"""The Windows mechanism over a simulated kernel32: what can be shown of it elsewhere."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from lifehold import (
    InvalidArgument,
    LeaseLost,
    Lock,
    SystemRefused,
    Timeout,
    UnsafeGround,
    WouldBlock,
    registry,
)
from lifehold.core.owner import Sighting
from lifehold.core.value import replace
from lifehold.local import record as form
from lifehold.local import windows
from lifehold.local.handles import Descriptors
from lifehold.local.windows import MsvcrtFiles, WindowsFiles, WindowsKernelLock, refusal
from lifehold.runtime import process, process_windows
from lifehold.runtime.blocking import BLOCKING
from lifehold.runtime.process import here
from lifehold.runtime.process_windows import WindowsProcesses
from lifehold.testing.conformance import Subject, cases

_spec = importlib.util.spec_from_file_location("kernel32", Path(__file__).with_name("kernel32.py"))
kernel32 = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernel32)

PATH = "/locks/build.lock"


class System:
    """A simulated Windows, and locks on it."""

    def __init__(self, classic=False):
        self.kernel32 = kernel32.Kernel32(classic)
        self.table = Descriptors(WindowsFiles(self.kernel32, self.kernel32.last_error))
        self.table.files.makedirs = lambda folder, exist_ok: None

    def offer(self, kind="windows"):
        def make(path, runtime, **options):
            return WindowsKernelLock(path, runtime, table=self.table, **options)

        return registry.offer(kind, make)

    @property
    def content(self) -> bytes:
        return bytes(self.kernel32.files[PATH].data)

    @content.setter
    def content(self, data: bytes):
        self.kernel32.files.setdefault(PATH, kernel32.File()).data[:] = data


@pytest.fixture
def system():
    made = System()
    withdraw = made.offer()
    yield made
    withdraw()
    made.table.close_idle()
    assert not made.kernel32.handles, "a handle was left open"


SHARED = System()
SHARED.offer("windows simulated")
WINDOWS = Subject(
    "windows simulated",
    lacks={
        **dict.fromkeys(
            ("processes", "survives_crash"), "its kernel32 is simulated in one process"
        ),
        "fork": "Windows has none",
        "ttl": "the kernel frees it with its holder",
    },
    lose=SHARED.kernel32.delete,
)


@pytest.mark.parametrize("case", cases(WINDOWS, ["blocking", "asyncio"], lacking=False), ids=str)
def test_the_simulated_windows_lock_keeps_the_claim(case, tmp_path):
    if why := case.why_not():
        pytest.skip(why)
    try:
        case.run(tmp_path)
    finally:
        SHARED.table.close_idle()


def lock(**options) -> Lock:
    return Lock(PATH, kind="windows", **options)


def test_the_record_begins_at_byte_1_and_the_file_is_json(system):
    with lock() as lease:
        assert system.content[:1] == b" "
        assert system.content[1:].startswith(form.MAGIC)
        assert len(system.content) == form.SIZE + 1
        assert json.loads(system.content)["token"] == lease.token
        found = form.parse(system.content[1:]).owner
        assert here().command.startswith(found.command), "cut where this test run's own is long"
        assert replace(here(), command=found.command) == found
    with lock() as again:
        assert again.token > lease.token


def test_the_record_is_readable_while_byte_0_is_not(system):
    with lock(label="nightly"):
        stranger = system.table.files.open(PATH, os.O_RDONLY)
        assert system.table.files.first_byte(stranger) is None
        assert form.parse(system.table.files.pread(stranger, form.SIZE, 0)).owner.label == "nightly"
        system.table.files.close(stranger)
        holder = lock().holder()
        assert (holder.owner.label, holder.alive) == ("nightly", "alive")
        assert holder.evidence == "byte 0 of the lock file is locked"
        assert "Windows" in holder.lock
    assert lock().holder() is None


def test_a_shared_lock_is_seen_by_trying(system):
    with lock(exclusive=False), lock(exclusive=False):
        assert lock().locked()
        assert lock().holder().owner is None
    assert not lock().locked()


@pytest.mark.parametrize("content", [b"x", b"data of somebody", b"\0x", b"  x", b"{}"])
def test_the_data_of_others_is_never_changed(system, content):
    system.content = content
    with lock() as lease:
        assert lease.token is None
    assert system.content == content


@pytest.mark.parametrize("content", [b"", b"\0", b" ", b"\0" * 600])
def test_an_empty_file_gets_a_record(system, content):
    system.content = content
    with lock() as lease:
        assert json.loads(system.content)["token"] == lease.token


def test_a_record_copied_from_unix_is_written_over_whole(system):
    system.content = form.numbered(form.parts(5, "ab" * 8, here()), 2**62, 1)
    with lock() as lease:
        assert lease.token == 2**62 + 1
        assert json.loads(system.content)["token"] == lease.token


def test_a_truncated_file_gets_its_record_back(system):
    with lock() as lease:
        system.content = b""
        lease.check()
        assert json.loads(system.content)["token"] == lease.token


def test_a_deleted_file_is_a_lost_lock(system):
    lease = lock().acquire()
    system.kernel32.delete(PATH)
    with pytest.raises(LeaseLost, match="removed or renamed"):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    lock().acquire(0).release()


def test_where_a_deleted_name_stays_the_refusal_is_said():
    system = System(classic=True)
    withdraw = system.offer()
    lease = lock().acquire()
    system.kernel32.delete(PATH)
    with pytest.raises(LeaseLost, match="cannot be looked at"):
        lease.check()
    with pytest.raises(SystemRefused, match="ask its owner"):
        lock().acquire(0)
    with pytest.raises(LeaseLost):
        lease.release()
    lock().acquire(0).release()
    withdraw()
    system.table.close_idle()


@pytest.mark.parametrize(("kind", "words"), [(0x10, "a directory"), (0x400, "a symbolic link")])
def test_what_is_no_regular_file_is_refused(system, kind, words):
    system.kernel32.files[PATH] = kernel32.File(kind)
    with pytest.raises(InvalidArgument, match=words):
        lock().acquire()


@pytest.mark.parametrize(
    ("call", "code", "number"),
    [
        ("CreateFileW", 4, errno.EMFILE),
        ("WriteFile", 112, errno.ENOSPC),
        ("LockFileEx", 64, errno.ESTALE),
        ("LockFileEx", 9999, errno.EIO),
    ],
)
def test_an_error_of_windows_is_said_in_our_words_and_nothing_is_held(system, call, code, number):
    system.content = b""
    system.kernel32.fail[call] = code
    with pytest.raises(SystemRefused) as caught:
        lock().acquire()
    assert caught.value.errno == number
    assert f"Windows error {code}" in str(caught.value) or os.strerror(number) in str(caught.value)
    lock().acquire(0).release()


def test_errors_become_the_exceptions_that_python_knows():
    assert isinstance(refusal(2), FileNotFoundError)
    assert isinstance(refusal(33), BlockingIOError)
    assert isinstance(refusal(5), PermissionError)
    assert isinstance(refusal(80), FileExistsError)
    assert refusal(303, "x").filename == "x"


def test_a_file_that_another_program_shares_with_nobody_is_waited_for(system):
    system.content = b""
    system.kernel32.fail["CreateFileW"] = 32
    with pytest.raises(WouldBlock, match="to itself"):
        lock().acquire(0)
    system.kernel32.fail["CreateFileW"] = 32
    lock().acquire(60).release()


def test_a_record_that_is_cut_short_leaves_no_half_of_it(system, monkeypatch):
    system.content = b""
    whole = system.kernel32.WriteFile

    def half(handle, data, length, done, reference):
        return whole(handle, data[: length // 2], length // 2, done, reference)

    monkeypatch.setattr(system.kernel32, "WriteFile", half)
    with pytest.raises(SystemRefused):
        lock().acquire(0)
    assert system.content == b""


def test_two_files_of_one_short_number_are_two_files(system):
    system.content = b""
    first = system.kernel32.files[PATH]
    first.id = 7 << 64 | 5
    lease = lock().acquire(0)
    other = kernel32.File()
    other.index, other.id = first.index, 8 << 64 | 5
    system.kernel32.files[PATH] = other
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_file_without_a_number_is_known_by_its_creation(system):
    system.content = b""
    system.kernel32.files[PATH].index = 0
    lease = lock().acquire(0)
    lease.check()
    other = kernel32.File()
    other.index = 0
    system.kernel32.files[PATH] = other
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_number_that_is_no_files_any_more_is_not_closed(system):
    system.content = b""
    lease = lock().acquire(0)
    handle = lease.fileno()
    system.kernel32.CloseHandle(handle)
    system.kernel32.handles[handle] = "an event of the program"
    with pytest.raises(LeaseLost):
        lease.release()
    assert system.kernel32.handles.pop(handle) == "an event of the program"


def test_a_waiter_polls_until_its_deadline(system):
    with lock(), pytest.raises(Timeout):
        lock().acquire(0.03)


def test_cleanup_is_refused_with_a_reason(system):
    with pytest.raises(UnsafeGround, match="not possible on Windows"):
        lock(cleanup=True)


def test_on_windows_the_registry_chooses_this_mechanism():
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import signal, os, time; sys.platform = 'win32'\n"
        "from lifehold.local.kinds import KINDS; print(KINDS['kernel'].made_by)"
    )
    import subprocess

    source = str(Path(windows.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script, source],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    module, _, name = done.stdout.strip().partition(":")
    assert getattr(sys.modules[module], name) is WindowsKernelLock


# ---- without ctypes


class Msvcrt:
    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self):
        self.locked: dict[tuple[int, int], int] = {}

    def locking(self, fd, how, length):
        assert length == 1
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
        key = (os.fstat(fd).st_dev, os.fstat(fd).st_ino)
        if how == self.LK_UNLCK:
            del self.locked[key]
        elif key in self.locked:
            raise PermissionError(errno.EACCES, "held")
        else:
            self.locked[key] = fd


def test_without_ctypes_msvcrt_locks_the_first_byte(tmp_path, monkeypatch):
    fake, path = Msvcrt(), str(tmp_path / "build.lock")
    table = Descriptors(MsvcrtFiles(fake))
    one, other = (WindowsKernelLock(path, BLOCKING, table=table) for _ in range(2))
    grant = one.attempt()
    assert len(fake.locked) == 1
    assert type(other.attempt()).__name__ == "Held"
    assert json.loads(Path(path).read_bytes())["token"] == grant.token
    assert one.check(grant) is None
    assert one.drop(grant) is None
    assert not fake.locked
    assert other.attempt().token > grant.token
    with pytest.raises(UnsafeGround, match="needs LockFileEx"):
        WindowsKernelLock(path, BLOCKING, table=table, exclusive=False)
    table.close_idle()


def test_msvcrt_leaves_the_data_of_others_alone(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"data")
    table = Descriptors(MsvcrtFiles(Msvcrt()))
    mechanism = WindowsKernelLock(str(path), BLOCKING, table=table)
    grant = mechanism.attempt()
    assert grant.token is None
    mechanism.drop(grant)
    assert path.read_bytes() == b"data"
    table.close_idle()


def test_the_table_is_made_once_by_ctypes_or_else_by_msvcrt(monkeypatch):
    monkeypatch.setattr(windows, "_table", None)
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt())
    monkeypatch.setattr("lifehold.local.windows.host", lambda: (_ for _ in ()).throw(ImportError()))
    found = windows.table_here()
    assert isinstance(found.files, MsvcrtFiles)
    assert windows.table_here() is found


# ---- who lives


@pytest.fixture
def processes():
    fake = kernel32.Kernel32()
    fake.processes = {
        8: {"created": 133_000_000_000_000_000, "image": "C:\\python.exe"},
        12: {"created": 1, "ended": True}, 16: 5, 20: {},
    }  # fmt: skip
    yield WindowsProcesses(fake, fake.last_error)
    assert not fake.handles


def test_a_process_is_its_number_and_its_creation(processes):
    seen = processes.look(8)
    assert seen == Sighting(True, start_ticks=133_000_000_000_000_000, command="C:\\python.exe")
    assert processes.look(12).is_zombie
    assert processes.look(20) == Sighting(True)


def test_a_number_that_windows_rounds_down_is_nobodys(processes):
    assert processes.look(9) == Sighting(exists=False)
    assert processes.look(4) == Sighting(exists=False)


def test_a_process_that_may_not_be_opened_is_not_called_gone(processes):
    assert processes.look(16) == Sighting(exists=True)


def test_process_asks_windows_where_it_runs(monkeypatch, processes):
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr(process_windows, "_host", processes)
    assert process.look(8).start_ticks == 133_000_000_000_000_000
