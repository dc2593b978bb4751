"""What is a lock by what is done to it, whatever it is called: `export.running`, `BUSY`, `claim`.

A form is told by all that a function, a class or a module does to one path or key:

- made by one alone, met where it is there, and removed: O_EXCL, mkdir, symlink and unlink
- waited for until it is gone, then made and removed
- looked for, and the function ends; else made and removed: a flag
- a file that holds nothing or its maker, and is locked by the kernel
- set with NX and removed again, or compared with its owner, in a store
- read, and the function ends; else set, and removed again, in a store

Each asks that nothing but its maker is written into it: what holds data is no lock.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from . import words
from .blocks import exits, names_of, returned
from .judge import Judge
from .model import nodes, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .events import Event
    from .model import Function, Module

# A maker writes down itself and its time; `data` is anything that no such word stands in.
MAKERS = frozenset(
    "getpid pid me gethostname hostname nodename uname time ctime asctime now utcnow strftime"
    " isoformat monotonic uuid token nonce owner holder ident identity worker getuser node host who"
    " by session request user urandom argv stamp timestamp started since".split()
)
PLAIN = frozenset(
    "str repr bytes int float os sys self cls socket json dumps dump encode format print fh f fd"
    " file fp fdopen write hex id get environ datetime utc timezone platform threading getenv"
    " uuid4 uuid1 name".split()
)
MOST = 60  # acts on one path or key that are looked at
LONGEST = 80  # characters of a text that only says who works
# A name of one's own, and one that many must find: a socket, which is no lock.
OWN_NAME = re.compile(
    r"getpid|token_hex|uuid|NamedTemporaryFile|mkstemp|mkdtemp|random|next\(|sock", re.IGNORECASE
)
MET = frozenset("FileExistsError OSError IOError EnvironmentError".split())
IN_STORE = frozenset("redis_lock redis_set redis_get redis_delete redis_expire key_exists".split())
ON_FILES = frozenset(
    "create write unlink late_unlink exists open read stat age touch alive ensure flock".split()
)


# What a lock ends with, or is taken by.
ENDS = frozenset("unlink late_unlink redis_lock redis_set create flock write".split())


def of_maker(text: str) -> bool:
    """Does a name or a text say who works, or since when?"""
    return not MAKERS.isdisjoint(words.pieces(text))


def judged(module: Module, mounts: tuple[str, ...] = ()) -> Judge:
    """A module as the rules ask it, where what is a lock by its form counts as one by name."""
    judge = Judge(module, mounts)
    settle(judge)
    return judge


def settle(judge: Judge) -> None:
    if ENDS.isdisjoint(judge.kinds):
        return
    reader = judge.reader
    wholes = {
        function: [e for e in reader.whole(function) if e.kind in ON_FILES or e.kind in IN_STORE]
        for function in judge.functions
    }
    locked = {
        id(opened)
        for function in judge.functions
        for event in judge.own(function)
        if event.kind == "flock"
        for opened in reader.opened(function, event.facts.get("handle_expr"))
    }
    formed = {id(e) for function in judge.functions for e in asked_and_removed(judge, function)}
    for events in groups(judge, wholes):
        by_key: dict[str, list[Event]] = {}
        for event in events:
            by_key.setdefault(event.key, []).append(event)
        for key, done in by_key.items():
            if (
                key
                and "…" not in key
                and not OWN_NAME.search(key)
                and has_form(judge, done, locked)
            ):
                formed |= {id(event) for event in done}
    if not formed:
        return
    for event in told_by_all(wholes, formed):
        event.lockish = True
    reader.formed = {
        (function, event.key)
        for function, events in wholes.items()
        for event in events
        if id(event) in formed and event.facts.get("inside") is not None
    }
    reader.forget()


def asked_and_removed(judge: Judge, function: Function) -> list[Event]:
    """A file whose number is asked about, and which is removed for that: its owner's."""
    whole = judge.reader.whole(function)
    if not any(e.kind == "alive" for e in whole):
        return []
    found = []
    for gone in (e for e in whole if e.kind == "unlink" and e.where is function and not e.via):
        reads = [e for e in whole if e.kind == "read" and e.key == gone.key and e.line < gone.line]
        for read in reads[:3]:
            asked = any(e.kind == "alive" and read.line < e.line < gone.line for e in whole)
            if asked and judge.tests(gone):
                found += [read, gone]
    return found


