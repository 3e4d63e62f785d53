// The timeline of one lock, as SVG: who held it, who holds it, and who waits.
import { element } from "./dom.js";
import { plural, span, visible } from "./state.js";

const bar = 10, axis = 26, side = 8;

const svg = (tag, attributes, ...content) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...content);
  return e;
};

// ticks are at a round distance of each other, at most as many as fit.
const steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800].map((s) => s * 1000);

const ticks = (t, fit) => {
  const step = steps.find((s) => (t.now - t.from) / s <= fit) || steps[steps.length - 1];
  const out = [];
  for (let ago = step; ago <= t.now - t.from; ago += step) out.push(ago);
  return out;
};

// round is span without the unit that is 0.
const round = (ms) => span(ms).replace(/ 0[smh]$/, "");

const endings = { released: "released", expired: "lost: expired", broken: "broken" };

const words = (l, now) => {
  const who = l.label ? visible(l.label) : "no owner";
  if (l.kind === "waiter") return l.position + ". " + who + " waits " + span(now - l.from) + (l.cut ? " or more" : "");
  if (l.kind === "past") return who + ", token " + l.token + ", " + endings[l.end] + " " + span(now - l.to) + " ago";
  return who + ", token " + l.token + ", holds";
};

const drawLane = (l, y, lane, t, at, width) => {
  const parts = [];
  const middle = y + lane - 11;
  const x = at(l.from), end = Math.max(x + 2, at(l.to));
  parts.push(svg("title", {}, words(l, t.now)));
  parts.push(svg("rect", { x: 0, y, width, height: lane, class: "hit" }));
  if (l.kind === "waiter") {
    parts.push(svg("line", { x1: x, x2: end, y1: middle, y2: middle, class: "wait" }));
    if (!l.cut) parts.push(svg("circle", { cx: x, cy: middle, r: 3, class: "dot" }));
  } else {
    parts.push(svg("rect", { x, y: middle - bar / 2, width: end - x, height: bar, class: "hold" }));
    if (l.until > t.now) {
      parts.push(svg("line", { x1: end, x2: Math.min(width - side, at(l.until)), y1: middle, y2: middle, class: "left" }));
    }
    if (l.end) parts.push(svg("line", { x1: end, x2: end, y1: middle - 8, y2: middle + 8, class: "end" }));
  }
  if (l.cut) parts.push(svg("path", { d: `M${x + 6} ${middle - 4} l-5 4 l5 4`, class: "cut" }));
  return svg("g", { class: l.kind + (l.end ? " " + l.end : "") }, ...parts);
};

// The labels are HTML beside the drawing: long ones are cut by the style sheet, and text keeps its size.
const drawLabels = (t) => {
  const list = element("ul", "lanes");
  for (const l of t.lanes) {
    const who = l.label ? visible(l.label) : "no owner";
    const tag = l.kind === "waiter" ? "waits, " + l.position : l.kind === "holder" ? "holds" : endings[l.end];
    const item = element("li", l.kind, element("span", "theirs", who), element("span", "quiet", tag));
    item.title = words(l, t.now);
    list.append(item);
  }
  return list;
};

// draw replaces the content of the box.
export const draw = (box, t) => {
  if (t.lanes.length === 0) {
    box.replaceChildren(element("p", "quiet", "Nobody holds this lock or waits for it."));
    return;
  }
  const labels = drawLabels(t);
  const picture = element("div", "picture");
  box.replaceChildren(labels, picture);
  const lane = parseFloat(getComputedStyle(box).getPropertyValue("--lane"));
  const width = Math.max(160, picture.clientWidth), height = t.lanes.length * lane + axis;
  const at = (time) => side + ((Math.min(time, t.to) - t.from) / (t.to - t.from)) * (width - 2 * side);
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(t) });
  const bottom = t.lanes.length * lane;
  for (const ago of ticks(t, Math.max(2, width / 90))) {
    const x = at(t.now - ago);
    drawing.append(svg("line", { x1: x, x2: x, y1: 0, y2: bottom + 4, class: "tick" }));
    drawing.append(svg("text", { x, y: bottom + 18, class: "when", "text-anchor": x < 30 ? "start" : "middle" }, round(ago)));
  }
  drawing.append(svg("line", { x1: at(t.now), x2: at(t.now), y1: 0, y2: bottom + 4, class: "now" }));
  drawing.append(svg("text", { x: at(t.now), y: bottom + 18, class: "when", "text-anchor": "middle" }, "now"));
  t.lanes.forEach((l, i) => drawing.append(drawLane(l, i * lane, lane, t, at, width)));
  picture.append(drawing);
  if (t.more > 0) box.append(element("p", "quiet more", "and " + plural(t.more, "more", "more") + ", in the tables below"));
};

const summary = (t) => {
  const count = (kind) => t.lanes.filter((l) => l.kind === kind).length;
  return "Timeline of " + span(t.now - t.from) + ": " + plural(count("past"), "lease that ended", "leases that ended") + ", " +
    plural(count("holder"), "holder", "holders") + ", " + plural(count("waiter"), "waiter", "waiters") + ". The tables below have the same.";
};
