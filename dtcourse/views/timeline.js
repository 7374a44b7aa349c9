// The timeline: a lane per rank with rows for regions, computing and waiting, sends, receives, collectives. Bars too thin
// to see are gathered into one, so that thousands of events cost no more than the pixels they have.

const SIDE = 94, ROW = 17, MOST_ARROWS = 200;
const FILLS = { compute: "#56B4E9", send: "#0072B2", recv: "#E69F00", collective: "#CC79A7", region: "var(--shade)" };
const TINTS = ["#d3d7de", "#f9dc9d", "#b9d3ec", "#b5dfcd", "#edcfe0", "#f5f1a8", "#f2c1a3"]; // of the regions, by name
const NAMES = { region: "region", compute: "computes", wait: "waits", send: "sends", recv: "receives", collective: "collective" };

/** Rows of bars from left to right; bars that lie within the same pixel, and marks that would cover each other, are one. */
function visible(bars, from, to, plot) {
  const shown = [], scale = plot / (to - from);
  let last = null, mark = null;
  bars.forEach(([rank, row, kind, start, end, , , pending], i) => {
    if (end < from || start > to) return;
    const x = Math.max((start - from) * scale, 0), w = Math.min((end - from) * scale, plot) - x;
    const thin = w < 1.5 && kind !== "mark" && kind !== "return";
    if (thin && last?.thin && last.rank === rank && last.row === row && x - (last.x + last.w) < 1 && last.kind === kind) {
      last.w = Math.max(x + Math.max(w, 0.5) - last.x, last.w);
      last.n += 1;
      return;
    }
    if (kind === "mark" && mark?.rank === rank && x - mark.x < 5) {
      mark.n += 1;
      return;
    }
    last = { i, rank, row, kind, x, w, pending, thin, n: 1 };
    if (kind === "mark") mark = last;
    shown.push(last);
  });
  return shown;
}

