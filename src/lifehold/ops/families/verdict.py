"""Whether the holder that a foreign lock names lives. L2: only a proof makes DEAD.

A proof is one of these, each only on a file system that one kernel alone can mount, and with all
processes to be seen:
1. the kernel lock that its holder keeps on another file is free;
2. its holder keeps the file open, and nobody has it open;
3. its process is gone by identity, or its number is nobody's: in our PID namespace and in every
   other, since a container's process writes the number by which it is called there.
That a process of its number runs proves no life: it counts as the holder only when it has run since
before the lock was written. Neither a file's age nor the name of a host proves anything.
"""

from __future__ import annotations

import os
import stat

from ...core.grant import Holder
from ...core.owner import ALIVE, DEAD, INITIAL_PID_NAMESPACE, UNKNOWN, Owner, Verdict, judge
from ...core.value import replace
from ...local.files import HOST, READ_ONLY
from ...local.proc_locks import key_of, lines_of
from ...runtime import process
from .processes import is_one_of, program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes import Processes
    from .sight import Claim, Family, Sight

NAMED = 5  # running programs
SLACK = 1.5  # seconds: a file's time is that of the last tick, and a process's begin is rounded


def judged(sight: Sight, family: Family, claim: Claim, eyes: Processes) -> Holder:
    """The holder, with the verdict on it."""
    since = claim.since if claim.since is not None else sight.found.st_mtime
    owner = None
    if claim.pid is not None:
        owner = Owner(claim.pid, host=claim.host, user=claim.user, boot_id=claim.boot,
                      pid_ns=claim.pid_ns, start_ticks=claim.ticks)  # fmt: skip
    lock = f"{sight.path} ({family.title}, {sight.place.words})"
    holder = Holder(owner, since, UNKNOWN, "", lock=lock)
    verdict, pid = _verdict(sight, claim, eyes)
    if pid is not None:
        found = process.owner_of(pid)
        holder = replace(holder, owner=found, pid_here=pid)
    return replace(holder, alive=verdict.state, evidence=verdict.evidence)


def _verdict(sight: Sight, claim: Claim, eyes: Processes) -> tuple[Verdict, int | None]:
    """The verdict, and the process that is the holder, where it is found."""
    if claim.witness and (told := _by_witness(sight, claim)) is not None:
        return told
    if claim.pid is not None:
        return _by_number(sight, claim, eyes)
    if sight.is_file and (pids := eyes.having_open(sight.path)):
        return Verdict(ALIVE, f"process {pids[0]} has the file open"), pids[0]
    if claim.works_in and (pids := _at_work(claim, eyes)):
        pid = pids[0]
        return Verdict(ALIVE, f"process {pid} ({program_of(pid)}) works in {claim.works_in}"), pid
    return _unnamed(sight, claim, eyes), None


def _unnamed(sight: Sight, claim: Claim, eyes: Processes) -> Verdict:
    """What names no process of this machine."""
    if claim.host is not None and not is_here(claim.host):
        return Verdict(UNKNOWN, f"it names the host {claim.host}, and no process")
    if not sight.place.one_kernel:
        return Verdict(UNKNOWN, "a shared file system, and it names no process")
    if claim.keeps_open and not _open_somewhere(sight):
        return Verdict(
            DEAD, "its holder keeps it open, and the kernel says that nobody has it open"
        )
    hidden = eyes.hidden(claim.programs)
    many = "es" * (hidden != 1)
    unseen = f"; {hidden} process{many} could not be looked into" if hidden else ""
    if not process.sees_all_processes():
        unseen += "; not all processes can be seen from here"
    if claim.keeps_open:
        return Verdict(UNKNOWN, f"it names no process, and none is seen that has it open{unseen}")
    return Verdict(UNKNOWN, f"it names no process, and {_at_large(claim, eyes)}{unseen}")


def _at_work(claim: Claim, eyes: Processes) -> list[int]:
    return eyes.working_in((claim.works_in, *claim.also_in), claim.programs)


def _at_large(claim: Claim, eyes: Processes) -> str:
    """What is seen of the programs that make such locks: each that runs may be the holder."""
    if not claim.programs:
        return claim.unseen or "nobody is seen who has it open"
    what = f"no {' or '.join(claim.programs[:2])} is seen at work there"
    running = eyes.running(claim.programs)
    shown = ", ".join(f"{each.pid} ({each.program})" for each in running[:NAMED])
    more = f" and {len(running) - NAMED} more" if len(running) > NAMED else ""
    return f"{what}, but it may be one of those that run: {shown}{more}" if running else what


def _open_somewhere(sight: Sight) -> bool:
    """Asked of the kernel, by the inode: a name under which it is open may be another."""
    try:
        fd = os.open(sight.path, READ_ONLY) if sight.fd is None else sight.fd
    except OSError:
        return True
    try:
        same = os.path.samestat(os.fstat(fd), sight.found)
        return not same or bool(HOST.is_open_elsewhere(fd))
    finally:
        if sight.fd is None:
            os.close(fd)


