"""`once`: who runs, who gets what, and what cannot be handed on. Threads stand for processes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lifehold
from lifehold import (
    AsyncLease,
    AsyncLock,
    Cancel,
    CorruptRecord,
    InvalidArgument,
    Lease,
    LeaseLost,
    Lock,
    OnceFailed,
    SelfDeadlock,
    SystemRefused,
    UnsafeGround,
    WouldBlock,
    aonce,
    once,
)
from lifehold.local.files import HOST, Files
from lifehold.local.kernel_holders import waiters_of
from lifehold.recipes import once_results
from lifehold.recipes.once import ResultRefused, forget
from lifehold.runtime import clock, native


@pytest.fixture
def name(tmp_path: Path) -> str:
    return str(tmp_path / "job")


class Job:
    """A function that counts its runs, and holds the door until all others wait."""

    def __init__(self, result: object = None, error: BaseException | None = None) -> None:
        self.runs, self.result, self.error = 0, result, error
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self) -> object:
        self.runs += 1
        self.begun.set()
        assert self.go.wait(90)
        if self.error is not None:
            raise self.error
        return self.result


def together(name: str, job: Job, count: int, eventually, **rules) -> list[object]:
    """`count` callers at once: the first runs until all the others stand in the kernel's queue."""
    job.go.clear()

    def call() -> object:
        try:
            return once(name, job, **rules)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        first = pool.submit(call)
        assert job.begun.wait(90)
        others = [pool.submit(call) for _ in range(count - 1)]
        eventually(lambda: len(waiters_of(HOST, name)) == count - 1, "all wait")
        job.go.set()
        return [first.result(30), *(each.result(30) for each in others)]


@pytest.fixture
def eventually():
    def wait(claim, what):
        until = clock.now() + 60
        while not claim():
            assert clock.now() < until, f"never: {what}"
            threading.Event().wait(0.002)

    return wait


# ---- who runs


def test_of_many_callers_one_runs_and_all_get_its_result(name, eventually):
    job = Job({"answer": 42})
    assert together(name, job, 8, eventually) == [{"answer": 42}] * 8
    assert job.runs == 1


def test_a_result_counts_for_good_unless_it_is_bounded(name):
    job = Job(1)
    for _ in range(3):
        assert once(name, job) == 1
    assert job.runs == 1
    assert once(name, job, keep=3600) == 1
    assert job.runs == 1


def test_a_result_is_made_anew_when_it_is_older_than_keep(name, monkeypatch):
    job = Job(1)
    once(name, job)
    now, utc = clock.now(), clock.utc_now()
    monkeypatch.setattr(clock, "now", lambda: now + 3601)
    once(name, job, keep=3600)
    assert job.runs == 2
    monkeypatch.setattr(once_results, "boot_id", lambda: "another boot")
    once(name, job, keep=3600)
    assert job.runs == 2  # by the wall clock it is young
    monkeypatch.setattr(clock, "utc_now", lambda: utc - 10)
    once(name, job, keep=3600)
    assert job.runs == 2  # a clock that stands ahead by less than what counts
    monkeypatch.setattr(clock, "utc_now", lambda: utc - 3610)
    once(name, job, keep=3600)
    assert job.runs == 3  # that clock cannot be believed


def test_keep_of_zero_shares_with_those_who_waited_and_nobody_else(name, eventually):
    job = Job("x")
    assert together(name, job, 4, eventually, keep=0) == ["x"] * 4
    assert job.runs == 1
    once(name, job, keep=0)
    assert job.runs == 2


def test_a_forgotten_result_is_made_anew(name):
    job = Job(1)
    assert not forget(name)
    once(name, job)
    assert forget(name)
    once(name, job)
    assert job.runs == 2
    assert len(os.listdir(name + ".once")) == 1


def test_a_plain_name_is_that_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    once("warm-cache", lambda: 1)
    assert sorted(os.listdir(tmp_path)) == ["warm-cache.lock", "warm-cache.lock.once"]


