"""Check the prose of the project: words to avoid, docstrings that start with a verb, long lines of Markdown.

    python .ci/lint_prose.py                     # everything that git tracks
    python .ci/lint_prose.py nnclr_hub/store     # files or folders

Plain American technical English, one idea in a sentence. There is no list of exceptions: rewrite what it finds.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKDOWN_WIDTH = 120
SUFFIXES = {".py", ".md", ".js", ".html", ".css", ".toml", ".yml", ".yaml"}
NAMES = {"Makefile", "Dockerfile"}
QUOTING = {Path(__file__).name, "test_lint_prose.py"}  # the word list itself, and samples of bad prose
# Python 3.12 splits f-strings into several tokens.
PROSE_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

# expression -> what to write instead
WORDS = {
    r"pictures?": "image",
    r"told|tells? (?:of|that|which|what|whether)": "reported, raises, logs, shows",
    r"beside": "alongside, next to, in addition to",
    r"whoever|for who|(?:of|to|by|and) who|who (?:asks?|wants?|holds?|sends?|waits?|gives?|has|needs?)": "the caller",
    r"(?:is|are|was|were) none of": "is not a valid ...",
    r"(?<!there )(?:is|are|was|were) no (?!longer|better|worse|more|less|fewer|different)[a-z]+": "is not a ...",
    r"anew|afresh": "restart, from scratch, again",
    r"go(?:es|ing)? on|went on|gone on": "continue",
    r"hits?": "results, matches",
    r"ended by": "killed, canceled, stopped",
    r"at most so many": "at most N",
    r"mend(?:s|ed|ing)?": "fix",
    r"way on": "next step, hint",
    r"what there is|what is there": "existing items, what exists",
    r"(?:can(?:not)?|could(?: not)?) be had|(?:to be|be) had": "is available",
    r"at the (?:most|least)": "at most, at least",
    r"meanwhile|in the meantime": "while X runs",
    r"stands? (?:in|on|at|beside|for|by|behind|there|alone)": "is in, is listed in, represents",
    r"lies? (?:in|on|at|below|beside|under|by|within|behind|between)": "is in, is under",
    r"(?:is|are) said|sa(?:ys?|id) so": "reports, prints",
    r"of (?:its|their|his|her|our|one's) own": "separate, or leave it out",
    r"broken off|breaks? off|broke off": "interrupted, cancelled",
    r"(?:is|are|was|were) (?:gone|asked)": "is removed; is called, is requested",
    r"doors?": "loading method, entry point",
    r"errands?|crews?|lookers?": "task, worker pool, extractor",
    r"lent|borrowed": "leave it out",
    r"thereof|thereby|whereof|hereafter|henceforth": "leave it out",
    r"neighbours?|neighbouring|colours?|grey|centres?|behaviours?|favourites?": "American spelling",
    r"[a-z]*(?:normalis|optimis|synchronis|quantis|initialis|localis|recognis|summaris|serialis)[a-z]*": (
        "American spelling"
    ),
    r"labelled|labelling|misspelt|licence|catalogue|centerd|centring": "American spelling",
}
FORBIDDEN = [(re.compile(rf"(?<![\w/.-])(?:{words})(?![\w/])", re.IGNORECASE), hint) for words, hint in WORDS.items()]
# parts of names in code, where a word is joined to others by underscores
NAME_PARTS = re.compile(
    r"(?:^|_)(pictures?|told|beside|anew|mended|errand|crew|looker|neighbours?|colours?|grey)(?:_|$)", re.I
)

# first words of a docstring that are not imperative verbs
NOT_VERBS = re.compile(
    r"a|all|an|and|another|any|are|as|at|both|by|each|either|every|everything|few|first|for|from|given|here|how|i|if|in"
    r"|is|it|its|last|many|more|most|much|no|none|not|nothing|of|on|one|only|other|our|own|same|some|such|that|the"
    r"|their|them|then|there|these|it|they|this|those|three|to|two|up|was|we|what|whatever|when|where|whether|which"
    r"|who|whose|why|with|without|yes|you|your"
)
OTHER_FORMS = re.compile(r".*([^s]s|ing|ed|ly|ness|tion)")  # of verbs, and other parts of speech
VERBS = re.compile(r"address|apply|bias|bring|bypass|embed|feed|focus|mention|multiply|need|reply|seed|speed|supply")
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # of model cards: YAML, which cannot be wrapped
NOT_PROSE = re.compile(r"`[^`]*`|https?://\S+|\]\([^)]*\)")


def main(arguments: list[str]) -> int:
    """Print the findings, one per line, and return 1 if there are any."""
    findings = [finding for path in tracked(arguments) for finding in check(path)]
    print("\n".join(findings), end="\n" if findings else "")
    print(f"{len(findings)} findings", file=sys.stderr)
    return int(bool(findings))


def tracked(arguments: list[str]) -> list[Path]:
    """Return the tracked files below the given paths that have prose in them."""
    listed = subprocess.run(["git", "ls-files", "--", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [
        path
        for path in paths
        if (path.suffix in SUFFIXES or path.name in NAMES) and path.name not in QUOTING and path.exists()
    ]


def check(path: Path) -> Iterator[str]:
    """Yield a line per finding in a file."""
    name, text = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name, path.read_text()
    for number, line in prose(path, text):
        for pattern, hint in FORBIDDEN:
            if found := pattern.search(line):
                yield f"{name}:{number}: '{found[0]}' -> {hint}"
    if path.suffix == ".md":
        for number, line in enumerate(FRONT_MATTER.sub(blank, text).splitlines(), 1):
            if len(line) > MARKDOWN_WIDTH and not line.startswith(("|", "![")) and " " in line[:MARKDOWN_WIDTH].strip():
                yield f"{name}:{number}: {len(line)} characters -> wrap at 100"
    if path.suffix == ".py":
        yield from (f"{name}:{number}: {finding}" for number, finding in check_python(text, path))


def blank(found: re.Match[str]) -> str:
    """Return as many empty lines as a match has, so that line numbers stay."""
    return "\n" * found[0].count("\n")


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of comments and strings in Python, and of all text outside code blocks elsewhere."""
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_key = token.type != tokenize.COMMENT and " " not in token.string
            if token.type in PROSE_TOKENS and not is_key:
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, NOT_PROSE.sub(" ", line)
        return
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            yield number, NOT_PROSE.sub(" ", line)


def check_python(text: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield names with words to avoid, and docstrings of functions that do not start with a verb."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
            if not isinstance(node, ast.ClassDef):
                names += [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if (
                    (docstring := ast.get_docstring(node))
                    and not is_property(node)
                    and not path.name.startswith("test_")
                ):
                    first = re.sub(r"[^\w-].*", "", docstring.split()[0])
                    if not is_imperative(first):
                        yield node.lineno, f"docstring of {node.name} starts with '{first}' -> an imperative verb"
            for name in names:
                if found := NAME_PARTS.search(name):
                    yield node.lineno, f"name '{name}' has '{found[1]}' in it -> rename"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and (found := NAME_PARTS.search(node.id)):
            yield node.lineno, f"name '{node.id}' has '{found[1]}' in it -> rename"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is read as a value, whose docstring may be a noun."""
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def is_imperative(word: str) -> bool:
    """Return whether a word can be an English verb in the imperative; judged by its form."""
    lower = word.lower()
    if not word[:1].isupper() or NOT_VERBS.fullmatch(lower):
        return False
    return bool(VERBS.fullmatch(lower)) or not OTHER_FORMS.fullmatch(lower)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
