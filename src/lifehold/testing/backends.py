"""What every store of leases must keep: one suite, which any backend runs.

For the author of a store, in pytest:

    from lifehold.testing.backends import StoreSubject, cases

    MINE = StoreSubject("mine", open=lambda: my_package.site("mine://test"))

    @pytest.mark.parametrize("case", cases(MINE), ids=str)
    def test_my_store_keeps_the_rules(case):
        if why := case.why_not():
            pytest.skip(why)
        case.run()

or anywhere: `print(report(check(MINE)))`. The rules stand in core/backend.py; store/rules.py is the
reference, which the histories (histories.py) compare it with.

Rule: everything is demanded. What a backend cannot do it declares in `Traits.lacks`, with a reason,
and the claims that need it are *named* as not applicable. Names are fresh in each claim, so `open`
may answer the same store again; what other names hold is nobody's business here.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.acquire import Ask, acquire
from ..core.backend import (
    CAPABILITIES,
    WHOLE,
    Given,
    NoReply,
    Order,
    Refused,
    Renewal,
    Request,
    Unable,
    Unreachable,
    traits_of,
)
from ..core.deadline import terms
from ..core.errors import InvalidArgument
from ..core.grant import Grant, Lost
from ..runtime import clock, process
from ..runtime.blocking import BLOCKING, finish
from ..store.engine import StoreLock
from ..store.site import Site
from .conformance import PLAYS, Result, report
from .histories import play
from .stage import ClaimBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..core.backend import Backend, State
    from ..core.deadline import Terms

__all__ = ["ClaimBroken", "StoreCase", "StoreSubject", "cases", "check", "report"]

LONG, SHORT = 60.0, 1.0  # seconds: of leases that stay, and of those that are to run out
PATIENT = 30.0  # seconds for what comes soon unless the machine is very busy
HISTORIES = 8  # random ones, of STEPS each
STEPS = 60
RIVALS, ROUNDS = 4, 8  # who ask at once, and how often they do
ENDS = ("Name", "name"), ("end", "end "), ("\u00e9", "e\u0301")  # of names that are not one


@dataclass(frozen=True)
class StoreSubject:
    """A store under examination.

    `open`: a `Site` of it, whose locks nobody else uses; `clock`: sets the clock of that store to
    an instant in seconds, and its UTC to the same in microseconds. With it histories are compared
    to the last digit and leases run out in them; without it they are compared by their shape.
    """

    name: str
    open: Callable[[], Site]
    clock: Callable[[float], object] | None = None


class StoreStage:
    """One play: a site of the subject, and words for what is asked of it."""

    def __init__(self, subject: StoreSubject) -> None:
        self.subject, self.site = subject, subject.open()
        self.backend: Backend = self.site.backend
        self.traits = traits_of(self.backend)
        self.salt = os.urandom(6).hex()
        self.name = f"claim/{self.salt}"

    def demand(self, true: object, otherwise: str) -> None:
        if not true:
            raise ClaimBroken(otherwise)

    def nonce(self, word: str) -> str:
        """Of this play alone, though stores are asked again."""
        return f"{word}.{self.salt}"

    def asks(self, word: str, **shape: Any) -> Given | Refused:
        """The answer to one request."""
        name, ttl = shape.pop("name", self.name), shape.pop("ttl", LONG)
        request = Request(name, self.nonce(word), ttl, process.here(), **shape)
        return finish(self.backend.acquire(request))

    def rush(self, shapes: dict[str, dict[str, Any]]) -> dict[str, Given]:
        """Who is let in of some that ask at the same time, a thread each."""
        start, answers = threading.Barrier(len(shapes)), dict[str, Any]()

        def ask(word: str) -> None:
            try:
                start.wait(PATIENT)
                answers[word] = self.asks(word, **shapes[word])
            except BaseException as error:
                answers[word] = error

        rivals = [threading.Thread(target=ask, args=(word,)) for word in shapes]
        with _switching_often():
            for rival in rivals:
                rival.start()
            for rival in rivals:
                rival.join()
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        return {word: each for word, each in answers.items() if isinstance(each, Given)}

    def rushes(self, *shapes: dict[str, Any]) -> Iterator[dict[str, Given]]:
        """Who is let in by each rush; then they leave, and no other one of them has been in.

        Every second time on a name that nobody has had, else on one that was left.
        """
        for number in range(ROUNDS):
            self.name = f"claim/{self.salt}/{number // 2}"
            asked = {f"rival{rival}.{number}": shape for rival, shape in enumerate(shapes)}
            yield (given := self.rush(asked))
            left = [word for word in asked if self.leaves(word)]
            self.demand(left == [word for word in asked if word in given], f"in was {left}")

    def comes_in(self, nonce: str, **shape: object) -> Given:
        """The grant. Raises ClaimBroken where it is refused."""
        answer = self.asks(nonce, **shape)
        if not isinstance(answer, Given):
            raise ClaimBroken(f"{nonce} was refused: {answer}")
        return answer

    def is_refused(self, nonce: str, **shape: object) -> Refused:
        answer = self.asks(nonce, **shape)
        if not isinstance(answer, Refused):
            raise ClaimBroken(f"{nonce} was let in: {answer}")
        return answer

    def leaves(self, nonce: str) -> bool:
        return finish(self.backend.release(self.name, self.nonce(nonce)))

    def renews(self, *nonces: str, **more: Any) -> list[object]:
        """What is said of each lease."""
        asked = [Renewal(self.name, self.nonce(each), LONG, **more) for each in nonces]
        _, kept = finish(self.backend.renew(asked))
        return list(kept)

    def state(self) -> State | None:
        found = finish(self.backend.look((self.name,)))
        return found[0] if found else None

    def orders(self, verb: str, least: int = 0, text: str = "") -> State | None:
        return finish(self.backend.order(Order(verb, self.name, "a claim", "me", least, text)))

    def watched(self, wrong: dict[object, str] | None = None) -> tuple[Site, CountingBackend]:
        """The same store behind a counter, which may lose answers."""
        counted = CountingBackend(self.backend, wrong or {})
        return Site(self.site.url, counted, self.site.wakeups), counted

    def lock(self, site: Site | None = None, ttl: float = LONG, **shape: Any) -> StoreLock:
        """The lock of this claim as one client has it."""
        given: Terms | None = terms(ttl)
        assert given is not None
        return StoreLock(site or self.site, self.name, BLOCKING, given, **shape)

    def holder(self, **shape: Any) -> HeldStoreLock:
        """One who is in."""
        return HeldStoreLock(self.lock(**shape))

    def has_waiters(self, number: int) -> bool:
        state = self.state()
        return state is not None and len(state.waiters) == number

    def nothing_stays(self) -> None:
        """Nobody holds it and nobody waits. What is given back behind a caller comes soon."""

        def empty() -> bool:
            state = self.state()
            return state is None or not (state.holders or state.waiters)

        self.until(empty, "a holder or a waiter stayed")

    def until(self, what: Callable[[], object], otherwise: str) -> None:
        over = clock.now() + PATIENT
        while not what():
            self.demand(clock.now() < over, otherwise)
            clock.pause(0.005)


@contextmanager
def _switching_often() -> Iterator[None]:
    """Threads take turns so often that one comes between the look and the step of another."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class CountingBackend:
    """A backend that counts what it is asked. `wrong`: number of a request -> "lost", "unsent"."""

    def __init__(self, backend: Backend, wrong: dict[object, str]) -> None:
        self._backend, self.wrong, self.count = backend, wrong, 0
        self.traits = traits_of(backend)

    def __getattr__(self, name: str) -> object:
        if self.wrong and name in ("take_free", "leave_free", "within"):
            raise AttributeError(name)  # what is to be lost goes the long way
        return getattr(self._backend, name)

    def was_asked(self, times: int) -> bool:
        return self.count >= times

    async def _asked(self, call: Any, *given: object) -> object:
        self.count += 1
        wrong = self.wrong.get(self.count)
        if wrong == "unsent":
            raise Unreachable("no route")
        answer = await call(*given)
        if wrong == "lost":
            raise NoReply("connection reset")
        return answer

    async def acquire(self, request: Request) -> Any:
        return await self._asked(self._backend.acquire, request)

    async def renew(self, many: object) -> Any:
        return await self._asked(self._backend.renew, many)

    async def release(self, name: str, nonce: str) -> Any:
        return await self._asked(self._backend.release, name, nonce)

    async def look(self, names: Any, prefix: str = "") -> Any:
        return await self._backend.look(names, prefix)

    async def order(self, order: Order) -> Any:
        return await self._asked(self._backend.order, order)

    async def ground(self) -> Any:
        return await self._backend.ground()