def groups(judge: Judge, wholes: dict[Function, list[Event]]) -> Iterator[list[Event]]:
    """What may be done to one thing: by a function, by a class, by the module."""
    yield from wholes.values()
    for group in judge.module.classes.values():
        members = [m for m in group.methods.values() if m in wholes]
        inside = [e for m in members for e in wholes[m]]
        yield [e for e in inside if "self." in e.key or "cls." in e.key or "⟨" in e.key]
    plain = [e for f, events in wholes.items() if f.within is None for e in events]
    yield [e for e in plain if e.kind in IN_STORE and re.fullmatch(r"⟨\w+⟩", e.key)]
    yield [e for events in wholes.values() for e in events if of_module(judge, e)]


def of_module(judge: Judge, event: Event) -> bool:
    """Is the key the same thing in every function: a constant, or a text that is written out?"""
    first = re.match(r"\w+", event.key)
    if first and first[0] in judge.module.top.assigned:
        return True
    plain = re.sub(r"\{[^}]*\}|⟨\w+⟩|self\.\w+", "", event.key)
    return bool(re.search(r"[A-Za-z]{3,}[:_/\-. ]|[:_/\-. ][A-Za-z]{3,}", plain)) and (
        "(" not in plain
    )


def told_by_all(wholes: dict[Function, list[Event]], formed: set[int]) -> list[Event]:
    """The acts themselves: those of a helper where all who call it mean a lock."""
    votes: dict[int, tuple[Event, list[bool]]] = {}
    for events in wholes.values():
        for event in events:
            base = innermost(event)
            yes = id(event) in formed
            if yes or ("⟨" not in event.key and base is not event):
                votes.setdefault(id(base), (base, []))[1].append(yes)
    return [base for base, said in votes.values() if all(said)]


def innermost(event: Event) -> Event:
    """The act itself, where it stands in a helper."""
    while "inside" in event.facts:
        event = event.facts["inside"]
    return event


def has_form(judge: Judge, done: list[Event], locked: set[int]) -> bool:
    """Do these acts on one path or key make a lock of it?"""
    done = done[:MOST]
    if any(event.kind in IN_STORE for event in done):
        return store_form(judge, done)
    gone = [e for e in done if e.kind in ("unlink", "late_unlink") and not in_handler(e)]
    moved = [e for e in done if e.kind == "write" and e.facts.get("rename")]
    if moved and not (gone and all(map(claims, moved))):
        return False
    if any(pid_file(judge, e, gone=bool(gone)) for e in done):
        return True
    if holds_data(judge, done):
        return False
    if any(id(innermost(e)) in locked for e in done):
        return True
    if any(aged(judge, e, done) for e in done if e.kind == "write"):
        return True
    if not gone:
        return False
    return (
        around_block(done)
        or made_alone(judge, done, gone)
        or waited_out(judge, done, gone)
        or flagged(judge, done, gone)
        or names_maker(judge, done)
    )


def aged(judge: Judge, made: Event, done: list[Event]) -> bool:
    """Written over once what it says is old enough, and refused before: a lease in a file."""
    texts = written(judge, innermost(made))
    if not {"time", "now", "utcnow"} & texts:
        return False
    reads = [e for e in done if e.kind == "read" and before(e, made)]
    for stmt, _frames in made.where.walked:
        if not isinstance(stmt, ast.If) or stmt.lineno > made.line or not exits(stmt.body):
            continue
        answers = [v for v in returned(stmt.body) if v is not None]
        plain = all(isinstance(v, ast.Constant) for v in answers)
        says = {text.rpartition(".")[2] for text in made.where.texts(stmt.test)}
        clock = bool({"time", "now", "utcnow"} & says)
        if reads and plain and clock and any(isinstance(n, ast.Compare) for n in nodes(stmt.test)):
            return True
    return False


