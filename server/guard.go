package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// ErrUnauthenticated is returned by Config.Identify and Config.Authorize for a caller of unknown identity. It is
// 401.
var ErrUnauthenticated = errors.New("authentication is required")

// ErrExpired is the ErrUnauthenticated of a token that was valid until it expired. A request that arrived before and
// waited is still served.
var ErrExpired = fmt.Errorf("%w: the token has expired", ErrUnauthenticated)

// ServeHTTP is the only entry: every request passes the guard, whatever its route.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	arrived := time.Now()
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	// The deadline of the previous answer on this connection does not apply to this one. In
	// HTTP/2 each request has its own, and setting one wakes the goroutine that serves all of
	// them.
	if req.ProtoMajor < 2 {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return // the connection is gone
		}
	}
	c, _ := req.Context().Value(connKey{}).(*conn)
	r := &request{Request: req, arrived: arrived, conn: c, answer: answer{ResponseWriter: w, store: s.storeID}, id: requestID(req), principal: s.unidentified(req)}
	h.Set(wire.HeaderRequestID, r.id)
	defer s.answered(r)
	defer r.unpin()
	s.guard(&r.answer, r)
}

// unidentified returns what stands for the principal before Config.Identify was called.
func (s *Server) unidentified(req *http.Request) string {
	if s.cfg.Identify != nil {
		return ""
	}
	return req.RemoteAddr
}

// guard decides whether a request is served. The order matters: errors in the request itself
// are reported before it is authorised, and it is authorised before the body is read.
func (s *Server) guard(w http.ResponseWriter, r *request) {
	forged := s.resume(r)
	if err := cmp.Or(s.checkSite(r.Request), forged); err != nil {
		s.fail(w, r, s.refused(r, Action{}, http.StatusForbidden, err))
		return
	}
	s.dispatch(w, r)
}

// serve is the guard of a request that has a route.
func (s *Server) serve(w http.ResponseWriter, r *request) {
	if err := s.check(r); err != nil {
		s.fail(w, r, err)
		return
	}
	r.conn.touch()
	// The read deadline was for the request. A long poll or a stream outlives it, and must not
	// look like a client that hung up. In HTTP/2 the deadline covers only the body.
	if r.ProtoMajor < 2 {
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return // the connection is gone
		}
	}
	if l := s.admission.of(r.route.verb); l != nil {
		leave, err := s.admit(r.Context(), l)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		defer leave()
	}
	r.route.handle(s, w, r)
}

// check finds out who sent the request, and whether it is to be served, and reads its body.
func (s *Server) check(r *request) error {
	verb := r.route.verb
	if err := r.checkPath(); err != nil {
		return err
	}
	if err := r.decodeQuery(); err != nil {
		return err
	}
	if verb != Status || r.route.pattern == metricsPath {
		s.identify(r)
	}
	if err := s.authorize(r, r.action()); err != nil {
		return err
	}
	if err := s.checkStore(r.Request); err != nil {
		return err
	}
	if s.stopping.Err() != nil && verb != Status {
		return errStopping
	}
	switch verb { //nolint:exhaustive // the others are requests for something new
	case Renew, Release, RenewMany, Batch, Status: // each acquire of a batch is counted on its own
	default:
		if err := s.checkRate(r); err != nil {
			return err
		}
	}
	r.inStore = r.stored(r.named)
	return s.readBody(r)
}

// identify finds out who sent the request, and with that the mark of its leases.
func (s *Server) identify(r *request) {
	if s.cfg.Identify == nil {
		return
	}
	r.principal, r.unknown = s.cfg.Identify(r.Request)
	if s.cfg.Authorize != nil {
		r.mark = markOf(r.principal)
	}
}

var errAnother = fmt.Errorf("%w: the credentials are now those of another principal", ErrUnauthenticated)

// identifyAgain checks whether the sender of a request that has waited is still the same principal. Nothing changes while
// that cannot be verified.
func (s *Server) identifyAgain(r *request) {
	if s.cfg.Identify == nil {
		return
	}
	who, err := s.cfg.Identify(r.Request)
	if err == nil && who != r.principal {
		err = errAnother
	}
	if !errors.Is(err, backend.ErrUnavailable) {
		r.unknown = err
	}
}

