"""`redis://host/0`: leases between all hosts that reach one Redis or Valkey.

Promise: what store/rules.py says of one name, by the server's clock, in one round trip and one
script each; who waits is let in by who leaves, or called, and told by PUBLISH. The rules are in
scripts.py, connections in wire.py, errors in connect.py, waking in publish.py.

How it could fail, and what keeps it. An answer that is lost: the nonce finds the same grant again
(L6). A server that is paused or gone: the request ends by its limit, the lease by its deadline
(L8). A server that forgets, by a crash without a disk or by a failover to a replica that had not
yet received the last grants: two may hold a lock, and only the token tells them apart, which grows
by the clock of the new server, unless that clock is behind (`.ground()` says so; `bump`).
"""

from __future__ import annotations

from ...core.backend import (
    Given,
    NoReply,
    Refused,
    State,
    StoreHolder,
    Traits,
    Unable,
    Unreachable,
)
from ...core.deadline import NEVER
from ...core.errors import CorruptRecord, InvalidArgument
from ...core.fence import LARGEST
from ...core.owner import Owner, owner_of
from ...core.value import as_dict
from ...runtime import clock, fork
from ..rules import FAREST, ONE_OR_MORE, TOKEN, fitting, no_state
from .connect import NO_ANSWER, ODD
from .scripts import keys, name_of, pattern
from .wire import THREAD, RedisRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from collections.abc import Sequence

    from ...core.backend import Order, Renewal, Request
    from .connect import RedisUrl
    from .groups import ClusterPool
    from .publish import PublishedWakeups
    from .scripts import RedisScript
    from .wire import Command, RedisPool, Reply, TaskWaits, Waits

    Call = tuple[str, str, Sequence[str | float]]  # verb, name, arguments
else:
    json = fork.later("json", globals())

LIMIT = 10.0  # seconds for one answer
MANY = 500  # names to a question, at most
DOUBTED = 10_000  # nonces whose request may still come, at most
WHOLE_REPLY = 0.8  # of the time for an answer, that replicas have: the rest is for its way
PATIENT = 4  # replicas have so many parts of a limit, or of a ttl, one
LOOK_AGAIN = 60.0  # seconds between two looks whether the server evicts keys
LACKS = {"audit": "Redis keeps what counts now: what was broken is told by events and logs"}