class HeldStoreLock:
    """The one who is in. Raises ClaimBroken where it is refused."""

    def __init__(self, lock: StoreLock) -> None:
        self.lock, grant = lock, lock.attempt()
        if not isinstance(grant, Grant):
            raise ClaimBroken(f"it is not free: {grant}")
        self.grant = grant

    def renew(self) -> None:
        found = finish(self.lock.renew(self.grant))
        if not isinstance(found, Grant):
            raise ClaimBroken(f"a holder that renews was robbed: {found}")
        self.grant = found

    def leave(self) -> None:
        if isinstance(found := self.lock.drop(self.grant), Lost):
            raise ClaimBroken(f"it was taken from its holder: {found}")


class ComingClient(threading.Thread):
    """A client that waits for the lock, is in, and goes at once unless it is told to `stay`."""

    def __init__(self, lock: StoreLock, order: list[ComingClient], *, stay: bool = False) -> None:
        super().__init__(daemon=True)
        self.lock, self.order, self.stay = lock, order, stay
        self.grant: object = None
        self.error: BaseException | None = None
        self.gone = False
        self.start()

    def run(self) -> None:
        try:
            self.grant = finish(acquire(self.lock, BLOCKING, Ask(self.lock.path)))
            self.order.append(self)  # before the look at the others: of two one sees the other
            if any(each.is_in() for each in self.order if each is not self):
                raise ClaimBroken("two are in")
            if not self.stay and isinstance(self.grant, Grant):
                clock.pause(0.001)
                self.gone = True
                self.lock.drop(self.grant)
        except BaseException as error:
            self.error = error

    def is_in(self) -> bool:
        """Whether it has not gone, and its lease is not over on a machine that paused."""
        grant = self.grant
        if self.gone or not isinstance(grant, Grant):
            return False
        return grant.deadline is None or clock.now() < grant.deadline

    def home(self) -> None:
        """It has come in. Raises what kept it out."""
        self.join(PATIENT * 2)
        if self.error is not None:
            raise self.error
        if not isinstance(self.grant, Grant):
            raise ClaimBroken(f"it did not come in: {self.grant}")


