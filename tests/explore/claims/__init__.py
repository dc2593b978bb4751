"""What is claimed of the locks this library ships, as configurations of the explorer.

    python -m lifehold.testing.explore                 those of every test run
    python -m lifehold.testing.explore --soak          the larger ones too
    python -m lifehold.testing.explore -k cleanup -v   some, with the schedule of what they find

A row shows clients x crashes, states, transitions, runs of client code, seconds, whether all states
were seen, and violations with their shortest length. Status 1: a row shows what it may not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from explore.claims.claim import Claim, kept


def every() -> Iterator[Claim]:
    """Each claim once, kind by kind."""
    from explore.claims.directory import directory_claims
    from explore.claims.fence import fence_claims
    from explore.claims.filelock_log import filelock_claims
    from explore.claims.filelock_soft import marks_claims
    from explore.claims.filelock_strict import strict_claims
    from explore.claims.folder import folder_claims
    from explore.claims.generation_and_link import generation_and_link_claims
    from explore.claims.kernel import kernel_claims
    from explore.claims.once import once_claims
    from explore.claims.readwrite import readwrite_claims
    from explore.claims.shapes import shapes_claims
    from explore.claims.soft import soft_claims

    yield from kernel_claims()
    yield from soft_claims()
    yield from shapes_claims()
    yield from readwrite_claims()
    yield from filelock_claims()
    yield from marks_claims()
    yield from strict_claims()
    yield from once_claims()
    yield from fence_claims()
    yield from generation_and_link_claims()
    yield from directory_claims()
    yield from folder_claims()


def main(arguments: list[str] | None = None) -> int:
    """Play the claims and print a row for each."""
    name, raw = "python -m lifehold.testing.explore", argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(name, description=__doc__, formatter_class=raw)
    parser.add_argument("--soak", action="store_true", help="the larger configurations too")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each, at most")
    parser.add_argument("-k", metavar="WORD", default="", help="only those with WORD in their name")
    parser.add_argument("-v", action="store_true", help="show the schedules")
    options = parser.parse_args(arguments)
    wrong = states = 0
    for claim in every():
        if options.k in claim.name and (options.soak or not claim.soak):
            report = claim.game().run(seconds=options.seconds)
            states += report.states
            wrong += not kept(claim, report.kinds, report.exhaustive)
            print(report if options.v else report.line(), flush=True)
    print(f"{states:,} states; {wrong or 'no'} configuration shows more than it may")
    return 1 if wrong else 0
