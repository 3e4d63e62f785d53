package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// The pure functions of the page, in Chromium. Package dashboard runs the same cases in Node.
func TestStateInChromium(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	f, at := serveFake(t, []wire.Lock{})
	var err error
	if f.cases, err = os.ReadFile("../../../dashboard/testdata/cases.js"); err != nil {
		t.Fatal(err)
	}
	b := openTab(t, at, desk)
	const all = `Promise.all([import("/cases.js"), import("/dashboard/state.js")])`
	for _, fault := range valueOf[[]string](b, all+`.then(([c, s]) => c.faults(s))`) {
		t.Error(fault)
	}
	if n := valueOf[int](b, all+`.then(([c, s]) => c.cases(s).length)`); n < 30 {
		t.Errorf("%d cases", n)
	}
}

// manyLocks returns the locks of a large store.
func manyLocks(n int) []wire.Lock {
	locks := make([]wire.Lock, n)
	for i := range locks {
		var waits []time.Duration
		if i%50 == 0 {
			waits = []time.Duration{time.Duration(i%997) * time.Second, time.Second}
		}
		locks[i] = heldLock(fmt.Sprintf("orders/%02d/%06d", i%40, i), fmt.Sprintf("host-%d/%d", i%300, i), fence.Token(i+1), time.Duration(i)*time.Second, 30*time.Second, waits...)
	}
	for i := range locks {
		locks[i].Name = fmt.Sprintf("%06d/%s", i, locks[i].Name)
	}
	return locks
}

// scrolled is what was seen while the list scrolled, of each frame after it was drawn.
type scrolled struct {
	Frames      int     // as many as were to be seen, or those of 20 s
	Least, Rows int     // the fewest and the most rows that were drawn
	Elements    int     // the most on the page
	Blank       int     // frames without a row in the middle of the window
	FPS         float64 // frames in a second
	Slowest     float64 // milliseconds of a frame
}

// scrolls scrolls the list from the top, a bit in each frame and sometimes far.
func (b *tab) scrolls(frames int) scrolled {
	b.t.Helper()
	return valueOf[scrolled](b, fmt.Sprintf(`new Promise((done) => {
		const r = { Frames: 0, Least: Infinity, Rows: 0, Elements: 0, Blank: 0, FPS: 0, Slowest: 0 };
		let n = 0, began = 0, last = 0;
		const drawn = new MessageChannel(); // its message comes after the frame
		drawn.port1.onmessage = () => {
			const rows = document.querySelectorAll("#rows .row:not([hidden])").length;
			r.Least = Math.min(r.Least, rows);
			r.Rows = Math.max(r.Rows, document.querySelectorAll("#rows .row").length);
			r.Elements = Math.max(r.Elements, document.querySelectorAll("*").length);
			if (!document.elementFromPoint(200, 600)?.closest("#rows .row")) r.Blank++;
			if (n === %d || n > 0 && last - began > 20000) {
				r.Frames = n;
				r.FPS = 1000 * n / (last - began);
				drawn.port1.close();
				done(r);
				return;
			}
			scrollBy(0, ++n %% 60 === 0 ? 200000 : 240);
			requestAnimationFrame(step);
		};
		const step = (now) => {
			if (n === 0) began = now;
			else r.Slowest = Math.max(r.Slowest, now - last);
			last = now;
			drawn.port2.postMessage(null);
		};
		scrollTo(0, document.querySelector("#locks").offsetTop);
		requestAnimationFrame(() => requestAnimationFrame(step));
	})`, frames))
}