@pytest.mark.parametrize("word", ["out.lock", "out.lck", "out.pid"])
def test_a_word_that_may_be_a_file_or_a_name_is_refused(tmp_path, monkeypatch, word):
    """As by the command; a path, and a name that was in use before, are told apart."""
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path / "names"))
    monkeypatch.chdir(tmp_path)

    async def tasks():
        await aonce(word, pytest.fail)

    for call in (
        lambda: once(word, pytest.fail),
        once(word)(lambda: None),
        lambda: forget(word),
        lambda: asyncio.run(tasks()),
    ):
        with pytest.raises(InvalidArgument, match=rf"write '\./{word}' for the file.*'out'"):
            call()
    assert os.listdir() == []
    assert once(f"./{word}", lambda: 1) == 1
    assert f"{word}.once" in os.listdir()
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / f"{word}.lock").touch()
    assert once(word, lambda: 2) == 2


def test_what_unless_answers_is_the_answer(name):
    job, done = Job("built"), []
    assert once(name, job, unless=lambda: done) == "built"
    done.append("there")
    assert once(name, job, unless=lambda: done) == ["there"]
    done.clear()
    assert once(name, job, unless=lambda: done) == "built"
    assert job.runs == 2


def test_those_who_wait_ask_unless_again_before_they_run(name):
    asked = []

    def unless():
        asked.append(1)
        return len(asked) > 1 and "there"

    job = Job()
    assert once(name, job, unless=unless) == "there"
    assert job.runs == 0


@pytest.mark.parametrize("kind", ["soft", "soft 20", "generation 20", "link"])
def test_every_kind_of_lock_will_do(name, kind):
    job = Job([1])
    word, _, ttl = kind.partition(" ")
    kind = {"kind": word, "ttl": float(ttl) if ttl else None}
    assert once(name, job, **kind) == once(name, job, **kind) == [1]
    assert job.runs == 1


def test_who_does_not_want_to_wait_is_told_who_runs(name):
    with Lock(name), pytest.raises(WouldBlock, match="held"):
        once(name, Job(), wait=0)


def test_a_function_that_asks_for_its_own_name_is_refused_at_once(name):
    with pytest.raises(OnceFailed) as caught:
        once(name, lambda: once(name, Job()))
    assert isinstance(caught.value.__cause__, SelfDeadlock)


def test_a_wait_can_be_cancelled_like_that_of_a_lock(name):
    cancel = Cancel()
    cancel.cancel()
    with Lock(name), pytest.raises(lifehold.AcquireCancelled):
        once(name, Job(), cancel=cancel, wait=60)


# ---- what they get


def test_the_one_who_ran_gets_what_the_others_get(name):
    assert once(name, lambda: {"a": (1, 2)}) == {"a": [1, 2]} == once(name, Job())


def test_a_codec_of_the_caller_carries_bytes(name):
    raw = bytes(range(256)) + b"\n{"
    assert once(name, lambda: raw, dump=bytes, load=bytes) == raw
    assert once(name, Job(), dump=bytes, load=bytes) == raw


def test_a_failure_is_the_same_for_all_who_waited(name, eventually):
    job = Job(error=ValueError("no disk"))
    errors = together(name, job, 4, eventually)
    assert job.runs == 1
    assert {type(error) for error in errors} == {OnceFailed}
    assert {(e.type_name, e.message, e.code) for e in errors} == {
        ("ValueError", "no disk", "once_failed")
    }
    assert [e.here for e in errors] == [True, False, False, False]
    assert errors[0].__cause__ is job.error
    assert "ValueError: no disk" in errors[1].__notes__[0]
    assert "in pid" in str(errors[1])
    copy = pickle.loads(pickle.dumps(errors[1]))
    assert (copy.message, copy.token) == ("no disk", errors[0].token)


def test_a_failure_is_not_kept_for_those_who_come_later(name):
    job = Job(error=ValueError("no disk"))
    for _ in range(2):
        with pytest.raises(OnceFailed):
            once(name, job)
    assert job.runs == 2
    with pytest.raises(OnceFailed, match="no disk"):
        once(name, job, keep_failure=None)
    assert job.runs == 2


