#!/usr/bin/env python3
"""Checks the project's own rules. Prints one line a problem; the exit status is 1 if there is any."""

import argparse
import pathlib
import sys

import binary_rules
import compile_rules
import language_rules
import source_rules


def problems(arguments):
    root = arguments.source
    if arguments.rules == "source":
        for rule in (*source_rules.RULES, *language_rules.RULES):
            yield from rule(root)
    elif arguments.rules == "compile":
        yield from compile_rules.compiles(root, arguments.cc)
    else:
        archives = dict(pair.split("=", 1) for pair in arguments.archive)
        yield from binary_rules.pure_imports(archives)
        yield from binary_rules.pure_state(archives)
        yield from binary_rules.prefixes(archives)
        yield from binary_rules.no_call_circles(archives)
        yield from binary_rules.one_door(archives)
        yield from binary_rules.exports(root, arguments.library)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", choices=["source", "compile", "binary"])
    parser.add_argument("--source", type=pathlib.Path, required=True, help="the root of the sources")
    parser.add_argument("--cc", default="cc", help="the C compiler")
    parser.add_argument("--archive", action="append", default=[], help="LAYER=PATH of a layer's static library")
    parser.add_argument("--library", type=pathlib.Path, help="the shared library")
    found = list(problems(parser.parse_args()))
    for problem in found:
        print(problem)
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
