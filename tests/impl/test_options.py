"""What a user may say about a rendezvous: options, run ids, and the URL form. What is refused is named."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rallypoint.impl.access import access_of
from rallypoint.impl.etcd_options import NO_ID, OPTIONS, TTLS, options_table, own_run_id, settings_of
from rallypoint.impl.etcd_rendezvous import EtcdRendezvous, create_rdzv_handler, rendezvous_parameters
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.torchrun import with_own_id
from rallypoint.model.worker import Rules
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

SECRET = "correct-horse"


def params(endpoint: str, run_id: str, lowest: int, highest: int, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, run_id, lowest, highest, "127.0.0.1", **config)


def test_every_option_is_documented_with_unit_and_default() -> None:
    assert all(option.unit and option.meaning for option in OPTIONS.values())
    rules = {field.name: field.default for field in fields(Rules)}
    assert {name: OPTIONS[name].default for name in TTLS} == {name: rules[name] for name in TTLS}
    assert set(TTLS) == {name for name in rules if name.endswith("_ttl")}
    documented = {"timeout": 600, "last_call_timeout": 30, "etcd_prefix": "/torchelastic/p2p", "protocol": "http"}
    assert {name: OPTIONS[name].default for name in documented} == documented


def test_the_documentation_is_drawn_from_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
    assert options_table() in page


def test_the_table_needs_no_torch() -> None:
    """``rallypoint status`` reads options, too."""
    program = "import sys, rallypoint.impl.etcd_options as o; print(len(o.OPTIONS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"{len(OPTIONS)} False\n"


def test_values_are_read_from_text_and_numbers() -> None:
    given = settings_of({"timeout": "1.5", "last_call_timeout": "0", "keep_alive_ttl": "3", "protocol": "HTTPS"})
    assert given["timeout"] == 1.5
    assert given["last_call_timeout"] == 0
    assert given["keep_alive_ttl"] == 3
    assert given["protocol"] == "https"
    assert given["setup_ttl"] == 5
    assert settings_of({"timeout": None}) == settings_of({})


def test_R84_certificates_by_the_names_of_either_backend() -> None:
    ours = {"protocol": "https", "cacert": "a", "cert": "b", "key": "c"}
    theirs = {"protocol": "https", "ca_cert": "a", "ssl_cert": "b", "ssl_cert_key": "c"}
    assert settings_of(ours) == settings_of(theirs)
    assert access_of(params("h", "job", 1, 1, **ours), "https") == access_of(
        params("h", "job", 1, 1, **theirs), "https"
    )
    assert settings_of({"cert": "b", "ssl_cert": "b"})["cert"] == "b"
    with pytest.raises(ValueError, match="cert and ssl_cert: one option, and two values"):
        settings_of({"cert": "b", "ssl_cert": "other"})


@pytest.mark.parametrize(
    ("run_id", "lowest", "highest", "config", "says"),
    [
        ("", 1, 2, {}, "run_id"),
        ("  ", 1, 2, {}, "run_id"),
        ("job", 1, 2, {"last_call_timeot": 3}, r"unknown rendezvous option last_call_timeot \(did you mean last_call"),
        ("job", 1, 2, {"nothing_like_it": 3}, "unknown rendezvous option nothing_like_it; the known ones are timeout,"),
        ("job", 1, 2, {"timeout": 0}, "timeout"),
        ("job", 1, 2, {"timeout": -1}, "timeout"),
        ("job", 1, 2, {"last_call_timeout": -1}, "last_call_timeout"),
        ("job", 1, 2, {"timeout": "soon"}, "timeout"),
        ("job", 1, 2, {"timeout": True}, "timeout"),
        ("job", 1, 2, {"timeout": [3]}, "timeout"),
        ("job", 1, 2, {"timeout": 10**400}, "timeout"),
        ("job", 1, 2, {"timeout": float("inf")}, "timeout"),
        ("job", 1, 2, {"timeout": float("nan")}, "timeout"),
        ("job", 1, 2, {"last_call_timeout": 10**10}, "last_call_timeout"),
        ("job", 1, 2, {"keep_alive_ttl": 0}, "keep_alive_ttl"),
        ("job", 1, 2, {"keep_alive_ttl": 1.5}, "keep_alive_ttl=1.5: etcd counts whole seconds"),
        ("job", 1, 2, {"keep_alive_ttl": 10**10}, "keep_alive_ttl"),
        ("job", 1, 2, {"closed_ttl": -1}, "closed_ttl"),
        ("job", 1, 2, {"keep_alive_ttl": float("inf")}, "keep_alive_ttl"),
        ("n" * 1001, 1, 2, {}, "too long a name: 1001 bytes"),
        ("/" * 334, 1, 2, {}, "too long a name: 1002 bytes"),
        ("job", 1, 2, {"protocol": "gopher"}, "protocol"),
        ("job", 1, 2, {"protocol": "http", "cacert": "/ca.pem"}, "https"),
        ("job", 1, 2, {"protocol": "https", "key": "/key.pem"}, "certificate"),
        ("job", 1, 2, {"username": "me"}, "password"),
        ("job", 1, 2, {"etcd_prefix": ""}, "etcd_prefix"),
        ("job", 1, 2, {"etcd_prefix": 5}, "etcd_prefix"),
        ("job", 1, 2, {"etcd_prefix": "/a/../b"}, "etcd_prefix"),
        ("job", 3, 2, {}, "minimum|min"),
        ("job", 0, 2, {}, "minimum|min"),
    ],
)
def test_unusable_arguments_are_one_clear_ValueError(
    etcd_server: EtcdServer, run_id: str, lowest: int, highest: int, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        create_rdzv_handler(params(etcd_server.get_endpoint(), run_id, lowest, highest, **config))
    assert "\n" not in str(caught.value)


def test_a_password_that_is_unusable_is_not_shown() -> None:
    with pytest.raises(ValueError, match="password: it must be a non-empty text") as caught:
        settings_of({"password": 12345})
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["host:port", "a b", "a\nb:1", "h:1#x", "http://h:1", "h:99999", ","])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|endpoint|not a host"):
        create_rdzv_handler(params(endpoint, "job", 1, 1))


@pytest.mark.parametrize("form", ["me:{}@h:1", "http://me:{}@h:1", "me:{},@h", "me@h:{}"])
def test_an_endpoint_with_a_password_is_refused_without_showing_it(form: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT") as caught:
        create_rdzv_handler(params(form.format(SECRET), "job", 1, 1))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_min_above_max_is_refused_by_the_class_too(etcd_server: EtcdServer, prefix: str) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", 3, 2, 10, 1)


@pytest.mark.parametrize("times", [(float("nan"), 0), (float("inf"), 0), (10, float("nan")), (10**400, 0)])
def test_times_without_bound_are_refused_by_the_class_too(
    etcd_server: EtcdServer, prefix: str, times: tuple[float, float]
) -> None:
    with pytest.raises(ValueError, match="times must be positive, and at most"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", 1, 2, *times)
    with pytest.raises(ValueError, match=r"setup_ttl=nan: etcd counts"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", 1, 2, 10, 1, ttls={"setup_ttl": float("nan")})


# --- the id that torchrun gives to all jobs without one (R05) -------------------------------------------------------


def test_R05_jobs_without_an_id_do_not_meet(etcd_server: EtcdServer, prefix: str) -> None:
    """Two launches of one node each: both get a run of their own, and the second is not met by the first's close."""
    asked = RendezvousParameters(
        "rallypoint", etcd_server.get_endpoint(), NO_ID, 1, 1, "127.0.0.1", etcd_prefix=prefix, last_call_timeout=0
    )
    handlers = [get_rendezvous_handler(asked) for _ in range(2)]
    assert len({NO_ID, *(handler.get_run_id() for handler in handlers)}) == 3
    for handler in handlers:
        assert handler.next_rendezvous().world_size == 1
        assert handler.shutdown()


