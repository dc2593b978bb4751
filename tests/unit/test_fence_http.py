"""Late requests: refused by the middleware, told to the sender; slow ones are waited for."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import threading
from types import SimpleNamespace
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from ground import needs, require
from lifehold import InvalidArgument, LeaseLost, StaleToken
from lifehold.fence import (
    HEADER,
    AsyncSqlTokens,
    FenceASGI,
    FenceWSGI,
    FileTokens,
    LeaseAuth,
    MemoryTokens,
    SqlTokens,
    ahooks,
    create_table,
    hooks,
)


class Client:
    """Calls an application as a server would: (status, headers, body)."""

    def __init__(self, face, app, **options):
        self.face = face
        wrap = FenceASGI if face == "asgi" else FenceWSGI
        self.app = wrap(app, **{"name": "x", "registry": MemoryTokens(), "drain": 30} | options)

    def __call__(self, method="PUT", token=None, path="/"):
        ask = self.asgi if self.face == "asgi" else self.wsgi
        return ask(method, [] if token is None else [str(token)], path)

    def wsgi(self, method, tokens, path):
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path}
        if tokens:
            environ["HTTP_LIFEHOLD_TOKEN"] = ",".join(tokens)
        told = []
        body = self.app(environ, lambda status, headers: told.extend([status, headers]))
        try:
            content = b"".join(body)
        finally:
            if hasattr(body, "close"):
                body.close()
        return int(told[0][:3]), dict(told[1]), content

    def asgi(self, method, tokens, path):
        return asyncio.run(self.aask(method, tokens, path))

    async def aask(self, method, tokens, path="/"):
        sent = []
        scope = {
            "type": "http", "method": method, "path": path,
            "headers": [(b"lifehold-token", token.encode()) for token in tokens],
        }  # fmt: skip

        async def send(message):
            sent.append(message)

        await self.app(scope, None, send)
        headers = {key.decode(): text.decode() for key, text in sent[0]["headers"]}
        return sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent)


def wsgi_echo(environ, start_response):
    start_response("200 OK", [])
    return [str(environ.get("lifehold.token")).encode()]


async def asgi_echo(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(scope.get("lifehold.token")).encode()})


@pytest.fixture(params=["asgi", "wsgi"])
def client(request):
    return lambda **options: Client(
        request.param, asgi_echo if request.param == "asgi" else wsgi_echo, **options
    )


def test_a_late_request_gets_412_in_the_form_of_rfc_9457(client):
    ask = client()
    assert ask(token=6)[::2] == (200, b"6")
    assert ask(token=6)[0] == 200
    status, headers, body = ask(token=5)
    assert status == 412
    assert headers["content-type"] == "application/problem+json"
    told = json.loads(body)
    assert told["type"] == "urn:lifehold:problem:stale-token"
    assert (told["status"], told["name"], told["token"], told["fence"]) == (412, "x", 5, 6)
    assert {"title", "detail"} <= set(told)


def test_a_reading_request_with_a_token_advances_the_fence(client):
    ask = client()
    assert ask("GET", 6)[0] == 200
    assert ask("PUT", 5)[0] == 412
    assert ask("GET", 5)[0] == 412
    assert ask("GET")[::2] == (200, b"None")


def test_a_writing_request_without_a_token_gets_428_where_one_is_required(client):
    for method in ("POST", "PUT", "PATCH", "DELETE", "post", "PURGE"):
        assert client()(method)[0] == 428
    assert client(required=False)("POST")[0] == 200
    for put in (["put"], "put", iter({"PUT": 1}), frozenset({"Put"})):
        only = client(required=put)
        assert (only("PUT")[0], only("POST")[0]) == (428, 200)


@pytest.mark.parametrize("token", ["x", "-1", "", "1.0", "0x1", "1" * 20, 2**63, "٣", "5, 6"])
def test_a_malformed_token_gets_400(client, token):
    status, headers, body = client()(token=str(token).encode().decode("latin-1"))
    assert (status, headers["content-type"]) == (400, "application/problem+json")
    assert json.loads(body)["type"] == "urn:lifehold:problem:malformed-token"


def test_two_headers_are_one_malformed_token():
    ask = Client("asgi", asgi_echo)
    assert ask.asgi("PUT", ["5", "6"], "/")[0] == 400


def test_names_are_apart_and_none_is_not_guarded(client):
    name = lambda request: request.get("path", request.get("PATH_INFO")).strip("/") or None  # noqa: E731
    ask = client(name=name)
    assert ask(token=6, path="/a")[0] == 200
    assert ask(token=5, path="/b")[0] == 200
    assert ask(token=5, path="/a")[0] == 412
    assert ask(path="/")[::2] == (200, b"None")


def test_other_scopes_than_http_are_passed_on():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(FenceASGI(app, name="x", registry=MemoryTokens())({"type": "lifespan"}, 0, 0))
    assert seen == ["lifespan"]


def test_wrong_arguments_are_refused_when_the_application_is_made(client):
    no_methods = [b"POST", None, 1, [b"POST"], ["POST", None], "", [""], "POST, PUT", ["A B"]]
    wrong = {"name": [5], "registry": [object()], "required": no_methods}
    wrong["drain"] = [-1, "5", None, float("nan"), True, []]
    for option, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidArgument, match=option):
                client(**{option: value})


# ---- registries


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql", "pool", "async"])
def registry(request, tmp_path):
    if request.param == "memory":
        return MemoryTokens()
    if request.param == "file":
        return FileTokens(tmp_path / "tokens")
    if request.param == "postgresql":
        dsn = request.getfixturevalue("postgres")
        import psycopg

        with psycopg.connect(dsn) as connection:
            connection.execute("drop table if exists tokens")
            connection.execute(create_table("tokens"))
        return SqlTokens(lambda: psycopg.connect(dsn), table="tokens")
    db = sqlite3.connect(tmp_path / "db")
    db.execute(create_table())
    db.close()
    if request.param == "pool":
        return SqlTokens(lambda: Lent(tmp_path / "db"))
    if request.param == "sqlite":
        return SqlTokens(lambda: sqlite3.connect(tmp_path / "db"))
    require("package:aiosqlite")
    import aiosqlite

    return AsyncSqlTokens(lambda: aiosqlite.connect(tmp_path / "db"))


class Lent:
    """As the `connection` of a pool."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.connection = sqlite3.connect(self.path)
        return self.connection

    def __exit__(self, *_):
        self.connection.close()


