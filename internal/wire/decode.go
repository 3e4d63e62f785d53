package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxDepth is how deep the values of a request may be nested. Ours need 3.
const MaxDepth = 4

// DecodeError says what is wrong with a body. Its text may be sent to the client.
type DecodeError struct {
	Field string // "ttl", or "body" if it is no single field
	Why   string
}

// Error returns Why.
func (e *DecodeError) Error() string { return e.Why }

func bad(format string, args ...any) error {
	return &DecodeError{Field: "body", Why: fmt.Sprintf(format, args...)}
}

// Decode decodes one JSON object into v, strictly. An empty body is an empty object. Errors:
// *DecodeError. On an error v may have been changed in part.
func Decode(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	if !utf8.Valid(body) {
		return bad("body: must be valid UTF-8")
	}
	if !quick(body) {
		if err := scan(body); err != nil {
			return err
		}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return bad("body: %s", decodeText(err))
	}
	return nil
}

func decodeText(err error) string {
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("field %q: must not be a %s", typeErr.Field, typeErr.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// scan refuses what encoding/json accepts: doubled keys, keys of another case, null, trailing
// data, broken surrogates, and depth.
func scan(body []byte) error {
	if err := scanEscapes(body); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	s := scanner{dec: dec}
	tok, err := dec.Token()
	if err != nil {
		return bad("body: %s", decodeText(err))
	}
	if tok != json.Delim('{') {
		return bad("body: must be a JSON object")
	}
	if err := s.object(1); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("body: must end after the first JSON object")
	}
	return nil
}

type scanner struct{ dec *json.Decoder }

func (s scanner) object(depth int) error {
	seen := make(map[string]struct{})
	for s.dec.More() {
		tok, err := s.dec.Token()
		if err != nil {
			return bad("body: %s", decodeText(err))
		}
		key, _ := tok.(string)
		if _, doubled := seen[key]; doubled {
			return bad("body: field %.40q stands there twice", key)
		}
		seen[key] = struct{}{}
		if strings.ContainsFunc(key, func(c rune) bool { return c != '_' && (c < 'a' || c > 'z') }) {
			return bad("body: unknown field %.40q", key)
		}
		read := func() error { return s.value(depth) }
		if key == "ttl" || key == "wait" {
			read = func() error { return s.duration(key) }
		}
		if err := read(); err != nil {
			return err
		}
	}
	return s.end()
}

// duration reads a value that must be a duration, so that the error can name the field.
func (s scanner) duration(field string) error {
	tok, err := s.dec.Token()
	if err != nil {
		return bad("body: %s", decodeText(err))
	}
	if tok == nil {
		return &DecodeError{Field: field, Why: field + ": null is not a value here"}
	}
	text, ok := tok.(string)
	if _, err := time.ParseDuration(text); !ok || err != nil {
		return &DecodeError{Field: field, Why: fmt.Sprintf("%s %.40q: must be a string like \"30s\"", field, fmt.Sprint(tok))}
	}
	return nil
}

func (s scanner) array(depth int) error {
	for s.dec.More() {
		if err := s.value(depth); err != nil {
			return err
		}
	}
	return s.end()
}

func (s scanner) end() error {
	if _, err := s.dec.Token(); err != nil {
		return bad("body: %s", decodeText(err))
	}
	return nil
}

func (s scanner) value(depth int) error {
	tok, err := s.dec.Token()
	if err != nil {
		return bad("body: %s", decodeText(err))
	}
	switch tok {
	case nil:
		return bad("body: null is not a value here")
	case json.Delim('{'), json.Delim('['):
		if depth >= MaxDepth {
			return bad("body: nested deeper than %d", MaxDepth)
		}
	}
	switch tok {
	case json.Delim('{'):
		return s.object(depth + 1)
	case json.Delim('['):
		return s.array(depth + 1)
	}
	return nil
}

// scanEscapes refuses half a surrogate pair, which encoding/json would replace.
func scanEscapes(b []byte) error {
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		unit, ok := escapedUnit(b[i:])
		switch {
		case !ok:
			i++ // an escape of one character, or one that the decoder refuses
		case unit >= 0xdc00 && unit < 0xe000:
			return bad("body: must be valid Unicode, without half a surrogate pair")
		case unit >= 0xd800 && unit < 0xdc00:
			low, ok := escapedUnit(b[i+6:])
			if !ok || low < 0xdc00 || low >= 0xe000 {
				return bad("body: must be valid Unicode, without half a surrogate pair")
			}
			i += 11
		default:
			i += 5
		}
	}
	return nil
}

// escapedUnit reads \uXXXX at the start of b.
func escapedUnit(b []byte) (uint16, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var unit uint16
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | uint16(c)
	}
	return unit, true
}
