"use strict";
/* The report as an explorer: sorts and filters tables, draws points and grids out of the page's data, shows a head.
 * Everything that it shows comes from the element #data; texts are set as texts, never as markup. */
(function () {
const root = document.documentElement;
function trouble(what) {
    root.dataset.error = what;
    const p = document.createElement("p");
    p.id = "trouble";
    p.textContent = "The page's script failed: " + what + ". Findings, figures and tables are complete without it.";
    document.body.prepend(p);
}
window.addEventListener("error", e => trouble(e.message));

/* ---- elements ------------------------------------------------------------------------------- */

const $ = id => document.getElementById(id);
function el(name, attrs, ...children) {
    const svg = /^(svg|g|line|circle|path|text|rect)$/.test(name);
    const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [k, v] of Object.entries(attrs || {})) {
        if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
        else if (k === "style") e.style.cssText = v;
        else if (v !== null && v !== false) e.setAttribute(k, v);
    }
    e.append(...children);
    return e;
}

const tip = el("div", {id: "tip", hidden: ""});
document.body.append(tip);
function showTip(e) {
    const at = e.target.closest && e.target.closest("[data-tip]");
    tip.hidden = !at;
    if (!at) return;
    tip.textContent = at.dataset.tip;
    const box = at.getBoundingClientRect(), x = e.clientX || box.left, y = e.clientY || box.bottom;
    tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 16) + "px";
}
for (const kind of ["mousemove", "focusin", "click"]) document.addEventListener(kind, showTip);
document.addEventListener("keydown", e => { if (e.key === "Escape") tip.hidden = true; });

/* ---- tables --------------------------------------------------------------------------------- */

/* The number that a cell begins with, behind "<" or ">"; NaN for words. */
function cellNumber(td) {
    const m = /^[<>\s]*(-?[\d.]+(?:e[-+]?\d+)?)/i.exec(td.textContent);
    return m ? parseFloat(m[1]) : NaN;
}
function sortTable(table, th) {
    const col = th.cellIndex, body = table.tBodies[0], rows = [...body.rows];
    const down = th.getAttribute("aria-sort") === "ascending";
    for (const o of table.tHead.rows[0].cells) o.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = th.classList.contains("n");
    const keys = new Map(rows.map(r => [r, numeric ? cellNumber(r.cells[col]) : r.cells[col].textContent]));
    rows.sort((a, b) => {
        const x = keys.get(a), y = keys.get(b);
        if (numeric && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y); /* what has no number is last */
        const order = numeric ? x - y : x.localeCompare(y, undefined, {numeric: true});
        return down ? -order : order;
    });
    body.append(...rows);
}
function equipTable(table) {
    const head = table.tHead.rows[0], rows = table.tBodies[0].rows;
    for (const th of head.cells) {
        if (th.title) { th.dataset.tip = th.title; th.removeAttribute("title"); }
        th.tabIndex = 0;
        th.style.cursor = "pointer";
        th.addEventListener("click", () => sortTable(table, th));
        th.addEventListener("keydown", e => { if (e.key === "Enter") sortTable(table, th); });
    }
    table.classList.add("cards"); /* of a phone: each cell with its head */
    for (const r of rows) [...r.cells].forEach((td, i) => { td.dataset.h = head.cells[i].firstChild.textContent; });
    if (rows.length < 6) return;
    const box = el("input", {type: "search", placeholder: "filter rows", "aria-label": "filter rows", oninput() {
        const words = box.value.toLowerCase().split(/\s+/);
        for (const r of rows) r.hidden = !words.every(w => r.textContent.toLowerCase().includes(w));
    }});
    table.parentNode.before(el("div", {class: "tools"}, box));
}
/* The second key column is sticky too; where the first one ends is known once the table is seen. */
function stickSecond(table) {
    const first = table.tHead.rows[0].cells[0], second = table.tHead.rows[0].cells[1];
    if (!second || !second.classList.contains("k") || !first.offsetWidth || innerWidth < 900) return;
    for (const r of [table.tHead.rows[0], ...table.tBodies[0].rows]) {
        r.cells[1].classList.add("stick");
        r.cells[1].style.left = first.offsetWidth + "px";
    }
}
/* A table in a closed part of the page is made ready when that is opened. */
for (const table of document.querySelectorAll("section table")) {
    const closed = table.closest("details:not([open])");
    const ready = () => { equipTable(table); stickSecond(table); };
    if (closed) closed.addEventListener("toggle", ready, {once: true});
    else ready();
}

