"""Beside the quickstart's engines: kills P, whose process group is the argument, and prints the replies of D as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict

from pd import client
from pd.faults import alter

P, D, ROUTER = (f"http://127.0.0.1:{port}" for port in (8100, 8200, 8000))


def ask(url: str, tokens: int = 8, ticket: client.Ticket | None = None) -> client.Reply:
    return client.complete(url, "The capital of France is", tokens, ticket, fields={"model": os.environ["MODEL"]})


replies = {"before": ask(ROUTER)}
ticket = ask(P, 1, client.ASK_FOR_TICKET).ticket
assert ticket is not None
os.killpg(int(sys.argv[1]), signal.SIGKILL)
replies["killed"] = ask(D, ticket=ticket)
replies["altered"] = ask(D, ticket=alter(ticket))
replies["failed"] = ask(D, ticket={**alter(ticket), "kvferry_options": {"policy": "fail"}})
print(json.dumps({name: asdict(reply) for name, reply in replies.items()}))
