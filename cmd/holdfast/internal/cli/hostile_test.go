package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// evil sets a terminal's title, erases it, colors, reverses the direction of the text that
// follows, begins a line and a column of its own, and has a C1 control, a soft hyphen and a
// tag.
const evil = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mfake\u202eRTL\u2066\u009b31m\u00ad\U000E0001\x7f\r\n holdfast: all fine\tcolumn"

// hostile is a server that answers with evil in every text field.
func hostile(t *testing.T) string {
	t.Helper()
	const since, until = "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"
	holder := map[string]any{"lease": strings.Repeat("A", 26), "owner": evil, "token": 7, "permits": 1, "note": evil, "since": since, "expires_at": until}
	lock := map[string]any{
		"name": evil, "limit": 1, "holders": []any{holder},
		"waiters": []any{map[string]any{"owner": evil, "permits": 1, "note": evil, "since": since, "position": 1}},
	}
	answer := func(w http.ResponseWriter, status int, kind string, body any) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	problem := func(w http.ResponseWriter, status int, kind string) {
		answer(w, status, "application/problem+json", map[string]any{
			"type": "urn:holdfast:problem:" + kind, "title": evil, "status": status, "detail": evil,
			"field": evil, "value": evil, "bound": evil, "holders": []any{holder}, "position": 1,
		})
	}
	caps := map[string]any{
		"shared": true, "permits": true, "fifo": true, "push": true, "watch": true, "durable": true, "token_kind": evil,
		"min_ttl": "1s", "max_ttl": "24h", "expiry_lag": "1s", "max_wait": "60s",
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "application/json", map[string]any{"status": "ready", "backend": evil, "capabilities": caps})
	})
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, _ *http.Request) {
		event, _ := json.Marshal(map[string]any{"name": evil, "lease": holder["lease"], "owner": evil, "token": 7, "reason": evil, "at": since})
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("event: watching\ndata: {\"at\":\"" + since + "\"}\n\nevent: broken\ndata: " + string(event) + "\n\n"))
	})
	mux.HandleFunc("GET /v1/locks", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "application/json", map[string]any{"locks": []any{lock}})
	})
	mux.HandleFunc("GET /v1/locks/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("name") == "err" {
			problem(w, http.StatusServiceUnavailable, "unavailable")
			return
		}
		answer(w, http.StatusOK, "application/json", lock)
	})
	mux.HandleFunc("POST /v1/locks/{name}", func(w http.ResponseWriter, r *http.Request) {
		switch r.PathValue("name") {
		case "held":
			problem(w, http.StatusConflict, "held")
		case "invalid":
			problem(w, http.StatusBadRequest, "invalid")
		default:
			problem(w, http.StatusForbidden, "forbidden")
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { problem(w, http.StatusForbidden, "forbidden") })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return "holdfast://" + strings.TrimPrefix(srv.URL, "http://")
}

// interruptedAt returns the command, which gets Ctrl-C when it has printed the text.
func interruptedAt(t *testing.T, cmd *exec.Cmd, text string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	same := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	same.Env, same.WaitDelay = cmd.Env, cmd.WaitDelay
	same.Cancel = func() error { return same.Process.Signal(os.Interrupt) }
	same.Stdout = &trigger{text: text, pull: cancel}
	return same
}

// trigger keeps its input, and calls pull when that contains the text.
type trigger struct {
	got  bytes.Buffer
	text string
	pull func()
}

func (w *trigger) String() string { return w.got.String() }

func (w *trigger) Write(p []byte) (int, error) {
	n, err := w.got.Write(p)
	if strings.Contains(w.got.String(), w.text) {
		w.pull()
	}
	return n, err
}

// unseen returns the first part of the text that a terminal would obey or hide.
func unseen(text string) (string, bool) {
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD") || !unicode.IsGraphic(r) && r != '\n' && r != '\t' {
			return text[max(0, i-20):min(len(text), i+20)], true
		}
	}
	return "", false
}

// TestHostileServer: no answer of a server controls the terminal, hides, or looks like output
// of the command itself.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	url := hostile(t)
	lease := strings.Repeat("A", 26)
	for name, args := range map[string][]string{
		"ls":              {"ls"},
		"show":            {"show", "x"},
		"watch":           {"watch"}, // runs until it is interrupted
		"doctor":          {"doctor"},
		"acquire":         {"acquire", "x"},
		"acquire held":    {"acquire", "--try", "held"},
		"acquire invalid": {"acquire", "invalid"},
		"run":             {"run", "--try", "held", "--", "true"},
		"run forbidden":   {"run", "x", "--", "true"},
		"renew":           {"renew", "x", lease},
		"release":         {"release", "x", lease},
		"break":           {"break", "x", "--yes"},
		"elect":           {"elect", "invalid", "--once", "--", "true"},
		"init-store":      {"init-store"},
		"complete":        {"__complete", "show", ""},
		"an error":        {"show", "err", "--verbose"},
	} {
		for _, form := range []string{"text", "json"} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				args := args
				if form == "json" {
					args = append([]string{"--json"}, args...)
				}
				cmd := command(t, url, args...)
				if name == "watch" {
					cmd = interruptedAt(t, cmd, "broken")
				}
				got := run(t, cmd)
				if got.out+got.stderr == "" {
					t.Fatal("it says nothing")
				}
				for where, text := range map[string]string{"standard output": got.out, "standard error": got.stderr} {
					if what, bad := unseen(text); bad {
						t.Errorf("%s has %q", where, what)
					}
					for line := range strings.Lines(text) {
						if strings.HasPrefix(strings.TrimSpace(line), "holdfast: all fine") || strings.HasPrefix(line, "column") {
							t.Errorf("%s has a line that the server wrote: %q", where, line)
						}
					}
				}
			})
		}
	}
}

// TestHostileJSON: escaped text is still the same text for a program.
func TestHostileJSON(t *testing.T) {
	t.Parallel()
	got := run(t, command(t, hostile(t), "show", "x", "--json"))
	var lock struct {
		Holders []struct{ Owner, Note string }
	}
	if err := json.Unmarshal([]byte(got.out), &lock); err != nil || len(lock.Holders) != 1 || lock.Holders[0].Owner != evil || lock.Holders[0].Note != evil {
		t.Errorf("%v: %s", err, got.out)
	}
}

// TestHostileTerminal: the same on a terminal.
func TestHostileTerminal(t *testing.T) {
	t.Parallel()
	x := openTerminal(t, hostile(t))
	x.types("stty cols 500; holdfast ls; holdfast run --wait 2s held -- true; echo done.\r")
	await(t, 30*time.Second, "the commands have ended", func() bool { return strings.Contains(x.text(), "\ndone.") })
	if !strings.Contains(x.text(), `\u001b]0;PWNED`) {
		t.Error("the screen does not show the text of the server")
	}
	for _, what := range []string{"\x1b]0;", "\x1b[31m", "\u202e", "\u009b", "\r\n holdfast: all fine"} {
		if strings.Contains(x.text(), what) {
			t.Errorf("the screen got %q", what)
		}
	}
}

// TestUnprintable: harmless text is unchanged.
func TestUnprintable(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	const note = "жди, 待つ　30 %, emoji 🔒, \"quoted\" \\u202e"
	if got := run(t, command(t, url, "acquire", "--ttl", "1m", "--note", note, "x")); got.status != 0 {
		t.Fatal(got.stderr)
	}
	if got := run(t, command(t, url, "show", "x")); !strings.Contains(got.out, note) {
		t.Errorf("%s", got.out)
	}
}
