# bash completion of lacuna. The program says what may stand at the end of the line; bash replaces the
# part of a word behind the last ':' or '='.
_lacuna()
{
    local line=${COMP_LINE:0:COMP_POINT} words last
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    last=${words[-1]}
    mapfile -t COMPREPLY < <("${words[0]}" help --complete -- "${words[@]:1}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"${last%"${last##*[:=]}"}"}")
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _lacuna lacuna
