"""Which names speak of a lock: `self.lock_path`, `PIDFILE`, `"/run/app.pid"`, `f"lock:{user}"`.

A name is cut into its words, so that `clock`, `block` and `unlock` say nothing. The lock files of
package tools (`poetry.lock`) are data and no locks.
"""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from typing import NamedTuple

LOCK_WORDS = frozenset(
    "lock locks locked locking lockfile lockfiles lockpath lockdir lockname lockkey lck flock"
    " mutex filelock dlock redlock pidlock runlock semaphore".split()
)
# `mylock` and `joblock` are locks, and what ends so is none.
NO_LOCKS = tuple(
    "block clock unlock deadlock livelock padlock airlock gridlock hemlock warlock relock wedlock"
    " interlock matlock sherlock havelock bullock pollock forelock shylock oarlock headlock"
    " capslock numlock scrolllock".split()
)
PID_WORDS = frozenset("pidfile pidfiles pidpath pidlock pidfilename".split())
AFTER_PID = frozenset("file path filename fname name dir location".split())
# What a path is called by a class that has one alone: there the class's own name speaks.
GENERIC = frozenset(
    "path fname filename file name key file_path filepath file_name target fn p f fd fp handle"
    " dirname folder where location dir place pathname full_path fullpath abspath".split()
)
PACKAGES = re.compile(
    r"(poetry|pipfile|uv|pdm|package-lock|yarn|cargo|gemfile|composer|pixi|conda|flake|mix|podfile"
    r"|pubspec|bun|deno|pnpm|requirements|pylock|buf|go|npm|chart|terraform)[-._]?(lock|toml|json)",
    re.IGNORECASE,
)


class Vocabulary(NamedTuple):
    """What a project calls its locks: words of names, classes, and functions of its own.

    `wrappers`: pairs of a function and the call that it stands for, `("app.io.drop", "os.unlink")`.
    """

    words: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    wrappers: frozenset[tuple[str, str]] = frozenset()


NOTHING = Vocabulary()
_project = NOTHING
_stands: dict[str, str] = {}


def learn(project: Vocabulary) -> None:
    """From now on these words speak of locks too."""
    global _project, _stands
    _project, _stands = project, dict(project.wrappers)


def project() -> Vocabulary:
    return _project


def stands_for(name: str) -> str:
    """The call that a function of the project stands for; "" for any other."""
    return _stands.get(name, "")


PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+")
ACQUIRES = frozenset(
    "acquire lock enter take obtain claim grab get try start create aquire locked begin init"
    " single singleton ensure hold".split()
)
RELEASES = frozenset(
    "release unlock exit remove delete del free close cleanup clean stop drop end unlink destroy"
    " finish teardown clear".split()
)
BREAKS = frozenset("break force forced clear reset purge flush admin steal abort wipe".split())


@functools.lru_cache(20_000)
def pieces(text: str) -> tuple[str, ...]:
    """The words of a name or a text, lower case, in their order."""
    return tuple([word.lower() for word in PIECES.findall(text)])


def speaks_of_pid(text: str) -> bool:
    """`pidfile`, `pid_path`, `/run/app.pid`."""
    words = pieces(text)
    if not PID_WORDS.isdisjoint(words) or text.lower().endswith(".pid"):
        return True
    return any(a == "pid" and b in AFTER_PID for a, b in pairwise(words))


def speaks_of_lock(text: str) -> bool:
    """Does this name or text say that it is a lock? A package tool's lock file is none."""
    if PACKAGES.search(text):
        return False
    found = pieces(text)
    if _project.words and not _project.words.isdisjoint(found):
        return True
    if not LOCK_WORDS.isdisjoint(found) or speaks_of_pid(text):
        return True
    return any(word.endswith("lock") and not word.endswith(NO_LOCKS) for word in found)


def file_speaks_of_lock(path: str) -> bool:
    """Does the name of a file say so? Nothing else of it is asked by a rule of Python."""
    return speaks_of_lock(path.rpartition("/")[2])


def acquires(name: str) -> bool:
    """Does a function of this name acquire?"""
    words = set(pieces(name))
    return bool(words & ACQUIRES) and not words & RELEASES


def releases(name: str) -> bool:
    """Does a function of this name release?"""
    return not RELEASES.isdisjoint(pieces(name))


def breaks(name: str) -> bool:
    """Does a function of this name break a lock on purpose, by its own name?"""
    return not BREAKS.isdisjoint(pieces(name))
