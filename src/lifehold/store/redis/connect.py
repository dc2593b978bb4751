"""How a Redis is reached, and what is told of its errors.

Promise: a connection that is handed out leads to a server that may be written to, and that evicts
no keys. redis-py opens it; what it would do besides, as asking again, is ours to do (L6, L8). What
is said of an error names the server and the remedy, and nothing secret (L11).
"""

from __future__ import annotations

from ...core.address import refuse_torn, without_password
from ...core.backend import NoReply, Unable, Unreachable
from ...core.deadline import NEVER
from ...core.errors import InvalidArgument, UnsafeGround
from ...core.mask import MASK, masked_url, masked_urls, printable
from ...runtime import clock, fork
from ...runtime.blocking import finish
from .wire import NoRedisReply, RedisConnection, RedisRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any
    from urllib import parse
else:
    parse = fork.later("urllib.parse", globals())

SHORTEST = 0.05  # seconds for opening, where the wait before it has taken all of the limit
OWN = {  # what redis-py is told whatever the URL says
    "decode_responses": False,
    "health_check_interval": 0,
    "retry_on_timeout": False,
    "retry_on_error": [],
    "socket_keepalive": True,
}
NOT_TAKEN = frozenset(  # of a client's own: they are of its pool, or of its event loop
    "retry redis_connect_func parser_class event_dispatcher connection_pool encoder_class "
    "himport_timeout maint_notifications_config maint_notifications_pool_handler "
    "oss_cluster_maint_notifications_handler socket_timeout socket_connect_timeout".split()
)
RESTING = "noeviction"
WAIT = "wait a moment and try again"
NOBODY = "nothing listens there: start the server, or name the right host and port"
USER = "look at the user and the password of the URL, and at ACL LIST of the server"
REMEDIES = {  # the first word of a refusal -> what to do
    "NOAUTH": f"it wants a password: {USER}",
    "WRONGPASS": USER,
    "NOPERM": "its ACL must allow this user the keys ~lifehold:*, the channels &lifehold:* and the"
    " commands +@read +@write +@scripting +@pubsub +@connection +time +info",
    "READONLY": "it is a replica that only reads: name the primary",
    "MASTERDOWN": "it is a replica that has lost its primary: name the primary",
    "OOM": "its memory is full: raise maxmemory, or free some; nothing was changed",
    "LOADING": f"it is reading its data from the disk: {WAIT}",
    "BUSY": f"a script of somebody runs for too long: {WAIT}, or look at SCRIPT KILL",
    "MISCONF": "it cannot write its data to the disk: look at its log, and free some space",
    "NOREPLICAS": "too few replicas are there (min-replicas-to-write): bring one up",
    "WRONGTYPE": "another program has a key of that name: delete it, or choose another name",
    "DENIED": "it is in protected mode: set a password, or bind it to an address",
    "EXECABORT": WAIT,
    "CLUSTERDOWN": f"its cluster is down: {WAIT}, and look at CLUSTER INFO",
    "MOVED": "it is one node of a cluster: a single server is needed here",
    "TRYAGAIN": f"its slot is being moved to another node: {WAIT}",
    "CROSSSLOT": "it is one node of a cluster: a single server is needed here",
}
PASSING = frozenset(
    "LOADING BUSY READONLY MASTERDOWN CLUSTERDOWN NOREPLICAS TRYAGAIN NODEDOWN".split()
)
FORBIDDEN = "The user executing the script can't"  # what Redis says where rights end within a step
# L13  No step has written what was read, or no Redis has answered so.
ODD = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
NO_ANSWER = "its answer is none that Redis gives"
NODE_SILENT = "NODESILENT"  # the first word for a node of a cluster that may have done it (L6)
HINTS = {  # words of redis-py or of the system, where the server said nothing; the first that fits
    "invalid username-password": USER,
    "WRONGPASS": USER,
    "Authentication required": REMEDIES["NOAUTH"],
    "invalid password": USER,
    "NOPERM": REMEDIES["NOPERM"],
    "DB index is out of range": "it has no such database: name one from 0 to its 'databases' - 1",
    "invalid DB index": "it has no such database: name one from 0 to its 'databases' - 1",
    "Connection refused": NOBODY,
    "No such file": "there is no such socket: start the server, or name the right path",
    "Name or service not known": "the name of the host is not known",
    "nodename nor servname": "the name of the host is not known",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is signed by nobody we trust: set ssl_ca_certs=",
    "WRONG_VERSION_NUMBER": "it speaks no TLS there: use redis://, or its TLS port",
    "SSL": "look at ssl_ca_certs=, ssl_certfile= and ssl_keyfile= of the URL",
    "Connection reset": "it ended the connection: does it want TLS (rediss://)?",
    "Connection closed": "it ended the connection: does it want TLS (rediss://)?",
    "Timeout": f"it does not answer: {WAIT}",
    "timed out": f"it does not answer: {WAIT}",
    "max number of clients": "it has no connection left: raise maxclients, or close some",
}
SHOWN = ("ssl_", "protocol")  # options of a URL that lead to the same server, and are no secret