# ------------------------------------------------------------------------------------------------
# The claims about single requests.


@dataclass(frozen=True)
class StoreClaim:
    """A sentence about stores, and the play that shows it. `needs`: of CAPABILITIES."""

    name: str
    needs: tuple[str, ...]
    play: Callable[[StoreStage], None]


CLAIMED: list[StoreClaim] = []


def claim(*needs: str) -> Callable[[Callable[[StoreStage], None]], object]:
    """Enter a function as a claim; its name is the sentence."""
    assert set(needs) <= set(CAPABILITIES), needs

    def entered(play: Callable[[StoreStage], None]) -> object:
        CLAIMED.append(StoreClaim(play.__name__, needs, play))
        return play

    return entered


@claim()
def one_holder_is_in_and_the_same_nonce_is_the_same_grant(stage: StoreStage) -> None:
    given = stage.comes_in("one")
    refused = stage.is_refused("two")
    stage.demand(
        [h.nonce for h in refused.holders] == [stage.nonce("one")], "the holder is not named"
    )
    again = stage.comes_in("one")  # L6
    stage.demand((again.token, again.slot) == (given.token, given.slot), "another grant")
    stage.demand(not stage.leaves("two"), "another nonce has ended it")  # L5
    stage.is_refused("two")
    stage.demand(stage.leaves("one"), "it was not in")
    stage.demand(not stage.leaves("one"), "it was in twice")
    stage.comes_in("three")


@claim()
def of_those_who_ask_at_once_one_comes_in(stage: StoreStage) -> None:
    for given in stage.rushes(*[{}] * RIVALS):
        stage.demand(len(given) <= 1, f"L1: {len(given)} are in at once: {given}")
        if not given:  # they were in the way of each other, and now nobody is
            stage.comes_in("alone")
            stage.leaves("alone")