// 50,000 locks scroll: only the rows on the screen are drawn, and each frame has them. What a frame does depends on what
// else the machine does: the best of a minute counts.
func TestManyLocksScroll(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const frames = 300
	_, at := serveFake(t, manyLocks(50_000))
	b := openTab(t, at, desk)
	b.until(`document.querySelector("#counts").textContent === "50,000 locks, 50,000 held, 2,000 waiting"`)
	complete := false
	for began := time.Now(); !complete && time.Since(began) < time.Minute; {
		got := b.scrolls(frames)
		t.Logf("%.1f frames in a second, the slowest took %.0f ms; %d to %d rows, %d elements, %d frames showed no row in the middle",
			got.FPS, got.Slowest, got.Least, got.Rows, got.Elements, got.Blank)
		if got.Rows > 100 || got.Elements > 1600 {
			t.Fatalf("up to %d rows and %d elements are drawn", got.Rows, got.Elements)
		}
		complete = got.Least >= 15 && (got.Blank <= 1 || 100*got.Blank <= got.Frames)
	}
	if !complete {
		t.Error("in each run fewer than 15 rows were drawn in a frame, or more than one frame in a hundred showed no row in the middle")
	}
	b.keys(kb.End) // nothing has the focus: the window scrolls
	for _, k := range []struct{ key, row string }{{kb.End, "50001"}, {kb.Home, "2"}} {
		leasetest.Eventually(t, "row "+k.row+" is chosen", func() bool { // on a busy machine a key may come before the focus
			valueOf[bool](b, `document.querySelector("#grid").focus(), true`)
			b.keys(k.key)
			return valueOf[bool](b, fmt.Sprintf(`new Promise((done) => {
				const end = performance.now() + 5000;
				const look = () => {
					if (document.querySelector("#rows .chosen")?.getAttribute("aria-rowindex") === %q) done(true);
					else if (performance.now() > end) done(false);
					else requestAnimationFrame(look);
				};
				look();
			})`, k.row))
		})
	}
}

// fewLocks is a store with few locks, in an order that each way to sort them changes.
func fewLocks() []wire.Lock {
	return []wire.Lock{
		heldLock("billing/a", "ann/1", 11, time.Minute, time.Minute),
		heldLock("billing/b", "bob/2", 12, time.Hour, time.Minute, 3*time.Second),
		heldLock("orders:1", "ann/3", 13, time.Second, time.Minute, 9*time.Second, 8*time.Second),
	}
}

// Everything can be done with the keyboard, and the address follows.
func TestKeyboard(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	_, at := serveFake(t, fewLocks())
	b := openTab(t, at, desk)
	b.shows("orders:1", "billing/b", "billing/a")
	b.keys("/")
	b.until(`document.activeElement.id === "filter"`)
	b.keys("billing")
	b.shows("billing/b", "billing/a")
	b.until(`document.querySelector("#counts").textContent === "2 of 3 locks, 2 held, 1 waiting"`)
	b.until(`location.search === "?q=billing"`)
	b.until(`document.querySelector("#counts-said").textContent === "2 of 3 locks, 2 held, 1 waiting"`)
	b.keys(kb.ArrowDown)
	b.until(`document.activeElement.id === "grid"`)
	b.keys(kb.ArrowDown)
	const chosen = `document.getElementById(document.querySelector("#grid").getAttribute("aria-activedescendant"))`
	b.until(chosen + `?.querySelector("a").title === "billing/a"`)
	b.keys(kb.ArrowDown)
	b.until(chosen + `?.getAttribute("aria-selected") === "true"`)
	b.keys(kb.Enter)
	b.until(`!document.querySelector("#lock").hidden && document.querySelector("#lock-title").innerText === "billing/a"`)
	b.until(`location.search === "?q=billing&lock=billing%2Fa" && document.title === "billing/a – Holdfast"`)
	b.until(`document.activeElement.id === "lock-title"`)
	b.keys(kb.Escape)
	b.until(`document.querySelector("#lock").hidden && document.activeElement.id === "grid"`)
	b.until(chosen + `?.querySelector("a").title === "billing/a"`)
	b.keys("/" + kb.Escape)
	b.shows("orders:1", "billing/b", "billing/a")
	valueOf[bool](b, `history.back(), true`)
	b.until(`!document.querySelector("#lock").hidden`)
}

