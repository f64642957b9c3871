"""Completion of ``fcco`` in a shell: a script for bash, and for zsh after ``bashcompinit``."""

from collections import Counter
from collections.abc import Mapping

import fcco_lightning
from fcco_lightning import public_names
from fcco_lightning.cli.catalogue import KINDS
from fcco_lightning.cli.named_configs import named_configs, named_searches
from fcco_lightning.cli.options import options, options_of

_SCRIPT = """\
# Completion of fcco: commands, options, names of classes, configurations, searches and kinds of parts; files elsewhere.
_fcco_options="{options}"

_fcco_values() {{  # of the option $1
    case "$1" in
        --config|-c|--copy) _fcco_found="{configs}" ;;
        --search) _fcco_found="{searches}" ;;
{values}
        *) _fcco_found="" ;;
    esac
}}

_fcco_arguments() {{  # of the class $1
    case "$1" in
{arguments}
        *) return 1 ;;
    esac
}}

_fcco_own() {{  # options of the command $1 beside those of fit
    case "$1" in
{own}
        *) _fcco_found="" ;;
    esac
}}

_fcco_known() {{  # options below the place $1 whose class stands on the line
    local i value
    for ((i = 2; i < COMP_CWORD - 1; i++)); do
        [ "${{COMP_WORDS[i]}}" = "$1" ] || continue
        value="${{COMP_WORDS[i + 1]}}"
        [ "$value" = "=" ] && value="${{COMP_WORDS[i + 2]}}"
        _fcco_arguments "$value" && return 0
    done
    return 1
}}

_fcco_offer() {{  # the options that begin with the word $1, down to its own depth, and the sections above others
    local name inner dots="${{1//[^.]/}}" place="${{1%.*}}"
    if [ -n "$dots" ] && _fcco_known "$place"; then
        COMPREPLY+=($(compgen -P "$place." -W "$_fcco_found" -- "${{1##*.}}"))
        return
    fi
    for name in $_fcco_options; do
        inner="${{name%.}}"
        [[ $inner == "$1"* && ${{inner//[^.]/}} == "$dots" ]] && COMPREPLY+=("$name")
    done
    if [ "${{#COMPREPLY[@]}}" -eq 1 ] && [[ ${{COMPREPLY[0]}} == *. ]]; then compopt -o nospace 2>/dev/null; fi
}}

_fcco() {{
    local _fcco_found="" word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" option=""
    COMPREPLY=()
    if [[ $word == -*=* ]]; then option="${{word%%=*}}=" before="${{word%%=*}}" word="${{word#*=}}"  # zsh: in one word
    elif [ "$word" = "=" ]; then word=""
    elif [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then _fcco_found="{commands}"
    else
        case "${{COMP_WORDS[1]}}:$word" in
            *:-*)
                _fcco_own "${{COMP_WORDS[1]}}"
                COMPREPLY=($(compgen -W "$_fcco_found" -- "$word"))
                case "${{COMP_WORDS[1]}}" in fit|front|validate|test|predict|tune) _fcco_offer "$word" ;; esac
                return ;;
            list:*) _fcco_values "$before"; [ -n "$_fcco_found" ] || _fcco_found="{kinds}" ;;
            *) _fcco_values "${{before%+}}" ;;
        esac
    fi
    COMPREPLY=($(compgen -P "$option" -W "$_fcco_found" -- "$word"))
}}
complete -o default -F _fcco fcco
"""


def completion(commands: Mapping[str, list[str]]) -> str:
    """Return the script, which contains all names, so that pressing TAB starts no program.

    Args:
        commands: command of ``fcco`` -> its options that ``fit`` does not have.
    """
    values_of, public = options(), public_names()
    classes = {
        name: getattr(fcco_lightning, name) for values in values_of.values() for name in values if name in public
    }
    arguments = {name: [option.name for option in options_of(classes[name])] for name in sorted(classes)}
    sections = {f"{path.partition('.')[0]}." for path in values_of if "." in path}
    return _SCRIPT.format(
        commands=" ".join(commands),
        own=_cases({name: option_names for name, option_names in commands.items() if option_names}),
        configs=" ".join([*named_configs(), *_short_configs()]),
        searches=" ".join(named_searches()),
        kinds=" ".join([*KINDS, "configs", "searches"]),
        options=" ".join(f"--{path}" for path in sorted([*values_of, *sections])),
        values=_cases({f"--{path}": values for path, values in values_of.items() if values}),
        arguments=_cases({name: names for name, names in arguments.items() if names}),
    )


def _short_configs() -> list[str]:
    """The names of configurations that are unique without their folder."""
    counts = Counter(path.stem for path in named_configs().values())
    return [name for name, count in counts.items() if count == 1]


def _cases(words_of: dict[str, list[str]]) -> str:
    """Branches of a ``case`` statement that set the completions; names with the same words share a branch."""
    names_by_words: dict[str, list[str]] = {}
    for name, words in words_of.items():
        names_by_words.setdefault(" ".join(words), []).append(name)
    return "\n".join(f'        {"|".join(names)}) _fcco_found="{words}" ;;' for words, names in names_by_words.items())
