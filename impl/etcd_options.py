"""What a user may say about a rendezvous: the options, with unit and default, and the URL form.

May live here: names, values, and which of them are refused. Must not live here: what they do, or an import of torch at
the top; ``rallypoint status`` needs the table as well. ``python -m rallypoint.impl.etcd_options`` prints the table.

Source of names and defaults: PyTorch's documentation of ``EtcdRendezvousHandler`` and of ``create_rdzv_handler``.
"""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from rallypoint.impl.etcd_http import checked_key, endpoints_of, joined_key
from rallypoint.model.worker import Rules

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

LONGEST = 10**9  # seconds, for every time that is asked for
NO_ID = "none"  # torchrun's run id for a job that was given none
URL_FORM = "etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/JOB?min_workers=1&max_workers=3"


class Option(NamedTuple):
    """One option. ``read(name, value)`` gives its value or raises ValueError; ``default`` None: there is none."""

    read: Callable[[str, Any], Any]
    default: Any
    unit: str
    meaning: str
    aliases: tuple[str, ...] = ()


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except OverflowError:
        number = float("inf")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!s:.40}: not a number of seconds") from error
    return int(number) if number.is_integer() else number


def duration(name: str, value: Any) -> float:
    """Seconds above 0, at most ``LONGEST``; as a number or as text."""
    seconds = _number(name, value)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"{name}={seconds}: times must be positive, and at most {LONGEST} s")
    return seconds


def duration_or_none(name: str, value: Any) -> float:
    """Seconds from 0 on, at most ``LONGEST``."""
    return 0 if _number(name, value) == 0 else duration(name, value)


def time_to_live(name: str, value: Any) -> int:
    """A TTL as etcd counts it."""
    seconds = _number(name, value)
    if not 1 <= seconds <= LONGEST or seconds != int(seconds):
        raise ValueError(f"{name}={seconds}: etcd counts whole seconds, at least 1, and here at most {LONGEST}")
    return int(seconds)


def prefix_of(name: str, value: Any) -> str:
    """An etcd directory, with or without slashes at its ends (L-H)."""
    try:
        return checked_key(joined_key(_text(name, value)))
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}={value!r}: it must be a non-empty text")
    return value


def _secret(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: it must be a non-empty text")
    return value


def _protocol(name: str, value: Any) -> str:
    protocol = str(value).lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"{name}={value!r}: the etcd protocol must be http or https")
    return protocol


def _ttl(name: str, meaning: str) -> Option:
    [default] = [field.default for field in fields(Rules) if field.name == name]
    return Option(time_to_live, default, "s", meaning)


OPTIONS: dict[str, Option] = {
    "timeout": Option(duration, 600, "s", "how long `next_rendezvous` tries to meet"),
    "last_call_timeout": Option(
        duration_or_none, 30, "s", "time for late workers once min are in; with 0 they turn each other away"
    ),
    "etcd_prefix": Option(
        prefix_of, "/torchelastic/p2p", "etcd directory", "where all runs live; slashes do not matter"
    ),
    "protocol": Option(_protocol, "http", "http, https", "how etcd is spoken to"),
    "cacert": Option(_text, None, "file", "CA to check the server against, instead of the system's", ("ca_cert",)),
    "cert": Option(_text, None, "file", "client certificate", ("ssl_cert",)),
    "key": Option(_text, None, "file", "private key of the client certificate", ("ssl_cert_key",)),
    "username": Option(_text, None, "text", "etcd user"),
    "password": Option(_secret, None, "text", "the user's password; torchrun logs it, as it does all options"),
    "password_file": Option(_text, None, "file", "the password, kept out of logs and command lines"),
    "setup_ttl": _ttl("setup_ttl", "until a version in the making is given up"),
    "joinable_ttl": _ttl("joinable_ttl", "until a version is given up whose last call nobody ends"),
    "frozen_ttl": _ttl("frozen_ttl", "time for a confirmation"),
    "keep_alive_ttl": _ttl("keep_alive_ttl", "until a lost worker is noticed"),
    "closed_ttl": _ttl("closed_ttl", "how long a closed run keeps its id from being used again"),
}
"""Option of ``RendezvousParameters`` -> how it is read, default, unit, meaning, other names."""