/* Long tables are folded on screen and printed whole. */
const long = [...document.querySelectorAll("details.long")];
let unfolded = [];
addEventListener("beforeprint", () => { unfolded = long.filter(d => !d.open); unfolded.forEach(d => { d.open = true; }); });
addEventListener("afterprint", () => unfolded.forEach(d => { d.open = false; }));

/* ---- light, dark, print --------------------------------------------------------------------- */

const buttons = $("buttons");
buttons.append(
    el("button", {type: "button", onclick() {
        const dark = getComputedStyle(root).colorScheme.includes("dark");
        root.dataset.theme = dark ? "light" : "dark";
        if (D) drawAll();
    }}, "light / dark"),
    el("button", {type: "button", onclick: () => print()}, "print"));

/* ---- data ----------------------------------------------------------------------------------- */

const source = $("data"), D = source ? JSON.parse(source.textContent) : null;
const finite = a => a.filter(x => x !== null);
const valuesOf = (s, m) => D.values[s][m];
const mean = a => a.reduce((x, y) => x + y, 0) / a.length;
function quantile(a, p) { /* nearest rank, as in the tables */
    const s = [...a].sort((x, y) => x - y);
    return s[Math.min(s.length - 1, Math.max(0, Math.ceil(p * s.length) - 1))];
}
function median(a) {
    const s = [...a].sort((x, y) => x - y), h = s.length >> 1;
    return s.length % 2 ? s[h] : (s[h - 1] + s[h]) / 2;
}
function say(x, m) {
    if (x === null || x === undefined || isNaN(x)) return "\u2013";
    return number(m.percent ? 100 * x : x * m.scale, 3) + (m.percent ? " %" : m.unit ? " " + m.unit : "");
}
function number(y, digits) {
    return y !== 0 && (Math.abs(y) < 1e-3 || Math.abs(y) >= 1e5) ? y.toExponential(digits - 2) :
        String(+y.toPrecision(digits));
}
/* Without the unit, for ticks and cells. */
const short = (x, m) => x === null ? "" : number(m.percent ? 100 * x : x * m.scale, 2);

/* Dark violet to yellow in equal steps of lightness. */
const ramp = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function colour(t) {
    const x = Math.max(0, Math.min(1, t)) * 4, i = Math.min(3, Math.floor(x)), f = x - i;
    return ramp[i].map((c, k) => Math.round(c + f * (ramp[i + 1][k] - c)));
}

/* ---- explorer ------------------------------------------------------------------------------- */

const state = {metric: 0, a: 0, b: 0, cell: -1, whole: null};

function choice(label, options, value, change) {
    const s = el("select", {onchange: () => change(+s.value)});
    options.forEach((o, i) => s.append(el("option", {value: i}, o)));
    s.value = value;
    return el("label", {}, label, s);
}
function drawControls() {
    $("controls").replaceChildren(
        choice("metric", D.metrics.map(m => m.label === m.name ? m.name : m.label + " (" + m.name + ")"), state.metric,
            v => { state.metric = v; drawAll(); }),
        choice("A", D.settings.map(s => s.name), state.a, v => { state.a = v; drawAll(); }),
        choice("B", D.settings.map(s => s.name), state.b, v => { state.b = v; drawAll(); }));
    const m = D.metrics[state.metric];
    $("metric-text").textContent = m.name + ": " + m.definition;
}

/* An axis over the values: linear from 0, or logarithmic, where what is below all `main` values (0, or the rounding
 * of a setting that keeps everything) stands at the lower end. */
