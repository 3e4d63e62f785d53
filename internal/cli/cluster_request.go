package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/remoteurl"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// nodes are the servers that a command for a cluster may use.
type nodes struct {
	bases  []*url.URL
	token  *remoteurl.Token
	client *http.Client
}

// nodes returns the nodes that the URL of the backend names.
func (a *app) nodes() (*nodes, error) {
	raw := a.backend
	if raw == "" {
		var err error
		if raw, err = backendOfEnvironment(); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(raw, "holdfast") {
			raw = "holdfast://127.0.0.1:" + remoteurl.DefaultPort
		}
	}
	t, err := remoteurl.Parse(withToken(raw))
	if err == nil {
		err = t.MayCarry()
	}
	if err != nil {
		return nil, fmt.Errorf("backend: %w", err)
	}
	transport := connect.NewHTTP(&net.Dialer{Timeout: 10 * time.Second})
	if dial := transport.DialContext; t.Socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "unix", t.Socket) }
	}
	transport.TLSClientConfig, transport.TLSHandshakeTimeout = t.TLS, 10*time.Second
	transport.ResponseHeaderTimeout, transport.DisableKeepAlives = time.Minute, true
	return &nodes{t.Bases, t.Token, &http.Client{Transport: transport, CheckRedirect: connect.Stay}}, nil
}

// clusterStatus returns the status of the first node that grants locks, else of the first that answers.
func (a *app) clusterStatus(ctx context.Context) (*embedded.Status, error) {
	n, err := a.nodes()
	if err != nil {
		return nil, err
	}
	var first *embedded.Status
	var failed error
	for _, base := range n.bases {
		s, err := n.of(base).change(ctx, "", nil)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, err
		case err != nil:
			failed = joined(failed, err)
		case s.Ready:
			return s, nil
		case first == nil:
			first = s
		}
	}
	if first != nil {
		return first, nil
	}
	return nil, failed
}

// of returns one of the nodes alone.
func (n *nodes) of(base *url.URL) *nodes { return &nodes{[]*url.URL{base}, n.token, n.client} }

// change requests a change, and returns the status of the node after it. Without a path it only returns the
// status.
func (n *nodes) change(ctx context.Context, path string, in any) (*embedded.Status, error) {
	method := http.MethodPost
	if path == "" {
		method = http.MethodGet
	}
	res, err := n.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, clusterProblem(res)
	}
	var s embedded.Status
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&s); err != nil {
		return nil, fmt.Errorf("decode the answer: %w", err)
	}
	return &s, nil
}

// send sends a request to the first node that answers. A change goes to another node only if there was no
// connection for it: it is not made twice.
func (n *nodes) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var failed error
	for _, base := range n.bases {
		res, err := n.sendTo(ctx, base, method, path, in)
		if err == nil {
			return res, nil
		}
		if why := context.Cause(ctx); why != nil {
			return nil, why
		}
		dial, ok := errors.AsType[*net.OpError](err)
		again := method == http.MethodGet || ok && dial.Op == "dial"
		if bad, ok := errors.AsType[*url.Error](err); ok {
			err = bad.Err // the URL contains no secret, and the operator knows it
		}
		failed = joined(failed, &statusError{exitAway, fmt.Errorf("%s does not answer: %w", base, err)})
		if !again {
			break
		}
	}
	return nil, failed
}

// joined adds an error to those of the nodes before, in one line. The exit status is that of the first.
func joined(before, err error) error {
	if before == nil {
		return err
	}
	return fmt.Errorf("%w; %w", before, err)
}

func (n *nodes) sendTo(ctx context.Context, base *url.URL, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, base.String()+"/v1/cluster"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	token, err := n.token.Get()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return n.client.Do(req)
}

// clusterProblem converts a refusal of the node to an error.
func clusterProblem(res *http.Response) error {
	var p wire.Problem
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&p); err != nil || p.Detail == "" {
		p.Detail = "status " + strconv.Itoa(res.StatusCode)
	}
	status := exitError1
	switch res.StatusCode {
	case http.StatusBadRequest:
		status = exitUsage
	case http.StatusServiceUnavailable:
		status = exitAway
	case http.StatusNotFound:
		p.Detail = "this server's locks are on another store, or it is of an earlier version: there is no cluster to manage"
	}
	return &statusError{status, errors.New(p.Detail)}
}
