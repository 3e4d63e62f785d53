package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

type object = map[string]any

// document is the OpenAPI document of a running server.
type document struct {
	root object
}

func readDocument(t *testing.T, a *api) document {
	t.Helper()
	got := a.call("GET", "/openapi.json", "")
	v, err := number(got.body)
	root, ok := v.(object)
	if err != nil || !ok || got.status != 200 {
		t.Fatalf("status %d: %v", got.status, err)
	}
	return document{root}
}

// at descends into the document, by keys.
func (d document) at(keys ...string) any {
	var v any = d.root
	for _, k := range keys {
		o, ok := d.follow(v).(object)
		if !ok {
			return nil
		}
		v = o[k]
	}
	return d.follow(v)
}

// follow resolves a $ref.
func (d document) follow(v any) any {
	for {
		o, ok := v.(object)
		if !ok {
			return v
		}
		ref, ok := o["$ref"].(string)
		if !ok {
			return v
		}
		v = d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
}

// check validates a value against a schema. It supports the part of JSON Schema that the
// document uses, and refuses fields that the schema does not name.
func (d document) check(schema, v any, where string) error {
	s, ok := d.follow(schema).(object)
	if !ok {
		return fmt.Errorf("%s: there is no schema", where)
	}
	for key := range s {
		switch key {
		case "type", "description", "default", "properties", "required", "additionalProperties", "items", "enum", "pattern", "format",
			"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "oneOf", "allOf":
		default:
			return fmt.Errorf("%s: the test does not know the keyword %q", where, key)
		}
	}
	var errs []error
	if parts, ok := s["allOf"].([]any); ok {
		for _, part := range parts {
			errs = append(errs, d.checkPart(part, v, where))
		}
		return errors.Join(errs...)
	}
	if choices, ok := s["oneOf"].([]any); ok {
		fits := 0
		for _, c := range choices {
			err := d.check(c, v, where)
			if err == nil {
				fits++
			}
			errs = append(errs, err)
		}
		if fits != 1 {
			return fmt.Errorf("%s: %d of oneOf fit: %w", where, fits, errors.Join(errs...))
		}
		return nil
	}
	return d.checkType(s, v, where)
}

// checkPart is check for a part of allOf that says only what is required.
func (d document) checkPart(part, v any, where string) error {
	s, _ := d.follow(part).(object)
	if s["properties"] != nil {
		return d.check(part, v, where)
	}
	o, _ := v.(object)
	return required(s, o, where)
}

func required(s, o object, where string) error {
	names, _ := s["required"].([]any)
	for _, name := range names {
		if _, ok := o[fmt.Sprint(name)]; !ok {
			return fmt.Errorf("%s: %v is missing", where, name)
		}
	}
	return nil
}

func (d document) checkType(s object, v any, where string) error {
	switch s["type"] {
	case "object":
		o, ok := v.(object)
		if !ok {
			return fmt.Errorf("%s: %v is no object", where, v)
		}
		if s["properties"] == nil {
			return nil
		}
		props, _ := s["properties"].(object)
		errs := []error{required(s, o, where)}
		for name, val := range o {
			sub, ok := props[name]
			if !ok {
				errs = append(errs, fmt.Errorf("%s: %s is not in the schema", where, name))
				continue
			}
			errs = append(errs, d.check(sub, val, where+"."+name))
		}
		return errors.Join(errs...)
	case "array":
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s: %v is no array", where, v)
		}
		var errs []error
		for i, item := range list {
			errs = append(errs, d.check(s["items"], item, fmt.Sprintf("%s[%d]", where, i)))
		}
		return errors.Join(errs...)
	case "string":
		return checkString(s, v, where)
	case "integer":
		n, ok := v.(json.Number)
		if !ok {
			return fmt.Errorf("%s: %v is no number", where, v)
		}
		i, err := strconv.ParseInt(n.String(), 10, 64)
		if low, ok := s["minimum"].(json.Number); err == nil && ok {
			if least, e := low.Int64(); e != nil || i < least {
				err = fmt.Errorf("%d is below %d", i, least)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return fmt.Errorf("%s: %v is no boolean", where, v)
		}
	default:
		return fmt.Errorf("%s: the test does not know the type %v", where, s["type"])
	}
	return nil
}

func checkString(s object, v any, where string) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("%s: %v is no string", where, v)
	}
	if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(text) {
		return fmt.Errorf("%s: %q does not match %s", where, text, p)
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, any(text)) {
		return fmt.Errorf("%s: %q is none of %v", where, text, enum)
	}
	if low, ok := s["minLength"].(json.Number); ok && low.String() == "1" && text == "" {
		return fmt.Errorf("%s: is empty", where)
	}
	return nil
}

