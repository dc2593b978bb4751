"""How a lock comes to be: looked for and then made, made without an owner, waited for for ever."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..blocks import exits, names_of, returned
from ..events import compares_start
from ..judge import AGED, CLOCK, HELD
from ..libraries import OUTSIDE, made_by
from ..model import calls_in, leaves, nodes, text_of
from ..rule import Hit, at, there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Frames, Function

WAITS = re.compile(
    r"^(timeout|wait|max_wait|timeout_s|timeout_seconds|wait_seconds|blocking_timeout|wait_timeout"
    r"|acquire_timeout|lock_timeout|timeout_sec|max_wait_seconds)$"
)
BOUNDS = re.compile(
    r"timeout|deadline|attempt|retr|tries|elapsed|max_|_max|limit|(?<!row)count|until|expire"
    r"|stop|shutdown"
    r"|cancel|running|time\.time|monotonic|is_set|end_time|giveup|give_up|remaining",
    re.IGNORECASE,
)


def looked_at(judge: Judge, function: Function, act: Event) -> Event | None:
    """What was looked at under the same key before this act, and led to it."""
    for event in judge.whole(function):
        if event is act:
            break
        if event.kind in ("exists", "read", "open", "stat", "age") and event.key == act.key:
            if event.site is act.site or (event.kind == "open" and event.facts.get("number")):
                continue
            if absent_by(judge, event, act):
                return event
    return None


def absent_by(judge: Judge, look: Event, act: Event) -> bool:
    """Does the act happen because the look found nothing, or nothing that counts?"""
    if look.kind == "exists" and "inside" not in look.facts:
        for frame, test in judge.tests(act):
            if judge.rests_on(act.where, test, look):
                return denies(test) != (frame.part == "else")
        return waited_before(look, act)
    if look.kind in ("exists", "stat", "age", "read") and missed_before(look, act):
        return True
    if look.kind == "exists" and look.via and look.via is act.via:
        inner, made = look.facts["inside"], act.facts["inside"]
        return absent_by(judge, inner, made)
    if judge.mine(act) and not has_exit_before(judge, look, act):
        return False
    for frame, test in judge.tests(act):
        if frame.part == "else" and judge.rests_on(act.where, test, _call_of(judge, look)):
            return isinstance(frame.node, ast.If) and exits(frame.node.body)
    return False


MISSING = frozenset("FileNotFoundError OSError IOError".split())


def missed_before(look: Event, act: Event) -> bool:
    """`try: stat(path) except FileNotFoundError: open(path, "w")`: made, as it is not there."""
    for frame in act.frames:
        if frame.kind == "try" and frame.handler is not None:
            if any(f.node is frame.node and f.part == "body" for f in look.frames):
                return bool(names_of(frame.handler) & MISSING) and ends_elsewhere(frame.node)
    return False


def ends_elsewhere(tried: ast.Try) -> bool:
    """Does the function end where the file was there?"""
    return exits(tried.body) or exits(tried.orelse)


def _call_of(judge: Judge, look: Event) -> Event:
    """The call in this very function through which a look happens."""
    if "inside" in look.facts:
        for event in judge.own(look.where):
            if event.site is look.site and event.kind == "call":
                return event
    return look


def has_exit_before(judge: Judge, look: Event, act: Event) -> bool:
    return any(
        frame.part == "else" and judge.rests_on(act.where, test, _call_of(judge, look))
        for frame, test in judge.tests(act)
    )


def denies(test: ast.expr) -> bool:
    """Is it `not exists(...)`, also as a part of an `and`?"""
    return any(isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not) for n in nodes(test))


def waited_before(look: Event, act: Event) -> bool:
    """`while exists(path): sleep()`, and then the act behind that loop."""
    return any(
        frame.kind == "while" and frame.part == "test" and not awaited(frame.node.test, look)
        for frame in look.frames
    )


def awaited(test: ast.expr, look: Event) -> bool:
    """`while not exists(path)`: it goes on when the file is there."""
    return any(
        isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not) and n.operand is look.site
        for n in nodes(test)
    )


def waits_out(judge: Judge, function: Function, act: Event) -> Event | None:
    """A look in the test of a `while` loop that ends before the act."""
    for stmt, _frames in function.walked:
        if isinstance(stmt, ast.While) and (stmt.end_lineno or 0) < act.line:
            for event in judge.own(function):
                inside = any(event.site is call for call in calls_in(stmt.test))
                if awaited(stmt.test, event):
                    continue
                if inside and event.kind == "exists" and event.key == act.key:
                    return event
        elif isinstance(stmt, ast.For) and (stmt.end_lineno or 0) < act.line:
            if not any(isinstance(n, ast.Break) for s in stmt.body for n in ast.walk(s)):
                continue
            for event in judge.own(function):
                looped = any(f.node is stmt and f.part == "body" for f in event.frames)
                if looped and event.kind == "exists" and event.key == act.key:
                    return event
    return None


def gave_up(judge: Judge, function: Function, act: Event) -> Event | None:
    """`if exists(path): ... raise ...` that ends before the act, on the way to it."""
    for stmt, frames in function.walked:
        if not isinstance(stmt, ast.If) or (stmt.end_lineno or 0) >= act.line or denies(stmt.test):
            continue
        if not ends_within(stmt.body) or act.frames[: len(frames)] != frames:
            continue
        for event in judge.own(function):
            if event.kind == "exists" and event.key == act.key:
                if any(event.site is call for call in calls_in(stmt.test)):
                    return event
    return None


def read_before(judge: Judge, function: Function, act: Event) -> Event | None:
    """`try: pid = read(path) except FileNotFoundError: pid = None`, then it is written."""
    own = judge.own(function) if act.via is None else []
    for look in own:
        if look.kind != "read" or look.key != act.key or look.line >= act.line:
            continue
        broad = MISSING | {"Exception", "BaseException"}
        missed = [h for h in judge.handled_by(look) if names_of(h) & broad]
        goes_on = missed and not any(leaves(h.body) for h in missed)
        whole = judge.whole(function)
        asked = any(e.kind == "alive" and look.line < e.line < act.line for e in whole)
        if goes_on and asked and not any(f.kind == "try" and f.handler for f in act.frames):
            return look
    return None


def ended_in_call(judge: Judge, function: Function, act: Event) -> Event | None:
    """`check_busy()`, a statement that ends the program where the file is there."""
    for event in judge.own(function) if act.via is None else ():
        helper, stmt = event.facts.get("helper"), event.facts.get("statement")
        if helper is None or not isinstance(stmt, ast.Expr) or event.line >= act.line:
            continue
        if event.frames != act.frames[: len(event.frames)] or not ends_program(helper):
            continue
        for look in judge.whole(function):
            if look.site is event.site and look.kind == "exists" and look.key == act.key:
                return look
    return None


def ends_program(helper: Function) -> bool:
    """Does a branch of this function raise or exit?"""
    return any(
        isinstance(n, ast.Raise)
        or (isinstance(n, ast.Call) and text_of(n.func) in ("sys.exit", "exit", "os._exit"))
        for stmt in helper.body
        for n in nodes(stmt)
    )


def ends_within(block: list[ast.stmt]) -> bool:
    """Does a branch of this block end the function?"""
    return any(
        isinstance(n, ast.Return | ast.Raise)
        or (isinstance(n, ast.Call) and text_of(n.func) in ("sys.exit", "exit", "os._exit"))
        for stmt in block
        for n in nodes(stmt)
    )


def is_lock(judge: Judge, function: Function, event: Event) -> bool:
    """Is what is made here a lock: does somebody remove it, wait for it, or write a pid into it?"""
    if not event.lockish:
        return False
    texts = set(function.texts(event.expr)) if event.expr is not None else set()
    if any(map(words.speaks_of_pid, texts)) or words.speaks_of_pid(event.key):
        return True
    if any(e.kind == "unlink" and e.lockish for e in judge.everything()):
        return True
    if function.within is not None and words.speaks_of_lock(function.within.name):
        if words.acquires(function.name):
            return True
    whole = judge.whole(function)
    return any(e.kind == "sleep" or e.facts.get("name") == "os.getpid" for e in whole)


def is_flag(judge: Judge, act: Event) -> bool:
    """A file that is looked for, made and removed, and for nothing else: it says that one works."""
    if act.via is not None or act.facts.get("rename") or "a" in act.facts.get("mode", ""):
        return False
    same = judge.done_to(act.key)
    kinds = {event.kind for event in same}
    if kinds != {"exists", "write", "unlink"} or OWN_NAME.search(act.key):
        return False
    function = act.where
    if holds_data(judge, act):
        return False
    gone = [e for e in same if e.kind == "unlink" and e.where is function and e.line > act.line]
    if not gone or gave_up(judge, function, act) is None:
        return False
    handed = (
        given
        for event in judge.own(function)
        if event.kind in ("other", "call")
        for given in [*event.facts["called"].args, *event.facts["called"].keywords.values()]
    )
    return not any(function.key(given) == act.key for given in handed)


def holds_data(judge: Judge, made: Event) -> bool:
    """Is more written into it than who made it, and when?"""
    handle = str(made.facts.get("handle", ""))
    for event in judge.own(made.where) if handle else ():
        called = event.facts.get("called")
        if called is None or text_of(called.func) not in (
            f"{handle}.write",
            f"{handle}.writelines",
        ):
            continue
        texts = {text.rpartition(".")[2] for each in called.args for text in made.where.texts(each)}
        names = {n.id for each in called.args for n in nodes(each) if isinstance(n, ast.Name)}
        if names - {"str", "os", "time", "f"} and not texts & {
            "getpid",
            "gethostname",
            "time",
            "now",
        }:
            return True
    return False


def check_then_create(judge: Judge) -> Iterator[Hit]:
    for function in judge.functions:
        whole = judge.whole(function)
        acts = [e for e in whole if e.kind == "write" and (e.lockish or is_flag(judge, e))]
        acts += [e for e in whole if e.kind == "ensure" and e.lockish and gone_behind(judge, e)]
        if not acts or judge.has_flock(whole) or words.breaks(function.name):
            continue
        if any(e.kind == "create" and e.lockish for e in whole):
            continue
        flocked = judge.flocked(function)
        for act in acts:
            if act.key in flocked or act.facts.get("mode", "").startswith("a"):
                continue
            if judge.under_lock(act):
                continue
            look = waits_out(judge, function, act) or gave_up(judge, function, act)
            look = look or looked_at(judge, function, act) or read_before(judge, function, act)
            look = look or ended_in_call(judge, function, act)
            if look is None or not (is_lock(judge, function, act) or is_flag(judge, act)):
                continue
            if act.via is not None and look.via is act.via:
                continue  # the finding is the helper's
            yield at(
                act,
                f"`{act.name}` is looked for on line {look.line} and made here: two processes that"
                " look at the same moment both make it, and both hold the lock",
                there(look, "looked for here"),
            )
            break


RUNS = re.compile(
    r"(^|[._])(pid_exists|pid_(is_)?(alive|running)|(os_|process_)?is_running|is_pid_\w+"
    r"|process_(exists|alive|running)|is_(process_)?alive)$"
)


def knows_owner(judge: Judge, function: Function) -> bool:
    """Does this class or module ever ask who made the lock, or how old it is?"""
    if function.within not in judge.asked_owner:
        judge.asked_owner[function.within] = owner_asked(judge, function)
    return judge.asked_owner[function.within]


def owner_asked(judge: Judge, function: Function) -> bool:
    module = judge.module
    for event in judge.unit(function):
        if event.kind in ("alive", "age", "touch") or event.kind == "flock":
            return True
        if (
            event.kind in ("read", "stat", "open")
            and event.lockish
            and event.facts.get("mode") != "w"
            and not OWN_NAME.search(event.key)
        ):
            return True
        if event.kind == "other" and RUNS.search(event.facts.get("name", "")):
            return True
        helper = event.facts.get("helper")
        if helper and any(e.kind in ("alive", "age") for e in judge.whole(helper)):
            return True
    return compares_start(module) and "pid" in module.lower


def contended(judge: Judge, event: Event) -> bool:
    """Is an existing file met as "held by somebody"?"""
    for handler in judge.handled_by(event):
        if names_of(handler) & {"FileExistsError", "OSError", "IOError", "?"}:
            return True
        if any(text in ast.dump(handler) for text in ("EEXIST", "FileExists")):
            return True
        if names_of(handler) & {"Exception", "BaseException"} and ends_within(handler.body):
            return True
    return False


def ownerless(judge: Judge) -> Iterator[Hit]:
    for function in judge.functions:
        mine = [e for e in judge.own(function) if e.kind in ("create", "write") and e.lockish]
        for event in mine:
            exclusive = bool(event.facts.get("exclusive"))
            if event.facts.get("rename") or "a" in event.facts.get("mode", ""):
                continue
            if on_windows(event) or judge.under_lock(event):
                continue
            if knows_owner(judge, function) or words.releases(function.name):
                continue
            if exclusive:
                removed = any(e.kind == "unlink" and e.lockish for e in judge.unit(function))
                if asked_in_handler(judge, event):
                    continue
                met = contended(judge, event)
                if event.facts.get("folder"):
                    named = judge.named_lock(function) and words.acquires(function.name)
                    met = met and (removed or named)
                here = gone_here(judge, event)
                if not (met or here or (removed and words.acquires(function.name))):
                    continue
            else:
                kinds = {e.kind for e in judge.done_by_unit(function, event.key)}
                if not {"exists", "unlink"} <= kinds or "read" in kinds:
                    continue
            yield at(
                event,
                f"nobody can tell who made `{event.name}`, or whether that process still lives: one"
                " crash before it is removed blocks every later run",
            )
            break


def asked_in_handler(judge: Judge, made: Event) -> bool:
    """Is something asked about the path where it is met: `if holder_lives(path)`?"""
    for handler in judge.handled_by(made):
        tests = [s.test for s in handler.body if isinstance(s, ast.If)]
        calls = [c for test in tests for c in calls_in(test)]
        if any(made.where.key(given) == made.key for call in calls for given in call.args):
            return True
    return False


def gone_behind(judge: Judge, made: Event) -> bool:
    """Is it removed behind the work, in this function?"""
    own = judge.own(made.where)
    return any(e.kind == "unlink" and e.key == made.key and e.line > made.line for e in own)


def gone_here(judge: Judge, made: Event) -> bool:
    """Is it removed in a `finally` of the function that made it: is it held by being there?"""
    return any(
        e.kind == "unlink" and e.key == made.key and e.line > made.line and judge.in_finally(e)
        for e in judge.own(made.where)
    )


WINDOWS = re.compile(
    r"""['"](win32|nt|windows|cygwin)['"]|is_windows|on_windows|\bWINDOWS\b""", re.IGNORECASE
)


