// The view of one lock, and the dialog that breaks it.
import * as api from "./api.js";
import { byId, element, setText, show, theirs } from "./dom.js";
import { modeOf, nextOf, number, plural, span, timeline, visible } from "./state.js";
import * as drawing from "./timeline.js";

const mostRows = 20; // of a table, until the user asks for all
const mostEvents = 200;
const mostHolders = 500;

const stamp = (ms) => new Date(ms).toTimeString().slice(0, 8);
const cell = (content, className) => element("td", className || "", content);
const owner = (x) => (x.owner ? theirs("span", "", x.owner) : element("span", "quiet", "no owner"));
const age = (text) => {
  const e = element("span", "", "");
  e.dataset.since = Date.parse(text);
  return e;
};
const leftOf = (h) => {
  const e = element("span", "", "");
  e.dataset.until = Date.parse(h.expires_at);
  return e;
};
const modeWord = (x, limit) => (!x.shared ? "exclusive" : limit > 1 ? plural(x.permits, "permit", "permits") : "shared");

const table = (head, rows) => {
  const t = element("table", "");
  const line = element("tr", "");
  for (const h of head) {
    const th = element("th", h === "Token" || h === "Since" || h === "Left" || h === "Place" ? "num" : "", h);
    th.scope = "col";
    line.append(th);
  }
  t.append(element("thead", "", line), element("tbody", "", ...rows));
  return t;
};

const holderRow = (h, limit, readAt, ...more) =>
  element("tr", "", cell(modeWord(h, limit)), cell(owner(h)), cell(h.token, "num token"), cell(age(h.since), "num"),
    cell(Date.parse(h.expires_at) > readAt ? leftOf(h) : "–", "num"),
    cell(h.lease ? theirs("span", "token", h.lease) : element("span", "quiet", "not shown")), cell(h.note ? theirs("span", "note", h.note) : "–"), ...more);

const waiterRow = (w, limit) =>
  element("tr", "", cell(String(w.position), "num"), cell(modeWord(w, limit)), cell(owner(w)), cell(age(w.since), "num"), cell(w.note ? theirs("span", "note", w.note) : "–"));

const eventRow = (e) =>
  element("tr", e.kind, cell(stamp(Date.parse(e.at))), cell(e.kind), cell(owner(e)), cell(e.token === "0" ? "–" : e.token, "num token"), cell(e.reason ? theirs("span", "note", e.reason) : "–"));

const party = (x) => element("li", "", owner(x), x.token ? element("span", "quiet", ", token " + x.token) : age(x.since));

export class LockView {
  // eventsOf returns the events of a lock since the page was opened and the losses from before, the oldest first.
  constructor(eventsOf, opened, onBroken) {
    Object.assign(this, { eventsOf, opened, onBroken, name: "", lock: null, readAt: 0, drawn: "", all: false, asked: "", lease: "" });
    byId("queue-all").addEventListener("click", () => {
      this.all = !this.all;
      this.drawn = "";
      this.draw();
    });
    byId("break-open").addEventListener("click", () => this.ask(""));
    byId("break-cancel").addEventListener("click", () => byId("break").close());
    byId("break-form").addEventListener("submit", (e) => {
      e.preventDefault();
      this.breakIt();
    });
    new ResizeObserver(() => this.drawTimeline()).observe(byId("timeline"));
  }

  // open shows a lock, empty until it was read.
  async open(name) {
    Object.assign(this, { name, lock: null, drawn: "", all: false });
    setText(byId("lock-title"), visible(name));
    setText(byId("lock-summary"), "…");
    show(byId("lock-done"), false);
    show(byId("break-open"), false);
    for (const id of ["timeline", "holders", "queue", "events"]) byId(id).replaceChildren();
    await this.read();
  }

  close() {
    this.name = "";
    byId("break").close();
  }

  async read() {
    const name = this.name;
    if (!name) return;
    const { body, at } = await api.lock(name);
    if (name !== this.name) return;
    this.lock = body;
    this.readAt = at;
    this.draw();
  }

  draw() {
    const l = this.lock;
    if (!l || !this.name) return;
    const events = this.eventsOf(this.name).slice(-mostEvents);
    const key = JSON.stringify([l, events.length, events.at(-1)]);
    if (key !== this.drawn) {
      this.drawn = key;
      this.fill(l, events);
    }
    this.tick();
  }

