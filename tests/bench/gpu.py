"""What one GPU gives the trainer core, in one call of a few minutes: our executors and plain PyTorch in turn.

    python tests/bench/gpu.py                    every line of LINES
    python tests/bench/gpu.py NAME...            these lines
    python tests/bench/gpu.py --seconds 240      begins no line after so long

What is compiled is compiled first, side by side, as the cache on disk serves all; then one line is timed after another.
A line of our executors is rounds of a workload of workloads.py: client-steps a second of the local work, and the share
of a round that is something else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

Line = dict[str, Any]


def _line(workload: str, precision: str, executor: str = "streams", **options: Any) -> Line:
    return {"workload": workload, "precision": precision, "executor": executor, "options": options}


#: name -> what it is. "plain": a bare training loop; else a workload by an executor.
LINES: dict[str, Line] = {
    "best tf32": {"plain": True, "precision": "tf32", "compiled": True, "streams": 4},
    "resnet tf32": _line("c", "tf32", compiled=True),
    "answers tf32": _line("d", "tf32", compiled=True),
    "resnet bf16": _line("c", "bf16", compiled=True),
    "resnet fp32": _line("c", "fp32", compiled=True),
    "resnet tf32, 1 lane": _line("c", "tf32", compiled=True, lanes=1),
    "resnet tf32, 8 lanes": _line("c", "tf32", compiled=True, lanes=8),
    "resnet tf32, eager": _line("c", "tf32", compiled=False),
    "resnet fp32, eager": _line("c", "fp32", compiled=False),
    **{f"plain {precision}": {"plain": True, "precision": precision} for precision in ("tf32", "fp32", "bf16")},
    "cifar cnn": _line("a", "fp32", "graphed"),
    "cifar cnn, stacked": _line("a", "fp32", "stacked"),
    "cifar cnn, streams": _line("a", "fp32", lanes=8),
    "cifar cnn tf32": _line("a", "tf32", "graphed"),
    "cifar cnn tf32, streams": _line("a", "tf32", lanes=8),
    "lenet, 10 clients": _line("b10", "fp32", "graphed"),
    "lenet, 10 clients, streams": _line("b10", "fp32", lanes=8),
    "lenet, 1200 clients": _line("b1200", "fp32", "graphed"),
}
#: Rounds that a line is measured over, after one that warms up.
ROUNDS = 3


def plain(precision: str, compiled: bool = False, streams: int = 1, warm: bool = False, **_: Any) -> dict[str, float]:
    """ResNet-18's training steps on one random batch of 128: images and step rates."""
    import torch

    from fedbench import models
    from fedbench.core.precision import arithmetic, autocast, layout

    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    order = torch.contiguous_format if precision == "tf32" and not compiled else layout(precision, device)
    steps, started = [], time.perf_counter()
    with arithmetic(precision, device):
        for _ in range(streams):
            net = models.build("resnet18_gn", shape=(32, 32, 3), classes=10, seed=0).to(device, memory_format=order)  # type: ignore[call-overload]
            x = torch.randn(128, 3, 32, 32, device=device).contiguous(memory_format=order)
            y = torch.randint(0, 10, (128,), device=device)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)

            def loss_of(x: Any, y: Any, net: Any = net) -> Any:
                with autocast(precision, device):
                    logits = net(x)
                return torch.nn.functional.cross_entropy(logits.float(), y)

            loss = torch.compile(loss_of) if compiled else loss_of

            def step(loss: Any = loss, optimizer: Any = optimizer, x: Any = x, y: Any = y) -> None:
                loss(x, y).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(5):
                    step()
            torch.cuda.synchronize()
            run = step
            if compiled:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    step()
                run = graph.replay
            steps.append((run, stream, net, optimizer, x, y))

        if warm:
            return {"first": time.perf_counter() - started}

        def seconds(times: int) -> float:
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(times):
                for run, stream, *_ in steps:
                    with torch.cuda.stream(stream):
                        run()
            torch.cuda.synchronize()
            return time.perf_counter() - started

        seconds(3)
        return {"client_steps_a_second": 40 * streams / min(seconds(40) for _ in range(3))}


def ours(
    workload: str, precision: str, executor: str, options: dict[str, Any] | None = None, warm: bool = False, **_: Any
) -> dict[str, float]:
    """Rounds of a workload (or evaluations, whose images it counts) by an executor."""
    import torch
    from ours import Ours
    from workloads import WORKLOADS

    from fedbench.core.precision import arithmetic

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # a CPU: to try the program itself
    with arithmetic(precision, device):
        it = Ours(WORKLOADS[workload](device.type), device, precision, executor, options)
        try:
            started = time.perf_counter()
            it.repeat()
            out = {"first": time.perf_counter() - started}
            if warm:
                return out
            if it.workload.answers:
                return out | {"images_a_second": it.images / min(it.repeat() for _ in range(ROUNDS))}
            started, local, steps = time.perf_counter(), 0.0, it.workload.work[0]
            for _ in range(ROUNDS):
                local += it.round().line["local_seconds"]
            whole = time.perf_counter() - started
            return out | {
                "client_steps_a_second": ROUNDS * steps / local,
                "elsewhere": 1 - local / whole,
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            }
        finally:
            it.close()


def child(name: str, warm: bool) -> dict[str, float]:
    import torch

    line = LINES[name]
    torch._dynamo.reset()
    return plain(**line, warm=warm) if line.get("plain") else ours(**line, warm=warm)


def asked(names: Sequence[str], until: float, warm: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines' figures by one process, as they come, and by a new one after a line that ended it."""
    left = list(names)
    while left and time.perf_counter() < until:
        command = [sys.executable, str(Path(__file__)), "--child", *left, *(["--warm"] if warm else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            stop = Timer(max(1.0, until + 60 - time.perf_counter()), process.kill)
            stop.start()
            assert process.stdout is not None and process.stderr is not None  # noqa: PT018
            for line in process.stdout:
                yield left.pop(0), json.loads(line)
                if time.perf_counter() > until:
                    process.kill()
            stop.cancel()
            if left and time.perf_counter() < until:
                yield left.pop(0), {"error": "\n".join(process.stderr.read().splitlines()[-8:])}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no line after so long")
    parser.add_argument("--out", type=Path, help="write JSON there, after each line")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help="only compile, so that it is found on disk")
    parser.add_argument("--compiled", action="store_true", help="all is compiled already")
    args = parser.parse_args()
    names = args.names or list(LINES)
    if args.child:
        for name in names:
            print(json.dumps(child(name, args.warm)), flush=True)
        return 0
    until = time.perf_counter() + args.seconds

    def compiles(name: str) -> bool:
        options = LINES[name].get("options", LINES[name])
        return bool(options.get("compiled") and "lanes" not in options)

    some = [] if args.compiled else [name for name in names if compiles(name)]
    with ThreadPoolExecutor(8) as pool:
        first = dict(pair for pairs in pool.map(lambda n: list(asked([n], until, warm=True)), some) for pair in pairs)
    print("compiled, side by side:", {name: line.get("first", line) for name, line in first.items()}, flush=True)
    results: dict[str, Any] = {"compiled": first}
    for name, figures in asked([] if args.warm else names, until):
        results[name] = figures
        shown = {key: round(value, 2) if isinstance(value, float) else value for key, value in figures.items()}
        print(f"{name:28}", *(f"{key} {value}" for key, value in shown.items()), flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