class Redis:
    """The backend over one pool. `beats`: the pool for renewals, which nobody else may fill."""

    def __init__(
        self,
        plan: RedisUrl,
        link: RedisPool | ClusterPool,
        beats: RedisPool | ClusterPool,
        wakeups: PublishedWakeups,
        known: dict[str, RedisScript],
        waits: Waits | TaskWaits = THREAD,
    ) -> None:
        self.plan, self._link, self._beats, self._wakes = plan, link, beats, wakeups
        self._waits, self._scripts = waits, known
        self._owner: tuple[Owner, str] | None = None
        self.traits, self._until = Traits(limit=plan.limit, lacks=LACKS), NEVER

    def within(self, until: float) -> Redis:
        """The same, for a question whose answer is of use until that instant."""
        made = self.by(self._waits)
        made._until = until
        return made

    def by(self, waits: Waits | TaskWaits) -> Redis:
        """The same for callers that wait in another way."""
        return Redis(self.plan, self._link, self._beats, self._wakes, self._scripts, waits)

    # ---- one round trip

    async def _run(
        self,
        calls: Sequence[Call],
        link: RedisPool | ClusterPool | None = None,
        *,
        urgent: bool = False,
        behind: Sequence[Command] = (),
    ) -> list[Reply]:
        """The replies to calls of scripts, refusals among them. Raises Unreachable, NoReply.

        Whether the server evicts keys by now is asked in the same trip, now and then. `urgent`: it
        goes before others that wait for a connection; `behind`: a command more, whose reply is the
        last one.
        """
        link = self._link if link is None else link
        commands = [self._command("EVALSHA", *call) for call in calls]
        looks = clock.now() > self.plan.looked_at + LOOK_AGAIN
        more: list[Command] = [*behind, ("INFO",)] if looks else [*behind]
        replies = await link.ask([*commands, *more], self._until, self._waits, urgent)
        if looks:
            self.plan.note(replies.pop())
        unknown = [at for at, one in enumerate(replies) if _is(one, "NOSCRIPT")]
        if unknown:  # nothing has happened: the server was started, or its scripts were flushed
            again = [self._command("EVAL", *calls[at]) for at in unknown[:1]]
            again += [commands[at] for at in unknown[1:]]
            if len({calls[at][0] for at in unknown}) > 1:
                again = [self._command("EVAL", *calls[at]) for at in unknown]
            told = await link.ask([*again, *behind], self._until, self._waits, urgent)
            if behind:
                replies[-1] = told.pop()
            for at, reply in zip(unknown, told, strict=True):
                replies[at] = reply
        return replies

    async def _run_confirmed(
        self, calls: Sequence[Call], link: RedisPool | ClusterPool, ttl: float
    ) -> tuple[list[Reply], Sequence[Reply]]:
        """The same, and how many replicas have each: by WAIT behind them, in the same trip."""
        wanted = self.plan.replicas
        if not wanted:
            return await self._run(calls, link), [0] * len(calls)
        patience = min(self.plan.limit, ttl) / PATIENT
        patience = min(patience, (self._until - clock.now()) * WHOLE_REPLY)
        millis = max(1, int(patience * 1000))
        *replies, seen = await self._run(calls, link, behind=[("WAIT", wanted, millis)])
        return replies, seen if isinstance(seen, list) else [seen] * len(calls)

    def _unconfirmed(self, seen: Reply) -> Unreachable | NoReply | None:
        """Why what was done does not count; None where enough replicas have it."""
        if isinstance(seen, int):
            return self.plan.unconfirmed(seen) if seen < self.plan.replicas else None
        return Unable(str(self.plan.refused(seen, "WAIT")))

    def _command(self, how: str, verb: str, name: str, given: Sequence[str | float]) -> Command:
        script, where = self._scripts[verb], keys(name)
        text = script.sha if how == "EVALSHA" else script.text
        return (how, text, len(where), *where, *given)

    async def _call(self, verb: str, name: str, *given: str | float, urgent: bool = False) -> Reply:
        (reply,) = await self._run([(verb, name, given)], urgent=urgent)
        if isinstance(reply, RedisRefused):
            why = self.plan.refused(reply, keys(name)[0])
            if verb == "release" and (reply.code == "ERR" or not reply.code.isupper()):
                raise NoReply(str(why))  # L6  a proxy says so of what it has handed on, too
            raise why
        return reply

    # ---- the questions

    async def acquire(self, request: Request) -> Given | Refused:
        r = request
        if self.plan.evicts:
            await self._look_again()
        given: tuple[str | float, ...] = (
            r.nonce,
            float(r.ttl),
            float(r.delay),
            self._written(r.owner),
            r.capacity,
            r.weight,
            int(r.shared),
            int(r.wait),
            int(r.fair),
            float(r.patience),
            r.wakeup,
            r.gone or "",
            r.handoff_id,
        )
        try:
            calls: list[Call] = [("acquire", r.name, given)]
            (answer,), (seen,) = await self._run_confirmed(calls, self._link, r.ttl)
            if isinstance(answer, RedisRefused):
                raise self._no_answer(r.name, answer)
            if isinstance(answer, bytes) and (why := self._unconfirmed(seen)) is not None:
                await self._taken_back(r)
                raise why
        except Unreachable:
            raise
        except BaseException:  # L6  it may come behind its own release
            self._doubt(r.nonce)
            raise
        try:
            return _given(answer) if isinstance(answer, bytes) else _refused(answer)
        except ODD as error:
            raise no_state(r.name, error) from error

    def _no_answer(self, name: str, reply: RedisRefused) -> Exception:
        """What a refusal in place of an answer about this name means."""
        if _on_odd_data(reply):
            return no_state(name, UNREAD)
        return self.plan.refused(reply, keys(name)[0])

    async def _taken_back(self, r: Request) -> None:
        """L6  Nothing stays of a grant that does not count. Raises NoReply where it may."""
        try:
            await self.release(r.name, r.nonce)
        except Unreachable as error:  # what it was to undo has happened
            raise NoReply(f"a grant that too few replicas have was not undone: {error}") from error

    async def _look_again(self) -> None:
        """What was refused may be mended. Raises UnsafeGround while it is not."""
        (found,) = await self._link.ask([("INFO",)], self._until, self._waits)
        self.plan.note(found)
        self.plan.refuse_evicting()

    async def renew(
        self, many: Sequence[Renewal]
    ) -> tuple[float | None, tuple[bool | Unreachable | NoReply, ...]]:
        """All in one round trip, each by itself."""
        calls: list[Call] = [
            ("renew", one.name, (one.nonce, float(one.ttl), one.weight or "")) for one in many
        ]
        now, kept = None, list[bool | Unreachable | NoReply]()
        shortest = min((one.ttl for one in many), default=self.plan.limit)
        replies, seen = await self._run_confirmed(calls, self._beats, shortest)
        for one, reply, copies in zip(many, replies, seen, strict=True):
            if isinstance(reply, RedisRefused):
                refusal = self.plan.refused(reply, keys(one.name)[0])
                assert isinstance(refusal, Unreachable | NoReply)
                kept.append(refusal)
                continue
            try:
                now = _finite(reply[0]) if now is None else now
                lasts = reply[1] == 1
            except ODD:  # L13  which costs this server alone where several are asked
                kept.append(NoReply(f"{self.plan.place}: {NO_ANSWER}"))
            else:
                kept.append((self._unconfirmed(copies) if lasts else None) or lasts)
        return now, tuple(kept)

    async def release(self, name: str, nonce: str) -> bool:
        """A nonce in doubt is not let in any more, should a copy of its request still come."""
        doubted = int(nonce in self.plan.doubted)
        was_in = bool(await self._call("release", name, nonce, doubted, urgent=True))
        self.plan.doubted.pop(nonce, None)
        return was_in

    def _doubt(self, nonce: str) -> None:
        doubted = self.plan.doubted
        doubted[nonce] = None
        if len(doubted) > DOUBTED:  # those of long ago have no request on its way
            doubted.pop(next(iter(doubted)), None)

    async def look(self, names: Sequence[str] | None, prefix: str = "") -> tuple[State, ...]:
        if names is None:
            return await self._all(prefix)
        wanted = [name for name in names if name.startswith(prefix)]
        return tuple(await self._states(wanted))

    async def _all(self, prefix: str) -> tuple[State, ...]:
        """In the order of their names. The server is asked in pieces, and serves others between."""
        names, cursor = set[str](), "0"
        while True:
            cursor, found = await self._scan(cursor, prefix)
            names.update(found)
            if cursor == "0":
                break
        ordered, states = sorted(names), list[State]()
        for at in range(0, len(ordered), MANY):
            some = await self._states(ordered[at : at + MANY], among=True)
            states += [_without_kept(state) for state in some]
        return tuple(states)

    async def _scan(self, cursor: str, prefix: str = "") -> tuple[str, list[str]]:
        command = ("SCAN", cursor, "MATCH", pattern(prefix), "COUNT", MANY)
        (reply,) = await self._link.ask([command], self._until, self._waits)
        if isinstance(reply, RedisRefused):
            raise self.plan.refused(reply, pattern(prefix))
        try:
            found = [name_of(key.decode("utf-8", "replace")) for key in reply[1]]
            following = reply[0].decode()
        except ODD as error:
            raise Unreachable(f"{self.plan.place}: {NO_ANSWER}") from error
        return following, [name for name in found if name]  # L13  "" is no name of ours

    async def _states(self, names: Sequence[str], *, among: bool = False) -> list[State]:
        """`among`: many were found, and a key that is not ours costs itself alone (L13)."""
        calls: list[Call] = [("look", name, ()) for name in names]
        if not calls:
            return []
        try:
            replies = await self._run(calls)
        except NoReply:  # it changes nothing: asked again, once
            replies = await self._run(calls)
        found = []
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, RedisRefused):
                if _on_odd_data(reply):
                    damage = no_state(name, UNREAD)
                    if not among:
                        raise damage from reply
                    found.append(State(name, None, 1, damage=damage.text))
                    continue
                why = self.plan.refused(reply, keys(name)[0])
                if not among:
                    raise why
                if reply.code == "WRONGTYPE" and await self._is_ours(name):
                    found.append(State(name, None, 1, damage=str(why)))
                elif reply.code not in FOREIGN and "user_script" not in str(reply):
                    raise why
                continue
            try:
                if reply[0]:
                    found.append(_state(name, reply))
            except ODD as error:  # no holders of ours
                damage = no_state(name, error)
                if not among:
                    raise damage from error
                found.append(State(name, None, 1, damage=damage.text))
        return found

    async def _is_ours(self, name: str) -> bool:
        """Whether the first key of a name is ours, where another of them is not."""
        question = ("HEXISTS", keys(name)[0], "lifehold")
        (reply,) = await self._link.ask([question], self._until, self._waits)
        if isinstance(reply, RedisRefused) and reply.code != "WRONGTYPE":
            raise self.plan.refused(reply, keys(name)[0])
        return bool(reply == 1)

    async def command(self, *words: str | bytes | float) -> Reply:
        """One command, about any key. A user whose rights end at ours is refused: Unable."""
        (reply,) = await self._link.ask([words], self._until, self._waits)
        if isinstance(reply, RedisRefused):
            raise self.plan.refused(reply, str(words[0]))
        return reply

    async def order(self, order: Order) -> State | None:
        if not -LARGEST <= order.least <= LARGEST:
            raise InvalidArgument(f"a token is at most {LARGEST}, not {order.least}")
        least = str(max(order.least, 0))
        call: Call = ("order", order.name, (order.verb, least, order.text, order.nonce))
        (before,) = await self._run([call])
        if isinstance(before, RedisRefused):
            found = self._no_answer(order.name, before)
            if order.verb == "break" and not order.nonce and isinstance(found, CorruptRecord):
                return await self._removed(order, found)
            raise found
        try:
            return _state(order.name, before) if before[0] else None
        except ODD as error:  # the order was carried out all the same
            damage = no_state(order.name, error).text
            return State(order.name, None, 1, damage=damage)

    async def _removed(self, order: Order, damage: CorruptRecord) -> State:
        """Remove what no step can read. L4  The last token stays, where it is one."""
        lease, holders, line, dies, waiters, *_ = keys(order.name)
        await self.command("DEL", holders, line, dies, waiters)
        token = await self.command("HGET", lease, "token")
        if token is not None and not _is_token(token):
            await self.command("HDEL", lease, "token")
        await self._call("order", order.name, "bump", "0", "", "")
        return State(order.name, None, 1, damage=damage.text)

    async def prune(self, after: str, idle: float, most: int) -> tuple[str | None, int]:
        """Forget those of the next names that nobody has used for `idle` seconds.

        `after`: the cursor of SCAN, and so is what is answered.
        """
        cursor, names = await self._scan(after or "0")
        (time,) = await self._link.ask([("TIME",)], self._until, self._waits)
        if isinstance(time, RedisRefused):
            raise self.plan.refused(time, "TIME")
        before = max(0, int(time[0]) * 10**6 + int(time[1]) - int(idle * 1e6))
        calls: list[Call] = [("prune", name, (str(before),)) for name in names]
        gone = [one == 1 for one in (await self._run(calls) if calls else ())]
        return (None if cursor == "0" else cursor), sum(gone)

    async def ground(self) -> tuple[str, ...]:
        (found,) = await self._link.ask([("INFO",)], self._until, self._waits)
        self.plan.note(found)
        return sentences(self.plan, self._wakes.state)

    def close(self) -> None:
        """Give back connections that nobody uses. The next question opens one again."""
        self._link.close()
        self._beats.close()

    def _written(self, owner: Owner) -> str:
        known = self._owner
        if known is None or known[0] != owner:
            text = json.dumps(
                {key: item for key, item in as_dict(owner).items() if item not in (None, "")}
            )
            known = self._owner = owner, text
        return known[1]