def test_R05_a_job_of_several_nodes_needs_an_id() -> None:
    with pytest.raises(ValueError, match="name the job"):
        with_own_id(params("h", NO_ID, 1, 2))
    assert with_own_id(params("h", "job", 1, 2)).run_id == "job"
    assert own_run_id("job", 1) == "job"


# --- the URL form -----------------------------------------------------------------------------------------------------


def test_the_documented_url() -> None:
    read = rendezvous_parameters("etcd://localhost:2379/1234?min_workers=1&max_workers=3")
    assert (read.backend, read.endpoint, read.run_id) == ("etcd", "localhost:2379", "1234")
    assert (read.min_nodes, read.max_nodes, read.local_addr, read.config) == (1, 3, None, {})


@pytest.mark.parametrize(
    ("url", "endpoint", "run_id", "config"),
    [
        ("etcd://h/job?min_workers=2", "h", "job", {}),
        ("etcd://h1:1,h2:2,[::1]:2379/job?min_workers=2", "h1:1,h2:2,[::1]:2379", "job", {}),
        ("etcd://[::1]:2379/job/?min_workers=2&max_workers=2", "[::1]:2379", "job", {}),
        ("etcd://h/a%2Fb%20%23%3Fc?min_workers=2", "h", "a/b #?c", {}),
        ("etcd://h/a/b?min_workers=2", "h", "a/b", {}),
        ("etcd://h/j+b?min_workers=2&etcd_prefix=/my+jobs", "h", "j+b", {"etcd_prefix": "/my+jobs"}),
        ("etcd://h/z%C3%B6lf?min_workers=2", "h", "zölf", {}),
        (
            "etcd://h/job?min_workers=2&timeout=30&protocol=https&cacert=/a=b.pem",
            "h",
            "job",
            {"timeout": "30", "protocol": "https", "cacert": "/a=b.pem"},
        ),
        (
            "etcd://me:p%40ss%3Aw%2Fd@h:1/job?min_workers=2",
            "h:1",
            "job",
            {"username": "me", "password": "p@ss:w/d"},
        ),
        (
            "etcd://me@h:1/job?min_workers=2&password_file=/etc/p",
            "h:1",
            "job",
            {"username": "me", "password_file": "/etc/p"},
        ),
    ],
)
def test_the_url_form(url: str, endpoint: str, run_id: str, config: dict[str, str]) -> None:
    read = rendezvous_parameters(url)
    assert (read.endpoint, read.run_id, read.config) == (endpoint, run_id, config)
    assert (read.min_nodes, read.max_nodes) == (2, 2)


