"""What the explorer promises: it sees what is wrong, tells how it came, admits its limits."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import weakref
from itertools import count

import pytest

from lifehold import InvalidArgument
from lifehold.local.files import LOCK_EX, LOCK_NB, READ_WRITE
from lifehold.local.kernel import KernelLock
from lifehold.runtime import process
from lifehold.testing.actor import STOP, HiddenState, LocalStates, NotRepeatable, repeatable
from lifehold.testing.clients import lock_client, unlinking_tool
from lifehold.testing.explore import (
    LEAK,
    MIXED,
    MUTEX,
    STUCK,
    TOKEN,
    WEDGED,
    Actor,
    Client,
    Exploration,
    Model,
    NetworkModel,
    World,
    explore,
)  # fmt: skip
from lifehold.testing.model import Error

MAKE = READ_WRITE | os.O_CREAT


def lock_both(first: str, second: str):
    def program(actor: Actor) -> None:
        one = actor.files.open(first, MAKE)
        actor.files.flock(one, LOCK_EX)
        two = actor.files.open(second, MAKE)
        actor.files.flock(two, LOCK_EX)
        actor.enter()
        actor.leave()
        actor.files.close(one)
        actor.files.close(two)

    return Client(program)


def create_and_remove(actor: Actor) -> None:
    try:
        actor.files.close(actor.files.open("/L", MAKE | os.O_EXCL))
    except FileExistsError:
        return
    actor.enter()
    actor.leave()
    actor.files.unlink("/L")


def forgetful(actor: Actor) -> None:
    """What a variable forgets is over at once: its finalizer is a step."""

    class Slip:
        def __init__(self, fd: int) -> None:
            self.fd = fd

        def __del__(self) -> None:
            actor.files.close(self.fd)

    late = Slip(actor.files.open("/L", MAKE))
    actor.files.lstat("/L")
    early = actor.files.fstat(late.fd)
    late = Slip(actor.files.open("/M", MAKE))
    if actor.files.lstat("/L").st_ino == early.st_ino:
        actor.enter()
        actor.leave()


@pytest.mark.parametrize(
    "clients",
    [
        [Client(lock_client(KernelLock, wait=3.0)), Client(lock_client(KernelLock))],
        [Client(create_and_remove), Client(unlinking_tool(checks=True), party="other")],
        [Client(forgetful), Client(forgetful)],
        [lock_both("/A", "/B"), lock_both("/B", "/A")],
    ],
)
def test_a_run_that_goes_on_by_itself_finds_what_a_run_for_each_step_finds(clients, monkeypatch):
    quick = explore(*clients)
    monkeypatch.setattr("lifehold.testing.explore.Alone.__call__", lambda *_: STOP)
    slow = explore(*clients)
    assert (quick.states, quick.transitions) == (slow.states, slow.transitions)
    assert quick.violations == slow.violations
    assert quick.left == slow.left
    assert quick.runs < 0.7 * slow.runs


def test_two_who_wait_for_each_other_are_stuck():
    report = explore(lock_both("/a", "/b"), lock_both("/b", "/a"), crashes=0)
    assert report.kinds == {STUCK}, report
    assert explore(lock_both("/a", "/b"), lock_both("/a", "/b"), crashes=0).kinds == set()


def test_a_file_left_by_the_dead_wedges_the_newcomer():
    report = explore(Client(create_and_remove), crashes=1)
    assert report.kinds == {WEDGED}
    assert report.violations[WEDGED].schedule == (
        "P1 open('/L', RDWR|CREAT|EXCL) -> 3",
        "P1 CRASH before close(3)",
        "now a newcomer, all alone: WEDGED",
    )
    assert explore(Client(create_and_remove), crashes=0).kinds == set()
    assert explore(Client(create_and_remove), crashes=1, newcomer=False).kinds == set()


def test_an_error_that_gets_out_is_a_leak():
    def program(actor: Actor) -> None:
        actor.files.unlink("/nothing")

    report = explore(Client(program), newcomer=False)
    assert report.kinds == {LEAK}
    assert "FileNotFoundError" in report.violations[LEAK].schedule[-1]


@pytest.mark.parametrize(("locks", "says"), [(True, "still locks"), (False, "open")])
def test_what_is_kept_after_the_end_is_a_leak(locks, says):
    def program(actor: Actor) -> None:
        fd = actor.files.open("/L", MAKE)
        if locks:
            actor.files.flock(fd, LOCK_EX | LOCK_NB)

    report = explore(Client(program), newcomer=False)
    assert says in report.violations[LEAK].schedule[-1]


def test_tokens_that_do_not_grow_are_seen():
    def program(actor: Actor) -> None:
        fd = actor.files.open("/L", MAKE)
        actor.files.flock(fd, LOCK_EX)
        actor.enter(actor.me)
        actor.leave()
        actor.files.close(fd)

    assert explore(Client(program), Client(program), crashes=0, newcomer=False).kinds == {TOKEN}


def test_a_client_whose_state_is_out_of_sight_is_refused():
    def program(actor: Actor) -> None:
        fd = actor.files.open("/L", MAKE)
        try:
            if actor.files.lstat("/L").st_ino == actor.files.fstat(fd).st_ino:
                actor.sleep = actor.step("sleep", 1.0)
        except FileNotFoundError:
            pass
        actor.files.close(fd)

    replaces = Client(unlinking_tool(checks=True, rounds=2), party="other")
    with pytest.raises(HiddenState, match="unfinished expression"):
        explore(Client(program), replaces, newcomer=False)


def keeps_out_of_sight(actor: Actor) -> None:
    """The first answer waits on the interpreter's own stack while the second is asked for."""
    actor.step("third", told(actor.step("first"), actor.step("second")))


