"""What `--fix` writes: one cure a rule, on the tree of the file; none where people must decide.

Rule: a cure is safe where a correct program runs as before and a wrong one is mended. It is unsafe
where something is written through the handle, or a result is used as more than a truth. No cure
writes code that takes a lock for stale.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import libcst as cst

from .tree import (
    call_at,
    call_on,
    name_of,
    names_in,
    owner_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .tree import Body, SourceTree, Spot

    Cure = Callable[[SourceTree, Spot], "Kind | None"]

Kind = Literal["safe", "unsafe"]
LOOKS = ("exists", "is_file", "isfile", "lexists", "is_dir", "isdir")
EXCLUSIVE = re.compile(r"""['"][bt+]*x[bt+]*['"]""")
# Where a module asks for a file, or does what a file that stays would hinder.
ASKS = frozenset(
    "exists is_file isfile lexists is_dir isdir stat lstat access listdir scandir glob iglob rglob"
    " iterdir walk getmtime getctime getsize samefile rmdir removedirs mkdir makedirs symlink link"
    " is_symlink".split()
)
ABSENT = re.compile(r"\b(FileNotFoundError|ENOENT|FileExistsError|EEXIST)\b")
ENDS = re.compile(
    r"^(\w+\.)*(unlock|release|close|remove|unlink|flock|lockf|delete|rmdir|log|debug|info)$"
)
LOGS = re.compile(r"^(\w+\.)*(log|debug|info)$")
REMOVALS = frozenset("remove unlink delete rmdir rmtree removedirs".split())
GIVEN = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Del)
MODULES = ("", "os", "io", "shutil", "os.path", "aiofiles", "glob")


# --- the cures ----------------------------------------------------------------------------------


def keep_the_file(tree: SourceTree, place: Spot) -> Kind | None:
    """LH108: a locked file is not removed."""
    gone = call_at(tree, place, "unlink", "remove", "rmtree", "rmdir")
    statement = tree.stands_alone(gone) if gone is not None else None
    if gone is None or statement is None:
        return None
    if {path_in(tree, gone), ""} & {path_in(tree, each) for each in makes_alone(tree)}:
        return None  # a file that stays would refuse the next one
    whole = emptied(tree, statement)
    if not does_no_more(tree, whole, gone):
        return None
    path = path_in(tree, gone)
    asked = asks_for_files(tree, whole, path) or holds_data(tree, gone, path, place)
    return ("unsafe" if asked else "safe") if tree.drop(whole) else None


def does_no_more(tree: SourceTree, whole: cst.CSTNode, gone: cst.Call) -> bool:
    """Does a statement nothing but this removal: no name is given, and nothing else is called?"""
    if any(True for kind in (cst.NamedExpr, cst.Yield) for _ in tree.within(whole, kind)):
        return False
    return all(
        call is gone
        or name_of(call) in (*LOOKS, *NAMES_PATH)
        or tree.code(call).startswith(SUPPRESSES)
        for call in tree.within(whole, cst.Call)
    )


NAMES_PATH = tuple(
    "join expanduser abspath Path str fspath format with_suffix with_name joinpath".split()
)


def asks_for_files(tree: SourceTree, whole: cst.CSTNode, path: str) -> bool:
    """Does anything outside of this statement go by whether a file is there?"""
    inside = {*tree.within(whole, cst.Call), *tree.within(whole, cst.ExceptHandler)}
    alone = makes_alone(tree)
    for call in tree.within(tree.module, cst.Call):
        name = name_of(call)
        reads = name in READS and path_in(tree, call) == path and not writes(tree, call)
        if call not in inside and (name in ASKS or call in alone or reads):
            if not (name in ("mkdir", "makedirs") and "exist_ok=True" in tree.code(call)):
                return True
    return any(
        handler.type is not None and ABSENT.search(tree.code(handler))
        for handler in tree.within(tree.module, cst.ExceptHandler)
        if handler not in inside
    )


READS = ("open", "read_text", "read_bytes")
# What the handle of a lock file is for. None of it reads.
OF_A_HANDLE = frozenset(
    "close closed fileno flush fsync fstat seek lseek truncate ftruncate fcntl flock lockf locking"
    " fchmod fchown set_inheritable name isinstance bool print fdopen".split()
)
NAMED = (cst.AssignTarget, cst.Assign, cst.AnnAssign, cst.AsName, cst.WithItem, cst.NameItem)
ASKED = (cst.Comparison, cst.ComparisonTarget, cst.UnaryOperation, cst.BooleanOperation, cst.If)
SAYS_PID = re.compile(r"(?<![a-z])(get)?pid(?![a-z])")
SAME_FILE = re.compile(
    r"(?:os\.fdopen\()?(?!None$)([a-zA-Z_][\w.]*?)(\.fileno\(\)|[,)].*)?", re.DOTALL
)