def test_nothing_is_imported_for_a_failure(name, tmp_path):
    once(name, lambda: 1)
    (file,) = Path(name + ".once").iterdir()
    line = once_results.packed(
        "failure", 1, b"", type="antigravity.Boom", message="m", traceback=""
    )
    file.write_bytes(line)
    with pytest.raises(OnceFailed, match=r"antigravity\.Boom: m"):
        once(name, Job(), keep_failure=None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_exception_is_no_failure_and_the_next_one_runs(name, error):
    with pytest.raises(type(error)):
        once(name, Job(error=error))
    assert os.listdir(name + ".once") == []
    assert once(name, Job("ran")) == "ran"


def test_an_exception_whose_text_cannot_be_made_is_a_failure_still(name):
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(OnceFailed, match="cannot be made"):
        once(name, Job(error=Mute()))


# ---- what cannot be handed on


@pytest.mark.parametrize(
    ("result", "rules", "why"),
    [
        ({1, 2}, {}, "not JSON serializable"),
        ({1: "a"}, {}, "the key 1 is int"),
        ([{"x": {None: 1}}], {}, "the key None is NoneType"),
        ("x" * 100, {"limit": 50}, "102 bytes, and limit=50"),
        ("x", {"dump": lambda value: value, "load": bytes}, "made str of it, not bytes"),
        ("x", {"dump": str.encode, "load": int}, "load= cannot read"),
    ],
)
def test_a_result_that_cannot_be_handed_on_is_in_the_error(name, result, rules, why):
    with pytest.raises(ResultRefused, match=why) as caught:
        once(name, lambda: result, **rules)
    assert caught.value.value is result
    with pytest.raises(OnceFailed, match="ResultRefused"):
        once(name, Job(), keep_failure=None)


def test_a_refused_result_does_not_make_the_others_run(name, eventually):
    job = Job({1, 2})
    answers = together(name, job, 3, eventually)
    assert [type(each) for each in answers] == [ResultRefused, OnceFailed, OnceFailed]
    assert job.runs == 1


class FullDisk(Files):
    def pwrite(self, *_):
        raise OSError(28, "No space left on device")


def test_a_full_disk_loses_no_result(name, monkeypatch):
    monkeypatch.setattr("lifehold.recipes.once.files_for", lambda path: FullDisk())
    with pytest.raises(lifehold.SystemRefused, match="No space") as caught:
        once(name, lambda: [1])
    assert caught.value.value == [1]
    assert os.listdir(name + ".once") == []
    with pytest.raises(OnceFailed) as caught:
        once(name, Job(error=ValueError("boom")))
    assert "No space" in caught.value.__notes__[0]
    assert "No space" in str(caught.value.untold)


def test_a_result_that_load_cannot_read_says_how_to_be_rid_of_it(name):
    once(name, lambda: "text")
    with pytest.raises(CorruptRecord, match="forget"):
        once(name, Job(), dump=bytes, load=int)


def test_a_result_that_is_not_whole_is_none(name):
    once(name, lambda: "first")
    (file,) = Path(name + ".once").iterdir()
    whole = file.read_bytes()
    for torn in (b"", whole[:-1], whole[:20], b"\0" * len(whole), b"[]\n", b"junk"):
        file.write_bytes(torn)
        assert once(name, lambda: "again") == "again"
        (file,) = Path(name + ".once").iterdir()


@pytest.mark.parametrize(
    "strange",
    [
        {"at": "x"},
        {"at": 10**400},
        {"at": float("nan")},
        {"up": "x"},
        {"up": True},
        {"token": "x"},
        {"type": 1},
        {"kind": []},
        {"kind": "command", "code": 0},
        {"kind": "command", "code": 0, "size": -1},
        {"kind": "command", "code": "x", "size": 0},
        {"kind": "command", "code": True, "size": 0},
        {"kind": "command", "code": 256, "size": 0},
        {"kind": "command", "code": 0, "size": 0, "whole": "x"},
    ],
)
def test_a_result_with_a_fact_that_no_run_writes_is_none(name, strange):
    once(name, lambda: "first")
    (file,) = Path(name + ".once").iterdir()
    facts, _, content = file.read_bytes().partition(b"\n")
    file.write_bytes(json.dumps(json.loads(facts) | strange).encode() + b"\n" + content)
    assert once(name, lambda: "again", keep=1e9) == "again"


def test_a_result_nested_too_deep_to_be_read_is_none(name):
    once(name, lambda: "first")
    (file,) = Path(name + ".once").iterdir()
    file.write_bytes(b"[" * 200_000 + b"\n")
    assert once(name, lambda: "again") == "again"


def test_a_number_that_no_token_reaches_hides_no_result(name):
    once(name, lambda: "first")
    Path(name + ".once", "9" * 20 + ".done").write_bytes(b"junk")
    job = Job("second")
    assert once(name, job) == "first"
    assert job.runs == 0


def test_a_result_of_a_newer_version_is_no_reason_to_run(name):
    once(name, lambda: 1)
    (file,) = Path(name + ".once").iterdir()
    facts, _, content = file.read_bytes().partition(b"\n")
    newer = json.loads(facts) | {"lifehold": 2}
    file.write_bytes(json.dumps(newer).encode() + b"\n" + content)
    job = Job()
    with pytest.raises(CorruptRecord, match="update"):
        once(name, job)
    assert job.runs == 0


def test_a_result_that_another_user_made_is_refused(name, monkeypatch):
    once(name, lambda: 1)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    (file,) = Path(name + ".once").iterdir()
    if file.stat().st_uid == 0:
        os.chown(file, 4712, -1)
    job = Job()
    with pytest.raises(UnsafeGround, match="another user"):
        once(name, job)
    assert once(name, job, shared=True) == 1
    assert job.runs == 0


def test_a_symbolic_link_in_place_of_a_result_is_not_followed(name, tmp_path):
    once(name, lambda: 1)
    (file,) = Path(name + ".once").iterdir()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument):
        once(name, Job())


