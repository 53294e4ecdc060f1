"use strict";
// Draws what the page's data holds of a test when that test is opened, and chooses which tests are shown.

// The page says that its script has not run until it has, to its end.
const state = document.getElementById("script-state");
window.addEventListener("error", (event) => {
  state.hidden = false;
  state.textContent = `The script of this page failed, and what it draws is missing: ${event.message}. The results are complete; the JSON report (--regional-report=FILE.json) holds the rest.`;
});

const tests = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
// The palette of Okabe and Ito (2008), which readers with any colour vision can tell apart.
const COLOURS = ["#56b4e9", "#e69f00", "#5ccbaa", "#f0e442", "#cc79a7", "#ff9a66", "#9aa5ff", "#b5d96b"];

/** Make an element; `attributes` named on… are listeners, and strings among `children` are text. */
function make(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "rect", "path", "text", "line", "circle", "title", "defs", "marker"].includes(tag);
  const element = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function plural(count, what, many = `${what}s`) { return `${count} ${count === 1 ? what : many}`; }

// Which tests are shown

const items = [...document.querySelectorAll("#list > li")];
const fields = Object.fromEntries(["name", "outcome", "column", "suite"].map((name) => [name, document.getElementById(`f-${name}`)]));

function filter() {
  const name = fields.name.value.trim().toLowerCase();
  let shown = 0;
  for (const item of items) {
    const agrees = ["outcome", "column", "suite"].every((field) => !fields[field].value || item.dataset[field] === fields[field].value);
    item.hidden = !(agrees && (!name || item.querySelector(".name").textContent.toLowerCase().includes(name)));
    shown += !item.hidden;
  }
  document.getElementById("shown").textContent = `${shown} of ${plural(items.length, "test")}`;
}

const form = document.querySelector(".filters");
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(filter));
for (const cell of document.querySelectorAll(".cell")) {
  cell.addEventListener("click", () => {
    form.reset();
    fields.suite.value = cell.dataset.suite;
    fields.column.value = cell.dataset.column;
    filter();
    document.getElementById("tests-title").scrollIntoView();
    fields.name.focus({ preventScroll: true });
  });
}
filter();

// One test

for (const item of items) {
  item.querySelector("details").addEventListener("toggle", (event) => {
    const place = item.querySelector(".details"), failure = item.querySelector(".failure");
    if (event.target !== event.currentTarget || !event.target.open || place.hasChildNodes()) return;
    if (failure) markErrors(failure);
    show(tests[Number(item.dataset.index)], place, item.dataset.index);
  });
}

/** Mark the lines in which pytest says what went wrong, and show the first of them. */
function markErrors(failure) {
  const lines = failure.textContent.split("\n").map((text) => make("span", { class: /^E( |$)/.test(text) ? "error-line" : null }, `${text}\n`));
  failure.replaceChildren(...lines);
  const first = failure.querySelector(".error-line");
  if (first) scrollTo(failure, first);
}

function show(test, place, id) {
  const details = test.details || { graphs: [], code: [], timeline: [], errors: [], left_out: {} };
  const tabs = [
    ["Graphs", details.graphs, graphsOf, "graphs"],
    ["Code", details.code, codeOf, "code"],
    ["Caches and counters", details.timeline, timelineOf, "timeline"],
    ["Errors", details.errors, errorsOf, "errors"],
    ["Findings", test.fuzz ? test.fuzz.findings : [], findingsOf, "findings"],
  ].filter(([, data]) => data.length);
  if (!tabs.length) {
    place.append(make("p", { class: "note" }, test.bare ? "What it compiled is not in this page, which would be too large. It is in the JSON report." : "It compiled nothing, or ended before that was told."));
    return;
  }
  const list = make("div", { role: "tablist", "aria-label": "What was seen" });
  const panels = tabs.map(([title, data, draw, kind], number) => {
    const panel = make("div", { role: "tabpanel", id: `panel-${id}-${number}`, "aria-labelledby": `tab-${id}-${number}`, tabindex: 0, hidden: true });
    const tab = make("button", {
      type: "button", role: "tab", id: `tab-${id}-${number}`, "aria-controls": `panel-${id}-${number}`,
      onclick: () => choose(number), onkeydown: (event) => move(event, number),
    }, `${title} (${data.length})`);
    list.append(tab);
    return { tab, panel, fill: () => {
      const missing = details.left_out[kind];
      panel.append(draw(data, `${id}-${number}`));
      for (const code of panel.querySelectorAll("pre:has(.event)")) scrollTo(code, code.querySelector(".event"));
      if (missing) panel.append(make("p", { class: "note" }, `${missing} more are not in this file.`));
    } };
  });
  function choose(chosen) {
    panels.forEach(({ tab, panel, fill }, number) => {
      tab.setAttribute("aria-selected", String(number === chosen));
      tab.tabIndex = number === chosen ? 0 : -1;
      panel.hidden = number !== chosen;
      if (number === chosen && !panel.hasChildNodes()) fill();
    });
  }
  function move(event, number) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (number + step + panels.length) % panels.length;
    choose(next);
    panels[next].tab.focus();
  }
  place.append(list, ...panels.map(({ panel }) => panel));
  choose(0);
}