def told(first: object, second: object) -> object:
    return None if second == "hides" else first


@pytest.mark.parametrize(
    "answers",
    [
        [(0, 1), (1, "shows"), (0, 2)],  # gone on from when it is reached in another way
        [(0, 1), (1, "hides"), (1, "shows"), (0, 2)],  # with an answer that was not the first
        [(0, 1), (0, 2), (1, "shows")],  # gone on from later
    ],
)
def test_a_state_that_goes_on_in_two_ways_is_refused_whenever_it_is_met(answers):
    *known, last = answers
    with repeatable():
        found = LocalStates(keeps_out_of_sight, 1, "ours", "fresh")
        for state, answer in known:
            found.next(state, answer)
        with pytest.raises(HiddenState, match="unfinished expression"):
            found.next(*last)


@pytest.mark.parametrize("merge", [True, False])
def test_a_client_that_never_ends_comes_to_the_limits_of_the_search(merge):
    def counts(actor: Actor) -> None:
        for number in count():
            actor.step("sleep", number)

    report = explore(Client(counts), states=100, newcomer=False, merge=merge)
    assert report.cut == "states"


@pytest.mark.parametrize("call", [("no_such_call",), ("listdir",), ("listdir", ["/"])])
def test_a_mistake_of_the_model_is_not_for_the_client_to_catch(call):
    def catches(actor: Actor) -> None:
        actor.files.listdir("/")
        with contextlib.suppress(Exception):
            actor.step(*call)
        actor.files.listdir("/")

    with pytest.raises((AttributeError, TypeError)):
        explore(Client(catches), newcomer=False)


def test_a_client_that_looks_outside_later_is_refused_too():
    numbers = count()

    def program(actor: Actor) -> None:
        actor.files.listdir("/")
        actor.step("sleep", next(numbers))
        actor.files.listdir("/")

    with pytest.raises(NotRepeatable, match="what else does the client look at"):
        explore(Client(program), newcomer=False)


def test_a_step_of_what_is_looked_at_is_refused():
    def program(actor: Actor) -> None:
        class Talks:
            def __freeze__(self) -> object:
                return actor.step("sleep", 1)

        talks = Talks()
        actor.files.listdir("/")
        assert talks

    with pytest.raises(NotRepeatable, match="looks at the client"):
        explore(Client(program), newcomer=False)