def holds_data(tree: SourceTree, gone: cst.Call, path: str, place: Spot) -> bool:
    """Is the locked file more than a lock: is it read, handed on, or filled with more than a pid?

    The next holder would find the content of this one.
    """
    function = tree.above(gone, cst.FunctionDef) or tree.module
    first = 0 if function is tree.module else tree.line(function)
    first = max([first, *(line for line in place.spans[:1] if line < place.line)])
    for call in tree.within(function, cst.Call):
        given = {tree.code(arg.value) for arg in call.args}
        opens = name_of(call) == "open" and owner_of(tree, call) in MODULES
        quiet = opens or name_of(call) in (*NAMES_PATH, *LOOKS, *REMOVALS)
        if {path, f"str({path})"} & given and first < tree.line(call) < place.line:
            if not quiet and not TELLS.match(tree.code(call.func)):
                return True
    return not all(
        only_locks(tree, each)
        for name, scope in handles(tree, path, place)
        for each in tree.within(scope, cst.Attribute if "." in name else cst.Name)
        if tree.code(each) == name
    )


def handles(tree: SourceTree, path: str, place: Spot) -> set[tuple[str, cst.CSTNode]]:
    """The names of the file that is locked, each with where it means that file."""
    locked = call_on(tree, place.spans[0], "flock", "lockf", "locking") if place.spans else None
    found: set[tuple[str, cst.CSTNode]] = set()

    def add(node: cst.CSTNode, text: str) -> None:
        name = SAME_FILE.fullmatch(text)
        inner = tree.above(node, cst.FunctionDef)
        if name:
            found.add((name[1], inner if inner and "." not in name[1] else tree.module))

    if locked is not None and locked.args:
        add(locked, tree.code(locked.args[0].value))
    for call in tree.within(tree.module, cst.Call):
        if name_of(call) == "open" and path_in(tree, call) == path:
            add(call, handle_of(tree, call))
    size = -1
    while size != len(found):
        size = len(found)
        for name, scope in list(found):
            for each in tree.within(scope, cst.Assign):
                value = SAME_FILE.fullmatch(tree.code(each.value))
                target = tree.code(each.targets[0].target)
                if value and name in (target, value[1]) and target != value[1]:
                    add(each, value[0])
                    add(each, target)
    return found


def only_locks(tree: SourceTree, handle: cst.CSTNode) -> bool:
    """Does this use of a handle neither read the file nor write more than a pid into it?"""
    above = tree.parents[handle]
    if isinstance(above, cst.Attribute):
        if above.attr is handle:
            return True  # something else of the same name
        name, whole = above.attr.value, tree.parents[above]
    elif isinstance(above, cst.Arg):
        call = tree.parents[above]
        if above.keyword is handle or not isinstance(call, cst.Call):
            return above.keyword is handle
        name = "write" if above.keyword else name_of(call)
        whole = call
    else:
        return isinstance(above, (*NAMED, *ASKED))
    if name == "write":
        return bool(SAYS_PID.search(tree.code(whole)))
    return name in OF_A_HANDLE or "lock" in name.lower()


def writes(tree: SourceTree, opened: cst.Call) -> bool:
    """Is a file opened so that it is made where there is none?"""
    given = [tree.code(arg.value) for arg in opened.args]
    return any("O_CREAT" in text or re.fullmatch(r"""['"][wabt+]+['"]""", text) for text in given)


def path_in(tree: SourceTree, call: cst.Call) -> str:
    """The path that a call works on, as it is written: its first argument, or what it is of."""
    owner = owner_of(tree, call)
    told = owner not in MODULES
    path = owner if told else tree.code(call.args[0].value) if call.args else ""
    wrapped = re.fullmatch(r"(?:pathlib\.)?(?:Path|str|os\.fspath)\((.*)\)", path, re.DOTALL)
    return wrapped[1] if wrapped else path


