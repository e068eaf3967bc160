#!/bin/sh
# What stands beside the numbers that the papers print, counted over the pages' CSV files that are
# given: a line per paper and class (T traces, M in the model, K kernel times, S settings). beside: a
# number of ours in the cell, in a place of the same meaning or one that stands in for it, or a setting
# that is the same; drawn: in the drawing; reason: the page says why there is none. Fails where a
# printed number is on no page, or has neither.
#     sh tests/harness/coverage.sh doc/reproduce/*.csv doc/reproduce/cuda/*.csv
set -e
data=$(dirname "$0")/../../datasets/paper
exec awk '
    # Fields of a CSV line into f[1..]; a quote doubled within quotes is one.
    function split_csv(line, f,    n, c, i, in_quotes, text) {
        n = 1; text = ""; in_quotes = 0
        for (i = 1; i <= length(line); i++) {
            c = substr(line, i, 1)
            if (c == "\"") {
                if (in_quotes && substr(line, i + 1, 1) == "\"") { text = text c; i++ }
                else in_quotes = !in_quotes
            } else if (c == "," && !in_quotes) { f[n++] = text; text = "" }
            else text = text c
        }
        f[n] = text
        return n
    }
    # How good a place is: 3 beside, 2 drawn, 1 reason, 0 nothing. The best page counts.
    function note(id, value, grade, label,    key, k) {
        key = id SUBSEP value
        k = ++seen[key, FILENAME]
        if (!((key, k) in best) || best[key, k] < grade) best[key, k] = grade
        if (label != "") label_of[key, k] = label
        if (places[key] < k) places[key] = k
    }
    { sub(/\r$/, "") }
    FNR == 1 { delete at; n = split_csv($0, f); for (i = 1; i <= n; i++) at[f[i]] = i; next }
    "value" in at { # the numbers of a paper, read after the pages
        split_csv($0, f)
        if (f[at["value"]] == "") next # two results that a paper marks as missing
        paper = FILENAME; sub(/.*\//, "", paper); sub(/\.csv$/, "", paper)
        table = f[at["table"]]; if (sub(/^(figures? |fig)/, "", table)) table = "f" table
        class = f[at["needs"]] == "traces" ? "T" : f[at["needs"]] == "model" ? "M" : f[at["needs"]] == "kernel" ? "K" : "S"
        key = paper ":" table SUBSEP f[at["value"]]
        grade = ++used[key] <= places[key] ? best[key, used[key]] : -1
        if ((key, used[key]) in label_of && label_of[key, used[key]] in extra) grade = 3
        group = paper " " class; count[group, "printed"]++; count[group, grade]++; groups[group]
        if (grade < 1) printf "%s: %s, %s: %s %s\n", paper ":" table, f[at["row"]], f[at["column"]], f[at["value"]], grade < 0 ? "is on no page" : "has no reason"
        bad += grade < 1
        next
    }
    {
        split_csv($0, f)
        id = f[at["id"]]; printed = f[at["printed"]]; reason = f[at["reason"]]; row = f[at["row"]]
        if (f[at["ours"]] != "" && f[at["column"]] == "Sparsity") extra[id, f[at["block"]]]
        if (printed == "") next
        grade = f[at["ours"]] != "" || reason ~ /^ours (stands in|has the same)/ ? 3 : reason ~ /drawing has/ ? 2 : reason != ""
        if (printed !~ /^[-+]?[0-9.]/) { note(id, printed, grade); next }
        gsub(/[ |\/%×x]+/, " ", printed)
        n = split(printed, parts, " ")
        for (i = 1; i <= n; i++) if (match(parts[i], /^[-+]?[0-9.]+/)) note(id, substr(parts[i], 1, RLENGTH), grade)
        if (match(row, /\([0-9.]+\)$/) && !((id, row, FILENAME) in labels)) {
            labels[id, row, FILENAME] # a number in the label; ours has a column of its own
            note(id, substr(row, RSTART + 1, RLENGTH - 2), 1, id SUBSEP f[at["block"]])
        }
    }
    END {
        split("spargeattn sampleattention sale fg-attn", papers, " "); split("T M K S", classes, " ")
        printf "%-18s %8s %7s %6s %7s %8s\n", "paper, class", "printed", "beside", "drawn", "reason", "no page"
        for (p = 1; p <= 4; p++) for (c = 1; c <= 4; c++) {
            group = papers[p] " " classes[c]
            if (!(group in groups)) continue
            printf "%-18s %8d %7d %6d %7d %8d\n", group, count[group, "printed"], count[group, 3], count[group, 2], count[group, 1], count[group, -1] + count[group, 0]
            all += count[group, "printed"]; beside += count[group, 3]; drawn += count[group, 2]; reason += count[group, 1]
        }
        printf "%-18s %8d %7d %6d %7d %8d\n", "all", all, beside, drawn, reason, bad
        exit bad > 0
    }' "$@" "$data"/spargeattn.csv "$data"/sampleattention.csv "$data"/sale.csv "$data"/fg-attn.csv
