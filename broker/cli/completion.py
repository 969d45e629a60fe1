"""Completion scripts, made by shtab out of the complete parser; names come from a broker."""

from __future__ import annotations

import argparse
import re

import shtab

from magnetar.broker.cli.admin_commands import GROUPS
from magnetar.broker.cli.completion_names import VARIABLE, kind_of
from magnetar.broker.cli.main import build_parser

_MARK = "@@"
_BASH = f"""
_magnetar_names() {{ {VARIABLE}=$1 "${{COMP_WORDS[@]}}" 2>/dev/null; }}
"""
_BASH_WORDS = """
# With the words as they were typed: bash parts them at : and =, too, and completes the last part.
_magnetar_by_space() {
  local line="${COMP_LINE:0:COMP_POINT}" COMP_WORDS COMP_CWORD word
  read -ra COMP_WORDS <<<"$line"
  [[ "$line" == *[[:space:]] ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  word="${COMP_WORDS[COMP_CWORD]}"
  _shtab_magnetar "$@"
  [[ "${COMPREPLY[*]}" == */ ]] && compopt -o nospace 2>/dev/null
  [[ "$word" == *[:=]* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[:=]}"}"}")
  return 0
}
complete -o bashdefault -F _magnetar_by_space magnetar
"""
_ZSH = f"""
_magnetar_names() {{
  local -a typed names
  typed=("${{(@Q)${{(z)LBUFFER}}}}")
  [[ $LBUFFER == *[[:space:]] ]] && typed+=('')
  # _arguments puts what compadd needs before the kind.
  names=("${{(@f)$({VARIABLE}=$@[-1] "${{typed[@]}}" 2>/dev/null)}}")
  compadd "${{(@)@[1,-2]}}" -S '' -- ${{(M)names:#*/}}
  compadd "${{(@)@[1,-2]}}" -- ${{names:#*/}}
}}
"""
_FISH = f"""
function _magnetar_names
  set -l typed (commandline -opc)
  env {VARIABLE}=$argv[1] $typed (commandline -ct | string collect --allow-empty) 2>/dev/null
end
"""
_ABOVE = frozenset(
    f"_shtab_magnetar{level}{list}" for level in ("", "_admin") for list in ("", "_commands")
)
"""Functions of zsh's script for the levels above the words."""


def run_completion(options: argparse.Namespace) -> int:
    print(_script(options.shell))
    return 0


def _script(shell: str) -> str:
    """For ``bash``, ``zsh`` or ``fish``."""
    parser = build_parser()
    _ask_for_names(parser)
    if shell == "bash":
        return str(shtab.complete(parser, shell)) + _BASH_WORDS
    if shell == "fish":
        return str(shtab.complete(parser, shell))
    # For zsh, shtab offers the words of a group one level up too, where a word that is called
    # like a group (namespaces topics) takes its place. So words carry their group's name while
    # the script is made; one level up they can be told apart and go.
    for above in (parser, _subparsers(parser).choices["admin"]):
        _mark_words(above)
    return _without_marks(str(shtab.complete(parser, shell)))


def _ask_for_names(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _ask_for_names(child)
        elif (kind := kind_of(action)) is not None:
            action.complete = {  # type: ignore[attr-defined] # shtab looks for it
                "bash": f"_magnetar_{kind}",
                "zsh": f"_magnetar_names {kind}",
                "fish": f"(_magnetar_names {kind})",
                "preamble": {
                    "bash": f"{_BASH}_magnetar_{kind}() {{ _magnetar_names {kind}; }}",
                    "zsh": _ZSH,
                    "fish": _FISH,
                },
            }


def _mark_words(above: argparse.ArgumentParser) -> None:
    for group, words in _subparsers(above).choices.items():
        if group not in GROUPS:
            continue
        action = _subparsers(words)
        parsers = dict(action.choices)
        action.choices.clear()
        action.choices.update({f"{group}{_MARK}{word}": parsers[word] for word in parsers})
        for choice in action._choices_actions:
            choice.dest = f"{group}{_MARK}{choice.dest}"


def _subparsers(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _without_marks(script: str) -> str:
    lines: list[str] = []
    function = ""
    for line in script.splitlines():
        if match := re.match(r"(\w+)\(\) \{", line):
            function = match[1]
        if not (function in _ABOVE and _MARK in line):
            lines.append(re.sub(rf"[\w-]+{_MARK}", "", line))
    return "\n".join(lines)