def redis_library() -> ModuleType:
    """The client library. Raises InvalidArgument where it is not installed."""
    try:
        return fork.lazily("redis")
    except ImportError as error:
        raise InvalidArgument("redis:// needs redis-py: pip install 'lifehold[redis]'") from error


class RedisUrl:
    """What a URL asks for. `url`: as shown; `limit`: seconds for one answer; `place`: in words.

    `facts`: what the server last said of itself (INFO), and `looked_at` when. `locate`: says before
    an instant where each new connection leads, and `forget` whether that may have been old;
    `where`: the last led; `about`: a sentence on that.
    `replicas`: how many have to have a grant before it is believed.
    """

    locate: Callable[[float], tuple[str, int]] | None = None
    forget: Callable[[float], bool] | None = None
    where: tuple[str, int] | None = None
    about = ""
    only_reads = False
    replicas = 0

    def __init__(self, url: str, limit: float, *, client: object = None) -> None:
        library = redis_library()
        self.limit, self.facts = limit, dict[str, str]()
        self.looked_at = -NEVER
        self.doubted: dict[str, None] = {}  # nonces of requests that may still be on their way
        self._secrets: tuple[str, ...] = ()
        if client is None:
            self._kind, self._given = _from_url(library, url)
        else:
            self._kind, self._given = _from_client(library, client)
        self._secrets = tuple(
            str(self._given[key]) for key in ("password", "ssl_password") if self._given.get(key)
        )
        self.place = self._place()
        self.url = _shown(url) if client is None else self._url()

    def _place(self) -> str:
        if path := self._given.get("path"):
            where = f"the socket {path}"
        else:
            where = f"{self._given.get('host', 'localhost')} port {self._given.get('port', 6379)}"
        return printable(f"{where}, database {self._given.get('db') or 0}")

    def _url(self) -> str:
        """A URL that leads where the client of the program does, without its password."""
        given = self._given
        user = parse.quote(str(given.get("username") or ""), safe="")
        who, base = f"{user}@" if user else "", given.get("db") or 0
        if path := given.get("path"):
            return f"unix://{who}{parse.quote(str(path))}?db={base}"
        host = str(given.get("host", "localhost"))
        host = f"[{host}]" if ":" in host else host
        scheme = "rediss" if "SSL" in self._kind.__name__ else "redis"
        return f"{scheme}://{who}{printable(host)}:{given.get('port', 6379)}/{base}"

    def _connected(self, until: float) -> tuple[Any, tuple[str, int] | None]:
        """A connection of redis-py, and where it leads. What was told a moment ago may be old."""
        library, began = redis_library(), clock.now()
        while True:
            where = self.locate(until) if self.locate is not None else None
            left = max(SHORTEST, until - clock.now())
            retry = fork.lazily("redis.retry").Retry(fork.lazily("redis.backoff").NoBackoff(), 0)
            given = {**self._given, **OWN, "retry": retry}
            given.update(socket_timeout=left, socket_connect_timeout=left)
            if where is not None:
                given["host"], given["port"] = where
            if "path" in given:
                given.pop("socket_keepalive")
            try:
                made = self._kind(**given)
                made.connect()
            except TypeError as error:
                raise InvalidArgument(
                    f"{self.url!r}: redis-py knows no such option: {error}"
                ) from None
            except (library.RedisError, OSError, RecursionError, *ODD) as error:
                if self.forget is None or not self.forget(began):
                    raise self.unreached(error) from error
            else:
                return made, where

    def opened(self, until: float = NEVER, *, strict: bool = True) -> RedisConnection:
        """A new connection, by the calling thread. `strict`: refuse a server that evicts keys.

        Raises Unreachable, Unable, InvalidArgument, UnsafeGround.
        """
        until = min(until, clock.now() + self.limit)
        made, where = self._connected(until)
        sock, made._sock = made._sock, None
        line = RedisConnection(sock)
        try:
            (found,) = finish(line.ask([("INFO",)], until))
            if isinstance(found, RedisRefused) and found.code != "NOPERM":
                raise self.unreached(found)
            self.note(found)
            if not self.only_reads:
                self.refuse_replica()
            if strict:
                self.refuse_evicting()
        except NoRedisReply as error:
            line.close()
            raise self.unreached(error) from error
        except BaseException:
            line.close()
            raise
        self.where = line.where = where
        return line

    # ---- what the server says of itself

    def note(self, found: object) -> None:
        """The reply to INFO. One that may not ask is told by ground()."""
        self.looked_at = clock.now()
        if isinstance(found, bytes):
            lines = found.decode("utf-8", "replace").splitlines()
            pairs = (line.partition(":") for line in lines if ":" in line)
            self.facts.update((key, value) for key, _, value in pairs)

    def refuse_replica(self) -> None:
        """Ownership is never read from a replica, nor written there. Raises Unreachable."""
        if self.facts.get("role", "master") != "master":
            raise Unreachable(f"{self.place}: {REMEDIES['READONLY']}")

    @property
    def evicts(self) -> bool:
        """Whether the server may throw a lease away when its memory is full."""
        return self.facts.get("maxmemory_policy", RESTING) != RESTING

    def refuse_evicting(self) -> None:
        """Raises UnsafeGround where a lease could be thrown away."""
        if self.evicts:
            policy = printable(self.facts["maxmemory_policy"])
            raise UnsafeGround(
                f"{self.place}: its maxmemory-policy is {policy}, which throws keys away when "
                "memory is full, and a lock with them. Set it: redis-cli CONFIG SET "
                f"maxmemory-policy {RESTING} (and in redis.conf), or use a server of its own",
                name=self.url,
            )

    # ---- errors

    def unreached(self, error: BaseException) -> Unreachable:
        """No connection could be opened, so nothing has happened."""
        text = self._masked(error)
        cause = error.__cause__ or error.__context__
        code = text.partition(" ")[0]
        remedy = REMEDIES.get(code) or next(
            (hint for words, hint in HINTS.items() if words in f"{text} {cause}"), ""
        )
        if "Timeout" in text and "SSL" in self._kind.__name__:
            remedy = f"{remedy}; if it speaks no TLS there, use redis://"
        known = remedy in (USER, *(REMEDIES[key] for key in ("NOAUTH", "NOPERM", "DENIED")))
        kind = Unable if known else Unreachable
        return kind(f"{self.place}: {text}{f': {remedy}' if remedy else ''}")

    def _masked(self, error: object) -> str:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = " ".join(lines[0].split())
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return printable(masked_urls(text)).rstrip(".")

    def refused(self, error: RedisRefused, key: str) -> Exception:
        """What a refusal in place of an answer means. `key`: of the name that was asked for."""
        if error.code == "LIFEHOLD":
            return self._foreign(str(error), key)
        text = self._masked(error).partition(" script: ")[0]
        remedy = REMEDIES.get(error.code, "")
        if error.code == NODE_SILENT or (error.code == "ERR" and "user_script" in str(error)):
            remedy = f": {REMEDIES['NOPERM']}" if FORBIDDEN in text else ""
            return NoReply(f"{self.place}: {text}{remedy}")  # in the middle of a step
        if error.code == "WRONGTYPE":  # any key of that name
            key = f"{key.rpartition(':')[0]}:*"
        about = f" (key {printable(key)})" if error.code in ("WRONGTYPE", "NOPERM") else ""
        kind = Unreachable if error.code in PASSING else Unable
        return kind(f"{self.place}: {text}{about}{f': {remedy}' if remedy else ''}")

    def unconfirmed(self, seen: int) -> Unable:
        """Too few replicas have what was done. It is to be undone."""
        return Unable(
            f"{self.place}: {seen} of {self.replicas} replicas have confirmed it (replicas=), so "
            "it does not count: bring one up, look at INFO replication, or ask for fewer"
        )

    def _foreign(self, text: str, key: str) -> Exception:
        """L12  What we do not know is held, and not written over."""
        if "NEWER" in text.split(" ", 2)[1]:
            return Unable(
                f"{self.place}: {printable(key)} was written by a newer version of lifehold, which "
                "this one would spoil: use a newer lifehold here"
            )
        return Unable(
            f"{self.place}: {printable(key)} is a key of another program, and is left alone: "
            "delete it there, or choose another name"
        )