# ------------------------------------------------------------------------------------------------
# What the scripts answer, in our values.


FOREIGN = ("LIFEHOLD", "WRONGTYPE")  # what the script says of a key that is not ours


ODD_DATA = (  # what a script, or HINCRBY in it, cannot do with what it has read
    "attempt to perform arithmetic",
    "attempt to compare",
    "attempt to concatenate",
    "hash value is not an integer",
    "would overflow",
)
UNREAD = ValueError("a step of the server cannot read it")


def _on_odd_data(reply: RedisRefused) -> bool:
    """Whether a script has met what no step has written."""
    return any(each in str(reply) for each in ODD_DATA)


def _given(answer: bytes) -> Given:
    """Token, slot, since, now; and whose lease had run out, where that is told."""
    token, slot, since, now, *run_out = answer.split(b" ", 5)
    over = None
    if run_out:
        try:
            over = _holder(run_out[0], run_out[1], _finite(now))
        except ODD:  # L13  it was no holder of ours; the grant is
            pass
    return Given(_token(token), int(slot), _finite(since), _finite(now), over)


def _refused(answer: Sequence[Reply]) -> Refused:
    ahead, look_in, capacity, now, *holders = answer
    return Refused(
        _holders(holders, _finite(now)),
        int(ahead),
        _finite(look_in) if look_in else None,
        int(capacity) if capacity else None,
    )


