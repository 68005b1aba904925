"""Rules that the text of the sources keeps. Each function yields problems as "path:line: what is wrong"."""

import ast
import re
import shutil
import subprocess

from circles import circles

# What a folder of src/ may include, besides the public headers and itself: each layer knows only those below it.
LAYERS_BELOW = {
    "base": set(),
    "wire": {"base"},
    "plan": {"base", "wire"},
    "core": {"base", "wire", "plan"},
    "find": {"base", "wire", "core"},
    "recovery": {"base", "wire", "core"},
    "memory": {"base"},
    "transport": {"base", "wire", "plan", "memory"},
    "runtime": {"base", "wire", "plan", "core", "find", "memory", "transport"},
}
PURE_LAYERS = ("base", "wire", "plan", "core", "find", "recovery")

# Of the system the pure layers may know text and memory; what they call of it, binary_rules.py checks.
PURE_SYSTEM_HEADERS = {
    "arpa/inet.h", "assert.h", "inttypes.h", "limits.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h",
    "stdlib.h", "string.h", "uthash.h",
}  # fmt: skip
PUBLIC_SYSTEM_HEADERS = {"stdbool.h", "stddef.h", "stdint.h"}

# Each has a bounded, or a checkable, way to do the same.
BANNED_CALLS = {
    "strcpy": "memcpy with a length", "strcat": "snprintf", "strncpy": "memcpy with a length", "strncat": "snprintf",
    "stpcpy": "memcpy with a length", "sprintf": "snprintf", "vsprintf": "vsnprintf", "gets": "fgets",
    "strtok": "strtok_r", "atoi": "strtol", "atol": "strtol", "sscanf": "a parser",
    "alloca": "an array with a named limit", "signal": "sigaction", "exit": "a status", "abort": "a status",
    "system": "posix_spawn", "popen": "posix_spawn",
}  # fmt: skip

# Who has the address of a region's bytes in hand, outside src/memory. Each file here asks the memory's kind before it uses it
# as a pointer (is_addressable), or gives it to that kind's operations, or serves the host's memory alone.
BLOCK_ADDRESS = re.compile(r"\bkvf_segment_local\(|\b(?:regions?|served)(?:\[[^]]*\])?(?:->|\.)base\b")
HAVE_BLOCK_ADDRESSES = {
    "src/plan/pages.h", "src/runtime/node_memory.c", "src/runtime/numa.c",
    "src/transport/checksums.c", "src/transport/local/copy.c",
    "src/transport/tcp/ring.c", "src/transport/tcp/stream.c",
    "src/transport/ucx/ucx_link.c", "src/transport/ucx/ucx_memory.c", "src/transport/ucx/message.c",
}  # fmt: skip
# Fences, which are host memory whatever the blocks are in.
OTHER_PROCESS = re.compile(r"\bprocess_vm_(?:readv|writev)\(")
READ_OTHER_PROCESSES = {"src/transport/local/copy.c"}

FILE_LINES_MAX = 1300
# A C file's comments, strings and characters.
TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def code_of(text):
    """The text with comments and strings blanked out, line by line as before."""
    return TOKENS.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def numbered(text):
    return enumerate(text.splitlines(), start=1)


