"""What is said of an argument that no lock here takes: the one that does the same.

Promise: who comes from another library is told which argument of ours has the meaning of his, with
his value in it. Nothing here is loaded before a call went wrong.
"""

from __future__ import annotations

from .core import mask
from .core.errors import InvalidArgument, NotHeld, UnknownArgument
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import difflib
    import inspect
    from collections.abc import Callable, Iterable, Mapping

    from .lock import LockFace
else:
    difflib = fork.later("difflib", globals())
    inspect = fork.later("inspect", globals())

_TRY = "give wait=0 for one try that raises WouldBlock, or call try_acquire(), which answers None"
_WAIT = "give wait={value}: seconds; None waits until the lock is ours, 0 is one try"
_WOKEN = "leave it out: a waiter is woken by an event and polls nothing"
_TTL = "give ttl={value}: seconds after which others may take the lock from a silent holder"
_RENEWED = (
    "leave it out: a lease with ttl= is renewed by itself while it is held; heartbeat= says how "
    "often, max_hold= bounds it"
)
_MINE = "leave it out: a lease belongs to who acquired it, and `lease.release()` ends it anywhere"
_PATH = "give it first: the path of the lock file"
_SHARED = "give exclusive=False for a lock that many hold at once, or use a ReadWriteLock"
_STORE = 'give the URL of a store: connect(URL).lock(NAME), or Lock("URL#NAME")'
_PERMITS = "use Semaphore(path, permits={value})"
_AGE = (
    "leave it out: a lock is taken from a holder that is proven dead, never by age; ttl= makes a "
    "lease that ends by itself"
)
_LABEL = "give label={value}, a word for people"

# What other libraries call it -> what does the same here.
CURES: Mapping[str, str] = {
    **dict.fromkeys(
        "timeout acquire_timeout blocking_timeout lock_timeout max_wait".split(), _WAIT
    ),
    **dict.fromkeys("max_wait patience wait_timeout wait_time max_delay".split(), _WAIT),
    **dict.fromkeys("poll_interval poll_intervall check_interval retry_interval".split(), _WOKEN),
    **dict.fromkeys("delay poll interval sleep sleep_func retry_delay retry_times".split(), _WOKEN),
    **dict.fromkeys("expire expiry expires ex px lease_time ttl_seconds".split(), _TTL),
    **dict.fromkeys("auto_release_time session_ttl lease_timeout time_to_live".split(), _TTL),
    **dict.fromkeys("auto_renewal auto_renew auto_extend num_extensions renew".split(), _RENEWED),
    **dict.fromkeys("keepalive keep_alive renewal_interval extend".split(), _RENEWED),
    **dict.fromkeys("stale stale_timeout stale_after lifetime max_age stale_lock".split(), _AGE),
    **dict.fromkeys("thread_local threadlocal".split(), _MINE),
    **dict.fromkeys("lock_file lockfile filename file lock_path fname".split(), _PATH),
    **dict.fromkeys("shared_lock share readers read_only".split(), _SHARED),
    **dict.fromkeys("redis redis_client client masters conn connection engine".split(), _STORE),
    **dict.fromkeys("value max_leases capacity limit maximum count bound".split(), _PERMITS),
    **dict.fromkeys("id identifier owner owner_id".split(), _LABEL),
    **dict.fromkeys("is_singleton use_singleton".split(), "give singleton={value}"),
    **dict.fromkeys("permissions perm file_mode chmod".split(), "give mode={value}"),
    **dict.fromkeys("rlock is_reentrant recursive".split(), "give reentrant={value}"),
    **dict.fromkeys("delete delete_on_release unlink remove".split(), "give cleanup={value}"),
    **dict.fromkeys("hold_time max_hold_time hold".split(), "give max_hold={value}"),
    "fail_when_locked": _TRY,
    "fsync": "give durable={value}",
    "n": "permits= is how many may hold it at once, and each releases its own lease",
    "raise_on_redis_error": "leave it out: a store that does not answer raises StoreUnavailable",
    "flags": "give exclusive=False for LOCK_SH, wait=0 for LOCK_NB",
    "force": "call `lease.release()` as often as it was acquired, or `break_(reason)`",
    "external": "leave it out: every lock here excludes other processes",
    "semaphores": "use Semaphore(path, permits)",
    "logger": "leave it out: waiters are told by the logger 'lifehold'; notify= bounds that",
    "verbose": "leave it out: waiters are told by the logger 'lifehold'; notify= bounds that",
    "quiet": "give notify=False: waiters are told at the level DEBUG alone",
    "silent": "give notify=False: waiters are told at the level DEBUG alone",
    "loop": "leave it out: the running loop is found",
    "executor": "leave it out: no thread waits behind the async face",
    "run_in_executor": "leave it out: no thread waits behind the async face",
    "preserve_lock_file": "leave it out: the file stays, unless cleanup=True",
    "on_lost": "call `lease.lost.add_callback(function)`",
    "raise_on_not_writable_file": "leave it out: a file that may only be read is locked as well",
}
OF_TASK = ("wait",)  # of the acquire of a task
OF_FILE = ("exclusive", "wait", "cancel", "max_hold", "notify")  # of Lock.on_file()
_ONE_TRY = {  # of a reader/writer lock, whose calls say which side they mean
    "acquire_read()": "try_acquire_read()",
    "acquire_write()": "try_acquire_write()",
    "reading()": "attempt_read()",
    "writing()": "attempt_write()",
}
_FLAGS = frozenset({"blocking", "block", "nonblocking", "non_blocking", "nowait", "no_wait"})