def makes_alone(tree: SourceTree) -> list[cst.Call]:
    """The calls that make a file only where there is none: O_EXCL, "x", or flags with a name."""
    named = "O_EXCL" in tree.module.code
    found = []
    for each in tree.within(tree.module, cst.Call):
        if name_of(each) != "open":
            continue
        given = [tree.code(arg.value) for arg in each.args]
        unseen = named and owner_of(tree, each) == "os" and not any("O_" in g for g in given)
        if unseen or any("O_EXCL" in g or EXCLUSIVE.fullmatch(g) for g in given):
            found.append(each)
    return found


def emptied(tree: SourceTree, statement: cst.CSTNode) -> cst.CSTNode:
    """The statement, or what stands around it for its sake alone."""
    each = statement
    while True:
        place = tree.block(each)
        if place is None or len(place[0].body) != 1:
            return each
        around = tree.parents.get(place[0])
        if isinstance(around, cst.Try) and around.body is place[0]:
            if around.orelse or around.finalbody or not all(map(silent, around.handlers)):
                return each
        elif isinstance(around, cst.With):
            if not all(tree.code(i.item).startswith(SUPPRESSES) for i in around.items):
                return each
        elif isinstance(around, cst.If):
            held = tree.block(around)
            if around.orelse or held is None or not only_looks(around.test):
                return each
        else:
            return each
        each = around


SUPPRESSES = ("contextlib.suppress(", "suppress(")


def silent(handler: cst.ExceptHandler) -> bool:
    """A handler that does nothing."""
    body = handler.body.body
    if not isinstance(handler.body, cst.IndentedBlock):
        return all(isinstance(each, cst.Pass) for each in body)
    return all(
        isinstance(line, cst.SimpleStatementLine)
        and all(isinstance(each, cst.Pass) for each in line.body)
        for line in body
    )


def only_looks(test: cst.BaseExpression) -> bool:
    return isinstance(test, cst.Call) and name_of(test) in LOOKS


def released_in_finally(tree: SourceTree, place: Spot) -> Kind | None:
    """LH110: what gives the lock back runs also when the work raises."""
    released = call_at(tree, place, "release", "unlock", "release_lock", "close")
    return (
        finally_behind_yield(tree, place)
        if released is None
        else finally_behind_work(tree, place, released)
    )


def finally_behind_work(tree: SourceTree, place: Spot, released: cst.Call) -> Kind | None:
    """`lock.acquire()`, work, `lock.release()` in one block."""
    line = tree.stands_alone(released)
    held = tree.block(line) if line is not None else None
    if line is None or held is None or not place.spans:
        return None
    block, last = held
    owner = owner_of(tree, released)
    first = next(
        (number for number, each in enumerate(block.body) if tree.line(each) == place.spans[0]),
        last,
    )
    taken = call_on(tree, place.spans[0], "acquire", "lock", "acquire_lock")
    if taken is None or tree.stands_alone(taken) is not block.body[first] or last - first < 2:
        return None
    work = list(block.body)[first + 1 : last]
    if any(
        name_of(call) == name_of(released) and owner_of(tree, call) == owner
        for each in work
        for call in tree.within(each, cst.Call)
    ):
        return None
    elsewhere = ended_elsewhere(tree, [line], {owner})
    if elsewhere is None:
        return None
    leaving = (cst.Yield, cst.Return, cst.Break, cst.Continue)

    def guarded(body: Body) -> Body:
        inner, end = body[first + 1 : last], body[last]
        lines = getattr(inner[0], "leading_lines", ())
        tried = cst.Try(
            leading_lines=lines,
            body=cst.IndentedBlock([inner[0].with_changes(leading_lines=()), *inner[1:]]),
            finalbody=cst.Finally(cst.IndentedBlock(unspaced([end]))),
        )
        return [*body[: first + 1], tried, *body[last + 1 :]]

    tree.reblock(block, guarded)
    left = any(True for each in work for kind in leaving for _ in tree.within(each, kind))
    return "unsafe" if left else elsewhere


ENDING = re.compile(r"release|unlock|close|unlink|remove|exit|free|clean|stop|abort|delete|rmdir")
TELLS = re.compile(r"^(print|(\w+\.)*(debug|info|warning|error|exception|critical|log|str|repr))$")