def on_windows(act: Event) -> bool:
    """Does it run there alone, where a file that is open cannot be removed?"""
    for frame in act.frames:
        if isinstance(frame.node, ast.If) and frame.part in ("then", "else"):
            test = ast.unparse(frame.node.test)
            if WINDOWS.search(test) and (frame.part == "then") != bool(re.search("!=|not ", test)):
                return True
    return False


# --- waiting ------------------------------------------------------------------------------------


def bounded(judge: Judge, function: Function, loop: ast.While) -> bool:
    """Does anything but the lock end this loop?"""
    test = loop.test
    if not isinstance(test, ast.Constant):
        if any(isinstance(n, ast.Compare) and isinstance(n.ops[0], ORDER) for n in nodes(test)):
            return True
        if any(BOUNDS.search(text) for text in function.texts(test)):
            return True
    for stmt in loop.body:
        for node in nodes(stmt):
            if isinstance(node, ast.If) and (exits(node.body) or exits(node.orelse)):
                texts = {text_of(n) or getattr(n, "attr", "") for n in nodes(node.test)}
                order = any(
                    isinstance(n, ast.Compare) and isinstance(n.ops[0], ORDER)
                    for n in nodes(node.test)
                )
                if order or any(BOUNDS.search(text) for text in texts if text):
                    return True
            if isinstance(node, ast.Call):
                name = text_of(node.func)
                if name.endswith((".wait", ".check_timeout", "check_timeout", "is_set", "expired")):
                    return True
    return False