function scaleOf(all, main, log, from, to) {
    const some = main.filter(x => x > 0), ticks = [];
    log = log && some.length > 0;
    let lo = log ? Math.min(...some) / 2 : Math.min(0, ...all), hi = Math.max(...all);
    if (hi <= lo) hi = log ? 2 * lo : lo + 1;
    const f = log ? x => Math.log10(Math.max(x, lo)) : x => x, a = f(lo), b = f(hi);
    const at = x => from + (f(x) - a) / (b - a) * (to - from);
    if (log) {
        const steps = b - a > 3 ? [1] : [1, 2, 5];
        for (let e = Math.floor(a); e <= b; e++)
            for (const k of steps) if (k * 10 ** e >= lo && k * 10 ** e <= hi) ticks.push(k * 10 ** e);
    } else {
        const ten = 10 ** Math.floor(Math.log10(hi - lo)), many = (hi - lo) / ten;
        const step = many < 2 ? ten / 4 : many < 5 ? ten / 2 : ten;
        for (let x = Math.ceil(lo / step) * step; x <= hi + step / 1e3; x += step) ticks.push(+x.toPrecision(6));
    }
    return {at, ticks, log};
}
/* Points: pairs kept against the chosen metric; where that is the kept pairs, against the error. */
function drawPoints() {
    const ix = D.metrics.findIndex(m => m.name === "density_elem");
    let iy = state.metric === ix ? D.metrics.findIndex(m => m.name === "err_l1_rel") : state.metric;
    const points = [];
    if (ix < 0 || iy < 0) { $("points").replaceChildren("No kept pairs in these records."); return; }
    D.settings.forEach((s, i) => {
        const x = finite(valuesOf(i, ix)), y = finite(valuesOf(i, iy));
        if (x.length && y.length) points.push({s, i, x, y, mx: mean(x), my: mean(y)});
    });
    const my = D.metrics[iy], W = 560, H = 340;
    if (!points.length) { $("points").replaceChildren("No setting has this metric."); return; }
    const part = points.filter(p => !p.s.full), xs = points.map(p => p.mx), ys = points.map(p => p.my);
    const sx = scaleOf(xs, xs, false, 62, W - 20), sy = scaleOf(ys, part.map(p => p.my), my.log, H - 40, 12);
    const svg = el("svg", {class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img",
        "aria-label": my.label + " against pairs kept, a point per setting"});
    for (const t of sx.ticks) svg.append(el("line", {class: "axis", x1: sx.at(t), x2: sx.at(t), y1: 12, y2: H - 40}),
        el("text", {x: sx.at(t), y: H - 24, "text-anchor": "middle"}, say(t, D.metrics[ix])));
    for (const t of sy.ticks) svg.append(el("line", {class: "axis", x1: 62, x2: W - 20, y1: sy.at(t), y2: sy.at(t)}),
        el("text", {x: 56, y: sy.at(t) + 4, "text-anchor": "end"}, short(t, my)));
    svg.append(el("text", {x: (W + 50) / 2, y: H - 6, "text-anchor": "middle"}, "pairs kept / allowed pairs"),
        el("text", {x: 12, y: H / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${H / 2})`},
            my.label + (my.percent ? " [%]" : my.unit ? " [" + my.unit + "]" : "")));
    for (const p of points) {
        const chosen = p.i === state.a || p.i === state.b;
        const q = (a, m) => `${say(quantile(a, 0.25), m)} to ${say(quantile(a, 0.75), m)}`;
        svg.append(el("circle", {class: "dot" + (chosen ? " on" : "") + (p.s.bound ? " rim" : ""), cx: sx.at(p.mx), cy: sy.at(p.my),
            r: chosen ? 8 : 6, fill: p.s.color, style: p.s.bound && !chosen ? "stroke:" + p.s.color + ";stroke-width:2" : "",
            tabindex: 0, "data-tip": `${p.s.name}${p.s.bound ? " (bound)" : ""}\nkept ${say(p.mx, D.metrics[ix])}, quartiles ` +
                `${q(p.x, D.metrics[ix])}\n${my.label} ${say(p.my, my)}, quartiles ${q(p.y, my)}\nmeans over ${p.y.length} heads`,
            onclick(e) { state[e.shiftKey ? "b" : "a"] = p.i; drawAll(); }}));
    }
    $("points").replaceChildren(svg, el("p", {class: "notes"},
        "A point per setting: means over heads; rings are bounds. A click chooses A, with shift B." +
        (sy.log && points.some(p => sy.at(p.my) >= H - 40) ? " What keeps everything, or has the value 0, stands at the lower edge." : "")));
}

/* A grid of layers (rows) and heads (columns); both grids share one range of colours. */
function drawGrid(id, which, range) {
    const s = D.settings[state[which]], m = D.metrics[state.metric], v = valuesOf(state[which], state.metric);
    const grid = el("div", {class: "grid", style: `grid-template-columns:1.4em repeat(${D.heads.length},minmax(0,3.6em))`});
    grid.append(el("span", {}, ""), ...D.heads.map(h => el("span", {style: "text-align:center"}, String(h))));
    D.layers.forEach((layer, r) => {
        grid.append(el("span", {}, String(layer)));
        D.heads.forEach((head, c) => {
            const i = r * D.heads.length + c, x = v[i];
            let style = "background:var(--pale)";
            if (x !== null) {
                const rgb = colour(range.at(x)), light = rgb[0] * 0.3 + rgb[1] * 0.59 + rgb[2] * 0.11 < 130;
                style = `background:rgb(${rgb});color:${light ? "#fff" : "#000"}`;
            }
            const text = D.heads.length > 16 ? "" : short(x, m);
            grid.append(el("button", {type: "button", style, class: i === state.cell ? "on" : null,
                "data-tip": `layer ${layer}, head ${head}\n${s.name}\n${m.label}: ${say(x, m)}`,
                onclick() { state.cell = i; drawAll(); $("head").scrollIntoView({block: "nearest"}); }}, text));
        });
    });
    const all = finite(v);
    $(id).replaceChildren(el("h3", {}, which.toUpperCase() + ": " + s.name), grid, el("p", {class: "notes"}, all.length ?
        `${m.label}${m.percent ? " in percent" : m.unit ? " in " + m.unit : ""}, layers down, heads across; median ` +
        `${say(median(all), m)}, from ${say(Math.min(...all), m)} to ${say(Math.max(...all), m)}, ${all.length} heads` : "no value"));
}
function drawGrids() {
    const m = D.metrics[state.metric];
    const all = finite(valuesOf(state.a, state.metric).concat(valuesOf(state.b, state.metric)));
    const lo = Math.min(...all), hi = Math.max(...all), log = m.log && lo > 0 && hi > 20 * lo;
    const f = log ? Math.log : x => x;
    const range = {at: x => hi > lo ? (f(x) - f(lo)) / (f(hi) - f(lo)) : 0.5};
    drawGrid("grid-a", "a", range);
    drawGrid("grid-b", "b", range);
}

function shot(title, picture, missing) {
    return el("figure", {}, el("figcaption", {}, title), picture ?
        el("img", {src: "data:image/png;base64," + picture, alt: title}) : el("p", {class: "notes"}, missing));
}
/* Map, both masks and all numbers of one head. */
function drawHead() {
    const box = $("head");
    if (state.cell < 0) {
        box.replaceChildren(el("p", {class: "notes"}, "A click on a head shows its map, the masks of A and B, and its numbers."));
        return;
    }
    const layer = D.layers[Math.floor(state.cell / D.heads.length)], head = D.heads[state.cell % D.heads.length];
    const a = D.settings[state.a], b = D.settings[state.b], key = layer + "," + head;
    const maps = D.maps[a.scope] || {}, mask = i => (D.masks[i] || {})[key];
    const bodies = [el("tbody"), el("tbody")]; /* the numbers that most look at, and the others */
    D.metrics.forEach((m, i) => {
        const x = valuesOf(state.a, i)[state.cell], y = valuesOf(state.b, i)[state.cell];
        if (x === null && y === null) return;
        bodies[i < 10 ? 0 : 1].append(el("tr", {},
            el("td", {class: "k", "data-tip": m.definition, "data-h": "metric"}, m.label === m.name ? m.name : `${m.label} (${m.name})`),
            el("td", {class: "n", "data-h": "A"}, say(x, m)), el("td", {class: "n", "data-h": "B"}, say(y, m))));
    });
    const table = body => el("div", {class: "wide"}, el("table", {class: "cards"}, el("thead", {}, el("tr", {},
        el("th", {}, "metric"), el("th", {class: "n"}, "A"), el("th", {class: "n"}, "B"))), body));
    const tokens = maps.trace ? `lacuna plot heatmap ${maps.trace} --layers ${layer} --heads ${head} -o head.png` : null;
    box.replaceChildren(el("h3", {}, `Layer ${layer}, head ${head}`),
        el("div", {class: "shots"},
            shot("attention map" + (maps.scale ? ", " + maps.scale : ""), maps[key], D.no_map),
            shot("A: " + a.name, mask(state.a), a.full ? "keeps everything" : D.no_mask),
            shot("B: " + b.name, mask(state.b), b.full ? "keeps everything" : D.no_mask)),
        tokens ? el("p", {class: "notes"}, el("code", {}, tokens)) : "",
        table(bodies[0]),
        bodies[1].rows.length ? el("details", {open: state.whole, ontoggle(ev) { state.whole = ev.target.open ? "" : null; }},
            el("summary", {}, `${bodies[1].rows.length} more numbers`), table(bodies[1])) : "");
}
function drawAll() {
    drawControls();
    drawPoints();
    drawGrids();
    drawHead();
}
if (D && D.settings.length) {
    const usual = D.settings.map((s, i) => i).filter(i => !D.settings[i].full && !D.settings[i].bound);
    state.a = usual.length ? usual[0] : 0;
    state.b = usual.find(i => D.settings[i].method !== D.settings[state.a].method) || state.a;
    state.metric = Math.max(0, D.metrics.findIndex(m => m.name === "err_l1_rel"));
    $("explorer").hidden = false;
    drawAll();
}
root.dataset.ready = Math.round(performance.now());
})();