// Graphs

const WIDTH = 168, HEIGHT = 34, ACROSS = 190, DOWN = 66;

function graphsOf(graphs, id) {
  const all = make("div");
  graphs.forEach((graph, number) => all.append(graphOf(graph, `${id}-${number}`)));
  return all;
}

/** The name of what a node or a box was compiled in, or null where it runs eager. */
function partOf(one) {
  if (one.whole) return "handed to the backend as one graph";
  if (one.region === null && one.partition === null) return null;
  const partition = one.partition === null ? "" : `partition ${one.partition + 1}`;
  return [one.region === null ? "" : `region ${one.region}`, partition].filter(Boolean).join(", ");
}

/** A colour for each partition, and for each region whose partitions are not known. */
function groupsOf(graph) {
  const groups = new Map();
  for (const node of graph.nodes) {
    const label = partOf(node);
    if (label === null) continue;
    if (!groups.has(label)) groups.set(label, { colour: COLOURS[groups.size % COLOURS.length], label, count: 0 });
    groups.get(label).count += 1;
  }
  return groups;
}

function graphOf(graph, id) {
  // Of a backend that looks at no region it is known what it was handed, and not what it compiled of that.
  if (graph.whole) for (const one of [...graph.nodes, ...(graph.boxes || [])]) one.whole = one.kind ? one.kind === "eager" || one.kind === "compiled" : !["input", "output"].includes(one.op);
  const groups = groupsOf(graph);
  const groupOf = (one) => groups.get(partOf(one)) || null;
  const title = `${graph.kind} graph: ${plural(graph.size, "node")}${graph.size > graph.nodes.length ? `, the first ${graph.nodes.length} drawn` : ""}`;
  const drawn = graph.boxes ? boxesOf(graph, groups, groupOf, id)
    : picture(graph.nodes.map((node, index) => itemOf(graph, node, groupOf(node), node, graph.places[index])), spoken(graph, groups), "Choose a node to read of it.", id);
  return make("section", {}, make("h3", {}, title), keyOf(groups, graph), drawn, nodesOf(graph, groupOf));
}

function itemOf(graph, node, group, edges, at) {
  const plain = node.op === "input" || node.op === "output";
  return { text: plain ? node.name : node.op, title: told(graph, node, group), style: plain ? "plain" : group ? "compiled" : "eager",
    colour: group ? group.colour : null, inputs: edges.inputs, after: edges.after, at };
}

/** A large graph: a box for each partition and each stretch of eager ops; what a box holds is drawn below when it opens. */
function boxesOf(graph, groups, groupOf, id) {
  const opened = make("div");
  const list = make("ol", { class: "boxes", "aria-label": `Parts of the ${graph.kind} graph in execution order` });
  const buttons = [];
  const toggle = (number) => {
    const button = buttons[number], there = opened.querySelector(`[data-box="${number}"]`);
    if (there) there.remove();
    else {
      const part = insideOf(graph, graph.boxes[number], groupOf, `${id}-${number}`);
      part.dataset.box = number;
      opened.prepend(part);
    }
    button.setAttribute("aria-expanded", String(!there));
  };
  const items = graph.boxes.map((box, number) => {
    const text = boxName(box), group = groupOf(box);
    buttons.push(make("button", { type: "button", "aria-expanded": "false", onclick: () => toggle(number) }, text));
    list.append(make("li", {}, buttons[number]));
    return { text, title: `${text}${group ? ", compiled" : ""}: choose it to see its nodes`, style: group ? "compiled" : box.kind === "eager" ? "eager" : "plain",
      colour: group ? group.colour : null, inputs: box.inputs, after: box.after, at: box.place, open: () => toggle(number) };
  });
  const hint = `${plural(graph.nodes.length, "node")} are too many to draw at once: a box is a partition, or the eager ops that run between partitions. Choose a box to open or close it.`;
  return make("div", {}, picture(items, spoken(graph, groups), hint, id), make("details", {}, make("summary", {}, `The ${plural(items.length, "box", "boxes")} as a list`), list), opened);
}

