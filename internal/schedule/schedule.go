// Package schedule keeps things in the order of the times at which they are due.
package schedule

import "container/heap"

// Entry is the place of its owner in a schedule. I is the type of an instant.
type Entry[I ~int64, O any] struct {
	Owner O
	at    I
	index int // in the heap, plus 1; 0: it is in no schedule
}

// At returns when the entry is due, or was due last.
func (e *Entry[I, O]) At() I { return e.at }

// Schedule has entries, soonest first. The zero value is empty.
type Schedule[I ~int64, O any] struct{ entries entries[I, O] }

// Len returns the number of entries.
func (s *Schedule[I, O]) Len() int { return len(s.entries) }

// First returns the entry that is due first. There has to be one.
func (s *Schedule[I, O]) First() *Entry[I, O] { return s.entries[0] }

// Put adds an entry, or moves it.
func (s *Schedule[I, O]) Put(e *Entry[I, O], at I) {
	e.at = at
	if e.index == 0 {
		heap.Push(&s.entries, e)
	} else {
		heap.Fix(&s.entries, e.index-1)
	}
}

// Remove removes an entry, if it is there.
func (s *Schedule[I, O]) Remove(e *Entry[I, O]) {
	if e.index > 0 {
		heap.Remove(&s.entries, e.index-1)
	}
}

// entries implements heap.Interface.
type entries[I ~int64, O any] []*Entry[I, O]

func (s entries[I, O]) Len() int           { return len(s) }
func (s entries[I, O]) Less(i, j int) bool { return s[i].at < s[j].at }
func (s entries[I, O]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i+1, j+1
}

func (s *entries[I, O]) Push(x any) {
	e := x.(*Entry[I, O]) //nolint:forcetypeassert // only entries are pushed
	*s = append(*s, e)
	e.index = len(*s)
}

func (s *entries[I, O]) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	e.index = 0
	return e
}
