"""What JavaScript and TypeScript do to locks: the dozen commonest mistakes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .. import words
from ..finding import Span
from ..javascript import Act, Scope, Source, below, field_of, text_of
from ..rule import Hit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

AGED = re.compile(
    r"mtime|ctime|birthtime|\bage\b|timestamp|createdAt|acquiredAt|startedAt|stale", re.IGNORECASE
)
CLOSER = re.compile(
    r"starttime|startTime|lstart|bootId|boot_id|procStart|process_start|/stat\b", re.IGNORECASE
)
MINE = re.compile(
    r"\bpid\b|token|owner|nonce|uuid|\bid\b|held|acquired|locked|mine|fd\b|handle", re.IGNORECASE
)
FORCED = re.compile(r"force|admin|purge|reset", re.IGNORECASE)
FALLEN = re.compile(
    r"\w\s*=\s*false\b|\b\w*(dead|stale|gone)\w*\s*=\s*true\b", re.IGNORECASE
)  # a flag that says: no process
ANSWERS = re.compile(
    r"return\s*\(?\s*\{[^}]*\b(?:\w*(stale|dead|gone)\w*\s*:\s*true"
    r"|\w*(alive|running|live)\w*\s*:\s*false)",
    re.IGNORECASE,
)  # the same in an object that is returned
BEATS = re.compile(r"heartbeat|keepalive|utimes|setInterval|refresh|renew", re.IGNORECASE)


def at(act: Act, message: str, *spans: tuple[Act, str]) -> Hit:
    return Hit(act.holder, act, message, tuple(Span(each.lineno, text) for each, text in spans))


def shown(act: Act) -> str:
    name = " ".join(text_of(act.target).split())
    return name if len(name) <= 60 else name[:57] + "..."


def of_lock(source: Source, scope: Scope) -> bool:
    """Is this function part of a lock?"""
    if words.speaks_of_lock(scope.name) or words.speaks_of_lock(scope.group):
        return True
    return any(act.lockish and act.kind in ("create", "unlink", "read") for act in scope.acts)


def test_then_make(source: Source) -> Iterator[Hit]:
    """LH401."""
    for act in source.acts:
        if act.kind != "write" or not act.lockish or words.releases(act.holder.name):
            continue
        for test, _stands in source.tests(act):
            looked = next(
                (
                    e
                    for e in source.behind(test)
                    if e.kind in ("exists", "stat") and e.key == act.key
                ),
                None,
            )
            if looked is not None and (looked.holder is act.holder or only_looks(looked.holder)):
                yield at(
                    act,
                    f"`{shown(act)}` is looked for on line {looked.lineno} and made here: two"
                    " processes that look at the same moment both go on",
                    (looked, "looked for here"),
                )
                break
        else:
            yield from made_behind_refusal(source, act)
            yield from made_behind_read(source, act)
            yield from made_in_catch(source, act)
            yield from made_in_chain(source, act)
            yield from made_in_callback(source, act)


def made_behind_refusal(source: Source, act: Act) -> Iterator[Hit]:
    """`if (exists(lock)) { ... throw }`, which may leave, and behind it the lock is made."""
    block = act.node
    for each in source.above(act.node):
        if each.type in ("statement_block", "program"):
            block = each
            break
    for other in block.named_children:
        if other.type != "if_statement" or other.start_byte >= act.node.start_byte:
            continue
        test, then = field_of(other, "condition"), field_of(other, "consequence")
        ends = any(n.type in ("return_statement", "throw_statement") for n in below(then))
        for look in source.acts:
            looks = look.kind in ("exists", "stat") and look.key == act.key
            if ends and looks and inside_of(look, test) and not text_of(test).startswith("(!"):
                yield at(
                    act,
                    f"`{shown(act)}` is looked for on line {look.lineno} and made here: two"
                    " processes that look at the same moment both go on",
                    (look, "looked for here"),
                )
                return


def made_behind_read(source: Source, act: Act) -> Iterator[Hit]:
    """`try { read(lock); return false } catch {}`, and behind it the lock is made."""
    block = next(
        (n for n in source.above(act.node) if n.type in ("statement_block", "program")), None
    )
    for other in block.named_children if block is not None else ():
        if other.type != "try_statement" or other.end_byte > act.node.start_byte:
            continue
        tried = field_of(other, "body")
        for look in act.holder.acts if refuses(source, act, tried) else ():
            looks = look.kind in ("read", "exists", "stat") and look.key == act.key
            if looks and inside_of(look, tried):
                yield at(
                    act,
                    f"`{shown(act)}` is looked at on line {look.lineno} and made here: two"
                    " processes that look at the same moment both go on",
                    (look, "looked at here"),
                )
                return


def only_looks(scope: Scope) -> bool:
    """A function that asks whether a file is there, and does nothing else."""
    return bool(scope.name) and all(each.kind in ("exists", "stat") for each in scope.acts)


def made_in_catch(source: Source, act: Act) -> Iterator[Hit]:
    """`try { access(lock) } catch { write(lock) }`: the look fails, so the lock is made."""
    for each in source.above(act.node):
        if each.id == act.holder.node.id:
            return
        if each.type != "catch_clause" or each.parent is None:
            continue
        tried = field_of(each.parent, "body")
        for look in source.acts:
            kinds = (
                ("exists", "stat", "read") if refuses(source, act, tried) else ("exists", "stat")
            )
            looks = look.kind in kinds and look.key == act.key
            if looks and tried is not None and any(n.id == look.node.id for n in below(tried)):
                yield at(
                    act,
                    f"`{shown(act)}` is looked for on line {look.lineno} and made here: two"
                    " processes that look at the same moment both go on",
                    (look, "looked for here"),
                )
                return


def refuses(source: Source, act: Act, tried: Node | None) -> bool:
    """Does this block leave where the file was there, and is a lock made where it was not?"""
    if not (words.acquires(act.holder.name) or "process.pid" in text_of(act.node)):
        return False
    return any(n.type in ("return_statement", "throw_statement") for n in below(tried))


def made_in_chain(source: Source, act: Act) -> Iterator[Hit]:
    """`stat(lock).then(...).catch(() => write(lock))`: the same in a chain of promises."""
    call = act.holder.node.parent
    call = call.parent if call is not None and call.type == "arguments" else None
    func = field_of(call, "function")
    if text_of(field_of(func, "property")) not in ("catch", "then"):
        return
    chain = field_of(func, "object")
    for look in source.acts:
        if look.kind in ("exists", "stat") and look.key == act.key and inside_of(look, chain):
            yield at(
                act,
                f"`{shown(act)}` is looked for on line {look.lineno} and made here: two"
                " processes that look at the same moment both go on",
                (look, "looked for here"),
            )
            return


def made_in_callback(source: Source, act: Act) -> Iterator[Hit]:
    """`access(lock, (error) => { ... writeFile(lock) })`."""
    around = {each.id for each in source.above(act.node) if each.type == "call_expression"}
    for look in source.acts:
        if look.kind in ("exists", "stat") and look.key == act.key and look.node.id in around:
            yield at(
                act,
                f"`{shown(act)}` is looked for on line {look.lineno} and made here: two"
                " processes that look at the same moment both go on",
                (look, "looked for here"),
            )
            return


def inside_of(act: Act, node: Node | None) -> bool:
    return node is not None and node.start_byte <= act.node.start_byte < node.end_byte


def takes(source: Source, act: Act) -> bool:
    """Is this the making of a lock that is held by being there?"""
    if act.kind != "create" or not act.lockish:
        return False
    unit = source.unit(act.holder)
    return words.acquires(act.holder.name) or any(
        e.kind == "unlink" and e.key == act.key for e in unit
    )


def no_recovery(source: Source) -> Iterator[Hit]:
    """LH402."""
    told: set[str] = set()
    for act in source.acts:
        if not takes(source, act) or act.key in told:
            continue
        whole = text_of(act.holder.node if not act.holder.group else source.root)
        unit = source.unit(act.holder)
        if any(e.kind in ("alive", "stat", "touch") for e in unit) or AGED.search(whole):
            continue
        if re.search(
            r"isAlive|isRunning|processExists|pidExists|\bstale", source.text, re.IGNORECASE
        ):
            continue
        told.add(act.key)
        yield at(
            act,
            f"nobody asks whether the maker of `{shown(act)}` still lives: one crash before it is"
            " removed blocks every later run",
        )


def number_alone(source: Source) -> Iterator[Hit]:
    """LH403."""
    if CLOSER.search(source.text):
        return
    for act in source.acts:
        if act.kind == "alive" and about_lock(source, act):
            yield at(
                act,
                f"`{shown(act)}` is only a number: after a reboot, in another container or once it"
                " is given out again it names another process",
            )


def about_lock(source: Source, act: Act) -> bool:
    if of_lock(source, act.holder) or any(map(words.speaks_of_lock, source.texts(act.target))):
        return True
    callers = [
        source.scope(node)
        for node in below(source.root)
        if node.type == "call_expression" and source.callee(node) is act.holder
    ]
    return any(of_lock(source, caller) for caller in callers)


def not_allowed_is_dead(source: Source) -> Iterator[Hit]:
    """LH404."""
    for act in source.acts:
        if act.kind != "alive" or "kill" not in act.facts or not about_lock(source, act):
            continue
        tried = next(
            (each for each in source.above(act.node) if each.type == "try_statement"), None
        )
        handler = field_of(tried, "handler")
        if handler is None or not within_body(act, tried):
            continue
        text = text_of(handler)
        told = re.search(r"return\s+(false|true)|unlink|rm", text) or FALLEN.search(text)
        if "EPERM" in text or "ESRCH" in text or not (told or ANSWERS.search(text)):
            continue
        if re.search(r"return\s+true", text) and not re.search(r"unlink|rm", text):
            if not re.search(r"stale|dead|gone", act.holder.name, re.IGNORECASE):
                continue
        yield at(
            act,
            f"process.kill({shown(act)}, 0) of another user's live process fails with EPERM: this"
            " `catch` takes that process for dead",
        )


def within_body(act: Act, tried: Node | None) -> bool:
    body = field_of(tried, "body")
    return body is not None and body.start_byte <= act.node.start_byte < body.end_byte


def judged(source: Source, act: Act) -> tuple[str, Act | None]:
    """By what a removal takes the lock for stale: "age", "alive", or "" for nothing."""
    for test, _stands in source.tests(act):
        text = text_of(test) + " ".join(source.texts(test))
        behind = source.behind(test)
        alive = next((e for e in behind if e.kind == "alive"), None)
        if alive is not None:
            return "alive", alive
        old = text + every(source, test)
        stat = next((e for e in behind if e.kind == "stat" and e.key == act.key), None)
        whole = text + " ".join(
            text_of(h.node)
            for n in below(test)
            if n.type == "call_expression"
            for h in [source.callee(n)]
            if h is not None
        )
        orders = re.search(r"[<>]", whole + old) is not None
        read = next((e for e in behind if e.kind == "read" and e.key == act.key), None)
        if (
            orders
            and (read is not None or AGED.search(whole + old))
            and re.search(r"Date\.now|new Date|getTime|hrtime", whole + every(source, test))
        ):
            return "age", stat or next((e for e in behind if e.kind == "read"), None)
    asked = asked_in_body(source, act)
    return ("alive", asked) if asked is not None else ("", None)


def asked_in_body(source: Source, act: Act) -> Act | None:
    """`try { process.kill(pid, 0) } catch (e) { unlink(lock) }`: who failed is dead."""
    for each in source.above(act.node):
        if each.id == act.holder.node.id:
            return None
        if each.type == "catch_clause" and each.parent is not None:
            body = field_of(each.parent, "body")
            for other in act.holder.acts:
                if other.kind == "alive" and inside_of(other, body):
                    return other
    return None


def every(source: Source, test: Node) -> str:
    """The texts behind the names of a test."""
    found = []
    for node in below(test):
        for value in source.values.get(text_of(node), [])[:3]:
            found.append(text_of(value)[:300])
            for inner in below(value):
                found += [text_of(v)[:300] for v in source.values.get(text_of(inner), [])[:2]]
    return " ".join(found[:40])


def breaks(source: Source) -> Iterator[tuple[Act, str, Act | None]]:
    """Each removal of a lock that is taken for stale."""
    for act in source.acts:
        if act.kind == "unlink" and act.lockish and not FORCED.search(act.holder.name):
            how, look = judged(source, act)
            if how:
                yield act, how, look


def racy_break(source: Source) -> Iterator[Hit]:
    """LH405."""
    for act, how, look in breaks(source):
        line = f" on line {look.lineno}" if look is not None else ""
        spans = ((look, "judged here"),) if look is not None else ()
        what = "its age" if how == "age" else "its holder's number"
        yield at(
            act,
            f"`{shown(act)}` is judged by {what}{line} and removed here by its name: another"
            " process may have replaced it in between, and its new lock is removed",
            *spans,
        )


def age_alone(source: Source) -> Iterator[Hit]:
    """LH406."""
    unit_alive = any(act.kind == "alive" for act in source.acts)
    if unit_alive or BEATS.search(source.text):
        return
    for act, how, look in breaks(source):
        if how == "age":
            yield at(
                act,
                f"`{shown(act)}` is taken for stale by its age alone: the work of a live holder may"
                " last longer, and nobody renews it",
                *(((look, "its age is read here"),) if look is not None else ()),
            )


def unowned_release(source: Source) -> Iterator[Hit]:
    """LH407."""
    yield from removed_in_finally(source)
    broken = {act.key for act, _how, _look in breaks(source)}
    for act in source.acts:
        if act.kind != "unlink" or not act.lockish:
            continue
        if act.key not in broken and not of_method(source, act):
            continue
        given_back = words.releases(act.holder.name) or hands_out(act.holder.node)
        ends = act.key in broken and any(n.type == "finally_clause" for n in source.above(act.node))
        if not (given_back or ends) or judged(source, act)[0]:
            continue
        if words.breaks(act.holder.name):
            continue
        owned = any(e.kind == "read" and e.key == act.key for e in act.holder.acts)
        if owned or any(MINE.search(text_of(test)) for test, _s in source.tests(act)):
            continue
        yield at(
            act,
            f"`{shown(act)}` is removed without asking whose it is: after a takeover it is the lock"
            " of another process",
        )


def hands_out(node: Node) -> bool:
    """`return () => { ... }`, `{ release: async () => ... }`: what an acquire gives its caller."""
    outer = node.parent
    return node.type == "arrow_function" and outer is not None and outer.type == "return_statement"


def of_method(source: Source, act: Act) -> bool:
    """Does `release()` of a class remove what `acquire()` of it may have been refused?"""
    made = [e for e in source.unit(act.holder) if e.kind == "create" and e.key == act.key]
    return bool(act.holder.group) and any(
        e.holder is not act.holder and words.acquires(e.holder.name) for e in made
    )


def removed_in_finally(source: Source) -> Iterator[Hit]:
    """`try { create(lock); work() } finally { unlink(lock) }`: refused, it removes the other's."""
    for act in source.acts:
        if act.kind != "unlink" or not act.lockish:
            continue
        if any(MINE.search(text_of(test)) for test, _s in source.tests(act)):
            continue
        final = next((n for n in source.above(act.node) if n.type == "finally_clause"), None)
        tried = field_of(final.parent, "body") if final is not None else None
        if final is None or tried is None:
            continue
        for made in source.acts:
            inside = tried.start_byte <= made.node.start_byte < tried.end_byte
            if inside and made.kind == "create" and made.key == act.key:
                if made.holder is act.holder:
                    yield at(
                        act,
                        f"`{shown(act)}` is removed here even if line {made.lineno} did not get it:"
                        " a refused attempt removes the lock of the holder",
                        (made, "refused here"),
                    )
                break


