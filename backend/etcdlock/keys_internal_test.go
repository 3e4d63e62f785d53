package etcdlock

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

func TestKeysAreInOrderOfTheNames(t *testing.T) {
	t.Parallel()
	names := []string{"a", "a b", "a!", "a%2Fb", "a.b", "a/b", "a/b/c", "a/bc", "a0", "aa", "b", "é", "日本/1", "a\u00a0"}
	byName := slices.Sorted(slices.Values(names))
	byKey := slices.Clone(names)
	slices.SortFunc(byKey, func(x, y string) int {
		return strings.Compare(
			keys{"p/"}.entry(x, "zzz", backend.Exclusive, 0), keys{"p/"}.entry(y, "000", backend.Exclusive, 0))
	})
	if !slices.Equal(byName, byKey) {
		t.Errorf("in order of the keys: %q; of the names: %q", byKey, byName)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("order:1", "p", 0)
	f.Add("a/b", "q/s/", 7)
	f.Add("a%2Fb\x00", "holdfast", 1<<20)
	f.Add("\x00x", "x", 1)
	f.Fuzz(func(t *testing.T, name, prefix string, limit int) {
		k := keys{prefix + "/"}
		if got, ok := k.parse(name); ok && backend.ValidateName(got.name) == nil && !strings.HasPrefix(name, prefix) {
			t.Errorf("the key %q is read as of lock %q, in a prefix that it does not have", name, got.name)
		}
		if backend.ValidateName(name) != nil || strings.Contains(prefix, "\x00") {
			return
		}
		limit &= backend.MaxLimit
		for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} {
			want := limit
			if mode == backend.Exclusive {
				want = 0
			}
			key := k.entry(name, "slot-1", mode, want)
			if got, ok := k.parse(key); !ok || got.name != name || got.limit != want || got.slot != "slot-1" {
				t.Errorf("%q becomes %q: %+v, %v", name, key, got, ok)
			}
		}
	})
}

func TestURL(t *testing.T) {
	t.Parallel()
	got, err := parseURL("etcds://u%40x:p%3Aw@h1,h2:99,[::1]:5?prefix=a%2Fb&timeout=2s&min_ttl=1s&server_name=s", Config{})
	if err != nil || !slices.Equal(got.endpoints, []string{"h1:2379", "h2:99", "[::1]:5"}) || got.user != "u@x" || got.password != "p:w" || got.cfg.Prefix != "a/b" || got.tls == nil {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "etcd:", "etcd://", "http://h:1", "etcd://h:0", "etcd://h:70000", "etcd://h:x", "etcd://h,", "etcd://h,h", "etcd://::1",
		"etcd://h/path", "etcd://h?prefix=", "etcd://h?color=red", "etcd://h?prefix=a&prefix=b", "etcd://h?timeout=5", "etcd://h?timeout=-1s",
		"etcd://h?ca=x", "etcds://h?cert=x", "etcd://h#x", "etcd://secret@h?nope=1", "etcd://:secret@h", "etcd://h\n", "etcd://h?%zz",
	} {
		_, err := parseURL(bad, Config{})
		if !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: %v; it has to be refused", bad, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells the password: %v", bad, err)
		}
	}
}

func FuzzURL(f *testing.F) {
	f.Add("etcd://h1:1,h2:2?prefix=x")
	f.Add("etcds://u:canary@[::1]:2379?timeout=1s")
	f.Add("etcd://canary:canary@/?x=canary")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := parseURL(raw, Config{})
		if err != nil && !errors.Is(err, backend.ErrInvalid) || err == nil && (len(got.endpoints) == 0 || slices.Contains(got.endpoints, "")) {
			t.Errorf("%q: hosts %q, %v", raw, got.endpoints, err)
		}
	})
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"3.4.23": false, "3.4.42": true, "3.5.27": false, "3.5.28": true, "3.6.8": false, "3.6.9": true, "3.7.0": true,
		"3.3.27": false, "3.6.9-rc.0": true, "4.0.0": true, "unknown": true, "2.3.8": false,
	} {
		if got := versionSound(version); got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
}
