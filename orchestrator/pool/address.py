"""The address of PostgreSQL: a URL as libpq reads it, in the terms of the driver.

Each option is honoured or refused by its name: none is read and ignored. The driver does what libpq does with sockets and certificates.
Service files are read here, because the driver accepts only a few of their options.
"""

import configparser
import os
import re
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from orchestrator.contracts.errors import ServiceError
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.unreachable import AddressOrigin, name_of, origin_of, remember
from orchestrator.settings.url_files import FILE_OPTIONS
from sandboxes.text_files import read_text

DRIVERS: Final = ("postgresql", "postgres")
MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
ATTRIBUTES: Final = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
_PLACE: Final = ("host", "port", "user", "password", "dbname")
_TLS: Final = (
    "sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version",
)  # fmt: skip
_DRIVERS_OWN: Final = ("passfile", "target_session_attrs", "krbsrvname", "gsslib")
_SERVER: Final = ("application_name", "options")
_NUMBERS: Final = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "statement_cache_size",
)
_MAX_VALUES: Final[Mapping[str, int]] = {
    "keepalives_idle": 32_767,
    "keepalives_interval": 32_767,
    "keepalives_count": 127,
}
"""The largest numbers that Linux takes for a socket."""
# Options of libpq for which the driver supports only these values. Other values are refused.
_ONE_VALUE: Final[Mapping[str, tuple[str, ...]]] = {
    "channel_binding": ("prefer", "disable"),
    "gssencmode": ("prefer", "disable"),
    "gssdelegation": ("0",),
    "sslcompression": ("0",),
    "sslsni": ("1",),
    "sslcertmode": ("allow",),
    "load_balance_hosts": ("disable",),
    "client_encoding": ("utf8", "UTF8", "utf-8", "UTF-8", "auto"),
    "replication": ("false", "off", "no", "0"),
}
_OTHER_NAMES: Final = {
    "database": "dbname",
    "username": "user",
    "prepared_statement_cache_size": "statement_cache_size",
    "tls_min_protocol_version": "ssl_min_protocol_version",
}
_NOT_HONOURED: Final = (
    "min_protocol_version",
    "max_protocol_version",
    "require_auth",
    "hostaddr",
    "scram_client_key",
    "scram_server_key",
)
"""Options of libpq that the driver lacks. Those that look like another one are not taken for a slip of it."""
_UNUSED: Final = ("fallback_application_name",)  # for programs without a name; every process here has one
_OURS: Final = ("statement_cache_size",)  # an option of the driver, not of libpq
_KNOWN: Final = (
    *_PLACE, *_TLS, *_DRIVERS_OWN, *_SERVER, *_NUMBERS, *_ONE_VALUE, *_UNUSED, "service", "servicefile",
)  # fmt: skip

_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The content of a URL. `hosts`: (name or socket directory, port), several are tried in order; empty: the driver's choice, at `port`.
    `options`: all its options, under libpq's names; `url`: the original URL, in libpq's form; `origin`: what names it, if that is known."""

    hosts: tuple[tuple[str, int], ...]
    port: int | None
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    options: Mapping[str, str] = field(repr=False)
    url: str = field(repr=False)
    origin: AddressOrigin | None = field(default=None, repr=False, compare=False)

    @property
    def place(self) -> str:
        """host:port/database, for messages: without a login and without options."""
        return _place(self.hosts) + (f"/{self.database}" if self.database else "")

    @property
    def without_libpq(self) -> tuple[str, ...]:
        """The options in it that `url` leaves out: libpq does not know them."""
        return tuple(name for name in _OURS if name in self.options)

    @property
    def server_settings(self) -> dict[str, str]:
        """The settings for the server to set in each session."""
        return {name: self.options[name] for name in _SERVER if name in self.options}

    def number(self, name: str) -> int | None:
        """The value of a numeric option; a negative value is 0, as in libpq. None: the URL does not have the option."""
        return max(0, int(self.options[name])) if name in self.options else None

    def arguments(
        self, *, timeout_s: float, server_settings: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """For `asyncpg.connect`. `timeout_s` is used if the URL has no connect_timeout; the URL's settings override `server_settings`."""
        tls = {name: self.options[name] for name in _TLS if name in self.options}
        arguments: dict[str, Any] = {
            name: self.options[name] for name in _DRIVERS_OWN if name in self.options
        }
        if tls.get("sslrootcert") == "system":
            arguments["ssl"] = _system_roots(tls)
            tls = {}
        elif tls.get("sslmode") != "disable":
            _check_certificates(tls)
        if self.hosts:
            arguments["host"] = [host for host, _ in self.hosts]
            arguments["port"] = [port for _, port in self.hosts]
        elif self.port is not None:
            arguments["port"] = self.port
        for name, value in (("user", self.user), ("password", self.password), ("database", self.database)):
            if value is not None:
                arguments[name] = value
        if (cached := self.number("statement_cache_size")) is not None:
            arguments["statement_cache_size"] = cached
        return {
            **arguments,
            "dsn": "postgresql://" + (f"?{urlencode(tls, quote_via=quote)}" if tls else ""),
            "timeout": float(self.number("connect_timeout") or 0) or timeout_s,
            "server_settings": {**(server_settings or {}), **self.server_settings},
        }

    def of(self, user: str, password: str) -> str:
        """The URL of another login at the same address."""
        options = {name: value for name, value in self.options.items() if name != "passfile"}
        if self.hosts:
            options["host"] = ",".join(f"[{host}]" if ":" in host else host for host, _ in self.hosts)
            options["port"] = ",".join(str(port) for _, port in self.hosts)
        elif self.port is not None:
            options["port"] = str(self.port)
        if self.database:
            options["dbname"] = self.database
        url = f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@/?{urlencode(options, quote_via=quote)}"
        return url if self.origin is None else remember(url, self.origin)


