// What all views share: the palette, SVG text, buttons, and the frame around a view. Comes before each view's own file.

// The namespace of SVG, asked from the browser: spelt out it would look like a reference to the network.
const NS = Object.assign(document.createElement("div"), { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;

// Okabe and Ito's colours, which stay apart for colour-blind readers; every use adds a number or a border.
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"];
const INKS = ["#fff", "#000", "#fff", "#000", "#000", "#fff", "#000", "#000"];
const colour = (rank) => COLOURS[rank % COLOURS.length];
const ink = (rank) => INKS[rank % INKS.length];

const ICONS = {
  first: "M6 5v14M19 5l-9 7 9 7z",
  back: "M17 5l-9 7 9 7z",
  play: "M7 4l13 8-13 8z",
  pause: "M7 5h3v14H7zM14 5h3v14h-3z",
  next: "M7 5l9 7-9 7z",
  last: "M18 5v14M5 5l9 7-9 7z",
  numbers: "M10 4L8 20M16 4l-2 16M4 9h16M4 15h16",
  large: "M3 19L9 5l6 14M5 14h8M17 12v7M14 15.500h6",
  release: "M5 5v14M9 5l7 7-7 7z M20 5v14",
  in: "M4 12h16M12 4v16",
  out: "M4 12h16",
  all: "M4 8V4h4M16 4h4v4M20 16v4h-4M8 20H4v-4",
};

const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const esc = (text) => String(text).replace(/[&<>"]/g, (c) => escapes[c]);

/** Markup of one element; attributes that are null or false are left out. */
function tag(name, attributes, ...children) {
  let text = "<" + name;
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false && value !== undefined) text += ` ${key}="${esc(value)}"`;
  }
  return text + ">" + children.join("") + `</${name}>`;
}

function node(parent, name, attributes = {}, html = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.innerHTML = html;
  parent.append(made);
  return made;
}

const iconMarkup = (name) =>
  tag("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "dtc-icon" }, tag("path", { d: ICONS[name] }));

function button(parent, name, icon, act) {
  const made = node(parent, "button", { type: "button", "aria-label": name, title: name }, iconMarkup(icon));
  made.addEventListener("click", act);
  return made;
}

/** A button that stays down: `act` hears whether it is. */
function toggle(parent, name, icon, act) {
  const made = button(parent, name, icon, () => {
    const down = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", down);
    act(down);
  });
  made.setAttribute("aria-pressed", "false");
  return made;
}

/** The frame around a view. Keys that land in it stay in it: JupyterLab would take the arrows for its cells. */
function frameOf(el, name, keys) {
  const root = node(el, "section", { class: "dtc", tabindex: "0", role: "group", "aria-label": name });
  root.addEventListener("keydown", (event) => {
    const notebooks = event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape" || (event.shiftKey && event.key === "Enter");
    if (notebooks) return;
    event.stopPropagation();
    const onButton = event.target.closest("button") && (event.key === " " || event.key === "Enter");
    if (!onButton && keys(event)) event.preventDefault();
  });
  return root;
}

const largeType = (bar, root, after = () => {}) =>
  toggle(bar, "large type", "large", (down) => {
    root.classList.toggle("dtc-large", down);
    after();
  });

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function size(count) {
  if (count < 10000) return count.toLocaleString("en") + " B";
  const power = Math.min(Math.floor(Math.log10(count) / 3), 3);
  return +(count / 1000 ** power).toPrecision(4) + " " + ["kB", "MB", "GB"][power - 1];
}
