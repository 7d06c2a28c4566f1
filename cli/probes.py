"""The outside conditions of rallypoint, one small probe each.

May live here: functions that look at one thing and return a Finding, and the lists of them.
Must not live here: anything heavy imported outside a probe. A probe may crash or hang: each has a process of its own.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from rallypoint.cli.conditions import Finding, Probe, Verdict
from rallypoint.model.errors import UnusableError

# CANN library -> the package that holds it, and the script that lets the loader find it.
_TOOLKIT = ("the CANN toolkit", "its set_env.sh")
_KERNELS = ("the CANN kernels (ops) of your device", "the toolkit's set_env.sh")
_NNAL = ("CANN's NNAL package", "nnal/atb/set_env.sh")
CANN_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "libascendcl.so": _TOOLKIT,
    "libhccl.so": _TOOLKIT,
    "libacl_op_compiler.so": _TOOLKIT,
    "libacl_tdt_channel.so": _TOOLKIT,
    "libge_runner.so": _TOOLKIT,
    "libopapi.so": _KERNELS,
    "libatb.so": _NNAL,
}

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

Located = TypeVar("Located")


def python() -> Finding:
    return Finding(Verdict.OK, f"{platform.python_version()}, {sys.executable}")


def localhost_port() -> Finding:
    problem = "localhost has no address"
    try:
        for family, kind, _, _, address in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind) as listener:
                    listener.bind(address)
                    listener.listen()
                    with socket.create_connection(listener.getsockname()[:2], timeout=5):
                        port = listener.getsockname()[1]
                        return Finding(Verdict.OK, f"port {port} of {address[0]} bound and reached")
            except OSError as error:
                problem = f"{address[0]}: {error.strerror or error}"
    except OSError as error:
        problem = f"localhost: {error.strerror or error}"
    return Finding(
        Verdict.BROKEN, problem, "let localhost be a loopback address, and allow this user to bind its ports"
    )


def temporary_directory() -> Finding:
    try:
        with tempfile.TemporaryDirectory(prefix="rallypoint_doctor_") as folder:
            Path(folder, "file").write_bytes(bytes(1 << 20))
            return Finding(Verdict.OK, f"1 MiB written in {tempfile.gettempdir()}")
    except OSError as error:
        return Finding(Verdict.BROKEN, error.strerror or str(error), "let TMPDIR name a directory that can be written")


def child_process() -> Finding:
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, timeout=10, start_new_session=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(Verdict.BROKEN, str(error), "allow this user to start processes and sessions")
    return Finding(Verdict.OK, "a process in a session of its own started and ended")


def python_etcd() -> Finding:
    module = _import("etcd", "pip install python-etcd")
    if isinstance(module, Finding):
        return module
    if not hasattr(module, "Client"):
        where = getattr(module, "__file__", None) or "a folder without code"
        todo = "remove that package or folder, then pip install --force-reinstall python-etcd"
        return Finding(Verdict.BROKEN, f"the module etcd is not python-etcd's: {where}", todo)
    engine = importlib.import_module("urllib3")
    if not hasattr(engine.HTTPResponse, "getheaders"):
        found = f"urllib3 {engine.__version__} lacks a call that python-etcd needs"
        return Finding(Verdict.BROKEN, found, "pip install 'urllib3!=2.6.0'")
    return Finding(Verdict.OK, f"{importlib.metadata.version('python-etcd')}, with urllib3 {engine.__version__}")


def hypothesis() -> Finding:
    return _imported("hypothesis")


def etcd_binary() -> Finding:
    from rallypoint.impl.etcd_server import find_etcd

    return _located(find_etcd, "TORCHELASTIC_ETCD_BINARY_PATH", lambda it: f"{it.version} by {it.rule}: {it.path}")


def embedded_v2() -> Finding:
    from rallypoint.impl.etcd_server import EtcdServer

    server = EtcdServer()
    try:
        server.start(timeout=20)
        host, port = server.get_host(), server.get_port()
        written = _http("PUT", host, port, "/v2/keys/rallypoint_doctor?value=1&prevExist=false")
        if '"action":"create"' not in written:
            return _without_v2(written)
        return Finding(Verdict.OK, f"started on {host}:{port}, made a key by the v2 API, stopped")
    except (UnusableError, OSError) as error:
        return Finding(Verdict.BROKEN, f"the server did not serve: {error}", "see the reason; another etcd may do")
    finally:
        server.stop()


def java() -> Finding:
    from rallypoint.tla.toolchain import find_java

    return _located(find_java, "JAVA", lambda it: f"{it.version} by {it.rule}: {it.path}")


def jar() -> Finding:
    from rallypoint.tla.toolchain import find_jar

    return _located(find_jar, "TLA2TOOLS_JAR", lambda it: f"sha256 {it.sha256} verified, by {it.rule}: {it.path}")


def torch() -> Finding:
    module = _import("torch", "pip install 'rallypoint[torch]'")
    if isinstance(module, Finding):
        if module.verdict is Verdict.BROKEN and importlib.util.find_spec("torch_npu") is not None:
            return Finding(Verdict.BROKEN, module.found, f"export {AUTOLOAD}=0, or install the library named")
        return module
    if tuple(int(part) for part in module.__version__.split(".")[:2]) < (2, 7):
        return Finding(Verdict.BROKEN, f"{module.__version__} is older than 2.7", "pip install 'rallypoint[torch]'")
    if not (module.distributed.is_available() and module.distributed.is_gloo_available()):
        found = f"{module.__version__} is a build without gloo process groups"
        return Finding(Verdict.BROKEN, found, "install a build with torch.distributed and gloo")
    return Finding(Verdict.OK, f"{module.__version__}, with gloo")


def device_autoload() -> Finding:
    value = os.environ.get(AUTOLOAD)
    said = f"{AUTOLOAD} is {'not set' if value is None else repr(value)}"
    on = value in {None, "1"}  # as torch reads it
    if on and importlib.util.find_spec("torch_npu") is not None and cann().verdict is not Verdict.OK:
        return Finding(Verdict.BROKEN, f"{said}: torch loads torch_npu, without CANN in vain", f"export {AUTOLOAD}=0")
    return Finding(Verdict.OK, f"{said}: torch {'loads' if on else 'does not load'} device extensions by itself")


def torch_npu() -> Finding:
    os.environ[AUTOLOAD] = "0"  # else importing torch already fails, and the reason is not torch_npu's own
    if importlib.util.find_spec("torch_npu") is None:
        return _torch_npu_apart()
    module = _import("torch_npu", "pip install torch-npu, in the version that fits torch and CANN")
    if isinstance(module, Finding):
        return module
    count = module.npu.device_count()
    return Finding(Verdict.OK, f"{module.__version__}, sees {count} device{'' if count == 1 else 's'}")


def _torch_npu_apart() -> Finding:
    """A torch_npu that only NPU workers see, so that other imports of torch do not load it."""
    from rallypoint.npu.cann import find_torch_npu, version_of

    try:
        place = find_torch_npu()
    except UnusableError as error:
        return Finding(Verdict.MISSING, "no module torch_npu", error.todo)
    return Finding(Verdict.OK, f"{version_of(place)}, apart from other packages: {place.parent}")


def npu_driver() -> Finding:
    from rallypoint.npu.cann import DRIVER

    if not DRIVER.exists():
        return Finding(Verdict.MISSING, f"no {DRIVER}", "install Ascend's driver and firmware")
    if not os.access(DRIVER, os.R_OK | os.W_OK):
        return Finding(Verdict.BROKEN, f"{DRIVER} cannot be opened by this user", "add the user to HwHiAiUser's group")
    return Finding(Verdict.OK, str(DRIVER))


def cann() -> Finding:
    """Each library that torch_npu is linked to or opens, loaded by name."""
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    missing, broken = [], []
    for library, (package, script) in CANN_LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError as error:
            if f"{library}: cannot open" not in str(error):
                broken.append((str(error), f"source {script}, or reinstall {package}"))
            elif home and Path(home, "lib64", library).exists():
                found = f"{library} is in {home}/lib64, where the loader does not look"
                broken.append((found, f"source {home}/../set_env.sh, which sets LD_LIBRARY_PATH"))
            else:
                missing.append((library, f"install {package}, then source {script}"))
    if broken:
        return Finding(Verdict.BROKEN, *broken[0])
    if missing:
        names = ", ".join(name for name, _ in missing)
        found = f"no {names} in LD_LIBRARY_PATH, ldconfig's list or ASCEND_TOOLKIT_HOME"
        partly = len(missing) < len(CANN_LIBRARIES)
        todo = "; ".join(dict.fromkeys(remedy for _, remedy in missing))
        return Finding(Verdict.BROKEN if partly else Verdict.MISSING, found, todo)
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = {str(Path(line.split()[-1]).parent) for line in lines if line.endswith(tuple(CANN_LIBRARIES))}
    return Finding(Verdict.OK, f"all {len(CANN_LIBRARIES)} libraries load, from {', '.join(sorted(loaded))}")


def cann_emulation() -> Finding:
    """What the emulation is built with; it is not built here."""
    from rallypoint.npu.build import COMPILER

    compiler = shutil.which(COMPILER)
    if compiler is None:
        return Finding(Verdict.MISSING, f"no C compiler {COMPILER}", "install gcc, or name one by CC=/path/to/cc")
    return _imported("elftools", "pyelftools", f"C compiler {compiler}")


def npu_devices() -> Finding:
    devices = sorted(str(path) for path in Path("/dev").glob("davinci[0-9]*"))
    if not devices:
        return Finding(Verdict.MISSING, "0 NPUs: no /dev/davinci*")
    return Finding(Verdict.OK, f"{len(devices)}: {', '.join(devices)}")


def crosshair() -> Finding:
    return _imported("crosshair", "crosshair-tool")


def endpoint(host: str, port: str) -> Finding:
    try:
        told = json.loads(_http("GET", host, int(port), "/version"))
        return Finding(Verdict.OK, f"etcd {told['etcdserver']} answers")
    except OSError as error:
        found = f"{host}:{port}: {error.strerror or error}"
        return Finding(Verdict.MISSING, found, "start the server, or correct --endpoint")
    except (HTTPException, ValueError, KeyError, TypeError):
        return Finding(Verdict.BROKEN, f"{host}:{port} answers, but not as an etcd does", "correct --endpoint")


def endpoint_v2(host: str, port: str) -> Finding:
    reply = _http("GET", host, int(port), "/v2/keys/")
    if '"node":' not in reply:
        return _without_v2(reply)
    return Finding(Verdict.OK, "the v2 API answered a read of its root; nothing was written")


def _import(name: str, todo: str) -> ModuleType | Finding:
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing foreign code can raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return Finding(Verdict.MISSING, f"no module {name}", todo)
        return Finding(Verdict.BROKEN, f"import {name}: {type(error).__name__}: {error}", "repair what is named")


def _imported(module: str, distribution: str = "", also: str = "") -> Finding:
    distribution = distribution or module
    imported = _import(module, f"pip install {distribution}")
    if isinstance(imported, Finding):
        return imported
    return Finding(Verdict.OK, ", ".join(filter(None, [importlib.metadata.version(distribution), also])))


def _located(find: Callable[[], Located], variable: str, tell: Callable[[Located], str]) -> Finding:
    """What ``find`` finds; what it does not find is BROKEN where the user named it by ``variable``."""
    try:
        return Finding(Verdict.OK, tell(find()))
    except UnusableError as error:
        verdict = Verdict.BROKEN if os.environ.get(variable) else Verdict.MISSING
        return Finding(verdict, f"{error.what} ({error.where})", error.todo)


def _http(method: str, host: str, port: int, path: str) -> str:
    """The start of the reply's body, whatever its status. Raises OSError or HTTPException if there is no reply."""
    connection = HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().read(1 << 16).decode(errors="replace")
    finally:
        connection.close()