def test_results_are_not_put_where_a_link_or_another_user_wants_them(name, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", name + ".once")
    with pytest.raises(InvalidArgument, match="no folder of results"):
        once(name, Job())
    assert os.listdir(tmp_path / "elsewhere") == []
    os.unlink(name + ".once")
    os.mkdir(name + ".once")
    if os.getuid() == 0:
        os.chown(name + ".once", 4712, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UnsafeGround, match="another user"):
        once(name, Job())


def test_an_object_that_is_a_path_is_never_a_plain_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert once(Path("job"), lambda: 1) == 1
    assert sorted(os.listdir(tmp_path)) == ["job", "job.once"]


def test_a_result_is_for_its_user_alone_unless_it_is_shared(name, tmp_path):
    once(name, lambda: 1)
    (file,) = Path(name + ".once").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    once(tmp_path / "all", lambda: 1, shared=True)
    (file,) = (tmp_path / "all.once").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o666, 0o777)


# ---- whose lock was lost


def test_a_run_whose_lock_was_lost_publishes_nothing_and_keeps_its_value(name):
    def job():
        os.unlink(name)
        assert once(name, lambda: "later") == "later"
        return "late"

    with pytest.raises(LeaseLost) as caught:
        once(name, job)
    assert caught.value.value == "late"
    assert once(name, Job()) == "later"


def test_a_late_result_is_refused_even_when_its_lock_seems_held(name, monkeypatch):
    """Between the last look at the lock and the rename: the kernel finds no such file."""

    def job():
        os.unlink(name)
        assert once(name, lambda: "later") == "later"
        return "late"

    monkeypatch.setattr("lifehold.lease.Holding.check", lambda self: None)
    with pytest.raises(LeaseLost, match="later run has begun"):
        once(name, job)
    monkeypatch.undo()
    assert once(name, Job()) == "later"


def test_a_counter_that_was_set_back_does_not_hide_new_results(name):
    once(name, lambda: "old")
    (file,) = Path(name + ".once").iterdir()
    file.rename(file.with_name(f"{10**18:020d}.done"))
    assert once(name, lambda: "new", keep=0) == "new"
    assert once(name, Job()) == "new"


def test_what_a_crash_left_is_gone_after_the_next_run(name):
    once(name, lambda: 1, keep=0)
    folder = Path(name + ".once")
    for left in ("00000000000000000007.run", "00000000000000000008.out"):
        (folder / left).write_bytes(b"half")
    once(name, lambda: 2, keep=0)
    assert len(os.listdir(folder)) == 1


def test_a_child_forked_inside_the_function_publishes_nothing(name):
    parent = os.getpid()

    def job():
        if os.fork() == 0:
            return "child"
        os.wait()
        return "parent"

    try:
        answer = once(name, job)
    except BaseException:
        if os.getpid() != parent:
            os._exit(0)
        raise
    if os.getpid() != parent:
        os._exit(1)
    assert answer == "parent" == once(name, Job())


# ---- as a decorator, and what it refuses


def test_a_decorated_function_runs_once_for_all_its_callers(name):
    @once(name)
    def build() -> int:
        """Build it."""
        return next(numbers)

    numbers = iter(range(9))
    assert [build(), build()] == [0, 0]
    assert build.__doc__ == "Build it."