function render({ model, el }) {
  const data = model.get("data"), rows = data.depth + data.rows.length, lane = rows * ROW + 12, high = data.world * lane + 34;
  const span = Math.max(data.span, 1), view = lens(span, Math.min(Math.max(span / 20000, 0.5), span), centre, () => draw());
  Object.assign(view, { chosen: null, wide: 960 });
  const plot = () => view.wide - SIDE - 8;
  const hatch = "dtc-hatch-" + Math.random().toString(36).slice(2);
  const root = frameOf(el, `Timeline of ${data.title}`, onKey);
  const role = (rank) => (data.roles[rank] ? ` (${data.roles[rank]})` : "");
  const tinted = data.regions.length > 1;
  const present = new Set(data.bars.map((b) => b[2]));
  node(root, "div", { class: "dtc-head" }, `<b>${esc(data.title)}</b><span>timeline, ${duration(data.span)}</span>`);
  const bar = node(root, "div", { class: "dtc-bar", role: "toolbar", "aria-label": "timeline" });
  view.buttons(bar);
  largeType(bar, root, () => { view.wide = root.classList.contains("dtc-large") ? 660 : 960; draw(); }).classList.add("dtc-open");
  const legend = node(bar, "span", { class: "dtc-legend" });
  const picture = document.createElementNS(NS, "svg");
  picture.setAttribute("class", "dtc-picture");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `A lane per rank. Waiting: ${data.waited.map((w, r) => `rank ${r}${role(r)} ${Math.round(w * 100)} %`).join(", ")}`);
  root.append(picture);
  const details = node(root, "div", { class: "dtc-caption", "aria-live": "polite" });
  const gathered = node(root, "div", { class: "dtc-foot" });
  node(root, "div", { class: "dtc-foot" }, (data.note ? esc(data.note) + " " : "")
    + "Point at a bar to read it. Keys: \u2190 \u2192 \u2191 \u2193 choose a bar, + \u2212 0 zoom; drag to move.");
  const others = data.bars.some((b) => b[2] === "region" && !data.regions.includes(data.texts[b[5]]));
  const samples = tinted ? data.regions.map((name) => [name, "region", false, name]) : [];
  samples.push(...Object.keys(NAMES).filter((k) => present.has(k) && !(tinted && !others && k === "region")).map((k) => [tinted && k === "region" ? "other region" : NAMES[k], k, false]));
  if (data.bars.some((b) => b[7])) samples.push(["never ended", "wait", true]);
  legend.innerHTML = samples.map(([name, kind, pending, of], i) =>
    `<svg width="22" height="12" aria-hidden="true">${hatching(hatch + i)}<rect width="22" height="12" rx="2" ${style(kind, hatch + i, pending, of)}/></svg> ${esc(name)}`).join(" &ensp;");

  function style(kind, id, pending, of) {
    const flat = (kind === "region" && tinted && TINTS[data.regions.indexOf(of)]) || FILLS[kind] || "var(--ink)";
    const fill = pending ? `url(#${id}-stuck)` : kind === "wait" ? `url(#${id})` : flat;
    const edge = pending ? "var(--warn)" : kind === "region" || kind === "wait" ? "var(--faint)" : "var(--paper)";
    return `style="fill:${fill};stroke:${edge};stroke-width:${kind === "region" || kind === "wait" || pending ? 1 : 0.5}"`;
  }

  const top = (rank, row) => rank * lane + row * ROW + 4;

  function draw() {
    const shown = visible(data.bars, view.from, view.to, plot()), parts = [hatching(hatch)];
    for (let rank = 0; rank < data.world; rank++) {
      const y = rank * lane;
      if (rank % 2) parts.push(tag("rect", { x: 0, y, width: view.wide, height: lane, fill: "var(--shade)", opacity: 0.35 }));
      parts.push(tag("circle", { cx: 24, cy: y + lane / 2, r: 15, fill: colour(rank) }),
        tag("text", { x: 24, y: y + lane / 2 + 5, "text-anchor": "middle", "font-size": 14, "font-weight": 700, style: `fill:${ink(rank)}` }, rank),
        tag("text", { x: 24, y: y + lane / 2 + 27, "text-anchor": "middle", "font-size": 10 }, esc(data.roles[rank])),
        ...data.rows.map((name, i) =>
          tag("text", { x: SIDE - 6, y: top(rank, data.depth + i) + 11, "text-anchor": "end", "font-size": 10, class: "faint" }, name)));
    }
    for (const t of ticks(view.from, view.to)) {
      const x = SIDE + ((t - view.from) / (view.to - view.from)) * plot();
      parts.push(tag("path", { d: `M${x} 0V${high - 24}`, style: "stroke:var(--rule);stroke-width:.7" }),
        tag("text", { x, y: high - 8, "text-anchor": "middle", "font-size": 11, class: "faint" }, duration(t)));
    }
    parts.push(...shown.map(box), ...arrows());
    picture.setAttribute("viewBox", `0 0 ${view.wide} ${high}`);
    picture.innerHTML = parts.join("");
    const hidden = shown.reduce((sum, bar) => sum + bar.n - 1, 0);
    gathered.textContent = hidden ? `${hidden.toLocaleString("en")} bars are too thin to draw apart from their neighbours: zoom in.` : "";
    choose(view.chosen);
  }

  function box({ i, rank, row, kind, x, w, pending, n }) {
    const y = top(rank, row), left = SIDE + x, name = data.texts[data.bars[i][5]];
    if (kind === "mark" || kind === "return") {
      const d = kind === "mark" ? `M${left} ${y}l4 7-4 7-4-7z` : `M${left} ${y - 2}v${ROW + 2}`;
      return tag("path", { d, "data-i": i, "data-n": n, "data-kind": kind, style: "fill:var(--ink);stroke:var(--ink);stroke-width:2" });
    }
    const label = kind === "region" && w > name.length * 6.5 ? tag("text", { x: left + w / 2, y: y + 11, "text-anchor": "middle", "font-size": 11, "pointer-events": "none", style: tinted && data.regions.includes(name) && !pending ? "fill:#16181d" : null }, esc(name)) : "";
    return `<rect x="${left}" y="${y}" width="${Math.max(w, 1)}" height="${ROW - 3}" rx="${w > 6 ? 2 : 0}" data-i="${i}" data-n="${n}" data-kind="${kind}" data-rank="${rank}" ${style(kind, hatch, pending, name)}/>` + label;
  }

  function arrows() {
    const scale = plot() / (view.to - view.from);
    const near = data.arrows.filter(([, a, , b]) => b >= view.from && a <= view.to);
    if (near.length > MOST_ARROWS) return [];
    return near.map(([from, a, to, b]) => {
      const x0 = SIDE + (a - view.from) * scale, x1 = SIDE + (b - view.from) * scale;
      const y0 = top(from, data.depth + data.rows.indexOf("send")) + 7, y1 = top(to, data.depth + data.rows.indexOf("recv")) + 7;
      if (x0 < SIDE || x1 > SIDE + plot()) return "";
      const turn = (Math.atan2(y1 - y0, x1 - x0) * 180) / Math.PI;
      return tag("g", { class: "dtc-arrow", "pointer-events": "none" },
        tag("path", { d: `M${x0} ${y0}L${x1} ${y1}`, class: "dtc-path", style: "stroke-width:1;opacity:.55" }),
        tag("path", { d: "M0 0l-7-3.500v7z", transform: `translate(${x1} ${y1}) rotate(${turn})`, class: "dtc-head-of-arrow" }));
    });
  }

  function choose(i, n = 1) {
    view.chosen = i;
    picture.querySelector(".dtc-chosen")?.remove();
    if (i === null) { details.textContent = data.waited.map((w, r) => `rank ${r}${role(r)} waits ${Math.round(w * 100)} %`).slice(0, 16).join(", ") + " of the time."; return; }
    const [rank, , , start, end, name, detail, pending] = data.bars[i];
    const many = n > 1 ? ` (and ${n - 1} more too close to draw apart: zoom in)` : "";
    const when = start === end ? `at ${duration(start)}` : `${duration(end - start)}, from ${duration(start)} to ${duration(end)}`;
    details.textContent = `Rank ${rank} ${data.texts[name]}: ${pending ? "never ended; " : ""}${when}. ${data.texts[detail]}${many}`;
    const shape = picture.querySelector(`[data-i="${i}"]`);
    if (!shape) return;
    const b = shape.getBBox();
    picture.insertAdjacentHTML("beforeend", tag("rect", { class: "dtc-chosen", x: b.x - 2, y: b.y - 2, width: b.width + 4, height: b.height + 4, rx: 3, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5, "pointer-events": "none" }));
  }

  function centre() {
    const bar = view.chosen === null ? null : data.bars[view.chosen];
    return bar ? (bar[3] + bar[4]) / 2 : NaN;
  }

  function onKey({ key }) {
    const shift = { ArrowLeft: -1, ArrowRight: 1 }[key], turn = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (shift) step(shift);
    else if (turn) turnTo(turn);
    else return view.onKey(key);
    return true;
  }

  function step(by) {
    const i = view.chosen === null ? 0 : view.chosen + by;
    if (data.bars[i]) reveal(i);
  }

  function turnTo(by) {
    const [rank, row, , start] = data.bars[view.chosen ?? 0] ?? [];
    const rowsThere = [...new Set(data.bars.map((b) => b[0] * 1000 + b[1]))];
    const there = rowsThere[rowsThere.indexOf(rank * 1000 + row) + by];
    let best = null;
    data.bars.forEach((b, i) => {
      if (b[0] * 1000 + b[1] === there && (best === null || Math.abs(b[3] - start) < Math.abs(data.bars[best][3] - start))) best = i;
    });
    if (best !== null) reveal(best);
  }

  function reveal(i) {
    view.reveal(data.bars[i][3], data.bars[i][4]);
    choose(i);
  }

  view.listen(picture, root, () => [SIDE, plot()]);
  picture.addEventListener("mouseover", (e) => e.target.dataset?.i && choose(+e.target.dataset.i, +e.target.dataset.n));
  draw();
}

export default { render };
