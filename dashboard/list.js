// The list of locks. It draws only the rows that are on the screen, and uses their elements again while it scrolls.
import { byId, element, setText } from "./dom.js";
import { number, plural, prefixOf, searchOf, span, visible } from "./state.js";

const spare = 6; // rows drawn above and below the screen
const columns = ["name", "mode", "owner", "token num", "since num", "left num", "waiting num", "wait num"];

const newRow = (slot) => {
  const row = element("div", "row");
  row.id = "row-" + slot;
  row.setAttribute("role", "row");
  const cells = columns.map((c) => {
    const cell = element("div", c);
    cell.setAttribute("role", "gridcell");
    row.append(cell);
    return cell;
  });
  const link = element("a", "theirs");
  link.tabIndex = -1;
  cells[0].append(link);
  const owner = element("span", "theirs");
  const others = element("span", "others");
  cells[2].append(owner, others);
  return { row, cells, link, owner, others, item: null, top: -1 };
};

const since = (ms, now) => (Number.isFinite(ms) ? span(now - ms) : "–");

// leftOf returns the time that a row's leases have left. When it has passed since the row was read, the lease was
// probably renewed: that is known with the next read.
const leftOf = (r, now) => {
  if (!(r.until > r.readAt)) return "–";
  return r.until > now ? span(r.until - now) : "due";
};

const fillLock = (d, r, now, view) => {
  const held = r.lock.holders;
  if (d.item !== r) {
    const shown = view.group ? r.name.slice(prefixOf(r.name).length) : r.name;
    setText(d.link, visible(shown) || visible(r.name));
    d.link.title = visible(r.name);
    d.link.href = searchOf({ ...view, lock: r.name });
    setText(d.cells[1], r.mode);
    const owner = held.length === 0 ? "nobody" : held[0].owner ? visible(held[0].owner) : "no owner";
    setText(d.owner, owner);
    d.owner.title = owner;
    d.cells[2].classList.toggle("quiet", held.length === 0 || !held[0].owner);
    setText(d.others, held.length > 1 ? " and " + number(held.length - 1) + " more" : "");
    setText(d.cells[3], held.length > 0 ? held[0].token : "–");
    setText(d.cells[6], r.waiting > 0 ? number(r.waiting) : "–");
    d.row.className = "row";
    d.row.removeAttribute("aria-expanded");
  }
  setText(d.cells[4], since(r.since, now));
  setText(d.cells[5], leftOf(r, now));
  setText(d.cells[7], since(r.oldest, now));
  d.row.classList.toggle("short", r.short >= 0);
};

const fillGroup = (d, g) => {
  if (d.item === g) return;
  setText(d.link, (g.open ? "▾ " : "▸ ") + (visible(g.name) || "no prefix"));
  d.link.title = "";
  d.link.removeAttribute("href");
  setText(d.owner, plural(g.locks, "lock", "locks") + ", " + number(g.held) + " held, " + number(g.waiting) + " waiting");
  d.owner.title = "";
  setText(d.others, "");
  for (const i of [1, 3, 4, 5, 6, 7]) setText(d.cells[i], "");
  d.cells[2].classList.remove("quiet");
  d.row.className = "row group";
  d.row.setAttribute("aria-expanded", g.open);
};

export class List {
  // onOpen is called with the item that the user opens, a lock or a group.
  constructor(grid, rows, onOpen) {
    Object.assign(this, { grid, rows, onOpen, items: [], view: null, now: Date.now, pool: [], height: 0, selected: "", frame: 0, moved: 0 });
    const later = () => this.redraw();
    addEventListener("scroll", () => { this.moved = performance.now(); later(); }, { passive: true });
    new ResizeObserver(() => { this.height = 0; later(); }).observe(grid);
    grid.addEventListener("keydown", (e) => this.key(e));
    rows.addEventListener("click", (e) => this.click(e));
    grid.addEventListener("focus", () => this.selected || this.select(this.firstShown()));
  }

  // set replaces the items.
  set(items, view) {
    const before = this.index();
    this.items = items;
    if (this.view === null || searchOf(view) !== searchOf(this.view)) for (const d of this.pool) d.item = null; // names and links differ
    this.view = { ...view };
    if (this.selected && this.index() < 0 && before >= 0) this.selected = items.length ? this.keyOf(items[Math.min(before, items.length - 1)]) : "";
    this.grid.setAttribute("aria-rowcount", items.length + 1);
    this.redraw();
  }