def test_arguments_need_a_name_that_tells_them_apart(tmp_path):
    @once(lambda version: tmp_path / f"v{version}")
    def build(version):
        return version * 10

    assert [build(1), build(2), build(version=1)] == [10, 20, 10]

    @once(str(tmp_path / "one"))
    def wrong(version):
        return version

    with pytest.raises(InvalidArgument, match="lambda"):
        wrong(1)


def generator():
    yield 1


async def coroutine():
    return 1


def makes_a_coroutine():
    return coroutine()


@pytest.mark.parametrize(
    ("arguments", "rules", "why"),
    [
        (("x", 5), {}, "fn must be callable"),
        (("x", generator), {}, "generator"),
        (("x", coroutine), {}, "aonce"),
        (("x", makes_a_coroutine), {}, "aonce"),
        ((5, Job()), {}, "name must be a str"),
        (("", Job()), {}, "needs a name"),
        (("a\0/b", Job()), {}, "NUL"),
        (("x", Job()), {"keep": -1}, "keep"),
        (("x", Job()), {"keep_failure": "1h"}, "keep_failure"),
        (("x", Job()), {"limit": 0}, "limit"),
        (("x", Job()), {"unless": True}, "unless must be callable"),
        (("x", Job()), {"dump": bytes}, "together"),
        (("x", Job()), {"dump": 1, "load": 2}, "dump must be callable"),
        (("x", Job()), {"exclusive": False}, "exclusive"),
        (("x", Job()), {"record": False}, "record"),
        (("x", Job()), {"kind": "sparkling"}, "kind must be one of"),
        (("x", Job()), {"ttl": 5}, "ttl"),
    ],
)
def test_what_cannot_be_done_once_is_refused_by_name(
    arguments, rules, why, tmp_path, monkeypatch
):  # fmt: skip
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    with pytest.raises(InvalidArgument, match=why):
        once(*arguments, **rules)


def test_a_lock_without_a_token_is_refused_before_the_function_runs(tmp_path):
    data = tmp_path / "data"
    data.write_text("somebody's file")
    job = Job()
    with pytest.raises(UnsafeGround, match="no token"):
        once(data, job)
    assert job.runs == 0


# ---- async


def test_tasks_share_one_run_while_the_loop_goes_on(name):
    runs = []

    async def job():
        runs.append(1)
        await asyncio.sleep(0.02)
        return len(runs)

    async def main():
        return await asyncio.gather(*(aonce(name, job) for _ in range(5)))

    assert asyncio.run(main()) == [1] * 5
    assert once(name, Job()) == 1


def test_a_cancelled_task_leaves_no_result_and_the_next_runs(name):
    async def main():
        begun = asyncio.Event()

        async def long():
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(aonce(name, long))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert os.listdir(name + ".once") == []

        @aonce(name)
        async def job():
            return "next"

        return await job()

    assert asyncio.run(main()) == "next"


def test_what_aonce_decorates_is_a_coroutine_function_to_other_decorators(name):
    async def two():
        return 2

    for function in (two, lambda: 2):  # its `fn` may be a plain one
        job = aonce(name)(function)
        assert inspect.iscoroutinefunction(job)
        assert job.__name__ == function.__name__
        assert asyncio.run(AsyncLock(f"{name}.outer")(job)()) == 2
        for wrong in (Lock(f"{name}.outer"), once(name)):
            with pytest.raises(InvalidArgument, match=r"@AsyncLock|aonce"):
                wrong(job)
    with pytest.raises(InvalidArgument, match="called with arguments"):
        asyncio.run(job(5))
    assert asyncio.run(aonce(lambda number: f"{name}-{number}")(absent)(5)) == 5
    assert not inspect.iscoroutinefunction(once(name)(len))


async def absent(number):
    return number


def test_a_failing_task_and_an_async_check_are_as_in_the_blocking_form(name):
    async def fails():
        raise ValueError("no disk")

    async def there():
        return "there"

    async def main():
        with pytest.raises(OnceFailed) as caught:
            await aonce(name, fails)
        assert isinstance(caught.value.__cause__, ValueError)
        assert await aonce(name, fails, unless=there) == "there"
        with pytest.raises(ResultRefused):
            await aonce(name, lambda: {1})

    asyncio.run(main())


def test_trio_runs_it_as_well(name):
    trio = pytest.importorskip("trio")

    async def job():
        await trio.sleep(0.01)
        return 5

    async def main():
        got = []

        async def one():
            got.append(await aonce(name, job))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        return got

    assert trio.run(main) == [5, 5, 5]


