// The chunk player: a row of chunks per rank, a stripe in a chunk per contributing rank, messages flying between frames.
// `board` is a pure function from a frame to SVG text, in parts; `paint` puts in the parts that are new; `render` (in the
// next file) is the machine around them.

const TOP = 46, LEFT = 84, FLIGHT = 500;

/** Where things are, in the units of the picture. */
function layout(world, wide) {
  const right = 96, gutter = world > 8 ? 8 : world > 5 ? 14 : 18;
  const [tall, gap] = world > 8 ? [34, 20] : world > 5 ? [44, 28] : [56, 34];
  const width = (wide - LEFT - right - gutter * (world - 1)) / world;
  return {
    wide, width, gutter, world, tall,
    rim: Math.min(5, gutter / 2 - 1), // between a chunk and the dashes round it
    high: TOP + world * (tall + gap) - gap + 16,
    x: (chunk) => LEFT + chunk * (width + gutter),
    y: (rank) => TOP + rank * (tall + gap),
  };
}

const historyOf = (chunk) => JSON.stringify([chunk.pieces, chunk.pieces.length ? 0 : chunk.numbers]);

function board(film, number, wide, numbers) {
  const frame = film.frames[number], before = film.frames[number - 1];
  const at = layout(film.world, wide);
  const parts = [heads(film, frame, at)];
  frame.rows.forEach((row, rank) => {
    parts.push(rankMark(film, number, rank, at));
    row.forEach((chunk, c) => parts.push(cell(film, chunk, before?.rows[rank]?.[c], rank, c, at, numbers)));
  });
  parts.push(frame.messages.map((message) => arrow(message, frame.messages, at)).join(""));
  return { parts, at };
}

/** Each part is a group of the picture, and only those are drawn again whose text has changed: most chunks rest. */
function paint(picture, parts) {
  const old = picture.parts ?? [];
  if (old.length !== parts.length) picture.innerHTML = "<g></g>".repeat(parts.length);
  parts.forEach((text, i) => {
    if (old.length !== parts.length || old[i] !== text) picture.children[i].innerHTML = text;
  });
  picture.parts = parts;
}

function heads(film, frame, at) {
  const row = frame.rows.find((r) => r.length) ?? [];
  const label = at.width < 60 ? "" : "chunk ";
  return row.map(({ span: [a, b] }, c) => {
    const x = at.x(c) + at.width / 2;
    const where = a === b ? "empty" : b - a === 1 ? `[${a}]` : `[${a}:${b}]`;
    return tag("text", { x, y: 18, "text-anchor": "middle", "font-size": 14, "font-weight": 600 }, label + c)
      + (at.width < 40 ? "" : tag("text", { x, y: 34, "text-anchor": "middle", "font-size": 11, class: "faint mono" }, where));
  }).join("");
}

function rankMark(film, number, rank, at) {
  const y = at.y(rank) + at.tall / 2, frame = film.frames[number];
  const sent = film.frames.slice(1, number + 1).flatMap((f) => f.messages)
    .reduce((sum, m) => sum + (m.from === rank && m.arrived ? m.bytes * m.times : 0), 0);
  const waits = frame.waits.some((w) => w.rank === rank);
  const x = at.wide - 84;
  return tag("circle", { cx: 52, cy: y, r: Math.min(19, at.tall / 2), fill: colour(rank) })
    + tag("text", { x: 52, y: y + 6, "text-anchor": "middle", "font-size": 17, "font-weight": 700, style: `fill:${ink(rank)}` }, rank)
    + (rank ? "" : tag("text", { x: 52, y: 18, "text-anchor": "middle", "font-size": 14, "font-weight": 600 }, "rank")
      + tag("text", { x, y: 18, "font-size": 14, "font-weight": 600 }, "sent"))
    + tag("text", { x, y: y + (waits ? -2 : 5), "font-size": 14 }, size(sent))
    + (waits ? tag("text", { x, y: y + 16, "font-size": 13, "font-weight": 700, class: "warn" }, "\u2016 waits") : "");
}

function cell(film, chunk, before, rank, c, at, numbers) {
  const x = at.x(c), y = at.y(rank), w = at.width;
  const changed = before && historyOf(before) !== historyOf(chunk);
  const h = at.tall, rim = at.rim, tall = numbers || !film.decoded ? h * 0.34 : h;
  const inside = chunk.pieces.map((piece) => stripes(film, piece, chunk, before, x, y, w, tall)).join("");
  const data = {
    class: "dtc-chunk", "data-rank": rank, "data-chunk": c, "data-complete": chunk.complete + "", "data-changed": !!changed + "",
    "data-counts": chunk.pieces.map((p) => (p[2] ? p[2].join(",") : "?")).join(";"),
    "data-moved": chunk.pieces.map((p) => p[3] ?? "?").join(";"),
  };
  return tag("g", data,
    tag("title", {}, esc(tell(film, chunk, rank, c))),
    tag("rect", { x, y, width: w, height: h, rx: 7, class: "dtc-cell" }),
    inside,
    numbers || !film.decoded ? figures(chunk, x, y, w, h, film.decoded) : "",
    chunk.complete ? tag("rect", { x, y, width: w, height: h, rx: 7, fill: "none", class: "dtc-complete" }) + tick(x + w, y) : "",
    changed ? tag("rect", { x: x - rim, y: y - rim, width: w + 2 * rim, height: h + 2 * rim, rx: 10, class: "dtc-changed" }) : "");
}