def address_of(url: str) -> Address:
    """Parse a URL. ServiceError, one sentence without its password, for an invalid URL or an option that cannot be honoured."""
    if "%00" in url or "\0" in url:
        raise ServiceError("the PostgreSQL URL has a NUL (%00) in it: take it out")
    if unseen := next((each for each in url if each.isspace() or not each.isprintable()), ""):
        raise ServiceError(
            f"{name_of(url, 'DATABASE_URL')} has white space or an invisible character in it (U+{ord(unseen):04X}): take it out, "
            "or write it as in %20"
        )
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.partition("+")[0] not in DRIVERS:
        raise ServiceError(
            f"{name_of(url, 'DATABASE_URL')} is not a PostgreSQL URL (it begins with {quoted(scheme.partition(':')[0].partition('=')[0], 20)}): "
            "use postgresql://user:password@host:port/database"
        )
    location, _, query = rest.partition("?")
    # To libpq all of that is a login.
    if "@" in query.partition("/")[0] and "/" not in location and ":" in location:
        raise ServiceError(
            "the PostgreSQL URL has a ? before an @: a ? of a login is written %3F, an @ of an option %40"
        )
    authority, slash, path = location.partition("/")
    login, at, named_hosts = authority.partition("@") if "@" in authority else ("", "", authority)
    if "@" in named_hosts or "@" in path:
        raise ServiceError("the PostgreSQL URL has an @ or a / in its login: write them there as %40 and %2F")
    given = _options(query)
    options = {**_of_service(given), **given}
    user, colon, password = login.partition(":")
    own: dict[str, str] = {}
    if at and user:
        own["user"] = unquote(user)
    if colon:
        own["password"] = unquote(password)
    if slash and path:
        own["dbname"] = unquote(path)
    _check(options)
    if named_hosts and "host" not in given:
        hosts, port = _hosts(named_hosts, given.get("port", ""), encoded=True)
    else:
        hosts, port = _hosts(options.get("host", ""), options.get("port", ""))
    parameters: dict[str, str] = {name: options[name] for name in _PLACE if name in options}
    parameters |= own
    parameters |= {name: given[name] for name in _PLACE if name in given}
    return Address(
        hosts=hosts,
        port=port,
        user=parameters.get("user"),
        password=parameters.get("password"),
        database=parameters.get("dbname"),
        options={name: value for name, value in options.items() if name not in (*_PLACE, *_UNUSED)},
        url=_libpq(location, given),
        origin=origin_of(url),
    )


def place_of(url: str) -> str:
    """`place` of a URL, for messages. Nothing is shown of a URL that cannot be parsed."""
    try:
        return address_of(url).place
    except ServiceError:
        return "the place that DATABASE_URL names"


def _libpq(where: str, params: Mapping[str, str]) -> str:
    passed_on = {name: value for name, value in params.items() if name not in _OURS}
    return f"postgresql://{where}" + (f"?{urlencode(passed_on, quote_via=quote)}" if passed_on else "")


