package e2e_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

// servePage serves a store of its own until the test ends.
func servePage(t *testing.T, cfg server.Config) string {
	t.Helper()
	b := memlock.New()
	cfg.Limits.Wait = time.Hour
	srv, err := server.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if cfg.TLS != nil {
		return "https://" + ln.Addr().String()
	}
	return "http://" + ln.Addr().String()
}

// callServer sends a request of a client, which trusts any certificate, and returns the status and the body.
func callServer(ctx context.Context, method, at, token, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, at, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}}}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// acquireAt takes a lock, and returns its lease.
func acquireAt(t *testing.T, at, token, name string, req wire.AcquireRequest) string {
	t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	status, text, err := callServer(leasetest.Within(t), "POST", at+"/v1/locks/"+url.PathEscape(name), token, string(body))
	var g wire.Grant
	if err != nil || status != http.StatusOK || json.Unmarshal([]byte(text), &g) != nil {
		t.Fatalf("acquire %q: %d %s, %v", name, status, text, err)
	}
	return g.Lease
}

// waitAt waits for a lock in the background, until the end of the test. The channel gets the status of the answer.
func waitAt(t *testing.T, at, token, name, owner string) <-chan int {
	t.Helper()
	got := make(chan int, 1)
	ctx := t.Context()
	go func() {
		status, _, _ := callServer(ctx, "POST", at+"/v1/locks/"+url.PathEscape(name), token, fmt.Sprintf(`{"wait":"1h","ttl":"1h","owner":%q}`, owner))
		got <- status
	}()
	return got
}

// What other clients chose is text, wherever it is shown.
func TestHostileTexts(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const principal = `<img src=x onerror="window.hit=1">` + "\u202e" + `</title><script>window.hit=1</script>`
	at := servePage(t, server.Config{ // a policy has no such principals: a program with a function of its own may
		Authorize: func(string, server.Action) error { return nil },
		Identify:  func(*http.Request) (string, error) { return principal, nil },
	})
	hostile := []string{
		`<img src=x onerror="window.hit=1">`, `</script><script>window.hit=1</script>`, `"' onmouseover="window.hit=1" x='`, `javascript:window.hit=1`,
		"\u202egnp.exe\u2066x", "a\u200fb\u200bc", `${window.hit=1}`, `{{constructor.constructor('window.hit=1')()}}`, `__proto__`, `constructor`,
		`</title><svg onload=window.hit=1>`, `&lt;b&gt;`, strings.Repeat("long", 125), "e" + strings.Repeat("\u0301", 120), `"token":123`, `%2e%2e?q=1#x`, `\u003cscript>`,
	}
	for _, name := range hostile {
		note := name + " " + name
		acquireAt(t, at, "", name, wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: shortened(name, backend.MaxOwnerLen), Note: shortened(note, backend.MaxNoteLen)})
		waitAt(t, at, "", name, shortened(name, backend.MaxOwnerLen))
	}
	broken := func(i int) string { return fmt.Sprintf("broken/%d", i) }
	for i, reason := range hostile {
		acquireAt(t, at, "", broken(i), wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: shortened(reason, backend.MaxOwnerLen)})
		path := at + "/v1/locks/" + url.PathEscape(broken(i)) + "?reason=" + url.QueryEscape(reason)
		if status, text, err := callServer(leasetest.Within(t), "DELETE", path, "", ""); err != nil || status != http.StatusOK {
			t.Fatalf("break with the reason %q: %d %s, %v", reason, status, text, err)
		}
	}
	inert := func(b *tab, where string) {
		t.Helper()
		if valueOf[bool](b, `window.hit !== undefined || ({}).hit !== undefined || document.querySelectorAll("img, iframe, body script, svg[onload], [onerror], [onmouseover]").length > 0`) {
			t.Errorf("%s: a text became markup", where)
		}
		if valueOf[bool](b, `/[\u200b\u200f\u202e\u2066]/.test(document.documentElement.innerHTML + document.title)`) {
			t.Errorf("%s: a mark of direction is on the page", where)
		}
		if wide := valueOf[int](b, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
			t.Errorf("%s: the page is %d pixels wider than the window", where, wide)
		}
	}
	b := openTab(t, at, size{width: 420, height: 900})
	want := fmt.Sprintf("%d locks, %d held, %d waiting", len(hostile), len(hostile), len(hostile))
	b.until(fmt.Sprintf(`document.querySelector("#counts").textContent === %q`, want))
	b.until(`document.querySelector("#who").textContent.startsWith("<img src=x onerror=")`)
	b.until(`document.querySelector("#attention-lists").textContent.includes("broken")`)
	inert(b, "list")
	valueOf[bool](b, `document.querySelector("#group").click(), true`)
	b.until(`document.querySelectorAll("#rows .group").length > 0`)
	inert(b, "groups")
	for _, name := range hostile {
		b.goTo("?q=" + url.QueryEscape(name) + "&lock=" + url.QueryEscape(name))
		b.until(`document.querySelectorAll("#holders tbody tr").length === 1 && document.querySelectorAll("#queue tbody tr").length === 1`)
		valueOf[bool](b, `document.querySelector("#break-open").click(), true`)
		b.until(`document.querySelector("#break").open`)
		inert(b, "lock "+name)
	}
	for i, reason := range hostile {
		b.goTo("?lock=" + url.QueryEscape(broken(i)))
		b.until(fmt.Sprintf(`document.querySelector("#lock-title").innerText === %q && document.querySelectorAll("#events tbody tr.broken .note").length === 1`, broken(i)))
		inert(b, "the reason "+reason)
	}
	if got := b.text("#events .note"); got != hostile[len(hostile)-1] {
		t.Errorf("the reason is shown as %q", got)
	}
}