// The address says what is shown, and the counts are those of what is shown.
func TestAddress(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	_, at := serveFake(t, fewLocks())
	b := openTab(t, at+"/?q=ann&sort=age", desk)
	b.shows("billing/a", "orders:1")
	b.until(`document.querySelector("#counts").textContent === "2 of 3 locks, 2 held, 2 waiting"`)
	b.until(`document.querySelector("[data-sort=age]").getAttribute("aria-sort") === "ascending"`)
	b.visit(at + "/?group=prefix&sort=name")
	b.shows("billing/a", "billing/b", "orders:1")
	if got := valueOf[[]string](b, `[...document.querySelectorAll("#rows .group:not([hidden])")].map((g) => g.innerText.replace(/\s+/g, " "))`); strings.Join(got, "; ") !=
		"▾ billing/ 2 locks, 2 held, 1 waiting; ▾ orders: 1 lock, 1 held, 2 waiting" {
		t.Errorf("%q", got)
	}
	b.click("#rows .group")
	b.shows("orders:1")
	b.click("[data-sort=queue] button")
	b.until(`location.search === "?sort=queue&group=prefix"`)
	b.visit(at + "/?lock=orders%3A1")
	b.until(`document.querySelectorAll("#queue tbody tr").length === 2`)
	if got := b.text("#lock-summary"); got != "exclusive, 1 holder, 2 waiting" {
		t.Errorf("summary %q", got)
	}
	b.click("#back")
	b.shows("orders:1", "billing/b", "billing/a")
}

// The timeline of a lock shows its holders, its waiters and the leases that ended.
func TestTimeline(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	f, at := serveFake(t, fewLocks())
	b := openTab(t, at, desk)
	b.until(`document.querySelector("#link").dataset.state === "live"`)
	f.tell("acquired", wire.Event{Name: "billing/b", Owner: "ann/1", Token: 9, At: ago(3 * time.Hour)})
	f.tell("broken", wire.Event{Name: "billing/b", Owner: "ann/1", Token: 9, Reason: "why", At: ago(2 * time.Hour)})
	b.goTo("?lock=billing%2Fb")
	b.until(`["holder .hold", "waiter .wait", "past.broken .hold"].every((s) => document.querySelectorAll("#timeline svg g." + s).length === 1)`)
	b.until(`document.querySelector("#timeline svg").getAttribute("aria-label").endsWith(": 1 lease that ended, 1 holder, 1 waiter. The tables below have the same.")`)
	b.until(`[...document.querySelectorAll("#events tbody tr")].map((r) => r.cells[1].innerText).join() === "broken,acquired"`)
}

// In a narrow window each lock is a card: its name, its owner, and the rest.
func TestCards(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	_, at := serveFake(t, fewLocks())
	b := openTab(t, at, size{width: 420, height: 900})
	b.shows("orders:1", "billing/b", "billing/a")
	tops := valueOf[[]float64](b, `[".name", ".owner", ".mode", ".since", ".left", ".waiting", ".wait"].map((c) => document.querySelector("#rows .row:not([hidden]) > " + c).getBoundingClientRect().top)`)
	if tops[0] >= tops[1] || tops[1] >= tops[2] || tops[2] != tops[3] || tops[2] != tops[4] || tops[4] >= tops[5] || tops[5] != tops[6] {
		t.Errorf("the parts of a card begin at %v", tops)
	}
}

// A screen reader finds its way: each part has a role and a name.
func TestRoles(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	_, at := serveFake(t, fewLocks())
	b := openTab(t, at, desk)
	b.shows("orders:1", "billing/b", "billing/a")
	for _, selector := range []string{
		`header`, `main`, `[role=grid][aria-labelledby=locks-title][aria-rowcount="4"]`, `#rows [role=row][aria-rowindex="2"] [role=gridcell]`,
		`[role=columnheader][aria-sort=ascending]`, `section[aria-labelledby=attention-title]`, `#link-text[role=status]`, `a.skip`, `html[lang=en]`,
	} {
		if !valueOf[bool](b, fmt.Sprintf("document.querySelector(%q) !== null", selector)) {
			t.Errorf("there is no %s", selector)
		}
	}
	// What changes each second is not announced.
	if n := valueOf[int](b, `document.querySelectorAll("[aria-live] [data-since], [role=status] [data-since], [role=status] #fresh").length`); n != 0 {
		t.Errorf("%d parts are announced each second", n)
	}
	for _, e := range valueOf[[]string](b, `[...document.querySelectorAll("input, select, button")].filter((e) => !e.closest("[hidden]") && !(e.labels?.length || e.innerText.trim() || e.textContent.trim())).map((e) => e.outerHTML)`) {
		t.Errorf("no name: %s", e)
	}
}