@claim("permits")
def of_those_who_ask_at_once_each_has_its_own_slot(stage: StoreStage) -> None:
    for given in stage.rushes(*[{"capacity": 2}] * RIVALS):
        stage.demand(len(given) <= 2, f"L1: {len(given)} are in at once of 2: {given}")
        for what in ("slot", "token"):
            told = [getattr(each, what) for each in given.values()]
            stage.demand(len(set(told)) == len(told), f"two have one {what}: {given}")


@claim("readers")
def of_those_who_ask_at_once_no_writer_is_beside_a_reader(stage: StoreStage) -> None:
    write: dict[str, object] = {"capacity": WHOLE, "weight": WHOLE}
    read: dict[str, object] = {"capacity": WHOLE, "shared": True}
    for given in stage.rushes(write, read, write, read):
        writers = [word for word in given if word.startswith(("rival0", "rival2"))]
        stage.demand(not writers or len(given) == 1, f"L1: {writers} beside others: {given}")


@claim()
def tokens_grow_over_releases_breaks_and_bumps(stage: StoreStage) -> None:
    tokens = []
    for number, verb in enumerate(["", "break", "bump", "", "bump"]):
        given = stage.comes_in(f"nonce{number}")
        stage.demand(given.token is not None, "an exclusive grant has no token")
        tokens.append(given.token or 0)
        if verb:
            before = stage.orders(verb, tokens[-1] + 1000)
            stage.demand(before is not None and before.holders, "the order saw no holder")
        stage.demand(stage.leaves(f"nonce{number}") == (verb != "break"), "break has not ended it")
    stage.demand(tokens == sorted(set(tokens)), f"L4: {tokens}")
    stage.demand(tokens[3] >= tokens[2] + 1000, f"a bump did not reach its least: {tokens}")


@claim()
def a_renewal_is_answered_for_each_lease_by_itself(stage: StoreStage) -> None:
    stage.comes_in("one")
    kept = stage.renews("one", "nobody")
    stage.demand(len(kept) == 2 and kept[0] is True and kept[1] is False, f"renewed: {kept}")
    stage.orders("break")
    stage.demand(stage.renews("one") == [False], "who was broken is not told")


@claim()
def who_comes_with_another_number_is_told(stage: StoreStage) -> None:
    stage.comes_in("one")
    refused = stage.is_refused("two", capacity=3)
    stage.demand(refused.capacity == 1, f"capacity {refused.capacity} instead of 1")


@claim("readers")
def readers_share_and_exclude_the_writer(stage: StoreStage) -> None:
    write: dict[str, object] = {"capacity": WHOLE, "weight": WHOLE}
    read: dict[str, object] = {"capacity": WHOLE, "shared": True}
    last = stage.comes_in("writer", **write).token
    stage.is_refused("reader", **read)
    stage.demand(stage.renews("writer", weight=1) == [True], "it did not become a reader")
    found = {stage.comes_in(f"reader{number}", **read).token for number in range(3)}
    stage.demand(found == {last}, f"readers carry {found}, the last writer {last}")
    stage.is_refused("another", **write)
    for nonce in ("writer", "reader0", "reader1", "reader2"):
        stage.demand(stage.leaves(nonce), f"{nonce} was not in")
    stage.demand((stage.comes_in("another", **write).token or 0) > (last or 0), "L4")


@claim("permits")
def permits_are_counted_and_each_has_a_slot(stage: StoreStage) -> None:
    slots = [stage.comes_in(f"nonce{number}", capacity=3).slot for number in range(3)]
    stage.demand(sorted(slots) == [0, 1, 2], f"slots {slots}")
    stage.is_refused("more", capacity=3)
    stage.leaves("nonce1")
    stage.demand(stage.comes_in("more", capacity=3).slot == slots[1], "the free slot is not used")


@claim("kept")
def a_text_is_kept_for_who_holds_the_token_and_forgotten(stage: StoreStage) -> None:
    token = stage.comes_in("one").token or 0
    stage.orders("keep", token - 1, "of another")
    stage.orders("keep", token, "mine")
    stage.leaves("one")
    state = stage.state()
    stage.demand(state is not None and state.kept == (token, "mine"), f"kept: {state}")
    stage.orders("forget")
    state = stage.state()
    stage.demand(state is not None and state.kept is None, f"still kept: {state}")