// shortened returns as many whole letters of a text as fit.
func shortened(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// policy has tokens that are the names of their principals.
func policy(t *testing.T, principals string) *access.Policy {
	t.Helper()
	var text strings.Builder
	text.WriteString("principals:\n")
	for name := range strings.FieldsSeq(principals) {
		sum := sha256.Sum256([]byte(name))
		fmt.Fprintf(&text, "  %s: {tokens: [%s]}\n", name, hex.EncodeToString(sum[:]))
	}
	text.WriteString("grants:\n- {to: [app], locks: [\"*\"], verbs: [acquire, read]}\n- {to: [viewer], locks: [orders], verbs: [read]}\n")
	if strings.Contains(principals, "oncall") {
		text.WriteString("- {to: [oncall], locks: [\"*\"], verbs: [read, break]}\n")
	}
	p, err := access.Parse([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (b *tab) signIn(token string, breaks bool) {
	b.t.Helper()
	b.until(`!document.querySelector("#sign-in").hidden`)
	valueOf[bool](b, fmt.Sprintf(`document.querySelector("#token").value = "", document.querySelector("#may-break").checked = %v, document.querySelector("#token").focus(), true`, breaks))
	b.keys(token + "\r")
}

// A token becomes a session that reads. Whoever has the right, and asked for it, breaks a lock with a reason, which
// the events have; the holder learns of the break with its next renewal. Without the right there is no button, and the API refuses.
func TestBreak(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	var current atomic.Pointer[access.Policy]
	current.Store(policy(t, "app viewer oncall"))
	at := servePage(t, server.Config{
		Authorize: func(who string, a server.Action) error { return current.Load().Authorize(who, a) },
		Identify:  func(r *http.Request) (string, error) { return current.Load().Identify(r) },
	})
	lease := acquireAt(t, at, "app", "orders/7", wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: "ann/1"})
	acquireAt(t, at, "app", "billing/1", wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: "ann/1"})
	next := waitAt(t, at, "app", "orders/7", "bob/2")

	b := openTab(t, at, desk)
	b.signIn("nobody", false)
	b.until(`document.querySelector("#sign-in-error").textContent.startsWith("Not signed in")`)
	b.signIn("viewer", true)
	b.shows("orders/7") // and not the lock that it may not read
	b.until(`document.querySelector("#who").textContent.startsWith("viewer") && document.querySelector("#store").textContent === "memory" && document.querySelector("#version").textContent === "dev"`)
	if cookie := valueOf[string](b, "document.cookie"); cookie != "" {
		t.Errorf("scripts can read the cookie: %s", cookie)
	}
	b.click("#rows .row")
	b.until(`document.querySelectorAll("#holders tbody tr").length === 1 && document.querySelectorAll("#queue tbody tr").length === 1`)
	const breakNow = `fetch("/v1/locks/orders%2F7?reason=r", { method: "DELETE", headers: { "Holdfast-Page": "1" } }).then((r) => r.status)`
	if valueOf[bool](b, `!document.querySelector("#break-open").hidden`) {
		t.Error("the button is there for a principal without the right")
	}
	if status := valueOf[int](b, breakNow); status != http.StatusForbidden {
		t.Errorf("the API answers %d to a principal without the right", status)
	}
	b.click("#sign-out")

	// The right alone is not enough: a session reads, unless it was opened for more.
	b.signIn("oncall", false)
	b.until(`document.querySelectorAll("#holders tbody tr").length === 1 && document.querySelector("#who").textContent === "oncall, reads only"`)
	if valueOf[bool](b, `!document.querySelector("#break-open").hidden`) {
		t.Error("the button is there in a session that reads")
	}
	if status := valueOf[int](b, breakNow); status != http.StatusForbidden {
		t.Errorf("the API answers %d to a session that reads", status)
	}
	b.click("#sign-out")

	b.signIn("oncall", true)
	b.until(`!document.querySelector("#break-open").hidden`)
	b.until(`document.querySelector("#queue").innerText.includes("bob/2")`)
	b.click("#break-open")
	b.until(`document.querySelector("#break").open && document.activeElement.id === "reason"`)
	content := func(selector string) string {
		return valueOf[string](b, fmt.Sprintf("document.querySelector(%q).textContent", selector))
	}
	if loses, gets := content("#break-loses"), content("#break-next"); !strings.HasPrefix(loses, "ann/1, token ") || !strings.HasPrefix(gets, "bob/2") {
		t.Errorf("loses %q, gets it %q", loses, gets)
	}
	b.keys("\r") // no reason
	b.until(`document.querySelector("#break").open && document.querySelector("#reason").matches(":invalid")`)
	b.keys("the holder hangs\r")
	b.until(`!document.querySelector("#break").open && document.querySelector("#lock-done").textContent.startsWith("Broken. Lost it: ann/1, token ")`)
	if status := <-next; status != http.StatusOK {
		t.Errorf("the waiter got %d", status)
	}
	b.until(`document.querySelector("#holders").innerText.includes("bob/2")`)
	b.until(`document.querySelector("#events").innerText.includes("broken") && document.querySelector("#events").innerText.includes("the holder hangs")`)
	status, text, err := callServer(leasetest.Within(t), "PUT", at+"/v1/locks/orders%2F7/leases/"+lease, "app", `{}`)
	if err != nil || status != http.StatusGone {
		t.Errorf("the holder is told %d %s, %v", status, text, err)
	}
	b.keys(kb.Escape)
	b.until(`document.querySelector("#attention").innerText.includes("broken")`)

	// A token that is revoked ends its session.
	current.Store(policy(t, "app viewer"))
	b.until(`!document.querySelector("#sign-in").hidden && document.querySelector("#sign-in-error").textContent === "The session has ended."`)
	b.until(`document.querySelector("#overview").hidden`)
}

// Over TLS the session is a cookie that a browser takes only from this host and sends only over TLS, and only to pages of
// this host. With it a lock is broken, and after a reload the session is still there.
func TestBreakOverTLS(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	files := testserver.NewCertificates(t)
	pair, err := tls.LoadX509KeyPair(files.ServerCert, files.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	p := policy(t, "app viewer oncall")
	at := servePage(t, server.Config{
		TLS:       &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}},
		Authorize: p.Authorize,
		Identify:  p.Identify,
	})
	acquireAt(t, at, "app", "orders/7", wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: "ann/1"})
	b := openTab(t, at+"/?lock=orders%2F7", desk)
	b.signIn("oncall", true)
	b.until(`!document.querySelector("#break-open").hidden`)
	cookies := runCommand(b, network.GetCookies, network.GetCookiesParams{}).Cookies
	if len(cookies) != 1 {
		t.Fatalf("%d cookies", len(cookies))
	}
	if c := cookies[0]; c.Name != "__Host-holdfast" || !c.Secure || !c.HTTPOnly || c.SameSite != network.CookieSameSiteStrict || c.Path != "/" || c.Domain != "127.0.0.1" {
		t.Errorf("the cookie is %+v", c)
	}
	b.visit(at + "/?lock=orders%2F7")
	b.until(`document.querySelector("#who").textContent.startsWith("oncall, may break")`)
	b.click("#break-open")
	b.until(`document.querySelector("#break").open && document.activeElement.id === "reason"`)
	b.keys("the holder hangs\r")
	b.until(`document.querySelector("#lock-done").textContent.startsWith("Broken. Lost it: ann/1, token ")`)
}