ORDER = ast.Lt | ast.Gt | ast.LtE | ast.GtE


def waits_for_lock(judge: Judge, function: Function, loop: ast.While) -> Event | None:
    """What this loop tries again and again, if that is a lock."""
    for event in judge.whole(function):
        if not any(f.node is loop and f.part == "body" for f in event.frames):
            test = any(event.site is call for call in calls_in(loop.test))
            if test and event.kind == "redis_lock" and denies(loop.test):
                return event
            if test and denies(loop.test) and slept(judge, function, loop):
                if event.kind == "take" or (event.kind == "call" and tries(judge, event)):
                    return event
                if event.kind == "acquire" and outside(judge, function, event):
                    return event
            if not (test and event.kind == "exists" and event.lockish):
                continue
            if awaited(loop.test, event):
                continue
            if not any(e.kind == "sleep" and loop in judge.loops(e) for e in judge.own(function)):
                continue
            return event
        if event.kind == "create" and event.facts.get("exclusive") and event.lockish:
            if tried_again(judge, event, loop):
                return event
        if event.kind == "redis_lock" and "inside" not in event.facts and ends_by_itself(loop):
            if event.lockish or words.acquires(function.name):
                return event
        if event.kind in ("take", "acquire") and asked_again(judge, function, event, loop):
            return event
        if event.kind == "call" and tries(judge, event) and slept(judge, function, loop):
            if turns_on(event, loop):
                return event
        if event.kind == "flock" and event.facts.get("nonblocking") and "inside" not in event.facts:
            if tried_again(judge, event, loop):
                return event
    return None