def _from_url(library: ModuleType, url: str) -> tuple[Any, dict[str, Any]]:
    """The class of its connections, and what they are made with. Raises InvalidArgument."""
    refuse_torn(url)
    try:
        given = dict(fork.lazily("redis.connection").parse_url(url))
        base = parse.urlsplit(url).path.strip("/")
        if url.startswith("unix:") and not base:
            raise ValueError("it names no socket")
        if not url.startswith("unix:") and base and not base.isdigit():
            raise ValueError("a database is a number")
        if str(given.get("protocol", 2)) not in ("2", "3"):
            raise ValueError("protocol is 2 or 3")
        if "socket_keepalive_options" in given:
            raise ValueError("socket_keepalive_options is an object, which a URL cannot give")
    except ValueError as error:
        why = "" if "@" in url else f": {printable(str(error))}"
        shown = printable(masked_url(without_password(url)))
        raise InvalidArgument(
            f"{shown!r} is no URL of Redis{why}; for example "
            "redis://user:password@host:6379/0, rediss://host, unix:///run/redis.sock?db=0"
        ) from None
    kind = given.pop("connection_class", library.Connection)
    given.setdefault("protocol", 2)
    for ours in NOT_TAKEN | {"timeout", "max_connections", "replicas"}:
        given.pop(ours, None)
    return kind, given


