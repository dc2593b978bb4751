"""A folder of bids, of which the lowest ticket has the lock: lockfolder's, with an election.

Promise: at most one holder, among ours and real lockfolder processes; among ours the lock goes
round in the order of asking, and one of those who ask gets it: nobody withdraws for another. Rule:
Lamport's bakery. A bid is there *before* its ticket is chosen, and the others are looked at *after*
it was; so of two that do not see each other's ticket each sees the other's bid, and waits.

Acquire   1 Publish a bid under a new name, its ticket 0: being chosen.
          2 List; ticket = the highest there + 1, not behind the clock; write it into the bid.
          3 List. Each other bid: gone, go on. Of a dead process: remove it. Held, of lockfolder,
            being chosen, or with a lower (ticket, name): wait until it changes, and 3.
          4 None in the way: write "held" into the bid.
Release   Remove the bid, by its name. Who waits stays in line; who gives up removes its bid.

Lockfolder posts, looks again, and withdraws when it sees a bid of ours: it never enters beside one.
L2, L3  rivals.py: which bids are dead, and that a removal names one.
L4  local/counter.py, in a file beside the folder. The ticket is not the token: the folder may go.
L6  A bid without a handle withdraws itself.
"""

from __future__ import annotations

from ..core.deadline import NEVER
from ..core.errors import UnsafeGround
from ..core.fence import next_token
from ..core.grant import Grant, Held
from ..core.liveness import ALIVE
from ..core.value import replace
from . import bids, named
from .bids import Bid
from .counter import draw
from .files import CREATE, LOCK_SH, READ_WRITE
from .marker import HELD, WAITING
from .numbered import sweep
from .paper import look
from .refusals import make_folders, refused
from .rivals import Rivals, pid_here
from .sheet import Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.acquire import Ask
    from .stake import Stake

SHORT = 0.0002  # seconds between two of them
RETRY = 0.25  # seconds between two looks at what no event will tell
CHOOSING = 0