def only_at_exit(source: Source) -> Iterator[Hit]:
    """LH408."""
    for act, end in removed_at_exit(source):
        yield at(
            act,
            f"`{shown(act)}` is removed by an exit handler alone: SIGKILL, the OOM killer and a"
            " power cut run none, and the lock stays",
            (end, "removed here"),
        )


def removed_at_exit(source: Source) -> Iterator[tuple[Act, Act]]:
    """Each lock that handlers of the process's end remove, and nobody else."""
    late: set[str] = set()
    inner: set[int] = set()
    for act in source.acts:
        if act.kind == "on":
            given = (field_of(act.node, "arguments") or act.node).named_children
            late |= {text_of(given[1]).rpartition(".")[2], called_alone(given[1])}
            inner |= {e.node.id for e in source.acts if e.kind == "unlink" and inside(e, act)}
    if not late and not inner:
        return
    for act in source.acts:
        if not takes(source, act):
            continue
        unit = source.unit(act.holder)
        gone = [e for e in unit if e.kind == "unlink" and e.key == act.key]
        if any(e.kind in ("alive", "stat") for e in unit) or not gone:
            continue
        if all(e.node.id in inner or e.holder.name in late for e in gone):
            yield act, gone[0]


def called_alone(node: Node) -> str:
    """The name in `() => this.dispose()`: what a handler calls that does no more."""
    calls = [n for n in below(node) if n.type == "call_expression"]
    func = field_of(calls[0], "function") if len(calls) == 1 else None
    return text_of(field_of(func, "property") or func)