  keyOf(item) { return (item.group ? "group " : "lock ") + item.name; }

  index() { return this.selected ? this.items.findIndex((x) => this.keyOf(x) === this.selected) : -1; }

  // scrolling reports whether the list has been scrolled very recently: work that can wait waits then.
  scrolling() { return performance.now() - this.moved < 150; }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  firstShown() {
    return Math.max(0, Math.ceil((this.pinned() - this.rows.getBoundingClientRect().top) / (this.height || 1)));
  }

  // pinned is the height of what stays at the top of the screen.
  pinned() { return this.grid.querySelector(".head").getBoundingClientRect().bottom; }

  // floor is where the part of the screen ends that nothing covers.
  floor() { return byId("alert").hidden ? innerHeight : byId("alert").getBoundingClientRect().top; }

  draw() {
    if (this.view === null || this.grid.offsetParent === null) return;
    if (!this.height) this.height = parseFloat(getComputedStyle(this.grid).getPropertyValue("--row"));
    const top = this.rows.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / this.height) - spare);
    const last = Math.min(this.items.length, Math.ceil((innerHeight - top) / this.height) + spare);
    const whole = this.items.length * this.height + "px";
    if (this.rows.style.height !== whole) this.rows.style.height = whole;
    const need = Math.max(0, last - first);
    while (this.pool.length < need) {
      const d = newRow(this.pool.length);
      this.pool.push(d);
      this.rows.append(d.row);
    }
    while (this.pool.length > need + 4 * spare) this.pool.pop().row.remove();
    const now = this.now(), size = this.pool.length;
    let active = "";
    const used = new Set();
    for (let i = first; i < last; i++) {
      const d = this.pool[i % size];
      used.add(d);
      const item = this.items[i];
      if (item.group) fillGroup(d, item);
      else fillLock(d, item, now, this.view);
      d.item = item;
      this.place(d, i);
      const chosen = this.keyOf(item) === this.selected;
      if (chosen) active = d.row.id;
      d.row.classList.toggle("chosen", chosen);
      d.row.setAttribute("aria-selected", chosen);
    }
    for (const d of this.pool) d.row.hidden = !used.has(d);
    if (active) this.grid.setAttribute("aria-activedescendant", active);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  place(d, i) {
    const top = i * this.height;
    if (d.top === top) return;
    d.top = top;
    d.row.style.transform = "translateY(" + top + "px)";
    d.row.setAttribute("aria-rowindex", i + 2);
  }

  // select chooses the item at an index and scrolls as little as needed to show it.
  select(i) {
    if (this.items.length === 0) return;
    i = Math.max(0, Math.min(this.items.length - 1, i));
    this.selected = this.keyOf(this.items[i]);
    const top = this.rows.getBoundingClientRect().top + i * this.height;
    const above = top - this.pinned(), below = top + this.height - this.floor();
    if (above < 0) scrollBy(0, above);
    else if (below > 0) scrollBy(0, below);
    this.redraw();
  }

  key(e) {
    if (e.altKey || e.ctrlKey || e.metaKey || e.target !== this.grid) return;
    const screen = Math.max(1, Math.floor((this.floor() - this.pinned()) / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: screen, PageUp: -screen, Home: -Infinity, End: Infinity };
    const at = this.index();
    if (e.key in steps) this.select(at < 0 ? this.firstShown() : at + steps[e.key]);
    else if (e.key === "Enter" && at >= 0) this.onOpen(this.items[at]);
    else if ((e.key === "ArrowRight" || e.key === "ArrowLeft") && at >= 0 && this.items[at].group) {
      if (this.items[at].open !== (e.key === "ArrowRight")) this.onOpen(this.items[at]);
    } else return;
    e.preventDefault();
  }

  click(e) {
    const row = e.target.closest(".row");
    const d = this.pool.find((x) => x.row === row);
    if (!d || e.button !== 0 || e.ctrlKey || e.metaKey || e.shiftKey || String(getSelection())) return;
    e.preventDefault();
    this.selected = this.keyOf(d.item);
    this.redraw();
    this.onOpen(d.item);
  }
}
