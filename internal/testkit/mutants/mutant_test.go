package main

import "testing"

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse("x", "A comment.\n\n== one\nfile a/b.go\ntests TestA\n--- old\n\tif x {\n--- new\n\tif true {\n\n== two\nfile a/lua/c.lua\npkg d\ntests TestB\n--- old\ny\n--- new\n")
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if m := got[0]; m.name != "one" || m.file != "a/b.go" || m.pkg != "a" || m.old != "\tif x {" || m.new != "\tif true {" {
		t.Errorf("%+v", m)
	}
	if m := got[1]; m.name != "two" || m.pkg != "d" || m.old != "y" || m.new != "" {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"== one", "== one\nfile a\ntests b\n--- old\nx\n--- new\nx", "== one\nwhat a\n--- old\nx\n--- new\ny"} {
		if _, err := parse("x", bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