const tick = (x, y) => tag("circle", { cx: x, cy: y, r: 8.5, fill: "var(--ink)" })
  + tag("path", { d: `M${x - 4} ${y}l3 3.200 5-6`, fill: "none", stroke: "var(--paper)", "stroke-width": 2.2 });

/** One piece of a chunk: a slot per rank, filled if the rank contributed, with its number and how often if not once. */
function stripes(film, [start, stop, counts, moved], chunk, before, x, y, w, tall) {
  const [a, b] = chunk.span, per = w / (b - a);
  const left = x + (start - a) * per, room = (stop - start) * per, slot = (room - 4) / film.world;
  if (!counts) return tag("text", { x: left + room / 2, y: y + tall / 2 + 6, "text-anchor": "middle", "font-size": 18, class: "warn" }, "?");
  const old = before?.pieces.find((p) => p[0] === start && p[1] === stop)?.[2] ?? [];
  const odd = moved !== 0 && counts.some((n) => n), foot = odd && tall > 20 ? 16 : 0, gap = slot > 14 ? 1 : 0.3;
  const slots = counts.map((n, r) => {
    if (!n) return "";
    const sx = left + 2 + r * slot, body = { x: sx + gap, y: y + 3, width: Math.max(slot - 2 * gap, 1), height: tall - 6 - foot, rx: Math.min(4, slot / 4), fill: colour(r) };
    const text = n === 1 ? r : `${r}\u00d7${n}`, font = Math.min(tall > 20 ? 16 : 11, slot * (n === 1 ? 1 : 0.52));
    return tag("g", { class: n === old[r] ? null : "dtc-fresh" }, tag("rect", body),
      font < 5 ? "" : tag("text", { x: sx + slot / 2, y: y + (tall - foot) / 2 + font * 0.36, "text-anchor": "middle", "font-size": font, "font-weight": 600, style: `fill:${ink(r)}` }, text),
      n > 1 ? tag("rect", { ...body, fill: "none", stroke: "var(--warn)", "stroke-width": 3 }) : "");
  }).join("");
  const words = moved === null ? "mixed positions" : home(film, chunk, start, stop, moved);
  const font = Math.min(12, (room - 4) / (words.length * 0.55));
  return slots + (foot && font > 4 ? tag("text", { x: left + room / 2, y: y + tall - 6, "text-anchor": "middle", "font-size": font, "font-weight": 700, class: "warn" }, words) : "");
}

/** Which chunk or positions a displaced piece really is. */
function home(film, chunk, start, stop, moved) {
  const spans = film.spans, a = start + moved, b = stop + moved;
  const found = spans.findIndex((s) => s[0] <= a && b <= s[1]);
  if (found >= 0 && start === chunk.span[0] && stop === chunk.span[1]) return `is chunk ${found}`;
  return b - a === 1 ? `is [${a}]` : `is [${a}:${b}]`;
}

function figures(chunk, x, y, w, h, decoded) {
  const from = decoded ? h * 0.34 : 0, most = Math.max(1, Math.floor((h - from) / 14)), lines = [""];
  const fit = Math.max(Math.floor((w - 8) / 6.7), 4);
  for (const text of chunk.numbers) {
    const line = lines[lines.length - 1];
    if (line && line.length + text.length + 1 > fit) lines.push(text);
    else lines[lines.length - 1] = line ? line + " " + text : text;
  }
  const shown = lines.slice(0, most);
  if (lines.length > most || chunk.span[1] - chunk.span[0] > chunk.numbers.length) shown[shown.length - 1] += " \u2026";
  const top = from + (h - from - shown.length * 14) / 2 + 11;
  return shown.map((line, i) => tag("text", {
    x: x + w / 2, y: y + top + i * 14, "text-anchor": "middle", class: "mono",
    "font-size": Math.min(11, (w - 4) / (line.length * 0.61 || 1)),
  }, esc(line))).join("");
}

function tell(film, chunk, rank, c) {
  const held = chunk.pieces.map(([a, b, counts, moved]) => {
    const who = counts ? counts.flatMap((n, r) => (n ? [n > 1 ? `${r} (${n} times)` : r] : [])).join(", ") || "none" : "unknown";
    return `elements ${a} to ${b - 1}: ranks ${who}` + (moved === null ? ", positions mixed" : moved ? `, from position ${a + moved}` : "");
  });
  return [`rank ${rank}, chunk ${c}`, ...held, chunk.numbers.join(" ")].join("\n");
}