def test_a_number_after_which_none_can_come_is_refused_by_name(name):
    """Whoever put it there: `once` ran each time, since no result could be kept."""
    assert once(name, lambda: 1) == 1
    folder = Path(f"{name}.once")
    [done] = folder.glob("*.done")
    done.rename(folder / f"{2**63 - 2:020d}.done")
    job = Job(2)
    (folder / f"{2**63 - 2:020d}.done").write_bytes(b"what is this?")
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"Remove 09223372036854775806\.\* there"):
            once(name, job)
    assert not job.runs


async def never() -> bool:
    return False


def never_either():
    yield


def call_of(function):
    """What makes a coroutine, and does not look so."""
    return lambda *given: function(*given)  # noqa: PLW0108  the lambda is what is tested


@pytest.mark.parametrize("unless", [never, call_of(never), never_either])
def test_a_check_that_has_to_be_awaited_is_no_answer(name, unless):
    with pytest.raises(InvalidArgument, match=r"aonce|generator"):
        once(name, lambda: pytest.fail("ran"), unless=unless)


def test_a_check_of_aonce_may_be_a_coroutine_and_no_generator(name):
    assert asyncio.run(aonce(name, lambda: 7, unless=never)) == 7
    with pytest.raises(InvalidArgument, match="generator"):
        asyncio.run(aonce(name, lambda: 7, unless=never_either))


def test_a_result_that_cannot_be_told_is_in_hand_when_the_refusal_cannot_be_told_either(name):
    def run():
        shutil.rmtree(f"{name}.once")
        return {1, 2}

    with pytest.raises(ResultRefused) as caught:
        once(name, run)
    assert caught.value.value == {1, 2}
    assert "could not be told" in caught.value.__notes__[0]


@pytest.mark.parametrize("face", ["once", "aonce"])
def test_what_a_run_made_is_in_hand_when_the_lock_cannot_be_let_go(name, face, monkeypatch):
    refused = SystemRefused("no such right any more")

    def release(self):
        real(self)
        raise refused

    async def arelease(self):
        await areal(self)
        raise refused

    real, areal = Lease.release, AsyncLease.release
    monkeypatch.setattr(Lease, "release", release)
    monkeypatch.setattr(AsyncLease, "release", arelease)

    def call(function):
        return once(name, function) if face == "once" else asyncio.run(aonce(name, function))

    with pytest.raises(SystemRefused) as caught:
        call(lambda: 7)
    assert caught.value.value == 7
    forget(name)

    def fails():
        raise ZeroDivisionError("the run")

    with pytest.raises(OnceFailed, match="the run") as failed:
        call(fails)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert "could not be let go" in failed.value.__notes__[-1]


def test_what_a_coroutine_made_is_told_where_no_thread_can_be_had(name, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("can't start new thread")

    async def run():
        monkeypatch.setattr(native, "start_new_thread", full)
        return 7

    assert asyncio.run(aonce(name, run)) == 7
    monkeypatch.undo()
    assert once(name, lambda: pytest.fail("ran")) == 7


def test_a_result_of_a_host_whose_clock_stands_ahead_counts_and_one_of_another_age_does_not(name):
    once(name, lambda: 1, keep=60)
    (file,) = Path(f"{name}.once").glob("*.done")
    line, _, content = file.read_bytes().partition(b"\n")
    for ahead, answer in ((5, 1), (600, 2)):
        facts = json.loads(line) | {"boot": "of another host", "at": clock.utc_now() + ahead}
        file.write_bytes(json.dumps(facts).encode() + b"\n" + content)
        assert once(name, lambda: 2, keep=60) == answer


def test_a_decorated_function_without_a_name_is_told_of_its_arguments(name):
    with pytest.raises(InvalidArgument, match="arguments"):
        once(name)(functools.partial(print))(1)


def test_a_newer_result_in_a_store_is_told_without_its_password(monkeypatch):
    class Newer:
        path, most = "redis://h/0#n", 1

        def __init__(self, url):
            pass

        def read(self):
            return 5, b'{"lifehold": 2}\n'

    monkeypatch.setattr(once_results, "StoreResults", Newer)
    with pytest.raises(CorruptRecord, match="version 2") as caught:
        once("redis://app:s3cret@localhost:1/0#n", lambda: 1)
    assert "s3cret" not in f"{caught.value} {caught.value.name} {caught.value!r}"
