// The page: reads the locks, follows the events, and draws. An event says that a lock has changed; the page then
// reads that lock again, or all of them when many have changed.
import * as about from "./about.js";
import * as api from "./api.js";
import { byId, setText, show } from "./dom.js";
import { List } from "./list.js";
import { LockView } from "./lock.js";
import { arrange, attention, countsText, number, rowOf, searchOf, span, viewOf, visible, words } from "./state.js";

const pollEvery = 250; // ms, how often the page decides what to read
const someLocks = 8; // read one by one in a poll; more are read with all
const fullEvery = { least: 2000, most: 60000, share: 20 }; // ms, and the part of the time that reading may take
const aboutEvery = 10000;
const mostAttention = 3;
const mostDirty = 5000;
const mostEvents = { recent: 2000, ends: 400, open: 500 };

const page = {
  rows: new Map(), known: false, readAt: 0, // by the server's clock
  view: { ...viewOf(location.search), closed: new Set() },
  counts: null,
  dirty: new Set(), // locks that changed since they were read
  fullAt: -Infinity, took: 0, reading: false, aboutAt: -Infinity, lockAt: -Infinity,
  session: null, signedOut: false, stream: "connecting", failure: null, patience: 0, unready: "",
  recent: [], ends: [], ofOpen: [], // events
};
const opened = Date.now();

const list = new List(byId("grid"), byId("rows"), (item) => (item.group ? toggle(item.name) : openLock(item.name)));
const recentOf = (name) => page.recent.filter((e) => e.name === name);
const eventsOf = (name) => (name === page.view.lock ? page.ofOpen : recentOf(name));
const lockView = new LockView(eventsOf, opened, (name) => {
  page.dirty.add(name);
  poll();
});
list.now = api.now;

// Drawing.

let arranging = 0, arrangeCost = 0, asked = 0;

// changed arranges the list soon: later while it scrolls, and seldom when it takes long.
const changed = () => {
  asked = asked || performance.now();
  if (arranging) return;
  arranging = setTimeout(() => {
    arranging = 0;
    if (list.scrolling() && performance.now() - asked < 2000) changed();
    else arrangeNow();
  }, Math.min(1000, 8 * arrangeCost));
};

const arrangeNow = () => {
  asked = 0;
  const began = performance.now();
  const { items, counts } = arrange([...page.rows.values()], page.view);
  page.counts = counts;
  list.set(items, page.view);
  drawAround();
  arrangeCost = performance.now() - began;
};

const drawAround = () => {
  const { counts } = page;
  if (!counts) return;
  setText(byId("counts"), page.known ? countsText(counts) : counts.total > 0 ? countsText(counts) + ", still reading" : "Reading…");
  about.attention(attention([...page.rows.values()], page.ends, api.now(), mostAttention), page.view);
  const none = counts.locks === 0;
  show(byId("attention"), counts.total + page.ends.length > 0);
  show(byId("grid"), !none);
  show(byId("empty"), none && page.known);
  if (!none) return;
  setText(byId("empty-title"), counts.total > 0 ? "No lock matches the filter" : "No lock is held or has waiters");
  setText(byId("empty-text"), counts.total > 0 ? number(counts.total) + " are held or waited for." : "Locks appear here when they are acquired.");
  show(byId("empty-try"), counts.total === 0);
};

const drawLink = () => {
  const fresh = page.known ? ", read " + span(api.now() - page.readAt) + " ago" : "";
  if (page.failure && page.failure.status === 0) about.link("lost", "Connection lost, trying again", fresh);
  else if (page.stream === "live") about.link("live", "Live", fresh);
  else if (page.stream === "none") about.link("polling", "No live updates", fresh);
  else about.link("connecting", page.stream === "lost" ? "Reconnecting" : "Connecting", fresh);
  if (page.failure) about.complain("The locks could not be read: " + page.failure.message + (page.known ? ". What is shown may be out of date." : "."));
  else about.complain(page.unready);
};

// Reading.

const failed = (e) => {
  if (!(e instanceof api.Problem)) throw e;
  if (e.status === 401) return signedOut();
  page.failure = e;
  page.patience = performance.now() + (e.status === 0 ? 1000 : e.status === 403 ? 60000 : 3000); // each refusal is in the audit log
  drawLink();
};

const worked = (at) => {
  page.readAt = at;
  if (page.failure) page.aboutAt = -Infinity;
  page.failure = null;
  drawLink();
};

const put = (rows, lock, at) => rows.set(lock.name, rowOf(lock, at, page.rows.get(lock.name)));

const readAll = async () => {
  const began = performance.now();
  page.dirty.clear();
  const rows = new Map();
  let after = "", from = 0;
  do {
    const { body, at } = await api.page(after);
    from = from || at;
    for (const lock of body.locks) put(rows, lock, at);
    after = body.next;
    if (!page.known && after) {
      page.rows = rows;
      changed();
    }
  } while (after);
  page.rows = rows;
  page.known = true;
  page.fullAt = performance.now();
  page.took = page.fullAt - began;
  worked(from);
  changed();
};