@claim()
def names_are_found_by_prefix_in_order(stage: StoreStage) -> None:
    names = [f"{stage.name}/{end}" for end in ("b", "a", "ü", "a#?%")]
    for name in names:
        stage.comes_in(f"of {name}", name=name)
    found = [state.name for page in stage.site.pages(stage.name) for state in page]
    stage.demand(found == sorted(names), f"found {found}")
    unknown = finish(stage.backend.look((stage.name + "/unknown",)))
    stage.demand(not unknown or not unknown[0].holders, f"an unknown name is held: {unknown}")


@claim()
def names_that_differ_in_anything_are_two_locks(stage: StoreStage) -> None:
    """In the last of 200 characters, in case, in a space at the end, in how a letter is written."""
    long = f"{stage.name}/".ljust(199, "n")
    pairs = (long + "a", long + "b"), *((f"{stage.name}/{a}", f"{stage.name}/{b}") for a, b in ENDS)
    for pair in pairs:
        try:
            for name in pair:
                stage.comes_in(f"of {name!r}", name=name)
        except (InvalidArgument, Unable):
            continue  # a name may be refused; shared it may not be
        found = {state.name: state.holders for state in finish(stage.backend.look(pair))}
        told = {name: [holder.nonce for holder in found.get(name, ())] for name in pair}
        meant = {name: [stage.nonce(f"of {name!r}")] for name in pair}
        stage.demand(told == meant, f"{pair} are held by {told}")
        first, second = pair
        finish(stage.backend.release(first, stage.nonce(f"of {first!r}")))
        stage.is_refused("another", name=second)


@claim()
def what_is_lacked_is_said(stage: StoreStage) -> None:
    told = stage.site.ask(stage.site.ground)
    stage.demand(told and all(map(str.strip, told)), "ground() says nothing")
    for name, why in stage.traits.lacks.items():
        stage.demand(name in CAPABILITIES and why.strip(), f"{name!r} is no capability, or no why")


@claim("calls")
def who_leaves_calls_who_waits(stage: StoreStage) -> None:
    rung = threading.Event()
    wakeup = stage.site.wakeups.listen(stage.nonce("two"), lambda *_: rung.set())
    try:
        stage.comes_in("one")
        stage.is_refused("two", wait=True, wakeup=wakeup)
        rung.clear()
        stage.leaves("one")
        stage.demand(rung.wait(PATIENT), "nobody called")
        stage.until(
            lambda: isinstance(stage.asks("two", wait=True, wakeup=wakeup), Given), "it is not in"
        )
    finally:
        stage.site.wakeups.forget(stage.nonce("two"))


# ------------------------------------------------------------------------------------------------
# The claims about the engine over this store.


def _follower(stage: StoreStage, **shape: object) -> float:
    """Seconds after which a silent holder was followed, from before its grant."""
    began = clock.now()
    return _followed(stage, stage.holder(ttl=SHORT, **shape), began)


def _followed(stage: StoreStage, silent: HeldStoreLock, began: float) -> float:
    ComingClient(stage.lock(ttl=SHORT), []).home()
    took = clock.now() - began
    silent.grant.handle.clear()  # whatever it has is not given back before this
    return took


@claim()
def a_silent_holder_is_followed_when_its_ttl_is_over(stage: StoreStage) -> None:
    took = _follower(stage)
    stage.demand(took >= SHORT * 0.99, f"L2: after {took:.2f} s of ttl {SHORT:g}")


@claim()
def a_renewal_counts_for_its_whole_ttl(stage: StoreStage) -> None:
    """Renewed late in its ttl, and silent then: what is measured is the renewal alone."""
    for _ in range(PLAYS):
        holder = stage.holder(ttl=SHORT)
        clock.pause(SHORT / 4)
        began = clock.now()
        if isinstance(renewed := finish(holder.lock.renew(holder.grant)), Grant):
            break
        late = clock.now() >= (holder.grant.deadline or 0.0)  # the machine let us lie
        stage.demand(late, f"a holder that renews in time was robbed: {renewed}")
        holder.lock.drop(holder.grant)
    else:
        raise ClaimBroken(f"{PLAYS} holders came too late to renew within {SHORT:g} s")
    holder.grant = renewed
    took = _followed(stage, holder, began)
    stage.demand(took >= SHORT * 0.99, f"L2: {took:.2f} s after a renewal for {SHORT:g}")


