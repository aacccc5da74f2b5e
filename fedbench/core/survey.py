"""What the server asks its clients between rounds, such as how they describe their data."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core import message
from fedbench.core.communication import bytes_down
from fedbench.core.executors import one_thread
from fedbench.core.server import Server
from fedbench.core.simulation import SURVEYING, Simulation


def survey(run: Simulation, server: Server, who: Sequence[int], t: int) -> tuple[int, int]:
    """Ask these clients what the server wants to know after round t, as often as it has a question: bytes up and
    down. After the last round the clients are sent once more what they hold, which else comes with the next one."""
    up = down = 0
    k = 0
    while (question := run.method.ask(server, t, k)) is not None:
        with run.clock.phase("survey"):
            clients = [run.client(i, server.view(i), t, SURVEYING + 1000 * k) for i in who]
            for client in clients:
                client.inbox = question
                run.check_message(client, "inbox")
                if t == run.setting.rounds and k == 0:
                    down += bytes_down(server, client, run.method.is_personal)
                else:
                    down += message.size(question)
            run.executor.run(clients, run.method.reply)
            with one_thread():
                for client in clients:
                    run.check_message(client, "upload")
                    up += message.size(client.upload)
                    personal = {n: t for n, t in client.state.items() if run.method.is_personal(n)}
                    server.keep(client.index, personal)
                run.change(run.method.learn, server, clients, t)
        k += 1
    return up, down