def test_no_class_of_a_client_is_kept():
    made: list[weakref.ref[type]] = []

    def program(actor: Actor) -> None:
        class Mine:
            pass

        mine = Mine()
        made.append(weakref.ref(Mine))
        actor.files.listdir("/")
        assert mine

    explore(Client(program), newcomer=False)
    gc.collect()
    assert [each() for each in made] == [None] * len(made)


def test_a_client_that_looks_at_the_world_outside_is_refused():
    numbers = count()

    def program(actor: Actor) -> None:
        for _ in range(2):
            actor.files.open(f"/{next(numbers)}", MAKE)

    with pytest.raises(NotRepeatable, match="what else does the client look at"):
        explore(Client(program), newcomer=False)


def test_an_object_that_cannot_be_compared_is_named():
    def program(actor: Actor) -> None:
        file = open(os.devnull)  # noqa: SIM115
        try:
            actor.files.open("/L", MAKE)
        finally:
            file.close()

    with pytest.raises(TypeError, match="TextIOWrapper"):
        explore(Client(program), newcomer=False)


def test_a_schedule_is_played_again_from_its_text():
    program = lock_client(KernelLock)
    game = Exploration(
        Client(program), Client(unlinking_tool(checks=False), party="tool"), crashes=0
    )
    played = game.replay(
        ["P2 open('/lock', RDWR|CREAT, 420) -> 3", "  P2 flock(3, EX|NB) -> ok", "P2 flies"]
    )
    assert played.parted == 2
    assert played.instead == ("P1 open('/lock', RDWR) -> 3", "P2 leave('lock') -> ok")


def test_an_exploration_that_was_not_finished_says_so():
    game = Exploration(*[Client(lock_client(KernelLock))] * 3)
    assert game.run(states=100).cut == "states"
    assert game.run(seconds=0).cut == "time"
    assert not game.run(states=100).exhaustive
    assert game.run().exhaustive


def test_quiet_steps_save_states_and_hide_nothing():
    def sees_nobody(call):
        return call[0] in ("fstat", "clock_ns")

    clients = [Client(lock_client(KernelLock))]
    clients += [Client(unlinking_tool(checks=False), party="tool")] * 2
    loud = explore(*clients)
    quiet = explore(*clients, quiet=sees_nobody)
    assert quiet.kinds == loud.kinds == {MIXED, TOKEN}
    assert quiet.states < loud.states


@pytest.mark.parametrize("options", [{"rounds": 2}, {"wait": None}, {"cleanup": True}])
def test_taking_equal_local_states_for_one_loses_no_world(options):
    model = Model(clock="ticking")
    clients = [
        Client(lock_client(KernelLock, **options)),
        Client(unlinking_tool(checks=True), party="tool"),
    ]
    worlds, states = [], []
    for merge in (True, False):
        game = Exploration(*clients, model=model, merge=merge)
        states.append(game.run().states)
        worlds.append({world.key() for world in game.worlds})
    assert worlds[0] == worlds[1]
    assert states[0] <= states[1]


def test_the_process_is_left_as_it_was():
    before = os.urandom, process.here
    explore(Client(lock_client(KernelLock)))
    assert (os.urandom, process.here) == before
    assert process.here().pid == os.getpid()


def test_a_client_cannot_hold_before_it_has_asked():
    with pytest.raises(ValueError, match="before its first call"):
        explore(Client(lambda actor: actor.enter()))


def test_a_place_for_two_admits_two_and_not_three():
    def program(actor: Actor) -> None:
        actor.files.listdir("/")
        actor.enter()
        actor.leave()

    clients = [Client(program)] * 3
    assert explore(*clients[:2], model=Model(places=2), newcomer=False, crashes=0).kinds == set()
    assert explore(*clients, model=Model(places=2), newcomer=False, crashes=0).kinds == {MUTEX}


# ---- the model ---------------------------------------------------------------------------------


def test_the_number_of_a_forgotten_inode_is_used_at_once():
    world, model = World(), Model()
    world.put("/a")
    ((fd, world),) = model.outcomes(world, 1, ("open", "/a", READ_WRITE))
    ((_, world),) = model.outcomes(world, 1, ("unlink", "/a"))
    held = world.opened[1, fd].ino
    assert World.put(world.copy(), "/b") != held
    world.end(1)
    assert world.put("/b") == held


