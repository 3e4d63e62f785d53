//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock

// OnStep calls f between the steps of a write: "locked", "decided", "written", "renamed", "synced".
func (b *Backend) OnStep(f func(step string)) { b.step = f }

// Reboot makes b a process of another boot, whose clock begins at 0.
func (b *Backend) Reboot() {
	began, now := b.clock.now(), b.clock.now
	b.clock = clock{boot: "another", now: func() instant { return now() - began }}
}

// RecordOf returns the path of the record of a name, within the directory.
func RecordOf(name string) string { return digest([]byte(name)) + "/" + recordFile }