const readSome = async () => {
  const names = [...page.dirty].slice(0, someLocks);
  let last = 0;
  for (const name of names) page.dirty.delete(name);
  await Promise.all(names.map(async (name) => {
    const { body, at } = await api.lock(name);
    last = at;
    if (body.holders.length + body.waiters.length === 0) page.rows.delete(name);
    else put(page.rows, body, at);
  }));
  worked(last);
  changed();
};

const readAbout = async () => {
  page.aboutAt = performance.now();
  page.unready = "";
  await api.ready().catch((e) => {
    if (e.status !== 503) throw e;
    page.unready = "No lock is granted: " + e.message;
  });
  await readLosses();
  drawLink();
};

// pause is the shortest time between two reads of all locks: longer, the longer one takes.
const pause = () => Math.min(fullEvery.most, Math.max(fullEvery.least, fullEvery.share * page.took));

const poll = async () => {
  const now = performance.now();
  if (page.reading || page.signedOut || document.hidden || now < page.patience) return;
  page.reading = true;
  try {
    if (page.session === null) await begin();
    if (page.view.lock && now - page.lockAt > fullEvery.least) await readLock();
    const many = page.dirty.size > 4 * someLocks;
    if (now - page.fullAt > (many ? Math.min(pause(), 4 * page.took + pollEvery) : pause())) await readAll();
    else if (page.dirty.size > 0) await readSome();
    if (now - page.aboutAt > aboutEvery) await readAbout();
  } catch (e) {
    failed(e);
  } finally {
    page.reading = false;
  }
};

const readLock = async () => {
  page.lockAt = performance.now();
  await lockView.read();
};

// Events.

const keep = (events, e, most) => {
  events.push(e);
  if (events.length > 2 * most) events.splice(0, most);
};

const isLoss = (e) => e.kind === "broken" || e.kind === "expired";

// The losses that the server remembers are reported as events, too: each counts once.
const isKnown = (e) => {
  const same = (k) => isLoss(k) && k.name === e.name && k.token === e.token && k.owner === e.owner;
  return page.ends.some(same) || page.recent.some(same);
};

const onEvent = (e) => {
  const known = isLoss(e) && isKnown(e);
  if (!known) {
    keep(page.recent, e, mostEvents.recent);
    if (isLoss(e)) keep(page.ends, e, mostEvents.ends);
  }
  if (e.name === page.view.lock) {
    if (!known) keep(page.ofOpen, e, mostEvents.open);
    page.lockAt = -Infinity;
  }
  page.dirty.add(e.name);
  if (page.dirty.size > mostDirty) { // a page in the background reads all when it is looked at
    page.dirty.clear();
    page.fullAt = -Infinity;
  }
};

// readLosses adds what the server remembers from before, or has no event stream for.
const readLosses = async () => {
  const { session } = page;
  const losses = await api.losses().catch((e) => {
    if (e.status !== 404 && e.status !== 429) throw e; // 404: an older server
    return [];
  });
  const missed = page.session === session ? losses.filter((e) => !isKnown(e)) : [];
  if (missed.length === 0) return;
  const byTime = (a, b) => Date.parse(a.at) - Date.parse(b.at);
  page.recent = [...missed, ...page.recent].sort(byTime).slice(-2 * mostEvents.recent);
  page.ends = [...missed, ...page.ends].sort(byTime).slice(-2 * mostEvents.ends);
  if (page.view.lock) page.ofOpen = recentOf(page.view.lock);
  changed();
};

let stopListening = () => {};

const listen = () => {
  stopListening();
  stopListening = api.listen(onEvent, (state) => {
    if (state === "live" && page.stream !== "live") page.fullAt = -Infinity; // changes were missed before
    page.stream = state === "refused" ? "none" : state;
    drawLink();
    if (state === "refused") setTimeout(() => page.stream === "none" && !page.signedOut && listen(), 10000);
  });
};

// Sessions.

const begin = async () => {
  page.session = await api.whoAmI();
  about.server(page.session);
  page.aboutAt = -Infinity;
  show(byId("sign-in"), false);
  showView();
  listen();
  if (page.view.lock) await lockView.open(page.view.lock);
};

const signedOut = (why) => {
  if (page.session && !why) why = "The session has ended.";
  Object.assign(page, { session: null, signedOut: true, rows: new Map(), known: false, counts: null, failure: null, unready: "", recent: [], ends: [], ofOpen: [] });
  stopListening();
  lockView.close();
  about.complain("");
  about.link("connecting", "Not signed in", "");
  for (const id of ["overview", "lock", "facts"]) show(byId(id), false);
  show(byId("sign-in"), true);
  signInError(why || "");
  byId("token").focus();
};

const signInError = (text) => {
  setText(byId("sign-in-error"), text);
  show(byId("sign-in-error"), text !== "");
};