def claims(moved: Event) -> bool:
    """`rename(f"ticket.{host}.{pid}", owner)`: what is moved says who moves it."""
    source = moved.facts.get("source")
    return source is not None and any(map(of_maker, innermost(moved).where.texts(source)))


# --- files --------------------------------------------------------------------------------------


def around_block(done: list[Event]) -> bool:
    """A context manager that makes it with O_EXCL, and removes it behind its `yield`."""
    for made in done:
        if made.kind != "create" or not made.facts.get("exclusive") or made.via is not None:
            continue
        if made.where.manages_context and not made.facts.get("source"):
            if any(
                e.kind == "unlink" and not tree(e) and e.line > made.line and e.where is made.where
                for e in done
            ):
                return True
    return False


def made_alone(judge: Judge, done: list[Event], gone: list[Event]) -> bool:
    """Made by one alone, and whoever meets it waits or leaves."""
    for made in done:
        if made.kind != "create" or not made.facts.get("exclusive"):
            continue
        if made.facts.get("folder") and any(tree(e) for e in gone):
            continue  # a folder of work that is swept
        source = made.facts.get("source")
        word = isinstance(source, ast.Constant) and "/" not in str(source.value)
        texts = innermost(made).where.texts(source) if source is not None else ["me"]
        if not word and not any(map(of_maker, texts)):
            continue  # a link to data
        if any(meets(handler) for handler in judge.handled_by(made)) or returned_at_once(made):
            return True
        if suppressed_in_loop(judge, made):
            return True
    return False


def meets(handler: ast.ExceptHandler) -> bool:
    """Does a handler take "it is there" for "another works": wait, go round, leave?"""
    named = names_of(handler)
    if not named & MET and "FileExists" not in ast.dump(handler) and "?" not in named:
        return False
    met = where_it_is_there(handler.body)
    calls = [text_of(n.func) for s in met for n in nodes(s) if isinstance(n, ast.Call)]
    if any(name.rpartition(".")[2] in ("sleep", "wait") for name in calls):
        return True
    return exits(met)


def returned_at_once(made: Event) -> bool:
    """`try: create(path); return True except FileExistsError: pass`: behind it stands a refusal."""
    for frame in reversed(made.frames):
        if (frame.kind, frame.part) == ("try", "body"):
            caught = any(names_of(h) & MET for h in frame.node.handlers)
            return caught and isinstance(frame.node.body[-1], ast.Return | ast.Break)
    return False


def where_it_is_there(block: list[ast.stmt]) -> list[ast.stmt]:
    """What runs for EEXIST alone, where the handler asks for it."""
    for stmt in block:
        if isinstance(stmt, ast.If) and "EEXIST" in ast.dump(stmt.test):
            other = any(isinstance(n, ast.NotEq | ast.NotIn) for n in ast.walk(stmt.test))
            return stmt.orelse + block[block.index(stmt) + 1 :] if other else stmt.body
    return block


def suppressed_in_loop(judge: Judge, made: Event) -> bool:
    return bool(judge.loops(made)) and any(f.kind == "with" for f in made.frames)


def tree(event: Event) -> bool:
    return str(event.facts.get("name", "")).endswith(("rmtree", "removedirs"))


def waited_out(judge: Judge, done: list[Event], gone: list[Event]) -> bool:
    """`while exists(path): sleep(1)`, then it is made, and removed at the end."""
    looks = [e for e in done if e.kind == "exists" and waits(judge, e)]
    made = [e for e in done if e.kind in ("write", "create", "ensure", "touch")]
    return any(
        before(look, act) and any(behind(e, act) for e in gone) for look in looks for act in made
    )


def before(one: Event, other: Event) -> bool:
    """Does one act come before the other, in this function or in the helper of both?"""
    if one.where is other.where and one.line < other.line:
        return True
    first, second = innermost(one), innermost(other)
    return first.where is second.where and first.line < second.line