// One of several holders loses the lock, and the others keep it.
func TestBreakOneOfSeveral(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	at := servePage(t, server.Config{})
	for _, who := range []string{"ann/1", "bob/2", "eve/3"} {
		acquireAt(t, at, "", "x", wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: who, Shared: true})
	}
	b := openTab(t, at+"/?lock=x", desk)
	b.until(`document.querySelectorAll("#holders button").length === 3`)
	b.click("#holders tr:nth-child(2) button")
	b.until(`document.querySelector("#break-loses").innerText.startsWith("bob/2") && document.querySelectorAll("#break-loses li").length === 1`)
	b.keys("it hangs\r")
	b.until(`document.querySelector("#lock-done").textContent.startsWith("Broken. Lost it: bob/2")`)
	b.until(`document.querySelectorAll("#holders button").length === 2`)
	if status, text, err := callServer(leasetest.Within(t), "GET", at+"/v1/locks/x", "", ""); err != nil || status != http.StatusOK ||
		!strings.Contains(text, "ann/1") || strings.Contains(text, "bob/2") || !strings.Contains(text, "eve/3") {
		t.Errorf("%d %s, %v", status, text, err)
	}
}

// The holders changed while the dialog was open: nobody loses the lock who was not shown.
func TestBreakShowsWhoLoses(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	at := servePage(t, server.Config{})
	lease := acquireAt(t, at, "", "x", wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: "ann/1"})
	next := waitAt(t, at, "", "x", "bob/2")
	b := openTab(t, at+"/?lock=x", desk)
	b.until(`document.querySelector("#queue").innerText.includes("bob/2")`)
	b.click("#break-open")
	b.until(`document.querySelector("#break-loses").innerText.startsWith("ann/1")`)
	// The page hears nothing of the hand-over until it reads the lock before the break.
	valueOf[bool](b, `window.unblocked = window.fetch, window.fetch = () => (window.blocked = true, new Promise(() => {})), true`)
	b.until("window.blocked") // the read that is due hangs, and no other begins
	if status, text, err := callServer(leasetest.Within(t), "DELETE", at+"/v1/locks/x/leases/"+lease, "", ""); err != nil || status != http.StatusNoContent {
		t.Fatalf("release: %d %s, %v", status, text, err)
	}
	if status := <-next; status != http.StatusOK {
		t.Fatalf("the waiter got %d", status)
	}
	valueOf[bool](b, `window.fetch = window.unblocked, true`)
	b.keys("why\r")
	b.until(`!document.querySelector("#break-changed").hidden && document.querySelector("#break-loses").innerText.startsWith("bob/2")`)
	if status, text, err := callServer(leasetest.Within(t), "GET", at+"/v1/locks/x", "", ""); err != nil || status != http.StatusOK || !strings.Contains(text, "bob/2") {
		t.Errorf("%d %s, %v", status, text, err)
	}
	b.keys("\r")
	b.until(`document.querySelector("#lock-done").textContent.startsWith("Broken. Lost it: bob/2")`)
}

