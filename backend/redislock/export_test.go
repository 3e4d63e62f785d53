package redislock

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Internals that the tests look at.

// ParsePush reads a push.
func ParsePush(payload string) bool {
	_, ok := parsePush(payload)
	return ok
}

// ParseEvent reads an event.
func ParseEvent(payload string) (backend.Event, bool) { return parseEvent(payload) }

// ParsedURL is what a URL says, in words.
type ParsedURL struct {
	Address, Username, Password, ServerName, ClientName string
	DB                                                  int
	TLS, Socket                                         bool
	Config                                              Config
}

// ParseURL reads a URL.
func ParseURL(raw string) (ParsedURL, error) {
	t, err := parseURL(raw, Config{})
	if err != nil {
		return ParsedURL{}, err
	}
	o := t.option
	p := ParsedURL{
		Address: o.InitAddress[0], Username: o.Username, Password: o.Password, ClientName: o.ClientName, DB: o.SelectDB,
		TLS: o.TLSConfig != nil, Socket: o.DialCtxFn != nil, Config: t.cfg,
	}
	if p.TLS {
		p.ServerName = o.TLSConfig.ServerName
	}
	return p, nil
}

// Reply is an answer of the server.
type Reply = reply

// Text, Int and List make replies.
func Text(s string) Reply { return reply{s: s} }

// Int is a number.
func Int(n int64) Reply { return reply{kind: intReply, n: n} }

// List is a list.
func List(list ...Reply) Reply { return reply{kind: listReply, list: list} }

// DecodeAll decodes an answer in every way that there is, and returns what the decoders
// made of it.
func DecodeAll(answer []Reply) []error {
	var errs []error
	d := decoder{list: answer}
	d.lock()
	errs = append(errs, d.err)
	d = decoder{list: answer}
	d.grant()
	errs = append(errs, d.err)
	d = decoder{list: answer}
	d.holder(d.items())
	errs = append(errs, d.err)
	for _, timed := range []int{0, 1, 2} {
		_, err := decodeRenewal(answer, backend.RenewRequest{Session: "s", Leases: make([]backend.TimedRenewal, timed)})
		errs = append(errs, err)
	}
	errs = append(errs, refusal("test", &decoder{list: answer}, "name", 1))
	if v := (&Backend{}).judge(answer, time.Time{}); v != nil {
		errs = append(errs, v.err)
	}
	for i := range 2 {
		_, err := answerOf(answer, i)
		errs = append(errs, err)
	}
	return errs
}
