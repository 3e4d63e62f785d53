"use strict";
// The page keeps no state of its own: an event says that something changed, and the page
// then reads the list again, at most a few times a second. What clients chose (names,
// owners, notes) goes into the page as text only.

const byId = (id) => document.getElementById(id);
const page = {
  rows: byId("rows"), table: byId("table"), empty: byId("empty"), filter: byId("filter"),
  counts: byId("counts"), link: byId("link"), alert: byId("alert"),
};
const mostLocks = 2000; // on the page
const mostWaiters = 20; // of one lock
const mostHolders = 20; // of one lock
const refreshEvery = 250; // ms, the shortest time between two reads after events
const refreshAnyway = 10000; // ms, for changes without an event (notes, renewals)

let locks = [];
let truncated = false;
let skew = 0; // the server's clock minus ours, ms
let known = false; // a list was read
let timer = null;
let reading = false;
let again = false;

const element = (tag, className, text) => {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
};

const span = (ms) => {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return s + " s";
  const m = Math.floor(s / 60);
  if (m < 60) return m + " m " + (s % 60) + " s";
  const h = Math.floor(m / 60);
  return h < 48 ? h + " h " + (m % 60) + " m" : Math.floor(h / 24) + " d " + (h % 24) + " h";
};

const now = () => Date.now() + skew;

// Tokens can be above 2^53: they are taken from the text as they stand.
const parse = (text) => JSON.parse(text.replace(/"token":\s*(\d+)/g, '"token":"$1"'));

// The style sheet cuts long texts; the tooltip has the whole text.
const text = (tag, className, value) => {
  const e = element(tag, className, value);
  e.title = value;
  return e;
};

const who = (x, limit) => {
  const e = element("div", "who");
  e.append(x.owner ? text("span", "owner", x.owner) : element("span", "nobody", "no owner"));
  if (x.shared) e.append(element("span", "tag", limit > 1 ? x.permits + " of " + limit : "shared"));
  if (x.note) e.append(text("span", "note", x.note));
  return e;
};

const cell = (className, ...content) => {
  const td = element("td", className);
  td.append(...content);
  return td;
};

const leftOf = (h) => {
  const ms = Date.parse(h.expires_at) - now();
  const e = element("span", ms <= 0 ? "over" : ms < 5000 ? "soon" : "", ms <= 0 ? "expired" : span(ms));
  e.dataset.until = h.expires_at;
  return e;
};

const heldFor = (h) => {
  const e = element("span", "", span(now() - Date.parse(h.since)));
  e.dataset.since = h.since;
  return e;
};

const waiting = (lock) => {
  if (lock.waiters.length === 0) return cell("", element("span", "nobody", "none"));
  const list = element("ol");
  for (const w of lock.waiters.slice(0, mostWaiters)) {
    const item = element("li");
    const one = who(w, lock.limit);
    const age = element("span", "tag", span(now() - Date.parse(w.since)));
    age.dataset.since = w.since;
    one.querySelector(".owner, .nobody").after(age);
    item.append(one);
    list.append(item);
  }
  if (lock.waiters.length > mostWaiters) {
    list.append(element("li", "more", "and " + (lock.waiters.length - mostWaiters) + " more"));
  }
  return cell("", list);
};

const holder = (h, limit) => [
  cell("", who(h, limit)),
  cell("num", element("span", "", h.token)),
  cell("num", heldFor(h)),
  cell("num", leftOf(h)),
];

// A lock is one row for each holder; its name and its queue span them all.
const rows = (lock) => {
  const lines = lock.holders.slice(0, mostHolders).map((h) => holder(h, lock.limit));
  if (lines.length === 0) lines.push([cell("", element("span", "nobody", "none")), cell(), cell(), cell()]);
  if (lock.holders.length > mostHolders) {
    lines.push([cell("nobody", "and " + (lock.holders.length - mostHolders) + " more"), cell(), cell(), cell()]);
  }
  const name = cell("", text("span", "name", lock.name));
  const queue = waiting(lock);
  name.rowSpan = queue.rowSpan = lines.length;
  return lines.map((cells, i) => {
    const tr = element("tr", i === 0 ? "first" : "");
    tr.append(...(i === 0 ? [name, ...cells, queue] : cells));
    return tr;
  });
};