def _from_client(library: ModuleType, client: object) -> tuple[Any, dict[str, Any]]:
    """The same of a redis.Redis, or a redis.asyncio.Redis. Raises InvalidArgument."""
    pool = getattr(client, "connection_pool", None)
    kind, given = getattr(pool, "connection_class", None), getattr(pool, "connection_kwargs", None)
    if kind is None or not isinstance(given, dict):
        raise InvalidArgument(
            f"client= takes a redis.Redis or a redis.asyncio.Redis, not {type(client).__name__}"
        )
    if kind.__module__.startswith("redis.asyncio"):
        kind = getattr(library, kind.__name__, None)
        if kind is None:
            raise InvalidArgument(
                "client= takes a redis.asyncio.Redis over TCP, TLS or a socket: renewals are made "
                "by a thread, which needs connections of its own. Give a redis.Redis instead"
            )
    return kind, {key: item for key, item in given.items() if key not in NOT_TAKEN}


def without_ours(url: str) -> str:
    """The URL without the option that redis-py does not know."""
    front, mark, query = url.partition("?")
    kept = [each for each in query.split("&") if not each.startswith("replicas=")]
    return front + (mark + "&".join(kept) if any(kept) else "")


def _shown(url: str) -> str:
    """The URL without what is secret, and without what does not say where it leads."""
    parts = parse.urlsplit(url)
    user = parse.quote(parse.unquote(parts.username or ""), safe="")
    where = parts.netloc.rpartition("@")[2]
    pairs = parse.parse_qsl(parts.query)
    kept = [
        (key, item)
        for key, item in pairs
        if key == "db" or (key.startswith(SHOWN) and "password" not in key)
    ]
    query = f"?{parse.urlencode(kept)}" if kept else ""
    who = f"{user}@" if user else ""
    return printable(f"{parts.scheme}://{who}{where}{parts.path}{query}")


def shared_url(scheme: str, plans: Sequence[RedisUrl]) -> str:
    """One URL of all, where they differ by host and port alone; else a list that only tells."""
    parts = [plan.url.partition("://")[2].partition("/") for plan in plans]
    users = {where.rpartition("@")[0] for where, _, _ in parts}
    bases = {base for _, _, base in parts}
    alike = all(plan.url.startswith("redis://") for plan in plans)
    if not alike or len(users) > 1 or len(bases) > 1 or "?" in "".join(bases):
        return f"{scheme}://{','.join(plan.url for plan in plans)}"
    (user,), (base,) = users, bases
    hosts = ",".join(where.rpartition("@")[2] for where, _, _ in parts)
    return f"{scheme}://{user}{'@' if user else ''}{hosts}/{base or 0}"
