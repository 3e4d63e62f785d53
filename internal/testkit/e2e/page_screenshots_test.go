package e2e_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// screenshotsScene is an afternoon of a company: 480 locks, one with a long queue, one semaphore.
func screenshotsScene() []wire.Lock {
	var locks []wire.Lock
	kinds := []struct{ prefix, owner string }{
		{"billing/invoice/2026-11/", "billing-%d.eu/%d"}, {"orders/eu/", "orders-%d.eu/%d"}, {"cache:warm:", "edge-%d/%d"}, {"tenant/acme/export/", "export-%d/%d"},
	}
	for i := range 480 {
		k := kinds[i%len(kinds)]
		var waits []time.Duration
		for w := range max(0, i%37-34) {
			waits = append(waits, time.Duration(40-9*w+i)*time.Second)
		}
		age := time.Duration(i*i%4973) * time.Second
		owner := fmt.Sprintf(k.owner, i%7+1, 800+i)
		locks = append(locks, heldLock(fmt.Sprintf("%s%04d", k.prefix, 1000+i*7), owner, fence.Token(184200+i*3), age, time.Duration(8+i%22)*time.Second, waits...))
	}
	var queue []time.Duration
	for i := range 80 {
		queue = append(queue, time.Duration(760-i*9)*time.Second)
	}
	report := heldLock("nightly-report", "batch-2.eu/4411", 190001, 14*time.Minute, 21*time.Second, queue...)
	report.Holders[0].Note = "run 2026-11-25, step 3 of 7: aggregate"
	pool := heldLock("pool/gpu", "train-1/77", 190102, 3*time.Hour, 25*time.Second, 95*time.Second, 20*time.Second)
	pool.Limit = 3
	for i := range 2 {
		h := pool.Holders[0]
		h.Owner, h.Token, h.Since = fmt.Sprintf("train-%d/8%d", i+2, i), 190110+fence.Token(i), ago(time.Duration(50-20*i)*time.Minute)
		pool.Holders = append(pool.Holders, h)
	}
	for i := range pool.Holders {
		pool.Holders[i].Shared = true
	}
	for i := range pool.Waiters {
		pool.Waiters[i].Shared = true
	}
	free := heldLock("orders/handover", "", 1, 0, 0, 3*time.Second)
	free.Holders = []wire.Holder{}
	locks = append(locks, report, pool, free, heldLock("leader/scheduler", "sched-0/1", 12, 19*24*time.Hour, 9*time.Second, 41*time.Minute))
	slices.SortFunc(locks, func(a, b wire.Lock) int { return cmp.Compare(a.Name, b.Name) })
	return locks
}

// history tells the page what has happened to the lock, as if it had been open all the time.
func (f *fake) history() {
	e := wire.Event{Name: "nightly-report", Owner: "batch-1.eu/4390", Token: 189777, At: ago(17 * time.Minute)}
	f.tell("acquired", e)
	e.At = ago(16 * time.Minute)
	f.tell("released", e)
	e.Owner, e.Token, e.At = "batch-4.eu/120", 189801, ago(16*time.Minute)
	f.tell("acquired", e)
	e.At, e.Reason = ago(14*time.Minute), "the holder hangs, ticket 4711"
	f.tell("broken", e)
	e = wire.Event{Name: "orders/eu/1742", Owner: "orders-1.eu/12", Token: 180001, At: ago(6 * time.Minute)}
	f.tell("expired", e)
}

// screenshotsFolder is where the pictures are kept: HOLDFAST_SCREENSHOTS, which make test sets, or the artifacts of the test (go test -artifacts).
func screenshotsFolder(t *testing.T) string {
	t.Helper()
	dir := cmp.Or(os.Getenv("HOLDFAST_SCREENSHOTS"), t.ArtifactDir())
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shoot keeps a picture of what the window shows.
func (b *tab) shoot(dir, name string) {
	b.t.Helper()
	// Two frames: what the last action changed is drawn.
	valueOf[bool](b, "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
	if wide := valueOf[int](b, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		b.t.Errorf("%s: the page is %d pixels wider than the window", name, wide)
	}
	png := runAction(b, chromedp.CaptureScreenshot())
	path := filepath.Join(dir, name+".png")
	if err := os.WriteFile(path, png, 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.t.Log(path)
}

// Pictures of the views, for people to look at, in two sizes and both themes.
func TestScreenshots(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	dir := screenshotsFolder(t)
	for _, s := range []size{{1280, 800, false}, {1280, 800, true}, {420, 900, false}, {420, 900, true}} {
		theme := map[bool]string{false: "light", true: "dark"}[s.dark]
		t.Run(fmt.Sprintf("%d-%s", s.width, theme), func(t *testing.T) {
			t.Parallel()
			shoot := func(b *tab, view string) { b.shoot(dir, fmt.Sprintf("%s-%d-%s", view, s.width, theme)) }
			f, at := serveFake(t, screenshotsScene())
			b := openTab(t, at, s)
			b.until(`document.querySelector("#counts").textContent.startsWith("484 locks")`)
			f.history()
			b.until(`document.querySelector("#attention-lists").textContent.includes("broken")`)
			b.until(`document.querySelector("#link").dataset.state === "live"`)
			shoot(b, "list")
			valueOf[bool](b, `document.querySelector("#group").click(), scrollTo(0, document.querySelector("#locks").offsetTop), true`)
			b.until(`document.querySelectorAll("#rows .group:not([hidden])").length > 0`)
			shoot(b, "groups")
			_ = f.quarantined(time.Minute)
			b.visit(at + "/")
			b.until(`!document.querySelector("#alert").hidden`)
			shoot(b, "alert")
			_ = f.quarantined(0)
			b.visit(at + "/?q=no-such-lock")
			b.until(`!document.querySelector("#empty").hidden`)
			shoot(b, "empty")
			b.visit(at + "/")
			b.until(`document.querySelector("#counts").textContent.startsWith("484 locks")`)
			b.until(`document.querySelector("#attention-lists").textContent.includes("broken")`)
			valueOf[bool](b, `document.querySelector("#attention-lists a[data-lock='nightly-report']").click(), true`)
			b.until(`document.querySelectorAll("#queue tr").length > 20 && document.querySelectorAll("#events tr").length > 4`)
			shoot(b, "lock")
			b.click("#break-open")
			b.until(`document.querySelector("#break").open`)
			shoot(b, "break")
			f.mu.Lock()
			f.locked = true
			f.mu.Unlock()
			b.visit(at + "/")
			b.until(`!document.querySelector("#sign-in").hidden`)
			shoot(b, "sign-in")
		})
	}
}
