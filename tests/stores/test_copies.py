"""Copies, pickles, and orders that make no sense."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import pickle

import pytest

import lifehold
from lifehold import Lock
from lifehold.aio import aconnect
from lifehold.runtime.blocking import BLOCKING
from lifehold.stores import connect

_stores = itertools.count()


@pytest.fixture
def store():
    return connect(f"memory://copies-{next(_stores)}")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("where", ["store", "file"])
def test_a_lease_is_not_copied_and_so_no_copy_ends_it(store, tmp_path, copied, where):
    lock = store.lock("x") if where == "store" else Lock(tmp_path / "x.lock")
    with lock as lease:
        with pytest.raises(TypeError, match="a lease cannot be copied or pickled"):
            copied(lease)
        gc.collect()
        lease.check()
        assert lock.locked()


def test_a_copy_of_a_store_and_of_its_lock_is_the_same_one(store):
    assert copy.copy(store) == copy.deepcopy(store) == store
    lock = copy.deepcopy({"lock": store.lock("x", wait=0)})["lock"]
    assert lock._mechanism.runtime is BLOCKING
    with lock, pytest.raises(lifehold.WouldBlock):
        store.lock("x", wait=0).acquire()


def test_neither_is_pickled_and_what_to_do_is_said(store):
    for each in (store, store.lock("x"), store.read_write("x"), store.semaphore("x", 2)):
        with pytest.raises(TypeError, match="hand on its URL, and connect"):
            pickle.dumps(each)


@pytest.mark.parametrize("least", [-1, "7", 1.5, True, None, float("nan"), 2**62 + 1, 2**70])
def test_a_bump_to_what_is_no_token_is_refused_by_name(store, least):
    with pytest.raises(lifehold.InvalidArgument, match="least must be a token"):
        store.bump("x", least)
    assert store.list() == []

    async def main():
        with pytest.raises(lifehold.InvalidArgument, match="least must be a token"):
            await (await aconnect(store.url)).bump("x", least)

    asyncio.run(main())


def test_after_the_highest_bump_tokens_still_grow(store):
    assert store.bump("x", 2**62) >= 2**62
    tokens = []
    for _ in range(3):
        with store.lock("x") as lease:
            tokens.append(lease.token)
    assert 2**62 < tokens[0] < tokens[1] < tokens[2]


@pytest.mark.parametrize("reason", [None, 5, "a\0b", "a\nb", "\ud800"])
def test_a_reason_that_no_audit_can_keep_is_refused(store, reason):
    with store.lock("x") as lease:
        for order in (store.break_, lambda name, why: store.bump(name, 0, why)):
            with pytest.raises(lifehold.InvalidArgument, match="reason must be"):
                order("x", reason)
        lease.verify()


@pytest.mark.parametrize("prefix", [None, 5, b"x"])
def test_a_prefix_that_is_no_text_is_refused(store, prefix):
    with pytest.raises(lifehold.InvalidArgument, match="prefix must be a str"):
        store.list(prefix)


@pytest.mark.parametrize("prefix", ["\ud800", "a\0", "a\nb"])
def test_a_prefix_that_no_name_begins_with_is_refused(store, tmp_path, prefix):
    async def listed():
        await (await aconnect(store.url)).list(prefix)

    for ask in (
        lambda: store.list(prefix),
        lambda: next(store.walk(prefix), None),
        lambda: store.states(prefix),
        lambda: lifehold.connect(f"file://{tmp_path}").list(prefix),
        lambda: asyncio.run(listed()),
    ):
        with pytest.raises(lifehold.InvalidArgument, match="prefix must be printable text"):
            ask()


def test_a_reader_writer_lock_of_a_stores_url_says_how_it_is_had(store):
    for kind in (lifehold.ReadWriteLock, lambda url: lifehold.Semaphore(url, 2)):
        with pytest.raises(lifehold.InvalidArgument, match=r"read_write\(NAME\)"):
            kind(f"{store.url}#x")