def test_every_option_may_be_in_the_url() -> None:
    options = {name: "https" if name == "protocol" else "1" for name in OPTIONS}
    query = "&".join(f"{name}={value}" for name, value in options.items())
    read = rendezvous_parameters(f"etcd://h/job?min_workers=1&max_workers=2&local_addr=10.0.0.7&{query}")
    assert read.config == options
    assert read.local_addr == "10.0.0.7"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "not of the form etcd://"),
        ("h:1/job?min_workers=1", "not of the form etcd://"),
        ("http://h/job?min_workers=1", "not of the form etcd://"),
        ("etcd://h/job#x?min_workers=1", "not of the form etcd://"),
        ("etcd://h/a job?min_workers=1", "not of the form etcd://"),
        ("etcd:///job?min_workers=1", "no endpoint is named"),
        ("etcd://h:port/job?min_workers=1", "not HOST:PORT: 'h:port'"),
        ("etcd://[::1/job?min_workers=1", "not HOST:PORT"),
        ("etcd://h?min_workers=1", "HOST:PORT|no job"),
        ("etcd://h/?min_workers=1", "no job is named"),
        ("etcd://h/job", "min_workers is missing"),
        ("etcd://h/job?min_workers=0", "min_workers is '0': it must be a number from 1 on"),
        ("etcd://h/job?min_workers=two", "min_workers is 'two'"),
        ("etcd://h/job?min_workers=3&max_workers=2", "min_workers=3 is above max_workers=2"),
        ("etcd://h/job?min_workers=1&min_workers=2", "'min_workers' has two values"),
        ("etcd://h/job?min_workers=1&timeout", "'timeout' has no value"),
        ("etcd://h/job?min_workers=1&timeout=", "'timeout' has no value"),
        ("etcd://h/job?min_workers=1&timeout=-3", "timeout=-3: times must be positive"),
        ("etcd://h/job?min_workers=1&tmeout=3", r"unknown rendezvous option tmeout \(did you mean timeout\?\)"),
        ("etcd://h/job%2?min_workers=1", "two hexadecimal digits"),
        ("etcd://h/job%ff?min_workers=1", "no UTF-8"),
        ("etcd://:x@h/job?min_workers=1", "USER:PASSWORD"),
        ("etcd://me:x@h/job?min_workers=1&username=you", "username given twice"),
    ],
)
def test_what_is_no_such_url_is_one_clear_ValueError(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        rendezvous_parameters(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"etcd://me:{SECRET}@h:port/job?min_workers=1",
        f"etcd://me:{SECRET}@h/job",
        f"etcd://me:{SECRET}%2@h/job?min_workers=1",
        f"http://me:{SECRET}@h/job?min_workers=1",
        f"etcd://h/job?min_workers=1&password={SECRET}&password={SECRET}",
        f"etcd://h/job?min_workers=x&password={SECRET}",
        f"etcd://me:{SECRET}@h/job?min_workers=1&timeout=x&password={SECRET}",
        f"etcd://me:{SECRET}/{SECRET}@h/job?min_workers=1",
    ],
)
def test_no_error_about_a_url_shows_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="etcd://") as caught:
        rendezvous_parameters(url)
    lines = traceback.format_exception(caught.value)
    shown = [line for line in "".join(lines).splitlines() if not line.startswith("    ")]  # source lines hold no values
    assert SECRET not in "\n".join(shown)


def test_a_handler_from_a_url_meets(etcd_server: EtcdServer, prefix: str) -> None:
    logs = io.StringIO()
    listener = logging.StreamHandler(logs)
    logging.getLogger("rallypoint").addHandler(listener)
    logging.getLogger("rallypoint").setLevel(logging.DEBUG)
    try:
        url = f"etcd://me:{SECRET}@{etcd_server.get_endpoint()}/job?min_workers=1&max_workers=3"
        url += f"&last_call_timeout=0&etcd_prefix={prefix}&local_addr=127.0.0.1"
        handler = create_rdzv_handler(url)
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size) == (0, 1)
        assert info.bootstrap_store_info is not None
        assert info.bootstrap_store_info.master_addr == "127.0.0.1"
        assert handler.get_backend() == "etcd"
        assert handler.shutdown()
    finally:
        logging.getLogger("rallypoint").removeHandler(listener)
        logging.getLogger("rallypoint").setLevel(logging.NOTSET)
    assert logs.getvalue()
    assert SECRET not in logs.getvalue()