const signIn = async () => {
  const field = byId("token");
  try {
    await api.signIn(field.value.trim(), byId("may-break").checked);
    field.value = "";
    await api.whoAmI(); // the browser may have refused the cookie
  } catch (e) {
    const kept = field.value === "" && e.status === 401;
    signInError(kept ? "The browser did not keep the cookie: use HTTPS, or an address of this host itself." : "Not signed in: " + e.message + ".");
    return;
  }
  Object.assign(page, { signedOut: false, fullAt: -Infinity, patience: 0 });
  poll();
};

// Views.

const showView = () => {
  show(byId("overview"), !page.view.lock && !page.signedOut);
  show(byId("lock"), page.view.lock !== "" && !page.signedOut);
  document.title = page.view.lock ? visible(page.view.lock) + " – Holdfast" : "Holdfast";
};

const setSearch = (how) => history[how](null, "", searchOf(page.view));

let scrolled = 0;

const openLock = (name) => {
  scrolled = scrollY;
  page.ofOpen = recentOf(name);
  page.view.lock = name;
  setSearch("pushState");
  enterLock();
};

const enterLock = () => {
  showView();
  scrollTo(0, 0);
  lockView.open(page.view.lock).catch(failed);
  byId("lock-title").focus({ preventScroll: true });
};

const closeLock = () => {
  page.view.lock = "";
  leaveLock();
  setSearch("pushState");
};

const leaveLock = () => {
  lockView.close();
  showView();
  list.redraw();
  scrollTo(0, scrolled);
  byId("grid").focus({ preventScroll: true });
};

const toggle = (prefix) => {
  if (!page.view.closed.delete(prefix)) page.view.closed.add(prefix);
  arrangeNow();
};

// fromAddress shows what the address bar says.
const fromAddress = () => {
  const before = page.session ? page.view.lock : "";
  Object.assign(page.view, viewOf(location.search));
  if (byId("filter").value !== page.view.filter) byId("filter").value = page.view.filter;
  byId("sort").value = page.view.sort;
  byId("group").checked = page.view.group;
  drawSort();
  if (page.session && page.view.lock && page.view.lock !== before) {
    page.ofOpen = recentOf(page.view.lock);
    enterLock();
  } else if (before && !page.view.lock) leaveLock();
  arrangeNow();
};

const drawSort = () => {
  for (const e of document.querySelectorAll("[data-sort]")) {
    const on = e.dataset.sort === page.view.sort;
    e.setAttribute("aria-sort", !on ? "none" : on && page.view.sort === "queue" ? "descending" : "ascending");
  }
};

let saying = 0;

const changeView = (change) => {
  Object.assign(page.view, change);
  setSearch("replaceState");
  byId("sort").value = page.view.sort;
  drawSort();
  arrangeNow();
  clearTimeout(saying); // a reader hears the counts when the typing has ended
  saying = setTimeout(() => setText(byId("counts-said"), words(page.view.filter).length > 0 && page.counts ? countsText(page.counts) : ""), 800);
};

byId("filter").addEventListener("input", (e) => changeView({ filter: e.target.value }));
byId("sort").addEventListener("change", (e) => changeView({ sort: e.target.value }));
byId("group").addEventListener("change", (e) => changeView({ group: e.target.checked }));
for (const e of document.querySelectorAll("[data-sort]")) e.addEventListener("click", () => changeView({ sort: e.dataset.sort }));
byId("back").addEventListener("click", (e) => {
  if (e.ctrlKey || e.metaKey || e.shiftKey) return;
  e.preventDefault();
  closeLock();
});
byId("attention-lists").addEventListener("click", (e) => {
  const link = e.target.closest("[data-lock]");
  if (!link || e.ctrlKey || e.metaKey || e.shiftKey) return;
  e.preventDefault();
  openLock(link.dataset.lock);
});
byId("sign-in-form").addEventListener("submit", (e) => {
  e.preventDefault();
  signIn();
});
byId("sign-out").addEventListener("click", () => api.signOut().then(() => signedOut("Signed out."), failed));
document.addEventListener("keydown", (e) => {
  if (e.altKey || e.ctrlKey || e.metaKey || byId("break").open) return;
  const typing = e.target.matches("input:not([type=checkbox]), select, textarea");
  if (e.key === "/" && !typing && !byId("overview").hidden) {
    e.preventDefault();
    byId("filter").focus();
  } else if (e.key === "Escape" && page.view.lock) closeLock();
  else if (e.key === "Escape" && e.target === byId("filter")) {
    if (page.view.filter) {
      e.target.value = "";
      changeView({ filter: "" });
    }
    byId("grid").focus({ preventScroll: true });
  } else if (e.key === "ArrowDown" && e.target === byId("filter")) {
    e.preventDefault();
    byId("grid").focus({ preventScroll: true });
  }
});
addEventListener("popstate", fromAddress);
document.addEventListener("visibilitychange", poll);
setText(byId("origin"), location.origin);
fromAddress();
setInterval(poll, pollEvery);
setInterval(() => {
  if (page.signedOut) return;
  drawLink();
  if (page.view.lock) lockView.tick();
  else if (!list.scrolling()) {
    list.redraw();
    drawAround();
  }
}, 1000);
poll();