def _without_v2(reply: str) -> Finding:
    todo = "start etcd with --enable-v2; 3.6 and later have no v2 API"
    return Finding(Verdict.BROKEN, f"no v2 API: the reply was {reply.strip()[:80]!r}", todo)


ENVIRONMENT: Sequence[Probe] = (
    Probe("python", python),
    Probe("child process", child_process),
    Probe("temp directory", temporary_directory),
    Probe("localhost port", localhost_port),
    Probe("python-etcd", python_etcd),
    Probe("etcd binary", etcd_binary),
    Probe(
        "etcd v2 API",
        embedded_v2,
        needs=("child process", "temp directory", "localhost port", "etcd binary"),
        seconds=40,
    ),
    Probe("java", java, seconds=40),
    Probe("tla2tools.jar", jar),
    Probe("hypothesis", hypothesis),
    Probe("torch", torch, seconds=120),
    Probe("device autoload", device_autoload),
    Probe("torch_npu", torch_npu, only_for="NPU workers", seconds=120),
    Probe("NPU driver", npu_driver, only_for="NPU workers on real devices"),
    Probe("CANN", cann, only_for="NPU workers on real devices"),
    Probe("CANN emulation", cann_emulation, only_for="NPU workers without a device"),
    Probe("NPU", npu_devices, only_for="NPU workers on real devices"),
    Probe("crosshair", crosshair, only_for="symbolic property runs", seconds=60),
)


def endpoint_probes(host: str, port: int) -> Sequence[Probe]:
    """The conditions of one etcd server that the user named."""
    arguments = (host, str(port))
    return (
        Probe("endpoint", endpoint, arguments=arguments),
        Probe("endpoint v2 API", endpoint_v2, needs=("endpoint",), arguments=arguments),
    )
