"""The judge of a client that is played: the model says who lives, where no kernel lock does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifehold.core.owner import LifeVerdict
from lifehold.local.judge import LivenessJudge

if TYPE_CHECKING:
    from lifehold.local.record import ParsedRecord
    from lifehold.testing.actor import Actor


class Oracle(LivenessJudge):
    """By identity: asks the model, which may be late or unsure, about the client of a record."""

    __slots__ = ("actor",)

    def __init__(self, kind: str, actor: Actor, grace: float, foreign: float | None = None) -> None:
        super().__init__(kind, {}, grace, foreign)
        self.actor = actor

    def without_witness(self, marker: ParsedRecord, one_kernel: bool) -> LifeVerdict:
        if not one_kernel:
            return super().without_witness(marker, one_kernel)
        assert marker.owner is not None
        return LifeVerdict(self.actor.alive(marker.owner.pid), "as the model says")
