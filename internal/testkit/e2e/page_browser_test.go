// Package page_test opens the page at / of a server in Chromium.
package e2e_test

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// tab is a tab of a browser of its own, with the page of a server.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // of chromedp: it is the tab
}

// chromium returns the path of the browser.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no Chromium: run scripts/install-test-deps")
	return ""
}

// size is that of the window, in pixels, and the colours that the user prefers.
type size struct {
	width, height int64
	dark          bool
}

var desk = size{width: 1280, height: 800}

// openTab starts a browser and opens the URL. The test fails if a script of the page fails, or if the page sends a
// request to another host.
func openTab(t *testing.T, at string, s size) *tab {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(chromium(t)), chromedp.NoFirstRun}
	for _, flag := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "disable-background-networking", "disable-component-update",
		"disable-sync", "disable-dev-shm-usage", "disable-renderer-backgrounding", "disable-background-timer-throttling",
		"disable-backgrounding-occluded-windows", "hide-scrollbars",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	if strings.HasPrefix(at, "https:") { // no authority of the system knows the certificate
		options = append(options, chromedp.Flag("ignore-certificate-errors", true))
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), append(options, chromedp.WSURLReadTimeout(leasetest.Patience))...)
	ctx, end := chromedp.NewContext(allocator)
	var mu sync.Mutex
	var faults []string
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("close the browser: %v", err)
		}
		end()
		endAllocator()
		mu.Lock()
		defer mu.Unlock()
		for _, f := range faults {
			t.Error(f)
		}
	})
	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	err = chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			faults = append(faults, fmt.Sprintf("a script failed: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
		case *network.EventRequestWillBeSent:
			if to, err := url.Parse(e.Request.URL); err != nil || to.Host != target.Host {
				faults = append(faults, "a request to another host: "+e.Request.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &tab{t, ctx}
	theme := "light"
	if s.dark {
		theme = "dark"
	}
	runCommand(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	runCommand(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: s.width, Height: s.height, DeviceScaleFactor: 1, Mobile: s.width < 700})
	b.visit(at)
	return b
}

// runAction runs an action, and returns its value.
func runAction[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, leasetest.Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// runCommand sends a command of the protocol.
func runCommand[P, R any](b *tab, c cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, leasetest.Patience)
	defer cancel()
	r, err := chromedp.Call(ctx, c, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *tab) visit(at string) {
	b.t.Helper()
	runAction(b, chromedp.Navigate(at))
}

// valueOf returns the value of an expression in the page, or of a promise.
func valueOf[T any](b *tab, expression string) T {
	b.t.Helper()
	return runAction(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// until waits until an expression is true.
func (b *tab) until(expression string) {
	b.t.Helper()
	b.untilShown(expression, func() bool { return valueOf[bool](b, "Boolean("+expression+")") })
}

func (b *tab) untilShown(what string, is func() bool) {
	b.t.Helper()
	defer func() {
		if b.t.Failed() {
			b.t.Logf("the page shows: %.2000s", valueOf[string](b, "document.body.innerText"))
		}
	}()
	leasetest.Eventually(b.t, what, is)
}

// text returns the text of an element, as it is shown.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return valueOf[string](b, fmt.Sprintf("document.querySelector(%q).innerText", selector))
}

// click clicks on the middle of an element with the mouse, when the element was in one place for two frames: until
// then the mouse may hit what is beside it.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.untilShown(selector+" is in its place", func() bool {
		return valueOf[bool](b, fmt.Sprintf(`new Promise((done) => {
			const place = () => JSON.stringify(document.querySelector(%q)?.getBoundingClientRect());
			const before = place();
			requestAnimationFrame(() => requestAnimationFrame(() => done(before !== undefined && place() === before)));
		})`, selector))
	})
	runAction(b, chromedp.Click(chromedp.CSS(selector)))
}

// keys presses keys, one after the other, in what has the focus. A key and its letter are one event, so that a key that
// the page handles writes nothing.
func (b *tab) keys(keys string) {
	b.t.Helper()
	for _, r := range keys {
		parts := kb.Encode(r)
		down := *parts[0]
		down.Type = kb.KeyDown
		if len(parts) == 3 {
			down.Text, down.UnmodifiedText = parts[1].Text, parts[1].UnmodifiedText
		}
		runCommand(b, input.DispatchKeyEvent, down)
		runCommand(b, input.DispatchKeyEvent, *parts[len(parts)-1])
	}
}

// goTo goes to an address of the page without loading it again, as "back" does.
func (b *tab) goTo(search string) {
	b.t.Helper()
	valueOf[bool](b, fmt.Sprintf(`history.pushState(null, "", %q), dispatchEvent(new PopStateEvent("popstate")), true`, search))
}

// locks returns the names of the locks that are drawn, from the top.
func (b *tab) locks() []string {
	b.t.Helper()
	return valueOf[[]string](b, `[...document.querySelectorAll("#rows .row:not(.group):not([hidden])")]
		.sort((a, b) => a.getAttribute("aria-rowindex") - b.getAttribute("aria-rowindex")).map((r) => r.querySelector("a").title)`)
}

// shows waits until the list has these locks, in this order.
func (b *tab) shows(names ...string) {
	b.t.Helper()
	b.untilShown("the list has "+strings.Join(names, ", "), func() bool { return strings.Join(b.locks(), "\n") == strings.Join(names, "\n") })
}