function boxName(box) {
  const part = partOf(box);
  if (box.kind === "output") return "output";
  return `${part === null ? box.kind : part.replace("region ", "").replace("partition ", "")}: ${plural(box.nodes.length, box.kind === "inputs" ? "value" : "node")}`;
}

function insideOf(graph, box, groupOf, id) {
  const items = box.shown.nodes.map((index, place) => {
    const node = graph.nodes[index];
    const item = itemOf(graph, node, groupOf(node), box.shown.edges[place], box.shown.places[place]);
    return box.nodes.includes(index) ? item : { ...item, style: "plain", colour: null };
  });
  const title = `${partOf(box) === null ? box.kind : `${partOf(box)}, compiled`}: ${plural(box.nodes.length, "node")}`;
  return make("section", { class: "opened" }, make("h4", {}, title),
    picture(items, `${title}. Dashed nodes are neighbours outside of it.`, "Dashed nodes are neighbours outside of it. Choose a node to read of it.", `${id}-inside`));
}

/** Draw items, each with `at` (column and row), `inputs` and `after` (numbers of items); one with `open` opens when chosen. */
function picture(items, label, hint, id) {
  const at = items.map((item) => [item.at[0] * ACROSS, item.at[1] * DOWN]);
  const left = Math.min(...at.map(([x]) => x)) - WIDTH, top = -DOWN;
  const full = { x: left, y: top, w: Math.max(...at.map(([x]) => x)) + WIDTH - left, h: Math.max(...at.map(([, y]) => y)) + DOWN - top };
  // A tall graph begins at its top, large enough to read.
  const least = Math.min(full.h, 14 * DOWN);
  let view = { ...full, h: least };
  const svg = make("svg", { class: "graph", role: "img", tabindex: 0, "aria-label": label });
  const arrow = make("marker", { id: `arrow-${id}`, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    make("path", { d: "M0 0 8 4 0 8z", fill: "var(--edge)" }));
  svg.append(make("defs", {}, arrow));
  const edge = (from, to, kind) => {
    const [x, y] = at[from], [u, v] = at[to];
    const start = y + HEIGHT / 2, end = v - HEIGHT / 2, middle = (start + end) / 2;
    svg.append(make("path", { class: kind, d: `M${x} ${start}C${x} ${middle} ${u} ${middle} ${u} ${end}`, "marker-end": `url(#arrow-${id})` }));
  };
  items.forEach((item, index) => {
    item.inputs.forEach((one) => edge(one, index, "edge"));
    item.after.forEach((one) => edge(one, index, "order"));
  });
  const said = make("p", { class: "note", "aria-live": "polite" }, hint);
  items.forEach((item, index) => {
    const [x, y] = at[index];
    const drawn = make("g", { class: `node ${item.style}`, transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`,
      onclick: () => {
        svg.querySelectorAll(".chosen").forEach((one) => one.classList.remove("chosen"));
        drawn.classList.add("chosen");
        said.textContent = item.title;
        if (item.open) item.open();
      } },
      make("title", {}, item.title),
      make("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 5, fill: item.colour }),
      make("text", { class: "op", x: WIDTH / 2, y: HEIGHT / 2 + 4, "text-anchor": "middle" }, short(item.text)));
    svg.append(drawn);
  });
  const look = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  const zoom = (factor, x = view.x + view.w / 2, y = view.y + view.h / 2) => {
    view = { x: x - (x - view.x) * factor, y: y - (y - view.y) * factor, w: view.w * factor, h: view.h * factor };
    look();
  };
  const pan = (x, y) => { view.x += x * view.w; view.y += y * view.h; look(); };
  const reset = () => { view = { ...full }; look(); };
  steer(svg, () => view, zoom, pan);
  svg.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.8), "-": () => zoom(1.25), 0: reset, ArrowLeft: () => pan(-0.1, 0), ArrowRight: () => pan(0.1, 0), ArrowUp: () => pan(0, -0.1), ArrowDown: () => pan(0, 0.1) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  look();
  const button = (text, act) => make("button", { type: "button", onclick: act }, text);
  return make("div", {}, make("div", { class: "tools" }, button("Zoom in", () => zoom(0.8)), button("Zoom out", () => zoom(1.25)), button("Whole graph", reset)), svg, said);
}

function steer(svg, view, zoom, pan) {
  const pointers = new Map();
  const scale = () => Math.max(view().w / svg.clientWidth, view().h / svg.clientHeight);
  const inside = (event) => {
    const box = svg.getBoundingClientRect();
    return [view().x + view().w / 2 + (event.clientX - box.left - box.width / 2) * scale(), view().y + view().h / 2 + (event.clientY - box.top - box.height / 2) * scale()];
  };
  const distance = () => { const [a, b] = [...pointers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== svg) return; // the page scrolls until the graph is chosen
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.15 : 0.87, ...inside(event));
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, [event.clientX, event.clientY]); });
  svg.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const apart = pointers.size === 2 ? distance() : 0;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 2) zoom(apart / Math.max(distance(), 1));
    else pan(((before[0] - event.clientX) * scale()) / view().w, ((before[1] - event.clientY) * scale()) / view().h);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) svg.addEventListener(end, (event) => pointers.delete(event.pointerId));
}

function short(text) { return text.length > 24 ? `${text.slice(0, 23)}…` : text; }

function told(graph, node, group) {
  const names = (numbers) => numbers.map((number) => graph.nodes[number].name).join(", ");
  return `${node.name}: ${node.op}; ${group ? `${group.label}${graph.whole ? "" : ", compiled"}` : "eager"}` + (node.inputs.length ? `; takes ${names(node.inputs)}` : "") +
    (node.after.length ? `; waits for ${names(node.after)}` : "") + (node.source ? `; ${node.source}` : "");
}

function spoken(graph, groups) {
  const edges = graph.nodes.reduce((sum, node) => sum + node.after.length, 0);
  return `The ${graph.kind} graph drawn: ${plural(graph.nodes.length, "node")}, ${plural(groups.size, "compiled part")}, ${plural(edges, "order edge")}. ` +
    "The table below says the same. Arrow keys move it, plus and minus zoom, 0 shows it whole.";
}

function keyOf(groups, graph) {
  const key = make("ul", { class: "key", "aria-label": "Key" });
  for (const { colour, label, count } of groups.values()) key.append(make("li", {}, make("i", { style: `background:${colour}` }), `${label}: ${graph.whole ? "" : "compiled, "}${plural(count, "node")}`));
  const eager = graph.nodes.filter((node) => partOf(node) === null && node.op !== "input" && node.op !== "output").length;
  if (eager) key.append(make("li", {}, make("i", { style: "background:var(--eager)" }), `eager, not compiled: ${plural(eager, "node")}`));
  if (graph.nodes.some((node) => node.after.length)) key.append(make("li", {}, "dashed: waits for, by control_deps"));
  return key;
}

function tableOf(caption, head, rows) {
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell)))))));
}

function nodesOf(graph, groupOf) {
  const names = (numbers) => numbers.map((number) => graph.nodes[number].name).join(", ");
  const row = (node) => [node.name, node.op, (groupOf(node) || { label: "eager" }).label, names(node.inputs), names(node.after), node.source];
  const folded = make("details", {}, make("summary", {}, "The nodes as a table"));
  folded.addEventListener("toggle", () => {
    if (folded.open && !folded.querySelector("table")) {
      folded.append(tableOf(`Nodes of the ${graph.kind} graph`, ["node", "operator", "compiled in", "takes", "waits for", "called at"], graph.nodes.map(row)));
    }
  });
  return folded;
}

// Code

/** Scroll a text so that a line of it stands near its top. */
function scrollTo(text, line) { text.scrollTop = line.offsetTop - text.offsetTop - 60; }

function codeOf(sources) {
  const all = make("div");
  for (const source of sources) {
    const lines = source.text.split("\n");
    const events = source.events.filter((event) => event.line <= lines.length);
    const code = make("pre", { tabindex: 0, "aria-label": "Generated code" });
    const drawn = lines.map((text, number) => make("span", { class: "code-line", "data-line": number + 1 }, `${text}\n`));
    code.append(...drawn);
    const list = make("ol", { "aria-label": "Events in execution order" });
    for (const event of events) {
      drawn[event.line - 1].classList.add("event");
      list.append(make("li", {}, make("button", { type: "button", onclick: () => {
        code.querySelectorAll(".chosen").forEach((one) => one.classList.remove("chosen"));
        drawn[event.line - 1].classList.add("chosen");
        scrollTo(code, drawn[event.line - 1]);
      } }, `line ${event.line}: ${event.kind}${event.ops ? ` (${event.ops})` : ""}`)));
    }
    const regions = source.regions.length ? `region ${source.regions.join(", ")} of ` : "";
    all.append(make("section", {}, make("h3", {}, `${regions}the ${source.graph} graph${source.loaded ? ", loaded from a cache" : ""}`),
      make("div", { class: "side" }, code, list)));
  }
  return all;
}

// Caches and counters

function timelineOf(events) {
  const last = Math.max(...events.map((event) => event.seconds), 0.001);
  const names = [...new Set(events.map((event) => event.counter))];
  const row = 22, left = 190, width = 800;
  const plot = make("svg", { class: "plot", role: "img", viewBox: `0 0 ${left + width + 40} ${names.length * row + 30}`, "aria-label": "When each counter moved; the table below says the same." });
  names.forEach((name, number) => {
    const y = number * row + 16;
    plot.append(make("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, name.replaceAll("_", " ")), make("line", { class: "axis", x1: left, x2: left + width, y1: y, y2: y }));
    for (const event of events.filter((one) => one.counter === name)) {
      plot.append(make("circle", { class: "candidate", cx: left + (width * event.seconds) / last, cy: y, r: 5 }, make("title", {}, `${event.seconds} s: ${event.cause}`)));
    }
  });
  plot.append(make("text", { x: left, y: names.length * row + 24 }, "0 s"), make("text", { x: left + width, y: names.length * row + 24, "text-anchor": "end" }, `${last.toFixed(2)} s`));
  return make("div", {}, plot, tableOf("What moved each counter", ["seconds", "counter", "cause"], events.map((event) => [event.seconds.toFixed(3), event.counter.replaceAll("_", " "), event.cause])));
}

// Errors

function errorsOf(errors) {
  const shown = (number) => (number === null ? "not known" : number >= 1e300 ? "infinite" : number === 0 ? "0" : number.toExponential(2));
  const values = errors.flatMap((one) => [one.candidate, one.eager, one.allowed]).filter((number) => number > 0 && number < 1e300);
  const low = Math.floor(Math.log10(Math.min(...values, 1))), high = Math.max(Math.ceil(Math.log10(Math.max(...values, 1e-12))), low + 1);
  const row = 24, left = 240, width = 700;
  const place = (number) => left + (width * (Math.min(Math.max(Math.log10(Math.max(number, 1e-320)), low), high) - low)) / (high - low);
  const plot = make("svg", { class: "plot", role: "img", viewBox: `0 0 ${left + width + 40} ${errors.length * row + 34}`, "aria-label": "Largest errors on a logarithmic scale; the table below says the same." });
  for (let power = low; power <= high; power += Math.max(1, Math.ceil((high - low) / 8))) {
    const x = place(10 ** power);
    plot.append(make("line", { class: "axis", x1: x, x2: x, y1: 0, y2: errors.length * row + 8 }), make("text", { x, y: errors.length * row + 26, "text-anchor": "middle" }, `1e${power}`));
  }
  errors.forEach((one, number) => {
    const y = number * row + 14, x = place(one.allowed);
    plot.append(make("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, one.where.length > 34 ? `…${one.where.slice(-33)}` : one.where));
    plot.append(make("line", { class: "allowed", x1: x, x2: x, y1: y - 8, y2: y + 8 }));
    if (one.eager !== null) plot.append(make("circle", { class: "eager", cx: place(one.eager), cy: y, r: 6 }));
    plot.append(make("circle", { class: "candidate", cx: place(one.candidate), cy: y, r: 4 }));
  });
  const key = make("ul", { class: "key", "aria-label": "Key" }, make("li", {}, make("i", { style: "background:var(--link);border-radius:50%" }), "compiled"),
    make("li", {}, make("i", { style: "border-radius:50%" }), "eager"), make("li", {}, make("i", { style: "background:var(--bad);width:.2rem" }), "allowed, where the compiled program came nearest to it"));
  return make("div", {}, make("p", { class: "note" }, "The largest error of each tensor against the float64 run, or against eager where there is none."), key, plot,
    tableOf("Errors", ["tensor", "compiled", "eager", "allowed"], errors.map((one) => [one.where, shown(one.candidate), shown(one.eager), shown(one.allowed)])));
}

// Findings

function findingsOf(findings) {
  const all = make("div");
  for (const finding of findings) {
    all.append(make("section", {}, make("h3", {}, finding.title), make("p", { class: "note" }, `${finding.name}, ${finding.script}`),
      finding.text ? make("pre", { tabindex: 0, "aria-label": "The script" }, finding.text) : ""));
  }
  return all;
}

state.hidden = true;
