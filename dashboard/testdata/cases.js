// Cases for state.js, which run in Node and in Chromium. Each is a name, what state.js returns, and what it
// should return.

const at = Date.parse("2026-11-25T12:00:00.000Z");
const iso = (ms) => new Date(ms).toISOString();
const holder = (owner, token, more) => ({ owner, token, shared: false, permits: 1, since: iso(at - 60000), expires_at: iso(at + 20000), ...more });
const waiter = (owner, ago, more) => ({ owner, shared: false, permits: 1, since: iso(at - ago), position: 1, ...more });
const lock = (name, holders, waiters, more) => ({ name, limit: 1, holders, waiters, ...more });

const view = (more) => ({ filter: "", sort: "wait", group: false, closed: new Set(), ...more });
const names = (items) => items.map((x) => (x.group ? x.name + "…" : x.name));

export const cases = (s) => {
  const row = (l, readAt, before) => s.rowOf(l, readAt || at, before);
  const rows = [
    row(lock("b/1", [holder("ann", "1", { since: iso(at - 5000) })], [])),
    row(lock("a/1", [holder("Bob", "2", { since: iso(at - 9000) })], [waiter("eve", 2000), waiter("", 1000)])),
    row(lock("a/2", [holder("ann", "3", { since: iso(at - 1000) })], [waiter("kim", 3000)])),
    row(lock("c", [], [waiter("kim", 500)])),
  ];
  const arranged = (v) => s.arrange(rows, view(v));
  const shared = { shared: true };
  return [
    ["tokens above 2^53 stay exact", s.parse('{"token":9007199254740993,"a":[{"token": 0}]}'), { token: "9007199254740993", a: [{ token: "0" }] }],
    ["a note that looks like a token stays", s.parse(JSON.stringify({ note: '"token":123', token: 1 })), { note: '"token":123', token: "1" }],
    ["marks of direction are visible", s.visible("a\u202eb\u2066c\u200fd"), "a\\u202eb\\u2066c\\u200fd"],
    ["controls and separators are visible", s.visible("\u001b[2J\u0085\u2028x"), "\\u001b[2J\\u0085\\u2028x"],
    ["a tag character is visible as two units", s.visible("\u{e0041}"), "\\udb40\\udc41"],
    ["letters, marks and signs stay", s.visible("äß漢字 <b>&amp;👍"), "äß漢字 <b>&amp;👍"],
    ["spans", [0, 999, 59400, 61000, 3661000, 180000000].map(s.span), ["0s", "1s", "59s", "1m 1s", "1h 1m", "2d 2h"]],
    ["a span is not below 0", s.span(-5), "0s"],
    ["coarse spans", [500, 3661000].map(s.coarse), ["1s", "1h"]],

    ["the mode of a lock", [
      s.modeOf(lock("x", [], [])), s.modeOf(lock("x", [holder("a", "1")], [])), s.modeOf(lock("x", [holder("a", "1", shared)], [], { limit: 0 })),
      s.modeOf(lock("x", [holder("a", "1", { ...shared, permits: 2 }), holder("b", "2", shared)], [], { limit: 5 })),
    ], ["–", "exclusive", "shared", "shared 3/5"]],
    ["sort by wait", names(arranged({}).items), ["a/2", "a/1", "c", "b/1"]],
    ["sort by queue", names(arranged({ sort: "queue" }).items), ["a/1", "a/2", "c", "b/1"]],
    ["sort by age", names(arranged({ sort: "age" }).items), ["a/1", "b/1", "a/2", "c"]],
    ["sort by name", names(arranged({ sort: "name" }).items), ["a/1", "a/2", "b/1", "c"]],
    ["an unknown order is the first", names(arranged({ sort: "constructor" }).items), ["a/2", "a/1", "c", "b/1"]],
    ["counts of all", arranged({}).counts, { locks: 4, held: 3, waiting: 4, total: 4 }],
    ["the filter finds names and owners, and counts follow", arranged({ filter: " ANN b/" }).counts, { locks: 1, held: 1, waiting: 0, total: 4 }],
    ["the filter finds waiters", names(arranged({ filter: "kim" }).items), ["a/2", "c"]],
    ["groups follow the order", names(arranged({ group: true }).items), ["a/…", "a/2", "a/1", "…", "c", "b/…", "b/1"]],
    ["a closed group has its counts", s.arrange(rows, view({ group: true, closed: new Set(["a/"]) })).items[0], { group: true, name: "a/", open: false, locks: 2, held: 2, waiting: 3 }],
    ["prefixes", ["a/b/c", "a:b/c", "abc", "/x"].map(s.prefixOf), ["a/", "a:", "", "/"]],
    ["counts in words", [s.countsText({ locks: 1, held: 1, waiting: 0, total: 1 }), s.countsText({ locks: 37, held: 36, waiting: 1200, total: 50000 })],
      ["1 lock, 1 held, 0 waiting", "37 of 50,000 locks, 36 held, 1,200 waiting"]],

    ["a lease is short when less than a fifth of the most it had is left", (() => {
      const first = row(lock("x", [holder("a", "1", { expires_at: iso(at + 30000) })], []));
      const later = row(lock("x", [holder("a", "1", { expires_at: iso(at + 30000) })], []), at + 25000, first);
      const renewed = row(lock("x", [holder("a", "1", { expires_at: iso(at + 55000) })], []), at + 25000, later);
      const another = row(lock("x", [holder("b", "2", { expires_at: iso(at + 30000) })], []), at + 25000, first);
      return [first.short >= 0, later.short, renewed.short >= 0, another.short >= 0];
    })(), [false, 5000, false, false]],
    ["a store that does not know what is left", (() => {
      const r = row(lock("x", [holder("a", "1", { expires_at: iso(at) })], []));
      return [Number.isNaN(r.until), r.short >= 0];
    })(), [true, false]],
    ["what is usual needs no attention", s.attention(rows, [], at, 2).flatMap((l) => l.entries), []],
    ["what needs attention", s.attention([
      ...rows,
      row(lock("d", [holder("ann", "4", { since: iso(at - 7200000) })], [waiter("w", 10000), ...Array.from({ length: 4 }, () => waiter("w", 1000))])),
      row(lock("e", [holder("ann", "5", { since: iso(at - 86400000) })], [waiter("w", 90000)])),
      row(lock("f", [holder("ann", "6", { since: iso(at - 3600000) })], [])),
    ], [{ name: "x", kind: "broken", at: iso(at - 90000) }, { name: "y", kind: "expired", at: iso(at - 1000) }], at, 2), [
      { title: "Waits over 10s", entries: [{ name: "e", value: "1m 30s" }, { name: "d", value: "10s" }] },
      { title: "Queues of 5 or more", entries: [{ name: "d", value: "5" }] },
      { title: "Holds over 1h", entries: [{ name: "e", value: "24h 0m" }, { name: "d", value: "2h 0m" }] },
      { title: "Short of time", entries: [] },
      { title: "Breaks and losses", entries: [{ name: "y", value: "expired 1s ago" }, { name: "x", value: "broken 1m ago" }] },
    ]],

    ["after a break the first gets it", s.nextOf(lock("x", [], [waiter("a", 1), waiter("b", 1)]), []).map((w) => w.owner), ["a"]],
    ["nobody gets what nobody waits for", s.nextOf(lock("x", [], []), []), []],
    ["shared waiters get it together, up to one that does not share", s.nextOf(lock("x", [], [waiter("a", 1, shared), waiter("b", 1, shared), waiter("c", 1), waiter("d", 1, shared)]), []).map((w) => w.owner), ["a", "b"]],
    ["permits bound those that get it", s.nextOf(lock("x", [], [waiter("a", 1, { ...shared, permits: 2 }), waiter("b", 1, { ...shared, permits: 2 }), waiter("c", 1, shared)], { limit: 3 }), []).map((w) => w.owner), ["a"]],
    ["a waiter that does not share gets nothing beside a holder that stays", s.nextOf(lock("x", [], [waiter("a", 1)]), [holder("h", 1, shared)]), []],
    ["the permits of a holder that stays count", s.nextOf(lock("x", [], [waiter("a", 1, { ...shared, permits: 2 }), waiter("b", 1, shared)], { limit: 3 }), [holder("h", 1, shared)]).map((w) => w.owner), ["a"]],

    ["the lanes of a timeline", (() => {
      const event = (kind, token, ago) => ({ kind, token, owner: "o" + token, at: iso(at - ago) });
      const t = s.timeline(lock("x", [holder("a", "9")], [waiter("w", 30000)]),
        [event("released", "6", 55000), event("acquired", "7", 50000), event("waiting", "0", 45000), event("broken", "7", 40000)], at);
      return [t.from, t.lanes.map((l) => [l.kind, l.label, at - l.from, at - l.to, l.end || "", l.cut])];
    })(), [at - 60000, [["past", "o6", 60000, 55000, "released", true], ["past", "o7", 50000, 40000, "broken", false], ["holder", "a", 60000, 0, "", false], ["waiter", "w", 30000, 0, "", false]]]],
    ["an old hold does not flatten the waits", (() => {
      const t = s.timeline(lock("x", [holder("a", "9", { since: iso(at - 864e5) })], [waiter("w", 90000)]), [], at);
      return [at - t.from, t.lanes[0].cut, t.lanes[1].cut];
    })(), [120000, true, false]],
    ["a long queue is cut", (() => {
      const t = s.timeline(lock("x", [], Array.from({ length: 80 }, () => waiter("w", 1000))), [], at);
      return [t.lanes.length, t.more];
    })(), [16, 64]],

    ["the address", s.viewOf("?q=a+b&sort=queue&group=prefix&lock=x%2Fy"), { filter: "a b", sort: "queue", group: true, lock: "x/y" }],
    ["an address with nonsense", s.viewOf("?sort=toString&group=1"), { filter: "", sort: "wait", group: false, lock: "" }],
    ["the address and back", s.viewOf(s.searchOf({ filter: "ä&b", sort: "age", group: true, lock: "a:1" })), { filter: "ä&b", sort: "age", group: true, lock: "a:1" }],
    ["an address without anything", s.searchOf(view({ lock: "" })), "?"],
  ];
};

// faults returns what is wrong, one line each.
export const faults = (s) => cases(s).filter(([, got, want]) => JSON.stringify(got) !== JSON.stringify(want))
  .map(([name, got, want]) => name + ": " + JSON.stringify(got) + ", want " + JSON.stringify(want));
