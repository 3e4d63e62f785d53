package embedded

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/ownfile"
)

// revisionBump is by how much a restore raises the revision at least. Tokens are revisions.
const revisionBump = 1_000_000_000

// Restore creates the data folder of a new cluster of one node from a file that Snapshot wrote.
// The folder must be empty. The node is started afterwards with the same configuration, and
// other nodes join it with empty folders.
//
// Every token that is granted afterwards is above every token that was granted before. Leases
// that were granted after the snapshot are not known: their holders learn of the loss by their
// next renewal, and until then another client can be granted the same lock with a greater
// token. Leases of the snapshot have their whole TTL.
//
// Errors: ErrInvalid; ErrRefused if the folder has data; those of the file system, or of etcd
// for a file that is not a snapshot.
func Restore(cfg Config, file string) error {
	return offline(cfg, func(cfg Config) error {
		if rec, err := readRecord(cfg.DataDir); err != nil || rec != nil {
			return errors.Join(err, fmt.Errorf("%s has the data of a node: restore into an empty folder: %w", cfg.DataDir, ErrRefused))
		}
		if data, err := hasData(cfg.DataDir); err != nil || data {
			return errors.Join(err, fmt.Errorf("%s has the data of a node: restore into an empty folder: %w", cfg.DataDir, ErrRefused))
		}
		return restore(cfg, file, filepath.Join(cfg.DataDir, etcdDir), false)
	})
}

// offline runs f on the folder of a stopped node, under the lock of the folder.
func offline(cfg Config, f func(Config) error) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	if err := makeDir(cfg.DataDir); err != nil {
		return fmt.Errorf("embedded: data folder: %w", err)
	}
	lock, err := lockDir(cfg.DataDir)
	if err != nil {
		return fmt.Errorf("embedded: data folder %s: %w", cfg.DataDir, err)
	}
	defer func() { _ = lock.Close() }()
	if err := f(cfg); err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	return nil
}

// restore writes etcd's data from a file, as a new cluster of this node. It replaces an older
// folder with the new one as a whole.
func restore(cfg Config, file, dir string, ofFolder bool) error {
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if err := wholeSnapshot(file); err != nil {
		return fmt.Errorf("restore %s: %w", file, err)
	}
	token := randomMark()
	manager := snapshot.NewV3(bridge(cfg.Logger))
	status, err := manager.Status(file)
	if err != nil {
		return fmt.Errorf("restore %s: %w", file, err)
	}
	err = manager.Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: cfg.Name, OutputDataDir: fresh, PeerURLs: []string{cfg.peerURL()},
		InitialCluster: cfg.Name + "=" + cfg.peerURL(), InitialClusterToken: token,
		RevisionBump: uint64(restoredRevision(status.Revision, time.Now()) - status.Revision), MarkCompacted: true, //nolint:gosec // positive
	})
	if err != nil {
		return errors.Join(fmt.Errorf("restore %s: %w", file, err), os.RemoveAll(fresh))
	}
	if ofFolder {
		old := fmt.Sprintf("%s.before-%s", dir, time.Now().UTC().Format("20060102T150405.000"))
		if err := os.Rename(dir, old); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
	}
	// At every moment either the data is complete, or a record that states that there was data
	// makes the start refuse.
	rec := &record{State: stateStarted, Name: cfg.Name, URL: cfg.peerURL(), Token: token}
	if err := rec.write(cfg.DataDir); err != nil {
		return err
	}
	return errors.Join(os.Rename(fresh, dir), ownfile.SyncDir(cfg.DataDir))
}

var errNotWhole = errors.New("not a whole snapshot: it does not end with its SHA-256")

// wholeSnapshot reads the file once. To open a part of a database would end the process.
func wholeSnapshot(file string) error {
	f, err := os.Open(file) //nolint:gosec // the operator names it
	if err != nil {
		return err //nolint:wrapcheck // the caller names the file
	}
	defer f.Close() //nolint:errcheck // it was read
	info, err := f.Stat()
	if err != nil {
		return err //nolint:wrapcheck // see above
	}
	h := sha256.New()
	if _, err := io.CopyN(h, f, max(0, info.Size()-sha256.Size)); err != nil {
		return err //nolint:wrapcheck // see above
	}
	if sum, err := io.ReadAll(f); err != nil || !bytes.Equal(sum, h.Sum(nil)) {
		return errors.Join(err, errNotWhole)
	}
	return nil
}