def ended_elsewhere(tree: SourceTree, ends: Body, owners: set[str]) -> Kind | None:
    """Does something else give the same things back after an error that the `finally` sees first?

    None where it does: they would be given back twice. Unsafe where nobody can tell.
    """
    function: cst.CSTNode = tree.above(ends[0], cst.FunctionDef) or tree.module
    ours = {id(each) for end in ends for each in tree.within(end, cst.Call)}
    around = list(tries_around(tree, ends[0], function))
    for call in tree.within(function, cst.Call) if around else ():
        texts = {owner_of(tree, call), *(tree.code(arg.value) for arg in call.args)}
        if id(call) not in ours and ENDING.search(name_of(call)) and texts & owners:
            return None
    for each in around:
        if isinstance(each, cst.With):
            continue
        parts = [*each.handlers, *([each.finalbody] if each.finalbody else [])]
        calls = [call for part in parts for call in tree.within(part, cst.Call)]
        if not all(TELLS.match(tree.code(call.func)) for call in calls):
            return "unsafe"
    return "unsafe" if any(ends_for_others(tree, owner, function) for owner in owners) else "safe"


def tries_around(
    tree: SourceTree, node: cst.CSTNode, function: cst.CSTNode
) -> Iterator[cst.Try | cst.TryStar | cst.With]:
    """What may catch an error of this statement, or ends something itself, within the function."""
    each = tree.parents.get(node)
    while each is not None and each is not function:
        if isinstance(each, cst.Try | cst.TryStar | cst.With):
            yield each
        each = tree.parents.get(each)


def ends_for_others(tree: SourceTree, owner: str, function: cst.CSTNode) -> bool:
    """Is there a function that gives this back in a handler, and has not taken it itself?"""
    for other in tree.within(tree.module, cst.FunctionDef):
        if other is function:
            continue
        calls = [each for each in tree.within(other, cst.Call) if owner_of(tree, each) == owner]
        if any(name_of(each) in ("acquire", "lock", "acquire_lock") for each in calls):
            continue
        if any(ENDING.search(name_of(each)) for each in calls) and any(
            tree.above(each, kind) is not None
            for each in calls
            for kind in (cst.ExceptHandler, cst.Finally)
        ):
            return True
    return False


def finally_behind_yield(tree: SourceTree, place: Spot) -> Kind | None:
    """The block of a context manager raises at `yield`.

    What stands before the release stays on the way of a success.
    """
    line = next(tree.at(cst.SimpleStatementLine, place.line), None)
    held = tree.block(line) if line is not None else None
    if line is None or held is None or not any(True for _ in tree.within(line, cst.Yield)):
        return None
    block, number = held
    rest = list(block.body[number + 1 :])
    leaving = (cst.Yield, cst.Return, cst.Break, cst.Continue)
    if not rest or any(True for s in rest for kind in leaving for _ in tree.within(s, kind)):
        return None
    if not any(stands_on(tree, each, span) for each in rest for span in place.spans):
        return None
    parts = release_behind(tree, list(block.body), number, place.spans)
    if parts is None:
        return None
    first, calm = parts

    def guarded(body: Body) -> Body:
        one = cst.ensure_type(body[number], cst.SimpleStatementLine)
        work = [one.with_changes(leading_lines=()), *body[number + 1 : first]]
        tried = cst.Try(
            leading_lines=one.leading_lines,
            body=cst.IndentedBlock(work),
            finalbody=cst.Finally(cst.IndentedBlock(unspaced(body[first:]))),
        )
        return [*body[:number], tried]

    elsewhere = ended_elsewhere(tree, rest, things_ended(tree, rest))
    if elsewhere is None:
        return None
    tree.reblock(block, guarded)
    return elsewhere if calm else "unsafe"


class Made(NamedTuple):
    """What a function has before its `yield`: what its lock is made of, and the files it opened."""

    things: set[str]
    files: set[str]


def release_behind(
    tree: SourceTree, body: Body, number: int, spans: tuple[int, ...]
) -> tuple[int, bool] | None:
    """Where the release begins behind the `yield` of this number; is there nothing else behind it?

    None where something would be removed after an error that this function may not have made.
    """
    made = made_before(tree, body[:number], spans[0])
    first = next(
        each
        for each in range(number + 1, len(body))
        if stands_on(tree, body[each], spans[-1])
        or (gives_back(tree, body[each], made) and not only_logs(tree, body[each]))
        or any(True for kind in GIVEN for _ in tree.within(body[each], kind))
    )
    others = [each for each in body[first:] if not gives_back(tree, each, made)]
    calls = [call for each in others for call in tree.within(each, cst.Call)]
    if any(name_of(each) in REMOVALS for each in calls):
        return None
    taken = any(stands_on(tree, each, spans[0]) and surely(each) for each in body[:number])
    return first, taken and not others


