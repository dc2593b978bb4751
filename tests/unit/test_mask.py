"""Commands that are shown carry no secret and play no tricks on a terminal (L11)."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold.core.mask import SECRET_WORDS, masked_command, masked_urls, names_a_secret, printable
from lifehold.store.postgres.messages import url_of

TABLE = {
    ("mysql", "--password=hunter2"): "mysql --password=***",
    ("mysql", "--password", "hunter2", "db"): "mysql --password *** db",
    ("x", "--PASSWORD=hunter2"): "x --PASSWORD=***",
    ("x", "--api-key", "hunter2"): "x --api-key ***",
    ("x", "--auth-token=hunter2", "y"): "x --auth-token=*** y",
    ("env", "DB_PASSWORD=hunter2", "run"): "env DB_PASSWORD=*** run",
    ("env", "AWS_SECRET_ACCESS_KEY=hunter2"): "env AWS_SECRET_ACCESS_KEY=***",
    ("psql", "postgresql://ana:hunter2@db/x"): "psql postgresql://***@db/x",
    ("c", "https://hunter2@github.com/a/b"): "c https://***@github.com/a/b",
    ("c", "http://h/x?token=hunter2&a=1"): "c http://h/x?token=***",
    ("c", "http://h/x?a=1&apikey=hunter2"): "c http://h/x?a=1&apikey=***",
    ("c", "u=redis://:hunter2@h/0"): "c u=redis://***@h/0",
    ("c", "http://a:hunter2@h/", "http://b:hunter2@h/"): "c http://***@h/ http://***@h/",
    ("c", "http://a:hunter2@h/,http://b:hunter2@h/"): "c http://***@h/,http://***@h/",
    ("curl", "-H", "Authorization: Bearer hunter2"): "curl -H Authorization:***",
    ("curl", "-H", "Authorization: Basic hunter2"): "curl -H Authorization:***",
    ("curl", "-H", "X-Api-Key: hunter2"): "curl -H X-Api-Key:***",
    ("x", "Bearer", "hunter2"): "x Bearer ***",
    ("env", "DB_PASS=hunter2", "run"): "env DB_PASS=*** run",
    ("x", "--pass", "hunter2", "y"): "x --pass *** y",
    ("x", "--smtp-pass=hunter2"): "x --smtp-pass=***",
    ("openssl", "-passin", "pass:hunter2"): "openssl -passin ***",
    ("x", "--user=ana:hunter2"): "x --user=ana:***",
    ("x", "--pass-through=a", "--compass", "b"): "x --pass-through=*** --compass b",
    ("x", "--token", "--verbose"): "x --token --verbose",
    ("x", "--token", "-hunter2"): "x --token ***",
    ("curl", "-u", "ana:hunter2", "h"): "curl -u ana:*** h",
    ("curl", "--user=x", "a:b"): "curl --user=x a:b",
    ("curl", "-uana:hunter2", "h"): "curl -uana:*** h",
    ("curl", "-Uana:hunter2", "h"): "curl -Uana:*** h",
    ("sh", "-c", "curl -uana:hunter2 h"): "sh -c curl -uana:***",
    ("sh", "-c", "curl -u ana:hunter2 h"): "sh -c curl -u ana:***",
    ("sh", "-c", "curl -u 'ana:hunter2' h"): "sh -c curl -u 'ana:***",
    ("mysql", "-uroot", "-phunter2", "db"): "mysql -uroot -p*** db",
    ("sudo", "/usr/bin/mysqldump", "-phunter2"): "sudo /usr/bin/mysqldump -p***",
    ("lifehold", "run", "x", "--", "mariadb", "-phunter2"): "lifehold run x -- mariadb -p***",
    ("sh", "-c", "mysql -phunter2 db"): "sh -c mysql -p***",
    ("sh", "-c", "mysql db -phunter2"): "sh -c mysql db -p***",
    ("sh", "-c", "mysql -phunter2; x"): "sh -c mysql -p***",
    ("sh", "-c", "mysql '-phunter2' x"): "sh -c mysql '-p***",
    ("mysql", "-p", "db"): "mysql -p db",
    ("sh", "-c", "mysql -p db"): "sh -c mysql -p db",
    ("mysql", "-P3306", "--protocol=tcp"): "mysql -P3306 --protocol=tcp",
    ("sshpass", "-phunter2", "ssh", "h"): "sshpass -p*** ssh h",
    ("sshpass", "-p", "hunter2", "ssh", "h"): "sshpass -p *** ssh h",
    ("sh", "-c", "sshpass -p hunter2 ssh h"): "sh -c sshpass -p ***",
    ("mkdir", "-pv", "a"): "mkdir -pv a",
    ("ssh", "-p2222", "h"): "ssh -p2222 h",
    ("cc", "-pthread", "-print", "-Ux"): "cc -pthread -print -Ux",
    ("python", "-u", "x.py"): "python -u x.py",
    ("sort", "-u", "-k1,2"): "sort -u -k1,2",
    ("docker", "run", "-p8080:80", "-p", "81:82"): "docker run -p8080:80 -p 81:82",
    ("git", "push", "-u", "origin"): "git push -u origin",
    ("x", "-uhttp://h/p"): "x -uhttp://h/p",
    ("sh", "-c", "mkdir -p a; cp -pr a b"): "sh -c mkdir -p a; cp -pr a b",
    ("sh", "-c", "sort -u a:b"): "sh -c sort -u a:***",
    ("mount", "-o", "user=ana,password=hunter2", "/x"): "mount -o user=ana,password=*** /x",
    ("sh", "-c", "A=1; DB_PASSWORD=hunter2 run"): "sh -c A=1; DB_PASSWORD=***",
    ("sh", "-c", "mysql --password hunter2"): "sh -c mysql --password ***",
    ("sh", "-c", 'curl -H "Authorization: Bearer hunter2"'): 'sh -c curl -H "Authorization:***',
    ("sh", "-c", "X=1\nTOKEN=hunter2\nrun"): "sh -c X=1\\nTOKEN=***",
    ("python", "-c", "token = 'hunter2'"): "python -c token =***",
    ("x", '{"password": "hunter2"}'): 'x {"password":***',
    ("redis-cli", "-a", "hunter2", "get", "x"): "redis-cli -a *** get x",
    ("mongodump", "-phunter2"): "mongodump -p***",
    ("mongosh", "-u", "x", "-p", "hunter2"): "mongosh -u x -p ***",
    ("docker", "login", "-u", "me", "-p", "hunter2", "h"): "docker login -u me -p *** h",
    ("az", "login", "-p", "hunter2"): "az login -p ***",
    ("zip", "-P", "hunter2", "x.zip"): "zip -P *** x.zip",
    ("7z", "a", "-phunter2", "x.7z"): "7z a -p*** x.7z",
    ("ldapsearch", "-x", "-w", "hunter2"): "ldapsearch -x -w ***",
    ("sqlcmd", "-U", "sa", "-P", "hunter2"): "sqlcmd -U sa -P ***",
    ("smbclient", "-U", "u%hunter2", "//h/s"): "smbclient -U u%*** //h/s",
    ("smbclient", "-Uu%hunter2"): "smbclient -Uu%***",
    ("sqlplus", "u/hunter2@db", "@x.sql"): "sqlplus u/*** @x.sql",
    ("lftp", "-u", "u,hunter2", "h"): "lftp -u u,*** h",
    ("pt-table-sync", "h=a,p=hunter2"): "pt-table-sync h=a,p=***",
    ("xfreerdp", "/u:me", "/p:hunter2"): "xfreerdp /u:me /p:***",
    ("vault", "login", "hunter2"): "vault login ***",
    ("openssl", "enc", "-k", "hunter2"): "openssl enc -k ***",
    ("snmpwalk", "-c", "hunter2", "h"): "snmpwalk -c *** h",
    ("sh", "-c", "redis-cli -a hunter2 get x"): "sh -c redis-cli -a ***",
    ("sh", "-c", "cd /x && ldapsearch -w 'hunter2'"): "sh -c cd /x && ldapsearch -w ***",
    ("x", "--pin=hunter2", "--psk", "hunter2"): "x --pin=*** --psk ***",
    ("x", "--key=hunter2hunter2"): "x --key=***",
    ("x", "--key", "hunter2hunter2"): "x --key ***",
    ("kubectl", "create", "--from-literal=a=hunter2"): "kubectl create --from-literal=***",
    ("x", "A=b;AccountKey=hunter2;"): "x A=b;AccountKey=***",
    ("x", "SharedAccessSignature=hunter2"): "x SharedAccessSignature=***",
    ("curl", "https://h/x?a=1&sig=hunter2"): "curl https://h/x?a=1&sig=***",
    ("curl", "https://h/x?key=hunter2"): "curl https://h/x?key=***",
    ("curl", "https://h/?X-Amz-Signature=hunter2"): "curl https://h/?X-Amz-Signature=***",
    ("curl", "-H", "Cookie: session=hunter2"): "curl -H Cookie:***",
    ("curl", "-b", "sid=hunter2", "h"): "curl -b *** h",
    ("x", "AKIAIOSFODNN7EXAMPLE", "hunter2/bPx"): "x AKIA*** ***",
    ("x", "--t=ghp_16C7e42F292c6912E7710c838347Ae178B4a"): "x --t=ghp_***",
    ("x", "xoxb-1234-hunter2"): "x xoxb-***",
    ("x", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.hunter2"): "x eyJ***",
    ("x", "glpat-hunter2hunter2"): "x glpat-***",
    ("sh", "-c", "x sk-hunter2hunter2hunter2; y"): "sh -c x sk-***; y",
    ("x", "https://ana:hunt/hunter2@h/p"): "x https://***@h/p",
    ("x", "https://h:8080/a@b"): "x https://h:8080/a@b",
    ("x", "a:b", "12:30"): "x a:b 12:30",
    ("x", "--password=a=hunter2"): "x --password=***",
    ("python", "-c", "print(1)"): "python -c print(1)",
    ("grep", "password", "file"): "grep password file",
    ("git", "log", "--author=ana"): "git log --author=ana",
    ("x", ""): "x ",
    (): "",
}


@pytest.mark.parametrize("arguments", TABLE, ids=" ".join)
def test_a_command_line_is_shown_without_its_secrets(arguments):
    shown = masked_command(arguments)
    assert shown == TABLE[arguments]
    assert "hunter2" not in shown


QUERIES = {
    "redis://h/0?password=hunter2": "redis://h/0?password=***",
    "redis://h/0?username=u&password=hunter2&db=1": "redis://h/0?username=u&password=***&db=1",
    "postgresql://h/d?user=u&password=hunter2#n": "postgresql://h/d?user=u&password=***#n",
    "postgresql://h/d?sslmode=require&sslpassword=hunter2%": "postgresql://h/d?sslmode=require"
    "&sslpassword=***",
    "postgresql://h/d?pasword=hunter2": "postgresql://h/d?pasword=***",
    "postgresql://h/d?p%61ssword=hunter2": "postgresql://h/d?p%61ssword=***",
    "https://h/x?key=hunter2&a=1": "https://h/x?key=***&a=1",
    "redis://h/0#n?password=hunter2": "redis://h/0#n?password=***",
    "'redis://h/0?password=a hunter2' is none": "'redis://h/0?password=***' is none",
    "'redis://h/0?password=a\\'hunter2' is": "'redis://h/0?password=***' is",
    "redis://h/0?password=a'hunter2 is": "redis://h/0?password=*** is",
    "a redis://u:hunter2@h/?token=hunter2 b": "a redis://***@h/?token=*** b",
    "x://h?url=redis://u:hunter2@g?password=hunter2": "x://h?url=redis://***@g?password=***",
    "postgresql://h/d?options=-c%20a.secret%3Dhunter2%20-c%20b%3Dc&a=b": "postgresql://h/d?options="
    "-c%20a.secret%3D***&a=b",
    "postgresql://h/d?options=-c%20search_path%3Da": "postgresql://h/d?options=-c%20search_path%3Da",
    "a=b x://h?db=1&sslkey=/f z?password=b": "a=b x://h?db=1&sslkey=/f z?password=b",
}


@pytest.mark.parametrize("text", QUERIES)
def test_the_secrets_in_the_query_of_a_url_are_masked(text):
    assert masked_urls(text) == QUERIES[text]
    assert masked_urls(masked_urls(text)) == QUERIES[text]


ORDINARY = """
cp -a x y
ls -w 80 -a
grep -c x -w y
tar -X list -cf x.tar -P /x
docker run -p 80:80 -it redis
docker compose -p name up
podman login h -u me
ssh -p 22 -b 10.0.0.1 h
mkdir -p a/b
rsync -aP --key-file x a b
rsync -a zipfiles -P there
sort --key=2,2n -k 1
sort --key 2 x
openssl x509 -in a.pem -noout
openssl req -key server.key
gpg --pinentry-mode loopback
taskset --pin-cpu 3 x
zip -r out.zip dir
redis-cli -p 6379 get a
ps -p 1 -o pid
pip install scikit-learn pypi-publish-of-something-long
npm run build npm_config_registry_is_a_long_name_without_a_token
kubectl get pods -A --all-namespaces
git log -p --author=ana
git commit -m fix:typo
curl -b cookies.txt https://h/x?id=5&sort=a
curl -o key.pem https://h/key.pem
make -j4 all KEY=value
python -m sk-something-with-a-long-name-and-no-number
find . -name eyJ -print
sqlplus -S /nolog @x.sql
lftp -e ls h
mysqldump --single-transaction -P 3306 db
smbclient -L //h -N
az vm list -p name
az storage blob list
restic -r /srv/repo backup /home -p /etc/restic/word
borg create repo::a /home
psql -p 5432 -h h db
ffmpeg -i a.mkv -c copy -b 5M b.mp4
snmpd -f -Lo
vault status
rar x a.rar
terraform apply -var region=eu
"""


@pytest.mark.parametrize("command", ORDINARY.strip().splitlines())
def test_an_ordinary_command_is_shown_as_it_is(command):
    assert masked_command(command.split()) == command
    assert masked_command(["sh", "-c", command]) == f"sh -c {command}"


SECRET = some.text("hijklmnop0123456789", min_size=8, max_size=20).map(lambda s: "Q" + s + "Q")
PLAIN = some.text("abcdef./-", max_size=10)
WORD = some.sampled_from(SECRET_WORDS)


@given(PLAIN, WORD, SECRET, PLAIN)
def test_no_secret_survives_that_a_name_announces(before, word, secret, after):
    for arguments in (
        [before, f"--{word}={secret}", after],
        [before, f"--my-{word}-x", secret, after],
        [before, f"{word.upper()}={secret}", after],
        [before, f"https://h/p?{word}={secret}&x=1", after],
        [before, f"https://user:{secret}@h/p", after],
        [before, f"https://{secret}@h/p", after],
        [before, f"X-{word}: {secret}"],
        ["sh", "-c", f"{before} {word}={secret} {after}"],
        ["sh", "-c", f"{before}; x --{word} {secret} {after}"],
        [f'{{"{word}": "{secret}"}}'],
    ):
        assert secret not in masked_command(arguments)


@given(some.lists(some.text()))
def test_any_command_becomes_one_printable_line(arguments):
    shown = masked_command(arguments)
    assert shown.isprintable()
    assert "\n" not in shown


@given(some.text())
def test_any_text_can_be_masked(text):
    masked_urls(text)
    names_a_secret(text)


def test_a_huge_argument_is_masked_in_no_time():
    script = "a=b " * 500_000
    assert len(masked_command([script])) <= 2000


def test_control_characters_and_bytes_are_written_out():
    assert printable("a\x1b[31mb\n\t\r\x00") == "a\\x1b[31mb\\n\\t\\r\\x00"
    assert printable("a\udcffb\u202e\x9b\U000e0001") == "a\\xffb\\u202e\\u009b\\U000e0001"
    assert printable("schön 漢字") == "schön 漢字"


def test_the_options_of_a_server_are_told_without_their_secrets():
    known = {
        "host": "h",
        "options": r"-c search_path=a\ b -c app.secret=hunter2\ x --token=hunter2",
    }
    shown = unquote(url_of(known))
    assert shown == r"postgresql://h/?options=-c search_path=a\ b -c app.secret=*** --token=***"