def inside(act: Act, other: Act) -> bool:
    return other.node.start_byte < act.node.start_byte < other.node.end_byte


# --- keys in a store ----------------------------------------------------------------------------


def given_back(source: Source, act: Act) -> bool:
    """Is the key taken with NX by what acquires, and dropped by what releases?"""
    taken = (e for e in source.acts if e.kind in ("setnx", "take") and e.key == act.key)
    return words.releases(act.holder.name) and any(words.acquires(e.holder.name) for e in taken)


def of_key(source: Source, act: Act) -> bool:
    return (
        act.lockish
        or given_back(source, act)
        or words.speaks_of_lock(act.holder.name)
        or words.speaks_of_lock(act.holder.group)
    )


def two_steps(source: Source) -> Iterator[Hit]:
    """LH409."""
    for act in source.acts:
        if act.kind != "setnx" and not (act.kind == "take" and "timed" not in act.facts):
            continue
        end = next((e for e in act.holder.acts if e.kind == "expire" and e.key == act.key
                    and e.lineno >= act.lineno), None)  # fmt: off
        if end is not None and of_key(source, act) and "multi(" not in text_of(act.holder.node):
            yield at(
                act,
                f"`{shown(act)}` is taken here and gets its end on line {end.lineno}: a crash in"
                " between leaves a lock without an end",
                (end, "the end is set here"),
            )


