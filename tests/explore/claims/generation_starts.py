"""Folders of numbered records as others left them: where an exploration begins."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from explore.claims.leases_model import NEAR, TTL
from lifehold.core.owner import Owner
from lifehold.local.record import HELD, RELEASED, VOID, RecordTemplate, WrittenRecord
from lifehold.testing.clients import PATH

if TYPE_CHECKING:
    from lifehold.testing.world import World


def numbered(
    world: World,
    number: int,
    *,
    pid: int,
    state: str,
    after: str = "",
    token: int = 0,
    ttl: float | None = None,
    witness: bool = True,
) -> str:
    """A record in the folder, as a process that is gone left it. Its nonce."""
    if PATH not in world.names:
        world.put(PATH, b"", stat.S_IFDIR, 0o755)
    ino = world.put(f"{PATH}/{number:020d}")
    token = token or number
    words = RecordTemplate("generation", Owner(pid=pid), ttl, NEAR, witness=witness)
    mark = f"{number:016x}"
    sheet = WrittenRecord(words, ino, token, world.clock // 1000, after=after, mark=mark)
    text = sheet.text if state == HELD else sheet.now(state)
    world.nodes[ino] = world.nodes[ino]._replace(data=text)
    world.token["lock"] = token
    return sheet.nonce


def free_folder(world: World) -> None:
    """Held before and released."""
    numbered(world, 7, pid=0, state=RELEASED)


def dead_holder(world: World) -> None:
    """Its holder died, and had not yet removed its predecessor."""
    after = numbered(world, 6, pid=0, state=RELEASED)
    numbered(world, 7, pid=0, state=HELD, after=after)


def burnt(world: World) -> None:
    """Somebody linked the next number and was stopped before he had looked at it: he gave it up."""
    after = numbered(world, 7, pid=0, state=RELEASED)
    numbered(world, 8, pid=0, state=VOID, after=after)


def dead_leased(world: World) -> None:
    """The same with a lease and without a witness."""
    after = numbered(world, 6, pid=0, state=RELEASED)
    numbered(world, 7, pid=0, state=HELD, after=after, ttl=TTL, witness=False)


def dead_liblockfile(world: World) -> None:
    """A file of a process 9 of liblockfile's, which is gone."""
    world.put(PATH, b"9\n")
    world.gone |= {9}
