// The machine around the player's picture: buttons, keys, playing, and the frames that arrive from a live run.

function render({ model, el }) {
  const film = structuredClone(model.get("data"));
  const state = { at: Math.min(model.get("step"), film.frames.length - 1), numbers: false, timer: null };
  const root = frameOf(el, `Chunk player of ${film.title}`, onKey);
  const head = node(root, "div", { class: "dtc-head" });
  const caption = node(root, "div", { class: "dtc-caption", "aria-live": "polite" });
  const picture = document.createElementNS(NS, "svg");
  picture.setAttribute("class", "dtc-picture");
  picture.setAttribute("role", "img");
  root.append(picture);
  const bar = node(root, "div", { class: "dtc-bar", role: "toolbar", "aria-label": "player" });
  const first = button(bar, "first frame", "first", () => go(0));
  const back = button(bar, "one step back", "back", () => go(state.at - 1));
  const play = button(bar, "play", "play", () => (state.timer ? stop() : start()));
  const next = button(bar, "one step on", "next", onward);
  const last = button(bar, "last frame", "last", () => go(film.frames.length - 1));
  const finish = button(bar, "let the ranks run to the end", "release", () => model.send({ kind: "finish" }));
  const range = node(bar, "input", { type: "range", min: 0, "aria-label": "frame" });
  const count = node(bar, "span", { class: "dtc-count" });
  toggle(bar, "numbers", "numbers", (down) => { state.numbers = down; show(false); }).classList.add("dtc-open");
  largeType(bar, root, () => show(false)).classList.add("dtc-open");
  const listing = node(root, "div", { class: "dtc-code", role: "region", "aria-label": "the line that runs" });
  const failure = node(root, "div", { class: "dtc-failure", role: "status", hidden: "" });
  const foot = node(root, "div", { class: "dtc-foot" });
  range.addEventListener("input", () => go(+range.value, false));
  root.addEventListener("pointerdown", (event) => event.target.closest("button,input") || root.focus({ preventScroll: true }));

  const atEnd = () => state.at >= film.frames.length - 1;
  const held = () => film.live === "held";

  function onKey(event) {
    const acts = { ArrowRight: onward, ArrowLeft: () => go(state.at - 1), Home: () => go(0), End: () => go(film.frames.length - 1), " ": () => play.click() };
    acts[event.key]?.();
    return event.key in acts;
  }

  function onward() {
    if (!atEnd()) return go(state.at + 1);
    if (held()) model.send({ kind: "advance" }); // the ranks go on; their frame comes as a message
  }

  function go(to, tellOthers = true) {
    const from = state.at;
    state.at = Math.max(0, Math.min(to, film.frames.length - 1));
    if (state.at !== from) show(state.at === from + 1);
    clearTimeout(state.saving); // not at once: the picture comes first
    state.saving = setTimeout(() => { model.set("step", state.at); model.save_changes(); }, tellOthers ? 60 : 200);
  }

  function start() {
    if (atEnd() && !held()) go(0);
    state.timer = setInterval(() => (atEnd() && !held() ? stop() : onward()), still() ? 1500 : 1250);
    face("pause");
    onward();
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    face("play");
  }

  function face(name) {
    play.innerHTML = iconMarkup(name);
    play.setAttribute("aria-label", name);
    play.title = name;
  }

  function show(moving) {
    const frame = film.frames[state.at], wide = root.classList.contains("dtc-large") ? 660 : 960;
    const { parts, at } = board(film, state.at, wide, state.numbers);
    picture.setAttribute("viewBox", `0 0 ${at.wide} ${at.high}`);
    picture.setAttribute("aria-label", `${frame.title}: ${frame.caption}`);
    picture.dataset.frame = state.at;
    picture.classList.toggle("dtc-moving", moving && !still());
    paint(picture, parts);
    if (moving && !still()) requestAnimationFrame(() => fly(picture)); // the new picture first, then what flies
    caption.innerHTML = esc(frame.caption) + frame.notes.map((n) => ` <span class="dtc-note">${esc(n)}</span>`).join("");
    listing.innerHTML = code(film, frame);
    controls();
  }

  function controls() {
    const end = film.frames.length - 1;
    head.innerHTML = `<b>${esc(film.title)}</b><span>${film.world} rank${film.world > 1 ? "s" : ""}${film.live ? `, live: ${esc(film.live)}` : ""}</span>`;
    range.max = end;
    range.value = state.at;
    range.setAttribute("aria-valuetext", film.frames[state.at].title);
    count.textContent = `${state.at} / ${end}${held() ? " \u2026" : ""}`;
    first.disabled = back.disabled = state.at === 0;
    next.disabled = atEnd() && !held();
    last.disabled = atEnd();
    finish.hidden = !held();
    next.classList.toggle("dtc-go", atEnd() && held());
    const words = atEnd() && held() ? "let the ranks take one step" : "one step on";
    next.setAttribute("aria-label", words);
    next.title = words;
    const reading = film.decoded // a live run may begin before it is known
      ? "A stripe: that rank's contribution. Thick border and tick: every rank once."
      : "The first numbers of each chunk.";
    foot.textContent = `${reading} Dashed: changed in this step. Keys, after a click into the picture: \u2190 \u2192 Home End, space plays.`;
    failure.hidden = !film.failure;
    failure.textContent = film.failure ? "The run failed. " + film.failure : "";
  }

  function receive(message) {
    if (message.kind !== "frames") return;
    const following = atEnd(), more = message.length > film.frames.length;
    Object.assign(film, message.film);
    for (const [number, frame] of message.frames) film.frames[number] = frame;
    film.frames.length = message.length;
    if (following && state.at < film.frames.length - 1) go(message.jump ? film.frames.length - 1 : state.at + 1);
    else if (more) go(film.frames.length - 1); // the ranks went on while an older step was shown
    else { state.at = Math.min(state.at, film.frames.length - 1); show(false); }
  }

  const follow = () => model.get("step") !== state.at && go(model.get("step"));
  model.on("msg:custom", receive);
  model.on("change:step", follow);
  show(false);
  if (film.live) model.send({ kind: "hello" }); // frames that came before this view was there
  return () => { stop(); model.off("msg:custom", receive); model.off("change:step", follow); };
}

export default { render };