// authorize calls Config.Authorize.
func (s *Server) authorize(r *request, a Action) error {
	var err error
	if s.cfg.Authorize != nil {
		err = s.decide(r, a)
	}
	if err == nil || errors.Is(err, backend.ErrUnavailable) { // otherwise who asks is not known
		return err
	}
	status := http.StatusForbidden
	if errors.Is(err, ErrUnauthenticated) {
		status = http.StatusUnauthorized
	}
	return s.refused(r, a, status, err)
}

// decide calls Config.Authorize for what the sign-in of the request, if it has one, may ask for. A stream may
// outlive its sign-in.
func (s *Server) decide(r *request, a Action) error {
	if r.signIn != nil {
		if _, open := s.signIns.find(r.signIn.key); !open {
			return ErrUnauthenticated
		}
		if !r.signIn.allows(a) {
			return errReadsOnly
		}
	}
	who := r.principal
	if s.cfg.Identify == nil || r.unknown != nil {
		who = ""
	}
	err := s.cfg.Authorize(who, a)
	if r.unknown != nil && errors.Is(err, ErrUnauthenticated) {
		return r.unknown
	}
	return err
}

// refused counts a request, or a part of one, that was refused, and returns the error for its client.
func (s *Server) refused(r *request, a Action, status int, err error) error {
	s.metrics.AuthFailed()
	s.audit.refuse(r, a, err)
	return &refusal{status, err}
}

// allowed reports whether the caller may see the lock. It does not count a refusal: lists and
// streams leave the lock out.
func (s *Server) allowed(r *request, name string) bool {
	return s.cfg.Authorize == nil || s.decide(r, Action{Verb: Read, Name: name}) == nil
}

// checkSite refuses what a web page of another site may make a user's browser send.
func (s *Server) checkSite(r *http.Request) error {
	if err := s.checkHost(r); err != nil {
		return err
	}
	if err := s.crossOrigin.Check(r); err != nil {
		return errors.New("cross-origin requests may not change anything here")
	}
	return nil
}

// checkHost prevents DNS rebinding: an attacker who points a name of their own at this server
// causes requests with that name in the Host header. Load balancers ask for the state of a server by its address.
func (s *Server) checkHost(r *http.Request) error {
	if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
		return nil
	}
	host := hostOnly(r.Host)
	if len(s.cfg.Hosts) > 0 {
		if slices.ContainsFunc(s.cfg.Hosts, func(h string) bool { return isHost(h, host) }) {
			return nil
		}
		return errors.New("the Host header names a host that is not among Config.Hosts (--host)")
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && isLoopback(local) && !isLoopbackName(host) {
		return errors.New("the Host header must name the loopback on a loopback connection")
	}
	return nil
}

// isHost reports whether host is the one that name means. The wildcard of "*.example.com" stands for
// exactly one label, as in certificates (RFC 6125, 6.4.3).
func isHost(name, host string) bool {
	if domain, ok := strings.CutPrefix(name, "*."); ok {
		label, rest, _ := strings.Cut(host, ".")
		return label != "" && strings.EqualFold(rest, domain)
	}
	return strings.EqualFold(name, host)
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func isLoopbackName(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isLoopback reports whether only this host can reach the address.
func isLoopback(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return false // a Unix socket has no Host to check
	default:
		return false
	}
}

// readBody reads the whole body before a slot in a lane is taken, so that a slow sender delays
// only itself. It reads the body even if no handler uses it: net/http waits for the announced
// bytes before it sends an answer.
func (s *Server) readBody(r *request) error {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return &refusal{http.StatusUnsupportedMediaType, errors.New("compressed bodies are not accepted")}
	}
	// MaxBytesReader needs the writer of net/http to close the connection of a body that is too long.
	body, err := io.ReadAll(http.MaxBytesReader(r.answer.ResponseWriter, r.Body, maxBody))
	if err != nil {
		return bodyError(err)
	}
	if len(body) > 0 && r.route.method != http.MethodPost && r.route.method != http.MethodPut {
		return invalid("body", fmt.Sprintf("%d bytes", len(body)), "empty: the parameters are in the path and the query")
	}
	r.body = body
	return nil
}

func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &tooBigError{tooLarge.Limit}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return &refusal{http.StatusRequestTimeout, errors.New("the body did not arrive in time")}
	}
	return &refusal{http.StatusBadRequest, errors.New("the body could not be read")}
}
