"""Outcomes as a table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from .table import table
from .trial import Outcome

HEAD = ("fault", "connector", "the client got", "tokens", "seconds", "recomputed", "why", "D's next", "blocks back")


def outcomes(results: Sequence[Outcome]) -> str:
    ordered = sorted(results, key=lambda result: result.fault.letter)
    return table(HEAD, [row(result) for result in ordered])


def in_one_line(result: Outcome) -> str:
    return "    " + "; ".join(f"{name}: {cell}" for name, cell in zip(HEAD[2:], row(result)[2:]) if cell != "-")


def row(result: Outcome) -> tuple[str, ...]:
    ours = result.connector == "kvferry"
    return (
        f"({result.fault.letter}) {result.fault.title}", result.connector,
        "(it hung up)" if result.reply is None else result.reply.in_short(),
        verdict(result),
        "-" if result.reply is None else f"{result.reply.seconds:.1f}",
        str(result.recomputed) if ours else "-",
        ", ".join(result.reasons) or "-" if ours else "-",
        f"{result.probe.seconds:.1f} s" if result.probe.ok else result.probe.in_short(),
        f"{result.blocks_back_s:.1f} s" if result.blocks_back_s is not None else "NOT BACK",
    )


def verdict(result: Outcome) -> str:
    if result.same_tokens is None:
        return "-" if result.reply is None else "none"
    return "right" if result.same_tokens else "WRONG"