def ends_by_itself(loop: ast.While) -> bool:
    """Does anything in the loop leave it, and no refused job only give way to the next?"""
    return any(isinstance(n, ast.Return | ast.Break) for s in loop.body for n in nodes(s))


def slept(judge: Judge, function: Function, loop: ast.While) -> bool:
    """Does this loop pause?"""
    return any(e.kind == "sleep" and loop in judge.loops(e) for e in judge.whole(function))


def outside(judge: Judge, function: Function, event: Event) -> bool:
    """Is this the acquire of a lock between processes or hosts?"""
    return made_by(judge, function, event.facts["called"].func) in OUTSIDE


def tries(judge: Judge, call: Event) -> bool:
    """Is this a helper that takes a lock and says whether it did?"""
    helper = call.facts["helper"]
    if not words.acquires(helper.name) or not any(returned(helper.body)):
        return False
    kinds = {e.kind for e in judge.whole(helper) if e.lockish or judge.named_lock(helper)}
    return bool(kinds & {"create", "redis_lock", "take"}) or judge.has_flock(judge.whole(helper))


def turns_on(event: Event, loop: ast.While) -> bool:
    """Does what this call answers end the loop, and nothing else?"""
    for stmt in loop.body:
        if isinstance(stmt, ast.If) and any(event.site is n for n in nodes(stmt.test)):
            return not denies(stmt.test) and exits(stmt.body)
    return False