def stands_on(tree: SourceTree, statement: cst.BaseStatement, line: int) -> bool:
    place = tree.positions[statement]
    return bool(place.start.line <= line <= place.end.line)


def surely(statement: cst.BaseStatement) -> bool:
    """Is what a statement takes held wherever the next one is reached?"""
    if isinstance(statement, cst.Try):
        return not statement.finalbody and all(leaves(each.body) for each in statement.handlers)
    if isinstance(statement, cst.If):
        refused = isinstance(statement.test, cst.UnaryOperation)
        return refused and statement.orelse is None and leaves(statement.body)
    return isinstance(statement, cst.SimpleStatementLine)


def leaves(block: cst.BaseSuite) -> bool:
    """Does a block end with `raise` or `return`?"""
    last = block.body[-1] if block.body else None
    if isinstance(last, cst.SimpleStatementLine):
        return isinstance(last.body[-1], cst.Raise | cst.Return)
    return isinstance(last, cst.Raise | cst.Return)


def made_before(tree: SourceTree, before: Body, line: int) -> Made:
    """What these statements open, and what the calls on this line make, as it is written.

    Nothing is made for sure where the `yield` is reached without that line, too.
    """
    things: set[str] = set()
    files: set[str] = set()
    for each in before:
        for call in tree.within(each, cst.Call):
            if name_of(call) in ("open", "fdopen"):
                files.add(handle_of(tree, call))
            if tree.line(call) == line and surely(each):
                things |= {path_in(tree, call), by_place(tree, call)}
    return Made(things - {""}, files - {""})


def by_place(tree: SourceTree, call: cst.Call) -> str:
    given = [arg.value for arg in call.args if arg.keyword is None]
    return tree.code(given[0]) if given else ""


def gives_back(tree: SourceTree, statement: cst.BaseStatement, made: Made) -> bool:
    """Does a statement give the lock back, remove what it is made of, close, log: nothing else?"""
    outer = alone(tree, statement)
    return bool(outer) and all(ends(tree, each, made) for each in outer)


def only_logs(tree: SourceTree, statement: cst.BaseStatement) -> bool:
    return all(LOGS.match(tree.code(each.func)) for each in alone(tree, statement))


def alone(tree: SourceTree, statement: cst.BaseStatement) -> list[cst.Call]:
    calls = list(tree.within(statement, cst.Call))
    return [each for each in calls if tree.stands_alone(each)]


def ends(tree: SourceTree, call: cst.Call, made: Made) -> bool:
    if not ENDS.match(tree.code(call.func).replace("self.", "")):
        return False
    if name_of(call) == "close":
        return path_in(tree, call) in made.files | made.things
    if name_of(call) in REMOVALS:
        whole = owner_of(tree, call) in MODULES or not by_place(tree, call)
        return (path_in(tree, call) if whole else by_place(tree, call)) in made.things
    return True


def things_ended(tree: SourceTree, rest: Body) -> set[str]:
    """What these statements give back: what their calls are of, or are handed."""
    calls = [call for each in rest for call in tree.within(each, cst.Call)]
    found = {owner_of(tree, call) for call in calls}
    found |= {tree.code(arg.value) for call in calls for arg in call.args}
    return found - {"", "os", "fcntl", "shutil", "fcntl.LOCK_UN"}


def unspaced(body: Body) -> Body:
    """Without the blank lines at the head of a new block."""
    first = body[0]
    lines = list(getattr(first, "leading_lines", ()))
    while lines and lines[0].comment is None:
        lines.pop(0)
    return [first.with_changes(leading_lines=lines), *body[1:]]


def empty_after_lock(tree: SourceTree, place: Spot) -> Kind | None:
    """LH113: opened to append, and emptied once it is locked."""
    opened = call_at(tree, place, "open", "fdopen")
    locked = call_on(tree, place.spans[0], "flock", "lockf") if place.spans else None
    if opened is None or locked is None or owner_of(tree, opened) not in ("", "io"):
        return None
    mode = mode_of(opened)
    statement = tree.stands_alone(locked)
    handle = handle_of(tree, opened)
    held = tree.block(statement) if statement is not None else None
    if mode is None or held is None or not handle or not locked.args:
        return None
    if tree.code(locked.args[0].value) not in (handle, f"{handle}.fileno()"):
        return None
    block, number = held
    lines = [cst.parse_statement(f"{handle}.{act}") for act in ("seek(0)", "truncate()")]
    tree.reblock(block, lambda body: [*body[: number + 1], *lines, *body[number + 1 :]])
    tree.swap(
        mode,
        lambda node: cst.SimpleString(
            cst.ensure_type(node, cst.SimpleString).value.replace("w", "a")
        ),
    )
    return "unsafe"


