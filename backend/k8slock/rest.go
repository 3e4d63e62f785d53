package k8slock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// object is the part of a Lease of coordination.k8s.io/v1 that is used here. Fields of other
// programs are carried along as they came.
type object struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Finalizers      json.RawMessage   `json:"finalizers,omitempty"`
	OwnerReferences json.RawMessage   `json:"ownerReferences,omitempty"`
	// ManagedFields tell who wrote when, by the clock of the API server that accepted the write.
	ManagedFields []struct {
		Time time.Time `json:"time"`
	} `json:"managedFields,omitempty"`
}

type spec struct {
	HolderIdentity       string          `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int32           `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          *microTime      `json:"acquireTime,omitempty"`
	RenewTime            *microTime      `json:"renewTime,omitempty"`
	LeaseTransitions     int32           `json:"leaseTransitions,omitempty"`
	Strategy             json.RawMessage `json:"strategy,omitempty"`
	PreferredHolder      json.RawMessage `json:"preferredHolder,omitempty"`
}

// microTime is a time as Kubernetes writes it in a Lease.
type microTime struct{ time.Time }

func (t microTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z07:00"`)), nil
}

// version returns the revision of the store that wrote the object. The revisions of one store only
// grow, across objects, and even if an object is deleted and made again.
func (o *object) version() uint64 {
	v, _ := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	return v
}

// clone returns a copy whose maps are its own.
func (o *object) clone() *object {
	c := *o
	c.Metadata.Labels = cloneMap(o.Metadata.Labels)
	c.Metadata.Annotations = cloneMap(o.Metadata.Annotations)
	c.Metadata.ManagedFields = nil // the API server keeps them
	return &c
}

// written returns when the object was last written, by the clock of the API server that accepted
// the write, or the zero time if the object does not say.
func (o *object) written() time.Time {
	var last time.Time
	for _, f := range o.Metadata.ManagedFields {
		if f.Time.After(last) {
			last = f.Time
		}
	}
	return last
}

func cloneMap(m map[string]string) map[string]string {
	c := make(map[string]string, len(m)+1)
	maps.Copy(c, m)
	return c
}

// statusError is what the API server returns instead of an object.
type statusError struct {
	code       int
	reason     string
	message    string
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("the API server answered %d", e.code)
	}
	return fmt.Sprintf("the API server answered %d: %s", e.code, e.message)
}

// isStatus reports whether err is one of the answers. For a 404, the API server itself must have
// said that the object does not exist: a proxy in front of it may answer 404 to everything.
func isStatus(err error, codes ...int) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && slices.Contains(codes, s.code) && (s.code != http.StatusNotFound || s.reason == "NotFound")
}

// restAPI sends requests to the API server. The typed client of client-go has no use here: it hides
// the Date of an answer, drops fields that it does not know, and retries by its own rules.
type restAPI struct {
	client *http.Client
	leases string // the URL of the collection
	clock  *clock
}

// maxAnswer bounds what is read of one answer: no list of Leases is that long.
const maxAnswer = 1 << 30

func (r *restAPI) get(ctx context.Context, name string) (*object, error) {
	return r.one(ctx, http.MethodGet, "/"+name, nil)
}

func (r *restAPI) create(ctx context.Context, o *object) (*object, error) {
	return r.one(ctx, http.MethodPost, "", o)
}

// update replaces the object if it is still the version that o was made of.
func (r *restAPI) update(ctx context.Context, o *object) (*object, error) {
	return r.one(ctx, http.MethodPut, "/"+o.Metadata.Name, o)
}

// remove deletes the object with that UID, and, if version is not empty, only that version of it.
func (r *restAPI) remove(ctx context.Context, name, uid, version string) error {
	conditions := map[string]string{"uid": uid}
	if version != "" {
		conditions["resourceVersion"] = version
	}
	body, err := r.send(ctx, http.MethodDelete, "/"+name, map[string]any{"preconditions": conditions})
	if err != nil {
		return err
	}
	return drain(body)
}

// selector chooses the objects of this package.
const selector = "labelSelector=" + "holdfast.io%2Fkind"

// list returns all objects, and the version of the list.
func (r *restAPI) list(ctx context.Context) ([]*object, string, error) {
	body, err := r.send(ctx, http.MethodGet, "?"+selector, nil)
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Metadata metadata  `json:"metadata"`
		Items    []*object `json:"items"`
	}
	err = decode(body, &page)
	return page.Items, page.Metadata.ResourceVersion, err
}

// watch opens the stream of events after the version. The caller closes it.
func (r *restAPI) watch(ctx context.Context, version string, d time.Duration) (io.ReadCloser, error) {
	return r.send(ctx, http.MethodGet, "?watch=1&allowWatchBookmarks=true&"+selector+
		"&resourceVersion="+url.QueryEscape(version)+"&timeoutSeconds="+strconv.Itoa(int(d.Seconds())), nil)
}

func (r *restAPI) one(ctx context.Context, method, path string, in any) (*object, error) {
	body, err := r.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	var o object
	if err := decode(body, &o); err != nil {
		return nil, err
	}
	if o.version() == 0 {
		return nil, fmt.Errorf("the API server returned the resource version %q, which is not a number", o.Metadata.ResourceVersion)
	}
	return &o, nil
}

// send sends a request and returns the body of a 2xx answer, which the caller closes.
func (r *restAPI) send(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.leases+path, body)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, req.URL.Host, bare(err))
	}
	r.clock.saw(res.Header.Get("Date"))
	if res.StatusCode < http.StatusMultipleChoices {
		return res.Body, nil
	}
	defer func() { _ = res.Body.Close() }()
	return nil, refusal(res)
}

// bare returns an error of net/http without the URL.
func bare(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// refusal reads why the API server refused.
func refusal(res *http.Response) error {
	e := &statusError{code: res.StatusCode}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		e.retryAfter = time.Duration(n) * time.Second
	}
	var status struct {
		Message string `json:"message"`
		Reason  string `json:"reason"`
	}
	const most = 16 << 10
	b, _ := io.ReadAll(io.LimitReader(res.Body, most)) // a body that cannot be read is not reported
	if json.Unmarshal(b, &status) == nil {
		const line = 300
		e.message, e.reason = status.Message[:min(len(status.Message), line)], status.Reason
	} else if bytes.Contains(b, []byte(connect.HTTPToTLS)) {
		e.message = connect.HTTPToTLS
	}
	return e
}

func decode(body io.ReadCloser, to any) error {
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(to); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	_, err := io.Copy(io.Discard, io.LimitReader(body, 1)) // the end, so that the connection is reused
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

func drain(body io.ReadCloser) error {
	defer func() { _ = body.Close() }()
	const most = 64 << 10
	if _, err := io.Copy(io.Discard, io.LimitReader(body, most)); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