def _options(query: str) -> dict[str, str]:
    """The options of a URL under libpq's names. A + is a plus sign; the last of repeated options counts; an empty option is ignored."""
    found: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, mark, value = part.partition("=")
        name = unquote(name)
        if not mark and "@" in part:  # the rest of an unescaped password
            raise ServiceError("the PostgreSQL URL has an @ after its ?: write a ? in its login as %3F")
        if not mark:
            raise ServiceError(
                f"the PostgreSQL URL names the option {_shown(name)} without a value: {_shown(name)}=…"
            )
        name, value = _alias(name, unquote(value))
        if value:
            found[name] = value
    return found


def _alias(name: str, value: str) -> tuple[str, str]:
    if name == "ssl":
        return "sslmode", {"true": "require", "1": "require", "false": "disable", "0": "disable"}.get(
            value, value
        )
    return _OTHER_NAMES.get(name, name), value


def _of_service(params: Mapping[str, str]) -> dict[str, str]:
    """The options of the service in a URL (or $PGSERVICE), from its file."""
    service = params.get("service") or os.environ.get("PGSERVICE", "")
    if not service:
        return {}
    files = [params["servicefile"]] if "servicefile" in params else []
    files += [os.environ["PGSERVICEFILE"]] if os.environ.get("PGSERVICEFILE") else ["~/.pg_service.conf"]
    files += [f"{os.environ['PGSYSCONFDIR']}/pg_service.conf"] if os.environ.get("PGSYSCONFDIR") else []
    for file in files:
        reader = configparser.ConfigParser(
            interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=False
        )
        try:
            reader.read_string(read_text(Path(file).expanduser()), file)
        except (OSError, RuntimeError):  # no such file; no home directory
            continue
        except (configparser.Error, ValueError) as error:
            raise ServiceError(
                f"the PostgreSQL URL names the service {_shown(service)}, and {file} cannot be read ({type(error).__name__})"
            ) from None
        if reader.has_section(service):
            return dict(_alias(name, value) for name, value in reader.items(service) if value)
    raise ServiceError(
        f"the PostgreSQL URL names the service {_shown(service)}, which is not in {' or '.join(files)}: write it there, or take service out"
    )


def _check(options: Mapping[str, str]) -> None:
    """Raise ServiceError for the first option that cannot be honoured."""
    for name, value in options.items():
        if name not in _KNOWN:
            similar = [] if name in _NOT_HONOURED else get_close_matches(name, _KNOWN, 1, 0.8)
            advice = (
                f"did you mean {similar[0]}?"
                if similar
                else "take it out; a setting of the server is given as options=-c%20NAME%3DVALUE"
            )
            raise ServiceError(
                f"the PostgreSQL URL has the option {_shown(name)}, which cannot be used: {advice}"
            )
        _check_value(name, value)


def _check_value(name: str, value: str) -> None:
    permitted = _ONE_VALUE.get(name) or {"sslmode": MODES, "target_session_attrs": ATTRIBUTES}.get(name)
    if permitted and value not in permitted:
        raise ServiceError(
            f"the PostgreSQL URL has {name}={_shown(value)}, which cannot be honoured: {name} is {' or '.join(permitted)}"
        )
    if name in _NUMBERS and not _NUMBER.fullmatch(value):
        raise ServiceError(
            f"the PostgreSQL URL has {name}={_shown(value)}: {name} is a whole number of 9 digits at most"
        )
    if name in _MAX_VALUES and int(value) > _MAX_VALUES[name]:
        raise ServiceError(
            f"the PostgreSQL URL has {name}={_shown(value)}: {name} is at most {_MAX_VALUES[name]}"
        )
    if (
        name in FILE_OPTIONS
        and not (name == "sslrootcert" and value == "system")
        and not os.access(value, os.R_OK)
    ):
        raise ServiceError(f"the PostgreSQL URL has {name}={_shown(value)}, and that file cannot be read")
    if name == "passfile":
        _check_passfile(value)


