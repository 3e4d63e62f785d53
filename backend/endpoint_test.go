package backend_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

func TestEndpoint(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"a": "a:7", "a:1": "a:1", "[::1]": "[::1]:7", "[::1]:9": "[::1]:9", "1.2.3.4": "1.2.3.4:7", "a.b-c_d:65535": "a.b-c_d:65535",
		"": "", "::1": "", ":1": "", "a:": "", "a:0": "", "a:65536": "", "a:b": "", "a b": "", "u@a": "", "a/b": "", "[a": "", "a]": "", "[]": "", "a:1:2": "",
	} {
		got, ok := backend.Endpoint(given, "7")
		if got != want || ok != (want != "") {
			t.Errorf("Endpoint(%q) = %q, %t; want %q", given, got, ok, want)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	for _, s := range []string{"a", "a:1", "[::1]:9", "::1", "[a]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := backend.Endpoint(s, "7")
		if !ok {
			return
		}
		if again, ok := backend.Endpoint(got, "8"); !ok || again != got {
			t.Errorf("Endpoint(%q) = %q, of which it makes %q, %t", s, got, again, ok)
		}
	})
}