def _finite(text: bytes) -> float:
    """A number. Raises ValueError for what is none that a step has written."""
    if not -FAREST <= (number := float(text)) <= FAREST:
        raise ValueError(f"a number of seconds is {text!r:.80}")
    return number


def _is(reply: Reply, code: str) -> bool:
    return isinstance(reply, RedisRefused) and reply.code == code


def _token(text: bytes) -> int | None:
    """A token. Raises ValueError for what is none that a step has given."""
    found: int | None = fitting("token", None if text in (b"", b"-") else int(text), TOKEN)
    return found


def _is_token(text: bytes) -> bool:
    """Whether a step can go on from it."""
    return text.isdigit() and len(text) <= len(str(LARGEST)) and int(text) <= LARGEST


def _holder(nonce: bytes, text: bytes, now: float) -> StoreHolder:
    """One holder: token weight slot shared ttl delay ends_at acquired_at renewals number owner."""
    token, weight, slot, _, ttl, delay, ends, since, renewals, _, owner = text.split(b" ", 10)
    left, who = _finite(ends) + _finite(delay) - now, nonce.decode("utf-8", "replace")
    return StoreHolder(
        who,
        _token(token),
        fitting("weight", int(weight), ONE_OR_MORE),
        int(slot),
        _finite(ttl),
        left,
        f"{who}:{int(renewals)}",
        _finite(since),
        int(renewals),
        _read_owner(owner),
        float(delay),
    )


