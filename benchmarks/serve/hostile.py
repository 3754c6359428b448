"""Requests that make no sense, and a page from elsewhere, against `rl-training serve`.

    python benchmarks/serve/hostile.py [--requests 3000] [--seed 0]

Damaged JSON, wrong types, huge numbers, deep nesting, strange names, wrong methods and addresses, wrong
lengths, bodies that end early, no HTTP at all. What is counted is how they were answered: an error of the
server (500 or more) or a wait of more than ten seconds is a fault. In between, a plain call must be answered.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from socket import SHUT_WR

from serving import HOST, Caller, calls, free_port, make_policy, running, served

ODD: list[object] = [
    *(None, True, "", "x" * 300, "\x00", "'; drop table decisions; --", "../../etc/passwd", [], {}, [[]]),
    *(1e308, -1e308, 10**400, -0.0, 1.5, {"T_tank": 1}, [1, 2], "NaN", "∞", "\ud800"),
]
PATHS = ("/act", "/reset", "/dial", "/v2/models/policy/infer", "/v2/models/../infer", "/metrics", "/", "/ACT")
METHODS = (b"POST", b"GET", b"PUT", b"DELETE", b"OPTIONS", b"BREW", b"\x16\x03\x01")


def damaged(plain: dict[str, object], draws: random.Random) -> bytes:
    """A body that is wrong in one way or another."""
    kind = draws.randrange(7)
    call = dict(plain)
    if kind == 0:
        call[draws.choice([*call])] = draws.choice(ODD)
    elif kind == 1:
        call = {str(draws.choice(ODD)): draws.choice(ODD) for _ in range(draws.randrange(20))}
    elif kind == 2:
        tensor = {"name": "obs", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
        tensor[draws.choice([*tensor])] = draws.choice(ODD)  # type: ignore[assignment]
        call = {"inputs": draws.choice([[tensor], [tensor] * 2, tensor])}
    text = json.dumps(call).encode()
    if kind == 3:
        at = draws.randrange(len(text))
        text = text[:at] + bytes([draws.randrange(256)]) + text[at + 1 :]
    elif kind == 4:
        text = text[: draws.randrange(len(text))]
    elif kind == 5:
        text = draws.randbytes(draws.randrange(200))
    elif kind == 6:
        text = draws.choice((b"[", b'{"a":', b'"')) * draws.choice((1, 1_000, 100_000))
    return text


def one_request(caller: Caller, plain: dict[str, object], draws: random.Random) -> bytes:
    body = damaged(plain, draws)
    whole = caller.request(body, draws.choice(PATHS))
    kind = draws.randrange(10)
    if kind == 0:
        whole = draws.choice(METHODS) + whole[4:]
    elif kind == 1:
        length = str(draws.choice((-1, 0, 10, 10**12, "x"))).encode()
        whole = whole.replace(f"content-length: {len(body)}".encode(), b"content-length: " + length)
    elif kind == 2:
        at = draws.randrange(len(whole))
        whole = whole[:at] + draws.randbytes(3) + whole[at:]
    elif kind == 3:
        whole = whole[: draws.randrange(1, len(whole))]
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draws, [body] = random.Random(options.seed), calls(1)
    plain, ended = json.loads(body), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        policy, port = make_policy(Path(folder)), free_port()
        with running(served(policy, port)):
            for number in range(options.requests):
                with Caller(port) as caller:
                    try:
                        caller.send(one_request(caller, plain, draws))
                        caller.socket.shutdown(SHUT_WR)  # nothing more will come
                        ended[str(caller.answer()[0] or "closed")] += 1
                    except TimeoutError:
                        ended["no answer within 10 s"] += 1
                    except OSError:  # closed by the service, perhaps before all was sent
                        ended["closed"] += 1
                if number % 100 == 99:
                    with Caller(port) as caller:
                        assert caller.ask(body)[0] == 200
            with Caller(port) as caller:
                elsewhere = [
                    caller.ask(body, origin="http://evil.example")[0],
                    caller.ask(body, "/dial", origin="null")[0],
                    caller.ask(body, host=f"evil.example:{port}")[0],
                    caller.ask(body, origin=f"http://{HOST}:{port + 1}")[0],
                ]
    print("answers:", ", ".join(f"{status}: {count}" for status, count in sorted(ended.items())))
    faults = sum(count for status, count in ended.items() if status.startswith(("5", "no answer")))
    print(f"{options.requests} requests, errors of the server or no answer: {faults}")
    print(f"a page from elsewhere: {elsewhere}")
    raise SystemExit(1 if faults or min(elsewhere) < 400 else 0)


if __name__ == "__main__":
    main()
