#!/bin/sh
# sources.sh deps|registry|names - rules about the sources that a compiler does not check. Run from
# the repository root; prints every violation and exits 1 if there is one.
#
#   deps      an #include crosses folders only where the dependency order allows it
#   registry  every line of a .def file has its definition, every definition its line
#   names     file names are unique in the tree
set -u
export LC_ALL=C
bad=$(mktemp) || exit 1
trap 'rm -f "$bad"' EXIT

# core/main.c, which holds the command table, is the one file that knows all folders.
deps()
{
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' --include='*.c' --include='*.h' \
        --include='*.cu' --include='*.cuh' --include='*.inc' core capture datasets sim cuda \
        analyze plots 2>/dev/null |
        awk -F'[:"]' '
        BEGIN {
            for (i = split("core capture datasets sim cuda analyze plots", f, " "); i > 0; i--)
                ok[f[i], f[i]] = ok[f[i], "core"] = 1
            ok["analyze", "plots"] = ok["plots", "analyze"] = 1
        }
        $1 != "core/main.c" {
            split($1, from, "/")
            split($4, to, "/")
            if (!((from[1], to[1]) in ok))
                print $1 ":" $2 ": " from[1] " must not include \"" $4 "\""
        }' >>"$bad"
}

# pair DEF MACRO TYPE PREFIX FILE...: the ids of DEF are those of the `const TYPE PREFIX_<id> =` in
# the files.
pair()
{
    def=$1 macro=$2 type=$3 prefix=$4
    shift 4
    [ -f "$def" ] || return 0
    sed -n "s/^$macro(\([a-z0-9_]*\).*/\1/p" "$def" | sort >"$bad.def"
    cat "$@" | sed -n "s/^const struct $type ${prefix}_\([a-z0-9_]*\) *=.*/\1/p" | sort >"$bad.src"
    {
        uniq -d "$bad.def" | sed "s|.*|$def: & is listed twice|"
        uniq -d "$bad.src" | sed "s|.*|${prefix}_& is defined twice|"
        comm -23 "$bad.def" "$bad.src" |
            sed "s|.*|$def: $macro(&) has no 'const struct $type ${prefix}_& ='|"
        comm -13 "$bad.def" "$bad.src" | sed "s|.*|${prefix}_& has no line $macro(&) in $def|"
    } >>"$bad"
    [ -s "$bad.def" ] || echo "$def: no $macro line was found" >>"$bad"
    rm -f "$bad.def" "$bad.src"
}

registry()
{
    pair sim/methods.def METHOD method method sim/methods/*.c
    pair core/commands.def COMMAND command cmd ./*/cmd_*.c
    pair plots/figures.def FIGURE figure figure plots/*.c
    for f in sim/methods/*.c; do
        grep -q '^const struct method method_' "$f" || echo "$f: defines no method" >>"$bad"
    done
}

# A method's reference and its kernel are a pair of one name; nothing else shares one.
names()
{
    git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.inc' '*.def' | grep -v '^cuda/' |
        sed 's|.*/||' | sort | uniq -d | sed 's|.*|two files are named &|' >>"$bad"
}

case ${1-} in
deps | registry | names) "$1" ;;
*)
    echo "usage: sources.sh deps|registry|names" >&2
    exit 2
    ;;
esac
if [ -s "$bad" ]; then
    cat "$bad" >&2
    exit 1
fi
echo "check-$1: ok"