def _holders(flat: Sequence[bytes], now: float) -> tuple[StoreHolder, ...]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return tuple(_holder(nonce, text, now) for nonce, text in pairs)


def _read_owner(text: bytes) -> Owner | None:
    """L12  What a newer version wrote besides is not for us."""
    return owner_of(lambda: json.loads(text))


def _state(name: str, reply: Sequence[Reply]) -> State:
    _, token, capacity, now, kept_token, kept, count, *rest = reply
    holders = _holders(rest[: 2 * count], float(now))
    waiters = tuple(nonce.decode("utf-8", "replace") for nonce in rest[2 * count :])
    left = (int(kept_token), kept.decode("utf-8", "replace")) if kept_token else None
    return State(name, _token(token), int(capacity), holders, waiters, left)


def _without_kept(state: State) -> State:
    s = state
    return State(s.name, s.token, s.capacity, s.holders, s.waiters, damage=s.damage)


# ------------------------------------------------------------------------------------------------
# What the leases of a Redis stand on, in sentences.


CLOCK = (
    "leases run by the server's clock: a step forward ends them early by as much, a step back"
    " prolongs them by a ttl at most; hosts' clocks are never compared"
)
FAILOVER = (
    "a failover to a replica may forget the last grants, since Redis copies them behind the answer:"
    " then two hold a lock, and the guard at the data has to refuse the older token"
)
CONFIRMED = (
    "each grant and renewal is confirmed by {0} of its replicas (WAIT), else it does not count:"
    " that narrows what a failover forgets, and does not close it, since a replica may take over"
    " that lacks it"
)
TOKENS = (
    "tokens grow, and are not behind the server's clock in microseconds: one could repeat only"
    " where grants were forgotten and the clock of the server that goes on is behind; bump() then"
)


def sentences(plan: RedisUrl, listening: str) -> tuple[str, ...]:
    """What the server said of itself, and what follows from it."""
    facts = plan.facts
    about: tuple[str, ...] = (plan.about,) if plan.about else ()
    if plan.replicas:
        about += (CONFIRMED.format(plan.replicas),)
    if not facts:
        what = "this user may not ask the server what it is (INFO): nothing is known of its disk"
        return *about, what, CLOCK, FAILOVER, TOKENS, f"wake-ups: {listening}"
    name = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "of an unknown version")
    if facts.get("aof_enabled") == "1":
        disk = (
            "it writes an append-only file: with appendfsync everysec a crash of its host may"
            " forget the grants of the last second or two, with always none"
        )
    else:
        disk = (
            "it writes no append-only file: after a crash or restart the grants since its last"
            " snapshot are forgotten, and a lock that is held is free; set appendonly yes"
        )
    replicas = facts.get("connected_slaves", "0")
    policy = facts.get("maxmemory_policy", "not told")
    return (
        *about,
        f"{name} {version}, a primary with {replicas} replicas, maxmemory-policy {policy}",
        disk,
        FAILOVER,
        CLOCK,
        TOKENS,
        f"wake-ups: {listening}",
    )
