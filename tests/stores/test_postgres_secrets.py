"""TLS and passwords: what is refused says why and what to do, and never tells the secret."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from ground import needs
from lifehold import NotAcquired, StoreUnavailable, connect
from lifehold.cli.main import main
from lifehold.ops import stored

pytestmark = needs("postgres", "command:openssl")
SECRET = "s3cr3t/w@rd"
QUOTED = "s3cr3t%2Fw%40rd"


def certificate(folder, name, subject):
    """A self-signed certificate for a host, and its key."""
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}",
         "-out", str(paths[0]), "-keyout", str(paths[1])],
        check=True, capture_output=True, timeout=150,
    )  # fmt: skip
    return paths


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server that speaks TLS, and asks the role ana for a password. And its certificate."""
    from servers import postgres

    with postgres.started() as server:
        server.stop()
        cert, key = certificate(server.home, "server", "IP:127.0.0.1")
        for path in (cert, key):
            server.own(path)
            path.chmod(0o600)
        server.settings |= {"ssl": "on", "ssl_cert_file": str(cert), "ssl_key_file": str(key)}
        rules = server.data / "pg_hba.conf"
        rules.write_text(
            "host all ana 127.0.0.1/32 scram-sha-256\n"
            "host all nowhere 127.0.0.1/32 reject\n" + rules.read_text()
        )
        server.start()
        server.execute(f"CREATE ROLE ana LOGIN PASSWORD '{SECRET}'")
        server.execute("CREATE ROLE nowhere LOGIN")
        stored.migrate(server.url, "ana")
        readable = tmp_path_factory.mktemp("trust") / "server.crt"
        readable.write_bytes(cert.read_bytes())
        yield server, readable


def url_of(server, **options):
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return f"postgresql://ana:{QUOTED}@127.0.0.1:{server.port}/test?{query}"


def refused(url, **options):
    """What is told, everything that hangs on it included."""
    with pytest.raises(StoreUnavailable) as caught:
        connect(url, **options).lock("job", wait=0).acquire()
    whole = "".join(traceback.format_exception(caught.value))
    for secret in (SECRET, QUOTED):
        assert secret not in whole
        assert secret not in repr(caught.value)
    return str(caught.value)


