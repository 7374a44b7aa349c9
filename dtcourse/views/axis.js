// What the views with a time axis share: times in words, ticks, hatching, and a lens that keys, buttons and mouse move.

function duration(us) {
  const [value, unit] = us < 1000 ? [us, "\u00b5s"] : us < 1e6 ? [us / 1000, "ms"] : [us / 1e6, "s"];
  return +value.toPrecision(4) + " " + unit;
}

function ticks(from, to) {
  const rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
  return found;
}

/** Patterns for what waits or is idle (`id`), and for what never ended (`id`-stuck). */
function hatching(id) {
  return `<defs><pattern id="${id}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">`
    + `<rect width="6" height="6" fill="var(--paper)"/><rect width="2" height="6" fill="var(--faint)"/></pattern>`
    + `<pattern id="${id}-stuck" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">`
    + `<rect width="7" height="7" fill="var(--paper)"/><rect width="3" height="7" fill="var(--warn)"/></pattern></defs>`;
}

/** The stretch `from`, `to` of the axis that is seen. `centre()` is what keys and buttons zoom at, NaN for the middle. */
function lens(span, least, centre, draw) {
  const seen = { from: 0, to: span };

  seen.look = (from, to) => {
    const wide = Math.min(Math.max(to - from, least), span);
    seen.from = Math.max(0, Math.min(from, span - wide));
    seen.to = seen.from + wide;
    draw();
  };

  seen.middle = () => {
    const at = centre();
    return at >= seen.from && at <= seen.to ? at : (seen.from + seen.to) / 2;
  };

  seen.zoom = (factor, at = seen.middle()) => seen.look(at - (at - seen.from) * factor, at + (seen.to - at) * factor);
  seen.all = () => seen.look(0, span);

  seen.reveal = (start, end) => {
    const half = (seen.to - seen.from) / 2;
    if (end < seen.from || start > seen.to) seen.look(start - half, start + half);
  };

  seen.onKey = (key) => {
    if (key === "+" || key === "=") seen.zoom(0.5);
    else if (key === "-") seen.zoom(2);
    else if (key === "0") seen.all();
    else return false;
    return true;
  };

  seen.buttons = (bar) => {
    button(bar, "zoom in", "in", () => seen.zoom(0.5)).classList.add("dtc-open");
    button(bar, "zoom out", "out", () => seen.zoom(2)).classList.add("dtc-open");
    button(bar, "the whole run", "all", seen.all).classList.add("dtc-open");
  };

  /** The mouse drags, and zooms with Ctrl and the wheel. `plot()` is [left, width] of the axis in units of the picture. */
  seen.listen = (picture, root, plot) => {
    let drag = null, next = null;
    const units = () => picture.viewBox.baseVal.width / picture.clientWidth;
    function soon(act) { // at most once a frame, however fast the mouse
      if (!next) requestAnimationFrame(() => { next(); next = null; });
      next = act;
    }
    picture.addEventListener("pointerdown", (e) => { drag = [e.clientX, seen.from, seen.to]; root.focus({ preventScroll: true }); });
    picture.addEventListener("pointermove", (e) => {
      if (!drag || !e.buttons) return;
      const by = (e.clientX - drag[0]) * (units() / plot()[1]) * (drag[2] - drag[1]);
      soon(() => seen.look(drag[1] - by, drag[2] - by));
    });
    picture.addEventListener("wheel", (e) => {
      if (!e.ctrlKey) return;
      e.preventDefault();
      const share = (e.offsetX * units() - plot()[0]) / plot()[1];
      soon(() => seen.zoom(e.deltaY > 0 ? 1.25 : 0.8, seen.from + share * (seen.to - seen.from)));
    }, { passive: false });
  };

  return seen;
}
