package program_test

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const counting = `
local call, ARGV, full
local runs = 0
local function begin(keys, args, is_full)
  call, ARGV, full = redis.call, args, is_full
end
local function execute(remembers)
  runs = runs + 1
  return {ARGV[1], remembers and 1 or 0, runs, full and 1 or 0}
end
`

// A program is a function of a server that takes functions, and a script otherwise; a server
// whose memory is full is sent the function that adds nothing; one that has forgotten the
// program says so, until it is sent along.
func TestForms(t *testing.T) {
	t.Parallel()
	p, err := program.New(fstest.MapFS{"lua/count.lua": &fstest.MapFile{Data: []byte(counting)}}, "count")
	if err != nil {
		t.Fatal(err)
	}
	for form, args := range map[string][]string{
		"function": nil, "script": {"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-fcall", "-function"},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t, args...)
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			r := program.NewRunner(p)
			run := func(load bool) ([]int64, error) {
				m, err := r.Run(t.Context(), program.NewConn(client, false).Do, load, "id", "k", []string{"7"})
				var all []int64
				for _, item := range m.List {
					n, _ := strconv.ParseInt(item.S, 10, 64)
					all = append(all, max(n, item.N))
				}
				return all, err
			}
			want := func(load bool, want ...int64) {
				t.Helper()
				got, err := run(load)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
			}
			if _, err := run(false); !errors.Is(err, program.ErrUnknown) {
				t.Errorf("before it was sent along: %v", err)
			}
			if form == "script" {
				want(true, 7, 0, 1, 0)
				want(false, 7, 0, 1, 0) // it remembers nothing
				s.Do("CONFIG", "SET", "maxmemory", "1")
				if _, err := run(false); !errors.Is(err, program.ErrUnknown) {
					t.Errorf("the other form, before it was sent along: %v", err)
				}
				want(true, 7, 0, 1, 1)
				want(false, 7, 0, 1, 1)
				s.Do("CONFIG", "SET", "maxmemory", "0")
				s.Do("SCRIPT", "FLUSH")
			} else {
				want(true, 7, 1, 1, 0)
				want(false, 7, 1, 2, 0)
				want(true, 7, 1, 3, 0) // another client was faster
				s.Do("CONFIG", "SET", "maxmemory", "1")
				want(false, 7, 1, 4, 1)
				s.Do("CONFIG", "SET", "maxmemory", "0")
				s.Do("FUNCTION", "FLUSH")
			}
			if _, err := run(false); !errors.Is(err, program.ErrUnknown) {
				t.Errorf("after it was forgotten: %v", err)
			}
		})
	}
}

// What answers at the address may be no Redis.
func TestLastWordsOfAnotherServer(t *testing.T) {
	t.Parallel()
	for sent, end := range map[string]string{"\r\n": "EOF", "-ERR no\r\n": "redis: no", "-ERR no\r\n\r\n": "EOF", "+OK\r\n": "EOF"} {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Write([]byte(sent))
			_ = there.Close()
		}()
		words := program.LastWords(here)
		var err error
		for err == nil {
			_, err = words.Read(make([]byte, 100))
		}
		if err.Error() != end {
			t.Errorf("after %q: %v", sent, err)
		}
	}
}
