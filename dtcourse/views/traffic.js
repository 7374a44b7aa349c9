// The traffic matrix: rows send, columns receive, the last of each are the sums.

function render({ model, el }) {
  const data = model.get("data"), world = data.world, sum = (values) => values.reduce((a, b) => a + b, 0);
  const side = world <= 8 ? 74 : 50, high = world <= 8 ? 46 : 30, left = 92, top = 66;
  const wide = left + (world + 1) * side + 22, most = Math.max(...data.matrix.flat(), 1);
  const root = frameOf(el, `Traffic of ${data.title}`, onKey);
  const sent = data.matrix.map(sum), received = data.matrix.map((_, j) => sum(data.matrix.map((row) => row[j])));
  const hottest = Math.max(...sent, ...received);
  let chosen = null;

  node(root, "div", { class: "dtc-head" }, `<b>${esc(data.title)}</b><span>traffic, ${size(sum(sent))} in ${data.total} messages</span>`);
  const picture = document.createElementNS(NS, "svg");
  picture.setAttribute("class", "dtc-picture");
  picture.setAttribute("viewBox", `0 0 ${wide} ${top + (world + 1) * high + 20}`);
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", sent.map((s, r) => `rank ${r} sent ${size(s)} and received ${size(received[r])}`).join("; "));
  picture.style.maxWidth = wide + "px";
  root.append(picture);
  const details = node(root, "div", { class: "dtc-caption", "aria-live": "polite" }, "Point at a cell, or choose one with the arrow keys.");
  if (data.note) node(root, "div", { class: "dtc-note" }, esc(data.note));
  const bar = node(root, "div", { class: "dtc-bar", role: "toolbar", "aria-label": "traffic" });
  largeType(bar, root, () => { picture.style.maxWidth = root.classList.contains("dtc-large") ? "none" : wide + "px"; }).classList.add("dtc-open");

  const rank = (r, x, y) => tag("circle", { cx: x, cy: y, r: high > 40 ? 14 : 11, fill: colour(r) })
    + tag("text", { x, y: y + 5, "text-anchor": "middle", "font-size": high > 40 ? 14 : 12, "font-weight": 700, style: `fill:${ink(r)}` }, r);
  const words = (text, x, y, more = {}) => tag("text", { x, y, "text-anchor": "middle", "font-size": high > 40 ? 13 : Math.min(12, (side - 4) / (text.length * 0.56)), ...more }, text);

  function cell(i, j) {
    const bytes = data.matrix[i][j], x = left + j * side, y = top + i * high, share = bytes / most;
    const data_ = { "data-i": i, "data-j": j, "data-bytes": bytes };
    const box = { x: x + 1, y: y + 1, width: side - 2, height: high - 2, rx: 4 };
    return tag("g", data_,
      tag("rect", { ...box, class: "dtc-cell", style: i === j && !bytes ? "fill:none;stroke-dasharray:3 3" : "fill:var(--paper)" }),
      bytes ? tag("rect", { ...box, fill: "#0072B2", opacity: 0.15 + 0.85 * share }) : "",
      words(bytes ? size(bytes) : "\u00b7", x + side / 2, y + high / 2 + 5, bytes && share > 0.35 ? { style: "fill:#fff", "font-weight": 600 } : { class: bytes ? null : "faint" }));
  }

  function total(bytes, x, y) {
    const hot = bytes === hottest && bytes * world > 1.5 * sum(sent); // far more than its share
    return (hot ? tag("rect", { x: x - side / 2 + 3, y: y - high / 2 + 4, width: side - 6, height: high - 8, rx: 4, fill: "none", stroke: "var(--warn)", "stroke-width": 2 }) : "")
      + words(size(bytes), x, y + 5, { "font-weight": 700 });
  }

  function draw() {
    const end = left + world * side + side / 2 + 8, foot = top + world * high + high / 2 + 8, parts = [
      words("receives", left + (world * side) / 2, 18, { "font-weight": 600, "font-size": 14 }),
      tag("text", { x: 16, y: top + (world * high) / 2, "text-anchor": "middle", "font-size": 14, "font-weight": 600, transform: `rotate(-90 16 ${top + (world * high) / 2})` }, "sends"),
      words("sent", end, top - 20, { class: "faint" }), words("received", left - 42, foot + 5, { class: "faint" }),
      total(sum(sent), end, foot)];
    for (let i = 0; i < world; i++) {
      parts.push(rank(i, left - 26, top + i * high + high / 2), rank(i, left + i * side + side / 2, top - 24),
        total(sent[i], end, top + i * high + high / 2), total(received[i], left + i * side + side / 2, foot));
      for (let j = 0; j < world; j++) parts.push(cell(i, j));
    }
    picture.innerHTML = parts.join("");
  }

  function choose(i, j) {
    chosen = [i, j];
    const times = data.counts[i][j];
    details.textContent = `Rank ${i} sent rank ${j} ${data.matrix[i][j].toLocaleString("en")} bytes in ${times} message${times === 1 ? "" : "s"}. `
      + `Rank ${i} sent ${size(sent[i])} in all and received ${size(received[i])}.`;
    picture.querySelector(".dtc-chosen")?.remove();
    picture.insertAdjacentHTML("beforeend", tag("rect", { class: "dtc-chosen", x: left + j * side, y: top + i * high, width: side, height: high, rx: 5, fill: "none", stroke: "var(--ink)", "stroke-width": 3, "pointer-events": "none" }));
  }

  function onKey({ key }) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
    if (!move) return false;
    const [i, j] = chosen ?? [-move[0], -move[1]], inside = (n) => Math.max(0, Math.min(world - 1, n));
    choose(inside(i + move[0]), inside(j + move[1]));
    return true;
  }

  picture.addEventListener("mouseover", (event) => {
    const found = event.target.closest("[data-i]");
    if (found) choose(+found.dataset.i, +found.dataset.j);
  });
  draw();
}

export default { render };
