package tap

import (
	"errors"
	"fmt"
	"os"
)

// File is an output of bounded size: at most bytes what was written so far is renamed, with .1 behind its name, in the place of what
// was renamed before, and the file begins anew. It belongs to one goroutine.
type File struct {
	name string
	most int64
	f    *os.File
	size int64
}

// OpenFile appends to a file, which nobody else may read: records can be in it.
func OpenFile(name string, most int64) (*File, error) {
	f := &File{name: name, most: most}
	return f, f.open()
}

func (f *File) open() error {
	file, err := os.OpenFile(f.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	f.f, f.size = file, info.Size()
	return nil
}

// Write appends b, which is never divided among two files.
func (f *File) Write(b []byte) (int, error) {
	if f.size > 0 && f.size+int64(len(b)) > f.most {
		if err := f.turn(); err != nil {
			return 0, fmt.Errorf("begin the file anew: %w", err)
		}
	}
	n, err := f.f.Write(b)
	f.size += int64(n)
	return n, err
}

// turn puts the file aside.
func (f *File) turn() error {
	return errors.Join(f.f.Close(), os.Rename(f.name, f.name+".1"), f.open())
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
