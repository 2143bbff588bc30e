"""``copperfs completion``: prints a completion script for a shell, made from the parsers;
completion itself starts no Python."""

import argparse
import sys
from collections.abc import Callable, Sequence

from copperfs.cli.parser_outline import Argument, Page, pages

NAME = "completion"
HELP = "print a shell's completion script"
EPILOG = """\
bash: put the output into ~/.local/share/bash-completion/completions/copperfs
zsh:  put it into a file _copperfs in a directory of $fpath, before compinit
fish: put it into ~/.config/fish/completions/copperfs.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "shell",
        metavar="|".join(SHELLS),
        choices=tuple(SHELLS),
        help="the shell that reads the script",
    )


def run(arguments: argparse.Namespace) -> int:
    from copperfs.cli.main import build_parser

    sys.stdout.write(SHELLS[arguments.shell](list(pages(build_parser()))))
    return 0


def _first_words(found: Sequence[Page]) -> list[str]:
    return list(dict.fromkeys(page.name.split()[0] for page in found))


def _second_words(found: Sequence[Page]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for page in found:
        first, _, second = page.name.partition(" ")
        if second:
            groups.setdefault(first, []).append(second)
    return groups


def _flags(page: Page) -> list[str]:
    return [flag for each in page.arguments for flag in each.flags]


# ---- bash ----------------------------------------------------------------------------------------


def _bash(found: Sequence[Page]) -> str:
    groups = _second_words(found)
    group_cases = "".join(
        f'        {first}) seconds="{" ".join(seconds)}" ;;\n' for first, seconds in groups.items()
    )
    cases = "".join(
        f'        "{page.name}")\n            flags="{" ".join(_flags(page))}"\n'
        f"{_bash_values(page)}            ;;\n"
        for page in found
    )
    return f"""\
# bash completion for copperfs, made by: copperfs completion bash
_copperfs() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    local first=${{COMP_WORDS[1]}} seconds="" flags="" values="" at=2 i
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(_first_words(found))} --help --version" -- "$cur"))
        return
    fi
    case $first in
{group_cases}    esac
    if [ -n "$seconds" ]; then
        if [ "$COMP_CWORD" -eq 2 ]; then
            COMPREPLY=($(compgen -W "$seconds" -- "$cur"))
            return
        fi
        first="$first ${{COMP_WORDS[2]}}"
        at=3
    fi
    for ((i = at; i < COMP_CWORD; i++)); do
        if [ "${{COMP_WORDS[i]}}" = -- ]; then
            COMPREPLY=($(compgen -c -f -- "$cur"))
            return
        fi
    done
    case $first in
{cases}    esac
    if [ -n "$values" ]; then
        COMPREPLY=($(compgen -W "$values" -- "$cur"))
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$cur"))
    else
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}}
complete -o filenames -F _copperfs copperfs
"""


def _bash_values(page: Page) -> str:
    lines = ""
    for each in page.arguments:
        if each.choices and each.flags:
            lines += (
                f'                {"|".join(each.flags)}) values="{" ".join(each.choices)}" ;;\n'
            )
    if not lines:
        positional = [each for each in page.arguments if each.choices and not each.flags]
        return f'            values="{" ".join(positional[0].choices)}"\n' if positional else ""
    return f"            case $prev in\n{lines}            esac\n"


# ---- zsh -----------------------------------------------------------------------------------------


def _zsh(found: Sequence[Page]) -> str:
    groups = _second_words(found)
    cases = "".join(f"        '{page.name}')\n{_zsh_page(page)}            ;;\n" for page in found)
    firsts = "".join(
        f"        {_zsh_word(first, _summary(found, first))}\n" for first in _first_words(found)
    )
    seconds = "".join(
        f"        {first}) seconds=({' '.join(words)}) ;;\n" for first, words in groups.items()
    )
    return f"""\
#compdef copperfs
# zsh completion for copperfs, made by: copperfs completion zsh
_copperfs() {{
    local -a commands seconds
    local name=$words[2]
    commands=(
{firsts}    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case $name in
{seconds}    esac
    if (( $#seconds )); then
        if (( CURRENT == 3 )); then
            _describe command seconds
            return
        fi
        name="$name $words[3]"
        shift words
        (( CURRENT-- ))
    fi
    shift words
    (( CURRENT-- ))
    case $name in
{cases}    esac
}}
if [ "$funcstack[1]" = _copperfs ]; then
    _copperfs "$@"
else
    compdef _copperfs copperfs
fi
"""


def _summary(found: Sequence[Page], first: str) -> str:
    of = [page for page in found if page.name.split()[0] == first]
    return of[0].summary if len(of) == 1 else f"commands about the {first}"


def _zsh_word(word: str, about: str) -> str:
    return _quoted(f"{word}:{about.replace(':', chr(92) + ':')}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_page(page: Page) -> str:
    specs = []
    for each in page.arguments:
        if each.flags:
            about = _brief(each.help).replace("[", "(").replace("]", ")").replace(":", "\\:")
            value = f":{each.metavar.replace(':', ' ')}:{_zsh_action(each)}" if each.metavar else ""
            specs += [_quoted(f"*{flag}[{about}]{value}") for flag in each.flags]
        elif each.metavar == "COMMAND":
            specs.append("'*::command:_normal'")
        else:
            many = "*" if each.repeated else ""
            name = each.metavar.replace(":", " ").replace("|", " or ")
            specs.append(_quoted(f"{many}:{name}:{_zsh_action(each)}"))
    lines = " \\\n".join(f"                {spec}" for spec in specs)
    return f"            _arguments \\\n{lines}\n"


def _zsh_action(argument: Argument) -> str:
    if argument.choices:
        return f"({' '.join(argument.choices)})"
    return "_files" if argument.names_path else " "


def _brief(text: str) -> str:
    """The first sentence of *text*."""
    return text.partition(". ")[0].rstrip(".")


# ---- fish ----------------------------------------------------------------------------------------


def _fish(found: Sequence[Page]) -> str:
    lines = [
        "# fish completion for copperfs, made by: copperfs completion fish",
        "complete -c copperfs -f",
        f"set -l firsts {' '.join(_first_words(found))}",
    ]
    lines += [
        'complete -c copperfs -n "not __fish_seen_subcommand_from $firsts" '
        f"-a {first} -d {_quoted(_summary(found, first))}"
        for first in _first_words(found)
    ]
    for first, seconds in _second_words(found).items():
        words = " ".join(seconds)
        lines.append(
            f'complete -c copperfs -n "__fish_seen_subcommand_from {first}; '
            f'and not __fish_seen_subcommand_from {words}" -a "{words}"'
        )
    for page in found:
        when = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in page.name.split())
        for each in page.arguments:
            lines += _fish_argument(when, each)
    return "\n".join(lines) + "\n"


def _fish_argument(when: str, argument: Argument) -> list[str]:
    start = f'complete -c copperfs -n "{when}"'
    values = ""
    if argument.choices:
        values = f' -x -a "{" ".join(argument.choices)}"'
    elif argument.names_path:
        values = " -r -F"
    elif argument.metavar:
        values = " -x"
    if not argument.flags:
        if argument.choices:
            return [f'{start} -a "{" ".join(argument.choices)}"']
        return [f"{start} -F"] if argument.names_path or argument.metavar == "COMMAND" else []
    names = " ".join(
        f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in argument.flags
    )
    return [f"{start} {names}{values} -d {_quoted(_brief(argument.help))}"]


SHELLS: dict[str, Callable[[Sequence[Page]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