// Who opens the page after an incident sees what was broken before, and why.
func TestEarlierLosses(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	at := servePage(t, server.Config{})
	incident := func(owner, reason string) {
		acquireAt(t, at, "", "x", wire.AcquireRequest{TTL: wire.Duration(time.Hour), Owner: owner})
		if status, text, err := callServer(leasetest.Within(t), "DELETE", at+"/v1/locks/x?reason="+reason, "", ""); err != nil || status != http.StatusOK {
			t.Fatalf("break: %d %s, %v", status, text, err)
		}
	}
	incident("ann/1", "it+hangs")
	b := openTab(t, at+"/", desk)
	b.until(`document.querySelector("#attention-lists").textContent.includes("broken")`)
	b.click(`#attention-lists a[data-lock="x"]`)
	b.until(`document.querySelector("#events").innerText.includes("it hangs") && document.querySelectorAll("#events tbody tr").length === 1`)
	// The same loss is not shown again when the page reads it again, and a new one is.
	incident("bob/2", "again")
	b.until(`document.querySelectorAll("#events tr.broken").length === 2`)
	valueOf[bool](b, `window.reads = 0, window.plain = window.fetch, window.fetch = (path, ...rest) => (path === "/v1/losses" && window.reads++, window.plain(path, ...rest)), true`)
	b.until("window.reads > 0")
	b.until(`document.querySelectorAll("#events tr.broken").length === 2`)
}