def test_every_registry_refuses_older_tokens_for_all_who_share_it(registry):
    one, two = (Client("asgi", asgi_echo, registry=registry) for _ in range(2))
    assert one(token=6)[0] == 200
    assert two(token=5)[0] == 412
    assert two(token=7)[0] == 200
    status, _, body = one(token=6)
    assert (status, json.loads(body)["fence"]) == (412, 7)
    assert Client("asgi", asgi_echo, registry=registry, name="y")(token=5)[0] == 200


def test_a_registry_that_fails_lets_nobody_in(client):
    class Broken:
        blocks = False

        def admit(self, name, token):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        client(registry=Broken())(token=5)


class Awaited:
    """As one writes it for ASGI: `admit` is a coroutine function, and nothing says `blocks`."""

    def __init__(self):
        self.tokens = MemoryTokens()

    async def admit(self, name, token):
        await asyncio.sleep(0)
        self.tokens.admit(name, token)


class AwaitedLater(Awaited):
    """The same behind a plain function."""

    def admit(self, name, token):
        return super().admit(name, token)


class Yielding(Awaited):
    """By mistake: nothing of it runs."""

    def admit(self, name, token):
        yield self.tokens.admit(name, token)


@pytest.mark.parametrize("registry", [Awaited, AwaitedLater])
@pytest.mark.parametrize("blocks", [None, True, False])
def test_a_registry_of_your_own_is_awaited_under_asgi(registry, blocks):
    own = registry()
    if blocks is not None:
        own.blocks = blocks
    ask = Client("asgi", asgi_echo, registry=own)
    assert [ask(token=token)[0] for token in (9, 5, 9)] == [200, 412, 200]


