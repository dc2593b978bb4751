"""What others' libraries do: locks by the kernel, and stores that are asked to take a key for us.

`made_by` tells whose constructor made an object; the rest reads single calls of such libraries.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Any

from . import words
from .model import by_kernel, maker_of, nodes, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .judge import Judge
    from .model import Called, Function, Module

PROJECT = "project"  # a class that the settings name
OUTSIDE = frozenset(
    "project filelock redis portalocker fasteners lockfile lifehold zc kazoo etcd3".split()
)
MAKERS = re.compile(
    r"^(filelock|redis|aioredis|portalocker|fasteners|lockfile|lifehold|zc|pid|oslo_concurrency"
    r"|threading|multiprocessing|asyncio|trio|anyio)\b"
)
RUNS = frozenset(f"subprocess.{name}" for name in "run call check_call check_output Popen".split())


def run_under_flock(function: Function, called: Called) -> ast.expr | None:
    """The path in `subprocess.run(["flock", "-n", path, ...])`."""
    given = called.args[0] if called.args else None
    if isinstance(given, ast.Name):
        given = function.only_value(given.id)
    if not isinstance(given, ast.List | ast.Tuple) or not given.elts:
        return None
    first, *rest = given.elts
    if not (isinstance(first, ast.Constant) and str(first.value).rpartition("/")[2] == "flock"):
        return None
    timed = False
    for each in rest:
        option = isinstance(each, ast.Constant) and str(each.value).startswith("-")
        if not option and not timed:
            return each
        timed = option and str(getattr(each, "value", "")) in ("-w", "--timeout", "-E")
    return None


BY_COMMAND = re.compile(r"\bkill\s+-0\s|\bps\s+(-\w+\s+)*-?p\s|/proc/\s*$")
CLOSER = re.compile(r"\.(cmdline|name|exe|create_time|cwd|username)\(")


def asked_by_command(function: Function, called: Called) -> ast.expr | None:
    """The number in `["ps", "-p", pid]` or `f"kill -0 {pid}"`."""
    given = called.args[0] if called.args else None
    if isinstance(given, ast.Name):
        given = function.only_value(given.id)
    if isinstance(given, ast.List | ast.Tuple):
        texts = [str(getattr(each, "value", "")) for each in given.elts]
        if (texts[:1] == ["ps"] and "-p" in texts[1:-1]) or texts[:2] == ["kill", "-0"]:
            behind = texts.index("-p" if "-p" in texts else "-0") + 1
            return given.elts[behind] if behind < len(texts) else None
        return None
    if isinstance(given, ast.JoinedStr | ast.BinOp | ast.Call):
        parts = [str(n.value) for n in nodes(given) if isinstance(n, ast.Constant)]
        if any(map(BY_COMMAND.search, parts)):
            return given
    return None


@functools.lru_cache(4)
def asks_number_alone(module: Module) -> bool:
    """Does psutil tell this module whether a number is given out, and nothing more?"""
    told = "NoSuchProcess" in module.text or ".is_running(" in module.text
    return told and CLOSER.search(module.text) is None


# --- clients of stores ---------------------------------------------------------------------------

CACHES = re.compile(
    r"(redis|cache|client|conn|^rc$|^r$|^rdb$|pipe|^cli$|memcach|^mc$|^kv$|^db$|rds|lock|^p$)",
    re.IGNORECASE,
)
MAKES_CLIENT = re.compile(
    r"pipe|client|conn|redis|cache|valkey|^from_|create|make|init", re.IGNORECASE
)
CLIENTS = re.compile(r"redis|valkey|cache|client|conn", re.IGNORECASE)
TIMED_SET = re.compile(r"\.set\([^\n]*\b(ex|px)\s*=|\.p?setex\(|\.p?expire\(")
STORES = ("redis", "valkey", "memcach", "cache", "redlock", "setnx", "nx=true")
# What only a client of a store is asked: its name says no more than that.
ASKED = re.compile(
    r"([\w.]+)\.(?:setnx\(|pexpire\(|register_script\(|set\([^()]*\bnx\s*="
    r"|set\([^()\n]*,\s*(?:int\(|str\()?time\.time\(\))"
)
CLIENT = "a client"  # of Redis, behind a wrapper; no name of Python


@functools.lru_cache(4)
def _speaks_of_stores(module: Module) -> bool:
    if any(word in module.lower for word in STORES):
        return True
    asks = any(word in module.text for word in (".set(", "setex(", "expire(", "register_script("))
    return asks and bool(TIMED_SET.search(module.text) or ASKED.search(module.text))


@functools.lru_cache(4)
def _asked(module: Module) -> frozenset[str]:
    """The names that are clients of a store by what is asked of them."""
    return frozenset(ASKED.findall(module.text))


def answered(made: ast.expr) -> bool:
    """`self.s3.client.head_object(...)` is what a client answered, and no client."""
    made = made.value if isinstance(made, ast.Await) else made
    func = made.func if isinstance(made, ast.Call) else None
    if not isinstance(func, ast.Attribute) or MAKES_CLIENT.search(func.attr):
        return False
    return CLIENTS.search(text_of(func.value).rpartition(".")[2]) is not None


def client_of(function: Function, called: Called) -> bool:
    """Does this look like a client of Redis, memcached or a cache?"""
    if not isinstance(called.func, ast.Attribute):
        return False
    if text_of(called.func.value) == CLIENT:
        return True
    if not _speaks_of_stores(function.module):
        return False
    owner = called.func.value
    if isinstance(owner, ast.Call):
        owner = owner.func
    if text_of(owner) in _asked(function.module):
        return True
    last = text_of(owner).rpartition(".")[2] or getattr(owner, "attr", "")
    if CACHES.search(last.strip("_")):
        return True
    made = function.values(owner.id) if isinstance(owner, ast.Name) else []
    if len(made) == 1 and answered(made[0]):
        return False
    return len(made) == 1 and any(CLIENTS.search(text) for text in function.texts(made[0]))


@functools.lru_cache(4)
def speaks_of_memcache(module: Module) -> bool:
    return ("memcache" in module.lower or "pylibmc" in module.lower) and "redis" not in module.lower


# --- what a client of a store is asked: an act, what it is done to, and facts of it ---------------

Made = tuple[str, "ast.expr | None", dict[str, Any]] | None


def argument(called: Called, number: int, name: str) -> ast.expr | None:
    if len(called.args) > number:
        return called.args[number]
    return called.keywords.get(name)


def truth_of(node: ast.expr | None) -> bool | None:
    """The truth of a constant; None where it is no constant."""
    return bool(node.value) if isinstance(node, ast.Constant) else None


def of_key(kind: str) -> Callable[[Function, Called, str], Made]:
    def read(function: Function, called: Called, name: str) -> Made:
        if not called.args or not client_of(function, called):
            return None
        return kind, called.args[0], {"client": text_of(called.func)}

    return read


TTLS = ("ex", "px", "exat", "pxat", "keepttl", "timeout", "expire", "ttl", "time")


def set_key(function: Function, called: Called, name: str) -> Made:
    if not client_of(function, called):
        return None
    key = argument(called, 0, "name") or called.keywords.get("key")
    value = argument(called, 1, "value")
    if key is None or value is None:
        return None
    given = called.keywords | spread(function, called)
    nx = given.get("nx")
    ttl = next((given[each] for each in TTLS if each in given), None)
    if ttl is None and len(called.args) > 2:
        ttl = called.args[2]
    timed = ttl is not None and truth_of(ttl) is not False
    exclusive = nx is not None and truth_of(nx) is not False
    xx = given.get("xx")
    if not exclusive and timed and xx is not None and truth_of(xx) is not False:
        return "redis_expire", key, {"client": text_of(called.func), "writes": True}
    facts: dict[str, Any] = {"nx": exclusive, "timed": timed, "ttl": ttl, "value": value}
    facts["client"] = text_of(called.func)
    return ("redis_lock" if exclusive else "redis_set"), key, facts


def spread(function: Function, called: Called) -> dict[str, ast.expr]:
    """What a call is given by `**options`, where the names of these are written down."""
    found: dict[str, ast.expr] = {}
    for keyword in called.node.keywords:
        value: ast.expr | None = keyword.value if keyword.arg is None else None
        if isinstance(value, ast.Name):
            value = function.only_value(value.id)
        if isinstance(value, ast.Dict):
            for key, each in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found[key.value] = each
        elif isinstance(value, ast.Call) and text_of(value.func) == "dict":
            found |= {each.arg: each.value for each in value.keywords if each.arg}
    return found


def set_if_absent(function: Function, called: Called, name: str) -> Made:
    if len(called.args) < 2 or not isinstance(called.func, ast.Attribute):
        return None
    timed = any(each in called.keywords for each in TTLS)
    facts: dict[str, Any] = {"setnx": True, "nx": True, "timed": timed, "value": called.args[1]}
    facts["client"] = text_of(called.func)
    return "redis_lock", called.args[0], facts


def add_to_cache(function: Function, called: Called, name: str) -> Made:
    """`cache.add(key, value, timeout)` of Django and memcached."""
    owner = text_of(called.func).lower()
    memcached = speaks_of_memcache(function.module)
    named = "cache" in owner.rpartition(".")[0] or (memcached and client_of(function, called))
    made = function.values(owner.partition(".")[0]) if not named else []
    named = named or (len(made) == 1 and "caches" in function.texts(made[0]))
    if len(called.args) < 2 or not named:
        return None
    ttl = argument(called, 2, "timeout")
    for name in ("time", "expire", "ttl", "exptime"):
        ttl = ttl or called.keywords.get(name)
    forever = isinstance(ttl, ast.Constant) and ttl.value in (None, 0)
    timed = not forever and (ttl is not None or not memcached)
    facts: dict[str, Any] = {"nx": True, "timed": timed, "cache": True, "value": called.args[1]}
    facts["ttl"] = ttl
    facts["client"] = text_of(called.func)
    return "redis_lock", called.args[0], facts


def delete_key(function: Function, called: Called, name: str) -> Made:
    if not called.args or not client_of(function, called):
        return None
    owner = text_of(called.func).lower().rpartition(".")[0]
    cache = "cache" in owner or speaks_of_memcache(function.module)
    return "redis_delete", called.args[0], {"cache": cache, "client": owner}


def make_lock(function: Function, called: Called, name: str) -> Made:
    """`redis.lock(name, timeout=...)`."""
    if not client_of(function, called) or not called.args or "redis" not in function.module.lower:
        return None
    if isinstance(called.args[0], ast.Starred) or any(k.arg is None for k in called.node.keywords):
        return None  # a wrapper: its caller says how long
    ttl = argument(called, 1, "timeout")
    timed = ttl is not None and not (isinstance(ttl, ast.Constant) and ttl.value is None)
    return "make_lock", called.args[0], {"timed": timed, "ttl": ttl, "bound": called.keywords}


# --- a key that a store gives to one alone ------------------------------------------------------

TAKES_ROW = re.compile(
    r"pg_try_advisory_lock\s*\(|\bINSERT\b.*\b(ON\s+CONFLICT\b.*\bDO\s+NOTHING|OR\s+IGNORE)\b"
    r"|\bINSERT\s+(OR\s+)?IGNORE\b",
    re.IGNORECASE | re.DOTALL,
)


INTO = re.compile(r"\s*INSERT\s+INTO\b", re.IGNORECASE)
DUPLICATE = re.compile(r"IntegrityError|UniqueViolation|DuplicateKey|UniqueConstraint")


@functools.lru_cache(4)
def _takes_rows(module: Module) -> bool:
    return bool(TAKES_ROW.search(module.text) or DUPLICATE.search(module.text))


def taken_row(function: Function, called: Called) -> ast.expr | None:
    """The statement that takes a row or an advisory lock, and tells whether it did."""
    if not called.args or not _takes_rows(function.module):
        return None
    texts = function.texts(called.args[0])
    found = any(map(TAKES_ROW.search, texts))
    if not found and DUPLICATE.search(function.module.text):
        found = any(INTO.match(text) and words.speaks_of_lock(text) for text in texts)
    return called.args[0] if found else None


def taken_in_transaction(called: Called) -> ast.expr | None:
    """The key of `etcd.transaction(compare=[versions.version(key) == 0], ...)`."""
    compared = called.keywords.get("compare") or (called.args[0] if called.args else None)
    for node in nodes(compared) if compared is not None else ():
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            zero = any(
                isinstance(each, ast.Constant) and each.value in (0, "0", b"0")
                for each in (node.left, *node.comparators)
            )
            asked = node.left
            if zero and isinstance(asked, ast.Call) and asked.args:
                return asked.args[0]
    return None


def taken_for_session(called: Called) -> ast.expr | None:
    """The key of Consul's `kv.put(key, value, acquire=session)`."""
    key = called.args[0] if called.args else called.keywords.get("key")
    return key if "acquire" in called.keywords else None