def behind(gone: Event, made: Event) -> bool:
    return gone.where is not made.where or before(made, gone) or gone.line > made.line


def waits(judge: Judge, look: Event) -> bool:
    """Does the look stand in the test of a loop that sleeps, or lead to a sleep in a loop?"""
    look = innermost(look)
    for stmt, _frames in look.where.walked:
        if isinstance(stmt, ast.For):
            if waits_in_for(stmt, look):
                return True
            continue
        if not isinstance(stmt, ast.While):
            continue
        inside = [n for s in stmt.body for n in nodes(s)]
        slept = any(
            isinstance(n, ast.Call) and text_of(n.func).rpartition(".")[2] in ("sleep", "wait")
            for n in inside
        )
        if slept and look.site in [*nodes(stmt.test), *inside]:
            denied = isinstance(stmt.test, ast.UnaryOp) and stmt.test.operand is look.site
            return not denied
    return False


def waits_in_for(stmt: ast.For, look: Event) -> bool:
    """`for _ in range(50): if not exists(path): break; sleep(1)`."""
    inside = [n for s in stmt.body for n in ast.walk(s)]
    calls = [text_of(n.func).rpartition(".")[2] for n in inside if isinstance(n, ast.Call)]
    leaves_it = any(isinstance(n, ast.Break) for n in inside)
    return leaves_it and look.site in inside and bool({"sleep", "wait"} & set(calls))


def flagged(judge: Judge, done: list[Event], gone: list[Event]) -> bool:
    """Looked for, and the function ends; else it is made here, and removed by who is through."""
    made = [
        e
        for e in done
        if e.kind in ("write", "create", "ensure")
        and not str(e.facts.get("mode", "")).startswith("a")
    ]
    for act in made:
        looks = [e for e in done if e.kind in ("exists", "read", "open", "alive", "stat")]
        seen = [e for e in looks if before(e, act)]
        after = [e for e in gone if behind(e, act)]
        if any(holds_both(look, act, e) for look in looks for e in after):
            return True
        if after and any(ends(e) or ends(innermost(e)) for e in seen):
            if not from_outside(judge, after):
                return True
    return False


def holds_both(look: Event, act: Event, gone: Event) -> bool:
    """`if not exists(path):` around the making and the removal."""
    for frame in act.frames:
        if frame.kind == "if" and frame.part == "then" and frame in gone.frames:
            test = frame.node.test
            if isinstance(test, ast.UnaryOp) and test.operand is look.site:
                return isinstance(test.op, ast.Not)
    return False


def ends(look: Event) -> bool:
    """Does the function end where the file was there: `if exists(path): return`?"""
    for stmt, _frames in look.where.walked:
        if isinstance(stmt, ast.If) and look.site in list(nodes(stmt.test)):
            denied = isinstance(stmt.test, ast.UnaryOp) and isinstance(stmt.test.op, ast.Not)
            return exits(stmt.orelse if denied else stmt.body)
    inside = look.facts.get("inside")
    return inside is not None and any(
        isinstance(n, ast.Call) and text_of(n.func) in ("sys.exit", "exit", "os._exit")
        for s in inside.where.body
        for n in nodes(s)
    )


def from_outside(judge: Judge, gone: list[Event]) -> bool:
    """Is it removed by another command alone, such as `resume`? Then it says what is wanted."""
    return not any(
        judge.in_finally(e)
        or e.kind == "late_unlink"
        or words.releases(e.where.name)
        or e.where.name in ("", "main", "run", "__del__")
        or any(
            m.kind in ("write", "create", "ensure") and m.key == e.key for m in judge.own(e.where)
        )
        or bool(judge.registered(e.where.name))
        for e in gone
    )


