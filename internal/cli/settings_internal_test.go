package cli

import (
	"testing"

	"github.com/spf13/pflag"
)

// FuzzSettings: no file crashes the parser, and each entry has a key, a line and, unless it is an empty
// list, a value.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{"name: a\n", "host: [a, b]\n", "a: &x b\nc: *x\n", "? [a]\n: b\n", "<<: {a: b}\n", "---\n", "a: !!binary x\n", "%YAML 1.2\n---\na: b\n", "\ufeffa: b", "~: b"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseSettings(data)
		for _, e := range entries {
			if err != nil || e.line < 1 || len(e.values) == 0 && !e.list {
				t.Errorf("%q: %+v, %v", data, e, err)
			}
		}
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		flags.String("name", "", "")
		flags.StringSlice("host", nil, "")
		flags.Bool("anonymous", false, "")
		_ = readFile(flags, "f", data, make(map[string]string))
	})
}
