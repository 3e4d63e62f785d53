package access

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/server"
)

// Verb is what a grant allows.
type Verb string

// The verbs.
const (
	Acquire Verb = "acquire"
	Read    Verb = "read"
	Break   Verb = "break"

	// unknown is the verb of an action that this package does not know. No grant can have it.
	unknown Verb = "unknown"
)

// Verbs returns all verbs.
func Verbs() []Verb { return []Verb{Acquire, Read, Break} }

const (
	// everything stands for all locks, and for all principals.
	everything = "*"
	// groupPrefix begins the name of a group in a grant.
	groupPrefix = "group:"
	// maxTokens is how many tokens of a principal are valid at the same time.
	maxTokens = 2
	// maxFile bounds a policy, in bytes.
	maxFile = 4 << 20
)

// document is the file.
type document struct {
	Issuers    map[string]issuerText `yaml:"issuers"`
	Principals map[string]identities `yaml:"principals"`
	Groups     map[string][]string   `yaml:"groups"`
	Grants     []grantText           `yaml:"grants"`
	Limits     []limitText           `yaml:"limits"`
}

// identities are how a principal is recognised.
type identities struct {
	Certificates []string `yaml:"certificates"`
	Tokens       []string `yaml:"tokens"`
	UIDs         []uint32 `yaml:"uids"`
	// Subjects are those of tokens, by the name of their issuer.
	Subjects map[string][]string `yaml:"subjects"`
}

type grantText struct {
	To    []string `yaml:"to"`
	Locks []string `yaml:"locks"`
	Verbs []Verb   `yaml:"verbs"`
}

type limitText struct {
	To           []string         `yaml:"to"`
	server.Quota `yaml:",inline"` // the keys are its fields, in small letters
}

// tokenHash is the SHA-256 of a token.
type tokenHash [32]byte

// Policy is what a file says. It does not change, and is safe for concurrent use.
type Policy struct {
	principals map[string][]grant
	byName     map[certName]string // principals by what client certificates call them
	byToken    map[tokenHash]string
	byUID      map[uint32]string
	quotas     map[string]server.Quota
	issued     issued
}

// grant is one that a principal has.
type grant struct {
	number int // in the file, from 1
	locks  []string
	verbs  []Verb
}

// Parse reads a policy.
//
// Errors: *backend.InvalidError, which names the place in the file, and says what belongs there. The
// syntax errors of YAML name the line.
func Parse(text []byte) (*Policy, error) {
	if len(text) > maxFile {
		return nil, invalid("policy", fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("at most %d bytes", maxFile))
	}
	var d document
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, invalid("policy", "given", "YAML with the keys that are documented: "+strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n ", ""))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, invalid("policy", "given", "one YAML document")
	}
	p := &Policy{
		principals: make(map[string][]grant), byName: make(map[certName]string),
		byToken: make(map[tokenHash]string), byUID: make(map[uint32]string), quotas: make(map[string]server.Quota),
	}
	if err := p.issued.enter(d.Issuers); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(d.Principals)) {
		if err := p.enter(name, d.Principals[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Groups)) {
		if err := p.checkGroup(name, d.Groups[name]); err != nil {
			return nil, err
		}
	}
	for i, g := range d.Grants {
		if err := p.give(i+1, g, d.Groups); err != nil {
			return nil, err
		}
	}
	for i, l := range d.Limits {
		if err := p.limit(i+1, l, d.Groups); err != nil {
			return nil, err
		}
	}
	if len(p.principals) == 0 { // a file is empty for a moment while it is copied over
		return nil, invalid("principals", "none", "at least one: a policy without any lets nobody in")
	}
	return p, nil
}

// enter adds a principal.
func (p *Policy) enter(name string, ids identities) error {
	if err := checkWord("principals", name); err != nil {
		return err
	}
	p.principals[name] = nil
	field := "principals." + name
	for _, san := range ids.Certificates {
		key, ok := nameOf(san)
		if !ok {
			return invalid(field+".certificates", strconv.Quote(san), "a DNS name, a URI or an e-mail address")
		}
		if other, taken := p.byName[key]; taken {
			return invalid(field+".certificates", strconv.Quote(san), "not also that of "+other)
		}
		p.byName[key] = name
	}
	if len(ids.Tokens) > maxTokens {
		return invalid(field+".tokens", fmt.Sprintf("%d tokens", len(ids.Tokens)), fmt.Sprintf("at most %d", maxTokens))
	}
	for i, text := range ids.Tokens {
		field := fmt.Sprintf("%s.tokens[%d]", field, i+1)
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(tokenHash{}) {
			return invalid(field, "given", "the SHA-256 of a token, 64 hexadecimal digits") // it may be the token itself
		}
		if other, taken := p.byToken[tokenHash(raw)]; taken {
			return invalid(field, "given", "not also that of "+other)
		}
		p.byToken[tokenHash(raw)] = name
	}
	for _, uid := range ids.UIDs {
		if other, taken := p.byUID[uid]; taken {
			return invalid(field+".uids", strconv.FormatUint(uint64(uid), 10), "not also that of "+other)
		}
		p.byUID[uid] = name
	}
	return p.issued.name(field, name, ids.Subjects)
}