def test_a_connection_is_encrypted_and_the_server_is_who_it_says(secured):
    server, trusted = secured
    url = url_of(server, sslmode="verify-full", sslrootcert=trusted)
    with connect(url).lock("tls", wait=0) as lease:
        lease.verify()
    told = {each.what: each.why for each in stored.check(url).findings}
    assert told["connection"].startswith("encrypted, TLSv1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sslmode": "verify-full"}, "sslrootcert="),
        ({"sslmode": "verify-full", "sslrootcert": "system"}, "signed by nobody we trust"),
        ({"sslmode": "verify-ca", "sslrootcert": "/nowhere/ca.crt"}, "sslrootcert="),
    ],
    ids=str,
)
def test_a_certificate_that_nobody_vouches_for_is_refused(secured, options, words, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")  # no ~/.postgresql/root.crt
    told = refused(url_of(secured[0], **options))
    assert words in told
    assert "no such database" not in told


def test_a_certificate_of_another_host_is_refused(secured):
    from servers import postgres

    server, _ = secured
    cert, key = certificate(server.home, "other", "DNS:db.example")
    with postgres.started() as other:
        other.stop()
        for path in (cert, key):
            placed = other.home / path.name
            placed.write_bytes(path.read_bytes())
            placed.chmod(0o600)
            other.own(placed)
        other.settings |= {
            "ssl": "on", "ssl_cert_file": str(other.home / cert.name),
            "ssl_key_file": str(other.home / key.name),
        }  # fmt: skip
        other.start()
        url = f"{other.url}?sslmode=verify-full&sslrootcert={cert}"
        assert "does not fit" in refused(url)
        with connect(f"{other.url}?sslmode=verify-ca&sslrootcert={cert}").lock("x", wait=0):
            pass


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_server_without_tls_is_refused_where_it_is_asked_for(pg_server, secured, mode):
    url = f"{pg_server.url}?sslmode={mode}&sslrootcert={secured[1]}"
    assert "the server speaks no TLS" in refused(url)


def test_a_wrong_password_is_told_and_never_shown(secured, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    server, _ = secured
    wrong = url_of(server).replace(QUOTED, f"{QUOTED}x")
    told = refused(wrong)
    assert "look at the user, the password" in told
    assert "ana" in told
    nothing = url_of(server).replace(f":{QUOTED}", "")
    assert "look at the user, the password" in refused(nothing)
    refusing = url_of(server).replace("ana:", "nowhere:")
    assert "pg_hba.conf" in refused(refusing)
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


def test_the_right_password_is_in_no_record_log_or_word(
    secured, lifehold_command, capfd, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    caplog.set_level(logging.DEBUG)
    server, _ = secured
    url = url_of(server)
    inner = "echo ours; exec cat"  # check and touch ask by name below
    words = ["sh", "-c", inner, sys.executable, f"{url}#job"]
    done = lifehold_command("run", "--store", url, "job", "--", *words)
    assert done.stdout.readline() == "ours\n"
    store = connect(url)
    holder = store.inspect("job")
    with pytest.raises(NotAcquired) as caught:
        store.lock("job", wait=0).acquire()
    shown = f"{store!r} {store.ground()} {holder} {caught.value} {store.lock('x')!r}"
    shown += str(server.execute("SELECT owner FROM lifehold_holder"))
    done.stdin.close()
    assert done.wait(60) == 0
    named = f"{url}#job"
    for words in (
        ["ls", "--json", "--store", url], ["top", "--once", "--store", url],
        ["who", named, f"{url}#other"], ["wait", "--json", named], ["who", "--json", named],
        ["run", named, "--", "/nowhere/x"],
        ["check", "--json", "--token", "1", named], ["touch", "--json", named], ["clear", named],
        ["store", "check", url], ["run", "-v", named, "true"], ["run", "--json", named, "true"],
        ["once", "-v", named, "true"], ["once", "--json", named, "true"], ["log", "--json", named],
        ["once", "--forget", named], ["log", f"{url}#else"],
    ):  # fmt: skip
        if words[0] in ("run", "once"):  # in a process of their own
            said = "".join(lifehold_command(*words).communicate(timeout=60))
        else:
            main(words)
            said = "".join(capfd.readouterr())
        assert SECRET not in said, words
        assert QUOTED not in said, words
        shown += said
    shown += caplog.text + "".join(capfd.readouterr()) + (server.home / "log").read_text()
    assert "job" in shown
    for secret in (SECRET, QUOTED):
        assert secret not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--store", "URL#x", "job", "true"], ["run", "--store", "URL", "URL#x", "true"],
        ["run", "URL", "true"], ["run", "--kind", "soft", "URL#x", "true"],
        ["run", "-F", "URL#x", "true"], ["run", "--bogus", "URL#x", "true"], ["run", "URL#x"],
        ["run", "--wait", "URL", "URL#x", "true"], ["run", "--also", "URL", "URL#x", "true"],
        ["run", "--slots", "a,b", "URL#x", "true"], ["run", "URL#%ff", "true"],
        ["run", "URL&nonsense=1#x", "true"], ["run", "URL%zz#x", "true"],
        ["who", "--bogus", "URL#x"], ["who", "URL"], ["wait", "URL"], ["wait", "URL#x", "URL#y"],
        ["ls", "--watch", "--names", "URL"], ["ls", "--host", "URL"], ["top", "-d", "0", "URL"],
        ["log", "URL"], ["clear", "URL"], ["clear", "--force", "x", "URL#x", "URL#y"],
        ["check", "URL", "x"], ["touch", "URL#x", "x"], ["doctor", "URL"],
        ["once", "URL", "true"], ["once", "--build", "URL#x", "true"], ["once", "URL#x"],
        ["store", "check", "URL", "x"], ["store", "migrate", "--bogus", "URL"],
        ["store", "URL"], ["store", "check", "URL#x"], ["simulate", "URL"], ["URL"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_word_that_is_refused_is_not_told_with_its_password(words, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path))
    url = f"postgresql://ana:{QUOTED}@127.0.0.1:1/db?sslmode=disable"
    try:
        status = main([word.replace("URL", url) for word in words])
    except SystemExit as error:
        status = error.code
    assert status not in (0, 70)
    told = "".join(capfd.readouterr())
    assert told
    for secret in (SECRET, QUOTED):
        assert secret not in told


@pytest.fixture
def lifehold_command(tmp_path):
    """Start the command; whatever was started is gone when the test ends."""
    started = []
    source = Path(__file__).parents[2] / "src"
    environ = os.environ | {"PYTHONPATH": str(source), "LIFEHOLD_DIR": str(tmp_path)}

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "lifehold", *words], env=environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(90)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
