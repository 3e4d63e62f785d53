package cli

import "testing"

func TestHasSecret(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{
		"": false, "redis://h": false, "redis://h:1,g:2/0?x=y": false, "postgres://u@h/d?sslmode=disable": false, "holdfasts://a,b?token_file=/a:b@c": false,
		"sqlite:///a/b": false, "redis://:p@h": true, "redis://u:p@h:1,g:2": true, "redis://:%40@h": true, "redis://:p@%zz": true,
		"redis://u:p/q@h": true, "postgres://h/d?user=u&password=p": true, "x://h?sslPassword=p": true, "x://h?token=p": true, "x://h?a=%zz": true,
	} {
		if got := hasSecret(raw); got != want {
			t.Errorf("%q: %v", raw, got)
		}
	}
}