def _check_passfile(file: str) -> None:
    """Raise ServiceError for a file that the driver would ignore."""
    mode = Path(file).stat().st_mode
    if not stat.S_ISREG(mode):
        raise ServiceError(
            f"the PostgreSQL URL has passfile={_shown(file)}, which is not a file of passwords: name one"
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ServiceError(
            f"the PostgreSQL URL has passfile={_shown(file)}, which others may use (mode {stat.S_IMODE(mode):04o}): make its mode 0600"
        )


def _hosts(
    named: str, ports: str, *, encoded: bool = False
) -> tuple[tuple[tuple[str, int], ...], int | None]:
    """(name, port) of each host, and the port alone without a host."""
    port_numbers = [_port(each) for each in ports.split(",")] if ports else []
    names: list[tuple[str, int | None]] = []
    for each in named.split(",") if named else []:
        names.append(_host(each, encoded=encoded))
    if not any(name for name, _ in names):
        default_port = next((port for _, port in names if port), port_numbers[0] if port_numbers else None)
        return (), default_port
    if not all(name for name, _ in names):
        raise ServiceError("the PostgreSQL URL has an empty host between others: name it")
    if len(port_numbers) > 1 and len(port_numbers) != len(names):
        raise ServiceError(
            f"the PostgreSQL URL names {len(names)} hosts and {len(port_numbers)} ports: one, or as many"
        )
    each_port = port_numbers if len(port_numbers) == len(names) else port_numbers * len(names)
    return tuple(
        (name, port or (each_port[index] if each_port else 5432)) for index, (name, port) in enumerate(names)
    ), None


def _host(text: str, *, encoded: bool) -> tuple[str, int | None]:
    if text.startswith("["):
        name, closed, suffix = text[1:].partition("]")
        port = suffix.removeprefix(":")
        if not closed:
            raise ServiceError(f"the PostgreSQL URL has the host {_shown(text)}: its [ is not closed")
    elif text.startswith("/") or (not encoded and text.count(":") > 1):
        name, port = text, ""
    else:
        name, _, port = text.partition(":")
    if ":" in port:  # an IPv6 address without brackets
        raise ServiceError(
            f"the PostgreSQL URL has the host {_shown(text)}: an address of IPv6 stands in brackets, [::1]:5432"
        )
    return (unquote(name) if encoded else name), _port(port) if port else None


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or not 0 < int(text) < 65536:
        raise ServiceError(
            "the PostgreSQL URL has a port that is not a number from 1 to 65535 (a / or : in a password is written %2F or %3A)"
        )
    return int(text)


def _system_roots(tls: Mapping[str, str]) -> ssl.SSLContext:
    """The system's certificate authorities. They prove something only with a check of the host's full name."""
    if tls.get("sslmode", "verify-full") != "verify-full":
        raise ServiceError(
            f"the PostgreSQL URL has sslrootcert=system with sslmode={tls['sslmode']}: it needs sslmode=verify-full"
        )
    if conflicting := set(tls) - {"sslrootcert", "sslmode", "sslcert", "sslkey", "sslpassword"}:
        raise ServiceError(
            f"the PostgreSQL URL has both {min(conflicting)} and sslrootcert=system: take one of them out"
        )
    context = ssl.create_default_context()
    if "sslcert" in tls:
        _load_certificate(context, tls, tls.get("sslkey"))
    return context


def _check_certificates(tls: Mapping[str, str]) -> None:
    """Raise ServiceError for a file that the driver could not load, with its option: the driver's own error names neither."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in ("sslrootcert", "sslcrl"):
        if name in tls:
            try:
                context.load_verify_locations(tls[name])
            except OSError:
                raise ServiceError(
                    f"the PostgreSQL URL has {name}={_shown(tls[name])}, which cannot be loaded: it is a file of certificates in PEM"
                    if name == "sslrootcert"
                    else f"the PostgreSQL URL has {name}={_shown(tls[name])}, which cannot be loaded: it is a list of revoked certificates in PEM"
                ) from None
    if "sslcert" in tls:
        # As in libpq and the driver. A user without a home directory has no such file.
        usual = Path(os.path.expanduser("~/.postgresql/postgresql.key"))
        _load_certificate(context, tls, tls.get("sslkey") or (str(usual) if usual.exists() else None))


def _load_certificate(context: ssl.SSLContext, tls: Mapping[str, str], key: str | None) -> None:
    password: Callable[[], str] = lambda: tls.get("sslpassword", "")
    try:
        context.load_cert_chain(tls["sslcert"], key, password)
    except OSError:
        raise ServiceError(
            f"the PostgreSQL URL has sslcert={_shown(tls['sslcert'])}, which cannot be loaded with its key: both are in PEM, the key in the "
            "same file or in sslkey, and sslpassword is its password"
        ) from None


def _place(hosts: tuple[tuple[str, int], ...]) -> str:
    locations = [
        f"[{host}]:{port}" if ":" in host else host if host.startswith("/") else f"{host}:{port}"
        for host, port in hosts
    ]
    return " or ".join(locations) or "this machine"


def _shown(text: str) -> str:
    """A part of a URL for a message: short, and one line."""
    return ascii(text[:60])[1:-1]