def asked_again(judge: Judge, function: Function, event: Event, loop: ast.While) -> bool:
    """Is a refusal of a store's or a library's no reason to leave the loop?"""
    if "inside" in event.facts or not slept(judge, function, loop):
        return False
    if event.kind == "acquire" and not outside(judge, function, event):
        return False
    if event.kind == "take" and not (event.lockish or judge.at_lock(function)):
        return False
    handlers = judge.handled_by(event)
    if handlers:
        return not any(isinstance(n, ast.Raise | ast.Return | ast.Break)
                       for h in handlers for s in h.body for n in nodes(s))  # fmt: off
    return turns_on(event, loop) or any(
        isinstance(s, ast.If) and exits(s.body) and judge.rests_on(function, s.test, event)
        for s in loop.body
    )


def tried_again(judge: Judge, event: Event, loop: ast.While) -> bool:
    """Is a refusal swallowed inside the loop, so that it goes round?"""
    for frame in event.frames:
        if frame.kind == "with" and swallows(judge, frame.node):
            return frame.node.lineno >= loop.lineno and not bool(judge.handled_by(event))
        if frame.kind == "try" and frame.part == "body":
            within = (frame.node.end_lineno or 0) <= (loop.end_lineno or 0)
            if within and frame.node.lineno >= loop.lineno:
                handlers = frame.node.handlers
                held = next((h for h in handlers if names_of(h) & HELD | names_of(h) & {"?"}), None)
                if held is None or isinstance(held.body[-1], ast.Return):
                    return False
                answers = [n for s in held.body for n in nodes(s) if isinstance(n, ast.Return)]
                if answers and not any(loop in judge.loops(e) for e in judge.own(event.where)
                                       if e.kind == "sleep"):  # fmt: off
                    return False  # a live holder is answered; it goes round for a dead one
                if refuses(judge, event, held, loop):
                    return False
                return not leaves(held.body) or _continues(held.body)
    return False


