// Lanes of boxes on one axis, in panels: a pipeline (planned, measured), or who computes and communicates. Whoever points
// at a box reads it, and sees the others of its group.

const LANE = 34, GAP = 6, TITLE = 30;
const LETTER = 7.4, SMALL = 5.4; // widths of a character, at 12.5 and at 9 pixels

function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 127 ? "#000" : "#fff";
}

function render({ model, el }) {
  const data = model.get("data"), SIDE = data.side, hatch = "dtc-hatch-" + Math.random().toString(36).slice(2);
  const lanes = [], boxes = []; // lanes of all panels from above; boxes in their order
  let high = 0;
  for (const panel of data.panels) {
    high += TITLE;
    for (const { rank, note, boxes: own } of panel.lanes) {
      const numbers = own.map((box) => boxes.push({ box, lane: lanes.length }) - 1);
      lanes.push({ rank, note, panel, y: high, numbers });
      high += LANE + GAP;
    }
  }
  const [START, END, PENDING, TOLD] = [2, 3, 6, 7]; // where in a box they are
  const mates = (lane) => lanes.filter((other) => other.panel === lane.panel && other.rank === lane.rank);
  const span = data.span || 1;
  let chosen = null, wide = 960;
  const view = lens(span, span / 2000, () => (chosen === null ? NaN : (boxes[chosen].box[START] + boxes[chosen].box[END]) / 2), () => draw());
  const plot = () => [SIDE, wide - SIDE - 8];

  const root = frameOf(el, data.title, onKey);
  node(root, "div", { class: "dtc-head" }, `<b>${esc(data.title)}</b><span>${esc(data.head)}</span>`);
  const bar = node(root, "div", { class: "dtc-bar", role: "toolbar", "aria-label": data.title });
  view.buttons(bar);
  largeType(bar, root, () => { wide = root.classList.contains("dtc-large") ? 700 : 960; draw(); }).classList.add("dtc-open");
  const samples = [...data.legend, ["idle", `url(#${hatch})`]];
  if (boxes.some(({ box }) => box[PENDING])) samples.push(["never ended", `url(#${hatch}-stuck)`]);
  node(bar, "span", { class: "dtc-legend" }, samples.map(([name, fill]) =>
    `<svg width="22" height="12" aria-hidden="true"><rect width="22" height="12" rx="2" style="fill:${fill};stroke:var(--faint)"/></svg> ${esc(name)}`).join(" &ensp;")
    + (data.letters ? ` &ensp;${esc(data.letters)}` : ""));
  const picture = document.createElementNS(NS, "svg");
  picture.setAttribute("class", "dtc-picture");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", data.caption);
  root.append(picture);
  const details = node(root, "div", { class: "dtc-caption", "aria-live": "polite" });
  node(root, "div", { class: "dtc-foot" }, esc(data.foot) + " Keys: \u2190 \u2192 \u2191 \u2193 choose a box, + \u2212 0 zoom; drag to move.");

  const at = (time) => SIDE + ((time - view.from) / (view.to - view.from)) * plot()[1];

  function draw() {
    const parts = [hatching(hatch), `<defs><clipPath id="${hatch}-clip"><rect x="${SIDE}" y="0" width="${plot()[1]}" height="${high + 30}"/></clipPath></defs>`];
    let before = null;
    for (const lane of lanes) {
      const { rank, note, panel, y } = lane, [first, last] = [mates(lane)[0], mates(lane).at(-1)];
      if (panel !== before) parts.push(tag("text", { x: SIDE, y: y - 9, "font-size": 14, "font-weight": 700 }, esc(panel.title)));
      before = panel;
      const middle = (y + last.y + LANE) / 2; // of all lanes of the rank
      if (lane === first) parts.push(tag("circle", { cx: 20, cy: middle, r: 14, fill: colour(rank) }),
        tag("text", { x: 20, y: middle + 5, "text-anchor": "middle", "font-size": 14, "font-weight": 700, style: `fill:${ink(rank)}` }, rank));
      parts.push(tag("text", { x: SIDE - 6, y: y + LANE / 2 + 4, "text-anchor": "end", "font-size": 11.5 }, esc(note)));
    }
    for (const t of ticks(view.from, view.to)) {
      parts.push(tag("line", { x1: at(t), x2: at(t), y1: TITLE - 4, y2: high, style: "stroke:var(--rule);stroke-width:1" }),
        tag("text", { x: at(t), y: high + 17, "text-anchor": "middle", "font-size": 12, class: "faint" }, data.timed ? duration(t) : +t.toPrecision(6)));
    }
    parts.push(`<g clip-path="url(#${hatch}-clip)">`);
    for (const { panel, y } of lanes) parts.push(`<rect x="${at(0)}" y="${y}" width="${at(panel.span) - at(0)}" height="${LANE}" opacity=".45" style="fill:url(#${hatch})"/>`);
    parts.push(...boxes.map(shape), "</g>");
    picture.setAttribute("viewBox", `0 0 ${wide} ${high + 26}`);
    picture.innerHTML = parts.join("");
    choose(chosen);
  }

  function shape({ box: [kind, group, start, end, label, fill, pending], lane }, i) {
    const { y, rank } = lanes[lane], x = at(start), w = Math.max(at(end) - x, 0.5);
    if (x > wide || x + w < SIDE) return "";
    const size = w > label.length * LETTER + 5 ? 12.5 : w > label.length * SMALL + 2 ? 9 : 0;
    const edge = pending ? "var(--warn)" : w > 4 ? "var(--paper)" : fill;
    return `<g data-i="${i}" data-kind="${kind}" data-rank="${rank}" data-group="${esc(group)}">`
      + `<rect x="${x}" y="${y}" width="${w}" height="${LANE}" rx="${w > 8 ? 2 : 0}" style="fill:${pending ? `url(#${hatch}-stuck)` : fill};stroke:${edge};stroke-width:1"/>`
      + (size ? `<text x="${x + w / 2}" y="${y + LANE / 2 + size * 0.35}" text-anchor="middle" font-size="${size}" pointer-events="none" style="fill:${pending ? "var(--ink)" : inkOn(fill)}">${esc(label)}</text>` : "") + "</g>";
  }

  /** Tell of a box; all of its group stay bright. */
  function choose(i) {
    chosen = i;
    picture.querySelector(".dtc-chosen")?.remove();
    const group = i === null ? null : String(boxes[i].box[1]);
    for (const shown of picture.querySelectorAll("[data-i]")) shown.style.opacity = group === null || shown.dataset.group === group ? 1 : 0.3;
    details.textContent = i === null ? data.caption : boxes[i].box[TOLD];
    const shown = i === null ? null : picture.querySelector(`[data-i="${i}"] rect`);
    if (!shown) return;
    const b = shown.getBBox();
    picture.insertAdjacentHTML("beforeend", tag("rect", { class: "dtc-chosen", x: b.x - 2, y: b.y - 2, width: b.width + 4, height: b.height + 4, rx: 3, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5, "pointer-events": "none" }));
  }

  function onKey({ key }) {
    const shift = { ArrowLeft: -1, ArrowRight: 1 }[key], turn = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (shift || turn) go(shift ?? 0, turn ?? 0);
    else return view.onKey(key);
    return true;
  }

  /** To the next box of the lane, or to the one of the next lane that begins nearest. */
  function go(shift, turn) {
    if (chosen === null) return reveal(0);
    const { box, lane } = boxes[chosen], there = lanes[lane + turn]?.numbers ?? [];
    const off = (i) => Math.abs(boxes[i].box[START] - box[START]);
    if (turn) { if (there.length) reveal(there.reduce((best, i) => (off(i) < off(best) ? i : best))); }
    else if (there.includes(chosen + shift)) reveal(chosen + shift);
  }

  function reveal(i) {
    chosen = i;
    view.reveal(boxes[i].box[START], boxes[i].box[END]);
    choose(i);
  }

  view.listen(picture, root, plot);
  picture.addEventListener("mouseover", (e) => {
    const found = e.target.closest("[data-i]");
    if (found) choose(+found.dataset.i);
  });
  picture.addEventListener("mouseleave", () => choose(null));
  root.addEventListener("focusout", (e) => { if (!root.contains(e.relatedTarget)) choose(null); });
  draw();
}

export default { render };
