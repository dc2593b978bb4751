"""Wrong calls of the conveniences, stores and names: argument, value and cure are told."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import lifehold
from lifehold import (
    AsyncSemaphore,
    Backoff,
    Cancel,
    InvalidArgument,
    Lock,
    ReadWriteLock,
    Semaphore,
    aconnect,
    alock_all,
    alocked_file,
    aonce,
    clear,
    connect,
    current_token,
    lock_all,
    locked_file,
    look,
    once,
)

PATH = "wrong.lock"
PER = "x-{a}.lock"
INFINITE = float("inf")


def build():
    return 5


def memory():
    return connect("memory://wrong-more")


def bare_once():
    @once
    def job():
        pass

    job()


def bare_aonce():
    @aonce
    async def job():
        pass


def of_tasks(call):
    async def main():
        return await call(await aconnect("memory://wrong-more"))

    return asyncio.run(main())


async def async_lock(store, *given, **options):
    return store.lock(*given, **options)


def closed():
    with open("f", "w") as file:
        pass
    return file


@Lock.per(PER)
def job(a):
    return a


# (the call, what its message names, the cure)
WRONG = [
    # Cancel, current_token, Backoff
    (lambda: Cancel().attach(5), "callback must be callable, not int 5", "without arguments"),
    (lambda: current_token(5), "name must be a str or None, not int", ""),
    (lambda: current_token(Lock(PATH)), "not Lock", "give lock.path"),
    (lambda: Backoff(random=5), "not 5", "hand on random.random"),
    (lambda: next(Backoff(random=lambda: 7).pauses()), "random must give", "not 7"),
    (lambda: next(Backoff(random=lambda: "x").pauses()), "random() gives", "str 'x'"),
    (lambda: Backoff(1, INFINITE), "longest", "inf"),
    (lambda: Backoff(growth=INFINITE), "growth", "inf"),
    (lambda: Backoff(growth="2"), "growth must be a number", "str '2'"),
    (lambda: Backoff(jitter=True), "jitter must be a number", "bool True"),
    (lambda: Backoff("x"), "first must be a number", "str 'x'"),
    (lambda: Backoff(None), "first must be a number", "None"),
    (lambda: Backoff(0.1, 1, 2), "not 2", "growth=2"),
    (lambda: Backoff(base=1), "base=1", "first=1"),
    (lambda: Backoff(max=3), "max=3", "longest=3"),
    (lambda: Backoff(cap=3), "cap=3", "longest=3"),
    (lambda: Backoff(initial=3), "initial=3", "first=3"),
    (lambda: next(Backoff()), "Backoff", "use .pauses()"),
    (lambda: list(Backoff()), "Backoff", "use .pauses()"),
    # once
    (lambda: once("./w", None), "fn must be callable, not None", "hand on build, not build()"),
    (lambda: aonce("./w", None), "fn must be callable, not None", "hand on build, not build()"),
    (lambda: once("./w")(None), "one function", "@once(NAME)"),
    (bare_once, "once takes a name first", "@once('./job')"),
    (bare_aonce, "aonce takes a name first", "@aonce('./job')"),
    (once(build), "once takes a name first", "@once('./build')"),
    (once, "needs name", "once('./build', build)"),
    (lambda: once("./w", build, 60), "not 60", "once(.., keep=60)"),
    (lambda: aonce("./w", build, 60), "not 60", "aonce(.., keep=60)"),
    (lambda: once("./w", build, args=(1,)), "once() takes no args=", "lambda: f(1)"),
    (lambda: once("./w", build, kepe=3), "once() takes no kepe=3", "keep=3"),
    (lambda: aonce("./w", build, kepe=3), "aonce() takes no kepe=3", "keep=3"),
    (lambda: once("./w", kepe=3), "once() takes no kepe=3", "keep=3"),
    (lambda: once(Lock(PATH), build), "name must be", "give lock.path"),
    (lambda: once(5), "name must be", "int 5"),
    # several
    (lambda: lock_all(None), "names must be a list of paths or locks", "None"),
    (lambda: lock_all(closed()), "names must be a list of paths or locks", "TextIOWrapper"),
    (lambda: lock_all(Lock(PATH)), "in a list", "lock_all(["),
    (lambda: lock_all([ReadWriteLock(PATH)]), "reader/writer lock", "cannot be in lock_all"),
    (lambda: lock_all("a", "b"), "not 'b'", "lock_all(['a', 'b'])"),
    (lambda: lock_all(["a"], 5), "not 5", "wait=5"),
    (lambda: alock_all(["a"], 5), "not 5", "wait=5"),
    (lock_all, "lock_all() needs names", "lock_all(['a.lock', 'b.lock'])"),
    (lambda: lock_all(["a"], wiat=5), "lock_all() takes no wiat=5", "wait=5"),
    # locked_file
    (lambda: locked_file(PATH, mode=0o600), "mode=0o600", "permissions cannot be given here"),
    (lambda: locked_file(PATH, "q"), "'q'", "'r+'"),
    (lambda: locked_file(PATH, "w", 5), "not 5", "wait=5"),
    (lambda: alocked_file(PATH, "w", 5), "not 5", "wait=5"),
    (locked_file, "locked_file() needs path", "locked_file('data.json', 'w')"),
    # look, clear
    (look, "look() needs path", "look('build.lock')"),
    (lambda: look(Lock(PATH)), "path must be", "give lock.path"),
    (lambda: look(PATH, timeout=3), "look() takes no timeout=3", "one argument is path"),
    (lambda: look(PATH, PATH), "not 'wrong.lock'", "look('build.lock')"),
    (clear, "clear() needs path", "clear('build.lock')"),
    (lambda: clear(Lock(PATH)), "path must be", "give lock.path"),
    (lambda: clear(PATH, PATH), "not 'wrong.lock'", "one lock a call"),
    (lambda: clear(PATH, foo=1), "clear() takes no foo=1", "arguments are dry_run, path"),
    (lambda: clear(PATH, dryrun=True), "dryrun=True", "dry_run=True"),
    # stores
    (lambda: memory().lock("x", fair="no"), "fair must be True or False", "str 'no'"),
    (lambda: memory().lock("x", fair=1), "fair must be True or False", "int 1"),
    (lambda: memory().lock("x", fair=None), "fair must be True or False", "None"),
    (lambda: memory().break_("x", ""), "break_ needs a reason in words", ""),
    (lambda: of_tasks(lambda store: store.break_("x", " ")), "break_ needs a reason", "in words"),
    (lambda: memory().break_("x"), "store.break_() needs reason", "store.break_('jobs', "),
    (lambda: of_tasks(lambda store: store.break_("x")), "needs reason", "store.break_('jobs', "),
    (lambda: asyncio.run(aconnect("memory://w", "b")), "aconnect() takes url", "not 'b'"),
    (lambda: memory().per(), "store.per() needs template", "store.per('user-{user_id}')"),
    (lambda: memory().semaphore_per("{a}"), "needs permits", "semaphore_per('gpu-{host}', 4)"),
    (lambda: memory().lock("a", 30), "not 30", "store.lock(.., ttl=30)"),
    (lambda: of_tasks(lambda store: async_lock(store, "a", 30)), "not 30", "ttl=30"),
    (lambda: memory().lock(), "store.lock() needs name", "store.lock('jobs')"),
    (lambda: memory().semaphore("x"), "needs permits", "store.semaphore('gpu', 4)"),
    (lambda: connect("memory://w", tll=5), "memory:// takes no tll=5", "ttl=5? Its arguments"),
    (lambda: connect("sqlite:////tmp/w.db", tll=5).list(), "takes no tll=5", "ttl=5? Its argum"),
    (lambda: connect("memory://w", "b"), "not 'b'", "by name"),
    (lambda: connect("/tmp/x"), "'/tmp/x'", "write 'file:///tmp/x'"),
    (lambda: connect("MEMORY://"), "MEMORY", "did you mean memory://?"),
    (lambda: connect("file:///tmp/d", ttl=5).lock("x"), "ttl=5", "kind='soft'"),
    (lambda: connect("file:///tmp/d", ttl="5"), "ttl", "give ttl=5"),
    (lambda: connect("file:///tmp/d", shared="no"), "shared must be True or False", "'no'"),
    (lambda: connect("file:///tmp/d", label=5), "label must be a str", "int 5"),
    # per
    (lambda: Lock.per(PER)(lambda *a: a), "is *a, many values", "name a plain parameter"),
    (lambda: Lock.per(PER)(lambda **a: a), "is **a, many values", "name a plain parameter"),
    (lambda: Lock.per("x-{a.lock"), "x-{a.lock", "close it: {a}; {{ is a brace itself"),
    (lambda: Lock.per(PER).of(1), ".of() takes names", "of(a=1)"),
    (lambda: Lock.per(PER).of(a=1.5), "float 1.5", "give its id"),
    (lambda: Lock.per(PER, wiat=3), "Lock.per() takes no wiat=3", "wait=3"),
    (Lock.per, "Lock.per() needs template", "user-{user_id}"),
    (job, "job() missing a required argument", "'a'"),
    # values of Lock, Semaphore
    (lambda: Semaphore(4), "the path first", "Semaphore('x.lock', 4)"),
    (lambda: Semaphore(4, "y.lock"), "the path first", "Semaphore('y.lock', 4)"),
    (lambda: AsyncSemaphore(4), "the path first", "AsyncSemaphore('x.lock', 4)"),
    (lambda: Lock(PATH, mode="0644"), "'0644'", "write 0o644"),
    (lambda: Lock(PATH, mode=644), "644", "write 0o644"),
    (lambda: Lock(PATH, wait="5"), "str '5'", "give wait=5"),
    (lambda: Lock(PATH, wait=-1), "-1", "wait=None waits until the lock is ours"),
    (lambda: Lock(PATH, wait=1e300), "1e+300", "at most 100 years"),
    (lambda: Lock(PATH, wait=10**400), "of 401 digits", "at most 100 years"),
    (lambda: Lock(PATH, wait=10**5000), "thousands of digits", "at most 100 years"),
    (lambda: Lock(b"x.lock"), "b'x.lock'", "os.fsdecode(that)"),
    (lambda: Lock(3), "int 3", "Lock.on_file(file)"),
    (lambda: Lock(closed()), "TextIOWrapper", "Lock.on_file(file)"),
    (lambda: Lock(Lock(PATH)), "path must be", "give lock.path"),
    (lambda: Lock.on_file(closed()), "file 'f' is closed", "open it again"),
    (lambda: Lock(PATH, kind="flock"), "'flock'", "flock(2) is kind='kernel'"),
    (lambda: Lock("memory://w#x", kind="flock"), "'flock'", "kind='session'"),
    (lambda: Lock(PATH).acquire(shared=True), "shared=True", "Lock(.., shared=True)"),
    (lambda: Lock(PATH).acquire(max_hold=3), "max_hold=3", "Lock(.., max_hold=3)"),
    (lambda: ReadWriteLock(PATH, exclusive=False), "exclusive=False", "use .reading()"),
    (lambda: Lock(name="x"), "name='x'", "give it first"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_call_is_told_by_argument_value_and_cure(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, names, cure = WRONG[number]
    with pytest.raises((InvalidArgument, TypeError)) as caught:
        call()
    assert names in str(caught.value)
    assert cure in str(caught.value)
    assert not [each for each in tmp_path.iterdir() if each.name != "f"]


def test_a_cancel_calls_all_that_were_attached_before_it_raises():
    cancel, called = Cancel(), []

    def broken():
        raise RuntimeError("broken")

    cancel.attach(broken)
    cancel.attach(lambda: called.append(1))
    with pytest.raises(RuntimeError, match="broken"):
        cancel.cancel()
    assert called == [1]
    assert cancel.cancelled


def test_a_function_that_makes_names_is_no_bare_decoration(tmp_path):
    def name_of(version):
        return tmp_path / f"build-{version}"

    kept = once(name_of)

    @once(name_of)
    def version_of(version):
        return version

    assert version_of(7) == 7
    assert kept(lambda version: version)(8) == 8


def test_the_signature_and_name_of_an_explained_call_are_its_own():
    assert list(inspect.signature(look).parameters) == ["path"]
    assert once.__name__ == "once"
    assert inspect.iscoroutinefunction(aconnect)
    assert not inspect.iscoroutinefunction(connect)
    assert lifehold.lock_all.__module__ == "lifehold.several"


def test_an_error_of_the_body_is_not_taken_for_one_of_the_call(tmp_path):
    def broken():
        raise TypeError("of the body")

    with pytest.raises(TypeError, match=r"^of the body$"):
        once(str(tmp_path / "a"), build, unless=broken)


@pytest.mark.parametrize(
    ("name", "cure"),
    [("FileLock", "compat.filelock"), ("RLock", "reentrant=True"), ("LockTimeout", "Timeout"),
     ("TimeoutError", "it is Timeout"), ("BoundedSemaphore", "Semaphore"),
     ("RWLock", "ReadWriteLock")],
)  # fmt: skip
def test_a_name_of_another_library_is_answered_by_ours(name, cure):
    assert not hasattr(lifehold, name)
    with pytest.raises(AttributeError, match=rf"^lifehold has no {name}: .*{cure}"):
        getattr(lifehold, name)
    with pytest.raises(ImportError, match=rf"^lifehold has no {name}: .*{cure}"):
        exec(f"from lifehold import {name}", {})


def test_each_name_of_another_library_has_its_words():
    from lifehold import words

    assert set(words.NAMES) == lifehold._ELSEWHERE
    assert not set(words.NAMES) & {*lifehold.__all__}


def test_the_names_for_tasks_come_with_a_star():
    found: dict[str, object] = {}
    exec("from lifehold import *", found)
    wanted = (
        "aconnect alock_all alocked_file aonce clear locked_file look AsyncReadWriteLock".split()
    )
    assert {*wanted, "AsyncSemaphore"} <= found.keys()