def swallows(judge: Judge, block: ast.With | ast.AsyncWith) -> bool:
    """`with suppress(FileExistsError):`."""
    calls = [i.context_expr for i in block.items if isinstance(i.context_expr, ast.Call)]
    return any(
        judge.module.dotted(call.func).endswith("suppress")
        and not HELD.isdisjoint(text_of(each) for each in call.args)
        for call in calls
    )


def refuses(judge: Judge, event: Event, held: ast.ExceptHandler, loop: ast.While) -> bool:
    """Is a live holder answered by an error, and the loop for a stale lock alone?"""
    raised = [n for s in held.body for n in nodes(s) if isinstance(n, ast.Raise | ast.Return)]
    plain = [n for n in raised if not isinstance(n, ast.Raise) or n.exc is not None]
    return (
        bool(plain)
        and not slept(judge, event.where, loop)
        and len(plain)
        > len(
            [
                n
                for s in held.body
                if isinstance(s, ast.If) and foreign(s)
                for n in s.body
                if n in plain
            ]
        )
    )


def foreign(stmt: ast.If) -> bool:
    """`if error.errno != EEXIST: raise`: an error that is none of a lock."""
    return any(text_of(n).endswith("errno") for n in nodes(stmt.test))


def _continues(block: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Continue) for stmt in block for n in nodes(stmt))


def unbounded_wait(judge: Judge) -> Iterator[Hit]:
    for function in judge.functions:
        yield from unused_timeout(judge, function)
        for stmt, frames in function.walked:
            if not isinstance(stmt, ast.While) or bounded(judge, function, stmt):
                continue
            if timed_block(judge, frames):
                continue
            event = waits_for_lock(judge, function, stmt)
            if event is not None:
                yield Hit(
                    function,
                    stmt,
                    f"this loop waits for `{event.name}` without an end: behind a dead or hung"
                    " holder it hangs for ever and says nothing",
                    (there(event, "tried here"),),
                )
                continue
            for each in judge.own(function):
                if (
                    each.kind == "signal"
                    and stmt in judge.loops(each)
                    and not own_child(stmt, each)
                    and "getpid" not in each.key
                ):
                    if judge.at_lock(function) or "pid" in each.key.lower():
                        yield Hit(
                            function,
                            stmt,
                            f"this loop signals `{each.name}` until there is no such process: a"
                            " process that ignores the signal, or that got the number since, is"
                            " signalled for ever",
                        )
                        break