// restoredRevision returns the revision at which data that was saved at a revision continues. It is
// above every revision since, also those of an earlier restore of the same data: etcd makes fewer
// than a million changes a second, and a revision of before is below the microseconds of then, or
// below a billion changes since the data was saved.
func restoredRevision(saved int64, now time.Time) int64 {
	return max(saved+revisionBump, now.UnixMicro())
}

// ReclaimAlone makes a cluster of this node alone from the folder of a node whose cluster has
// lost its majority for good. lost must name every other member. They are given up, and refused
// when they come back. The former contents of the folder are kept beside it.
//
// Changes that a majority without this node has agreed on since are lost: a lock that was
// granted there can be granted again. Every new token is above every token from before, so that
// a resource that checks tokens refuses the former holder. The node and all the others must be
// stopped. ctx bounds the start of etcd.
//
// Errors: ErrInvalid if lost is not the other members; ErrRefused without data; those of etcd.
func ReclaimAlone(ctx context.Context, cfg Config, lost []string) error {
	return offline(cfg, func(cfg Config) error {
		rec, err := readRecord(cfg.DataDir)
		if err != nil {
			return err
		}
		if data, err := hasData(cfg.DataDir); err != nil || !data {
			return errors.Join(err, fmt.Errorf("%s has no data to continue from: %w", cfg.DataDir, ErrRefused))
		}
		others := []string{}
		if rec != nil {
			if rec.Name != cfg.Name {
				return &backend.InvalidError{Field: "name", Value: strconv.Quote(cfg.Name), Bound: "the node's, " + rec.Name}
			}
			for _, m := range rec.Members {
				if m.ID != rec.Member {
					others = append(others, nameOr(m))
				}
			}
		}
		slices.Sort(others)
		given := slices.Sorted(slices.Values(lost))
		if !slices.Equal(others, given) {
			return &backend.InvalidError{Field: "give-up", Value: strconv.Quote(strings.Join(given, ",")), Bound: "all other members, as this node knows them: " + strings.Join(others, ",")}
		}
		return reclaim(ctx, cfg)
	})
}

func nameOr(m recordMember) string {
	if m.Name != "" {
		return m.Name
	}
	return m.ID
}

// reclaim starts etcd by itself, which drops what was never agreed on, and restores the rest.
func reclaim(ctx context.Context, cfg Config) error {
	e := &Etcd{cfg: cfg}
	e.cfg.Cluster, e.cfg.PeerTLS, e.cfg.ListenPeers, e.cfg.ListenClients = nil, nil, "", nil
	defer func() {
		if e.socket != "" {
			_ = os.RemoveAll(e.socket)
		}
	}()
	file := filepath.Join(cfg.DataDir, "reclaim.db")
	// etcd changes the folder that it is started on. It runs on a copy, so that the original
	// can be used again.
	work := filepath.Join(cfg.DataDir, etcdDir+".work")
	if err := errors.Join(os.RemoveAll(work), os.CopyFS(work, os.DirFS(filepath.Join(cfg.DataDir, etcdDir)))); err != nil {
		return err
	}
	defer func() { _ = errors.Join(os.RemoveAll(work), os.Remove(file)) }()
	ec, err := e.config()
	if err != nil {
		return err
	}
	ec.Dir, ec.ForceNewCluster = work, true
	if err := save(ctx, ec, file); err != nil {
		return err
	}
	return restore(cfg, file, filepath.Join(cfg.DataDir, etcdDir), true)
}

// save writes a snapshot of an etcd that it starts for this.
func save(ctx context.Context, ec *embed.Config, file string) error {
	node, err := embed.StartEtcd(ec)
	if err != nil {
		return fmt.Errorf("start etcd alone: %w", err)
	}
	defer node.Close()
	select {
	case <-node.Server.ReadyNotify():
	case <-node.Server.StopNotify():
		return errors.New("etcd stopped while it started; the log says why")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c := v3client.New(node.Server)
	defer func() { _ = c.Close() }()
	r, err := c.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer func() { _ = r.Close() }()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // in the data folder
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}
