"""Writes docs/cli.md and the shells' completions from the parser of the command line.

    python deploy/reference/make_cli_reference.py [--check]

`--check` writes nothing and fails when a file is not what it would be. Needs shtab, of the group `dev`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import shtab

from perfd.cli import build_parser

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
COMPLETIONS = {
    "bash": ROOT / "deploy" / "completion" / "perfd.bash",
    "zsh": ROOT / "deploy" / "completion" / "_perfd",
}
_FILES = {"FILE", "EXPORT", "COPY", "RECORDING", "LOG", "URL|FILE", "RESULT", "SUMMARY", "CSV", "A", "B"}
_DIRECTORIES = {"DIR"}

_HEAD = """\
# Commands

<!-- Made by `make docs` from perfd/cli; do not edit. -->

Every command that prints a result and ends takes `--json`. Completion for bash and zsh comes with the
package, under `share/` of where it is installed; from a checkout: `source deploy/completion/perfd.bash`.
"""


def page() -> str:
    """The whole of docs/cli.md."""
    commands = list(_commands(build_parser(), "perfd"))
    parts = [_HEAD, "\n| command | purpose |\n|---|---|\n"]
    parts += [f"| [`{name}`](#{name.replace(' ', '-')}) | {purpose} |\n" for name, purpose, _ in commands]
    for name, _, parser in commands:
        parts.append(f"\n## `{name}`\n\n{_words(parser.description)}\n")
        if rows := [_row(action) for action in _own_actions(parser)]:
            parts.append("\n| argument | meaning |\n|---|---|\n" + "".join(f"{row}\n" for row in rows))
        if parser.epilog:
            parts.append(f"\n{_words(parser.epilog)}\n")
    return "".join(parts)


def completions() -> Mapping[str, str]:
    """The script of each shell, by its name."""
    parser = build_parser()
    for _, _, command in _commands(parser, "perfd"):
        for action in _own_actions(command):
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's documented way
            elif action.metavar in _DIRECTORIES:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return {shell: shtab.complete(parser, shell) for shell in COMPLETIONS}


def _commands(
    parser: argparse.ArgumentParser, name: str, purpose: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, purpose and parser of each command that can be called: the leaves of the tree of subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    if not below:
        yield name, purpose, parser
    for action in below:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
        for word, subparser in action.choices.items():
            if subparser.description is None:
                subparser.description = helps[word]
            yield from _commands(subparser, f"{name} {word}", helps[word])


def _own_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001


def _row(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.option_strings:
        value = "" if action.nargs == 0 else f" {'|'.join(action.choices) if action.choices else name}"
        name = ", ".join(action.option_strings) + value
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"| `{_cell(name)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _words(text: str | None) -> str:
    return "\n".join(line.rstrip() for line in (text or "").strip().splitlines())


def _documents() -> Mapping[Path, str]:
    scripts = completions()
    return {PAGE: page()} | {path: scripts[shell] for shell, path in COMPLETIONS.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or compare them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is out of date")
    args = parser.parse_args(arguments)
    stale = 0
    for path, text in _documents().items():
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run `make docs`.\n")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
