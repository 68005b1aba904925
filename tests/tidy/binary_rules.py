"""Rules that the built libraries keep: what they export, what the pure layers call, and that those have no state."""

import re
import subprocess

from circles import circles

# All that the pure layers may take from outside: memory and text. No clock, thread, file, socket, environment, no
# randomness, no output, no exit.
PURE_IMPORTS = re.compile(
    r"""(__)?mem(chr|cmp|cpy|move|set)(_chk)?
      | str(chr|cmp|cspn|len|ncmp|nlen|rchr|spn|str|tok_r)|__strtok_r|bcmp
      | (__)?v?snprintf(_chk)?
      | malloc|calloc|realloc|free|qsort|bsearch
      | inet_(ntop|pton)
      | CRYPTO_memcmp|OPENSSL_cleanse|EVP_\w+|OSSL_PARAM_\w+
      | __assert_fail|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|__tls_get_addr
      | __(asan|gcov|llvm|msan|sanitizer|tsan|ubsan)_\w+""",
    re.X,
)
# What compilers add of their own.
COMPILER_MADE = re.compile(r"__[\w.]+|_init|_fini|_edata|_end|\.L.*|\w*\.(LASAN|asan).*")
PURE_LAYERS = ("base", "wire", "plan", "core", "find", "recovery")


def lines_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def symbols(archive):
    """(kind, name) of every symbol that the linker sees."""
    for line in lines_of("nm", "--no-sort", str(archive)):
        fields = line.split()
        if len(fields) >= 2 and len(fields[-2]) == 1:
            yield fields[-2], fields[-1]


def pure_imports(archives):
    defined = set()
    for layer in PURE_LAYERS:
        defined |= {name for kind, name in symbols(archives[layer]) if kind.isupper() and kind != "U"}
        wanted = {name for kind, name in symbols(archives[layer]) if kind == "U"}
        for name in sorted(wanted - defined):
            if not PURE_IMPORTS.fullmatch(name):
                yield f"{layer}: may not call {name}"


# Why a thread's last call failed: base/error_text.c. Nothing in the library reads it.
STATE_OF_THREADS = {"error_text"}


def pure_state(archives):
    """Tables of constant pointers lie in .data.rel.ro: written by the loader only."""
    variable = re.compile(r"\s(\.data|\.bss|\.tdata|\.tbss|\*COM\*)(?!\.rel\.ro)\S*\s+[0-9a-f]+\s+(?:\.hidden\s+)?(\S+)$")
    for layer in PURE_LAYERS:
        for line in lines_of("objdump", "-t", str(archives[layer])):
            found = variable.search(line)
            if found is None or found.group(2).startswith("."):
                continue
            if not COMPILER_MADE.fullmatch(found.group(2)) and found.group(2) not in STATE_OF_THREADS:
                yield f"{layer}: {found.group(2)} is a variable that outlives its function: state belongs to a node"


def members(archive):
    """(object file, kind, name) of every symbol that the linker sees."""
    for line in lines_of("nm", "-A", "--no-sort", str(archive)):
        place, _, rest = line.rpartition(":")
        fields = rest.split()
        if len(fields) >= 2 and len(fields[-2]) == 1:
            yield place.rsplit(":", 1)[-1].rsplit("/", 1)[-1].removesuffix(".c.o"), fields[-2], fields[-1]


def no_call_circles(archives):
    """No two files of src/ call each other, nor do several in a circle."""
    home = {}
    wanted = []
    for layer, archive in archives.items():
        for member, kind, name in members(archive):
            if kind == "U":
                wanted.append((f"{layer}/{member}", name))
            elif kind.isupper():
                home[name] = f"{layer}/{member}"
    graph = {file: set() for file in home.values()}
    for file, name in wanted:
        if home.get(name, file) != file:
            graph.setdefault(file, set()).add(home[name])
    for group in circles(graph):
        yield f"src/{group[0]}.c: calls go round in a circle: {', '.join(group)}"


def one_door(archives):
    """The runtime enters the core by kvf_core_*() alone."""
    inside = {name for _, kind, name in members(archives["core"]) if kind.isupper() and kind != "U"}
    for member, kind, name in members(archives["runtime"]):
        if kind == "U" and name in inside and not name.startswith("kvf_core_"):
            yield f"src/runtime/{member}.c: {name}() goes round the core's door, core/core.h"


def prefixes(archives):
    for layer, archive in archives.items():
        for kind, name in symbols(archive):
            if kind.isupper() and kind not in "UW" and not name.startswith("kvf_") and not COMPILER_MADE.fullmatch(name):
                yield f"{layer}: {name} is visible to other files: make it static, or prefix it with kvf_"


def exports(root, library):
    declared = set()
    for header in (root / "include").rglob("*.h"):
        text = header.read_text(encoding="utf-8")
        declared |= set(re.findall(r"^KVF_API[^;]*?\b(kvf_\w+)\(", text, re.M))
    exported = set()
    for line in lines_of("nm", "--dynamic", "--defined-only", str(library)):
        name = line.split()[-1].split("@")[0]
        if not COMPILER_MADE.fullmatch(name):
            exported.add(name)
    for name in sorted(exported - declared):
        yield f"libkvferry: exports {name}, which no public header declares"
    for name in sorted(declared - exported):
        yield f"libkvferry: does not export {name}, which a public header declares"