TTLS = tuple(name for name in OPTIONS if name.endswith("_ttl"))
_NAMES = {name: own for own, option in OPTIONS.items() for name in (own, *option.aliases)}


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every option under its own name, with its value or its default. An option that is None counts as not given.

    Raises ValueError for an option that is unknown, unusable, or given twice under two names with two values.
    """
    given: dict[str, Any] = {}
    for name, value in config.items():
        own = _NAMES.get(name)
        if own is None:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"unknown rendezvous option {name}{hint}; the known ones are {', '.join(_NAMES)}")
        if value is None:
            continue
        read = OPTIONS[own].read(name, value)
        if given.setdefault(own, read) != read:
            raise ValueError(f"{own} and {OPTIONS[own].aliases[0]}: one option, and two values")
    return {own: given.get(own, option.default) for own, option in OPTIONS.items()}


def own_run_id(run_id: str, max_workers: int) -> str:
    """The run id; for a job that was given none, one that no other job has (R05).

    Raises ValueError if it has to be the same on several nodes, and for what cannot name a run.
    """
    if not isinstance(run_id, str) or not run_id.strip():
        raise ValueError(f"run_id is {run_id!r}: it must be a non-empty text that names the job")
    if run_id != NO_ID:
        return run_id
    if max_workers == 1:
        return f"{NO_ID}-{uuid.uuid4().hex}"
    raise ValueError(
        f"run_id is {NO_ID!r}, which is what torchrun says for all jobs without an id: name the job (--rdzv-id)"
    )


def rendezvous_parameters(url: str) -> RendezvousParameters:
    """torch's parameters from the URL form, ``etcd://HOST:PORT/JOB?min_workers=1&max_workers=3``.

    Every option may follow, and ``local_addr``; max_workers is min_workers by default. Several endpoints are separated
    by commas, IPv6 addresses stand in brackets, and what has another meaning in a URL is written as ``%XX``, in the
    user's name and password, too. Raises ValueError for anything else; no message holds the password.
    """
    scheme, mark, rest = url.partition("://")
    place, _, tail = rest.partition("/")
    path, _, query = tail.partition("?")
    user, at, hosts = place.rpartition("@")
    shown = "..." if "@" in tail else hosts  # a / in a password makes the rest of it part of the path
    where = f"{scheme if mark else ''}://{shown}"
    if scheme != "etcd" or "#" in rest or any(letter.isspace() for letter in rest):
        raise ValueError(f"{where}: not of the form {URL_FORM}; a # or blank in a name is written as %23 or %20")
    try:
        _check_hosts(hosts, shown)
        if "@" in path:
            raise ValueError("a @ in a name, or a / in a password, is written as %40 or %2F")
        config = _query(query)
        if at:
            config |= _user(user, config)
        run_id = _decoded(path.strip("/"))
        lowest = _count(config, "min_workers", None)
        highest = _count(config, "max_workers", lowest)
        if not run_id:
            raise ValueError("no job is named")
        if highest < lowest:
            raise ValueError(f"min_workers={lowest} is above max_workers={highest}")
        local_addr = config.pop("local_addr", None)
        settings_of(config)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; the form is {URL_FORM}") from error
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    return RendezvousParameters("etcd", hosts, run_id, lowest, highest, local_addr, **config)


def _check_hosts(hosts: str, shown: str) -> None:
    try:
        known = endpoints_of(hosts)
    except ValueError:
        raise ValueError(f"not HOST:PORT: {shown!r}") from None
    if not known:
        raise ValueError("no endpoint is named")


def _decoded(text: str) -> str:
    if re.search("%(?![0-9A-Fa-f]{2})", text):
        raise ValueError("a % must be followed by two hexadecimal digits")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise ValueError("what is written as %XX is no UTF-8") from error


def _query(query: str) -> dict[str, str]:
    config: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        name = _decoded(name)
        if not value or name in config:
            raise ValueError(f"option {name!r} has {'two values' if name in config else 'no value'}")
        config[name] = _decoded(value)
    return config


def _user(user: str, config: Mapping[str, str]) -> dict[str, str]:
    name, colon, password = (_decoded(part) if part != ":" else part for part in user.partition(":"))
    found = {"username": name} | ({"password": password} if colon else {})
    if twice := sorted(set(found) & set(config)):
        raise ValueError(f"{' and '.join(twice)} given twice, before the host and as an option")
    if not all(found.values()):
        raise ValueError("before an @ stand a user and a password, USER:PASSWORD")
    return found


def _count(config: dict[str, str], name: str, default: int | None) -> int:
    text = config.pop(name, None)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise ValueError(f"{name} is {'missing' if text is None else f'{text!r:.40}'}: it must be a number from 1 on")
    return int(text)


def options_table() -> str:
    """The options as Markdown."""
    rows = ["| option | unit | default | meaning |", "|---|---|---|---|"]
    for own, option in OPTIONS.items():
        names = ", ".join(f"`{name}`" for name in (own, *option.aliases))
        default = "none" if option.default is None else f"`{option.default}`"
        rows.append(f"| {names} | {option.unit} | {default} | {option.meaning} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(options_table())