@claim("lock_delay")
def a_lock_delay_keeps_others_out_for_longer(stage: StoreStage) -> None:
    took = _follower(stage, delay=SHORT)
    stage.demand(took >= 2 * SHORT * 0.99, f"after {took:.2f} s of ttl and delay {2 * SHORT:g}")


@claim()
def a_holder_that_renews_is_not_robbed_and_waiters_ask_seldom(stage: StoreStage) -> None:
    """Three waiters: a look each second, and one when the lease that they saw may be over."""
    site, counted = stage.watched()
    holder = stage.holder(ttl=4 * SHORT)
    order: list[ComingClient] = []
    waiters = [ComingClient(stage.lock(site, ttl=4 * SHORT), order) for _ in range(3)]
    began, asked = clock.now(), 0
    while (past := clock.now() - began) < 6 * SHORT:
        clock.pause(SHORT / 2)
        holder.renew()
        stage.demand(not order, "two are in")
        asked = counted.count
    stage.demand(asked <= 3 * (3 + 2 * past), f"{asked} requests of 3 waiters in {past:.1f} s")
    holder.leave()
    for waiter in waiters:
        waiter.home()
    stage.nothing_stays()


@claim("queue")
def waiters_come_in_by_their_order(stage: StoreStage) -> None:
    site, counted = stage.watched()
    holder, order = stage.holder(), list[ComingClient]()
    comers = []
    for number in range(1, 6):
        comers.append(ComingClient(stage.lock(site), order))
        stage.until(partial(stage.has_waiters, number), "it is not in line")
    stage.demand(not order, "two are in")
    before = counted.count
    holder.leave()
    for comer in comers:
        comer.home()
    stage.demand(order == comers, f"order: {[comers.index(each) for each in order]}")
    asked = counted.count - before
    stage.demand(asked <= 10 * len(comers), f"{asked} requests for {len(comers)} hand-overs")
    stage.nothing_stays()


@claim()
def whatever_answer_is_lost_the_waiter_comes_in_and_nothing_stays(stage: StoreStage) -> None:
    for number in range(1, 5):
        for wrong in ("lost", "unsent"):
            holder = stage.holder()
            site, counted = stage.watched({number: wrong})
            site.reached = True  # else a first request that is not sent says that the URL is wrong
            comer = ComingClient(stage.lock(site), [])
            stage.until(partial(counted.was_asked, min(number, 2)), "it asks nothing")
            holder.leave()
            comer.home()
            stage.nothing_stays()


def _history(seed: int) -> StoreClaim:
    def compared(stage: StoreStage) -> None:
        play(stage.backend, seed, STEPS, stage.subject.clock)

    return StoreClaim(f"it_answers_as_the_reference_does_in_history_{seed}", (), compared)


# ------------------------------------------------------------------------------------------------
# Running them.


@dataclass(frozen=True)
class StoreCase:
    """One claim about one store."""

    subject: StoreSubject
    claim: StoreClaim

    def __str__(self) -> str:
        return f"{self.subject.name}-{self.claim.name}"

    def why_not(self) -> str | None:
        """Why the claim cannot be asked of this store; None when it can."""
        lacks = traits_of(self.subject.open().backend).lacks if self.claim.needs else {}
        for need in self.claim.needs:
            if need in lacks:
                return f"not applicable to {self.subject.name} ({need}: {lacks[need]})"
        return None

    def run(self) -> None:
        """Raises ClaimBroken, or what went wrong, when the claim does not hold."""
        self.claim.play(StoreStage(self.subject))


def cases(subject: StoreSubject, histories: Iterable[int] = range(HISTORIES)) -> list[StoreCase]:
    """Every claim; those that are not applicable too."""
    return [StoreCase(subject, each) for each in (*CLAIMED, *map(_history, histories))]


def check(subject: StoreSubject, histories: Iterable[int] = range(HISTORIES)) -> list[Result]:
    """Run all cases of a store, without any test runner."""
    results = []
    for case in cases(subject, histories):
        if why := case.why_not():
            results.append(Result(case, "not applicable", why))
            continue
        try:
            case.run()
            results.append(Result(case, "holds"))
        except Exception:
            results.append(Result(case, "broken", traceback.format_exc()))
    return results