def mode_of(opened: cst.Call) -> cst.SimpleString | None:
    for number, arg in enumerate(opened.args):
        named = arg.keyword.value if arg.keyword else ("mode" if number == 1 else "")
        if named == "mode" and isinstance(arg.value, cst.SimpleString):
            text = arg.value.value
            return arg.value if text.strip("'\"").startswith("w") else None
    return None


def handle_of(tree: SourceTree, opened: cst.Call) -> str:
    """The name that an open file is given."""
    above = tree.parents.get(opened)
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        return tree.code(above.targets[0].target)
    if isinstance(above, cst.WithItem) and above.asname is not None:
        return tree.code(above.asname.name)
    return ""


def named_handle(tree: SourceTree, place: Spot) -> Kind | None:
    """LH115: the file that is locked gets a name that lives on."""
    locked = call_at(tree, place, "flock", "lockf")
    statement = tree.stands_alone(locked) if locked is not None else None
    held = tree.block(statement) if statement is not None else None
    if locked is None or statement is None or held is None or not locked.args:
        return None
    file = locked.args[0].value
    if isinstance(file, cst.Call) and name_of(file) == "fileno" and not file.args:
        file = cst.ensure_type(file.func, cst.Attribute).value
    if not isinstance(file, cst.Call) or name_of(file) != "open":
        return None
    function = tree.above(locked, cst.FunctionDef)
    name = lasting(tree, function)
    kind = one_path(tree, file, function)
    if kind == "safe" and not at_once(tree, locked):
        kind = "unsafe"
    if name is None or kind is None:
        return None
    block, number = held
    target = cast("cst.Attribute | cst.Name", cst.parse_expression(name))
    kept = cst.parse_statement(f"{name} = None")
    kept = cst.ensure_type(kept, cst.SimpleStatementLine).with_changes(
        body=[cst.Assign([cst.AssignTarget(target)], file)],
        leading_lines=statement.leading_lines,
    )
    before: Body = [kept]
    if function is not None and "." not in name:
        before.insert(0, cst.parse_statement(f"global {name}"))

    def with_name(body: Body) -> Body:
        old = cst.ensure_type(body[number], cst.SimpleStatementLine)
        return [*body[:number], *before, old.with_changes(leading_lines=()), *body[number + 1 :]]

    tree.reblock(block, with_name)
    tree.swap(locked.args[0].value, lambda _node: cst.parse_expression(name))
    return kind


def at_once(tree: SourceTree, locked: cst.Call) -> bool:
    """Is one holder asked for, and nobody waited for?

    Who waits and keeps nothing may wait for the others to end: kept, the lock would hinder them.
    """
    given = tree.code(locked.args[1].value) if len(locked.args) > 1 else ""
    flags = set(re.findall(r"\w+", given))
    return {"LOCK_EX", "LOCK_NB"} <= flags <= {"fcntl", "LOCK_EX", "LOCK_NB"}


def lasting(tree: SourceTree, function: cst.FunctionDef | None) -> str | None:
    """A free name that lives as long as the object, or as the module."""
    if function is None:
        return free_name(tree, "lock_handle")
    if tree.above(function, cst.FunctionDef) is not None:
        return None
    name = free_name(tree, "_lock_handle")
    group = tree.above(function, cst.ClassDef)
    if group is None:
        return name
    first = function.params.params[:1]
    mine = bool(first) and first[0].name.value == "self"
    return f"self.{name}" if mine and takes_attributes(tree, group) else None


