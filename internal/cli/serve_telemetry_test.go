//go:build unix

package cli_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// receiver is a receiver of OTLP over gRPC.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	addr string

	mu  sync.Mutex
	got []*traces.ResourceSpans
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{addr: ln.Addr().String()}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(ln) })
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	return r
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, req.GetResourceSpans()...)
	return new(collector.ExportTraceServiceResponse), nil
}

// spans returns what has been received, by the names of the spans.
func (r *receiver) spans() map[string]*traces.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]*traces.Span)
	for _, rs := range r.got {
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				all[s.GetName()] = s
			}
		}
	}
	return all
}

// text returns all that has been received, as text.
func (r *receiver) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.got)
}

// traced starts a server with these variables, whose spans leave soon.
func traced(t *testing.T, env ...string) (*testserver.Process, string) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{
		Path: binary, Args: []string{"serve", "--listen", addr, "--backend", sqliteURL(t), "--log-format", "json"},
		Env: append(env, "OTEL_BSP_SCHEDULE_DELAY=50"),
	})
	p.Await(time.Minute, func(ctx context.Context) error { return ready(ctx, addr) })
	return p, "http://" + addr
}

// ask sends a request, and returns the answer with its body open.
func ask(t *testing.T, method, url, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func attributesOf(all []*common.KeyValue) map[string]string {
	got := make(map[string]string)
	for _, kv := range all {
		v := kv.GetValue()
		switch {
		case v.GetArrayValue() != nil:
			got[kv.GetKey()] = v.GetArrayValue().GetValues()[0].GetStringValue()
		case v.GetIntValue() != 0:
			got[kv.GetKey()] = strconv.FormatInt(v.GetIntValue(), 10)
		default:
			got[kv.GetKey()] = v.GetStringValue()
		}
	}
	return got
}

// A request becomes a span of its caller's trace with the pattern of its route, and with nothing that names a lock.
func TestTraces(t *testing.T) {
	t.Parallel()
	r := startReceiver(t)
	p, base := traced(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+r.addr)
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	ask(t, http.MethodPost, base+"/v1/locks/hidden-name", `{"ttl":"10m"}`, "Traceparent", "00-"+trace+"-"+parent+"-01", "X-Request-Id", "r-1")
	ask(t, http.MethodPost, base+"/v1/locks/hidden-name", `{"ttl":"10m"}`)
	ask(t, "HIDDEN-METHOD", base+"/hidden-path", "")
	ask(t, http.MethodGet, base+"/metrics", "")
	ask(t, http.MethodGet, base+"/readyz", "")
	ask(t, http.MethodHead, base+"/v1/locks?prefix=hidden-prefix", "")
	p.Terminate() // sends the last spans
	spans := r.spans()
	for name := range spans {
		if !slices.Contains([]string{"POST /v1/locks/{name}", "HEAD /v1/locks", "HTTP"}, name) {
			t.Errorf("a span has the name %q", name)
		}
	}
	if text := r.text(); strings.Contains(strings.ToLower(text), "hidden") {
		t.Errorf("the name of a lock, or a part of a path, is in %s", text)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.got) == 0 || len(spans) != 3 {
		t.Fatalf("received %v\n%s", spans, p.Log())
	}
	if about := attributesOf(r.got[0].GetResource().GetAttributes()); about["service.name"] != "holdfast" || about["service.version"] == "" {
		t.Errorf("the resource is %v", about)
	}
	var first *traces.Span
	statuses := make(map[string]int)
	for _, rs := range r.got {
		for _, s := range rs.GetScopeSpans()[0].GetSpans() {
			a := attributesOf(s.GetAttributes())
			statuses[a["http.request.method"]+" "+a["http.route"]+" "+a["http.response.status_code"]]++
			if a["http.response.header.x-request-id"] == "r-1" {
				first = s
			}
		}
	}
	for _, want := range []string{"POST /v1/locks/{name} 200", "POST /v1/locks/{name} 409", "HEAD /v1/locks 200", "_OTHER  404"} {
		if statuses[want] != 1 {
			t.Errorf("%d spans of %q, in %v", statuses[want], want, statuses)
		}
	}
	switch {
	case first == nil:
		t.Error("no span has the ID of the request")
	case hex.EncodeToString(first.GetTraceId()) != trace || hex.EncodeToString(first.GetParentSpanId()) != parent:
		t.Errorf("the caller is not the parent of %v", first)
	case first.GetKind() != traces.Span_SPAN_KIND_SERVER || first.GetEndTimeUnixNano() <= first.GetStartTimeUnixNano():
		t.Errorf("no span of a server: %v", first)
	}
}

// Nothing is sent unless the variables ask for it, and what cannot be done is in the log.
func TestTracesOff(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, c := range map[string]struct {
		env  []string // ADDR stands for the receiver
		says string   // in the log; empty: nothing about traces
	}{
		"not asked":     {env: []string{endpoint + "=", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://ADDR"}},
		"disabled":      {env: []string{endpoint + "=http://ADDR", "OTEL_SDK_DISABLED=true"}},
		"no exporter":   {env: []string{endpoint + "=http://ADDR", "OTEL_TRACES_EXPORTER=none"}},
		"other format":  {[]string{endpoint + "=http://ADDR", "OTEL_TRACES_EXPORTER=zipkin"}, "OTEL_TRACES_EXPORTER must be otlp"},
		"not over gRPC": {[]string{endpoint + "=http://ADDR", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, "OTEL_EXPORTER_OTLP_PROTOCOL must be grpc"},
		"with a path":   {[]string{endpoint + "=http://ADDR", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://u:secret@ADDR/v1/traces"}, "TRACES_ENDPOINT must be http"},
		"no URL":        {[]string{endpoint + "=ADDR"}, "OTLP_ENDPOINT must be http"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t)
			var env []string
			for _, v := range c.env {
				env = append(env, strings.ReplaceAll(v, "ADDR", r.addr))
			}
			p, base := traced(t, env...)
			if res := ask(t, http.MethodPost, base+"/v1/locks/n", `{"ttl":"10m"}`); res.StatusCode != http.StatusOK {
				t.Errorf("status %d", res.StatusCode)
			}
			p.Terminate()
			if text := r.text(); text != "[]" {
				t.Errorf("sent: %s", text)
			}
			objects(t, p.Log())
			if log := p.Log(); strings.Contains(log, "OTEL_") != (c.says != "") || !strings.Contains(log, c.says) || strings.Contains(log, "secret") {
				t.Errorf("the log, want %q:\n%s", c.says, log)
			}
		})
	}
}

// Event streams and long polls work with traces. A receiver that does not answer changes no answer.
func TestTracesStream(t *testing.T) {
	t.Parallel()
	r := startReceiver(t)
	p, base := traced(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://"+r.addr, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")
	stream := ask(t, http.MethodGet, base+"/v1/events", "")
	events := bufio.NewScanner(stream.Body)
	until := func(part string) {
		t.Helper()
		for events.Scan() {
			if strings.Contains(events.Text(), part) {
				return
			}
		}
		t.Fatalf("the stream ended before %q: %v", part, events.Err())
	}
	until("watching")
	lease := strings.Repeat("a", 32)
	if res := ask(t, http.MethodPost, base+"/v1/locks/n", `{"ttl":"10m","lease":"`+lease+`"}`); res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body)
		t.Fatalf("status %d: %s", res.StatusCode, body)
	}
	until(`"n"`) // is flushed before the request has ended
	granted := make(chan int, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/locks/n", strings.NewReader(`{"ttl":"10m","wait":"60s"}`))
		if err != nil {
			granted <- 0
			return
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			granted <- 0
			return
		}
		_ = res.Body.Close()
		granted <- res.StatusCode
	}()
	leasetest.Eventually(t, "it waits", func() bool {
		body, err := io.ReadAll(ask(t, http.MethodGet, base+"/v1/locks/n", "").Body)
		return err == nil && strings.Contains(string(body), `"waiters":[{`)
	})
	ask(t, http.MethodDelete, base+"/v1/locks/n/leases/"+lease, "")
	if code := <-granted; code != http.StatusOK {
		t.Errorf("the waiter got %d", code)
	}
	_ = stream.Body.Close()
	leasetest.Eventually(t, "the span of the stream comes when it has ended", func() bool { return r.spans()["GET /v1/events"] != nil })
	p.Terminate()
	if log := p.Log(); strings.Contains(log, "WARN") && strings.Contains(log, "export") {
		t.Errorf("the log:\n%s", log)
	}
}
