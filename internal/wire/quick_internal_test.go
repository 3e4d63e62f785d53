package wire

import (
	"testing"
	"unicode/utf8"
)

// FuzzQuick: a body that quick accepts, scan accepts too.
func FuzzQuick(f *testing.F) {
	for _, body := range []string{
		`{}`, ` { "ttl" : "30s" , "limit" : 3 } `, `{"a":[{"b":"c","d":true},{"b":false}],"e":[]}`, `{"a":[[[1]]]}`, `{"a":[[[[1]]]]}`, `{"a":{"b":{"c":{}}}}`,
		`{"a":1,"a":2}`, `{"ttl":"x"}`, `{"ttl":30}`, `{"a":null}`, `{"A":1}`, `{"":1}`, `{}{}`, `{"a":1`, `{"a":tru}`, `{"a":01}`, `{"a":1.5}`, `{"a":"\n"}`, `{"a":"\\"}`,
		`{"a":1,}`, `{"a":[1,]}`, `{"a" 1}`, `[]`, `"x"`, ``, `{"a":12 3}`, "{\"a\":\"\x00\"}", "{\"a\":\x00}", "{}\x00",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if utf8.Valid(body) && quick(body) {
			if err := scan(body); err != nil {
				t.Fatalf("%q passes, and %v", body, err)
			}
		}
	})
}

// The bodies of our own clients are quick.
func TestQuick(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{}`: true, `{"ttl":"30s","wait":"1m30s","owner":"ö","limit":3,"shared":true,"note":"x y","lease":"abc_D-1"}`: true,
		`{"leases":[{"name":"a/b","lease":"l","ttl":"30s"},{"name":"","lease":"l"}]}`: true,
		`{"acquire":[{"name":"x","lease":"l","shared":false}],"release":[]}`:          true,
		`{"a":"\u00e9"}`: false, `{"a":1,"a":1}`: false, `{"ttl":""}`: false, `{"a":0}`: false, "{\"a\":\"\t\"}": false, `{"a":[1,2}`: false,
	} {
		if quick([]byte(body)) != want {
			t.Errorf("%s: %v", body, !want)
		}
	}
}