def taken_node(function: Function, called: Called) -> ast.expr | None:
    """The path of ZooKeeper's `create(path, ephemeral=True)`; a sequence is a queue of its own."""
    if "kazoo" not in function.module.lower and "NodeExists" not in function.module.text:
        return None
    if "sequence" in called.keywords or not called.args:
        return None
    return called.args[0]


def taken_document(function: Function, called: Called) -> ast.expr | None:
    """Mongo's `locks.insert_one({"_id": name})`, whose duplicate is refused."""
    if "DuplicateKey" not in function.module.text or not isinstance(called.func, ast.Attribute):
        return None
    return called.func.value if called.args else None


def taken_item(called: Called) -> ast.expr | None:
    """DynamoDB's `put_item(..., ConditionExpression="attribute_not_exists(...)")`."""
    asked = called.keywords.get("ConditionExpression")
    if asked is None:
        return None
    if any("attribute_not_exists" in text for text in map(ast.dump, nodes(asked))):
        return called.keywords.get("Item") or asked
    return None


# --- whose object is it? ------------------------------------------------------------------------


def made_by(judge: Judge, function: Function, func: ast.expr) -> str:
    """The library whose constructor made the object that this method belongs to."""
    made = maker_of(function, func.value if isinstance(func, ast.Attribute) else None)
    if made is None:
        return ""
    name = judge.module.dotted(made.func)
    if {name, name.rpartition(".")[2]} & words.project().classes:
        return PROJECT
    found = MAKERS.match(name)
    if found:
        return found[1].removeprefix("aio")
    if by_kernel(judge.module, name):
        return "filelock"
    if any(e.site is made and e.kind == "make_lock" for e in judge.everything()):
        return "redis"
    client = maker_of(function, made.func.value) if isinstance(made.func, ast.Attribute) else None
    root = judge.module.dotted(client.func).partition(".")[0] if client is not None else ""
    return root if root in ("kazoo", "etcd3") and "ock" in name else ""
