"""The command `atommem completion`: what bash and zsh complete, taken from every command's help."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout, suppress

from atommem import cli
from atommem.arguments import Parser

_SCRIPT = """\
[ -z "$ZSH_VERSION" ] || { autoload -Uz bashcompinit && bashcompinit; }
_atommem() {
  local words current="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}"
  [[ $last == --* && $current != -* ]] && return  # a value, maybe a file
  case "${COMP_LINE#* }" in
    ARMS
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _atommem atommem
"""


def main(argv: list[str]) -> int:
    Parser(
        "atommem completion",
        "Print a script that completes commands and flags in bash and zsh: write it to a file, and "
        "source that in ~/.bashrc, or in ~/.zshrc after compinit.",
    ).parse_args(argv)
    words: dict[str, list[str]] = {}
    paths = [""]
    for path in paths:  # which grow
        listed = re.search(r"^(?:commands|stages):\n((?:  .*\n)+)", _help(path, "--help"), re.M)
        commands = re.findall(r"^  (\w+)", listed[1], re.M) if listed else []
        paths += [f"{path}{command} " for command in commands]
        suite = _help(path, "--suite --help") if path == "eval " else ""
        flags = re.findall(r"^  (?:-h, )?(--\w+)", _help(path, "--help-all") + suite, re.M)
        words[path] = [*commands, *dict.fromkeys(flags)]
    arms = [f'"{path}"*) words="{" ".join(words[path])}";;' for path in reversed(paths) if path]
    print(_SCRIPT.replace("ARMS", "\n    ".join([*arms, f'*) words="{" ".join(words[""])}";;'])))
    return 0


def _help(path: str, flags: str) -> str:
    quiet = redirect_stderr(io.StringIO())
    with redirect_stdout(io.StringIO()) as out, quiet, suppress(SystemExit):
        cli.main([*path.split(), *flags.split()])
    return out.getvalue()