def test_a_crash_frees_locks_and_descriptors():
    world, model = World(), Model()
    for client in (1, 2):
        ((fd, world),) = model.outcomes(world, client, ("open", "/a", MAKE))
    ((_, world),) = model.outcomes(world, 1, ("flock", 3, LOCK_EX))
    assert model.outcomes(world, 2, ("flock", fd, LOCK_EX)) == []
    assert model.outcomes(world, 2, ("flock", fd, LOCK_EX | LOCK_NB))[0][0] == Error(errno.EAGAIN)
    world.end(1)
    assert [answer for answer, _ in model.outcomes(world, 2, ("flock", fd, LOCK_EX))] == [None]


@pytest.mark.parametrize(
    ("oracle", "of_the_living", "of_the_dead"),
    [
        ("right", {"alive"}, {"dead"}),
        ("late", {"alive"}, {"dead", "alive"}),
        ("unsure", {"alive", "unknown"}, {"dead", "alive", "unknown"}),
    ],
)
def test_evidence_never_calls_the_living_dead(oracle, of_the_living, of_the_dead):
    model, world = Model(oracle=oracle), World()
    world.end(2)
    assert {answer for answer, _ in model.outcomes(world, 3, ("alive", 1))} == of_the_living
    assert {answer for answer, _ in model.outcomes(world, 3, ("alive", 2))} == of_the_dead


def test_over_nfs_a_change_may_be_made_and_called_a_failure():
    model, world = NetworkModel(), World()
    world.put("/a")
    outcomes = model.outcomes(world, 1, ("rename", "/a", "/b"))
    assert [answer for answer, _ in outcomes] == [None, Error(errno.ENOENT)]
    assert all("/b" in after.names for _, after in outcomes)


def test_over_nfs_stat_may_answer_from_the_cache_and_open_does_not():
    model, world = NetworkModel(), World()
    ((_, world),) = model.outcomes(world, 1, ("open", "/a", MAKE))
    ((before, world),) = model.outcomes(world, 1, ("lstat", "/a"))
    world = model.outcomes(world, 2, ("unlink", "/a"))[0][1]
    answers = {answer for answer, _ in model.outcomes(world, 1, ("lstat", "/a"))}
    assert answers == {before, Error(errno.ENOENT)}
    assert model.outcomes(world, 1, ("open", "/a", READ_WRITE))[0][0] == Error(errno.ENOENT)


# ---- a model of one's own ----------------------------------------------------------------------


class LeaseModel(Model):
    """Leases: the time of whoever holds may run out, at any moment. Then it has stopped (L8)."""

    def events(self, world):
        yield from super().events(world)
        for claim in world.holders:
            after = world.copy()
            after.holders -= {claim}
            after.notes["ran out", claim.client] = True
            yield f"the lease of P{claim.client} runs out", after

    def do_ran_out(self, world, me, client):
        return ("ran out", client) in world.notes or client in world.gone


def leased(actor: Actor) -> None:
    """Judges a record, then removes whatever has its name by then."""
    files = actor.files
    for _ in range(2):
        try:
            fd = files.open("/L", MAKE | os.O_EXCL)
        except FileExistsError:
            holder = files.lstat("/L").st_mode & 0o7
            if actor.step("ran_out", holder):
                files.unlink("/L")
            continue
        files.fchmod(fd, 0o600 | actor.me)
        actor.enter()
        actor.leave()
        files.close(fd)
        files.unlink("/L")
        return


def test_a_model_of_ones_own_adds_calls_and_events():
    report = explore(*[Client(leased)] * 3, model=LeaseModel(), crashes=1, stop_at={MUTEX})
    assert MUTEX in report.kinds
    schedule = report.violations[MUTEX].schedule
    assert any("ran_out" in line for line in schedule)


@pytest.mark.parametrize("clients", [(), (5,)])
def test_an_exploration_of_nobody_is_refused(clients):
    with pytest.raises(InvalidArgument, match="Clients"):
        Exploration(*clients)