const matches = (lock, words) => {
  const text = [lock.name, ...lock.holders.map((h) => h.owner), ...lock.waiters.map((w) => w.owner)].join("\n").toLowerCase();
  return words.every((w) => text.includes(w));
};

const draw = () => {
  const words = page.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = locks.filter((l) => matches(l, words));
  page.rows.replaceChildren(...shown.flatMap(rows));
  page.table.hidden = shown.length === 0;
  page.empty.hidden = !known || shown.length > 0;
  const filtered = locks.length > 0;
  byId("empty-title").textContent = filtered ? "No lock matches the filter" : "No lock is held or has waiters";
  byId("empty-text").textContent = filtered
    ? locks.length + (locks.length === 1 ? " lock is" : " locks are") + " held or waited for, and none matches."
    : "Locks appear here when they are acquired.";
  byId("empty-try").hidden = filtered;
  const held = locks.filter((l) => l.holders.length > 0).length;
  const queued = locks.reduce((n, l) => n + l.waiters.length, 0);
  page.counts.textContent = known ? held + " held, " + queued + " waiting" + (truncated ? " (the first " + mostLocks + " locks)" : "") : "";
};

// Times are updated between two reads of the list.
const tick = () => {
  for (const e of document.querySelectorAll("[data-until]")) {
    const ms = Date.parse(e.dataset.until) - now();
    e.textContent = ms <= 0 ? "expired" : span(ms);
    e.className = ms <= 0 ? "over" : ms < 5000 ? "soon" : "";
  }
  for (const e of document.querySelectorAll("[data-since]")) e.textContent = span(now() - Date.parse(e.dataset.since));
};

const link = (state, text) => {
  page.link.dataset.state = state;
  page.link.textContent = text;
  document.body.dataset.link = state;
};

const complain = (text) => {
  page.alert.textContent = text;
  page.alert.hidden = text === "";
};

const read = async () => {
  if (reading) {
    again = true;
    return;
  }
  reading = true;
  try {
    const all = [];
    let after = "";
    truncated = false;
    do {
      const answer = await fetch("/v1/locks?limit=1000" + (after ? "&after=" + encodeURIComponent(after) : ""), { cache: "no-store" });
      const body = parse(await answer.text());
      if (!answer.ok) throw new Error(body.detail || answer.statusText);
      const clock = Date.parse(answer.headers.get("Holdfast-Time"));
      if (clock) skew = clock - Date.now();
      all.push(...body.locks);
      after = body.next;
      truncated = after !== "" && all.length >= mostLocks;
    } while (after !== "" && !truncated);
    locks = all;
    known = true;
    complain("");
    draw();
  } catch (e) {
    complain("The list could not be read: " + e.message + (known ? ". What is shown may be out of date." : "."));
  } finally {
    reading = false;
    if (again) {
      again = false;
      soon();
    }
  }
};

const soon = () => {
  if (timer !== null) return;
  timer = setTimeout(() => {
    timer = null;
    read();
  }, refreshEvery);
};

const listen = () => {
  const events = new EventSource("/v1/events");
  events.addEventListener("watching", () => {
    link("live", "Live");
    read();
  });
  for (const kind of ["acquired", "released", "expired", "broken", "waiting", "left"]) events.addEventListener(kind, soon);
  events.addEventListener("error", (e) => {
    if (e.data) {
      link("lost", "The server ended the stream");
      return; // the browser reconnects by itself
    }
    const refused = events.readyState === EventSource.CLOSED;
    link("lost", refused ? "No live updates" : "Disconnected, trying again…");
    read();
    if (refused) {
      setTimeout(listen, 5000);
    }
  });
};

byId("origin").textContent = location.origin;
page.filter.addEventListener("input", draw);
setInterval(tick, 500);
setInterval(read, refreshAnyway);
read();
listen();