def cure(name: str, given: object, known: Iterable[str] = ()) -> str:
    """What to write instead of an argument; "" when that cannot be told."""
    if name in _FLAGS:
        waits = bool(given) == (name in ("blocking", "block"))
        return "give wait=None, which waits until the lock is ours" if waits else _TRY
    if name in ("timeout", "acquire_timeout", "blocking_timeout") and (
        isinstance(given, int | float) and given < 0
    ):
        return "give wait=None, which waits until the lock is ours"
    if name in CURES:
        return CURES[name].format(value=_shown(given, name))
    accepted = sorted(known)
    near = difflib.get_close_matches(name, accepted, 1, 0.6)
    if near:
        return f"did you mean {near[0]}={_shown(given, name)}?"
    return f"its arguments are {', '.join(accepted)}" if accepted else ""


def _shown(given: object, name: str = "") -> str:
    if mask.names_a_secret(name):
        return "..."  # L11
    text = mask.masked_urls(repr(given))
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown(call: str, given: Mapping[str, object], known: Iterable[str] = ()) -> UnknownArgument:
    """The error for arguments that `call` does not take; `known`: those that it takes."""
    accepted = tuple(known)
    parts = []
    for name, value in given.items():
        words = _of_side(cure(name, value, accepted), call)
        if name == "cancel" and known is OF_TASK:
            words = "cancel the task that waits instead"
        parts.append(f"{name}={_shown(value, name)}" + (f": {words}" if words else ""))
    return UnknownArgument(f"{call} takes no {'; and no '.join(parts)}")


def of_try(call: str, given: Mapping[str, object], more: Iterable[object] = ()) -> UnknownArgument:
    """The same for a call that is one try, whatever is given."""
    parts = [*map(_shown, more), *(f"{name}={_shown(given[name], name)}" for name in given)]
    names = ", ".join(parts)
    waits = "acquire" + call.removeprefix("try_acquire").removeprefix("attempt")
    if call.startswith("attempt_"):
        waits = {"attempt_read": "reading", "attempt_write": "writing"}[call]
    return UnknownArgument(
        f"{call}() takes no {names}: it is one try, which waits for nothing; to wait, "
        f"{waits}(wait=SECONDS), which raises Timeout"
    )


def of_call(
    made: Callable[..., object],
    name: str,
    given: tuple[object, ...],
    options: Mapping[str, object],
) -> UnknownArgument | None:
    """Why a call with these arguments was refused; None when the signature takes them."""
    try:
        parameters = list(inspect.signature(made).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters):
        return None
    known = [each.name for each in parameters]
    if strange := {key: options[key] for key in options if key not in known}:
        return unknown(f"{name}()", strange, known)
    places = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(given) > len(places):
        more = ", ".join(map(_shown, given[len(places) :]))
        first = ", ".join(each.name for each in places)
        return UnknownArgument(
            f"{name}() takes {first} by position, and not {more}: name the others, for example "
            f"wait={_shown(given[len(places)])}, the seconds of patience"
        )
    missing = [
        each.name
        for each in places[len(given) :]
        if each.default is each.empty and each.name not in options
    ]
    if missing:
        shown = {"path": "'build.lock'", "permits": "4"}
        example = ", ".join(shown.get(each.name, each.name) for each in places)
        return UnknownArgument(
            f"{name}() needs {' and '.join(missing)}: for example {name}({example})"
        )
    return None


def _of_side(words: str, call: str) -> str:
    return words.replace("try_acquire()", _ONE_TRY.get(call, "try_acquire()"))


def wrong(
    call: str,
    more: tuple[object, ...],
    given: Mapping[str, object],
    known: Iterable[str] = (),
    wait: object = None,
) -> UnknownArgument:
    """The error for a call with more arguments by position than it takes, or with strange ones.

    `wait`: what its own place holds, where it has one.
    """
    if not more:
        return unknown(call, given, known)
    bare, shown = call.removesuffix("()"), ", ".join(map(_shown, more))
    if bare == "release":
        return UnknownArgument(
            f"{call} takes nothing by position, and not {shown}: each lease is let go by itself, "
            "by `lease.release()`"
        )
    if bare == "on_file":
        return UnknownArgument(
            f"{call} takes file by position, and not {shown}: name the others, for example "
            f"wait={_shown(more[0])}, the seconds of patience"
        )
    seconds = more[0] if wait is True else 0 if wait is False else wait
    return UnknownArgument(
        f"{call} takes wait by position, and not {shown}: write {bare}(wait={_shown(seconds)}); "
        "for one try wait=0"
    )


def not_called(call: str, given: object, lock: str = "lock") -> InvalidArgument:
    """The error for `@lock.reading` of a function: its parentheses are missing."""
    kind, name = type(given).__name__, getattr(given, "__name__", given)
    return InvalidArgument(
        f"wait must be a number of seconds or None, not {kind} {name!r}: write @{lock}.{call}()"
    )


def not_mine(lock: LockFace, asker: str) -> NotHeld:
    """The error for `release()` of who has no lease: who has one, and how that ends.

    `asker`: thread or task.
    """
    text = f"{lock._name!r} is not held by this {asker}"
    leases = lock._all()
    if any(lease._here() for lease in leases):
        text += f": another {asker} holds it: call `lease.release()` of that lease"
    elif any(lease._of_parent() for lease in leases):
        text += ": the parent process holds it, and this one was forked from it"
    return NotHeld(text, name=lock._name)
