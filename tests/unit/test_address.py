"""URLs of stores as people mistype them: never a lock in a file, never a password in a text."""

from __future__ import annotations

import os
import pathlib

import pytest

import lifehold
from lifehold import AsyncLock, InvalidArgument, Lock, ReadWriteLock, Semaphore, connect, once
from lifehold.cli.main import main
from lifehold.core.address import refuse_torn, without_password
from lifehold.core.mask import masked_urls

SECRET = "sEcr3t"
LOST = (
    "postgresql:/h/db#n",
    "postgresql:h/db",
    "sqlite:/var/lib/locks.db#n",
    "memory:/#n",
    "file:/srv/jobs#n",
    "redis:/h/0#n",
    "PostgreSQL:/h/db#n",
    "/srv/postgresql:/h/db#n",
)


@pytest.mark.parametrize("path", [*LOST, pathlib.Path("postgresql://h/db#n")], ids=str)
def test_a_url_that_lost_a_slash_is_no_lock_in_a_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (
        Lock, AsyncLock, ReadWriteLock, lambda given: Semaphore(given, 2), connect,
        lambda given: once(str(given), int), lambda given: lifehold.aconnect(given).send(None),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="lost a slash"):
            make(path)
    assert not os.listdir()


@pytest.mark.parametrize(
    "words",
    [["run", "-n", "{}", "--", "true"], ["who", "{}"], ["wait", "{}"], ["once", "{}", "--", "true"],
     ["check", "{}"], ["store", "check", "{}"], ["run", "--store", "{}", "n", "--", "true"]],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_no_command_takes_it_for_a_file(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([word.format("postgresql:/h/db#n") for word in words]) == 64
    assert not os.listdir()
    assert "traceback" not in capsys.readouterr().err.lower()


def test_a_file_whose_name_has_a_colon_is_a_file(tmp_path):
    for name in ("a:b.lock", "10:30", "postgres-1:2", "x/sqlite"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        with Lock(path, wait=0):
            pass


@pytest.mark.parametrize(
    "url",
    [f"host=h password={SECRET}", f"host=h password='{SECRET} {SECRET}' dbname=x",
     f"lh:{SECRET}@host/db", f"postgresql:/lh:{SECRET}@h/db",
     f"postgresql://lh:x/{SECRET}@127.0.0.1:1/db", f"postgresql://lh:1/{SECRET}@127.0.0.1:1/db",
     f"postgresql://lh:x#{SECRET}@127.0.0.1:1/db", f"postgresql://lh:x?{SECRET}@127.0.0.1:1/db",
     f"postgresql://lh:x@{SECRET}@127.0.0.1:1/db", f"postgresql://lh:{SECRET}@127.0.0.1:1/db",
     f"postgresql://127.0.0.1:1/db?user=lh&password={SECRET}", f"redis://:{SECRET}@h/0"],
)  # fmt: skip
def test_no_text_shows_a_password(url, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("psycopg")
    with pytest.raises(lifehold.LifeholdError) as caught:
        connect(url, **({"timeout": 2} if "127.0.0.1" in url else {})).lock("n", wait=0).acquire()
    told = [str(caught.value), repr(caught.value)]
    if "://" in url:
        with pytest.raises(lifehold.LifeholdError) as caught:
            Lock(f"{url}#n", wait=0).acquire()
        told += [str(caught.value), repr(caught.value)]
    for words in (["store", "check", url], ["run", "--store", url, "n", "--", "true"]):
        assert main(words) != 0
        told += capsys.readouterr()
    assert SECRET not in "".join(told)


@pytest.mark.parametrize(
    "url",
    [f"redis://h/0?password={SECRET}", f"postgresql://h/d?user=u&password={SECRET}",
     f"postgresql://h/d?password={SECRET}&aplication_name=x", f"postgresql://h/d?pasword={SECRET}",
     f"postgresql://h/d?password={SECRET}%", f"postgresql+x://h/d?user=u&password={SECRET}",
     f"redis://h/0?username=u&password={SECRET}#n"],
)  # fmt: skip
def test_no_text_shows_a_password_behind_the_question_mark(url, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("psycopg")
    named = "#" in url
    calls = [lambda: Lock(url, mode=0o600), lambda: Lock(url, shared=True),
             lambda: Lock(url, cleanup=True), lambda: AsyncLock(url, kind="soft"),
             lambda: ReadWriteLock(url), lambda: Semaphore(url, 3)]  # fmt: skip
    told = []
    for call in calls if named else [*calls, lambda: Lock(url)]:
        with pytest.raises(lifehold.LifeholdError) as caught:
            call()
        told += [str(caught.value), repr(caught.value)]
    commands = [] if named else ["who", "check", "wait", "clear", "log", "touch"]
    for command in commands:
        assert main([command, url]) != 0
        told += capsys.readouterr()
    if not named:
        assert main(["run", url, "--", "true"]) != 0
        told += capsys.readouterr()
    assert SECRET not in "".join(told)
    assert "***" in "".join(told)


@pytest.mark.parametrize(
    "url",
    ["postgresql://h/db", "postgresql://u@h:5432/db?sslmode=require", "postgresql://[::1]:1/db",
     "postgresql://u:p%40x@[::1]/db", "postgresql://h:1,g:2/db", "postgresql:///db?host=/tmp",
     "postgresql:///db?user=me@corp", "postgresql://h/db#user@host", "sqlite:////var/a@b.db#x@y",
     "memory://a@b", "redis://:p@h/0", "postgresql:///d?host=@abstract"],
)  # fmt: skip
def test_a_url_that_is_whole_is_none_that_is_torn(url):
    refuse_torn(url)


def test_what_is_shown_leads_there_with_the_password_from_elsewhere():
    shown = without_password("postgresql://app:x%40y@h:1/db?sslmode=require&password=z#n")
    assert shown == "postgresql://app@h:1/db?sslmode=require#n"
    assert masked_urls(shown) == shown  # the command masks it once more, and leaves it whole
    assert masked_urls("https://ghp_0123@github.com/x") == "https://***@github.com/x"
    assert without_password("sqlite:////var/a@b.db#x@y") == "sqlite:////var/a@b.db#x@y"