def test_a_registry_whose_answer_would_run_later_lets_nobody_in_under_wsgi():
    ask = Client("wsgi", wsgi_echo, registry=AwaitedLater())
    with pytest.raises(InvalidArgument, match="FenceASGI"):
        ask(token=5)


def test_a_registry_that_is_a_generator_lets_nobody_in(client):
    with pytest.raises(InvalidArgument, match="generator"):
        client(registry=Yielding())(token=5)


@pytest.mark.parametrize("registry", [Awaited(), AsyncSqlTokens(lambda: None)])
def test_a_registry_of_coroutines_is_refused_by_wsgi_when_it_is_made(registry):
    with pytest.raises(InvalidArgument, match="FenceASGI"):
        FenceWSGI(wsgi_echo, name="x", registry=registry)


# ---- slow requests


def test_a_newer_request_waits_until_the_older_one_inside_has_ended_asgi():
    log = []

    async def main():
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            token = scope["lifehold.token"]
            if token == 5:
                inside.set()
                await go_on.wait()
            log.append(token)
            await asgi_echo(scope, receive, send)

        ask = Client("asgi", app)
        older = asyncio.create_task(ask.aask("PUT", ["5"]))
        await inside.wait()
        newer = asyncio.create_task(ask.aask("PUT", ["6"]))
        while not ask.app._admission.requests._rings:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await ask.aask("PUT", ["5"]))[0] == 412
        go_on.set()
        return [(await older)[0], (await newer)[0]]

    assert asyncio.run(main()) == [200, 200]
    assert log == [5, 6]


def test_a_newer_request_waits_until_the_older_one_inside_has_ended_wsgi():
    inside, go_on, log = threading.Event(), threading.Event(), []

    def app(environ, start_response):
        start_response("200 OK", [])
        token = environ["lifehold.token"]
        if token == 5:
            inside.set()
            go_on.wait(90)
        log.append(token)
        yield b"done"

    ask = Client("wsgi", app)
    threads = [threading.Thread(target=ask, args=("PUT", token)) for token in (5, 6)]
    threads[0].start()
    assert inside.wait(90)
    threads[1].start()
    while not ask.app._admission.requests._rings:
        pass
    assert ask(token=5)[0] == 412
    go_on.set()
    for thread in threads:
        thread.join(90)
    assert log == [5, 6]
    assert not ask.app._admission.requests._inside


def test_requests_of_many_threads_end_in_the_order_of_their_tokens():
    written, answers = [], []

    def app(environ, start_response):
        token, pause = environ["lifehold.token"], threading.Event()
        start_response("200 OK", [])
        pause.wait(token % 3 / 1000)
        written.append(token)
        yield b"done"

    ask = Client("wsgi", app)

    def work(seed):
        dice = random.Random(seed)
        for step in range(25):
            token = step * 4 + dice.randrange(12)
            answers.append((ask(token=token)[0], token))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert written == sorted(written)
    assert sorted(written) == sorted(token for status, token in answers if status == 200)
    assert {status for status, _ in answers} == {200, 412}


def test_an_older_request_that_does_not_end_is_503_for_the_newer_one(client):
    ask = client(drain=0)
    requests = ask.app._admission.requests
    requests.enter("x", 5)
    status, headers, body = ask(token=6)
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["name"] == "x"
    assert ask(token=5)[0] == 412
    requests.leave("x", 5)
    assert ask(token=6)[0] == 200
    assert not requests._inside


def test_an_application_that_fails_leaves_nobody_inside():
    def wsgi(environ, start_response):
        raise RuntimeError("no")

    async def asgi(scope, receive, send):
        raise RuntimeError("no")

    for ask in (Client("wsgi", wsgi), Client("asgi", asgi)):
        with pytest.raises(RuntimeError):
            ask(token=5)
        assert not ask.app._admission.requests._inside


