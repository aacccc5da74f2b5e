"""A Ray cluster before anything is trained: connected to, with room for a run, its nodes such as here."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedbench.engine.engines.node import DECISIVE, About, Token, versions
from fedbench.engine.engines.own import Own
from fedbench.errors import FedbenchError

#: The address of a cluster that is started for this command, on this machine alone.
LOCAL = "local"
#: Seconds within which a cluster must answer, and all of its nodes must have told about themselves; between two looks
#: at the Ray process of this machine.
ANSWER, TELL, WATCH = 10.0, 300.0, 0.5
SAME = "install the same fedbench, Python and torch on all nodes"


#: Set when this process leaves its cluster.
_left = threading.Event()


def connected(address: str) -> bool:
    """Connect to ray://HOST:PORT or HOST:PORT, or start a cluster of this machine alone (LOCAL), which no other machine
    can reach. False in a session that is connected already, a notebook's say. Raises FedbenchError where no such
    cluster answers."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
    if address == LOCAL:
        from fedbench.core.executors import available_cores

        os.environ.setdefault("RAY_worker_niceness", "0")  # the runs are the work, not something beside it
        options |= {"num_cpus": available_cores(), "include_dashboard": False}
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():
            socket.create_connection((host, int(port)), ANSWER).close()
        with _signals_as_they_are(), _on_loopback() if address == LOCAL else contextlib.nullcontext():
            ray.init(**options)
    except (OSError, RuntimeError, ValueError, ImportError, AssertionError) as error:
        raise FedbenchError(
            f"no Ray cluster to work with at {address} ({error})",
            "'ray status' shows one; if it asks for a token, set RAY_AUTH_MODE=token",
        ) from error
    _left.clear()
    if not address.startswith("ray://"):  # else this process has no Ray process of its own
        here = ray.get_runtime_context().get_node_id()
        at = next((one["NodeManagerAddress"], one["NodeManagerPort"]) for one in ray.nodes() if one["NodeID"] == here)
        threading.Thread(target=_watch, args=(at,), daemon=True, name="raylet").start()
    return True


def leave() -> None:
    """End what `connected` has begun."""
    _left.set()
    ray.shutdown()


def _watch(address: tuple[str, int]) -> None:
    """End this process in a line when Ray's process on this machine (the raylet) has ended: some seconds later Ray
    itself would end it, without one. What is saved is whole, as after any kill."""
    while not _left.wait(WATCH):
        try:
            socket.create_connection(address, ANSWER).close()
        except ConnectionRefusedError:
            if not _left.is_set():
                line = "Ray's process on this machine has ended; memory may be short; the same command goes on"
                sys.stderr.write(f"\nfedbench: {line}\n")
                sys.stderr.flush()
                os._exit(1)
        except OSError:  # nothing is known: the machine is busy
            continue


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Within, Ray takes this machine's address to be 127.0.0.1, and what it starts listens there alone; with the option
    _node_ip_address it would put another address in place of that one, and listen on all interfaces."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def places(cpus: float, gpus: float | None, device: str) -> tuple[float, int]:
    """GPUs of a run (where none are said: one, if there are any and the device may be one), and how many runs the
    cluster has room for. Raises FedbenchError if no node has room for one."""
    nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    if gpus is None:
        gpus = float(device == "cuda" or (device == "auto" and any(one.get("GPU") for one in nodes)))
    for kind, number, what in (("CPU", cpus, "core"), ("GPU", gpus, "GPU")):
        most = max((one.get(kind, 0.0) for one in nodes), default=0.0)
        if number > most:
            option = f"--{kind.lower()}s-per-run"
            raise FedbenchError(
                f"a run is to have {number:g} {what}{'s' * (number != 1)}, and no node of the cluster has more than "
                f"{most:g}", f"see {option}",
            )  # fmt: skip
    room = (min(one.get(kind, 0.0) / n for kind, n in (("CPU", cpus), ("GPU", gpus)) if n) for one in nodes)
    return gpus, max(sum(map(int, room)), 1)


def checked(token: Token, files: Sequence[Own]) -> bool:
    """Whether all nodes see the driver's store. Raises FedbenchError for a node that cannot make runs, lacks what a
    user's file needs, or would make other runs than here."""
    ours, nodes = versions(), _about(token, files)
    for one in nodes:
        for what in DECISIVE:
            if (theirs := one.versions.get(what)) != ours[what]:
                name = "code of fedbench" if what == "code" else what
                raise FedbenchError(f"node {one.host} has {name} {theirs}, and here it is {ours[what]}", SAME)
        if one.trouble:
            raise FedbenchError(f"node {one.host}: {one.trouble}", "nothing was trained")
    return all(one.shares for one in nodes)


def _about(token: Token, files: Sequence[Own]) -> list[About]:
    """What each node tells of itself."""

    def look(packed: bytes) -> Any:  # sent by value, as what it is to look at: fedbench may not be there
        import pickle
        import platform

        try:
            from fedbench.engine.engines.node import about

            return about(*pickle.loads(packed))
        except (ImportError, AttributeError) as error:
            return platform.node(), f"{error}"

    packed = pickle.dumps((token, files))
    tasks = [
        ray.remote(look)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(one["NodeID"], soft=False)
        )
        .remote(packed)
        for one in ray.nodes()
        if one["Alive"]
    ]
    try:
        answers = ray.get(tasks, timeout=TELL)
    except RayError as error:
        why = next(iter(str(error).strip().splitlines()[::-1]), "")
        raise FedbenchError(f"a node of the Ray cluster cannot run fedbench ({why})", SAME) from error
    for answer in answers:
        if not isinstance(answer, About):
            raise FedbenchError(f"node {answer[0]} has no such fedbench ({answer[1]})", SAME)
    return list(answers)


@contextlib.contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """Ray handles SIGTERM in its own way; here it stops a command as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