def timed_block(judge: Judge, frames: Frames) -> bool:
    """`async with asyncio.timeout(10):` around the loop."""
    calls = [
        item.context_expr
        for frame in frames
        for item in (frame.node.items if frame.kind == "with" else ())
        if isinstance(item.context_expr, ast.Call)
    ]
    ends = ("timeout", "timeout_at", "fail_after", "move_on_after", "Timeout")
    return any(judge.module.dotted(call.func).endswith(ends) for call in calls)


def own_child(loop: ast.While, signal: Event) -> bool:
    """`while proc.is_alive(): kill(proc.pid, SIGKILL)`: its number stays its own."""
    owner, _, last = text_of(signal.expr).rpartition(".")
    asked = (text_of(n.func) for n in nodes(loop.test) if isinstance(n, ast.Call))
    return last == "pid" and bool(owner) and any(name.startswith(f"{owner}.") for name in asked)


def unused_timeout(judge: Judge, function: Function) -> Iterator[Hit]:
    """A parameter promises a bound, and the lock is waited for without it."""
    names = [name for name in function.parameters if WAITS.match(name)]
    if not names:
        return
    used = {n.id for stmt in function.body for n in ast.walk(stmt) if isinstance(n, ast.Name)}
    locks = [
        e
        for e in judge.whole(function)
        if e.kind == "flock" and not e.facts["nonblocking"] and not e.facts["from_parameter"]
    ]
    for name in names:
        if name not in used and locks and "**" not in name:
            yield at(
                locks[0],
                f"`{name}` of {function.title} is never used: this call waits without an end,"
                " whatever the caller asked for",
            )
            return


# --- /tmp ---------------------------------------------------------------------------------------

OWN_NAME = re.compile(r"getpid|token_hex|uuid|NamedTemporaryFile|mkstemp|mkdtemp|unique")
SHARED = re.compile(r"^/(tmp|var/tmp|dev/shm)(/|$)")


def in_shared_folder(judge: Judge) -> Iterator[Hit]:
    for function in judge.functions:
        for event in judge.own(function):
            if event.kind not in ("write", "open") or not event.lockish or event.expr is None:
                continue
            if event.facts.get("rename") or event.facts.get("nofollow"):
                continue
            if event.kind == "open" and not (
                event.facts.get("number") or "+" in event.facts["mode"]
            ):
                continue
            if event.kind == "open" and event.facts.get("number"):
                if "O_CREAT" not in function.texts(event.facts["called"].node):
                    continue
            texts = function.texts(event.expr)
            fixed = next((text for text in texts if SHARED.match(text)), None)
            if fixed is None and "gettempdir" not in texts:
                continue
            if {
                "mkdtemp",
                "uuid4",
                "mkstemp",
                "tmp_path",
                "TemporaryDirectory",
            } & set(texts):
                continue
            where = fixed or "the folder of tempfile.gettempdir()"
            literal = default_literal(function, event, fixed)
            yield Hit(
                literal[0] if literal else function,
                literal[1] if literal else event.site,
                f"`{event.name}` is a fixed name in a folder that everybody writes to ({where}):"
                " another user can put a link or a file of their own there first",
                (there(event, "opened here, and links are followed"),) if literal else (),
            )
            break


def default_literal(
    function: Function, event: Event, fixed: str | None
) -> tuple[Function, ast.AST] | None:
    """The default value of a parameter of `__init__` in which the path is written."""
    made = function.within.methods.get("__init__") if function.within else None
    if made is None or fixed is None:
        return None
    for value in made.defaults.values():
        if isinstance(value, ast.Constant) and value.value == fixed:
            return made, value
    return None


def ages(judge: Judge, function: Function, node: ast.AST) -> bool:
    """Does this expression compare a clock with an instant that a record or file carries?"""
    says = judge.says(function, node)
    tails = {text.rpartition(".")[2] for text in says if len(text) < 40} | says
    return any(CLOCK.search(t) for t in says) and any(AGED.search(t) for t in tails if len(t) < 40)
