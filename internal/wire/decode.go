package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast/backend"
)

// Decode decodes one JSON object into v. An empty body is an empty object. On an error v may have been changed in
// part.
//
// Errors: *backend.InvalidError.
func Decode(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if !utf8.Valid(body) {
		return &backend.InvalidError{Field: "body", Value: "given", Bound: "valid UTF-8"}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	const object = "one JSON object with the fields that are documented"
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return &backend.InvalidError{Field: wrong.Field, Value: wrong.Value, Bound: bound(wrong.Type)}
	} else if ok {
		return &backend.InvalidError{Field: "body", Value: wrong.Value, Bound: object}
	}
	if err != nil {
		return &backend.InvalidError{Field: "body", Value: "given", Bound: object + ": " + strings.TrimPrefix(err.Error(), "json: ")}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return &backend.InvalidError{Field: "body", Value: "given", Bound: object + ": there is more after it"}
	}
	return nil
}

// bound says which values a field of the type has.
func bound(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // requests have no others
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Int64:
		return `a string like "30s"`
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}
