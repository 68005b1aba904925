"""Rules for documents: narrow lines, short sentences, no words that stop readers, a glossary."""

import re

WIDTH = 100
WORDS = 25
LONG_SHARE = 0.05
README_LINES = 150
TERMS = 25
STUMBLES = re.compile(r"\b(?:as (?:above|below)|likewise|ditto|the (?:former|latter)|whoever|whatever|whichever|"
                      r"vice versa|respectively|save for|hence|thereof|therein|wherein)\b", re.I)


def documents(root):
    for pattern in ("*.md", "docs/**/*.md", "src/**/*.md", "python/**/*.md", "examples/*.md", "deploy/**/*.md",
                    "tests/**/*.md", "tools/**/*.md"):
        yield from sorted(root.glob(pattern))


def prose(text):
    """(number, line), empty for tables, code and comments."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            yield number, ""
        elif not fenced:
            yield number, "" if re.match(r"\s*(\||<!--|    \S)", line) else line


def sentences(text):
    """A heading ends a paragraph; an item of a list does not, unless it ends in a full stop."""
    paragraphs = "\n".join(f"\n{line}\n" if line.startswith("#") else line for _, line in prose(text))
    for paragraph in re.split(r"\n\s*\n", paragraphs):
        joined = " ".join(re.sub(r"^\s*([-*]|\d+\.)\s+", "", line) for line in paragraph.splitlines())
        yield from filter(str.split, re.split(r"(?<=[.!?])[*_)\"”]*\s+", joined))


def wide_lines(root):
    for path in documents(root):
        for number, line in prose(path.read_text()):
            if len(line) > WIDTH and not re.fullmatch(r"\s*\S+", line):
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns, the most are {WIDTH}"


def long_sentences(root):
    for path in documents(root):
        every = list(sentences(path.read_text()))
        long = [one for one in every if len(one.split()) > WORDS]
        if len(long) > LONG_SHARE * len(every):
            yield (f"{path.relative_to(root)}: {len(long)} of {len(every)} sentences have more than {WORDS} words, "
                   f"the most are {LONG_SHARE:.0%}; the longest: {max(long, key=lambda one: len(one.split()))[:80]}")


def words_to_stumble_over(root):
    for path in documents(root):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := STUMBLES.search(line):
                yield f"{path.relative_to(root)}:{number}: '{found[0]}': name the thing itself"


def glossary(root):
    path = root / "docs/glossary.md"
    terms = len(re.findall(r"^\| \*\*", path.read_text(), re.M))
    if terms > TERMS:
        yield f"docs/glossary.md: {terms} terms, the most are {TERMS}"
    for page in [root / "README.md", *sorted(root.glob("docs/**/*.md"))]:
        if page != path and "glossary.md" not in page.read_text():
            yield f"{page.relative_to(root)}: has no link to docs/glossary.md"
    if (lines := len((root / "README.md").read_text().splitlines())) > README_LINES:
        yield f"README.md: {lines} lines, the most are {README_LINES}"


RULES = (wide_lines, long_sentences, words_to_stumble_over, glossary)