// The page says that it lost the server, keeps what it shows where it is, so that a click that is under way hits what
// was aimed at, and continues when the server is there again.
func TestConnectionIsLost(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	f, at := serveFake(t, fewLocks())
	proxy := chaos.Start(t, strings.TrimPrefix(at, "http://"))
	b := openTab(t, "http://"+proxy.Addr(), desk)
	b.shows("orders:1", "billing/b", "billing/a")
	b.until(`document.querySelector("#link").dataset.state === "live"`)
	top := func() float64 {
		return valueOf[float64](b, `document.querySelector("#grid").getBoundingClientRect().top`)
	}
	before := top()
	proxy.Refuse()
	proxy.Reset()
	b.until(`document.querySelector("#link").dataset.state === "lost"`)
	b.until(`document.querySelector("#link-text").textContent === "Connection lost, trying again"`)
	b.until(`!document.querySelector("#alert").hidden && document.querySelector("#alert").textContent.includes("may be out of date")`)
	if after := top(); after != before {
		t.Errorf("the list was %v pixels from the top, and is now %v", before, after)
	}
	b.shows("orders:1", "billing/b", "billing/a")
	f.mu.Lock()
	f.locks[0].Holders[0].Owner = "carol/9"
	f.mu.Unlock()
	proxy.Heal()
	b.until(`document.querySelector("#link").dataset.state === "live" && document.querySelector("#alert").hidden`)
	b.until(`document.querySelector("#rows").innerText.includes("carol/9")`)
}

// The page says that the store is in quarantine, with the reason, how long it takes, and what turns it off. The alert
// does not cover the lock that the keyboard has chosen.
func TestQuarantineIsShown(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	f, at := serveFake(t, manyLocks(100))
	q := f.quarantined(time.Hour)
	b := openTab(t, at, desk)
	b.until(fmt.Sprintf(`!document.querySelector("#alert").hidden && document.querySelector("#alert").textContent === %q`, "No lock is granted: "+q.Error()))
	b.until(`document.querySelector("#counts").textContent.startsWith("100 locks")`)
	valueOf[bool](b, `document.querySelector("#grid").focus(), true`)
	b.until(`document.activeElement.id === "grid"`)
	b.keys(strings.Repeat(kb.ArrowDown, 50))
	b.until(`document.querySelector("#grid .chosen")?.getAttribute("aria-rowindex") > 40`)
	if hidden := valueOf[float64](b, `document.querySelector("#grid .chosen").getBoundingClientRect().bottom - document.querySelector("#alert").getBoundingClientRect().top`); hidden > 0 {
		t.Errorf("the alert covers %v pixels of the lock that is chosen", hidden)
	}
}

// An event changes the lock that it is about, without a read of all others.
func TestEventsAreFollowed(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	f, at := serveFake(t, manyLocks(3000))
	b := openTab(t, at+"/?q=000007/", desk)
	b.shows("000007/orders/07/000007")
	b.until(`document.querySelector("#link").dataset.state === "live"`)
	f.mu.Lock()
	f.locks[7].Holders[0].Owner = "carol/9"
	f.mu.Unlock()
	f.tell("acquired", wire.Event{Name: f.locks[7].Name, Owner: "carol/9", Token: 8, At: ago(0)})
	b.until(`document.querySelector("#rows").innerText.includes("carol/9")`)
	// A lock that is free and waited for by nobody goes.
	f.mu.Lock()
	f.locks[7].Holders = []wire.Holder{}
	f.mu.Unlock()
	f.tell("released", wire.Event{Name: f.locks[7].Name, Owner: "carol/9", Token: 8, At: ago(0)})
	b.until(`!document.querySelector("#empty").hidden`)
	leasetest.Eventually(t, "the page counts the others", func() bool { return strings.Contains(b.text("#empty-text"), "2,999 ") })
}