def c_files(root, *folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*.[ch]")):
            yield path, path.relative_to(root), path.read_text(encoding="utf-8")


def includes(root):
    for _, name, text in c_files(root, "include", "src"):
        layer = name.parts[1]
        for line, content in numbered(text):
            found = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', content)
            if found is None:
                continue
            quote, header = found.groups()
            if quote == '"':
                folder = header.split("/")[0]
                allowed = {"kvferry"} if name.parts[0] == "include" else {"kvferry", layer} | LAYERS_BELOW[layer]
                if folder not in allowed:
                    yield f'{name}:{line}: {layer} may not include "{header}"'
            elif name.parts[0] == "include" and header not in PUBLIC_SYSTEM_HEADERS:
                yield f"{name}:{line}: a public header may not include <{header}>"
            elif layer in PURE_LAYERS and header not in PURE_SYSTEM_HEADERS:
                if not (layer == "base" and header.startswith(("openssl/", "xxhash.h"))):
                    yield f"{name}:{line}: {layer} may not include <{header}>"


def one_name_each(root):
    """So that a name alone says which file it is. A .c file and its header are one."""
    folders = {}
    for _, name, _ in c_files(root, "src"):
        first = folders.setdefault(name.stem, name.parent)
        if first != name.parent:
            yield f"{name}:1: {first} has a file of this name, too"


def included_here(root):
    """(file, line, header) of every include of a header of ours, in src/."""
    for _, name, text in c_files(root, "src"):
        for line, content in numbered(text):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', content)
            if found is not None and not found.group(1).startswith("kvferry/"):
                yield name, line, found.group(1)


def no_include_circles(root):
    """A .c file and its header are one."""
    graph = {}
    for name, _, header in included_here(root):
        idea = str(name.relative_to("src").with_suffix(""))
        graph.setdefault(idea, set()).add(header.removesuffix(".h"))
    for needs in graph.values():
        needs.intersection_update(graph)
    for idea, needs in graph.items():
        needs.discard(idea)
    for group in circles(graph):
        yield f"src/{group[0]}: includes go round in a circle: {', '.join(group)}"


def imported(tree, package, modules):
    """Those of `modules` that a module of `package` imports, be it late, or for its types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from {name if (name := f"{base}.{alias.name}") in modules else base for alias in node.names} & modules


def no_import_circles(root):
    """Of the Python package."""
    folder = root / "python"
    paths = {path.relative_to(folder).with_suffix("").as_posix().replace("/", "."): path
             for suffix in ("*.py", "*.pyi") for path in sorted((folder / "kvferry").rglob(suffix))}  # fmt: skip
    modules = {name.removesuffix(".__init__") for name in paths}
    graph = {}
    for name, path in paths.items():
        module = name.removesuffix(".__init__")
        package = module if module != name else module.rpartition(".")[0]
        graph[module] = set(imported(ast.parse(path.read_text(encoding="utf-8")), package, modules)) - {module}
    for group in circles(graph):
        yield f"python/{group[0].replace('.', '/')}: imports go round in a circle: {', '.join(group)}"


def transports_know_only_themselves(root):
    """src/transport/NAME/ is included there alone; what transports share lies beside the folders."""
    for name, line, header in included_here(root):
        parts = header.split("/")
        if parts[0] == "transport" and len(parts) == 3 and name.parts[1:-1] != ("transport", parts[1]):
            yield f'{name}:{line}: "{header}" is a matter of src/transport/{parts[1]}/ alone'


def tools_use_the_public_interface(root):
    for _, name, text in c_files(root, "tools"):
        for line, content in numbered(text):
            if re.match(r'\s*#\s*include\s+"(base|wire|plan|core|find|recovery|memory|transport|runtime)/', content):
                yield f"{name}:{line}: tools use the public headers only"


def banned_calls(root):
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(BANNED_CALLS) + r")\s*\(")
    for _, name, text in c_files(root, "include", "src", "tools"):
        for line, content in numbered(code_of(text)):
            for call in pattern.findall(content):
                yield f"{name}:{line}: {call}() is banned: use {BANNED_CALLS[call]}"


def region_bytes(root):
    """A kind of memory alone knows how its bytes are reached."""
    for _, name, text in c_files(root, "src"):
        if name.parts[1] == "memory":
            continue
        for line, content in numbered(code_of(text)):
            for pattern, files in ((BLOCK_ADDRESS, HAVE_BLOCK_ADDRESSES), (OTHER_PROCESS, READ_OTHER_PROCESSES)):
                if pattern.search(content) and str(name) not in files:
                    yield f"{name}:{line}: the bytes of regions are for src/memory: see tests/tidy/source_rules.py"


def no_scaffolding(root):
    """Planted bugs are patches (tests/mutants), failure branches are counted by gcov."""
    for _, name, text in c_files(root, "include", "src"):
        for line, content in numbered(text):
            if re.search(r"KVF_(MARK|MUTANT)", content):
                yield f"{name}:{line}: shipped source holds no test scaffolding"


def header_guards(root):
    for _, name, text in c_files(root, "include", "src", "python"):
        if name.suffix != ".h":
            continue
        prefix = {"include": ["kvferry"], "src": ["kvf", *name.parts[1:-1]], "python": ["kvfpy"]}[name.parts[0]]
        guard = "_".join([*prefix, name.stem]).upper() + "_H"
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            yield f"{name}:1: the guard should be {guard}"
        if not text.startswith("/*"):
            yield f"{name}:1: a header begins with a comment that says what it is for"


def first_lines(root):
    for _, name, text in c_files(root, "src", "bench", "tests", "tools"):
        if name.suffix == ".c" and not text.startswith("/*"):
            yield f"{name}:1: a first line says what the file is"


def failed_calls_have_a_text(root):
    """A public function that can fail returns by kvf_answer(), and has a case in the test of kvf_error_text()."""
    headers = "".join(text for _, _, text in c_files(root, "include"))
    public = set(re.findall(r"^KVF_API (?:KVF_MUST_USE )?kvf_status (kvf_\w+)\(", headers, re.M))
    tested = set(re.findall(r"\bCASE\((kvf_\w+)", (root / "tests/unit/runtime/error_text_test.c").read_text()))
    for name in sorted(public - tested - {"kvf_node_unregister"}):  # says KVF_AGAIN at most
        yield f"tests/unit/runtime/error_text_test.c:1: no CASE() of {name}()"
    for _, path, text in c_files(root, "src"):
        for function, body in re.findall(r"^kvf_status (kvf_\w+)\([^;{]*?\)\n{(.*?)^}", text, re.M | re.S):
            returned = [value for value in re.findall(r"\breturn ([^;]*);", body) if value != "KVF_OK"]
            if function in public and not all(re.match(r"kvf_answer(_as)?\(", value) for value in returned):
                yield f"{path}:1: {function}() returns something else than KVF_OK or kvf_answer()"


def file_lengths(root):
    for folder in ("include", "src", "tests", "tools", "bench", "python", "examples"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            if path.suffix in (".c", ".h", ".py", ".pyi", ".sh") and path.is_file():
                lines = path.read_text(encoding="utf-8").count("\n")
                if lines > FILE_LINES_MAX:
                    yield f"{name}:{lines}: more than {FILE_LINES_MAX} lines: split it"


def versions(root):
    header = (root / "include/kvferry/kvferry.h").read_text(encoding="utf-8")
    build = (root / "meson.build").read_text(encoding="utf-8")
    in_header = ".".join(re.findall(r"#define KVF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    in_build = re.search(r"version: '([^']+)'", build).group(1)
    if in_header != in_build:
        yield f"meson.build:1: version {in_build}, but the numbers of kvferry.h are {in_header}"


def table_rows(root, name, macros):
    """What the rows of a table in src/base/NAME begin with."""
    text = code_of((root / "src/base" / name).read_text(encoding="utf-8"))
    return set(re.findall(rf"\b(?:{macros})\(\s*(\w+),", text))


def statuses_have_rows(root):
    named = set(re.findall(r"^  (KVF_\w+) = -?\d", (root / "include/kvferry/status.h").read_text(encoding="utf-8"), re.M))
    for status in sorted(named - table_rows(root, "status.c", "STATUS")):
        yield f"include/kvferry/status.h: {status} has no row in the table of src/base/status.c"


# Fields that no option of their name sets; the first are for src/base alone.
IN_BASE = {"struct_bytes", "options_gone"}
NO_OPTIONS = IN_BASE | {"identity_fields", "identity", "log", "log_context", "log_queue", "listen_source", "listen_other"}


def options_are_whole(root):
    """A field of kvf_config has an option that sets it, and code above src/base that reads it."""
    text = code_of((root / "include/kvferry/config.h").read_text(encoding="utf-8"))
    body = re.search(r"struct kvf_config \{(.*?)\n\}", text, re.S).group(1)
    fields = re.findall(r"(\w+)(?:\[[^]]*\])?;", body)
    code = "\n".join(code_of(text) for _, name, text in c_files(root, "src") if name.parts[1] != "base")
    read = set(re.findall(r"\b(?:config|options)(?:->|\.)(\w+)\b(?!\s*=[^=])", code))
    rows = table_rows(root, "options.c", "NUMBER|TEXT|CHOICE")
    for field in fields:
        if field not in rows | NO_OPTIONS:
            yield f"include/kvferry/config.h: the field {field} has no row in the table of src/base/options.c"
        if field not in read | IN_BASE:
            yield f"include/kvferry/config.h: the field {field} is read nowhere: no code above src/base has config->{field}"


def formatting(root):
    formatter = shutil.which("clang-format-19")
    if formatter is None:
        return  # other versions format differently
    files = [str(name) for _, name, _ in c_files(root, "include", "src", "tests", "tools", "bench", "python", "examples")]
    result = subprocess.run([formatter, "--dry-run", *files], cwd=root, capture_output=True, text=True, check=False)
    for path in sorted(set(re.findall(r"^(.+?):\d+:\d+: warning:", result.stderr, re.M))):
        yield f"{path}:1: not formatted: run ./dev format"


RULES = [
    includes,
    one_name_each,
    no_include_circles,
    no_import_circles,
    transports_know_only_themselves,
    tools_use_the_public_interface,
    banned_calls,
    region_bytes,
    no_scaffolding,
    header_guards,
    first_lines,
    failed_calls_have_a_text,
    file_lengths,
    versions,
    statuses_have_rows,
    options_are_whole,
    formatting,
]
