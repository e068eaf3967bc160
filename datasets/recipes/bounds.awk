# bounds.awk - does a method beat the best mask of its own unit? Reads the CSV of compare.sh, a row
# per setting and head.
#
# The oracle of a head keeps the units of largest mass, so its mean recall is concave in their number:
# between two densities of the oracle the next one is a bound, and so is the line through the last
# two. A method with as many units cannot hold more. Of errors that is not true.
BEGIN {
    FS = ","
    unit["streaming"] = unit["longformer"] = unit["hash-sparse"] = unit["qk-sparse"] = "1x1"
    unit["minference:block"] = "64x64"
    unit["flexprefill"] = unit["xattention"] = unit["sampleattention"] = "128x128"
    unit["spargeattn"] = "128x64"
    unit["sale"] = "64x32"
    unit["fg-attn"] = "64x1"
}
{ sub(/\r$/, "") }
NR == 1 {
    for (i = 1; i <= NF; i++)
        at[$i] = i
    next
}
$at["cra_mean"] == "" { next }
{
    cell = ""
    for (i = at["trace"]; i <= at["head"]; i++)
        cell = cell "|" $i
    cells[cell] = 1
    params = $at["params"]
    x = $at["density_elem"] + 0
    tile = $at["density_tile"] + 0
    if ($at["method"] == "oracle") {
        u = "1x1"
        if (params ~ /kind=columns/)
            next
        if (match(params, /unit=[0-9x]+/))
            u = substr(params, RSTART + 5, RLENGTH - 5)
        put(cell, u, u == "1x1" ? x : tile, $at["cra_mean"] + 0, $at["err_l1_rel"] + 0, x)
        next
    }
    n++
    m_cell[n] = cell
    m_name[n] = $at["method"] (params ~ /pattern=block/ ? ":block" : "")
    m_x[n] = x
    m_tile[n] = tile
    m_recall[n] = $at["cra_mean"] + 0
    m_error[n] = $at["err_l1_rel"] + 0
    m_target[n] = $at["budget_target"] + 0
}

# Points of an oracle, ascending in x.
function put(cell, u, x, recall, error, elem,    k, i)
{
    k = ++points[cell, u]
    for (i = k; i > 1 && px[cell, u, i - 1] > x; i--) {
        px[cell, u, i] = px[cell, u, i - 1]
        pr[cell, u, i] = pr[cell, u, i - 1]
        pe[cell, u, i] = pe[cell, u, i - 1]
    }
    px[cell, u, i] = x
    pr[cell, u, i] = recall
    pe[cell, u, i] = error
}

# The largest mean recall that x of the units can hold.
function bound(cell, u, x,    i, k, line, last, before)
{
    k = points[cell, u] + 0
    for (i = 1; i <= k && px[cell, u, i] < x; i++)
        ;
    last = i > 1 ? px[cell, u, i - 1] : 0
    before = i > 2 ? px[cell, u, i - 2] : 0
    if (i == 1)
        return pr[cell, u, 1]
    line = pr[cell, u, i - 1] + (x - last) * (pr[cell, u, i - 1] - (i > 2 ? pr[cell, u, i - 2] : 0)) / (last - before)
    if (i <= k && pr[cell, u, i] < line)
        line = pr[cell, u, i]
    return line < 1 ? line : 1
}

# The error of an oracle with at most so many units.
function error_of(cell, u, x,    i, e)
{
    e = -1
    for (i = 1; i <= points[cell, u]; i++)
        if (px[cell, u, i] <= x * 1.001)
            e = pe[cell, u, i]
    return e
}

function check(i, u, x,    b, e)
{
    if (!points[m_cell[i], u])
        return
    b = bound(m_cell[i], u, x)
    tested[u]++
    if (m_recall[i] > b * (1 + 1e-9)) {
        beaten[u]++
        printf "beats the oracle %s: %s %s density %.6f recall %.9f bound %.9f\n", u, m_name[i], m_cell[i], x, m_recall[i], b
    }
    share = m_recall[i] / b
    if (share > best[u])
        best[u] = share
    e = error_of(m_cell[i], u, x)
    if (e >= 0) {
        errors[u]++
        smaller[u] += m_error[i] < e
    }
}

END {
    for (i = 1; i <= n; i++) {
        check(i, "1x1", m_x[i])
        if (unit[m_name[i]] != "" && unit[m_name[i]] != "1x1")
            check(i, unit[m_name[i]], m_tile[i])
        total++
        off = m_x[i] - m_target[i]
        met += off <= 0.02 * m_target[i] && -off <= 0.02 * m_target[i]
    }
    printf "%d of %d cells are within 2 %% of their density\n", met, total
    split("1x1 64x1 64x32 64x64 128x64 128x128", order, " ")
    for (k = 1; k <= 6; k++) {
        u = order[k]
        if (tested[u])
            printf "oracle of %s: %d cells, %d with more mean recall than it can have (the best has %.4f of it); %d of %d with a smaller L1 error\n",
                u, tested[u], beaten[u], best[u], smaller[u], errors[u]
    }
}
