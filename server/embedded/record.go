package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/holdfast-io/holdfast/internal/ownfile"
)

// recordFile is in the data folder, beside etcd's data.
const recordFile = "node.json"

// The states of a record.
const (
	stateForming = "forming" // a new cluster of this node alone is about to start
	stateJoining = "joining" // a cluster has admitted this node; it has not started yet
	stateStarted = "started" // etcd has run here
)

// record is what this node knows of itself without etcd. With it, a start can be refused before
// etcd, which trusts its folder, talks to a peer. Each state is on the disk before it can
// become true.
type record struct {
	Format int    `json:"format"`
	State  string `json:"state"`
	// Cluster and Member are the IDs in hexadecimal, or "" while they are not known.
	Cluster string `json:"cluster,omitempty"`
	Member  string `json:"member,omitempty"`
	Name    string `json:"name"`
	URL     string `json:"url"`
	// Token of the cluster that is formed. It is random, so that no two clusters have the same
	// ID.
	Token string `json:"token,omitempty"`
	// Members of the cluster, this node included, as it last knew them.
	Members []recordMember `json:"members,omitempty"`
	// Boots is the last start of each member that this node knows of, by member ID.
	Boots map[string]boot `json:"boots,omitempty"`
	// Next is a start of this node that the cluster may already know of.
	Next *boot `json:"next,omitempty"`
	// Places distinguishes each folder of etcd from its copies.
	Places map[string]string `json:"places,omitempty"`
}

type recordMember struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	URL  string `json:"url"`
}

// boot is one start of a member. The number grows with each start, and the mark is random: two
// processes that start from copies of one folder have the same number but not the same mark.
type boot struct {
	Number uint64 `json:"number"`
	Mark   string `json:"mark"`
}

const recordFormat = 1

// readRecord reads the record. It returns nil if there is none.
func readRecord(dir string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordFile)) //nolint:gosec // the folder is the operator's choice
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // none is no error
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", recordFile, err)
	}
	if r.Format != recordFormat {
		return nil, fmt.Errorf("%s: its format is %d, and this program knows %d", recordFile, r.Format, recordFormat)
	}
	return &r, nil
}

// write replaces the file. When it returns, the new file survives a crash.
func (r *record) write(dir string) error {
	r.Format = recordFormat
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", recordFile, err)
	}
	return ownfile.Replace(filepath.Join(dir, recordFile), append(data, '\n'))
}

// alone reports whether the cluster consists of this node only, as far as it knows.
func (r *record) alone() bool { return len(r.Members) <= 1 }

func hexID(id uint64) string { return strconv.FormatUint(id, 16) }

func parseID(s string) uint64 {
	id, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0 // no member has the ID 0
	}
	return id
}

// randomMark is 128 random bits.
func randomMark() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}
