"""What is claimed of the kinds whose record is the lock: `generation` and `link`.

Where leases are played, time passes for a bounded number of steps: that somebody waits when it has
come to its end, or that a newcomer does, is no finding there. Liveness is judged without leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explore.claims import generation_starts as starts
from explore.claims import leases_model as model
from explore.claims.claim import Claim
from explore.claims.leases_model import FAR, Leases, NetworkLeases, lease_client, liblockfile
from lifehold.local.generation import GenerationLock
from lifehold.local.link import LinkLock
from lifehold.testing.explore import FOREIGN, MIXED, STUCK, TOKEN, WEDGED, Client, Exploration

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT_OF_TIME = frozenset({STUCK, WEDGED})
LEASED: dict[str, Any] = {"leased": True, "place": FAR}


def generation_and_link_claims() -> Iterator[Claim]:
    """All of them."""
    yield from generation_claims()
    yield from lease_claims()
    yield from link_claims()
    yield from mixed_claims()


class Knows(GenerationLock):
    """Its last number was the one at which the others begin, as far as it knows."""

    _top = 7


class KnowsOlder(GenerationLock):
    """Its last number was one before, which is cleaned up while it goes on from there."""

    _top = 6


def generation(kind: Any = GenerationLock, **options: Any) -> Client:
    """A client of numbered records. Its nonces differ by their tokens."""
    return Client(lease_client(kind, **options), nonces="same")


def link(kind: Any = LinkLock, **options: Any) -> Client:
    """A client of a liblockfile."""
    return Client(lease_client(kind, **options), nonces="same")


def _claim(
    name: str,
    *actors: Client,
    crashes: int = 1,
    may: frozenset[str] = frozenset(),
    soak: bool = False,
    world: Leases | None = None,
    **more: Any,
) -> Claim:
    def game() -> Exploration:
        return Exploration(
            *actors, crashes=crashes, model=world or Leases(clock="ticking"), name=name, **more
        )

    return Claim(name, game, may, soak)


def _numbered(name: str, *actors: Client, **more: Any) -> Claim:
    more.setdefault("world", Leases())
    return _claim(f"generation: {name}", *actors, quiet=model.quiet, unseen=model.unseen, **more)


def generation_claims() -> Iterator[Claim]:
    """With a witness, with the evidence of an oracle, over NFS."""
    for start in (starts.free_folder, starts.dead_holder):
        word = start.__name__
        one, two, sees = generation(), generation(rounds=2), generation(witness=False)
        yield _numbered(f"2 clients, {word}", one, one, start=start)
        yield _numbered(f"2 clients, {word}, 2 crashes", one, one, start=start, crashes=2)
        yield _numbered(f"2 clients, 2 rounds, {word}", two, two, start=start, soak=True)
        yield _numbered(
            f"3 clients, {word}, 2 crashes", one, one, one, start=start, crashes=2, soak=True
        )
        for oracle in ("right", "late", "unsure"):
            words = f"oracle {oracle}, {word}"
            yield _numbered(
                f"2 clients, {words}", sees, sees, start=start, world=Leases(oracle=oracle)
            )
        far = generation(witness=False, server=True)
        yield _numbered(f"2 clients, NFS, {word}", far, far, start=start, world=NetworkLeases())
        yield _numbered(
            f"2 clients that know a number, {word}", *[generation(Knows)] * 2, start=start
        )
    older = generation(), generation(KnowsOlder)
    yield _numbered("2 clients, one knows an older number", *older, start=starts.dead_holder)
    yield _numbered("2 clients, burnt", generation(), generation(), start=starts.burnt)
    slow = generation(rounds=3), generation(), generation()
    yield _numbered("3 clients, one with 3 rounds", *slow, start=starts.free_folder, soak=True)
    yield _numbered("2 clients, no folder", generation(), generation())


def lease_claims() -> Iterator[Claim]:
    """Where only the lease counts, in silence and with renewals."""
    silent, renews = generation(**LEASED), generation(renews=True, **LEASED)
    for start in (starts.free_folder, starts.dead_leased):
        word = f"lease only, {start.__name__}"
        for nfs in (False, True):
            world = (NetworkLeases if nfs else Leases)(steps=3)
            more: dict[str, Any] = {"start": start, "may": OUT_OF_TIME}
            words = f"{word}{', NFS' if nfs else ''}"
            large = nfs or start is starts.free_folder
            yield _numbered(f"2 clients, {words}", silent, silent, world=world, soak=large, **more)
            yield _numbered(
                f"2 clients that renew, {words}", renews, silent, world=world, soak=True, **more
            )


def _linked(name: str, *actors: Client, **more: Any) -> Claim:
    return _claim(f"link: {name}", *actors, quiet=_quiet, unseen=model.unnamed, **more)


def _quiet(call: tuple[Any, ...]) -> bool:
    return call[0] in ("sleep", "fstat", "fsync")


def link_claims() -> Iterator[Claim]:
    """Among ourselves. Tokens grow by the clock, which is not set back here."""
    yield _linked("2 clients, 2 crashes", link(), link(), crashes=2, soak=True)
    yield _linked("2 clients, 2 rounds", link(rounds=2), link(rounds=2), soak=True)
    yield _linked("3 clients, 2 crashes", link(), link(), link(), crashes=2, soak=True)
    timed = link(leased=True)
    yield _linked(
        "2 clients, leases",
        timed,
        timed,
        world=Leases(steps=3, clock="ticking"),
        may=OUT_OF_TIME,
        soak=True,
    )
    far = link(leased=True, place=FAR)
    yield _linked(
        "2 clients, NFS, leases",
        far,
        far,
        world=NetworkLeases(steps=3, clock="ticking"),
        may=OUT_OF_TIME,
        soak=True,
    )
    yield _linked("2 clients, clock still", link(), link(), world=Leases(), may=frozenset({TOKEN}))


def mixed_claims() -> Iterator[Claim]:
    """Beside liblockfile as it is. `strict` settles at every acquisition.

    Two of the original break each other's live locks, and then nobody can be kept apart from them.
    """
    peer, twice = _peer(), _peer(rounds=2)
    robbed = frozenset({MIXED})
    yield _linked("1 client, liblockfile", link(), peer, may=robbed)
    yield _linked("1 client, strict, liblockfile", link(strict=True), peer)
    yield _linked(
        "1 client, liblockfile, a dead file",
        link(),
        peer,
        crashes=0,
        newcomer=False,
        start=starts.dead_liblockfile,
    )
    strict = link(strict=True)
    yield _linked("2 clients, strict, liblockfile", strict, strict, peer, soak=True)
    yield _linked(
        "1 client, strict, 2 rounds, liblockfile, 2 rounds",
        link(strict=True, rounds=2),
        twice,
        soak=True,
    )
    yield _linked(
        "1 client, strict, 2 of liblockfile",
        strict,
        peer,
        peer,
        soak=True,
        may=frozenset({MIXED, FOREIGN}),
    )


def _peer(rounds: int = 1) -> Client:
    return Client(liblockfile(rounds=rounds), party="liblockfile")
