"""``python cluster_liar.py KIND node ...``: a node with a certificate of the cluster that was taken over.

KIND: many (100,000 more in every cell), wrap (2^62 more), small (one more in one cell: within what records can add), or
code (its answer is no sum but code, which runs where it is unpickled: in the curator's courier).
"""

from __future__ import annotations

import sys

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.cluster import node, task
from dpswd.shared.mechanisms import every_mechanism

CODE = """
import os, pathlib, socket
def tried(name, attempt):
    try:
        attempt()
    except OSError as error:
        return f"{name}: {os.strerror(error.errno) if error.errno else type(error).__name__}"
    return f"{name}: done"
def tcp():
    socket.create_connection(("127.0.0.1", PORT), timeout=2.0).close()
def unix():
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(PATH + ".socket")
def pair():
    socket.socketpair()
def program():
    os.posix_spawn("/bin/true", ["true"], {})
def secret():
    pathlib.Path(PATH + ".secret").read_bytes()
def write():
    pathlib.Path(PATH + ".written").write_bytes(b"x")
attempts = {"tcp": tcp, "unix": unix, "pair": pair, "program": program, "secret": secret, "write": write}
answer = b"F" + "; ".join(tried(*each) for each in attempts.items()).encode()
"""


class Code:
    """Unpickling it runs it."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __reduce__(self):
        return eval, (f"[scope := {{}}, exec({self._source!r}, scope), scope['answer']][2]",)


def lying(kind: str, lawful):
    def answer(self, task_bytes, graph, weights):
        if kind.startswith("code"):
            _, port, path = kind.split(",")
            return Code(f"PORT, PATH = {port}, {path!r}\n{CODE}")
        said = lawful(self, task_bytes, graph, weights)
        assert said[:1] == task.SUM
        run, shard, _ = task.from_bytes(task_bytes, every_mechanism())
        like = run.accumulator(node.torch.device("cpu")).sums
        part = task.sum_from_bytes(said[1:], shard=shard, like=like)
        for place, values in enumerate(part.sums):
            if kind == "small":
                values.ravel()[:1] += place == 1  # of a class's features
            else:
                values += {"many": 100_000, "wrap": 2**62}[kind]
        return task.SUM + task.sum_to_bytes(part)

    return answer


if __name__ == "__main__":
    node.Node.answer = lying(sys.argv.pop(1), node.Node.answer)
    main()
