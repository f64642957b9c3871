"""Completion of ``fcco`` in a shell: a script that bash, and zsh after ``bashcompinit``, reads.  No torch here."""

from collections.abc import Iterable

from fcco_lightning.catalogue import KINDS
from fcco_lightning.named_configs import named_configs, named_searches

_SCRIPT = """\
# Completion of fcco: commands, names of configurations and searches, kinds of parts; files elsewhere.
_fcco() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" names=""
    case "$before" in
        --config|-c|--copy) names="{configs}" ;;
        --search) names="{searches}" ;;
        *)
            if [ "$COMP_CWORD" -eq 1 ]; then names="{commands}"
            elif [ "${{COMP_WORDS[1]}}" = list ]; then names="{kinds}"
            fi ;;
    esac
    COMPREPLY=($(compgen -W "$names" -- "$word"))
}}
complete -o default -F _fcco fcco
"""


def completion(commands: Iterable[str]) -> str:
    """The script.

    Args:
        commands: of ``fcco``.
    """
    return _SCRIPT.format(
        commands=" ".join(sorted(commands)),
        configs=" ".join(named_configs()),
        searches=" ".join(named_searches()),
        kinds=" ".join([*KINDS, "configs", "searches"]),
    )
