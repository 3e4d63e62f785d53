// What the page knows, as pure functions: nothing here touches the document, the network or the clock.
// Times are milliseconds since 1970 by the server's clock.

// Tokens can be above 2^53: they are taken from the text as they stand.
export const parse = (text) => JSON.parse(text.replace(/"token":\s*(\d+)/g, '"token":"$1"'));

// visible makes every character of another client's text visible, as the command does: control characters,
// direction marks and unassigned ones become \uXXXX.
export const visible = (text) =>
  text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => {
    let out = "";
    for (let i = 0; i < c.length; i++) out += "\\u" + c.charCodeAt(i).toString(16).padStart(4, "0");
    return out;
  });

export const span = (ms) => {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return s + "s";
  const m = Math.floor(s / 60);
  if (m < 60) return m + "m " + (s % 60) + "s";
  const h = Math.floor(m / 60);
  return h < 48 ? h + "h " + (m % 60) + "m" : Math.floor(h / 24) + "d " + (h % 24) + "h";
};

// coarse is span in its largest unit.
export const coarse = (ms) => span(ms).split(" ")[0];

export const number = (n) => n.toLocaleString("en-US");

export const plural = (n, one, many) => number(n) + " " + (n === 1 ? one : many);

const time = (text) => {
  const ms = Date.parse(text);
  return ms > 0 ? ms : NaN; // the zero time of Go: not known
};

export const modeOf = (lock) => {
  const first = lock.holders[0] || lock.waiters[0];
  if (!first) return "–";
  if (!first.shared) return "exclusive";
  if (lock.limit < 2) return "shared";
  return "shared " + lock.holders.reduce((n, h) => n + h.permits, 0) + "/" + lock.limit;
};

// rowOf returns what the list needs of a lock that was read at that time. The row before it remembers the longest
// time that each lease had left: the API does not say what the TTL of a lease is, and after a renewal it
// has all of it left.
export const rowOf = (lock, readAt, before) => {
  const row = {
    name: lock.name, lock, readAt, mode: modeOf(lock), waiting: lock.waiters.length,
    oldest: Infinity, since: Infinity, until: NaN, ttls: new Map(), short: NaN, hay: "",
  };
  let hay = lock.name;
  for (const h of lock.holders) {
    const since = time(h.since), until = time(h.expires_at), left = until - readAt;
    if (since < row.since) row.since = since;
    const known = left > 0;
    const ttl = Math.max((before && before.ttls.get(h.token)) || 0, known ? left : 0);
    row.ttls.set(h.token, ttl);
    if (known && !(until > row.until)) row.until = until;
    if (known && left < ttl / 5 && !(left > row.short)) row.short = left;
    hay += "\n" + h.owner;
  }
  for (const w of lock.waiters) {
    const since = time(w.since);
    if (since < row.oldest) row.oldest = since;
    if (w.owner) hay += "\n" + w.owner;
  }
  row.hay = hay.toLowerCase();
  return row;
};

const byNumber = (a, b) => (a === b ? 0 : a < b ? -1 : 1);
const byName = (a, b) => byNumber(a.name, b.name);
const orders = {
  wait: (a, b) => byNumber(a.oldest, b.oldest) || b.waiting - a.waiting || byNumber(a.since, b.since) || byName(a, b),
  queue: (a, b) => b.waiting - a.waiting || byNumber(a.oldest, b.oldest) || byNumber(a.since, b.since) || byName(a, b),
  age: (a, b) => byNumber(a.since, b.since) || byName(a, b),
  name: byName,
};

const orderOf = (name) => (Object.hasOwn(orders, name) ? name : "wait");

export const words = (filter) => filter.toLowerCase().split(/\s+/).filter(Boolean);

// prefixOf returns the first segment of a name, with what ends it.
export const prefixOf = (name) => {
  const end = name.search(/[/:]/);
  return end < 0 ? "" : name.slice(0, end + 1);
};

const tally = (rows) => {
  const counts = { locks: rows.length, held: 0, waiting: 0 };
  for (const r of rows) {
    counts.held += r.lock.holders.length;
    counts.waiting += r.waiting;
  }
  return counts;
};

// arrange returns the items of the list, in order, and counts of what the filter leaves. An item is a row or, if they
// are grouped, also the head of a group.
export const arrange = (rows, view) => {
  const all = words(view.filter);
  const kept = all.length === 0 ? rows.slice() : rows.filter((r) => all.every((w) => r.hay.includes(w)));
  kept.sort(orders[orderOf(view.sort)]);
  const counts = { ...tally(kept), total: rows.length };
  if (!view.group) return { items: kept, counts };
  const groups = new Map();
  for (const r of kept) {
    const prefix = prefixOf(r.name);
    const members = groups.get(prefix);
    if (members) members.push(r);
    else groups.set(prefix, [r]);
  }
  const items = [];
  for (const [prefix, members] of groups) {
    const open = !view.closed.has(prefix);
    items.push({ group: true, name: prefix, open, ...tally(members) });
    if (open) for (const r of members) items.push(r);
  }
  return { items, counts };
};

export const countsText = (c) =>
  (c.locks === c.total ? number(c.total) : number(c.locks) + " of " + number(c.total)) +
  (c.total === 1 ? " lock, " : " locks, ") + number(c.held) + " held, " + number(c.waiting) + " waiting";

