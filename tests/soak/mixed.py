"""`python -m tests.soak.mixed [--seconds 60] [A] [B] [bad]`: one path, eight processes.

Run A: ours (blocking, tasks, threads, forking) with flock(1), once as a command and once on a
descriptor, and filelock 4.2.11. Run B: ours with a filelock that unlinks the file on release;
without flock(1), which locks what it has opened and never looks at the path again. `bad` is run B
with a party that does the same as flock(1): the canary must catch it.

Every section has a canary, and the tokens of our grants, in the order of entry, must grow. Each
overlap is put down to the two who were inside. Whoever is not home soon after the end hangs.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lifehold.testing.crash import Child

from . import parties
from .canary import entries, not_growing, overlaps

FILELOCK = "4.2.11"
UNLINKING = "3.25.2"  # unlinks under its lock, then unlocks; looks at the link count after a lock
HOME = 15.0  # seconds after the end in which all must be home
LEAST = 0.05  # of all acquisitions, for each party

OURS = [
    ("ours-plain", parties.plain),
    ("ours-tasks", parties.tasks),
    ("ours-threads", parties.threads),
    ("ours-forking", parties.forking),
]


def run_a(package):
    other = functools.partial(parties.filelock, package=package)
    return [
        *OURS,
        ("ours-plain-2", parties.plain),
        ("flock-command", parties.command),
        ("flock-descriptor", parties.redirection),
        ("filelock", other),
    ]


def run_b(package):
    other = functools.partial(parties.filelock, package=package)
    return [*OURS, ("ours-plain-2", parties.plain), *((f"filelock-{n}", other) for n in (1, 2, 3))]


def run_bad(package):
    return [*run_b(package)[:-1], ("blind", parties.blind)]


RUNS = {"A": (run_a, FILELOCK), "B": (run_b, UNLINKING), "bad": (run_bad, UNLINKING)}


@dataclass
class Account:
    """What a run came to."""

    counts: dict[str, Counter[str]]  # what each party says of itself
    grants: Counter[str]  # entries into the section by party
    overlaps: Counter[tuple[str, str]]  # by kind of who was in and who came
    tokens: list[int]
    hanging: list[str]
    home: float  # seconds from the end to the last one home

    def share(self, name):
        return self.grants[name] / max(1, self.grants.total())

    @property
    def least(self):
        """The smallest share of the acquisitions that a party has."""
        return min(self.share(name) for name in self.counts)

    @property
    def trouble(self):
        """What parties met and should not have; empty when all is well."""
        words = ("lost", "complaints", "released by a child")
        return {
            f"{name}: {word}": count[word]
            for name, count in self.counts.items()
            for word in words
            if count[word]
        }

    @property
    def clean(self):
        return not (
            self.overlaps or not_growing(self.tokens) or self.hanging or self.trouble
        ) and bool(self.tokens)


def play(folder, run, seconds):
    """`run`, a list of (name, party), for so many seconds in `folder`."""
    end = time.monotonic() + seconds
    children = {name: Child(party, str(folder), name, end) for name, party in run}
    counts, hanging = {}, []
    for name, child in children.items():
        with child:
            try:
                ended = child.end(max(0.1, end + HOME - time.monotonic()))
            except AssertionError:
                hanging.append(name)
                counts[name] = Counter()
                continue
        assert ended.well, f"{name}: {ended.error}"
        counts[name] = Counter(ended.value)
    home = time.monotonic() - end
    found = entries(folder)
    return Account(
        counts, Counter(name for _, name in found),
        Counter((_kind(inside), _kind(came)) for inside, came in overlaps(folder)),
        [token for token, _ in found if token is not None], hanging, home,
    )  # fmt: skip


def _kind(name):
    """`filelock` of `filelock-2`."""
    return name.partition("-")[0]


def fetch(version, folder):
    """Why filelock of this version cannot be unpacked into `folder`; None when it is there."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--target", str(folder), f"filelock=={version}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"status {done.returncode}")


def unlinks_on_release(package):
    """Whether the release of this filelock unlinks the file, by its source and by trial."""
    source = Path(package, "filelock", "_unix.py").read_text()
    trial = (
        "import os, sys, tempfile; sys.path.insert(0, sys.argv[1]); import filelock\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    with filelock.FileLock(folder + '/lock'): pass\n"
        "    sys.exit(os.path.exists(folder + '/lock'))\n"
    )
    done = subprocess.run([sys.executable, "-c", trial, str(package)], timeout=30, check=False)
    return ".unlink()" in source.rpartition("def _release")[2] and done.returncode == 0


def report(account):
    """The figures of a run as lines."""
    for name, count in account.counts.items():
        more = ", ".join(f"{word} {n}" for word, n in count.items() if word != "grants" and n)
        yield f"  {name:18} {account.grants[name]:7d}  {account.share(name):6.1%}  {more}"
    yield f"  acquisitions {account.grants.total()}, smallest share {account.least:.1%}"
    yield f"  overlaps {account.overlaps.total()}" + "".join(
        f"; {inside}-{came} {n}" for (inside, came), n in account.overlaps.items()
    )
    yield f"  tokens {len(account.tokens)}, not growing {not_growing(account.tokens)}"
    yield f"  hanging {account.hanging or 'none'}, last one home after {account.home:.2f} s"
    if account.trouble:
        yield f"  TROUBLE {account.trouble}"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak.mixed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("runs", nargs="*", default=["A", "B"], metavar="A|B|bad")
    options, well = parser.parse_args(), True
    for name in options.runs:
        make, version = RUNS[name]
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as package:
            if why := fetch(version, package):
                sys.exit(f"filelock {version} is not to be had: {why}")
            account = play(folder, make(package), options.seconds)
        print(f"run {name}, filelock {version}, {options.seconds:g} s", *report(account), sep="\n")
        if name == "bad":
            well &= account.overlaps.total() > 0
        else:
            well &= account.clean and account.least >= LEAST
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