def _by_witness(sight: Sight, claim: Claim) -> tuple[Verdict, int | None] | None:
    """By the kernel lock on the file that the holder locks too; None where that says nothing."""
    try:
        fd = os.open(claim.witness, READ_ONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        lines = lines_of([key_of(fd)])
    finally:
        os.close(fd)
    if lines is None:
        return None
    name = os.path.basename(claim.witness)
    held = [line for line in lines if not line.waiting]
    if held:
        pid = held[0].pid if held[0].pid > 0 and process.look(held[0].pid).exists else None
        return Verdict(ALIVE, f"kernel witness: {name} is locked"), pid
    if sight.place.one_kernel and process.namespace("pid") == INITIAL_PID_NAMESPACE:
        return Verdict(DEAD, f"its kernel witness is free: nobody locks {name}"), None
    return Verdict(UNKNOWN, f"no lock is seen on {name}, but not all can be seen from here"), None


def _by_number(sight: Sight, claim: Claim, eyes: Processes) -> tuple[Verdict, int | None]:
    pid, place = claim.pid, sight.place
    assert pid is not None
    if claim.host is not None and not is_here(claim.host):
        return Verdict(UNKNOWN, f"it names process {pid} of another host, {claim.host}"), None
    # One look at all processes serves all locks that are asked for together.
    ground = replace(process.ground(place.one_kernel, None),
                     elsewhere=lambda number: next(iter(eyes.called(number)), None))  # fmt: skip
    here = ground.here
    # L2  A process writes its begin as its own time namespace counts, which no foreign lock names:
    # only a process of our own time namespace can be told apart by it.
    time_ns = process.namespace("time", pid) if claim.ticks is not None else None
    owner = Owner(pid, boot_id=claim.boot, pid_ns=claim.pid_ns, start_ticks=claim.ticks,
                  time_ns=time_ns)  # fmt: skip
    if claim.boot is not None and claim.pid_ns is None:
        owner = replace(owner, pid_ns=INITIAL_PID_NAMESPACE)
    verdict = judge(owner, ground)
    if verdict.state == ALIVE:
        return verdict, pid
    if verdict.state == DEAD:
        by_boot = claim.boot is not None and claim.boot != here.boot_id
        others = [] if by_boot else eyes.called(pid)
        if claim.works_in and (pids := _at_work(claim, eyes)):
            words = f"process {pid} is gone, and process {pids[0]} still works in {claim.works_in}"
            return Verdict(ALIVE, words), pids[0]
        if claim.works_in and eyes.hidden(claim.programs):
            return Verdict(UNKNOWN, f"{verdict.evidence}, but its children may not be seen"), None
        if others:
            words = f"process {others[0]} is called {pid} in its own PID namespace: it may be meant"
            return Verdict(UNKNOWN, words), None
        return verdict, None
    return _still_there(sight, claim, eyes, verdict)


def _still_there(
    sight: Sight, claim: Claim, eyes: Processes, verdict: Verdict
) -> tuple[Verdict, int | None]:
    """Some process has the number, or not all can be seen."""
    pid = claim.pid
    assert pid is not None
    foreign = claim.pid_ns not in (None, process.namespace("pid"))
    if not sight.place.one_kernel or foreign:
        others = [each for each in eyes.called(pid)
                  if process.namespace("pid", each) == claim.pid_ns]  # fmt: skip
        if foreign and others:
            words = f"process {others[0]} is process {pid} of that PID namespace, and runs"
            return Verdict(ALIVE, words), others[0]
        return verdict, None
    seen, began = process.look(pid), process.started_at(pid)
    if not seen.exists or seen.is_zombie or seen.is_thread or began is None:
        return verdict, None
    if claim.created is not None:
        if abs(began - claim.created) <= SLACK:
            return Verdict(ALIVE, f"process {pid} runs, begun when the lock says"), pid
        return Verdict(UNKNOWN, f"process {pid} began at another time than the lock says"), None
    program = program_of(pid)
    if claim.programs and not is_one_of(program, claim.programs):
        words = (
            f"process {pid} is {program or 'another program'}: the number was given on, it seems"
        )
        return Verdict(UNKNOWN, words), None
    if began >= sight.found.st_mtime + SLACK:
        words = f"process {pid} is younger than the file: the number was probably given on"
        return Verdict(UNKNOWN, words), None
    if not process.sees_all_processes() and not claim.programs:
        return verdict, None
    return Verdict(ALIVE, f"process {pid} runs since before the file was written"), pid


def is_here(host: str) -> bool:
    """Whether a host's name is ours: with its domain or without."""
    ours = process.host_name() or ""
    one, other = host.lower().rstrip("."), ours.lower()
    if one.partition(".")[0] == "localhost":  # what getfqdn(3) answers where no name is known
        return True
    return one == other or (one.partition(".")[0] == other.partition(".")[0] and
                            not ("." in one and "." in other))  # fmt: skip
