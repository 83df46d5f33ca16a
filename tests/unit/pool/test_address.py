"""A PostgreSQL URL as libpq reads it, in the driver's terms: every option is honoured, or refused by name."""

import pwd
import socket
import ssl
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.address import MODES, address_of, place_of
from orchestrator.pool.engine import open_engine
from orchestrator.settings.config import load

LOGIN = "postgresql://a%40b:p%2Fw%23%3A+%20@"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg"])
def test_each_scheme_of_postgresql_names_the_same_place(scheme: str) -> None:
    address = address_of(f"{scheme}://u:p@h:5433/d?application_name=x")
    assert (address.hosts, address.user, address.password, address.database) == (
        (("h", 5433),),
        "u",
        "p",
        "d",
    )
    assert address.url == "postgresql://u:p@h:5433/d?application_name=x"


def test_what_is_percent_encoded_is_decoded_and_a_plus_is_a_plus() -> None:
    address = address_of(LOGIN + "h/my%20db?options=-c%20statement_timeout%3D5s&application_name=a+b")
    assert (address.user, address.password, address.database) == ("a@b", "p/w#:+ ", "my db")
    assert address.server_settings == {"application_name": "a+b", "options": "-c statement_timeout=5s"}
    again = address_of(address.of("other:one", "p@ss/w"))
    assert (again.user, again.password) == ("other:one", "p@ss/w")
    assert (again.hosts, again.database, again.server_settings) == (
        address.hosts,
        address.database,
        address.server_settings,
    )


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://h1,h2:5433/d", (("h1", 5432), ("h2", 5433))),
        ("postgresql://h1,h2/d?port=1,2", (("h1", 1), ("h2", 2))),
        ("postgresql:///d?host=h1,h2&port=7", (("h1", 7), ("h2", 7))),
        ("postgresql://[::1]:5433,h/d", (("::1", 5433), ("h", 5432))),
        ("postgresql:///d?host=::1", (("::1", 5432),)),
        ("postgresql:///d?host=/run/postgresql&port=5433", (("/run/postgresql", 5433),)),
        ("postgresql://%2Frun%2Fpostgresql:5433/d", (("/run/postgresql", 5433),)),
        ("postgresql://first/d?host=second", (("second", 5432),)),
        ("postgresql:///d", ()),
    ],
)
def test_hosts_are_named_as_libpq_names_them(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    address = address_of(url)
    assert address.hosts == hosts and address_of(address.of("u", "p")).hosts == hosts
    given = address.arguments(timeout_s=3)
    assert [*zip(given.get("host", []), given.get("port", []), strict=True)] == list(hosts)


def test_a_port_without_a_host_is_kept() -> None:
    assert address_of("postgresql://u@:5433/d").arguments(timeout_s=3)["port"] == 5433
    assert address_of("postgresql:///d?port=5433").arguments(timeout_s=3)["port"] == 5433


def test_the_url_decides_how_long_connecting_may_take_and_how_the_session_is_called() -> None:
    named = address_of("postgresql://h/d?connect_timeout=7&application_name=mine")
    plain = address_of("postgresql://h/d?connect_timeout=0")
    ours = {"application_name": "penstock", "role": "penstock_reader"}
    found = named.arguments(timeout_s=3, server_settings=ours)
    assert found["timeout"] == 7
    assert found["server_settings"] == {"application_name": "mine", "role": "penstock_reader"}
    found = plain.arguments(timeout_s=3, server_settings=ours)
    assert found["timeout"] == 3 and found["server_settings"] == ours
    negative = address_of("postgresql://h/d?connect_timeout=-1&keepalives_idle=-7&statement_cache_size=-1")
    assert negative.arguments(timeout_s=3)["timeout"] == 3 and negative.number("keepalives_idle") == 0
    assert negative.arguments(timeout_s=3)["statement_cache_size"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_every_sslmode_reaches_the_driver(mode: str) -> None:
    assert (
        address_of(f"postgresql://h/d?sslmode={mode}").arguments(timeout_s=3)["dsn"]
        == f"postgresql://?sslmode={mode}"
    )
    assert address_of(f"postgresql://h/d?ssl={mode}").url == f"postgresql://h/d?sslmode={mode}"


def test_the_authorities_of_the_system_prove_whole_names() -> None:
    found = address_of("postgresql://h/d?sslrootcert=system").arguments(timeout_s=3)
    assert isinstance(found["ssl"], ssl.SSLContext) and found["ssl"].check_hostname
    with pytest.raises(ServiceError, match="sslmode=verify-full"):
        address_of("postgresql://h/d?sslrootcert=system&sslmode=require").arguments(timeout_s=3)


@pytest.mark.parametrize("name", ["sslrootcert", "sslcrl", "sslcert"])
@pytest.mark.parametrize("mode", ["", "&sslmode=verify-ca"])
def test_a_file_that_tls_cannot_load_is_named(tmp_path: Path, name: str, mode: str) -> None:
    file = tmp_path / "text.pem"
    file.write_text("not a certificate\n")
    address = address_of(f"postgresql://u:secret@h/d?{name}={file}{mode}")
    with pytest.raises(ServiceError, match=rf"{name}=\S+, which cannot be loaded"):
        address.arguments(timeout_s=3)
    address_of(f"postgresql://h/d?{name}={file}&sslmode=disable").arguments(timeout_s=3)  # it is not read


@pytest.mark.parametrize("name", ["min_protocol_version", "max_protocol_version"])
def test_an_option_of_libpq_is_not_taken_for_a_slip_of_another(name: str) -> None:
    with pytest.raises(ServiceError) as refused:
        address_of(f"postgresql://h/d?{name}=3.0")
    assert name in str(refused.value) and "did you mean" not in str(refused.value)


def test_options_of_the_driver_are_named_where_libpq_gets_the_url() -> None:
    address = address_of("postgresql://h/d?statement_cache_size=0&sslmode=disable")
    assert (address.without_libpq, address.url) == (
        ("statement_cache_size",),
        "postgresql://h/d?sslmode=disable",
    )
    assert address_of("postgresql://h/d?sslmode=disable").without_libpq == ()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("foo=1", "foo"),
        ("statement_timeout=5", "options=-c%20NAME%3DVALUE"),
        ("aplication_name=x", "did you mean application_name"),
        ("channel_binding=require", "channel_binding=require"),
        ("gssencmode=require", "gssencmode"),
        ("require_auth=scram-sha-256", "require_auth"),
        ("requirepeer=postgres", "requirepeer"),
        ("hostaddr=10.0.0.1", "hostaddr"),
        ("load_balance_hosts=random", "load_balance_hosts"),
        ("replication=database", "replication"),
        ("client_encoding=latin1", "client_encoding"),
        ("sslmode=on", "sslmode=on"),
        ("target_session_attrs=master", "target_session_attrs=master"),
        ("connect_timeout=soon", "connect_timeout=soon"),
        ("connect_timeout=--5", "connect_timeout=--5"),
        ("connect_timeout=" + "9" * 5000, "9 digits at most"),
        ("tcp_user_timeout=99999999999", "9 digits at most"),
        ("sslrootcert=/nowhere/root.crt", "sslrootcert=/nowhere/root.crt"),
        ("sslcert=/nowhere/c.crt&sslkey=/nowhere/c.key", "sslcert=/nowhere/c.crt"),
        ("passfile=/nowhere/pass", "passfile=/nowhere/pass"),
        ("service=nowhere", "nowhere"),
        ("pgbouncer=true", "pgbouncer"),
        ("sslmode", "sslmode"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(options: str, named: str) -> None:
    with pytest.raises(ServiceError) as refused:
        address_of(f"postgresql://u:secret@h/d?{options}")
    assert named in str(refused.value) and "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_of_passwords_that_the_driver_would_ignore_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pass"
    file.write_text("*:*:*:*:secret\n")
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(
            ServiceError,
            match=rf"passfile=/\S+, which others may use \(mode {mode:04o}\): make its mode 0600$",
        ):
            address_of(f"postgresql://u@h/d?passfile={file}")
    with pytest.raises(ServiceError, match=r"passfile=/\S+, which is not a file of passwords: name one$"):
        address_of(f"postgresql://u@h/d?passfile={tmp_path}")
    file.chmod(0o600)
    assert address_of(f"postgresql://u@h/d?passfile={file}").options["passfile"] == str(file)


@pytest.mark.parametrize(
    "url",
    [
        "host=h dbname=d password=secret",
        "mysql://u:secret@h/d",
        "postgresql:/u:secret@h/d",
        "postgresql://u:sec/secret@h/d",
        "postgresql://u:p@secret@h/d",
        "postgresql://u:p@h:secret/d",
        "postgresql://u:p@h:0/d",
        "postgresql://u:p@h:1:2/d",
        "postgresql://u:p@h1,,h2/d",
        "postgresql://u:secret%00@h/d",
        "postgresql://u:p?secret@h/d",
        "postgresql://u:p?secret=1@h/d",
        "postgresql://u:1/p?secret@h/d",
        "postgresql://u:p@h:" + "9" * 5000 + "/d",
        "postgresql://u:p@[::1/d",
        "postgresql://u:p@h1,h2,h3/d?port=1,2",
        "",
    ],
)
def test_what_is_not_a_url_of_postgresql_is_one_sentence_without_its_password(url: str) -> None:
    with pytest.raises(ServiceError) as refused:
        address_of(url)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)
    assert "secret" not in place_of(url)


@pytest.mark.parametrize("unseen", ["\r", " ", "\n", "\t", "\u00a0", "\u200b", "\x7f"])
def test_white_space_in_a_url_is_refused_by_the_name_of_its_key(unseen: str) -> None:
    for url in (
        f"postgresql://u:secret@h/d{unseen}",
        f"postgresql://u:secret@h{unseen}/d",
        f"{unseen}postgresql://h/d",
    ):
        with pytest.raises(ServiceError, match=rf"^DATABASE_URL has .*\(U\+{ord(unseen):04X}\)") as refused:
            address_of(url)
        assert str(refused.value).isprintable() and "secret" not in str(refused.value)
    load(None, [f"services.database_url=postgresql://h/d{unseen}x"])
    with pytest.raises(ServiceError, match=r"^--set services\.database_url has white space"):
        address_of(f"postgresql://h/d{unseen}x")


def test_a_service_gives_what_the_url_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "services.conf"
    file.write_text("[mine]\nhost=h1\nport=5433\ndbname=d1\nuser=u1\npassword=a%b\napplication_name=one\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    address = address_of("postgresql:///?service=mine")
    assert (address.hosts, address.database, address.user, address.password) == (
        (("h1", 5433),),
        "d1",
        "u1",
        "a%b",
    )
    assert address.server_settings == {"application_name": "one"}
    other = address_of("postgresql://u2@h2/d2?service=mine&application_name=two")
    assert (other.hosts, other.database, other.user) == ((("h2", 5432),), "d2", "u2")
    assert other.server_settings == {"application_name": "two"}
    file.write_text("[mine]\nhost=h1\nunknown_option=1\n")
    with pytest.raises(ServiceError, match="unknown_option"):
        address_of("postgresql:///?service=mine")


def test_the_url_for_other_programs_is_libpqs_own() -> None:
    url = "postgresql+asyncpg://u:p%40@h/d?prepared_statement_cache_size=0&ssl=require&options=-c%20a%3Db"
    assert address_of(url).url == "postgresql://u:p%40@h/d?sslmode=require&options=-c%20a%3Db"
    assert address_of(url).arguments(timeout_s=3)["statement_cache_size"] == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@127.0.0.1:1/d?sslmode=verify-full",  # no authorities are named, and the home directory has none
        "postgresql://u@127.0.0.1:1,127.0.0.1:2/d?target_session_attrs=read-write",
        "postgresql://u@%2Fnowhere/d",
        "postgresql://u@host.invalid/d",
        "postgresql://u@" + "h" * 70 + ".invalid/d",
    ],
)
async def test_a_place_that_cannot_be_reached_is_one_sentence(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ServiceError) as refused:
        async with open_engine(url):
            pass
    assert "\n" not in str(refused.value) and str(refused.value).startswith("PostgreSQL at ")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("keepalives_idle=32768", "keepalives_idle is at most 32767"),
        ("keepalives_idle=999999999", "keepalives_idle is at most 32767"),
        ("keepalives_interval=32768", "keepalives_interval is at most 32767"),
        ("keepalives_count=128", "keepalives_count is at most 127"),
    ],
)
def test_a_number_that_no_socket_takes_is_refused_and_the_largest_is_taken(
    option: str, sentence: str
) -> None:
    with pytest.raises(ServiceError, match=sentence):
        address_of(f"postgresql://h/d?{option}")
    name, most = sentence.split()[0], int(sentence.split()[-1])
    assert address_of(f"postgresql://h/d?{name}={most}").number(name) == most
    with socket.socket() as own:
        option_of = {"keepalives_idle": socket.TCP_KEEPIDLE, "keepalives_interval": socket.TCP_KEEPINTVL}
        own.setsockopt(socket.IPPROTO_TCP, option_of.get(name, socket.TCP_KEEPCNT), most)


def test_a_certificate_that_is_not_pem_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "cert"
    file.write_text("no certificate")
    address = address_of(f"postgresql://u:secret@h/d?sslrootcert=system&sslcert={file}")
    with pytest.raises(
        ServiceError, match=r"^the PostgreSQL URL has sslcert=\S+, which cannot be loaded with its key: "
    ) as refused:
        address.arguments(timeout_s=3)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_certificate_of_a_user_without_a_home_directory_has_no_usual_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", absent)
    file = tmp_path / "cert"
    file.write_text("no certificate")
    address = address_of(f"postgresql://u@h/d?sslcert={file}")
    with pytest.raises(ServiceError, match="cannot be loaded with its key"):
        address.arguments(timeout_s=3)