  fill(l, events) {
    const held = l.holders.length, queue = l.waiters.length;
    setText(byId("lock-summary"), held + queue === 0 ? "Free." : modeOf(l) + ", " + plural(held, "holder", "holders") + ", " + number(queue) + " waiting");
    show(byId("break-open"), l.may_break === true && held > 0);
    const single = l.may_break === true && held > 1; // each holder can be broken by itself
    const focused = document.activeElement.dataset.lease;
    byId("holders").replaceChildren(held === 0 ? element("p", "quiet", "None.")
      : table(["Mode", "Owner", "Token", "Since", "Left", "Lease", "Note", ...(single ? [""] : [])],
        l.holders.slice(0, mostHolders).map((h) => holderRow(h, l.limit, this.readAt, ...(single ? [cell(this.breakButton(h))] : [])))));
    for (const e of document.querySelectorAll("#holders button")) if (e.dataset.lease === focused) e.focus();
    if (held > mostHolders) byId("holders").append(element("p", "quiet", "and " + number(held - mostHolders) + " more"));
    const shown = this.all ? l.waiters : l.waiters.slice(0, mostRows);
    byId("queue").replaceChildren(queue === 0 ? element("p", "quiet", "Empty.") : table(["Place", "Mode", "Owner", "Since", "Note"], shown.map((w) => waiterRow(w, l.limit))));
    show(byId("queue-all"), queue > mostRows);
    setText(byId("queue-all"), this.all ? "Show the first " + mostRows : "Show all " + number(queue));
    setText(byId("events-since"), "Since " + stamp(this.opened) + ", when this page was opened, and the earlier losses that the server remembers.");
    byId("events").replaceChildren(events.length === 0 ? element("p", "quiet", "None yet.")
      : table(["Time", "Event", "Owner", "Token", "Reason"], events.toReversed().map(eventRow)));
    if (byId("break").open) this.compare();
  }

  // tick updates what changes with the time.
  tick() {
    if (!this.name || !this.lock) return;
    const now = api.now();
    for (const e of document.querySelectorAll("#lock [data-since], #break [data-since]")) setText(e, span(now - e.dataset.since));
    for (const e of document.querySelectorAll("#lock [data-until]")) setText(e, e.dataset.until > now ? span(e.dataset.until - now) : "due");
    this.drawTimeline();
  }

  drawTimeline() {
    if (this.name && this.lock) drawing.draw(byId("timeline"), timeline(this.lock, this.eventsOf(this.name), api.now()));
  }

  breakButton(h) {
    const e = element("button", "plain", "Break…");
    e.dataset.lease = h.lease;
    e.setAttribute("aria-label", "Break the lease of " + (h.owner ? visible(h.owner) : "no owner") + ", token " + h.token);
    e.addEventListener("click", () => this.ask(h.lease));
    return e;
  }

  // losers are the holders that the dialog is about: the one with this.lease, or all.
  losers() {
    return this.lock.holders.filter((h) => !this.lease || h.lease === this.lease);
  }

  // ask opens the dialog with those who would lose the lock: one lease, or all if it is empty.
  ask(lease) {
    Object.assign(this, { asked: "", lease });
    setText(byId("break-do"), lease ? "Break this lease" : "Break the lock");
    byId("reason").value = "";
    show(byId("break-error"), false);
    this.compare();
    byId("break").showModal();
    byId("reason").focus();
  }

  // compare fills the dialog, and reports whether the holders are those that it showed before.
  compare() {
    const losers = this.losers();
    const tokens = losers.map((h) => h.token).join();
    const same = this.asked === tokens;
    show(byId("break-changed"), this.asked !== "" && !same);
    if (this.asked !== "" && !same) setText(byId("break-changed"), "The holders have changed. Look again.");
    this.asked = tokens || "none";
    setText(byId("break-name"), visible(this.name));
    const loses = losers.slice(0, 8).map(party), others = losers.length - 8;
    if (others > 0) loses.push(element("li", "quiet", "and " + number(others) + " more"));
    byId("break-loses").replaceChildren(...(loses.length ? loses : [element("li", "quiet", this.lease ? "nobody: the lease has ended" : "nobody: the lock is free")]));
    const next = nextOf(this.lock, this.lock.holders.filter((h) => !losers.includes(h))).slice(0, 8).map(party);
    byId("break-next").replaceChildren(...(next.length ? next : [element("li", "quiet", "nobody waits")]));
    byId("break-do").disabled = tokens === "";
    this.tick();
    return same;
  }

  // breakIt reads the lock again first: nobody loses it who was not shown.
  async breakIt() {
    const reason = byId("reason").value.trim();
    const failed = byId("break-error");
    if (!reason) {
      setText(failed, "Give a reason, for the audit log and the events.");
      show(failed, true);
      return;
    }
    show(failed, false);
    byId("break-do").disabled = true;
    try {
      const before = this.asked;
      await this.read();
      if ((this.losers().map((h) => h.token).join() || "none") !== before) return;
      const done = await api.breakLock(this.name, this.lease, reason);
      byId("break").close();
      this.tell(done);
      this.onBroken(this.name);
    } catch (e) {
      setText(failed, e.body.may_hold || e.status === 0 ? "It is not known whether the lock was broken: " + e.message + ". Look at the holders before you try again." : e.message);
      show(failed, true);
    } finally {
      byId("break-do").disabled = this.losers().length === 0;
    }
  }

  tell(done) {
    const who = done.broken.map((h) => (h.owner ? visible(h.owner) : "no owner") + ", token " + h.token);
    setText(byId("lock-done"), done.broken.length === 0 ? "Nobody held the lock any more: nothing was broken."
      : "Broken. Lost it: " + who.slice(0, 8).join("; ") + (who.length > 8 ? " and " + (who.length - 8) + " more" : "") + ". Later tokens are above " + done.broken.at(-1).token + ".");
    show(byId("lock-done"), true);
    byId("lock-title").focus();
  }
}