def free_name(tree: SourceTree, name: str) -> str:
    used = {each.value for each in tree.within(tree.module, cst.Name)}
    others = (f"{name}_{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], others) if each not in used)


PLAIN_BASES = frozenset("object ABC abc.ABC Exception Thread threading.Thread".split())
PLAIN_MARKS = re.compile(r"(\w+\.)?(dataclass|final|total_ordering)$")


def takes_attributes(tree: SourceTree, group: cst.ClassDef) -> bool:
    """Can any attribute be set on its objects: no slots, nothing frozen, each base known?"""
    for each in group.decorators:
        mark = each.decorator
        given = mark.args if isinstance(mark, cst.Call) else ()
        called = mark.func if isinstance(mark, cst.Call) else mark
        refused = {"frozen", "slots"} & {arg.keyword.value for arg in given if arg.keyword}
        if refused or not PLAIN_MARKS.match(tree.code(called)):
            return False
    if any(name.value in ("__slots__", "__setattr__") for name in tree.within(group, cst.Name)):
        return False
    known = {each.name.value: each for each in tree.within(tree.module, cst.ClassDef)}
    for base in group.bases:
        name = tree.code(base.value)
        mother = known.get(name)
        if mother is group or (mother is not None and not takes_attributes(tree, mother)):
            return False
        if mother is None and name not in PLAIN_BASES:
            return False
    return all(tree.code(each.value) in ("ABCMeta", "abc.ABCMeta") for each in group.keywords)


PURE = re.compile(
    r"^((os\.path\.)?(join|expanduser|abspath)|(pathlib\.)?Path|str|os\.fspath|open)$"
)


def one_path(tree: SourceTree, opened: cst.Call, function: cst.FunctionDef | None) -> Kind | None:
    """Is one path opened, whenever this runs?

    One name for the files of several would free all but the last of them.
    """
    scope: cst.CSTNode = function or tree.module
    several = changing(tree, scope)
    asked = {name for arg in opened.args for name in names_in(tree, arg.value)}
    if function is not None and asked & given_to(function) == {"self"}:
        asked -= {"self"}
        if not attributes_stay(tree, opened):
            return None
    if asked & several:
        return None
    pure = all(PURE.match(tree.code(call.func)) for call in tree.within(opened, cst.Call))
    local = {
        name for t in tree.within(scope, cst.AssignTarget) for name in names_in(tree, t.target)
    }
    again = any(
        each is not opened and name_of(each) == "open" and path_in(tree, each) == path
        for path in [path_in(tree, opened)]
        for each in tree.within(tree.module, cst.Call)
    )
    once = all(given(tree, name) < 2 for name in asked)
    inside = function is not None and asked & local
    return "safe" if pure and once and not again and not inside else "unsafe"


def given_to(function: cst.FunctionDef) -> set[str]:
    params = function.params
    named = [*params.posonly_params, *params.params, *params.kwonly_params]
    stars = [each for each in (params.star_arg, params.star_kwarg) if isinstance(each, cst.Param)]
    return {each.name.value for each in [*named, *stars]}


def changing(tree: SourceTree, scope: cst.CSTNode) -> set[str]:
    """The names of a function that come from its caller or a loop, and what is made of them."""
    found = given_to(scope) if isinstance(scope, cst.FunctionDef) else set()
    loops: list[cst.For | cst.CompFor] = [*tree.within(scope, cst.For)]
    loops += tree.within(scope, cst.CompFor)
    for loop in loops:
        found |= names_in(tree, loop.target)
    size = -1
    while size != len(found):
        size = len(found)
        for each in tree.within(scope, cst.Assign):
            if names_in(tree, each.value) & found:
                for target in each.targets:
                    found |= names_in(tree, target.target)
    return found


def given(tree: SourceTree, name: str) -> int:
    """How often a name is given something in the module, by whatever statement."""
    whole = tree.module
    told: list[cst.BaseExpression] = [each.target for each in tree.within(whole, cst.AssignTarget)]
    told += [each.target for each in tree.within(whole, cst.AugAssign)]
    told += [each.target for each in tree.within(whole, cst.AnnAssign)]
    told += [each.target for each in tree.within(whole, cst.NamedExpr)]
    return sum(isinstance(each, cst.Name) and each.value == name for each in told)


def attributes_stay(tree: SourceTree, opened: cst.Call) -> bool:
    """Is each attribute in this path set by the constructor alone?"""
    asked = {tree.code(each) for each in tree.within(opened, cst.Attribute)}
    for target in tree.within(tree.module, cst.AssignTarget):
        where = tree.above(target, cst.FunctionDef)
        set_late = where is None or where.name.value not in ("__init__", "__post_init__")
        if set_late and tree.code(target.target) in asked:
            return False
    return path_in(tree, opened) != "self"


CURES: dict[str, Cure] = {
    "LH108": keep_the_file,
    "LH110": released_in_finally,
    "LH113": empty_after_lock,
    "LH115": named_handle,
}