def pid_file(judge: Judge, made: Event, *, gone: bool) -> bool:
    """Made by one alone, and nothing but the number of its maker is written into it."""
    if made.kind != "create" or not made.facts.get("exclusive") or made.facts.get("folder"):
        return False
    base = innermost(made)
    if any(map(OWN_NAME.search, base.where.texts(base.expr))):
        return False  # nobody else looks for it
    met = any(judge.handled_by(base)) or gone
    return met and "getpid" in written(judge, base)


def names_maker(judge: Judge, done: list[Event]) -> bool:
    """The number of its maker is all that is in it, and it is looked at before it is made."""
    made = [e for e in done if e.kind in ("write", "create")]
    looked = any(e.kind in ("exists", "read", "open") for e in done)
    return looked and any("getpid" in written(judge, e) for e in made)


def holds_data(judge: Judge, done: list[Event]) -> bool:
    """Is more written into it than its maker, or is it handed on as a file to work with?"""
    for event in done:
        if event.kind not in ("create", "write", "open"):
            continue
        base = innermost(event)
        texts = written(judge, base)
        if texts and not any(map(of_maker, texts)):
            strange = [t for t in texts if t not in PLAIN and len(t) > LONGEST]
            names = [t for t in texts if t.startswith("name ") and t[5:] not in PLAIN]
            if strange or names:
                return True
        if worked_with(judge, base):
            return True
    return False


def written(judge: Judge, made: Event) -> set[str]:
    """What stands in all that is written through this handle, or by `write_text`."""
    found: set[str] = set()
    for given, where in contents(judge, made):
        if isinstance(given, ast.Constant) and not given.value:
            continue
        found |= {t for t in where.texts(given) if t}
        found |= {
            f"name {n.id}" for n in nodes(given) if isinstance(n, ast.Name) and not of_maker(n.id)
        }
    return found


WRITERS = frozenset("write writelines".split())


def contents(judge: Judge, made: Event) -> Iterator[tuple[ast.expr, Function]]:
    called = made.facts.get("called")
    if called is not None and str(made.facts.get("name", "")).endswith(
        ("write_text", "write_bytes")
    ):
        yield from ((each, made.where) for each in called.args[:1])
    for handle, where in handles(judge, made):
        for event in judge.own(where):
            other = event.facts.get("called")
            if other is None:
                continue
            name = text_of(other.func)
            if name.rpartition(".")[0] == handle and name.rpartition(".")[2] in WRITERS:
                yield from ((each, where) for each in other.args)
            elif name in ("os.write", "json.dump", "print", "pickle.dump", "yaml.dump"):
                given = [*other.args, *other.keywords.values()]
                if any(text_of(each) == handle for each in given):
                    yield from ((each, where) for each in given if text_of(each) != handle)


def handles(judge: Judge, made: Event) -> Iterator[tuple[str, Function]]:
    """The names of the open file, `os.fdopen(fd)` among them, where each is known."""
    handle = str(made.facts.get("handle", ""))
    if not handle:
        return
    places = [made.where]
    if handle.startswith("self.") and made.where.within:
        places = list(made.where.within.methods.values())
    for place in places:
        yield handle, place
        for stmt, _frames in place.walked:
            if not isinstance(stmt, ast.With | ast.Assign):
                continue
            pairs = (
                [(i.context_expr, i.optional_vars) for i in stmt.items]
                if isinstance(stmt, ast.With)
                else [(stmt.value, stmt.targets[0])]
            )
            for value, target in pairs:
                if isinstance(value, ast.Call) and text_of(value.func) == "os.fdopen":
                    if value.args and text_of(value.args[0]) == handle and text_of(target):
                        yield text_of(target), place


QUIET = frozenset(
    "flock lockf close write fileno truncate ftruncate seek lseek flush fsync fdopen locking print"
    " read fstat set_inheritable lock unlock strip int str isinstance dump load loads writelines"
    " readline unlink append".split()
)


