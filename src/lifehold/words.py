"""What is said of an argument that no lock here takes: the one that does the same.

Promise: who comes from another library is told which argument of ours has the meaning of his, with
his value in it. Nothing here is loaded before a call went wrong.
"""

from __future__ import annotations

from .core import mask, nearest
from .core.errors import InvalidArgument, NotHeld, UnknownArgument
from .runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import difflib
    import inspect
    import opcode
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from .lock import LockFace
else:
    opcode = fork.later("opcode", globals())
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
_OF_LOCK = frozenset(  # alone: no call of a lock takes it
    "kind label reentrant exclusive max_hold record cleanup mode shared fair ttl heartbeat margin "
    "strict notify singleton".split()
)
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
        words = _elsewhere(call, name, value, accepted) or cure(name, value, accepted)
        words = _of_side(words, call)
        if name == "cancel" and known is OF_TASK:
            words = "cancel the task that waits instead"
        parts.append(f"{name}={_shown(value, name)}" + (f": {words}" if words else ""))
    return UnknownArgument(f"{call} takes no {'; and no '.join(parts)}")


def _elsewhere(call: str, name: str, given: object, known: Iterable[str]) -> str:
    """Where an argument belongs that another call of ours takes; "" for none."""
    if call == "acquire()" and name in _OF_LOCK:
        return f"give it to the lock, as in Lock(.., {name}={_shown(given, name)})"
    if name == "exclusive" and call.endswith("ReadWriteLock()"):
        return "use .reading() or .writing()"
    return _PATH if name == "name" and "path" in known else ""


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
        if "permits" in missing and given and type(given[0]) is int:
            return of_turned(given[0], "x.lock", name)
        return UnknownArgument(
            f"{name}() needs {' and '.join(missing)}: for example {name}({example})"
        )
    return None


def of_function(
    function: Callable[..., object],
    call: str,
    given: tuple[object, ...],
    options: Mapping[str, object],
    example: str,
    more: str,
    others: str,
) -> UnknownArgument | None:
    """Why a function refused these arguments, as `described.explained` says it; None for none."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters[0].name in ("self", "cls"):
        del parameters[0]
        given = given[1:]
    known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    if len(known) == len(parameters) and (strange := {*options} - {*known}):
        return nearest.strange(call, {key: options[key] for key in sorted(strange)}, known)
    places = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if surplus := given[len(places) :]:
        takes = ", ".join(each.name for each in places)
        cure = more if type(surplus[0]) in (int, float) else others or more
        listed = ", ".join(map(_shown, given))
        cure = cure.format(value=_shown(surplus[0]), all=listed) or f"for example {example}"
        shown = ", ".join(map(_shown, surplus))
        return UnknownArgument(f"{call} takes {takes} by position, and not {shown}: {cure}")
    missing = [
        each.name
        for each in places[len(given) :]
        if each.default is each.empty and each.name not in options
    ]
    if missing:
        return UnknownArgument(f"{call} needs {' and '.join(missing)}: for example {example}")
    return None


# What other libraries export -> what it is here.
NAMES: Mapping[str, str] = {
    **dict.fromkeys(
        "FileLock SoftFileLock UnixFileLock BaseFileLock".split(),
        "use Lock, or lifehold.compat.filelock",
    ),
    "AsyncFileLock": "use AsyncLock, or lifehold.compat.filelock",
    "RLock": "it is Lock(.., reentrant=True)",
    **dict.fromkeys("RWLock InterProcessReaderWriterLock".split(), "it is ReadWriteLock"),
    **dict.fromkeys("InterProcessLock Mutex LockFile NamedLock lock lockfile".split(), "use Lock"),
    **dict.fromkeys("RedLock Redlock".split(), "it is connect(quorum=[URL, URL, URL])"),
    **dict.fromkeys(
        "TimeoutError LockTimeout timeout LockException AlreadyLocked LockError".split(),
        "it is Timeout; one try that found it held raises WouldBlock, and both are NotAcquired",
    ),
    "LockNotOwnedError": "it is NotHeld, or LeaseLost",
    "BoundedSemaphore": "it is Semaphore, whose leases release what they hold and no more",
    "acquire": "it is Lock(path).acquire()",
    "AsyncLockAll": "it is alock_all",
}


def of_name(name: str, caller: FrameType) -> AttributeError | ImportError:
    """The error for a name that `lifehold` has not; of the kind that shows its words.

    `from lifehold import NAME` would put words of its own in the place of an AttributeError.
    """
    text = f"lifehold has no {name}: {NAMES[name]}"
    at = caller.f_code.co_code[caller.f_lasti]
    if opcode.opname[at] == "IMPORT_FROM":
        return ImportError(text, name="lifehold")
    return AttributeError(text)


def of_path(given: object) -> InvalidArgument:
    """The error for what is no path of a lock file."""
    shown = repr(given) if callable(given) else f"{type(given).__name__} {given!r}"
    cure = ""
    if isinstance(given, bytes):
        cure = ": give os.fsdecode(that)"
    elif hasattr(given, "acquire") or hasattr(given, "acquire_read"):
        cure = ": give lock.path"
    elif callable(given):
        cure = ": to decorate a function name a lock file, as in @Lock('build.lock')"
    elif hasattr(given, "fileno") or (isinstance(given, int) and not isinstance(given, bool)):
        cure = ": for an open file Lock.on_file(file)"
    return InvalidArgument(f"path must be a str or an os.PathLike of str, not {shown}{cure}")


def of_mode(given: object) -> InvalidArgument:
    """The error for what are no rights of a file: 644 and "0644" are meant in octal."""
    digits = given if isinstance(given, str) else repr(given) if type(given) is int else ""
    digits = digits.removeprefix("0o").lstrip("0")
    octal = 0 < len(digits) <= 3 and not digits.strip("01234567")
    cure = f": write 0o{digits}" if octal else ""
    return InvalidArgument(f"mode must be a file mode from 0 to 0o777, not {given!r}{cure}")


def of_turned(permits: object, path: object, name: str = "Semaphore") -> UnknownArgument:
    """The error for a semaphore whose number of permits was given first."""
    return UnknownArgument(
        f"{name}() takes the path first, then the permits: {name}({path!r}, {permits!r})"
    )


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
