"""The explorer finds what a weaker fenced file does."""

from __future__ import annotations

import pytest

from explore.claims.fence import fence_claims
from lifehold.recipes.fence import file
from lifehold.testing.explore import LEAK

pytestmark = pytest.mark.large

CLAIMS = [claim for claim in fence_claims() if not claim.soak]


def found(name: str) -> set[str]:
    (claim,) = (each for each in CLAIMS if name in each.name)
    return claim.game().run(seconds=100, stop_at=frozenset({LEAK})).kinds


def test_data_that_is_renamed_before_its_fence_is_noted_is_found(monkeypatch):
    def put(self, data, token, still):
        known = self.fence()
        file.admit(self.path, token, known.fence)
        copy = self._copy()
        made = self._fill(copy, data, self.path, None)
        copy.move(self.path, still)
        copy.abandon()
        self._note(file.Fence(token, (token, made), known.written), still, None)

    monkeypatch.setattr(file.FencedPair, "put", put)
    assert LEAK in found("2 writers and a reader")


def test_a_fence_that_forgets_the_data_before_is_found(monkeypatch):
    note = file.FencedPair._note

    def forgetful(self, fence, still, before):
        note(self, file.Fence(fence.fence, fence.written), still, before)

    monkeypatch.setattr(file.FencedPair, "_note", forgetful)
    assert LEAK in found("2 writers and a reader")


def test_a_write_that_compares_nothing_is_found(monkeypatch):
    monkeypatch.setattr(file, "admit", lambda name, token, fence: token)
    assert LEAK in found("2 writers, each advances")


def test_a_reader_that_lets_go_of_the_data_before_it_reads_the_fence_is_found(monkeypatch):
    def read(self):
        for _ in range(file.TRIES):
            fd = self._open(self.path)
            data = which = None
            if fd is not None:
                data, seen = self._content(fd, self.path, None)
                which = file.identity(seen)
                self.files.close(fd)
            known = self.fence()
            if which is None or known.token_of(which) is not None:
                return file.Fenced(data, which and known.token_of(which), known.fence)
        return None

    monkeypatch.setattr(file.FencedPair, "read", read)
    assert LEAK in found("2 writers and a reader")