def worked_with(judge: Judge, made: Event) -> bool:
    """Is the open file handed to something that works with it, or read as data?"""
    for handle, where in handles(judge, made):
        for stmt in where.body:
            for node in nodes(stmt):
                if isinstance(node, ast.Yield | ast.Return) and text_of(node.value) == handle:
                    return isinstance(node, ast.Yield)
                if not isinstance(node, ast.Call):
                    continue
                if any(text_of(a) == handle for a in node.args):
                    if text_of(node.func).rpartition(".")[2] not in QUIET:
                        return True
                if isinstance(node.func, ast.Attribute) and text_of(node.func.value) == handle:
                    if node.func.attr in ("readlines", "writerow", "copyfileobj"):
                        return True
    return False


# --- stores -------------------------------------------------------------------------------------


def store_form(judge: Judge, done: list[Event]) -> bool:
    """Set where nothing is, removed when it is done: no value that is kept for its own sake."""
    gone = [e for e in done if (e.kind == "redis_delete" or set_back(e)) and not in_handler(e)]
    taken = [e for e in done if e.kind == "redis_lock"]
    for made in taken:
        if isinstance(made.facts.get("statement"), ast.Expr) or keeps_value(made):
            continue
        if gone or owner_compared(judge, done) or SCRIPT_FREES.search(judge.module.text):
            return True
    return any(read_then_set(judge, made, done, gone) for made in done if made.kind == "redis_set")


SCRIPT_FREES = re.compile(r"""call\s*\(\s*['"](del|unlink)['"]""", re.IGNORECASE)


def in_handler(event: Event) -> bool:
    """Is it done on an error alone? So is the record of a request that failed."""
    return any(f.kind == "try" and f.part == "handler" for f in event.frames)


def set_back(event: Event) -> bool:
    """`set(key, 0)`: free again."""
    value = event.facts.get("value")
    return event.kind == "redis_set" and isinstance(value, ast.Constant) and not value.value


def absent(test: ast.expr) -> bool:
    """`value is None`, `not value`: true where nothing is there."""
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not)
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is)


def keeps_value(made: Event) -> bool:
    """Is the value worked out by a call, as that of a cache is?"""
    value = made.facts.get("value")
    where = innermost(made).where
    if isinstance(value, ast.Constant) or value is None:
        return False
    return not any(map(of_maker, where.texts(value)))


def owner_compared(judge: Judge, done: list[Event]) -> bool:
    """Is what the key holds compared with what we would have set?"""
    for get in (e for e in done if e.kind == "redis_get"):
        for stmt, _frames in get.where.walked:
            tests = [stmt.test] if isinstance(stmt, ast.If | ast.While) else []
            tests += [stmt.value] if isinstance(stmt, ast.Return) and stmt.value else []
            for test in tests:
                compared = [n for n in nodes(test) if isinstance(n, ast.Compare)]
                plain = [
                    n
                    for n in compared
                    if isinstance(n.ops[0], ast.Eq | ast.NotEq)
                    and not any(isinstance(s, ast.Constant) for s in [n.left, *n.comparators])
                ]
                if plain and judge.rests_on(get.where, test, get):
                    return True
    return False


def read_then_set(judge: Judge, made: Event, done: list[Event], gone: list[Event]) -> bool:
    """`if get(key): return`, `set(key, me)`, and a delete when it is done."""
    value = made.facts.get("value")
    gets = [e for e in done if e.kind == "redis_get"]
    if value is not None and any(judge.rests_on(made.where, value, get) for get in gets):
        return False
    if keeps_value(made) or not any(e.line > made.line or e.where is not made.where for e in gone):
        return False
    looks = [
        e
        for e in done
        if e.kind in ("redis_get", "key_exists") and e.where is made.where and e.line < made.line
    ]
    return any(refuses(judge, look) for look in looks)


def refuses(judge: Judge, look: Event) -> bool:
    """Does the function end where the key is there, and not with what the key holds?"""
    for stmt, _frames in look.where.walked:
        if not isinstance(stmt, ast.If) or not judge.rests_on(look.where, stmt.test, look):
            continue
        if not exits(stmt.body) or absent(stmt.test):
            continue
        answers = [v for v in returned(stmt.body) if v is not None]
        return not any(judge.rests_on(look.where, v, look) for v in answers)
    return False