@needs("package:trio")
def test_the_middleware_runs_under_trio_too(tmp_path):
    import trio

    ask = Client("asgi", asgi_echo, registry=FileTokens(tmp_path))
    assert trio.run(ask.aask, "PUT", ["6"])[0] == 200
    assert trio.run(ask.aask, "PUT", ["5"])[0] == 412


# ---- senders


class Leased:
    """A lease; `lost`: its check says so."""

    exclusive, lost = True, False

    def __init__(self, token):
        self.token = token

    def check(self):
        if self.lost:
            raise LeaseLost("lost")


@needs("package:httpx")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("given", [hooks, ahooks])
def test_httpx_sends_the_token_and_raises_what_the_service_says(given):
    import httpx

    app, newer = FenceWSGI(wsgi_echo, name="x", registry=MemoryTokens()), Leased(6)

    def client(lease):
        transport = httpx.WSGITransport(app=app)
        return httpx.Client(transport=transport, base_url="http://x", event_hooks=given(lease))

    with client(newer) as now, client(Leased(5)) as late:
        assert now.put("/").text == "6"
        with pytest.raises(StaleToken) as caught:
            late.put("/")
        assert (caught.value.name, caught.value.token, caught.value.fence) == ("x", 5, 6)
        newer.lost = True
        with pytest.raises(LeaseLost):
            now.put("/")


@needs("package:httpx")
def test_httpx_sends_the_token_from_tasks_too():
    import httpx

    async def main():
        app = FenceASGI(asgi_echo, name="x", registry=MemoryTokens())
        transport = httpx.ASGITransport(app=app)
        options = {"transport": transport, "base_url": "http://x"}
        async with (
            httpx.AsyncClient(event_hooks=ahooks(6), **options) as now,
            httpx.AsyncClient(event_hooks=ahooks(Leased(5)), **options) as late,
        ):
            assert (await now.put("/")).text == "6"
            with pytest.raises(StaleToken):
                await late.put("/")

    asyncio.run(main())


@pytest.fixture
def served():
    """A real server on a free port."""

    class Silent(WSGIRequestHandler):
        def log_message(self, *_):
            pass

    app = FenceWSGI(wsgi_echo, name="x", registry=MemoryTokens())
    with make_server("127.0.0.1", 0, app, handler_class=Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(90)


@needs("package:requests")
def test_requests_sends_the_token_beside_another_auth_and_raises_what_the_service_says(served):
    import requests

    newer = Leased(6)
    with requests.Session() as session:
        answer = session.put(served, auth=LeaseAuth(newer, then=("ana", "secret")))
        assert answer.text == "6"
        assert answer.request.headers["Authorization"].startswith("Basic ")
        with pytest.raises(StaleToken) as caught:
            session.put(served, auth=LeaseAuth(5))
        assert caught.value.fence == 6
        assert session.put(served).status_code == 428
        newer.lost = True
        with pytest.raises(LeaseLost):
            session.put(served, auth=LeaseAuth(newer))


def test_another_412_is_none_of_our_business():
    def answer(status=412, media="application/problem+json", body=b"{}"):
        return SimpleNamespace(
            status_code=status, headers={"content-type": media}, content=body, read=lambda: None
        )

    (after,) = hooks(5)["response"]
    ours = json.dumps({"type": "urn:lifehold:problem:stale-token", "fence": "x"}).encode()
    for other in (
        answer(), answer(body=b"no"), answer(body=b"[]"), answer(200, body=ours),
        answer(media="application/json", body=ours), answer(body=b"[" * 100_000),
    ):  # fmt: skip
        after(other)
    with pytest.raises(StaleToken, match="request"):
        after(answer(media="Application/Problem+JSON; charset=utf-8", body=ours))


def test_a_lease_without_a_token_cannot_be_sent():
    none = SimpleNamespace(token=None, token_reason="a directory carries none")
    for make in (hooks, ahooks, LeaseAuth):
        with pytest.raises(StaleToken, match="a directory carries none"):
            make(none)
    assert HEADER == "Lifehold-Token"