// number decodes JSON with numbers unchanged.
func number(b []byte) (any, error) {
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

// operations returns the operations of the document: "POST /v1/locks/{name} 200".
func (d document) operations() map[string]bool {
	out := make(map[string]bool)
	paths, _ := d.at("paths").(object)
	for path, ops := range paths {
		o, _ := ops.(object)
		for method := range o {
			if method == "parameters" {
				continue
			}
			responses, _ := d.at("paths", path, method, "responses").(object)
			for status := range responses {
				out[strings.ToUpper(method)+" "+path+" "+status] = false
			}
		}
	}
	return out
}

// verify validates an answer against the document.
func (d document) verify(method, pattern string, got answer) error {
	res, ok := d.at("paths", pattern, strings.ToLower(method), "responses", strconv.Itoa(got.status)).(object)
	if !ok {
		return fmt.Errorf("status %d is not in the document: %s", got.status, got.body)
	}
	headers, _ := res["headers"].(object)
	for name, h := range headers {
		o, _ := h.(object)
		if o["required"] == true && got.header.Get(name) == "" {
			return fmt.Errorf("status %d: no header %s", got.status, name)
		}
	}
	content, _ := res["content"].(object)
	if len(content) == 0 {
		if len(got.body) > 0 {
			return fmt.Errorf("status %d has a body: %s", got.status, got.body)
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(got.header.Get("Content-Type"))
	if err != nil {
		return err
	}
	media, ok := content[kind].(object)
	if !ok {
		return fmt.Errorf("status %d: Content-Type %s is not in the document", got.status, kind)
	}
	if !strings.Contains(kind, "json") {
		return nil
	}
	if kind == wire.ContentTypeLines {
		var errs []error
		for i, line := range bytes.Split(bytes.TrimSuffix(got.body, []byte("\n")), []byte("\n")) {
			v, err := number(line)
			errs = append(errs, err, d.check(media["schema"], v, fmt.Sprintf("line %d", i)))
		}
		return errors.Join(errs...)
	}
	v, err := number(got.body)
	if err != nil {
		return err
	}
	if p, ok := v.(object); ok && kind == "application/problem+json" && fmt.Sprint(p["status"]) != strconv.Itoa(got.status) {
		return fmt.Errorf("status %d, and %v in the problem", got.status, p["status"])
	}
	return d.check(media["schema"], v, "body")
}

// unsupportive is a real backend that declares no optional capability.
type unsupportive struct{ backend.Backend }

func (b unsupportive) Capabilities() backend.Capabilities {
	c := b.Backend.Capabilities()
	c.Watch, c.Shared, c.Permits = false, false, false
	return c
}

// TestOpenAPI compares the document with the server: every route is in it, every status of it
// occurs, and every answer matches its schema.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Version: "1.2.3-test"})
	d := readDocument(t, a)
	if v := d.at("info", "version"); v != "1.2.3-test" {
		t.Errorf("version %v", v)
	}
	var table []string
	for _, r := range server.Routes() {
		table = append(table, r.Method+" "+r.Pattern)
	}
	seen := d.operations()
	var documented []string
	for op := range seen {
		documented = append(documented, op[:strings.LastIndexByte(op, ' ')])
	}
	slices.Sort(documented)
	slices.Sort(table)
	if documented = slices.Compact(documented); !slices.Equal(documented, table) {
		t.Fatalf("the document has\n%s\nthe server has\n%s", strings.Join(documented, "\n"), strings.Join(table, "\n"))
	}
	note := func(method, pattern string, got answer) {
		t.Helper()
		op := fmt.Sprintf("%s %s %d", method, pattern, got.status)
		if err := d.verify(method, pattern, got); err != nil {
			t.Errorf("%s: %v", op, err)
			return
		}
		seen[op] = true
	}
	good(a, note)
	bad(a, note)
	refused(t, note)
	away(t, note)
	unsupported(t, note)
	named := start(t, server.Config{Authorize: operatorsBreak, Identify: caller})
	note("POST", sessionPath, named.call("POST", sessionPath, `{"break":true}`, "Authorization", "op"))
	slow(t, note)
	crowded(t, note)
	for _, op := range slices.Sorted(maps.Keys(seen)) {
		if !seen[op] {
			t.Errorf("%s is in the document and was not seen", op)
		}
	}
}

type noter func(method, pattern string, got answer)

const (
	lockPattern  = "/v1/locks/{name}"
	leasePattern = "/v1/locks/{name}/leases/{lease}"
	renewPattern = "/v1/leases/renew"
	batchPattern = "/v1/leases/batch"
	sessionPath  = "/v1/session"
)

func good(a *api, note noter) {
	const lease = "my-own-lease-0001"
	try := func(method, pattern, query, body string) {
		path := strings.NewReplacer("{name}", "x", "{lease}", lease).Replace(pattern)
		note(method, pattern, a.call(method, path+query, body, "Holdfast-Waiter-Leases", "true"))
	}
	note("GET", "/openapi.json", a.call("GET", "/openapi.json", ""))
	for _, p := range []string{"/", "/healthz", "/readyz", "/metrics", sessionPath} {
		try("GET", p, "", "")
	}
	for _, name := range []string{"page.css", "main.js", "none"} {
		note("GET", "/dashboard/{file}", a.call("GET", "/dashboard/"+name, ""))
	}
	try("POST", sessionPath, "", "") // unsupported without a policy
	try("DELETE", sessionPath, "", "")
	try("POST", lockPattern, "", `{"owner":"o","note":"n","lease":"`+lease+`"}`)
	wait := a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	a.waiters("x", 1)
	try("POST", lockPattern, "", `{}`) // held
	try("GET", lockPattern, "", "")
	try("GET", "/v1/locks", "?prefix=x&limit=1", "")
	try("PUT", leasePattern, "", `{"ttl":"1m"}`)
	try("POST", renewPattern, "", `{"leases":[{"name":"x","lease":"`+lease+`"},{"name":"x","lease":"bad"},{"name":"x","lease":"0000000000000000"}]}`)
	try("POST", batchPattern, "", `{"acquire":[{"name":"b","lease":"my-own-lease-0002"},{"name":"x","lease":"my-own-lease-0003"}],`+
		`"release":[{"name":"b","lease":"my-own-lease-0004"},{"name":"b","lease":"bad"}]}`)
	try("POST", batchPattern, "", `{"release":[{"name":"b","lease":"my-own-lease-0002"}]}`)
	try("DELETE", leasePattern, "", "")
	note("POST", lockPattern, wait.get(a.t))
	try("DELETE", leasePattern, "", "") // lost
	try("PUT", leasePattern, "", "")
	try("POST", lockPattern, "", `{"lease":"`+lease+`"}`)
	try("DELETE", lockPattern, "?reason=r", "")
	try("GET", lockPattern, "", "")
	try("GET", "/v1/locks", "", "")
	s := listen(a.t, a, "/v1/events")
	note("GET", "/v1/events", answer{status: 200, header: s.header})
	d := readDocument(a.t, a)
	for _, kind := range []string{"watching", "acquired"} {
		if kind == "acquired" {
			a.take("y", `{}`)
		}
		got, data := s.event(a.t)
		v, err := number([]byte(data))
		if err == nil {
			err = d.check(object{"$ref": "#/components/schemas/Event"}, v, "event")
		}
		if got != kind || err != nil {
			a.t.Errorf("event %s %s: %v", got, data, err)
		}
	}
}

func bad(a *api, note noter) {
	big := `{"note":"` + strings.Repeat("n", 70<<10) + `"}`
	for _, r := range server.Routes() {
		if r.Verb == server.Status {
			continue
		}
		path := somePath(r.Pattern)
		body := ""
		switch r.Method {
		case http.MethodPost, http.MethodPut:
			body = `{"x":1}`
			note(r.Method, r.Pattern, a.call(r.Method, path, big))
			note(r.Method, r.Pattern, a.call(r.Method, path, "x", "Content-Encoding", "gzip"))
		default:
			path += "?unknown=1"
		}
		note(r.Method, r.Pattern, a.call(r.Method, path, body))
	}
	a.take("limited", `{"limit":3}`)
	note("POST", lockPattern, a.call("POST", lockPath("limited"), `{"limit":4}`))
}

func refused(t *testing.T, note noter) {
	for _, err := range []error{server.ErrUnauthenticated, errors.New("no")} {
		a := start(t, server.Config{Authorize: func(string, server.Action) error { return err }})
		for _, r := range server.Routes() {
			note(r.Method, r.Pattern, a.call(r.Method, somePath(r.Pattern), ""))
		}
	}
}

func away(t *testing.T, note noter) {
	a := start(t, server.Config{Timeout: 50 * time.Millisecond, Limits: server.Limits{Events: 1}})
	first := listen(t, a, "/v1/events")
	first.next(t, "watching")
	a.b.away.Store(true)
	for _, r := range server.Routes() {
		if r.Verb == server.Status && r.Pattern != "/readyz" || r.Verb == server.RenewMany || r.Verb == server.Batch {
			continue
		}
		note(r.Method, r.Pattern, a.call(r.Method, somePath(r.Pattern), ""))
	}
	// The batch itself is refused only by a server that stops.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.srv.Close(ctx); err != nil {
		t.Log(err) // the backend is unavailable
	}
	note("POST", renewPattern, a.call("POST", renewPattern, `{}`))
	note("POST", batchPattern, a.call("POST", batchPattern, `{}`))
	note("POST", lockPattern, a.call("POST", lockPath("x"), `{}`))
}

func unsupported(t *testing.T, note noter) {
	a := serve(t, &faulty{Backend: unsupportive{memlock.New()}}, server.Config{})
	note("POST", lockPattern, a.call("POST", lockPath("x"), `{"shared":true}`))
	note("GET", "/v1/events", a.call("GET", "/v1/events", ""))
	b := serve(t, &faulty{Backend: blind{memlock.New()}}, server.Config{})
	note("GET", "/v1/locks", b.call("GET", "/v1/locks", ""))
	note("GET", lockPattern, b.call("GET", lockPath("x"), ""))
	note("DELETE", lockPattern, b.call("DELETE", lockPath("x"), ""))
}

// slow sends half a body.
func slow(t *testing.T, note noter) {
	a := start(t, server.Config{Limits: server.Limits{ReadTimeout: 100 * time.Millisecond}})
	for _, r := range server.Routes() {
		if r.Method != http.MethodPost && r.Method != http.MethodPut {
			continue
		}
		note(r.Method, r.Pattern, a.half(r.Method, somePath(r.Pattern)))
	}
}

func crowded(t *testing.T, note noter) {
	a := start(t, server.Config{Limits: server.Limits{WaitersPerLock: 1}})
	a.take("x", `{}`)
	l := a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	a.waiters("x", 1)
	note("POST", lockPattern, a.call("POST", lockPath("x"), `{"wait":"60s"}`))
	l.cancel()
}
