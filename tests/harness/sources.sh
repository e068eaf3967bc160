#!/bin/sh
# sources.sh deps|registry|metrics|names - rules about the sources that a compiler does not
# check. Run from the repository root; prints every violation and exits 1 if there is one.
# sources.sh files GLOB... - the source files whose names match, a line each.
#
#   deps      an #include crosses folders only where the dependency order allows it, and an HDF5 file
#             is opened for reading in one place only
#   registry  every line of a .def file has its definition, every definition its line
#   metrics   every metric is recorded: its name stands in a source file, or the function that its
#             line names builds it. A method's own are explained on its page
#   names     file names are unique in the tree
set -u
export LC_ALL=C
bad=$(mktemp) || exit 1
trap 'rm -f "$bad"' EXIT

# What git tracks; where git refuses or knows nothing of this folder (another owner, an unpacked
# archive), every file outside of hidden and build folders.
files()
{
    git ls-files -- "$@" 2>/dev/null | grep . && return
    for glob in "$@"; do
        find . -name '.?*' -prune -o -path './build*' -prune -o -path ./out -prune -o \
            -type f -name "$glob" -print
    done | sed 's|^\./||' | sort
}

# Every folder sees itself and core; eval sees capture and sim, plots and reproduce see analyze, and
# report sees analyze and plots. main.c, outside of
# them, holds the command table and knows them all.
deps()
{
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' --include='*.c' --include='*.h' \
        --include='*.cu' --include='*.cuh' --include='*.inc' core capture sim eval cuda \
        analyze plots report reproduce 2>/dev/null |
        awk -F'[:"]' '
        BEGIN {
            for (i = split("core capture sim eval cuda analyze plots report reproduce", f, " "); i > 0; i--)
                ok[f[i], f[i]] = ok[f[i], "core"] = 1
            ok["eval", "capture"] = ok["eval", "sim"] = 1
            ok["plots", "analyze"] = ok["reproduce", "analyze"] = ok["report", "analyze"] = ok["report", "plots"] = 1
        }
        {
            split($1, from, "/")
            split($4, to, "/")
            if (!((from[1], to[1]) in ok))
                print $1 ":" $2 ": " from[1] " must not include \"" $4 "\""
        }' >>"$bad"
    # A file that is read reaches libhdf5 through the guard alone.
    grep -rnE 'H5(Fopen|Fis_hdf5|Fis_accessible|LTopen_file_image)[[:space:]]*\(' --include='*.c' \
        --include='*.h' --include='*.cu' core capture sim eval cuda analyze plots report reproduce main.c |
        grep -v '^core/h5guard/h5guard_driver.c:' | sed 's/$/: open it with h5_open_file/' >>"$bad"
}

# pair DEF MACRO TYPE PREFIX FILE...: the ids of DEF are those of the `const TYPE PREFIX_<id> =` in
# the files.
pair()
{
    def=$1 macro=$2 type=$3 prefix=$4
    shift 4
    [ -f "$def" ] || return 0
    sed -n "s/^$macro(\([a-z0-9_]*\).*/\1/p" "$def" | sort >"$bad.def"
    cat "$@" | sed -n "s/^\(extern \"C\" \)\{0,1\}const struct $type ${prefix}_\([a-z0-9_]*\) *=.*/\2/p" | sort >"$bad.src"
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
    # shellcheck disable=SC2046 # names without spaces
    pair core/methods.def 'METHOD[_GPU]*' method method $(find sim/methods -name '*.c')
    # shellcheck disable=SC2046
    pair core/methods.def METHOD_GPU select_method select $(find cuda/methods -name '*.cu')
    # shellcheck disable=SC2046
    pair commands.def COMMAND command cmd $(find core capture sim eval analyze plots report reproduce -name 'cmd_*.c')
    for f in sim/methods/*.c sim/methods/*/; do
        [ -d "$f" ] && f=$f$(basename "$f").c
        grep -q '^const struct method method_' "$f" || echo "$f: defines no method" >>"$bad"
    done
}

# Of core/metrics.def.
shared_metrics()
{
    sed -n 's|^METRIC(\.name = "\([^"]*\)"\( /\* \([a-z_]*\) \*/\)\{0,1\},.*|\1 \3|p' core/metrics.def >"$bad.def"
    [ "$(grep -c '^METRIC(' core/metrics.def)" -eq "$(wc -l <"$bad.def")" ] ||
        echo "core/metrics.def: a line does not begin with METRIC(.name = \"...\"," >>"$bad"
    while read -r name by; do
        case $by in
        imported) ;;
        '') grep -rqF "\"$name\"" sim eval || echo "core/metrics.def: nothing records $name" ;;
        *) grep -rqE "^[a-z].*[ *]$by\(" sim eval || echo "core/metrics.def: $name: no function $by" ;;
        esac
    done <"$bad.def" >>"$bad"
    rm -f "$bad.def"
}

# Of the tables of methods.
own_metrics()
{
    grep -rl '^static const struct metric_def metrics\[\]' sim/methods | while read -r f; do
        case $f in
        sim/methods/*/*) where=$(dirname "$f") ;;
        *) where=$f ;;
        esac
        page=doc/methods/$(sed -n '/^const struct method /,$s/^    \.name = "\(.*\)",$/\1/p' "$f").md
        sed -n '/^static const struct metric_def metrics/,/^};/s/^    {\.name = "\([^"]*\)".*/\1/p' "$f" |
            while read -r name; do
                [ "$(grep -rohF "\"$name\"" "$where" | wc -l)" -ge 2 ] ||
                    echo "$f: declares $name, but does not record it"
                grep -qF "\`$name\`" "$page" || echo "$page: nothing about $name"
            done
    done >>"$bad"
}

metrics()
{
    shared_metrics
    own_metrics
}

# A method's reference and its kernel are a pair of one name; nothing else shares one.
names()
{
    files '*.c' '*.h' '*.cu' '*.cuh' '*.inc' '*.def' | grep -v '^cuda/' |
        sed 's|.*/||' | sort | uniq -d | sed 's|.*|two files are named &|' >>"$bad"
}

case ${1-} in
deps | registry | metrics | names) "$1" ;;
files)
    shift
    files "$@"
    exit 0
    ;;
*)
    echo "usage: sources.sh deps|registry|metrics|names | files GLOB..." >&2
    exit 2
    ;;
esac
if [ -s "$bad" ]; then
    cat "$bad" >&2
    exit 1
fi
echo "check-$1: ok"