def without_end(source: Source) -> Iterator[Hit]:
    """LH410."""
    expiring = {act.key for act in source.acts if act.kind == "expire"}
    for act in source.acts:
        if act.kind not in ("setnx", "take") or "timed" in act.facts or act.key in expiring:
            continue
        if of_key(source, act):
            yield at(
                act,
                f"`{shown(act)}` is set without an expiry: when its holder dies, the lock stays for"
                " ever",
            )


def compared(source: Source, act: Act) -> Act | None:
    """The GET whose answer is compared before this act."""
    for test, _stands in source.tests(act):
        got = next((e for e in source.behind(test) if e.kind == "get" and e.key == act.key), None)
        if got is not None and re.search(r"[!=]==?", text_of(test)):
            return got
    return None


def unowned_delete(source: Source) -> Iterator[Hit]:
    """LH411."""
    taken = {act.key: act for act in source.acts if act.kind in ("setnx", "take")}
    for act in source.acts:
        if act.kind != "del" or words.breaks(act.holder.name) or "timed" in act.facts:
            continue
        if not of_key(source, act) or compared(source, act):
            continue
        if any(e.kind in ("script", "get") for e in act.holder.acts) or in_time(source, act):
            continue
        if act.key in taken or (taken and words.releases(act.holder.name)):
            first = taken.get(act.key)
            yield at(
                act,
                f"`{shown(act)}` is deleted without asking whose it is: when the lease ran out"
                " before, this deletes the lock of the next holder",
                *(((first, "taken here"),) if first is not None else ()),
            )


def in_time(source: Source, act: Act) -> bool:
    """Is it deleted only while the lease cannot have run out?"""
    return any(
        re.search(r"[<>]", text_of(test)) and "Date.now" in text_of(test) + every(source, test)
        for test, _stands in source.tests(act)
    )


def compare_apart(source: Source) -> Iterator[Hit]:
    """LH412."""
    for act in source.acts:
        got = compared(source, act) if act.kind in ("del", "expire") else None
        if got is not None and of_key(source, act) and "watch(" not in text_of(act.holder.node):
            yield at(
                act,
                f"`{shown(act)}` is compared on line {got.lineno} and changed here, in two"
                " requests: the lease can end in between",
                (got, "compared here"),
            )


def look(path: str, text: str) -> Source:
    """A file, ready to be asked."""
    return Source(path, text)
