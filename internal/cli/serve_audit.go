package cli

import (
	"io"
	"os"
	"sync"
	"time"
)

// auditFile appends lines to a file. When the file is renamed or removed, as programs do that rotate logs,
// the lines go to a new one within a second. A line that the file does not take, because the disk is full, goes to
// spare.
type auditFile struct {
	path  string
	spare io.Writer

	mu     sync.Mutex
	file   *os.File
	looked time.Time
}

func openAudit(path string, spare io.Writer) (*auditFile, error) {
	f := &auditFile{path: path, spare: spare}
	if err := f.open(); err != nil {
		return nil, usageError("audit", "%q: must be a file that can be written: %v", path, err)
	}
	return f, nil
}

func (f *auditFile) open() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		f.file, f.looked = file, time.Now()
	}
	return err
}

// Write implements io.Writer. If there can be no new file, the lines go to the old one.
func (f *auditFile) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.file; time.Since(f.looked) >= time.Second {
		f.looked = time.Now()
		if f.moved() && f.open() == nil {
			_ = old.Close() // each line was written
		}
	}
	n, err := f.file.Write(line)
	if err != nil {
		return f.spare.Write(line)
	}
	return n, nil
}

// moved reports whether the path names another file, or none.
func (f *auditFile) moved() bool {
	there, err := os.Stat(f.path)
	if err != nil {
		return os.IsNotExist(err)
	}
	open, err := f.file.Stat()
	return err == nil && !os.SameFile(there, open)
}

func (f *auditFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.file.Close() // each line was written
}