// best keeps the first few of many rows in an order, without sorting all of them.
const best = (rows, most, fits, before) => {
  const kept = [];
  for (const r of rows) {
    if (!fits(r) || (kept.length === most && !before(r, kept[most - 1]))) continue;
    let at = kept.length;
    while (at > 0 && before(r, kept[at - 1])) at--;
    kept.splice(at, 0, r);
    if (kept.length > most) kept.pop();
  }
  return kept;
};

// What is listed as needing attention is longer than this. Less is usual.
const long = { wait: 10000, hold: 3600000, queue: 5 };

// attention returns what an operator should see first: for each list a title, and entries with the name of a lock
// and a value. ends are the events that took a lock from its holder, the latest last.
export const attention = (rows, ends, now, most) => {
  const list = (title, found, value) => ({ title, entries: found.map((r) => ({ name: r.name, value: value(r) })) });
  return [
    list("Waits over " + coarse(long.wait), best(rows, most, (r) => now - r.oldest >= long.wait, (a, b) => a.oldest < b.oldest), (r) => span(now - r.oldest)),
    list("Queues of " + long.queue + " or more", best(rows, most, (r) => r.waiting >= long.queue, (a, b) => a.waiting > b.waiting), (r) => number(r.waiting)),
    list("Holds over " + coarse(long.hold), best(rows, most, (r) => now - r.since >= long.hold, (a, b) => a.since < b.since), (r) => span(now - r.since)),
    list("Short of time", best(rows, most, (r) => r.short >= 0, (a, b) => a.short < b.short), (r) => span(r.short) + " left"),
    list("Breaks and losses", ends.slice(-most).reverse(), (e) => e.kind + " " + coarse(now - time(e.at)) + " ago"),
  ];
};

// nextOf returns the waiters that get the lock when all its holders but those that stay have lost it: as many from
// the front of the queue as fit together.
export const nextOf = (lock, staying) => {
  const next = [];
  let permits = staying.reduce((sum, h) => sum + h.permits, 0);
  for (const w of lock.waiters) {
    const other = staying[0] || next[0];
    permits += w.permits;
    if (other && (!other.shared || !w.shared || (lock.limit > 1 && permits > lock.limit))) break;
    next.push(w);
  }
  return next;
};

const most = { past: 12, holders: 12, waiters: 16 }; // lanes of the timeline
const windows = [1, 2, 5, 10, 20, 40, 60, 120, 240, 480, 1440, 2880, 10080].map((m) => m * 60000);

// timeline returns the lanes of a lock: leases that have ended, as far as the events tell, then holders, then
// waiters. Lanes that begin before the window are cut.
export const timeline = (lock, events, now) => {
  const lanes = [];
  const begun = new Map();
  for (const e of events) {
    if (e.kind === "acquired") begun.set(e.token, time(e.at));
    else if (e.kind === "released" || e.kind === "expired" || e.kind === "broken") {
      const at = time(e.at);
      lanes.push({ kind: "past", label: e.owner, token: e.token, from: begun.has(e.token) ? begun.get(e.token) : NaN, to: at, end: e.kind });
    }
  }
  lanes.splice(0, Math.max(0, lanes.length - most.past));
  for (const h of lock.holders.slice(0, most.holders)) {
    lanes.push({ kind: "holder", label: h.owner, token: h.token, from: time(h.since), to: now, until: time(h.expires_at) });
  }
  for (const w of lock.waiters.slice(0, most.waiters)) {
    lanes.push({ kind: "waiter", label: w.owner, position: w.position, from: time(w.since), to: now });
  }
  // The window holds all waits and all ends; a hold that is much older is cut at its left edge.
  const need = Math.max(0, ...lanes.map((l) => (l.kind === "past" ? now - l.to : l.kind === "waiter" ? now - l.from : 0)).filter(Number.isFinite));
  const holds = Math.max(0, ...lanes.map((l) => now - l.from).filter(Number.isFinite));
  const enough = holds <= 8 * Math.max(need, windows[0]) ? holds : need;
  const wide = windows.find((w) => w >= enough) || enough;
  const from = now - wide;
  for (const l of lanes) {
    l.cut = !(l.from >= from);
    if (l.cut) l.from = from;
  }
  // Behind now is the time that the leases have left, as far as it is in proportion.
  const left = Math.max(0, ...lanes.map((l) => l.until - now).filter(Number.isFinite));
  return { from, now, to: now + Math.min(wide / 5, Math.max(wide / 30, left * 1.1)), lanes, more: Math.max(0, lock.waiters.length - most.waiters) + Math.max(0, lock.holders.length - most.holders) };
};

// What the address bar has: the filter, the order, the groups, and the lock that is open.
export const viewOf = (search) => {
  const q = new URLSearchParams(search);
  const sort = q.get("sort");
  return { filter: q.get("q") || "", sort: orderOf(sort), group: q.get("group") === "prefix", lock: q.get("lock") || "" };
};

export const searchOf = (view) => {
  const q = new URLSearchParams();
  if (view.filter) q.set("q", view.filter);
  if (view.sort !== "wait") q.set("sort", view.sort);
  if (view.group) q.set("group", "prefix");
  if (view.lock) q.set("lock", view.lock);
  return "?" + q;
};