/** The way of a message: straight to the next row, beside the chunks to a farther one, round the ranks if no chunk. */
function way(m, messages, at) {
  const down = m.to > m.from, y0 = at.y(m.from) + (down ? at.tall : 0), y1 = at.y(m.to) + (down ? 0 : at.tall), end = down ? -4 : 4;
  if (m.chunk === null || m.from === m.to) {
    const a = at.y(m.from) + at.tall / 2, b = at.y(m.to) + at.tall / 2, bow = 18 + 6 * Math.abs(m.to - m.from);
    return { d: `M33 ${a}C${33 - bow} ${a} ${33 - bow} ${b} 31 ${b}`, tip: [33, b, 0], label: null };
  }
  const both = messages.some((o) => o.chunk === m.chunk && o.from === m.to && o.to === m.from) ? (down ? 10 : -10) : 0;
  const x = at.x(m.chunk) + at.width / 2 + both;
  if (Math.abs(m.to - m.from) === 1) {
    return { d: `M${x} ${y0}L${x} ${y1 + end * 2}`, tip: [x, y1 + end / 2, down ? 90 : -90], label: [x + 9, (y0 + y1) / 2 + 4] };
  }
  const side = at.x(m.chunk) + at.width + at.gutter / 2, out = at.x(m.chunk) + at.width - 14, lip = down ? 9 : -9;
  const d = `M${out} ${y0}v${lip}H${side}V${y1 - lip}H${out}V${y1 + end * 2}`;
  return { d, tip: [out, y1 + end / 2, down ? 90 : -90], label: [out - 8, y1 - lip * 1.6 + 4, "end"] };
}

function arrow(m, messages, at) {
  const { d, tip: [x, y, turn], label } = way(m, messages, at);
  const text = (m.times > 1 ? `${m.times} \u00d7 ` : "") + size(m.bytes), lost = m.arrived ? "" : " dtc-lost";
  const data = { class: "dtc-message", "data-from": m.from, "data-to": m.to, "data-chunk": m.chunk ?? "", "data-bytes": m.bytes, "data-arrived": m.arrived + "" };
  return tag("g", data,
    tag("title", {}, esc(`rank ${m.from} to rank ${m.to}: ${m.what}, ${size(m.bytes)}${m.arrived ? "" : ", has not arrived"}`)),
    label ? tag("path", { d, class: "dtc-halo" }) : "", tag("path", { d, class: "dtc-path" + lost }),
    m.arrived
      ? tag("path", { d: "M0 0l-9-5v10z", transform: `translate(${x} ${y}) rotate(${turn})`, class: "dtc-head-of-arrow" })
      : tag("path", { d: `M${x - 5} ${y - (turn > 0 ? 9 : turn < 0 ? 1 : 5)}l10 10m0-10l-10 10`, class: "dtc-path dtc-lost", style: "stroke-dasharray:none" }),
    label && at.width > 60 ? tag("text", { x: label[0], y: label[1], "text-anchor": label[2] ?? null, "font-size": 11, class: m.arrived ? "faint" : "warn" }, text + (m.arrived ? "" : " not arrived")) : "",
    token(m, d));
}

/** What flies: a small chunk with the stripes of what it carries. */
function token(m, d) {
  const carried = m.counts.flatMap((n, r) => (n ? [r] : []));
  const w = Math.max(carried.length * 13, 26), each = w / Math.max(carried.length, 1);
  const inside = carried.map((r, i) => tag("rect", { x: -w / 2 + i * each, y: -9, width: each, height: 18, fill: colour(r) })
    + tag("text", { x: -w / 2 + (i + 0.5) * each, y: 4, "text-anchor": "middle", "font-size": 11, style: `fill:${ink(r)}` }, r)).join("");
  return tag("g", { class: "dtc-token", style: `offset-path:path('${d}');offset-rotate:0deg` },
    tag("rect", { x: -w / 2 - 2, y: -11, width: w + 4, height: 22, rx: 5, fill: "var(--paper)", stroke: "var(--ink)", "stroke-width": 2 }), inside);
}

function fly(picture) {
  for (const flying of picture.querySelectorAll(".dtc-token")) {
    if (flying.parentNode.dataset.arrived === "false") continue;
    const keys = [{ offsetDistance: "0%", opacity: 1 }, { offsetDistance: "95%", opacity: 1, offset: 0.9 }, { offsetDistance: "100%", opacity: 0 }];
    flying.animate(keys, { duration: FLIGHT * 1.15, easing: "ease-in-out" });
  }
}

function code(film, frame) {
  const several = frame.lines.length > 1;
  return frame.lines.slice(0, 4).map(([n, who]) => {
    const { place, text, before, after } = film.lines[n];
    const near = (lines) => (several ? "" : lines.map((l) => `<div class="dtc-near">${esc(l) || " "}</div>`).join(""));
    return `<div class="dtc-where">${esc(place)}, ${esc(who)}</div>${near(before)}<div class="dtc-runs">${esc(text) || " "}</div>${near(after)}`;
  }).join("") || `<div class="dtc-where">no line of code runs in this frame</div>`;
}