class FolderLock(Rivals):
    """The mechanism of one folder of bids. Made once per Lock object."""

    leased = False
    safety = 2.0  # seconds between two looks of a waiter to whom no event comes
    looks = 40  # at bids whose ticket is being chosen, before a try without patience gives up

    def _refuse_far(self) -> None:
        self.ready()
        if self.place.shared:
            raise UnsafeGround(
                f"{self.path!r} lies on {self.place.words}: whoever lists a folder there may be "
                "shown an old listing, and would not see a bid. Use kind='directory' with ttl=30",
                name=self.path,
            )

    def _more(self) -> str:
        return bids.members()

    # ---- one try

    def attempt(self) -> Grant | Held:
        """One try that does not wait: no bid is posted where somebody stands before it."""
        try:
            if not self._sound:
                self._refuse_far()
                self._sound = True
            if self._anybody():
                return Held("", self.key)
            bid = self._bid()
            try:
                answer = self._try(bid)
                for _ in range(self.looks):
                    if isinstance(answer, Grant) or not bid.choosing:
                        break
                    self.files.pause(SHORT)
                    answer = self._try(bid)
            except BaseException:
                bid.close()
                raise
            if not isinstance(answer, Grant):
                bid.close()
            return answer
        except OSError as error:
            raise refused(self.path, error) from error

    async def wait(self, ask: Ask, until: float) -> Grant | Held:
        """Stand in line: the bid stays posted in `ask.slot`. Then one look."""
        bid = ask.slot
        try:
            if isinstance(bid, Bid) and bid.here and self._gone(bid) is None:
                await self._sleep(ask, bid, until)
            else:
                _leave(ask)
                bid = ask.slot = self._bid()
            answer = self._try(bid)
        except BaseException as error:
            ask.slot = None
            if isinstance(bid, Bid):
                bid.close()  # at once: the exception keeps this frame, and with it the bid
            if isinstance(error, OSError):
                raise refused(self.path, error) from error
            raise
        if isinstance(answer, Grant):
            ask.slot = None
        return answer

    async def _sleep(self, ask: Ask, bid: Bid, until: float) -> None:
        """Until who comes right before us has gone, or something else is to be looked at."""
        if bid.ahead is not None and bid.ahead[0] != bid.last:
            _leave(ask)
            bid.ahead = None
        if bid.last:
            await self._stand(ask, bid, until)
            return
        # The event of a crash may come while the kernel still keeps the witness.
        blindly = bid.unsure or bid.pid is None
        limit = min(until, self.runtime.now() + RETRY) if blindly else until
        await self.runtime.changed(ask, bid.at, limit, pid=bid.pid)

    async def _stand(self, ask: Ask, bid: Bid, until: float) -> None:
        """In the kernel's queue for the witness of who comes before us: his end wakes us alone.

        Shared, so that it keeps nobody from judging. That his bid was taken away by order while he
        lives is told by nothing: it is looked at now and then.
        """
        if bid.ahead is None:
            _leave(ask)
            paper = look(self.table, f"{self.path}/{bid.last}", write=False)
            if paper is None:
                return
            bid.ahead = bid.last, paper
        paper = bid.ahead[1]
        if self.safety < NEVER:
            until = min(until, self.runtime.now() + self.safety)
        if await self.runtime.block(ask, paper, LOCK_SH, until):
            bid.ahead = None
            paper.close()

    # ---- the bakery

    def _bid(self) -> Bid:
        """1 and 2. A bid with its ticket."""
        mode = 0o666 if self.shared else 0o600 if self.mode is None else self.mode
        bid = self._blank(mode)
        name = bid.name
        bid.let_go = self._withdraw  # L6  under either name
        try:
            if self.shared or self.mode is not None:
                self.files.fchmod(bid.fd, mode)
            bid.witness = self._bear_witness(bid)
            bid.stamp_ns = now = self.files.clock_ns()
            bid.sheet = Sheet(
                self._words(bid.witness), bid.key[1], CHOOSING, now // 1000,
                mark=bids.nonce_in(name),
            )  # fmt: skip
            bid.write(bid.sheet.now(WAITING), sync=False)
            self.files.rename(f"{self.path}/{bids.aside(name)}", f"{self.path}/{name}")
            highest = self._highest(bid)
            ticket = next_token(highest, self._last, now // 1000)
            bid.write(bid.sheet.renumbered(ticket, now // 1000), sync=False)
        except BaseException:
            bid.close()
            raise
        return bid

    def _blank(self, mode: int) -> Bid:
        """A file that nobody has seen, under a temporary name in the folder.

        Not one without a name (O_TMPFILE): what is written into such a file, and its close by a
        crash, is told to nobody who watches for the name that it gets later.
        """
        name = bids.new_name()
        aside = bids.aside(name)
        try:
            return Bid(self.table, f"{self.path}/{aside}", name, READ_WRITE | CREATE, mode)
        except FileNotFoundError:
            if self.shared or self.mode is not None:
                make_folders(self.files, self.path)
                named.begin(self.files, self.path, mode)
            else:
                make_folders(self.files, f"{self.path}/{aside}")
            return Bid(self.table, f"{self.path}/{aside}", name, READ_WRITE | CREATE, mode)

    def _try(self, bid: Bid) -> Grant | Held:
        """3 and 4. A look at all others."""
        if (lost := self._gone(bid)) is not None:
            return Held(lost.reason, self.key)
        if self._stays(bid):
            return Held("", self.key)
        nearest = self._nearest(bid)
        if nearest is None:
            return self._enter(bid)
        seen, verdict = nearest
        bid.choosing, bid.unsure = seen.ticket == CHOOSING, verdict.state != ALIVE
        witnessed = bid.witness and seen.marker.witness and not (bid.choosing or bid.unsure)
        bid.last = seen.name if witnessed else ""
        bid.at, bid.pid = f"{self.path}/{seen.name}", pid_here(seen)
        return Held("" if verdict.state == ALIVE else verdict.evidence, self.key)

    def _enter(self, bid: Bid) -> Grant | Held:
        """4. A bid that is held stands before all others, so from here on its number may grow."""
        mode = 0o666 if self.shared else 0o600 if self.mode is None else self.mode
        bid.stamp_ns, ticket = self.files.clock_ns(), bid.sheet.number
        now, exactly = bid.stamp_ns // 1000, self.shared or self.mode is not None
        bid.sheet.renumbered(ticket, now)
        bid.write(bid.sheet.now(HELD), sync=False)
        drawn = draw(self.files, self.path, self._last, ticket, mode, exactly)
        if isinstance(drawn, int) and drawn != ticket:
            bid.write(bid.sheet.renumbered(drawn, now), sync=False)
        if self._aside:
            sweep(self.files, self.path, self._aside, bid.fd)
        answer = self._granted(bid)
        if isinstance(answer, Grant) and not isinstance(drawn, int):
            return replace(answer, token=None, token_reason=drawn)
        return answer

    # ---- the end of a grant

    def _withdraw(self, stake: Stake) -> None:
        assert isinstance(stake, Bid)
        if not bids.remove(self.files, self.path, stake.name):
            bids.remove(self.files, self.path, bids.aside(stake.name))

    def _give_back(self, stake: Stake) -> None:
        assert isinstance(stake, Bid)
        bids.remove(self.files, self.path, stake.name)


def _leave(ask: Ask) -> None:
    """Give up the place in a queue. L6  What came first is let go of: it was a look, no lock."""
    place = ask.place
    if place is not None:
        if place.leave():
            place.undo()
        ask.place = None
