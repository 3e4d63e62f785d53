package access

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// Issuer makes tokens: an OpenID provider (OpenID Connect Discovery 1.0), such as a CI service or a
// Kubernetes API server.
type Issuer struct {
	// URL is its identifier, which is the claim "iss" of its tokens.
	URL string
	// Audience is what the claim "aud" of a token must contain.
	Audience string
	// CA is the path of a PEM file with the authority of its certificate; empty: those of the system.
	CA string
}

// Verifier verifies a token: its signature by a key of the issuer, its audience, and that it has not
// expired. It returns the subject of the token, and is safe for concurrent use.
//
// Errors: *backend.UnavailableError when the keys of the issuer cannot be read; server.ErrExpired; any other error
// says why the token is not valid, and does not contain it.
type Verifier func(ctx context.Context, by Issuer, token string) (subject string, err error)

// issuerText is an issuer in the file.
type issuerText struct {
	URL      string `yaml:"url"`
	Audience string `yaml:"audience"`
	CA       string `yaml:"ca"`
}

// subject is whom a token is for. The same text is another subject at another issuer.
type subject struct{ issuer, text string }

// issued are the tokens of issuers.
type issued struct {
	names  map[string]Issuer // by their names in the file
	byURL  map[string]string // those names, by URL
	owners map[subject]string
	verify Verifier
}

// enter adds the issuers.
func (t *issued) enter(all map[string]issuerText) error {
	t.names, t.byURL, t.owners = make(map[string]Issuer), make(map[string]string), make(map[subject]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := checkWord("issuers", name); err != nil {
			return err
		}
		i, field := all[name], "issuers."+name
		if !isIssuer(i.URL) {
			return invalid(field+".url", strconv.Quote(i.URL), "the https URL of an issuer (http on this host), without a query")
		}
		if i.Audience == "" {
			return invalid(field+".audience", `""`, "what tokens for this server have as their audience: without one, a token for another service would do")
		}
		if other, taken := t.byURL[i.URL]; taken {
			return invalid(field+".url", strconv.Quote(i.URL), "not also that of "+other)
		}
		t.byURL[i.URL], t.names[name] = name, Issuer(i)
	}
	return nil
}

func isIssuer(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	here := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	return u.Scheme == "https" || u.Scheme == "http" && here
}

// name adds the subjects of a principal.
func (t *issued) name(field, principal string, subjects map[string][]string) error {
	for _, issuer := range slices.Sorted(maps.Keys(subjects)) {
		field := field + ".subjects." + issuer
		if _, ok := t.names[issuer]; !ok {
			return invalid(field, strconv.Quote(issuer), "an issuer of the file")
		}
		for _, text := range subjects[issuer] {
			if text == "" {
				return invalid(field, `""`, "the subject of a token")
			}
			key := subject{issuer, text}
			if other, taken := t.owners[key]; taken {
				return invalid(field, strconv.Quote(text), "not also that of "+other)
			}
			t.owners[key] = principal
		}
	}
	return nil
}

// mayHave reports whether a token may be that of an issuer: a JWT (RFC 7519) has three parts.
func (t *issued) mayHave(token string) bool {
	return len(t.names) > 0 && strings.Count(token, ".") == 2
}

// principal returns whose token it is.
func (t *issued) principal(ctx context.Context, token string) (string, error) {
	issuer, ok := t.byURL[issuerOf(token)]
	if !ok || t.verify == nil {
		return "", unauthenticated("the token is that of no principal, and of no issuer")
	}
	text, err := t.verify(ctx, t.names[issuer], token)
	switch {
	case errors.Is(err, backend.ErrUnavailable):
		return "", err
	case err != nil:
		return "", unauthenticated("the token of %s is not valid: %w", issuer, err)
	}
	name, ok := t.owners[subject{issuer, text}]
	if !ok {
		return "", unauthenticated("no principal has the subject %.200q of %s", text, issuer)
	}
	return name, nil
}

// issuerOf returns the issuer that a token names, which only says whose keys to verify it with.
func issuerOf(token string) string {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// with adds who verifies tokens.
func (t *issued) with(v Verifier) error {
	if len(t.names) > 0 && v == nil {
		return invalid("issuers", fmt.Sprintf("%d issuers", len(t.names)), "none: this program verifies no tokens of issuers (see Options.Verify)")
	}
	t.verify = v
	return nil
}
