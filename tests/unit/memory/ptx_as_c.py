#!/usr/bin/env python3
"""Writes the kernels' PTX as C, so that the very text that devices are given can be run, and tested, without one.

A warp's lanes go through the text together where they can. Where some branch away, the rest come later; at a shuffle
each waits for all. An instruction that is not known here is an error, and so is an access that is not aligned.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

SAME_WIDTH = {"add": "a + b", "sub": "a - b", "and": "a & b", "or": "a | b", "xor": "a ^ b", "mul.lo": "a * b",
              "min": "a < b ? a : b", "shl": "b < W ? a << b : 0", "shr": "b < W ? a >> b : 0", "not": "~a", "neg": "-a",
              "mov": "a", "cvta.to.global": "a"}  # fmt: skip
OTHER = {
    "mul.wide.u32": "(uint64_t)(uint32_t)a * (uint32_t)b", "mul.hi.u64": "(unsigned __int128)a * b >> 64",
    "cvt.u64.u32": "a", "cvt.u32.u64": "a", "selp.b32": "c ? a : b",
    "prmt.b32": "permuted(a, b, c)",
    "shf.l.wrap.b32": "(((uint64_t)b << 32 | a) << (c & 31)) >> 32", "shf.r.wrap.b32": "((uint64_t)b << 32 | a) >> (c & 31)",
    "bfi.b64": "(b & ~(((UINT64_C(1) << d) - 1) << c)) | (a & ((UINT64_C(1) << d) - 1)) << c",
}  # fmt: skip
COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

PRELUDE = """
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define EACH for (unsigned lane = 0; lane < 32; lane++) if (on[lane])
#define CHECK(what) do { if (!(what)) abort(); } while (0)
#define AT(type, address) (*({ uint64_t at_ = (address); CHECK(at_ % sizeof(type) == 0); (type *)at_; }))
static uint32_t permuted(uint32_t a, uint32_t b, uint32_t chosen)
{
  uint32_t made = 0;
  for (unsigned i = 0; i < 4; i++) {
    CHECK((chosen >> 4 * i & 8) == 0);
    made |= (uint32_t)(((uint64_t)b << 32 | a) >> 8 * (chosen >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return made;
}
"""

WARP = """
  unsigned next[32] = {0};
  for (;;) {
    bool on[32];
    unsigned now = END, there = 0;
    for (unsigned lane = 0; lane < 32; lane++) there += next[lane] == next[0];
    for (unsigned lane = 0; lane < 32; lane++)
      if (next[lane] < now && (there == 32 || !waits[next[lane]])) now = next[lane];
    if (now == END) { CHECK(there == 32 && next[0] == END); return; }
    EACH_LANE on[lane] = next[lane] == now;
    EACH next[lane] = now + 1;
    switch (now) {
"""


def value(operand: str) -> str:
    """As C, for one lane."""
    special = {"%tid.x": "thread + lane", "%ntid.x": "threads", "%ctaid.x": "block", "%nctaid.x": "blocks"}
    if operand in special:
        return f"({special[operand]})"
    if re.fullmatch(r"-?\d+", operand):
        return f"(uint64_t){int(operand) % 2**64}u"
    if operand.startswith("table_"):
        return f"(uint64_t){operand}"
    return re.sub(r"%(rd|rs|r|p)(\d+)", r"\1[\2][lane]", operand)


def address(operand: str) -> str:
    base, _, offset = operand.strip("[]").partition("+")
    return f"{value(base)} + {offset or 0}"


def access(op: str, operands: list[str]) -> list[str]:
    kind = {"u8": "uint8_t", "u32": "uint32_t", "u64": "uint64_t"}[op.rpartition(".")[2]]
    loads = op.startswith("ld")
    where = operands[-1] if loads else operands[0]
    values = (operands[0] if loads else operands[1]).strip("{}").split(", ")
    lines = [f"CHECK(({address(where)}) % (sizeof({kind}) * {len(values)}) == 0)"]
    for i, one in enumerate(values):
        there = f"AT({kind}, {address(where)} + {i} * sizeof({kind}))"
        lines.append(f"{value(one)} = {there}" if loads else f"{there} = {value(one)}")
    return lines


def moved_halves(operands: list[str]) -> list[str]:
    if operands[0].startswith("{"):
        halves = re.split(r",\s*", operands[0].strip("{}"))
        return [f"{value(half)} = {value(operands[1])} >> {32 * i}" for i, half in enumerate(halves) if half not in ("%temp", "%dummy")]
    low, high = re.split(r",\s*", operands[1].strip("{}"))
    return [f"{value(operands[0])} = (uint64_t){value(high)} << 32 | {value(low)}"]


def statements(op: str, operands: list[str]) -> list[str]:
    if op == "ld.param.u64":
        return [f"{value(operands[0])} = params[{operands[1].strip('[]').rpartition('_')[2]}]"]
    if re.fullmatch(r"(ld(\.global(\.nc)?)?|st(\.global)?)(\.v2)?\.(u8|u32|u64)", op):
        return access(op, operands)
    if op == "mov.b64":
        return moved_halves(operands)
    names = [f"const uint64_t {name} = {value(one)}" for name, one in zip("abcd", operands[1:])]
    family, _, kind = op.rpartition(".")
    width = kind[1:]
    if op.startswith("setp."):
        cast = f"({'int' if kind[0] == 's' else 'uint'}{width}_t)"
        return [*names, f"{value(operands[0])} = {cast}a {COMPARED[family.partition('.')[2]]} {cast}b"]
    if family in SAME_WIDTH:
        # A register is as wide as its instruction, and what is cut off is never looked at.
        expression = SAME_WIDTH[family].replace("W", width)
        return [*names, f"{value(operands[0])} = (uint{width}_t)({expression})"]
    return [*names, f"{value(operands[0])} = {OTHER[op]}"]


def shuffle(operands: list[str]) -> str:
    """All lanes at once; each has its own register, and gets another's."""
    to, (source, by, clamp, mask) = operands[0].partition("|")[0], operands[1:]
    every = "; ".join(f"CHECK((uint32_t){value(one)} == {wanted})" for one, wanted in ((clamp, "31"), (mask, "0xffffffff")))
    return (f"{{ uint32_t was[32]; EACH was[lane] = {value(source)}; "
            f"EACH {{ {every}; {value(to)} = was[lane ^ {value(by)}]; }} }}")


def kernel(name: str, body: str) -> str:
    registers = []
    for kind, prefix, count in re.findall(r"\.reg \.(\w+) %(\w+)<(\d+)>;", body):
        registers.append(f"  static {'bool' if kind == 'pred' else 'uint' + kind[1:] + '_t'} {prefix}[{count}][32];\n")
    steps: list[str] = []
    waits = []
    labels = {}
    for line in body.splitlines():
        line = line.strip().rstrip(";")
        if line.startswith("$"):
            labels[line.rstrip(":")] = len(steps)
        elif line and line not in "{}" and not line.startswith("."):
            guard, op, rest = re.fullmatch(r"(@!?%p\d+ )?([\w.]+) ?(.*)", line).groups()
            operands = re.findall(r"\{[^}]*\}|[^\s,{}][^,{}]*", rest)
            waits.append(op.startswith("shfl"))
            if op in ("bra", "bra.uni"):
                condition = value(guard.strip("@ ")) if guard else "true"
                steps.append(f"EACH if ({condition}) next[lane] = {operands[0]};")
                continue
            assert guard is None, line
            if op == "ret":
                steps.append("EACH next[lane] = END;")
            elif op == "shfl.sync.bfly.b32":
                steps.append(shuffle(operands))
            else:
                steps.append("EACH { " + "; ".join(statements(op, operands)) + "; }")
    cases = "".join(f"    case {i}: {step}\n      break;\n" for i, step in enumerate(steps))
    cases = re.sub(r"\$L\w+", lambda found: str(labels[found.group()]), cases)
    begin = WARP.replace("END", str(len(steps))).replace("EACH_LANE", "for (unsigned lane = 0; lane < 32; lane++)")
    flags = ", ".join(str(int(one)) for one in waits)
    return (f"static void {name}_warp(const uint64_t *params, unsigned block, unsigned blocks, unsigned threads, unsigned thread)\n"
            f"{{\n  static const bool waits[] = {{{flags}}};\n{''.join(registers)}{begin}"
            f"{cases.replace('END', str(len(steps)))}    }}\n  }}\n}}\n"
            f"void ptx_{name}(const uint64_t *params, unsigned blocks, unsigned threads);\n"
            f"void ptx_{name}(const uint64_t *params, unsigned blocks, unsigned threads)\n"
            f"{{\n  for (unsigned block = 0; block < blocks; block++)\n    for (unsigned thread = 0; thread < threads; thread += 32)\n"
            f"      {name}_warp(params, block, blocks, threads, thread);\n}}\n")


def main(source: Path, made: Path) -> None:
    ptx = "".join(ast.literal_eval(text) for text in re.findall(r'^ {4}(".*")', source.read_text(), re.M))
    tables = "".join(f"static _Alignas(8) const uint8_t {name}[{size}] = {{{values}}};\n" for name, size, values in
                     re.findall(r"^\.global \.align 8 \.b8 (\w+)\[(\d+)\] = \{(.*)\};", ptx, re.M))
    kernels = [text.partition("(") for text in ptx.split(".visible .entry ")[1:]]
    made.write_text(PRELUDE + tables + "".join(kernel(name, text.partition("{")[2]) for name, _, text in kernels))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