func (p *Policy) checkGroup(name string, members []string) error {
	if err := checkWord("groups", name); err != nil {
		return err
	}
	for _, m := range members {
		if _, ok := p.principals[m]; !ok {
			return invalid("groups."+name, strconv.Quote(m), "a principal of the file")
		}
	}
	return nil
}

// give gives a grant to those that it names.
func (p *Policy) give(number int, g grantText, groups map[string][]string) error {
	field := fmt.Sprintf("grants[%d]", number)
	if len(g.To) == 0 || len(g.Locks) == 0 || len(g.Verbs) == 0 {
		return invalid(field, "given", `with "to", "locks" and "verbs"`)
	}
	for _, v := range g.Verbs {
		if !slices.Contains(Verbs(), v) {
			return invalid(field+".verbs", strconv.Quote(string(v)), fmt.Sprintf("one of %v", Verbs()))
		}
	}
	for _, lock := range g.Locks {
		if lock == "" || backend.ValidatePrefix(lock) != nil || lock != everything && strings.Contains(lock, everything) {
			return invalid(field+".locks", strconv.Quote(lock), `the name of a lock, the beginning of names with "/" or ":" at its end, or "*"`)
		}
	}
	to, err := p.all(field, g.To, groups)
	for name := range to {
		p.principals[name] = append(p.principals[name], grant{number, g.Locks, g.Verbs})
	}
	return err
}

// limit bounds those that it names. What an earlier one bounds stays.
func (p *Policy) limit(number int, l limitText, groups map[string][]string) error {
	field := fmt.Sprintf("limits[%d]", number)
	if len(l.To) == 0 {
		return invalid(field, "given", `with "to"`)
	}
	for name, n := range map[string]int{
		"locks": l.Locks, "waiters": l.Waiters, "requests": l.Requests,
	} {
		if n < 0 {
			return invalid(field+"."+name, strconv.Itoa(n), "1 or more")
		}
	}
	to, err := p.all(field, l.To, groups)
	for name := range to {
		q := p.quotas[name]
		p.quotas[name] = server.Quota{
			Locks: cmp.Or(q.Locks, l.Locks), Waiters: cmp.Or(q.Waiters, l.Waiters), Requests: cmp.Or(q.Requests, l.Requests),
		}
	}
	return err
}

// Quota returns the limits of a principal. A field that is 0 has no limit of its own.
func (p *Policy) Quota(principal string) server.Quota { return p.quotas[principal] }

// all returns the principals that a grant or a limit names, each once.
func (p *Policy) all(field string, names []string, groups map[string][]string) (map[string]struct{}, error) {
	to := make(map[string]struct{})
	for _, name := range names {
		members, err := p.members(field, name, groups)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			to[m] = struct{}{}
		}
	}
	return to, nil
}

// members returns the principals that a name in a grant or a limit stands for.
func (p *Policy) members(field, name string, groups map[string][]string) ([]string, error) {
	if name == everything {
		return slices.Collect(maps.Keys(p.principals)), nil
	}
	if group, ok := strings.CutPrefix(name, groupPrefix); ok {
		members, known := groups[group]
		if !known {
			return nil, invalid(field+".to", strconv.Quote(name), "a group of the file")
		}
		return members, nil
	}
	if _, ok := p.principals[name]; !ok {
		return nil, invalid(field+".to", strconv.Quote(name), `a principal of the file, "group:" and a group, or "*"`)
	}
	return []string{name}, nil
}

// checkWord checks the name of a principal or a group.
func checkWord(field, name string) error {
	const others = "._@-"
	bad := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(others, r)
	}
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, bad) {
		return invalid(field, strconv.Quote(name), `a name of 1 to 64 letters, digits, ".", "_", "@" and "-"`)
	}
	return nil
}

// Decision is whether a principal may do something, and why.
type Decision struct {
	Allowed bool
	// Grant is the number of the grant in the file that allows it, from 1; 0: none.
	Grant int
	// Why is the reason for people.
	Why string
}

// Decide decides whether a principal may do what the verb names to a lock. An empty lock asks
// whether it may do so to any.
func (p *Policy) Decide(principal string, verb Verb, lock string) Decision {
	grants, ok := p.principals[principal]
	if !ok {
		return Decision{Why: fmt.Sprintf("%q is no principal", principal)}
	}
	for _, g := range grants {
		if slices.Contains(g.verbs, verb) && slices.ContainsFunc(g.locks, func(prefix string) bool { return lock == "" || Covers(prefix, lock) }) {
			return Decision{Allowed: true, Grant: g.number, Why: fmt.Sprintf("grant %d allows %s to %s", g.number, principal, verb)}
		}
	}
	return Decision{Why: fmt.Sprintf("no grant allows %s to %s %s", principal, verb, cmp.Or(lock, "any lock"))}
}

// Principals returns the names of all principals, sorted.
func (p *Policy) Principals() []string { return slices.Sorted(maps.Keys(p.principals)) }

// Covers reports whether a lock in a grant stands for the lock with that name: see "Locks".
func Covers(prefix, name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	switch {
	case prefix == everything:
		return true
	case !ok:
		return false
	}
	const ends = "/:"
	return rest == "" || strings.ContainsRune(ends, rune(rest[0])) || strings.ContainsRune(ends, rune(prefix[len(prefix)-1]))
}

func invalid(field, value, bound string) error {
	return &backend.InvalidError{Field: field, Value: value, Bound: bound}
}
