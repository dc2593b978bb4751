"""What shell scripts do to locks: test and touch, mkdir, kill -0, traps, flock."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import words
from ..finding import Span
from ..rule import Hit
from ..shell import TEST, Script, ShellCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

PRESENT = frozenset("-f -e -s -a -d -L -h -r".split())
WRITERS = frozenset("echo date printf cat hostname tee touch : true".split())
REMOVES = frozenset("rm rmdir unlink".split())
ASKS = re.compile(
    r"kill -0|kill -s 0|\bps\b.*-p|/proc/|pgrep|pidof|-mmin|-mtime|-newer|stat -c|stat -f|date -r"
    r"|fuser|lsof|pidwait|\bstart-stop-daemon\b"
)
LOOKS_CLOSER = re.compile(
    r"/cmdline|comm=|args=|\bcmd=|lstart|-o comm|-o args|/comm\b|/exe\b|starttime"
)
DELETES = re.compile(r"-delete\b|\b(rm|rmdir|unlink)\b")
ENDS = frozenset("EXIT 0 INT TERM HUP 2 15 1 QUIT ERR".split())


def spot(command: ShellCommand, message: str, *spans: tuple[ShellCommand, str]) -> Hit:
    places = tuple(Span(each.line, text) for each, text in spans)
    return Hit(command, command, message, places)


def shown(word: str) -> str:
    return word if len(word) < 60 else word[:57] + "..."


# --- what is done to which path -----------------------------------------------------------------


def looked_for(command: ShellCommand) -> list[str]:
    """The paths whose presence this tests."""
    if command.name not in TEST:
        return []
    given = [each for each in command.words[1:] if each not in ("]", "]]")]
    return [b for a, b in pairwise(given) if a in PRESENT]


def made(command: ShellCommand) -> str:
    """The path that this makes, without refusing when it is there; "" for none."""
    if command.name == "touch":
        return command.operands[-1] if command.operands else ""
    if command.name in WRITERS or not command.words:
        for each in command.redirects:
            if each.sign in (">", ">|") and each.number in ("", "1") and each.target:
                return each.target
    if command.name == "tee" and command.operands:
        return command.operands[0]
    return ""


def made_alone(script: Script, command: ShellCommand) -> str:
    """The path that this makes only where it is not there: mkdir, ln, noclobber."""
    if command.name == "mkdir" and not any(
        each.startswith("-") and "p" in each.lstrip("-")[:3] for each in command.given
    ):
        return command.operands[0] if len(command.operands) == 1 else ""
    if command.name == "ln" and "f" not in "".join(o for o in command.given if o.startswith("-")):
        return command.operands[-1] if len(command.operands) == 2 else ""
    path = made(command)
    return path if path and noclobber(script, command) else ""


def noclobber(script: Script, command: ShellCommand) -> bool:
    for each in script.by_name.get("set", ()):
        if each.line > command.line:
            continue
        on = "-C" in each.given or "noclobber" in each.given
        if (
            on
            and [a.number for a in each.around]
            == [a.number for a in command.around][: len(each.around)]
        ):
            return True
    return False


def removed(script: Script, command: ShellCommand) -> list[str]:
    return [script.key(each) for each in command.operands] if command.name in REMOVES else []


def flocked(script: Script) -> dict[str, ShellCommand]:
    """The paths that are locked by flock(1), with where."""
    numbers: dict[str, str] = {}
    for command in script.commands:
        for each in command.redirects:
            if each.number and each.sign in (">", ">>", "<", "<>") and not command.given:
                numbers[each.number.strip("{}")] = each.target
    for given in script.groups.values():
        for each in given:
            if each.number and each.target:
                numbers[each.number.strip("{}")] = each.target
    found: dict[str, ShellCommand] = {}
    for command in script.commands:
        if command.name != "flock" or not command.operands:
            continue
        word = lock_word(command)
        path = numbers.get(word.lstrip("$"), "" if word.isdigit() else word)
        if path:
            found.setdefault(script.key(path), command)
    return found


def lock_word(command: ShellCommand) -> str:
    """What flock(1) is to lock: a number or a path, behind its options."""
    given = iter(command.given)
    for each in given:
        if each in ("-w", "--timeout", "--wait", "-E", "--conflict-exit-code"):
            next(given, None)
        elif not each.startswith("-"):
            return each
    return ""


def errexit(script: Script) -> bool:
    first = script.text.split("\n", 1)[0]
    if first.startswith("#!") and re.search(r"\s-\w*e", first):
        return True
    return any(
        c.name == "set" and any(re.fullmatch(r"-\w*e\w*", g) or g == "errexit" for g in c.given)
        for c in script.commands
    )


def group_behind(script: Script, command: ShellCommand) -> list[ShellCommand]:
    """What runs by the result of a command: `cmd && this`, or the blocks of its `if`."""
    first = script.behind(command)
    if first is not None and command.next in ("&&", "||") and first.joined == command.next:
        new = first.around[len(command.around) :]
        if not new:
            return [first]
        inside = script.within_numbers.get(new[0].number, [])
        place = script.places[first]
        return [c for c in inside if new[0] in c.around and script.places[c] >= place]
    return block_behind(script, command)


def block_behind(script: Script, command: ShellCommand) -> list[ShellCommand]:
    """The blocks of the `if` or the loop whose test this command is part of."""
    around = next((a for a in reversed(command.around) if a.part == "test"), None)
    if around is not None and (around is command.around[-1] or noclobber(script, command)):
        return [
            c
            for c in script.within_numbers.get(around.number, [])
            if any(a.number == around.number and a.part != "test" for a in c.around)
        ]
    return []


def leads(script: Script, test: ShellCommand, act: ShellCommand) -> bool:
    """Does the act happen only by what the test found, or behind a refusal that leaves?"""
    behind = group_behind(script, test)
    if act in behind:
        return True
    if test.within != act.within or act.line < test.line:
        return False
    behind = behind + block_behind(script, test)  # `[ -e LOCK ] && kill -0 ...` is one test
    waits = any(c.name in ("sleep", "usleep", "inotifywait") for c in behind)
    return waits or any(c.leaves for c in behind)


def flags(script: Script) -> set[str]:
    """The files that are tested, made and removed, and nothing else: they say that a run works."""
    makes: set[str] = set()
    removes: set[str] = set()
    handed: set[str] = set()
    for command in script.all():
        path, gone = made(command), removed(script, command)
        makes |= {script.key(path)} if path else set()
        removes |= set(gone)
        if not (path or gone or command.name in TEST or command.name == "trap"):
            handed |= {script.key(each) for each in command.given}
            handed |= {script.key(each.target) for each in command.redirects}
    return makes & removes - handed


# --- the rules ----------------------------------------------------------------------------------


def test_then_make(script: Script) -> Iterator[Hit]:
    """LH301."""
    locked, flagged = flocked(script), flags(script)
    makers: dict[str, list[ShellCommand]] = {}
    for each in script.commands:
        if path := made(each):
            makers.setdefault(script.key(path), []).append(each)
    for test in script.commands:
        for word in looked_for(test):
            key = script.key(word)
            if key in locked or not (script.lockish(word) or key in flagged):
                continue
            if not script.lockish(word) and not any(c.leaves for c in group_behind(script, test)):
                continue
            for act in makers.get(key, ()):
                path = made(act)
                asked = [test, *callers(script, test)]
                if noclobber(script, act):
                    continue
                led = any(each.line <= act.line and leads(script, each, act) for each in asked)
                if not led and not apart(script, test, act):
                    continue
                yield spot(
                    act,
                    f"`{shown(path)}` is tested on line {test.line} and made here: two runs that"
                    " test at the same moment both go on",
                    (test, "tested here"),
                )
                return


def apart(script: Script, test: ShellCommand, act: ShellCommand) -> bool:
    """`check_lock` ends the script where the file is there, and `create_lock` is called behind."""
    if not (test.within and act.within) or test.within == act.within:
        return False
    if not any(c.name in ("exit", "die") for c in group_behind(script, test)):
        return False
    before, behind = script.by_name.get(test.within, ()), script.by_name.get(act.within, ())
    return any(a.line <= b.line and a.within == b.within for a in before for b in behind)


def callers(script: Script, test: ShellCommand) -> list[ShellCommand]:
    """Where the function is called that makes this test, and nothing but tests."""
    if not test.within:
        return []
    inside = [c for c in script.commands if c.within == test.within]
    if any(made(c) or c.name in REMOVES for c in inside):
        return []
    return list(script.by_name.get(test.within, ()))


def held_by_presence(script: Script) -> Iterator[tuple[ShellCommand, str]]:
    """Each lock of this script that is held by being there: where it is made, its key."""
    found: set[str] = set()
    locked = flocked(script)
    strict = errexit(script)
    testers: dict[str, list[ShellCommand]] = {}
    for test in script.commands:
        for word in looked_for(test):
            testers.setdefault(script.key(word), []).append(test)
    for command in script.commands:
        path = made_alone(script, command)
        if not script.lockish(path or made(command)):
            continue
        checked = (
            strict or command.next in ("&&", "||") or any(a.part == "test" for a in command.around)
        )
        if not (path and checked):
            path = made(command)
            tests = testers.get(script.key(path), ()) if path else ()
            early = (test for test in tests if test.line <= command.line)
            path = path if any(leads(script, test, command) for test in early) else ""
        key = script.key(path) if path else ""
        if key and key not in found and script.lockish(path) and key not in locked:
            found.add(key)
            yield command, key


Removers = dict[str, tuple[list[ShellCommand], list[ShellCommand]]]


def removers(script: Script) -> Removers:
    """Who removes each path: plain commands, and those that a trap runs."""
    found: Removers = {}
    inner = [c for _t, inner, _s in script.traps for c in inner]
    trapped = set(inner)
    for command in [*inner, *script.commands]:
        for key in set(removed(script, command)):
            plain, late = found.setdefault(key, ([], []))
            if command in trapped:
                late += [command] if command not in late[-1:] else []
            elif not command.trapped:
                plain.append(command)
    return found


def asks_for_life(script: Script) -> bool:
    return ASKS.search(script.text) is not None


def no_cleanup(script: Script) -> Iterator[Hit]:
    """LH302."""
    if asks_for_life(script):
        return
    known = removers(script)
    for command, key in held_by_presence(script):
        plain, trapped = known.get(key, ([], []))
        if plain and not trapped:
            yield spot(
                command,
                f"`{shown(key)}` is removed on line {plain[0].line} alone: a run that is killed or"
                " fails before that line blocks every later one",
                (plain[0], "removed here"),
            )


def only_trap(script: Script) -> Iterator[Hit]:
    """LH304."""
    if asks_for_life(script):
        return
    known = removers(script)
    for command, key in held_by_presence(script):
        _plain, trapped = known.get(key, ([], []))
        if trapped:
            yield spot(
                command,
                f"`{shown(key)}` is removed by a trap alone: SIGKILL, the OOM killer and a power"
                " cut run none, and every later run is refused",
                (trapped[0], "removed here"),
            )


def number_alone(script: Script) -> Iterator[Hit]:
    """LH303."""
    if LOOKS_CLOSER.search(script.text):
        return
    told: set[str] = set()
    for command in script.commands:
        word = asked_number(command)
        if not word or word in told:
            continue
        source = word if command.name in ("pgrep", "pkill") else read_from(script, word)
        if source and script.lockish(source):
            told.add(word)
            yield spot(
                command,
                f"the number from `{shown(source)}` is only a number: after a reboot, in another"
                " container or once it is given out again it names another process",
            )


def asked_number(command: ShellCommand) -> str:
    """The process number that is asked about."""
    if command.name == "kill" and ("-0" in command.given or command.given[:2] == ["-s", "0"]):
        rest = [each for each in command.given if each not in ("-0", "-s", "0", "--")]
        return rest[-1] if rest else ""
    if command.name == "ps":
        match = re.search(r"-\w*p\s*(\$\w+|\$\(.*\)|`.*`)", " ".join(command.given))
        return match[1] if match else ""
    if command.name == "pgrep" or (command.name == "pkill" and "-0" in command.given):
        files = [b for a, b in pairwise(command.given) if a in ("-F", "--pidfile")]
        asked = [each for each in command.operands if each not in files]
        return files[0] if files and not asked else ""
    for each in looked_for(command):
        match = re.fullmatch(r"/proc/(\$\w+|\$\([^/]*\)|`[^/]*`|\$\(.*\))(/\w+)?", each)
        if match:
            return match[1]
    return ""


READS = re.compile(
    r"(?:\$\(|`)\s*(?:cat|head\s+-n?\s*1|head -1|<|tail -n?\s*1)\s*[\"']?([^)`\"'|]+)"
)


def read_from(script: Script, word: str) -> str:
    """The file that a number was read from."""
    for each in [word, *script.values.get(word.lstrip("$"), ())]:
        match = READS.search(each)
        if match:
            return match[1].split()[0] if match[1].split() else ""
    for command in script.commands:
        if command.name == "read" and word.lstrip("$") in command.operands:
            for redirect in command.redirects:
                if redirect.sign == "<":
                    return redirect.target
    return ""


def trap_before_lock(script: Script) -> Iterator[Hit]:
    """LH305."""
    locked = flocked(script)
    refusals: dict[str, ShellCommand | None] = {}
    for trap, inner, signals in script.traps:
        if not ENDS.intersection(s.removeprefix("SIG") for s in signals) & {"EXIT", "0"}:
            continue
        for gone in inner:
            for key in removed(script, gone):
                if key in locked or not script.lockish(key) or guarded(script, gone):
                    continue
                if key not in refusals:
                    refusals[key] = refused(script, key)
                refusal = refusals[key]
                if refusal is None or not runs_later(script, trap, refusal):
                    continue
                yield spot(
                    trap,
                    f"this trap is set before the lock is taken on line {refusal.line}: a run that"
                    f" is refused there ends, and removes `{shown(key)}` of the run that holds it",
                    (refusal, "refused here"),
                )
                return


def runs_later(script: Script, trap: ShellCommand, refusal: ShellCommand) -> bool:
    """Does the attempt come after the trap, itself or by a call of its function?"""
    if refusal.within == trap.within:
        return refusal.line >= trap.line
    calls = script.by_name.get(refusal.within, ()) if refusal.within else ()
    return any(each.line >= trap.line and each.within == trap.within for each in calls)


def guarded(script: Script, gone: ShellCommand) -> bool:
    """Is the removal itself asked whether it is ours?"""
    return (bool(gone.around) and any(a.part in ("then", "else") for a in gone.around)) or (
        gone.joined == "&&"
    )


def refused(script: Script, key: str) -> ShellCommand | None:
    """Where a run leaves because the lock is there."""
    for command in script.commands:
        alone = made_alone(script, command)
        asks = key in map(script.key, looked_for(command)) or (alone and script.key(alone) == key)
        if asks and any(c.leaves for c in group_behind(script, command)):
            if not any(c.name == "trap" for c in group_behind(script, command)):
                return command
    return None


def flock_and_remove(script: Script) -> Iterator[Hit]:
    """LH306."""
    locked = flocked(script)
    for command in script.all():
        for key in removed(script, command):
            if key in locked and "*" not in key:
                lock = locked[key]
                yield spot(
                    command,
                    f"`{shown(key)}` is locked on line {lock.line} and removed here: who waits on"
                    " the old file gets its lock while the next one locks a new file of that name",
                    (lock, "locked here"),
                )
                return


def flock_unasked(script: Script) -> Iterator[Hit]:
    """LH307."""
    strict = errexit(script)
    for command in script.commands:
        if command.name != "flock":
            continue
        in_test = any(a.part == "test" for a in command.around[-1:])
        if command.negated and not (in_test and only_told(script, command)):
            continue
        silenced = shrugged_off(script, command)
        if strict and not silenced:
            continue
        bounded = any(
            re.fullmatch(r"-\w*[nw]\w*|--nb|--nonblock|--timeout.*|--wait.*", g)
            for g in command.given
        )
        word = lock_word(command)
        descriptor = word.isdigit() or re.fullmatch(r"\$\{?\w*(fd|FD|Fd)\w*\}?", word)
        if not bounded or not descriptor or command.given[-1] != word:
            continue
        if not silenced and command.next in ("&&", "||"):
            continue
        if in_test and not command.negated:
            continue
        if not silenced and asked_after(script, command):
            continue
        yield spot(
            command,
            "this flock may be refused, and nobody asks its exit status: the script goes on without"
            " the lock",
        )


TELLS = frozenset("echo printf logger log warn info error".split())


def told_in_group(script: Script, command: ShellCommand) -> bool:
    """`flock -n 9 || { echo busy; }`."""
    group = group_behind(script, command) if command.next == "||" else []
    if not group or len(group[0].around) <= len(command.around):
        return False
    last = script.places[group[-1]]
    later = [c for c in script.commands[last + 1 :] if c.within == command.within and not c.leaves]
    return all(c.name in TELLS for c in group) and bool(later)


def only_told(script: Script, command: ShellCommand) -> bool:
    """`if ! flock -n 9; then echo busy; fi`, and the work goes on."""
    block = block_behind(script, command)
    number = command.around[-1].number
    parts = {a.part for c in block for a in c.around if a.number == number}
    last = max((script.places[c] for c in block), default=-1)
    later = [c for c in script.commands[last + 1 :] if c.within == command.within and not c.leaves]
    told = block and all(c.name in TELLS for c in block)
    return command.negated and parts == {"then"} and bool(told) and bool(later)


def shrugged_off(script: Script, command: ShellCommand) -> bool:
    """`flock -n 9 || true`."""
    rest = script.commands[script.commands.index(command) + 1 :]
    behind, later = rest[:1], [c for c in rest[1:] if c.within == command.within and not c.leaves]
    return (
        command.next == "||"
        and any(
            each.joined == "||"
            and (each.name in ("true", ":") or (each.name in TELLS and bool(later)))
            and each.next not in ("&&", "||")
            and len(each.around) == len(command.around)
            for each in behind
        )
    ) or told_in_group(script, command)


def asked_after(script: Script, command: ShellCommand) -> bool:
    """Does the next command look at `$?`, or is this the last one of a function?"""
    place = script.commands.index(command)
    behind = script.commands[place + 1 : place + 2]
    if command.joined in ("&&", "||") and command.next not in ("&&", "||"):
        return True
    ends = not behind or behind[0].within != command.within
    return (
        (bool(command.within) and ends)
        or any(
            "$?" in " ".join([*c.words, *(v for v in script.values.get("rc", ()))]) for c in behind
        )
        or re.search(rf"flock[^\n]*{re.escape(command.given[-1])}[^\n]*\n\s*\w+=\$\?", script.text)
        is not None
    )


def removed_by_age(script: Script) -> Iterator[Hit]:
    """LH308."""
    if re.search(r"kill -0|kill -s 0|\bflock\b|pgrep|pidof|fuser|lsof", script.text):
        return
    for command in script.commands:
        text = " ".join(command.words)
        aged = re.search(r"-(mmin|mtime|cmin|ctime|amin)\s+\+", text)
        if command.name == "find" and aged and lock_in(command):
            piped = command.next == "|" and any(
                c.joined == "|" and "rm" in c.words for c in script.commands
            )
            if DELETES.search(text.split("find", 1)[1]) or piped:
                yield spot(
                    command,
                    "locks are removed by their age: the work of a live holder may last longer, and"
                    " a copied or restored file has another age than its lock",
                )
                return
        if command.name in TEST and aged and "find" in text:
            gone = [
                c
                for c in group_behind(script, command)
                if any(map(script.lockish, removed(script, c)))
            ]
            if gone:
                yield spot(
                    gone[0],
                    f"`{shown(removed(script, gone[0])[0])}` is removed by its age, which line"
                    f" {command.line} asks: the work of a live holder may last longer",
                    (command, "the age is asked here"),
                )
                return
        if command.name not in TEST or not re.search(r"-gt|-ge|-lt|-le|[<>]", text):
            continue
        old = re.search(r"-gt|-ge|>", text)
        for act in group_behind(script, command) if old else behind_refusal(script, command):
            for key in removed(script, act):
                if script.lockish(key) and by_age(script, text, key):
                    yield spot(
                        act,
                        f"`{shown(key)}` is removed by its age, which line {command.line} asks: the"
                        " work of a live holder may last longer",
                        (command, "the age is asked here"),
                    )
                    return


def behind_refusal(script: Script, test: ShellCommand) -> list[ShellCommand]:
    """What runs when a young lock was no reason to leave, up to the making of a new one."""
    refused = group_behind(script, test)
    if not any(each.leaves for each in refused):
        return []
    found = []
    for each in script.commands[script.commands.index(test) + 1 :]:
        if each.within != test.within or made(each) or made_alone(script, each):
            break
        if not each.leaves:
            found.append(each)
    return found


def lock_in(command: ShellCommand) -> bool:
    named = [b for a, b in pairwise(command.words) if a in ("-name", "-path", "-iname")]
    if named:
        return any(words.speaks_of_lock(each.replace("*", "")) for each in named)
    return any(words.speaks_of_lock(each) for each in command.operands[:1])


def by_age(script: Script, text: str, key: str) -> bool:
    """Does this comparison rest on the age of the file?"""
    seen = [text]
    for name in re.findall(r"\$(\w+)|\b([A-Za-z_]\w*)\b", text):
        for value in script.values.get(name[0] or name[1], ()):
            seen.append(value)
            for inner in re.findall(r"\$(\w+)|\b([A-Za-z_]\w*)\b", value):
                seen += script.values.get(inner[0] or inner[1], ())
    return any(re.search(r"stat\s+(-c|-f|--format)|date\s+-r|mtime", each) for each in seen)


def look(path: str, text: str) -> Script:
    """A script, ready to be asked."""
    return Script(path, text)
